"""The parts of a reply go through LlamaIndex's messages in their order, with what their provider sent beside them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, TextBlock
from llama_index.core.memory import Memory

from ctxfold import Message, ReasoningPart, Reply, ScriptedBackend, TextPart, ToolCallPart
from ctxfold.backends.base import reply_chunks
from ctxfold.messages import Part
from ctxfold.stream import Fold
from llamaindex_ctx import CtxLLM, CtxMemory, with_context
from llamaindex_ctx.messages import from_chat_message, from_chat_messages, to_chat_message
from llamaindex_ctx.replies import CumulativeReply, chat_response
from tests.support.strategies import replies

WAYS: dict[str, Callable[[ChatResponse], ChatMessage]] = {
    "as it is": lambda r: r.message,
    "model_dump": lambda r: ChatMessage.model_validate(r.message.model_dump()),
    "JSON": lambda r: ChatMessage.model_validate_json(r.message.model_dump_json()),
    "response": lambda r: ChatResponse.model_validate_json(r.model_dump_json()).message,
    "pickle": lambda r: pickle.loads(pickle.dumps(r)).message,
    "copy": lambda r: copy.deepcopy(r.message),
    "engine and back": lambda r: to_chat_message(from_chat_message(r.message, "other")),
}
MIXED = Message(
    "r1",
    "assistant",
    (
        ReasoningPart("plan", None, '[{"type": "reasoning", "id": "rs_1"}]'),
        TextPart("I look. ", '{"id": "msg_1", "phase": "commentary"}'),
        ToolCallPart("c1", "look", '{"a":1}', '{"id": "fc_1", "type": "own"}'),
        ReasoningPart("", None, '[{"type": "web_search_call", "id": "ws_1"}]'),
        ToolCallPart("c2", "look", '{"a": 2}', '{"id": "fc_2"}'),
        TextPart("There", '{"thoughtSignature": "s"}'),
        TextPart("", '{"thoughtSignature": "t"}'),
    ),
    model="m",
)


def told(parts: tuple[Part, ...]) -> list[Part]:
    """The parts but for what no provider is told: the framework's own data, and empty texts."""
    return [p for p in parts if p.type != "opaque" and p != TextPart("")]


def bare(reply: Message) -> bool:
    return all(
        (p.signature, p.details) == (None, None) if isinstance(p, ReasoningPart) else getattr(p, "extra", None) is None
        for p in reply.parts
    )


def canonical(reply: Message) -> list[Part]:
    """Thinking, text and calls: the form in which LlamaIndex is given a reply that nobody bound to an order."""
    text = "".join(p.text for p in reply.parts if isinstance(p, TextPart))
    thought = [ReasoningPart(reply.reasoning)] if any(isinstance(p, ReasoningPart) for p in reply.parts) else []
    return [*thought, *([TextPart(text)] if text else []), *reply.tool_calls]


def expected(reply: Message) -> list[Part]:
    return canonical(reply) if bare(reply) else told(reply.parts)


@settings(deadline=None)
@given(replies(), st.sampled_from(sorted(WAYS)))
def test_a_whole_reply_comes_back_in_its_order(reply: Message, way: str) -> None:
    message = from_chat_message(WAYS[way](chat_response(Reply(reply))), "r1")
    assert told(message.parts) == expected(reply)
    assert message.model == (None if bare(reply) and not reply.reasoning else reply.model)


@settings(deadline=None)
@given(replies(), st.sampled_from(sorted(WAYS)))
def test_a_streamed_reply_comes_back_in_its_order(reply: Message, way: str) -> None:
    answer, fold = CumulativeReply("r1", "m"), Fold("r1", "m")
    for chunk in reply_chunks(Reply(reply, finish_reason="stop"), piece_chars=3):
        answer.feed(chunk)
        fold.feed(chunk)
    message = from_chat_message(WAYS[way](answer.close()), "r1")
    assert told(message.parts) == expected(fold.close().message)


@pytest.mark.parametrize("way", WAYS)
def test_every_kind_of_part_comes_back(way: str) -> None:
    message = WAYS[way](chat_response(Reply(MIXED)))
    assert [b.block_type for b in message.blocks] == ["thinking", "text", "tool_call", "thinking", "tool_call", "text"]
    assert message.content == "I look. \nThere"
    back = from_chat_message(message, "r1")
    assert (tuple(told(back.parts)), back.model) == (MIXED.parts, "m")


def test_what_the_provider_wants_back_is_not_among_the_entries_that_prompts_are_made_of() -> None:
    assert set(dict(chat_response(Reply(MIXED)).message.additional_kwargs)) == {"reasoning_content", "tool_calls"}


async def test_stock_memory_and_ours_give_back_what_they_were_given() -> None:
    results = [ChatMessage(role="tool", content="x", additional_kwargs={"tool_call_id": c}) for c in ("c1", "c2")]
    said = [ChatMessage("Look."), chat_response(Reply(MIXED)).message, *results, ChatMessage("Thanks.")]
    memories: Any = (Memory, CtxMemory)
    for memory in (made.from_defaults(token_limit=4_000) for made in memories):
        await memory.aput_messages(said)
        back = from_chat_messages(await memory.aget_all())
        assert tuple(told(back[1].parts)) == MIXED.parts
        assert back[1].model == "m"


def test_an_edited_text_loses_what_belonged_to_the_old_words() -> None:
    message = chat_response(Reply(MIXED)).message
    message.blocks[1] = TextBlock(text="I do.")
    parts = told(from_chat_message(message, "r1").parts)
    assert [p for p in parts if isinstance(p, TextPart)] == [TextPart("I do."), TextPart("There")]
    assert [p for p in parts if not isinstance(p, TextPart)] == [p for p in MIXED.parts if not isinstance(p, TextPart)]


def test_the_first_of_two_calls_keeps_what_was_beside_it() -> None:
    first = chat_response(Reply(MIXED), one_call=True).message
    kept = [p for p in MIXED.parts if not (isinstance(p, ToolCallPart) and p.id == "c2")]
    assert told(from_chat_message(first, "r1").parts) == kept


def test_an_order_that_nobody_bound_is_llamaindexs_own() -> None:
    plain = replace(MIXED, parts=(TextPart("a"), ReasoningPart("b"), TextPart("c"), ReasoningPart("d")))
    assert told(from_chat_message(chat_response(Reply(plain)).message, "r1").parts) == [
        ReasoningPart("bd"),
        TextPart("ac"),
    ]


def test_other_notes_are_not_followed() -> None:
    notes: list[Any] = [3, [], {"parts": 3}, {"calls": [1]}, {"model": 3}, {"parts": [{"text": "x"}]}]
    for note in notes:
        message = ChatMessage(role="assistant", content="a", additional_kwargs={"ctxfold_reply": note})
        back = from_chat_message(message, "r1")
        assert (told(back.parts), back.model) == ([TextPart("a")], None)


def test_a_wrapped_llm_of_ours_is_sent_what_its_provider_wants_back() -> None:
    backend = ScriptedBackend([MIXED, "ok"])
    results = [ChatMessage(role="tool", content="x", additional_kwargs={"tool_call_id": c}) for c in ("c1", "c2")]
    with with_context(CtxLLM(model="m", backend=backend), context_window=8_000) as llm:
        said = [ChatMessage("Look."), llm.chat([ChatMessage("Look.")]).message, *results, ChatMessage("Thanks.")]
        llm.chat(said)
    assert tuple(told(backend.requests[1].messages[1].parts)) == MIXED.parts
