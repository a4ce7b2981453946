"""One transcript through LangChain's middleware, wrapper, history and node: the window that the engine alone leaves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call, wrap_tool_call
from langchain_core.language_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from examples.demo.story import Turn
from langchain_ctx import ContextMiddleware, ContextNode, CtxChatMessageHistory, with_context
from tests.faces.test_faces_agree import (
    SUMMARY,
    TRANSCRIPTS,
    Face,
    engine_alone,
    langchain_messages,
    settings,
    window_of,
)

THREAD: Any = {"configurable": {"thread_id": "s"}, "recursion_limit": 200}


class Playing(GenericFakeChatModel):
    """Plays the assistant's part of the transcript, and takes any tools."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Runnable[Any, Any]:
        return self


def playing(turns: Sequence[Turn]) -> Playing:
    return Playing(messages=iter([m for turn in turns for m in langchain_messages(turn) if isinstance(m, AIMessage)]))


def writer() -> FakeListChatModel:
    return FakeListChatModel(responses=[SUMMARY])


def through_history(store: str, window: int, turns: Sequence[Turn]) -> None:
    """A chain's way: a handle for each run, read first, the turn added when it is over."""
    with CtxChatMessageHistory.factory(store=store, summarizer=writer(), **settings(window)) as factory:
        for turn in turns:
            handle = factory("s")
            assert handle.messages is not None
            handle.add_messages(langchain_messages(turn))


def through_wrapper(store: str, window: int, turns: Sequence[Turn]) -> None:
    """The whole list on every call, tool rounds and all."""
    chat = with_context(playing(turns), session_id="s", store=store, summarizer=writer(), **settings(window))
    told: list[BaseMessage] = []
    for turn in turns:
        for message in langchain_messages(turn):
            told.append(chat.invoke(told) if isinstance(message, AIMessage) else message)
    chat.close()


def through_node(store: str, window: int, turns: Sequence[Turn]) -> None:
    """In front of each of the model's calls; the last answer comes with the list that has it."""
    with ContextNode(store=store, summarizer=writer(), **settings(window)) as fit:
        told: list[BaseMessage] = []
        for turn in turns:
            for message in langchain_messages(turn):
                if isinstance(message, AIMessage):
                    fit.invoke(told, THREAD)
                told.append(message)
        fit.invoke(told, THREAD)


@wrap_model_call
def without_tools(request: Any, handler: Any) -> Any:
    """The other faces are told of no tools: what they cost would move the cuts."""
    return handler(request.override(tools=[]))


def tools_of(turns: Sequence[Turn]) -> list[BaseTool]:
    names = {c.name for turn in turns for step in turn.rounds for c in step.calls}
    anything = {"type": "object", "properties": {}, "additionalProperties": True}
    return [
        StructuredTool(name=name, description=name, args_schema=anything, func=lambda **_: "") for name in sorted(names)
    ]


def through_middleware(store: str, window: int, turns: Sequence[Turn]) -> None:
    """An agent with a checkpointer, its tools run by the agent."""
    results = {c.id: r for turn in turns for x in turn.rounds for c, r in zip(x.calls, x.results, strict=True)}

    @wrap_tool_call
    def as_told(request: Any, handler: Any) -> ToolMessage:
        """The transcript's result, whatever the tool would say."""
        return ToolMessage(results[request.tool_call["id"]], tool_call_id=request.tool_call["id"])

    ours = ContextMiddleware(store=store, summarizer=writer(), history_tools=False, **settings(window))
    agent = create_agent(
        playing(turns), tools_of(turns), middleware=[without_tools, ours, as_told], checkpointer=InMemorySaver()
    )
    for turn in turns:
        state = agent.invoke({"messages": [HumanMessage(turn.user)]}, THREAD)
        assert state["messages"][-1].text == turn.answer
    ours.close()


@pytest.mark.parametrize(
    ("transcript", "window"),
    [("as told", 2_500), ("as told", 4_500), ("large outputs", 3_000)],
)
@pytest.mark.parametrize("face", [through_history, through_wrapper, through_node, through_middleware])
def test_the_same_window(face: Face, transcript: str, window: int, tmp_path: Path) -> None:
    face(f"sqlite:///{tmp_path / 'face.db'}", window, TRANSCRIPTS[transcript])
    assert window_of(tmp_path / "face.db", window) == engine_alone(transcript, window)
