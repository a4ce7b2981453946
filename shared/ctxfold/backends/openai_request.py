"""Requests in the chat-completions form, written as the provider's row says; pure."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, assert_never

from ctxfold.backends.profile import Profile
from ctxfold.errors import ConfigError
from ctxfold.messages import MediaPart, Message, ReasoningPart, TextPart, ToolCallPart, ToolSpec
from ctxfold.ports import Request

__all__ = ["canonical_lines", "project", "request_body", "thinks", "tool_body"]

_RESERVED = frozenset({"messages", "model", "stream", "tools"})


def request_body(profile: Profile, request: Request, *, model: str, stream: bool) -> dict[str, Any]:
    """The whole body of one request; ConfigError where the row cannot do what is asked."""
    clash = sorted(_RESERVED & request.extra.keys())
    if clash:
        raise ConfigError(f"extra may not set {', '.join(clash)}: use the request's own fields for that")
    rules = profile.request
    body: dict[str, Any] = {"model": model, "messages": project(profile, request.messages, model=model)}
    if request.tools:
        body["tools"] = [tool_body(tool) for tool in request.tools]
    choice = _tool_choice(profile, request)
    if choice is not None:
        body["tool_choice"] = choice
    body["stream"] = stream
    if stream and rules.include_usage:
        body["stream_options"] = {"include_usage": True}
    if request.max_tokens is not None:
        body[rules.max_tokens_field] = request.max_tokens
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.stop:
        body["stop"] = list(request.stop)
    body |= rules.extra_body
    if request.tools:
        body |= rules.extra_body_with_tools
    body |= _thinking_fields(profile, request.thinking)
    body |= request.extra
    if thinks(profile, request.thinking):
        for name in profile.thinking.drops:
            body.pop(name, None)
    return body


def thinks(profile: Profile, thinking: bool | str | None) -> bool:
    """Whether the model will think, as far as request and row tell."""
    return bool(thinking) if thinking is not None else profile.thinking.default_on is True


def _thinking_fields(profile: Profile, thinking: bool | str | None) -> Mapping[str, Any]:
    rules = profile.thinking
    if thinking is None:
        return rules.on if rules.default_on else {}
    if thinking is True:
        return rules.on
    if thinking is False:
        if rules.off is None and rules.default_on:
            raise ConfigError(
                f"provider {profile.name!r} cannot switch thinking off for this model: leave thinking unset"
            )
        return rules.off or {}
    if thinking not in rules.effort:
        levels = ", ".join(rules.effort) or "none"
        raise ConfigError(
            f"provider {profile.name!r} knows no thinking effort {thinking!r} (levels: {levels}): use one of these, True or False"
        )
    return {**rules.on, **rules.effort[thinking]}


def _tool_choice(profile: Profile, request: Request) -> Any:
    choice = request.tool_choice
    if choice is None:
        return None
    names = [tool.name for tool in request.tools]
    if choice in ("auto", "none"):
        return choice if names else None
    if choice != "required" and choice not in names:
        raise ConfigError(
            f"tool_choice {choice!r} is no tool of this request ({', '.join(names) or 'it has none'}): "
            "use auto, none, required or a tool's name"
        )
    if not names:
        raise ConfigError("tool_choice 'required' needs tools, the request has none")
    forced = profile.request.forced_tool_choice
    if forced is False:
        raise ConfigError(f"provider {profile.name!r} cannot force a tool call: use tool_choice='auto'")
    if forced == "not_while_thinking" and thinks(profile, request.thinking):
        raise ConfigError(
            f"provider {profile.name!r} cannot force a tool call while thinking: use tool_choice='auto' or thinking=False"
        )
    return choice if choice == "required" else {"type": "function", "function": {"name": choice}}


def tool_body(tool: ToolSpec) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = dict(tool.parameters) or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def canonical_lines(tools: Iterable[ToolSpec], messages: Iterable[Mapping[str, Any]]) -> bytes:
    """Tools, then projected messages, one JSON object a line, keys sorted and tool arguments parsed."""
    rows: list[Any] = [tool_body(tool) for tool in tools]
    rows += [_parsed(message) for message in messages]
    text = "".join(json.dumps(r, ensure_ascii=False, sort_keys=True, separators=(",", ":")) + "\n" for r in rows)
    return text.encode("utf-8", "surrogatepass")


def _parsed(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if "tool_calls" not in message:
        return message
    calls: list[dict[str, Any]] = []
    for call in message["tool_calls"]:
        function = dict(call["function"])
        with contextlib.suppress(ValueError):  # else compared as the text that is sent
            function["arguments"] = json.loads(function["arguments"])
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}


def project(profile: Profile, messages: Sequence[Message], *, model: str) -> list[dict[str, Any]]:
    """The messages as they travel; nothing is changed in the messages themselves."""
    rules = profile.request
    round_start = max((i for i, m in enumerate(messages) if m.role == "user" and m.kind == "message"), default=-1)
    rows: list[dict[str, Any]] = []
    leading = True
    for index, message in enumerate(messages):
        match message.role:
            case "system":
                if rules.one_leading_system and leading and rows:
                    rows[0]["content"] += "\n\n" + message.text
                elif rules.one_leading_system and not leading:
                    # a template that takes one system message refuses any further on
                    rows.append(_said("user", message))
                else:
                    rows.append(_said(rules.system_role, message))
                continue
            case "user":
                rows.append(_said("user", message))
            case "assistant":
                rows.append(_assistant(profile, message, model=model, in_round=index > round_start))
            case "tool":
                rows.extend(_results(message))
            case _:
                assert_never(message.role)
        leading = False
    return rows


def _said(role: str, message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"role": role, "content": _content(message)}
    if message.name:
        row["name"] = message.name
    return row


def _content(message: Message) -> str | list[Any]:
    """A plain string when there is only text, else a list of typed blocks; media travel in the shape they came in."""
    if not any(isinstance(part, MediaPart) for part in message.parts):
        return message.text
    blocks: list[Any] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            blocks.append({"type": "text", "text": part.text})
        elif isinstance(part, MediaPart):
            blocks.append(json.loads(part.data))
    return blocks


def _assistant(profile: Profile, message: Message, *, model: str, in_round: bool) -> dict[str, Any]:
    row = _said("assistant", message)
    calls = message.tool_calls
    if not row["content"] and calls and profile.request.empty_content == "null":
        row["content"] = None
    field = profile.reasoning_out.field
    if field is not None:
        reasoning = _reasoning(profile, message, model=model, in_round=in_round)
        if reasoning is not None:
            row[field] = reasoning
    if calls:
        row["tool_calls"] = [_call(call) for call in calls]
    return row


def _reasoning(profile: Profile, message: Message, *, model: str, in_round: bool) -> str | list[Any] | None:
    """What the row's reasoning field carries for this turn; None when the field is left out."""
    rules = profile.reasoning_out
    calls = bool(message.tool_calls)
    keeps = {"none": False, "all": True, "current_round": in_round, "tool_rounds": calls}[rules.keep]
    if keeps and not (rules.same_model_only and message.model not in (None, model)):
        parts = [part for part in message.parts if isinstance(part, ReasoningPart)]
        if rules.field == profile.reasoning_in.details_field:
            blocks = [block for part in parts if part.details is not None for block in json.loads(part.details)]
            if blocks:
                return blocks
        elif parts and any(part.text for part in parts):
            return "".join(part.text for part in parts)
    wants = rules.placeholder_on == "all" or (rules.placeholder_on == "tool_calls" and calls)
    return rules.placeholder if wants else None


def _call(call: ToolCallPart) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(call.extra) if call.extra is not None else {}
    return {
        **row,
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _results(message: Message) -> list[dict[str, Any]]:
    results = message.tool_results
    rows: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": result.call_id, "content": result.content} for result in results
    ]
    media = [json.loads(part.data) for part in message.parts if isinstance(part, MediaPart)]
    if media:
        rows[-1]["content"] = [{"type": "text", "text": results[-1].content}, *media]
    return rows
