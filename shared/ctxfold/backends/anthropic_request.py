"""Requests in the form of Anthropic's Messages API, written as the provider's row says; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ctxfold.backends.anthropic_blocks import Block, project
from ctxfold.backends.cache_marks import mark_stable
from ctxfold.backends.profile import Profile
from ctxfold.backends.request_rules import check_extra, thinking_fields, tool_choice, without_refused
from ctxfold.errors import ConfigError
from ctxfold.history.alternation import NOBODY_ASKED
from ctxfold.messages import Message, ToolSpec
from ctxfold.ports import Request

__all__ = ["canonical_lines", "request_body", "tool_body"]

DEFAULT_MAX_TOKENS = 8192  # the field is required: for models whose row does not say what they can write
MIN_THINKING_TOKENS = 1024
_RESERVED = frozenset({"max_tokens", "messages", "model", "stream", "system", "tools"})
_CHOICES: Mapping[str, str] = {"auto": "auto", "none": "none", "required": "any"}


def request_body(profile: Profile, request: Request, *, model: str, stream: bool) -> dict[str, Any]:
    """The whole body of one request; ConfigError where the row cannot do what is asked."""
    check_extra(request, _RESERVED)
    projected = project(profile, request.messages, model=model, unbound_before=request.unbound_before)
    tools = [tool_body(tool) for tool in request.tools]
    if request.stable_messages is not None or request.cache_key is not None:
        mark_stable(
            profile.cache,
            request.messages,
            projected.blocks,
            tools=tools,
            stable_messages=request.stable_messages,
            taken=int(profile.cache.mark_field in request.extra),
        )
    max_tokens = request.max_tokens or profile.max_output or DEFAULT_MAX_TOKENS
    body: dict[str, Any] = {"model": model, "max_tokens": max_tokens}
    if projected.system:
        body["system"] = projected.system
    body["messages"] = _begun(projected.rows)
    if tools:
        body["tools"] = tools
    choice = tool_choice(profile, request)
    if choice is not None:
        body["tool_choice"] = {"type": _CHOICES[choice]} if choice in _CHOICES else {"type": "tool", "name": choice}
    body["stream"] = stream
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.stop:
        body["stop_sequences"] = list(request.stop)
    body |= profile.request.extra_body
    if tools:
        body |= profile.request.extra_body_with_tools
    body |= thinking_fields(profile, request.thinking)
    body |= request.extra
    return _within(without_refused(profile, body, request.thinking))


def _begun(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not rows or rows[0]["role"] == "user":
        return rows
    return [{"role": "user", "content": [{"type": "text", "text": NOBODY_ASKED}]}, *rows]


def _within(body: dict[str, Any]) -> dict[str, Any]:
    """The body with its thinking budget, if it has one, below `max_tokens`, which includes it."""
    thinking: object = body.get("thinking")
    budget = cast("dict[str, Any]", thinking).get("budget_tokens") if isinstance(thinking, dict) else None
    if not isinstance(budget, int) or budget < body["max_tokens"]:
        return body
    if body["max_tokens"] <= MIN_THINKING_TOKENS:
        raise ConfigError(
            f"max_tokens is {body['max_tokens']} and thinking alone takes {MIN_THINKING_TOKENS} or more with {body['model']}: "
            "raise max_tokens or use thinking=False"
        )
    fitting = max(MIN_THINKING_TOKENS, min(budget, body["max_tokens"] // 2))
    return {**body, "thinking": {**cast("dict[str, Any]", thinking), "budget_tokens": fitting}}


def tool_body(tool: ToolSpec) -> Block:
    row: Block = {"name": tool.name}
    if tool.description:
        row["description"] = tool.description
    row["input_schema"] = dict(tool.parameters) or {"type": "object", "properties": {}}
    return row


def canonical_lines(
    profile: Profile, tools: Sequence[ToolSpec], messages: Sequence[Message], *, model: str, unbound_before: int = 0
) -> bytes:
    """Tools, then system, then every block with its role, one JSON object a line, keys sorted."""
    projected = project(profile, messages, model=model, unbound_before=unbound_before)
    lines: list[Any] = [tool_body(tool) for tool in tools]
    lines += [{"role": "system", **block} for block in projected.system]
    lines += [{"role": row["role"], **block} for row in projected.rows for block in row["content"]]
    text = "".join(json.dumps(x, ensure_ascii=False, sort_keys=True, separators=(",", ":")) + "\n" for x in lines)
    return text.encode("utf-8", "surrogatepass")
