"""One transcript through every face: the same window, whoever wrote it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock, ToolCallBlock

from ctxfold import AgentContext, Message, ScriptedBackend
from ctxfold.tokens.text import RatioCounter
from examples.demo.story import Turn, load_story
from langchain_ctx import ChatCtx, CtxChatMessageHistory
from langchain_ctx.messages import from_langchain
from llamaindex_ctx import CtxLLM, CtxMemory

TURNS = load_story().turns[:100]
# turns with tools, every other output so large that it is shown as an excerpt, or that a batch of them is
LARGE = tuple(
    replace(turn, rounds=tuple(replace(r, results=tuple(f"{x}\n" * 60 for x in r.results)) for r in turn.rounds))
    if n % 2
    else turn
    for n, turn in enumerate([t for t in load_story().turns if t.rounds][:40])
)
TRANSCRIPTS = {"as told": TURNS, "large outputs": LARGE}
Face: TypeAlias = Callable[[str, int, Sequence[Turn]], None]
# in most of these some turn overflows in its middle
WINDOWS = (2_500, 3_500, 4_500, 6_000)
SUMMARY = "They plan the tour of an exhibition."


def canonical(messages: tuple[Message, ...]) -> list[str]:
    """What a model sees of each message; ids differ from run to run."""
    return [
        json.dumps([m.role, m.kind, m.text, [(c.name, json.loads(c.arguments)) for c in m.tool_calls]], sort_keys=True)
        for m in messages
    ]


def langchain_messages(turn: Turn) -> list[BaseMessage]:
    messages: list[BaseMessage] = [HumanMessage(turn.user)]
    for step in turn.rounds:
        calls = [{"id": c.id, "name": c.name, "args": c.arguments} for c in step.calls]
        messages.append(AIMessage("", tool_calls=calls))
        messages += [ToolMessage(r, tool_call_id=c.id) for c, r in zip(step.calls, step.results, strict=True)]
    return [*messages, AIMessage(turn.answer)]


def settings(window: int) -> dict[str, Any]:
    return {"context_window": window, "counter": RatioCounter()}


def through_history(store: str, window: int, turns: Sequence[Turn]) -> None:
    summarizer = FakeListChatModel(responses=[SUMMARY])
    with CtxChatMessageHistory("s", store=store, summarizer=summarizer, **settings(window)) as history:
        for turn in turns:
            history.add_messages(langchain_messages(turn))


def through_chat_model(store: str, window: int, turns: Sequence[Turn]) -> None:
    """The whole list on every call, tool rounds and all."""
    backend = ScriptedBackend([m for turn in turns for m in replies_of(turn)], context_window=window)
    with ChatCtx(
        backend=backend,
        session="s",
        store=store,
        context_window=window,
        counter=RatioCounter(),
        summarizer=FakeListChatModel(responses=[SUMMARY]),
    ) as chat:
        told: list[BaseMessage] = []
        for turn in turns:
            for message in langchain_messages(turn):
                if isinstance(message, AIMessage):
                    told.append(chat.invoke(told))
                else:
                    told.append(message)


def replies_of(turn: Turn) -> list[Message]:
    from ctxfold import ToolCallPart, assistant

    made = [
        assistant(
            "", id=f"r-{s.calls[0].id}", calls=[ToolCallPart(c.id, c.name, json.dumps(c.arguments)) for c in s.calls]
        )
        for s in turn.rounds
    ]
    return [*made, assistant(turn.answer, id=f"r-{hash(turn.user)}")]


def through_memory(store: str, window: int, turns: Sequence[Turn]) -> None:
    llm = CtxLLM(model="scripted", backend=ScriptedBackend([SUMMARY] * 100, context_window=window))
    memory = CtxMemory.from_defaults(session_id="s", store=store, llm=llm, **settings(window))
    for turn in turns:
        memory.put(ChatMessage(role=MessageRole.USER, content=turn.user))
        scratchpad: list[ChatMessage] = []
        for step in turn.rounds:
            blocks = [ToolCallBlock(tool_call_id=c.id, tool_name=c.name, tool_kwargs=c.arguments) for c in step.calls]
            scratchpad.append(ChatMessage(role=MessageRole.ASSISTANT, blocks=blocks))
            scratchpad += [
                ChatMessage(role=MessageRole.TOOL, content=r, additional_kwargs={"tool_call_id": c.id})
                for c, r in zip(step.calls, step.results, strict=True)
            ]
        memory.put_messages(
            [*scratchpad, ChatMessage(role=MessageRole.ASSISTANT, blocks=[TextBlock(text=turn.answer)])]
        )
    memory.close()


FACES: list[Face] = [through_history, through_chat_model, through_memory]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("face", FACES)
def test_every_face_leaves_the_same_window(face: Face, window: int, tmp_path: Path) -> None:
    face(f"sqlite:///{tmp_path / 'face.db'}", window, TURNS)
    assert window_of(tmp_path / "face.db", window) == engine_alone("as told", window)


@pytest.mark.parametrize("face", FACES)
def test_with_excerpts_of_large_tool_outputs_too(face: Face, tmp_path: Path) -> None:
    face(f"sqlite:///{tmp_path / 'face.db'}", 3_000, LARGE)
    window = engine_alone("large outputs", 3_000)
    assert any("archived as #" in line for line in window)
    assert window_of(tmp_path / "face.db", 3_000) == window


def plain(store: str, window: int, turns: Sequence[Turn]) -> None:
    """The same transcript through the engine alone, turn by turn."""
    summarizer = ScriptedBackend([SUMMARY] * 100)
    with AgentContext(session_id="s", store=store, summarizer=summarizer, **settings(window)) as context:
        for turn in turns:
            context.add([from_langchain(m) for m in langchain_messages(turn)])
        assert context.usage().compactions > 2


@cache
def engine_alone(transcript: str, window: int) -> list[str]:
    with TemporaryDirectory() as folder:
        plain(f"sqlite:///{folder}/plain.db", window, TRANSCRIPTS[transcript])
        return window_of(Path(folder) / "plain.db", window)


def window_of(path: Path, window: int) -> list[str]:
    with AgentContext(session_id="s", store=f"sqlite:///{path}", create=False, **settings(window)) as context:
        return canonical(context.view().messages)
