"""Defines how items of the Responses API are kept in a message, and the calls of built-in tools that the client answers. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ctxfold.backends.media import chat_form, media_block, unread
from ctxfold.messages import MediaPart, ToolCallPart, ToolResultPart
from ctxfold.validation import as_dict, as_dicts, as_list, as_text, is_a, json_object, read_json, strict_text

Item: TypeAlias = dict[str, Any]
KEY = "openai_responses"  # under which texts and calls keep their item; other wires skip what has the name of a wire
_CALL_FIELDS = frozenset({"type", "call_id", "name", "arguments"})
# blocks of other wires, which may stand in the same place of a message
_FOREIGN_TYPES = frozenset({"redacted_thinking", "server_tool_use", "thinking"})


def text_extra(item: Mapping[str, Any], part: Mapping[str, Any] | None, index: int, after: str | None) -> Item:
    """Returns what is kept beside the text of a message item's part, less the text itself; a refusal stays whole.

    `part` is None for an item without content; `after` is the id of the reasoning before the item.
    """
    fields: Item = {"item": {name: value for name, value in item.items() if name != "content"}}
    if part is not None:
        fields["part"] = {name: value for name, value in part.items() if name != "text"}
    if index:
        fields["index"] = index
    return {KEY: _after(fields, after)}


def call_extra(item: Mapping[str, Any], after: str | None) -> str:
    """Returns what is kept beside a call, as JSON text: the fields of its item that the call does not have, of other items all."""
    plain = item.get("type") == "function_call"
    own = {name: value for name, value in item.items() if not plain or name not in _CALL_FIELDS}
    return strict_text({KEY: _after({"item": own}, after)})


def _after(fields: Item, after: str | None) -> Item:
    return fields if after is None else {**fields, "after": after}


def own_fields(extra: str | None) -> Mapping[str, Any]:
    """Returns what this wire kept beside a text or a call; an empty object where it kept nothing."""
    fields = as_dict(as_dict(json.loads(extra)).get(KEY)) if extra is not None else None
    return fields if fields is not None and isinstance(fields.get("item"), dict) else {}


def own_item(call: ToolCallPart) -> Item:
    """Returns the item of a call as far as this wire kept it: all of one that is no function call."""
    return dict(own_fields(call.extra).get("item", {}))


def sealed_items(details: str | None) -> list[Item]:
    """Returns the items that a reasoning part keeps; blocks of other wires are left out."""
    return [block for block in as_dicts(json.loads(details)) if _is_item(block)] if details is not None else []


def _is_item(block: Mapping[str, Any]) -> bool:
    kind: object = block.get("type")
    if not isinstance(kind, str) or kind in _FOREIGN_TYPES or kind.endswith("_tool_result"):
        return False
    if kind == "compaction":
        return "encrypted_content" in block and "content" not in block  # Anthropic's holds its summary as content
    return not kind.startswith("reasoning.")  # OpenRouter's on the chat wire


def media_part(part: MediaPart) -> Item:
    """Returns the media as an input part; one of another wire is converted, and text stands for one of no known form."""
    block = media_block(part)
    match block:
        case {"type": "input_image" | "input_file"}:
            return block
        case {"type": "document", "source": {"type": "url", "url": url}}:
            return {"type": "input_file", "file_url": url}
        case _:
            pass
    match chat_form(block):
        case {"type": "image_url", "image_url": {"url": str(url)} as image}:
            detail = {"detail": image["detail"]} if "detail" in image else {}
            return {"type": "input_image", "image_url": url, **detail}
        case {"type": "image_url", "image_url": str(url)}:
            return {"type": "input_image", "image_url": url}
        case {"type": "file", "file": file}:
            return {"type": "input_file", **as_dict(file)}
        case _:
            return block if "type" in block else {"type": "input_text", "text": unread(part)}


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
