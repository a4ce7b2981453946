"""Every error that ctxfold raises on purpose, as one tree.

CtxError
├── ConfigError (ValueError)             wrong or missing settings
│   └── MissingExtraError (ImportError)  an optional dependency is not installed
├── MessageError (ValueError)            a message that cannot be taken in
│   ├── EmptyMessagesError
│   ├── UnknownRoleError
│   ├── InvalidTextError                 lone surrogates
│   ├── InvalidToolArgumentsError        tool arguments that are not a JSON object
│   ├── OrphanToolResultError            a tool result without its call, or a call left without a result
│   ├── MessageConflictError             same id, different content
│   └── ImportLineError                  a line of a file; nothing was imported
├── BudgetError
│   ├── WindowTooSmallError (ValueError)
│   ├── MessageTooLargeError
│   ├── PinBudgetError
│   └── ContextOverflowError
├── SessionError
│   ├── SessionNotFoundError (LookupError)
│   ├── SessionExistsError
│   ├── MessageNotFoundError (LookupError)
│   │   └── MessageErasedError               it was there, and was erased
│   ├── MessageIndexError (IndexError)
│   ├── NothingToUndoError (LookupError)
│   └── TurnClosedError
├── CompactionError
│   ├── NotEnoughHistoryError
│   ├── SummarizationFailedError
│   └── StrategyError                    a strategy or summarizer of the user's own broke its contract
├── StoreError
│   ├── StoreUnavailableError (ConnectionError)
│   ├── StoreCorruptError
│   ├── StoreFormatError
│   └── HeadMovedError                   another writer was first; the engine retries on the new head
└── BackendError                         a model service failed; carries kind, status, code, retryable
"""

from __future__ import annotations

__all__ = [
    "BackendError",
    "BudgetError",
    "CompactionError",
    "ConfigError",
    "ContextOverflowError",
    "CtxError",
    "EmptyMessagesError",
    "HeadMovedError",
    "ImportLineError",
    "InvalidTextError",
    "InvalidToolArgumentsError",
    "MessageConflictError",
    "MessageErasedError",
    "MessageError",
    "MessageIndexError",
    "MessageNotFoundError",
    "MessageTooLargeError",
    "MissingExtraError",
    "NotEnoughHistoryError",
    "NothingToUndoError",
    "OrphanToolResultError",
    "PinBudgetError",
    "SessionError",
    "SessionExistsError",
    "SessionNotFoundError",
    "StoreCorruptError",
    "StoreError",
    "StoreFormatError",
    "StoreUnavailableError",
    "StrategyError",
    "SummarizationFailedError",
    "TurnClosedError",
    "UnknownRoleError",
    "WindowTooSmallError",
]


class CtxError(Exception):
    """Base of every error that ctxfold raises on purpose."""


def _again(kind: type[CtxError], args: tuple[object, ...], values: dict[str, object]) -> CtxError:
    """A pickled error: as a worker process hands it back, with what it carries."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(values)
    return error


class _CarryingError(CtxError):
    """An error with more than a message: it is made by other arguments than those that it keeps."""

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (type(self), self.args, self.__dict__)


class ConfigError(CtxError, ValueError):
    """A setting is missing, contradictory or out of range."""


class MissingExtraError(ConfigError, ImportError):
    """An optional dependency is not installed; the message holds the pip line."""


class MessageError(CtxError, ValueError):
    """A message cannot be taken in; the session stays as it was."""


class EmptyMessagesError(MessageError):
    """No message was given where at least one is needed."""


class UnknownRoleError(MessageError):
    """A role other than system, user, assistant or tool."""


class InvalidTextError(MessageError):
    """Text that cannot be encoded as UTF-8, such as a lone surrogate."""


class InvalidToolArgumentsError(MessageError):
    """Tool-call arguments that are not the text of a JSON object."""


class OrphanToolResultError(MessageError):
    """A tool result answers no open call, or a call would stay unanswered."""


class MessageConflictError(MessageError):
    """A message id that the session knows came with different content."""


class ImportLineError(_CarryingError, MessageError):
    """A line of a file cannot be imported; nothing was. `line` counts from 1."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem} (nothing was imported)")
        self.line = line


class BudgetError(CtxError):
    """Something does not fit the context window."""


class WindowTooSmallError(BudgetError, ValueError):
    """The window is smaller than system prompt plus reply reserve."""


class MessageTooLargeError(BudgetError):
    """The newest user message alone does not fit; nothing was sent."""


class PinBudgetError(BudgetError):
    """Pinned messages would take more than their share of the budget."""


class ContextOverflowError(BudgetError):
    """The request exceeds the window and compaction could not or may not make room."""


class SessionError(CtxError):
    """A request about a session that cannot be met."""


class SessionNotFoundError(SessionError, LookupError):
    """No such session in the store."""


class SessionExistsError(SessionError):
    """A session of that name is there already; nothing was written into it."""


class MessageNotFoundError(SessionError, LookupError):
    """No such message in the session."""


class MessageErasedError(MessageNotFoundError):
    """The message was erased: its text is nowhere any more."""


class MessageIndexError(SessionError, IndexError):
    """An index outside the live conversation."""


class NothingToUndoError(SessionError, LookupError):
    """No compaction or edit is left to take back."""


class TurnClosedError(SessionError):
    """The turn has ended; open a new one."""


class CompactionError(CtxError):
    """A compaction could not be carried out; the session stays as it was."""


class NotEnoughHistoryError(CompactionError):
    """There is nothing that may be compacted."""


class SummarizationFailedError(CompactionError):
    """The summariser failed, or its answer broke the contract."""


class StrategyError(CompactionError):
    """A strategy of the user's own raised, or wanted what would break the conversation; nothing was changed."""


class StoreError(CtxError):
    """The store failed."""


class StoreUnavailableError(StoreError, ConnectionError):
    """The store cannot be reached or is locked for too long."""


class StoreCorruptError(StoreError):
    """The stored bytes are damaged or not ours."""


class StoreFormatError(StoreError):
    """The store was written by a newer version of ctxfold."""


class HeadMovedError(_CarryingError, StoreError):
    """Another writer appended first."""

    def __init__(self, expected: int, head: int) -> None:
        super().__init__(f"expected head {expected}, found {head}: read the new records and decide again")
        self.expected = expected
        self.head = head


class BackendError(_CarryingError):
    """A model service failed.

    kind: "connect" (none was made), "connection" (it broke), "timeout", "rate_limit", "overloaded", "unavailable", "server",
    "auth", "quota", "rejected", "context_overflow", "reasoning_replay", "content_filter", "stream_truncated",
    "empty_response", "protocol".
    limit_tokens and requested_tokens are set where an overflow message told them; retry_after_s where the service said.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        retryable: bool = False,
        status: int | None = None,
        code: str | None = None,
        limit_tokens: int | None = None,
        requested_tokens: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable
        self.status = status
        self.code = code
        self.limit_tokens = limit_tokens
        self.requested_tokens = requested_tokens
        self.retry_after_s = retry_after_s
