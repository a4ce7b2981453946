"""What another LangChain chat model is asked, and what it streams, in the engine's terms."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, message_chunk_to_message
from langchain_core.messages.ai import add_ai_message_chunks
from langchain_core.runnables import Runnable

from ctxfold.errors import ConfigError, MessageError
from ctxfold.messages import Message, Part, ReasoningPart, TextPart, Usage
from ctxfold.ports import Chunk, Request, ToolCallDelta
from langchain_ctx.convert import from_langchain, to_langchain

__all__ = ["ForeignChunks", "asked", "offered"]

SEALED = "redacted_thinking"


def asked(messages: Iterable[Message]) -> list[BaseMessage]:
    """The messages for a model: one for each tool result, signed thoughts as the blocks in which they came."""
    found: list[BaseMessage] = []
    for message in messages:
        results = message.tool_results
        pieces = [replace(message, parts=(r,)) for r in results] if len(results) > 1 else [message]
        found += [_sent(piece) for piece in pieces]
    return found


def _sent(message: Message) -> BaseMessage:
    told = to_langchain(message)
    if isinstance(told, AIMessage) and any(not c["id"] for c in told.invalid_tool_calls):  # nothing can answer these
        told = told.model_copy(update={"invalid_tool_calls": [c for c in told.invalid_tool_calls if c["id"]]})
    if not isinstance(told.content, str) or not any(isinstance(p, ReasoningPart) for p in message.parts):
        return told
    if not any(_thought_blocks(part) for part in message.parts):
        return told
    blocks: list[str | dict[Any, Any]] = []
    for part in message.parts:
        blocks += [{"type": "text", "text": part.text}] if isinstance(part, TextPart) else _thought_blocks(part)
    return told.model_copy(update={"content": blocks})


def _thought_blocks(part: Part) -> list[dict[str, Any]]:
    """A thought that is signed or sealed, in Anthropic's shape."""
    if not isinstance(part, ReasoningPart):
        return []
    if part.signature is not None:
        return [{"type": "thinking", "thinking": part.text, "signature": part.signature}]
    held = [] if part.text or part.details is None else cast("list[dict[str, Any]]", json.loads(part.details))
    return [block for block in held if block.get("type") == SEALED]


def offered(model: BaseChatModel, request: Request) -> Runnable[LanguageModelInput, AIMessage]:
    """The model with the request's tools bound; ConfigError when it takes none."""
    if not request.tools:
        return model
    tools = [
        {
            "type": "function",
            "function": {"name": t.name, "description": t.description, "parameters": _schema(t.parameters)},
        }
        for t in request.tools
    ]
    choice = {} if request.tool_choice is None else {"tool_choice": _choice(request.tool_choice)}
    try:
        return model.bind_tools(tools, **choice)
    except NotImplementedError:
        raise ConfigError(
            f"{type(model).__name__} cannot be given tools (it has no bind_tools): leave tools out, or use another model"
        ) from None


def _schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {}, **parameters}


def _choice(choice: str) -> str:
    return "any" if choice == "required" else choice


class ForeignChunks:
    """Translates one stream; pieces of usage are added up, as LangChain does when it merges chunks.

    `output_version` is the model's, where its chunks are not yet in that version.
    """

    def __init__(self, output_version: str | None = None) -> None:
        self._version = output_version
        self._usage: Usage | None = None
        self._pieces: list[AIMessageChunk] = []
        self._places = _Places()

    def read(self, piece: Any) -> Iterator[Chunk]:
        """The engine's chunks for one of LangChain's; its reasoning once, however many places show it."""
        if not isinstance(piece, AIMessageChunk):
            piece = AIMessageChunk(content=piece if isinstance(piece, str) else str(piece.content))
        self._pieces.append(piece)
        yield from self._content(piece)
        calls = tuple(
            ToolCallDelta(_index(c.get("index"), n), c.get("id"), c.get("name"), c.get("args") or "")
            for n, c in enumerate(piece.tool_call_chunks)
        )
        meta = piece.response_metadata
        finish, model = meta.get("finish_reason") or meta.get("stop_reason"), meta.get("model_name")
        details: object = piece.additional_kwargs.get("reasoning_details")
        if piece.usage_metadata is not None:
            usage = from_langchain(AIMessage("", usage_metadata=piece.usage_metadata)).usage
            self._usage = usage if self._usage is None or usage is None else self._usage + usage
        if calls or finish or model or details or piece.usage_metadata is not None:
            yield Chunk(
                tool_calls=calls,
                reasoning_details=tuple(cast("list[object]", details)) if isinstance(details, list) else (),
                usage=self._usage,
                finish_reason=finish if isinstance(finish, str) else None,
                model=model if isinstance(model, str) else None,
                raw=piece,
            )

    def end(self) -> Iterator[Chunk]:
        """The whole message: what only its package understands, citations and the work of its own tools among it."""
        try:
            first, *rest = self._pieces
            whole = from_langchain(self._in_version(add_ai_message_chunks(first, *rest)))
        except (MessageError, TypeError, ValueError):
            return  # what LangChain cannot add up is kept as far as it was read
        yield Chunk(whole=whole)

    def _in_version(self, merged: AIMessageChunk) -> AIMessageChunk:
        if isinstance(merged.content, str):
            merged.additional_kwargs |= self._places.kwargs(merged.additional_kwargs.get("reasoning_details"))
        if self._version != "v1" or merged.response_metadata.get("output_version") == "v1":
            return merged
        blocks = message_chunk_to_message(merged).content_blocks
        told = {**merged.response_metadata, "output_version": "v1"}
        return merged.model_copy(update={"content": blocks, "response_metadata": told})

    def _content(self, piece: AIMessageChunk) -> Iterator[Chunk]:
        thought: Any = piece.additional_kwargs.get("reasoning_content")
        if isinstance(thought, str) and thought:
            self._places.thought(thought)
            yield Chunk(reasoning=thought, raw=piece)
        content = cast("str | Sequence[str | Mapping[str, Any]]", piece.content)
        for block in (content,) if isinstance(content, str) else content:
            chunk = _block({"type": "text", "text": block} if isinstance(block, str) else block, piece)
            if chunk is not None and not (thought and chunk.reasoning):
                self._places.text(chunk.content)
                yield chunk


class _Places:
    """Where in the text each thought came: merged, they are one text without a place."""

    def __init__(self) -> None:
        self._at = 0
        self._told: list[dict[str, int]] = []

    def thought(self, text: str) -> None:
        if not self._told or self._told[-1]["at"] != self._at:
            self._told.append({"at": self._at, "length": 0})
        self._told[-1]["length"] += len(text)

    def text(self, text: str) -> None:
        self._at += len(text)

    def kwargs(self, details: object) -> dict[str, Any]:
        if not self._told or (len(self._told) == 1 and not self._told[0]["at"]):
            return {}
        first, *rest = self._told
        first = {**first, "details": len(cast("list[object]", details))} if isinstance(details, list) else first
        return {"ctxfold": {"thoughts": [first, *rest]}}


def _block(block: Mapping[str, Any], piece: AIMessageChunk) -> Chunk | None:
    match block:
        case {"type": "text", "text": str(text)} if text:
            return Chunk(content=text, raw=piece)
        case {"type": "thinking" | "reasoning"}:
            text = block.get("thinking") or block.get("reasoning") or ""
            signature = block.get("signature")
            return Chunk(reasoning=text, signature=signature, raw=piece) if text or signature else None
        case {"type": kind, "data": str(data)} if kind == SEALED:
            return Chunk(sealed={"type": SEALED, "data": data}, raw=piece)
        case _:
            return None


def _index(given: object, position: int) -> int | None:
    """Some models number calls by content block, some by text: both serve, as long as one call keeps its number."""
    if isinstance(given, int):
        return given
    return None if given is not None else position
