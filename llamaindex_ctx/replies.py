"""Converts replies and streamed chunks to LlamaIndex's ChatResponse, and whole responses of any LLM to replies."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ContentBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.llms.llm import ToolSelection
from pydantic_core import from_json, to_jsonable_python

from ctxfold import Message, Reply, Usage
from ctxfold.adapters.part_order import bound
from ctxfold.errors import InvalidToolArgumentsError
from ctxfold.messages import REFUSAL, Part, ReasoningPart, TextPart, ToolCallPart
from ctxfold.protocols import Chunk, ToolCallDelta
from ctxfold.stream import Fold, ToolCalls
from ctxfold.validation import as_dict, as_list
from llamaindex_ctx.messages import from_chat_message, to_chat_message

THINKING = "thinking_delta"  # on every streamed response
MALFORMED = "INVALID_JSON"  # the key under which services are given malformed arguments back
FINISH = "finish_reason"  # on every whole one, the last of a stream among them
_ANTHROPIC_CACHE = frozenset({"cache_read_input_tokens", "cache_creation_input_tokens"})
_EXCLUDED = _ANTHROPIC_CACHE | {"cacheReadInputTokens", "cacheWriteInputTokens"}  # from the input beside them
_CACHE_NOTES = _ANTHROPIC_CACHE | {"cache_read_tokens"}
# dotted paths into a usage object, under the names of all services
_INPUT = "prompt_tokens input_tokens prompt_token_count prompt_eval_count inputTokens"
_OUTPUT = "completion_tokens output_tokens candidates_token_count eval_count outputTokens"
_READ = (
    "cache_read_tokens prompt_tokens_details.cached_tokens input_tokens_details.cached_tokens prompt_cache_hit_tokens "
    "cached_tokens cache_read_input_tokens cacheReadInputTokens cached_content_token_count"
)
_WRITTEN = (
    "cache_write_tokens prompt_tokens_details.cache_write_tokens input_tokens_details.cache_write_tokens "
    "cache_creation_input_tokens cacheWriteInputTokens"
)
_REASONING = (
    "completion_tokens_details.reasoning_tokens output_tokens_details.reasoning_tokens thoughts_token_count "
    "reasoning_tokens"
)


def chat_response(reply: Reply, *, one_call: bool = False) -> ChatResponse:
    """Returns a whole reply, with usage in `additional_kwargs` under the names that LlamaIndex's token counters read."""
    message = reply.message
    extras: dict[str, Any] = _counts(reply.usage) if reply.usage is not None else {}
    if message.model is not None:
        extras["model"] = message.model
    extras[FINISH] = reply.finish_reason or message.finish_reason
    if (refusal := message.opaque(REFUSAL)) is not None:
        extras["refusal"] = refusal
    calls = message.tool_calls[:1] if one_call else message.tool_calls
    text = to_chat_message(replace(message, parts=_arranged(message, calls)))
    blocks = (block for block in text.blocks if isinstance(block, ToolCallBlock))
    for block, call in zip(blocks, calls, strict=True):
        block.tool_kwargs = call.arguments  # the text that came: a prefix cache knows no other
    _note_calls(text, calls)
    return ChatResponse(message=text, raw=reply.raw, additional_kwargs=extras)


def _arranged(message: Message, calls: Sequence[ToolCallPart]) -> tuple[Part, ...]:
    """Returns thinking, one text (even if empty) and calls, as LlamaIndex expects them.

    Where a provider sent something beside a part, such as a signature, everything stays where it came.
    """
    thinking = [part for part in message.parts if isinstance(part, ReasoningPart)]
    texts = [part for part in message.parts if isinstance(part, TextPart)]
    ordered = bool(texts) or len(thinking) > 1 or (bool(thinking) and message.parts[0] is not thinking[0])
    if ordered and bound(message):
        return tuple(part for part in message.parts if not isinstance(part, ToolCallPart) or part in calls)
    if len(thinking) > 1:
        thinking = [ReasoningPart("".join(part.text for part in thinking))]
    return (*thinking, TextPart("".join(part.text for part in texts)), *calls)


def _counts(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


def _note_calls(message: ChatMessage, calls: Sequence[ToolCallPart]) -> None:
    """Puts the calls where structured streaming looks for them."""
    if calls:
        message.additional_kwargs["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]


def noted(response: ChatResponse) -> dict[str, Any]:
    """Returns the response's `additional_kwargs`: usage, finish reason, thinking delta."""
    return cast("dict[str, Any]", response.additional_kwargs)  # pyright: ignore[reportUnknownMemberType]


def tool_selections(response: ChatResponse, *, malformed_ok: bool) -> list[ToolSelection]:
    """Returns the tool calls of a response; incomplete arguments are parsed as far as they go.

    Arguments of a finished response that are no JSON object raise InvalidToolArgumentsError; with `malformed_ok` they become
    one argument that holds the text.
    """
    notes = noted(response)
    finished = THINKING not in notes or FINISH in notes
    return [
        ToolSelection(
            tool_id=block.tool_call_id or "",
            tool_name=block.tool_name,
            tool_kwargs=_arguments(block, finished=finished, malformed_ok=malformed_ok),
        )
        for block in response.message.blocks
        if isinstance(block, ToolCallBlock)
    ]


def _arguments(block: ToolCallBlock, *, finished: bool, malformed_ok: bool) -> dict[str, Any]:
    arguments = block.tool_kwargs
    if isinstance(arguments, dict):
        return arguments
    if not arguments.strip():
        return {}
    try:
        value: object = json.loads(arguments) if finished else from_json(arguments, allow_partial="trailing-strings")
    except (ValueError, RecursionError) as error:
        value = error
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    if not finished:
        return {}  # not even the beginning of an object yet; the finished response is judged
    if malformed_ok:
        return {MALFORMED: arguments}
    raise InvalidToolArgumentsError(
        f"the model called {block.tool_name!r} with arguments that are not a JSON object: {arguments[:80]!r}; "
        "ask again, or describe the tool's parameters more clearly"
    )


class CumulativeReply:
    """A streamed reply as cumulative responses: `feed` per chunk, `close` for the last one with the whole message."""

    def __init__(self, message_id: str, model: str, *, one_call: bool = False) -> None:
        self._fold = Fold(message_id, model)
        self._thinking = _Text()
        self._text = _Text()
        self._calls: list[_CallSoFar] = []
        self._one_call = one_call
        self._raw: dict[str, Any] = {}

    def feed(self, chunk: Chunk) -> ChatResponse | None:
        """Returns the answer so far; None when the chunk adds nothing visible."""
        raw: object = chunk.raw
        if isinstance(raw, dict):
            fields = cast("dict[str, Any]", raw)
            self._raw |= {name: value for name, value in fields.items() if value}
        for event in self._fold.feed(chunk):
            if isinstance(event, ToolCalls):
                for number, delta in zip(event.numbers, event.calls, strict=True):
                    self._add(number, delta)
        thought, text = self._thinking.add(chunk.reasoning), self._text.add(chunk.content)
        if not (thought or text or chunk.tool_calls):
            return None
        blocks: list[ContentBlock] = []
        if self._thinking.text:
            blocks.append(ThinkingBlock(content=self._thinking.text))
        blocks.append(TextBlock(text=self._text.text))
        named = [c for c in self._calls if c.name][: 1 if self._one_call else None]
        calls = [ToolCallPart(c.id, c.name, c.arguments.text) for c in named]
        blocks += [
            ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=call.arguments) for call in calls
        ]
        message = ChatMessage(role=MessageRole.ASSISTANT, blocks=blocks)
        _note_calls(message, calls)
        return _streamed(ChatResponse(message=message, raw=chunk.raw), text, thought)

    def _add(self, number: int, delta: ToolCallDelta) -> None:
        if number == len(self._calls):
            self._calls.append(_CallSoFar())
        call = self._calls[number]
        call.id = call.id or delta.id or ""
        call.name = call.name or delta.name or ""
        call.arguments.add(delta.arguments)

    def close(self) -> ChatResponse:
        """Returns the whole answer, with usage and finish reason; its raw object merges those of the chunks."""
        reply = self._fold.close()
        final = replace(reply, raw=self._raw or reply.raw)
        text = reply.message.text[len(self._text.text) :]
        thought = reply.message.reasoning[len(self._thinking.text) :]
        return _streamed(chat_response(final, one_call=self._one_call), text, thought)


def _streamed(response: ChatResponse, text: str, thought: str) -> ChatResponse:
    response.delta = text
    noted(response)[THINKING] = thought or None
    return response


class _Text:
    """Text so far; half of a surrogate pair that two chunks cut apart waits for its other half."""

    def __init__(self) -> None:
        self.text: str = ""
        self._held: str = ""

    def add(self, piece: str) -> str:
        """Returns the part of the text that can be shown now."""
        if not piece:
            return ""
        if self._held or not piece.isascii():
            piece, self._held = self._held + piece, ""
            if "\ud800" <= piece[-1] <= "\udbff":
                piece, self._held = piece[:-1], piece[-1]
            piece = piece.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        self.text += piece
        return piece


@dataclass(slots=True)
class _CallSoFar:
    """A tool call as far as it has come, for show while it streams; the whole one is the fold's."""

    id: str = ""
    name: str = ""
    arguments: _Text = field(default_factory=_Text)


# a response of any LLM as a reply


def whole_reply(response: ChatResponse, model: str) -> Reply:
    """Returns a whole response as a reply: its message, usage and finish reason."""
    usage, finish = usage_of(response), _finish(response)
    read = from_chat_message(response.message, uuid.uuid4().hex)
    message = replace(read, role="assistant", model=_model(response) or model, usage=usage, finish_reason=finish)
    return Reply(message, usage, finish, response.raw)


def usage_of(response: ChatResponse) -> Usage | None:
    """Returns the usage of a response: from the provider's own object, which tells the cache too, or the fields beside it.

    Zero tokens of input beside some of output are not reported, as no request is empty.
    """
    raw, beside = response.raw, noted(response)
    notes = {name: value for name, value in beside.items() if isinstance(value, int)}
    # of an event of OpenAI's Responses, and of Bedrock
    inner = (field_of(raw, name) for name in ("response", "metadata"))
    own = [field_of(raw, "usage"), *(field_of(each, "usage") for each in inner), beside.get("usage")]
    own.append(field_of(raw, "usage_metadata"))
    told: list[object] = [notes, response.message.additional_kwargs.get("usage")]
    told += [cast("object", raw)] if isinstance(raw, Mapping) else []
    # ours are complete, and so is what an integration tells of the cache
    sources: list[object] = [*told, *own] if notes.keys() & _CACHE_NOTES else [*own, *told]
    for source in filter(None, sources):
        fields = as_dict(to_jsonable_python(source, fallback=lambda value: getattr(value, "__dict__", str(value))))
        into, out = _number(fields, _INPUT), _number(fields, _OUTPUT)
        if into is None and out is None:
            continue
        read, written = _number(fields, _READ) or 0, _number(fields, _WRITTEN) or 0
        excluded = "inputTokens" in fields or ("input_tokens" in fields and "prompt_tokens" not in fields)
        excluded = (excluded or source is notes) and bool(fields.keys() & _EXCLUDED)
        out = (out or 0) + (_number(fields, "thoughts_token_count") or 0)  # Gemini's: not within its candidates
        into = (into or 0) + (read + written if excluded else 0)
        return Usage(into, out, read, written, _number(fields, _REASONING) or 0)
    return None


def _finish(response: ChatResponse) -> str | None:
    first = next(iter(as_list(field_of(response.raw, "choices"))), None)
    places: tuple[object, ...] = (noted(response), first, response.raw)
    values = (field_of(p, name) for p in places for name in ("finish_reason", "stop_reason"))
    return next((f for f in values if isinstance(f, str)), None)


def _model(response: ChatResponse) -> str | None:
    model = field_of(noted(response), "model") or field_of(response.raw, "model")
    return model if isinstance(model, str) else None


def _number(fields: Mapping[str, Any], paths: str) -> int | None:
    """Returns the first number at one of the paths; None where there is none."""
    for path in paths.split():
        value: object = fields
        for step in path.split("."):
            value = as_dict(value).get(step)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def field_of(source: object, name: str) -> object:
    """Returns a field of a mapping or of an object, whichever the provider's library returns."""
    if isinstance(source, Mapping):
        return cast("Mapping[str, object]", source).get(name)
    return cast("object", getattr(source, name, None))
