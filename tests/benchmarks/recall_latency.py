"""What a turn costs in a long session, with and without recall over everything that was compacted."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from ctxfold import AgentContext
from tests.benchmarks.conversation import database, exchange, filled_context
from tests.benchmarks.lanes import Lane, Plan, race
from tests.benchmarks.sheets import Cell, Sheet

__all__ = ["run"]

QUESTIONS = {
    "no recall": None,
    "recall, one rare term": "Which hall does box KX-{n} stand in?",
    "recall, common terms only": "Please note the box, and the hall of message {n} words",
    "recall, a long question": "I would like to know about message {n}: was the box KX-{n}, that we noted with further words of "
    "ordinary length, really to stand in hall 7, or in hall 8, or was another hall noted for it?",
}
QUICK = Plan(turns=20, block=5, least=1, slow_s=0.1, limit_s=60.0)


def run(*, quick: bool = False) -> list[Sheet]:
    """One table: SQLite, all messages archived but the newest."""
    size = 400 if quick else 100_000
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        context = stack.enter_context(filled_context(database(Path(folder), "recall"), size))
        lanes = [Lane(name, size, _turn(context, name, text, size)) for name, text in QUESTIONS.items()]
        race(lanes, QUICK if quick else Plan())
    rows: list[tuple[Cell, ...]] = [
        (lane.name, len(lane.wall_s), lane.median_ms(), lane.cpu_median_ms(), sorted(lane.wall_s)[-2:][0] * 1e3)
        for lane in lanes
    ]
    return [
        Sheet(
            f"Engine time per turn at {size:,} messages on SQLite: two messages added, window read",
            ("turn", "turns", "median ms", "CPU median ms", "second slowest ms"),
            tuple(rows),
            "Targets: 1 ms or less without recall, 30 ms or less with it. Every question is a new one: nothing is remembered.",
        )
    ]


def _turn(context: AgentContext, name: str, text: str | None, size: int) -> Callable[[int], object]:
    def turn(n: int) -> object:
        context.add(exchange(n, name))
        question = None if text is None else text.format(n=n * 37 % (size // 2))
        return context.window(recall=question is not None, question=question).messages

    return turn
