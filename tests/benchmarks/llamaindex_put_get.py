"""What a LlamaIndex memory costs per turn: put the question, get the window, put the answer."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from llama_index.core.llms.mock import MockLLM
from llama_index.core.memory import ChatSummaryMemoryBuffer

from llamaindex_ctx import CtxMemory
from tests.benchmarks.apart import Make, race_apart
from tests.benchmarks.conversation import BATCH, WINDOW, database, label
from tests.benchmarks.lanes import Lane, Plan, race
from tests.benchmarks.peers import LLAMA_LIMIT, NO_LIMIT, llama_buffer, llama_exchanges, llama_history, llama_memory
from tests.benchmarks.sheets import Cell, Sheet, times

__all__ = ["run"]

SIZES, QUICK_SIZES = (100, 1_000, 10_000, 50_000), (20, 60)
FULL = Plan(turns=100, block=10, least=1, slow_s=20.0, limit_s=180.0)
QUICK = Plan(turns=10, block=5, least=1, slow_s=0.1, limit_s=60.0)
PLAIN, OURS = "CtxMemory without recall, SQLite file", "CtxMemory, SQLite file"
ASYNC = "CtxMemory, SQLite file, async"
NAMES = (
    PLAIN,
    OURS,
    ASYNC,
    "Memory, untrimmed",
    "Memory, limit 30,000, rest archived",
    "ChatMemoryBuffer, untrimmed",
    "ChatMemoryBuffer, limit 3,000",
    "ChatSummaryMemoryBuffer, untrimmed",
    "ChatSummaryMemoryBuffer, limit 2,000",
)
BUFFER_LIMIT, SUMMARY_LIMIT = 3_000, 2_000  # theirs: the defaults of ChatMemoryBuffer and ChatSummaryMemoryBuffer

Turn = Callable[[int], object]


def run(*, quick: bool = False) -> list[Sheet]:
    """Every memory at every size, measured in turns of one run, each memory in a process of its own; quick: only the first."""
    if not quick:
        return [_sheet(race_apart(maker, NAMES, SIZES, FULL), SIZES)]
    with ExitStack() as stack:
        makes = {name: maker(name, stack) for name in NAMES[1:]}
        here = [Lane(name, size, make(size)) for name, make in makes.items() for size in QUICK_SIZES]
        race(here, QUICK)
        return [_sheet([*race_apart(maker, NAMES[:1], QUICK_SIZES, QUICK), *here], QUICK_SIZES)]


def maker(name: str, stack: ExitStack) -> Make:
    """What makes the turns of that memory."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    loop = stack.enter_context(closing(asyncio.new_event_loop()))
    makers: dict[str, Make] = {
        PLAIN: lambda n: _ours(database(folder, f"plain{n}"), n, stack, recall=False),
        OURS: lambda n: _ours(database(folder, f"sync{n}"), n, stack),
        ASYNC: lambda n: _ours_async(database(folder, f"async{n}"), n, loop, stack),
        "Memory, untrimmed": lambda n: llama_memory(n, NO_LIMIT, loop, stack),
        "Memory, limit 30,000, rest archived": lambda n: llama_memory(n, LLAMA_LIMIT, loop, stack),
        "ChatMemoryBuffer, untrimmed": lambda n: llama_buffer(n, NO_LIMIT),
        "ChatMemoryBuffer, limit 3,000": lambda n: llama_buffer(n, BUFFER_LIMIT),
        "ChatSummaryMemoryBuffer, untrimmed": lambda n: _summaries(n, NO_LIMIT),
        "ChatSummaryMemoryBuffer, limit 2,000": lambda n: _summaries(n, SUMMARY_LIMIT),
    }
    return makers[name]


def _ours(url: str, size: int, stack: ExitStack, *, recall: bool = True) -> Turn:
    memory = _filled(url, size, stack)
    memory.recall = recall
    said = llama_exchanges(size)

    def turn(n: int) -> object:
        question, answer = said[n]
        memory.put(question)
        seen = memory.get()
        memory.put(answer)
        return seen

    return turn


def _ours_async(url: str, size: int, loop: asyncio.AbstractEventLoop, stack: ExitStack) -> Turn:
    memory = _filled(url, size, stack)
    said = llama_exchanges(size)

    async def together(n: int) -> object:
        question, answer = said[n]
        await memory.aput(question)
        seen = await memory.aget()
        await memory.aput(answer)
        return seen

    return lambda n: loop.run_until_complete(together(n))


def _filled(url: str, size: int, stack: ExitStack) -> CtxMemory:
    memory = CtxMemory.from_defaults("bench", store=url, context_window=WINDOW)
    stack.callback(memory.close)
    history = llama_history(size)
    for start in range(0, size, BATCH):
        memory.put_messages(history[start : start + BATCH])
    return memory


def _summaries(size: int, limit: int) -> Turn:
    """`MockLLM` writes the summary; over the limit the first turn makes it, later ones go on from there."""
    buffer = ChatSummaryMemoryBuffer.from_defaults(
        chat_history=llama_history(size), llm=MockLLM(max_tokens=100), token_limit=limit
    )
    said = llama_exchanges(size)

    def turn(n: int) -> object:
        question, answer = said[n]
        buffer.put(question)
        seen = buffer.get()
        buffer.put(answer)
        return seen

    return turn


def _sheet(lanes: Sequence[Lane], sizes: Sequence[int]) -> Sheet:
    rows: list[tuple[Cell, ...]] = []
    for size in sizes:
        plain, ours = (next(x for x in lanes if (x.name, x.size) == (name, size)) for name in (PLAIN, OURS))
        for lane in (lane for lane in lanes if lane.size == size):
            if lane.cut:
                rows.append((lane.name, size, "-", lane.cut, "-", "-", "-", "-"))
                continue
            smallest = next(other for other in lanes if other.name == lane.name)
            rows.append(
                (
                    lane.name,
                    size,
                    len(lane.wall_s),
                    lane.median_ms(),
                    lane.mean_ms(),
                    times(lane.median_ms(), plain.median_ms()),
                    times(lane.median_ms(), ours.median_ms()),
                    times(lane.median_ms(), smallest.median_ms()),
                )
            )
    return Sheet(
        f"LlamaIndex memories, one turn: put, get, put (CtxMemory: context_window={WINDOW:,})",
        (
            "memory",
            "messages",
            "turns",
            "median ms",
            "mean ms",
            "to no recall",
            "to CtxMemory",
            f"to itself at {label(sizes[0])}",
        ),
        tuple(rows),
        "Target: at 10,000 messages Memory takes at least 200 x as long, and CtxMemory as long as with 1,000. None of the others "
        "looks anything up, hence the row without recall. The stock buffers keep their messages in the process, CtxMemory in a "
        "file; at 100 it has compacted nothing yet. Each memory runs in a process of its own.",
    )
