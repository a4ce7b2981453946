"""Defines BaseBackend, which derives a whole backend from one method, and replies played as streams."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator

from ctxfold._lifecycle import Closing
from ctxfold.messages import Opaque, ReasoningPart, TextPart, ToolCallPart
from ctxfold.protocols import AsyncChunkStream, BackendCapabilities, Chunk, ChunkStream, Reply, Request, ToolCallDelta
from ctxfold.stream import PlayedStream


class BaseBackend(ABC, Closing):
    """A backend of your own: set `model` and write `send`; everything else is derived and may be overridden.

    `asend` runs `send` in a worker thread, and a stream yields the whole reply as one chunk. Override `asend`, `open_stream`
    and `aopen_stream` for a service that has these forms, and `close` and `aclose` where connections are kept open.
    `ctxfold.testing.backend_suite` tests the result.
    """

    model: str
    context_window: int | None = None
    scratch_role: str = "user"  # several services refuse a system message at the end
    capabilities: BackendCapabilities = BackendCapabilities()

    @abstractmethod
    def send(self, request: Request) -> Reply:
        """Returns the whole reply to a request; every failure of the service is a BackendError."""

    async def asend(self, request: Request) -> Reply:
        return await asyncio.to_thread(self.send, request)

    def open_stream(self, request: Request) -> ChunkStream:
        return PlayedStream(tuple(reply_chunks(self.send(request))))

    async def aopen_stream(self, request: Request) -> AsyncChunkStream:
        return PlayedStream(tuple(reply_chunks(await self.asend(request))))

    def close(self) -> None:
        """Does nothing, as no connection is kept open."""

    async def aclose(self) -> None:
        self.close()


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
