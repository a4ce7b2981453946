"""kill -9 at any moment: what was acknowledged is there, and the session opens."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from ctxfold import ScriptedBackend, ToolCallPart, assistant, tool_result, user
from ctxfold.events import Appended
from tests.properties.machine import assert_legal
from tests.support.driven import context
from tests.support.processes import CONTEXT, import_once, start

import_once(__name__)

KILLS = int(os.environ.get("CTXFOLD_KILLS", "10"))


def write(run: int, url: str, acknowledged: Connection) -> None:
    """Adds turns without end and sends the ids of each that was stored."""
    ctx = context(store=url, context_window=600)
    acknowledged.send([])
    for i in count():
        name = f"run{run}-{i}"
        calls = [ToolCallPart(f"{name}-c{k}", "look", "{}") for k in range(2)]
        turn = [user(f"question {name} " + "word " * 20, id=f"{name}-u"), assistant("", id=f"{name}-a", calls=calls)]
        turn += [tool_result(c.id, "found " * 10, id=f"{name}-r{k}") for k, c in enumerate(calls)]
        turn.append(assistant(f"answer {name}", id=f"{name}-z"))
        ctx.add(turn)
        acknowledged.send([m.id for m in turn])
        if i % 5 == 4:
            ctx.window()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_kill_at_random_moments(shared_url: str) -> None:
    chance = random.Random(7)
    acknowledged: list[str] = []
    for run in range(KILLS):
        received, sent = CONTEXT.Pipe(duplex=False)
        writer = start(write, run, shared_url, sent)
        sent.close()
        for _ in range(1 + chance.randrange(30)):  # the first says that the session is open
            acknowledged += received.recv()
        time.sleep(chance.uniform(0.0, 0.02))  # somewhere in the next few turns
        writer.kill()
        with suppress(EOFError):
            while True:
                acknowledged += received.recv()
        writer.join()
        received.close()
    with context(store=shared_url, context_window=600, create=False) as ctx:
        for message_id in acknowledged:
            assert ctx.archive.get(message_id).id == message_id
        assert_legal(ctx.view().messages)
        assert ctx.window().view.tokens <= 480
        assert ctx.usage().compactions > 0
        ctx.add(user("and on it goes"))
        assert ctx.messages()[-1].text == "and on it goes"
    assert len(acknowledged) > 50


QUESTIONS = tuple(user(f"question {n} " + "look at it " * 20, id=f"q{n}") for n in range(14))


def ask(url: str, first: int, replies: int | None) -> None:
    """Asks the questions from `first` on; the process ends once so many replies are stored, before it makes room after them."""
    left = count(1)

    def end(event: object) -> None:
        if isinstance(event, Appended) and event.messages[0].role == "assistant" and next(left) == replies:
            os._exit(9)

    backend = ScriptedBackend(["Answer. " * 60] * len(QUESTIONS))
    summarizer = ScriptedBackend(["They talk about questions."] * len(QUESTIONS))
    with context(backend, store=url, context_window=2_000, summarizer=summarizer) as ctx:
        ctx.subscribe(end)
        for question in QUESTIONS[first:]:
            ctx.send([question])


@pytest.mark.parametrize("replies", range(5, 12))
def test_a_turn_that_is_sent_again_makes_the_room_that_its_process_could_not(tmp_path: Path, replies: int) -> None:
    whole, killed = (f"sqlite:///{tmp_path / name}.db" for name in ("whole", "killed"))
    ask(whole, 0, None)
    process = start(ask, killed, 0, replies)
    process.join(60)
    assert process.exitcode == 9
    ask(killed, replies - 1, None)
    windows: list[object] = []
    for url in (whole, killed):
        with context(store=url, context_window=2_000, create=False) as ctx:
            assert ctx.usage().compactions
            windows.append([(m.role, m.text) for m in ctx.window().messages])
    assert windows[0] == windows[1]
