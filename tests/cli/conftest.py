"""A store in a file with two sessions of one owner and one of another, and the command run on it in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ctxfold import assistant, user
from ctxfold.cli.app import app
from tests.support.driven import context, tool_round, turns

SECRET = "my locker is 47-B \x1b[31m[bold]red\x1b[0m"


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.db"


@pytest.fixture
def store(path: Path) -> str:
    """Its URL; session "ann" has been compacted, "bob" has a tool round, "eve" belongs to somebody else."""
    url = f"sqlite:///{path}"
    with context(store=url, session_id="ann", context_window=1_500, system="Be brief.") as ann:
        ann.add([user(SECRET, id="m"), assistant("noted", id="n"), *turns(40)])
    with context(store=url, session_id="bob") as bob:
        bob.add([user("look", id="q"), *tool_round("t"), assistant("done", id="d")])
    with context(store=url, session_id="eve", owner="mallory") as eve:
        eve.add([user("mine alone", id="e"), assistant("yes", id="f")])
    return url


@pytest.fixture
def ctxfold(store: str) -> Callable[..., Done]:
    """Runs a command on the store, as `ctxfold ARGUMENTS --store URL`."""

    def run(*arguments: str, input: str | None = None) -> Done:
        found = CliRunner().invoke(app, [*arguments, "--store", store], input=input)
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            raise found.exception
        return Done(found.exit_code, found.stdout, found.stderr)

    return run
