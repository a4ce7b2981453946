"""What the LangChain tests share: a lookup server, and one that thinks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ctxfold.testing import ModelServer


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """The lookup model with a window of 8,000 tokens and visible reasoning."""
    with ModelServer(model="lookup", context_window=8_000, reasoning=True) as running:
        yield running


@pytest.fixture
def store_url(tmp_path: object) -> str:
    return f"sqlite:///{tmp_path}/chat.db"
