"""Compares benchmarks of time with another commit in one run: fresh processes of both trees take turns.

Each tree runs its own benchmark code on its own sources. Noise only adds time, hence the minimum of the runs is compared.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.sheets import Cell, Sheet, times

__all__ = ["COMPARED", "TreesDifferError", "compare", "worktree"]

# Constants of the benchmark modules that are set in both trees: without peers and the largest sizes a run takes about a minute.
COMPARED: Mapping[str, Mapping[str, Sequence[object]]] = {
    "per_turn": {"SIZES": (1_000, 10_000), "PEER_SIZES": ()},
    "agent_turn": {},
    "streaming": {},
    "llamaindex_put_get": {
        "SIZES": (100, 1_000, 10_000),
        "NAMES": ("CtxMemory without recall, SQLite file", "CtxMemory, SQLite file", "CtxMemory, SQLite file, async"),
    },
    "recall_latency": {},
}

_CHILD = """
import json, sys
from importlib import import_module

name, quick, constants = json.loads(sys.argv[1])
module = import_module(f"tests.benchmarks.{name}")
for constant, value in constants.items():
    assert hasattr(module, constant), f"{module.__file__} has no constant {constant}"
    setattr(module, constant, tuple(value))
print(json.dumps([(sheet.title, sheet.columns, sheet.rows) for sheet in module.run(quick=quick)]))
"""


class TreesDifferError(Exception):
    """Raised when the tables of the two trees have different shapes."""


@contextmanager
def worktree(repository: Path, commit: str) -> Generator[Path]:
    """Checks the commit out into a temporary folder and removes it in the end."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        git = ["git", "-C", str(repository), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def compare(before: Path, now: Path, name: str, *, rounds: int = 4, quick: bool = False) -> list[Sheet]:
    """Runs the benchmark `rounds` times in each tree (A B B A ...); returns its tables with one row for each time.

    Tables belong together by their titles. A table that only one tree has is named in a note. A table without rows, that of peers
    which are left out, is dropped.
    """
    runs: dict[Path, list[list[Sheet]]] = {before: [], now: []}
    for number in range(rounds):
        for tree in (before, now) if number % 2 == 0 else (now, before):
            runs[tree].append(_run(tree, name, quick=quick))
    tables = [_tables(name, runs[tree]) for tree in (before, now)]
    common = [title for title in tables[0] if title in tables[1]]
    if not common:
        raise TreesDifferError(
            f"the two trees have no table of {name} in common: {sorted(tables[0])} and {sorted(tables[1])}"
        )
    other = sorted(tables[0].keys() ^ tables[1].keys())
    note = (
        f"Minimum of {rounds} runs of each tree, in fresh processes that take turns. Below 1 x is faster than before."
    )
    if other:
        note += f" Only one tree has: {', '.join(other)}."
    sheets = []
    for title in common:
        olds, news = tables[0][title], tables[1][title]
        if len(olds[0].rows) != len(news[0].rows):
            counts = len(olds[0].rows), len(news[0].rows)
            raise TreesDifferError(f"the table {title!r} of {name} has {counts[0]} rows before and {counts[1]} now")
        if olds[0].rows:
            columns = ("row", "figure", "before", "now", "ratio", "ratio of medians")
            sheets.append(Sheet(f"{name}: {title}", columns, tuple(_rows(olds, news)), note))
    return sheets


def _tables(name: str, runs: Sequence[Sequence[Sheet]]) -> dict[str, list[Sheet]]:
    """Returns the tables of all runs of one tree by their titles."""
    tables: dict[str, list[Sheet]] = {}
    for run in runs:
        for sheet in run:
            tables.setdefault(sheet.title, []).append(sheet)
    for title, sheets in tables.items():
        if len(sheets) != len(runs) or len({len(sheet.rows) for sheet in sheets}) > 1:
            raise TreesDifferError(f"the runs of {name} disagree about the table {title!r}")
    return tables


def _run(tree: Path, name: str, *, quick: bool) -> list[Sheet]:
    arguments = json.dumps([name, quick, {} if quick else COMPARED[name]])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tree), str(tree / "shared")])}
    command = [sys.executable, "-c", _CHILD, arguments]
    ended = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    sheets: list[Any] = json.loads(ended.stdout.splitlines()[-1])
    return [Sheet(title, tuple(columns), tuple(map(tuple, rows))) for title, columns, rows in sheets]


def _rows(before: Sequence[Sheet], now: Sequence[Sheet]) -> Iterator[tuple[Cell, ...]]:
    sheet = now[0]
    for row in range(len(sheet.rows)):
        for column in sheet.columns:
            old_times, new_times = _times(before, row, column), _times(now, row, column)
            if old_times and new_times:
                least = min(old_times), min(new_times)
                middle = statistics.median(old_times), statistics.median(new_times)
                yield _label(sheet, row), column, *least, times(least[1], least[0]), times(middle[1], middle[0])


def _label(sheet: Sheet, row: int) -> str:
    """Joins the cells that stand before the first time of the row."""
    cells = sheet.rows[row]
    first = next((at for at, cell in enumerate(cells) if isinstance(cell, float)), len(cells))
    return ", ".join(str(cell) for cell, name in zip(cells[:first], sheet.columns, strict=False) if name != "turns")


def _times(sheets: Sequence[Sheet], row: int, column: str) -> list[float]:
    """Returns the cells of all runs, or none unless all are times: counts are integers and a lane that was cut has a text."""
    cells = [sheet.rows[row][sheet.columns.index(column)] for sheet in sheets if column in sheet.columns]
    measured = [cell for cell in cells if isinstance(cell, float) and cell > 0]
    return measured if len(measured) == len(sheets) else []
