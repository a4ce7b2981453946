"""However an agent or an engine hands a turn over, whole or one message at a time, the window is that of every other face."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from llama_index.core.base.llms.types import ChatMessage, TextBlock, ToolCallBlock

from ctxfold import ScriptedBackend
from examples.demo.story import Turn
from llamaindex_ctx import CtxLLM, CtxMemory
from tests.faces.test_faces_agree import SUMMARY, TURNS, engine_alone, settings, window_of

Way: TypeAlias = Callable[[CtxMemory, list[ChatMessage]], None]


def messages_of(turn: Turn) -> Iterator[ChatMessage]:
    yield ChatMessage(role="user", content=turn.user)
    for step in turn.rounds:
        blocks = [ToolCallBlock(tool_call_id=c.id, tool_name=c.name, tool_kwargs=c.arguments) for c in step.calls]
        yield ChatMessage(role="assistant", blocks=blocks)
        for call, found in zip(step.calls, step.results, strict=True):
            yield ChatMessage(role="tool", content=found, additional_kwargs={"tool_call_id": call.id})
    yield ChatMessage(role="assistant", blocks=[TextBlock(text=turn.answer)])


def one_by_one(memory: CtxMemory, turn: list[ChatMessage]) -> None:
    for message in turn:
        memory.put(message)


def looked_at_in_between(memory: CtxMemory, turn: list[ChatMessage]) -> None:
    for message in turn:
        memory.put(message)
        memory.get()


def as_an_agent_does(memory: CtxMemory, turn: list[ChatMessage]) -> None:
    memory.put(turn[0])
    for _ in turn[1::2]:
        memory.get(input=turn[0].content)
    memory.put_messages(turn[1:])
    memory.get()


# in both some turn overflows in its middle
@pytest.mark.parametrize("window", [3_000, 4_500])
@pytest.mark.parametrize("way", [one_by_one, looked_at_in_between, as_an_agent_does])
def test_the_window_is_the_same(way: Way, window: int, tmp_path: Path) -> None:
    llm = CtxLLM(model="scripted", backend=ScriptedBackend([SUMMARY] * 200, context_window=window))
    url = f"sqlite:///{tmp_path / 'memory.db'}"
    with CtxMemory.from_defaults("s", store=url, llm=llm, **settings(window)) as memory:
        for turn in TURNS:
            way(memory, list(messages_of(turn)))
    assert window_of(tmp_path / "memory.db", window) == engine_alone("as told", window)
