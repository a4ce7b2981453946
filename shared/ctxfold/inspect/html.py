"""Renders reports as self-contained HTML. All text is escaped and nothing is loaded from outside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, TypeAlias

__all__ = ["archive_html", "page", "timeline_html", "window_html"]

Row: TypeAlias = Mapping[str, Any]

COLOURS = {
    "system": "#6b7280",
    "summary": "#b45309",
    "section": "#7c3aed",
    "live": "#2563eb",
    "beside": "#0f766e",
    "free": "transparent",
    "reply": "#d1d5db",
}
NAMES = {
    "system": "system prompts",
    "summary": "summaries",
    "section": "sections",
    "live": "conversation",
    "beside": "tools and the like",
    "free": "free",
    "reply": "kept for the reply",
}
STYLE = """
.ctxfold{font:14px/1.45 system-ui,sans-serif;max-width:72rem}
.ctxfold table{border-collapse:collapse;width:100%;margin:.5rem 0}
.ctxfold th,.ctxfold td{text-align:left;padding:.15rem .6rem .15rem 0;border-bottom:1px solid #8884;vertical-align:top}
.ctxfold td.n,.ctxfold th.n{text-align:right;font-variant-numeric:tabular-nums}
.ctxfold .bar{display:flex;height:1.4rem;border:1px solid #888;border-radius:3px;overflow:hidden}
.ctxfold .key{margin-right:1rem;white-space:nowrap}
.ctxfold .key i{display:inline-block;width:.8em;height:.8em;border:1px solid #888;margin-right:.3em}
.ctxfold details{border-bottom:1px solid #8884;padding:.15rem 0}
.ctxfold pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.3rem 0 .3rem 1rem}
.ctxfold input{font:inherit;width:24rem;max-width:100%}
.ctxfold .undone{opacity:.55;text-decoration:line-through}
"""
# words of the search box, or of the address (#q=locker), against the text of each message
SCRIPT = """
for (const box of document.querySelectorAll(".ctxfold input[type=search]")) {
  const list = box.closest("section"), told = list.querySelector("output");
  const search = () => {
    const words = box.value.toLowerCase().split(/\\s+/).filter(Boolean);
    let found = 0;
    for (const one of list.querySelectorAll("details")) {
      one.hidden = !words.every(word => one.textContent.toLowerCase().includes(word));
      found += !one.hidden;
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
    return f'<div class="ctxfold"><style>{STYLE}</style>{_window(report)}</div>'


def _window(report: Row) -> str:
    parts = _shares(report)
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
    head = (
        f"{report['used_tokens']:,} of {report['budget_tokens']:,} tokens used, window {report['context_window']:,}, "
        f"epoch {report['epoch']}, {report['compactions']} compactions"
    )
    if report.get("gauge"):
        head += f"; {report['gauge']['forecast']}"
    label = f"{report['used_tokens']} of {report['budget_tokens']} tokens"
    return (
        f"<h3>Session {escape(report['session'])}</h3><p>{head}</p>"
        f'<div class="bar" role="img" aria-label="{label}">{bar}</div><p>{keys}</p>{_blocks(report)}{_prefix(report["prefix"])}'
    )


def _shares(report: Row) -> dict[str, int]:
    """Returns the tokens of each part of the context window, in the order in which they are sent."""
    blocks: Sequence[Row] = report["blocks"]
    zones = {
        zone: sum(b["tokens"] for b in blocks if b["zone"] == zone) for zone in ("system", "summary", "section", "live")
    }
    beside, budget = int(report["overhead_tokens"]), int(report["budget_tokens"])
    free = max(0, budget - sum(zones.values()) - beside)
    return {**zones, "beside": beside, "free": free, "reply": max(0, int(report["context_window"]) - budget)}


def _blocks(report: Row) -> str:
    rows = (
        (
            b["zone"],
            b["role"],
            _number(b["tokens"]),
            b["reference"],
            _age(report["now_s"], b["at_s"]),
            b["why"],
            b["source"],
            b["preview"],
        )
        for b in report["blocks"]
    )
    return _table(("zone", "role", "tokens", "", "age", "why", "source", "message"), rows, numbers=(2,))


def _prefix(prefix: Row) -> str:
    if not prefix["requests"]:
        return "<p>No request was made here: nothing is known of the prefix.</p>"
    reuse = prefix["reused_tokens"] / prefix["sent_tokens"] if prefix["sent_tokens"] else 0.0
    broke = ", ".join(f"{escape(cause)} {count}&times;" for cause, count in prefix["breaks"]) or "nothing"
    return (
        f"<p>{prefix['requests']} requests, {reuse:.1%} of their tokens in an unbroken prefix; broken by: {broke}.</p>"
    )


def timeline_html(steps: Sequence[Row]) -> str:
    """Returns the changes of the window, oldest first; undone ones are struck through."""
    if not steps:
        return "<p>Nothing has been compacted or edited yet.</p>"
    rows = "".join(
        f"<tr{' class=undone' if step['undone'] else ''}><td>{escape(_moment(step['at_s']))}</td><td>{escape(step['what'])}</td>"
        f'<td class="n">{_change(step)}</td><td>{escape(step["detail"])}</td></tr>'
        for step in steps
    )
    head = '<tr><th>when (UTC)</th><th>what</th><th class="n">tokens</th><th></th></tr>'
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


def _change(step: Row) -> str:
    return f"{step['tokens_before']:,} &rarr; {step['tokens_after']:,}" if step["tokens_before"] else ""


def archive_html(messages: Sequence[Row], left_out: int) -> str:
    """Returns every message, folded, with a box that searches them."""
    more = f"<p>The oldest {left_out:,} messages are left out.</p>" if left_out else ""
    items = "".join(
        f"<details><summary>{escape(m['reference'])} {escape(m['role'])}, {escape(m['where'])}: {escape(m['preview'])}</summary>"
        f"<pre>{escape(m['text'])}</pre></details>"
        for m in messages
    )
    box = '<p><input type="search" aria-label="search" placeholder="search messages"> <output></output></p>'
    return f"<section>{box}{more}{items}</section>"


def page(report: Row) -> str:
    """Returns one self-contained HTML document; its policy allows no script but its own."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    title = escape(f"ctxfold: {report['window']['session']}")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title></head>'
        f"<body>{body(report)}<script>{SCRIPT}</script></body></html>\n"
    )


def body(report: Row) -> str:
    """Returns an inspection as a piece of HTML."""
    return (
        f'<div class="ctxfold"><style>{STYLE}</style>{_window(report["window"])}'
        f"<h3>What happened</h3>{timeline_html(report['timeline'])}"
        f"<h3>All messages</h3>{archive_html(report['messages'], report['left_out'])}</div>"
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int]) -> str:
    marks = ['class="n"' if i in numbers else "" for i in range(len(heads))]
    head = "".join(f"<th {mark}>{escape(h)}</th>" for h, mark in zip(heads, marks, strict=True))
    lines = "".join(
        f"<tr>{''.join(f'<td {mark}>{escape(cell)}</td>' for cell, mark in zip(row, marks, strict=True))}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _number(value: int) -> str:
    return f"{value:,}"


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _age(now_s: float, at_s: float) -> str:
    """Returns how long ago, in the largest unit that gives a number above one."""
    seconds = max(0.0, now_s - at_s)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
