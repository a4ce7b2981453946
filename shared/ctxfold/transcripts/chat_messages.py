"""Reads a message, and the blocks of its content, as services and frameworks keep them. An unknown block with text is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ctxfold.errors import MessageError
from ctxfold.messages import MediaPart, Part, ReasoningPart, Role, TextPart, ToolCallPart, ToolResultPart, content_key
from ctxfold.transcripts.conversation import (
    ConversationBuilder,
    Row,
    arguments_text,
    check_fields,
    json_text,
    media,
    need,
    rows,
    texts,
    words,
)
from ctxfold.validation import as_dict, as_list, as_text, is_a, read_json, repaired

_NAMES: Mapping[Role, str] = {
    "system": "system developer systemmessage systemmessagechunk",
    "user": "user human humanmessage humanmessagechunk",
    "assistant": "assistant ai model gpt chatgpt bot aimessage aimessagechunk function_call",
    "tool": "tool function observation toolmessage toolmessagechunk functionmessage",
}
ROLES: Mapping[str, Role] = {name: role for role, names in _NAMES.items() for name in names.split()}
_TEXTS = words("text input_text output_text refusal")
_THOUGHTS = words("thinking reasoning")
_MEDIA = words(
    "audio blob document file image image_file image_url input_audio input_file input_image inlineData fileData media uri video"
)
_SAID = ("text", "content", "thinking", "reasoning", "refusal", "summary")
_ARGUMENTS = ("arguments", "args", "input", "tool_kwargs", "parameters")
_IDS = ("id", "call_id", "tool_call_id", "tool_use_id")
# fields of messages and of blocks that repeat what is read, or describe it
_BESIDE = (
    "role type additional_kwargs response_metadata usage_metadata usage artifact name annotations audio finish_reason"
)
_DESCRIBED = (
    "type block_type annotations extras additional_information signature index citations summaries cache_control flags name "
    "alternative_display_type message display_content structured_content meta context approval_options integration_name"
)
_IMAGES = {"iVBOR": "png", "/9j/": "jpeg", "R0lGO": "gif", "UklGR": "webp"}  # the beginnings of their base64


def add_message(builder: ConversationBuilder, value: object, **fields: Any) -> None:
    """Adds a message of any of these shapes; raises MessageError for one whose text would be lost. `fields` as in `add`."""
    row = _unwrapped(value)
    name = as_text(row.get("role") or row.get("type")).lower()
    if name not in ROLES:
        raise MessageError(f"the role {name!r} of a message is not known (fields: {', '.join(row) or 'none'})")
    what, kwargs = f"a message of the role {name!r}", as_dict(row.get("additional_kwargs"))
    field = next((field for field in ("blocks", "parts", "content") if field in row), "content")
    calls = [*as_list(row.get("tool_calls") or kwargs.get("tool_calls")), *as_list(row.get("invalid_tool_calls"))]
    calls += [call for call in (row.get("function_call") or kwargs.get("function_call"),) if call]
    known = f"{_BESIDE} {field} tool_calls invalid_tool_calls function_call reasoning_content thinking reasoning images refusal"
    check_fields(row, known, what)
    said = parts_of(builder, row.get(field) if calls else need(row, field, object, what))
    thoughts = (as_text(row.get(key) or kwargs.get(key)) for key in ("reasoning_content", "thinking", "reasoning"))
    parts: list[Part] = [
        *(ReasoningPart(text) for text in thoughts if text),
        *said,
        *texts(as_text(row.get("refusal"))),
    ]
    parts += map(_image, as_list(row.get("images")))
    if calls:  # a content may repeat them
        parts = [part for part in parts if not isinstance(part, ToolCallPart)]
        parts += [_call(as_dict(call)) for call in calls]
    fields = {"id": row.get("id"), **fields}
    if ROLES[name] == "tool" and not any(isinstance(part, ToolResultPart) for part in parts):
        call_id, tool = (as_text(row.get(key) or kwargs.get(key)) for key in ("tool_call_id", "name"))
        text = "\n".join(part.text for part in parts if isinstance(part, TextPart))
        result = ToolResultPart(
            call_id, text, tool or as_text(row.get("tool_name")) or None, row.get("status") == "error"
        )
        parts = [result, *(part for part in parts if not isinstance(part, TextPart))]
    builder.left_out["empty messages"] += not parts
    add_parts(builder, ROLES[name], parts, fields)


def add_parts(builder: ConversationBuilder, role: Role, parts: Iterable[Part], fields: Mapping[str, Any]) -> None:
    """Adds parts as messages: results, with the media behind them, apart from what stands before and after."""
    runs: list[tuple[bool, list[Part]]] = []
    for part in parts:
        goes_on = bool(runs) and (isinstance(part, MediaPart) or runs[-1][0] is isinstance(part, ToolResultPart))
        if not goes_on:
            runs.append((isinstance(part, ToolResultPart), []))
        runs[-1][1].append(part)
    for results, run in runs:
        given = {key: fields[key] for key in fields if key in ("id", "at") or not results}
        builder.add("tool" if results else role, run, **given)


def parts_of(builder: ConversationBuilder, content: object) -> list[Part]:
    """Returns the parts of a content: a text, a block, or a list of both."""
    items = as_list(content) if is_a(content, list) else [] if content is None else [content]
    return [
        part for item in items for part in (texts(item) if isinstance(item, str) else _block(builder, as_dict(item)))
    ]


def _unwrapped(value: object) -> Row:
    """Returns the fields of a message: of LangChain's constructors, of pairs of role and text, and of ShareGPT's, too."""
    row = as_dict(value)
    if is_a(value, list) and len(as_list(value)) == 2:
        return dict(zip(("role", "content"), as_list(value), strict=True))
    if "kwargs" in row and is_a(row.get("id"), list):
        return {"type": as_list(row["id"])[-1], **need(row, "kwargs", dict, "a message")}
    if "data" in row and "type" in row:
        return {**need(row, "data", dict, "a message"), "type": row["type"]}
    if "from" not in row:
        return row
    text = need(row, "value", str, "a message")
    if row["from"] != "function_call":
        return {"role": row["from"], "content": text}
    made = read_json(text)
    return {"role": "function_call", "tool_calls": made if is_a(made, list) else [made]}


def _block(builder: ConversationBuilder, block: Row) -> Sequence[Part]:
    kind = as_text(block.get("block_type") or block.get("type"))
    kind = next((key for key in ("inlineData", "fileData") if key in block), kind)
    what = f"a block of the type {kind!r}"
    if kind in _TEXTS or kind in _THOUGHTS:
        field = next((f for f in _SAID if isinstance(block.get(f), str) or (f == "summary" and f in block)), "text")
        check_fields(block, f"{field} {_DESCRIBED}", what)
        summary = rows(block["summary"], what) if field == "summary" else [{"text": need(block, field, str, what)}]
        text = "\n\n".join(need(each, "text", str, what) for each in summary)
        return texts(text) if kind in _TEXTS else [ReasoningPart(text)] if text else []
    if kind.endswith(("tool_call", "tool_use", "function_call")):
        return [_call(block)]
    if kind.endswith(("tool_call_response", "tool_result")):
        field = next((f for f in ("response", "result", "content") if f in block), "content")
        check_fields(block, f"{field} {_DESCRIBED}", what)
        result = ToolResultPart(_id(block), "", as_text(block.get("name")) or None, block.get("is_error") is True)
        return result_parts(result, need(block, field, object, what))
    if kind in _MEDIA:
        mime = as_text(
            block.get("image_mimetype") or block.get("mime_type") or as_dict(block.get(kind)).get("mimeType")
        )
        data = block.get("image") if kind == "image" else block.get("content") if mime.startswith("image/") else None
        bare = {kind: block[kind]} if kind in ("inlineData", "fileData") else block
        return [_image(data, mime) if isinstance(data, str) else media(bare, mime)]
    if not kind:
        raise MessageError(f"a block of a content has no type (fields: {', '.join(block) or 'none'})")
    if kind != "redacted_thinking":
        builder.unknown(block, "type block_type", what)
    return []


def result_parts(result: ToolResultPart, told: object) -> list[Part]:
    """Returns a result with what it told: a text, blocks, or any other JSON."""
    blocks = [as_dict(item) for item in as_list(told)]
    known = [block.get("type") in _MEDIA or isinstance(block.get("text"), str) for block in blocks]
    if not any(known):
        text = told if isinstance(told, str) else "" if told in (None, []) else json_text(told)
        return [replace(result, content=repaired(text))]
    pictures: list[Part] = [media(block) for block in blocks if block.get("type") in _MEDIA]
    plain = [block for block in blocks if block.get("type") not in _MEDIA]
    said = [block["text"] if block.keys() <= {"type", "text", "annotations"} else json_text(block) for block in plain]
    return [replace(result, content=repaired("\n".join(said))), *pictures]


def _call(call: Row) -> ToolCallPart:
    inner = as_dict(call.get("function") or call.get("custom")) or call
    name = as_text(inner.get("name") or inner.get("tool_name"))
    field = next((field for field in _ARGUMENTS if field in inner), None)
    if not name or field is None:
        raise MessageError(f"a call has no name, or no arguments (fields: {', '.join(inner) or 'none'})")
    check_fields(inner, f"tool_name error {field} {_DESCRIBED}", f"the call of {name!r}")
    return ToolCallPart(_id(call), name, arguments_text(inner[field]))


def _id(row: Row) -> str:
    return next((row[key] for key in _IDS if as_text(row.get(key))), "")


def _image(data: object, mime: str = "") -> MediaPart:
    text = as_text(data)
    mime = mime or f"image/{next((form for head, form in _IMAGES.items() if text.startswith(head)), 'png')}"
    url = text if text.startswith(("http", "data:")) else f"data:{mime};base64,{text}"
    return media({"type": "image_url", "image_url": {"url": url}})


def join_history(builder: ConversationBuilder, more: ConversationBuilder) -> None:
    """Adds the messages of a request that repeats the history, or its end: each stays once."""
    before, after = ([content_key(message) for message, _ in each.rows] for each in (builder, more))
    builder.left_out |= more.left_out
    if _holds(after, before):
        builder.rows = more.rows
    elif not _holds(before, after):
        start = next(start for start in range(len(before) + 1) if before[start:] == after[: len(before) - start])
        builder.rows += more.rows[len(before) - start :]


def _holds(whole: Sequence[str], part: Sequence[str]) -> bool:
    return any([*whole[start : start + len(part)]] == [*part] for start in range(len(whole) - len(part) + 1))
