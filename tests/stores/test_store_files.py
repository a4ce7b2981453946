"""V8: a store's files are its owner's alone, locks are kept, and a record with an impossible date is shown."""

from __future__ import annotations

import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ctxfold import SqlStore, user
from ctxfold.cli.app import app
from ctxfold.history.records import Draft, MessageAdded, SessionKey
from tests.support.driven import context


def test_v8_new_files_can_be_read_by_their_owner_alone(tmp_path: Path) -> None:
    with SqlStore(f"sqlite:///{tmp_path}/a.db") as store, context(store=store) as ctx:
        ctx.add(user("hello", id="u"))
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
        assert set(modes.values()) == {0o600}
        assert modes.keys() >= {"a.db", "a.db-wal"}


def test_v8_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "a.db").touch(0o640)
    (tmp_path / "a.db").chmod(0o640)
    SqlStore(f"sqlite:///{tmp_path}/a.db").close()
    assert stat.S_IMODE((tmp_path / "a.db").stat().st_mode) == 0o640


@pytest.mark.parametrize("at_s", [1e15, -1e15, 1e300])
def test_v8_a_record_of_another_era_is_shown(at_s: float, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with SqlStore(url) as store, context(store=store, session_id="s") as ctx:
        ctx.add(user("hello", id="u"))
        store.append(SessionKey("default", "s"), [Draft("m:far", MessageAdded(user("far away", id="far")), None, at_s)])
        assert "far away" in str(ctx.archive.inspect().page())
    for command in (["sessions"], ["search", "s", "far"], ["inspect", "s"], ["show", "s"], ["window", "s"]):
        done = CliRunner().invoke(app, [*command, "--store", url])
        assert done.exit_code == 0, done.output


TWO_STORES_AND_A_KILL = """
import os, signal, subprocess, sys
from ctxfold import AgentContext
url, reader = sys.argv[1:]
first = AgentContext(session_id="a", store=url, context_window=3_000)
first.add("one")
second = AgentContext(session_id="b", store=url, context_window=3_000)
subprocess.run([sys.executable, "-c", reader, url], check=True)
for number in range(20):
    first.add(f"m{number}")
os.kill(os.getpid(), signal.SIGKILL)
"""
READER = """
import sys
from ctxfold import AgentContext
with AgentContext(session_id="a", store=sys.argv[1], context_window=3_000) as context:
    print(len(context.messages()))
"""


def test_a_second_store_on_the_file_leaves_the_locks_of_the_first_one(tmp_path: Path) -> None:
    """POSIX takes all locks of a process away when it closes any descriptor of a file; another process then deletes its log."""
    url = f"sqlite:///{tmp_path}/a.db"
    killed = subprocess.run([sys.executable, "-c", TWO_STORES_AND_A_KILL, url, READER], check=False)
    assert killed.returncode == -signal.SIGKILL
    left = subprocess.run([sys.executable, "-c", READER, url], check=True, capture_output=True, text=True)
    assert left.stdout.strip() == "21"
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
