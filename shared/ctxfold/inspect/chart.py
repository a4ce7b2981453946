"""Draws the figures of a session's turns as HTML: tokens by zone, what providers counted, compactions and cache breaks.

The curves are SVG stretched to the width that there is; labels and marks are HTML, so that they keep their size on a narrow screen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import accumulate
from typing import Any, TypeAlias

from ctxfold.history.view import ZONES
from ctxfold.messages import Usage
from ctxfold.policy.prices import PER_TOKEN, cost

Row: TypeAlias = Mapping[str, Any]

COLOURS = {
    "system": "#6b7280",
    "summary": "#c77d0a",
    "section": "#8b5cf6",
    "live": "#3b82f6",
    "recalled": "#2a9d5c",
    "tools": "#0f766e",
    "free": "transparent",
    "reply": "#9ca3af66",
    "input": "#3b82f6",
    "cached": "#3b82f666",
    "output": "#c77d0a",
    "cost": "#d6336c",
    "break": "#d9480f",
}
NAMES = {
    "system": "system prompts",
    "summary": "summaries",
    "section": "sections",
    "live": "conversation",
    "recalled": "recalled for one request",
    "tools": "tools and the like",
    "free": "free",
    "reply": "kept for the reply",
    "input": "input",
    "cached": "input from the cache",
    "output": "output",
}
CHART_STYLE = """
.ctxfold figure{margin:.8rem 0}
.ctxfold figcaption{font-weight:600;margin-bottom:.2rem}
.ctxfold .plot{display:grid;grid-template-columns:auto 1fr;column-gap:.4rem}
.ctxfold .marks{grid-column:2;position:relative;height:1.1em;font-size:.8em}
.ctxfold .marks i{position:absolute;transform:translateX(-50%);font-style:normal;cursor:help}
.ctxfold .ticks{position:relative;height:11rem;min-width:4em;white-space:nowrap;font-size:.8em;opacity:.8}
.ctxfold .ticks span{position:absolute;right:0;transform:translateY(50%)}
.ctxfold .plot svg{display:block;width:100%;height:11rem;border-bottom:1px solid #8888}
.ctxfold .plot line,.ctxfold .plot .line{vector-effect:non-scaling-stroke}
.ctxfold .turns{grid-column:2;display:flex;justify-content:space-between;font-size:.8em;opacity:.8}
.ctxfold .wide{overflow-x:auto}
"""
HEIGHT = 1_000  # of the drawing, in its own units
MOST_COLUMNS = 600  # of the curves: more turns share a column
MOST_ROWS = 500  # of the table
TEXTS = ("when (UTC)", "what")  # columns of the table that hold no numbers
REPORTED = ("cached", "input", "output")


@dataclass(frozen=True, slots=True)
class _Column:
    """Holds the turns that share a column, which shows the figures of the turn with the largest window."""

    turns: tuple[Row, ...]

    @property
    def largest(self) -> Row:
        return max(self.turns, key=_window_tokens)

    @property
    def name(self) -> str:
        first, last = self.turns[0], self.turns[-1]
        name = f"turn {first['turn']}" if first is last else f"turns {first['turn']} to {last['turn']}"
        return f"after turn {last['turn'] - 1}" if last["open"] and first is last else name


def chart_html(turns: Sequence[Row], budget_tokens: int) -> str:
    """Returns the charts and, folded, their figures as a table; a sentence where no turn has ended yet."""
    if not turns:
        return "<p>No turn has ended yet: there is nothing to draw.</p>"
    size = math.ceil(len(turns) / MOST_COLUMNS)
    columns = [_Column(tuple(turns[i : i + size])) for i in range(0, len(turns), size)]
    drawn = [_window_chart(columns, budget_tokens)]
    if any(t["usage"] is not None for t in turns):
        drawn.append(_reported_chart(columns))
    return "".join([*drawn, _figures(turns)])


def _window_chart(columns: Sequence[_Column], budget_tokens: int) -> str:
    shown = [z for z in ZONES if any(c.largest[f"{z}_tokens"] for c in columns)]
    stacks = [[int(c.largest[f"{z}_tokens"]) for z in shown] for c in columns]
    high = max(budget_tokens, *(sum(s) for s in stacks))
    budget = _line(f"M0,{_y(budget_tokens, high)}H{len(columns)}", "break", "4 3")
    most = max(columns, key=lambda c: _window_tokens(c.largest))
    description = (
        f"Tokens in the window over {_turns(columns)}, at most {_window_tokens(most.largest):,} ({most.name}); "
        f"the budget is {budget_tokens:,} now."
    )
    keys = [_key(z, NAMES[z]) for z in shown] + [_key("break", f"budget now, {budget_tokens:,}")]
    marks, mark_keys = _marks(columns)
    return _figure(
        "Tokens in the newest request of each turn",
        description,
        columns,
        _areas(shown, stacks, high) + budget,
        high,
        marks,
        [*keys, *mark_keys],
    )


def _reported_chart(columns: Sequence[_Column]) -> str:
    """Draws what providers counted for the replies and summaries of each turn, and the cost so far where prices are known."""
    sums = [sum(each) for each in zip(*(_reported(t) for c in columns for t in c.turns), strict=True)]
    totals = {name: tokens for name, tokens in zip(REPORTED, sums, strict=True) if tokens}
    shown = list(totals)
    tallest = [max(map(_reported, c.turns), key=sum) for c in columns]
    stacks = [[tokens for name, tokens in zip(REPORTED, stack, strict=True) if name in totals] for stack in tallest]
    high = max(1, *(sum(s) for s in stacks))
    description = f"Tokens that providers counted over {_turns(columns)}: " + ", ".join(
        f"{NAMES[n]} {tokens:,}" for n, tokens in totals.items()
    )
    keys = [_key(name, f"{NAMES[name]} {tokens:,}") for name, tokens in totals.items()]
    drawing = _areas(shown, stacks, high)
    spent, unit = _spent(columns)
    total = math.fsum(spent)
    if total:
        so_far = accumulate(spent)
        points = " ".join(f"{i + 0.5:g},{_y(s, total)}" for i, s in enumerate(so_far))
        drawing += _line(f"M{points}", "cost", "")
        keys.append(_key("cost", f"cost so far, up to {_money(total)}{unit}"))
        description += f"; their cost is {_money(total)}{unit}"
    caption = "Tokens that providers counted for each turn, summaries included"
    return _figure(caption, f"{description}.", columns, drawing, high, "", keys)


def _reported(turn: Row) -> tuple[int, int, int]:
    """Returns the tokens of a turn in the order of `REPORTED`; zeros where nothing was reported."""
    usage: Row | None = turn["usage"]
    if usage is None:
        return 0, 0, 0
    cached = min(int(usage["cache_read_tokens"]), int(usage["input_tokens"]))
    return cached, int(usage["input_tokens"]) - cached, int(usage["output_tokens"])


def _spent(columns: Sequence[_Column]) -> tuple[list[float], str]:
    """Returns the cost of each column and its unit: that of the session's prices, else a plain input token."""
    if any(t["cost"] is not None for c in columns for t in c.turns):
        return [math.fsum(t["cost"] or 0.0 for t in c.turns) for c in columns], ""
    used = [[Usage(**t["usage"]) for t in c.turns if t["usage"] is not None] for c in columns]
    return [math.fsum(cost(u, PER_TOKEN) for u in each) for each in used], " plain input tokens by Prices.relative()"


def _window_tokens(turn: Row) -> int:
    return sum(int(turn[f"{z}_tokens"]) for z in ZONES)


def _turns(columns: Sequence[_Column]) -> str:
    count = sum(len(c.turns) for c in columns)
    return f"{count:,} turn{'' if count == 1 else 's'}"


def _areas(names: Sequence[str], stacks: Sequence[Sequence[int]], high: float) -> str:
    """Returns one path a zone, stacked; each column is one unit wide."""
    lower = [0] * len(stacks)
    paths: list[str] = []
    for place, name in enumerate(names):
        upper = [low + stack[place] for low, stack in zip(lower, stacks, strict=True)]
        there = "".join(f"V{_y(tokens, high)}H{i + 1}" for i, tokens in enumerate(upper))
        back = "".join(f"V{_y(tokens, high)}H{i}" for i, tokens in reversed(list(enumerate(lower))))
        paths.append(f'<path fill="{COLOURS[name]}" d="M0,{_y(upper[0], high)}{there}{back}Z"/>')
        lower = upper
    return "".join(paths)


def _line(path: str, name: str, dashes: str) -> str:
    return f'<path class="line" fill="none" stroke="{COLOURS[name]}" stroke-width="1.5" stroke-dasharray="{dashes}" d="{path}"/>'


def _y(value: float, high: float) -> str:
    return f"{HEIGHT * (1 - value / high):.0f}"


def _marks(columns: Sequence[_Column]) -> tuple[str, list[str]]:
    """Returns the marks above the chart, and their keys."""
    marks: list[str] = []
    kinds: dict[str, None] = {}
    for index, column in enumerate(columns):
        compactions = sum(int(t["compactions"]) for t in column.turns)
        causes = dict.fromkeys(cause for t in column.turns for cause in t["breaks"])
        others = [cause for cause in causes if cause != "compaction"]
        at = f'style="left:{100 * (index + 0.5) / len(columns):.2f}%'
        if compactions:
            kinds["compaction"] = None
            label = f"{column.name}: {compactions} compaction{'' if compactions == 1 else 's'}"
            marks.append(f'<i {at}" title="{escape(label)}">&#9662;</i>')
        if others:
            kinds["break"] = None
            label = f"{column.name}: the prefix broke by {', '.join(others)}"
            marks.append(f'<i {at};color:{COLOURS["break"]}" title="{escape(label)}">&#215;</i>')
    names = {"compaction": "&#9662; compaction, breaks the cached prefix", "break": "&#215; other cache break"}
    return "".join(marks), [f'<span class="key">{names[kind]}</span>' for kind in kinds]


def _figure(
    caption: str,
    description: str,
    columns: Sequence[_Column],
    drawing: str,
    high: float,
    marks: str,
    keys: Sequence[str],
) -> str:
    per_column = len(columns[0].turns)
    note = f" (the largest of each {per_column})" if per_column > 1 else ""
    step = _step(high)
    ticks = [step * i for i in range(int(high / step) + 1)]
    grid = "".join(
        f'<line x1="0" x2="{len(columns)}" y1="{_y(t, high)}" y2="{_y(t, high)}" stroke="#8884"/>' for t in ticks[1:]
    )
    labels = "".join(f'<span style="bottom:{100 * t / high:.2f}%">{t:,}</span>' for t in ticks)
    first, middle, last = columns[0], columns[len(columns) // 2], columns[-1]
    names = dict.fromkeys(str(c.turns[0]["turn"]) for c in (first, middle))
    ends = [*names, *([last.turns[-1]["turn"]] if len(columns) > 1 else [])]
    turns = "".join(
        f"<span>{'turn ' if i == 0 else ''}{name}</span>" for i, name in enumerate(dict.fromkeys(map(str, ends)))
    )
    return (
        f'<figure><figcaption>{escape(caption + note)}</figcaption><div class="plot"><div class="marks">{marks}</div>'
        f'<div class="ticks">{labels}</div><svg viewBox="0 0 {len(columns)} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(description)}">{grid}{drawing}</svg><div class="turns">{turns}</div></div>'
        f"<p>{''.join(keys)}</p></figure>"
    )


def _step(high: float) -> int:
    """Returns the distance of the grid's lines: 1, 2 or 5 times a power of ten, for three to seven lines."""
    power = int(10 ** math.floor(math.log10(max(high, 4) / 4)))
    return next(factor * power for factor in (1, 2, 5, 10) if high / (factor * power) <= 7)


def _key(name: str, label: str) -> str:
    return f'<span class="key"><i style="background:{COLOURS[name]}"></i>{escape(label)}</span>'


def time_text(at_s: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Returns a time of the log in UTC; one beyond the years 1 to 9999, as a broken clock writes it, as its seconds."""
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{at_s:g} s"


def _money(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 1_000 else f"{amount:.4g}"


def _figures(turns: Sequence[Row]) -> str:
    """Returns the figures of the newest turns as a table; a column that nothing is known of is left out."""
    rows = [_cells(t) for t in turns[-MOST_ROWS:]]
    heads = [name for name in rows[0] if any(row[name] for row in rows)]
    marks = ["" if name in TEXTS else ' class="n"' for name in heads]
    head = "".join(f"<th{mark}>{name}</th>" for name, mark in zip(heads, marks, strict=True))
    lines = "".join(
        f"<tr>{''.join(f'<td{mark}>{escape(row[name])}</td>' for name, mark in zip(heads, marks, strict=True))}</tr>"
        for row in rows
    )
    older = f"<p>The oldest {len(turns) - MOST_ROWS:,} turns are left out.</p>" if len(turns) > MOST_ROWS else ""
    return (
        f"<details><summary>Figures of each turn</summary>{older}"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div></details>'
    )


def _cells(turn: Row) -> dict[str, str]:
    """Returns the cells of a row by their heading, "" for what is not known."""
    usage: Row = turn["usage"] or {}
    reported = {
        "input": "input_tokens",
        "from cache": "cache_read_tokens",
        "output": "output_tokens",
    }
    compactions = int(turn["compactions"])
    what = [f"{compactions} compactions" if compactions > 1 else "compaction"] if compactions else []
    return {
        "turn": "now" if turn["open"] else str(turn["turn"]),
        "when (UTC)": time_text(turn["at_s"]),
        **{NAMES[z]: f"{turn[f'{z}_tokens']:,}" if turn[f"{z}_tokens"] else "" for z in ZONES},
        **{name: f"{usage[field]:,}" if usage else "" for name, field in reported.items()},
        "cost": "" if turn["cost"] is None else _money(turn["cost"]),
        "what": ", ".join([*what, *(cause for cause in turn["breaks"] if cause != "compaction")]),
    }
