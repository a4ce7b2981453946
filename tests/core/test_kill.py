"""kill -9 at any moment: what was acknowledged is there, and the session opens."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.core.driven import context
from tests.properties.machine import assert_legal

KILLS = int(os.environ.get("CTXFOLD_KILLS", "10"))

WRITER = """
import sys
from ctxfold import AgentContext, RatioCounter
from ctxfold.messages import assistant, tool_result, user, ToolCallPart
run, url = sys.argv[1:]
ctx = AgentContext(store=url, context_window=600, counter=RatioCounter())
print("ready", flush=True)
for i in range(100_000):
    name = f"{run}-{i}"
    calls = [ToolCallPart(f"{name}-c{k}", "look", "{}") for k in range(2)]
    turn = [user(f"question {name} " + "word " * 20, id=f"{name}-u"), assistant("", id=f"{name}-a", calls=calls)]
    turn += [tool_result(c.id, "found " * 10, id=f"{name}-r{k}") for k, c in enumerate(calls)]
    turn.append(assistant(f"answer {name}", id=f"{name}-z"))
    ctx.add(turn)
    print(*(m.id for m in turn), flush=True)
    if i % 5 == 4:
        ctx.window()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_kill_at_random_moments(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'killed.db'}"
    path = os.pathsep.join(p for p in sys.path if p)
    chance = random.Random(7)
    acknowledged: list[str] = []
    for run in range(KILLS):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, f"run{run}", url],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        said = "".join(writer.stdout.readline() for _ in range(chance.randrange(30)))
        time.sleep(chance.uniform(0.0, 0.02))  # somewhere in the next few turns
        writer.kill()
        said += writer.communicate()[0]
        complete = said[: said.rfind("\n") + 1]
        acknowledged += complete.split()
    with context(store=url, context_window=600, create=False) as ctx:
        for message_id in acknowledged:
            assert ctx.get(message_id).id == message_id
        assert_legal(ctx.view().messages)
        assert ctx.window().view.tokens <= 480
        assert ctx.usage().compactions > 0
        ctx.add(ctx.user_message("and on it goes"))
        assert ctx.view().messages[-1].text == "and on it goes"
    assert len(acknowledged) > 50
