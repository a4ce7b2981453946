"""Prints the events and the final table of the demo."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ctxfold import CompactionHeld, Event, HistoryCompacted
from ctxfold.session.context import SessionUsage
from examples.demo.examine import Score

__all__ = ["Run", "print_event", "print_start", "print_table"]


@dataclass(frozen=True, slots=True)
class Run:
    """Figures of one run. `unmanaged_tokens` is what the same requests would have sent without any management."""

    turns: int
    requests: int
    seconds: float
    window: int
    conversation_tokens: int
    unmanaged_tokens: int
    reasoning_characters: int
    usage: SessionUsage
    managed: Score
    trimmed: Score
    store: str
    session: str


def print_start(console: Console, turns: int, window: int) -> None:
    """Prints what the lines of `print_event` are about."""
    console.print(
        f"{turns} turns go through a window of {window:,} tokens. Each line is a compaction: older messages are replaced "
        "after a turn that leaves the window nearly full, or before a request that would not fit. The percentage is that of "
        "the budget: the window less the room for the reply.",
        highlight=False,
    )


def print_event(console: Console, event: Event) -> None:
    """Prints a line for a compaction, and for one that could not help."""
    match event:
        case HistoryCompacted():
            share = 1 - event.tokens_after / event.tokens_before
            written = f", written by: {event.fallback_level}" if event.fallback_level else ""
            console.print(
                f"[cyan]{event.strategy}[/] {event.tokens_before:,} -> {event.tokens_after:,} tokens "
                f"(-{share:.0%}), {event.messages_before} -> {event.messages_after} messages; {event.reason}{written}",
                highlight=False,
            )
            for problem in event.problems:
                console.print(f"  [yellow]{problem}[/]", highlight=False)
        case CompactionHeld():
            console.print(f"[yellow]held[/] {event.reason}", highlight=False)
        case _:
            return


def print_table(console: Console, run: Run) -> None:
    """Prints the final table, and where the session is stored."""
    prefix = run.usage.prefix
    breaks = ", ".join(f"{count} by {cause}" for cause, count in prefix.breaks) or "none"
    table = Table(title=f"{run.turns} turns, {run.conversation_tokens:,} tokens, through a window of {run.window:,}")
    table.add_column("")
    table.add_column("with ctxfold", justify="right")
    table.add_column("without", justify="right")
    table.add_row("requests", f"{run.requests}", f"{run.requests}")
    table.add_row("prompt tokens sent", f"{prefix.sent_tokens:,}", f"{run.unmanaged_tokens:,} (does not fit)")
    table.add_row("of those in an unbroken prefix", f"{prefix.reuse:.1%}", "")
    table.add_row("prefix breaks", f"{sum(c for _, c in prefix.breaks)}: {breaks}", "")
    table.add_row("compactions", f"{run.usage.compactions}", "0")
    table.add_row("reasoning streamed", f"{run.reasoning_characters:,} characters", "")
    _score_rows(table, run.managed, run.trimmed)
    table.add_row("time", f"{run.seconds:.1f} s", "")
    console.print(table)
    console.print("without = the whole list each time; for the questions, trim_messages to the same window.")
    for question, answer in run.managed.wrong:
        console.print(f"wrong: {question} -> {answer}", highlight=False, style="yellow")
    command = f"{Path(sys.executable).with_name('ctxfold')} window --store {run.store} {run.session}"
    console.print(f"To look at the session: {command}", highlight=False, soft_wrap=True)


def _score_rows(table: Table, managed: Score, trimmed: Score) -> None:
    rows = (
        ("questions answered right", "right", "asked"),
        ("... about compacted history", "compacted_right", "compacted_asked"),
        ("... about pinned facts", "pinned_right", "pinned_asked"),
    )
    for label, right, asked in rows:
        cells = [f"{getattr(s, right)} of {getattr(s, asked)}" for s in (managed, trimmed)]
        table.add_row(label, *cells)
