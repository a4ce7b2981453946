"""Requests and replies of generateContent beyond the recorded streams: pairs, places, signatures, finish reasons, errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ctxfold import (
    AgentContext,
    BackendError,
    ConfigError,
    GeminiBackend,
    MediaPart,
    Message,
    ReasoningPart,
    Reply,
    Request,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    assistant,
    open_backend,
    system,
    tool_result,
    user,
)
from ctxfold.backends.gemini import GeminiParser
from ctxfold.backends.profile import load_profile
from ctxfold.protocols import Chunk
from ctxfold.stream import Fold
from tests.wire.raw_server import Play, RawServer

MODEL = "gemini-3.1-pro-preview"
ROW = load_profile("gemini").for_wire("gemini")
DUMMY = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
TOOL = ToolSpec("ls", "list a folder", {"type": "object", "properties": {"d": {"type": "string"}}})
ASKED = user("q", id="u")


def signed(signature: str) -> str:
    return json.dumps({"gemini": {"thoughtSignature": signature}})


def call(name: str, signature: str | None = None) -> ToolCallPart:
    return ToolCallPart(name, "ls", '{"d": "/"}', None if signature is None else signed(signature))


def made(*parts: Any, model: str = MODEL, id: str = "a") -> Message:
    return Message(id, "assistant", parts, model=model)


def make(model: str = MODEL, **settings: Any) -> GeminiBackend:
    return GeminiBackend(**{"model": model, "api_key": "k", **settings})


def contents(*messages: Message, model: str = MODEL, refused_before: int = 0) -> list[dict[str, Any]]:
    with make(model) as service:
        return service.to_request_messages(messages, refused_before=refused_before)


def body(*messages: Message, model: str = MODEL, **fields: Any) -> dict[str, Any]:
    with make(model) as service:
        return service.request_body(Request(messages, **fields), stream=True)


def candidate(*parts: Mapping[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, **more}
    return {"candidates": [found if finish is None else {**found, "finishReason": finish}]}


def parsed(*events: Mapping[str, Any]) -> tuple[list[Chunk], GeminiParser]:
    parser = GeminiParser(ROW)
    chunks: list[Chunk] = []
    for event in events:
        chunks += parser.feed(b"data: " + json.dumps(event).encode() + b"\r\n\r\n")
    return chunks + parser.close(), parser


def reply(*events: Mapping[str, Any]) -> Reply:
    chunks, parser = parsed(*events)
    assert parser.error is None
    fold = Fold("a", MODEL)
    for chunk in chunks:
        fold.feed(chunk)
    return fold.close()


def echoed(message: Message) -> list[dict[str, Any]]:
    """The parts of the model's turn in the next request."""
    (turn,) = (content for content in contents(ASKED, message, *results(message)) if content["role"] == "model")
    return list(turn["parts"])


def results(message: Message) -> list[Message]:
    return [tool_result(one.id, "ok", id=f"t{n}") for n, one in enumerate(message.tool_calls)]


# requests


def test_results_stand_in_one_content_in_the_order_of_the_calls() -> None:
    asking = made(call("c1", "S"), call("c2"))
    late = Message("t2", "tool", (ToolResultPart("c2", "two", "ls", True),))
    sent = contents(ASKED, asking, late, tool_result("c1", "one", id="t1"), user("and?", id="u2"))
    assert [content["role"] for content in sent] == ["user", "model", "user", "user"]
    assert [part["functionResponse"] for part in sent[2]["parts"]] == [
        {"id": "c1", "name": "ls", "response": {"output": "one"}},
        {"id": "c2", "name": "ls", "response": {"error": "two"}},
    ]
    assert sent[3]["parts"] == [{"text": "and?"}]


def test_what_a_result_brings_along_follows_all_results() -> None:
    image = MediaPart("image", '{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}')
    shot = Message("t1", "tool", (ToolResultPart("c1", "see"), image))
    sent = contents(ASKED, made(call("c1", "S"), call("c2")), shot, tool_result("c2", "x", id="t2"))
    assert [list(part) for part in sent[2]["parts"]] == [["functionResponse"], ["functionResponse"]]
    assert sent[3] == {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": "AAAA"}}]}


def test_a_call_follows_the_user_and_an_empty_turn_is_left_out() -> None:
    said = assistant("Let me see.", id="a0")
    sent = contents(said, made(call("c1", "S")), tool_result("c1", "x", id="t"), user("", id="e"), user("go", id="u2"))
    assert [content["role"] for content in sent] == ["user", "model", "user", "user"]
    assert [list(part) for part in sent[1]["parts"]] == [["text"], ["functionCall", "thoughtSignature"]]
    assert sent[0]["parts"][0]["text"]
    assert contents(ASKED, Message("a", "assistant", (TextPart(""), ReasoningPart("")))) == [
        {"role": "user", "parts": [{"text": "q"}]}
    ]


def test_system_prompts_have_a_field_of_their_own_and_later_ones_are_the_users() -> None:
    sent = body(system("one", id="s1"), system("two", id="s2"), ASKED, system("late", id="s3"))
    assert sent["systemInstruction"] == {"role": "user", "parts": [{"text": "one"}, {"text": "two"}]}
    assert [content["parts"][0]["text"] for content in sent["contents"]] == ["q", "late"]


def test_signatures_go_back_to_the_model_that_made_them() -> None:
    thought = ReasoningPart("hm", "T")
    sealed = ReasoningPart("", None, '[{"executableCode": {"code": "1"}, "thoughtSignature": "X"}]')
    answer = made(thought, sealed, TextPart("so"), TextPart("", signed("S")), call("c1", "C"), call("c2"))
    assert echoed(answer) == [
        {"text": "hm", "thought": True, "thoughtSignature": "T"},
        {"executableCode": {"code": "1"}, "thoughtSignature": "X"},
        {"text": "so"},
        {"text": "", "thoughtSignature": "S"},
        {"functionCall": {"id": "c1", "name": "ls", "args": {"d": "/"}}, "thoughtSignature": "C"},
        {"functionCall": {"id": "c2", "name": "ls", "args": {"d": "/"}}},
    ]
    other = replace(answer, model="gemini-2.5-flash")
    plain = [
        {"text": "so"},
        {"functionCall": {"id": "c1", "name": "ls", "args": {"d": "/"}}, "thoughtSignature": DUMMY},
        {"functionCall": {"id": "c2", "name": "ls", "args": {"d": "/"}}},
    ]
    assert echoed(other) == plain
    refused = contents(ASKED, answer, *results(answer), answer, *results(answer), refused_before=4)
    assert refused[1]["parts"] == plain
    assert refused[3]["parts"] == echoed(answer)


@pytest.mark.parametrize(
    "foreign",
    [
        ReasoningPart("", None, '[{"type": "redacted_thinking", "data": "x"}]'),
        ReasoningPart("", None, '[{"reasoningContent": {"redactedContent": "x"}}]'),
    ],
)
def test_blocks_of_other_wires_are_dropped(foreign: ReasoningPart) -> None:
    text = TextPart("hello", '{"id": "msg_1", "phase": "final_answer", "citations": []}')
    calls = ToolCallPart("c1", "ls", "no json", '{"id": "fc_1", "extra_content": {}}')
    assert echoed(Message("a", "assistant", (foreign, text, calls))) == [
        {"text": "hello"},
        {
            "functionCall": {"id": "c1", "name": "ls", "args": {"INVALID_JSON": "no json"}},
            "thoughtSignature": DUMMY,
        },
    ]


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}}, ("image/png", "QQ==")),
        ({"type": "file", "file": {"file_data": "data:application/pdf;base64,QQ=="}}, ("application/pdf", "QQ==")),
        ({"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}}, ("audio/wav", "QQ==")),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "QQ=="}}, ("image/gif", "QQ==")),
        ({"type": "image", "base64": "QQ==", "mime_type": "image/webp"}, ("image/webp", "QQ==")),
        ({"inlineData": {"mimeType": "image/png", "data": "QQ=="}}, ("image/png", "QQ==")),
    ],
)  # fmt: skip
def test_media_of_any_wire_are_sent(block: dict[str, Any], part: tuple[str, str]) -> None:
    (sent,) = contents(Message("u", "user", (MediaPart("image", json.dumps(block)),)))
    assert sent["parts"] == [{"inlineData": {"mimeType": part[0], "data": part[1]}}]


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (
            {"type": "image_url", "image_url": "https://a.example/b.png?x=1"},
            {"fileData": {"mimeType": "image/png", "fileUri": "https://a.example/b.png?x=1"}},
        ),
        ({"type": "image", "source": {"type": "url", "url": "gs://b/c"}}, {"fileData": {"fileUri": "gs://b/c"}}),
        ({"fileData": {"fileUri": "files/1"}}, {"fileData": {"fileUri": "files/1"}}),
        ({"type": "hologram"}, {"text": "(image in a form that this service does not read)"}),
    ],
)
def test_media_by_address(block: dict[str, Any], part: dict[str, Any]) -> None:
    assert contents(Message("u", "user", (MediaPart("image", json.dumps(block)),)))[0]["parts"] == [part]


def test_settings_and_extra_are_merged() -> None:
    sent = body(
        ASKED,
        tools=(TOOL,),
        tool_choice="ls",
        max_tokens=99,
        temperature=0.5,
        stop=("END",),
        thinking="high",
        extra={"tools": [{"googleSearch": {}}], "generationConfig": {"topK": 3}},
    )
    assert sent["tools"] == [
        {"functionDeclarations": [{"name": "ls", "description": "list a folder", "parametersJsonSchema": TOOL.parameters}]},
        {"googleSearch": {}},
    ]  # fmt: skip
    assert sent["toolConfig"] == {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["ls"]}}
    assert sent["generationConfig"] == {
        "maxOutputTokens": 99,
        "temperature": 0.5,
        "stopSequences": ["END"],
        "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "HIGH"},
        "topK": 3,
    }
    for choice, mode in (("auto", "AUTO"), ("none", "NONE"), ("required", "ANY")):
        config = body(ASKED, tools=(TOOL,), tool_choice=choice)["toolConfig"]
        assert config == {"functionCallingConfig": {"mode": mode}}
    with pytest.raises(ConfigError, match="extra may not set contents"):
        body(ASKED, extra={"contents": []})


def test_what_is_in_the_cache_is_not_sent() -> None:
    sent = body(
        system("s", id="s"), ASKED, tools=(TOOL,), tool_choice="auto", extra={"cachedContent": "cachedContents/1"}
    )
    assert sent.keys() == {"contents", "generationConfig", "cachedContent"}


@pytest.mark.parametrize(
    ("model", "thinking", "config"),
    [
        ("gemini-3.1-pro-preview", None, {"includeThoughts": True}),
        ("gemini-3.1-pro-preview", "medium", {"includeThoughts": True, "thinkingLevel": "MEDIUM"}),
        ("gemini-3-flash-preview", False, {"includeThoughts": True, "thinkingLevel": "MINIMAL"}),
        ("gemini-2.5-flash", False, {"thinkingBudget": 0}),
        ("gemini-2.5-flash", "low", {"includeThoughts": True, "thinkingBudget": 1024}),
        ("gemini-2.5-pro", False, {"includeThoughts": True, "thinkingBudget": 128}),
        ("gemini-2.5-flash-lite", True, {"includeThoughts": True, "thinkingBudget": -1}),
        ("gemini-2.5-flash-lite", None, None),
        ("gemini-2.0-flash", None, None),
    ],
)
@pytest.mark.parametrize("provider", ["gemini", "vertex"])
def test_thinking_follows_the_model(provider: str, model: str, thinking: Any, config: Any) -> None:
    with make(model, provider=provider, base_url="http://localhost:1") as service:
        sent = service.request_body(Request((ASKED,), thinking=thinking), stream=True)
    assert sent.get("generationConfig", {}).get("thinkingConfig") == config


# replies


def test_every_part_keeps_its_place() -> None:
    parts = (
        {"text": "one"},
        {"functionCall": {"name": "ls", "args": {"d": "a"}}, "thoughtSignature": "C"},
        {"text": "two"},
        {"text": "three", "thoughtSignature": "S"},
        {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "E"},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        {"toolCall": {"id": "s1", "toolType": "GOOGLE_SEARCH_WEB", "args": {}}, "thoughtSignature": "W"},
        {"toolResponse": {"id": "s1", "toolType": "GOOGLE_SEARCH_WEB", "response": {}}},
        {"inlineData": {"mimeType": "image/png", "data": "QQ=="}, "thoughtSignature": "I"},
        {"text": "four"},
        {"functionCall": {"id": "x", "name": "ls"}},
    )
    for split in (1, 3, len(parts)):
        events = [candidate(*parts[at : at + split]) for at in range(0, len(parts), split)]
        answer = reply(*events, candidate({"text": ""}, finish="STOP")).message
        first, second = answer.tool_calls
        assert (first.id, second.id, second.arguments) == ("call_a_0", "x", "{}")
        wanted = [dict(part) for part in parts]
        wanted[1]["functionCall"] = {"id": "call_a_0", "name": "ls", "args": {"d": "a"}}
        wanted[-1]["functionCall"] = {"id": "x", "name": "ls", "args": {}}
        assert echoed(answer) == wanted
        with make() as service:
            assert service.message_from_jsonl(service.message_to_jsonl(answer)) == answer


def test_a_call_between_plain_texts_keeps_its_place() -> None:
    parts = ({"text": "one"}, {"functionCall": {"id": "c", "name": "ls", "args": {}}}, {"text": "two"})
    answer = reply(candidate(*parts, finish="STOP")).message
    assert [list(part) for part in echoed(answer)] == [["text"], ["functionCall", "thoughtSignature"], ["text"]]


def test_an_empty_signature_is_none() -> None:
    empty = {"thoughtSignature": ""}
    found = reply(
        candidate({"text": "hm", "thought": True, **empty}),
        candidate({"text": "a", **empty}),
        candidate({"text": "b"}, {"text": "", **empty}, finish="STOP"),
    )
    assert echoed(found.message) == [{"text": "hm", "thought": True}, {"text": "ab"}]


def test_calls_with_one_id_are_told_apart() -> None:
    twice = {"functionCall": {"id": "x", "name": "ls", "args": {}}}
    assert [one.id for one in reply(candidate(twice, twice, finish="STOP")).message.tool_calls] == ["x", "call_a_1"]


@pytest.mark.parametrize(
    ("raw", "finish"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        *((name, "content_filter") for name in ("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT")),
        *((name, "content_filter") for name in ("SPII", "MODEL_ARMOR", "IMAGE_SAFETY", "IMAGE_OTHER")),
        ("CONTINUATION", "pause"),
        ("TOO_MANY_TOOL_CALLS", "TOO_MANY_TOOL_CALLS"),
    ],
)
def test_finish_reasons(raw: str, finish: str) -> None:
    assert reply(candidate({"text": "x"}, finish=raw)).finish_reason == finish


def test_a_call_that_was_not_declared_is_a_call() -> None:
    called = candidate({"functionCall": {"name": "rm"}}, finish="UNEXPECTED_TOOL_CALL", finishMessage="rm?")
    assert reply(called).finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("raw", "kind", "retryable"),
    [
        ("MALFORMED_FUNCTION_CALL", "server", True),
        ("MALFORMED_RESPONSE", "server", True),
        ("OTHER", "server", True),
        ("MISSING_THOUGHT_SIGNATURE", "reasoning_replay", False),
    ],
)
def test_finish_reasons_that_are_errors(raw: str, kind: str, retryable: bool) -> None:
    chunks, parser = parsed(candidate({"text": "half"}), candidate(finish=raw, finishMessage="print(ls())"))
    error = parser.error
    assert error is not None
    assert (error.kind, error.retryable, error.code) == (kind, retryable, raw)
    assert "print(ls())" in str(error)
    assert [chunk.finish_reason for chunk in chunks] == [None]


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("candidates", [{}, {"candidates": []}, {"candidates": None}])
def test_a_blocked_prompt_is_no_broken_stream(candidates: dict[str, Any], streamed: bool) -> None:
    blocked = {**candidates, "promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}}
    parser = GeminiParser(ROW)
    parser.feed(b"data: " * streamed + json.dumps(blocked).encode() + b"\n\n")
    parser.close()
    assert parser.error is not None
    assert (parser.error.kind, parser.error.retryable, parser.error.code) == ("content_filter", False, "SAFETY")


@pytest.mark.parametrize("streamed", [True, False])
def test_an_empty_answer_is_an_error_to_retry(streamed: bool) -> None:
    empty = candidate({"text": ""}, finish="STOP")
    parser = GeminiParser(ROW)
    parser.feed(b"data: " * streamed + json.dumps(empty).encode() + b"\n\n")
    parser.close()
    assert parser.error is not None
    assert (parser.error.kind, parser.error.retryable) == ("empty_response", True)


def test_the_last_usage_counts_as_a_whole_also_when_it_falls() -> None:
    early = {"promptTokenCount": 9, "candidatesTokenCount": 21, "thoughtsTokenCount": 4, "cachedContentTokenCount": 5}
    late = {"promptTokenCount": 87, "toolUsePromptTokenCount": 60, "totalTokenCount": 147}
    usage = reply(
        {**candidate({"text": "a"}), "usageMetadata": early}, {**candidate(finish="STOP"), "usageMetadata": late}
    ).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.reasoning_tokens) == (87, 0, 0, 0)


def test_a_server_may_say_stop_with_every_event() -> None:
    assert reply(candidate({"text": "a"}, finish="STOP"), candidate({"text": "b"}, finish="STOP")).message.text == "ab"


# errors


def failure(error: Mapping[str, Any], status: int = 400, *, array: bool = False) -> BackendError:
    payload = {"error": {"code": status, **error}}
    plays = Play([json.dumps([payload] if array else payload).encode()], status=status)
    with RawServer(plays) as server, make(base_url=server.base_url, max_retries=0) as service:
        with pytest.raises(BackendError) as caught:
            service.send(Request((ASKED,)))
        return caught.value


@pytest.mark.parametrize("array", [False, True])
def test_errors_also_in_an_array(array: bool) -> None:
    text = "The input token count exceeds the maximum number of tokens allowed (1048576)."
    error = failure({"message": text, "status": "INVALID_ARGUMENT"}, array=array)
    assert (error.kind, error.code, error.limit_tokens) == ("context_overflow", "INVALID_ARGUMENT", 1_048_576)
    assert error.requested_tokens is None


def test_errors_wrapped_as_text() -> None:
    inner = json.dumps(
        {"error": {"message": "The input token count (9) exceeds the maximum number of tokens allowed (5)."}}
    )
    error = failure({"message": inner, "status": "INVALID_ARGUMENT"})
    assert (error.kind, error.limit_tokens, error.requested_tokens) == ("context_overflow", 5, 9)


@pytest.mark.parametrize(
    ("status", "code", "message", "kind"),
    [
        (400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", "auth"),
        (400, "INVALID_ARGUMENT", "Corrupted thought signature.", "reasoning_replay"),
        (400, "INVALID_ARGUMENT", "Thought signature is not valid", "reasoning_replay"),
        (400, "FAILED_PRECONDITION", "User location is not supported for the API use.", "rejected"),
        (403, "PERMISSION_DENIED", "no", "auth"),
        (404, "NOT_FOUND", "models/x is not found", "rejected"),
        (429, "RESOURCE_EXHAUSTED", "Resource exhausted.", "rate_limit"),
        (500, "INTERNAL", "An internal error has occurred.", "server"),
        (503, "UNAVAILABLE", "This model is currently experiencing high demand.", "overloaded"),
        (503, "UNAVAILABLE", "The service is currently unavailable.", "unavailable"),
        (504, "DEADLINE_EXCEEDED", "The request timed out.", "server"),
    ],
)
def test_kinds_of_errors(status: int, code: str, message: str, kind: str) -> None:
    error = failure({"message": message, "status": code}, status)
    assert (error.kind, error.code, error.status) == (kind, code, status)


def test_a_quota_says_when_to_come_back() -> None:
    violation = {"quotaId": "GenerateRequestsPerMinutePerProjectPerModel-FreeTier"}
    details = [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "21.5s"},
    ]
    fields = {"message": "You exceeded your current quota.", "status": "RESOURCE_EXHAUSTED", "details": details}
    minute = failure(fields, 429)
    assert (minute.kind, minute.retryable, minute.retry_after_s) == ("rate_limit", True, 21.5)
    violation["quotaId"] = "GenerateRequestsPerDayPerProjectPerModel-FreeTier"
    assert failure(fields, 429).kind == "quota"


def test_reasoning_that_is_refused_is_left_out_once() -> None:
    """Only what the refused request carried is dropped; a compaction drops nothing."""

    def said(text: str) -> Play:
        whole = candidate({"text": text, "thoughtSignature": f"S-{text}"}, finish="STOP")
        return Play([json.dumps(whole).encode()])

    error = {"error": {"code": 400, "message": "Corrupted thought signature.", "status": "INVALID_ARGUMENT"}}
    refused = Play([json.dumps(error).encode()], status=400)
    with (
        RawServer(said("one"), refused, said("two"), said("three")) as server,
        make(base_url=server.base_url) as backend,
        AgentContext(backend, session_id="s", store="memory://", context_window=20_000) as context,
    ):
        for text in ("first", "second", "third"):
            context.send(text)
        assert [m.text for m in context.messages()] == ["first", "one", "second", "two", "third", "three"]
    _, second, again, third = server.bodies

    def signatures(sent: dict[str, Any]) -> list[str]:
        return [
            part["thoughtSignature"]
            for content in sent["contents"]
            for part in content["parts"]
            if "thoughtSignature" in part
        ]

    assert (signatures(second), signatures(again), signatures(third)) == (["S-one"], [], ["S-two"])


# addresses, keys and counting


def test_the_model_and_the_method_are_in_the_address() -> None:
    answer = Play([json.dumps(candidate({"text": "hi"}, finish="STOP")).encode()], then="keep")
    with RawServer(answer) as server:
        base = f"{server.base_url}/projects/p/locations/l/publishers/google"
        with open_backend("vertex", "gemini-3.1-pro", base_url=base, api_key="token") as service:
            service.send(Request((ASKED,)))
            list(service.open_stream(Request((ASKED,), model="a/b")))
        with make(base_url=server.base_url) as service:
            service.send(Request((ASKED,)))
    assert server.paths[:2] == [
        "/v1/projects/p/locations/l/publishers/google/models/gemini-3.1-pro:generateContent",
        "/v1/projects/p/locations/l/publishers/google/models/a%2Fb:streamGenerateContent?alt=sse",
    ]
    assert server.headers[0]["authorization"] == "Bearer token"
    assert server.headers[2]["x-goog-api-key"] == "k"
    assert not {"stream", "model"} & server.bodies[0].keys()


@pytest.mark.parametrize(("provider", "field"), [("gemini", "generateContentRequest"), ("vertex", None)])
async def test_the_service_counts_tokens(provider: str, field: str | None) -> None:
    with RawServer(Play([b'{"totalTokens": 31}'], then="keep")) as server:
        async with make(provider=provider, base_url=server.base_url) as service:
            messages = (system("s", id="s"), ASKED)
            assert service.estimate_tokens(messages, tools=(TOOL,)) == 31
            assert await service.aestimate_tokens(messages) == 31
        assert server.paths == [f"/v1/models/{MODEL}:countTokens"] * 2
    counted = server.bodies[0] if field is None else server.bodies[0][field]
    assert counted["contents"] == [{"role": "user", "parts": [{"text": "q"}]}]
    assert counted["tools"][0]["functionDeclarations"][0]["name"] == "ls"
    assert counted.get("model") == (None if field is None else f"models/{MODEL}")
    assert "generationConfig" not in counted


def test_one_request_extends_another() -> None:
    first = (system("s", id="s"), ASKED, made(call("c1", "S")), tool_result("c1", "x", id="t"))
    with make() as service:
        before = service.canonical_bytes(Request(first, tools=(TOOL,)))
        after = service.canonical_bytes(Request((*first, made(TextPart("ok"), id="a2")), tools=(TOOL,)))
    assert after.startswith(before)
    assert after != before


# rules that only a broken or a rare reply shows


def test_a_signature_belongs_to_its_own_thought() -> None:
    """A thought before a signed one, and a signed one without a word, stay parts of their own and go back as they came."""
    first, second = {"text": "hm", "thought": True}, {"text": "so", "thought": True, "thoughtSignature": "S"}
    third = {"text": "", "thought": True, "thoughtSignature": "T"}
    message = reply(candidate(first, second, third, {"text": "x"}, finish="STOP")).message
    assert echoed(message) == [first, second, third, {"text": "x"}]


@pytest.mark.parametrize("part", [{"text": None}, {"thought": True}, {"text": 5, "thoughtSignature": "S"}, {}])
def test_a_part_that_holds_nothing_is_not_sent_back(part: dict[str, Any]) -> None:
    message = reply(candidate(part, {"text": "x"}, finish="STOP")).message
    assert echoed(message) == [{"text": "x"}]


@pytest.mark.parametrize(
    ("answer", "kind"), [({"usageMetadata": {"promptTokenCount": 3}}, "empty_response"), ({}, "protocol")]
)
def test_a_whole_reply_without_candidates_is_an_error(answer: dict[str, Any], kind: str) -> None:
    parser = GeminiParser(ROW)
    parser.feed(json.dumps(answer).encode())
    parser.close()
    assert parser.error is not None
    assert parser.error.kind == kind


def test_events_in_an_array_are_one_answer() -> None:
    """A stream without `alt=sse` is one array of events."""
    events = [candidate({"text": "a"}), candidate({"text": "b"}, finish="STOP")]
    parser = GeminiParser(ROW)
    chunks = [*parser.feed(json.dumps(events).encode()), *parser.close()]
    assert parser.error is None
    assert "".join(chunk.content for chunk in chunks) == "ab"


def test_an_error_beside_candidates_is_an_error() -> None:
    _, parser = parsed({**candidate({"text": "a"}), "error": {"code": 503, "message": "gone", "status": "UNAVAILABLE"}})
    assert parser.error is not None
    assert "gone" in str(parser.error)


def test_cached_tokens_are_among_the_input() -> None:
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 2, "cachedContentTokenCount": 5}
    found = reply({**candidate({"text": "a"}, finish="STOP"), "usageMetadata": usage}).usage
    assert found is not None
    assert (found.input_tokens, found.cache_read_tokens) == (9, 5)


def test_without_settings_there_is_no_generation_config() -> None:
    assert "generationConfig" not in body(ASKED, model="gemini-2.0-flash")


def test_a_call_that_never_ended_does_not_take_the_next_one() -> None:
    opened = {"functionCall": {"name": "ls", "willContinue": True}}
    whole = {"functionCall": {"name": "rm", "args": {"d": "/"}}}
    calls = reply(candidate(opened, whole, finish="STOP")).message.tool_calls
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("ls", {}), ("rm", {"d": "/"})]
