"""A store on PostgreSQL, and Restate's server where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import NO_RESTATE
from tests.durable.restate_server import binary
from tests.support.postgres_schema import fresh_schema


@pytest.fixture
def store_url(postgres_url: str) -> Iterator[str]:
    with fresh_schema(postgres_url) as url:
        yield url


@pytest.fixture
def restate() -> Path:
    program = binary()
    if program is None:
        pytest.skip(NO_RESTATE)
    return program
