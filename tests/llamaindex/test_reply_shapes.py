"""Replies between the engine's form and LlamaIndex's: what each response says, and what it is read as."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)

from ctxfold import Message, ReasoningPart, Reply, TextPart, ToolCallPart, Usage
from ctxfold.errors import InvalidToolArgumentsError
from ctxfold.messages import REFUSAL, Opaque
from ctxfold.protocols import Chunk, ToolCallDelta
from llamaindex_ctx.replies import CumulativeReply, chat_response, noted, tool_selections, whole_reply


def reply(*parts: Any, **fields: Any) -> Reply:
    return Reply(Message("a", "assistant", parts, model="m"), finish_reason="stop", **fields)


def test_a_response_names_model_usage_refusal_and_finish_reason() -> None:
    usage = Usage(10, 2, 4, 1, 1)
    notes = noted(chat_response(reply(Opaque(REFUSAL, json.dumps("No.")), usage=usage)))
    assert (notes["model"], notes["refusal"], notes["finish_reason"]) == ("m", "No.", "stop")
    assert (notes["prompt_tokens"], notes["completion_tokens"], notes["total_tokens"]) == (10, 2, 12)
    assert (notes["cache_read_tokens"], notes["cache_write_tokens"], notes["reasoning_tokens"]) == (4, 1, 1)


def test_thoughts_of_a_response_are_one_block_before_one_text() -> None:
    response = chat_response(reply(ReasoningPart("Why. "), TextPart("So "), ReasoningPart("And."), TextPart("so.")))
    thought, text = response.message.blocks
    assert isinstance(thought, ThinkingBlock)
    assert isinstance(text, TextBlock)
    assert (thought.content, text.text) == ("Why. And.", "So so.")
    (empty,) = chat_response(reply()).message.blocks
    assert isinstance(empty, TextBlock)
    assert empty.text == ""


def called(arguments: str, **notes: Any) -> ChatResponse:
    block = ToolCallBlock(tool_call_id="c1", tool_name="look", tool_kwargs=arguments)
    message = ChatMessage(role=MessageRole.ASSISTANT, blocks=[block])
    return ChatResponse(message=message, additional_kwargs=notes)


def test_arguments_of_a_response_are_read_as_far_as_they_have_come() -> None:
    half = called('{"at": "i', thinking_delta=None)
    (selection,) = tool_selections(half, malformed_ok=False)
    assert selection.tool_kwargs == {"at": "i"}
    for text in ("{", "[1", "nul"):
        (selection,) = tool_selections(called(text, thinking_delta=None), malformed_ok=False)
        assert selection.tool_kwargs == {}
    (selection,) = tool_selections(called(" "), malformed_ok=False)
    assert selection.tool_kwargs == {}


@pytest.mark.parametrize("text", ['{"at"', "[1]", "5"])
def test_malformed_arguments_are_refused_unless_they_may_be(text: str) -> None:
    with pytest.raises(InvalidToolArgumentsError, match="not a JSON object"):
        tool_selections(called(text), malformed_ok=False)
    (selection,) = tool_selections(called(text), malformed_ok=True)
    assert list(selection.tool_kwargs.values()) == [text]


def test_a_stream_tells_everything_so_far_and_the_rest_at_its_end() -> None:
    so_far = CumulativeReply("a", "m")
    assert so_far.feed(Chunk(usage=Usage(3))) is None
    half, rest = "\ud83d", "\ude00"
    first, second = so_far.feed(Chunk(content="So " + half)), so_far.feed(Chunk(content=rest))
    assert first is not None
    assert second is not None
    assert (first.delta, second.delta, second.message.content) == ("So ", "😀", "So 😀")
    opened = so_far.feed(Chunk(tool_calls=(ToolCallDelta(0, "c1", "look", '{"at"'),)))
    ended = so_far.feed(Chunk(tool_calls=(ToolCallDelta(0, None, None, ": 1}"),)))
    for response, arguments in ((opened, '{"at"'), (ended, '{"at": 1}')):
        assert response is not None
        (call,) = (b for b in response.message.blocks if isinstance(b, ToolCallBlock))
        assert (call.tool_call_id, call.tool_name, call.tool_kwargs) == ("c1", "look", arguments)
    so_far.feed(Chunk(finish_reason="tool_calls", raw={"id": "r"}))
    assert so_far.close().raw == {"id": "r"}


def test_a_response_of_another_llm_is_read_with_its_model_and_as_a_reply() -> None:
    response = ChatResponse(
        message=ChatMessage(role=MessageRole.USER, content="So."),
        raw={
            "model": "m-2026",
            "choices": [{"finish_reason": "length"}],
            "usage": {"prompt_tokens": True, "input_tokens": 5},
        },
    )
    found = whole_reply(response, "m")
    assert (found.message.role, found.message.model, found.finish_reason) == ("assistant", "m-2026", "length")
    assert found.usage is not None
    assert found.usage.input_tokens == 5


def test_a_reply_keeps_one_call_where_its_caller_takes_one() -> None:
    calls = (ToolCallPart("c1", "look", "{}"), ToolCallPart("c2", "look", "{}"))
    for one_call, count in ((True, 1), (False, 2)):
        response = chat_response(reply(*calls), one_call=one_call)
        assert sum(isinstance(block, ToolCallBlock) for block in response.message.blocks) == count
