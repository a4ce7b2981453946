"""H4: the state of a thread decides. A thread that was deleted, and whose id is used again, begins a new conversation."""

from __future__ import annotations

from sqlite3 import connect
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from ctxfold import MemoryStore, user
from ctxfold.testing import ModelServer, Scripted
from langchain_ctx import ContextMiddleware, ContextNode
from tests.langchain.faces import closed, model_settings
from tests.langchain.running import T

STORY = Scripted("Fine. " + "It is a long story. " * 20)


@pytest.mark.parametrize("face", ["middleware", "ContextNode"])
@pytest.mark.parametrize("turns", [1, 24])
@pytest.mark.parametrize("again", ["the same process", "another"])
async def test_h4_a_deleted_threads_id_used_again_is_a_new_conversation(face: str, turns: int, again: str) -> None:
    with ModelServer(model="m", script=lambda _: STORY, context_window=3_000) as server:
        model, store, saver = (
            ChatOpenAI(**model_settings(server.base_url)),
            MemoryStore(),
            SqliteSaver(connect(":memory:", check_same_thread=False)),
        )
        made: list[Any] = [model]

        def app() -> Any:
            settings: dict[str, Any] = {"context_window": 3_000, "store": store}
            if face == "middleware":
                made.append(ContextMiddleware(**settings, history_tools=False))
                return create_agent(model, middleware=[made[-1]], checkpointer=saver)
            fit = ContextNode(**settings)
            made.append(fit)

            def step(state: MessagesState) -> Any:
                return {"messages": (fit | model).invoke(state["messages"])}

            return StateGraph(MessagesState).add_node("ask", step).add_edge(START, "ask").compile(checkpointer=saver)

        graph = app()
        for number in range(turns):
            graph.invoke({"messages": [HumanMessage(f"The word is OPAL {number}.")]}, T)
        saver.delete_thread("t")
        graph = graph if again == "the same process" else app()
        asked = len(server.requests)
        for number in range(8):
            graph.invoke({"messages": [HumanMessage(f"What is the word? {number}")]}, T)
        bodies = [r.body["messages"] for r in server.requests[asked:]]
        assert "OPAL" not in str(bodies)
        assert "What is the word? 0" in str(bodies[3])
        saver.conn.close()
        for one in made:
            await closed(one)


async def test_h4_what_the_program_adds_before_the_first_run_is_shown() -> None:
    with ModelServer(model="m", script=lambda _: STORY, context_window=8_000) as server:
        model, middleware = ChatOpenAI(**model_settings(server.base_url)), ContextMiddleware(context_window=8_000)
        agent: Any = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
        middleware.context("t").add(user("The user is called Ann.", id="note"))
        agent.invoke({"messages": [HumanMessage("Hello")]}, T)
        assert "The user is called Ann." in str(server.requests[-1].body["messages"])
        await closed(middleware)
        await closed(model)
