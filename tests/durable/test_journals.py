"""How much an engine for durable execution writes down: ids, whatever the length of the conversation."""

from __future__ import annotations

from pathlib import Path

from ctxfold.testing import ModelServer
from tests.durable import on_dbos, on_restate
from tests.durable.journals import QUESTIONS, REQUESTS, WINDOW, Reader, tokens_of
from tests.durable.kills import killed_until_done

A_REQUEST = 2_048  # bytes


def test_dbos(store_url: str, postgres_url: str) -> None:
    play = Reader()
    with ModelServer(model="m", script=play, strict="openai") as model, on_dbos.schema(postgres_url) as system:
        killed_until_done(on_dbos.read_logs, store_url, system, model.base_url, kills=0, seconds=0)
        written = on_dbos.journal_bytes(system)
    assert play.requests == REQUESTS
    assert tokens_of(store_url, "long") > 200_000
    assert written / REQUESTS < A_REQUEST


def test_restate(restate: Path, tmp_path: Path) -> None:
    play, store_url = Reader(), f"sqlite:///{tmp_path / 'sessions.db'}"
    with (
        ModelServer(model="m", script=play, strict="openai") as model,
        on_restate.application(restate, tmp_path / "restate", store_url, model.base_url, window=WINDOW) as it,
    ):
        for number, text in enumerate(QUESTIONS):
            it.ask("long", number, text)
        written = on_restate.journal_bytes(it.restate)
    assert play.requests == REQUESTS
    assert tokens_of(store_url, "long") > 200_000
    assert written / REQUESTS < A_REQUEST
