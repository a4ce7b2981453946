"""Open answers as a caller reads them: one chunk at a time, closed at the end, at an error, or when told to."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from ctxfold.backends.exchange import Answer, AsyncChannel, Channel, adrive, drive
from ctxfold.errors import BackendError
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
        try:
            if (chunk := self._answer.arrived()) is not None:
                return chunk
            if self._answer.flowing:
                self._read_on(self._answer)
            chunk = self._answer.arrived() or drive(self._answer.next(), self._channel)
        except BaseException:
            self.close()
            raise
        if chunk is None:
            self.close()
            raise StopIteration
        return chunk

    def _read_on(self, answer: Answer) -> None:
        """One read without the steps of a flow: most of a stream is nothing else."""
        try:
            data: bytes = self._channel.perform(answer.next_read)
        except BackendError as error:
            answer.broke_off(error)
        else:
            answer.take_in(data)

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
        try:
            if (chunk := self._answer.arrived()) is not None:
                return chunk
            if self._answer.flowing:
                await self._read_on(self._answer)
            chunk = self._answer.arrived() or await adrive(self._answer.next(), self._channel)
        except BaseException:
            await self.aclose()
            raise
        if chunk is None:
            await self.aclose()
            raise StopAsyncIteration
        return chunk

    async def _read_on(self, answer: Answer) -> None:
        try:
            data: bytes = await self._channel.perform(answer.next_read)
        except BackendError as error:
            answer.broke_off(error)
        else:
            answer.take_in(data)

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
