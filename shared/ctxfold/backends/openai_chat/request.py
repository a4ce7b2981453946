"""Writes chat-completion requests by the rules of a profile. Pure."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, assert_never

from ctxfold.backends.media import chat_form, media_block, unread
from ctxfold.backends.openai_chat.parse import WIRE
from ctxfold.backends.profile import (
    DETAILS,
    WIRES,
    Profile,
    RequestRules,
    arguments_text,
    check_extra,
    function_fields,
    json_lines,
    kept_reasoning,
    thinking_fields,
    tool_choice,
    without_refused,
)
from ctxfold.history.alternation import alternating
from ctxfold.messages import MediaPart, Message, Part, ReasoningPart, TextPart, ToolCallPart, ToolSpec, joined_texts
from ctxfold.protocols import Request
from ctxfold.validation import as_dict, as_text, strict_json

_RESERVED = frozenset({"messages", "model", "stream", "tools"})


def request_body(profile: Profile, request: Request, *, model: str, stream: bool) -> dict[str, Any]:
    """Returns the JSON body of a request; raises ConfigError when the profile does not support it."""
    check_extra(request, _RESERVED)
    rules = profile.request
    messages = project(profile, request.messages, model=model, unbound_before=request.unbound_before)
    body: dict[str, Any] = {"model": model, "messages": messages}
    if request.tools:
        body["tools"] = [tool_body(tool) for tool in request.tools]
    choice = tool_choice(profile, request)
    if choice is not None:
        plain = choice in ("auto", "none", "required")
        body["tool_choice"] = choice if plain else {"type": "function", "function": {"name": choice}}
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
    if profile.cache.key_field is not None and request.cache_key is not None:
        body[profile.cache.key_field] = request.cache_key
    body |= thinking_fields(profile, request.thinking)
    body |= request.extra
    return without_refused(profile, body, request.thinking)


def tool_body(tool: ToolSpec) -> dict[str, Any]:
    return {"type": "function", "function": function_fields(tool, "parameters")}


def canonical_lines(tools: Iterable[ToolSpec], messages: Iterable[Mapping[str, Any]]) -> bytes:
    """Returns tools, then projected messages, one JSON object a line, keys sorted and tool arguments parsed."""
    rows: list[Any] = [tool_body(tool) for tool in tools]
    rows += [_parsed(message) for message in messages]
    return json_lines(rows)


def _parsed(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if "tool_calls" not in message:
        return message
    calls: list[dict[str, Any]] = []
    for call in message["tool_calls"]:
        function = dict(call["function"])
        with contextlib.suppress(ValueError, RecursionError):  # else compared as the text that is sent
            function["arguments"] = strict_json(function["arguments"])
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}


def project(
    profile: Profile, messages: Sequence[Message], *, model: str, unbound_before: int = 0, joined: bool = True
) -> list[dict[str, Any]]:
    """Returns the messages in the form of requests; the messages themselves are unchanged.

    With `joined` false, adjacent messages of one role stay separate even when the profile joins them, to compare requests.
    """
    rules = profile.request
    kept = kept_reasoning(profile.reasoning_out, messages, model=model, unbound_before=unbound_before)
    sent = [
        message if keeps or message.role != "assistant" else message.without_reasoning()
        for message, keeps in zip(messages, kept, strict=True)
    ]
    rows: list[dict[str, Any]] = []
    leading = True
    sent = _with_media_behind(sent)
    for message in alternating(sent) if rules.alternating_roles and joined else sent:
        match message.role:
            case "system":
                if rules.system_leads and leading and rows:
                    rows[0]["content"] += "\n\n" + message.text
                elif rules.system_leads and not leading:
                    # a template with one leading system message refuses later ones
                    rows.append(_row("user", message))
                else:
                    rows.append(_row(rules.system_role, message))
                continue
            case "user":
                rows.append(_row("user", message))
            case "assistant":
                rows.append(_assistant(profile, message, model=model))
            case "tool":
                rows.extend(_results(message, rules))
            case _:
                assert_never(message.role)
        leading = False
    return rows


def _with_media_behind(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages with the media of tool results in a user message behind their round: a tool message has text alone."""
    moved: list[Message] = []
    media: list[Part] = []
    for index, message in enumerate(messages):
        if message.role == "tool":
            own = [part for part in message.parts if isinstance(part, MediaPart)]
            result = message.tool_results[-1]
            about = TextPart(f"(Attached to the result of {result.name or result.call_id}:)")
            media += [about, *own] if own else []
            moved.append(replace(message, parts=message.tool_results) if own else message)
        else:
            moved.append(message)
        if media and (index + 1 == len(messages) or messages[index + 1].role != "tool"):
            moved.append(Message(f"{message.id}:media", "user", tuple(media)))
            media = []
    return moved


def _row(role: str, message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"role": role, "content": _content(message)}
    if message.name:
        row["name"] = message.name
    return row


def _content(message: Message) -> str | list[Any]:
    """Returns a string when there is only text, else a list of typed blocks. The texts of a reply are one, of a user several."""
    if not any(isinstance(part, MediaPart) for part in message.parts):
        texts = [part.text for part in message.parts if isinstance(part, TextPart)]
        return joined_texts(texts) if message.role == "user" else "".join(texts)
    blocks: list[Any] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            blocks.append({"type": "text", "text": part.text})
        elif isinstance(part, MediaPart):
            blocks.append(_media(part))
    return blocks


def _media(part: MediaPart) -> dict[str, Any]:
    """Returns a block of another wire in the form of this one, and any other with a type as it came."""
    block = chat_form(media_block(part))
    return block if "type" in block else {"type": "text", "text": unread(part)}


def _assistant(profile: Profile, message: Message, *, model: str) -> dict[str, Any]:
    row = _row("assistant", message)
    calls = message.tool_calls
    if not row["content"] and calls and profile.request.empty_content == "null":
        row["content"] = None
    if profile.reasoning_out.field == "content":
        row["content"] = _with_thinking(message, row["content"])
    else:
        row |= _reasoning(profile, message)
    if profile.request.message_extra and message.model in (None, model):
        row |= _extra_fields(profile.request.message_extra, message)
    if calls:
        row["tool_calls"] = _calls(profile, message, model=model)
    return row


def _with_thinking(message: Message, content: object) -> object:
    """Returns the content with the reasoning as closed thinking chunks, and with the service's own blocks, in their places."""
    blocks: list[Any] = []
    for part in message.parts:
        match part:
            case ReasoningPart():
                sealed: list[dict[str, Any]] = [] if part.details is None else json.loads(part.details)
                own = [
                    block for block in sealed if not _is_foreign(block) and not isinstance(block.get("thinking"), str)
                ]
                signed = {} if part.signature is None else {"signature": part.signature}
                inner = [{"type": "text", "text": part.text}]
                thought = [{"type": "thinking", "thinking": inner, "closed": True, **signed}] if part.text else []
                blocks += own or thought
            case TextPart(text=text):
                blocks += [{"type": "text", "text": text}] if text else []
            case MediaPart():
                blocks.append(_media(part))
            case _:
                continue
    return content if all(block["type"] == "text" for block in blocks) else blocks


def _extra_fields(names: Sequence[str], message: Message) -> dict[str, Any]:
    """Returns the fields that the provider sent with the content of this message."""
    extra: dict[str, Any] = {}
    for part in message.parts:
        if isinstance(part, TextPart) and part.extra is not None:
            extra |= as_dict(as_dict(json.loads(part.extra)).get(WIRE))
    return {name: value for name, value in extra.items() if name in names}


def _reasoning(profile: Profile, message: Message) -> dict[str, Any]:
    """Returns the reasoning of this turn in the fields that the profile has for it."""
    rules = profile.reasoning_out
    field = rules.field
    if field is None:
        return {}
    parts = [part for part in message.parts if isinstance(part, ReasoningPart)]
    if field in DETAILS:
        fields: dict[str, list[Any]] = {}
        for part in parts:
            for block in json.loads(part.details) if part.details is not None else ():
                if not _is_foreign(block):
                    fields.setdefault(DETAILS["thinking" in as_text(block["type"])], []).append(block)
        if fields:
            return fields
        field = rules.text_field
    if field is not None and any(part.text for part in parts):
        return {field: "".join(part.text for part in parts)}
    wants = rules.placeholder_on == "all" or (rules.placeholder_on == "tool_calls" and bool(message.tool_calls))
    return {rules.field: rules.placeholder} if wants and rules.field is not None else {}


def _is_foreign(block: object) -> bool:
    """Returns True for an item of the Responses API or a part of Gemini, which the same model may have sent on that wire."""
    kind = as_text(as_dict(block).get("type"))
    return kind in ("", "compaction", "reasoning") or (kind.endswith("_call") and not kind.startswith("reasoning."))


def _calls(profile: Profile, message: Message, *, model: str) -> list[dict[str, Any]]:
    """Returns the calls with the fields that their provider added; they are sent to that provider only."""
    rules = profile.request
    own = message.model in (None, model)
    extras = [_fields(call) for call in message.tool_calls]
    if not own:
        extras = [{name: value for name, value in e.items() if name in rules.call_extra} for e in extras]
    if rules.call_placeholder is not None and not any(extras):
        extras[0] = rules.call_placeholder
    return [_call(call, extra, rules) for call, extra in zip(message.tool_calls, extras, strict=True)]


def _fields(call: ToolCallPart) -> dict[str, Any]:
    """Returns what came beside a call on this wire; what another wire keeps there stands under its name."""
    extra: dict[str, Any] = json.loads(call.extra) if call.extra is not None else {}
    return {name: value for name, value in extra.items() if name not in WIRES}


def _call(call: ToolCallPart, extra: Mapping[str, Any], rules: RequestRules) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments_text(call, rules.malformed_arguments)}
    return {**extra, "id": _call_id(call.id, rules), "type": "function", "function": function}


def _call_id(original: str, rules: RequestRules) -> str:
    if not rules.short_call_ids or re.fullmatch("[a-zA-Z0-9]{9}", original):
        return original
    return hashlib.sha256(original.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def _results(message: Message, rules: RequestRules) -> list[dict[str, Any]]:
    return [
        {"role": "tool", "tool_call_id": _call_id(result.call_id, rules), "content": result.content}
        for result in message.tool_results
    ]
