"""kill -9 while messages are erased: each erasure is done or not, in the session and in its fork alike."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ctxfold import MessageErasedError, SqlStore
from ctxfold.messages import assistant, user
from tests.core.driven import context
from tests.core.scan import places_of
from tests.properties.machine import assert_legal

KILLS = 6
A_RUN = 9  # erasures at the most, however late the kill: some are left at the end
COUNT = 60
ERASER = """
import sys
from ctxfold import AgentContext, RatioCounter
ctx = AgentContext(store=sys.argv[1], session="s", context_window=2_000, counter=RatioCounter())
for name in sys.argv[2:]:
    print("begin", name, flush=True)
    ctx.erase(name)
    print("done", name, flush=True)
"""


def gone(ctx: object, name: str) -> bool:
    try:
        ctx.get(name)  # type: ignore[attr-defined]
    except MessageErasedError:
        return True
    return False


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_killed_erasures_are_whole_or_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'killed.db'}"
    names = [f"u{n}" for n in range(COUNT)]
    with context(store=url, session="s", context_window=2_000) as ctx:
        for n, name in enumerate(names):
            ctx.add([user(f"secret-{n:03}-x is my code " + "word " * 30, id=name), assistant("noted", id=f"a{n}")])
        ctx.fork("f")
    path = os.pathsep.join(p for p in sys.path if p)
    chance = random.Random(11)
    left, begun = list(names), set[str]()
    for _ in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-c", ERASER, url, *left[:A_RUN]],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert process.stdout is not None
        for number, line in enumerate(process.stdout):
            word, name = line.split()
            begun.add(name)
            if word == "done":
                left.remove(name)
            if number == 5:
                time.sleep(chance.uniform(0, 0.05))
                process.send_signal(signal.SIGKILL)  # what it had said by then is still read
        process.stdout.close()
        process.wait()
        with context(store=url, session="s", context_window=2_000) as ctx, ctx.at("f", create=False) as fork:
            for name in begun:
                assert gone(ctx, name) is gone(fork, name)
                assert gone(ctx, name) or name in left  # what was acknowledged is gone
            assert all(not gone(ctx, name) for name in names if name not in begun)
            for each in (ctx, fork):
                assert_legal(each.window().messages)
            left = [name for name in left if not gone(ctx, name)]
    assert len(begun) >= KILLS
    with SqlStore(url) as store, context(store=store, session="s", context_window=2_000) as ctx:
        assert ctx.erase(*left[:1]).settled
        for name in begun - set(left):
            assert places_of(f"secret-{int(name[1:]):03}-x", store) == []
