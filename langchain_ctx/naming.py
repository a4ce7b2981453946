"""Ids for messages that came without: whoever keeps a list hands it over again, and the same list gets the same ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

__all__ = ["named"]


def named(messages: Iterable[BaseMessage]) -> list[BaseMessage]:
    """The messages, those without an id as copies that have one: made of their content and of the id before them.

    So the same words said twice are two messages, and a list that is given again, longer, is known as far as it was.
    """
    found: list[BaseMessage] = []
    before = ""
    for message in messages:
        told = message if message.id else message.model_copy(update={"id": _id(message, before)})
        before = told.id or ""
        found.append(told)
    return found


def _id(message: BaseMessage, before: str) -> str:
    calls = [(c["id"], c["name"], c["args"]) for c in message.tool_calls] if isinstance(message, AIMessage) else None
    result = message.tool_call_id if isinstance(message, ToolMessage) else None
    said = repr((before, message.type, message.content, calls, result))
    return hashlib.sha256(said.encode("utf-8", "backslashreplace")).hexdigest()[:32]
