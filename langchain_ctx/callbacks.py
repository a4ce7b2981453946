"""Reports the model calls that write summaries to the caller's callbacks."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.tracers._streaming import _StreamingCallbackHandler

_CALLBACKS: ContextVar[Any] = ContextVar("ctxfold_callbacks", default=None)


@contextmanager
def listening(config: RunnableConfig | None) -> Generator[None, None, None]:
    """Summaries that are written within the block report to the callbacks of this call."""
    token = _CALLBACKS.set(ensure_config(config).get("callbacks"))
    try:
        yield
    finally:
        _CALLBACKS.reset(token)


def listeners() -> list[BaseCallbackHandler]:
    """Returns handlers that hear of a summary's run, with its usage, and of none of its tokens.

    What streams events or messages to a user hears nothing: a summary is no part of the answer.
    """
    current: Any = _CALLBACKS.get() or ensure_config().get("callbacks") or ()
    handlers: list[BaseCallbackHandler] = (
        current.inheritable_handlers if isinstance(current, BaseCallbackManager) else list(current)
    )
    return [_WithoutTokens(h) for h in handlers if not isinstance(h, _StreamingCallbackHandler)]


class _WithoutTokens(BaseCallbackHandler):
    """Wraps a callback handler so that it receives no tokens."""

    def __init__(self, handler: BaseCallbackHandler) -> None:
        self._handler = handler

    def __getattribute__(self, name: str) -> Any:
        if name in ("_handler", "on_llm_new_token", "__class__"):
            return super().__getattribute__(name)
        return getattr(super().__getattribute__("_handler"), name)

    def on_llm_new_token(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: tokens of a summary are not reported."""
