"""The real servers, started when a test first asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.realmodel.llama import LlamaServer, one_layer_model, unsupported

WINDOW, SMALL_WINDOW = 8192, 1024


@pytest.fixture(scope="session")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model file, kept in pytest's cache; skips where the CPU cannot run llama.cpp."""
    reason = unsupported()
    if reason is not None:
        pytest.skip(reason)
    cache = getattr(request.config, "cache", None)  # absent with -p no:cacheprovider
    return one_layer_model(cache.mkdir("realmodel") if cache is not None else tmp_path_factory.mktemp("realmodel"))


@pytest.fixture(scope="session")
def llama(model: Path) -> Iterator[LlamaServer]:
    with LlamaServer(model, context=WINDOW) as server:
        yield server


@pytest.fixture(scope="session")
def small_llama(model: Path) -> Iterator[LlamaServer]:
    with LlamaServer(model, context=SMALL_WINDOW) as server:
        yield server
