"""`CtxLLM`: text, reasoning and usage come back whole, and what is asked for reaches the request."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from llama_index.core.base.llms.types import ChatMessage, MessageRole, ThinkingBlock, ToolCallBlock
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index_instrumentation import get_dispatcher

from ctxfold.testing import RawReply, Scripted
from llamaindex_ctx.metadata import section
from tests.llamaindex.served_llm import COMPLETE_WAYS, HELLO, KEY, WAYS, ask, kinds, served


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
        own: dict[str, Any] = {
            "allow_parallel_tool_calls": True,
            "formatted": True,
            "tool_required": False,
            "verbose": True,
        }
        await ask(llm, "achat", temperature=0.1, stop="END", model="other", extra_body={"min_p": 0.2}, user=None, **own)
    first, second = (r.body for r in server.requests)
    assert (first["temperature"], first["max_tokens"], first["top_p"], first["seed"]) == (0.5, 100, 0.9, 7)
    assert (second["temperature"], second["stop"], second["model"], second["min_p"]) == (0.1, ["END"], "other", 0.2)
    assert not {"user", *own} & second.keys()


async def test_what_a_memory_injected_is_sent_too() -> None:
    async with served(Scripted("ok")) as (llm, server):
        await ask(llm, "achat", [section("Earlier: the key is blue."), *HELLO])
    assert [m["content"] for m in server.requests[0].body["messages"]] == ["Earlier: the key is blue.", "Hello?"]


async def test_what_a_memory_injected_begins_no_round() -> None:
    """A service that wants the reasoning of the round under way gets it, though recalled text follows."""
    call = ToolCallBlock(tool_call_id="c1", tool_name="look", tool_kwargs={})
    asked = [
        ChatMessage(role="user", content="Where is it?"),
        ChatMessage(role="assistant", blocks=[ThinkingBlock(content="I look."), call]),
        ChatMessage(role="tool", content="in the hall", additional_kwargs={"tool_call_id": "c1"}),
        section("Earlier: the hall is blue."),
    ]
    async with served(Scripted("There."), settings={"provider": "dashscope"}) as (llm, server):
        await ask(llm, "achat", asked)
    assert [m.get("reasoning_content") for m in server.requests[0].body["messages"]] == [None, "I look.", None, None]


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
