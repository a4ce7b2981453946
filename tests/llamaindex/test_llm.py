"""`CtxLLM` over real sockets: what goes to the model, what comes back, and LlamaIndex's own agents on top of it."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from llama_index.core.agent.workflow import AgentStream, AgentWorkflow, FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    MessageRole,
    ToolCallBlock,
)
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index_instrumentation import get_dispatcher
from pydantic import BaseModel

from ctxfold import BackendError, ScriptedBackend
from ctxfold.errors import ConfigError, ContextOverflowError, InvalidToolArgumentsError, MessageError
from ctxfold.messages import Message, Opaque, ReasoningPart, TextPart, ToolCallPart
from ctxfold.testing import ErrorReply, ModelServer, RawReply, Scripted, ScriptedCall
from llamaindex_ctx import CtxLLM, CtxMemory
from llamaindex_ctx.convert import section

# workflows ask every attribute of an agent, pydantic's deprecated ones too
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning:inspect")

KEY = "sk-never-to-be-seen"
WAYS = ["chat", "achat", "stream_chat", "astream_chat"]
COMPLETE_WAYS = ["complete", "acomplete", "stream_complete", "astream_complete"]
HELLO = [ChatMessage(role="user", content="Hello?")]


@asynccontextmanager
async def served(*replies: Any, settings: dict[str, Any] | None = None, **server_settings: Any) -> AsyncIterator[Any]:
    async with ModelServer(script=list(replies) or None, **server_settings) as server:
        llm = CtxLLM(**{"model": "m", "base_url": server.base_url, "api_key": KEY, **(settings or {})})
        try:
            yield llm, server
        finally:
            await llm.aclose()


async def ask(llm: CtxLLM, way: str, given: Any = HELLO, **options: Any) -> list[Any]:
    """All responses of one call, whichever form it has."""
    answer = getattr(llm, way)(given, **options)
    if way.startswith("a"):
        answer = await answer
    if "stream" not in way:
        return [answer]
    return [r async for r in answer] if way.startswith("a") else list(answer)


def kinds(response: ChatResponse) -> list[str]:
    return [block.block_type for block in response.message.blocks]


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def look(place: str) -> str:
    """Looks at a place."""
    return f"{place} is green"


ADD, LOOK = FunctionTool.from_defaults(add), FunctionTool.from_defaults(look)


class Song(BaseModel):
    """A song."""

    title: str
    seconds: int


# -- text, reasoning, usage


@pytest.mark.parametrize("way", WAYS)
async def test_an_answer_with_reasoning_comes_whole_with_usage_and_finish_reason(way: str) -> None:
    async with served(Scripted("Good day to you all.", reasoning="They greet me, so I greet back.")) as (llm, server):
        responses = await ask(llm, way, [ChatMessage(role="system", content="Be kind."), *HELLO])
    last = responses[-1]
    assert kinds(last) == ["thinking", "text"]
    assert last.message.role is MessageRole.ASSISTANT
    assert last.message.content == "Good day to you all."
    assert last.message.blocks[0].content == "They greet me, so I greet back."
    assert last.message.additional_kwargs["reasoning_content"] == "They greet me, so I greet back."
    noted = last.additional_kwargs
    assert noted["finish_reason"] == "stop"
    assert (
        noted["prompt_tokens"] + noted["completion_tokens"]
        == noted["total_tokens"]
        == last.raw["usage"]["total_tokens"]
    )
    assert noted["reasoning_tokens"] > 0
    sent = server.requests[0].body
    assert [m["role"] for m in sent["messages"]] == ["system", "user"]
    assert sent["stream"] is ("stream" in way)


@pytest.mark.parametrize("way", ["stream_chat", "astream_chat"])
async def test_chunks_are_cumulative_and_deltas_add_up(way: str) -> None:
    async with served(Scripted("one two three four five six", reasoning="first think a little", chunks=6)) as (llm, _):
        responses = await ask(llm, way)
    assert len(responses) > 6
    assert "".join(r.delta for r in responses) == "one two three four five six"
    assert "".join(r.additional_kwargs["thinking_delta"] or "" for r in responses) == "first think a little"
    said = thought = ""
    for response in responses:
        said += response.delta
        thought += response.additional_kwargs["thinking_delta"] or ""
        assert kinds(response) == ["thinking", "text"]
        assert response.message.blocks[0].content == thought
        assert (response.message.content or "") == said
    # a first chunk that holds nothing but reasoning is passed on
    assert responses[0].delta == ""
    assert responses[0].additional_kwargs["thinking_delta"]


async def test_an_answer_without_reasoning_has_no_thinking_block() -> None:
    async with served(Scripted("Yes.")) as (llm, _):
        responses = await ask(llm, "astream_chat")
    assert {tuple(kinds(r)) for r in responses} == {("text",)}
    assert all(r.additional_kwargs["thinking_delta"] is None for r in responses)


@pytest.mark.parametrize("way", COMPLETE_WAYS)
async def test_a_prompt_is_completed_as_one_user_message(way: str) -> None:
    async with served(Scripted("Paris, of course.", reasoning="Easy.")) as (llm, server):
        responses = await ask(llm, way, "Capital of France?")
    assert responses[-1].text == "Paris, of course."
    assert responses[-1].additional_kwargs["prompt_tokens"] > 0
    assert server.requests[0].body["messages"] == [{"role": "user", "content": "Capital of France?"}]
    if "stream" in way:
        assert "".join(r.delta for r in responses) == "Paris, of course."


async def test_a_character_cut_apart_by_two_chunks_arrives_whole() -> None:
    def event(delta: dict[str, str]) -> bytes:
        row = {"id": "x", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        return f"data: {json.dumps(row)}\n\n".encode()

    end = b'data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    frames = (event({"content": "a \ud83d"}), event({"content": "\ude00 b"}), end)
    async with served(RawReply(frames=frames)) as (llm, _):
        responses = await ask(llm, "astream_chat")
    assert "".join(r.delta for r in responses) == responses[-1].message.content == "a \U0001f600 b"


async def test_options_reach_the_request() -> None:
    settings = {
        "temperature": 0.5,
        "max_tokens": 100,
        "additional_kwargs": {"top_p": 0.9},
        "extra_body": {"seed": 7},
    }
    async with served(Scripted("a"), Scripted("b"), settings=settings) as (llm, server):
        await ask(llm, "achat")
        await ask(llm, "achat", temperature=0.1, stop="END", model="other", extra_body={"min_p": 0.2}, user=None)
    first, second = (r.body for r in server.requests)
    assert (first["temperature"], first["max_tokens"], first["top_p"], first["seed"]) == (0.5, 100, 0.9, 7)
    assert (second["temperature"], second["stop"], second["model"], second["min_p"]) == (0.1, ["END"], "other", 0.2)
    assert "user" not in second


async def test_what_a_memory_injected_is_sent_too() -> None:
    async with served(Scripted("ok")) as (llm, server):
        await ask(llm, "achat", [section("Earlier: the key is blue."), *HELLO])
    assert [m["content"] for m in server.requests[0].body["messages"]] == ["Earlier: the key is blue.", "Hello?"]


# -- tools


@pytest.mark.parametrize("way", WAYS)
async def test_parallel_calls_are_all_kept_with_their_arguments_as_they_came(way: str) -> None:
    calls = (ScriptedCall("add", '{"a": 1,  "b": 2}', "c1"), ScriptedCall("look", '{"place": "garden"}', "c2"))
    async with served(Scripted("", reasoning="Two things to do.", tool_calls=calls)) as (llm, server):
        given = llm._prepare_chat_with_tools([ADD, LOOK], user_msg="Go.", allow_parallel_tool_calls=True)
        responses = await ask(llm, way, given.pop("messages"), **given)
    last = responses[-1]
    assert kinds(last) == ["thinking", "text", "tool_call", "tool_call"]
    assert [b.tool_kwargs for b in last.message.blocks[2:]] == [c.arguments for c in calls]
    found = llm.get_tool_calls_from_response(last)
    assert [(c.tool_id, c.tool_name, c.tool_kwargs) for c in found] == [
        ("c1", "add", {"a": 1, "b": 2}),
        ("c2", "look", {"place": "garden"}),
    ]
    for response in responses:
        llm.get_tool_calls_from_response(response, error_on_no_tool_call=False)
    body = server.requests[0].body
    assert [t["function"]["name"] for t in body["tools"]] == ["add", "look"]
    assert "tool_choice" not in body


async def test_two_calls_and_text_in_one_chunk_are_all_kept() -> None:
    delta = {
        "content": "Both.",
        "tool_calls": [
            {"index": 0, "id": "c1", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}},
            {"index": 1, "id": "c2", "function": {"name": "add", "arguments": '{"a": 3, "b": 4}'}},
        ],
    }
    row = {"id": "x", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": "tool_calls"}]}
    async with served(RawReply(frames=(f"data: {json.dumps(row)}\n\n".encode(), b"data: [DONE]\n\n"))) as (llm, _):
        responses = await ask(llm, "astream_chat")
    for response in responses:
        assert kinds(response) == ["text", "tool_call", "tool_call"]
        assert [c.tool_kwargs["a"] for c in llm.get_tool_calls_from_response(response)] == [1, 3]
    assert "".join(r.delta for r in responses) == "Both."


async def test_pieces_without_index_or_with_the_name_repeated_stay_one_call() -> None:
    pieces = [
        {"id": "c1", "function": {"name": "add", "arguments": '{"a": 1,'}},
        {"function": {"name": "add", "arguments": ' "b": 2}'}},
    ]
    frames = [
        f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'tool_calls': [piece]}}]})}\n\n".encode()
        for piece in pieces
    ]
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'
    async with served(RawReply(frames=(*frames, end))) as (llm, _):
        responses = await ask(llm, "astream_chat")
    seen = [[c.tool_kwargs for c in llm.get_tool_calls_from_response(r)] for r in responses]
    assert seen == [[{"a": 1}], [{"a": 1, "b": 2}], [{"a": 1, "b": 2}]]


@pytest.mark.parametrize("way", WAYS)
async def test_without_parallel_calls_only_the_first_is_kept(way: str) -> None:
    calls = (ScriptedCall("add", '{"a": 1, "b": 2}'), ScriptedCall("add", '{"a": 3, "b": 4}'))
    async with served(Scripted("", tool_calls=calls)) as (llm, _):
        given = llm._prepare_chat_with_tools([ADD], user_msg="Go.", allow_parallel_tool_calls=False)
        responses = await ask(llm, way, given.pop("messages"), **given)
    assert [c.tool_kwargs for c in llm.get_tool_calls_from_response(responses[-1])] == [{"a": 1, "b": 2}]
    assert max(len(llm.get_tool_calls_from_response(r, error_on_no_tool_call=False)) for r in responses) == 1


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ({"tool_required": True}, "required"),
        ({"tool_choice": "any"}, "required"),
        ({"tool_choice": "auto"}, "auto"),
        ({"tool_choice": "none", "tool_required": True}, "none"),
        ({"tool_choice": "add"}, {"type": "function", "function": {"name": "add"}}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "add"}}},
            {"type": "function", "function": {"name": "add"}},
        ),
        ({}, None),
    ],
)
async def test_tool_choice_is_sent_in_every_form(choice: dict[str, Any], sent: Any) -> None:
    async with served(Scripted("", tool_calls=(ScriptedCall("add", '{"a": 1, "b": 2}'),))) as (llm, server):
        await llm.achat_with_tools([ADD], user_msg="Go.", **choice)
    assert server.requests[0].body.get("tool_choice") == sent


async def test_where_a_call_cannot_be_forced_a_wish_is_left_to_the_model_and_a_demand_is_refused() -> None:
    reply = Scripted("", reasoning="Hm.", tool_calls=(ScriptedCall("add", '{"a": 1, "b": 2}'),))
    settings = {"provider": "deepseek"}
    async with served(reply, reply, settings=settings, strict="deepseek") as (llm, server):
        response = await llm.achat_with_tools([ADD], user_msg="Go.", tool_required=True)
        assert len(llm.get_tool_calls_from_response(response)) == 1
        assert "tool_choice" not in server.requests[0].body
        with pytest.raises(ConfigError, match="cannot force a tool call while thinking"):
            await llm.achat_with_tools([ADD], user_msg="Go.", tool_choice="add")
        await llm.achat_with_tools([ADD], user_msg="Go.", tool_required=True, thinking=False)
        assert server.requests[-1].body["tool_choice"] == "required"


async def test_a_reply_without_a_call_is_an_error_only_where_one_is_needed() -> None:
    async with served(Scripted("No need.")) as (llm, _):
        response = await llm.achat_with_tools([ADD], user_msg="Go.")
    assert llm.get_tool_calls_from_response(response, error_on_no_tool_call=False) == []
    with pytest.raises(MessageError, match="0 tool calls") as raised:
        llm.get_tool_calls_from_response(response)
    assert isinstance(raised.value, ValueError)


async def test_arguments_that_are_no_json_are_a_typed_error_with_the_tools_name() -> None:
    async with served(Scripted("", tool_calls=(ScriptedCall("add", '{"a": 1,, }'),))) as (llm, _):
        responses = await ask(llm, "astream_chat")
    with pytest.raises(InvalidToolArgumentsError, match="'add'"):
        llm.get_tool_calls_from_response(responses[-1])


async def test_what_a_provider_sent_beside_a_call_goes_back_with_it() -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'},
        "extra_content": {"google": {"thought_signature": "s1gn"}},
    }
    row = {
        "choices": [{"index": 0, "message": {"role": "assistant", "tool_calls": [call]}, "finish_reason": "tool_calls"}]
    }
    reply = RawReply(headers={"content-type": "application/json"}, frames=(json.dumps(row).encode(),))
    async with served(reply, Scripted("3")) as (llm, server):
        first = (await llm.achat(HELLO)).message
        answer = ChatMessage(role="tool", content="3", additional_kwargs={"tool_call_id": "c1"})
        await llm.achat([*HELLO, first, answer])
    assert server.requests[1].body["messages"][1]["tool_calls"] == [call]


async def test_signed_thinking_stays_where_it_came() -> None:
    parts = (
        ReasoningPart("one", signature="s1"),
        ToolCallPart("c1", "add", '{"a": 1, "b": 2}'),
        ReasoningPart("two", signature="s2"),
        TextPart("Done."),
        ToolCallPart("c2", "add", '{"a": 3, "b": 4}'),
    )
    backend = ScriptedBackend([Message("m1", "assistant", parts), "ok"])
    llm = CtxLLM(model="m", backend=backend)
    first = await llm.achat(HELLO)
    assert kinds(first) == ["thinking", "tool_call", "thinking", "text", "tool_call"]
    answers = [ChatMessage(role="tool", content="3", additional_kwargs={"tool_call_id": c}) for c in ("c1", "c2")]
    await llm.achat([*HELLO, first.message, *answers])
    sent = backend.requests[1].messages[1]
    assert tuple(p for p in sent.parts if not isinstance(p, Opaque)) == parts


async def test_a_tool_without_a_name_is_refused_before_anything_is_sent() -> None:
    async with served(Scripted("ok")) as (llm, server):
        with pytest.raises(ConfigError, match="tools holds"):
            await llm.achat(HELLO, tools=[{"name": "add"}])
        with pytest.raises(ConfigError, match="names no function"):
            await llm.achat(HELLO, tools=[ADD], tool_choice={"type": "tool"})
    assert server.requests == []


def test_the_callers_history_is_not_touched() -> None:
    llm = CtxLLM(model="m", backend=ScriptedBackend(["ok"]))
    history = list(HELLO)
    given = llm._prepare_chat_with_tools([ADD], user_msg="And now?", chat_history=history)
    assert len(history) == 1
    assert [m.content for m in given["messages"]] == ["Hello?", "And now?"]
    json.dumps({**given, "messages": []})


# -- structured output


@pytest.mark.parametrize("provider", ["generic", "deepseek"])
async def test_structured_output_comes_through_a_tool_call(provider: str) -> None:
    reply = Scripted("", tool_calls=(ScriptedCall("Song", '{"title": "Blue", "seconds": 183}'),))
    async with served(
        *[reply] * 4, settings={"provider": provider}, strict="deepseek" if provider == "deepseek" else None
    ) as (llm, server):
        prompt = PromptTemplate("A song about {topic}")
        assert llm.structured_predict(Song, prompt, topic="the sea") == Song(title="Blue", seconds=183)
        assert await llm.astructured_predict(Song, prompt, topic="the sea") == Song(title="Blue", seconds=183)
        structured = llm.as_structured_llm(Song)
        assert structured.chat(HELLO).raw == Song(title="Blue", seconds=183)
        assert (await structured.achat(HELLO)).raw == Song(title="Blue", seconds=183)
    assert server.requests[0].body["tools"][0]["function"]["parameters"]["required"] == ["title", "seconds"]


async def test_structured_output_grows_while_it_streams() -> None:
    reply = Scripted("", tool_calls=(ScriptedCall("Song", '{"title": "A very long blue title", "seconds": 183}'),))
    async with served(reply, reply) as (llm, _):
        prompt = PromptTemplate("A song about {topic}")
        seen = list(llm.stream_structured_predict(Song, prompt, topic="the sea"))
        assert seen[-1] == Song(title="A very long blue title", seconds=183)
        later = [s async for s in await llm.astream_structured_predict(Song, prompt, topic="the sea")]
        assert later[-1] == seen[-1]


# -- agents


def rounds(count: int) -> list[Scripted]:
    asked = [
        Scripted("", reasoning=f"Round {i}: add once more.", tool_calls=(ScriptedCall("add", f'{{"a": {i}, "b": 1}}'),))
        for i in range(count)
    ]
    return [*asked, Scripted("The sum is 5.", reasoning="All added.")]


@pytest.mark.parametrize("streaming", [True, False])
async def test_reasoning_goes_back_in_every_round_of_an_agents_loop(streaming: bool) -> None:
    async with served(*rounds(5), settings={"provider": "deepseek"}, strict="deepseek") as (llm, server):
        agent = FunctionAgent(tools=[ADD], llm=llm, system_prompt="You add.", streaming=streaming)
        output = await agent.run("Add five times.")
    assert str(output) == "The sum is 5."
    assert len(server.requests) == 6
    spoken = [m for m in server.requests[-1].body["messages"] if m["role"] == "assistant"]
    assert [m["reasoning_content"] for m in spoken] == [f"Round {i}: add once more." for i in range(5)]
    answers = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "tool"]
    assert answers == ["1", "2", "3", "4", "5"]


async def test_reasoning_goes_back_from_a_memory_in_the_next_run() -> None:
    script = [*rounds(2), Scripted("You are welcome.", reasoning="They thank me.")]
    async with served(*script, settings={"provider": "deepseek"}, strict="deepseek") as (llm, server):
        memory = CtxMemory.from_defaults(llm=llm, token_limit=8000)
        agent = FunctionAgent(tools=[ADD], llm=llm)
        await agent.run("Add twice.", memory=memory)
        assert str(await agent.run("Thanks!", memory=memory)) == "You are welcome."
    spoken = [m for m in server.requests[-1].body["messages"] if m["role"] == "assistant"]
    thoughts = ["Round 0: add once more.", "Round 1: add once more.", "All added."]
    assert [m["reasoning_content"] for m in spoken] == thoughts
    assert spoken[0]["tool_calls"][0]["function"]["arguments"] == '{"a": 0, "b": 1}'


async def test_moonshot_gets_back_the_reasoning_it_gave() -> None:
    async with served(*rounds(3), settings={"provider": "moonshot", "model": "kimi-k2.6"}, strict="moonshot") as (
        llm,
        server,
    ):
        output = await FunctionAgent(tools=[ADD], llm=llm).run("Add three times.")
    assert str(output) == "The sum is 5."
    assert len(server.requests) == 4


async def test_a_workflow_streams_text_thinking_and_calls() -> None:
    script = [
        Scripted(
            "Let me see.",
            reasoning="Two tools at once.",
            tool_calls=(ScriptedCall("add", '{"a": 2, "b": 3}'), ScriptedCall("look", '{"place": "hill"}')),
        ),
        Scripted("Five, and the hill is green.", reasoning="Both are back."),
    ]
    async with served(*script, settings={"provider": "deepseek"}, strict="deepseek") as (llm, server):
        workflow = AgentWorkflow(agents=[FunctionAgent(name="one", tools=[ADD, LOOK], llm=llm)], root_agent="one")
        handler = workflow.run(user_msg="Add, and look at the hill.")
        events = [event async for event in handler.stream_events()]
        await handler
    streamed = [e for e in events if isinstance(e, AgentStream)]
    assert "".join(e.delta for e in streamed) == "Let me see.Five, and the hill is green."
    assert "".join(e.thinking_delta or "" for e in streamed) == "Two tools at once.Both are back."
    assert max(len(e.tool_calls) for e in streamed) == 2
    results = [e for e in events if isinstance(e, ToolCallResult)]
    assert sorted(e.tool_output.content for e in results) == ["5", "hill is green"]
    assert sorted(m["content"] for m in server.requests[1].body["messages"] if m["role"] == "tool") == [
        "5",
        "hill is green",
    ]


async def test_a_call_left_without_a_result_is_answered_before_it_is_sent_on() -> None:
    history = [
        *HELLO,
        ChatMessage(
            role="assistant", blocks=[ToolCallBlock(tool_call_id="c1", tool_name="add", tool_kwargs={"a": 1, "b": 1})]
        ),
        ChatMessage(role="user", content="Never mind."),
    ]
    async with served(Scripted("Fine."), strict="openai") as (llm, server):
        assert (await llm.achat(history)).message.content == "Fine."
    assert [m["role"] for m in server.requests[0].body["messages"]] == ["user", "assistant", "tool", "user"]


# -- errors


@pytest.mark.parametrize("way", WAYS + COMPLETE_WAYS)
async def test_a_refused_key_is_a_typed_error_that_does_not_hold_the_key(way: str) -> None:
    body = {
        "error": {
            "message": f"Incorrect API key provided: {KEY}",
            "type": "invalid_request_error",
            "code": "invalid_api_key",
        }
    }
    async with served(ErrorReply(401, body)) as (llm, _):
        with pytest.raises(BackendError) as raised:
            await ask(llm, way, HELLO if "chat" in way else "Hello?")
    assert raised.value.kind == "auth"
    assert KEY not in str(raised.value)


@pytest.mark.parametrize("way", WAYS)
async def test_an_unreachable_server_is_a_typed_error(way: str) -> None:
    async with ModelServer(script=[]) as server:
        address = server.base_url
    llm = CtxLLM(model="m", base_url=address, max_retries=0)
    with pytest.raises(BackendError) as raised:
        await ask(llm, way)
    assert raised.value.kind == "connect"
    await llm.aclose()


@pytest.mark.parametrize("way", WAYS)
async def test_an_overflow_is_typed_and_the_limit_it_told_is_remembered(way: str) -> None:
    async with served(settings={"context_window": 100_000}, context_window=200) as (llm, _):
        with pytest.raises(ContextOverflowError, match="200") as raised:
            await ask(llm, way, [ChatMessage(role="user", content="word " * 1000)])
        assert isinstance(raised.value.__cause__, BackendError)
        assert llm.metadata.context_window == 200


@pytest.mark.parametrize("way", ["stream_chat", "astream_chat"])
async def test_a_stream_that_breaks_off_is_a_typed_error_after_what_had_come(way: str) -> None:
    frame = b'data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\n'
    seen: list[str] = []
    async with served(RawReply(frames=(frame,), then="abort")) as (llm, _):
        with pytest.raises(BackendError) as raised:
            if way == "stream_chat":
                seen.extend(r.delta for r in llm.stream_chat(HELLO))
            else:
                async for response in await llm.astream_chat(HELLO):
                    seen.append(response.delta)
    assert raised.value.kind == "connection"
    assert way == "stream_chat" or seen == ["half"]


@pytest.mark.parametrize("way", ["stream_chat", "astream_chat"])
async def test_leaving_a_stream_closes_the_connection(way: str) -> None:
    async with served(Scripted("word " * 50, chunks=50, chunk_delay_s=0.05)) as (llm, server):
        if way == "stream_chat":
            left = llm.stream_chat(HELLO)
            assert next(left).delta
            left.close()
        else:
            stream = await llm.astream_chat(HELLO)
            assert (await anext(stream)).delta
            await stream.aclose()
        for _ in range(100):
            if server.cancelled:
                break
            await asyncio.sleep(0.02)
        assert server.cancelled == 1


async def test_async_calls_run_side_by_side() -> None:
    async with served(*[Scripted("ok", delay_s=0.3)] * 10) as (llm, _):
        started = asyncio.get_running_loop().time()
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        await asyncio.gather(*(llm.achat(HELLO) for _ in range(10)))
        ticking.cancel()
        assert asyncio.get_running_loop().time() - started < 2.0
    assert ticks > 5


# -- what an LLM object is


def test_metadata_knows_the_window_from_the_user_then_the_row() -> None:
    row = CtxLLM(model="deepseek-v4-pro", provider="deepseek", api_key=KEY)
    assert row.metadata.context_window == 1_000_000
    given = CtxLLM(model="deepseek-v4-pro", provider="deepseek", api_key=KEY, context_window=64_000, max_tokens=500)
    assert (given.metadata.context_window, given.metadata.num_output) == (64_000, 500)
    unknown = CtxLLM(model="m").metadata
    assert (unknown.context_window, unknown.num_output) == (32_768, -1)
    assert unknown.is_function_calling_model
    assert unknown.is_chat_model
    assert unknown.model_name == "m"


async def test_the_key_is_in_no_repr_dict_json_pickle_or_payload_and_is_sent() -> None:
    async with served(Scripted("ok"), settings={"temperature": 0.3, "thinking": True}) as (llm, server):
        texts = [repr(llm), str(llm), str(llm.to_dict()), llm.to_json(), llm.model_dump_json(), str(llm.to_payload())]
        assert not [text for text in texts if KEY in text]
        assert KEY.encode() not in pickle.dumps(llm)
        await llm.achat(HELLO)
    assert "authorization" in server.requests[0].headers


async def test_an_llm_comes_back_from_dict_json_and_pickle() -> None:
    async with served(*[Scripted("ok")] * 4, settings={"temperature": 0.3, "extra_body": {"seed": 1}}) as (llm, server):
        copies = [
            CtxLLM.from_dict(llm.to_dict(), api_key=KEY),
            CtxLLM.from_json(llm.to_json()),
            pickle.loads(pickle.dumps(llm)),
            copy.deepcopy(llm),
        ]
        for other in copies:
            assert other.model_dump() == llm.model_dump()
            assert (await other.achat(HELLO)).message.content == "ok"
            await other.aclose()
        copies[3].extra_body["seed"] = 2
        assert llm.extra_body == {"seed": 1}
    assert [r.body["seed"] for r in server.requests] == [1, 1, 1, 1]
    assert ["authorization" in r.headers for r in server.requests] == [True, False, False, True]


def test_a_pickled_llm_whose_key_is_gone_says_so_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    other = pickle.loads(pickle.dumps(CtxLLM(model="deepseek-v4-pro", provider="deepseek", api_key=KEY)))
    with pytest.raises(ConfigError, match="DEEPSEEK_API_KEY"):
        other.chat(HELLO)


@pytest.mark.parametrize("settings", [{"provider": "nowhere"}, {"base_url": "not an address"}, {"model": ""}])
def test_wrong_settings_are_config_errors(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CtxLLM(**{"model": "m", **settings})


async def test_a_backend_can_be_given() -> None:
    backend = ScriptedBackend(["First.", "Second."], context_window=5000)
    llm = CtxLLM(model="m", backend=backend, thinking="high")
    assert llm.metadata.context_window == 5000
    assert llm.chat(HELLO).message.content == "First."
    assert (await ask(llm, "astream_chat"))[-1].message.content == "Second."
    assert backend.requests[0].thinking == "high"
    llm.close()


async def test_instrumentation_sees_start_progress_and_end() -> None:
    class Kept(BaseEventHandler):
        events: ClassVar[list[Any]] = []

        def handle(self, event: Any, **kwargs: Any) -> None:
            self.events.append(event)

    kept = Kept()
    dispatcher = get_dispatcher()
    dispatcher.add_event_handler(kept)
    try:
        async with served(Scripted("a b c"), Scripted("d")) as (llm, _):
            await ask(llm, "astream_chat")
            await ask(llm, "acomplete", "Hello?")
    finally:
        dispatcher.event_handlers.remove(kept)
    names = [event.class_name() for event in kept.events]
    assert names[0] == "LLMChatStartEvent"
    assert "LLMChatInProgressEvent" in names
    assert [n for n in names if n.endswith("EndEvent")] == ["LLMChatEndEvent", "LLMCompletionEndEvent"]
    end = next(e for e in kept.events if e.class_name() == "LLMChatEndEvent")
    assert end.response.additional_kwargs["total_tokens"] > 0
    assert KEY not in "".join(e.model_dump_json(fallback=str) for e in kept.events)


def test_making_an_llm_opens_no_http_client() -> None:
    code = (
        "import sys; from llamaindex_ctx import CtxLLM; CtxLLM(model='m');"
        "print('ctxfold.backends.http_backend' in sys.modules, 'ctxfold.backends.http' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["True", "False"]
