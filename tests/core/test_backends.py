"""Profiles, requests, parsing rules, the SSE decoder, retries, and the scripted and chaos backends: without a network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ctxfold.backends
from ctxfold.backends import (
    ChaosBackend,
    OpenAIChatBackend,
    Retry,
    ScriptedBackend,
    load_profile,
    provider_names,
)
from ctxfold.backends.failures import failure, http_failure
from ctxfold.backends.openai_parse import ChatParser
from ctxfold.backends.profile import common_rules
from ctxfold.backends.retry import retry_after_s
from ctxfold.backends.sse import SseDecoder, SseEvent
from ctxfold.backends.think_tags import TagSplitter
from ctxfold.errors import BackendError, ConfigError, InvalidTextError
from ctxfold.messages import (
    MediaPart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolSpec,
    Usage,
    assistant,
    system,
    tool_result,
    user,
)
from ctxfold.ports import Chunk, Reply, Request
from ctxfold.stream import Fold

CALL = ToolCallPart("c1", "ls", '{"d": "/"}')
ROUND = (
    system("S", id="s"),
    user("one", id="u1"),
    assistant("first", id="a1", reasoning="r1"),
    user("two", id="u2"),
    assistant("", id="a2", reasoning="r2", calls=[CALL]),
    tool_result("c1", "bin", id="t1"),
    assistant("plain", id="a3"),
)
TOOL = ToolSpec("ls", "list a folder", {"type": "object", "properties": {"d": {"type": "string"}}})


def make(provider: Any = "generic", **settings: Any) -> OpenAIChatBackend:
    return OpenAIChatBackend(**{"provider": provider, "model": "m", "api_key": "k", **settings})


def rows(provider: Any, messages: Sequence[Message] = ROUND, **settings: Any) -> list[dict[str, Any]]:
    return make(provider, **settings).to_request_messages(messages)


def body(provider: Any = "generic", *, model: str = "m", stream: bool = True, **fields: Any) -> dict[str, Any]:
    return make(provider, model=model).request_body(Request(ROUND, **fields), stream=stream)


# --- profiles


def test_every_built_in_row_loads_and_has_its_own_name() -> None:
    assert {"deepseek", "openai", "ollama", "llamacpp", "generic", "anthropic"} <= set(provider_names())
    for name in provider_names():
        assert load_profile(name).name == name
    assert "connection" in common_rules().retryable


def test_the_longest_prefix_overrides_whole_fields() -> None:
    assert load_profile("openai", "gpt-5-mini").context_window == 400_000
    assert load_profile("openai", "GPT-5.4-x").context_window == 1_050_000
    assert load_profile("openai", "other").context_window is None
    row = load_profile("zhipu", "glm-5.3-air")
    assert (row.thinking.off, row.thinking.effort["max"]) == (None, {"reasoning_effort": "max"})
    assert row.reasoning_out == load_profile("zhipu").reasoning_out
    assert row.for_model("glm-4.5") is row


def test_rows_of_ones_own(tmp_path: Path) -> None:
    given = {"name": "mine", "base_url": "http://h/v1", "models": {"big": {"context_window": 9}}}
    (tmp_path / "row.json").write_text(json.dumps(given))
    (tmp_path / "row.toml").write_text('name = "mine"\nbase_url = "http://h/v1"\n[models.big]\ncontext_window = 9\n')
    for source in (given, str(tmp_path / "row.json"), tmp_path / "row.toml", load_profile(given)):
        row = load_profile(source, "big-1")
        assert (row.name, row.context_window, row.request.max_tokens_field) == ("mine", 9, "max_tokens")
    assert make(profile=given, model="big-2").context_window == 9


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not valid JSON"),
        ("[]", "no table"),
        ('{"name":"x","pth":"/"}', "pth"),
        ('{"name":"x","errors":[{"kind":"k","message":"("}]}', "regular expression"),
    ],
)
def test_wrong_rows_are_told(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "row.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        load_profile(path)


def test_unknown_names_and_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="deepseek, gemini, generic"):
        load_profile("deepsek")
    with pytest.raises(ConfigError, match="cannot read"):
        load_profile(tmp_path / "none.toml")


def test_the_package_gives_its_names_on_first_use() -> None:
    for name in ctxfold.backends.__all__:
        assert getattr(ctxfold.backends, name).__name__ == name
    with pytest.raises(AttributeError):
        _ = ctxfold.backends.nothing


# --- requests


@pytest.mark.parametrize(
    ("provider", "field", "carried"),
    [
        ("deepseek", "reasoning_content", ["r1", "r2", ""]),
        ("moonshot", "reasoning_content", ["r1", "r2", None]),
        ("dashscope", "reasoning_content", [None, "r2", None]),
        ("vllm", "reasoning", ["r1", "r2", None]),
        ("openai", "reasoning_content", [None, None, None]),
        ("generic", "reasoning_content", [None, None, None]),
    ],
)
def test_reasoning_travels_as_the_row_says(provider: str, field: str, carried: list[str | None]) -> None:
    sent = [row for row in rows(provider) if row["role"] == "assistant"]
    assert [row.get(field) for row in sent] == carried
    assert all((field in row) is (value is not None) for row, value in zip(sent, carried, strict=True))


def test_reasoning_of_tool_rounds_only_and_the_placeholder() -> None:
    out = {"keep": "tool_rounds", "field": "why", "placeholder": " ", "placeholder_on": "tool_calls"}
    row = {"name": "x", "base_url": "http://h", "reasoning_out": out}
    bare = assistant("", id="a4", calls=[CALL])
    assert [r.get("why") for r in rows(row, (*ROUND, bare)) if r["role"] == "assistant"] == [None, "r2", None, " "]


def test_details_travel_as_an_array_and_only_to_their_own_model() -> None:
    blocks = [{"type": "reasoning.text", "text": "r"}]
    part = ReasoningPart("r", None, json.dumps(blocks))
    message = Message("a", "assistant", (part, TextPart("t")), model="m")
    (row,) = rows("openrouter", [message])
    assert row["reasoning_details"] == blocks
    assert "reasoning_details" not in rows("openrouter", [message], model="another")[0]


def test_the_stored_message_is_left_alone() -> None:
    before = repr(ROUND)
    rows("openai")
    assert repr(ROUND) == before


def test_roles_and_content() -> None:
    image = MediaPart("image", '{"type":"image_url","image_url":{"url":"http://x/i.png"}}')
    seen = Message("u3", "user", (TextPart("look"), image), name="ann")
    sent = rows("openai", (*ROUND, seen))
    assert sent[0] == {"role": "developer", "content": "S"}
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"d": "/"}'}}
    assert sent[4] == {"role": "assistant", "content": None, "tool_calls": [call]}
    assert sent[5] == {"role": "tool", "tool_call_id": "c1", "content": "bin"}
    assert sent[7] == {
        "role": "user",
        "content": [{"type": "text", "text": "look"}, json.loads(image.data)],
        "name": "ann",
    }
    assert rows("generic")[4]["content"] == ""


def test_extra_of_a_call_travels_with_it() -> None:
    call = ToolCallPart("c", "f", "{}", extra='{"extra_content": {"sig": 1}}')
    assert rows("generic", [assistant("", id="a", calls=[call])])[0]["tool_calls"][0]["extra_content"] == {"sig": 1}


def test_one_leading_system() -> None:
    messages = (system("A", id="1"), system("B", id="2"), user("u", id="3"), system("C", id="4"))
    assert rows("vllm", messages) == [
        {"role": "system", "content": "A\n\nB"},
        {"role": "user", "content": "u"},
        {"role": "user", "content": "C"},
    ]
    assert [r["role"] for r in rows("generic", messages)] == ["system", "system", "user", "system"]
    assert (make("vllm").scratch_role, make("generic").scratch_role) == ("user", "system")


def test_body_fields() -> None:
    sent = body("openai", max_tokens=5, temperature=0.5, stop=("x",), tools=(TOOL,), extra={"seed": 1})
    assert list(sent)[:3] == ["model", "messages", "tools"]
    assert (sent["max_completion_tokens"], sent["temperature"], sent["stop"], sent["seed"]) == (5, 0.5, ["x"], 1)
    assert sent["tools"][0]["function"]["parameters"] == TOOL.parameters
    assert (sent["stream"], sent["stream_options"]) == (True, {"include_usage": True})
    whole = body("generic", stream=False, model="x", max_tokens=5)
    assert (whole["stream"], whole["max_tokens"], whole["model"]) == (False, 5, "x")
    assert "stream_options" not in whole
    assert body("zhipu", tools=(TOOL,))["tool_stream"] is True
    assert "tool_stream" not in body("zhipu")


def test_thinking_is_switched_by_the_row() -> None:
    assert body("deepseek")["thinking"] == {"type": "enabled"}
    assert body("deepseek", thinking=False)["thinking"] == {"type": "disabled"}
    assert body("deepseek", thinking="medium")["reasoning_effort"] == "high"
    assert "enable_thinking" not in body("dashscope")
    assert body("dashscope", thinking=True)["enable_thinking"] is True
    assert body("dashscope", model="qwen3.8-x", thinking="high")["reasoning_effort"] == "xhigh"
    with_default = OpenAIChatBackend(provider="openai", model="m", api_key="k", thinking="low")
    assert with_default.request_body(Request(ROUND), stream=True)["reasoning_effort"] == "low"
    assert with_default.request_body(Request(ROUND, thinking=False), stream=True)["reasoning_effort"] == "none"
    with pytest.raises(ConfigError, match="levels: low, medium, high, max"):
        body("openai", thinking="huge")
    with pytest.raises(ConfigError, match="cannot switch thinking off"):
        body("moonshot", model="kimi-k3", thinking=False)


def test_sampling_parameters_are_dropped_while_thinking() -> None:
    assert "temperature" not in body("deepseek", temperature=1.0)
    assert "top_p" not in body("deepseek", extra={"top_p": 0.5})
    assert body("deepseek", temperature=1.0, thinking=False)["temperature"] == 1.0


def test_tool_choice() -> None:
    assert body(tools=(TOOL,), tool_choice="auto")["tool_choice"] == "auto"
    assert body(tools=(TOOL,), tool_choice="ls")["tool_choice"] == {"type": "function", "function": {"name": "ls"}}
    assert "tool_choice" not in body(tool_choice="none")
    assert body("deepseek", tools=(TOOL,), tool_choice="required", thinking=False)["tool_choice"] == "required"
    for provider, fields, told in (
        ("deepseek", {"tools": (TOOL,), "tool_choice": "ls"}, "'deepseek' cannot force a tool call while thinking"),
        ("moonshot", {"tools": (TOOL,), "tool_choice": "required"}, "'moonshot' cannot force"),
        ("generic", {"tools": (TOOL,), "tool_choice": "cp"}, "'cp' is no tool"),
        ("generic", {"tool_choice": "required"}, "needs tools"),
        ("generic", {"extra": {"messages": []}}, "messages"),
    ):
        with pytest.raises(ConfigError, match=told):
            body(provider, **fields)


async def test_what_cannot_be_sent_is_told_before_anything_is_sent() -> None:
    backend = make()
    with pytest.raises(InvalidTextError):
        backend.send(Request((user("\ud800", id="u"),)))
    with pytest.raises(ConfigError, match="JSON"):
        await backend.asend(Request(ROUND, extra={"x": object()}))


def test_canonical_bytes_grow_as_a_prefix_and_parse_arguments() -> None:
    backend = make("deepseek")
    lines = backend.canonical_bytes(Request(ROUND, tools=(TOOL,))).splitlines()
    assert json.loads(lines[0])["function"]["name"] == "ls"
    assert json.loads(lines[5])["tool_calls"][0]["function"]["arguments"] == {"d": "/"}
    for end in range(1, len(ROUND)):
        shorter = backend.canonical_bytes(Request(ROUND[:end], tools=(TOOL,)))
        assert shorter.endswith(b"\n")
        assert backend.canonical_bytes(Request(ROUND, tools=(TOOL,))).startswith(shorter)


# --- reading


@given(st.data())
def test_sse_gives_the_same_events_wherever_it_is_cut(data: st.DataObject) -> None:
    newline = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    lines = [
        "data: é1",
        "data:2",
        "",
        ": note",
        "event: e",
        "id: 3",
        "data: {\u2028\u0085}",
        "",
        "",
        "data: end",
        "",
        "",
    ]
    stream = b"\xef\xbb\xbf" + newline.join(line.encode() for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    decoder = SseDecoder()
    events = [event for piece in pieces for event in decoder.feed(piece)]
    events += decoder.close()
    assert events == [SseEvent("", "é1\n2"), SseEvent("e", "{\u2028\u0085}"), SseEvent("", "end")]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_sse_byte_by_byte(newline: bytes) -> None:
    decoder = SseDecoder()
    stream = newline.join([b"data: a", b"data: \xe4\xb8\x96", b"", b"data: b", b"", b""])
    events = [event for i in range(len(stream)) for event in decoder.feed(stream[i : i + 1])]
    assert [event.data for event in events] == ["a\n世", "b"]


def test_sse_limits() -> None:
    with pytest.raises(BackendError, match="over 100 bytes"):
        SseDecoder(100).feed(b"data: " + b"x" * 100)
    decoder = SseDecoder(100)
    with pytest.raises(BackendError, match="over 100 bytes"):
        for _ in range(20):
            decoder.feed(b"data: 12345678\n")
    with pytest.raises(BackendError, match="UTF-8"):
        SseDecoder().feed(b"data: \xff\n\n")
    assert len(SseDecoder(100).feed(b"data: 12345678\n\n" * 50)) == 50


@given(st.integers(1, 7), st.sampled_from([True, False]))
def test_think_tags_however_they_are_cut(size: int, starts_open: bool) -> None:
    text = "<think>a <b> c</think>one <thin two<think>b</think>three</thi"
    text = text.removeprefix("<think>") if starts_open else text
    splitter = TagSplitter("<think>", "</think>", starts_open=starts_open)
    pairs = [splitter.feed(text[i : i + size]) for i in range(0, len(text), size)] + [splitter.close()]
    assert "".join(r for r, _ in pairs) == "a <b> cb"
    assert "".join(c for _, c in pairs) == "one <thin twothree</thi"


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_prefilled_tag_may_be_repeated(size: int) -> None:
    text = "\n<think>x</think>y"
    splitter = TagSplitter("<think>", "</think>", starts_open=True)
    pairs = [splitter.feed(text[i : i + size]) for i in range(0, len(text), size)]
    assert "".join(r for r, _ in pairs).strip() == "x"
    assert "".join(c for _, c in pairs) == "y"


@pytest.mark.parametrize(
    ("provider", "status", "payload", "kind", "limit", "requested"),
    [
        (
            "vllm",
            400,
            {
                "object": "error",
                "message": "This model's maximum context length is 4,096 tokens. However, you requested 5,000 tokens (1 in",
                "code": 400,
            },
            "context_overflow",
            4096,
            5000,
        ),
        (
            "sglang",
            400,
            {
                "object": "error",
                "message": "exceeds the model's maximum context length of 100 tokens. You requested a total of 120 tokens: 1",
                "type": "BadRequestError",
            },
            "context_overflow",
            100,
            120,
        ),
        (
            "sglang",
            400,
            {"message": "The input (130 tokens) is longer than the model's context length (100 tokens)."},
            "context_overflow",
            100,
            130,
        ),
        (
            "dashscope",
            400,
            {"error": {"message": "Range of input length should be [1, 98304]"}},
            "context_overflow",
            98304,
            None,
        ),
        ("zhipu", 400, {"error": {"code": 1261, "message": "?"}}, "context_overflow", None, None),
        (
            "openai",
            429,
            {"error": {"message": "quota", "type": "insufficient_quota", "code": "insufficient_quota"}},
            "quota",
            None,
            None,
        ),
        ("moonshot", 429, {"error": {"message": "x", "type": "engine_overloaded_error"}}, "overloaded", None, None),
        ("moonshot", 429, {"error": {"message": "x", "type": "exceeded_current_quota_error"}}, "quota", None, None),
        ("deepseek", 402, {"error": {"message": "Insufficient Balance"}}, "quota", None, None),
        ("generic", 422, {"detail": [{"msg": "field required"}]}, "rejected", None, None),
        ("generic", 503, {}, "unavailable", None, None),
        ("generic", 599, [], "server", None, None),
        ("ollama", 404, {"error": "model 'x' not found"}, "rejected", None, None),
        (
            "openrouter",
            400,
            {
                "error": {
                    "message": "Provider returned error",
                    "code": 400,
                    "metadata": {"raw": "prompt is too long: 5 tokens > 4 maximum"},
                }
            },
            "context_overflow",
            4,
            5,
        ),
    ],
)
def test_errors_are_told_apart(
    provider: str, status: int, payload: Any, kind: str, limit: int | None, requested: int | None
) -> None:
    error = http_failure(load_profile(provider), status, json.dumps(payload).encode())
    assert (error.kind, error.limit_tokens, error.requested_tokens) == (kind, limit, requested)
    assert error.retryable is (kind in common_rules().retryable)
    assert (error.status, str(status) in str(error), provider in str(error)) == (status, True, True)


def parsed(provider: str, *events: Any, done: bool = True) -> tuple[Fold, ChatParser]:
    parser, fold = ChatParser(load_profile(provider)), Fold("a")
    data = b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events) + b"data: [DONE]" * done
    for chunk in (*parser.feed(data), *parser.close()):
        fold.feed(chunk)
    return fold, parser


def choice(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": finish}]}


def test_less_common_deltas() -> None:
    blocks = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "so"}]
    old = {"name": "f", "arguments": {"x": 1}}
    other = {"choices": [{"index": 1, "delta": {"content": "the second choice"}}], "usage": {}}
    fold, parser = parsed("generic", choice(content=blocks), choice(function_call=old), other, 7, choice("stop"))
    reply = fold.close()
    assert parser.error is None
    assert (reply.message.reasoning, reply.message.text, reply.usage) == ("hm", "so", None)
    assert [(c.name, json.loads(c.arguments)) for c in reply.message.tool_calls] == [("f", {"x": 1})]


def test_reasoning_that_stands_in_details_only() -> None:
    detail = {"type": "reasoning.text", "text": "hm", "index": 0}
    fold, _ = parsed("openrouter", choice(reasoning_details=[detail]), choice("stop", content="x"))
    assert fold.close().message.reasoning == "hm"


@pytest.mark.parametrize(
    ("provider", "events", "done", "kind"),
    [
        ("deepseek", [choice("insufficient_system_resource", content="x")], True, "overloaded"),
        ("zhipu", [choice("network_error", content="x")], True, "server"),
        ("generic", [choice("abort", content="x")], True, "server"),
        ("generic", [choice(content="x")], True, "stream_truncated"),
        ("generic_no_finish_reason", [choice(content="x")], False, "stream_truncated"),
        ("generic", [choice("tool_calls")], True, "empty_response"),
        ("generic", [], True, "stream_truncated"),
    ],
)
def test_bad_ends(provider: str, events: list[Any], done: bool, kind: str) -> None:
    _, parser = parsed(provider, *events, done=done)
    assert parser.error is not None
    assert (parser.error.kind, parser.complete) == (kind, False)


def test_a_named_error_event_and_a_cut_last_event() -> None:
    parser = ChatParser(load_profile("generic"))
    parser.feed(b'event: error\ndata: {"reason": "x"}\n\n')
    assert parser.error is not None
    assert parser.error.kind == "server"
    cut = ChatParser(load_profile("generic"))
    cut.feed(b'data: {"choices": [{"del')
    assert cut.close() == []
    assert cut.error is not None
    assert cut.error.kind == "stream_truncated"


def test_a_reply_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctxfold.backends.answer.MAX_REPLY_BYTES", 100)
    parser = ChatParser(load_profile("generic"))
    parser.feed(b" ")
    parser.feed(b"[" * 101)
    assert parser.error is not None
    assert "100 bytes" in str(parser.error)


def test_in_stream_errors_take_their_status_from_the_code() -> None:
    row = load_profile("generic")
    assert failure(row, {"message": "x", "code": 429}).kind == "rate_limit"
    assert failure(row, {"message": "x"}).kind == "server"
    assert failure(row, {"message": "x", "type": "invalid_request_error"}).kind == "rejected"
    assert failure(row, {"message": "x", "code": 429}).status is None


def test_retry_after() -> None:
    now = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC).timestamp()
    assert retry_after_s({"retry-after-ms": "1500", "retry-after": "2"}, now) == 1.5
    assert retry_after_s({"retry-after": "2.5"}, now) == 2.5
    assert retry_after_s({"retry-after": "Sat, 21 Nov 2026 12:00:30 GMT"}, now) == 30.0
    assert retry_after_s({"retry-after": "Sat, 21 Nov 2026 11:00:00 GMT"}, now) == 0.0
    for odd in ({"retry-after": "soon"}, {}, {"retry-after": "-1"}, {"retry-after": "nan"}):
        assert retry_after_s(odd, now) is None


def test_backoff_grows_within_its_bounds() -> None:
    retry = Retry(9, first_delay_s=1, max_delay_s=5, jitter=lambda: 1.0)
    busy = BackendError("x", kind="server", retryable=True)
    assert [retry.delay_s(n, busy) for n in range(4)] == [1, 2, 4, 5]
    assert Retry(9, first_delay_s=1, jitter=lambda: 0.0).delay_s(0, busy) == 0.5
    assert retry.delay_s(9, busy) is None
    assert retry.delay_s(0, BackendError("x", kind="auth")) is None


# --- scripted and chaos


def test_scripted_plays_in_order_and_keeps_requests() -> None:
    usage = Usage(3, 4)
    backend = ScriptedBackend(
        [
            "one",
            assistant("two", id="a", calls=[CALL]),
            Reply(assistant("three", id="b"), usage, "length"),
            lambda request: request.messages[-1].text.upper(),
            BackendError("no", kind="auth"),
        ],
        context_window=100,
    )
    messages = [user("hi", id="u")]
    got = [backend.send(Request(messages)) for _ in range(4)]
    messages.append(user("later", id="v"))
    assert [r.message.text for r in got] == ["one", "two", "three", "HI"]
    assert [r.finish_reason for r in got] == ["stop", "tool_calls", "length", "stop"]
    assert len({r.message.id for r in got}) == 4
    assert got[2].usage == usage
    with pytest.raises(BackendError, match="no"):
        backend.send(Request(messages))
    with pytest.raises(BackendError, match="5 replies, this is request 6"):
        backend.send(Request(messages))
    assert [len(r.messages) for r in backend.requests] == [1, 1, 1, 1, 2, 2]
    assert (backend.model, backend.context_window, backend.scratch_role) == ("scripted", 100, "system")


async def test_scripted_streams_in_pieces() -> None:
    message = assistant("a long enough answer", id="a", reasoning="a long enough thought", calls=[CALL])
    backend = ScriptedBackend([message, message, BackendError("x", kind="server")])
    chunks = list(backend.open_stream(Request(ROUND)))
    assert len(chunks) > 7
    fold, afold = Fold("a"), Fold("a")
    for chunk in chunks:
        fold.feed(chunk)
    async for chunk in await backend.aopen_stream(Request(ROUND)):
        afold.feed(chunk)
    assert fold.close() == afold.close()
    assert fold.close().message.parts == message.parts
    with pytest.raises(BackendError):
        await backend.aopen_stream(Request(ROUND))
    stream = ScriptedBackend(["0123456789abcdef"]).open_stream(Request(ROUND))
    first = next(iter(stream))
    stream.close()
    assert (first.content, list(stream)) == ("01234567", [])


@pytest.mark.parametrize(
    "parts",
    [
        (
            ReasoningPart("signed", "SIG"),
            ReasoningPart("", None, '[{"type": "redacted_thinking", "data": "x"}]'),
            TextPart("so"),
            ReasoningPart("", "SIG2"),
            CALL,
        ),
        (ReasoningPart("listed", None, '[{"type": "reasoning.text", "text": "listed"}]'), TextPart("so")),
    ],
)
def test_scripted_streams_reasoning_blocks_as_they_are(parts: tuple[Any, ...]) -> None:
    fold = Fold("a", "scripted")
    for chunk in ScriptedBackend([Message("a", "assistant", parts)]).open_stream(Request(ROUND)):
        fold.feed(chunk)
    assert fold.close().message.parts == parts


async def outcomes(backend: ChaosBackend, count: int) -> list[str]:
    seen: list[str] = []
    for number in range(count):
        chunks: list[Chunk] = []
        try:
            if number % 4 == 0:
                seen.append(backend.send(Request(ROUND)).message.text)
            elif number % 4 == 1:
                seen.append((await backend.asend(Request(ROUND))).message.text)
            elif number % 4 == 2:
                chunks += backend.open_stream(Request(ROUND))
                seen.append("".join(c.content for c in chunks))
            else:
                async for chunk in await backend.aopen_stream(Request(ROUND)):
                    chunks.append(chunk)
                seen.append("".join(c.content for c in chunks))
        except BackendError as error:
            seen.append(f"{error.kind} {error.retryable} after {len(chunks)}")
    return seen


async def test_chaos_is_the_same_for_the_same_seed() -> None:
    def chaos(seed: int) -> ChaosBackend:
        inner = ScriptedBackend([lambda _: "a reply of some length"] * 200)
        return ChaosBackend(
            inner, seed=seed, error_rate=0.3, truncate_rate=0.3, kinds=("server", "auth"), delay_s=0.0001
        )

    first, again, other = await outcomes(chaos(1), 80), await outcomes(chaos(1), 80), await outcomes(chaos(2), 80)
    assert first == again != other
    kinds = {line.split(" after")[0] for line in first}
    assert kinds == {"a reply of some length", "server True", "auth False", "stream_truncated True"}
    assert any(line.startswith("stream_truncated") and not line.endswith("after 0") for line in first)


async def test_calm_chaos_changes_nothing_and_bad_rates_are_told() -> None:
    inner = ScriptedBackend(["x", "y", "z", "w"], "mm", 5)
    with_chaos = ChaosBackend(inner)
    assert await outcomes(with_chaos, 4) == ["x", "y", "z", "w"]
    assert (with_chaos.model, with_chaos.context_window, with_chaos.scratch_role) == ("mm", 5, "system")
    stream = ChaosBackend(ScriptedBackend(["x"]), truncate_rate=1).open_stream(Request(ROUND))
    stream.close()
    with_chaos.close()
    await with_chaos.aclose()
    for settings in ({"error_rate": 2}, {"truncate_rate": -1}, {"error_rate": 0.5, "kinds": ()}):
        with pytest.raises(ConfigError):
            ChaosBackend(inner, **settings)
