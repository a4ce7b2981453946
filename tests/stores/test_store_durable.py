"""What an acknowledgement of the SQLite store is worth: when the file reaches the disk."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ctxfold import ConfigError, SqlStore
from tests.conftest import NO_STRACE

WRITER = """
import os, sys
from ctxfold import AgentContext, ScriptedBackend
from ctxfold.tokens.text import RatioCounter
from ctxfold.messages import assistant, user

class Backend(ScriptedBackend):
    def send(self, request):
        os.write(1, b"asked\\n")
        return super().send(request)

backend = Backend([f"answer {n}" for n in range(20)])
with AgentContext(store=sys.argv[1], backend=backend, context_window=4_000, counter=RatioCounter()) as ctx:
    ctx.add([user("the first one makes the tables", id="first")])
    os.write(1, b"begin\\n")
    for n in range(20):
        if sys.argv[2] == "send":
            ctx.send(f"question {n}")
        else:
            ctx.add([user(f"question {n}", id=f"u{n}"), assistant(f"answer {n}", id=f"a{n}")])
        os.write(1, b"acknowledged\\n")
"""


def syncs_before_each_acknowledgement(url: str, trace: Path, *, method: str = "add") -> list[int]:
    """Adds 20 turns in a process under strace; returns how many syncs of a file preceded each acknowledgement.

    With "send" the turns are asked: syncs between the backend's call and the acknowledgement are counted.
    """
    strace = shutil.which("strace")
    if strace is None or subprocess.run([strace, "-o", os.devnull, "true"], capture_output=True).returncode:
        pytest.skip(NO_STRACE)
    command = [
        strace,
        "-f",
        "-e",
        "trace=fsync,fdatasync,write",
        "-o",
        str(trace),
        sys.executable,
        "-c",
        WRITER,
        url,
        method,
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, check=True, env=environment, timeout=300, stdout=subprocess.DEVNULL)
    counts, begun = [0], False
    for line in trace.read_text().splitlines():
        if 'write(1, "begin' in line:
            begun = True
        elif begun and 'write(1, "acknowledged' in line:
            counts.append(0)
        elif begun and 'write(1, "asked' in line:
            counts[-1] = 0
        elif begun and re.search(r"\b(fsync|fdatasync)\(\d+\)\s+= 0", line):
            counts[-1] += 1
    return counts[:-1]


def test_sqlite_syncs_before_it_acknowledges(tmp_path: Path) -> None:
    """Step 7, item B19: an acknowledged message survives a power loss, because its commit was synced."""
    counts = syncs_before_each_acknowledgement(f"sqlite:///{tmp_path}/a.db", tmp_path / "trace")
    assert len(counts) == 20
    assert min(counts) >= 1
    assert sum(counts) <= 30  # one commit for each turn


def test_sqlite_syncs_a_question_with_its_reply(tmp_path: Path) -> None:
    """Step 8: a question whose caller has had no answer is not acknowledged, so that a turn takes one sync, after its reply."""
    url = f"sqlite:///{tmp_path}/a.db"
    after_reply = syncs_before_each_acknowledgement(url, tmp_path / "trace", method="send")
    assert len(after_reply) == 20
    assert min(after_reply) >= 1
    begin = (tmp_path / "trace").read_text().partition('write(1, "begin')[2]
    assert len(re.findall(r"\b(?:fsync|fdatasync)\(\d+\)\s+= 0", begin)) <= 30


def test_sqlite_syncs_at_checkpoints_alone_where_that_is_asked_for(tmp_path: Path) -> None:
    """Step 7, item B19: the documented switch back."""
    counts = syncs_before_each_acknowledgement(f"sqlite:///{tmp_path}/a.db?synchronous=normal", tmp_path / "trace")
    assert len(counts) == 20
    assert sum(counts) <= 3
    assert [path.name for path in tmp_path.glob("a.db*")] == ["a.db"]


@pytest.mark.parametrize("value", ["off", "full&synchronous=normal"])
def test_a_wrong_synchronous_is_refused(tmp_path: Path, value: str) -> None:
    """Step 7, item B19: OFF may damage the file, so it is not offered; two values contradict each other."""
    with pytest.raises(ConfigError, match="synchronous"):
        SqlStore(f"sqlite:///{tmp_path}/a.db?synchronous={value}")
