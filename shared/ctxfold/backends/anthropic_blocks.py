"""Messages as Anthropic's content blocks; pure. Rows say what travels, this module how it looks."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ctxfold.backends.profile import Profile
from ctxfold.backends.request_rules import keeps_reasoning, round_start, wrapped_arguments
from ctxfold.messages import MediaPart, Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart

__all__ = ["Block", "Projected", "call_id", "message_blocks", "project", "reasoning_blocks"]

Block = dict[str, Any]
_FOREIGN_ID = re.compile(r"[^a-zA-Z0-9_-]")
_DATA_URL = re.compile(r"data:(?P<mime>[^;,]+);base64,(?P<data>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Projected:
    """A conversation as it travels: system blocks, rows of alternating roles, and the blocks that each message became."""

    system: list[Block] = field(default_factory=list[Block])
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    blocks: list[list[Block]] = field(default_factory=list[list[Block]])


def project(profile: Profile, messages: Sequence[Message], *, model: str, unbound_before: int = 0) -> Projected:
    """The messages as they travel: leading system messages apart, later ones as the user's, one row per run of a role."""
    start = round_start(messages)
    result = Projected()
    leading = True
    for index, message in enumerate(messages):
        leading = leading and message.role == "system"
        keeps = keeps_reasoning(
            profile.reasoning_out, message, model=model, in_round=index > start, bound=index >= unbound_before
        )
        blocks = message_blocks(message, reasoning=keeps)
        result.blocks.append(blocks)
        if leading:
            result.system.extend(blocks)
        elif blocks:
            _add(result.rows, "assistant" if message.role == "assistant" else "user", blocks)
    return result


def _add(rows: list[dict[str, Any]], role: str, blocks: list[Block]) -> None:
    if not rows or rows[-1]["role"] != role:
        rows.append({"role": role, "content": []})
    content: list[Block] = rows[-1]["content"]
    content.extend(blocks)


def message_blocks(message: Message, *, reasoning: bool = True) -> list[Block]:
    """One message's blocks in order; blank text is left out, as the service refuses it."""
    if message.role == "tool":
        return _results(message)
    blocks: list[Block] = []
    for part in message.parts:
        match part:
            case TextPart(text=text):
                if text.strip():
                    blocks.append({"type": "text", "text": text})
            case ReasoningPart():
                if reasoning:
                    blocks += reasoning_blocks(part)
            case MediaPart():
                blocks.append(_media(part))
            case ToolCallPart():
                blocks.append({"type": "tool_use", "id": call_id(part.id), "name": part.name, "input": _input(part)})
            case _:  # results stand in tool messages, opaque parts never travel
                continue
    return blocks


def reasoning_blocks(part: ReasoningPart) -> list[Block]:
    """What the service gave: its own blocks as they came, a thinking block if it was signed; nothing else can be read back."""
    if part.details is not None:
        found: object = json.loads(part.details)
        items = cast("list[object]", found) if isinstance(found, list) else []
        blocks = [cast("Block", item) for item in items if isinstance(item, dict)]
        own = [block for block in blocks if not str(block.get("type", "")).startswith("reasoning")]
        if own:
            return own
    if part.signature is None:
        return []
    return [{"type": "thinking", "thinking": part.text, "signature": part.signature}]


def call_id(given: str) -> str:
    """The id in the letters that the service allows; another provider's id is rewritten, the same way in call and result."""
    if given and not _FOREIGN_ID.search(given):
        return given
    digest = hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_FOREIGN_ID.sub('_', given)[:40]}_{digest}"


def _input(call: ToolCallPart) -> Mapping[str, Any]:
    """The service takes objects only; the model should still see what it wrote."""
    value = call.parsed()
    return wrapped_arguments(call) if value is None else value


def _results(message: Message) -> list[Block]:
    media = [_media(part) for part in message.parts if isinstance(part, MediaPart)]
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    blocks = [_result(part) for part in results]
    if media and blocks:
        text = [{"type": "text", "text": results[-1].content}] if results[-1].content.strip() else []
        blocks[-1]["content"] = [*text, *media]
    return blocks


def _result(part: ToolResultPart) -> Block:
    block: Block = {"type": "tool_result", "tool_use_id": call_id(part.call_id), "content": part.content}
    if part.is_error:
        block["is_error"] = True
    return block


def _media(part: MediaPart) -> Block:
    """The block as it was given; an image or an inline file in the form of chat completions is rewritten."""
    block = cast("Block", json.loads(part.data))
    match block:
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            inline = _DATA_URL.fullmatch(url)
            return {"type": "image", "source": {"type": "url", "url": url} if inline is None else _source(inline)}
        case {"type": "file", "file": {"file_data": str(url)}}:
            inline = _DATA_URL.fullmatch(url)
            return block if inline is None else {"type": "document", "source": _source(inline)}
        case _:
            return block


def _source(inline: re.Match[str]) -> Block:
    return {"type": "base64", "media_type": inline["mime"], "data": inline["data"]}
