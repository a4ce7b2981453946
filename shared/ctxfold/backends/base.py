"""Defines what all backends share, BaseBackend, which derives a whole one from one method, and replies played as streams."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from ctxfold._lifecycle import Closing
from ctxfold.errors import ConfigError, CtxError
from ctxfold.messages import Message, Opaque, ReasoningPart, TextPart, ToolCallPart, ToolSpec
from ctxfold.protocols import (
    AsyncChunkStream,
    BackendCapabilities,
    Chunk,
    ChunkStream,
    Ids,
    Reply,
    Request,
    ToolCallDelta,
    UuidIds,
    Wire,
)
from ctxfold.stream import Fold, PlayedStream
from ctxfold.tokens.text import MessageCounter, TextCounter, text_counter
from ctxfold.validation import kind_of


class BackendDefaults(Closing, ABC):
    """Everything of a backend that `model` and `send` imply; each method may be overridden."""

    if TYPE_CHECKING:

        @property
        def model(self) -> str: ...

    wire: Wire = "openai_chat"  # whose shape lines and request messages have
    _ids: Ids = UuidIds()
    _piece_chars = 0  # of a text in a stream that is derived; 0 leaves texts whole

    @abstractmethod
    def send(self, request: Request) -> Reply:
        """Returns the whole reply to a request; every failure of the service is a BackendError."""

    async def asend(self, request: Request) -> Reply:
        return await asyncio.to_thread(self.send, request)

    def open_stream(self, request: Request) -> ChunkStream:
        return self._played(self.send(request))

    async def aopen_stream(self, request: Request) -> AsyncChunkStream:
        return self._played(await self.asend(request))

    def _played(self, reply: Reply) -> PlayedStream:
        return PlayedStream(tuple(map(self.classified, reply_chunks(reply, self._piece_chars))))

    def classify_chunk(self, chunk: Chunk) -> Chunk:
        """Returns the chunk with each text in the field of what it is: `reasoning`, `content`, or `tool_calls`.

        Every chunk of a stream passes through here. Override it for a service that marks its thinking in a way of its own, which
        `chunk.raw` shows.
        """
        return chunk

    def classified(self, chunk: Chunk) -> Chunk:
        """Returns what `classify_chunk` makes of the chunk. Raises ConfigError where one of a user's own makes no Chunk."""
        try:
            made = cast("object", self.classify_chunk(chunk))
        except CtxError:
            raise
        except Exception as error:
            raise ConfigError(f"{type(self).__name__}.classify_chunk raised {error!r} for {chunk.raw!r}") from error
        if not isinstance(made, Chunk):
            raise ConfigError(f"{type(self).__name__}.classify_chunk returned {kind_of(made)}: return a Chunk")
        return made

    def merge_chunks(self, chunks: Iterable[Chunk]) -> Message | None:
        """Returns the message that the chunks of one reply form; None when they are empty."""
        fold = Fold(self._ids.new(), self.model)
        for chunk in chunks:
            fold.feed(chunk)
        message = fold.close().message
        return message if message.parts else None

    def extract_messages(self, responses: Iterable[Reply | Chunk]) -> list[Message]:
        """Returns the messages of whole replies, and the one message that the chunks of a reply form."""
        items = list(responses)
        replies = [one.message for one in items if isinstance(one, Reply)]
        merged = self.merge_chunks(one for one in items if isinstance(one, Chunk))
        return replies if merged is None else [*replies, merged]

    def to_system_message(self, message: Message) -> Message:
        """Returns a system message with the text and id of the message."""
        return Message(message.id, "system", (TextPart(message.text),), kind=message.kind)

    def to_request_messages(self, messages: Sequence[Message], *, model: str | None = None) -> list[dict[str, Any]]:
        """Returns the messages as rows of chat completions, with reasoning only where a message preserves its own."""
        from ctxfold.backends.openai_chat import project
        from ctxfold.backends.profile import load_profile

        return project(load_profile("generic"), messages, model=model or self.model)

    def estimate_tokens(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] = ()) -> int:
        """Returns the input tokens of the messages and tools, as a counter for the model's name estimates them."""
        counter = MessageCounter(self._text_counter())
        return counter.count_all(messages) + counter.count_tools(tools)

    async def aestimate_tokens(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] = ()) -> int:
        return self.estimate_tokens(messages, tools=tools)

    def _text_counter(self) -> TextCounter:
        return text_counter(self.model)

    def message_to_jsonl(self, message: Message) -> str:
        """Returns the message as one line of JSON in the shape of `wire`; `message_from_jsonl` restores the same message."""
        from ctxfold.backends.jsonl import to_line

        return to_line(message, self.wire)

    def message_from_jsonl(self, line: str) -> Message:
        """Returns the message of a line in the shape of `wire`, or in that of another wire when the line says so."""
        from ctxfold.backends.jsonl import from_line

        return from_line(line, self.wire, self._ids.new)

    def close(self) -> None:
        """Does nothing, as no connection is kept open."""

    async def aclose(self) -> None:
        self.close()


class BaseBackend(BackendDefaults):
    """A backend of your own: set `model` and write `send`; everything else is derived and may be overridden.

    `asend` runs `send` in a worker thread, and a stream yields the whole reply as one chunk. Override `asend`, `open_stream`
    and `aopen_stream` for a service that has these forms, and `close` and `aclose` where connections are kept open.
    `ctxfold.testing.backend_suite` tests the result.
    """

    model: str  # pyright: ignore[reportIncompatibleMethodOverride]
    context_window: int | None = None
    scratch_role: str = "user"  # several services refuse a system message at the end
    capabilities: BackendCapabilities = BackendCapabilities()


def reply_chunks(reply: Reply, piece_chars: int = 0) -> Iterator[Chunk]:
    """Yields a whole reply as a stream would bring it, its texts in pieces of `piece_chars` characters; 0 leaves them whole."""
    message = reply.message
    parts = [part for part in message.parts if not isinstance(part, Opaque)]
    last = max((place for place, part in enumerate(parts) if not isinstance(part, ToolCallPart)), default=-1)
    calls = 0
    for place, part in enumerate(parts):
        if isinstance(part, ReasoningPart):
            yield from _reasoning_chunks(part, piece_chars, message.model)
        elif isinstance(part, TextPart):
            if part.extra is not None:
                yield Chunk(own_part=True)
            for piece in _pieces(part.text, piece_chars):
                yield Chunk(content=piece, model=message.model)
            if part.extra is not None:
                yield Chunk(text_extra=json.loads(part.extra), model=message.model)
        elif isinstance(part, ToolCallPart):
            half, placed = len(part.arguments) // 2, place < last
            opened = ToolCallDelta(calls, part.id, part.name, part.arguments[:half], part.extra)
            yield Chunk(tool_calls=(opened,), own_part=placed)
            yield Chunk(tool_calls=(ToolCallDelta(calls, arguments=part.arguments[half:]),))
            calls += 1
    finish = reply.finish_reason or message.finish_reason or "stop"
    yield Chunk(finish_reason=finish, usage=reply.usage or message.usage, model=message.model, raw=reply.raw)


def _reasoning_chunks(part: ReasoningPart, piece_chars: int, model: str | None) -> Iterator[Chunk]:
    for piece in _pieces(part.text, piece_chars):
        yield Chunk(reasoning=piece, model=model)
    blocks = tuple(json.loads(part.details)) if part.details is not None else ()
    if not part.text:
        yield from (Chunk(sealed=block, model=model) for block in blocks)
        blocks = ()
    elif part.signature is None and len(blocks) == 1:
        yield Chunk(reasoning_block=blocks[0], model=model)
        blocks = ()
    if part.signature is not None or blocks:
        yield Chunk(signature=part.signature, reasoning_details=blocks, model=model)


def _pieces(text: str, size: int) -> Iterator[str]:
    size = size or max(1, len(text))
    return (text[start : start + size] for start in range(0, len(text), size))
