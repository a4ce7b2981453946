"""The Converse wire: what a request says, how a reply is read, how requests are addressed, authorised and refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from ctxfold import (
    AgentContext,
    BackendError,
    BedrockBackend,
    ConfigError,
    MediaPart,
    Message,
    ReasoningPart,
    Reply,
    Request,
    TextPart,
    ToolCallPart,
    ToolSpec,
    assistant,
    open_backend,
    system,
    tool_result,
    user,
)
from ctxfold.backends.profile import load_profile
from ctxfold.backends.transport import Retry
from ctxfold.testing.served_converse import event_frame
from tests.wire.raw_server import Play, RawServer

KEY = "bedrock-key-77aa"
CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
LS = ToolSpec("ls", "list a folder", {"type": "object", "properties": {"d": {"type": "string"}}})
CALLS = (ToolCallPart("t1", "ls", '{"d": "/"}'), ToolCallPart("t2", "ls", '{"d": "/tmp"}'))
THOUGHT = Message("a1", "assistant", (ReasoningPart("hm", "SIG"), TextPart("Looking."), *CALLS), model=CLAUDE)
ROUND = (
    system("Be brief.", id="s"),
    user("What is there?", id="u1"),
    THOUGHT,
    tool_result("t1", "bin", id="r1", name="ls"),
    tool_result("t2", " ", id="r2", name="ls", is_error=True),
    user("And now?", id="u2"),
)
SAID = json.dumps(
    {
        "output": {"message": {"role": "assistant", "content": [{"text": "Two."}]}},
        "stopReason": "end_turn",
        "usage": {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5},
    }
).encode()


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_BEARER_TOKEN_BEDROCK", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def make(model: str = CLAUDE, **settings: Any) -> BedrockBackend:
    return BedrockBackend(**{"model": model, "region": "us-east-1", "api_key": KEY, **settings})


def body(*messages: Message, model: str = CLAUDE, **fields: Any) -> dict[str, Any]:
    return make(model).request_body(Request(messages or ROUND, **fields), stream=True)


def whole(*content: dict[str, Any], stop: str = "end_turn", **usage: int) -> Reply:
    payload = {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": stop, "usage": usage}
    with RawServer(Play([json.dumps(payload).encode()])) as server, make(base_url=server.base_url) as backend:
        return backend.send(Request((user("hi", id="u"),)))


def event(kind: str, **payload: Any) -> bytes:
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return event_frame(headers, json.dumps(payload).encode())


def exception(name: str, message: str) -> bytes:
    return event_frame(
        {":exception-type": name, ":message-type": "exception"}, json.dumps({"message": message}).encode()
    )


def streamed(*frames: bytes) -> Reply:
    with RawServer(Play(frames)) as server, make(base_url=server.base_url, max_retries=0) as backend:
        (reply,) = [backend.send(Request((user("hi", id="u"),)))]
        return reply


# requests


def test_a_conversation_in_blocks() -> None:
    sent = body(tools=(LS,), tool_choice="auto", max_tokens=100, temperature=0.5, stop=("END",))
    assert sent == {
        "system": [{"text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [{"text": "What is there?"}]},
            {
                "role": "assistant",
                "content": [
                    {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "SIG"}}},
                    {"text": "Looking."},
                    {"toolUse": {"toolUseId": "t1", "name": "ls", "input": {"d": "/"}}},
                    {"toolUse": {"toolUseId": "t2", "name": "ls", "input": {"d": "/tmp"}}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"toolResult": {"toolUseId": "t1", "content": [{"text": "bin"}]}},
                    {"toolResult": {"toolUseId": "t2", "content": [{"text": "(no content)"}], "status": "error"}},
                    {"text": "And now?"},
                ],
            },
        ],
        "toolConfig": {
            "tools": [
                {"toolSpec": {"name": "ls", "description": "list a folder", "inputSchema": {"json": LS.parameters}}}
            ],
            "toolChoice": {"auto": {}},
        },
        "inferenceConfig": {"maxTokens": 100, "temperature": 0.5, "stopSequences": ["END"]},
    }


@pytest.mark.parametrize(
    ("choice", "sent"), [("auto", {"auto": {}}), ("required", {"any": {}}), ("ls", {"tool": {"name": "ls"}})]
)
def test_tool_choices(choice: str, sent: dict[str, Any]) -> None:
    assert body(tools=(LS,), tool_choice=choice)["toolConfig"]["toolChoice"] == sent


@pytest.mark.parametrize("fields", [{}, {"tools": (LS,), "tool_choice": "none"}])
def test_calls_become_text_where_none_may_be_made(fields: dict[str, Any]) -> None:
    """Converse refuses calls in a request without tools, and has no choice that forbids them."""
    sent = body(**fields)
    assert "toolConfig" not in sent
    assert [list(block) for row in sent["messages"] for block in row["content"]] == [["text"]] * 7
    told = [block["text"] for block in sent["messages"][1]["content"]]
    assert told == ["Looking.", '[Called ls with {"d": "/"}]', '[Called ls with {"d": "/tmp"}]']
    assert sent["messages"][2]["content"][0]["text"] == "[Result of ls]\nbin"


def test_reasoning_goes_back_to_the_model_that_signed_it_only() -> None:
    redacted = ReasoningPart("", None, '[{"reasoningContent": {"redactedContent": "eA=="}}]')
    unsigned, foreign = ReasoningPart("no signature"), ReasoningPart("", None, '[{"type": "reasoning", "id": "rs_1"}]')
    said = Message("a", "assistant", (redacted, unsigned, foreign, TextPart("Hi.", '{"id": "m"}')), model=CLAUDE)
    own = body(user("q", id="u"), said)["messages"][1]["content"]
    assert own == [{"reasoningContent": {"redactedContent": "eA=="}}, {"text": "Hi."}]
    other = body(user("q", id="u"), said, model="eu.amazon.nova-pro-v1:0")["messages"][1]["content"]
    assert other == [{"text": "Hi."}]
    refused = body(user("q", id="u"), said, user("r", id="v"), refused_before=2)["messages"][1]["content"]
    assert refused == [{"text": "Hi."}]


def test_a_bound_model_gets_no_reasoning_that_lost_its_prefix() -> None:
    newest = "global.anthropic.claude-opus-5-5-v1"
    thought = Message("a1", "assistant", (ReasoningPart("hm", "SIG"), TextPart("x")), model=newest)
    for model, kept in ((newest, 1), (CLAUDE, 2)):
        said = Message("a1", "assistant", thought.parts, model=model)
        sent = body(user("q", id="u"), said, user("r", id="v"), model=model, unbound_before=2)
        assert len(sent["messages"][1]["content"]) == kept


def test_system_messages_lead_and_roles_alternate() -> None:
    sent = body(
        system("A", id="1"),
        system("B", id="2"),
        assistant("first", id="3"),
        assistant("", id="4"),
        system("late", id="5"),
    )
    assert sent["system"] == [{"text": "A"}, {"text": "B"}]
    assert [row["role"] for row in sent["messages"]] == ["user", "assistant", "user"]
    assert sent["messages"][2]["content"] == [{"text": "late"}]


def test_blank_texts_are_left_out_and_a_jpg_is_a_jpeg() -> None:
    """Converse refuses both: a text without a word, and a format by another name."""
    image = MediaPart("image", json.dumps({"type": "image_url", "image_url": {"url": "data:image/jpg;base64,QUI="}}))
    asked = Message("u", "user", (TextPart(" \n"), image, TextPart("What is that?")))
    said = Message("a", "assistant", (TextPart("\t"), TextPart("A cat.")))
    rows = body(asked, said, user("and?", id="v"))["messages"]
    picture = {"image": {"format": "jpeg", "source": {"bytes": "QUI="}}}
    assert [row["content"] for row in rows] == [
        [picture, {"text": "What is that?"}],
        [{"text": "A cat."}],
        [{"text": "and?"}],
    ]


@pytest.mark.parametrize("model", ["us.meta.llama3-3-70b-instruct-v1:0", "mistral.mistral-large-2407-v1:0"])
def test_models_that_want_tool_results_alone_in_their_message(model: str) -> None:
    rows = body(tools=(LS,), model=model)["messages"]
    assert [row["role"] for row in rows] == ["user", "assistant", "user", "assistant", "user"]
    assert [list(block) for block in rows[2]["content"]] == [["toolResult"], ["toolResult"]]
    assert "status" not in rows[2]["content"][1]["toolResult"]


def test_ids_of_other_services_are_rewritten_in_call_and_result() -> None:
    kimi, long = "functions.ls:0", "call|" + "x" * 90
    said = Message("a", "assistant", (ToolCallPart(kimi, "ls", "{}"), ToolCallPart(long, "ls", "{}")))
    messages = (user("q", id="u"), said, tool_result(kimi, "1", id="r"), tool_result(long, "2", id="v"))
    for model, keeps in (("moonshot.kimi-k2", True), (CLAUDE, False)):
        rows = body(*messages, tools=(LS,), model=model)["messages"]
        calls = [block["toolUse"]["toolUseId"] for block in rows[1]["content"]]
        assert calls == [block["toolResult"]["toolUseId"] for block in rows[2]["content"]]
        assert (calls[0] == kimi) is keeps
        assert len(calls[1]) <= 64
        assert "|" not in calls[1]


def test_cache_points_are_blocks_of_their_own() -> None:
    point = {"cachePoint": {"type": "default"}}
    sent = body(tools=(LS,), stable_messages=len(ROUND), cache_key="s")
    assert sent["system"] == [{"text": "Be brief."}, point]
    assert sent["messages"][-1]["content"][-2:] == [{"text": "And now?"}, point]
    assert sum("cachePoint" in block for row in sent["messages"] for block in row["content"]) == 2
    bare = (user("q", id="u"), Message("a", "assistant", (TextPart("x"), ReasoningPart("hm", "S")), model=CLAUDE))
    assert body(*bare, tools=(LS,), stable_messages=2)["toolConfig"]["tools"][-1] == point
    assert body(*bare, stable_messages=2)["messages"][1]["content"][1] == point, "not behind reasoning"
    nova = body(*bare, tools=(LS,), stable_messages=2, model="amazon.nova-lite-v1:0")
    assert point not in nova["toolConfig"]["tools"]
    assert point in nova["messages"][0]["content"] + nova["messages"][1]["content"]
    assert "cachePoint" not in json.dumps(body(stable_messages=2, tools=(LS,), model="qwen.qwen3-32b-v1:0"))


def test_a_callers_own_cache_points_count_and_are_not_doubled() -> None:
    own = MediaPart("cachePoint", '{"cachePoint": {"type": "default", "ttl": "1h"}}')
    asked = Message("u", "user", (TextPart("long text"), own))
    sent = body(system("S", id="s"), asked, stable_messages=2)
    assert sent["messages"][0]["content"] == [{"text": "long text"}, json.loads(own.data)]
    assert sent["system"][-1] == {"cachePoint": {"type": "default", "ttl": "1h"}}, "longer lifetimes come first"
    first, second = user("long text", id="u1"), Message("u2", "user", (own, TextPart("more")))
    content = body(first, second, stable_messages=1)["messages"][0]["content"]
    assert [next(iter(block)) for block in content] == ["text", "cachePoint", "text"], "never two in a row"


def test_media_of_other_wires() -> None:
    png, pdf = "data:image/png;base64,QUJD", "data:application/pdf;base64,QUJD"
    parts = (
        MediaPart("image", json.dumps({"type": "image_url", "image_url": {"url": png}})),
        MediaPart("file", json.dumps({"type": "file", "file": {"file_data": pdf, "filename": "a_b.v2 .pdf"}})),
        MediaPart("file", json.dumps({"type": "file", "file": {"file_data": pdf, "filename": "a_b.v2 .pdf"}})),
        MediaPart("image", json.dumps({"image": {"format": "gif", "source": {"bytes": "QUJD"}}})),
        MediaPart("image", json.dumps({"type": "image_url", "image_url": {"url": "https://x.test/a.png"}})),
    )
    first, one, two, own, unseen = body(Message("u", "user", parts))["messages"][0]["content"]
    assert first == {"image": {"format": "png", "source": {"bytes": "QUJD"}}}
    assert one == {"document": {"format": "pdf", "name": "a b v2 pdf", "source": {"bytes": "QUJD"}}}
    assert two["document"]["name"] == "a b v2 pdf (2)"
    assert own == json.loads(parts[3].data)
    assert "https://x.test/a.png" in unseen["text"]
    alone = body(Message("u", "user", parts[1:2]))["messages"][0]["content"]
    assert [list(block) for block in alone] == [["document"], ["text"]], "a document needs text beside it"
    seen = Message("t", "tool", (*tool_result("t1", "see", id="t").parts, parts[0]))
    result = body(ROUND[1], assistant("", id="a", calls=CALLS[:1]), seen, tools=(LS,))["messages"][2]["content"][0]
    assert [list(block) for block in result["toolResult"]["content"]] == [["text"], ["image"]]


def test_thinking_by_family_and_fields_of_the_model() -> None:
    own = {"additionalModelRequestFields": {"top_k": 5}, "inferenceConfig": {"topP": 0.9}, "guardrailConfig": {"x": 1}}
    sent = body(thinking=True, max_tokens=4000, temperature=1.0, extra=own, tools=(LS,))
    assert sent["additionalModelRequestFields"] == {"thinking": {"type": "enabled", "budget_tokens": 2000}, "top_k": 5}
    assert sent["inferenceConfig"] == {"maxTokens": 4000, "topP": 0.9}, "no temperature while it thinks"
    assert sent["guardrailConfig"] == {"x": 1}
    newest = body(thinking="high", model="anthropic.claude-opus-5-5-v1")["additionalModelRequestFields"]
    assert newest == {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "high"}}
    oss = body(thinking="low", model="openai.gpt-oss-120b-1:0")
    assert oss["additionalModelRequestFields"] == {"reasoning_effort": "low"}
    assert body(thinking=True, model="qwen.qwen3-32b-v1:0")["additionalModelRequestFields"] == {
        "reasoning_config": "high"
    }
    assert "additionalModelRequestFields" not in body(model="deepseek.r1-v1:0", thinking=True)
    with pytest.raises(ConfigError, match="max_tokens is 900 and thinking alone takes 1024"):
        body(thinking=True, max_tokens=900)
    with pytest.raises(ConfigError, match="extra may not set toolConfig"):
        body(extra={"toolConfig": {}})


@pytest.mark.parametrize(
    "model",
    [
        CLAUDE,
        "anthropic.claude-sonnet-4-5-20250929-v1:0",
        "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    ],
)
def test_a_model_has_its_row_whatever_stands_before_its_name(model: str) -> None:
    assert make(model).context_window == 200_000
    assert load_profile("bedrock", model).thinking.on["additionalModelRequestFields"]["thinking"]["type"] == "enabled"


# replies


def test_a_whole_reply_and_its_usage() -> None:
    found = whole(
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "S"}}},
        {"text": "A"},
        {"toolUse": {"toolUseId": "t1", "name": "ls", "input": {"n": 1}}},
        {"text": "B"},
        stop="tool_use",
        inputTokens=10,
        outputTokens=4,
        totalTokens=121,
        cacheReadInputTokens=100,
        cacheReadInputTokenCount=100,
        cacheWriteInputTokens=7,
    )
    assert found.message.parts == (
        ReasoningPart("hm", "S"),
        TextPart("A"),
        ToolCallPart("t1", "ls", '{"n": 1}'),
        TextPart("B"),
    )
    assert found.finish_reason == "tool_calls"
    assert found.usage is not None
    assert (found.usage.input_tokens, found.usage.cache_read_tokens, found.usage.cache_write_tokens) == (117, 100, 7)


def test_tools_that_the_service_ran_itself_stay_in_place_and_go_back() -> None:
    use = {
        "toolUse": {"toolUseId": "s1", "name": "nova_code_interpreter", "type": "server_tool_use", "input": {"c": "1"}}
    }
    result = {"toolResult": {"toolUseId": "s1", "type": "x", "status": "success", "content": [{"text": "one two"}]}}
    content = [{"text": "Let me see."}, use, result, {"text": "Two."}]
    opened = {key: value for key, value in use["toolUse"].items() if key != "input"}
    frames = [
        event("messageStart", role="assistant"),
        event("contentBlockDelta", contentBlockIndex=0, delta={"text": "Let me see."}),
        event("contentBlockStop", contentBlockIndex=0),
        event("contentBlockStart", contentBlockIndex=1, start={"toolUse": opened}),
        event("contentBlockDelta", contentBlockIndex=1, delta={"toolUse": {"input": '{"c": "1"}'}}),
        event("contentBlockStop", contentBlockIndex=1),
        event(
            "contentBlockStart",
            contentBlockIndex=2,
            start={"toolResult": {"toolUseId": "s1", "type": "x", "status": "success"}},
        ),
        event("contentBlockDelta", contentBlockIndex=2, delta={"toolResult": [{"text": "one "}]}),
        event("contentBlockDelta", contentBlockIndex=2, delta={"toolResult": [{"text": "two"}]}),
        event("contentBlockStop", contentBlockIndex=2),
        event("contentBlockDelta", contentBlockIndex=3, delta={"text": "Two."}),
        event("contentBlockStop", contentBlockIndex=3),
        event("messageStop", stopReason="end_turn"),
        event("metadata", usage={"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}),
    ]
    for found in (whole(*content), streamed(*frames)):
        assert found.message.tool_calls == ()
        assert found.message.text == "Let me see.Two."
        assert body(user("q", id="u"), found.message, tools=(LS,))["messages"][1]["content"] == content


def test_the_services_own_tools_stand_beside_the_callers() -> None:
    own = {"systemTool": {"name": "nova_code_interpreter"}}
    sent = body(tools=(LS,), extra={"tools": [own]})
    assert [list(tool) for tool in sent["toolConfig"]["tools"]] == [["toolSpec"], ["systemTool"]]
    assert "tools" not in sent
    assert body(user("q", id="u"), extra={"tools": [own]})["toolConfig"] == {"tools": [own]}
    assert "toolConfig" not in body(tools=(LS,), tool_choice="none", extra={"tools": [own]})


def test_without_tools_the_blocks_of_the_services_own_are_left_out() -> None:
    found = whole(
        {"text": "Let me see."},
        {"toolUse": {"toolUseId": "s1", "name": "nova", "type": "server_tool_use", "input": {}}},
        {"toolResult": {"toolUseId": "s1", "content": [{"json": {"n": 2}}]}},
        {"text": "Two."},
    )
    assert body(user("q", id="u"), found.message)["messages"][1]["content"] == [
        {"text": "Let me see."},
        {"text": "Two."},
    ]


def test_texts_of_two_blocks_stay_two() -> None:
    content = [{"text": "One. "}, {"text": "Two."}]
    frames = [
        frame
        for index, block in enumerate(content)
        for frame in (
            event("contentBlockDelta", contentBlockIndex=index, delta={"text": block["text"][:2]}),
            event("contentBlockDelta", contentBlockIndex=index, delta={"text": block["text"][2:]}),
            event("contentBlockStop", contentBlockIndex=index),
        )
    ]
    for found in (whole(*content), streamed(*frames, event("messageStop", stopReason="end_turn"))):
        assert body(user("q", id="u"), found.message)["messages"][1]["content"] == content


def test_a_signature_without_text_belongs_to_its_own_block() -> None:
    content = [
        {"reasoningContent": {"reasoningText": {"text": "unsigned"}}},
        {"reasoningContent": {"reasoningText": {"text": "", "signature": "S"}}},
        {"text": "x"},
    ]
    frames = [
        event("contentBlockDelta", contentBlockIndex=0, delta={"reasoningContent": {"text": "unsigned"}}),
        event("contentBlockStop", contentBlockIndex=0),
        event("contentBlockDelta", contentBlockIndex=1, delta={"reasoningContent": {"signature": "S"}}),
        event("contentBlockStop", contentBlockIndex=1),
        event("contentBlockDelta", contentBlockIndex=2, delta={"text": "x"}),
        event("messageStop", stopReason="end_turn"),
    ]
    for found in (whole(*content), streamed(*frames)):
        assert found.message.parts == (ReasoningPart("unsigned"), ReasoningPart("", "S"), TextPart("x"))


def test_calls_with_one_id_are_told_apart_and_an_empty_input_is_an_object() -> None:
    inputs: list[Any] = [{"n": 1}, "", '{"n": 2}']
    calls = whole(
        *({"toolUse": {"toolUseId": "t1", "name": "ls", "input": one}} for one in inputs), stop="tool_use"
    ).message.tool_calls
    assert [call.parsed() for call in calls] == [{"n": 1}, {}, {"n": 2}]
    assert calls[0].id == "t1"
    assert len({call.id for call in calls}) == 3


def test_streamed_calls_with_one_id_are_told_apart_though_the_first_has_no_input() -> None:
    frames = [
        event("contentBlockStart", contentBlockIndex=n, start={"toolUse": {"toolUseId": "t1", "name": "ls"}})
        + (event("contentBlockDelta", contentBlockIndex=n, delta={"toolUse": {"input": text}}) if text else b"")
        + event("contentBlockStop", contentBlockIndex=n)
        for n, text in enumerate(("", '{"n": 2}'))
    ]
    calls = streamed(*frames, event("messageStop", stopReason="tool_use")).message.tool_calls
    assert [call.parsed() for call in calls] == [{}, {"n": 2}]
    assert calls[0].id == "t1" != calls[1].id


def test_a_signature_in_pieces_is_one() -> None:
    pieces = [{"text": "Hm."}, {"signature": "SI"}, {"signature": "G"}]
    frames = [event("contentBlockDelta", contentBlockIndex=0, delta={"reasoningContent": piece}) for piece in pieces]
    text = event("contentBlockDelta", contentBlockIndex=1, delta={"text": "Two."})
    found = streamed(
        *frames, event("contentBlockStop", contentBlockIndex=0), text, event("messageStop", stopReason="end_turn")
    )
    assert found.message.parts == (ReasoningPart("Hm.", "SIG"), TextPart("Two."))


def test_redacted_reasoning_in_pieces_is_one_blob() -> None:
    pieces = [base64.b64encode(piece).decode() for piece in (b"ab", b"cde")]
    deltas = [
        event("contentBlockDelta", contentBlockIndex=0, delta={"reasoningContent": {"redactedContent": piece}})
        for piece in pieces
    ]
    text = event("contentBlockDelta", contentBlockIndex=1, delta={"text": "x"})
    found = streamed(
        *deltas, event("contentBlockStop", contentBlockIndex=0), text, event("messageStop", stopReason="end_turn")
    )
    sent = body(user("q", id="u"), found.message)["messages"][1]["content"][0]
    assert sent == {"reasoningContent": {"redactedContent": base64.b64encode(b"abcde").decode()}}


@pytest.mark.parametrize(
    ("name", "message", "kind", "retryable"),
    [
        ("throttlingException", "Too many tokens, please wait before trying again.", "rate_limit", True),
        ("validationException", "prompt is too long: 200049 tokens > 200000 maximum", "context_overflow", False),
        ("validationException", "The text field is blank.", "rejected", False),
        ("modelStreamErrorException", "The model broke.", "server", True),
        ("internalServerException", "Oh.", "server", True),
        ("serviceUnavailableException", "Later.", "unavailable", True),
        ("brandNewException", "What?", "server", True),
    ],
)
def test_exceptions_in_a_stream(name: str, message: str, kind: str, retryable: bool) -> None:
    with pytest.raises(BackendError) as caught:
        streamed(event("contentBlockDelta", contentBlockIndex=0, delta={"text": "Ha"}), exception(name, message))
    assert (caught.value.kind, caught.value.retryable, caught.value.code) == (kind, retryable, name)
    if kind == "context_overflow":
        assert (caught.value.limit_tokens, caught.value.requested_tokens) == (200_000, 200_049)


def test_of_two_errors_the_first_is_reported() -> None:
    with pytest.raises(BackendError, match="Slow down") as caught:
        streamed(exception("throttlingException", "Slow down.") + exception("internalServerException", "Oh."))
    assert caught.value.kind == "rate_limit"


def test_an_error_message_has_its_code_in_the_headers() -> None:
    headers = {":message-type": "error", ":error-code": "InternalFailure", ":error-message": "It broke."}
    with pytest.raises(BackendError, match=r"It broke") as caught:
        streamed(event_frame(headers, b""))
    assert (caught.value.kind, caught.value.code) == ("server", "InternalFailure")


@pytest.mark.parametrize(
    ("status", "name", "message", "kind", "limit"),
    [
        (400, "ValidationException", "The provided model identifier is invalid.", "rejected", None),
        (400, "ValidationException", "This model's maximum context length is 8192 tokens. Reduce it", "context_overflow", 8192),
        (400, "ValidationException", "input length and `max_tokens` exceed context limit: 19 + 2 > 20", "context_overflow", 20),
        (400, "ValidationException", "Input Tokens Exceeded: Number of input tokens exceeds", "context_overflow", None),
        (400, "ValidationException", "User messages cannot contain reasoning content. Try again.", "reasoning_replay", None),
        (400, "ValidationException", "messages.1.content.0: Invalid `signature` in `thinking` block", "reasoning_replay", None),
        (400, "ServiceQuotaExceededException", "Quota.", "quota", None),
        (403, "AccessDeniedException", "No access.", "auth", None),
        (403, "ExpiredTokenException", "The security token included in the request is expired", "auth", None),
        (404, "ResourceNotFoundException", "No such model.", "rejected", None),
        (408, "ModelTimeoutException", "Slow.", "timeout", None),
        (424, "ModelErrorException", "The model failed.", "server", None),
        (429, "ThrottlingException", "Too many tokens, please wait before trying again.", "rate_limit", None),
        (429, "ModelNotReadyException", "Not ready.", "unavailable", None),
        (500, "InternalServerException", "Oh.", "server", None),
        (503, "ServiceUnavailableException", "Later.", "unavailable", None),
    ],
)  # fmt: skip
def test_errors_of_http(status: int, name: str, message: str, kind: str, limit: int | None) -> None:
    headers = {"x-amzn-ErrorType": f"{name}:http://internal.amazon.com/coral/"}
    play = Play([json.dumps({"Message": message}).encode()], status=status, headers=headers)
    with (
        RawServer(play) as server,
        make(base_url=server.base_url, max_retries=0) as backend,
        pytest.raises(BackendError) as caught,
    ):
        backend.send(Request((user("hi", id="u"),)))
    assert (caught.value.kind, caught.value.code, caught.value.limit_tokens) == (kind, name, limit)
    assert caught.value.status == status
    assert message[:40].rstrip(".") in str(caught.value)


def test_overflow_of_input_and_output_together_is_read() -> None:
    said = "The model returned the following errors: input length and `max_tokens` exceed context limit: 195000 + 8192 > 200000"
    with pytest.raises(BackendError) as caught:
        streamed(exception("validationException", said))
    error = caught.value
    assert (error.kind, error.limit_tokens, error.requested_tokens, error.reply_tokens) == (
        "context_overflow",
        200_000,
        203_192,
        8_192,
    )


@pytest.mark.parametrize(
    ("status", "kind"), [(408, "timeout"), (424, "server"), (429, "rate_limit"), (503, "unavailable")]
)
def test_errors_of_http_whose_name_a_proxy_removed(status: int, kind: str) -> None:
    play = Play([b'{"message": "It broke.", "originalStatusCode": 500}'], status=status)
    with (
        RawServer(play) as server,
        make(base_url=server.base_url, max_retries=0) as backend,
        pytest.raises(BackendError, match="It broke") as caught,
    ):
        backend.send(Request((user("hi", id="u"),)))
    assert (caught.value.kind, caught.value.retryable) == (kind, True)


@pytest.mark.parametrize("stop", ["malformed_model_output", "malformed_tool_use"])
def test_a_failed_generation_is_an_error(stop: str) -> None:
    with pytest.raises(BackendError, match=stop) as caught:
        whole({"text": "x"}, stop=stop)
    assert caught.value.retryable


@pytest.mark.parametrize("stop", ["guardrail_intervened", "content_filtered"])
def test_a_filtered_reply_is_one(stop: str) -> None:
    assert whole({"text": "Sorry."}, stop=stop).finish_reason == "content_filter"


# refused reasoning


def test_reasoning_that_is_refused_is_left_out_once() -> None:
    refusal = json.dumps(
        {"message": "The model returned the following errors: Invalid `signature` in `thinking` block"}
    )
    thought = {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "S"}}}
    said = json.dumps(
        {"output": {"message": {"role": "assistant", "content": [thought, {"text": "One."}]}}, "stopReason": "end_turn"}
    )
    plays = [Play([said.encode()]), Play([refusal.encode()], status=400), Play([SAID])]
    for model in (CLAUDE, "anthropic.claude-opus-5-5-v1"):
        with (
            RawServer(*plays) as server,
            make(model, base_url=server.base_url) as backend,
            AgentContext(backend, session_id="s", store="memory://", context_window=20_000) as context,
        ):
            context.send("first")
            assert context.send("second").message.text == "Two."
            _, second, again = server.bodies
            assert thought in second["messages"][1]["content"]
            assert again["messages"][1]["content"] == [{"text": "One."}]


# address and authorisation


def test_the_address_names_region_and_model() -> None:
    arn = "arn:aws:bedrock:us-east-1:1:inference-profile/us.x-v1:0"
    with RawServer(Play([SAID])) as server, make(arn, base_url=server.base_url.removesuffix("/v1")) as backend:
        backend.send(Request((user("hi", id="u"),)))
        assert server.paths == ["/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile%2Fus.x-v1%3A0/converse"]
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
        assert "model" not in server.bodies[0]
        assert "stream" not in server.bodies[0]


def test_the_region_is_given_or_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="region of Bedrock is not known"):
        open_backend("bedrock", CLAUDE, api_key=KEY)
    with pytest.raises(ConfigError, match="not the name of an AWS region"):
        open_backend("bedrock", CLAUDE, api_key=KEY, region="x.test/")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-3")
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", KEY)
    with open_backend("bedrock", CLAUDE, timeout_s=1, connect_timeout_s=1) as backend:
        assert KEY not in repr(backend)
        assert isinstance(backend, BedrockBackend)


def test_retries_are_signed_anew_and_nothing_shows_the_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "AWS_ACCESS_KEY_ID": "SYNTHETICKEYID",
        "AWS_SECRET_ACCESS_KEY": "synthetic-secret",
        "AWS_SESSION_TOKEN": "tok-9",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    echo = json.dumps({"message": f"busy, {secrets['AWS_SESSION_TOKEN']}"}).encode()
    plays = [Play([echo], status=503, then="keep"), Play([SAID], then="keep"), Play([echo], status=403)]
    with RawServer(*plays) as server:
        backend = BedrockBackend(
            model=CLAUDE, region="us-east-1", base_url=server.base_url, retry=Retry(2, sleep=lambda _: None)
        )
        with backend:
            assert backend.send(Request((user("hi", id="u"),))).message.text == "Two."
            with pytest.raises(BackendError) as caught:
                backend.send(Request((user("hi", id="u"),)))
    assert caught.value.kind == "auth"
    for head in server.headers:
        assert head["authorization"].startswith("AWS4-HMAC-SHA256 Credential=SYNTHETICKEYID/")
        assert head["authorization"].count("/us-east-1/bedrock/aws4_request") == 1
        assert "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token" in head["authorization"]
        assert head["x-amz-security-token"] == "tok-9"
        assert head["x-amz-date"].endswith("Z")
    shown = f"{caught.value!r} {caught.value} {backend!r} {caught.value.__cause__}"
    assert not [value for value in secrets.values() if value in shown]


async def test_signed_requests_from_async_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "SYNTHETICKEYID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "synthetic-secret")
    with RawServer(Play([SAID])) as server:
        async with BedrockBackend(model=CLAUDE, region="us-east-1", base_url=server.base_url) as backend:
            assert (await backend.asend(Request((user("hi", id="u"),)))).message.text == "Two."
    assert "AWS4-HMAC-SHA256" in server.headers[0]["authorization"]


def test_without_a_key_a_region_is_needed_to_sign_for() -> None:
    with pytest.raises(ConfigError, match="signed for a region"):
        BedrockBackend(model=CLAUDE, base_url="http://127.0.0.1:1")
