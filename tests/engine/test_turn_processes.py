"""Eight processes that send turns on one session at once: nothing lost, nothing doubled, each writer's order kept."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from ctxfold import AgentContext, ScriptedBackend
from ctxfold.tokens.text import RatioCounter
from tests.support.processes import CONTEXT, import_once, start

import_once(__name__)

WRITERS, TURNS = 8, 25


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'shared.db'}"
        return
    from tests.support.postgres_schema import fresh_schema

    with fresh_schema(request.getfixturevalue("postgres_url")) as url:
        yield url


def opened(store: str, backend: ScriptedBackend | None = None, *, create: bool = True) -> AgentContext:
    return AgentContext(
        backend,
        session_id="shared",
        store=store,
        context_window=1_500,
        counter=RatioCounter(),
        strategy="truncate",
        create=create,
    )


def write(store: str, writer: int, all_here: Barrier) -> None:
    """Sends the turns of one writer as soon as all writers are there."""
    backend = ScriptedBackend([f"answer {writer}/{n} is noted" for n in range(TURNS)])
    all_here.wait(300)
    with opened(store, backend) as ctx:
        for n in range(TURNS):
            ctx.send(f"statement {writer}/{n} about crate {writer}-{n}")


def test_turns_of_eight_processes(store: str) -> None:
    all_here = CONTEXT.Barrier(WRITERS)
    writers = [start(write, store, number, all_here) for number in range(WRITERS)]
    for writer in writers:
        writer.join(900)
        assert writer.exitcode == 0
    with opened(store, create=False) as ctx:
        texts = [m.text for m in ctx.messages()]
        compactions = ctx.usage().compactions
    assert len(texts) == len(set(texts)) == 2 * WRITERS * TURNS
    for number in range(WRITERS):
        statements = [f"statement {number}/{n} about crate {number}-{n}" for n in range(TURNS)]
        assert [t for t in texts if t.startswith(f"statement {number}/")] == statements
        answers = [f"answer {number}/{n} is noted" for n in range(TURNS)]
        assert [t for t in texts if t.startswith(f"answer {number}/")] == answers
    assert compactions > 0
