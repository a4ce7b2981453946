"""Memory blocks of priority 0 stand whole in every window; what is cut or left out of the others is reported."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import BaseMemoryBlock, StaticMemoryBlock

from ctxfold.errors import WindowTooSmallError
from ctxfold.events import SectionInjected, SectionSkipped
from llamaindex_ctx import CtxMemory
from tests.llamaindex.talk import bot, calling, result, user
from tests.llamaindex.twins import Driver

RULES = [f"Rule {n}: answer number {n} politely, briefly and in the customer's own language." for n in range(64)]
LINE = "The customer is allergic to nuts."


def beside(messages: Sequence[ChatMessage]) -> str:
    return "\n".join(m.content or "" for m in messages if m.additional_kwargs.get("ctxfold_kind") == "section")


def told_by(memory: CtxMemory, kind: type) -> list[Any]:
    found: list[Any] = []
    memory.context.subscribe(lambda e: found.append(e) if isinstance(e, kind) else None)
    return found


def tokens(memory: CtxMemory, messages: Sequence[ChatMessage]) -> int:
    return sum(memory.context.handle.counter.count_text(m.content or "") for m in messages)


@pytest.mark.parametrize(
    ("window", "turns", "text"), [(8_000, 100, "\n".join(RULES)), (1_500, 80, LINE)], ids=["long", "one-line"]
)
async def test_priority_0_stands_whole_in_every_window(call: Driver, window: int, turns: int, text: str) -> None:
    """Step 7, item A7: the block lost its last rule in 48 of 100 turns at 8,000 and was absent in 23 of 80 at 1,500."""
    block = StaticMemoryBlock(name="core", static_content=text, priority=0)
    chance = random.Random(7)
    missing: list[int] = []
    with CtxMemory.from_defaults("s", context_window=window, memory_blocks=[block]) as memory:
        assert window < 8_000 or memory.context.handle.counter.count_text(text) > 1_000
        for turn in range(turns):
            words = " ".join(chance.choice(("ship", "invoice", "late", "colour", "number")) for _ in range(60))
            await call(memory, "put", user(f"Question {turn} about {words}?"))
            shown = await call(memory, "get")
            if any(line not in beside(shown) for line in text.splitlines()):
                missing.append(turn)
            assert tokens(memory, shown) <= memory.token_limit
            await call(memory, "put", bot(f"Answer {turn}: {words}."))
        assert memory.context.usage().compactions
    assert missing == []


@pytest.mark.parametrize("limit", [300, 400, 600, 1_000])
async def test_the_conversation_gives_way_to_priority_0(call: Driver, limit: int) -> None:
    """Step 7, item A7: recall, summary and tail get what the block leaves."""
    text = "\n".join(RULES[:8])
    block = StaticMemoryBlock(name="core", static_content=text, priority=0)
    with CtxMemory.from_defaults("s", token_limit=limit, memory_blocks=[block]) as memory:
        for i in range(30):
            await call(memory, "put", user(f"Note {i}: the parcel {i * 37 % 101} went to the harbour."))
            shown = await call(memory, "get")
            assert RULES[7] in beside(shown)
            assert tokens(memory, shown) <= limit
            await call(memory, "put", bot(f"Noted {i}."))
            assert RULES[7] in beside(await call(memory, "get")), "after a reply, too"


async def test_priority_0_that_cannot_fit_is_an_error_with_the_number(call: Driver) -> None:
    """Step 7, item A7: nothing is cut; the error names the block, what it takes and what there is."""
    block = StaticMemoryBlock(name="core", static_content="\n".join(RULES), priority=0)
    with CtxMemory.from_defaults("s", token_limit=500, memory_blocks=[block]) as memory:
        await call(memory, "put", user("Where is my parcel?"))
        with pytest.raises(WindowTooSmallError, match=r"'core'.* 1,?\d\d\d .*has \d+ for them.*token_limit"):
            await call(memory, "get")
        assert [m.content for m in memory.get_all()] == ["Where is my parcel?"]


async def test_a_question_that_does_not_fit_beside_priority_0_is_refused(call: Driver) -> None:
    """Step 7, item A7: the newest question needs its room, too; the next one is answered."""
    block = StaticMemoryBlock(name="core", static_content="\n".join(RULES[:16]), priority=0)
    with CtxMemory.from_defaults("s", token_limit=600, memory_blocks=[block]) as memory:
        await call(memory, "put", user("long " * 450))
        with pytest.raises(WindowTooSmallError, match="'core'"):
            await call(memory, "get")


async def test_what_is_cut_of_other_blocks_is_reported(call: Driver) -> None:
    """Step 7, item A7: a block of priority 1 that is cut, and one that has no room at all, each say so with numbers."""
    blocks = [
        StaticMemoryBlock(name="core", static_content="\n".join(RULES[:16]), priority=0),
        StaticMemoryBlock(name="cut", static_content="\n".join(RULES), priority=1),
        StaticMemoryBlock(name="gone", static_content="\n".join(RULES), priority=2),
    ]
    with CtxMemory.from_defaults("s", token_limit=400, memory_blocks=blocks) as memory:
        injected, skipped = told_by(memory, SectionInjected), told_by(memory, SectionSkipped)
        shown = await call(memory, "get", "Where is my parcel?")
        assert RULES[15] in beside(shown)
        assert tokens(memory, shown) <= 400
        assert [(e.kind, e.items, e.cut) for e in injected] == [("core", 1, 0), ("cut", 1, 1)]
        (gone,) = skipped
        assert gone.kind == "gone"
        assert any(word.isdigit() for word in gone.reason.replace(",", "").split())


async def test_blocks_of_priority_0_share_the_room_with_each_other_and_the_prompt() -> None:
    """Step 7, item A7: two that fit one by one, not together, are an error that names both."""
    blocks = [
        StaticMemoryBlock(name=name, static_content="\n".join(RULES[:10]) + name, priority=0) for name in ("one", "two")
    ]
    memory = CtxMemory.from_defaults("s", token_limit=300, memory_blocks=blocks)
    with memory, pytest.raises(WindowTooSmallError, match=r"'one'.*'two'"):
        memory.get("Well?")


async def test_priority_0_stands_before_anything_is_said_and_in_a_run(call: Driver) -> None:
    """Step 7, item A7: an empty conversation and a window that ends with a tool round show the block as well."""
    block = StaticMemoryBlock(name="core", static_content=LINE, priority=0)
    with CtxMemory.from_defaults("s", context_window=2_000, memory_blocks=[block]) as memory:
        assert LINE in beside(await call(memory, "get"))
        await call(memory, "put_messages", [user("Look."), calling("a"), result("a")])
        assert LINE in beside(await call(memory, "get"))


async def test_a_block_of_many_messages_is_whole(call: Driver) -> None:
    """Step 7, item A7: a block that answers with 300 messages loses none of them."""
    block = Messages(name="core", priority=0)
    with CtxMemory.from_defaults("s", context_window=16_000, memory_blocks=[block]) as memory:
        told = beside(await call(memory, "get", "Well?"))
    assert [i for i in range(300) if f"note {i}." not in told] == []


async def test_a_block_of_priority_0_that_grows_never_ends_the_conversation(call: Driver) -> None:
    """Step 7, item A7: what no window could hold is cut at four fifths of the budget, and the event says by how much."""
    block = Messages(name="grown", priority=0)
    with CtxMemory.from_defaults("s", token_limit=400, memory_blocks=[block]) as memory:
        injected = told_by(memory, SectionInjected)
        for i in range(10):
            await call(memory, "put", user(f"Question {i}?"))
            shown = await call(memory, "get")
            assert "note 0." in beside(shown)
            assert f"Question {i}?" in [m.content for m in shown]
            assert tokens(memory, shown) <= 400
            await call(memory, "put", bot(f"Answer {i}."))
    assert {e.items + e.left_out for e in injected} == {300}
    assert all(e.hidden_chars >= 7 * e.left_out > 0 for e in injected)
    assert min(e.tokens for e in injected) > 280, "it is cut to four fifths, and does not give way to the conversation"


class Messages(BaseMemoryBlock[Any]):
    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> Any:
        return [user(f"note {i}.") for i in range(300)]

    async def _aput(self, messages: list[ChatMessage]) -> None:
        """Keeps nothing."""
