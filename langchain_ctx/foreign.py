"""What another LangChain chat model is asked, and what it streams, in the engine's terms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.runnables import Runnable

from ctxfold.errors import ConfigError
from ctxfold.messages import Message, ReasoningPart, TextPart, Usage
from ctxfold.ports import Chunk, Request, ToolCallDelta
from langchain_ctx.convert import from_langchain, to_langchain

__all__ = ["ForeignChunks", "asked", "offered"]


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
    signed = any(isinstance(p, ReasoningPart) and p.signature is not None for p in message.parts)
    if not (signed and isinstance(told.content, str)):
        return told
    blocks: list[str | dict[Any, Any]] = []
    for part in message.parts:
        if isinstance(part, ReasoningPart) and part.signature is not None:
            blocks.append({"type": "thinking", "thinking": part.text, "signature": part.signature})
        elif isinstance(part, TextPart):
            blocks.append({"type": "text", "text": part.text})
    return told.model_copy(update={"content": blocks})


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
    """Translates one stream; pieces of usage are added up, as LangChain does when it merges chunks."""

    def __init__(self) -> None:
        self._usage: Usage | None = None
        self._thought = ""

    def read(self, piece: Any) -> Iterator[Chunk]:
        """The engine's chunks for one of LangChain's; its reasoning once, however many places show it."""
        if not isinstance(piece, AIMessageChunk):
            piece = AIMessageChunk(content=piece if isinstance(piece, str) else str(piece.content))
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

    def _content(self, piece: AIMessageChunk) -> Iterator[Chunk]:
        thought: Any = piece.additional_kwargs.get("reasoning_content")
        if isinstance(thought, str) and thought:
            yield Chunk(reasoning=thought, raw=piece)
        content = cast("str | Sequence[str | Mapping[str, Any]]", piece.content)
        for block in (content,) if isinstance(content, str) else content:
            chunk = _block({"type": "text", "text": block} if isinstance(block, str) else block, piece)
            if chunk is not None and not (thought and chunk.reasoning):
                yield chunk


def _block(block: Mapping[str, Any], piece: AIMessageChunk) -> Chunk | None:
    match block:
        case {"type": "text", "text": str(text)} if text:
            return Chunk(content=text, raw=piece)
        case {"type": "thinking" | "reasoning"}:
            text = block.get("thinking") or block.get("reasoning") or ""
            signature = block.get("signature")
            return Chunk(reasoning=text, signature=signature, raw=piece) if text or signature else None
        case {"type": "redacted_thinking", "data": str(data)}:
            return Chunk(sealed={"type": "redacted_thinking", "data": data}, raw=piece)
        case _:
            return None


def _index(given: object, position: int) -> int | None:
    """Some models number calls by content block, some by text: both serve, as long as one call keeps its number."""
    if isinstance(given, int):
        return given
    return None if given is not None else position
