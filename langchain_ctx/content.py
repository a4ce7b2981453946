"""LangChain content, a string or a list of blocks, as parts and back.

A list leaves a layout beside the parts: which part came from which block, and what else the block held. Texts are not kept twice.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias, cast

from ctxfold.errors import MessageError
from ctxfold.messages import MediaPart, Message, Part, ReasoningPart, Role, TextPart
from ctxfold.validation import as_dicts, is_a, json_problem

Content: TypeAlias = "str | list[str | dict[Any, Any]]"
Block: TypeAlias = "dict[str, Any]"
Layout: TypeAlias = "list[Any]"

RESULT_SEPARATOR = "\n"  # between the texts of a tool's output, which the engine holds as one
_TEXTS = frozenset({"text", "text-plain"})  # the second one is a document, which is read like what a user writes
_REASONING_KEYS = {"reasoning": "reasoning", "thinking": "thinking"}
_THOUGHTS = frozenset({"function_call_signature", "reasoning", "reasoning_content", "redacted_thinking", "thinking"})
_REFERENCES = frozenset({"id", "item_id", "signature", "thought_signature"})
_MEDIA = {
    "image": "image",
    "image_url": "image",
    "audio": "audio",
    "input_audio": "audio",
    "file": "file",
    "video": "video",
}


def as_json(value: object, what: str) -> str:
    """Returns the value as JSON text; raises MessageError when JSON cannot represent it."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageError(f"{what} holds what JSON cannot ({json_problem(error)}): give plain values") from None


def parts_of(content: Content, role: Role, calls: Collection[str] = ()) -> tuple[list[Part], Layout | None]:
    """Returns the parts of a message's content, and the layout that restores a list of blocks; None for a string.

    `calls` are the ids of the message's tool calls, which blocks of the content may show.
    """
    if isinstance(content, str):
        return ([TextPart(content)] if content else []), None
    parts: list[Part] = []
    layout: Layout = []
    for block in content:
        part, place = _part_and_layout(block, role, calls)
        layout.append(place)
        if part is not None:
            parts.append(part)
    return parts, layout


def _part_and_layout(block: str | dict[Any, Any], role: Role, calls: Collection[str]) -> tuple[Part | None, Any]:
    if isinstance(block, str):
        return (TextPart(block) if block else None), ["s", len(block)]
    kind = str(block.get("type"))
    text = block.get("text")
    if kind in _TEXTS and isinstance(text, str):
        rest = _rest(block, "text", "type") if kind == "text" else _rest(block, "text")
        return (TextPart(text) if text else None), ["t", len(text), rest]
    thought = block.get(_REASONING_KEYS.get(kind, ""))
    if isinstance(thought, str):
        signature = block.get("signature")
        part = ReasoningPart(thought, signature if isinstance(signature, str) else None)
        return part, ["r", kind, _rest(block, "type", kind), len(thought)]
    if is_a(thought, list):
        return ReasoningPart(thought_text(thought)), ["x", dict(block)]
    if kind == "tool_call":
        shown = ["c", block["id"], _rest(block, "type", "id", "name", "args")] if block.get("id") in calls else None
        return None, shown or ["x", dict(block)]
    if kind in _MEDIA or (role in ("user", "tool") and kind != "None"):
        return _media(block, _MEDIA.get(kind, kind))
    return None, ["x", dict(block)]


def thought_text(thought: object) -> str:
    """Returns the text of a block of reasoning; Mistral's has it in pieces."""
    return thought if isinstance(thought, str) else "".join(str(p.get("text") or "") for p in as_dicts(thought))


def _rest(block: Mapping[Any, Any], *used: str) -> Block:
    return {str(k): v for k, v in block.items() if k not in used}


def _media(block: dict[Any, Any], kind: str) -> tuple[Part, Any]:
    """Returns the part of a media block, and the layout that restores the block."""
    wire = _wire(block)
    mime = block.get("mime_type")
    part = MediaPart(
        kind, as_json(wire, f"a block of type {block.get('type')!r}"), mime if isinstance(mime, str) else None
    )
    if wire is block:
        return part, ["m", "as_is"]
    rest = _rest(block, "type", "url", "base64", "mime_type")
    if _unwired(wire, rest) == block:
        return part, ["m", "v1", rest]
    rest = _rest(block, "type", "source")
    return part, ["m", "source", rest] if _unsourced(wire, rest) == block else ["m", "raw", dict(block)]


def _wire(block: dict[Any, Any]) -> dict[Any, Any]:
    """Converts a standard block, or an image in Anthropic's shape, to chat completions; returns any other unchanged."""
    match block:
        case {"type": "image", "url": str(url)}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "image", "base64": str(data), "mime_type": str(mime)}:
            return {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{data}"}}
        case {"type": "audio", "base64": str(data), "mime_type": str(mime)}:
            return {"type": "input_audio", "input_audio": {"data": data, "format": mime.rpartition("/")[2]}}
        case {"type": "file", "base64": str(data), "mime_type": str(mime)}:
            name = block.get("filename") or f"file.{mime.rpartition('/')[2]}"  # services refuse a file without a name
            return {"type": "file", "file": {"filename": name, "file_data": f"data:{mime};base64,{data}"}}
        case {"type": "file", "file_id": str(held)}:
            return {"type": "file", "file": {"file_id": held}}
        case {"type": "image", "source": {"type": "base64", "media_type": str(mime), "data": str(data)}}:
            return {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{data}"}}
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return {"type": "image_url", "image_url": {"url": url}}
        case _:
            return block


def _unwired(wire: Mapping[str, Any], rest: Block) -> Block | None:
    match wire:
        case {"type": "image_url", "image_url": {"url": str(url)}} if url.startswith("data:"):
            mime, data = _inline(url)
            return {"type": "image", "base64": data, "mime_type": mime, **rest}
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return {"type": "image", "url": url, **rest}
        case {"type": "input_audio", "input_audio": {"data": data, "format": form}}:
            return {"type": "audio", "base64": data, "mime_type": f"audio/{form}", **rest}
        case {"type": "file", "file": {"file_data": url}}:
            mime, data = _inline(url)
            return {"type": "file", "base64": data, "mime_type": mime, **rest}
        case {"type": "file", "file": {"file_id": held}}:
            return {"type": "file", "file_id": held, **rest}
        case _:
            return None


def _unsourced(wire: Mapping[str, Any], rest: Block) -> Block | None:
    match wire:
        case {"type": "image_url", "image_url": {"url": str(url)}} if url.startswith("data:"):
            mime, data = _inline(url)
            return {"type": "image", "source": {"type": "base64", "media_type": mime, "data": data}, **rest}
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return {"type": "image", "source": {"type": "url", "url": url}, **rest}
        case _:
            return None


def _inline(url: str) -> tuple[str, str]:
    mime, _, data = url.removeprefix("data:").partition(";base64,")
    return mime, data


def without_thought_blocks(layout: Layout) -> Layout:
    """Returns the layout without blocks of reasoning, sealed ones among them, and without what refers to these.

    Texts and calls lose Gemini's signatures, and the ids under which OpenAI demands the reasoning before an item.
    """
    kept = [p for p in layout if p[0] != "r" and not (p[0] == "x" and _original(p[1]).get("type") in _THOUGHTS)]
    refers = [p[0] in ("t", "c") or (p[0] == "x" and p[1].get("type") == "function_call") for p in kept]
    return [[*p[:-1], _unbound(p[-1])] if bound else p for p, bound in zip(kept, refers, strict=True)]


def _original(block: Block) -> Block:
    """Returns what a block of LangChain's version v1 carries that has no type of its own there, else the block itself."""
    value = block.get("value")
    return cast("Block", value) if block.get("type") == "non_standard" and isinstance(value, dict) else block


def _unbound(fields: Block) -> Block:
    unbound = {name: value for name, value in fields.items() if name not in _REFERENCES}
    if isinstance(extras := fields.get("extras"), dict):
        unbound["extras"] = {n: v for n, v in cast("Block", extras).items() if n not in _REFERENCES}
    return unbound


def content_of(message: Message, layout: Layout | None) -> Content:
    """Restores content by its layout; returns plain content for a message that has changed since or has no layout."""
    if layout is None:
        return plain_content(message)
    sources = _Sources(message, RESULT_SEPARATOR if message.role == "tool" else "")
    blocks = [sources.block(place) for place in layout]
    if any(block is None for block in blocks) or not sources.used_up():
        return plain_content(message)
    return cast("Content", blocks)


def plain_content(message: Message) -> Content:
    """Returns text as a string, and text with media as a list of blocks."""
    if not any(isinstance(p, MediaPart) for p in message.parts):
        return message.text
    blocks: list[str | dict[Any, Any]] = []
    if message.role == "tool" and message.text:
        blocks.append({"type": "text", "text": message.text})
    for part in message.parts:
        if isinstance(part, TextPart):
            blocks.append({"type": "text", "text": part.text})
        elif isinstance(part, MediaPart):
            blocks.append(_media_block(part))
    return blocks


def _media_block(part: MediaPart) -> dict[Any, Any]:
    data: Any = json.loads(part.data)
    block = cast("Block", data) if isinstance(data, dict) else {"data": data}
    return {"type": part.kind, **block}


class _Sources:
    """A message's parts, handed out in the order of a layout."""

    def __init__(self, message: Message, separator: str) -> None:
        self._text = message.text
        self._separator = separator
        self._at = 0
        self._reasoning = message.reasoning
        self._thought_at = 0
        self._media = iter([p for p in message.parts if isinstance(p, MediaPart)])
        self._calls = {call.id: call for call in message.tool_calls}

    def block(self, place: Sequence[Any]) -> str | Block | None:
        """Returns the block at a place of the layout; None when the message no longer has it."""
        form, *details = place
        match form:
            case "s":
                return self._take(details[0])
            case "t":
                return {"type": "text", "text": self._take(details[0]), **details[1]}
            case "r":
                return self._thought(*details)
            case "c":
                return self._call(details[0], details[1])
            case "m":
                return self._medium(details[0], details[1:])
            case _:
                return cast("Block", details[0])

    def _take(self, length: int) -> str:
        start = self._at + len(self._separator) if self._at and length else self._at
        self._at = start + length
        return self._text[start : self._at]

    def _thought(self, kind: str, rest: Block, length: int) -> Block | None:
        if self._thought_at + length > len(self._reasoning):
            return None
        self._thought_at += length
        return {"type": kind, kind: self._reasoning[self._thought_at - length : self._thought_at], **rest}

    def _call(self, call_id: str, rest: Block) -> Block | None:
        call = self._calls.get(call_id)
        if call is None:
            return None
        return {"type": "tool_call", "id": call_id, "name": call.name, "args": json.loads(call.arguments), **rest}

    def _medium(self, form: str, more: Sequence[Any]) -> Block | None:
        part = next(self._media, None)
        if part is None:
            return None
        if form == "raw":
            return cast("Block", more[0])
        wire = cast("Block", json.loads(part.data))
        rest = cast("Block", more[0]) if more else {}
        if form == "as_is":
            return wire
        return _unsourced(wire, rest) if form == "source" else _unwired(wire, rest)

    def used_up(self) -> bool:
        """Returns True when every text and medium has been placed."""
        return self._at == len(self._text) and next(self._media, None) is None
