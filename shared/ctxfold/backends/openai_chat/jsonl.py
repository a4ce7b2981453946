"""Converts stored messages to and from the shape of chat completions without loss."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ctxfold.errors import MessageError, UnknownRoleError
from ctxfold.messages import MediaPart, Message, Part, ReasoningPart, Role, TextPart, ToolCallPart, ToolResultPart
from ctxfold.validation import as_dict, as_dicts, as_text

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_CALL_KEYS = frozenset({"id", "type", "function"})


def openai_row(message: Message) -> dict[str, Any]:
    """Returns the message in the shape of chat completions; of several tool results only the first."""
    row: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.name is not None:
        row["name"] = message.name
    if message.reasoning:
        row["reasoning_content"] = message.reasoning
    details = [p.details for p in message.parts if isinstance(p, ReasoningPart) and p.details is not None]
    if details:
        row["reasoning_details"] = [block for text in details for block in json.loads(text)]
    if message.tool_calls:
        row["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.tool_results:
        row["tool_call_id"] = message.tool_results[0].call_id
    return row


def _content(message: Message) -> str | list[Any]:
    text = message.tool_results[0].content if message.tool_results else message.text
    media = [part for part in message.parts if isinstance(part, MediaPart)]
    if not media:
        return text
    if message.tool_results:
        return [{"type": "text", "text": text}, *(json.loads(part.data) for part in media)]
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else json.loads(part.data)
        for part in message.parts
        if isinstance(part, TextPart | MediaPart)
    ]


def _call(call: ToolCallPart) -> dict[str, Any]:
    extra: dict[str, Any] = json.loads(call.extra) if call.extra is not None else {}
    return {
        **extra,
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def openai_message(row: Mapping[str, Any], message_id: str) -> Message:
    """Parses a row; raises MessageError when it is not a message."""
    role = _ROLES.get(as_text(row.get("role")))
    if role is None:
        raise UnknownRoleError(f"role {row.get('role')!r}: use {', '.join(_ROLES)}")
    content: object = row.get("content")
    if content is not None and type(content) not in (str, list):
        raise MessageError(f"content of a {role} line is neither text nor a list: {str(content)[:80]!r}")
    if role == "tool":
        parts = _result(row)
    else:
        parts = [*_reasoning(row), *_visible(content), *(_called(call) for call in as_dicts(row.get("tool_calls")))]
    name = as_text(row.get("name")) or None
    return Message(message_id, role, tuple(parts), name=name)


def _visible(content: object) -> list[Part]:
    if isinstance(content, str):
        return [TextPart(content)] if content else []
    return [_block(block) for block in as_dicts(content)]


def _block(block: Mapping[str, Any]) -> Part:
    kind = as_text(block.get("type"))
    if kind == "text":
        return TextPart(as_text(block.get("text")))
    if kind == "thinking":  # Mistral's
        return ReasoningPart("".join(as_text(chunk.get("text")) for chunk in as_dicts(block.get("thinking"))))
    return MediaPart(kind.removesuffix("_url") or "file", json.dumps(block, ensure_ascii=False))


def _reasoning(row: Mapping[str, Any]) -> list[Part]:
    text = as_text(row.get("reasoning_content")) or as_text(row.get("reasoning"))
    details = as_dicts(row.get("reasoning_details"))
    if not text and not details:
        return []
    return [ReasoningPart(text, None, json.dumps(details, ensure_ascii=False) if details else None)]


def _called(call: Mapping[str, Any]) -> ToolCallPart:
    function = as_dict(call.get("function"))
    name, arguments = as_text(function.get("name")), function.get("arguments")
    if not name:
        raise MessageError(f"a tool call has no name: {json.dumps(call)[:80]}")
    extra = {key: value for key, value in call.items() if key not in _CALL_KEYS}
    return ToolCallPart(
        as_text(call.get("id")),
        name,
        arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False),
        json.dumps(extra, ensure_ascii=False) if extra else None,
    )


def _result(row: Mapping[str, Any]) -> list[Part]:
    call = as_text(row.get("tool_call_id"))
    if not call:
        raise MessageError("a tool line has no tool_call_id: name the call that it answers")
    parts = _visible(row.get("content"))
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    return [ToolResultPart(call, text), *(part for part in parts if isinstance(part, MediaPart))]
