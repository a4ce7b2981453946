"""The Messages API: how requests are written, how answers are read, and that reasoning comes back as it came."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from ctxfold import AgentContext, AnthropicBackend
from ctxfold.backends import load_profile
from ctxfold.backends.anthropic_parse import MessagesParser
from ctxfold.errors import BackendError, ConfigError, InvalidToolArgumentsError
from ctxfold.messages import (
    MediaPart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    assistant,
    system,
    tool_result,
    user,
)
from ctxfold.ports import Chunk, Reply, Request
from ctxfold.stream import Fold
from tests.wire.raw_server import Play, RawServer

MODEL = "claude-opus-5-5"
CALLS = (ToolCallPart("toolu_1", "ls", '{"d": "/"}'), ToolCallPart("toolu_2", "ls", '{"d": "/tmp"}'))
THOUGHT = Message(
    "a1",
    "assistant",
    (ReasoningPart("hm", "SIG1"), TextPart("Looking."), *CALLS),
    model=MODEL,
)
ROUND = (
    system("Be brief.", id="s"),
    user("What is there?", id="u1"),
    THOUGHT,
    tool_result("toolu_1", "bin", id="t1"),
    tool_result("toolu_2", "", id="t2", is_error=True),
    user("And now?", id="u2"),
)
TOOL = ToolSpec("ls", "list a folder", {"type": "object", "properties": {"d": {"type": "string"}}})


def make(model: str = MODEL, **settings: Any) -> AnthropicBackend:
    return AnthropicBackend(**{"model": model, "api_key": "k", **settings})


def body(messages: Iterable[Message] = ROUND, *, model: str = MODEL, **fields: Any) -> dict[str, Any]:
    return make(model).request_body(Request(tuple(messages), **fields), stream=True)


def parsed(*events: dict[str, Any] | bytes) -> tuple[list[Chunk], MessagesParser]:
    parser = MessagesParser(load_profile("anthropic"))
    chunks: list[Chunk] = []
    for event in events:
        chunks += parser.feed(event if isinstance(event, bytes) else b"data: " + json.dumps(event).encode() + b"\n\n")
    return chunks + parser.close(), parser


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def end(reason: str, **usage: int) -> list[dict[str, Any]]:
    return [
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage},
        {"type": "message_stop"},
    ]


def folded(chunks: Iterable[Chunk]) -> Reply:
    fold = Fold("a9", MODEL)
    for chunk in chunks:
        fold.feed(chunk)
    return fold.close()


# --- requests


def test_a_conversation_travels_as_system_and_alternating_blocks() -> None:
    sent = body(tools=(TOOL,))
    assert sent["system"] == [{"type": "text", "text": "Be brief."}]
    assert [row["role"] for row in sent["messages"]] == ["user", "assistant", "user"]
    assert sent["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "SIG1"},
        {"type": "text", "text": "Looking."},
        {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {"d": "/"}},
        {"type": "tool_use", "id": "toolu_2", "name": "ls", "input": {"d": "/tmp"}},
    ]
    assert sent["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "bin"},
        {"type": "tool_result", "tool_use_id": "toolu_2", "content": "", "is_error": True},
        {"type": "text", "text": "And now?"},
    ]
    assert sent["tools"] == [{"name": "ls", "description": "list a folder", "input_schema": TOOL.parameters}]
    assert make().to_request_messages(ROUND) == sent["messages"]


def test_late_system_messages_become_the_users_and_blank_text_is_left_out() -> None:
    sent = body([system("a", id="1"), system("b", id="2"), user(" \n", id="3"), user("q", id="4"), system("c", id="5")])
    assert [b["text"] for b in sent["system"]] == ["a", "b"]
    assert sent["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "text", "text": "c"}]}
    ]
    assert make().scratch_role == "user"
    assert "system" not in body([user("q", id="1")])


def test_ids_of_other_providers_are_rewritten_in_call_and_result_alike() -> None:
    call = ToolCallPart("functions.ls:0", "ls", "{}")
    rows = body([user("q", id="u"), assistant("", id="a", calls=[call]), tool_result(call.id, "x", id="t")])["messages"]
    (use,), (result,) = rows[1]["content"], rows[2]["content"]
    assert use["id"] == result["tool_use_id"] != call.id
    assert use["id"].replace("_", "").isalnum()
    other = ToolCallPart("functions.ls.0", "ls", "{}")
    assert make().to_request_messages([assistant("", id="a", calls=[other])])[0]["content"][0]["id"] != use["id"]


def test_media_travel_as_given_and_images_of_chat_completions_are_rewritten() -> None:
    own = {"type": "image", "source": {"type": "file", "file_id": "f1"}}
    inline = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    linked = {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}
    media = [MediaPart("image", json.dumps(m)) for m in (own, inline, linked)]
    sent = body([Message("u", "user", (TextPart("see"), *media))])["messages"][0]["content"]
    assert sent[1:] == [
        own,
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/x.png"}},
    ]
    shown = Message("t", "tool", (ToolResultPart("c1", "seen"), media[0]))
    (result,) = make().to_request_messages([shown])[0]["content"]
    assert result["content"] == [{"type": "text", "text": "seen"}, own]


def test_arguments_that_are_no_object_are_told_before_sending() -> None:
    for arguments in ("{", "[1]"):
        with pytest.raises(InvalidToolArgumentsError, match="ls"):
            body([assistant("", id="a", calls=[ToolCallPart("c", "ls", arguments)])])


def test_max_tokens_are_asked_for_or_the_rows_or_stated() -> None:
    assert body(max_tokens=7)["max_tokens"] == 7
    assert body()["max_tokens"] == 128_000
    assert body(model="claude-haiku-4-5")["max_tokens"] == 64_000
    assert body(model="elsewhere")["max_tokens"] == 8192


@pytest.mark.parametrize(
    ("model", "thinking", "sent"),
    [
        (MODEL, None, {"thinking": {"type": "adaptive", "display": "summarized"}}),
        (MODEL, False, {"output_config": {"effort": "low"}}),
        ("claude-opus-5", False, {"thinking": {"type": "disabled"}}),
        ("claude-opus-4-8", None, {}),
        (
            "claude-opus-4-8",
            "xhigh",
            {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "xhigh"}},
        ),
        ("claude-opus-4-6", True, {"thinking": {"type": "adaptive"}}),
        (
            "claude-sonnet-4-6",
            "max",
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
        ),
        ("claude-sonnet-4-5", "low", {"thinking": {"type": "enabled", "budget_tokens": 4096}}),
        ("claude-sonnet-4-5", None, {}),
    ],
)
def test_thinking_is_switched_as_the_model_wants_it(model: str, thinking: Any, sent: dict[str, Any]) -> None:
    fields = body(model=model, thinking=thinking, temperature=0.5)
    assert {name: fields[name] for name in ("thinking", "output_config") if name in fields} == sent
    takes_temperature = model.startswith(("claude-opus-4-6", "claude-sonnet-4")) and not thinking
    assert ("temperature" in fields) is takes_temperature


def test_a_thinking_budget_stays_below_max_tokens() -> None:
    assert body(model="claude-haiku-4-5", thinking=True, max_tokens=4000)["thinking"]["budget_tokens"] == 2000
    assert body(model="claude-haiku-4-5", thinking=True, max_tokens=1025)["thinking"]["budget_tokens"] == 1024
    with pytest.raises(ConfigError, match="raise max_tokens"):
        body(model="claude-haiku-4-5", thinking=True, max_tokens=1024)


def test_tool_choice_is_forced_only_where_the_model_takes_it() -> None:
    def choice(wanted: str, model: str, **fields: Any) -> Any:
        return body(model=model, tools=(TOOL,), tool_choice=wanted, **fields)["tool_choice"]

    assert choice("auto", MODEL) == {"type": "auto"}
    assert choice("none", MODEL) == {"type": "none"}
    assert choice("required", "claude-opus-5", thinking=False) == {"type": "any"}
    assert choice("ls", "claude-opus-4-8") == {"type": "tool", "name": "ls"}
    with pytest.raises(ConfigError, match="while thinking"):
        choice("ls", "claude-opus-5")
    with pytest.raises(ConfigError, match="cannot force"):
        choice("required", MODEL, thinking=False)


def test_stop_and_extra_fields() -> None:
    sent = body(stop=("END",), extra={"metadata": {"user_id": "u"}})
    assert sent["stop_sequences"] == ["END"]
    assert sent["metadata"] == {"user_id": "u"}
    with pytest.raises(ConfigError, match="system"):
        body(extra={"system": "x"})


def test_reasoning_of_another_model_and_unsigned_reasoning_stay_here() -> None:
    def kinds(message: Message) -> list[str]:
        return [b["type"] for b in make().to_request_messages([message])[0]["content"]]

    assert kinds(THOUGHT)[0] == "thinking"
    assert kinds(replace(THOUGHT, model=None))[0] == "thinking"
    assert kinds(replace(THOUGHT, model="claude-opus-5"))[0] == "text"
    assert kinds(assistant("x", id="a", reasoning="unsigned")) == ["text"]
    foreign = ReasoningPart("x", None, '[{"type": "reasoning.text", "text": "x"}]')
    assert kinds(Message("a", "assistant", (foreign, TextPart("x")))) == ["text"]


def test_reasoning_bound_to_another_prefix_is_dropped_where_the_row_binds_it() -> None:
    later = replace(THOUGHT, id="a2")
    messages = [*ROUND, later, tool_result("toolu_1", "", id="t3"), tool_result("toolu_2", "", id="t4")]

    def thinking(model: str, unbound_before: int) -> list[bool]:
        own = [replace(m, model=model) if m.role == "assistant" else m for m in messages]
        rows = body(own, model=model, unbound_before=unbound_before)["messages"]
        return [row["content"][0]["type"] == "thinking" for row in rows if row["role"] == "assistant"]

    assert thinking(MODEL, 0) == [True, True]
    assert thinking(MODEL, len(ROUND)) == [False, True]
    assert thinking(MODEL, len(messages)) == [False, False]
    assert thinking("claude-opus-4-6", len(messages)) == [True, True]
    assert make().to_request_messages(messages, unbound_before=9)[1]["content"][0]["type"] == "text"


def test_canonical_bytes_grow_as_a_prefix() -> None:
    backend = make()
    for count in range(1, len(ROUND)):
        shorter = backend.canonical_bytes(Request(ROUND[:count], tools=(TOOL,)))
        assert backend.canonical_bytes(Request(ROUND, tools=(TOOL,))).startswith(shorter)


# --- answers


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
        (end("end_turn"), "empty_response"),
        ([b'{"type": "message", "content": [], "stop_reason": "end_turn"}'], "empty_response"),
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
    assert (error.kind, error.limit_tokens, error.requested_tokens) == ("context_overflow", 200_000, 188_240)


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


# --- through the engine


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
            make(base_url=server.base_url), session="s", store="memory://", context_window=50_000, system="Be brief."
        )
        tools = (TOOL,)
        async with context:
            reply = await context.asend([user("What is there?", id="u1")], tools=tools)
            results = [tool_result(call.id, "bin", id=f"t{call.id}") for call in reply.message.tool_calls]
            assert (await context.asend(results, tools=tools)).message.text == "bin"
        sent = server.bodies[1]["messages"]
    assert sent[1]["content"] == [{"type": "thinking", "thinking": "hm", "signature": "SIG"}, sealed, use]
    assert sent[2]["content"] == [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "bin"}]
