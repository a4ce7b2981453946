"""Models exist that make several calls under one id, such as the tool's name: each call keeps its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

from ctxfold import AgentContext, OrphanToolResultError, ToolCallPart, assistant, tool_result, user
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ContextMiddleware, with_context

TOGETHER = tuple(ScriptedCall("weather", f'{{"city": "{city}"}}', "weather") for city in ("Bonn", "Rome"))
THREAD: Any = {"configurable": {"thread_id": "t"}}


def weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"sunny in {city}"


def with_middleware(model: ChatOpenAI) -> Any:
    return create_agent(model, [weather], middleware=[ContextMiddleware(context_window=8_000)])


def wrapped(model: ChatOpenAI) -> Any:
    return create_agent(with_context(model, context_window=8_000), [weather])


@pytest.mark.parametrize("agent_of", [with_middleware, wrapped])
def test_each_call_has_its_result_in_this_turn_and_later(agent_of: Callable[[ChatOpenAI], Any]) -> None:
    script = [Scripted(tool_calls=TOGETHER), Scripted("Both sunny."), Scripted("Yes.")]
    with ModelServer(model="m", script=script) as server:
        model = ChatOpenAI(model="m", base_url=server.base_url, api_key="x", max_retries=0)  # type: ignore[arg-type]
        agent = agent_of(model)
        state = agent.invoke({"messages": [("user", "Bonn and Rome?")]}, THREAD)
        agent.invoke({"messages": [*state["messages"], ("user", "Sure?")]}, THREAD)
        for request in server.requests[1:]:
            results = [m["content"] for m in request.body["messages"] if m["role"] == "tool"]
            assert results == ["sunny in Bonn", "sunny in Rome"]
        model.root_client.close()


def test_the_turn_waits_for_the_result_of_each() -> None:
    calls = [ToolCallPart("c", "weather", f'{{"city": "{city}"}}') for city in ("Bonn", "Rome")]
    with AgentContext(None, context_window=8_000) as context:
        asked = context.add([user("Bonn and Rome?", id="q"), assistant("", id="a", calls=calls)])
        assert context.add([tool_result("c", "sunny in Bonn", id="r1")]).turn_id == asked.turn_id
        with pytest.raises(OrphanToolResultError, match="not open"):
            context.add([tool_result("c", "sunny in Rome", id="r2"), tool_result("c", "and once more", id="r3")])
        context.add([tool_result("c", "sunny in Rome", id="r2"), assistant("Both.", id="a2")])
        assert [m.text for m in context.messages()][-3:] == ["sunny in Bonn", "sunny in Rome", "Both."]
