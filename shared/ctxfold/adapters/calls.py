"""Calls a framework's own models and a backend outside of any session: each call is written once, as a flow.

Reads the models' streams, translates their errors, sends their reasoning back, and leaves out reasoning that a service refused.
"""

from __future__ import annotations

import hashlib
import inspect
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache
from types import new_class
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Protocol, Self, TypeAlias, TypeVar, cast

from ctxfold.adapters.part_order import bound
from ctxfold.backends.base import BackendDefaults
from ctxfold.connect import foreign_failure
from ctxfold.effects import Effect, Flow, arun, run
from ctxfold.errors import BackendError, ConfigError, MessageError
from ctxfold.lru import LruCache
from ctxfold.messages import Message, Opaque, tool_result
from ctxfold.protocols import (
    AsyncChunkStream,
    Chunk,
    ChunkStream,
    ContextBackend,
    Ports,
    Reply,
    Request,
    capabilities_of,
)

Piece_contra = TypeVar("Piece_contra", contravariant=True)
Piece = TypeVar("Piece")
M = TypeVar("M")
T = TypeVar("T")
Replay: TypeAlias = Literal["sends", "helped", "unknown"]
PieceFlow: TypeAlias = Generator[Effect[Any] | M, Any, None]  # a flow that also yields pieces, for `emit` and `aemit`
Streams: TypeAlias = ChunkStream | AsyncChunkStream

_NO_BLOCK: AbstractContextManager[None] = nullcontext()
_NO_PORTS = cast("Ports", None)  # the effects of these flows ask nothing of an engine
REMEMBERED = 4_096  # messages whose reasoning was refused


class Invoke(Effect[Any]):
    """Calls a function, or its async form when driven on a loop: `answer = yield from Invoke(llm.chat, llm.achat, messages)`.

    What the async form returns is awaited if it can be. ConfigError for a form that is None.
    """

    __slots__ = ("_args", "_forms", "_kwargs")

    def __init__(
        self, function: Callable[..., Any] | None, afunction: Callable[..., Any] | None, /, *args: Any, **kwargs: Any
    ) -> None:
        self._forms = function or other_way, afunction or other_way
        self._args, self._kwargs = args, kwargs

    def perform(self, ports: Ports) -> Any:
        return self._forms[0](*self._args, **self._kwargs)

    async def aperform(self, ports: Ports) -> Any:
        result = self._forms[1](*self._args, **self._kwargs)
        return await result if inspect.isawaitable(result) else result


def forms(owner: object, name: str) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    """Returns the sync and the async form of a method; None for one that is missing, as a caller's backend may have one only."""
    return getattr(owner, name, None), getattr(owner, f"a{name}", None)


def other_way(*args: Any, **kwargs: Any) -> NoReturn:
    """Stands for a form that a model lacks; raises ConfigError."""
    raise ConfigError("this call's model is asked in another way: use the method of the same kind, sync or async")


class _Next(Effect[Any]):
    """Returns the next piece of an iterator, sync or async; None at its end."""

    __slots__ = ("_source",)

    def __init__(self, source: Any) -> None:
        self._source = source

    def perform(self, ports: Ports) -> Any:
        return next(self._source, None)

    async def aperform(self, ports: Ports) -> Any:
        return await anext(self._source, None)


class _Close(_Next):
    """Closes a stream, or an iterator that can be closed."""

    __slots__ = ()

    def perform(self, ports: Ports) -> None:
        if (close := getattr(self._source, "close", None)) is not None:
            close()

    async def aperform(self, ports: Ports) -> None:
        if (close := getattr(self._source, "aclose", None)) is not None:
            await close()


def call(flow: Flow[T]) -> T:
    """Returns the result of a flow that asks nothing of an engine."""
    return run(flow, _NO_PORTS)


async def acall(flow: Flow[T]) -> T:
    return await arun(flow, _NO_PORTS)


@lru_cache(maxsize=256)
def _is_effect(kind: type) -> bool:
    return issubclass(kind, Effect)  # an abstract class, which takes longer to ask than a piece to pass on


class _Left(BaseException):
    """Ends a flow whose consumer has left. A GeneratorExit would close it at once, and its streams would stay open."""


def emit(flow: PieceFlow[M]) -> Generator[M, None, None]:
    """Drives a flow, and yields its pieces. What the consumer throws, or its end, is raised where the piece was yielded."""
    result: Any = None
    error: BaseException | None = None
    try:
        while True:
            step = flow.send(result) if error is None else flow.throw(error)
            result, error = None, None
            try:
                if _is_effect(cast("Any", step).__class__):
                    result = cast("Any", step).perform(_NO_PORTS)
                else:
                    yield cast("M", step)
            except GeneratorExit:
                error = _Left()
            except BaseException as raised:  # noqa: BLE001 - the flow decides
                error = raised
    except (StopIteration, _Left):
        return


async def aemit(flow: PieceFlow[M]) -> AsyncGenerator[M, None]:
    """The async form of `emit`."""
    result: Any = None
    error: BaseException | None = None
    try:
        while True:
            step = flow.send(result) if error is None else flow.throw(error)
            result, error = None, None
            try:
                if _is_effect(cast("Any", step).__class__):
                    result = await cast("Any", step).aperform(_NO_PORTS)
                else:
                    yield cast("M", step)
            except GeneratorExit:
                error = _Left()
            except BaseException as raised:  # noqa: BLE001 - the flow decides
                error = raised
    except (StopIteration, _Left):
        return


def each(
    source: Any,
    read: Callable[[Any], Iterable[M]] = lambda piece: (piece,),
    block: Callable[[], AbstractContextManager[None]] | None = None,
) -> PieceFlow[M]:
    """Yields what `read` makes of each piece of a stream or iterator, sync or async, and closes that at the end.

    The block is entered only while a piece is made, not while it is passed on.
    """
    try:
        following: Effect[Any] = _Next((yield from Invoke(iter, aiter, source)))
        while True:
            with _NO_BLOCK if block is None else block():
                piece = yield following
            if piece is None:
                return
            yield from read(piece)
    finally:
        yield from _Close(source)


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
    """A backend over a framework's own model, which belongs to its creator: closing the backend does nothing.

    A class of this kind writes `answer`, and `stream` where the model streams; both serve the sync and the async methods.
    """

    scratch_role = "user"  # a system message at the end is refused by several services

    @abstractmethod
    def answer(self, request: Request) -> Flow[Reply]:
        """Returns the whole reply to a request; every failure of the model is a BackendError."""

    def stream(self, request: Request) -> Flow[Any]:
        """Returns a stream whose first event has arrived; by default it plays the whole reply."""
        return self._played((yield from self.answer(request)))

    def send(self, request: Request) -> Reply:
        return call(self.answer(request))

    async def asend(self, request: Request) -> Reply:
        return await acall(self.answer(request))

    def open_stream(self, request: Request) -> ChunkStream:
        return cast("ChunkStream", call(self.stream(request)))

    async def aopen_stream(self, request: Request) -> AsyncChunkStream:
        return cast("AsyncChunkStream", await acall(self.stream(request)))

    def translated(self) -> AbstractContextManager[None]:
        """Returns a context manager that turns every exception of the model into BackendError."""
        return as_backend_error(self.model)

    def read_stream(
        self, source: Iterator[Piece] | AsyncIterator[Piece], reader: ChunkReader[Piece]
    ) -> Flow[ModelStream[Piece]]:
        return ModelStream(source, reader, self.model, self.translated, self.classified).begin()


class ChunkReader(Protocol[Piece_contra]):
    """Turns the pieces of one stream into chunks."""

    def read(self, piece: Piece_contra, /) -> Iterable[Chunk]: ...

    def end(self) -> Iterable[Chunk]:
        """Returns the chunks that only the whole stream tells."""
        ...


class ModelStream(Generic[Piece]):
    """The chunks of a model's own iterator, sync or async. The first piece has come when `begin` returns.

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
        self._following: Effect[Any] = _Next(source)
        self._reader = reader
        self._model = model
        self._translated = translated
        self._classify = classify
        self._first: Piece | None = None

    def begin(self) -> Flow[Self]:
        """Waits for the first piece. BackendError for a stream without any."""
        self._first = yield from self._piece()
        if self._first is None:
            raise BackendError(
                f"the stream of {self._model} ended before its first chunk: try again",
                kind="empty_response",
                retryable=True,
            )
        return self

    def _piece(self) -> Flow[Piece | None]:
        with self._translated():
            piece: Piece | None = yield self._following
        return piece

    def _chunks(self) -> PieceFlow[Chunk]:
        piece, self._first = self._first, None
        while piece is not None:
            yield from map(self._classify, self._reader.read(piece))
            piece = yield from self._piece()
        yield from map(self._classify, self._reader.end())

    def __iter__(self) -> Iterator[Chunk]:
        return emit(self._chunks())

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return aemit(self._chunks())

    def close(self) -> None:
        _Close(self._source).perform(_NO_PORTS)

    async def aclose(self) -> None:
        await _Close(self._source).aperform(_NO_PORTS)


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


class PlainCalls:
    """Calls of a backend without a session. Safe across threads and tasks.

    Some services accept reasoning only behind the very messages that it was made behind, and a memory or middleware that
    compacts them, or shows other passages, does not know it. A request that is refused for its reasoning is sent once more
    without, and later requests leave out the reasoning that was refused.
    """

    def __init__(self, backend: ContextBackend) -> None:
        self.backend = backend
        self._refused: LruCache[str, bool] = LruCache(REMEMBERED)

    def answer(self, request: Request) -> Flow[Reply]:
        """Returns the whole reply."""
        return self._asked("send", request)

    def stream(self, request: Request) -> Flow[Streams]:
        """Returns a stream whose first event has arrived."""
        return self._asked("open_stream", request)

    def _asked(self, method: str, request: Request) -> Flow[Any]:
        request = self._without_refused(request)
        try:
            return (yield from Invoke(*forms(self.backend, method), request))
        except BackendError as error:
            request = self._other_request(request, error)
        return (yield from Invoke(*forms(self.backend, method), request))

    def _other_request(self, request: Request, error: BackendError) -> Request:
        """Returns the request without its reasoning. Raises the error where that is no other request, or refused too."""
        abilities = capabilities_of(self.backend, request.model)
        refused = [key for number, key in self._reasoned(request) if number > request.refused_before]
        may_leave_out = abilities.binds_reasoning or abilities.reasoning_optional
        if error.kind != "reasoning_replay" or not may_leave_out or not refused:
            raise error
        self._refused.update(dict.fromkeys(refused, True))
        return self._without_refused(request)

    def _without_refused(self, request: Request) -> Request:
        """Returns the request without reasoning up to the last message whose reasoning was refused before."""
        if not len(self._refused):
            return request
        before = max((number for number, key in self._reasoned(request) if self._refused.get(key)), default=0)
        if before <= request.refused_before:
            return request
        return replace(request, refused_before=before, unbound_before=max(before, request.unbound_before))

    def _reasoned(self, request: Request) -> Iterator[tuple[int, str]]:
        """Yields the number of each message with reasoning, counted from 1, and what its refusal is remembered by.

        Where the service binds reasoning to what stands before it, that counts too: in another list it may be accepted.
        """
        binds = capabilities_of(self.backend, request.model).binds_reasoning
        before = ""
        for number, message in enumerate(request.messages, 1):
            before = _digest(message, before if binds else "")
            if message.reasoning or bound(message):
                yield number, before


def _digest(message: Message, before: str) -> str:
    parts = [part for part in message.parts if not isinstance(part, Opaque)]
    return hashlib.sha256(repr((before, message.role, parts)).encode("utf-8", "surrogatepass")).hexdigest()
