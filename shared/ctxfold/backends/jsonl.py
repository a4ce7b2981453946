"""Writes and reads one message a line in its provider's shape, with the missing fields in an extra object."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast, get_args

from ctxfold.backends.anthropic import EXTRAS, message_blocks
from ctxfold.backends.converse import BLOCKS
from ctxfold.backends.converse import message_blocks as converse_blocks
from ctxfold.backends.gemini import SIGNATURE, WIRE, message_parts, round_contents
from ctxfold.backends.openai_responses import message_items
from ctxfold.backends.openai_responses_items import CLIENT_TOOLS
from ctxfold.backends.openai_responses_parse import ResponsesParser
from ctxfold.backends.profile import load_profile
from ctxfold.errors import BackendError, MessageError, UnknownRoleError
from ctxfold.messages import (
    MediaPart,
    Message,
    MessageKind,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
    Visibility,
    says_something,
    validated,
)
from ctxfold.stream import Fold
from ctxfold.validation import as_dict, as_dicts, as_list, as_text, is_a, json_problem

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Row: TypeAlias = Mapping[str, Any]
_CHAT_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_BLOCK_ROLES: Mapping[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
_CONTENT_ROLES: Mapping[str, Role] = {"system": "system", "user": "user", "model": "assistant", "function": "tool"}
_CALL_KEYS = frozenset({"id", "type", "function"})
_MEDIA = frozenset({"audio", "document", "file", "image", "video"})


def _role(row: Row, roles: Mapping[str, Role], default: str = "") -> Role:
    role = roles.get(as_text(row.get("role")) or default)
    if role is None:
        raise UnknownRoleError(f"role {row.get('role')!r}: use {', '.join(roles)}")
    return role


def _message(message_id: str, role: Role, content: object, read: Callable[[Row], list[Part]]) -> Message:
    """Returns the message of a content, text or blocks, with tool results as a tool message; raises MessageError for another."""
    if isinstance(content, str):
        return Message(message_id, role, (TextPart(content),) if content else ())
    if not isinstance(content, list):
        raise MessageError(f"content of a {role} line is neither text nor a list: {str(content)[:80]!r}")
    parts = [part for block in as_dicts(cast("object", content)) for part in read(block)]
    results = any(isinstance(part, ToolResultPart) for part in parts)
    if results and any(isinstance(part, TextPart) for part in parts):
        raise MessageError("a line holds tool results and text: write two lines, the results first")
    return Message(message_id, "tool" if results else role, tuple(parts))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _fields(extra: Mapping[str, Any]) -> str | None:
    return _json(extra) if extra else None


# chat completions


def openai_row(message: Message) -> dict[str, Any]:
    """Returns the message in the shape of chat completions; of several tool results only the first."""
    results = message.tool_results
    thoughts = (p.details for p in message.parts if isinstance(p, ReasoningPart) and p.details is not None)
    optional = {
        "reasoning_content": message.reasoning,
        "reasoning_details": [block for text in thoughts for block in json.loads(text)],
        "tool_calls": [_call(call) for call in message.tool_calls],
    }
    row: dict[str, Any] = {"role": message.role, "content": _chat_content(message)}
    row |= {} if message.name is None else {"name": message.name}
    row |= {name: value for name, value in optional.items() if value}
    return row | ({"tool_call_id": results[0].call_id} if results else {})


def _chat_content(message: Message) -> str | list[Any]:
    results = message.tool_results
    text = results[0].content if results else message.text
    if not any(isinstance(part, MediaPart) for part in message.parts):
        return text
    parts = (TextPart(text), *message.parts) if results else message.parts
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else json.loads(part.data)
        for part in parts
        if isinstance(part, TextPart | MediaPart)
    ]


def _call(call: ToolCallPart) -> dict[str, Any]:
    extra: dict[str, Any] = json.loads(call.extra) if call.extra is not None else {}
    return {**extra, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def openai_message(row: Row, message_id: str) -> Message:
    """Parses a row; raises MessageError when it is not a message."""
    role = _role(row, _CHAT_ROLES)
    content: object = row.get("content")
    parts = _message(message_id, role, "" if content is None else content, _chat_parts).parts
    if role == "tool":
        call = as_text(row.get("tool_call_id"))
        if not call:
            raise MessageError("a tool line has no tool_call_id: name the call that it answers")
        text = "".join(part.text for part in parts if isinstance(part, TextPart))
        parts = (ToolResultPart(call, text), *(part for part in parts if isinstance(part, MediaPart)))
    else:
        thought = as_text(row.get("reasoning_content")) or as_text(row.get("reasoning"))
        details = as_dicts(row.get("reasoning_details"))
        reasoning = ReasoningPart(thought, None, _json(details) if details else None)
        calls = map(_called, as_dicts(row.get("tool_calls")))
        parts = (*((reasoning,) if thought or details else ()), *parts, *calls)
    return Message(message_id, role, parts, name=as_text(row.get("name")) or None)


def _chat_parts(block: Row) -> list[Part]:
    kind = as_text(block.get("type"))
    if kind == "text":
        return [TextPart(as_text(block.get("text")))]
    if kind == "thinking":  # Mistral's
        return [ReasoningPart("".join(as_text(chunk.get("text")) for chunk in as_dicts(block.get("thinking"))))]
    return [MediaPart(kind.removesuffix("_url") or "file", _json(block))]


def _called(call: Row) -> ToolCallPart:
    function = as_dict(call.get("function"))
    name, arguments = as_text(function.get("name")), function.get("arguments")
    if not name:
        raise MessageError(f"a tool call has no name: {json.dumps(call)[:80]}")
    text = arguments if isinstance(arguments, str) else _json(arguments or {})
    extra = {key: value for key, value in call.items() if key not in _CALL_KEYS}
    return ToolCallPart(as_text(call.get("id")), name, text, _fields(extra))


# the Messages API and Converse: a system prompt keeps its role, unlike in requests


def anthropic_row(message: Message) -> dict[str, Any]:
    """Returns the message in the shape of the Messages API."""
    return {"role": "user" if message.role == "tool" else message.role, "content": message_blocks(message)}


def anthropic_message(row: Row, message_id: str) -> Message:
    """Parses a row, tool results as a tool message; raises MessageError when it is not a message."""
    return _message(message_id, _role(row, _BLOCK_ROLES), row.get("content"), _anthropic_parts)


def _anthropic_parts(block: Row) -> list[Part]:
    extra = _fields({name: block[name] for name in sorted(EXTRAS) if block.get(name)})
    match as_text(block.get("type")):
        case "text":
            return [TextPart(as_text(block.get("text")), extra)]
        case "thinking":
            return [ReasoningPart(as_text(block.get("thinking")), as_text(block.get("signature")) or None)]
        case "tool_use":
            arguments = _json(as_dict(block.get("input")))
            return [ToolCallPart(as_text(block.get("id")), as_text(block.get("name")), arguments, extra)]
        case "tool_result":
            content: object = block.get("content")
            inner = as_dicts(content)
            text = content if isinstance(content, str) else "".join(as_text(b.get("text")) for b in inner)
            media = [MediaPart(b["type"], _json(b)) for b in inner if b.get("type") in _MEDIA]
            failed = block.get("is_error") is True
            return [ToolResultPart(as_text(block.get("tool_use_id")), text, None, failed), *media]
        case kind if kind in _MEDIA:
            return [MediaPart(kind, _json(block))]
        case _:  # a block that only the provider can read
            return [ReasoningPart("", None, _json([block]))]


def converse_row(message: Message) -> dict[str, Any]:
    """Returns the message in the shape of the Converse API."""
    role = "user" if message.role == "tool" else message.role
    return {"role": role, "content": converse_blocks(message, load_profile("bedrock"))}


def converse_message(row: Row, message_id: str) -> Message:
    """Parses a row, tool results as a tool message; raises MessageError when it is not a message."""
    role = _role(row, _BLOCK_ROLES)
    # results in a reply are those of tools that the service ran itself
    return _message(message_id, role, row.get("content"), partial(_converse_parts, sealed=role == "assistant"))


def _converse_parts(block: Row, *, sealed: bool = False) -> list[Part]:
    match block:
        case {"text": str(text)}:
            return [TextPart(text)]
        case {"reasoningContent": {"reasoningText": dict()}}:
            reasoning = as_dict(block["reasoningContent"]["reasoningText"])
            return [ReasoningPart(as_text(reasoning.get("text")), as_text(reasoning.get("signature")) or None)]
        case {"toolUse": dict()} if "type" not in block["toolUse"]:
            call = as_dict(block["toolUse"])
            arguments = _json(as_dict(call.get("input")))
            return [ToolCallPart(as_text(call.get("toolUseId")), as_text(call.get("name")), arguments)]
        case {"toolResult": result} if not sealed:
            result, inner = as_dict(result), as_dicts(as_dict(result).get("content"))
            text = "".join(_json(b["json"]) if "json" in b else as_text(b.get("text")) for b in inner)
            failed = result.get("status") == "error"
            media = [part for b in inner if not _MEDIA.isdisjoint(b) for part in _converse_parts(b)]
            return [ToolResultPart(as_text(result.get("toolUseId")), text, None, failed), *media]
        case _:
            kind = next((name for name in block if name in _MEDIA), None)
            # what is left is a block that only the service can read
            return [ReasoningPart("", None, _json([block])) if kind is None else MediaPart(kind, _json(block))]


# generateContent


def gemini_row(message: Message) -> dict[str, Any]:
    """Returns the message as a content; a system prompt keeps its role, unlike in requests."""
    if message.role == "tool":
        contents = round_contents(message.parts, (), unnamed="")
        return {"role": "user", "parts": [part for content in contents for part in content["parts"]]}
    return {"role": "model" if message.role == "assistant" else message.role, "parts": message_parts(message)}


def gemini_message(row: Row, message_id: str) -> Message:
    """Parses a content, function responses as a tool message; raises MessageError when it is not a message."""
    role, content = _role(row, _CONTENT_ROLES, "user"), row.get("parts")
    if not isinstance(content, list):
        raise MessageError(f"parts of a {role} line are not a list: {str(content)[:80]!r}")
    return _message(message_id, role, cast("object", content), partial(_gemini_parts, names=Counter()))


def _gemini_parts(part: Row, *, names: Counter[str]) -> list[Part]:
    text, signature = part.get("text"), as_text(part.get(SIGNATURE)) or None
    if isinstance(text, str):
        extra = _beside(part, "text", "thought")
        return [ReasoningPart(text, signature) if part.get("thought") else TextPart(text, extra)]
    if "functionCall" in part:
        call = as_dict(part["functionCall"])
        arguments, extra = _json(call.get("args") or {}), _beside(part, "functionCall")
        return [ToolCallPart(_call_id(call, names), as_text(call.get("name")), arguments, extra)]
    if "functionResponse" in part:
        answer = as_dict(part["functionResponse"])
        response, name = as_dict(answer.get("response")), as_text(answer.get("name")) or None
        key = next(iter(response), "")
        plain = len(response) == 1 and key in ("output", "error") and isinstance(response[key], str)
        text = response[key] if plain else _json(response)
        return [ToolResultPart(_call_id(answer, names), text, name, plain and key == "error")]
    for name in ("inlineData", "fileData"):
        if name in part:
            kind = as_text(as_dict(part[name]).get("mimeType")).partition("/")[0]
            return [MediaPart(kind if kind in ("audio", "image", "video") else "file", _json(part))]
    return [ReasoningPart("", None, _json([part]))]


def _call_id(body: Row, names: Counter[str]) -> str:
    """Returns the id of a call or of its response, which the service may leave out: both then go by name and order."""
    name = as_text(body.get("name")) or "call"
    names[name] += 1
    return as_text(body.get("id")) or (name if names[name] == 1 else f"{name}_{names[name]}")


def _beside(part: Row, *names: str) -> str | None:
    extra = {name: value for name, value in part.items() if name not in names}
    return _fields({WIRE: extra} if extra else {})


# the Responses API: items, several of them as an output


_ITEM_ROLES: Mapping[str, Role] = {"system": "system", "developer": "system", "user": "user"}
_CONTENT = frozenset({"input_text", "input_image", "input_file", "output_text", "refusal"})
_PLAIN_CALL = frozenset({"type", "call_id", "name", "arguments"})
_ITEMS = frozenset({"function_call", "function_call_output", "reasoning", *CLIENT_TOOLS})


def responses_row(message: Message) -> dict[str, Any]:
    """Returns a reply as an object with its `output` items, any other message as its item; of several tool results the first."""
    items = message_items(message, store=True)
    if message.role == "assistant":
        return {"object": "response", "output": items}
    return {"type": "message", **items[0]} if items else {"type": "message", "role": message.role, "content": ""}


def is_responses_row(row: Mapping[str, Any]) -> bool:
    """Returns True for a line whose fields occur in this wire only."""
    kinds = {part.get("type") for part in as_dicts(row.get("content"))}
    return isinstance(row.get("output"), list) or row.get("type") in _ITEMS or not kinds.isdisjoint(_CONTENT)


def responses_message(row: Mapping[str, Any], message_id: str) -> Message:
    """Parses an output or one item, a result as a tool message; raises MessageError when it is neither."""
    if row.get("type") == "function_call_output":
        output: object = row.get("output")
        parts = [part for block in as_dicts(output) for part in _item_parts(block)]
        text = output if isinstance(output, str) else "".join(p.text for p in parts if isinstance(p, TextPart))
        media = (part for part in parts if isinstance(part, MediaPart))
        return Message(message_id, "tool", (ToolResultPart(as_text(row.get("call_id")), text), *media))
    role = as_text(row.get("role"))
    if role in _ITEM_ROLES:
        return _message(message_id, _ITEM_ROLES[role], row.get("content"), _item_parts)
    if role == "assistant" or row.get("type") in _ITEMS:
        return Message(message_id, "assistant", _replied([row], message_id))
    if not isinstance(row.get("output"), list):
        raise UnknownRoleError(f"role {row.get('role')!r} without an output: use {', '.join(_ITEM_ROLES)} or assistant")
    return Message(message_id, "assistant", _replied(as_dicts(row["output"]), message_id))


def _replied(items: Sequence[Mapping[str, Any]], message_id: str) -> tuple[Part, ...]:
    """Returns the parts of a reply; items with fields of their own are read as the service's answer is."""
    parts: list[Part] = []
    for plain, run in groupby(items, key=lambda item: _plain(item) is not None):
        parts += [part for part in map(_plain, run) if part is not None] if plain else _parsed(list(run), message_id)
    return tuple(parts)


def _plain(item: Row) -> Part | None:
    """Returns the text or the call of an item that has nothing else, None for another item."""
    if item.keys() <= _PLAIN_CALL and item.get("type") == "function_call":
        return ToolCallPart(as_text(item.get("call_id")), as_text(item.get("name")), as_text(item.get("arguments")))
    text: object = item.get("content")
    if item.get("role") == "assistant" and isinstance(text, str) and item.keys() <= {"type", "role", "content"}:
        return TextPart(text)
    return None


def _parsed(items: Sequence[Mapping[str, Any]], message_id: str) -> tuple[Part, ...]:
    parser, fold = ResponsesParser(load_profile("generic")), Fold(message_id)
    whole = json.dumps({"object": "response", "status": "completed", "output": items})
    try:
        for chunk in (*parser.feed(whole.encode()), *parser.close()):
            fold.feed(chunk)
        return fold.close().message.parts
    except BackendError as error:
        raise MessageError(f"an item of the line cannot be read: {error}") from None


def _item_parts(part: Row) -> list[Part]:
    kind = as_text(part.get("type"))
    if kind in ("input_text", "output_text", "text"):
        return [TextPart(as_text(part.get("text")))]
    return [MediaPart(kind.removeprefix("input_"), _json(part))]


KEY = "ctxfold"
_CHAT_FIELDS = frozenset(
    {"function_call", "reasoning", "reasoning_content", "reasoning_details", "tool_call_id", "tool_calls"}
)
_ANTHROPIC_BLOCKS = frozenset({"redacted_thinking", "thinking", "tool_result", "tool_use"})
_TEXT_KEYS = frozenset({"images", "output", "reasoning", "refusal", "text", "thinking", "transcript"})
_NAME_KEYS = frozenset(
    {"block_type", "created_at", "date", "id", "model", "name", "object", "role", "status", "timestamp", "type"}
)
_DATA_CHARS = 128  # no name and no digest is longer
_WIRES: Mapping[str, tuple[Callable[[Message], dict[str, Any]], Callable[[Row, str], Message]]] = {
    "anthropic_messages": (anthropic_row, anthropic_message),
    "bedrock_converse": (converse_row, converse_message),
    "gemini": (gemini_row, gemini_message),
    "openai_chat": (openai_row, openai_message),
    "openai_responses": (responses_row, responses_message),
}


def to_line(message: Message, wire: str) -> str:
    """Returns the message as one line without its newline; `from_line` restores the same message."""
    write, read = _WIRES[wire]
    row = write(message)
    extra_fields: dict[str, Any] = {"id": message.id, "wire": wire}
    if message.kind != "message":
        extra_fields["kind"] = message.kind
    for name in ("model", "finish_reason", "visibility", "preserve_reasoning"):
        if getattr(message, name) is not None:
            extra_fields[name] = getattr(message, name)
    if message.usage is not None:
        extra_fields["usage"] = asdict(message.usage)
    native = read(row, message.id)
    if native.role != message.role:
        extra_fields["role"] = message.role
    if native.name != message.name:
        extra_fields["name"] = message.name
    if native.parts != message.parts:
        extra_fields["parts"] = [asdict(part) for part in message.parts]
    return json.dumps({**row, KEY: extra_fields}, ensure_ascii=False)


def from_line(line: str, wire: str, new_id: Callable[[], str]) -> Message:
    """Parses a line in the wire that its `ctxfold.wire` names, else the one that its shape shows, else `wire`.

    A message without an id gets a new one. Raises MessageError when the line is not a message.
    """
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"the line is not JSON ({json_problem(error)}): {line[:80]!r}") from None
    if not isinstance(value, dict):
        raise MessageError(f"the line is not a JSON object: {line[:80]!r}")
    row = cast("dict[str, Any]", value)
    extra_fields = _object(row.pop(KEY, {}), KEY)
    default = "openai_chat" if wire == "gemini" else wire  # a content of Gemini has parts, which its shape shows
    named = str(extra_fields.get("wire") or _shape(row) or default)
    if named not in _WIRES:
        raise MessageError(f"the line was written for {named!r}: use one of {', '.join(_WIRES)}")
    identity = extra_fields.get("id")
    message = _WIRES[named][1](row, identity if isinstance(identity, str) and identity else new_id())
    try:
        message = validated(_completed(message, extra_fields))
    except (TypeError, ValueError) as error:
        if isinstance(error, MessageError):
            raise
        raise MessageError(f"the object under {KEY!r} is wrong: {error}") from None
    if "parts" not in extra_fields:
        _check_kept(row, message)
    return message


def _check_kept(row: Mapping[str, Any], message: Message) -> None:
    """Raises MessageError for a line with text or data that its message does not have: none is dropped in silence."""
    kept = {text for _, text in _texts([asdict(part) for part in message.parts], nested=True)} | {message.name}
    whole = "\n".join(text for text in kept if text)
    says = says_something(message)
    for place, text in _texts(row):
        *_, key = place.rsplit(".", 1)
        words = sum(any(map(str.isalpha, word)) for word in text.split())
        told = not says or key in _TEXT_KEYS or not text.isascii() or len(text) > _DATA_CHARS or words > 1
        named = key in _NAME_KEYS and not place.startswith("audio.")  # the id of an answer that was spoken
        if told and not named and text.strip() and text.strip() not in whole:
            raise MessageError(
                f"its field {place} has no place in a message ({text[:60]!r}): put it into the content, or leave it out"
            )


def _texts(value: object, place: str = "", *, nested: bool = False) -> Iterator[tuple[str, str]]:
    """Yields each text in a JSON value with the path of its field; with `nested`, also those in texts that are JSON."""
    if isinstance(value, str):
        yield place, value
        with suppress(ValueError, RecursionError):
            if nested and not isinstance(inner := json.loads(value), str):
                yield from _texts(inner, place, nested=True)
    elif is_a(value, dict):
        for key, held in as_dict(value).items():
            yield from _texts(held, f"{place}.{key}".lstrip("."), nested=nested)
    else:
        for held in as_list(value):
            yield from _texts(held, place, nested=nested)


def _shape(row: Mapping[str, Any]) -> str | None:
    """Returns the wire of a line when its fields occur in only one of them, else None."""
    if is_responses_row(row):
        return "openai_responses"
    if "parts" in row:
        return "gemini"
    blocks = as_dicts(row.get("content"))
    if blocks and all("type" not in block and block.keys() & BLOCKS for block in blocks):
        return "bedrock_converse"
    kinds = {as_text(block.get("type")) for block in blocks if not isinstance(block.get("thinking"), list)}
    if kinds & _ANTHROPIC_BLOCKS:
        return "anthropic_messages"
    chat = row.get("role") == "developer" or not _CHAT_FIELDS.isdisjoint(row) or row.get("content", "") is None
    return "openai_chat" if chat else None


def _completed(message: Message, extra_fields: Mapping[str, Any]) -> Message:
    """Returns the message with the fields that stood in the extra object."""
    role, kind = extra_fields.get("role", message.role), extra_fields.get("kind", "message")
    if role not in get_args(Role) or kind not in get_args(MessageKind):
        raise MessageError(f"role {role!r} or kind {kind!r} is not known")
    if extra_fields.get("visibility", "user") not in get_args(Visibility):
        raise MessageError(f"visibility {extra_fields['visibility']!r} is not known")
    for name in ("name", "model", "finish_reason"):
        if not isinstance(extra_fields.get(name, ""), str):
            raise MessageError(f"{name} is not text: {extra_fields[name]!r}")
    names = ("role", "kind", "name", "model", "finish_reason", "visibility", "preserve_reasoning")
    given = {name: extra_fields[name] for name in names if name in extra_fields}
    if extra_fields.get("usage") is not None:
        given["usage"] = Usage(**_object(extra_fields["usage"], "usage"))
    if "parts" in extra_fields:
        given["parts"] = _parts().validate_python(extra_fields["parts"])
    return replace(message, **given)


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MessageError(f"{name} is not a JSON object: {str(value)[:80]!r}")
    return cast("dict[str, Any]", value)


@cache
def _parts() -> TypeAdapter[tuple[Part, ...]]:
    from pydantic import Field, TypeAdapter

    return TypeAdapter(tuple[Annotated[Part, Field(discriminator="type")], ...])
