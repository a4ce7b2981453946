"""What a whole turn of `create_agent` with a SQLite checkpointer costs, with and without `ContextMiddleware`: whose time it is."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.conversation import WINDOW, database, texts
from tests.benchmarks.lanes import Lane, Plan, race
from tests.benchmarks.sheets import Cell, Sheet, times

__all__ = ["run"]

SIZES, QUICK_SIZES = (100, 1_000, 10_000), (50, 200)
FULL = Plan(turns=60, block=10, slow_s=20.0)
QUICK = Plan(turns=10, block=5, least=1, slow_s=2.0, limit_s=30.0)
BARE, OURS = "create_agent, SqliteSaver", "the same with ContextMiddleware"


@dataclass(slots=True)
class Parts:
    """Whose time each turn took."""

    saver_s: list[float] = field(default_factory=list[float])
    ours_s: list[float] = field(default_factory=list[float])
    turns: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def close_turn(self) -> None:
        self.turns.append((sum(self.saver_s), sum(self.ours_s)))
        self.saver_s.clear()
        self.ours_s.clear()

    def medians_ms(self, turns: int) -> tuple[float, float]:
        """Of the last `turns` ones: those before were for warming up."""
        saver, ours = zip(*self.turns[-turns:], strict=True)
        return statistics.median(saver) * 1e3, statistics.median(ours) * 1e3


@dataclass(frozen=True, slots=True)
class Measured:
    lane: Lane
    parts: Parts


def run(*, quick: bool = False) -> list[Sheet]:
    """One table: a turn at each length of the thread, and its parts."""
    sizes, plan = (QUICK_SIZES, QUICK) if quick else (SIZES, FULL)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        measured = [_measured(name, size, Path(folder), stack) for size in sizes for name in (BARE, OURS)]
        race([m.lane for m in measured], plan)
        return [_sheet(measured, sizes)]


def _measured(name: str, size: int, folder: Path, stack: ExitStack) -> Measured:
    parts = Parts()
    place = f"{'ours' if name == OURS else 'bare'}-{size}"
    saver = _saver(str(folder / f"{place}-checkpoints.db"), parts, stack)
    middleware = [_middleware(database(folder, place), parts, stack)] if name == OURS else []
    turn = _agent_turn(size, middleware, saver)

    def counted(n: int) -> object:
        try:
            return turn(n)
        finally:
            parts.close_turn()

    parts.close_turn()
    return Measured(Lane(name, size, counted), parts)


def _agent_turn(size: int, middleware: Sequence[Any], saver: Any) -> Callable[[int], object]:
    """A thread that has so many messages; each turn adds a question and the answer of a model that takes no time.

    Checkpoints are written before the graph goes on, so that times add up. One turn is made at once: in it, ours takes in a
    past that it has not seen.
    """
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, HumanMessage

    def answers() -> Iterator[AIMessage]:
        while True:
            yield AIMessage("Noted, and thank you.")

    agent = create_agent(GenericFakeChatModel(messages=answers()), [], middleware=middleware, checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "bench"}}
    past: list[Any] = []
    for n in range(size // 2):
        asked, answered = texts(n)
        past += [HumanMessage(asked, id=f"u{n}"), AIMessage(answered, id=f"a{n}")]
    agent.update_state(config, {"messages": past}, as_node="model")

    def turn(n: int) -> object:
        asked = HumanMessage(texts(n)[0], id=f"x{n}")
        return agent.invoke({"messages": [asked]}, config, durability="sync")

    turn(-1)
    return turn


def _saver(path: str, parts: Parts, stack: ExitStack) -> Any:
    import sqlite3

    from langgraph.checkpoint.sqlite import SqliteSaver

    class TimedSaver(SqliteSaver):
        def get_tuple(self, config: Any) -> Any:
            with _added(parts.saver_s):
                return super().get_tuple(config)

        def put(self, *given: Any) -> Any:
            with _added(parts.saver_s):
                return super().put(*given)

        def put_writes(self, *given: Any) -> Any:
            with _added(parts.saver_s):
                return super().put_writes(*given)

    connection = sqlite3.connect(path, check_same_thread=False)
    stack.callback(connection.close)
    return TimedSaver(connection)


def _middleware(url: str, parts: Parts, stack: ExitStack) -> Any:
    from langchain_ctx import ContextMiddleware

    class TimedMiddleware(ContextMiddleware):
        """The time in which the agent waits for us: the model's own is taken off."""

        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            waited: list[float] = []

            def asked(window: Any) -> Any:
                with _added(waited):
                    return handler(window)

            start = time.perf_counter()
            try:
                return super().wrap_model_call(request, asked)
            finally:
                parts.ours_s.append(time.perf_counter() - start - sum(waited))

    middleware = TimedMiddleware(context_window=WINDOW, store=url, strategy="truncate")
    stack.callback(middleware.close)
    return middleware


@contextmanager
def _added(to: list[float]) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        to.append(time.perf_counter() - start)


def _sheet(measured: Sequence[Measured], sizes: Sequence[int]) -> Sheet:
    rows: list[tuple[Cell, ...]] = []
    for size in sizes:
        bare, ours = (next(m for m in measured if m.lane.size == size and m.lane.name == n) for n in (BARE, OURS))
        for one in (bare, ours):
            if one.lane.cut:
                rows.append((size, one.lane.name, "-", one.lane.cut, "-", "-", "-", "-"))
                continue
            saver, middle = one.parts.medians_ms(len(one.lane.wall_s))
            rows.append(
                (
                    size,
                    one.lane.name,
                    len(one.lane.wall_s),
                    one.lane.median_ms(),
                    one.lane.mean_ms(),
                    saver,
                    middle or "-",
                    times(one.lane.median_ms(), bare.lane.median_ms()) if not bare.lane.cut else "-",
                )
            )
    return Sheet(
        "A turn of create_agent with a SQLite checkpointer",
        ("messages", "agent", "turns", "median ms", "mean ms", "checkpointer ms", "ctxfold ms", "to the bare agent"),
        tuple(rows),
        "Question in, answer out; the model takes no time. Checkpointer: its reads and writes (durability='sync', so that times "
        f"add up). ctxfold: all it adds to a model call, on a SQLite file, context_window={WINDOW:,}. Parts are medians.",
    )
