"""kill -9 while messages are erased: each erasure is done or not, in the session and in its fork alike."""

from __future__ import annotations

import random
import signal
import time
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from ctxfold import SqlStore, assistant, user
from ctxfold.errors import MessageErasedError
from tests.erasure.scan import places_of
from tests.properties.machine import assert_legal
from tests.support.driven import context
from tests.support.processes import CONTEXT, import_once, start

import_once(__name__)

KILLS = 6
A_RUN = 9  # erasures at the most, however late the kill: some are left at the end
COUNT = 60


def erase(url: str, names: list[str], said: Connection) -> None:
    """Erases one message after the other and says what it begins and what is done."""
    ctx = context(store=url, session_id="s", context_window=2_000)
    for name in names:
        said.send(("begin", name))
        ctx.erasure.erase(name)
        said.send(("done", name))


def gone(ctx: object, name: str) -> bool:
    try:
        ctx.archive.get(name)  # type: ignore[attr-defined]
    except MessageErasedError:
        return True
    return False


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_killed_erasures_are_whole_or_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'killed.db'}"
    names = [f"u{n}" for n in range(COUNT)]
    with context(store=url, session_id="s", context_window=2_000) as ctx:
        for n, name in enumerate(names):
            ctx.add([user(f"secret-{n:03}-x is my code " + "word " * 30, id=name), assistant("noted", id=f"a{n}")])
        ctx.fork("f")
    chance = random.Random(11)
    left, begun = list(names), set[str]()
    for _ in range(KILLS):
        received, sent = CONTEXT.Pipe(duplex=False)
        process = start(erase, url, left[:A_RUN], sent)
        sent.close()
        with suppress(EOFError):
            for number in count():
                word, name = received.recv()
                begun.add(name)
                if word == "done":
                    left.remove(name)
                if number == 5:
                    time.sleep(chance.uniform(0, 0.05))
                    process.kill()  # what it had said by then is still read
        received.close()
        process.join()
        with context(store=url, session_id="s", context_window=2_000) as ctx, ctx.at("f", create=False) as fork:
            for name in begun:
                assert gone(ctx, name) is gone(fork, name)
                assert gone(ctx, name) or name in left  # what was acknowledged is gone
            assert all(not gone(ctx, name) for name in names if name not in begun)
            for each in (ctx, fork):
                assert_legal(each.window().messages)
            left = [name for name in left if not gone(ctx, name)]
    assert len(begun) >= KILLS
    with SqlStore(url) as store, context(store=store, session_id="s", context_window=2_000) as ctx:
        assert ctx.erasure.erase(*left[:1]).settled
        for name in begun - set(left):
            assert places_of(f"secret-{int(name[1:]):03}-x", store) == []
