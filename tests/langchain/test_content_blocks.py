"""Each kind of content block becomes the part that a model is sent, and comes back as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, FunctionMessage, HumanMessage, ToolMessage

from ctxfold import MediaPart, Message, MessageError, ReasoningPart, TextPart
from langchain_ctx.messages import check_messages, from_langchain, to_langchain, without_thoughts


def read(message: BaseMessage) -> Message:
    """Returns the message for the engine, which comes back to LangChain as it was."""
    converted = from_langchain(message)
    assert to_langchain(converted).content == message.content
    return converted


def wire(block: dict[str, Any]) -> Any:
    """Returns what a service is sent of a user's block."""
    (part,) = (p for p in read(HumanMessage([block], id="u")).parts if isinstance(p, MediaPart))
    return json.loads(part.data)


def test_reasoning_blocks_are_reasoning() -> None:
    """A thinking block has its signature, and Mistral's pieces are one text."""
    signed = read(
        AIMessage([{"type": "thinking", "thinking": "Why.", "signature": "S"}, {"type": "text", "text": "So."}])
    )
    assert [p for p in signed.parts if isinstance(p, ReasoningPart)] == [ReasoningPart("Why.", "S")]
    pieces = [{"type": "text", "text": "Wh"}, {"type": "text", "text": "y."}]
    cut = read(AIMessage([{"type": "thinking", "thinking": pieces}, {"type": "text", "text": "So."}]))
    assert (cut.reasoning, cut.text) == ("Why.", "So.")


def test_a_call_in_the_content_is_a_call_once() -> None:
    """A block shows a call of the message; one that the message lacks stays what it is."""
    call = {"type": "tool_call", "id": "c1", "name": "look", "args": {"at": "it"}}
    asked: Any = [{"name": "look", "args": {"at": "it"}, "id": "c1", "type": "tool_call"}]
    message = read(AIMessage([call], tool_calls=asked))
    assert [c.id for c in message.tool_calls] == ["c1"]
    assert read(AIMessage([{**call, "id": "c2"}])).tool_calls == ()
    other = replace(message, parts=tuple(replace(p, id="c9") if p in message.tool_calls else p for p in message.parts))  # type: ignore[arg-type, type-var]
    assert "c1" not in str(to_langchain(other).content), "a block of a call that is gone is gone"


@pytest.mark.parametrize(
    ("block", "sent"),
    [
        ({"type": "image", "url": "http://a/b"}, {"type": "image_url", "image_url": {"url": "http://a/b"}}),
        (
            {"type": "image", "base64": "AAAA", "mime_type": "image/png"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ),
        (
            {"type": "image", "source": {"type": "url", "url": "http://a/b"}},
            {"type": "image_url", "image_url": {"url": "http://a/b"}},
        ),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ),
        (
            {"type": "audio", "base64": "AAAA", "mime_type": "audio/wav"},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        ),
        (
            {"type": "file", "base64": "AAAA", "mime_type": "application/pdf"},
            {"type": "file", "file": {"filename": "file.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
        ),
        ({"type": "file", "file_id": "f1"}, {"type": "file", "file": {"file_id": "f1"}}),
        ({"type": "map", "at": "here"}, {"type": "map", "at": "here"}),
    ],
    ids=lambda value: str(value.get("type")) if isinstance(value, dict) else None,
)
def test_media_of_a_user_are_sent(block: dict[str, Any], sent: dict[str, Any]) -> None:
    assert wire(block) == sent


def test_without_reasoning_its_blocks_and_signatures_are_gone() -> None:
    """Sealed blocks too, also within a standard block, and Gemini's signature on a text."""
    text = {"type": "text", "text": "So.", "extras": {"signature": "G", "more": 1}}
    blocks = [
        {"type": "thinking", "thinking": "Why.", "signature": "S"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "non_standard", "value": {"type": "redacted_thinking", "data": "y"}},
        text,
    ]
    message = read(AIMessage(blocks, id="a"))
    shown = str(to_langchain(without_thoughts(message)).content)
    assert "So." in shown
    assert not [gone for gone in ("Why.", "redacted", "'G'") if gone in shown]


def test_a_result_with_a_picture_keeps_both() -> None:
    picture = {"type": "image", "url": "http://a/b"}
    blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}, picture]
    result = read(ToolMessage(blocks, tool_call_id="c1", id="r"))
    assert result.text.split() == ["one", "two"]
    shorter = replace(
        result, parts=tuple(p for p in result.parts if isinstance(p, MediaPart) or p in result.tool_results)
    )
    assert "two" in str(to_langchain(shorter).content)


def test_a_thought_that_was_shortened_does_not_break_the_message() -> None:
    message = read(AIMessage([{"type": "thinking", "thinking": "Why so."}, {"type": "text", "text": "So."}], id="a"))
    parts = tuple(ReasoningPart("W") if isinstance(p, ReasoningPart) else p for p in message.parts)
    assert to_langchain(replace(message, parts=parts)).text == "So."
    changed = tuple(TextPart("Other.") if isinstance(p, TextPart) else p for p in message.parts)
    assert to_langchain(replace(message, parts=changed)).text == "Other."


def test_roles_of_older_messages_are_read() -> None:
    for message, role in (
        (ChatMessage("Be brief.", role="developer", id="d"), "system"),
        (FunctionMessage("found", name="look", id="f"), "user"),
    ):
        converted = read(message)
        assert converted.role == role
        assert to_langchain(converted) == message


def test_a_text_is_no_list_of_messages() -> None:
    with pytest.raises(MessageError, match="give HumanMessage"):
        check_messages("hello")  # type: ignore[arg-type]


def test_names_and_marks_of_a_message_are_kept() -> None:
    named = read(HumanMessage("So.", name="Ann", id="u"))
    assert named.name == "Ann"
    assert read(ToolMessage("found", name="look", tool_call_id="c1", id="r")).name is None
    marked = read(AIMessage("So.", id="a", additional_kwargs={"ctxfold": {"preserve_reasoning": True}}))
    assert marked.preserve_reasoning is True


def test_calls_without_an_id() -> None:
    """A call gets one, a malformed one is none, as nothing can answer it; both come back."""
    calls: Any = [{"name": "look", "args": {}, "id": None, "type": "tool_call"}]
    broken: Any = [{"name": "look", "args": "{", "id": None, "error": "cut", "type": "invalid_tool_call"}]
    message = AIMessage("So.", id="a", tool_calls=calls, invalid_tool_calls=broken)
    converted = from_langchain(message)
    (call,) = converted.tool_calls
    assert call.id
    returned = to_langchain(converted)
    assert isinstance(returned, AIMessage)
    assert returned.invalid_tool_calls == broken


def test_what_json_cannot_hold_is_no_detail_of_reasoning() -> None:
    message = AIMessage("So.", id="a", additional_kwargs={"reasoning_details": [{"data": object()}]})
    assert from_langchain(message).text == "So."
