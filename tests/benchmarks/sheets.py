"""What a benchmark hands back: tables of plain values, printed with rich."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

__all__ = ["Cell", "Sheet", "figures", "times"]

Cell = str | int | float


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table; a text in place of a number says why there is none."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def show(self, console: Console) -> None:
        table = Table(title=self.title, caption=self.note or None, title_justify="left", caption_justify="left")
        for index, name in enumerate(self.columns):
            words = all(isinstance(row[index], str) and not row[index][:1].isdigit() for row in self.rows)
            table.add_column(name, justify="left" if words else "right")
        for row in self.rows:
            table.add_row(*(_text(cell) for cell in row))
        console.print(table)


def times(value: float, base: float) -> Cell:
    """How many times as long."""
    ratio = value / base
    return f"{ratio:.2f} x" if ratio < 10 else f"{ratio:,.0f} x"


def figures(sheets: Sequence[Sheet]) -> list[float]:
    """Every number in the tables."""
    return [float(cell) for sheet in sheets for row in sheet.rows for cell in row if not isinstance(cell, str)]


def _text(cell: Cell) -> str:
    if isinstance(cell, float):
        return f"{cell:,.3f}" if cell < 10 else f"{cell:,.1f}"
    return f"{cell:,}" if isinstance(cell, int) else cell
