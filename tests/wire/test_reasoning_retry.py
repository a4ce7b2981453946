"""A request that is refused for its reasoning is sent once more without it, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ctxfold import AgentContext, BackendError, open_backend
from tests.wire.anthropic_wire import MODEL
from tests.wire.raw_server import Play, RawServer

BOUND = "messages.1.content.0: thinking block is bound to a different conversation"
MISSING = "The `reasoning_content` in the thinking mode must be passed back to the API."


def said(text: str) -> Play:
    content = [{"type": "thinking", "thinking": "hm", "signature": "SIG"}, {"type": "text", "text": text}]
    return Play(
        [json.dumps({"type": "message", "model": MODEL, "content": content, "stop_reason": "end_turn"}).encode()]
    )


def refused(message: str) -> Play:
    return Play([json.dumps({"error": {"type": "invalid_request_error", "message": message}}).encode()], status=400)


def kinds(body: dict[str, Any]) -> list[str]:
    return [block["type"] for row in body["messages"] for block in row["content"]]


async def test_the_retry_after_bound_reasoning_is_another_request() -> None:
    """Step 7, the mutant of house.md: a retry after reasoning_replay that sends the same request again."""
    plays = (said("one"), refused(BOUND), said("two"), said("three"))
    for way in ("sync", "async"):
        with RawServer(*plays) as server:
            async with open_backend("anthropic", MODEL, base_url=server.base_url, api_key="k") as backend:
                context = AgentContext(backend, session_id=way, store="memory://", context_window=20_000)
                for text in ("first", "second", "third"):
                    if way == "sync":
                        context.send(text)
                    else:
                        await context.asend(text)
                assert [m.text for m in context.messages()] == ["first", "one", "second", "two", "third", "three"]
                context.close()
        first, second, again, third = server.bodies
        assert kinds(second) == ["text", "thinking", "text", "text"]
        assert kinds(again) == ["text", "text", "text"]
        assert [m["role"] for m in again["messages"]] == [m["role"] for m in second["messages"]]
        # what was dropped stays out, and the newer thought goes back
        assert kinds(third) == ["text", "text", "text", "thinking", "text", "text"]
        assert kinds(first) == ["text"]


def test_a_second_refusal_is_the_callers_to_see() -> None:
    """The retry is one: a service that refuses again is not asked for ever."""
    with (
        RawServer(said("one"), refused(BOUND)) as server,
        open_backend("anthropic", MODEL, base_url=server.base_url, api_key="k") as backend,
        AgentContext(backend, session_id="s", store="memory://", context_window=20_000) as context,
    ):
        context.send("first")
        with pytest.raises(BackendError, match="bound to a different conversation") as caught:
            context.send("second")
        assert caught.value.kind == "reasoning_replay"
        assert len(server.bodies) == 3


def test_nothing_is_sent_twice_where_the_row_would_say_the_same() -> None:
    """DeepSeek wants reasoning that was left out: the same request again could only be refused again."""
    with (
        RawServer(refused(MISSING)) as server,
        open_backend("deepseek", "deepseek-v4-pro", base_url=server.base_url, api_key="k") as backend,
        AgentContext(backend, session_id="s", store="memory://", context_window=20_000) as context,
    ):
        with pytest.raises(BackendError, match="must be passed back"):
            context.send("first")
        assert len(server.bodies) == 1
