"""Defines how items of the Responses API are kept in the parts of a message, and media in its form. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from ctxfold.backends.media import chat_form, media_block, unread
from ctxfold.messages import MediaPart, ToolCallPart
from ctxfold.validation import as_dict, as_dicts, strict_text

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
