"""Turns under DBOS and under LangGraph, killed at random moments and replayed: what is stored is what an unkilled run stores."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.postgres import PostgresSaver

from ctxfold import AgentContext, SqlStore, ToolSpec
from ctxfold.compaction.background import LEASE
from ctxfold.history.records import Compacted, MessageAdded, SessionKey, TurnClosed
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware
from tests.support.pages import examples, page, section
from tests.support.postgres_schema import fresh_schema
from tests.support.processes import import_once, start
from tests.support.summaries import asks_on_live_prefix

import_once(__name__)

DBOS_APP, DBOS_START, LANGGRAPH = examples(section(page("scaling.md"), "## Durable execution"))
KILLS = int(os.environ.get("CTXFOLD_KILLS", "6"))
TURNS = 8
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")


def question(number: int) -> str:
    return f"Q{number:02}: what does file {number} say? " + "Please look. " * 12


def read(name: str) -> str:
    return f"File {name} says K{int(name) * 37:04}. " + f"More of file {name}. " * 60


def play(body: Any) -> Any:
    """Reads the file that the newest question names, then answers; sums up in one line."""
    if asks_on_live_prefix(body) or not body.get("tools"):
        return Scripted("They asked about files.")
    time.sleep(0.02)
    last = body["messages"][-1]
    number = re.findall(r"Q(\d\d)", str([m["content"] for m in body["messages"] if m["role"] == "user"]))[-1]
    if last["role"] == "tool":
        return Scripted(f"File {number} says K{int(number) * 37:04}. " + "It is a long story. " * 10)
    return Scripted(tool_calls=(ScriptedCall("read_file", json.dumps({"name": number})),))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(model="m", script=play, strict="openai") as running:
        yield running


@pytest.fixture
def store_url(postgres_url: str) -> Iterator[str]:
    with fresh_schema(postgres_url) as url:
        yield url


def run_dbos(store_url: str, system_url: str, schema: str, model_url: str, session: str) -> None:
    """Runs the page's workflow for each turn, in a process that may end at any moment."""
    names: dict[str, Any] = {
        "store_url": store_url,
        "model_url": model_url,
        "system_url": system_url,
        "tools": {"read_file": lambda arguments: read(json.loads(arguments)["name"])},
        "specs": [ToolSpec("read_file", "Reads a file.", SCHEMA)],
        "__name__": "durable",
    }
    exec(compile(DBOS_APP, "scaling.md", "exec", dont_inherit=True), names)
    names["config"] |= {"dbos_system_schema": schema, "log_level": "CRITICAL", "console_log_level": "CRITICAL"}
    launch, turn = DBOS_START.split("with SetWorkflowID")
    exec(compile(launch, "scaling.md", "exec", dont_inherit=True), names)
    for number in range(TURNS):
        names |= {"session": session, "turn_id": f"{session}/turn-{number}", "text": question(number)}
        exec(compile(f"with SetWorkflowID{turn}", "scaling.md", "exec", dont_inherit=True), names)
    names["DBOS"].destroy()


def run_langgraph(store_url: str, saver_url: str, model_url: str, thread: str) -> None:
    """Runs the page's agent for each turn, in a process that may end at any moment."""

    @tool
    def read_file(name: str) -> str:
        """Reads a file."""
        return read(name)

    with (
        ChatCtx(model="m", base_url=model_url, api_key="x", max_retries=0) as model,  # type: ignore[arg-type]
        PostgresSaver.from_conn_string(saver_url) as saver,
    ):
        names: dict[str, Any] = {"store_url": store_url, "model": model, "tools": [read_file], "saver": saver}
        exec(compile(LANGGRAPH, "scaling.md", "exec", dont_inherit=True), names)
        for number in range(TURNS):
            names["agent_turn"](names["agent"], thread, f"{thread}-q{number}", question(number))
        names["context"].close()


def killed_until_done(
    work: Callable[..., None],
    *arguments: Any,
    kills: int,
    seconds: float,
    look: Callable[[], None] = lambda: None,
    **options: Any,
) -> int:
    """Starts the work again each time after it was killed, and `look` was called; returns how often that was.

    A process is killed within `seconds` of its start, if it still runs then.
    """
    chance, count = random.Random(str(arguments[-1])), 0
    while True:
        process = start(_run, work, arguments, options)
        process.join(chance.uniform(0.0, seconds) if count < kills else 120.0)
        if process.exitcode is not None:
            assert process.exitcode == 0
            return count
        process.kill()
        process.join()
        count += 1
        look()
        assert count <= kills, "the work does not end"


def _run(work: Callable[..., None], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    work(*arguments, **options)


def told(store_url: str, session: str) -> tuple[Any, ...]:
    """Returns what may not differ: the conversation, the window, and the spans that summaries replaced."""
    with (
        SqlStore(store_url) as store,
        AgentContext(store=store, session_id=session, context_window=4_000, create=False) as ctx,
    ):
        window = [(m.role, m.text) for m in ctx.window().messages]
        messages = [(m.role, m.text) for m in ctx.messages()]
        records = store.read(SessionKey("default", session))
        discarded = {r.turn_id for r in records if isinstance(r.body, TurnClosed) and r.body.status == "discarded"}
        # the node that a checkpoint names begins its turn anew
        added = [r.body.message.id for r in records if isinstance(r.body, MessageAdded) and r.turn_id not in discarded]
        covered = [r.body.covered for r in records if isinstance(r.body, Compacted)]
        texts = {r.body.message.id: r.body.message.text for r in records if isinstance(r.body, MessageAdded)}
        assert len(set(added)) == len(added)
        every = [i for ids in covered for i in ids if i in texts]
        assert len(set(every)) == len(every)  # no span is summarised twice
        return messages, window, [[texts[i] for i in ids if i in texts] for ids in covered]


def is_leased(store_url: str, session: str) -> bool:
    """Returns True where a process that is gone has the lease to summarise the session."""
    key = SessionKey("default", session)
    with SqlStore(store_url) as store:
        free = store.lease(key, LEASE, "the test", now_s=time.time(), ttl_s=1.0)
        store.release(key, LEASE, "the test")
    return not free


def check_nothing_lost(found: tuple[Any, ...], reference: tuple[Any, ...]) -> None:
    """Raises AssertionError unless the messages are the same, and each is either covered by a summary or in the window."""
    (messages, window, covered), expected = found, reference[0]
    assert messages == expected
    texts = [text for texts in covered for text in texts] + [text for role, text in window[1:]]
    assert sorted(text for _, text in expected) == sorted(texts)


def test_dbos(server: ModelServer, store_url: str, postgres_url: str) -> None:
    schema, system_url = f"dbos_{uuid.uuid4().hex[:12]}", postgres_url.replace("+psycopg", "")
    try:
        arguments = (store_url, system_url, schema, server.base_url)
        # the first run makes the tables of DBOS, which the others find
        killed_until_done(run_dbos, *arguments, "first", kills=0, seconds=0)
        began = time.monotonic()
        killed_until_done(run_dbos, *arguments, "plain", kills=0, seconds=0)
        run_s = time.monotonic() - began  # a later kill would find the work done
        reference = told(store_url, "plain")
        assert told(store_url, "first") == reference
        assert len(reference[0]) == TURNS * 4
        assert reference[2]
        kills = number = 0
        while kills < KILLS:
            number += 1
            session, left = f"s{number}", KILLS - kills
            leased: list[bool] = []

            def look(name: str = session, seen: list[bool] = leased) -> None:
                seen.append(is_leased(store_url, name))

            kills += killed_until_done(run_dbos, *arguments, session, kills=left, seconds=run_s, look=look)
            found = told(store_url, session)
            if any(leased):  # until the lease ends, older messages become facts without the model's words
                check_nothing_lost(found, reference)
            else:
                assert found == reference
    finally:
        with psycopg.connect(system_url, autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())


def test_langgraph(server: ModelServer, store_url: str, postgres_url: str) -> None:
    with fresh_schema(postgres_url) as url:
        saver_url = url.replace("+psycopg", "")
        with PostgresSaver.from_conn_string(saver_url) as saver:
            saver.setup()
        arguments = (store_url, saver_url, server.base_url)
        began = time.monotonic()
        killed_until_done(run_langgraph, *arguments, "plain", kills=0, seconds=0)
        run_s = time.monotonic() - began  # a later kill would find the work done
        reference = told(store_url, "plain")
        assert len(reference[0]) == TURNS * 4
        assert reference[2]
        kills = number = 0
        while kills < KILLS:
            number += 1
            thread = f"s{number}"
            kills += killed_until_done(run_langgraph, *arguments, thread, kills=KILLS - kills, seconds=run_s)
            assert told(store_url, session_of(store_url, saver_url, thread)) == reference


def session_of(store_url: str, saver_url: str, thread: str) -> str:
    """The session that belongs to the thread's newest state."""
    with PostgresSaver.from_conn_string(saver_url) as saver:
        context = ContextMiddleware(context_window=4_000, store=store_url)
        newest = saver.get_tuple({"configurable": {"thread_id": thread}})
        assert newest is not None
        session = context.context(newest.checkpoint["channel_values"]).session
        context.close()
        return session
