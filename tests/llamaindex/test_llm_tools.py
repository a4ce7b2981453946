"""`CtxLLM`: tool calls in every form, what goes back with them, and structured output."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.prompts import PromptTemplate
from pydantic import BaseModel

from ctxfold import ConfigError, Message, MessageError, ReasoningPart, ScriptedBackend, TextPart, ToolCallPart
from ctxfold.errors import InvalidToolArgumentsError
from ctxfold.messages import Opaque
from ctxfold.testing import RawReply, Scripted, ScriptedCall
from llamaindex_ctx import CtxLLM, with_context
from tests.llamaindex.served_llm import ADD, HELLO, LOOK, WAYS, ask, kinds, served


class Song(BaseModel):
    """A song."""

    title: str
    seconds: int


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


async def test_what_came_beside_a_call_of_another_package_goes_back_with_it() -> None:
    """Packages for chat completions keep the calls as they came, with what a provider wants back."""
    signature = {"google": {"thought_signature": "S"}}
    row = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}, "extra_content": signature}
    called = ChatMessage(
        role="assistant",
        blocks=[ToolCallBlock(tool_call_id="c1", tool_name="look", tool_kwargs={})],
        additional_kwargs={"tool_calls": [row]},
    )
    found = ChatMessage(role="tool", content="a gate", additional_kwargs={"tool_call_id": "c1"})
    async with served(Scripted("A gate.")) as (llm, server):
        await ask(llm, "achat", [ChatMessage("Look."), called, found])
    (sent,) = server.requests[0].body["messages"][1]["tool_calls"]
    assert sent["extra_content"] == signature


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


async def test_the_first_call_stays_beside_the_blocks_of_a_wrapped_llm() -> None:
    calls = (ScriptedCall("add", '{"a": 1, "b": 2}'), ScriptedCall("add", '{"a": 3, "b": 4}'))
    async with served(Scripted("", tool_calls=calls)) as (llm, _):
        response = await with_context(llm).achat_with_tools([ADD], user_msg="Go.")
    (beside,) = response.message.additional_kwargs["tool_calls"]
    assert beside["function"] == {"name": "add", "arguments": '{"a": 1, "b": 2}'}


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
