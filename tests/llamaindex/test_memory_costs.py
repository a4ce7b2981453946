"""What a memory costs, in what can be counted: reads per turn, summary calls, messages kept. Times are for the benchmarks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import ChatSummaryMemoryBuffer

from ctxfold import MemoryStore, SqlStore
from ctxfold.history.records import Record, SessionKey
from llamaindex_ctx import CtxMemory
from tests.benchmarks.agents_50 import race
from tests.benchmarks.conversation import texts
from tests.benchmarks.peers import llama_history
from tests.benchmarks.summary_calls import Writer, calls_in


class Counted(MemoryStore):
    """Counts the records that are read from it."""

    records = 0

    def read(self, key: SessionKey, *, after: int = 0, upto: int | None = None) -> tuple[Record, ...]:
        return self._seen(super().read(key, after=after, upto=upto))

    def fetch(self, key: SessionKey, seqs: Sequence[int]) -> tuple[Record, ...]:
        return self._seen(super().fetch(key, seqs))

    def find(self, key: SessionKey, ids: Sequence[str]) -> tuple[Record, ...]:
        return self._seen(super().find(key, ids))

    def _seen(self, found: tuple[Record, ...]) -> tuple[Record, ...]:
        self.records += len(found)
        return found


def talk(memory: Any, turns: range) -> None:
    for n in turns:
        asked, answered = texts(n)
        memory.put(ChatMessage(asked))
        memory.get()
        memory.put(ChatMessage(role="assistant", content=answered))


def test_a_turn_reads_as_little_in_a_long_session_as_in_a_short_one() -> None:
    """Records read in twelve turns, which no compaction falls into, after 400 messages and after 3,000."""
    read: dict[int, int] = {}
    for size in (400, 3_000):
        with Counted() as store:
            memory = CtxMemory.from_defaults("s", store=store, context_window=3_000)
            history = llama_history(size)
            for start in range(0, size, 100):
                memory.put_messages(history[start : start + 100])
            memory.context.compact(force=True)
            before = memory.context.usage().compactions
            store.records = 0
            talk(memory, range(size, size + 12))
            read[size] = store.records
            assert memory.context.usage().compactions == before
    assert 0 < read[3_000] <= 1.1 * read[400]


@pytest.mark.parametrize("limit", [2_000, 4_000])
def test_few_summary_calls_over_many_turns(limit: int) -> None:
    writer = Writer()
    memory = CtxMemory.from_defaults(token_limit=limit, llm=writer)
    assert 0 < calls_in(memory, writer, 250) <= 0.05 * 250
    assert len(memory.get_all()) == 500
    assert memory.get_all()[0].content == texts(0)[0]


def test_the_stock_buffer_asks_at_almost_every_turn() -> None:
    """The number beside it, so that nobody has to believe it."""
    writer = Writer()
    assert calls_in(ChatSummaryMemoryBuffer.from_defaults(llm=writer, token_limit=2_000), writer, 150) > 0.5 * 150


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")
@pytest.mark.filterwarnings("ignore:is_running called from within a step:DeprecationWarning")
async def test_nothing_is_lost_among_agents_at_once(tmp_path: Path) -> None:
    """Sixteen agents, three turns with a tool round each, one SQLite file."""
    with SqlStore(f"sqlite:///{tmp_path}/chat.db") as store:
        memories = [CtxMemory.from_defaults(f"s{n}", store=store, context_window=2_000) for n in range(16)]
        done = await asyncio.wait_for(race(memories, turns=3), 600)
        assert done.lost == 0
        assert [len(m.get_all()) for m in memories] == [12] * 16
