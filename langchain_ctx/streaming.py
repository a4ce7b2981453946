"""Another model's stream, as chunks for the engine; its own chunks are kept for whoever hands them on."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_core.outputs import ChatGenerationChunk

from ctxfold.errors import BackendError
from ctxfold.ports import Chunk
from langchain_ctx.errors import as_backend_error
from langchain_ctx.foreign import ForeignChunks

__all__ = ["InnerStream", "Pieces"]


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


class InnerStream:
    """One of `_stream` and `_astream`, read through the engine. The first chunk has come when `begin` returns."""

    def __init__(self, source: Any, name: str, pieces: Pieces, output_version: str | None = None) -> None:
        pieces.forget()  # of an attempt that failed before
        self._source = source
        self._name = name
        self._pieces = pieces
        self._chunks = ForeignChunks(output_version)
        self._first: ChatGenerationChunk | None = None

    def begin(self) -> InnerStream:
        self._first = self._next()
        if self._first is None:
            raise _nothing(self._name)
        return self

    async def abegin(self) -> InnerStream:
        self._first = await self._anext()
        if self._first is None:
            raise _nothing(self._name)
        return self

    def __iter__(self) -> Iterator[Chunk]:
        piece, self._first = self._first, None
        while piece is not None:
            yield from self._read(piece)
            piece = self._next()
        yield from self._chunks.end()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        piece, self._first = self._first, None
        while piece is not None:
            for chunk in self._read(piece):
                yield chunk
            piece = await self._anext()
        for chunk in self._chunks.end():
            yield chunk

    def _read(self, piece: ChatGenerationChunk) -> list[Chunk]:
        # what the model tells beside the message is a part of it by the time LangChain hands it on
        told = {**(piece.generation_info or {}), **piece.message.response_metadata}
        found = list(self._chunks.read(piece.message.model_copy(update={"response_metadata": told})))
        self._pieces.put(piece)
        return found or [Chunk(raw=piece)]

    def _next(self) -> ChatGenerationChunk | None:
        with as_backend_error(self._name):
            return next(self._source, None)

    async def _anext(self) -> ChatGenerationChunk | None:
        with as_backend_error(self._name):
            return await anext(self._source, None)

    def close(self) -> None:
        close = getattr(self._source, "close", None)
        if close is not None:
            close()

    async def aclose(self) -> None:
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()


def _nothing(name: str) -> BackendError:
    return BackendError(
        f"the stream of {name} ended before its first chunk: try again", kind="empty_response", retryable=True
    )
