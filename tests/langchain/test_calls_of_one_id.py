"""Models exist that make several calls under one id, such as the tool's name: each call keeps its result, and Claude takes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from ctxfold import AgentContext, ToolCallPart, assistant, tool_result, user
from ctxfold.errors import OrphanToolResultError
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ContextMiddleware, with_context
from langchain_ctx.backend import LangChainBackend
from langchain_ctx.messages import from_langchain

TOGETHER = tuple(ScriptedCall("weather", f'{{"city": "{city}"}}', "weather") for city in ("Bonn", "Rome"))
THREAD: Any = {"configurable": {"thread_id": "t"}}


def weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"sunny in {city}"


def with_middleware(model: BaseChatModel) -> Any:
    return create_agent(model, [weather], middleware=[ContextMiddleware(context_window=8_000)])


def wrapped(model: BaseChatModel) -> Any:
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


def other_models_rounds() -> list[BaseMessage]:
    """Two rounds of a model that begins to count its calls anew in each."""
    rounds: list[BaseMessage] = []
    for city in ("Bonn", "Rome"):
        call = {"name": "weather", "args": {"city": city}, "id": "weather_0"}
        rounds += [HumanMessage(f"{city}?", id=f"q{city}"), AIMessage("", id=f"a{city}", tool_calls=[call])]
        rounds += [
            ToolMessage(weather(city), tool_call_id="weather_0", id=f"r{city}"),
            AIMessage("Sunny.", id=f"d{city}"),
        ]
    return rounds


def by_an_agent(agent_of: Callable[[BaseChatModel], Any], model: BaseChatModel) -> None:
    agent_of(model).invoke({"messages": [*other_models_rounds(), HumanMessage("Ulm?")]}, THREAD)


def by_a_backend(model: BaseChatModel) -> None:
    """With a call of its own under that id too, which stands in its content as well."""
    own = weather("Ulm")
    with AgentContext(LangChainBackend(model), context_window=8_000) as context:
        context.add([from_langchain(m) for m in other_models_rounds()])
        calls = context.send("Ulm?").message.tool_calls
        context.send([tool_result(c.id, own, id="rUlm") for c in calls])


WAYS: dict[str, Callable[[BaseChatModel], None]] = {
    "middleware": partial(by_an_agent, with_middleware),
    "wrapped": partial(by_an_agent, wrapped),
    "backend": by_a_backend,
}
AGAIN = [Scripted(tool_calls=(ScriptedCall("weather", '{"city": "Ulm"}', "weather_0"),)), Scripted("All sunny.")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("version", ["v0", "v1"])
def test_claude_is_sent_ids_that_differ(way: str, version: str) -> None:
    """Claude refuses "tool_use ids" that come again; a model that speaks like it made the last call under the same id."""
    from langchain_anthropic import ChatAnthropic  # takes a second: only the worker that runs this is to wait

    with ModelServer(model="claude-opus-5", script=AGAIN, strict="anthropic") as server:
        url = server.base_url.removesuffix("/v1")
        settings: Any = {"api_key": "k", "max_retries": 0, "max_tokens": 200, "output_version": version}
        model = ChatAnthropic(model="claude-opus-5", base_url=url, **settings)
        WAYS[way](model)
        assert len(server.requests) == 2
        contents = [m["content"] for m in server.requests[1].body["messages"] if isinstance(m["content"], list)]
        blocks = [block for content in contents for block in content]
        called = {b["id"]: b["input"]["city"] for b in blocks if b["type"] == "tool_use"}
        results = {b["tool_use_id"]: str(b["content"]) for b in blocks if b["type"] == "tool_result"}
        assert [*called.values()] == ["Bonn", "Rome", "Ulm"]
        assert [*called] == [*results]
        assert all(weather(city) in result for city, result in zip(called.values(), results.values(), strict=True))
        model._client.close()


@pytest.mark.parametrize("way", WAYS)
def test_other_models_are_sent_the_ids_as_they_were(way: str) -> None:
    with ModelServer(model="m", script=AGAIN) as server:
        settings: Any = {"api_key": "x", "max_retries": 0}
        model = ChatOpenAI(model="m", base_url=server.base_url, **settings)
        WAYS[way](model)
        answered = [m["tool_call_id"] for m in server.requests[1].body["messages"] if m["role"] == "tool"]
        assert answered == ["weather_0"] * 3
        model.root_client.close()
