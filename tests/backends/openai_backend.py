"""An OpenAI-compatible backend, a conversation with a tool round, and what would be sent of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ctxfold import Message, OpenAIChatBackend, Request, ToolCallPart, ToolSpec, assistant, system, tool_result, user

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
