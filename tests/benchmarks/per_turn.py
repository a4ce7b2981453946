"""Engine time per turn, whatever was stored before, and the same turn in other libraries, in one run."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from ctxfold import AgentContext, MemoryStore
from tests.benchmarks.conversation import WINDOW, database, exchange, filled_context, label
from tests.benchmarks.lanes import Lane, Plan, race
from tests.benchmarks.peers import peer_lanes
from tests.benchmarks.sheets import Cell, Sheet, times

__all__ = ["run"]

MEMORY, SQLITE = "ctxfold, MemoryStore", "ctxfold, SQLite file"
SIZES, PEER_SIZES = (1_000, 10_000, 100_000), (1_000, 10_000)
QUICK_SIZES, QUICK_PEER_SIZES = (100, 400), (100, 200)
QUICK = Plan(turns=20, block=5, least=1, slow_s=0.1, limit_s=60.0)


def run(*, quick: bool = False) -> list[Sheet]:
    """Two tables: our turn at each size, and everybody's."""
    sizes, peer_sizes = (QUICK_SIZES, QUICK_PEER_SIZES) if quick else (SIZES, PEER_SIZES)
    sizes = tuple(sorted({*sizes, *peer_sizes}))
    plan = QUICK if quick else Plan()
    with tempfile.TemporaryDirectory() as folder, closing(asyncio.new_event_loop()) as loop, ExitStack() as stack:
        stores = [(MEMORY, n, MemoryStore()) for n in sizes]
        stores += [(SQLITE, n, database(Path(folder), str(n))) for n in sizes]
        contexts = [(name, n, stack.enter_context(filled_context(store, n))) for name, n, store in stores]
        ours = [Lane(name, size, _turn(context)) for name, size, context in contexts]
        peers = peer_lanes(peer_sizes, loop, stack)
        race([*ours, *peers], plan)
        return [_own(ours, contexts), _beside(ours, peers, peer_sizes)]


def _turn(context: AgentContext) -> Callable[[int], object]:
    def turn(n: int) -> object:
        context.add(exchange(n, "x"))
        return context.window().messages

    return turn


def _own(lanes: Sequence[Lane], contexts: Sequence[tuple[str, int, AgentContext]]) -> Sheet:
    rows: list[tuple[Cell, ...]] = []
    for lane, (_, _, context) in zip(lanes, contexts, strict=True):
        base = next(other for other in lanes if other.name == lane.name)
        rows.append(
            (
                lane.name,
                lane.size,
                len(lane.wall_s),
                lane.median_ms(),
                lane.mean_ms(),
                lane.cpu_median_ms(),
                lane.cpu_mean_ms(),
                times(lane.median_ms(), base.median_ms()),
                times(lane.cpu_median_ms(), base.cpu_median_ms()),
                times(lane.mean_ms(), base.mean_ms()),
                context.usage().compactions,
            )
        )
    smallest = label(min(lane.size for lane in lanes))
    return Sheet(
        f"Engine time per turn: two messages added, window read (context_window={WINDOW:,})",
        (
            "store",
            "messages",
            "turns",
            "median ms",
            "mean ms",
            "CPU median ms",
            "CPU mean ms",
            f"median to {smallest}",
            f"CPU median to {smallest}",
            f"mean to {smallest}",
            "compactions",
        ),
        tuple(rows),
        f"Target: a median of 1.3 x or less of that at {smallest}. Means include the turns that compact or write a snapshot.",
    )


def _beside(ours: Sequence[Lane], peers: Sequence[Lane], sizes: Sequence[int]) -> Sheet:
    rows: list[tuple[Cell, ...]] = []
    for size in sizes:
        memory, sqlite = (next(x for x in ours if x.size == size and x.name == name) for name in (MEMORY, SQLITE))
        for lane in (memory, sqlite, *(peer for peer in peers if peer.size == size)):
            if lane.cut:
                rows.append((lane.name, size, "-", lane.cut, lane.cut, "-", "-"))
                continue
            median = lane.median_ms()
            rows.append(
                (
                    lane.name,
                    size,
                    len(lane.wall_s),
                    median,
                    lane.mean_ms(),
                    times(median, memory.median_ms()),
                    times(median, sqlite.median_ms()),
                )
            )
    return Sheet(
        "The same turn elsewhere, same run",
        ("operation", "messages", "turns", "median ms", "mean ms", "to ctxfold in memory", "to ctxfold on SQLite"),
        tuple(rows),
        "LangChain's and langmem's rows store nothing: the caller keeps the list. LlamaIndex: put user, get, put assistant.",
    )
