"""Draws the plots of docs/comparison.md and docs/context-quality.md from the tables of these pages: `python docs/plots.py`.

With --check it writes nothing and says which plots are out of date.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).resolve().parent
WIDTH, LEFT, RIGHT = 440, 14, 14  # narrow, so that the text can be read on a telephone
ROW, BAR = 42, 13
SHORTEST_MS = 0.1  # where the logarithmic scale begins
XMLNS: Final = "http://www.w3.org/2000/svg"
FONT: Final = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"'
BLUE, LIGHT, GREEN, AMBER, GREY, RED = "#1f77b4", "#a9c9e4", "#2a9d5c", "#c77d0a", "#aab2b9", "#b3261e"


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its label, the lengths of its parts, and the value that is written behind it."""

    label: str
    parts: tuple[float, ...]
    value: str


@dataclass(frozen=True, slots=True)
class Plot:
    """Horizontal bars: `names` and `colours` are those of the parts of each bar."""

    title: str
    bars: tuple[Bar, ...]
    names: tuple[str, ...]
    colours: tuple[str, ...]

    def svg(self) -> str:
        if len(self.title) * 9.5 > WIDTH - LEFT - RIGHT:
            raise ValueError(f"the title {self.title!r} does not fit {WIDTH} pixels: shorten it")
        top = 56 if len(self.names) > 1 else 34
        height = top + ROW * len(self.bars) + 8
        most = max(sum(bar.parts) for bar in self.bars)
        about = "; ".join(f"{bar.label}: {bar.value}" for bar in self.bars)
        size = f'width="{WIDTH}" height="{height}"'
        lines = [
            f'<svg xmlns="{XMLNS}" {size} viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="t d" {FONT}>',
            f'<title id="t">{escape(self.title)}</title><desc id="d">{escape(about)}</desc>',
            f'<rect {size} rx="6" fill="#ffffff"/>',
            _text(LEFT, 24, self.title, size=15, weight=600),
            *(self._legend() if len(self.names) > 1 else ()),
        ]
        for place, bar in enumerate(self.bars):
            lines += self._bar(bar, top + ROW * place, most)
        return "\n".join([*lines, "</svg>", ""])

    def _legend(self) -> list[str]:
        lines: list[str] = []
        x = float(LEFT)
        for name, colour in zip(self.names, self.colours, strict=True):
            lines.append(f'<rect x="{x:g}" y="36" width="11" height="11" fill="{colour}"/>')
            lines.append(_text(x + 16, 46, name, size=13))
            x += 30 + 6.8 * len(name)
        return lines

    def _bar(self, bar: Bar, y: float, most: float) -> list[str]:
        room = WIDTH - LEFT - RIGHT
        if len(bar.label) * 8 + len(bar.value) * 9.2 > room:  # as wide as the widest of the fonts sets them
            raise ValueError(f"{bar.label!r} and {bar.value!r} do not fit one line of {room} pixels: shorten the label")
        lines = [
            _text(LEFT, y + 17, bar.label, size=14),
            _text(WIDTH - RIGHT, y + 17, bar.value, size=14, anchor="end", weight=600),
            f'<rect x="{LEFT}" y="{y + 23:g}" width="{room}" height="{BAR}" fill="#eef1f3"/>',
        ]
        x = float(LEFT)
        for part, colour in zip(bar.parts, self.colours, strict=True):
            width = room * part / most
            if width:
                lines.append(f'<rect x="{x:.1f}" y="{y + 23:g}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>')
            x += width
        return lines


def _text(x: float, y: float, words: str, *, size: int, anchor: str = "start", weight: int = 400) -> str:
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="#222"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(words)}</text>'


def table(page: str, heading: str) -> list[list[str]]:
    """Returns the cells of the first table below that heading of a page, without those of its head.

    An empty first cell repeats the one above.
    """
    lines = iter((DOCS / page).read_text(encoding="utf-8").split(f"\n{heading}\n", 1)[1].splitlines())
    rows: list[list[str]] = []
    for line in lines:
        if line.startswith("|"):
            cells = [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
            rows.append([cells[0] or (rows[-1][0] if rows else ""), *cells[1:]])
        elif rows:
            break
    return rows[2:]


def number(cell: str) -> float:
    """Returns the first number of a cell such as `76.9 %` or `280,115 (before: 559,057)`."""
    return float(cell.partition(" (")[0].removesuffix("%").replace(",", "").strip())


def survival() -> Plot:
    rows = table("comparison.md", "### Facts through ten generations of summaries")
    few_or_many = {"facts fit a summary": "few", "too many for one": "many"}
    bars: list[Bar] = []
    for case, how, facts, view, reference, lost in rows:
        conversation, _, size = case.partition(", ")
        parts = tuple(number(n) / number(facts) for n in (view, reference, lost))
        bars.append(Bar(f"{conversation}, {few_or_many[size]}: {how}", parts, f"{lost} lost"))
    names = ("in view", "by reference", "lost")
    return Plot("Few or many facts, after ten summaries", tuple(bars), names, (GREEN, BLUE, RED))


def prefix() -> Plot:
    rows = table("comparison.md", "### Prompt caching")
    bars = [
        Bar(how, (number(sent) * number(share) / 100, number(sent) * (1 - number(share) / 100)), f"{share} reused")
        for how, sent, share in rows
    ]
    return Plot("Bytes sent in 73 requests", tuple(bars), ("repeat the request before", "new"), (LIGHT, BLUE))


def turn_time() -> Plot:
    rows = table("comparison.md", "### Time of a turn")
    bars = [Bar(how, (math.log10(number(later) / SHORTEST_MS),), f"{later} ms") for how, _, later in rows]
    return Plot("Time of a turn, 400 messages (logarithmic)", tuple(bars), ("time",), (BLUE,))


def arguments() -> Plot:
    rows = table("context-quality.md", "## Arguments of tool calls")
    bars: list[Bar] = []
    for run, sent, *_ in rows:
        now, _, before = sent.rstrip(")").partition(" (")
        before = before.removeprefix("before: ")
        label = run.replace(" characters in one turn", ", one turn")
        bars.append(Bar(label, (number(now), number(before) - number(now)), f"{now} ({before})"))
    return Plot("Characters sent (before, in brackets)", tuple(bars), ("now", "more before"), (GREEN, GREY))


def recall() -> Plot:
    rows = table("context-quality.md", "## Recall")
    bars = [
        Bar(f"{name}, window of {window}", (number(key), 1 - number(key)), key) for name, window, _, key, *_ in rows
    ]
    return Plot("Questions whose answer is in the request", tuple(bars), ("found", "not found"), (GREEN, "#eef1f3"))


def planted() -> Plot:
    rows = table("context-quality.md", "### Measurements")
    bars = [
        Bar(
            f"{window}, {f'{how} summariser' if how != 'none' else 'no summariser'}",
            (number(now), 1 - number(now)),
            now if before == "-" else f"{now}, before {before}",
        )
        for window, how, before, now, _ in rows
    ]
    return Plot(
        "Planted facts that are visible, by window", tuple(bars), ("visible", "not visible"), (GREEN, "#eef1f3")
    )


PLOTS: Final[dict[str, Callable[[], Plot]]] = {
    "survival": survival,
    "prefix": prefix,
    "turn-time": turn_time,
    "arguments": arguments,
    "recall": recall,
    "planted-facts": planted,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the plots to docs/images; with --check writes nothing, and returns 1 where a stored one differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args(arguments).check
    stale: list[str] = []
    for name, make in PLOTS.items():
        path, drawn = DOCS / "images" / f"{name}.svg", make().svg()
        if check and (not path.exists() or path.read_text(encoding="utf-8") != drawn):
            stale.append(path.name)
        elif not check:
            path.write_text(drawn, encoding="utf-8", newline="\n")
    if stale:
        print(f"out of date: {', '.join(stale)}; run `python docs/plots.py`")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
