"""Errors of services, told apart by their rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ctxfold.backends import load_profile
from ctxfold.backends.failures import failure, http_failure
from ctxfold.backends.profile import common_rules


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


def test_in_stream_errors_take_their_status_from_the_code() -> None:
    row = load_profile("generic")
    assert failure(row, {"message": "x", "code": 429}).kind == "rate_limit"
    assert failure(row, {"message": "x"}).kind == "server"
    assert failure(row, {"message": "x", "type": "invalid_request_error"}).kind == "rejected"
    assert failure(row, {"message": "x", "code": 429}).status is None
