"""LLMs that are not ours: their reasoning goes back to the service that gave it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ThinkingBlock, ToolCallBlock
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms.mock import MockFunctionCallingLLM, MockLLM
from llama_index.core.memory import ChatMemoryBuffer
from openai import BadRequestError

from ctxfold import ConfigError
from ctxfold.testing import Scripted, ScriptedCall
from llamaindex_ctx import CtxLLM, with_reasoning
from tests.llamaindex.thinking import ROUNDS, serving, tool

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:is_running called from within a step:DeprecationWarning"),
]
KINDS = ["deepseek", "openai_like"]


def talk(body: Any) -> Scripted:
    return Scripted("Yes.", reasoning="Let me see.")


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_thinking_agent_fails_at_the_second_request_without(kind: str, streaming: bool) -> None:
    async with serving(kind) as (server, llm):
        agent = FunctionAgent(llm=llm, tools=[tool()], streaming=streaming)
        with pytest.raises(BadRequestError, match="reasoning_content"):
            await agent.run("Find all.")
        assert len(server.requests) == 2


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_with_one_line_it_finishes(kind: str, streaming: bool) -> None:
    async with serving(kind) as (server, llm):
        helped = with_reasoning(llm)
        agent = FunctionAgent(llm=helped, tools=[tool()], streaming=streaming)
        answer = await agent.run("Find all.", max_iterations=2 * ROUNDS)
        assert str(answer) == "All found."
        assert len(server.requests) == ROUNDS + 1
        sent = [m["reasoning_content"] for m in server.requests[-1].body["messages"] if m["role"] == "assistant"]
        assert sent == [f"Number {n} is next." for n in range(ROUNDS)]


@pytest.mark.parametrize("kind", KINDS)
async def test_all_that_is_not_reasoning_is_sent_as_before(kind: str) -> None:
    """Model, options, extra body and every message are what the LLM itself sends; the LLM itself stays as it was."""
    async with serving(kind, talk) as (server, llm):
        llm.additional_kwargs = {"extra_body": {"thinking": {"type": "disabled"}}}
        thought = ThinkingBlock(content="Hm.")
        call = ToolCallBlock(tool_call_id="c1", tool_name="look", tool_kwargs={"key": 1})
        listed = [
            ChatMessage("Find it."),
            ChatMessage(role="assistant", blocks=[thought, call]),
            ChatMessage(role="tool", content="Entry 1.", additional_kwargs={"tool_call_id": "c1"}),
        ]
        llm.chat(listed, temperature=0.5)
        with_reasoning(llm).chat(listed, temperature=0.5)
        plain, helped = (dict(request.body) for request in server.requests)
        assert helped["messages"][1].pop("reasoning_content") == "Hm."
        assert helped == plain
        assert helped["thinking"] == {"type": "disabled"}
        with_reasoning(llm).chat(listed[:1])
        assert "reasoning_content" not in server.requests[-1].body["messages"][0]


@pytest.mark.parametrize("kind", KINDS)
async def test_it_is_the_same_llm(kind: str) -> None:
    async with serving(kind) as (_, llm):
        client = llm._get_client()
        helped = with_reasoning(llm)
        assert isinstance(helped, type(llm))
        assert (type(helped).__name__, helped.class_name()) == (type(llm).__name__, llm.class_name())
        assert helped.model_dump() == llm.model_dump()
        assert helped._get_client() is client
        assert with_reasoning(helped) is helped
        assert with_reasoning(llm) is not llm


@pytest.mark.parametrize("kind", KINDS)
async def test_a_pickled_one_still_returns_reasoning(kind: str) -> None:
    async with serving(kind) as (_, llm):
        again = pickle.loads(pickle.dumps(with_reasoning(llm)))
        assert type(again).__mro__[2] is type(llm)
        assert with_reasoning(again) is again


@pytest.mark.parametrize("kind", KINDS)
async def test_a_streaming_chat_engine_sends_it_back(kind: str) -> None:
    """The engine keeps text and kwargs of a streamed answer: the reasoning stands there too."""
    async with serving(kind, talk) as (server, llm):
        engine = SimpleChatEngine.from_defaults(
            llm=with_reasoning(llm), memory=ChatMemoryBuffer.from_defaults(token_limit=4_000)
        )
        for question in ("Are you there?", "Still?"):
            assert "".join(engine.stream_chat(question).response_gen) == "Yes."
        assert server.requests[-1].body["messages"][1]["reasoning_content"] == "Let me see."


async def test_answers_from_before_get_an_empty_thought() -> None:
    """Once one answer has its reasoning, the service wants the field in all."""
    async with serving("deepseek", talk) as (server, llm):
        helped = with_reasoning(llm)
        first = helped.chat([ChatMessage("a")]).message
        told = [ChatMessage("a"), first, ChatMessage("b"), ChatMessage(role="assistant", content="No thought.")]
        helped.chat([*told, ChatMessage("c")])
        sent = [m["reasoning_content"] for m in server.requests[-1].body["messages"] if m["role"] == "assistant"]
        assert sent == ["Let me see.", ""]


async def test_deepseeks_own_llm_has_the_field_in_every_answer() -> None:
    """Also where nobody kept a thought: its service refuses the conversation else."""
    async with serving("deepseek", talk) as (_, llm):
        told = [ChatMessage("a"), ChatMessage(role="assistant", content="From before."), ChatMessage("b")]
        with pytest.raises(BadRequestError, match="reasoning_content"):
            llm.chat(told)
        assert with_reasoning(llm).chat(told).message.content == "Yes."


def test_llms_that_send_it_themselves_stay_as_they_are() -> None:
    own = CtxLLM(model="m", base_url="http://127.0.0.1:9/v1", api_key="x")
    assert with_reasoning(own) is own
    own.close()


def test_an_llm_that_cannot_be_helped_is_named_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"MockFunctionCallingLLM gives no way.*CtxLLM"):
        with_reasoning(MockFunctionCallingLLM())
    with pytest.raises(ConfigError, match=r"MockLLM gives no way.*CtxLLM"):
        with_reasoning(MockLLM())


def test_a_completion_endpoint_has_no_place_for_it() -> None:
    from llama_index.llms.openai_like import OpenAILike

    with pytest.raises(ConfigError, match=r"is_chat_model=True, or use CtxLLM"):
        with_reasoning(OpenAILike(model="m", api_base="http://127.0.0.1:9/v1", api_key="x"))


async def test_a_call_whose_arguments_are_broken_still_reaches_the_service() -> None:
    """What the model wrote goes back as it was: the service, not this wrapper, judges it."""
    async with serving("deepseek", [Scripted(tool_calls=(ScriptedCall("look", '{"key": '),), reasoning="Hm.")]) as (
        _,
        llm,
    ):
        broken = with_reasoning(llm).chat([ChatMessage("Find it.")]).message
        with pytest.raises(BadRequestError, match="JSON object"):
            with_reasoning(llm).chat(
                [
                    ChatMessage("Find it."),
                    broken,
                    ChatMessage(role="tool", content="No.", additional_kwargs={"tool_call_id": "c"}),
                ]
            )
