"""Converts stored messages to and from the shape of Bedrock's Converse API without loss."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ctxfold.backends.anthropic.jsonl import role_and_blocks
from ctxfold.backends.converse.request import message_blocks
from ctxfold.backends.profile import load_profile
from ctxfold.errors import MessageError
from ctxfold.messages import MediaPart, Message, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from ctxfold.validation import as_dict, as_dicts, as_text

_MEDIA = frozenset({"audio", "document", "image", "video"})


def converse_row(message: Message) -> dict[str, Any]:
    """Returns the message in the shape of the Converse API; a system prompt keeps its role, unlike in requests."""
    role = "user" if message.role == "tool" else message.role
    return {"role": role, "content": message_blocks(message, load_profile("bedrock"))}


def converse_message(row: Mapping[str, Any], message_id: str) -> Message:
    """Parses a row, tool results as a tool message; raises MessageError when it is not a message."""
    role, blocks = role_and_blocks(row)
    if isinstance(blocks, str):
        return Message(message_id, role, (TextPart(blocks),) if blocks else ())
    results = [] if role == "assistant" else [block for block in blocks if "toolResult" in block]
    if results and len(results) < len(blocks):
        raise MessageError("a line holds tool results and other blocks: write two lines, the results first")
    parts = [part for block in blocks for part in (_result(block) if results else [_part(block)])]
    return Message(message_id, "tool" if results else role, tuple(parts))


def _part(block: Mapping[str, Any]) -> Part:
    match block:
        case {"text": str(text)}:
            return TextPart(text)
        case {"reasoningContent": {"reasoningText": dict()}}:
            reasoning = as_dict(block["reasoningContent"]["reasoningText"])
            return ReasoningPart(as_text(reasoning.get("text")), as_text(reasoning.get("signature")) or None)
        case {"toolUse": dict()} if "type" not in block["toolUse"]:
            call = as_dict(block["toolUse"])
            arguments = json.dumps(as_dict(call.get("input")), ensure_ascii=False)
            return ToolCallPart(as_text(call.get("toolUseId")), as_text(call.get("name")), arguments)
        case _:
            kind = next((name for name in block if name in _MEDIA), None)
            data = json.dumps(dict(block), ensure_ascii=False)
            # what is left is a block that only the service can read
            return ReasoningPart("", None, f"[{data}]") if kind is None else MediaPart(kind, data)


def _result(block: Mapping[str, Any]) -> list[Part]:
    result = as_dict(block["toolResult"])
    inner = as_dicts(result.get("content"))
    text = "".join(json.dumps(b["json"], ensure_ascii=False) if "json" in b else as_text(b.get("text")) for b in inner)
    media = [_part(b) for b in inner if not _MEDIA.isdisjoint(b)]
    return [ToolResultPart(as_text(result.get("toolUseId")), text, None, result.get("status") == "error"), *media]
