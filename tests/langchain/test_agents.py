"""LangChain's agent on `ChatCtx` with a session, against a server as strict as DeepSeek."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx
from tests.support.summaries import asks_on_live_prefix


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"{len(city) + 10} C in {city}. " + "Light winds from the west. " * 20


def play(body: Any) -> Scripted:
    """Calls the tool twice at once for each question, then answers."""
    messages = [m for m in body["messages"] if m["role"] != "system"]  # recalled passages may stand at the end
    if messages[-1]["role"] == "tool":
        return Scripted(f"It is {messages[-1]['content'][:4]}.", reasoning="Both are there.")
    if not body.get("tools"):
        return Scripted("The user asked for the weather in some cities.", reasoning="Short.")
    city = str(messages[-1]["content"]).split()[-1]
    calls = tuple(ScriptedCall("weather", json.dumps({"city": c})) for c in (city, city + "-Süd"))
    return Scripted(reasoning="I need the weather.", tool_calls=calls)


CITIES = ["Köln", "Bonn", "Jena", "Ulm", "Trier", "Hof", "Fulda", "Gera"]


def steps(body: Any) -> Scripted:
    """One call after the other, six in all; each with a thought that must come back."""
    done = sum(m["role"] == "tool" for m in body["messages"])
    if done == 6:
        return Scripted("All six are warm.", reasoning="That was the last.")
    arguments = json.dumps({"city": CITIES[done]})
    return Scripted(reasoning=f"Number {done + 1} is next.", tool_calls=(ScriptedCall("weather", arguments),))


def agent_on(server: ModelServer, **settings: Any) -> tuple[ChatCtx, Any]:
    chat = ChatCtx(
        model="m",
        provider="deepseek",
        base_url=server.base_url,
        api_key="x",
        context_window=1_500,
        max_retries=0,
        **settings,
    )
    return chat, create_agent(chat, [weather], system_prompt="Use the tool.")


@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])
async def test_an_agent_whose_context_is_the_session(how: str) -> None:
    """Each run brings one message; tool rounds go back with their reasoning; what is old is summarised."""
    with ModelServer(model="m", script=play, strict="deepseek") as server:
        chat, agent = agent_on(server, session="s")
        for city in CITIES:
            given = {"messages": [HumanMessage(f"Weather in {city}")]}
            tokens: list[Any] = []
            if how == "invoke":
                last = agent.invoke(given)["messages"][-1]
            elif how == "ainvoke":
                last = (await agent.ainvoke(given))["messages"][-1]
            elif how == "stream":
                tokens = [c for c, _ in agent.stream(given, stream_mode="messages") if isinstance(c, AIMessage)]
                last = tokens[-1]
            else:
                tokens = [c async for c, _ in agent.astream(given, stream_mode="messages") if isinstance(c, AIMessage)]
                last = tokens[-1]
            text = "".join(t.text for t in tokens) if tokens else last.text
            assert text == f"It is {len(city) + 14} C."
        usage = chat.context().usage()
        assert usage.turns == len(CITIES)
        assert usage.compactions > 0
        asked = [r.body for r in server.requests if r.body.get("tools")]
        assert len([body for body in asked if not asks_on_live_prefix(body)]) == 2 * len(CITIES)
        for body in asked:
            thoughts = [m for m in body["messages"] if m["role"] == "assistant"]
            assert all(m["reasoning_content"] for m in thoughts)
        chat.close()


def test_an_agent_with_a_checkpointer_hands_over_the_full_list() -> None:
    """LangGraph keeps its own list and gives the messages ids; the session is the thread's."""
    with ModelServer(model="m", script=play, strict="deepseek") as server:
        chat = ChatCtx(
            model="m",
            provider="deepseek",
            base_url=server.base_url,
            api_key="x",
            context_window=1_500,
            store="memory://",
        )
        agent = create_agent(chat, [weather], checkpointer=InMemorySaver())
        for thread in ("a", "b"):
            for city in CITIES[:5]:
                state = agent.invoke(
                    {"messages": [HumanMessage(f"Weather in {city}")]}, {"configurable": {"thread_id": thread}}
                )
        assert len(state["messages"]) == 25
        for thread in ("a", "b"):
            context = chat.context(thread)
            assert context.usage().turns == 5
            kept = context.archive.get(state["messages"][-1].id) if thread == "b" else None
            assert kept is None or kept.text == state["messages"][-1].text
        chat.close()


def test_a_plain_model_in_a_graph_ignores_the_thread() -> None:
    with ModelServer(model="m", script=play, strict="deepseek") as server:
        chat = ChatCtx(model="m", provider="deepseek", base_url=server.base_url, api_key="x")
        agent = create_agent(chat, [weather], checkpointer=InMemorySaver())
        for city in CITIES[:3]:
            state = agent.invoke(
                {"messages": [HumanMessage(f"Weather in {city}")]}, {"configurable": {"thread_id": "a"}}
            )
        tools = [m for m in state["messages"] if isinstance(m, ToolMessage)]
        assert len(tools) == 6
        assert len(server.requests[-1].body["messages"]) == 14
        chat.close()


@pytest.mark.parametrize("session", [None, "s"])
@pytest.mark.parametrize("how", ["invoke", "astream"])
async def test_an_agent_calls_tools_many_times_in_one_turn(how: str, session: str | None) -> None:
    """Six rounds on a service that refuses any round whose reasoning was not passed back."""
    with ModelServer(model="m", script=steps, strict="deepseek") as server:
        own: dict[str, Any] = {"session": session, "context_window": 20_000} if session else {}
        chat = ChatCtx(
            model="m", provider="deepseek", base_url=server.base_url, api_key="x", max_retries=0, thinking=True, **own
        )
        agent = create_agent(chat, [weather])
        given: Any = {"messages": [HumanMessage("Is it warm everywhere?")]}
        if how == "invoke":
            state = agent.invoke(given)
        else:
            state = [state async for state in agent.astream(given, stream_mode="values")][-1]
        assert state["messages"][-1].text == "All six are warm."
        assert sum(isinstance(m, ToolMessage) for m in state["messages"]) == 6
        assert len(server.requests) == 7
        sent = [m["reasoning_content"] for m in server.requests[-1].body["messages"] if m["role"] == "assistant"]
        assert sent == [f"Number {n} is next." for n in range(1, 7)]
        if session:
            assert chat.context().usage().turns == 1
        chat.close()


def test_the_providers_own_package_fails_there() -> None:
    """The same agent on langchain-deepseek: it drops the reasoning, and the second request is refused."""
    from langchain_deepseek import ChatDeepSeek
    from openai import BadRequestError

    with ModelServer(model="m", script=steps, strict="deepseek") as server:
        chat = ChatDeepSeek(model="m", api_base=server.base_url, api_key="x", max_retries=0)
        agent = create_agent(chat, [weather])
        with pytest.raises(BadRequestError) as caught:
            agent.invoke({"messages": [HumanMessage("Is it warm everywhere?")]})
        assert caught.value.status_code == 400
        assert "reasoning_content" in str(caught.value)
        assert len(server.requests) == 2
        chat.root_client.close()


class Report(BaseModel):
    """What was found."""

    city: str
    degrees: int


def test_an_agents_structured_answer_is_a_forced_call() -> None:
    """LangChain forces a tool call for it, which this service refuses while it thinks: such requests go without."""

    def play(body: Any) -> Scripted:
        if body["messages"][-1]["role"] == "tool":
            return Scripted(tool_calls=(ScriptedCall("Report", '{"city": "Ulm", "degrees": 13}'),))
        return Scripted(tool_calls=(ScriptedCall("weather", '{"city": "Ulm"}'),))

    with ModelServer(model="m", script=play, strict="deepseek") as server:
        chat = ChatCtx(model="m", provider="deepseek", base_url=server.base_url, api_key="x", max_retries=0)
        agent = create_agent(chat, [weather], response_format=ToolStrategy(Report))
        state = agent.invoke({"messages": [HumanMessage("Weather in Ulm")]})
        assert state["structured_response"] == Report(city="Ulm", degrees=13)
        chat.close()
