"""The benchmarks run at small sizes; how fast is not asked here."""

from __future__ import annotations

import io
from importlib import import_module

import pytest
from rich.console import Console

from tests.benchmarks import BENCHMARKS
from tests.benchmarks.sheets import figures


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
