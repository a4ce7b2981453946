"""The benchmarks run at small sizes; how fast is not asked here."""

from __future__ import annotations

import io
import os
import time
from importlib import import_module

import pytest
from rich.console import Console

from tests.benchmarks import BENCHMARKS
from tests.benchmarks.sheets import figures
from tests.support.processes import Ready, WorkerDiedError, import_once, together

import_once(__name__)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_tables_have_rows_of_figures(name: str) -> None:
    sheets = import_module(f"tests.benchmarks.{name}").run(quick=True)
    assert sheets
    for sheet in sheets:
        assert len(sheet.rows) >= 2
        assert all(len(row) == len(sheet.columns) for row in sheet.rows)
    # a lane that a busy machine stops early may count no compaction, so that single figures may be 0
    assert all(figure >= 0 for figure in figures(sheets))
    assert any(figure > 0 for figure in figures(sheets))
    out = Console(file=io.StringIO(), width=200)
    for sheet in sheets:
        sheet.show(out)
        assert sheet.title in out.file.getvalue()  # type: ignore[attr-defined]


def half_of_them_die(number: int, ready: Ready) -> int:
    ready()
    if number == 1:
        os._exit(3)
    if number == 0:
        time.sleep(3_600)
    return number


def test_a_worker_that_dies_ends_a_benchmark_at_once() -> None:
    """The others may have work for hours, and would wait for the one that is gone."""
    with pytest.raises(WorkerDiedError, match="process 2 of 2 ended with exit code 3 before its work was done"):
        together(half_of_them_die, [(0,), (1,)])
    took_s, numbers = together(half_of_them_die, [(2,), (3,), (4,)])
    assert numbers == [2, 3, 4]
    assert took_s > 0
