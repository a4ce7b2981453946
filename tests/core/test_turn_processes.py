"""Eight processes, a hundred turns each, on one session: nothing lost, nothing doubled, each writer's order kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctxfold import AgentContext, RatioCounter

WRITERS, TURNS = 8, 100

WRITER = """
import sys
from ctxfold import AgentContext, RatioCounter, ScriptedBackend

store, writer, turns = sys.argv[1], sys.argv[2], int(sys.argv[3])
backend = ScriptedBackend([f"answer {writer}/{n} is noted" for n in range(turns)])
with AgentContext(backend, session="shared", store=store, context_window=4_000, counter=RatioCounter(), strategy="truncate") as ctx:
    for n in range(turns):
        ctx.send(f"statement {writer}/{n} about crate {writer}-{n}")
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'shared.db'}"
        return
    from tests.core.postgres_schema import fresh_schema

    with fresh_schema(request.getfixturevalue("postgres_url")) as url:
        yield url


def test_turns_of_eight_processes(store: str) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, store, str(n), str(TURNS)], stderr=subprocess.PIPE, text=True)
        for n in range(WRITERS)
    ]
    for writer in writers:
        _, errors = writer.communicate(timeout=900)
        assert writer.returncode == 0, errors
    with AgentContext(
        session="shared", store=store, context_window=4_000, counter=RatioCounter(), strategy="truncate", create=False
    ) as ctx:
        texts = [m.text for m in ctx.messages()]
        compactions = ctx.usage().compactions
    assert len(texts) == len(set(texts)) == 2 * WRITERS * TURNS
    for writer in range(WRITERS):
        wanted = [f"statement {writer}/{n} about crate {writer}-{n}" for n in range(TURNS)]
        assert [t for t in texts if t.startswith(f"statement {writer}/")] == wanted
        answers = [f"answer {writer}/{n} is noted" for n in range(TURNS)]
        assert [t for t in texts if t.startswith(f"answer {writer}/")] == answers
    assert compactions > 0
