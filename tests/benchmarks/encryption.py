"""What encryption adds to a turn and to recall: a plain SQLite store and an encrypted one take turns in one run."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from ctxfold import Store
from ctxfold.connect import encrypted, open_store
from tests.benchmarks.conversation import database, filled_context
from tests.benchmarks.lanes import Lane, Plan, race
from tests.benchmarks.recall_latency import QUESTIONS, _turn
from tests.benchmarks.sheets import Cell, Sheet, times

__all__ = ["run"]

PLAIN, ENCRYPTED = "plain", "encrypted"
QUICK = Plan(turns=20, block=5, least=1, slow_s=0.1, limit_s=60.0)


def _store(folder: Path, name: str) -> Store:
    store = open_store(database(folder, name))
    return store if name == PLAIN else encrypted(store, keys=lambda _: ("bench", b"k" * 32))


def run(*, quick: bool = False) -> list[Sheet]:
    """Two tables: times and their ratios, and the bytes of the files."""
    size = 400 if quick else 100_000
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        contexts = {n: stack.enter_context(filled_context(_store(folder, n), size)) for n in (PLAIN, ENCRYPTED)}
        bytes_each = {n: sum(f.stat().st_size for f in folder.glob(f"{n}.db*")) / size for n in contexts}
        lanes = {
            (question, n): Lane(n, size, _turn(context, question, text, size))
            for question, text in QUESTIONS.items()
            for n, context in contexts.items()
        }
        race([*lanes.values()], QUICK if quick else Plan())
    rows: list[tuple[Cell, ...]] = []
    for question in QUESTIONS:
        plain, sealed = lanes[question, PLAIN], lanes[question, ENCRYPTED]
        rows.append(
            (
                question,
                plain.cpu_median_ms(),
                sealed.cpu_median_ms(),
                times(sealed.cpu_median_ms(), plain.cpu_median_ms()),
                times(sealed.cpu_mean_ms(), plain.cpu_mean_ms()),
                times(sealed.median_ms(), plain.median_ms()),
            )
        )
    figures: list[tuple[Cell, ...]] = [
        (n, round(each), times(each, bytes_each[PLAIN])) for n, each in bytes_each.items()
    ]
    return [
        Sheet(
            f"A turn at {size:,} messages on SQLite, plain and encrypted: two messages added, window read",
            ("turn", "CPU median ms, plain", "encrypted", "ratio", "ratio of means", "ratio of wall medians"),
            tuple(rows),
            "Target: 1.3 x or less.",
        ),
        Sheet("Bytes of the file a message", ("store", "bytes", "ratio"), tuple(figures)),
    ]
