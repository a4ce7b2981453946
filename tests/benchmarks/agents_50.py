"""Fifty LlamaIndex agents at once on one event loop, their memories in one SQLite file: what the loop feels of them."""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    LLMMetadata,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory.types import BaseMemory
from llama_index.core.tools import FunctionTool
from pydantic import PrivateAttr

from ctxfold import SqlStore
from llamaindex_ctx import CtxMemory
from tests.benchmarks.sheets import Cell, Sheet

__all__ = ["Race", "race", "run"]

AGENTS, TURNS, RUNS = 50, 3, 5
THINKING_S = (2.0, 5.0)  # what a model takes to answer; less, and 50 agents' own steps leave the loop no pause at all
QUICK_S = (0.1, 0.2)
TICK_S = 0.001
WINDOW = 2_000


@dataclass(frozen=True, slots=True)
class Race:
    """One run of all agents: seconds by which the loop was late, and messages that the memories lack of what was said."""

    late_s: Sequence[float]
    lost: int
    took_s: float

    def p99_ms(self) -> float:
        return statistics.quantiles(self.late_s, n=100)[98] * 1e3


class Idle(BaseMemory):
    """A memory that does nothing but hand over the question."""

    _question: list[ChatMessage] = PrivateAttr(default_factory=list)

    @classmethod
    def from_defaults(cls, **kwargs: Any) -> Idle:
        return cls()

    def get(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:
        return list(self._question)

    def get_all(self) -> list[ChatMessage]:
        return list(self._question)

    def put(self, message: ChatMessage) -> None:
        if message.role == "user":
            self._question = [message]

    def set(self, messages: list[ChatMessage]) -> None: ...

    def reset(self) -> None: ...

    async def aget(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:
        return self.get()

    async def aput(self, message: ChatMessage) -> None:
        self.put(message)

    async def aput_messages(self, messages: list[ChatMessage]) -> None: ...


class Caller(MockFunctionCallingLLM):
    """Calls the tool once per question, then answers; each time after a while, the same in every run."""

    _thinking_s: tuple[float, float] = PrivateAttr()
    _random: random.Random = PrivateAttr()

    def __init__(self, number: int, thinking_s: tuple[float, float]) -> None:
        super().__init__()
        self._thinking_s = thinking_s
        self._random = random.Random(number)

    async def think(self) -> None:
        await asyncio.sleep(self._random.uniform(*self._thinking_s))

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=64_000, is_function_calling_model=True, model_name="caller")

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        await self.think()
        text = f"Box {len(messages)} stands in the hall that you named, behind the third door on the left."
        blocks: list[Any] = [TextBlock(text=text)]
        if messages[-1].role != "tool":
            call = ToolCallBlock(tool_call_id="look-1", tool_name="look", tool_kwargs={"key": len(messages)})
            blocks = [TextBlock(text=""), call]
        return ChatResponse(message=ChatMessage(role="assistant", blocks=blocks))

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        async def one() -> ChatResponseAsyncGen:
            yield await self.achat(messages)

        return one()


def look(key: int) -> str:
    """Looks something up."""
    return f"Entry {key}: it stands where it stood before, and nobody has asked for it since."


async def race(memories: Sequence[BaseMemory], *, turns: int, thinking_s: tuple[float, float] = QUICK_S) -> Race:
    """Every agent talks for so many turns, all at once."""
    tools = [FunctionTool.from_defaults(look)]
    agents = [FunctionAgent(llm=Caller(n, thinking_s), tools=tools, streaming=False) for n in range(len(memories))]
    start = time.perf_counter()
    async with _lateness() as late:
        await asyncio.gather(*(_talk(a, m, turns) for a, m in zip(agents, memories, strict=True)))
    took = time.perf_counter() - start
    kept = [await m.aget_all() for m in memories if isinstance(m, CtxMemory)]
    wanted = [text for n in range(turns) for text in (_question(n), "", look(0), "Box")]
    lost = sum(not _same(told, wanted) for told in kept)
    return Race(late, lost, took)


def _same(told: Sequence[ChatMessage], wanted: Sequence[str]) -> bool:
    return [(m.content or "")[:3] for m in told] == [text[:3] for text in wanted]


async def _talk(agent: FunctionAgent, memory: BaseMemory, turns: int) -> None:
    for n in range(turns):
        await cast("Caller", agent.llm).think()  # its user does, too
        await agent.run(_question(n), memory=memory)


def _question(n: int) -> str:
    return f"Message {n}: where does box KX-{n} stand, which was brought in on the day before yesterday?"


@asynccontextmanager
async def _lateness() -> AsyncIterator[list[float]]:
    """By how much a timer of one millisecond is late, all the while."""
    late: list[float] = []

    async def tick() -> None:
        while True:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            late.append(time.perf_counter() - due)

    ticking = asyncio.create_task(tick())
    try:
        yield late
    finally:
        ticking.cancel()


async def _ours(url: str, agents: int, turns: int, thinking_s: tuple[float, float]) -> Race:
    with SqlStore(url) as store:
        memories = [CtxMemory.from_defaults(f"s{n}", store=store, context_window=WINDOW) for n in range(agents)]
        return await race(memories, turns=turns, thinking_s=thinking_s)


async def _idle(agents: int, turns: int, thinking_s: tuple[float, float]) -> Race:
    return await race([Idle() for _ in range(agents)], turns=turns, thinking_s=thinking_s)


def run(*, quick: bool = False) -> list[Sheet]:
    """Both in turns, so that noise of the machine hits them alike."""
    agents, turns, runs = (5, 2, 2) if quick else (AGENTS, TURNS, RUNS)
    thinking_s = QUICK_S if quick else THINKING_S
    rows: list[tuple[Cell, ...]] = []
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore", DeprecationWarning)  # LlamaIndex's own, at every agent
        asyncio.run(_idle(2, 1, QUICK_S))
        for number in range(1, runs + 1):
            gc.collect()
            idle = asyncio.run(_idle(agents, turns, thinking_s))
            gc.collect()
            ours = asyncio.run(_ours(f"sqlite:///{Path(folder) / str(number)}.db", agents, turns, thinking_s))
            above = ours.p99_ms() - idle.p99_ms()
            rows.append(
                (f"run {number}", idle.p99_ms(), ours.p99_ms(), f"{above:+.1f}", f"{ours.lost} lost", ours.took_s)
            )
    middle = statistics.median(float(row[2]) - float(row[1]) for row in rows)
    rows.append(("median", "-", "-", f"{middle:+.1f}", "-", "-"))
    return [
        Sheet(
            f"{agents} agents on one event loop, {turns} turns with a tool round each, memories in one SQLite file",
            (
                "run",
                "idle memory, p99 ms",
                "CtxMemory, p99 ms",
                "above it, ms",
                "agents with a message lost",
                "seconds",
            ),
            tuple(rows),
            f"By how much a timer of {TICK_S * 1e3:.0f} ms is late. Target: a median of 2 ms or less above the memory that does "
            "nothing, and nothing lost.",
        )
    ]
