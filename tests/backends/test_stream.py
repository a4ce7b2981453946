"""Events and whole replies folded from chunks, with every quirk of tool-call deltas."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxfold import (
    BackendError,
    Content,
    ContentFirst,
    Message,
    MessageError,
    ReasoningPart,
    Reply,
    TextPart,
    Thinking,
    ToolCallPart,
    ToolCalls,
    Usage,
)
from ctxfold.backends.base import reply_chunks
from ctxfold.messages import validated
from ctxfold.protocols import Chunk, ToolCallDelta
from ctxfold.stream import Fold
from tests.timing import cpu_s

D = ToolCallDelta


def calls(*deltas: ToolCallDelta, finish: str = "tool_calls") -> list[tuple[str, str, str]]:
    fold = Fold("a1")
    for delta in deltas:
        fold.feed(Chunk(tool_calls=(delta,)))
    fold.feed(Chunk(finish_reason=finish))
    return [(c.id, c.name, c.arguments) for c in fold.close().message.tool_calls]


def kinds(*chunks: Chunk) -> list[str]:
    fold = Fold("a1")
    return [type(event).__name__ for chunk in chunks for event in fold.feed(chunk)]


def test_a_plain_answer_has_no_content_first() -> None:
    assert kinds(Chunk(content="a"), Chunk(content="b")) == ["Content", "Content"]


def test_content_first_comes_again_after_a_second_thinking_phase() -> None:
    chunks = [Chunk(reasoning="r"), Chunk(content="a"), Chunk(content="b"), Chunk(reasoning="r"), Chunk(content="c")]
    assert kinds(*chunks) == ["Thinking", "ContentFirst", "Content", "Thinking", "ContentFirst"]


def test_one_chunk_of_every_kind_gives_tool_calls_first_and_carries_the_chunk() -> None:
    chunk = Chunk(reasoning="r", content="c", tool_calls=(D(0, "i", "f"),), raw={"n": 1})
    events = Fold("a1").feed(chunk)
    assert events == (ToolCalls(chunk.tool_calls, chunk), Thinking("r", chunk), ContentFirst("c", chunk))


def test_empty_chunks_give_no_event() -> None:
    assert kinds(Chunk(), Chunk(usage=Usage(1)), Chunk(finish_reason="stop"), Chunk(refusal="no")) == []
    assert Content("x", Chunk(content="x")) in Fold("a").feed(Chunk(content="x"))


def test_the_reply_has_parts_usage_model_and_the_last_known_finish_reason() -> None:
    fold = Fold("a1")
    for chunk in (
        Chunk(reasoning="th", model="m1"),
        Chunk(reasoning="ink", usage=Usage(1, 1)),
        Chunk(content="an"),
        Chunk(content="swer", finish_reason="stop", raw={"end": True}),
        Chunk(usage=Usage(5, 7)),
        Chunk(),
    ):
        fold.feed(chunk)
    reply = fold.close()
    assert reply.message.parts == (ReasoningPart("think"), TextPart("answer"))
    assert (reply.usage, reply.finish_reason, reply.raw) == (Usage(5, 7), "stop", {"end": True})
    assert (reply.message.model, reply.message.usage, reply.message.finish_reason) == ("m1", Usage(5, 7), "stop")
    assert Fold("x", "asked").close().message.model == "asked"


def test_signatures_end_their_reasoning_block() -> None:
    fold = Fold("a1")
    for chunk in (Chunk(reasoning="a"), Chunk(signature="s1"), Chunk(reasoning="b"), Chunk(signature="s2")):
        fold.feed(chunk)
    assert fold.close().message.parts == (ReasoningPart("a", "s1"), ReasoningPart("b", "s2"))


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        (
            [D(None, "a", "f", '{"x'), D(arguments='":1}'), D(None, "b", "g", "{}")],
            [("a", "f", '{"x":1}'), ("b", "g", "{}")],
        ),
        ([D(0, "a", "f", "{}"), D(0, "b", "f", "{}")], [("a", "f", "{}"), ("b", "f", "{}")]),
        ([D(0, "a", "f", "{"), D(0, "a", "f", "}")], [("a", "f", "{}")]),
        (
            [D(0, "a", "f", "{}"), D(0, "b", "g", '{"y"'), D(1, arguments=":2}")],
            [("a", "f", "{}"), ("b", "g", '{"y":2}')],
        ),
        (
            [D(0, "a", "f"), D(1, "b", "g"), D(0, arguments="{}"), D(1, arguments="{}")],
            [("a", "f", "{}"), ("b", "g", "{}")],
        ),
        ([D(0, None, "f", "{}"), D(0, "a")], [("a", "f", "{}")]),
        ([D(0, "a", None, ""), D(0, None, "f", "{}")], [("a", "f", "{}")]),
        ([D(0, None, "f", "{}"), D(1, None, "f", "{}")], [("call_a1_0", "f", "{}"), ("call_a1_1", "f", "{}")]),
        ([D(None, None, "f", "{}"), D(None, None, "g", "{}")], [("call_a1_0", "f", "{}"), ("call_a1_1", "g", "{}")]),
        ([D(None, None, "f", "{}"), D(None, None, "f", "{}")], [("call_a1_0", "f", "{}"), ("call_a1_1", "f", "{}")]),
        (
            [D(None, None, "f", "{}"), D(None, None, "g"), D(arguments="{}")],
            [("call_a1_0", "f", "{}"), ("call_a1_1", "g", "{}")],
        ),
        ([D(0, None, "f", '{"a":'), D(0, None, "f", '{"b":1}}')], [("call_a1_0", "f", '{"a":{"b":1}}')]),
        ([D(0, "a", "f")], [("a", "f", "{}")]),
        ([D(3, "a", "f", "{}"), D(1, "b", "g", "{}")], [("a", "f", "{}"), ("b", "g", "{}")]),
        (
            [D(None, "a", "f", '{"x":'), D(None, "b", "g", "{}"), D(None, "a", arguments="1}")],
            [("a", "f", '{"x":1}'), ("b", "g", "{}")],
        ),
        ([D(0, "f", "f", '{"a":'), D(0, "f", "f", '{"b":1}}')], [("f", "f", '{"a":{"b":1}}')]),
        (
            [D(None, "f", "f", '{"x":1}'), D(None, "f", "f", '{"x":2}'), D(None, "f", "f", '{"x":1}')],
            [("f", "f", '{"x":1}'), ("call_a1_1", "f", '{"x":2}'), ("call_a1_2", "f", '{"x":1}')],
        ),
        (
            [D(0, "f", "f"), D(0, arguments="{}"), D(1, "f", "f"), D(1, "f", None, '{"x"'), D(1, arguments=":2}")],
            [("f", "f", "{}"), ("call_a1_1", "f", '{"x":2}')],
        ),
        (
            [D(0, "f", "f", "{}"), D(1, "f", "f", '{"x":'), D(0, "f", arguments=""), D(1, "f", arguments="2}")],
            [("f", "f", "{}"), ("call_a1_1", "f", '{"x":2}')],
        ),
    ],
    ids=[
        "no index",
        "same index, different ids",
        "id and name repeated",
        "head on 0, tail on 1",
        "interleaved",
        "id late with the name first",
        "name late",
        "no ids",
        "neither index nor id",
        "neither index nor id, same name",
        "neither index nor id, arguments later",
        "name repeated without id",
        "no arguments",
        "indices out of order",
        "no index, pieces by id",
        "one id, an object inside",
        "one id for whole calls",
        "one id, arguments later",
        "one id, interleaved",
    ],
)
def test_tool_call_quirks(deltas: list[ToolCallDelta], expected: list[tuple[str, str, str]]) -> None:
    assert calls(*deltas) == expected


def test_an_incomplete_call_is_never_kept() -> None:
    cut = (D(0, "a", "f", "{}"), D(1, "b", "g", '{"x": '))
    assert calls(*cut, finish="length") == [("a", "f", "{}")]
    fold = Fold("a1")
    fold.feed(Chunk(content="so far", tool_calls=cut))
    partial = fold.partial()
    assert partial is not None
    assert partial.parts == (TextPart("so far"),)
    assert Fold("a1").partial() is None


def test_a_call_without_a_name_is_a_typed_error() -> None:
    with pytest.raises(BackendError, match="without a name") as caught:
        calls(D(0, "a", None, "{}"))
    assert caught.value.kind == "protocol"


def test_reasoning_details_are_joined_by_type_and_index_and_kept_as_json() -> None:
    def text(index: int, piece: str, **more: Any) -> dict[str, Any]:
        return {"type": "reasoning.text", "text": piece, "index": index, **more}

    sealed = {"type": "reasoning.encrypted", "data": "xyz", "index": 2}
    fold = Fold("a1")
    fold.feed(Chunk(reasoning="ab", reasoning_details=(text(0, "a"), text(1, "b"))))
    fold.feed(Chunk(reasoning="cd", reasoning_details=(text(1, "d"), text(0, "c", signature="s"))))
    fold.feed(Chunk(reasoning_details=(sealed,)))
    (part,) = fold.close().message.parts
    assert isinstance(part, ReasoningPart)
    assert part.details is not None
    assert json.loads(part.details) == [text(0, "ac", signature="s"), text(1, "bd"), sealed]
    only = Fold("a2")
    only.feed(Chunk(reasoning_details=(sealed,)))
    assert only.close().message.reasoning == ""
    assert only.close().message.parts


def test_blocks_of_one_chunk_are_never_joined() -> None:
    block = {"type": "thinking", "thinking": "t", "signature": "s"}
    fold = Fold("a1")
    fold.feed(Chunk(reasoning_details=(block, block)))
    fold.feed(Chunk(reasoning_details=(block,)))
    (part,) = fold.close().message.parts
    assert isinstance(part, ReasoningPart)
    assert json.loads(part.details or "") == [block, block, block]


def test_surrogate_pairs_cut_by_chunks_are_joined_again() -> None:
    fold = Fold("a1")
    fold.feed(Chunk(content="x\ud83d"))
    fold.feed(Chunk(content="\ude00"))
    assert validated(fold.close().message).text == "x😀"


def test_work_per_chunk_does_not_grow() -> None:
    def work(count: int) -> None:
        fold = Fold("a1")
        block = {"type": "reasoning.text", "text": "word ", "index": 0}
        for _ in range(count):
            fold.feed(Chunk(reasoning="word ", reasoning_details=(block,), tool_calls=(D(0, "a", "f", "word "),)))
            fold.feed(Chunk(content="word "))
        fold.feed(Chunk(finish_reason="length"))
        fold.close()

    assert cpu_s(lambda: work(20_000)) < 10 * 20 * cpu_s(lambda: work(1_000), runs=9)


@given(
    st.lists(st.text("abc{}", min_size=1, max_size=5), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_interleaved_calls_keep_their_own_arguments(texts: list[str], rng: Any) -> None:
    """However the pieces of parallel calls are mixed, each call gets its own, in order."""
    queues = [[D(i, f"id{i}", f"f{i}"), *(D(i, arguments=c) for c in text)] for i, text in enumerate(texts)]
    heads = [D(i, f"id{i}", f"f{i}") for i in range(len(texts))]
    tails = [queue[1:] for queue in queues]
    mixed: list[ToolCallDelta] = list(heads)
    while any(tails):
        mixed.append(rng.choice([tail for tail in tails if tail]).pop(0))
    assert calls(*mixed) == [(f"id{i}", f"f{i}", text) for i, text in enumerate(texts)]


def test_a_message_that_came_whole_gives_the_parts_and_nothing_else() -> None:
    parts = (ReasoningPart("t1", "S1"), TextPart("hello"), ReasoningPart("t2", "S2"))
    whole = Message("other", "assistant", parts, model="other", usage=Usage(9), finish_reason="other")
    fold = Fold("a1", "m")
    for chunk in (Chunk(reasoning="t1"), Chunk(content="hello"), Chunk(usage=Usage(1), finish_reason="stop")):
        fold.feed(chunk)
    fold.feed(Chunk(refusal="no", whole=whole))
    message = fold.close().message
    assert message.parts[:3] == parts
    assert message.opaque("refusal") == "no"
    assert (message.id, message.model, message.usage, message.finish_reason) == ("a1", "m", Usage(1), "stop")


@pytest.mark.parametrize(
    "parts",
    [
        (ReasoningPart("th"), TextPart("hel")),
        (TextPart("hello"),),
        (ReasoningPart("\ud800?"), TextPart("hello")),
        (ReasoningPart("th"), TextPart("hello"), ToolCallPart("c", "f", "{}")),
    ],
)
def test_a_whole_message_that_lacks_what_was_streamed_is_not_taken(parts: Any) -> None:
    fold = Fold("a1")
    for chunk in (Chunk(reasoning="th"), Chunk(content="hello"), Chunk(whole=Message("x", "assistant", parts))):
        fold.feed(chunk)
    assert fold.close().message.parts == (ReasoningPart("th"), TextPart("hello"))


def test_a_providers_own_form_ends_the_part_before_it() -> None:
    fold = Fold("a1")
    thought, item = {"type": "reasoning", "id": "rs_1"}, {"id": "msg_1", "phase": "commentary"}
    for chunk in (
        Chunk(reasoning="why"),
        Chunk(reasoning_block=thought),
        Chunk(content="first"),
        Chunk(text_extra=item),
        Chunk(content="second"),
        Chunk(text_extra={"thoughtSignature": "s"}),
        Chunk(text_extra={"thoughtSignature": "t"}),
        Chunk(finish_reason="stop"),
    ):
        fold.feed(chunk)
    message = fold.close().message
    assert message.parts == (
        ReasoningPart("why", None, json.dumps([thought])),
        TextPart("first", json.dumps(item)),
        TextPart("second", json.dumps({"thoughtSignature": "s"})),
        TextPart("", json.dumps({"thoughtSignature": "t"})),
    )
    replayed = Fold("a1")
    for chunk in reply_chunks(Reply(message, finish_reason="stop"), piece_chars=2):
        replayed.feed(chunk)
    assert replayed.close().message.parts == message.parts


def test_a_call_stays_before_a_text_with_fields_of_its_provider() -> None:
    fold = Fold("a1")
    fold.feed(Chunk(content="a", text_extra={"id": "m1"}))
    fold.feed(Chunk(tool_calls=(D(0, "c1", "ls", "{}"),)))
    fold.feed(Chunk(content="b", text_extra={"id": "m2"}))
    fold.feed(Chunk(finish_reason="tool_calls"))
    kinds = [part.type for part in fold.close().message.parts]
    assert kinds == ["text", "tool_call", "text"]


def test_a_part_of_its_own_is_not_joined_and_its_calls_keep_their_place() -> None:
    fold = Fold("a1")
    for chunk in (
        Chunk(content="one"),
        Chunk(tool_calls=(D(0, "c1", "ls", "{}"),), own_part=True),
        Chunk(content="two"),
        Chunk(content=" more"),
        Chunk(text_extra={"sign": "s"}, own_part=True),
        Chunk(tool_calls=(D(1, "c2", "ls", "{}"),), own_part=True),
        Chunk(finish_reason="tool_calls"),
    ):
        fold.feed(chunk)
    message = fold.close().message
    assert message.parts == (
        TextPart("one"),
        ToolCallPart("c1", "ls", "{}"),
        TextPart("two more"),
        TextPart("", '{"sign": "s"}'),
        ToolCallPart("c2", "ls", "{}"),
    )
    replayed = Fold("a1")
    for chunk in reply_chunks(Reply(message, finish_reason="tool_calls"), piece_chars=2):
        replayed.feed(chunk)
    assert replayed.close().message.parts == message.parts


def test_a_call_between_plain_texts_keeps_its_place_only_as_a_part_of_its_own() -> None:
    for own_part, kinds in ((True, ["text", "tool_call", "text"]), (False, ["text", "tool_call"])):
        fold = Fold("a1")
        for chunk in (
            Chunk(content="one"),
            Chunk(tool_calls=(D(0, "c1", "ls", "{}"),), own_part=own_part),
            Chunk(content="two"),
            Chunk(finish_reason="tool_calls"),
        ):
            fold.feed(chunk)
        message = fold.close().message
        assert [part.type for part in message.parts] == kinds
        assert message.text == "onetwo"
        replayed = Fold("a1")
        for chunk in reply_chunks(Reply(message, finish_reason="tool_calls")):
            replayed.feed(chunk)
        assert replayed.close().message.parts == message.parts


def test_the_extra_fields_of_a_text_are_json() -> None:
    with pytest.raises(MessageError, match="the extra fields of a text is not valid JSON"):
        validated(Message("a", "assistant", (TextPart("x", "no json"),)))
