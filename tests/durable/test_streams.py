"""The text of a durable turn as it arrives through DBOS, whose process is killed while the model writes."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from ctxfold import AgentContext
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from tests.durable import on_dbos
from tests.durable.kills import question
from tests.support.processes import import_once, start

import_once(__name__)

WRITTEN, READ = on_dbos.STREAMED
HEAD, _, REST = on_dbos.APP.split("@DBOS.step()\n", 2)
PROGRAM = f"{HEAD}{WRITTEN}\n\n@DBOS.step()\n{REST}"  # with the page's second `ask` in place of its first
ANSWER = "".join(f"Sentence {number} of a long answer. " for number in range(60))
pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")


class Writer:
    """Says something beside its call, then answers. The first reply of one step, 0 or 1, is so slow that it can be killed."""

    def __init__(self, slow_step: int) -> None:
        self._slow = {slow_step}

    def __call__(self, body: Any) -> Scripted:
        step = int(body["messages"][-1]["role"] == "tool")
        delay_s = 0.2 if step in self._slow else 0.0
        self._slow.discard(step)
        if step:
            return Scripted(ANSWER, chunks=60, chunk_delay_s=delay_s)
        call = ScriptedCall("read_file", json.dumps({"name": "01"}))
        return Scripted("Let me look. " * 60, tool_calls=(call,), chunks=60, chunk_delay_s=delay_s)


def run(store_url: str, system: tuple[str, str], model_url: str, session: str) -> None:
    names = on_dbos.app(store_url, system, model_url, code=PROGRAM)
    on_dbos.launch(names)
    on_dbos.start_turn(names, session, 0, question(0))
    names["DBOS"].destroy()


def follow(system: tuple[str, str], turn_id: str) -> Iterator[str]:
    """Reads as the page's client does, from when the workflow is there."""
    url, schema = system
    deadline = time.monotonic() + 60
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            try:
                found = f"SELECT FROM \"{schema}\".workflow_status WHERE workflow_uuid = '{turn_id}'"
                if connection.execute(found.encode()).rowcount:
                    break
            except psycopg.errors.UndefinedTable:
                assert time.monotonic() < deadline
            time.sleep(0.02)
    names: dict[str, Any] = {"system_url": url}
    _exec(READ.replace("system_url,", f"system_url, dbos_system_schema={schema!r},"), names)
    yield from names["follow"](turn_id)
    names["client"].destroy()


def _exec(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "scaling.md", "exec", dont_inherit=True), names)


@pytest.fixture(scope="module")
def system(postgres_url: str) -> Iterator[tuple[str, str]]:
    with on_dbos.schema(postgres_url) as system:
        yield system


@pytest.mark.parametrize(("step", "seen"), [(0, "Let me look. Let"), (1, "Sentence 5 ")], ids=["first", "last"])
def test_a_client_reads_each_text_once(store_url: str, system: tuple[str, str], step: int, seen: str) -> None:
    shown: list[str] = []
    session, killed = f"s{step}", False
    with ModelServer(model="m", script=Writer(step), strict="openai") as model:
        arguments = (store_url, system, model.base_url, session)
        worker = start(run, *arguments)
        for text in follow(system, f"{session}/turn-0"):
            shown.append(text)
            if not killed and seen in text:
                worker.kill()
                worker.join()
                killed, worker = True, start(run, *arguments)
        worker.join(60)
        assert worker.exitcode == 0
        assert len(model.requests) == 3  # the step that was killed asked twice
    with AgentContext(store=store_url, session_id=session, context_window=4_000, create=False) as ctx:
        told = "".join(m.text for m in ctx.messages() if m.role == "assistant")
    assert killed
    assert shown[-1] == told
    assert any(len(after) <= len(before) for before, after in pairwise(shown))  # the text of its second run begins anew
