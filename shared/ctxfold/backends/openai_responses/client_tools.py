"""Reads and answers the calls of built-in tools that the client runs: each kind has an item and an output of its own. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ctxfold.backends.openai_responses.items import Item, media_part
from ctxfold.messages import MediaPart, ToolResultPart
from ctxfold.validation import as_dict, as_dicts, as_list, as_text, is_a, json_object, read_json, strict_text

# what an item is called as a tool, and its fields that are the arguments of the call; an object alone is them
CLIENT_TOOLS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "apply_patch_call": ("apply_patch", ("operation",)),
    "computer_call": ("computer", ("action", "actions", "pending_safety_checks")),
    "custom_tool_call": ("", ("input",)),
    "local_shell_call": ("local_shell", ("action",)),
    "mcp_approval_request": ("mcp_approval", ("server_label", "name", "arguments")),
    "shell_call": ("shell", ("action",)),
    "tool_search_call": ("tool_search", ("arguments",)),
}
_BLANK = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"  # a screenshot is demanded
_CONSENT = frozenset({"approve", "approved", "ok", "true", "y", "yes"})


def client_call(item: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Returns (id, name, arguments) of a call that the client has to answer; None for any other item.

    A shell with a container, and a search for tools that does not say `client`, run at the service.
    """
    kind = as_text(item.get("type"))
    if kind not in CLIENT_TOOLS:
        return None
    if kind == "shell_call" and as_dict(item.get("environment")).get("type") not in (None, "local"):
        return None
    if kind == "tool_search_call" and item.get("execution") != "client":
        return None
    name, fields = CLIENT_TOOLS[kind]
    values = {field: item[field] for field in fields if item.get(field) is not None}
    alone: object = next(iter(values.values()), None) if len(fields) == 1 else None
    arguments = as_dict(alone) if is_a(alone, dict) else values
    identity = as_text(item.get("call_id")) or as_text(item.get("id"))
    return identity, name or as_text(item.get("name")), strict_text(arguments)


def client_output(item: Mapping[str, Any], result: ToolResultPart, media: Sequence[MediaPart]) -> list[Item]:
    """Returns the items that answer the call of an item with a result: its own output, and what that has no place for."""
    kind, text = as_text(item.get("type")), result.content
    answer: Item = {"type": f"{kind}_output", "call_id": item.get("call_id")}
    beside = [media_part(part) for part in media]
    match kind:
        case "mcp_approval_request":
            answer = {"type": "mcp_approval_response", "approval_request_id": item.get("id"), **_approval(result)}
        case "apply_patch_call":
            answer |= {"status": "failed" if result.is_error else "completed", "output": text}
        case "shell_call":
            limit = as_dict(item.get("action")).get("max_output_length")
            answer |= {"output": _shell(result)} | ({} if limit is None else {"max_output_length": limit})
        case "local_shell_call":
            answer |= {"id": item.get("call_id"), "output": text}
        case "computer_call":
            images = [part for part in beside if part.get("type") == "input_image"]
            shown = images[0] if images else {"image_url": _BLANK}
            screenshot = {name: shown[name] for name in ("image_url", "file_id") if name in shown}
            answer["output"] = {"type": "computer_screenshot", **screenshot}
            if item.get("pending_safety_checks"):
                answer["acknowledged_safety_checks"] = item["pending_safety_checks"]
            told = [{"type": "input_text", "text": text}] if text.strip() else []
            beside = [*told, *(part for part in beside if part is not shown)]
        case "tool_search_call":
            found = [*as_dicts(_read(text)), *as_dicts(as_dict(_read(text)).get("tools"))]
            answer = {**answer, "type": "tool_search_output", "execution": "client", "tools": found}
        case _:
            answer["output"] = [*([{"type": "input_text", "text": text}] if text else []), *beside] if beside else text
            beside = []
    if item.get("caller") is not None:
        answer["caller"] = item["caller"]
    return [answer, *([{"role": "user", "content": beside}] if beside else [])]


def _read(text: str) -> object:
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        return None


def _approval(result: ToolResultPart) -> Item:
    """Returns the decision: `approve` of an object, else a plain yes; what is anything else is the reason of a no."""
    said = json_object(result.content)
    if said is not None and isinstance(said.get("approve"), bool):
        reason = as_text(said.get("reason"))
        return {"approve": said["approve"] and not result.is_error, **({"reason": reason} if reason else {})}
    if result.content.strip().strip(".!").lower() in _CONSENT and not result.is_error:
        return {"approve": True}
    return {"approve": False, "reason": result.content}


def _shell(result: ToolResultPart) -> list[Item]:
    """Returns what each command printed: as the result has it in the service's form, else the whole text as one output."""
    value = _read(result.content)
    given = as_list(value) or as_list(as_dict(value).get("output"))
    if given and all({"stdout", "stderr", "outcome"} <= as_dict(one).keys() for one in given):
        return as_dicts(given)
    outcome = {"type": "exit", "exit_code": int(result.is_error)}
    return [{"stdout": result.content, "stderr": "", "outcome": outcome}]
