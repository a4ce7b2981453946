"""Converts stored messages to and from the contents of generateContent without loss."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ctxfold.backends.gemini.parse import WIRE
from ctxfold.backends.gemini.request import SIGNATURE, media_part, message_parts
from ctxfold.errors import MessageError, UnknownRoleError
from ctxfold.messages import MediaPart, Message, Part, ReasoningPart, Role, TextPart, ToolCallPart, ToolResultPart
from ctxfold.validation import as_dict, as_dicts, as_text

_ROLES: Mapping[str, Role] = {"system": "system", "user": "user", "model": "assistant", "function": "tool"}


def gemini_row(message: Message) -> dict[str, Any]:
    """Returns the message as a content; a system prompt keeps its role, unlike in requests."""
    if message.role != "tool":
        return {"role": "model" if message.role == "assistant" else message.role, "parts": message_parts(message)}
    parts: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, ToolResultPart):
            response = {"error" if part.is_error else "output": part.content}
            parts.append({"functionResponse": {"id": part.call_id, "name": part.name or "", "response": response}})
        elif isinstance(part, MediaPart):
            parts.append(media_part(part))
    return {"role": "user", "parts": parts}


def gemini_message(row: Mapping[str, Any], message_id: str) -> Message:
    """Parses a content, function responses as a tool message; raises MessageError when it is not a message."""
    role = _ROLES.get(as_text(row.get("role")) or "user")
    if role is None:
        raise UnknownRoleError(f"role {row.get('role')!r}: use {', '.join(_ROLES)}")
    content: object = row.get("parts")
    if type(content) is not list:
        raise MessageError(f"parts of a {role} line are not a list: {str(content)[:80]!r}")
    names: Counter[str] = Counter()
    parts = [_read(part, names) for part in as_dicts(row["parts"])]
    results = any(isinstance(part, ToolResultPart) for part in parts)
    if results and any(isinstance(part, TextPart) for part in parts):
        raise MessageError("a line holds function responses and text: write two lines, the responses first")
    return Message(message_id, "tool" if results else role, tuple(parts))


def _read(part: Mapping[str, Any], names: Counter[str]) -> Part:
    text, signature = part.get("text"), as_text(part.get(SIGNATURE)) or None
    if isinstance(text, str):
        if part.get("thought"):
            return ReasoningPart(text, signature)
        return TextPart(text, _extra_fields(part, "text", "thought"))
    if "functionCall" in part:
        call = as_dict(part["functionCall"])
        arguments = json.dumps(call.get("args") or {}, ensure_ascii=False)
        return ToolCallPart(
            _call_id(call, names), as_text(call.get("name")), arguments, _extra_fields(part, "functionCall")
        )
    if "functionResponse" in part:
        answer = as_dict(part["functionResponse"])
        return _result(answer, _call_id(answer, names))
    for name in ("inlineData", "fileData"):
        if name in part:
            return MediaPart(_kind(as_dict(part[name])), json.dumps(part, ensure_ascii=False))
    return ReasoningPart("", None, json.dumps([part], ensure_ascii=False))


def _call_id(body: Mapping[str, Any], names: Counter[str]) -> str:
    """Returns the id of a call or of its response, which the service may leave out: both then go by name and order."""
    name = as_text(body.get("name")) or "call"
    names[name] += 1
    return as_text(body.get("id")) or (name if names[name] == 1 else f"{name}_{names[name]}")


def _extra_fields(part: Mapping[str, Any], *names: str) -> str | None:
    extra = {name: value for name, value in part.items() if name not in names}
    return json.dumps({WIRE: extra}, ensure_ascii=False) if extra else None


def _result(answer: Mapping[str, Any], call_id: str) -> ToolResultPart:
    response, name = as_dict(answer.get("response")), as_text(answer.get("name")) or None
    for key in ("output", "error"):
        if list(response) == [key] and isinstance(response[key], str):
            return ToolResultPart(call_id, response[key], name, key == "error")
    return ToolResultPart(call_id, json.dumps(response, ensure_ascii=False), name)


def _kind(media: Mapping[str, Any]) -> str:
    kind = as_text(media.get("mimeType")).partition("/")[0]
    return kind if kind in ("audio", "image", "video") else "file"
