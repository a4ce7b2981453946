"""Messages, their checks and their stored form."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given

from ctxfold import (
    MediaPart,
    Message,
    MessageError,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
    assistant,
    tool_result,
    user,
)
from ctxfold.errors import InvalidTextError, InvalidToolArgumentsError
from ctxfold.history.records import MessageAdded, decode_body, encode_body, fingerprint
from ctxfold.messages import Opaque, content_key, validated
from tests.support.strategies import messages


@given(messages())
def test_every_message_survives_the_log(message: Message) -> None:
    body = MessageAdded(validated(message))
    text = encode_body(body)
    assert text.isascii()
    assert decode_body(text) == body
    assert fingerprint(decode_body(text)) == fingerprint(body)


def test_content_key_sees_what_a_model_sees() -> None:
    call = ToolCallPart("c", "f", '{"a": 1, "b": 2}')
    respaced = replace(call, arguments='{"b":2,"a":1}')
    one = assistant("hi", id="1", reasoning="hm", calls=[call])
    assert content_key(one) == content_key(assistant("hi", id="2", calls=[respaced]))
    split = Message("3", "assistant", (TextPart("h"), TextPart("i"), Opaque("x", "{}"), call))
    assert content_key(one) == content_key(split)
    assert content_key(user("a", id="1")) != content_key(assistant("a", id="1"))
    assert content_key(tool_result("c1", "x", id="1")) != content_key(tool_result("c2", "x", id="1"))
    picture = Message("p", "user", (MediaPart("image", "{}"),))
    assert content_key(picture) != content_key(user("", id="p"))
    assert content_key(Message("c", "assistant", (replace(call, arguments="{"),)))


@pytest.mark.parametrize(
    "part",
    [
        TextPart("a\ud800"),
        ReasoningPart("a\udfff"),
        ReasoningPart("", signature="\ud800"),
        ReasoningPart("", details="\ud800"),
        MediaPart("image", "\ud800"),
        MediaPart("image", "{}", mime="\ud800"),
        ToolCallPart("\ud800", "f", "{}"),
        ToolCallPart("c", "f\ud800", "{}"),
        ToolCallPart("c", "f", "{}", extra="\ud800"),
        ToolCallPart("c", "f", '{"a":"\ud800"}'),
        Opaque("x", '"\ud800"'),
    ],
)
def test_lone_surrogates_are_refused_wherever_they_stand(part: TextPart) -> None:
    with pytest.raises(InvalidTextError, match="lone surrogate"):
        validated(Message("m", "assistant", (part,)))


@pytest.mark.parametrize("field", ["name", "model", "finish_reason"])
def test_lone_surrogates_beside_the_parts(field: str) -> None:
    with pytest.raises(InvalidTextError):
        validated(replace(user("x", id="m"), **{field: "\ud800"}))  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", ["", "[1]", "{", "nonsense", "[" * 100_000])
def test_a_malformed_call_is_a_call(arguments: str) -> None:
    """Step 7, item A3: what a model wrote is stored as it was received; its result answers it."""
    call = ToolCallPart("c", "f", arguments)
    assert call.parsed() is None
    assert validated(assistant("", id="m", calls=[call])).tool_calls == (call,)
    with pytest.raises(InvalidToolArgumentsError, match=r"'f'.*a dict.*JSON text"):
        validated(assistant("", id="m", calls=[ToolCallPart("c", "f", {"a": 1})]))  # type: ignore[arg-type]


def test_calls_and_results_belong_to_their_roles() -> None:
    with pytest.raises(MessageError, match="tool_call"):
        validated(Message("m", "user", (ToolCallPart("c", "f", "{}"),)))
    with pytest.raises(MessageError, match="tool_result"):
        validated(Message("m", "user", (ToolResultPart("c", "x"),)))
    with pytest.raises(MessageError, match="empty id"):
        validated(user("x", id=""))
    with pytest.raises(MessageError, match="tool_call_id"):
        validated(Message("m", "tool", (TextPart("x"),)))


def test_reading_a_message() -> None:
    message = assistant("seen", id="m", reasoning="hidden", calls=[ToolCallPart("c", "f", "{}")])
    assert (message.text, message.reasoning, len(message.tool_calls)) == ("seen", "hidden", 1)
    assert message.without_reasoning().reasoning == ""
    assert message.with_role("user").role == "user"
    assert tool_result("c", "out", id="t").text == "out"
    noted = replace(message, parts=(*message.parts, Opaque("here", json.dumps({"a": 1}))))
    assert noted.opaque("here") == {"a": 1}
    assert noted.opaque("elsewhere") is None
    assert Usage(1, 2, 3, 4, 5) + Usage(1, 1, 1, 1, 1) == Usage(2, 3, 4, 5, 6)
