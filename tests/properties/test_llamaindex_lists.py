"""Whatever list a LlamaIndex program keeps: no face refuses what the plain framework takes, and nothing is lost or unpaired."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata, TextBlock, ToolCallBlock
from llama_index.core.llms.mock import MockLLM
from pydantic import PrivateAttr

from llamaindex_ctx import CtxMemory, with_context

SEEDS = int(os.environ.get("CTXFOLD_LISTS", "2"))
TURNS = 200
WINDOW = 4_000
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
    return [ChatMessage(role="assistant", blocks=[said, *calls]), *results[: len(results) - (chance.random() < 0.2)]]


def turn(chance: random.Random, number: int) -> list[ChatMessage]:
    told: list[ChatMessage] = []
    if chance.random() < 0.3:
        role = chance.choice(("system", "developer"))
        told.append(ChatMessage(role=role, content=f"rule {number} " + words(chance, chance.choice((3, 20)))))
    told.append(ChatMessage(role="user", content=chance.choice((f"question {number} " + words(chance, 30), ""))))
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
    chance, llm = random.Random(seed), Checking()
    with CtxMemory.from_defaults("s", context_window=WINDOW) as memory:
        listed: list[ChatMessage] = []
        for number in range(TURNS):
            kept = chance.choice((memory.get(), memory.get_all(), listed[-chance.randrange(1, 40) :]))
            listed = [*kept[chance.choice((0, 0, 0, len(kept) // 2)) :], *turn(chance, number)]
            listed.append(ChatMessage(role="user", content=f"so what of {number}?"))
            memory.set(listed)
            listed.append(llm.chat(memory.get()).message)
            memory.put(listed[-1])


@pytest.mark.parametrize("session", [None, "s"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_list_that_a_wrapped_llm_is_given(seed: int, session: str | None) -> None:
    chance = random.Random(seed)
    wrapped = with_context(Checking(), context_window=WINDOW, session_id=session)
    listed: list[ChatMessage] = []
    for number in range(TURNS):
        listed += [*turn(chance, number), ChatMessage(role="user", content=f"so what of {number}?")]
        if chance.random() < 0.1:
            listed = listed[chance.randrange(len(listed) // 2 + 1) :]
        if chance.random() < 0.1 and listed[at := chance.randrange(len(listed) - 1)].role == "user":
            listed[at] = ChatMessage(role="user", content="edited", additional_kwargs=listed[at].additional_kwargs)
        listed.append(wrapped.chat(listed).message)
