"""The Messages API: how answers are read, and that reasoning comes back as it came."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ctxfold import AgentContext, BackendError, Message, Request, TextPart, tool_result, user
from tests.wire.anthropic_wire import ROUND, TOOL, block, end, folded, make, parsed
from tests.wire.raw_server import Play, RawServer


def test_blocks_come_back_unmodified_and_in_order() -> None:
    sealed = {"type": "redacted_thinking", "data": "Zm9v"}
    searched = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"q": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"type": "x", "n": 1}]}
    events = [
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "a"},
            {"type": "thinking_delta", "thinking": "b"},
            {"type": "signature_delta", "signature": "S1"},
        ),
        *block(1, sealed),
        *block(
            2,
            {**searched, "input": {}},
            {"type": "input_json_delta", "partial_json": '{"q": '},
            {"type": "input_json_delta", "partial_json": '"x"}'},
        ),
        *block(3, found),
        *block(4, {"type": "text", "text": "Look"}, {"type": "text_delta", "text": "ing"}),
        *block(5, {"type": "tool_use", "id": "t1", "name": "ls", "input": {}}),
        *block(6, {"type": "thinking", "thinking": ""}, {"type": "signature_delta", "signature": "S2"}),
        *block(7, {"type": "tool_use", "id": "t2", "name": "ls", "input": {"d": "/"}}),
    ]
    chunks, parser = parsed(*events, *end("tool_use", input_tokens=3, output_tokens=4))
    assert parser.error is None
    reply = folded(chunks)
    wanted = [
        {"type": "thinking", "thinking": "ab", "signature": "S1"},
        sealed,
        searched,
        found,
        {"type": "text", "text": "Looking"},
        {"type": "tool_use", "id": "t1", "name": "ls", "input": {}},
        {"type": "thinking", "thinking": "", "signature": "S2"},
        {"type": "tool_use", "id": "t2", "name": "ls", "input": {"d": "/"}},
    ]
    assert make().to_request_messages([reply.message]) == [{"role": "assistant", "content": wanted}]
    whole = {
        "type": "message",
        "model": "m",
        "content": wanted,
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 3},
    }
    again = folded(parsed(json.dumps(whole).encode())[0])
    assert again.message.parts == reply.message.parts
    assert again.finish_reason == reply.finish_reason == "tool_calls"


def test_usage_sums_cache_into_input_and_keeps_what_later_events_leave_out() -> None:
    start = {"input_tokens": 10, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 100, "output_tokens": 1}
    chunks, _ = parsed(
        {"type": "message_start", "message": {"model": "m", "usage": start}},
        *block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "hi"}),
        *end("end_turn", output_tokens=33),
    )
    (usage,) = [c.usage for c in chunks if c.usage is not None]
    assert (usage.input_tokens, usage.output_tokens) == (115, 33)
    assert (usage.cache_read_tokens, usage.cache_write_tokens) == (100, 5)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "pause"),
        ("model_context_window_exceeded", "context_window"),
    ],
)
def test_stop_reasons(reason: str, finish: str) -> None:
    chunks, parser = parsed(*block(0, {"type": "text", "text": "hi"}), *end(reason))
    assert (folded(chunks).finish_reason, parser.error) == (finish, None)


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}], "overloaded"),
        ([{"type": "error", "error": {"type": "authentication_error", "message": "no"}}], "auth"),
        ([{"type": "error"}], "server"),
        ([*block(0, {"type": "text", "text": "hi"})], "stream_truncated"),
        ([{"type": "message_stop"}], "stream_truncated"),
        (end("tool_use"), "empty_response"),
        ([b'{"type": "message", "content": [], "stop_reason": "tool_use"}'], "empty_response"),
        ([b'{"hello": 1}'], "protocol"),
        ([b'{"type": "error", "error": {"type": "rate_limit_error", "message": "x"}}'], "rate_limit"),
        ([b"data: {]\n\n"], "protocol"),
    ],
)
def test_what_ends_badly(events: list[Any], kind: str) -> None:
    _, parser = parsed(*events)
    assert parser.error is not None
    assert parser.error.kind == kind


def test_events_of_unknown_kinds_and_blocks_without_a_start_are_no_harm() -> None:
    chunks, parser = parsed(
        {"type": "ping"},
        {"type": "later_invention", "index": 3},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta"}},
        {"type": "content_block_stop", "index": 0},
        *end("end_turn"),
    )
    assert parser.error is None
    assert folded(chunks).message.text == "hi"


def test_overflow_of_input_and_output_together_is_read() -> None:
    said = {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length",
        },
    }
    play = Play([json.dumps(said).encode()], status=400)
    with RawServer(play) as server, make(base_url=server.base_url) as backend, pytest.raises(BackendError) as caught:
        backend.send(Request(ROUND))
    error = caught.value
    assert (error.kind, error.limit_tokens, error.requested_tokens) == ("context_overflow", 200_000, 209_573)
    assert error.reply_tokens == 21_333


@pytest.mark.parametrize("suffix", ["", "/v1", "/v1/messages", "/"])
def test_an_address_with_or_without_its_version(suffix: str) -> None:
    reply = {"type": "message", "content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn"}
    with RawServer(Play([json.dumps(reply).encode()], then="keep")) as server:
        base = server.base_url.removesuffix("/v1") + suffix
        with make(base_url=base) as backend:
            assert backend.send(Request(ROUND)).message.text == "hi"
    assert server.paths == ["/v1/messages"]
    assert server.headers[0]["anthropic-version"] == "2023-06-01"


def test_sealed_blocks_keep_text_and_survive_broken_input() -> None:
    odd = {"type": "later_block", "text": "a"}
    call = {"type": "server_tool_use", "id": "s", "name": "n", "input": {}}
    chunks, parser = parsed(
        *block(0, odd, {"type": "text_delta", "text": "b"}),
        *block(1, call, {"type": "input_json_delta", "partial_json": '{"q'}),
        *block(2, {"type": "text", "text": "hi"}),
        *end("end_turn"),
    )
    assert parser.error is None
    assert [c.sealed for c in chunks if c.sealed] == [{"type": "later_block", "text": "ab"}, call]
    assert folded(chunks).message.text == "hi"


def streamed(*events: dict[str, Any]) -> Play:
    return Play([b"data: " + json.dumps(event).encode() + b"\n\n" for event in events])


async def test_a_tool_round_through_the_engine_sends_thinking_back_as_it_came() -> None:
    thinking = block(
        0,
        {"type": "thinking", "thinking": ""},
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": "SIG"},
    )
    sealed = {"type": "redacted_thinking", "data": "Zm9v"}
    use = {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {}}
    called = streamed(*thinking, *block(1, sealed), *block(2, use), *end("tool_use"))
    answered = streamed(*block(0, {"type": "text", "text": "bin"}), *end("end_turn"))
    with RawServer(called, answered) as server:
        context = AgentContext(
            make(base_url=server.base_url), session_id="s", store="memory://", context_window=50_000, system="Be brief."
        )
        tools = (TOOL,)
        async with context:
            reply = await context.asend([user("What is there?", id="u1")], tools=tools)
            results = [tool_result(call.id, "bin", id=f"t{call.id}") for call in reply.message.tool_calls]
            assert (await context.asend(results, tools=tools)).message.text == "bin"
        sent = server.bodies[1]["messages"]
    assert sent[1]["content"] == [{"type": "thinking", "thinking": "hm", "signature": "SIG"}, sealed, use]
    marked = {"cache_control": {"type": "ephemeral"}}  # the newest message that the next request repeats
    assert sent[2]["content"] == [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "bin"} | marked]


def test_what_a_block_begins_with_is_kept() -> None:
    """Citations that stand in the first event of a text, and arguments that come both whole and in pieces."""
    cited = {"type": "page_location", "cited_text": "so"}
    events = [
        *block(0, {"type": "text", "text": "So.", "citations": [cited]}),
        *block(
            1,
            {"type": "tool_use", "id": "t1", "name": "ls", "input": {"d": "/"}},
            {"type": "input_json_delta", "partial_json": '{"d": "/"}'},
        ),
    ]
    chunks, parser = parsed(*events, *end("tool_use", input_tokens=3, output_tokens=4))
    assert parser.error is None
    (row,) = make().to_request_messages([folded(chunks).message])
    assert row["content"] == [
        {"type": "text", "text": "So.", "citations": [cited]},
        {"type": "tool_use", "id": "t1", "name": "ls", "input": {"d": "/"}},
    ]


def test_a_block_without_a_type_is_not_sent_back() -> None:
    chunks, _ = parsed(
        *block(0, {"type": None, "text": "x"}), *block(1, {"type": "text", "text": "So."}), *end("end_turn")
    )
    (row,) = make().to_request_messages([folded(chunks).message])
    assert row["content"] == [{"type": "text", "text": "So."}]


def test_several_runs_of_the_model_are_billed_together() -> None:
    """A service that compacted on its own side ran the model more than once; one run is billed by its usage alone."""
    run = {"input_tokens": 10, "output_tokens": 2}
    for runs, billed in (([run, run], (20, 4)), ([run], None)):
        usage = {**run, "iterations": runs}
        chunks, _ = parsed(
            *block(0, {"type": "text", "text": "So."}),
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
            {"type": "message_stop"},
        )
        reply = folded(chunks)
        assert reply.usage is not None
        assert reply.usage.input_tokens == 10
        found = reply.billed and (reply.billed.input_tokens, reply.billed.output_tokens)
        assert found == billed


def test_pieces_of_a_reply_are_put_together() -> None:
    """A signature in pieces, two texts in a row, and the model that took over."""
    events = [
        *block(
            0,
            {"type": "thinking", "thinking": "hm"},
            {"type": "signature_delta", "signature": "S"},
            {"type": "signature_delta", "signature": "1"},
        ),
        *block(1, {"type": "fallback", "to": {"model": "claude-other"}}),
        *block(2, {"type": "text", "text": "So."}),
        *block(3, {"type": "text", "text": "And so."}),
    ]
    message = folded(parsed(*events, *end("end_turn", input_tokens=3, output_tokens=4))[0]).message
    (row,) = make().to_request_messages([Message("a", "assistant", message.parts)])
    assert row["content"][0] == {"type": "thinking", "thinking": "hm", "signature": "S1"}
    assert [part.text for part in message.parts if isinstance(part, TextPart)] == ["So.", "And so."]
    assert message.model == "claude-other"


@pytest.mark.parametrize("late", [{"input_tokens": 0}, {"input_tokens": None, "cache_read_input_tokens": None}, {}])
def test_the_last_event_repeats_only_some_numbers(late: dict[str, Any]) -> None:
    chunks, _ = parsed(
        {"type": "message_start", "message": {"usage": {"input_tokens": 10, "cache_read_input_tokens": 4}}},
        *block(0, {"type": "text", "text": "So."}),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {**late, "output_tokens": 2}},
        {"type": "message_stop"},
    )
    usage = folded(chunks).usage
    assert usage is not None
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == (14, 4, 2)
