"""The page that shows a window: its zones, its turns as a chart, its messages and summaries, and where each came from."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
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
SHORT_NAMES = {**NAMES, "recalled": "recalled", "tools": "tools"}
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
MOST_LINKS = 120  # of the chart whose columns are links
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
    columns = _columns(turns, MOST_COLUMNS)
    drawn = [_window_chart(columns, budget_tokens)]
    if any(t["usage"] is not None for t in turns):
        drawn.append(_reported_chart(columns))
    return "".join([*drawn, _figures(turns)])


def window_chart(turns: Sequence[Row], budget_tokens: int, link: Callable[[Row], str]) -> str:
    """Returns the chart of the windows alone; each column leads to where `link` says for its turn with the largest window."""
    columns = _columns(turns, MOST_LINKS)
    links = "".join(
        f'<a href="{escape(link(column.largest))}"><rect x="{place}" width="1" height="{HEIGHT}" fill="transparent">'
        f"<title>{column.name}: {_window_tokens(column.largest):,} tokens</title></rect></a>"
        for place, column in enumerate(columns)
    )
    return _window_chart(columns, budget_tokens, links)


def _columns(turns: Sequence[Row], most: int) -> list[_Column]:
    size = math.ceil(len(turns) / most)
    return [_Column(tuple(turns[i : i + size])) for i in range(0, len(turns), size)]


def _window_chart(columns: Sequence[_Column], budget_tokens: int, links: str = "") -> str:
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
        _areas(shown, stacks, high) + budget + links,
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


UNFOLDED_STEPS = 20

STYLE = f"""
.ctxfold{{font:14px/1.45 system-ui,sans-serif;max-width:72rem;overflow-wrap:anywhere}}
.ctxfold table{{border-collapse:collapse;width:100%;margin:.5rem 0}}
.ctxfold th,.ctxfold td{{text-align:left;padding:.15rem .6rem .15rem 0;border-bottom:1px solid #8884;vertical-align:top}}
.ctxfold td.n,.ctxfold th.n{{text-align:right;font-variant-numeric:tabular-nums}}
.ctxfold .wide td{{white-space:nowrap}}
.ctxfold .bar{{display:flex;height:1.4rem;border:1px solid #888;border-radius:3px;overflow:hidden}}
.ctxfold .key{{margin-right:1rem;display:inline-block}}
.ctxfold .key i,.ctxfold .m i{{display:inline-block;width:.8em;height:.8em;border:1px solid #888;margin-right:.3em}}
.ctxfold .m{{border-bottom:1px solid #8884;padding:.15rem 0}}
.ctxfold .m small{{opacity:.75;margin-left:.4em}}
.ctxfold summary{{cursor:pointer}}
.ctxfold pre{{white-space:pre-wrap;margin:.3rem 0 .3rem 1rem;font-size:.95em}}
.ctxfold .find{{position:sticky;top:0;background:Canvas;padding:.4rem 0;z-index:1}}
.ctxfold input{{font:inherit;width:24rem;max-width:100%}}
.ctxfold .undone{{opacity:.55;text-decoration:line-through}}
.ctxfold .pair{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr));gap:0 1.5rem;margin:.6rem 0;
border:1px solid #8886;border-radius:4px;padding:0 .8rem .6rem}}
.ctxfold .pair>div{{max-height:36rem;overflow:auto}}
.ctxfold h3{{margin:1.6rem 0 .4rem}}
.ctxfold h4{{margin:.6rem 0 .3rem}}
{CHART_STYLE}"""
PAGE_STYLE = """
:root{color-scheme:light dark}
body{margin:0 auto;padding:0 1rem 2rem;max-width:72rem;background:Canvas;color:CanvasText}
"""
# words of the search box, or of the address (#q=locker), against the text of each message; those of the window are not
# counted again
SCRIPT = """
for (const box of document.querySelectorAll(".ctxfold input[type=search]")) {
  const list = box.closest(".ctxfold"), told = list.querySelector("output");
  const search = () => {
    const words = box.value.toLowerCase().split(/\\s+/).filter(Boolean);
    let found = 0;
    for (const one of list.querySelectorAll("details.m")) {
      const text = one.textContent.toLowerCase();
      one.hidden = !words.every(word => text.includes(word));
      found += !one.hidden && one.closest(".all") !== null;
    }
    for (const pair of list.querySelectorAll(".pair")) {
      pair.hidden = !pair.querySelector("details.m:not([hidden])");
    }
    told.value = words.length ? `${found} found` : "";
  };
  box.addEventListener("input", search);
  const asked = new URLSearchParams(location.hash.slice(1)).get("q");
  if (asked) { box.value = asked; search(); }
}
"""


def window_html(report: Row) -> str:
    """Returns the window of an explanation: a stacked bar of its zones, its blocks, and the prefix breaks."""
    return f'<div class="ctxfold"><style>{STYLE}</style>{_head(report)}{_window(report, ())}</div>'


def page(report: Row) -> str:
    """Returns one self-contained HTML document; its policy allows no script but its own."""
    box = (
        '<p class="find"><input type="search" aria-label="search messages" placeholder="search messages">'
        " <output></output></p>"
    )
    title = f"ctxfold: {report['window']['session']}"
    return document(title, body(report, search=box), PAGE_STYLE, SCRIPT, policy_of(SCRIPT))


def policy_of(script: str, *more: str) -> str:
    """Returns the content security policy of a page: no script but this one, and nothing from outside."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return "; ".join(["default-src 'none'", "style-src 'unsafe-inline'", f"script-src 'sha256-{digest}'", *more])


def document(title: str, content: str, style: str, script: str, policy: str) -> str:
    """Returns a whole HTML document."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{style}</style></head><body>{content}<script>{script}</script></body></html>\n"
    )


def body(report: Row, *, search: str = "") -> str:
    """Returns an inspection as a piece of HTML; `search` is the box of the page whose script serves it."""
    window = report["window"]
    return (
        f'<div class="ctxfold"><style>{STYLE}</style>{_head(window)}{search}'
        f"<h3>Over time</h3>{chart_html(report['turns'], window['budget_tokens'])}"
        f"<h3>The window now</h3>{_window(window, report['shown'])}"
        f"<h3>What happened</h3>{_timeline(report['timeline'])}"
        f'<h3>All messages</h3><section class="all">{_archive(report)}</section></div>'
    )


def _head(report: Row) -> str:
    head = (
        f"{report['used_tokens']:,} of {report['budget_tokens']:,} tokens used, window {report['context_window']:,}, "
        f"epoch {report['epoch']}, {report['compactions']} compactions; {report['gauge']['forecast']}"
    )
    return f"<h3>Session {escape(report['session'])}</h3><p>{escape(head)}</p><p>{escape(report['cost']['text'])}</p>"


def _window(report: Row, shown: Sequence[str]) -> str:
    """Returns the window in the order in which it is sent; `shown` are the whole texts of its blocks, or nothing."""
    blocks = "".join(
        _block(block, report["now_s"], shown[place] if place < len(shown) else None)
        for place, block in enumerate(report["blocks"])
    )
    return f"{bar_html(report)}{blocks}{_prefix(report['prefix'])}"


def bar_html(report: Row) -> str:
    """Returns the zones of an explanation as a stacked bar with its key."""
    budget = int(report["budget_tokens"])
    free = max(0, budget - int(report["used_tokens"]))
    parts: dict[str, int] = {**report["zones"], "free": free, "reply": int(report["context_window"]) - budget}
    total = max(1, sum(parts.values()))
    bar = "".join(
        f'<span data-zone="{zone}" title="{NAMES[zone]}: {tokens:,} tokens" '
        f'style="width:{100 * tokens / total:.3f}%;background:{COLOURS[zone]}"></span>'
        for zone, tokens in parts.items()
        if tokens
    )
    keys = "".join(
        f'<span class="key"><i style="background:{COLOURS[zone]}"></i>{NAMES[zone]} {tokens:,}</span>'
        for zone, tokens in parts.items()
        if tokens
    )
    label = f"{report['used_tokens']} of {report['budget_tokens']} tokens"
    return f'<div class="bar" role="img" aria-label="{label}">{bar}</div><p>{keys}</p>'


def _block(block: Row, now_s: float, text: str | None) -> str:
    facts = (
        f"{block['tokens']:,} tokens",
        block["reference"],
        age(now_s, block["at_s"]),
        block["why"],
        block["source"],
    )
    line = (
        f'<i style="background:{COLOURS[block["zone"]]}" title="{NAMES[block["zone"]]}"></i><b>{escape(block["role"])}</b> '
        f"{escape(block['preview'])}<small>{escape(', '.join(f for f in facts if f))}</small>"
    )
    if text is None:
        return f'<div class="m">{line}</div>'
    return f'<details class="m"><summary>{line}</summary><pre>{escape(text)}</pre></details>'


def _prefix(prefix: Row) -> str:
    if not prefix["requests"]:
        return "<p>No request was made here: nothing is known of the prefix.</p>"
    reuse = prefix["reused_tokens"] / prefix["sent_tokens"] if prefix["sent_tokens"] else 0.0
    broke = ", ".join(f"{escape(cause)} {count}&times;" for cause, count in prefix["breaks"]) or "nothing"
    return (
        f"<p>{prefix['requests']} requests, {reuse:.1%} of their tokens in an unbroken prefix; broken by: {broke}.</p>"
    )


def _timeline(steps: Sequence[Row]) -> str:
    """Returns the changes of the window, oldest first; undone ones are struck through."""
    if not steps:
        return "<p>Nothing has been compacted or edited yet.</p>"
    rows = "".join(
        f"<tr{' class=undone' if step['undone'] else ''}><td>{escape(time_text(step['at_s']))}</td><td>{escape(step['what'])}</td>"
        f'<td class="n">{_change(step)}</td><td>{escape(step["detail"])}</td></tr>'
        for step in steps
    )
    head = '<tr><th>when (UTC)</th><th>what</th><th class="n">tokens</th><th></th></tr>'
    table = f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"
    return (
        table
        if len(steps) <= UNFOLDED_STEPS
        else f"<details><summary>{len(steps):,} changes</summary>{table}</details>"
    )


def _change(step: Row) -> str:
    return f"{step['tokens_before']:,} &rarr; {step['tokens_after']:,}" if step["tokens_before"] else ""


def _archive(report: Row) -> str:
    """Returns every message, folded: those that a summary of the window stands for beside it, then the others."""
    messages: Sequence[Row] = report["messages"]
    left_out = report["left_out"]
    sources: dict[str, list[Row]] = {}
    for message in messages:
        sources.setdefault(message["summary"], []).append(message)
    blocks = zip(report["window"]["blocks"], report["shown"], strict=True)
    pairs = "".join(_pair(text, block, sources.pop(block["id"])) for block, text in blocks if block["id"] in sources)
    rest = "".join(_message(m) for remaining in sources.values() for m in remaining)
    more = f"<p>The oldest {left_out:,} messages are left out.</p>" if left_out else ""
    return f"{more}{pairs}{rest}"


def _pair(text: str, block: Row, sources: Sequence[Row]) -> str:
    count = f"{len(sources)} message{'' if len(sources) == 1 else 's'}"
    return (
        f'<div class="pair"><div tabindex="0"><h4>Summary, {block["tokens"]:,} tokens</h4><pre>{escape(text)}</pre></div>'
        f'<div tabindex="0"><h4>stands for {count}</h4>{"".join(map(_message, sources))}</div></div>'
    )


def _message(message: Row) -> str:
    return (
        f'<details class="m"><summary>{escape(message["reference"])} {escape(message["role"])}, {escape(message["where"])}: '
        f"{escape(message['preview'])}</summary><pre>{escape(message['text'])}</pre></details>"
    )


def age(now_s: float, at_s: float) -> str:
    """Returns how long ago, in the largest unit that gives a number above one."""
    seconds = max(0.0, now_s - at_s)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
