"""What a LlamaIndex caller asks, as a ctxfold Request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools.types import BaseTool

from ctxfold import Message, Request, ToolSpec
from ctxfold.errors import ConfigError
from ctxfold.messages import ToolCallPart
from ctxfold.ports import UuidIds
from llamaindex_ctx.convert import from_chat_message
from llamaindex_ctx.marks import is_section
from llamaindex_ctx.media import with_files
from llamaindex_ctx.rounds import paired

__all__ = ["tool_rows", "write_request"]

# switches of LlamaIndex itself, no parameters of a model
_NOT_SENT = frozenset({"allow_parallel_tool_calls", "formatted", "tool_required", "verbose"})

_CALL_FIELDS = frozenset({"id", "type", "function", "index"})


def write_request(messages: Sequence[ChatMessage], options: Mapping[str, Any], *, extra: Mapping[str, Any]) -> Request:
    """The request for these messages; an option without a field of its own goes into the body, unless it is None."""
    rest = {name: value for name, value in options.items() if value is not None and name not in _NOT_SENT}
    stop: str | Sequence[str] = rest.pop("stop", ())
    body = rest.pop("extra_body", {})
    return Request(
        tuple(_sent(messages)),
        tools=tuple(_spec(tool) for tool in rest.pop("tools", ())),
        tool_choice=_choice(rest.pop("tool_choice", None)),
        max_tokens=rest.pop("max_tokens", None),
        temperature=rest.pop("temperature", None),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        thinking=rest.pop("thinking", None),
        model=rest.pop("model", None),
        extra={**extra, **rest, **body},
    )


def _sent(messages: Sequence[ChatMessage]) -> list[Message]:
    """The messages with every call answered, as strict providers demand; files and what a memory injected are sent as well."""
    new_id = UuidIds().new
    taken = [_with_extras(from_chat_message(with_files(message), new_id()), message) for message in messages]
    for index, message in enumerate(messages):
        if is_section(message):
            # a round begins at a user's message, not at recalled text
            taken[index] = replace(taken[index], kind="section")
    return paired(taken, new_id)


def _with_extras(message: Message, source: ChatMessage) -> Message:
    """The message with what its provider sent beside each call, such as a signature, and wants back."""
    rows: object = source.additional_kwargs.get("tool_calls") if message.tool_calls else None
    extras: dict[str, str] = {}
    for row in cast("list[object]", rows) if isinstance(rows, list) else ():
        fields = cast("dict[str, Any]", row) if isinstance(row, dict) else {}
        extra = {name: value for name, value in fields.items() if name not in _CALL_FIELDS}
        if extra:
            extras[str(fields.get("id"))] = json.dumps(extra)
    if not extras:
        return message
    parts = (replace(p, extra=extras.get(p.id, p.extra)) if isinstance(p, ToolCallPart) else p for p in message.parts)
    return replace(message, parts=tuple(parts))


def tool_rows(tools: Sequence[BaseTool]) -> list[dict[str, Any]]:
    """The tools in the chat-completions form, which events and payloads can carry."""
    return [tool.metadata.to_openai_tool(skip_length_check=True) for tool in tools]


def _spec(tool: object) -> ToolSpec:
    if isinstance(tool, ToolSpec):
        return tool
    row = tool.metadata.to_openai_tool(skip_length_check=True) if isinstance(tool, BaseTool) else tool
    found = _function(row)
    if not found.get("name"):
        raise ConfigError(
            f"tools holds {type(tool).__name__} {str(tool)[:80]!r}: give LlamaIndex tools or "
            '{"type": "function", "function": {"name": ...}}'
        )
    return ToolSpec(found["name"], found.get("description") or "", found.get("parameters") or {})


def _choice(choice: object) -> str | None:
    """Both forms in which callers name a choice: a word or tool name, or the chat-completions object."""
    if isinstance(choice, Mapping):
        name = _function(cast("object", choice)).get("name")
        if not isinstance(name, str):
            raise ConfigError(f"tool_choice {choice!r} names no function: use auto, none, required or a tool's name")
        return name
    if choice is None or isinstance(choice, str):
        return "required" if choice == "any" else choice
    raise ConfigError(f"tool_choice is {choice!r}: use auto, none, required or a tool's name")


def _function(row: object) -> Mapping[str, Any]:
    """What stands under "function" in a chat-completions object; empty when it is none."""
    found: object = cast("Mapping[str, Any]", row).get("function") if isinstance(row, Mapping) else None
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}
