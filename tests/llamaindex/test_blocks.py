"""CtxMemoryBlock: ours inside LlamaIndex's own Memory."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.memory import Memory
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from ctxfold import MemoryStore
from llamaindex_ctx import CtxMemory, CtxMemoryBlock
from tests.llamaindex.talk import bot, parking, user


def archive(**fields: Any) -> CtxMemory:
    return CtxMemory.from_defaults("archive", **{"token_limit": 300, **fields})


@pytest_asyncio.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """For the stock memory, which closes no connection of its own."""
    made = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'theirs.db'}")
    yield made
    await made.dispose()


def small(engine: AsyncEngine, block: CtxMemoryBlock, session: str = "ann") -> Memory:
    return Memory.from_defaults(
        session_id=session,
        async_engine=engine,
        token_limit=900,
        token_flush_size=100,
        chat_history_token_ratio=0.4,
        memory_blocks=[block],
    )


async def test_what_their_memory_flushes_is_summarised_and_recalled(engine: AsyncEngine) -> None:
    block = CtxMemoryBlock(archive())
    memory = small(engine, block)
    for i in range(60):
        await memory.aput_messages(parking(i))
    await memory.aput(user("Where does employee 3 park?"))
    told = (await memory.aget())[0]
    assert told.role.value == "system"
    assert "[Summary of prior conversation]" in str(told.content)
    assert f"parking place {3 * 37 % 101} in street 3." in str(told.content)
    kept = [m.content for m in await block.session("ann").aget_all()]
    assert kept == [m.content for i in range(60) for m in parking(i)][: len(kept)]
    assert len(kept) > 80
    assert not any("session_id" in m.additional_kwargs for m in await block.session("ann").aget_all())
    assert block.session().get_all() == []


async def test_the_blocks_text_keeps_to_its_own_limit() -> None:
    memory = archive()
    block = CtxMemoryBlock(memory)
    for i in range(60):
        await block.aput(parking(i), from_short_term_memory=True, session_id="ann")
        text = await block.aget([user("Where does employee 3 park?")], session_id="ann")
        assert memory.context.handle.counter.count_text(text) <= 300


async def test_sessions_are_kept_apart(engine: AsyncEngine) -> None:
    block = CtxMemoryBlock(archive())
    ann, bob = small(engine, block, "ann"), small(engine, block, "bob")
    for i in range(30):
        await ann.aput_messages(parking(i))
        await bob.aput_messages([user(f"Plant {i} stands on sill {i}."), bot("Noted.")] * 3)
    assert "Plant" not in str((await ann.aget("Where does plant 1 stand?"))[0].content)
    assert all("Plant" in str(m.content) for m in block.session("bob").get_all() if m.role.value == "user")


async def test_a_flush_in_the_middle_of_a_round() -> None:
    block = CtxMemoryBlock(archive(token_limit=2_000))
    call = ChatMessage(
        role="assistant", blocks=[ToolCallBlock(tool_call_id="a", tool_name="look", tool_kwargs={"q": 1})]
    )
    found = ChatMessage(role="tool", content="On the sill.", additional_kwargs={"tool_call_id": "a"})
    stray = ChatMessage(role="tool", content="Behind the door.", additional_kwargs={"tool_call_id": "before"})
    await block.aput([stray, user("Where is the fern?"), call], session_id="s")
    await block.aput([found, bot("On the sill.")], session_id="s")
    text = await block.aget([user("And now?")], session_id="s")
    assert text.splitlines() == [
        "user: Result of a tool call:",
        "Behind the door.",
        "user: Where is the fern?",
        'assistant: calls look with {"q": 1}',
        "tool: On the sill.",
        "assistant: On the sill.",
    ]


async def test_a_function_of_old_is_told() -> None:
    block = CtxMemoryBlock(CtxMemory.from_defaults("archive", token_limit=400))
    await block.aput(
        [user("look"), ChatMessage(role="function", content="found it", additional_kwargs={"name": "look"})]
    )
    assert "found it" in await block.aget()


async def test_a_message_larger_than_the_limit_is_archived_whole_and_shown_in_part() -> None:
    block = CtxMemoryBlock(archive())
    long = " ".join(f"word{i}" for i in range(2_000))
    await block.aput([user(long)], session_id="s")
    text = await block.aget([user("And now?")], session_id="s")
    assert text.endswith("word1998 word1999")
    assert archive().context.handle.counter.count_text(text) <= 300
    assert [m.content for m in await block.session("s").aget_all()] == [long]


async def test_truncation_keeps_the_end() -> None:
    block = CtxMemoryBlock(archive())
    count = archive().context.handle.counter.count_text
    content = "\n".join(f"line number {i}" for i in range(20))
    shorter = await block.atruncate(content, 40)
    assert shorter is not None
    assert count(shorter) <= count(content) - 40
    assert shorter.startswith("[earlier lines are left out here]\nline number ")
    assert shorter.endswith("line number 19")
    assert await block.atruncate(content, count(content)) is None


async def test_nothing_flushed_is_nothing_said(engine: AsyncEngine) -> None:
    block = CtxMemoryBlock(archive())
    await block.aput([], session_id="s")
    assert await block.aget([user("Well?")], session_id="s") == ""
    assert await small(engine, block).aget() == []


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda block: block.model_copy(deep=True)])
async def test_a_copy_is_the_same_memory(copied: Callable[[CtxMemoryBlock], CtxMemoryBlock]) -> None:
    block = CtxMemoryBlock(archive(), name="Before", priority=2)
    await block.aput([user("The fern stands on the sill."), bot("Noted.")], session_id="ann")
    twin = copied(block)
    assert twin is not block
    assert twin == block
    assert (twin.name, twin.priority) == ("Before", 2)
    assert "sill" in await twin.aget([user("Where is the fern?")], session_id="ann")
    await twin.aput([user("It moved."), bot("Noted.")], session_id="ann")
    assert twin.session("ann") is block.session("ann")
    assert len(block.session("ann").get_all()) == 4


async def test_their_memory_is_copied_with_the_block() -> None:
    block = CtxMemoryBlock(archive())
    memory = copy.deepcopy(Memory.from_defaults("ann", token_limit=900, memory_blocks=[block]))
    held = memory.memory_blocks[0]
    assert isinstance(held, CtxMemoryBlock)
    assert held.session() is block.session()


def test_no_two_pairs_of_memory_and_session_share_an_archive() -> None:
    """Step 7, item A2: the session "b/c" of the memory "a" and the session "c" of the memory "a/b" were one."""
    store = MemoryStore()
    blocks = {
        name: CtxMemoryBlock(CtxMemory.from_defaults(name, store=store, token_limit=300))
        for name in ("a", "a/b", "a%2Fb")
    }
    pairs = [("a", "b/c"), ("a/b", "c"), ("a", "b%2Fc"), ("a%2Fb", "c"), ("a", "c")]
    archives = [blocks[name].session(inner).session_id for name, inner in pairs]
    assert len(set(archives)) == len(pairs)
    assert (archives[1], archives[-1]) == ("a/b/c", "a/c")
