"""Turns under DBOS, LangGraph and Restate, killed and replayed: what is stored is what an unkilled run stores."""

from __future__ import annotations

import ast
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctxfold.testing import ModelServer
from tests.durable import on_dbos, on_langgraph, on_restate
from tests.durable.kills import A_TURN, TURNS, Killed, play
from tests.support.pages import DOCS, examples, page, section
from tests.support.postgres_schema import fresh_schema

KILLS = int(os.environ.get("CTXFOLD_KILLS", "6"))
pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")


def test_the_page_has_the_turn_of_the_example() -> None:
    (shown,) = examples(section(page("scaling.md"), "### Restate"))
    source = (DOCS.parent / "examples" / "restate_agent" / "agent.py").read_text(encoding="utf-8")
    turns = [n for n in ast.parse(source).body if isinstance(n, ast.AsyncFunctionDef) and n.name == "turn"]
    assert [ast.unparse(n) for n in turns] == [ast.unparse(ast.parse(shown))]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(model="m", script=play, strict="openai") as running:
        yield running


def check(killed: Killed) -> None:
    assert killed.kills == KILLS
    assert len(killed.reference.messages) == TURNS * A_TURN
    assert not any("Error" in text for _, text in killed.reference.messages)
    assert killed.reference.covered
    killed.check()
    assert killed.counts() == (0, 0, 0)


def test_dbos(server: ModelServer, store_url: str, postgres_url: str) -> None:
    with on_dbos.schema(postgres_url) as system:
        check(on_dbos.killed(store_url, system, server.base_url, KILLS))


def test_langgraph(server: ModelServer, store_url: str, postgres_url: str) -> None:
    with fresh_schema(postgres_url) as url:
        check(on_langgraph.killed(store_url, url.replace("+psycopg", ""), server.base_url, KILLS))


def test_restate(server: ModelServer, restate: Path, tmp_path: Path) -> None:
    """The server is killed too, at the tenth kill and each twentieth after it."""
    check(on_restate.killed(restate, tmp_path / "restate", f"sqlite:///{tmp_path / 'sessions.db'}", server, KILLS))
