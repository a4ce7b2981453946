"""Rows of hosts with chat completions: Mistral's thinking chunks, fields that go back with a message, overflows, switches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ctxfold import (
    BackendError,
    Message,
    ReasoningPart,
    Request,
    TextPart,
    ToolCallPart,
    open_backend,
    tool_result,
    user,
)
from ctxfold.backends.profile import load_profile
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from tests.wire.raw_server import DONE, Play, RawServer, event

ASKED = user("q", id="u")


def rows(provider: str, model: str, *messages: Message) -> list[dict[str, Any]]:
    with open_backend(provider, model, api_key="k", base_url="http://localhost:1") as backend:
        sent: list[dict[str, Any]] = backend.request_body(Request(messages), stream=True)["messages"]
        return sent


def thinking(text: str, *, closed: bool = False) -> dict[str, Any]:
    chunk: dict[str, Any] = {"type": "thinking", "thinking": [{"type": "text", "text": text}]}
    return {**chunk, "closed": True} if closed else chunk


def test_mistral_gets_its_thinking_chunks_back() -> None:
    frames = [
        b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": [thinking(text)]}}]}).encode() + b"\n\n"
        for text in ("Two ", "lockers.")
    ]
    call = {"index": 0, "id": "Ab3dEf6hI", "function": {"name": "look", "arguments": "{}"}}
    frames += [event("I look."), event(finish="tool_calls", tool_calls=[call]), DONE]
    with (
        RawServer(Play(frames)) as server,
        open_backend("mistral", "mistral-small-2603", base_url=server.base_url, api_key="k") as backend,
    ):
        reply = backend.send(Request((ASKED,), thinking=True)).message
        assert server.bodies[0]["reasoning_effort"] == "high"
        assert "stream_options" not in server.bodies[0]
    assert (reply.reasoning, reply.text) == ("Two lockers.", "I look.")
    messages = (ASKED, reply, tool_result("Ab3dEf6hI", "an umbrella", id="t"))
    sent = rows("mistral", "mistral-small-2603", *messages)
    assert sent[1]["content"] == [thinking("Two lockers.", closed=True), {"type": "text", "text": "I look."}]
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"] == "Ab3dEf6hI"
    assert rows("mistral", "mistral-large-3", *messages)[1]["content"] == "I look."
    assert rows("openai", "mistral-small-2603", *messages)[1]["content"] == "I look."


def test_mistral_thinks_before_a_call_without_text() -> None:
    message = Message("a", "assistant", (ReasoningPart("hm"), ToolCallPart("call_1", "look", "{}")))
    sent = rows("mistral", "magistral-medium-2509", ASKED, message, tool_result("call_1", "x", id="t"))
    assert sent[1]["content"] == [thinking("hm", closed=True)]


def test_ids_of_other_services_become_nine_letters_and_digits() -> None:
    calls = tuple(ToolCallPart(name, "look", "{}") for name in ("toolu_01", "call_a_0"))
    results = [tool_result(call.id, "x", id=f"t{call.id}") for call in calls]
    sent = rows("mistral", "mistral-large-3", ASKED, Message("a", "assistant", calls), *results)
    ids = [call["id"] for call in sent[1]["tool_calls"]]
    assert [row["tool_call_id"] for row in sent[2:]] == ids
    assert len(set(ids)) == 2
    assert all(len(one) == 9 and one.isalnum() for one in ids)


def test_a_mistral_session_with_tools_passes_an_alternating_server() -> None:
    script = [Scripted("", "why", (ScriptedCall("look", "{}"),)), Scripted("done")]
    with (
        ModelServer(script=script, strict="alternating") as server,
        open_backend("mistral", "mistral-large-3", base_url=server.base_url, api_key="k", max_retries=0) as backend,
    ):
        reply = backend.send(Request((ASKED,))).message
        results = tuple(tool_result(call.id, "x", id="t") for call in reply.tool_calls)
        asked = (ASKED, user("soon", id="u2"), reply, *results, user("and?", id="u3"))
        assert backend.send(Request(asked)).message.text == "done"


@pytest.mark.parametrize(
    ("provider", "model", "name", "value"),
    [
        ("openrouter", "m", "annotations", [{"type": "file", "file": {"hash": "h", "content": []}}]),
        ("gemini", "gemini-3-flash-preview", "extra_content", {"google": {"thought_signature": "c2ln"}}),
    ],
)
def test_fields_beside_the_content_go_back_to_their_model(provider: str, model: str, name: str, value: Any) -> None:
    pieces: list[Any] = [value[:1], value[1:]] if isinstance(value, list) else [value]
    frames = [event("Hello"), *(event(**{name: piece}) for piece in pieces), event(finish="stop"), DONE]
    with (
        RawServer(Play(frames)) as server,
        open_backend(provider, model, base_url=server.base_url, api_key="k") as backend,
    ):
        reply = backend.send(Request((ASKED,))).message
        restored = backend.message_from_jsonl(backend.message_to_jsonl(reply))
    assert restored == reply
    assert rows(provider, model, ASKED, restored)[1] == {"role": "assistant", "content": "Hello", name: value}
    assert name not in rows(provider, f"{model}-2", ASKED, restored)[1]
    assert name not in rows("openai", model, ASKED, restored)[1]


def test_the_tools_that_groq_has_run_are_stored_and_not_sent() -> None:
    ran: list[Any] = [{"index": n, "type": "search", "arguments": "{}", "output": f"plum {n}"} for n in range(2)]
    frames = [event("Hello"), *(event(executed_tools=[one]) for one in ran), event(finish="stop"), DONE]
    with (
        RawServer(Play(frames)) as server,
        open_backend("groq", "groq/compound", base_url=server.base_url, api_key="k") as backend,
    ):
        reply = backend.send(Request((ASKED,))).message
        assert backend.message_from_jsonl(backend.message_to_jsonl(reply)) == reply
    (part,) = reply.parts
    assert isinstance(part, TextPart)
    assert part.extra is not None
    assert json.loads(part.extra) == {"openai_chat": {"executed_tools": ran}}
    assert rows("groq", "groq/compound", ASKED, reply)[1] == {"role": "assistant", "content": "Hello"}


def test_a_field_that_a_provider_does_not_name_stays_out() -> None:
    said = TextPart("x", json.dumps({"openai_chat": {"annotations": [1], "executed_tools": [2]}, "gemini": {"a": 1}}))
    (_, sent) = rows("openrouter", "m", ASKED, Message("a", "assistant", (said,), model="m"))
    assert sent == {"role": "assistant", "content": "x", "annotations": [1]}


@pytest.mark.parametrize(
    ("provider", "status", "error", "limit", "requested"),
    [
        (
            "mistral",
            400,
            {
                "object": "error",
                "message": "Prompt contains 34000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
                "type": "invalid_request_error",
                "code": "3051",
            },
            32_768,
            34_000,
        ),
        (
            "cerebras",
            400,
            {
                "message": "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
                "code": "context_length_exceeded",
            },
            8_192,
            9_000,
        ),
        (
            "cohere",
            400,
            {
                "message": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292."
            },
            4_081,
            4_292,
        ),
        (
            "fireworks",
            400,
            {"error": {"message": "The prompt is too long: 9001, model maximum context length: 8191"}},
            8_191,
            9_001,
        ),
        (
            "together",
            422,
            {"error": {"message": "`inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens"}},
            8_193,
            9_000,
        ),
        (
            "github",
            413,
            {
                "error": {
                    "code": "tokens_limit_reached",
                    "message": "Request body too large for gpt-4o model. Max size: 8000 tokens.",
                }
            },
            8_000,
            None,
        ),
        (
            "nvidia",
            400,
            {
                "message": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.",
                "code": 400,
            },
            4_096,
            5_000,
        ),
    ],
)  # fmt: skip
def test_overflows_are_read(
    provider: str, status: int, error: dict[str, Any], limit: int, requested: int | None
) -> None:
    with (
        RawServer(Play([json.dumps(error).encode()], status=status)) as server,
        open_backend(provider, "m", base_url=server.base_url, api_key="k", max_retries=0) as backend,
        pytest.raises(BackendError) as caught,
    ):
        backend.send(Request((ASKED,)))
    found = caught.value
    assert (found.kind, found.limit_tokens, found.requested_tokens) == ("context_overflow", limit, requested)


@pytest.mark.parametrize(
    ("provider", "model", "thinking_off"),
    [
        ("cerebras", "gpt-oss-120b", {"reasoning_effort": "low"}),
        ("cohere", "command-a-reasoning-08-2025", {"reasoning_effort": "none"}),
        ("mistral", "mistral-medium-3-5", {"reasoning_effort": "none"}),
        ("together", "zai-org/GLM-5.1", {"reasoning": {"enabled": False}}),
        ("nvidia", "nvidia/nemotron-3-ultra-550b-a55b", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("huggingface", "openai/gpt-oss-120b:cerebras", {"reasoning_effort": "low"}),
        ("fireworks", "accounts/fireworks/models/gpt-oss-20b", {"reasoning_effort": "low"}),
    ],
)
def test_thinking_is_switched_off_or_low(provider: str, model: str, thinking_off: dict[str, Any]) -> None:
    with open_backend(provider, model, api_key="k") as backend:
        body = backend.request_body(Request((ASKED,), thinking=False), stream=False)
    assert thinking_off.items() <= body.items()


def test_windows_and_outputs_of_rows() -> None:
    windows = {
        ("mistral", "magistral-small-2509"): 128_000,
        ("cohere", "command-a-03-2025"): 256_000,
        ("together", "moonshotai/Kimi-K2.6"): 262_000,
        ("snowflake", "claude-opus-4-8"): 1_000_000,
        ("fireworks", "accounts/fireworks/models/glm-5p3-flash"): 1_048_573,
        ("github", "openai/gpt-4o"): None,
    }
    assert {key: load_profile(*key).context_window for key in windows} == windows
    assert load_profile("snowflake", "claude-haiku-4-5").max_output == 16_384
