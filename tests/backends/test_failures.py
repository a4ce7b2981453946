"""Errors of services, told apart by their rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ctxfold.backends.errors import failure, foreign_failure, http_failure
from ctxfold.backends.profile import common_rules, load_profile


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


OVERFLOWS = [
    (
        "openrouter",
        (
            "This endpoint's maximum context length is 131072 tokens. However, you requested about 205318 tokens (204294 of text "
            'input, 1024 in the output). Please reduce the length of either one, or use the "middle-out" transform.'
        ),
        131_072,
        205_318,
    ),
    (
        "vllm",
        "This model's maximum context length is 32768 tokens. However, your request has 40001 input tokens. Please reduce it.",
        32_768,
        40_001,
    ),
    (
        "vllm",
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 8192 tokens and "
            "your request has 6012 input tokens (4096 > 8192 - 6012). None"
        ),
        8_192,
        6_012,
    ),
    ("vllm", "The decoder prompt (length 40001) is longer than the maximum model length of 32768.", 32_768, 40_001),
    (
        "openai",
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300123 tokens. Please reduce them.",
        272_000,
        300_123,
    ),
    (
        "gemini",
        "Unable to submit request because the input token count is 32000 but model only supports up to 8192.",
        8_192,
        32_000,
    ),
    (
        "generic",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        131_072,
        537_812,
    ),
    (
        "generic",
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        32_768,
        40_000,
    ),
    ("generic", "prompt token count of 130000 exceeds the limit of 128000", 128_000, 130_000),
    (
        "generic",
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292. Try a shorter one",
        4_081,
        4_292,
    ),
    (
        "generic",
        "`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 10000 `inputs` tokens and 0 `max_new_tokens`",
        4_097,
        10_000,
    ),
    ("generic", "Input is too long for requested model.", None, None),
    ("ollama", "the input length exceeds the context length", None, None),
    ("dashscope", "Total message token length exceed model limit (32768 tokens).", None, None),
]


@pytest.mark.parametrize(("provider", "message", "limit", "requested"), OVERFLOWS)
def test_an_overflow_is_read_however_it_is_worded(
    provider: str, message: str, limit: int | None, requested: int | None
) -> None:
    error = http_failure(load_profile(provider), 400, json.dumps({"error": {"message": message}}).encode())
    assert (error.kind, error.limit_tokens, error.requested_tokens) == ("context_overflow", limit, requested)


def test_what_only_sounds_like_an_overflow() -> None:
    throttled = (
        "Request too large for gpt-5 on tokens per min (TPM): Limit 30000, Requested 45000. Reduce the input or output."
    )
    body = {"error": {"message": throttled, "type": "tokens", "code": "rate_limit_exceeded"}}
    assert http_failure(load_profile("openai"), 429, json.dumps(body).encode()).kind == "rate_limit"
    empty = {"type": "invalid_request_error", "message": "Your credit balance is too low to access the Anthropic API."}
    assert http_failure(load_profile("anthropic"), 400, json.dumps({"error": empty}).encode()).kind == "quota"


def test_in_stream_errors_take_their_status_from_the_code() -> None:
    row = load_profile("generic")
    assert failure(row, {"message": "x", "code": 429}).kind == "rate_limit"
    assert failure(row, {"message": "x"}).kind == "server"
    assert failure(row, {"message": "x", "type": "invalid_request_error"}).kind == "rejected"
    assert failure(row, {"message": "x", "code": 429}).status is None


def test_an_overflow_of_prompt_and_reply_together_names_both() -> None:
    text = "input length and `max_tokens` exceed context limit: 190,000 + 20,000 > 200,000, decrease input length"
    error = failure(load_profile("anthropic"), {"type": "invalid_request_error", "message": text}, status=400)
    assert (error.kind, error.limit_tokens) == ("context_overflow", 200_000)
    assert (error.requested_tokens, error.reply_tokens) == (210_000, 20_000)


def test_the_page_of_a_proxy_is_no_message() -> None:
    page = b"<html><head><title>502</title></head><body>nginx</body></html>"
    shown = str(http_failure(load_profile("generic"), 502, page))
    assert "a body of 62 bytes that is not JSON" in shown
    assert "nginx" not in shown
    assert "upstream gone" in str(http_failure(load_profile("generic"), 502, b"upstream gone"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("APITimeoutError", "timeout"),
        ("TimeoutException", "timeout"),
        ("Timeout", "timeout"),
        ("APIConnectionError", "connect"),
        ("ConnectError", "connect"),
        ("RemoteProtocolError", "connection"),
        ("Surprise", "server"),
    ],
)
def test_errors_of_other_clients_are_known_by_the_names_of_their_classes(name: str, kind: str) -> None:
    own = type(f"Of{name}", (type(name, (Exception,), {}),), {})
    error = foreign_failure(own("no answer"), "m")
    assert error.kind == kind
    assert f"Of{name}: no answer" in str(error)
    assert foreign_failure(TimeoutError("late"), "m").kind == "timeout"
