"""Tells requests for summaries from those of the conversation."""

from __future__ import annotations

from typing import Any

__all__ = ["asks_on_live_prefix", "asks_with_transcript"]


def _text(message: Any) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(b.get("text", "") for b in content or ())


def asks_on_live_prefix(body: Any) -> bool:
    """Returns True for a request that repeats the conversation, with the instruction to summarise behind it."""
    return "[A note by the context manager" in _text(body["messages"][-1])


def asks_with_transcript(body: Any) -> bool:
    return "<transcript>" in _text(body["messages"][-1])
