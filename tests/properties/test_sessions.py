"""Any random session keeps the invariants of the design, over memory and SQLite, sync and async."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxfold import MemoryStore, SqlStore
from tests.properties.machine import Machine
from tests.support.strategies import Op, operations

SESSIONS = itertools.count()
windows = st.sampled_from([400, 700, 1_500])
summarizers = st.sampled_from(["oracle", "oracle", "fails"])


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder: Path = tmp_path_factory.mktemp("sessions")
    with SqlStore(f"sqlite:///{folder / 'sessions.db'}") as store:
        yield store


def play(
    store: object, runner: asyncio.Runner | None, ops: list[Op], window: int, summarizer: str, *, sections: bool = False
) -> None:
    machine = Machine(store, f"s{next(SESSIONS)}", runner, window=window, summarizer=summarizer, sections=sections)
    for op in ops:
        machine.apply(op)
    machine.check_fresh()


@given(ops=operations(), window=windows, summarizer=summarizers)
def test_any_session_in_memory(ops: list[Op], window: int, summarizer: str) -> None:
    with MemoryStore() as store:
        play(store, None, ops, window, summarizer)


@given(ops=operations(), window=windows, summarizer=summarizers)
def test_any_session_in_memory_async(ops: list[Op], window: int, summarizer: str) -> None:
    with MemoryStore() as store, asyncio.Runner() as runner:
        play(store, runner, ops, window, summarizer)


@given(ops=operations(), window=st.sampled_from([700, 1_500]), summarizer=summarizers)
def test_any_session_with_sections(ops: list[Op], window: int, summarizer: str) -> None:
    with MemoryStore() as store:
        play(store, None, ops, window, summarizer, sections=True)


@settings(max_examples=max(10, settings.default.max_examples // 4))
@given(ops=operations(max_size=15), window=windows, summarizer=summarizers)
def test_any_session_in_sqlite(sqlite: object, ops: list[Op], window: int, summarizer: str) -> None:
    play(sqlite, None, ops, window, summarizer)
