"""What LlamaIndex's own tests ask of a memory beside its window, asked of CtxMemory, each sync and async."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from llama_index.core.base.llms.types import (
    AudioBlock,
    CitableBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    VideoBlock,
)
from llama_index.core.llms import ChatMessage, MockLLM
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import BaseMemory

from ctxfold import MemoryStore
from llamaindex_ctx import CtxMemory
from tests.llamaindex.talk import bot, calling, contents, result, searching, user, words
from tests.llamaindex.twins import Driver
from tests.properties.outages import LATE_S, UnreliableStore, Weather

# making one


def test_initialisation() -> None:
    memory = CtxMemory.from_defaults("test_user", token_limit=1_000)
    assert isinstance(memory, BaseMemory)
    assert (memory.session_id, memory.context.policy.budget_tokens) == ("test_user", 1_000)
    assert CtxMemory.from_defaults(token_limit=100).session_id != CtxMemory.from_defaults(token_limit=100).session_id
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
        CtxMemory.from_defaults(context_window=100, reply_reserve_tokens=reserve)


def test_the_window_is_that_of_the_llm() -> None:
    assert CtxMemory.from_defaults(llm=MockLLM()).context.policy.context_window == MockLLM().metadata.context_window


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
            searching(f"c{i}", plant=i),
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


async def test_a_result_that_takes_longer_than_a_turn_may_brings_its_call_back(call: Driver) -> None:
    """A tool, or the person who allows it, took more than 15 minutes, and another process goes on."""
    kept, weather = MemoryStore(), Weather()

    def opened() -> CtxMemory:
        store: Any = UnreliableStore(kept, weather)
        return CtxMemory.from_defaults("s", store=store, token_limit=1_000)

    memory = opened()
    for message in (user("go"), calling("c1", "c2"), result("c1")):
        await call(memory, "put", message)
    weather.age_s = LATE_S
    memory = opened()
    for message in (result("c2"), bot("done")):
        await call(memory, "put", message)
    assert contents(await call(opened(), "get_all")) == ["go", None, "found c1", "found c2", "done"]
