"""Reports the model calls that write summaries to the caller's callbacks."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager, Callbacks
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.tracers._streaming import _StreamingCallbackHandler
from langchain_core.tracers.context import _configure_hooks  # pyright: ignore[reportPrivateUsage]

_CALLBACKS: ContextVar[Any] = ContextVar("ctxfold_callbacks", default=None)


@contextmanager
def listening(config: RunnableConfig | None) -> Generator[None, None, None]:
    """Summaries that are written within the block report to the callbacks of this call."""
    token = _CALLBACKS.set(ensure_config(config).get("callbacks"))
    try:
        yield
    finally:
        _CALLBACKS.reset(token)


def listeners() -> Callbacks:
    """Returns callbacks that hear of a summary's run, within the run that needs it, with its usage and none of its tokens.

    What streams events or messages to a user hears nothing: a summary is no part of the answer.
    """
    current: Any = _CALLBACKS.get() or ensure_config().get("callbacks") or []
    handlers = current.inheritable_handlers if isinstance(current, BaseCallbackManager) else current
    quiet = [_without_tokens(h) for h in handlers if not isinstance(h, _StreamingCallbackHandler)]
    if not isinstance(current, BaseCallbackManager):
        return quiet
    manager = current.copy()
    manager.set_handlers(quiet)
    return manager


def _without_tokens(handler: BaseCallbackHandler) -> BaseCallbackHandler:
    """Returns the handler itself where it takes no tokens, or where LangChain adds it to each run that lacks this very object."""
    takes_none = type(handler).on_llm_new_token is BaseCallbackHandler.on_llm_new_token
    added = any(variable.get() is handler for variable, *_ in _configure_hooks)
    return handler if takes_none or added else _WithoutTokens(handler)


class _WithoutTokens(BaseCallbackHandler):
    """Wraps a callback handler so that it receives no tokens. It has the handler's class, by which tracers are told apart."""

    def __init__(self, handler: BaseCallbackHandler) -> None:
        self._handler = handler

    def __getattribute__(self, name: str) -> Any:
        if name in ("_handler", "on_llm_new_token"):
            return super().__getattribute__(name)
        return getattr(super().__getattribute__("_handler"), name)

    def on_llm_new_token(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: tokens of a summary are not reported."""
