"""Translates requests and streams between the engine and another LangChain chat model."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from functools import lru_cache, partial
from operator import is_
from typing import Any, Literal, NamedTuple, TypeVar, cast

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, message_chunk_to_message
from langchain_core.messages.ai import UsageMetadata, add_ai_message_chunks
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import Runnable

from ctxfold.adapters.calls import ModelStream
from ctxfold.adapters.part_order import Place
from ctxfold.effects import Flow
from ctxfold.errors import ConfigError, MessageError
from ctxfold.history.cuts import later_system_as_users
from ctxfold.history.records import SessionKey
from ctxfold.lru import LruCache
from ctxfold.messages import Message, Part, ReasoningPart, TextPart, Usage, with_unique_calls
from ctxfold.protocols import Chunk, Request, ToolCallDelta
from ctxfold.validation import as_list
from langchain_ctx.content import thought_text
from langchain_ctx.errors import as_backend_error
from langchain_ctx.messages import from_langchain, to_langchain, usage_metadata, without_thoughts
from langchain_ctx.models import first_with_reasoning, is_same_model, model_name, warn_of_loss

Piece = TypeVar("Piece")
SEALED = "redacted_thinking"
_SYSTEM_LEADS = frozenset(
    {
        "langchain_anthropic",
        "langchain_aws",
        "langchain_google_genai",
        "langchain_google_vertexai",
        "langchain_mistralai",
    }
)


def messages_to_send(
    messages: Iterable[Message], model: str | None = None, *, reasoning_from: int = 0
) -> list[BaseMessage]:
    """Returns the messages for a model: one for each tool result, and signed reasoning in its original blocks.

    What another model has signed stays out where `model` names the one that is asked: no service can verify it. Messages
    before the index `reasoning_from` are without reasoning; one that holds nothing else is left out.
    """
    return [
        own
        for index, message in enumerate(_with_ids_for(model, messages))
        for own in converted(message, model, thinks=index >= reasoning_from)
    ]


def window_for(model: Any, request: Request) -> list[BaseMessage]:
    """Returns the request's messages for the model that is asked, without reasoning that its service would refuse."""
    _warn_of_loss(model, request.messages)
    return messages_to_send(
        _legal_for(model, request.messages),
        request.model or model_name(model),
        reasoning_from=first_with_reasoning(model, request),
    )


def _legal_for(model: Any, messages: Sequence[Message]) -> Sequence[Message]:
    """Returns the messages, for a model whose package takes system messages at the head alone with later ones as the user's."""
    return later_system_as_users(messages) if _is_led_by_system(_innermost(model)) else messages


@lru_cache(maxsize=64)
def _is_led_by_system(model_class: type[BaseChatModel]) -> bool:
    return not _SYSTEM_LEADS.isdisjoint(cls.__module__.partition(".")[0] for cls in model_class.__mro__)


def _innermost(model: Any) -> type[BaseChatModel]:
    while (bound := getattr(model, "bound", None)) is not None:
        model = bound
    return cast("type[BaseChatModel]", type(model))


def _warn_of_loss(model: Any, messages: Iterable[Message]) -> None:
    if any(message.reasoning for message in messages):
        warn_of_loss(_innermost(model))


def _with_ids_for(model: str | None, messages: Iterable[Message]) -> Sequence[Message]:
    """Returns the messages, for Claude with an id of its own for each call."""
    return with_unique_calls([*messages]) if _is_claude(model) else [*messages]


def _is_claude(model: str | None) -> bool:
    return model is not None and "claude" in model.lower()


def converted(message: Message, model: str | None, *, thinks: bool) -> list[BaseMessage]:
    """Returns what a message is to the model, see `messages_to_send`; `thinks` is False where its reasoning stays out."""
    results = message.tool_results
    if len(results) > 1:
        return [_sent(replace(message, parts=(r,)), model) for r in results]
    if thinks or message.role != "assistant":
        return [_sent(message, model)]
    sent = _sent(without_thoughts(message), model)
    if message.id.startswith("msg_"):  # in version v0 an item of OpenAI's Responses, which demands its reasoning
        sent = sent.model_copy(update={"id": None})
    return [sent] if sent.content or message.tool_calls else []


class ConvertedWindow(NamedTuple):
    """Holds the messages of a session's last window, and for each one what copies the messages that it became.

    Those before the index `reasoning_from` were converted without reasoning.
    """

    messages: list[Message]
    copiers: list[list[_Copier]]
    reasoning_from: int = 0


class WindowCache:
    """Converts the windows of sessions, as `window_for` does. Messages of the last window are not converted again.

    Callers get copies: other middleware may change the messages of its request in place.
    """

    def __init__(self, max_sessions: int) -> None:
        self._windows: LruCache[tuple[SessionKey, str], ConvertedWindow] = LruCache(max_sessions)

    def window_for(self, key: SessionKey, model: Any, request: Request) -> list[BaseMessage]:
        """Returns the request's messages as LangChain's, for the model that is asked, in a new list."""
        name, messages, reasoning_from = (
            model_name(model),
            _legal_for(model, request.messages),
            first_with_reasoning(model, request),
        )
        last, shown = self._windows.get((key, name)) or ConvertedWindow([], []), [*_with_ids_for(name, messages)]
        same = [*map(is_, last.messages, shown), False].index(False)
        if reasoning_from != last.reasoning_from:
            same = min(same, reasoning_from, last.reasoning_from)
        # by identity: the old messages are kept with what they became, so that no id comes twice
        known = {
            (id(last.messages[i]), i >= last.reasoning_from): last.copiers[i] for i in range(same, len(last.messages))
        }
        copiers = last.copiers[:same]
        _warn_of_loss(model, shown[same:])
        for index, message in enumerate(shown[same:], same):
            thinks = index >= reasoning_from
            own = known.get((id(message), thinks))
            copiers.append(own or [_Copier(m) for m in converted(message, name, thinks=thinks)])
        self._windows.put((key, name), ConvertedWindow(shown, copiers, reasoning_from))
        # the copies that were handed out last, as long as nobody has changed them; a window may hold thousands
        return [c.last if c.last.__dict__ == c.values else c.renewed() for own in copiers for c in own]

    def clear(self) -> None:
        self._windows.clear()


_set_slot = object.__setattr__  # past pydantic's own, which would validate and note the field as set


class _Copier:
    """Makes copies of a message that share no list or dict with it.

    A window may hold hundreds of messages. So one copy serves one model call after the other, as an agent's own messages do, until
    somebody changes it in place. A new one sets the four slots of a pydantic model itself, and the fields that hold lists and
    dicts are found once: that takes about a quarter of the time of `__copy__` and a walk over all fields.
    """

    __slots__ = ("_extra", "_fields_set", "_flat", "_nested", "_type", "last", "values")

    def __init__(self, message: BaseMessage) -> None:
        self._type = type(message)
        self.values: Any = vars(message)
        self._fields_set, self._extra = message.__pydantic_fields_set__, message.__pydantic_extra__
        containers = [name for name, value in self.values.items() if isinstance(value, dict | list)]
        self._nested = [
            name for name in containers if any(isinstance(i, dict | list) for i in _items(self.values[name]))
        ]
        self._flat = [name for name in containers if name not in self._nested]
        self.last = self._new()

    def renewed(self) -> BaseMessage:
        """Returns a new copy, after the one that was handed out last was changed."""
        self.last = self._new()
        return self.last

    def _new(self) -> BaseMessage:
        copied = self._type.__new__(self._type)
        values = self.values.copy()
        for name in self._flat:
            values[name] = values[name].copy()
        for name in self._nested:
            values[name] = _copied_json(values[name])
        _set_slot(copied, "__dict__", values)
        _set_slot(copied, "__pydantic_fields_set__", self._fields_set.copy())
        _set_slot(copied, "__pydantic_extra__", _copied_json(self._extra))
        _set_slot(copied, "__pydantic_private__", None)  # no message class has private attributes
        return copied


def _items(container: dict[str, object] | list[object]) -> Iterable[object]:
    return container.values() if isinstance(container, dict) else container


def _copied_json(value: object) -> Any:
    if isinstance(value, dict):
        return {name: _copied_json(v) for name, v in cast("dict[str, object]", value).items()}
    return [_copied_json(v) for v in cast("list[object]", value)] if isinstance(value, list) else value


def _sent(message: Message, model: str | None) -> BaseMessage:
    converted = to_langchain(message)
    if _is_claude(model):
        converted = _for_claude(converted, message.model)
    # nothing can answer these
    if isinstance(converted, AIMessage) and any(not c["id"] for c in converted.invalid_tool_calls):
        converted = converted.model_copy(
            update={"invalid_tool_calls": [c for c in converted.invalid_tool_calls if c["id"]]}
        )
    if not isinstance(converted.content, str) or not any(isinstance(p, ReasoningPart) for p in message.parts):
        return converted
    if model is not None and message.model is not None and not is_same_model(message.model, model):
        return converted
    if not any(_thought_blocks(part) for part in message.parts):
        return converted
    blocks: list[str | dict[Any, Any]] = []
    for part in message.parts:
        blocks += [{"type": "text", "text": part.text}] if isinstance(part, TextPart) else _thought_blocks(part)
    return converted.model_copy(update={"content": blocks})


def _for_claude(message: BaseMessage, written_by: str | None) -> BaseMessage:
    """Returns the message without the blocks that Anthropic refuses.

    These are blocks under ids that the message's calls do not have any more, for which its `tool_calls` are sent, and thinking
    that Claude has not signed.
    """
    if not isinstance(message, AIMessage) or isinstance(message.content, str):
        return message
    ids = {call["id"] for call in (*message.tool_calls, *message.invalid_tool_calls)}
    other_model = written_by is not None and not _is_claude(written_by)

    def refused(block: str | dict[Any, Any]) -> bool:
        if isinstance(block, str):
            return False
        match block.get("type"):
            case "thinking":
                return other_model or not block.get("signature")
            case "tool_call" | "tool_use":
                return block.get("id") not in ids
            case _:
                return False

    content = [block for block in message.content if not refused(block)]
    return message if len(content) == len(message.content) else message.model_copy(update={"content": content})


def _thought_blocks(part: Part) -> list[dict[str, Any]]:
    """Returns signed or sealed reasoning in Anthropic's shape."""
    if not isinstance(part, ReasoningPart):
        return []
    if part.signature is not None:
        return [{"type": "thinking", "thinking": part.text, "signature": part.signature}]
    blocks = [] if part.text or part.details is None else cast("list[dict[str, Any]]", json.loads(part.details))
    return [block for block in blocks if block.get("type") == SEALED]


def offered(model: BaseChatModel, request: Request) -> Runnable[LanguageModelInput, AIMessage]:
    """Returns the model with the request's tools bound; raises ConfigError when it does not support tools."""
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
    """Translates one stream. Pieces of usage are added up, as LangChain does when it merges chunks; counts that a service repeats
    with each chunk, such as vLLM's, are not.

    `output_version` is the model's, where its chunks are not yet in that version.
    """

    def __init__(self, output_version: str | None = None) -> None:
        self._version = output_version
        self._usage: Usage | None = None
        self._repeats = False
        self._pieces: list[AIMessageChunk] = []
        self._places = _Places()

    def read(self, piece: Any, /) -> Iterator[Chunk]:
        """Yields the engine's chunks for one LangChain chunk; reasoning that stands in several places is returned once."""
        if not isinstance(piece, AIMessageChunk):  # LangChain yields the whole message of a model that does not stream
            fields: dict[str, Any] = {**vars(piece), "type": "AIMessageChunk"}
            piece = AIMessageChunk(**fields)
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
            self._count(usage)
        if calls or finish or model or details or piece.usage_metadata is not None:
            yield Chunk(
                tool_calls=calls,
                reasoning_details=tuple(as_list(details)),
                usage=self._usage,
                finish_reason=finish if isinstance(finish, str) else None,
                model=model if isinstance(model, str) else None,
                raw=piece,
            )

    def _count(self, usage: Usage | None) -> None:
        known = self._usage
        if usage is None or known is None:
            self._usage = usage or known
        elif usage.input_tokens and known.input_tokens:  # one request has one prompt
            self._repeats = True
            self._usage = Usage(*map(max, astuple(known), astuple(usage)))
        else:
            self._usage = known + usage

    def end(self) -> Iterator[Chunk]:
        """Yields the whole message, with all that only its package understands, such as citations and results of hosted tools."""
        try:
            first, *rest = self._pieces
            merged = add_ai_message_chunks(first, *rest)
            if self._repeats and self._usage is not None:
                merged.usage_metadata = UsageMetadata(**usage_metadata(self._usage))  # type: ignore[typeddict-item]
            whole = from_langchain(self._in_version(merged))
        except (MessageError, TypeError, ValueError):
            return  # what LangChain cannot add up is kept as far as it was read
        extras = tuple(
            ToolCallDelta(id=call.id, extra=call.extra) for call in whole.tool_calls if call.extra is not None
        )
        yield Chunk(tool_calls=extras, whole=whole)

    def _in_version(self, merged: AIMessageChunk) -> AIMessageChunk:
        if isinstance(merged.content, str):
            merged.additional_kwargs |= self._places.kwargs(merged.additional_kwargs.get("reasoning_details"))
        if self._version != "v1" or merged.response_metadata.get("output_version") == "v1":
            return merged
        blocks = message_chunk_to_message(merged).content_blocks
        metadata = {**merged.response_metadata, "output_version": "v1"}
        return merged.model_copy(update={"content": blocks, "response_metadata": metadata})

    def _content(self, piece: AIMessageChunk) -> Iterator[Chunk]:
        thought: Any = piece.additional_kwargs.get("reasoning_content")
        if isinstance(thought, str) and thought:
            self._places.add("thought", thought)
            yield Chunk(reasoning=thought, raw=piece)
        content = cast("str | Sequence[str | Mapping[str, Any]]", piece.content)
        for block in (content,) if isinstance(content, str) else content:
            chunk = _block({"type": "text", "text": block} if isinstance(block, str) else block, piece)
            if chunk is not None and not (thought and chunk.reasoning):
                self._places.add("text", chunk.content)
                yield chunk


class _Places:
    """The positions in the text at which reasoning came, which merged chunks do not keep."""

    def __init__(self) -> None:
        self._places: list[Place] = []

    def add(self, kind: Literal["text", "thought"], text: str) -> None:
        if text and not (self._places and kind in self._places[-1]):
            self._places.append({kind: 0})
        if text:
            self._places[-1][kind] += len(text)

    def kwargs(self, details: object) -> dict[str, Any]:
        thoughts = [place for place in self._places if "thought" in place]
        if not thoughts or self._places[0] is thoughts[0] is thoughts[-1]:
            return {}
        if isinstance(details, list):
            thoughts[0]["details"] = len(cast("list[object]", details))
        return {"ctxfold": {"parts": self._places}}


def _block(block: Mapping[str, Any], piece: AIMessageChunk) -> Chunk | None:
    match block:
        case {"type": "text", "text": str(text)} if text:
            return Chunk(content=text, raw=piece)
        case {"type": "thinking" | "reasoning"}:
            text = thought_text(block.get("thinking") or block.get("reasoning"))
            signature = block.get("signature")
            return Chunk(reasoning=text, signature=signature, raw=piece) if text or signature else None
        case {"type": kind, "data": str(data)} if kind == SEALED:
            return Chunk(sealed={"type": SEALED, "data": data}, raw=piece)
        case _:
            return None


def _index(index: object, position: int) -> int | None:
    """Returns the number of a call. Models count content blocks or calls; either works while a call keeps its number."""
    if isinstance(index, int):
        return index
    return None if index is not None else position


class Pieces:
    """The model's own chunks that were read and not handed on yet, each with the id of the reply."""

    def __init__(self, reply_id: str) -> None:
        self.reply_id = reply_id
        self._waiting: deque[ChatGenerationChunk] = deque()

    def put(self, piece: ChatGenerationChunk) -> None:
        piece.message.id = self.reply_id
        self._waiting.append(piece)

    def forget(self) -> None:
        self._waiting.clear()

    def take(self) -> Iterator[ChatGenerationChunk]:
        while self._waiting:
            yield self._waiting.popleft()


class _InnerChunks:
    """Reads the pieces of `_stream` and `_astream`, and keeps each for the caller."""

    def __init__(self, pieces: Pieces, output_version: str | None) -> None:
        self._pieces = pieces
        self._chunks = ForeignChunks(output_version)

    def read(self, piece: ChatGenerationChunk, /) -> Sequence[Chunk]:
        # what the model tells beside the message is a part of it by the time LangChain hands it on
        metadata = {**(piece.generation_info or {}), **piece.message.response_metadata}
        chunks = list(self._chunks.read(piece.message.model_copy(update={"response_metadata": metadata})))
        self._pieces.put(piece)
        return chunks or [Chunk(raw=piece)]

    def end(self) -> Iterator[Chunk]:
        return self._chunks.end()


def inner_stream(
    source: Any, model: str, pieces: Pieces, output_version: str | None
) -> Flow[ModelStream[ChatGenerationChunk]]:
    """Returns the stream of one of `_stream` and `_astream`; the pieces that an earlier attempt has left are dropped."""
    pieces.forget()
    return ModelStream(source, _InnerChunks(pieces, output_version), model, partial(as_backend_error, model)).begin()
