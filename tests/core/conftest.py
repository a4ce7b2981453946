"""One fixture runs an engine test twice: through the plain methods, and through their async twins on a loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ctxfold import AgentContext
from tests.core.driven import Driven, context


@pytest.fixture(params=["sync", "async"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner | None]:
    if request.param == "sync":
        yield None
        return
    with asyncio.Runner() as loop:
        yield loop


@pytest.fixture
def make(runner: asyncio.Runner | None) -> Iterator[Callable[..., Driven]]:
    """Makes contexts in memory (or over a given store), driven one way or the other; closed at the end."""
    made: list[AgentContext] = []

    def build(backend: Any = None, **settings: Any) -> Driven:
        made.append(context(backend, **settings))
        return Driven(made[-1], runner)

    yield build
    for ctx in made:
        ctx.close()
