"""Reads a message, and the blocks of its content, as services and frameworks keep them. An unknown block with text is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
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
_INNER = ("functionCall", "functionResponse", "inlineData", "fileData")
_MIMES = ("image_mimetype", "mime_type", "mimeType", "mediaType")
_SAID = ("text", "content", "thinking", "reasoning", "refusal", "summary")
_ARGUMENTS = ("arguments", "args", "input", "tool_kwargs", "parameters")
_IDS = ("id", "call_id", "tool_call_id", "tool_use_id")
# fields of messages and of blocks that repeat what is read, or describe it
_BESIDE = (
    "role type additional_kwargs response_metadata usage_metadata usage artifact name annotations audio finish_reason"
)
_DESCRIBED = (
    "type block_type thought thoughtSignature state providerMetadata annotations extras additional_information signature index "
    "citations summaries cache_control flags name alternative_display_type message display_content structured_content meta "
    "context approval_options integration_name"
)
_IMAGES = {"iVBOR": "png", "/9j/": "jpeg", "R0lGO": "gif", "UklGR": "webp"}  # the beginnings of their base64


def add_message(builder: ConversationBuilder, value: object, **fields: Any) -> None:
    """Adds a message of any of these shapes; raises MessageError for one whose text would be lost. `fields` as in `add`."""
    row = _unwrapped(value)
    name = as_text(row.get("role") or row.get("type")).lower()
    if name not in ROLES:
        raise MessageError(f"the role {name!r} of a message is not known (fields: {', '.join(row) or 'none'})")
    steps = [[*run] for starts, run in groupby(as_list(row.get("parts")), _starts_step) if not starts]
    if len(steps) > 1:  # of Vercel's AI SDK: each is a message of the model
        for step in steps:
            add_message(builder, {**row, "parts": step}, **fields)
        return
    what, kwargs = f"a message of the role {name!r}", as_dict(row.get("additional_kwargs"))
    field = next((field for field in ("blocks", "parts", "content") if field in row), "content")
    calls = [*as_list(row.get("tool_calls") or kwargs.get("tool_calls")), *as_list(row.get("invalid_tool_calls"))]
    calls += [call for call in (row.get("function_call") or kwargs.get("function_call"),) if call]
    known = f"{_BESIDE} {field} tool_calls invalid_tool_calls function_call reasoning_content thinking reasoning images refusal"
    check_fields(row, f"{known} metadata{' content' if row.get('parts') else ''}", what)
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
    at = row.get("created_at") or row.get("createdAt") or as_dict(row.get("metadata")).get("createdAt")
    fields = {"id": row.get("id"), "at": at, **fields}
    if ROLES[name] == "tool" and not any(isinstance(part, ToolResultPart) for part in parts):
        call_id, tool = (as_text(row.get(key) or kwargs.get(key)) for key in ("tool_call_id", "name"))
        text = "\n".join(part.text for part in parts if isinstance(part, TextPart))
        result = ToolResultPart(
            call_id, text, tool or as_text(row.get("tool_name")) or None, row.get("status") == "error"
        )
        parts = [result, *(part for part in parts if not isinstance(part, TextPart))]
    builder.left_out["empty messages"] += not parts
    add_parts(builder, ROLES[name], parts, fields)


def _starts_step(part: object) -> bool:
    return as_dict(part).get("type") == "step-start"


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
    inner = next((key for key in _INNER if key in block), "")  # Gemini's parts have no types
    kind = inner or as_text(block.get("block_type") or block.get("type")) or ("text" if "text" in block else "")
    what = f"a block of the type {kind!r}"
    if kind in _TEXTS or kind in _THOUGHTS:
        field = next((f for f in _SAID if isinstance(block.get(f), str) or (f == "summary" and f in block)), "text")
        check_fields(block, f"{field} {_DESCRIBED}", what)
        summary = rows(block["summary"], what) if field == "summary" else [{"text": need(block, field, str, what)}]
        text = "\n\n".join(need(each, "text", str, what) for each in summary)
        thought = kind in _THOUGHTS or block.get("thought") is True
        return [ReasoningPart(text)] if thought and text else texts(text)
    if kind.endswith(("tool_call", "tool_use", "function_call", "functionCall")):
        return [_call(as_dict(block.get(inner)) or block)]
    if kind.endswith(("tool_call_response", "tool_result", "functionResponse")):
        block = as_dict(block.get(inner)) or block
        field = next((f for f in ("response", "result", "content") if f in block), "content")
        check_fields(block, f"{field} {_DESCRIBED}", what)
        told = need(block, field, object, what)
        alone = next((key for key in ("output", "error") if inner and [*as_dict(told)] == [key]), None)
        failed = block.get("is_error") is True or alone == "error"
        result = ToolResultPart(_id(block), "", as_text(block.get("name")) or None, failed)
        return result_parts(result, told if alone is None else as_dict(told)[alone])
    if kind.startswith("tool-") or kind == "dynamic-tool":
        return _ui_tool(as_dict(block.get("toolInvocation")) or block, kind.removeprefix("tool-"))
    if kind in _MEDIA:
        mime = next((as_text(m) for key in _MIMES if (m := as_dict(block.get(inner) or block).get(key))), "")
        data = block.get("image") if kind == "image" else block.get("content") if mime.startswith("image/") else None
        data = block.get("url") if kind == "file" and mime.startswith("image/") else data
        return [_image(data, mime) if isinstance(data, str) else media({inner: block[inner]} if inner else block, mime)]
    if not kind:
        raise MessageError(f"a block of a content has no type (fields: {', '.join(block) or 'none'})")
    if kind.startswith(("data-", "source-")):  # for a page alone
        builder.left_out[f"parts of the type {kind!r}"] += 1
    elif kind not in ("redacted_thinking", "step-start"):
        builder.unknown(block, "type block_type", what)
    return []


def _ui_tool(part: Row, tool: str) -> list[Part]:
    """Returns the call in a message of Vercel's AI SDK, with its result behind it."""
    check_fields(
        part, "input args rawInput output result errorText title toolName callProviderMetadata approval", "a call"
    )
    name, given = (
        as_text(part.get("toolName")) or tool,
        next((part[k] for k in ("input", "args", "rawInput") if k in part), None),
    )
    call = ToolCallPart(need(part, "toolCallId", str, "a call"), name, arguments_text(given))
    if part.get("state") in ("output-error", "output-denied"):
        return [call, ToolResultPart(call.id, as_text(part.get("errorText")) or "(denied)", name, True)]
    if part.get("state") not in ("output-available", "result"):
        return [call]
    told = need(part, "output" if "output" in part else "result", object, "a call")
    return [call, *result_parts(ToolResultPart(call.id, "", name), told)]


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


def join_conversation(found: dict[str, ConversationBuilder], name: str, trace: str, each: ConversationBuilder) -> None:
    """Adds the messages of a trace to the conversation of that name; without a name to the one that they repeat and go on from."""
    for builder in () if name else found.values():
        pairs = zip(builder.rows, each.rows, strict=False)
        if len(builder.rows) <= len(each.rows) and all(content_key(a) == content_key(b) for (a, _), (b, _) in pairs):
            join_history(builder, each)
            return
    if each.rows:
        own = ConversationBuilder(each.form, each.number, name or trace, each.title)
        join_history(found.setdefault(name or trace, own), each)


def _holds(whole: Sequence[str], part: Sequence[str]) -> bool:
    return any([*whole[start : start + len(part)]] == [*part] for start in range(len(whole) - len(part) + 1))
