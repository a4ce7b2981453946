"""LangChain messages survive the way into the engine and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from ctxfold import (
    MediaPart,
    Message,
    MessageError,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    Usage,
    assistant,
    tool_result,
)
from ctxfold.errors import InvalidToolArgumentsError, UnknownRoleError
from ctxfold.messages import Opaque, content_key, validated
from langchain_ctx.messages import from_langchain, to_langchain

PIXEL = "iVBORw0KGgo="
CALL = {"name": "weather", "args": {"city": "Köln", "days": [1, 2]}, "id": "call_1"}
USAGE = {
    "input_tokens": 10,
    "output_tokens": 7,
    "total_tokens": 17,
    "input_token_details": {"cache_read": 4, "audio": 2},
    "output_token_details": {"reasoning": 3},
}

SAMPLES: list[BaseMessage] = [
    HumanMessage("hello", id="1"),
    HumanMessage("", id="1"),
    HumanMessage("hello", id="1", name="ann", additional_kwargs={"lang": "de"}),
    HumanMessage(["one ", {"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}}], id="1"),
    HumanMessage([], id="1"),
    HumanMessage(
        [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "http://x/y.png"}}], id="1"
    ),
    HumanMessage([{"type": "image", "base64": PIXEL, "mime_type": "image/png"}], id="1"),
    HumanMessage([{"type": "image", "url": "http://x/y.png", "extras": {"detail": "low"}}], id="1"),
    HumanMessage([{"type": "audio", "base64": PIXEL, "mime_type": "audio/wav"}, {"type": "text", "text": "?"}], id="1"),
    HumanMessage([{"type": "file", "file": {"file_id": "f1"}}], id="1"),
    SystemMessage("be brief", id="1"),
    SystemMessage([{"type": "text", "text": "be"}, {"type": "text", "text": " brief"}], id="1"),
    AIMessage("hi", id="1", response_metadata={"model_name": "m", "finish_reason": "stop", "logprobs": None}),
    AIMessage("hi", id="1", additional_kwargs={"reasoning_content": "hmm"}),
    AIMessage("hi", id="1", additional_kwargs={"reasoning_content": ""}),
    AIMessage("", id="1", tool_calls=[CALL], usage_metadata=USAGE, additional_kwargs={"reasoning_content": "go"}),
    AIMessage("", id="1", tool_calls=[CALL, {**CALL, "id": "call_2"}], name="agent"),
    AIMessage([{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "hi"}], id="1"),
    AIMessage([{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "hi"}], id="1"),
    AIMessage(
        [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "hi"}, {**CALL, "type": "tool_call"}],
        id="1",
        tool_calls=[CALL],
        additional_kwargs={"reasoning_content": "hm"},
        response_metadata={"output_version": "v1"},
    ),
    AIMessage([{"type": "tool_use", "id": "t", "name": "n", "input": {"a": 1}}], id="1"),
    AIMessage(
        "x",
        id="1",
        invalid_tool_calls=[{"name": "n", "args": "{bad", "id": "c", "error": "no", "type": "invalid_tool_call"}],
    ),
    AIMessage("hi", id="1", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
    AIMessage("no", id="1", additional_kwargs={"refusal": "I will not"}),
    ToolMessage("22 C", id="1", tool_call_id="call_1", name="weather"),
    ToolMessage("boom", id="1", tool_call_id="call_1", status="error", artifact={"rows": [1, 2]}),
    ToolMessage(
        [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "u"}}], id="1", tool_call_id="c"
    ),
    ToolMessage(
        [
            {"type": "text", "text": "one"},
            {"type": "text", "text": ""},
            {"type": "image_url", "image_url": {"url": "u"}},
            "two",
            {"type": "text", "text": "\nthree", "id": "lc_1"},
        ],
        id="1",
        tool_call_id="c",
    ),
    ChatMessage("hello", role="user", id="1"),
    HumanMessage([{"type": "file", "base64": PIXEL, "mime_type": "application/pdf", "filename": "a.pdf"}], id="1"),
    HumanMessage([{"type": "file", "file_id": "f1"}, {"type": "file", "url": "http://x/a.pdf"}], id="1"),
    HumanMessage(
        [
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
                "cache_control": {},
            },
            {"type": "image", "source": {"type": "url", "url": "http://x/a.png"}},
            {"type": "image", "source": {"type": "file", "file_id": "f1"}},
        ],
        id="1",
    ),
]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda m: f"{m.type}-{str(m.content)[:24]}")
def test_round_trip_is_the_identity(message: BaseMessage) -> None:
    there = validated(from_langchain(message))
    assert to_langchain(there) == message
    assert from_langchain(to_langchain(there)) == there


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXTS, v, max_size=3),
    max_leaves=6,
)
BLOCKS = st.one_of(
    TEXTS,
    TEXTS.map(lambda t: {"type": "text", "text": t}),
    TEXTS.map(lambda t: {"type": "reasoning", "reasoning": t}),
    TEXTS.map(lambda t: {"type": "image", "url": t}),
    st.fixed_dictionaries({"type": st.just("custom"), "value": JSONS}),
)
CONTENTS = TEXTS | st.lists(BLOCKS, max_size=4)
NAMES = st.sampled_from(["reasoning_content", "reasoning_details"]) | TEXTS
KWARGS = st.dictionaries(NAMES.filter(lambda k: k not in {"tool_calls", "ctxfold"}), JSONS, max_size=3)


@settings(deadline=None)
@given(CONTENTS, KWARGS, st.booleans(), st.lists(st.dictionaries(TEXTS, JSONS, max_size=3), max_size=2))
def test_any_content_comes_back(content: Any, kwargs: dict[str, Any], human: bool, args: list[dict[str, Any]]) -> None:
    calls = [{"name": "t", "args": a, "id": f"c{i}"} for i, a in enumerate(args)]
    message: BaseMessage
    if human:
        message = HumanMessage(content, id="m", additional_kwargs=kwargs)
    else:
        message = AIMessage(content, id="m", additional_kwargs=kwargs, tool_calls=calls)
    assert to_langchain(from_langchain(message)) == message


DETAILS = st.lists(st.fixed_dictionaries({"type": st.just("sealed"), "data": TEXTS}), min_size=1, max_size=2)
THOUGHTS = st.builds(
    ReasoningPart,
    TEXTS,
    st.none() | TEXTS,
    st.none() | DETAILS.map(lambda d: json.dumps(d, ensure_ascii=False)),
).filter(lambda p: p.text or p.signature is not None or p.details is not None)


@settings(deadline=None)
@given(st.lists(st.lists(THOUGHTS, max_size=2), max_size=4), st.lists(TEXTS.filter(bool), min_size=4, max_size=4))
def test_thoughts_among_texts_come_back_in_their_places(thoughts: list[list[ReasoningPart]], texts: list[str]) -> None:
    parts: list[Any] = []
    for some, text in zip(thoughts, texts, strict=False):
        if parts and not some:
            continue  # two texts in a row are one text to LangChain
        parts += [*some, TextPart(text)]
    reply = Message("m", "assistant", (*parts, ToolCallPart("c", "t", "{}")))
    assert from_langchain(to_langchain(reply)) == reply


@settings(deadline=None)
@given(TEXTS, TEXTS, st.dictionaries(TEXTS, JSONS, max_size=3), st.sampled_from([None, 2]))
def test_a_reply_of_the_engine_comes_back(text: str, thought: str, args: dict[str, Any], indent: int | None) -> None:
    call = ToolCallPart("c", "t", json.dumps(args, indent=indent), extra='{"signature": "s"}')
    reply = assistant(text, id="m", reasoning=thought, calls=[call])
    assert from_langchain(to_langchain(reply)) == reply


def test_provider_blocks_and_signature_of_a_reply_come_back() -> None:
    part = ReasoningPart("hm", "sig", '[{"type": "reasoning.text", "text": "hm"}]')
    reply = Message(
        "m", "assistant", (part, TextPart("hi")), model="m", usage=Usage(5, 3, 1, 1, 2), finish_reason="stop"
    )
    shown = to_langchain(reply)
    assert shown.additional_kwargs["reasoning_details"] == [{"type": "reasoning.text", "text": "hm"}]
    assert from_langchain(shown) == reply


def test_a_message_without_id_gets_one() -> None:
    assert from_langchain(HumanMessage("x"), new_id=lambda: "n1").id == "n1"
    assert from_langchain(HumanMessage("x")).id != from_langchain(HumanMessage("x")).id


def test_a_chunk_is_stored_as_a_whole_message() -> None:
    chunk = AIMessageChunk(
        "hi",
        id="1",
        tool_call_chunks=[{"name": "t", "args": '{"a":  1}', "id": "c", "index": 0, "type": "tool_call_chunk"}],
    )
    there = from_langchain(chunk)
    assert there.tool_calls[0].arguments == '{"a":  1}'
    back = to_langchain(there)
    assert type(back) is AIMessage
    assert back.tool_calls[0]["args"] == {"a": 1}


def test_the_text_of_arguments_is_kept_where_it_is_known() -> None:
    raw = {"id": "c", "type": "function", "function": {"name": "t", "arguments": '{"a":1.0}'}}
    message = AIMessage("", id="1", additional_kwargs={"tool_calls": [raw]})
    assert from_langchain(message).tool_calls[0].arguments == '{"a":1.0}'
    changed = AIMessage(
        "", id="1", tool_calls=[{"name": "t", "args": {"a": 2}, "id": "c"}], additional_kwargs={"tool_calls": [raw]}
    )
    assert from_langchain(changed).tool_calls[0].arguments == '{"a": 2}'


def test_what_json_cannot_hold_stays_behind() -> None:
    message = AIMessage("hi", id="1", additional_kwargs={"parsed": object(), "x": 1})
    assert to_langchain(from_langchain(message)).additional_kwargs == {"x": 1}
    tool = ToolMessage("ok", id="1", tool_call_id="c", artifact=object())
    assert to_langchain(from_langchain(tool)).artifact is None  # type: ignore[attr-defined]
    unreadable = b"report-\xff.txt".decode(errors="surrogateescape")  # as os.listdir names such a file
    tool = ToolMessage(
        "ok", id="1", tool_call_id="c", artifact={"path": unreadable}, additional_kwargs={"x": unreadable}
    )
    kept: Any = to_langchain(validated(from_langchain(tool)))
    assert (kept.text, kept.artifact, kept.additional_kwargs) == ("ok", None, {})


@pytest.mark.parametrize(
    "message",
    [ChatMessage("x", role="critic"), RemoveMessage(id="1")],
    ids=["chat", "remove"],
)
def test_unknown_roles_are_refused(message: BaseMessage) -> None:
    with pytest.raises(UnknownRoleError, match="use SystemMessage, HumanMessage"):
        from_langchain(message)


def test_arguments_and_blocks_that_are_not_json_are_refused() -> None:
    with pytest.raises(InvalidToolArgumentsError, match="'t'"):
        from_langchain(AIMessage("", tool_calls=[{"name": "t", "args": {"a": object()}, "id": "c"}]))
    with pytest.raises(MessageError, match="JSON cannot"):
        from_langchain(HumanMessage([{"type": "image", "data": object()}]))


def test_a_summary_is_known_by_its_metadata() -> None:
    summary = Message("s", "user", (TextPart("so far"),), kind="summary")
    shown = to_langchain(summary)
    assert isinstance(shown, HumanMessage)
    assert shown.additional_kwargs == {"ctxfold": {"kind": "summary"}}
    assert from_langchain(shown) == summary
    assert isinstance(to_langchain(summary.with_role("system")), SystemMessage)


def test_what_another_framework_wrote_is_a_normal_message() -> None:
    other = Opaque("llamaindex", '{"blocks": [1]}')
    image = MediaPart("image", '{"url": "http://x/y.png"}')
    user = to_langchain(Message("u", "user", (TextPart("see"), image, other)))
    assert user.content == [{"type": "text", "text": "see"}, {"type": "image", "url": "http://x/y.png"}]
    reply = to_langchain(Message("a", "assistant", (ReasoningPart("hm"), TextPart("yes"), other)))
    assert (reply.content, reply.additional_kwargs) == ("yes", {"reasoning_content": "hm"})


def test_texts_of_one_tool_output_are_told_apart() -> None:
    """Tools of MCP servers return a list of texts; the engine, a search and most wires have them as one."""
    output = ToolMessage(
        [{"type": "text", "text": "Berlin: 22 C"}, {"type": "text", "text": "Paris: 24 C"}], id="1", tool_call_id="c"
    )
    assert from_langchain(output).text == "Berlin: 22 C\nParis: 24 C"


def test_a_message_changed_by_the_engine_shows_the_new_text() -> None:
    message = from_langchain(ToolMessage([{"type": "text", "text": "long " * 50}], id="1", tool_call_id="c"))
    opaque = tuple(p for p in message.parts if isinstance(p, Opaque))
    short = tool_result("c", "see reference", id="1")
    shown = to_langchain(Message("1", "tool", (*short.parts, *opaque)))
    assert shown.content == "see reference"


def test_content_is_the_same_whatever_form_it_had() -> None:
    assert content_key(from_langchain(HumanMessage("ab"))) == content_key(
        from_langchain(HumanMessage(["a", {"type": "text", "text": "b"}]))
    )
