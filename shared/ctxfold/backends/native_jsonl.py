"""One message a line, in the shape of the provider that it travels to, with what that shape lacks beside it.

A line is an object as the service takes it, plus `ctxfold`: the id, the wire, and what a message of ours has besides. Where
the provider's shape cannot give the same message back, `ctxfold.parts` holds its parts, and these count when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

from ctxfold.backends.answer import as_dicts, as_text
from ctxfold.backends.native_anthropic import anthropic_message, anthropic_row
from ctxfold.backends.native_openai import openai_message, openai_row
from ctxfold.errors import MessageError
from ctxfold.given import json_problem
from ctxfold.messages import Message, MessageKind, Part, Role, Usage, Visibility, validated

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["from_line", "to_line"]

KEY = "ctxfold"
_CHAT_FIELDS = frozenset(
    {"function_call", "reasoning", "reasoning_content", "reasoning_details", "tool_call_id", "tool_calls"}
)
_ANTHROPIC_BLOCKS = frozenset({"redacted_thinking", "thinking", "tool_result", "tool_use"})
_WRITERS: Mapping[str, Callable[[Message], dict[str, Any]]] = {
    "anthropic_messages": anthropic_row,
    "openai_chat": openai_row,
}
_READERS: Mapping[str, Callable[[Mapping[str, Any], str], Message]] = {
    "anthropic_messages": anthropic_message,
    "openai_chat": openai_message,
}


def to_line(message: Message, wire: str) -> str:
    """The message as one line without its newline; `from_line` gives the same message back."""
    row = _WRITERS[wire](message)
    beside: dict[str, Any] = {"id": message.id, "wire": wire}
    if message.kind != "message":
        beside["kind"] = message.kind
    for name in ("model", "finish_reason", "visibility", "preserve_reasoning"):
        if getattr(message, name) is not None:
            beside[name] = getattr(message, name)
    if message.usage is not None:
        beside["usage"] = asdict(message.usage)
    native = _READERS[wire](row, message.id)
    if native.role != message.role:
        beside["role"] = message.role
    if native.name != message.name:
        beside["name"] = message.name
    if native.parts != message.parts:
        beside["parts"] = [asdict(part) for part in message.parts]
    return json.dumps({**row, KEY: beside}, ensure_ascii=False)


def from_line(line: str, wire: str, new_id: Callable[[], str]) -> Message:
    """The message of a line, read as its `ctxfold.wire` says, else by its shape, else as `wire` has it; without an id it gets one.

    MessageError when the line is no message.
    """
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"the line is not JSON ({json_problem(error)}): {line[:80]!r}") from None
    if not isinstance(value, dict):
        raise MessageError(f"the line is no JSON object: {line[:80]!r}")
    row = cast("dict[str, Any]", value)
    beside = _object(row.pop(KEY, {}), KEY)
    reader = _READERS.get(str(beside.get("wire") or _shape(row) or wire))
    if reader is None:
        raise MessageError(f"the line was written for {beside['wire']!r}: use one of {', '.join(sorted(_READERS))}")
    identity = beside.get("id")
    message = reader(row, identity if isinstance(identity, str) and identity else new_id())
    try:
        return validated(_completed(message, beside))
    except (TypeError, ValueError) as error:
        if isinstance(error, MessageError):
            raise
        raise MessageError(f"what stands under {KEY!r} is wrong: {error}") from None


def _shape(row: Mapping[str, Any]) -> str | None:
    """The wire that a line is written for, where only one of them has what it holds."""
    kinds = {as_text(block.get("type")) for block in as_dicts(row.get("content"))}
    if kinds & _ANTHROPIC_BLOCKS:
        return "anthropic_messages"
    chat = row.get("role") == "developer" or not _CHAT_FIELDS.isdisjoint(row) or row.get("content", "") is None
    return "openai_chat" if chat else None


def _completed(message: Message, beside: Mapping[str, Any]) -> Message:
    role, kind, usage = beside.get("role", message.role), beside.get("kind", "message"), beside.get("usage")
    if role not in get_args(Role) or kind not in get_args(MessageKind):
        raise MessageError(f"role {role!r} or kind {kind!r} is not known")
    if beside.get("visibility", "user") not in get_args(Visibility):
        raise MessageError(f"visibility {beside['visibility']!r} is not known")
    for name in ("name", "model", "finish_reason"):
        if not isinstance(beside.get(name, ""), str):
            raise MessageError(f"{name} is no text: {beside[name]!r}")
    return replace(
        message,
        role=role,
        kind=kind,
        name=beside.get("name", message.name),
        model=beside.get("model"),
        finish_reason=beside.get("finish_reason"),
        visibility=beside.get("visibility"),
        preserve_reasoning=beside.get("preserve_reasoning"),
        usage=None if usage is None else Usage(**_object(usage, "usage")),
        parts=_parts().validate_python(beside["parts"]) if "parts" in beside else message.parts,
    )


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MessageError(f"{name} is no JSON object: {str(value)[:80]!r}")
    return cast("dict[str, Any]", value)


@cache
def _parts() -> TypeAdapter[tuple[Part, ...]]:
    from pydantic import Field, TypeAdapter

    return TypeAdapter(tuple[Annotated[Part, Field(discriminator="type")], ...])
