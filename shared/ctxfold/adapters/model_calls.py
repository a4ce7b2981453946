"""Works with a framework's own models: reads their streams, translates their errors, and sends their reasoning back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, aclosing, closing, contextmanager
from functools import lru_cache
from types import new_class
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypeAlias, TypeVar, cast

from ctxfold.backends.base import BackendDefaults
from ctxfold.connect import foreign_failure
from ctxfold.errors import BackendError, ConfigError, MessageError
from ctxfold.messages import Message, tool_result
from ctxfold.protocols import AsyncChunkStream, Chunk, ChunkStream, Reply

Piece_contra = TypeVar("Piece_contra", contravariant=True)
Piece = TypeVar("Piece")
M = TypeVar("M")
Replay: TypeAlias = Literal["sends", "helped", "unknown"]


@contextmanager
def as_backend_error(model: str, kind_of: Callable[[Exception], str | None] | None = None) -> Generator[None]:
    """Raises BackendError for whatever the model raises in the block, except for a request that cannot be sent at all.

    `kind_of` returns the `BackendError.kind` that the exception's class stands for, or None.
    """
    try:
        yield
    except (ConfigError, MessageError):
        raise
    except Exception as error:
        raise foreign_failure(error, model, kind=kind_of(error) if kind_of else None) from error


def received(reply: Reply, new_id: Callable[[], str]) -> list[Message]:
    """Returns a result for each tool call of a reply that a program reads: no other comes, and providers want one for each."""
    return [tool_result(call.id, "Received.", id=new_id(), name=call.name) for call in reply.message.tool_calls]


@contextmanager
def original_error() -> Generator[None]:
    """Raises the model's own exception in place of the BackendError that it caused.

    Retries and fallbacks around the model know that class. An overflow stays as it is.
    """
    try:
        yield
    except BackendError as error:
        cause = error.__cause__
        if error.kind == "context_overflow" or not isinstance(cause, Exception):
            raise
        raise cause from cause.__cause__


class BorrowedModel(BackendDefaults):
    """A backend over a framework's own model, which belongs to its creator: closing the backend does nothing."""

    scratch_role = "user"  # a system message at the end is refused by several services

    def translated(self) -> AbstractContextManager[None]:
        """Returns a context manager that turns every exception of the model into BackendError."""
        return as_backend_error(self.model)

    def read_stream(
        self, source: Iterator[Piece] | AsyncIterator[Piece], reader: ChunkReader[Piece]
    ) -> ModelStream[Piece]:
        return ModelStream(source, reader, self.model, self.translated, self.classified)


def each_within(
    pieces: Generator[M, None, None], block: Callable[[], AbstractContextManager[None]]
) -> Generator[M, None, None]:
    """Yields the pieces, and closes them at the end; the block is entered only while one is made, not while it is passed on."""
    with closing(pieces):
        while True:
            with block():
                try:
                    piece = next(pieces)
                except StopIteration:
                    return
            yield piece


async def aeach_within(
    pieces: AsyncGenerator[M, None], block: Callable[[], AbstractContextManager[None]]
) -> AsyncGenerator[M, None]:
    async with aclosing(pieces):
        while True:
            with block():
                try:
                    piece = await anext(pieces)
                except StopAsyncIteration:
                    return
            yield piece


class ChunkReader(Protocol[Piece_contra]):
    """Turns the pieces of one stream into chunks."""

    def read(self, piece: Piece_contra, /) -> Iterable[Chunk]: ...

    def end(self) -> Iterable[Chunk]:
        """Returns the chunks that only the whole stream tells."""
        ...


class ModelStream(Generic[Piece]):
    """The chunks of a model's own iterator, sync or async. The first piece has come when `begin` or `abegin` returns.

    Args:
        source: what the framework returns for a streamed call; it is closed with the stream.
        reader: a new one for each stream.
        model: its name, for error messages.
        translated: makes the block in which the source is read, such as `as_backend_error`.
        classify: the backend's `classify_chunk`, where a backend reads the stream.
    """

    def __init__(
        self,
        source: Iterator[Piece] | AsyncIterator[Piece],
        reader: ChunkReader[Piece],
        model: str,
        translated: Callable[[], AbstractContextManager[None]],
        classify: Callable[[Chunk], Chunk] = lambda chunk: chunk,
    ) -> None:
        self._source: Any = source
        self._reader = reader
        self._model = model
        self._translated = translated
        self._classify = classify
        self._first: Piece | None = None

    def begin(self) -> Self:
        """Waits for the first piece. BackendError for a stream without any."""
        return self._begun(self._next())

    async def abegin(self) -> Self:
        return self._begun(await self._anext())

    def _begun(self, first: Piece | None) -> Self:
        if first is None:
            raise BackendError(
                f"the stream of {self._model} ended before its first chunk: try again",
                kind="empty_response",
                retryable=True,
            )
        self._first = first
        return self

    def _next(self) -> Piece | None:
        with self._translated():
            return next(self._source, None)

    async def _anext(self) -> Piece | None:
        with self._translated():
            return cast("Piece | None", await anext(self._source, None))

    def __iter__(self) -> Iterator[Chunk]:
        piece, self._first = self._first, None
        while piece is not None:
            yield from map(self._classify, self._reader.read(piece))
            piece = self._next()
        yield from map(self._classify, self._reader.end())

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        piece, self._first = self._first, None
        while piece is not None:
            for chunk in map(self._classify, self._reader.read(piece)):
                yield chunk
            piece = await self._anext()
        for chunk in map(self._classify, self._reader.end()):
            yield chunk

    def close(self) -> None:
        close = getattr(self._source, "close", None)
        if close is not None:
            close()

    async def aclose(self) -> None:
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()


if TYPE_CHECKING:
    _: type[ChunkStream] = ModelStream[object]
    _a: type[AsyncChunkStream] = ModelStream[object]


def replaying(model: M, mixin: type) -> M:
    """Returns a copy of a pydantic model whose class inherits from the mixin first; it shares the model's connections."""
    original: Any = model
    copy = original.model_copy()
    object.__setattr__(copy, "__class__", _replaying_class(mixin, original.__class__))
    return cast("M", copy)


@lru_cache(maxsize=64)
def _replaying_class(mixin: type, cls: type) -> type:
    def body(namespace: dict[str, Any]) -> None:
        namespace |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}

    return new_class(cls.__name__, (mixin, cls), exec_body=body)


def no_replay(model: str, own: str, others: str) -> ConfigError:
    """Returns the error for a class of model that cannot send reasoning back, with what to use in its place."""
    return ConfigError(
        f"{model} gives no way to send reasoning back, and a thinking service with tools refuses a conversation without it: "
        f"use {own} in place of {model}, or {others}"
    )
