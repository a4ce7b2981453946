"""Reads content blocks as Claude Code and claude.ai keep them: results may stand among the texts of a reply."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from ctxfold.messages import Role
from ctxfold.transcripts.conversation import ConversationBuilder, Row, check_fields, json_text, need, rows, words
from ctxfold.validation import as_dict, as_list, as_text, is_a

PROGRAM = "texts of the program"
MEDIA = words("audio document file image image_url input_audio video")
# of each type of block: the field with its text, the others that are kept, and those that repeat or describe them
_FIELDS: Mapping[str, tuple[str, str, str]] = {
    "text": ("text", "", "citations"),
    "thinking": ("thinking", "signature", "summaries alternative_display_type cut_off truncated"),
    "tool_use": ("name", "id input", "caller message display_content context approval_key approval_options"),
    "tool_result": ("tool_use_id", "content is_error", "name message display_content structured_content meta"),
}
_COMMON = " type cache_control flags start_timestamp stop_timestamp integration_name integration_icon_url"


def without_elements(text: str, names: str) -> str:
    """Returns a text without the elements of these names (`a|b`) at its beginning and at its end."""
    element = rf"<({names})\b[^>]*>.*?</\{{}}>\s*"
    return re.sub(rf"\A(?:\s*{element.format(1)})+|\s*{element.format(2)}\Z", "", text, flags=re.DOTALL)


def spoken(builder: ConversationBuilder, blocks: Iterable[Row], names: str) -> list[dict[str, Any]]:
    """Returns the blocks of a user's message without the texts that a program put there, as elements of these names."""
    found = [(b, without_elements(b["text"], names) if isinstance(b.get("text"), str) else "-") for b in blocks]
    builder.left_out[PROGRAM] += sum(b.get("text", text) != text for b, text in found)
    return [{**b, "text": text} if "text" in b else {**b} for b, text in found if text.strip()]


def add_blocks(builder: ConversationBuilder, role: Role, content: object, **fields: Any) -> None:
    """Adds a content, text or blocks, as messages: results apart from what stands before and behind them."""
    blocks = text_blocks(content, f"the content of a {role} message")
    kept = [row for block in blocks if (row := _kept(builder, block)) is not None]
    for results, run in groupby(kept, lambda row: row["type"] == "tool_result"):
        given: dict[str, Any] = {key: fields[key] for key in fields if key in ("id", "at") or not results}
        builder.add_row({"role": "user" if results else role, "content": [*run]}, **given)


def text_blocks(content: object, what: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else rows(content, what)


def _kept(builder: ConversationBuilder, block: Row) -> Row | None:
    """Returns a block without what only describes it; None for one that says nothing. Raises MessageError for an unknown one."""
    kind = as_text(block.get("type"))
    if kind in MEDIA or kind == "redacted_thinking":
        return block if kind in MEDIA else None
    kind = "tool_result" if kind.endswith("_tool_result") else "tool_use" if kind.endswith("_tool_use") else kind
    what = f"a block of the type {kind!r}"
    if kind not in _FIELDS:
        builder.unknown(block, _COMMON, what)
        return None
    needed, kept, described = _FIELDS[kind]
    check_fields(block, f"{needed} {kept} {described} {_COMMON}", what)
    row: dict[str, Any] = {"type": kind, needed: need(block, needed, str, what)}
    if needed == kind and not row[needed].strip():
        return None
    row |= {name: block[name] for name in kept.split() if block.get(name) is not None}
    if kind == "tool_use":
        need(block, "input", dict, what)
    if kind == "tool_result":
        content = need(block, "content", object, what)
        items = [] if content is None else as_list(content) if is_a(content, list) else [content]
        row["content"] = content if isinstance(content, str) else [_part(item) for item in items]
    return row


def _part(item: object) -> Row:
    block = as_dict(item)
    text = block.get("text") if block.get("type") == "text" else item
    return (
        block
        if block.get("type") in MEDIA
        else {"type": "text", "text": text if isinstance(text, str) else json_text(item)}
    )
