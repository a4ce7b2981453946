"""Opening a long session: newest snapshot and what came after it, against folding the whole log."""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ctxfold import AgentContext, Message, SqlStore
from ctxfold.connect import message_counter
from ctxfold.history.log import SessionState
from ctxfold.history.records import SessionKey
from tests.benchmarks.conversation import WINDOW, database, filled_context
from tests.benchmarks.sheets import Cell, Sheet, times

__all__ = ["run"]

KEY = SessionKey("default", "bench")


class Reading:
    """A store that notes how many records were read from it."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self.records = 0

    def read(self, *args: Any, **kwargs: Any) -> Any:
        return self._noted(self._store.read(*args, **kwargs))

    def fetch(self, *args: Any, **kwargs: Any) -> Any:
        return self._noted(self._store.fetch(*args, **kwargs))

    def find(self, *args: Any, **kwargs: Any) -> Any:
        return self._noted(self._store.find(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _noted(self, records: Sequence[Any]) -> Sequence[Any]:
        self.records += len(records)
        return records


def run(*, quick: bool = False) -> list[Sheet]:
    """One table: both ways to the same window, alternately, each with a connection of its own."""
    size, tries = (400, 2) if quick else (100_000, 5)
    with tempfile.TemporaryDirectory() as folder:
        url = database(Path(folder), "opening")
        filled_context(url, size).close()
        ways: dict[str, Callable[[str], tuple[tuple[Message, ...], int]]] = {
            "newest snapshot + later records": _opened,
            "whole log folded": _folded,
        }
        spent: dict[str, list[float]] = {name: [] for name in ways}
        seen: dict[str, tuple[tuple[Message, ...], int]] = {}
        for _ in range(tries):
            for name, way in ways.items():
                gc.collect()
                start = time.perf_counter()
                seen[name] = way(url)
                spent[name].append((time.perf_counter() - start) * 1e3)
    (first, *others) = (messages for messages, _ in seen.values())
    if any(messages != first for messages in others):
        raise RuntimeError("the two ways to open a session lead to different windows: fix the snapshot first")
    base = statistics.median(spent["newest snapshot + later records"])
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            size,
            seen[name][1],
            statistics.median(values),
            min(values),
            times(statistics.median(values), base),
        )
        for name, values in spent.items()
    ]
    return [
        Sheet(
            f"Opening a session of {size:,} messages from SQLite",
            ("way", "messages", "records read", "median ms", "best ms", "ratio"),
            tuple(rows),
            f"Connection and window included; {tries} times each, alternately; both windows are equal.",
        )
    ]


def _opened(url: str) -> tuple[tuple[Message, ...], int]:
    with SqlStore(url) as store:
        reading = Reading(store)
        context = AgentContext(session_id=KEY.session, store=reading, context_window=WINDOW, create=False)
        return context.window().messages, reading.records


def _folded(url: str) -> tuple[tuple[Message, ...], int]:
    with SqlStore(url) as store:
        reading = Reading(store)
        state = SessionState(KEY, message_counter(None).count)
        state.apply(reading.read(KEY))
        return state.view().messages, reading.records
