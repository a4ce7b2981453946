"""L2 and H2: lists in which several messages have one id, or none. The turn goes on, and each message is stored once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from ctxfold import MemoryStore
from ctxfold.events import IdsRepeated
from ctxfold.testing import ModelServer, Scripted
from langchain_ctx import ChatCtx, ContextMiddleware, ContextNode, with_context
from tests.langchain.faces import closed, model_settings
from tests.langchain.running import T

WINDOW = 2_000


def play(body: Any) -> Scripted:
    asked = sum(m["role"] == "user" for m in body["messages"])
    return Scripted(f"Answer behind {asked} questions. " + "It is a long story. " * 8)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(model="m", script=play, strict="openai", context_window=WINDOW) as server:
        yield server


def texts(session: Any) -> list[str]:
    return [m.text.strip() for m in session.messages()]


@pytest.mark.parametrize("face", ["with_context", "ChatCtx", "ContextNode"])
@pytest.mark.parametrize("ids", ["0", None])
async def test_l2_a_list_whose_messages_all_have_one_id_goes_on(
    server: ModelServer, face: str, ids: str | None
) -> None:
    """A user interface hands in the whole list each time, with the number "0" for each message, or no ids at all."""
    model, settings = ChatOpenAI(**model_settings(server.base_url)), {"context_window": WINDOW, "store": MemoryStore()}
    given: Any
    match face:
        case "with_context":
            given = with_context(model, **settings)  # type: ignore[arg-type]
            ask, context = given.invoke, given.context
        case "ChatCtx":
            given = ChatCtx(provider="openai", **model_settings(server.base_url), **settings)
            ask, context = given.invoke, given.context
        case _:
            given = ContextNode(**settings)  # type: ignore[arg-type]
            ask, context = lambda said, config: model.invoke(given.invoke(said, config)), given.context
    heard: list[Any] = []
    said: list[Any] = []
    wanted: list[str] = []
    for number in range(40):
        said.append(HumanMessage(f"Question {number}", id=ids))
        answer = ask(said, T)
        if not number:
            context("t").subscribe(lambda e: heard.append(e) if isinstance(e, IdsRepeated) else None)
        said.append(AIMessage(answer.content, id=ids))
        wanted += [f"Question {number}", str(answer.text).strip()]
    shown = wanted[:-1] if face == "ContextNode" else wanted  # a node sees an answer with the next list
    if ids is None and face in ("with_context", "ChatCtx"):
        assert [t for t in texts(context("t")) if t.startswith("Q")] == [t for t in wanted if t.startswith("Q")]
    else:
        assert texts(context("t")) == shown
        assert context("t").usage().compactions > 0
    assert [e.ids for e in heard] == ([("0",)] if ids else [])
    await closed(given)
    await closed(model)


async def test_l2_a_rewritten_state_with_an_id_twice_goes_on(server: ModelServer) -> None:
    model, middleware = ChatOpenAI(**model_settings(server.base_url)), ContextMiddleware(context_window=WINDOW)
    agent: Any = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
    agent.invoke({"messages": [HumanMessage("Before")]}, T)
    rewritten = [HumanMessage("One", id="x"), AIMessage("First.", id="x"), HumanMessage("Two", id="x")]
    agent.update_state(T, {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *rewritten]})
    for number in range(12):
        agent.invoke({"messages": [HumanMessage(f"Q{number}")]}, T)
    session = middleware.context(agent.get_state(T))
    assert texts(session) == [m.text.strip() for m in agent.get_state(T).values["messages"]]
    assert session.session.startswith("t~")
    await closed(middleware)
    await closed(model)


async def test_l2_an_id_twice_behind_a_known_beginning_goes_on(server: ModelServer) -> None:
    model, middleware = ChatOpenAI(**model_settings(server.base_url)), ContextMiddleware(context_window=WINDOW)
    agent: Any = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
    for number in range(6):
        said = agent.invoke({"messages": [HumanMessage(f"Before {number}")]}, T)["messages"]
        new = [HumanMessage(f"One {number}", id="x"), AIMessage("First.", id="x"), HumanMessage(f"Two {number}")]
        agent.invoke({"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *said, *new]}, T)
        assert f"One {number}" in str(server.requests[-1].body["messages"])
    await closed(middleware)
    await closed(model)


async def test_l3_a_result_of_no_call_behind_a_known_answer_is_left_out(server: ModelServer) -> None:
    model, middleware = ChatOpenAI(**model_settings(server.base_url)), ContextMiddleware(context_window=WINDOW)
    agent: Any = create_agent(model, middleware=[middleware])
    said = agent.invoke({"messages": [HumanMessage("Before")]}, T)["messages"]
    said += [ToolMessage("found", tool_call_id="nope"), HumanMessage("One"), AIMessage("First."), HumanMessage("Two")]
    agent.invoke({"messages": said}, T)
    assert [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "user"] == [
        "Before",
        "One",
        "Two",
    ]
    await closed(middleware)
    await closed(model)


@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["none", "saver"])
@pytest.mark.parametrize("whole", [False, True])
async def test_l2_an_agent_goes_on_whose_client_numbers_all_messages_0(
    server: ModelServer, saver: Any, *, whole: bool
) -> None:
    """LangGraph keeps the newest message of an id: what the agent's list has is what the model is asked."""
    model = ChatOpenAI(**model_settings(server.base_url))
    middleware = ContextMiddleware(context_window=WINDOW, history_tools=False)
    agent: Any = create_agent(model, middleware=[middleware], checkpointer=saver)
    said: list[Any] = []
    for number in range(20):
        said = [*(said if whole else []), HumanMessage(f"Question {number}", id="0")]
        found = agent.invoke({"messages": said}, T)["messages"]
        assert f"Question {number}" in str(server.requests[-1].body["messages"])
        said.append(AIMessage(found[-1].content, id="0"))
    await closed(middleware)
    await closed(model)
