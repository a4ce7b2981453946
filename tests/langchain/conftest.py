"""What the LangChain tests share: a lookup server, and one that thinks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ctxfold.testing import ModelServer


@pytest.fixture(autouse=True)
def own_clients() -> Iterator[None]:
    """Some packages keep one HTTP client for each address: a later test's server may get the port of an earlier one's."""
    yield
    for name in ("langchain_anthropic._client_utils", "langchain_openai.chat_models._client_utils"):
        for cached in list(vars(sys.modules.get(name, object)).values()):
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """The lookup model with a window of 8,000 tokens and visible reasoning."""
    with ModelServer(model="lookup", context_window=8_000, reasoning=True) as running:
        yield running


@pytest.fixture
def store_url(tmp_path: object) -> str:
    return f"sqlite:///{tmp_path}/chat.db"


@pytest.fixture(params=["memory", "sqlite"])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A checkpointer of each kind."""
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.checkpoint.sqlite import SqliteSaver

    if request.param == "memory":
        yield InMemorySaver()
        return
    with SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as found:
        yield found
