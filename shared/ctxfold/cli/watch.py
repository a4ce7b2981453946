"""Implements `ctxfold watch`: the window of a session as another process fills it, live in the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ctxfold.cli.common import OWNER, Name, Owner, StoreUrl, output, session, shown, within
from ctxfold.history.records import SessionKey
from ctxfold.inspect.chart import time_text
from ctxfold.inspect.explain import Explanation
from ctxfold.inspect.report import TimelineEntry
from ctxfold.session.context import AgentContext

RECENT = 5  # compactions that are shown
BAR_CHARS = 40


def watch(
    name: Name,
    store: StoreUrl,
    owner: Owner = OWNER,
    interval_s: Annotated[float, typer.Option("--interval", min=0.05, max=3_600, help="seconds between updates")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="show the window once and exit")] = False,
) -> None:
    """Watch a session's window: tokens by zone, room, the next compaction and recent ones. Ctrl-C ends it.

    Without a terminal, a line is printed for each change.
    """
    console = output()
    with within(), session(store, name, owner) as context:
        views = _views(context, interval_s)
        try:
            if once:
                console.print(_panel(*next(views)))
                return
            if not console.is_terminal:
                for window, _ in views:
                    console.print(Text(_line(window)))
            with Live(console=console, auto_refresh=False) as live:
                for window, timeline in views:
                    live.update(_panel(window, timeline), refresh=True)
        except KeyboardInterrupt:
            return


def _views(context: AgentContext, interval_s: float) -> Iterator[tuple[Explanation, tuple[TimelineEntry, ...]]]:
    """Yields the window and the compactions whenever the log has grown. The log is read whole only after a compaction."""
    key, head, compactions = SessionKey(context.owner, context.session), None, -1
    timeline: tuple[TimelineEntry, ...] = ()
    while True:
        now = context.store.head(key)
        if head is None or now != head:
            head, window = now, context.explain()
            if window.compactions != compactions:
                compactions = window.compactions
                timeline = tuple(step for step in context.inspect().timeline if step.what == "compaction")
            yield window, timeline
        time.sleep(interval_s)


def _line(window: Explanation) -> str:
    zones = ", ".join(f"{zone} {tokens:,}" for zone, tokens in window.zones.items() if tokens)
    stamp = time_text(window.now_s, "%H:%M:%S")
    return f"{stamp} {window.gauge} | {zones} | {window.compactions} compactions"


def _panel(window: Explanation, timeline: tuple[TimelineEntry, ...]) -> Group:
    zones = Table("zone", "tokens", "", box=None)
    for zone, tokens in window.zones.items():
        zones.add_row(zone, f"{tokens:,}", ProgressBar(window.budget_tokens, tokens, width=BAR_CHARS))
    recent = [
        Text(
            f"{time_text(step.at_s)}  {step.tokens_before:,} -> {step.tokens_after:,} tokens"
            f"{' (undone)' if step.undone else ''}"
        )
        for step in timeline[-RECENT:]
    ]
    return Group(
        Text(f"session {shown(window.session)}", style="bold"),
        ProgressBar(window.budget_tokens, window.used_tokens, width=BAR_CHARS + 20),
        Text(str(window.gauge)),
        zones,
        Text(f"{window.compactions} compactions{'; the newest:' if recent else ''}"),
        *recent,
    )
