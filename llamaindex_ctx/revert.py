"""ctxfold messages as LlamaIndex knows them: the way back from `convert`, without loss."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, cast

from llama_index.core.base.llms.types import (
    ChatMessage,
    ContentBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from pydantic import TypeAdapter

from ctxfold.messages import MediaPart, Message, Opaque, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from llamaindex_ctx.marks import ID_KEY, KIND_KEY, NAMESPACE, REASONING_KEY, Json, Noted
from llamaindex_ctx.media import media_block, plain_media_block

__all__ = ["to_chat_message", "to_chat_messages"]

_ROLES: Final[dict[str, MessageRole]] = {role.value: role for role in MessageRole}
_block: TypeAdapter[ContentBlock] = TypeAdapter(ContentBlock)
_texts: TypeAdapter[list[TextBlock]] = TypeAdapter(list[TextBlock])
_set: Final = object.__setattr__


def to_chat_messages(messages: Iterable[Message]) -> list[ChatMessage]:
    """The messages as LlamaIndex knows them, each a new object; one for each tool result."""
    shown = list(messages)
    texts = [_only_text(m) for m in shown]
    blocks = iter(_texts.validate_python([{"text": text} for text in texts if text is not None]))
    found: list[ChatMessage] = []
    for message, text in zip(shown, texts, strict=True):
        if text is not None:
            found.append(_of_text(message, next(blocks)))
        elif len(results := message.tool_results) > 1:
            found += [to_chat_message(replace(message, parts=(result,))) for result in results]
        else:
            found.append(to_chat_message(message))
    return found


def to_chat_message(message: Message) -> ChatMessage:
    """One message, exactly as it came when it came from LlamaIndex; `additional_kwargs["ctxfold_id"]` tells its id beside."""
    if (text := _only_text(message)) is not None:
        return _of_text(message, TextBlock(text=text))
    beside: Json | None = message.opaque(NAMESPACE)
    parts = [p for p in message.parts if not isinstance(p, Opaque)]
    marks = {ID_KEY: message.id, **({KIND_KEY: message.kind} if message.kind != "message" else {})}
    blocks = None if beside is None else _restored(parts, cast("list[Json]", beside["blocks"]))
    if beside is None or blocks is None:
        made = _plain(message, parts)
    else:
        made = ChatMessage(role=MessageRole(beside["role"]), blocks=blocks, additional_kwargs=beside["kwargs"])
    made.additional_kwargs = Noted(made.additional_kwargs, marks)
    return made


def _only_text(message: Message) -> str | None:
    """The text of a message that is nothing else, as most are."""
    only = message.parts[0] if len(message.parts) == 1 else None
    return only.text if type(only) is TextPart and not message.name and message.kind == "message" else None


def _of_text(message: Message, block: TextBlock) -> ChatMessage:
    """A message that is right by construction, made as unpickling makes one: windows are long, and checking costs thrice that."""
    made = ChatMessage.__new__(ChatMessage)
    fields = {"role": _ROLES[message.role], "additional_kwargs": Noted({}, {ID_KEY: message.id}), "blocks": [block]}
    _set(made, "__dict__", fields)
    _set(made, "__pydantic_fields_set__", set(fields))
    _set(made, "__pydantic_extra__", None)
    _set(made, "__pydantic_private__", None)
    return made


def _plain(message: Message, parts: Sequence[Part]) -> ChatMessage:
    kwargs: Json = {}
    results = message.tool_results
    if results:
        kwargs["tool_call_id"] = results[0].call_id
    name = message.name or (results[0].name if results else None)
    if name:
        kwargs["name"] = name
    if message.reasoning:
        # streaming chat engines keep one text block and the kwargs, nothing else
        kwargs[REASONING_KEY] = message.reasoning
    blocks = [b for p in parts if (b := _plain_block(p)) is not None]
    return ChatMessage(role=MessageRole(message.role), blocks=blocks, additional_kwargs=kwargs)


def _plain_block(part: Part) -> ContentBlock | None:
    match part:
        case TextPart(text=text) | ToolResultPart(content=text):
            return TextBlock(text=text)
        case ReasoningPart():
            info = {"signature": part.signature, "details": part.details}
            return ThinkingBlock(
                content=part.text, additional_information={k: v for k, v in info.items() if v is not None}
            )
        case ToolCallPart():
            return ToolCallBlock(tool_call_id=part.id, tool_name=part.name, tool_kwargs=_arguments(part.arguments))
        case MediaPart():
            return plain_media_block(part)
        case Opaque():
            return None


def _arguments(text: str) -> Json | str:
    """The arguments decoded; as they are where that fails, for the engine to refuse."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return cast("Json", value) if isinstance(value, dict) else text


def _restored(parts: Sequence[Part], spec: Sequence[Json]) -> list[ContentBlock] | None:
    """The blocks as they were; None when the parts are no longer those that the notes speak of."""
    results = [p for p in parts if isinstance(p, ToolResultPart)]
    told = [n["n"] for n in spec if n["k"] == "slice" or n.get("told")]
    slices = _slices(results[0].content, told) if results else deque[str]()
    queue = deque(p for p in parts if not isinstance(p, ToolResultPart))
    blocks: list[ContentBlock] = [TextBlock(text=results[0].content)] if slices is None else []
    for note in spec:
        if note["k"] == "slice" or note.get("told"):
            if slices:
                text = slices.popleft()
                blocks.append(_block.validate_python(note["block"]) if note.get("told") else TextBlock(text=text))
        elif note["k"] == "raw" and not note.get("shown"):
            blocks.append(_block.validate_python(note["block"]))
        elif not queue:
            return None
        elif (block := _noted_block(queue.popleft(), note)) is not None:
            blocks.append(block)
    return None if queue else blocks


def _slices(content: str, lengths: Sequence[int]) -> deque[str] | None:
    """The texts that were joined into a tool's result; None when it is shown as an excerpt now."""
    if sum(lengths) + max(0, len(lengths) - 1) != len(content):
        return None
    found: deque[str] = deque()
    at = 0
    for length in lengths:
        found.append(content[at : at + length])
        at += length + 1
    return found


def _noted_block(part: Part, note: Json) -> ContentBlock | None:
    match note["k"], part:
        case "raw", _:
            return _block.validate_python(note["block"])
        case "thinking", ReasoningPart():
            content = None if note["none"] and not part.text else part.text
            return ThinkingBlock(content=content, num_tokens=note["num"], additional_information=note["info"])
        case "call", ToolCallPart():
            kwargs = note["text"] if "text" in note else _arguments(part.arguments)
            return ToolCallBlock(tool_call_id=note["id"], tool_name=part.name, tool_kwargs=kwargs)
        case "media", MediaPart():
            return media_block(part, note["fields"])
        case "text", TextPart():
            return TextBlock(text=part.text)
        case _:
            return None
