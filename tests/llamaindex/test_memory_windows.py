"""What LlamaIndex's own tests ask of a memory's window, asked of CtxMemory, each sync and async.

Where they count on one memory's own numbers (two tokens a message, what exactly is dropped), the behaviour behind it is
asked: what fits, where a window begins, what is never parted.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence

import pytest
from llama_index.core.base.llms.types import DocumentBlock, MessageRole, TextBlock
from llama_index.core.llms import ChatMessage

from ctxfold.errors import MessageTooLargeError, WindowTooSmallError
from llamaindex_ctx import CtxMemory
from tests.llamaindex.talk import bot, contents, result, searching, user, words
from tests.llamaindex.twins import Driver


@pytest.fixture
def memory() -> Iterator[CtxMemory]:
    with CtxMemory.from_defaults("test_user", token_limit=1_000) as made:
        yield made


def size(memory: CtxMemory, messages: Sequence[ChatMessage]) -> int:
    return sum(memory.context.handle.counter.count_text(m.content or "") for m in messages)


def starts_well(messages: Sequence[ChatMessage]) -> bool:
    """The first message is the user's, and every result stands behind the reply that called for it."""
    for before, message in itertools.pairwise(messages):
        if message.role == "tool" and before.role not in ("assistant", "tool"):
            return False
    return not messages or messages[0].role == "user"


# under and over the limit


async def test_put_and_get_under_the_limit(call: Driver, memory: CtxMemory) -> None:
    await call(memory, "put", user("Message 1"))
    await call(memory, "put_messages", [bot("Response 1")])
    found = await call(memory, "get")
    assert [(m.role, m.content) for m in found] == [
        (MessageRole.USER, "Message 1"),
        (MessageRole.ASSISTANT, "Response 1"),
    ]


async def test_strings_are_user_messages(call: Driver, memory: CtxMemory) -> None:
    await call(memory, "put", "one")
    await call(memory, "put_messages", ["two", bot("three")])
    assert [(m.role.value, m.content) for m in await call(memory, "get")] == [
        ("user", "one"),
        ("user", "two"),
        ("assistant", "three"),
    ]
    await call(memory, "set", ["four"])
    assert contents(await call(memory, "get_all")) == ["four"]
    assert contents(await call(memory, "get", input="five")) == ["four"]
    assert contents(await call(memory, "get", input=user("five"))) == ["four"]


async def test_many_messages_and_none(call: Driver, memory: CtxMemory) -> None:
    await call(memory, "put_messages", [])
    assert await call(memory, "get") == []
    await call(memory, "put_messages", [user(f"message {i}") for i in range(30)])
    assert contents(await call(memory, "get_all")) == [f"message {i}" for i in range(30)]
    await call(memory, "set", [])
    assert await call(memory, "get") == await call(memory, "get_all") == []


async def test_over_the_limit_the_newest_stays_and_nothing_is_lost(call: Driver, memory: CtxMemory) -> None:
    messages = [user(words("x", 500)), bot(words("y", 500)), user(words("z", 500))]
    await call(memory, "put_messages", messages)
    window = await call(memory, "get")
    assert window[-1].content == messages[-1].content
    assert size(memory, window) <= 1_000
    assert contents(await call(memory, "get_all")) == contents(messages)


async def test_the_same_message_again_and_again(call: Driver) -> None:
    """The limit is kept, the order too, and every copy counts."""
    memory = CtxMemory.from_defaults(token_limit=60)
    for _ in range(20):
        await call(memory, "put", user("first message"))
        assert size(memory, await call(memory, "get")) <= 60
    await call(memory, "put", user("test message2"))
    assert (await call(memory, "get"))[-1].content == "test message2"
    assert len(await call(memory, "get_all")) == 21


async def test_tool_calls_make_a_window_full(call: Driver) -> None:
    memory = CtxMemory.from_defaults(token_limit=900)
    for i in range(10):
        await call(memory, "put", user("hi"))
        await call(memory, "put", searching(f"c{i}", query=words("word", 200)))
        await call(memory, "put", result(f"c{i}", "ok"))
        await call(memory, "put", bot("done"))
    window = await call(memory, "get")
    assert len(window) < 20
    assert starts_well(window)
    assert len(await call(memory, "get_all")) == 40


@pytest.mark.parametrize("scale", [5, 20, 40, 60, 90])
async def test_a_window_begins_with_the_user_and_keeps_whole_turns(call: Driver, scale: int) -> None:
    """Whatever the sizes: never an assistant's or a tool's message first, never a result without its call."""
    memory = CtxMemory.from_defaults(token_limit=400)
    for i in range(12):
        for message in (
            user(words("a", scale * 2)),
            searching(f"c{i}", q="b"),
            result(f"c{i}", words("c", scale)),
            bot(words("d", scale)),
        ):
            await call(memory, "put", message)
            window = await call(memory, "get")
            assert window
            assert starts_well(window)
            assert size(memory, window) <= 400
        assert window[-1].content == words("d", scale)


async def test_a_large_question_and_a_small_answer(call: Driver) -> None:
    memory = CtxMemory.from_defaults(token_limit=120)
    await call(memory, "put_messages", [user(words("x", 100)), bot("ok")])
    assert [m.role.value for m in await call(memory, "get")] == ["user", "assistant"]


async def test_tool_messages_without_calls(call: Driver) -> None:
    """As LlamaIndex's tests write them: no call in the reply, no id on the result."""
    memory = CtxMemory.from_defaults(token_limit=400)
    turn = [user(words("a", 40)), bot(words("b", 20)), ChatMessage(role="tool", content="c"), bot(words("d", 20))]
    await call(memory, "put_messages", turn * 6)
    window = await call(memory, "get")
    assert starts_well(window)
    assert len(await call(memory, "get_all")) == 24


async def test_a_message_that_never_fits_is_refused_before_it_is_stored(call: Driver) -> None:
    memory = CtxMemory.from_defaults(token_limit=50)
    with pytest.raises(MessageTooLargeError, match="has 303 tokens, the window leaves 50"):
        await call(memory, "put", user(words("x", 299)))
    manual = ChatMessage(
        role="user", blocks=[TextBlock(text="Read it."), DocumentBlock(url="https://example.org/a.pdf")]
    )
    with pytest.raises(MessageTooLargeError, match=r"has \d{3} tokens, the window leaves 50"):
        await call(memory, "put", manual)
    assert await call(memory, "get_all") == []


async def test_concurrent_puts_compact_as_one_after_the_other(call: Driver) -> None:
    memory = CtxMemory.from_defaults(token_limit=200)
    await memory.aput_messages([user(f"seed {i} {words('word', 12)}") for i in range(6)])
    await asyncio.gather(*(memory.aput(user(f"new {i} {words('word', 12)}")) for i in range(8)))
    window = await call(memory, "get")
    assert size(memory, window) <= 200
    assert len({m.content for m in await call(memory, "get_all")}) == 14


# room for a prefix


async def test_initial_tokens_below_the_limit(call: Driver, memory: CtxMemory) -> None:
    await call(memory, "put", user("first message"))
    assert contents(await call(memory, "get", initial_token_count=5)) == ["first message"]


async def test_initial_tokens_above_the_limit(call: Driver) -> None:
    memory = CtxMemory.from_defaults(token_limit=49)
    with pytest.raises(ValueError, match="initial token count is 50") as caught:
        await call(memory, "get", initial_token_count=50)
    assert isinstance(caught.value, WindowTooSmallError)


async def test_initial_tokens_make_older_turns_give_way(call: Driver, memory: CtxMemory) -> None:
    for i in range(20):
        await call(
            memory, "put_messages", [user(f"question {i} {words('q', 10)}"), bot(f"answer {i} {words('a', 10)}")]
        )
    for initial in (0, 300, 700, 850):
        window = await call(memory, "get", initial_token_count=initial)
        assert size(memory, window) + initial <= 1_000
        assert f"question 19 {words('q', 10)}" in contents(window)
        assert starts_well(window)
