"""What another LlamaIndex LLM answers, whole or streamed, in the engine's terms."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import cast

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, TextBlock, ThinkingBlock

from ctxfold.messages import ReasoningPart, Usage
from ctxfold.ports import Chunk, Reply, ToolCallDelta
from llamaindex_ctx.convert import from_chat_message
from llamaindex_ctx.llm_reply import noted

__all__ = ["CumulativeChunks", "whole_reply"]

_INPUT = ("prompt_tokens", "input_tokens", "prompt_token_count", "prompt_eval_count")
_OUTPUT = ("completion_tokens", "output_tokens", "candidates_token_count", "eval_count")
_CACHE = ("cache_read_input_tokens", "cache_creation_input_tokens")  # Anthropic's: not within its `input_tokens`


def whole_reply(response: ChatResponse, model: str) -> Reply:
    """A whole response: its message, usage and finish reason."""
    usage, finish = _usage(response), _finish(response)
    read = from_chat_message(response.message, uuid.uuid4().hex)
    message = replace(read, role="assistant", model=_model(response) or model, usage=usage, finish_reason=finish)
    return Reply(message, usage, finish, response.raw)


class CumulativeChunks:
    """Turns responses that each hold everything so far into the pieces between them."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._text = ""
        self._thought = ""
        self._signature: str | None = None
        self._last: ChatResponse | None = None

    def read(self, response: ChatResponse) -> Iterator[Chunk]:
        """What this response adds of reasoning and text; calls, usage and the rest wait for the end."""
        self._last = response
        thought = _thinking(response)
        new: object = noted(response).get("thinking_delta")
        thought = thought if thought.startswith(self._thought) else self._thought
        piece = new if isinstance(new, str) and new else thought[len(self._thought) :]
        if piece:
            self._thought += piece
            yield Chunk(reasoning=piece, raw=response.raw)
        text = response.delta if response.delta is not None else _text(response)[len(self._text) :]
        if text:
            yield from self._seal(response)
            self._text += text
            yield Chunk(content=text, raw=response.raw)

    def _seal(self, response: ChatResponse) -> Iterator[Chunk]:
        """The thinking's signature, before any text: behind it, it would belong to a thought of its own."""
        if self._signature is not None or self._text:
            return
        self._signature = _signature(response)
        if self._signature is not None:
            yield Chunk(signature=self._signature, raw=response.raw)

    def end(self) -> Iterator[Chunk]:
        """What only the whole response tells: the rest of the text, details, tool calls, usage, finish reason, and itself."""
        if self._last is None:
            return
        yield from self._seal(self._last)
        reply = whole_reply(self._last.model_copy(update={"message": self._thoughtful(self._last)}), self._model)
        whole = reply.message
        details = [d for p in whole.parts if isinstance(p, ReasoningPart) and p.details for d in json.loads(p.details)]
        yield Chunk(
            content=whole.text[len(self._text) :] if whole.text.startswith(self._text) else "",
            reasoning_details=tuple(details),
            tool_calls=tuple(
                ToolCallDelta(n, c.id, c.name, c.arguments, c.extra) for n, c in enumerate(whole.tool_calls)
            ),
            usage=reply.usage,
            finish_reason=reply.finish_reason,
            model=whole.model,
            raw=self._last.raw,
            whole=whole,
        )

    def _thoughtful(self, last: ChatResponse) -> ChatMessage:
        """The last message, with the thinking and the signature that came before where it has lost them."""
        message, signature = last.message, _signature(last)
        if len(_thinking(last)) >= len(self._thought) and (self._signature is None or signature is not None):
            return message
        info: dict[str, object] = {}
        for block in message.blocks:
            if isinstance(block, ThinkingBlock):
                info |= block.additional_information
        if self._signature is not None:
            info["signature"] = self._signature
        thinking = ThinkingBlock(content=self._thought, additional_information=info)
        others = [b for b in message.blocks if not isinstance(b, ThinkingBlock)]
        return message.model_copy(update={"blocks": [thinking, *others]})


def _text(response: ChatResponse) -> str:
    return "".join(b.text for b in response.message.blocks if isinstance(b, TextBlock))


def _signature(response: ChatResponse) -> str | None:
    """The first of its thinking."""
    blocks = (b for b in response.message.blocks if isinstance(b, ThinkingBlock))
    return next((s for b in blocks if isinstance(s := _field(b.additional_information, "signature"), str)), None)


def _thinking(response: ChatResponse) -> str:
    return "".join(b.content or "" for b in response.message.blocks if isinstance(b, ThinkingBlock))


def _usage(response: ChatResponse) -> Usage | None:
    """Tokens under the names in use: beside the message (ours and others), or in the provider's own object."""
    raw: object = response.raw
    beside, told = noted(response), _field(raw, "usage")
    for source in (beside, told, _field(raw, "usage_metadata")):
        into, out = _first(source, *_INPUT), _first(source, *_OUTPUT)
        if into is None and out is None:
            continue
        # an integration may copy the provider's `input_tokens` alone, and leave the cache where it stood
        copied = source is beside and into == _input_tokens(told) and not any(_first(source, n) for n in _CACHE)
        read, written = (_first(told if copied else source, name) or 0 for name in _CACHE)
        excluded = into is not None and (source is beside or _input_tokens(source) is not None)
        details, thought = _field(source, "prompt_tokens_details"), _field(source, "completion_tokens_details")
        return Usage(
            (into or 0) + (read + written if excluded else 0),
            out or 0,
            _first(source, "cache_read_tokens") or read or _first(details, "cached_tokens") or 0,
            _first(source, "cache_write_tokens") or written,
            _first(source, "reasoning_tokens") or _first(thought, "reasoning_tokens") or 0,
        )
    return None


def _input_tokens(source: object) -> int | None:
    """The input under Anthropic's name alone; `prompt_tokens` in a provider's own object includes the cache."""
    return None if _first(source, "prompt_tokens") is not None else _first(source, "input_tokens")


def _finish(response: ChatResponse) -> str | None:
    choices = _field(response.raw, "choices")
    first: object = cast("list[object]", choices)[0] if isinstance(choices, list) and choices else None
    places: tuple[object, ...] = (noted(response), first, response.raw)
    found = (_field(p, name) for p in places for name in ("finish_reason", "stop_reason"))
    return next((f for f in found if isinstance(f, str)), None)


def _model(response: ChatResponse) -> str | None:
    found = _field(noted(response), "model") or _field(response.raw, "model")
    return found if isinstance(found, str) else None


def _first(source: object, *names: str) -> int | None:
    found = (_field(source, name) for name in names)
    return next((f for f in found if isinstance(f, int) and not isinstance(f, bool)), None)


def _field(source: object, name: str) -> object:
    """A field of a mapping or of an object, whichever the provider's library gives."""
    if isinstance(source, Mapping):
        return cast("Mapping[str, object]", source).get(name)
    return cast("object", getattr(source, name, None))
