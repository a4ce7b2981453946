"""Open answers as a caller reads them: one chunk at a time, closed at the end, at an error, or when told to."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from ctxfold.backends.exchange import Answer, AsyncChannel, Channel, adrive, drive
from ctxfold.ports import AsyncChunkStream, Chunk, ChunkStream

__all__ = ["AsyncHttpStream", "HttpStream"]


class HttpStream:
    """Chunks of one open answer. Reading to the end or an error closes it; `close` ends the connection at once."""

    def __init__(self, answer: Answer, channel: Channel) -> None:
        self._answer: Answer | None = answer
        self._channel = channel

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        if self._answer is None:
            raise StopIteration
        if (chunk := self._answer.arrived()) is not None:
            return chunk
        try:
            chunk = drive(self._answer.next(), self._channel)
        except BaseException:
            self._answer = None
            raise
        if chunk is None:
            self.close()
            raise StopIteration
        return chunk

    def close(self) -> None:
        self._answer = None
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class AsyncHttpStream:
    """The same on an event loop; cancelling a read closes the connection."""

    def __init__(self, answer: Answer, channel: AsyncChannel) -> None:
        self._answer: Answer | None = answer
        self._channel = channel

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if self._answer is None:
            raise StopAsyncIteration
        if (chunk := self._answer.arrived()) is not None:
            return chunk
        try:
            chunk = await adrive(self._answer.next(), self._channel)
        except BaseException:
            self._answer = None
            raise
        if chunk is None:
            await self.aclose()
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        self._answer = None
        await self._channel.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()


if TYPE_CHECKING:
    _sync: ChunkStream = cast("HttpStream", ...)
    _async: AsyncChunkStream = cast("AsyncHttpStream", ...)
