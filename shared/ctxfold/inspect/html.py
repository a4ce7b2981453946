"""Renders reports as self-contained HTML. All text is escaped and nothing is loaded from outside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, TypeAlias

from ctxfold.inspect.chart import CHART_STYLE, COLOURS, NAMES, chart_html, time_text

Row: TypeAlias = Mapping[str, Any]

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
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    title = escape(f"ctxfold: {report['window']['session']}")
    box = (
        '<p class="find"><input type="search" aria-label="search messages" placeholder="search messages">'
        " <output></output></p>"
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><title>{title}</title>'
        f"<style>{PAGE_STYLE}</style></head><body>{body(report, search=box)}<script>{SCRIPT}</script></body></html>\n"
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
    blocks = "".join(
        _block(block, report["now_s"], shown[place] if place < len(shown) else None)
        for place, block in enumerate(report["blocks"])
    )
    return (
        f'<div class="bar" role="img" aria-label="{label}">{bar}</div><p>{keys}</p>{blocks}{_prefix(report["prefix"])}'
    )


def _block(block: Row, now_s: float, text: str | None) -> str:
    facts = (
        f"{block['tokens']:,} tokens",
        block["reference"],
        _age(now_s, block["at_s"]),
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


def _age(now_s: float, at_s: float) -> str:
    """Returns how long ago, in the largest unit that gives a number above one."""
    seconds = max(0.0, now_s - at_s)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
