"""Converts stored messages to and from the shape of Anthropic's Messages API without loss."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ctxfold.backends.anthropic.request import EXTRAS, message_blocks
from ctxfold.errors import MessageError, UnknownRoleError
from ctxfold.messages import MediaPart, Message, Part, ReasoningPart, Role, TextPart, ToolCallPart, ToolResultPart
from ctxfold.validation import as_dict, as_dicts, as_text

_ROLES: Mapping[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
_MEDIA = frozenset({"audio", "document", "file", "image", "video"})


def anthropic_row(message: Message) -> dict[str, Any]:
    """Returns the message in the shape of the Messages API; a system prompt keeps its role, unlike in requests."""
    return {"role": "user" if message.role == "tool" else message.role, "content": message_blocks(message)}


def anthropic_message(row: Mapping[str, Any], message_id: str) -> Message:
    """Parses a row, tool results as a tool message; raises MessageError when it is not a message."""
    role, blocks = role_and_blocks(row)
    if isinstance(blocks, str):
        return Message(message_id, role, (TextPart(blocks),) if blocks else ())
    parts = [part for block in blocks for part in _parts(block)]
    results = any(isinstance(part, ToolResultPart) for part in parts)
    if results and any(isinstance(part, TextPart) for part in parts):
        raise MessageError("a line holds tool results and text: write two lines, the results first")
    return Message(message_id, "tool" if results else role, tuple(parts))


def role_and_blocks(row: Mapping[str, Any]) -> tuple[Role, str | list[dict[str, Any]]]:
    """Returns the role of a row, and its content, text or blocks; raises MessageError for anything else."""
    role = _ROLES.get(as_text(row.get("role")))
    if role is None:
        raise UnknownRoleError(f"role {row.get('role')!r}: use {', '.join(_ROLES)}")
    content: object = row.get("content")
    if isinstance(content, str):
        return role, content
    if type(content) is not list:
        raise MessageError(f"content of a {role} line is neither text nor a list: {str(content)[:80]!r}")
    return role, as_dicts(row["content"])


def _parts(block: Mapping[str, Any]) -> list[Part]:
    match as_text(block.get("type")):
        case "text":
            return [TextPart(as_text(block.get("text")), _extra(block))]
        case "thinking":
            return [ReasoningPart(as_text(block.get("thinking")), as_text(block.get("signature")) or None)]
        case "tool_use":
            arguments = json.dumps(as_dict(block.get("input")), ensure_ascii=False)
            return [ToolCallPart(as_text(block.get("id")), as_text(block.get("name")), arguments, _extra(block))]
        case "tool_result":
            return _result(block)
        case kind if kind in _MEDIA:
            return [MediaPart(kind, json.dumps(block, ensure_ascii=False))]
        case _:  # a block that only the provider can read
            return [ReasoningPart("", None, json.dumps([block], ensure_ascii=False))]


def _extra(block: Mapping[str, Any]) -> str | None:
    fields = {name: block[name] for name in sorted(EXTRAS) if block.get(name)}
    return json.dumps(fields, ensure_ascii=False) if fields else None


def _result(block: Mapping[str, Any]) -> list[Part]:
    content: object = block.get("content")
    inner = as_dicts(content)
    text = content if isinstance(content, str) else "".join(as_text(b.get("text")) for b in inner)
    media = [MediaPart(as_text(b["type"]), json.dumps(b, ensure_ascii=False)) for b in inner if b.get("type") in _MEDIA]
    result = ToolResultPart(as_text(block.get("tool_use_id")), text, None, block.get("is_error") is True)
    return [result, *media]
