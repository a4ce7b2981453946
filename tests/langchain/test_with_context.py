"""Models that are not ours: their reasoning sent back, and their context managed in an existing chain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langchain_deepseek import ChatDeepSeek
from langchain_openai import ChatOpenAI
from openai import BadRequestError

from ctxfold.errors import ConfigError
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, with_reasoning

ROUNDS = 20
Maker = Callable[[ModelServer], BaseChatModel]


@tool
def look(key: int) -> str:
    """Looks something up."""
    return f"Entry {key}."


def steps(body: Any) -> Scripted:
    done = sum(m["role"] == "tool" for m in body["messages"])
    if done == ROUNDS:
        return Scripted("All found.", reasoning="That was the last.")
    arguments = json.dumps({"key": done})
    return Scripted(reasoning=f"Number {done} is next.", tool_calls=(ScriptedCall("look", arguments),))


def deepseek(server: ModelServer, **settings: Any) -> BaseChatModel:
    return ChatDeepSeek(model="m", api_base=server.base_url, api_key="x", max_retries=0, **settings)  # type: ignore[arg-type]


def openai(server: ModelServer, **settings: Any) -> BaseChatModel:
    return ChatOpenAI(model="m", base_url=server.base_url, api_key="x", max_retries=0, **settings)  # type: ignore[arg-type,call-arg]


@contextmanager
def serving(make: Maker, script: Any = steps, **settings: Any) -> Iterator[tuple[ModelServer, BaseChatModel]]:
    with ModelServer(model="m", script=script, strict="deepseek", **settings) as server:
        model: Any = make(server)
        yield server, model
        model.root_client.close()


@pytest.mark.parametrize("make", [deepseek, openai])
def test_a_thinking_agent_fails_at_the_second_request_without(make: Maker) -> None:
    with serving(make) as (server, model):
        with pytest.raises(BadRequestError, match="reasoning_content"):
            create_agent(model, [look]).invoke({"messages": [HumanMessage("Find all.")]})
        assert len(server.requests) == 2


@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("make", [deepseek, openai])
async def test_with_one_line_it_finishes(make: Maker, how: str) -> None:
    with serving(make) as (server, model):
        agent = create_agent(with_reasoning(model), [look])
        given: Any = {"messages": [HumanMessage("Find all.")]}
        config: Any = {"recursion_limit": 200}
        match how:
            case "invoke":
                last = agent.invoke(given, config)["messages"][-1].text
            case "ainvoke":
                last = (await agent.ainvoke(given, config))["messages"][-1].text
            case "stream":
                seen = [c for c, _ in agent.stream(given, config, stream_mode="messages")]
                last = "".join(c.text for c in seen if isinstance(c, AIMessage))
            case _:
                seen = [c async for c, _ in agent.astream(given, config, stream_mode="messages")]
                last = "".join(c.text for c in seen if isinstance(c, AIMessage))
        assert last == "All found."
        assert len(server.requests) == ROUNDS + 1
        sent = [m["reasoning_content"] for m in server.requests[-1].body["messages"] if m["role"] == "assistant"]
        assert sent == [f"Number {n} is next." for n in range(ROUNDS)]
        client: Any = model
        await client.root_async_client.close()


@pytest.mark.parametrize("make", [deepseek, openai])
def test_it_is_the_same_model(make: Maker) -> None:
    """Class, fields and connections are the model's; the model itself is left as it was."""
    with serving(make) as (_, model):
        helped: Any = with_reasoning(model)
        assert isinstance(helped, type(model))
        assert type(helped).__name__ == type(model).__name__
        assert helped.model_dump(exclude={"api_key", "openai_api_key"}) == model.model_dump(
            exclude={"api_key", "openai_api_key"}
        )
        assert helped.root_client is model.root_client  # type: ignore[attr-defined]
        assert with_reasoning(helped) is helped
        assert with_reasoning(model) is not model
        assert type(model) in (ChatDeepSeek, ChatOpenAI)


@pytest.mark.parametrize("make", [deepseek, openai])
def test_structured_output_of_a_helped_model(make: Maker) -> None:
    def play(body: Any) -> Scripted:
        return Scripted('{"key": 7}')

    with serving(make, play) as (_, model):
        asked = with_reasoning(model).with_structured_output(
            {"title": "Found", "type": "object", "properties": {"key": {"type": "integer"}}}, method="json_mode"
        )
        assert asked.invoke("Give JSON.") == {"key": 7}


def test_a_conversation_without_reasoning_is_sent_as_before() -> None:
    with serving(openai, lambda _: Scripted("Hi.")) as (server, model):
        thread: Any = [("user", "a"), ("ai", "b"), ("user", "c")]
        with pytest.raises(BadRequestError):
            with_reasoning(model).invoke(thread)
        assert "reasoning_content" not in server.requests[-1].body["messages"][1]


def test_answers_from_before_get_an_empty_thought() -> None:
    """Once one answer has its reasoning, the service wants the field in all."""
    with serving(openai, lambda _: Scripted("Hi.", reasoning="Hm.")) as (server, model):
        first = with_reasoning(model).invoke("a")
        assert first.additional_kwargs["reasoning_content"] == "Hm."
        with_reasoning(model).invoke([("user", "a"), first, ("user", "b"), ("ai", "No thought."), ("user", "c")])
        sent = [m for m in server.requests[-1].body["messages"] if m["role"] == "assistant"]
        assert [m["reasoning_content"] for m in sent] == ["Hm.", ""]


def test_reasoning_in_content_blocks() -> None:
    with serving(openai, lambda _: Scripted("Hi.", reasoning="Hm.")) as (server, model):
        block = AIMessage([{"type": "reasoning", "reasoning": "As a block."}, {"type": "text", "text": "Yes."}])
        with_reasoning(model).invoke([("user", "a"), block, ("user", "b")])
        assert server.requests[-1].body["messages"][1]["reasoning_content"] == "As a block."


def test_models_that_send_it_themselves_stay_as_they_are() -> None:
    with ModelServer(model="m", script=steps) as server:
        own = ChatCtx(model="m", base_url=server.base_url, api_key="x")
        assert with_reasoning(own) is own
        own.close()
    other: Any = ChatAnthropic(model="claude-x", api_key="x")  # type: ignore[call-arg,arg-type]
    assert with_reasoning(other) is other


def test_a_model_that_cannot_be_helped_is_named_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="FakeListChatModel gives no way.*ChatCtx"):
        with_reasoning(FakeListChatModel(responses=["a"]))
