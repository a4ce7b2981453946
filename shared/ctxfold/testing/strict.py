"""Checks requests as strict providers do, and refuses them in the same words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from ctxfold.lru import LruCache
from ctxfold.testing.script import Body, ErrorReply, api_error, as_list, as_mapping, calls_of
from ctxfold.validation import strict_json

Strict: TypeAlias = Literal["openai", "deepseek", "moonshot", "gemini", "anthropic", "alternating"]
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


def thinks(body: Body, strict: Strict | None, *, reasoning: bool) -> bool:
    """Returns True when this request is answered in thinking mode."""
    if strict in ("deepseek", "moonshot"):
        return as_mapping(body.get("thinking")).get("type") != "disabled"
    if strict == "anthropic":
        mode = as_mapping(body.get("thinking")).get("type")
        return mode in ("enabled", "adaptive") or (reasoning and mode != "disabled")
    return reasoning


def refusal(body: Body, strict: Strict | None, produced: LruCache[str, str]) -> ErrorReply | None:
    """Returns the error 400 that this request gets; `produced` maps call ids to the reasoning they were sent with."""
    messages = as_list(body.get("messages"))
    shaped = isinstance(body.get("messages"), list) and all(isinstance(one, Mapping) for one in messages)
    if not shaped:
        return api_error(400, "'messages' must be an array of objects.", param="messages")
    if strict is None:
        return None
    if not messages:
        return api_error(400, "Invalid 'messages': empty array, at least 1 is expected.", param="messages")
    checks = (_roles(messages), _arguments(messages, any_text=strict == "openai"), _pairs(messages))
    message = next((problem for problem in checks if problem), None)
    if message is None and strict == "alternating":
        message = _alternation(messages)
    if message is None and thinks(body, strict, reasoning=False):
        message = _deepseek(body, messages) if strict == "deepseek" else _moonshot(messages, produced)
    return api_error(400, message, param="messages", code="invalid_request_error") if message else None


def _roles(messages: Sequence[Mapping[str, Any]]) -> str | None:
    for index, message in enumerate(messages):
        if message.get("role") not in ROLES:
            known = ", ".join(sorted(ROLES))
            return f"Invalid role {message.get('role')!r} at messages[{index}]: expected one of {known}."
    return None


def _arguments(messages: Sequence[Mapping[str, Any]], *, any_text: bool) -> str | None:
    """Checks the arguments of calls; OpenAI takes back the text that its model wrote, whatever it is."""
    needed = "arguments that are text" if any_text else "arguments that are a JSON object"
    for index, message in enumerate(messages):
        for call in calls_of(message):
            try:
                text = call["function"]["arguments"]
                valid = isinstance(text, str) if any_text else isinstance(strict_json(text), dict)
            except (KeyError, TypeError, ValueError, RecursionError):
                valid = False
            if not valid or not call.get("id"):
                return f"Invalid tool call at messages[{index}].tool_calls: needs an id, a function name and {needed}."
    return None


def _pairs(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Checks that each call is answered right after it, and that each answer follows its call."""
    open_ids: list[str] = []
    caller = -1
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in open_ids:
                return (
                    f"Invalid parameter: messages[{index}] with role 'tool' must be a response to a "
                    f"preceding message with 'tool_calls' (tool_call_id {message.get('tool_call_id')!r})."
                )
            open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            break
        open_ids = [call["id"] for call in calls_of(message)]
        caller = index
    if not open_ids:
        return None
    return (
        f"An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        f"'tool_call_id': messages[{caller}] has no response for {', '.join(open_ids)}."
    )


def _alternation(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Checks the rule of Gemma and Mistral: a system message first, then user and assistant in turns, without calls and results."""
    awaited = "user"
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "tool" or (role == "system" and index == 0):
            continue
        if role == "assistant" and calls_of(message) and awaited == "assistant":
            continue
        if role != awaited:
            return (
                "After the optional system message, conversation roles must alternate user and assistant roles except for "
                f"tool calls and results: messages[{index}] has role {role!r}, expected {awaited!r}."
            )
        awaited = "assistant" if role == "user" else "user"
    return None


def _deepseek(body: Body, messages: Sequence[Mapping[str, Any]]) -> str | None:
    choice = body.get("tool_choice")
    if choice == "required" or isinstance(choice, dict):
        return "Thinking mode does not support this tool_choice."
    for message in messages:
        if message["role"] == "assistant" and not isinstance(message.get("reasoning_content"), str):
            return "The `reasoning_content` in the thinking mode must be passed back to the API."
    return None


def _moonshot(messages: Sequence[Mapping[str, Any]], produced: LruCache[str, str]) -> str | None:
    for index, message in enumerate(messages):
        calls = calls_of(message) if message["role"] == "assistant" else []
        if not calls:
            continue
        sent = message.get("reasoning_content")
        if not isinstance(sent, str) or not sent:
            return (
                f"thinking is enabled but reasoning_content is missing in assistant tool call message at index {index}"
            )
        if any((produced.get(call["id"]) or sent) != sent for call in calls):
            return f"reasoning_content was modified in assistant tool call message at index {index}"
    return None
