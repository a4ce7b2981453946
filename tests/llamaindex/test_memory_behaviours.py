"""What LlamaIndex's own tests ask of a memory, asked of CtxMemory, each sync and async.

Where they count on one memory's own numbers (two tokens a message, what exactly is dropped), the behaviour behind it is
asked: what fits, where a window begins, what is never parted.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from llama_index.core.base.llms.types import (
    AudioBlock,
    CitableBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    VideoBlock,
)
from llama_index.core.llms import ChatMessage, MockLLM
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import BaseMemory

from ctxfold.errors import MessageTooLargeError, WindowTooSmallError
from llamaindex_ctx import CtxMemory


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def bot(text: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=text)


def calling(call_id: str, **kwargs: Any) -> ChatMessage:
    return ChatMessage(
        role="assistant", blocks=[ToolCallBlock(tool_call_id=call_id, tool_name="search", tool_kwargs=kwargs)]
    )


def result(call_id: str, text: str) -> ChatMessage:
    return ChatMessage(role="tool", content=text, additional_kwargs={"tool_call_id": call_id})


def words(word: str, count: int) -> str:
    return " ".join([word] * count)


class Driver:
    def __init__(self, is_async: bool) -> None:
        self.is_async = is_async

    async def __call__(self, memory: CtxMemory, name: str, *args: Any, **kwargs: Any) -> Any:
        if not self.is_async:
            return getattr(memory, name)(*args, **kwargs)
        method: Callable[..., Awaitable[Any]] = getattr(memory, f"a{name}")
        return await method(*args, **kwargs)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Driver:
    return Driver(request.param)


@pytest.fixture
def memory() -> Iterator[CtxMemory]:
    with CtxMemory.from_defaults("test_user", token_limit=1_000) as made:
        yield made


def contents(messages: Sequence[ChatMessage]) -> list[str | None]:
    return [m.content for m in messages]


def size(memory: CtxMemory, messages: Sequence[ChatMessage]) -> int:
    return sum(memory.context.counter.count_text(m.content or "") for m in messages)


def starts_well(messages: Sequence[ChatMessage]) -> bool:
    """The first message is the user's, and every result stands behind the reply that called for it."""
    for before, message in itertools.pairwise(messages):
        if message.role == "tool" and before.role not in ("assistant", "tool"):
            return False
    return not messages or messages[0].role == "user"


# making one


def test_initialisation() -> None:
    memory = CtxMemory.from_defaults("test_user", token_limit=1_000)
    assert isinstance(memory, BaseMemory)
    assert (memory.session_id, memory.context.policy.budget_tokens) == ("test_user", 1_000)
    assert CtxMemory.from_defaults(token_limit=10).session_id != CtxMemory.from_defaults(token_limit=10).session_id
    assert CtxMemory.class_name() == memory.to_dict()["class_name"] == "CtxMemory"


async def test_a_history_to_begin_with(call: Driver) -> None:
    memory = CtxMemory.from_defaults(token_limit=1_000, chat_history=[user("first message")])
    assert contents(await call(memory, "get")) == ["first message"]
    assert contents(await call(CtxMemory.from_defaults(token_limit=1_000, chat_history=[]), "get")) == []


@pytest.mark.parametrize("limit", [0, -1])
def test_the_token_limit_is_checked(limit: int) -> None:
    with pytest.raises(ValueError, match=f"token_limit is {limit}"):
        CtxMemory.from_defaults(token_limit=limit)


@pytest.mark.parametrize("reserve", [0, -5, 100, 200])
def test_the_reserve_is_checked(reserve: int) -> None:
    with pytest.raises(ValueError, match="reserve"):
        CtxMemory.from_defaults(context_window=100, max_tokens=reserve)


def test_the_window_is_that_of_the_llm() -> None:
    assert CtxMemory.from_defaults(llm=MockLLM()).context.policy.context_window == MockLLM().metadata.context_window


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
        await call(memory, "put", calling(f"c{i}", query=words("word", 200)))
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
            calling(f"c{i}", q="b"),
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
    assert await call(memory, "get_all") == []


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


# set, reset, get_all


async def test_set_and_reset(call: Driver, memory: CtxMemory) -> None:
    await call(memory, "put_messages", [user("first message"), user("first message")])
    assert len(await call(memory, "get")) == 2
    await call(memory, "set", [user("first message")])
    assert contents(await call(memory, "get")) == ["first message"]
    await call(memory, "reset")
    assert await call(memory, "get") == await call(memory, "get_all") == []
    await call(memory, "put", user("again"))
    assert contents(await call(memory, "get_all")) == ["again"]


async def test_what_was_set_away_is_in_the_archive(call: Driver, memory: CtxMemory) -> None:
    await call(memory, "put", user("My locker is 47-B."))
    await call(memory, "set", [user("something else")])
    memory.context.undo()
    assert contents(await call(memory, "get_all")) == ["My locker is 47-B."]


# summaries


class Told:
    """A scripted model that keeps what it was asked."""

    def __init__(self, text: str) -> None:
        self.prompts: list[str] = []
        self.llm = MockFunctionCallingLLM(response_generator=self._answer)
        self._text = text

    def _answer(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatMessage:
        self.prompts.append("\n".join(str(m.content) for m in messages))
        return bot(self._text)


async def test_older_messages_become_one_summary(call: Driver) -> None:
    model = Told("They talked about plants on sills.")
    memory = CtxMemory.from_defaults(token_limit=300, llm=model.llm)
    for i in range(30):
        await call(memory, "put_messages", [user(f"Plant {i} stands on sill {i * 7}."), bot(f"Plant {i} noted.")])
    window = await call(memory, "get")
    summaries = [m for m in window if m.additional_kwargs.get("ctxfold_kind") == "summary"]
    assert len(summaries) == 1
    assert window[0] is summaries[0]
    assert "They talked about plants on sills." in str(summaries[0].content)
    assert contents(window)[-1] == "Plant 29 noted."
    assert '<message role="user">\nPlant 0 stands on sill 0.\n</message>' in model.prompts[0]
    assert '<message role="assistant">\nPlant 0 noted.\n</message>' in model.prompts[0]
    assert "<previous_summary>" in model.prompts[1]
    assert len(await call(memory, "get_all")) == 60


async def test_the_summariser_sees_calls_and_results_together(call: Driver) -> None:
    model = Told("Plants were looked up.")
    memory = CtxMemory.from_defaults(token_limit=400, llm=model.llm)
    for i in range(12):
        turn = [
            user(f"Where is plant {i}?"),
            calling(f"c{i}", plant=i),
            result(f"c{i}", f"On sill {i}."),
            bot("There."),
        ]
        await call(memory, "put_messages", turn)
    await call(memory, "get")
    for prompt in model.prompts:
        assert prompt.count("calls search with") == prompt.count('<message role="tool">')


async def test_without_a_model_summaries_are_verbatim_lines(call: Driver) -> None:
    memory = CtxMemory.from_defaults(token_limit=300)
    for i in range(30):
        await call(memory, "put_messages", [user(f"Plant {i} stands on sill {i * 7}."), bot("Noted.")])
    assert str((await call(memory, "get"))[0].content).startswith("[Summary of prior conversation]")


# what is in a message


BLOCKS: dict[str, list[ContentBlock]] = {
    "text": [TextBlock(text="Test message")],
    "image": [ImageBlock(url="http://example.com/image.jpg")],
    "video": [VideoBlock(url="http://example.com/video.mp4")],
    "audio": [AudioBlock(url="http://example.com/audio.mp3")],
    "document": [DocumentBlock(url="http://example.com/doc.pdf", document_mimetype="application/pdf")],
    "citable": [CitableBlock(title="t", source="s", content=[TextBlock(text="hello world")])],
}


@pytest.mark.parametrize("name", BLOCKS)
async def test_every_block_counts_and_comes_back(call: Driver, name: str, memory: CtxMemory) -> None:
    empty = memory.context.usage().window_tokens
    await call(memory, "put", ChatMessage(role="user", blocks=BLOCKS[name]))
    assert memory.context.usage().window_tokens > empty + 4
    assert (await call(memory, "get"))[0].blocks == BLOCKS[name]


async def test_thinking_and_calls_count_and_come_back(call: Driver, memory: CtxMemory) -> None:
    thought = ThinkingBlock(content=words("well", 50), additional_information={"signature": "s"})
    blocks = [thought, ToolCallBlock(tool_call_id="c1", tool_name="search", tool_kwargs={"query": words("word", 50)})]
    await call(memory, "put_messages", [user("q"), ChatMessage(role="assistant", blocks=blocks), result("c1", "r")])
    assert memory.context.usage().window_tokens > 100
    assert (await call(memory, "get"))[1].blocks == blocks


# serialising


@pytest.mark.parametrize("way", ["string", "dict", "pickle"])
async def test_round_trips(call: Driver, way: str) -> None:
    memory = CtxMemory.from_defaults(token_limit=200, chat_history=[user("first message")])
    match way:
        case "string":
            again = CtxMemory.from_string(memory.to_string())
        case "dict":
            again = CtxMemory.from_dict(json.loads(json.dumps(memory.to_dict())))
        case _:
            again = pickle.loads(pickle.dumps(memory))
    assert contents(await call(again, "get")) == ["first message"]
    assert again.context.policy.budget_tokens == 200
    await call(again, "put", bot("hi"))
    assert contents(await call(memory, "get")) == ["first message", "hi"]


# loops and threads


async def test_sync_calls_inside_a_running_loop(memory: CtxMemory) -> None:
    memory.put(user("one"))
    await memory.aput(user("two"))
    assert contents(memory.get_all()) == ["one", "two"]


def test_one_memory_through_many_loops(memory: CtxMemory) -> None:
    for i in range(3):
        asyncio.run(memory.aput(user(f"message {i}")))
    assert contents(asyncio.run(memory.aget())) == ["message 0", "message 1", "message 2"]


async def test_concurrent_puts_compact_as_one_after_the_other(call: Driver) -> None:
    memory = CtxMemory.from_defaults(token_limit=200)
    await memory.aput_messages([user(f"seed {i} {words('word', 12)}") for i in range(6)])
    await asyncio.gather(*(memory.aput(user(f"new {i} {words('word', 12)}")) for i in range(8)))
    window = await call(memory, "get")
    assert size(memory, window) <= 200
    assert len({m.content for m in await call(memory, "get_all")}) == 14
