"""Converts stored messages to and from the shape of the Responses API without loss: items, several of them as an output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, cast

from ctxfold.backends.openai_responses.client_tools import CLIENT_TOOLS
from ctxfold.backends.openai_responses.parse import ResponsesParser
from ctxfold.backends.openai_responses.request import message_items
from ctxfold.backends.profile import load_profile
from ctxfold.errors import BackendError, MessageError, UnknownRoleError
from ctxfold.messages import MediaPart, Message, Part, Role, TextPart, ToolCallPart, ToolResultPart
from ctxfold.stream import Fold
from ctxfold.validation import as_dicts, as_text

_ROLES: Mapping[str, Role] = {"system": "system", "developer": "system", "user": "user"}
_CONTENT = frozenset({"input_text", "input_image", "input_file", "output_text", "refusal"})
_PLAIN_CALL = frozenset({"type", "call_id", "name", "arguments"})
_ITEMS = frozenset({"function_call", "function_call_output", "reasoning", *CLIENT_TOOLS})


def responses_row(message: Message) -> dict[str, Any]:
    """Returns a reply as an object with its `output` items, any other message as its item; of several tool results the first."""
    items = message_items(message, store=True)
    if message.role == "assistant":
        return {"object": "response", "output": items}
    return {"type": "message", **items[0]} if items else {"type": "message", "role": message.role, "content": ""}


def is_responses_row(row: Mapping[str, Any]) -> bool:
    """Returns True for a line whose fields occur in this wire only."""
    kinds = {part.get("type") for part in as_dicts(row.get("content"))}
    return isinstance(row.get("output"), list) or row.get("type") in _ITEMS or not kinds.isdisjoint(_CONTENT)


def responses_message(row: Mapping[str, Any], message_id: str) -> Message:
    """Parses an output or one item, a result as a tool message; raises MessageError when it is neither."""
    if row.get("type") == "function_call_output":
        return Message(message_id, "tool", _result(row))
    role = as_text(row.get("role"))
    if role in _ROLES:
        return Message(message_id, _ROLES[role], _content(row.get("content"), role))
    if role == "assistant" or row.get("type") in _ITEMS:
        return Message(message_id, "assistant", _replied([row], message_id))
    if not isinstance(row.get("output"), list):
        raise UnknownRoleError(f"role {row.get('role')!r} without an output: use {', '.join(_ROLES)} or assistant")
    return Message(message_id, "assistant", _replied(as_dicts(row["output"]), message_id))


def _replied(items: Sequence[Mapping[str, Any]], message_id: str) -> tuple[Part, ...]:
    """Returns the parts of a reply; items with fields of their own are read as the service's answer is."""
    parts: list[Part] = []
    for plain, run in groupby(items, key=lambda item: _plain(item) is not None):
        parts += [part for part in map(_plain, run) if part is not None] if plain else _parsed(list(run), message_id)
    return tuple(parts)


def _plain(item: Mapping[str, Any]) -> Part | None:
    """Returns the text or the call of an item that has nothing else, None for another item."""
    if item.keys() <= _PLAIN_CALL and item.get("type") == "function_call":
        return ToolCallPart(as_text(item.get("call_id")), as_text(item.get("name")), as_text(item.get("arguments")))
    text: object = item.get("content")
    if item.get("role") == "assistant" and isinstance(text, str) and item.keys() <= {"type", "role", "content"}:
        return TextPart(text)
    return None


def _parsed(items: Sequence[Mapping[str, Any]], message_id: str) -> tuple[Part, ...]:
    parser, fold = ResponsesParser(load_profile("generic")), Fold(message_id)
    whole = json.dumps({"object": "response", "status": "completed", "output": items})
    try:
        for chunk in (*parser.feed(whole.encode()), *parser.close()):
            fold.feed(chunk)
        return fold.close().message.parts
    except BackendError as error:
        raise MessageError(f"an item of the line cannot be read: {error}") from None


def _content(content: object, role: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (TextPart(content),) if content else ()
    if not isinstance(content, list):
        raise MessageError(f"content of a {role} line is neither text nor a list: {str(content)[:80]!r}")
    return tuple(_part(part) for part in as_dicts(cast("object", content)))


def _part(part: Mapping[str, Any]) -> Part:
    kind = as_text(part.get("type"))
    if kind in ("input_text", "output_text", "text"):
        return TextPart(as_text(part.get("text")))
    return MediaPart(kind.removeprefix("input_"), json.dumps(part, ensure_ascii=False))


def _result(row: Mapping[str, Any]) -> tuple[Part, ...]:
    output: object = row.get("output")
    parts = [_part(part) for part in as_dicts(output)]
    text = output if isinstance(output, str) else "".join(p.text for p in parts if isinstance(p, TextPart))
    media = [part for part in parts if isinstance(part, MediaPart)]
    return (ToolResultPart(as_text(row.get("call_id")), text), *media)
