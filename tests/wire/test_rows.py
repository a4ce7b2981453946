"""What rows say beyond the wire: dates and sources, counters, which backend, and Gemini's signatures."""

from __future__ import annotations

import json
from typing import Any

import pytest

import ctxfold
from ctxfold import (
    AnthropicBackend,
    ConfigError,
    Message,
    OpenAIChatBackend,
    Request,
    ScriptedBackend,
    ToolCallPart,
    assistant,
    open_backend,
    tool_result,
    user,
)
from ctxfold.backends.profile import counter_for, load_profile, provider_names
from ctxfold.connect import message_counter
from ctxfold.testing import ModelServer
from ctxfold.tokens.text import RatioCounter, TiktokenCounter
from tests.wire.raw_server import DONE, Play, RawServer, event

SIGNED = '{"extra_content": {"google": {"thought_signature": "c2ln"}}}'
DUMMY = {"google": {"thought_signature": "skip_thought_signature_validator"}}


@pytest.mark.parametrize("name", provider_names())
def test_every_row_says_when_and_where_its_facts_were_found(name: str) -> None:
    row = load_profile(name)
    assert (row.verified_on or "") >= "2026-11"
    assert row.source


def test_a_date_is_a_date() -> None:
    with pytest.raises(ConfigError, match="verified_on"):
        load_profile({"name": "x", "verified_on": "lately"})


def test_the_wire_is_picked_from_the_row() -> None:
    assert isinstance(open_backend("anthropic", "claude-opus-5", api_key="k"), AnthropicBackend)
    assert isinstance(open_backend("ollama", "qwen3"), OpenAIChatBackend)
    own = {"name": "own", "base_url": "http://localhost:9", "wire": "anthropic_messages", "path": "/v1/messages"}
    backend = open_backend("own", "m", profile=own, timeout_s=5)
    assert isinstance(backend, AnthropicBackend)
    assert backend.profile.name == "own"
    assert repr(ctxfold.AnthropicBackend(model="m", api_key="k")).startswith("AnthropicBackend(provider='anthropic'")
    with pytest.raises(ConfigError, match="unknown provider"):
        open_backend("nobody", "m")
    with pytest.raises(ConfigError, match="'openai' speaks openai_chat, openai_responses, and not anthropic_messages"):
        AnthropicBackend(model="m", provider="openai", api_key="k")


def test_counters_follow_the_row() -> None:
    assert isinstance(counter_for(load_profile("openai")), TiktokenCounter)
    assert counter_for(load_profile("deepseek")) == RatioCounter(ascii_per_token=3.3)
    assert isinstance(counter_for(load_profile("llamacpp")), RatioCounter)  # an endpoint: estimated
    deepseek = open_backend("deepseek", "deepseek-v4-pro", api_key="k")
    assert "ratio:3.3" in message_counter(None, backend=deepseek).id
    assert "o200k" in message_counter(None, model="gpt-5", backend=ScriptedBackend([])).id
    given = RatioCounter(2.0)
    assert "ratio:2," in message_counter(given, backend=deepseek).id
    with ctxfold.AgentContext(deepseek, session_id="s", context_window=9000, system="S", store="memory://") as context:
        assert "ratio:3.3" in context.handle.counter.id


def sent(messages: tuple[Message, ...], provider: str = "gemini") -> list[dict[str, Any]]:
    with open_backend(provider, "gemini-3-flash-preview", api_key="k") as backend:
        rows: list[dict[str, Any]] = backend.request_body(Request(messages), stream=True)["messages"]
        return rows


def test_gemini_gets_its_thought_signatures_back() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}, **json.loads(SIGNED)}
    second = {**call, "id": "c2"}
    del second["extra_content"]
    frames = [event(tool_calls=[{"index": 0, **call}, {"index": 1, **second}]), event(finish="tool_calls"), DONE]
    with (
        RawServer(Play(frames)) as server,
        open_backend("gemini", "gemini-3-flash-preview", base_url=server.base_url, api_key="k") as backend,
    ):
        reply = backend.send(Request((user("q", id="u"),)))
        assert server.headers[0]["authorization"] == "Bearer k"
    assert [c.extra for c in reply.message.tool_calls] == [SIGNED, None]
    rows = sent((user("q", id="u"), reply.message, tool_result("c1", "x", id="t")))
    assert rows[1]["tool_calls"] == [call, second]


def test_calls_of_other_models_carry_the_placeholder_once() -> None:
    plain = assistant("", id="a", calls=[ToolCallPart("c1", "ls", "{}"), ToolCallPart("c2", "ls", "{}")])
    first, second = sent((user("q", id="u"), plain))[1]["tool_calls"]
    assert first["extra_content"] == DUMMY
    assert "extra_content" not in second


def test_what_one_provider_adds_to_calls_does_not_travel_to_another() -> None:
    call = ToolCallPart("c1", "ls", "{}", SIGNED)
    other = Message("a", "assistant", (call,), model="gemini-3.8-flash")
    (to_openai,) = sent((user("q", id="u"), other), "openai")[1]["tool_calls"]
    assert "extra_content" not in to_openai
    (to_gemini,) = sent((user("q", id="u"), other))[1]["tool_calls"]
    assert to_gemini["extra_content"]["google"]["thought_signature"] == "c2ln"


def test_gemini_errors_are_read() -> None:
    body = json.dumps(
        [
            {
                "error": {
                    "code": 400,
                    "message": "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ]
    )
    with (
        RawServer(Play([body.encode()], status=400)) as server,
        open_backend("gemini", "gemini-3-flash-preview", base_url=server.base_url, api_key="k") as backend,
        pytest.raises(ctxfold.BackendError) as caught,
    ):
        backend.send(Request((user("q", id="u"),)))
    error = caught.value
    assert (error.kind, error.limit_tokens, error.requested_tokens) == ("context_overflow", 1_048_576, 1_200_293)


@pytest.mark.parametrize(
    ("provider", "model", "fields"),
    [
        ("moonshot", "kimi-k2.6", {"thinking": {"type": "disabled"}, "max_tokens": 300}),
        ("moonshot", "kimi-k2.7", {}),
        ("moonshot", "kimi-k3", {"reasoning_effort": "low"}),
        (
            "zhipu",
            "glm-5.3",
            {"thinking": {"type": "enabled", "clear_thinking": False}, "reasoning_effort": "low"},
        ),
        ("gemini", "gemini-3-flash-preview", {"reasoning_effort": "low"}),
        ("openai", "gpt-6", {"reasoning_effort": "none", "max_completion_tokens": 300}),
        ("anthropic", "claude-opus-5", {"thinking": {"type": "disabled"}, "max_tokens": 300}),
        ("anthropic", "claude-fable-5-1", {"output_config": {"effort": "low"}, "max_tokens": 128_000}),
        ("generic", "m", {"max_tokens": 300}),
    ],
)
def test_a_summariser_that_always_thinks_has_room_for_it(provider: str, model: str, fields: dict[str, Any]) -> None:
    with open_backend(provider, model, api_key="k") as backend:
        asked = backend.sparing(Request((user("q", id="u"),), max_tokens=300, thinking=False))
        body = backend.request_body(asked, stream=False)
        assert {name: value for name, value in body.items() if name not in ("messages", "model", "stream")} == fields
        thinking = Request((user("q", id="u"),), max_tokens=300)
        assert backend.sparing(thinking) is thinking


@pytest.mark.parametrize(
    ("provider", "model"), [("moonshot", "kimi-k3"), ("moonshot", "kimi-k2.7"), ("zhipu", "glm-5.3")]
)
def test_models_that_always_think_write_summaries(provider: str, model: str) -> None:
    events: list[Any] = []
    with (
        ModelServer(model="lookup") as server,
        open_backend(provider, model, base_url=server.base_url, api_key="k") as backend,
        ctxfold.AgentContext(backend, context_window=2_000, counter=RatioCounter()) as context,
    ):
        context.subscribe(events.append)
        for number in range(14):
            said = f"Budget {number} is {number * 137} dollars. " + "word " * 80
            context.add([user(said, id=f"u{number}"), assistant("noted " * 40, id=f"a{number}")])
        assert server.requests
    compacted = [e for e in events if isinstance(e, ctxfold.HistoryCompacted)]
    assert compacted
    assert {(e.fallback_level, e.problems) for e in compacted} == {("model", ())}
