"""ctxfold's errors in classes that LangChain's own handlers know too: middleware and retries look for these."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager

from langchain_core import exceptions as lc

from ctxfold.adapters import calls
from ctxfold.errors import BackendError, ContextOverflowError, CtxError, MessageTooLargeError


class CtxOverflowError(ContextOverflowError, lc.ContextOverflowError):
    """The request exceeds the window, and compaction could not make it fit or is turned off."""


class CtxMessageTooLargeError(MessageTooLargeError, lc.ContextOverflowError):
    """The newest user message alone does not fit."""


class ChatAuthenticationError(BackendError, lc.ModelAuthenticationError):
    """The key was refused."""


class ChatPermissionError(BackendError, lc.ModelPermissionDeniedError):
    """The key lacks a permission."""


class ChatInvalidRequestError(BackendError, lc.ModelInvalidRequestError):
    """The service refused the request."""


class ChatNotFoundError(BackendError, lc.ModelNotFoundError):
    """No such model."""


class ChatRateLimitError(BackendError, lc.ModelRateLimitError):
    """Too many requests, or no quota left."""


class ChatServiceError(BackendError, lc.ModelAPIError):
    """The service failed, or its answer was invalid."""


class ChatConnectionError(BackendError, lc.ModelConnectionError):
    """The service cannot be reached."""


class ChatTimeoutError(BackendError, lc.ModelTimeoutError):
    """The service took too long."""


class ChatOverflowError(BackendError, lc.ContextOverflowError):
    """The service says that the request exceeds its window."""


_BY_KIND: dict[str, type[BackendError]] = {
    "auth": ChatAuthenticationError,
    "connect": ChatConnectionError,
    "content_filter": ChatInvalidRequestError,
    "context_overflow": ChatOverflowError,
    "quota": ChatRateLimitError,
    "rate_limit": ChatRateLimitError,
    "reasoning_replay": ChatInvalidRequestError,
    "rejected": ChatInvalidRequestError,
    "timeout": ChatTimeoutError,
}
_BY_STATUS: dict[int, type[BackendError]] = {403: ChatPermissionError, 404: ChatNotFoundError}

# what a LangChain model's own error says, for the way back; the more particular classes first
_KINDS: tuple[tuple[type[BaseException], str], ...] = (
    (lc.ContextOverflowError, "context_overflow"),
    (lc.ModelAuthenticationError, "auth"),
    (lc.ModelPermissionDeniedError, "auth"),
    (lc.ModelInvalidRequestError, "rejected"),
    (lc.ModelNotFoundError, "rejected"),
    (lc.ModelRateLimitError, "rate_limit"),
    (lc.ModelTimeoutError, "timeout"),
    (lc.ModelConnectionError, "connect"),
)


@contextmanager
def translated() -> Generator[None, None, None]:
    """Errors leave the block in classes that are ctxfold's and LangChain's at once."""
    try:
        yield
    except CtxError as error:
        other = _translation(error)
        if other is None:
            raise
        raise other from error


def _translation(error: CtxError) -> CtxError | None:
    if isinstance(error, lc.LangChainException):
        return None
    if isinstance(error, ContextOverflowError):
        return CtxOverflowError(*error.args)
    if isinstance(error, MessageTooLargeError):
        return CtxMessageTooLargeError(*error.args)
    if isinstance(error, BackendError):
        return _model_error(error)
    return None


def _model_error(error: BackendError) -> BackendError:
    kind = _BY_STATUS.get(error.status or 0) if error.kind in ("auth", "rejected") else None
    other = (kind or _BY_KIND.get(error.kind, ChatServiceError))(str(error), kind=error.kind)
    vars(other).update(vars(error))
    other.is_retryable = error.retryable  # type: ignore[attr-defined]
    return other


def as_backend_error(model: str) -> AbstractContextManager[None]:
    """Raises BackendError for whatever a LangChain model raises in the block, with the kind that its class stands for."""
    return calls.as_backend_error(model, lambda error: next((k for cls, k in _KINDS if isinstance(error, cls)), None))
