"""The parts of a reply go through LangChain's messages in their order, with what their provider sent beside them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    ToolMessage,
    message_chunk_to_message,
    messages_from_dict,
    messages_to_dict,
)
from langchain_core.messages.ai import add_ai_message_chunks

from ctxfold import Message, ReasoningPart, Reply, ScriptedBackend, TextPart, ToolCallPart
from ctxfold.backends.base import reply_chunks
from ctxfold.stream import Fold
from langchain_ctx import ChatCtx, with_context
from langchain_ctx.chat_calls import ChunkWriter
from langchain_ctx.messages import from_langchain, to_langchain
from tests.support.strategies import replies

WAYS: dict[str, Callable[[BaseMessage], BaseMessage]] = {
    "as it is": lambda m: m,
    "model_dump": lambda m: type(m).model_validate(m.model_dump()),
    "JSON": lambda m: type(m).model_validate_json(m.model_dump_json()),
    "dicts": lambda m: messages_from_dict(json.loads(json.dumps(messages_to_dict([m]))))[0],
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "copy": lambda m: m.model_copy(deep=True),
}
S = '{"thoughtSignature": "s"}'
MIXED = Message(
    "r1",
    "assistant",
    (
        ReasoningPart("plan", None, '[{"type": "reasoning", "id": "rs_1"}]'),
        TextPart("I look. ", '{"id": "msg_1", "phase": "commentary"}'),
        ToolCallPart("c1", "look", '{"a":1}', '{"id": "fc_1"}'),
        ReasoningPart("", None, '[{"type": "web_search_call", "id": "ws_1"}]'),
        ToolCallPart("c2", "look", '{"a": 2}', '{"id": "fc_2"}'),
        TextPart("There", S),
        TextPart("", S),
    ),
    model="m",
)


def streamed(reply: Message, *, blocks: bool) -> tuple[Message, AIMessageChunk]:
    """The message that a stream of the reply folds to, and the sum of the chunks that a caller gets."""
    fold, writer = Fold("r1"), ChunkWriter("r1", "p", blocks=blocks)
    chunks: list[Any] = []
    for chunk in reply_chunks(Reply(reply, finish_reason="stop"), piece_chars=3):
        chunks += [writer.event(event).message for event in fold.feed(chunk)]
    whole = fold.close().message
    chunks.append(writer.last(whole).message)
    return whole, add_ai_message_chunks(*chunks)


@settings(deadline=None)
@given(replies(), st.sampled_from(sorted(WAYS)))
def test_a_reply_comes_back_in_its_order(reply: Message, way: str) -> None:
    back = from_langchain(WAYS[way](to_langchain(reply)))
    assert replace(back, parts=tuple(p for p in back.parts if p.type != "opaque")) == reply


@settings(deadline=None)
@given(replies(), st.booleans(), st.booleans(), st.sampled_from(sorted(WAYS)))
def test_a_streamed_reply_comes_back_in_its_order(reply: Message, blocks: bool, merged: bool, way: str) -> None:
    malformed = {call.id for call in reply.tool_calls if call.parsed() is None}
    reply = replace(
        reply, parts=tuple(p for p in reply.parts if not (isinstance(p, ToolCallPart) and p.id in malformed))
    )
    whole, chunk = streamed(reply, blocks=blocks)
    back = from_langchain(WAYS[way](message_chunk_to_message(chunk) if merged else chunk))
    assert [p for p in back.parts if p.type != "opaque"] == list(whole.parts)


@pytest.mark.parametrize("way", WAYS)
def test_every_kind_of_part_comes_back(way: str) -> None:
    shown = to_langchain(MIXED)
    assert (shown.content, shown.additional_kwargs["reasoning_content"]) == ("I look. There", "plan")
    assert from_langchain(WAYS[way](shown)) == MIXED


def test_a_reply_in_the_usual_order_has_no_note_on_it() -> None:
    usual = Message("r1", "assistant", (ReasoningPart("hm", "s"), TextPart("a"), ToolCallPart("c", "t", "{}")))
    assert to_langchain(usual).additional_kwargs == {"reasoning_content": "hm", "ctxfold": {"signature": "s"}}
    plain = Message("r1", "assistant", (ReasoningPart("hm"), TextPart("a"), ToolCallPart("c", "t", "{}")))
    assert to_langchain(plain).additional_kwargs == {"reasoning_content": "hm"}


def edited(**fields: Any) -> tuple[Any, ...]:
    parts = from_langchain(to_langchain(MIXED).model_copy(update=fields)).parts
    return tuple(p for p in parts if p.type != "opaque")


def test_an_edited_text_loses_what_belonged_to_the_old_words_and_nothing_else_does() -> None:
    plan, _, first, search, second, *_ = MIXED.parts
    for text in ("I shall.", "A text that is longer."):
        assert edited(content=text) == (plan, TextPart(text), first, search, second)
    same_length = edited(content="I look. Those")
    assert same_length == (*MIXED.parts[:5], TextPart("Those"), MIXED.parts[6])


def test_calls_that_are_taken_away_or_added_leave_the_others_in_place() -> None:
    plan, said, _, search, second, *rest = MIXED.parts
    shown = to_langchain(MIXED)
    assert isinstance(shown, AIMessage)
    new: Any = {"name": "look", "args": {}, "id": "c3", "type": "tool_call"}
    assert edited(tool_calls=[shown.tool_calls[1], new]) == (
        plan,
        said,
        search,
        second,
        *rest,
        ToolCallPart("c3", "look", "{}"),
    )


def test_reasoning_that_is_taken_away_leaves_the_rest_in_place() -> None:
    kwargs = {"ctxfold": to_langchain(MIXED).additional_kwargs["ctxfold"]}
    assert edited(additional_kwargs=kwargs) == tuple(p for p in MIXED.parts if not isinstance(p, ReasoningPart))


@pytest.mark.parametrize(
    "note", [None, 3, [], [3], [{}], [{"text": -1}], [{"text": "x"}], [{"call": 3}], [{"thought": 9}]]
)
def test_a_note_that_was_tampered_with_is_not_followed(note: Any) -> None:
    plain = Message("r1", "assistant", (ReasoningPart("hm"), TextPart("a"), ToolCallPart("c", "t", "{}")))
    shown = to_langchain(plain)
    shown.additional_kwargs["ctxfold"] = {"parts": note}
    assert from_langchain(shown).parts == plain.parts


def test_a_streamed_turn_of_a_wrapped_model_goes_back_as_it_came() -> None:
    parts = (
        ReasoningPart("plan", None, '[{"type": "reasoning", "id": "rs_1"}]'),
        TextPart("I look.", '{"id": "msg_1"}'),
        ToolCallPart("c1", "look", '{"a":1}', '{"id": "fc_1"}'),
    )
    backend = ScriptedBackend([Message("m1", "assistant", parts), "ok"])
    with with_context(ChatCtx(model="m", backend=backend), session_id="s", context_window=8_000) as chat:
        list(chat.stream([HumanMessage("Look.")]))
        list(chat.stream([ToolMessage("x", tool_call_id="c1")]))
    sent = backend.requests[1].messages[1]
    assert tuple(p for p in sent.parts if p.type != "opaque") == parts
