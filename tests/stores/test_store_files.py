"""V8: a store's files are its owner's alone, and a record with an impossible date is shown."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ctxfold import Draft, SessionKey, SqlStore, user
from ctxfold.cli.app import app
from ctxfold.history.records import MessageAdded
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
        assert "far away" in str(ctx.inspect().page())
    for command in (["sessions"], ["search", "s", "far"], ["inspect", "s"], ["show", "s"], ["window", "s"]):
        done = CliRunner().invoke(app, [*command, "--store", url])
        assert done.exit_code == 0, done.output
