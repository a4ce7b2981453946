"""L1, L2, L3, L7: whatever list a LlamaIndex program keeps, for 200 turns in a window of 4,000 tokens, in every face.

No face refuses what the plain framework takes, calls and results are paired in each request, and no message is lost.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata, TextBlock, ToolCallBlock
from llama_index.core.llms.mock import MockLLM
from llama_index.core.memory import ChatMemoryBuffer, Memory
from pydantic import PrivateAttr

from ctxfold import MemoryStore
from ctxfold.testing import ModelServer, Scripted
from llamaindex_ctx import CtxChatStore, CtxLLM, CtxMemory, CtxMemoryBlock, with_context
from tests.support.open_sessions import stored_texts

SEEDS = int(os.environ.get("CTXFOLD_LISTS", "1"))
TURNS = 200
WINDOW = 4_000
LONGEST = 80  # messages of a list whose caller keeps it short
STYLES = ("none", "missing", "repeated", "zero", "own")
WORDS = ("river", "stone", "lamp", "invoice")


class Checking(MockLLM):
    """Answers every list, and checks that the calls and results in it are paired, as a strict service does."""

    _asked: int = PrivateAttr(default=0)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=WINDOW, is_chat_model=True, model_name="m")

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        self._asked += 1
        waiting: list[Any] = []
        for message in messages:
            if message.role.value == "tool":
                waiting.remove(message.additional_kwargs["tool_call_id"])
                continue
            assert not waiting, f"{waiting} are unanswered before a {message.role.value} message"
            waiting = [b.tool_call_id for b in message.blocks if isinstance(b, ToolCallBlock)]
            assert len(set(waiting)) == len(waiting)
            assert all(waiting)
        assert not waiting
        return ChatResponse(message=ChatMessage(role="assistant", content=f"answer {self._asked} " + "ok " * 10))


def words(chance: random.Random, count: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(count))


def tool_round(chance: random.Random, name: str) -> list[ChatMessage]:
    """Calls under ids of every kind, some with arguments that are no JSON, and results, of which one may be missing."""
    tools = [chance.choice(("look", "find")) for _ in range(chance.randrange(1, 4))]
    own = [f"c{name}.{n}" for n in range(len(tools))]
    kinds: dict[str, list[Any]] = {"none": [None], "missing": [""], "repeated": ["same"], "zero": ["0"]}
    ids = (kinds.get(chance.choice(STYLES)) or own) * len(tools)
    arguments: Any = chance.choice(({"q": 1}, '{"q": 1}', '{"q": 1', ""))
    calls = [
        ToolCallBlock(tool_call_id=i, tool_name=tool, tool_kwargs=arguments)
        for i, tool in zip(ids, tools, strict=False)
    ]
    results = [
        ChatMessage(
            role="tool",
            content=f"result {name}.{n} " + words(chance, 20),
            additional_kwargs={"tool_call_id": i or tool},
        )
        for n, (i, tool) in enumerate(zip(ids, tools, strict=False))
    ]
    said = TextBlock(text=chance.choice(("", "Let me see.")))
    told = [ChatMessage(role="assistant", blocks=[said, *calls]), *results[: len(results) - (chance.random() < 0.2)]]
    if chance.random() < 0.2:
        role = chance.choice(("user", "system"))
        told.insert(chance.randrange(1, len(told) + 1), ChatMessage(role=role, content=f"meanwhile {name}"))
    return told


def stray(chance: random.Random, number: int) -> ChatMessage:
    """A result of a call that is nowhere, or in the form before tools."""
    if chance.random() < 0.5:
        return ChatMessage(role="function", content=f"sum {number}", additional_kwargs={"name": "add"})
    return ChatMessage(role="tool", content=f"stray {number}", additional_kwargs={"tool_call_id": f"unknown{number}"})


def turn(chance: random.Random, number: int) -> list[ChatMessage]:
    told: list[ChatMessage] = []
    if chance.random() < 0.3:
        role = chance.choice(("system", "developer"))
        told.append(ChatMessage(role=role, content=f"rule {number} " + words(chance, chance.choice((3, 20)))))
    told.append(ChatMessage(role="user", content=chance.choice((f"question {number} " + words(chance, 30), ""))))
    if chance.random() < 0.1:
        told.insert(chance.randrange(len(told) + 1), stray(chance, number))
    for n in range(chance.choice((0, 0, 1, 2))):
        told += tool_round(chance, f"{number}.{n}")
    if chance.random() < 0.8:
        told.append(ChatMessage(role="assistant", content=chance.choice(("", f"done {number} " + words(chance, 15)))))
    return told


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("wrapped", [True, False])
def test_any_messages_that_are_put(seed: int, wrapped: bool) -> None:
    chance, llm = random.Random(seed), Checking()
    asking = with_context(llm, context_window=WINDOW) if wrapped else llm
    with CtxMemory.from_defaults("s", context_window=WINDOW) as memory:
        said: list[str] = []
        for number in range(TURNS):
            told = turn(chance, number)
            if chance.random() < 0.5:
                memory.put_messages(told)
            else:
                for message in told:
                    memory.put(message)
            memory.put(ChatMessage(role="user", content=f"so what of {number}?"))
            memory.put(asking.chat(memory.get()).message)
            said += [m.content for m in told if m.content]
        kept = "\n".join(m.content or "" for m in memory.get_all())
    assert [text for text in said if text not in kept] == []


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_list_that_replaces_the_messages(seed: int) -> None:
    chance, llm, store, said = random.Random(seed), Checking(), MemoryStore(), list[str]()
    with CtxMemory.from_defaults("s", store=store, context_window=WINDOW) as memory:
        listed: list[ChatMessage] = []
        for number in range(TURNS):
            kept = chance.choice((memory.get(), memory.get_all(), listed[-chance.randrange(1, 40) :]))
            told = turn(chance, number)
            listed = [*kept[chance.choice((0, 0, 0, len(kept) // 2)) :], *told]
            listed.append(ChatMessage(role="user", content=f"so what of {number}?"))
            memory.set(listed)
            listed.append(llm.chat(memory.get()).message)
            memory.put(listed[-1])
            said += [m.content for m in (*told, *listed[-2:]) if m.content]
    kept = stored_texts(store)
    assert [text for text in said if text not in kept] == []


@pytest.mark.parametrize("session", [None, "s"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_list_that_a_wrapped_llm_is_given(seed: int, session: str | None) -> None:
    chance, store, said = random.Random(seed), MemoryStore(), list[str]()
    wrapped = with_context(Checking(), context_window=WINDOW, session_id=session, store=store)
    listed: list[ChatMessage] = []
    for number in range(TURNS):
        listed += [*turn(chance, number), ChatMessage(role="user", content=f"so what of {number}?")]
        if chance.random() < 0.1 or len(listed) > LONGEST:
            listed = listed[chance.randrange(len(listed) // 2 + 1) :]
        if chance.random() < 0.1 and listed[at := chance.randrange(len(listed) - 1)].role == "user":
            listed[at] = ChatMessage(role="user", content="edited", additional_kwargs=listed[at].additional_kwargs)
        listed.append(wrapped.chat(listed).message)
        said += [m.content for m in listed[-2:] if m.content]
    kept = stored_texts(store)
    assert session is None or [text for text in said if text not in kept] == []  # without a name nothing is kept


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_list_that_ctxllm_is_given(seed: int) -> None:
    """The server refuses calls and results that are not paired."""
    chance, listed, said = random.Random(seed), list[ChatMessage](), list[str]()
    answers = (Scripted(f"answer {n} " + "ok " * 10) for n in range(9 * TURNS))
    with ModelServer(model="m", script=lambda _: next(answers), context_window=WINDOW) as server:
        settings: dict[str, Any] = {"model": "m", "base_url": server.base_url, "api_key": "x", "context_window": WINDOW}
        with with_context(CtxLLM(**settings, provider="openai"), session_id="s", store="memory://") as llm:
            for number in range(TURNS):
                listed += [*turn(chance, number), ChatMessage(role="user", content=f"so what of {number}?")]
                if chance.random() < 0.1 or len(listed) > LONGEST:
                    listed = listed[chance.randrange(len(listed) // 2 + 1) :]
                asked = len(server.requests)
                listed.append(llm.chat(listed).message)
                assert any(f"so what of {number}?" in str(r.body["messages"]) for r in server.requests[asked:])
                said += [f"so what of {number}?", listed[-1].content or ""]
            kept = "\n".join(m.text for m in llm.context().messages())
    assert [text for text in said if text not in kept] == []


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_messages_that_a_stock_memory_flushes_to_a_block(seed: int) -> None:
    chance, said = random.Random(seed), list[str]()
    with CtxMemory.from_defaults("s", context_window=WINDOW) as inner:
        memory = Memory.from_defaults("t", token_limit=WINDOW // 4, memory_blocks=[CtxMemoryBlock(inner)])
        for number in range(TURNS):
            told = turn(chance, number)
            for message in told:
                memory.put(message)
            memory.get()
            said += [m.content for m in told if m.content]
        kept = "\n".join(m.content or "" for m in (*inner.at("t").get_all(), *inner.get_all(), *memory.get_all()))
    assert [text for text in said if text not in kept] == []


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_messages_in_a_stock_memory_over_a_chat_store(seed: int) -> None:
    chance, said = random.Random(seed), list[ChatMessage]()
    with CtxChatStore() as store:
        memory = ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="s", token_limit=WINDOW)
        for number in range(TURNS):
            told = turn(chance, number)
            if chance.random() < 0.5:
                memory.put_messages(told)
            else:
                for message in told:
                    memory.put(message)
            if number % 20 == 0:  # it counts all that it has
                memory.get()
            said += told
        kept = [(m.role, m.content) for m in store.get_messages("s")]
    told_texts = [(m.role, m.content) for m in said]
    assert [m for m in kept if m in told_texts] == told_texts
