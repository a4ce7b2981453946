"""A model that comes with each call: what stands behind a session whose answers somebody else's model gives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from langchain_core.language_models import BaseChatModel

from ctxfold.errors import BackendError, ConfigError
from ctxfold.ports import AsyncChunkStream, ChunkStream, ContextBackend, Reply, Request
from langchain_ctx.summarizer import as_summarizer

__all__ = [
    "Caller",
    "CallersModel",
    "CallersSummarizer",
    "calling",
    "failing_as_it_did",
    "keeps_sessions",
    "model_name",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """How the call under way asks its model; each way is there where its kind of call uses it."""

    model: BaseChatModel
    send: Callable[[Request], Reply] | None = None
    asend: Callable[[Request], Awaitable[Reply]] | None = None
    open_stream: Callable[[Request], ChunkStream] | None = None
    aopen_stream: Callable[[Request], Awaitable[AsyncChunkStream]] | None = None


_CALLER: ContextVar[Caller] = ContextVar("ctxfold_caller")


@contextmanager
def calling(caller: Caller) -> Generator[None, None, None]:
    """Within the block, sessions ask this caller's model."""
    token = _CALLER.set(caller)
    try:
        yield
    finally:
        _CALLER.reset(token)


@contextmanager
def failing_as_it_did() -> Generator[None, None, None]:
    """A failure of the caller's model leaves as the model raised it: retries and fallbacks around it know that class."""
    try:
        yield
    except BackendError as error:
        cause = error.__cause__
        if error.kind == "context_overflow" or not isinstance(cause, Exception):
            raise
        raise cause from cause.__cause__


def _caller() -> Caller:
    found = _CALLER.get(None)
    if found is None:
        raise ConfigError("no model is being called: this session's model comes with each call of the agent or chain")
    return found


class CallersModel:
    """The backend of such a session."""

    scratch_role = "user"  # a system message at the end is refused by several services
    context_window: int | None = None

    @property
    def model(self) -> str:
        found = _CALLER.get(None)
        return "" if found is None else model_name(found.model)

    def send(self, request: Request) -> Reply:
        return _needed(_caller().send)(request)

    async def asend(self, request: Request) -> Reply:
        return await _needed(_caller().asend)(request)

    def open_stream(self, request: Request) -> ChunkStream:
        return _needed(_caller().open_stream)(request)

    async def aopen_stream(self, request: Request) -> AsyncChunkStream:
        return await _needed(_caller().aopen_stream)(request)

    def close(self) -> None:
        """Models belong to whoever made them."""

    async def aclose(self) -> None:
        """Models belong to whoever made them."""


class CallersSummarizer(CallersModel):
    """Summaries by the model of the call that needs them; outside of any call, by the one that was asked last."""

    def __init__(self) -> None:
        self._last: BaseChatModel | None = None

    def seen(self, model: BaseChatModel) -> None:
        self._last = model

    def _writer(self) -> ContextBackend:
        found = _CALLER.get(None)
        writer = as_summarizer(self._last if found is None else found.model)
        if writer is None:
            raise BackendError("no model was asked yet that could write a summary", kind="rejected")
        return writer

    def send(self, request: Request) -> Reply:
        return self._writer().send(request)

    async def asend(self, request: Request) -> Reply:
        return await self._writer().asend(request)


def keeps_sessions(model: BaseChatModel) -> bool:
    """Whether the model keeps conversations itself: two sessions behind one call would each cut the other's window."""
    said: list[object] = [getattr(model, name, None) for name in ("session", "sessions", "store")]
    return any(
        s is not None and not isinstance(s, bool) for s in said
    )  # `store=False` of ChatOpenAI is about its service


def model_name(model: BaseChatModel) -> str:
    for name in ("model", "model_name"):
        found: object = getattr(model, name, None)
        if isinstance(found, str) and found:
            return found
    return type(model).__name__


def _needed(way: Callable[[Request], T] | None) -> Callable[[Request], T]:
    if way is None:
        raise ConfigError("this call's model is asked in another way: use the method of the same kind, sync or async")
    return way


if TYPE_CHECKING:
    _: ContextBackend = CallersModel()
