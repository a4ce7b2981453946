"""LLMs, a server, stores and a memory for the tests of this folder, closed when the test ends; sync and async calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ctxfold import MemoryStore, SqlStore, Store
from ctxfold.testing import ModelServer
from llamaindex_ctx import CtxMemory
from tests.llamaindex.loopback_llm import LoopbackLLM, Made
from tests.llamaindex.twins import Driver


@pytest_asyncio.fixture
async def llms() -> AsyncIterator[Made]:
    made: list[LoopbackLLM] = []

    def make(server: ModelServer, **fields: Any) -> LoopbackLLM:
        made.append(LoopbackLLM(server, **fields))
        return made[-1]

    yield make
    for llm in made:
        llm.close()
        await llm.aclose()


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/chat.db"


@pytest.fixture(params=["memory", "sqlite"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store in memory, then in a file."""
    with MemoryStore() if request.param == "memory" else SqlStore(f"sqlite:///{tmp_path / 'chat.db'}") as opened:
        yield opened


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(model="lookup", context_window=8_000, reasoning=True) as running:
        yield running


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[CtxMemory]:
    with CtxMemory.from_defaults("s", store=f"sqlite:///{tmp_path / 'chat.db'}", context_window=4_000) as made:
        yield made


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Driver:
    return Driver(request.param)
