"""Sessions on the Responses API against a strict server: past the window, over other wires, and after a refusal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctxfold import (
    AgentContext,
    BackendError,
    ConfigError,
    Message,
    OpenAIResponsesBackend,
    Request,
    assistant,
    open_backend,
    system,
    user,
)
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.protocols import Wire
from ctxfold.stores.memory import MemoryStore
from ctxfold.testing import ModelServer
from tests.wire.agent_session import Model, past_the_window, turn
from tests.wire.raw_server import Play, RawServer

MODEL = "gpt-5.5"


def responses(server: ModelServer, model: str = MODEL) -> HttpBackend:
    return open_backend("openai", model, wire="openai_responses", base_url=server.base_url, api_key="k", max_retries=0)


def open_round(items: list[dict[str, Any]]) -> list[str]:
    """The kinds of the items after the newest question."""
    last = max(i for i, item in enumerate(items) if item.get("role") == "user")
    kinds = [str(item.get("type", item.get("role"))) for item in items[last + 1 :]]
    return kinds[:-1] if kinds[-1:] == ["developer"] else kinds  # recalled passages, or the instruction to summarise


@pytest.mark.parametrize("way", ["sync", "async", "streamed", "streamed async"])
async def test_turns_with_tools_past_the_window_are_never_refused(way: str) -> None:
    model = Model()
    with ModelServer(script=model, strict="openai") as server:
        bodies = await past_the_window(responses(server), server, model, way)
    first = ["reasoning", "function_call", "function_call_output"]
    second = ["reasoning", "message", "function_call", "function_call", "function_call_output", "function_call_output"]
    seen = [open_round(body["input"]) for body in bodies if body.get("tools")]
    assert {tuple(kinds) for kinds in seen} == {(), tuple(first), (*first, *second)}
    assert all(body["store"] is False and body["prompt_cache_key"] for body in bodies if body.get("tools"))


@pytest.mark.parametrize("way", ["sync", "streamed async"])
async def test_a_session_goes_over_to_another_wire_and_comes_back(way: str) -> None:
    store, model = MemoryStore(), Model()
    first: tuple[str, str, Wire | None] = ("openai", MODEL, "openai_responses")
    others: tuple[tuple[str, str, Wire | None], ...] = (
        ("generic", "llama", None),
        ("openai", "gpt-5.6", "openai_responses"),
        ("bedrock", "claude-opus-4-8", None),
        ("anthropic", "claude-sonnet-4-5", None),
        ("gemini", "gemini-3-flash-preview", "gemini"),
    )
    with ModelServer(script=model, strict="openai") as server:
        for provider, name, wire in (first, *others, first):
            url = server.base_url
            backend = open_backend(provider, name, wire=wire, base_url=url, api_key="k", max_retries=0)
            async with backend, AgentContext(backend, session_id="s", store=store, context_window=60_000) as context:
                for number in range(2):
                    await turn(context, f"{provider} {name} {number}?", way)
        bodies = [request.body for request in server.requests]
    assert len(bodies) == model.asked, "none was refused and sent again"
    items = bodies[-1]["input"]
    assert sum(item.get("type") == "reasoning" for item in items) == 2 * 3 + 3 + 2
    assert sum(item.get("type") == "function_call" for item in items) == sum(
        item.get("type") == "function_call_output" for item in items
    )


REFUSALS = (
    (400, "Item 'rs_1' of type 'reasoning' was provided without its required following item.", None),
    (400, "Item 'fc_1' of type 'function_call' was provided without its required 'reasoning' item: 'rs_1'.", None),
    (404, "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false. Try again.", None),
    (400, "The encrypted content gAAA... could not be verified.", "invalid_encrypted_content"),
    (400, f"The encrypted content {'gAAA' * 100} could not be verified.", None),
)


def said(number: int) -> Play:
    items: list[dict[str, Any]] = [
        {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": f"ENC{number}"},
        {
            "type": "message",
            "id": f"msg_{number}",
            "role": "assistant",
            "status": "completed",
            "phase": "final_answer",
            "content": [{"type": "output_text", "text": f"text {number}", "annotations": []}],
        },
    ]
    return Play([json.dumps({"object": "response", "status": "completed", "output": items}).encode()])


@pytest.mark.parametrize(("status", "message", "code"), REFUSALS)
def test_after_a_refusal_the_request_goes_once_more_without_reasoning_and_ids(
    status: int, message: str, code: str | None
) -> None:
    error = {"error": {"message": message, "type": "invalid_request_error", "param": "input", "code": code}}
    refused = Play([json.dumps(error).encode()], status=status)
    with (
        RawServer(said(1), refused, said(2), said(3), refused) as server,
        open_backend("openai", MODEL, wire="openai_responses", base_url=server.base_url, api_key="k") as backend,
        AgentContext(backend, store="memory://", context_window=20_000) as context,
    ):
        for text in ("first", "second", "third"):
            context.send(text)
        with pytest.raises(BackendError) as caught:
            context.send("fourth")
        assert caught.value.kind == "reasoning_replay"
    _, second, again, third, *last = server.bodies
    assert [item.get("id") for item in second["input"]] == [None, "rs_1", "msg_1", None]
    assert again["input"] == [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "text 1", "phase": "final_answer"},
        {"role": "user", "content": "second"},
    ]
    assert [item.get("id") for item in third["input"]] == [None, None, None, "rs_2", "msg_2", None]
    assert len(last) == 2, "asked once more, and no third time"


def sent(messages: tuple[Message, ...], **fields: Any) -> dict[str, Any]:
    with open_backend("openai", MODEL, wire="openai_responses", api_key="k") as backend:
        return backend.request_body(Request(messages, **fields), stream=False)


def test_what_the_service_remembers_is_not_sent_again() -> None:
    call = assistant("", id="a", calls=())
    messages = (user("one", id="u"), call, user("two", id="v"))
    for extra in ({"previous_response_id": "resp_1"}, {"conversation": "conv_1"}):
        body = sent(messages, extra=extra)
        assert body["input"] == [{"role": "user", "content": "two"}]
        assert extra.items() <= body.items()
    assert len(sent(messages)["input"]) == 2


NONE: set[str] = set()
ASKED = Request((system("Be brief.", id="s"), user("hi", id="u")), cache_key="key", thinking="high")


@pytest.mark.parametrize(
    ("provider", "model", "present", "absent"),
    [
        ("openai", "gpt-5.5", {"instructions", "include", "store", "prompt_cache_key", "reasoning"}, NONE),
        ("openai", "gpt-4o", {"instructions", "store", "prompt_cache_key"}, {"include"}),
        ("azure", "mine", {"instructions", "include", "store", "prompt_cache_key", "reasoning"}, NONE),
        ("xai", "grok-4.6", {"include", "store", "prompt_cache_key", "reasoning"}, {"instructions"}),
        ("openrouter", "openai/gpt-5.5", {"instructions", "include", "store", "reasoning"}, {"prompt_cache_key"}),
        ("groq", "openai/gpt-oss-120b", {"instructions", "reasoning"}, {"include", "store", "prompt_cache_key"}),
        ("vllm", "m", {"instructions", "include", "store", "reasoning"}, {"prompt_cache_key"}),
        ("generic", "m", {"instructions", "include", "store", "reasoning"}, {"prompt_cache_key"}),
    ],
)
def test_each_row_sends_what_its_service_takes(provider: str, model: str, present: set[str], absent: set[str]) -> None:
    with ModelServer(script=Model()) as server:
        url = server.base_url
        with open_backend(provider, model, wire="openai_responses", base_url=url, api_key="k") as backend:
            backend.send(replace(ASKED, thinking=None) if model == "gpt-4o" else ASKED)
        (request,) = server.requests
    assert request.path == "/v1/responses"
    assert present <= request.body.keys()
    assert not absent & request.body.keys()
    key = "api-key" if provider == "azure" else "authorization"
    assert key in request.headers
    if provider == "xai":
        assert request.body["input"][0] == {"role": "system", "content": "Be brief."}


def test_an_azure_address_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="base_url"):
        open_backend("azure", "mine", api_key="k")


def test_a_rate_of_groq_is_no_window() -> None:
    message = "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 9000"
    error = {"error": {"message": message, "type": "tokens", "code": "rate_limit_exceeded"}}
    with (
        RawServer(Play([json.dumps(error).encode()], status=413)) as server,
        open_backend("groq", "m", base_url=server.base_url, api_key="k", max_retries=0) as backend,
        pytest.raises(BackendError) as caught,
    ):
        backend.send(Request((user("hi", id="u"),)))
    assert (caught.value.kind, caught.value.limit_tokens) == ("rate_limit", None)


def test_a_profile_of_ones_own_has_the_wires_defaults() -> None:
    row = {"name": "own", "base_url": "http://localhost:9", "wire": "openai_responses"}
    with open_backend("own", "m", profile=row) as backend:
        assert isinstance(backend, OpenAIResponsesBackend)
        assert (backend.profile.path, backend.profile.reasoning_out.keep) == ("/responses", "all")
        body = backend.request_body(ASKED, stream=True)
    assert (body["store"], body["include"]) == (False, ["reasoning.encrypted_content"])


COMPACTED: dict[str, Any] = {"type": "compaction", "id": "cmp_1", "encrypted_content": "CMP"}


def test_the_services_own_compaction_stands_first_until_another_model_is_asked(tmp_path: Path) -> None:
    """The block survives a restart; the log keeps what stood before it, and a model that cannot read it gets that."""
    message = {
        "type": "message",
        "id": "msg_c",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Sure."}],
    }
    compacted = json.dumps({"object": "response", "status": "completed", "output": [message, COMPACTED]}).encode()
    asked = {"context_management": [{"type": "compaction", "compact_threshold": 200_000}]}
    store = f"sqlite:///{tmp_path / 'chat.db'}"
    with RawServer(said(1), Play([compacted]), said(2), said(3), said(4)) as server:
        url = server.base_url
        for questions in (("one", "two", "three"), ("four",)):
            with (
                open_backend("openai", MODEL, wire="openai_responses", base_url=url, api_key="k") as backend,
                AgentContext(
                    backend, session_id="s", store=store, context_window=20_000, system="Be brief."
                ) as context,
            ):
                for text in questions:
                    context.send(text, extra=asked)
                if questions == ("four",):
                    context.send("five", model="gpt-4.1")
    first, _, third, fourth, other = server.bodies
    assert first["context_management"] == asked["context_management"]
    assert third["input"] == [COMPACTED, {"role": "user", "content": "three"}]
    assert third["instructions"] == "Be brief."
    assert [item.get("id", item.get("content")) for item in fourth["input"]] == [
        "cmp_1",
        "three",
        "rs_2",
        "msg_2",
        "four",
    ]
    texts = [item["content"] for item in other["input"]]
    assert texts == ["one", "text 1", "two", "Sure.", "three", "text 2", "four", "text 3", "five"]
