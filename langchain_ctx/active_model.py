"""Lets the model that a call brings with it answer for a session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.language_models import BaseChatModel

from ctxfold.adapters.model_calls import BorrowedModel
from ctxfold.errors import BackendError, ConfigError
from ctxfold.protocols import (
    AsyncChunkStream,
    BackendCapabilities,
    ChunkStream,
    ContextBackend,
    Reply,
    Request,
    capabilities_of,
)
from langchain_ctx.models import model_name, model_window
from langchain_ctx.reasoning import capabilities
from langchain_ctx.summarizer import as_summarizer

T = TypeVar("T")


@dataclass(slots=True)
class Caller:
    """The ways in which the current call can ask its model; each is set where its kind of call supports it.

    `repeat` and `arepeat` ask the model for a summary on the live prefix: as the call itself asks it, with the same tools and
    settings, but nothing of it reaches the call's own stream. `repeats` says whether a request of the session is one that the
    call would send alike. `own` is the model as the caller gave it, where `model` is a copy that sends reasoning back.
    """

    model: BaseChatModel
    send: Callable[[Request], Reply] | None = None
    asend: Callable[[Request], Awaitable[Reply]] | None = None
    open_stream: Callable[[Request], ChunkStream] | None = None
    aopen_stream: Callable[[Request], Awaitable[AsyncChunkStream]] | None = None
    repeat: Callable[[Request], Reply] | None = None
    arepeat: Callable[[Request], Awaitable[Reply]] | None = None
    repeats: Callable[[Request], bool] | None = None
    own: BaseChatModel | None = None
    under_way: int = 0
    name: str = field(init=False)
    capabilities: BackendCapabilities = field(init=False)

    def __post_init__(self) -> None:
        self.name = model_name(self.model)
        self.capabilities = capabilities(self.model)


_CALLER: ContextVar[Caller] = ContextVar("ctxfold_caller")


@contextmanager
def calling(caller: Caller) -> Generator[None, None, None]:
    """Makes sessions ask this caller's model within the block."""
    token = _CALLER.set(caller)
    caller.under_way += 1
    try:
        yield
    finally:
        caller.under_way -= 1
        _CALLER.reset(token)


def current_caller() -> Caller:
    """Returns the caller of the call under way; ConfigError outside of a call."""
    caller = _CALLER.get(None)
    if caller is None:
        raise ConfigError("no model is being called: this session's model comes with each call of the agent or chain")
    return caller


def called_model() -> BaseChatModel | None:
    """Returns the model of the call under way; None outside of a call."""
    caller = _CALLER.get(None)
    return None if caller is None else caller.model


class CallersModel(BorrowedModel):
    """The backend of a session whose model is that of the current call."""

    @property
    def capabilities(self) -> BackendCapabilities:
        """Returns those of the service behind the model that is being called; the defaults outside of a call."""
        caller = _CALLER.get(None)
        return BackendCapabilities() if caller is None else caller.capabilities

    @property
    def context_window(self) -> int | None:
        """Returns the window in the profile of the model that is being called; None outside of a call."""
        caller = _CALLER.get(None)
        return None if caller is None else model_window(caller.model)

    @property
    def model(self) -> str:
        caller = _CALLER.get(None)
        return "" if caller is None else caller.name

    def send(self, request: Request) -> Reply:
        return _method(current_caller().send)(request)

    async def asend(self, request: Request) -> Reply:
        return await _method(current_caller().asend)(request)

    def open_stream(self, request: Request) -> ChunkStream:
        return _method(current_caller().open_stream)(request)

    async def aopen_stream(self, request: Request) -> AsyncChunkStream:
        return await _method(current_caller().aopen_stream)(request)


class CallersSummarizer(CallersModel):
    """Writes summaries with `summarizer`, a chat model or backend; without one, with the model of the call that needs them.

    Outside of any call, that is the model asked last. The model of the call itself is asked on the live prefix where possible.
    """

    def __init__(self, summarizer: Any) -> None:
        self._given = summarizer
        self._own = as_summarizer(summarizer)
        self._last: BaseChatModel | None = None

    @property
    def capabilities(self) -> BackendCapabilities:
        """Returns the capabilities of the given summariser, which `continues` the live prefix where it is the call's own model."""
        return replace(capabilities_of(self._own), continues=self._continues)

    @property
    def context_window(self) -> int | None:
        return None if self._own is None else self._own.context_window

    @property
    def model(self) -> str:
        return super().model if self._own is None else self._own.model

    def seen(self, model: BaseChatModel) -> None:
        self._last = model

    def _continues(self, request: Request) -> bool:
        caller = _CALLER.get(None)
        if caller is None or not caller.under_way or caller.repeats is None:
            return False
        same = self._given is None or self._given is caller.own or self._given is caller.model
        return same and caller.repeats(request)

    def _writer(self) -> ContextBackend:
        caller = _CALLER.get(None)
        writer = self._own or as_summarizer(self._last if caller is None else caller.model)
        if writer is None:
            raise BackendError("no model was asked yet that could write a summary", kind="rejected")
        return writer

    def send(self, request: Request) -> Reply:
        return _method(current_caller().repeat)(request) if request.live_prefix else self._writer().send(request)

    async def asend(self, request: Request) -> Reply:
        if request.live_prefix:
            return await _method(current_caller().arepeat)(request)
        return await self._writer().asend(request)


def keeps_sessions(model: BaseChatModel) -> bool:
    """Returns True when the model manages a context itself: two sessions behind one call would each cut the other's window."""
    settings: list[object] = [getattr(model, name, None) for name in ("session", "sessions", "store")]
    # `store=False` of ChatOpenAI is about its service
    return any(setting is not None and not isinstance(setting, bool) for setting in settings)


def check_sends_window(model: BaseChatModel) -> None:
    """Raises ConfigError for a model that sends the newest messages alone, because its service keeps the conversation."""
    if getattr(model, "use_previous_response_id", None) is True:
        raise ConfigError(
            f"this {type(model).__name__} has use_previous_response_id=True: the service keeps the conversation and gets "
            "no window of it; leave that out"
        )


def _method(method: Callable[[Request], T] | None) -> Callable[[Request], T]:
    if method is None:
        raise ConfigError("this call's model is asked in another way: use the method of the same kind, sync or async")
    return method


if TYPE_CHECKING:
    _: ContextBackend = CallersModel()
