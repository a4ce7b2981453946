"""Writes and reads one message a line in its provider's shape, with the missing fields in an extra object."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

from ctxfold.backends.anthropic.jsonl import anthropic_message, anthropic_row
from ctxfold.backends.converse.jsonl import converse_message, converse_row
from ctxfold.backends.converse.request import BLOCKS
from ctxfold.backends.gemini.jsonl import gemini_message, gemini_row
from ctxfold.backends.openai_chat.jsonl import openai_message, openai_row
from ctxfold.backends.openai_responses.jsonl import is_responses_row, responses_message, responses_row
from ctxfold.errors import MessageError
from ctxfold.messages import Message, MessageKind, Part, Role, Usage, Visibility, says_something, validated
from ctxfold.validation import as_dict, as_dicts, as_list, as_text, is_a, json_problem

if TYPE_CHECKING:
    from pydantic import TypeAdapter

KEY = "ctxfold"
_CHAT_FIELDS = frozenset(
    {"function_call", "reasoning", "reasoning_content", "reasoning_details", "tool_call_id", "tool_calls"}
)
_ANTHROPIC_BLOCKS = frozenset({"redacted_thinking", "thinking", "tool_result", "tool_use"})
_TEXT_KEYS = frozenset({"images", "output", "reasoning", "refusal", "text", "thinking", "transcript"})
_NAME_KEYS = frozenset(
    {"block_type", "created_at", "date", "id", "model", "name", "object", "role", "status", "timestamp", "type"}
)
_DATA_CHARS = 128  # no name and no digest is longer
_WRITERS: Mapping[str, Callable[[Message], dict[str, Any]]] = {
    "anthropic_messages": anthropic_row,
    "bedrock_converse": converse_row,
    "gemini": gemini_row,
    "openai_chat": openai_row,
    "openai_responses": responses_row,
}
_READERS: Mapping[str, Callable[[Mapping[str, Any], str], Message]] = {
    "anthropic_messages": anthropic_message,
    "bedrock_converse": converse_message,
    "gemini": gemini_message,
    "openai_chat": openai_message,
    "openai_responses": responses_message,
}


def to_line(message: Message, wire: str) -> str:
    """Returns the message as one line without its newline; `from_line` restores the same message."""
    row = _WRITERS[wire](message)
    extra_fields: dict[str, Any] = {"id": message.id, "wire": wire}
    if message.kind != "message":
        extra_fields["kind"] = message.kind
    for name in ("model", "finish_reason", "visibility", "preserve_reasoning"):
        if getattr(message, name) is not None:
            extra_fields[name] = getattr(message, name)
    if message.usage is not None:
        extra_fields["usage"] = asdict(message.usage)
    native = _READERS[wire](row, message.id)
    if native.role != message.role:
        extra_fields["role"] = message.role
    if native.name != message.name:
        extra_fields["name"] = message.name
    if native.parts != message.parts:
        extra_fields["parts"] = [asdict(part) for part in message.parts]
    return json.dumps({**row, KEY: extra_fields}, ensure_ascii=False)


def from_line(line: str, wire: str, new_id: Callable[[], str]) -> Message:
    """Parses a line in the wire that its `ctxfold.wire` names, else the one that its shape shows, else `wire`.

    A message without an id gets a new one. Raises MessageError when the line is not a message.
    """
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"the line is not JSON ({json_problem(error)}): {line[:80]!r}") from None
    if not isinstance(value, dict):
        raise MessageError(f"the line is not a JSON object: {line[:80]!r}")
    row = cast("dict[str, Any]", value)
    extra_fields = _object(row.pop(KEY, {}), KEY)
    default = "openai_chat" if wire == "gemini" else wire  # a content of Gemini has parts, which its shape shows
    reader = _READERS.get(str(extra_fields.get("wire") or _shape(row) or default))
    if reader is None:
        raise MessageError(
            f"the line was written for {extra_fields['wire']!r}: use one of {', '.join(sorted(_READERS))}"
        )
    identity = extra_fields.get("id")
    message = reader(row, identity if isinstance(identity, str) and identity else new_id())
    try:
        message = validated(_completed(message, extra_fields))
    except (TypeError, ValueError) as error:
        if isinstance(error, MessageError):
            raise
        raise MessageError(f"the object under {KEY!r} is wrong: {error}") from None
    if "parts" not in extra_fields:
        _check_kept(row, message)
    return message


def _check_kept(row: Mapping[str, Any], message: Message) -> None:
    """Raises MessageError for a line with text or data that its message does not have: none is dropped in silence."""
    kept = {text for _, text in _texts([asdict(part) for part in message.parts], nested=True)} | {message.name}
    whole = "\n".join(text for text in kept if text)
    says = says_something(message)
    for place, text in _texts(row):
        *_, key = place.rsplit(".", 1)
        words = sum(any(map(str.isalpha, word)) for word in text.split())
        told = not says or key in _TEXT_KEYS or not text.isascii() or len(text) > _DATA_CHARS or words > 1
        named = key in _NAME_KEYS and not place.startswith("audio.")  # the id of an answer that was spoken
        if told and not named and text.strip() and text.strip() not in whole:
            raise MessageError(
                f"its field {place} has no place in a message ({text[:60]!r}): put it into the content, or leave it out"
            )


def _texts(value: object, place: str = "", *, nested: bool = False) -> Iterator[tuple[str, str]]:
    """Yields each text in a JSON value with the path of its field; with `nested`, also those in texts that are JSON."""
    if isinstance(value, str):
        yield place, value
        with suppress(ValueError, RecursionError):
            if nested and not isinstance(inner := json.loads(value), str):
                yield from _texts(inner, place, nested=True)
    elif is_a(value, dict):
        for key, held in as_dict(value).items():
            yield from _texts(held, f"{place}.{key}".lstrip("."), nested=nested)
    else:
        for held in as_list(value):
            yield from _texts(held, place, nested=nested)


def _shape(row: Mapping[str, Any]) -> str | None:
    """Returns the wire of a line when its fields occur in only one of them, else None."""
    if is_responses_row(row):
        return "openai_responses"
    if "parts" in row:
        return "gemini"
    blocks = as_dicts(row.get("content"))
    if blocks and all("type" not in block and block.keys() & BLOCKS for block in blocks):
        return "bedrock_converse"
    kinds = {as_text(block.get("type")) for block in blocks if not isinstance(block.get("thinking"), list)}
    if kinds & _ANTHROPIC_BLOCKS:
        return "anthropic_messages"
    chat = row.get("role") == "developer" or not _CHAT_FIELDS.isdisjoint(row) or row.get("content", "") is None
    return "openai_chat" if chat else None


def _completed(message: Message, extra_fields: Mapping[str, Any]) -> Message:
    role, kind, usage = (
        extra_fields.get("role", message.role),
        extra_fields.get("kind", "message"),
        extra_fields.get("usage"),
    )
    if role not in get_args(Role) or kind not in get_args(MessageKind):
        raise MessageError(f"role {role!r} or kind {kind!r} is not known")
    if extra_fields.get("visibility", "user") not in get_args(Visibility):
        raise MessageError(f"visibility {extra_fields['visibility']!r} is not known")
    for name in ("name", "model", "finish_reason"):
        if not isinstance(extra_fields.get(name, ""), str):
            raise MessageError(f"{name} is not text: {extra_fields[name]!r}")
    return replace(
        message,
        role=role,
        kind=kind,
        name=extra_fields.get("name", message.name),
        model=extra_fields.get("model"),
        finish_reason=extra_fields.get("finish_reason"),
        visibility=extra_fields.get("visibility"),
        preserve_reasoning=extra_fields.get("preserve_reasoning"),
        usage=None if usage is None else Usage(**_object(usage, "usage")),
        parts=_parts().validate_python(extra_fields["parts"]) if "parts" in extra_fields else message.parts,
    )


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MessageError(f"{name} is not a JSON object: {str(value)[:80]!r}")
    return cast("dict[str, Any]", value)


@cache
def _parts() -> TypeAdapter[tuple[Part, ...]]:
    from pydantic import Field, TypeAdapter

    return TypeAdapter(tuple[Annotated[Part, Field(discriminator="type")], ...])
