"""A conversation, requests and events of the Messages API, for the tests of its wire."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ctxfold import (
    AnthropicBackend,
    Message,
    ReasoningPart,
    Reply,
    Request,
    TextPart,
    ToolCallPart,
    ToolSpec,
    system,
    tool_result,
    user,
)
from ctxfold.backends.anthropic import MessagesParser
from ctxfold.backends.profile import load_profile
from ctxfold.protocols import Chunk
from ctxfold.stream import Fold

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
