"""Tool rounds with the user's own thinking model, on a service that refuses a round whose reasoning was lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langchain_deepseek import ChatDeepSeek
from langchain_openai import ChatOpenAI
from openai import BadRequestError

from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ContextMiddleware, with_context, with_reasoning

ROUNDS = 6


@tool
def look(key: int) -> str:
    """Looks something up."""
    return f"Entry {key}."


def steps(body: Any) -> Scripted:
    done = sum(m["role"] == "tool" for m in body["messages"])
    if done == ROUNDS:
        return Scripted("All found.", reasoning="That was the last.")
    return Scripted(reasoning=f"Number {done} is next.", tool_calls=(ScriptedCall("look", json.dumps({"key": done})),))


def deepseek(url: str) -> Any:
    return ChatDeepSeek(model_name="m", api_base=url, api_key="x", max_retries=0)  # type: ignore[arg-type]


def openai(url: str) -> Any:
    return ChatOpenAI(model="m", base_url=url, api_key="x", max_retries=0)  # type: ignore[arg-type]


def as_it_is(model: Any) -> Any:
    return create_agent(model, [look])


def reasoning_sent_back(model: Any) -> Any:
    return create_agent(with_reasoning(model), [look])


def context_kept(model: Any) -> Any:
    return create_agent(with_context(model, session_id="s", context_window=64_000), [look])


def with_middleware(model: Any) -> Any:
    return create_agent(model, [look], middleware=[ContextMiddleware(context_window=64_000)])


@pytest.mark.parametrize("make", [deepseek, openai])
def test_without_it_the_second_request_is_refused(make: Callable[[str], Any]) -> None:
    with ModelServer(model="m", script=steps, strict="deepseek") as server:
        model = make(server.base_url)
        with pytest.raises(BadRequestError, match="reasoning_content"):
            as_it_is(model).invoke({"messages": [HumanMessage("Find all.")]})
        assert len(server.requests) == 2
        model.root_client.close()


@pytest.mark.parametrize("line", [reasoning_sent_back, context_kept, with_middleware])
def test_deepseek_goes_on_from_an_answer_without_a_thought(line: Callable[[Any], Any]) -> None:
    """It refuses an answer without the field, also where it has thought nothing for it."""
    replies = [Scripted(tool_calls=(ScriptedCall("look", '{"key": 1}'),)), Scripted("All found.")]
    with ModelServer(model="m", script=replies, strict="deepseek") as server:
        model = deepseek(server.base_url)
        assert line(model).invoke({"messages": [HumanMessage("Find all.")]})["messages"][-1].text == "All found."
        model.root_client.close()


@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("line", [reasoning_sent_back, context_kept, with_middleware])
@pytest.mark.parametrize("make", [deepseek, openai])
async def test_with_one_line_it_finishes(make: Callable[[str], Any], line: Callable[[Any], Any], how: str) -> None:
    with ModelServer(model="m", script=steps, strict="deepseek") as server:
        model = make(server.base_url)
        agent, given = line(model), {"messages": [HumanMessage("Find all.")]}
        config: Any = {"recursion_limit": 200}
        match how:
            case "invoke":
                said = agent.invoke(given, config)["messages"][-1].text
            case "ainvoke":
                said = (await agent.ainvoke(given, config))["messages"][-1].text
            case "stream":
                pieces = [c for c, _ in agent.stream(given, config, stream_mode="messages")]
                said = "".join(c.text for c in pieces if isinstance(c, AIMessage))
            case _:
                pieces = [c async for c, _ in agent.astream(given, config, stream_mode="messages")]
                said = "".join(c.text for c in pieces if isinstance(c, AIMessage))
        assert said == "All found."
        assert len(server.requests) == ROUNDS + 1
        sent = [m["reasoning_content"] for m in server.requests[-1].body["messages"] if m["role"] == "assistant"]
        assert sent == [f"Number {n} is next." for n in range(ROUNDS)]
        model.root_client.close()
        await model.root_async_client.close()
