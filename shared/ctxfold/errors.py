"""Every error that ctxfold raises on purpose, as one tree; `CtxWarning` is the category of its warnings.

CtxError
├── ConfigError (ValueError)             wrong or missing settings
│   └── MissingExtraError (ImportError)  an optional dependency is not installed
├── MessageError (ValueError)            a message that cannot be stored
│   ├── EmptyMessagesError
│   ├── UnknownRoleError
│   ├── InvalidTextError                 lone surrogates
│   ├── InvalidToolArgumentsError        tool arguments that are not a JSON object
│   ├── OrphanToolResultError            a tool result without its call, or a call left without a result
│   ├── MessageConflictError             same id, different content
│   └── ImportLineError                  a line of a file is invalid; nothing was imported
├── BudgetError
│   ├── WindowTooSmallError (ValueError)
│   ├── MessageTooLargeError
│   ├── PinBudgetError
│   └── ContextOverflowError
├── SessionError
│   ├── SessionNotFoundError (LookupError)
│   ├── SessionExistsError
│   ├── MessageNotFoundError (LookupError)
│   │   └── MessageErasedError               the message was erased
│   ├── MessageIndexError (IndexError)
│   ├── NothingToUndoError (LookupError)
│   └── TurnClosedError
├── CompactionError
│   ├── NotEnoughHistoryError
│   ├── SummarizationFailedError
│   └── StrategyError                    a custom strategy or summarizer broke its contract
├── StoreError
│   ├── StoreUnavailableError (ConnectionError)
│   ├── StoreCorruptError
│   ├── StoreFormatError
│   └── HeadMovedError                   another writer was first; the engine retries on the new head
└── BackendError                         a model service failed; carries kind, status, code, retryable
"""

from __future__ import annotations


class CtxWarning(UserWarning):
    """Warns about something that works less well than it could; the message says what to do."""


class CtxError(Exception):
    """Base of every error that ctxfold raises on purpose."""


def _unpickled(kind: type[CtxError], args: tuple[object, ...], values: dict[str, object]) -> CtxError:
    """Rebuilds a pickled error with its attributes."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(values)
    return error


class _CarryingError(CtxError):
    """Base of errors with attributes, whose constructors take other arguments than `args` holds."""

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (type(self), self.args, self.__dict__)


class ConfigError(CtxError, ValueError):
    """A setting is missing, contradictory or out of range."""


class MissingExtraError(ConfigError, ImportError):
    """An optional dependency is not installed; the message holds the pip line."""


class MessageError(CtxError, ValueError):
    """A message cannot be stored; the session is unchanged."""


class EmptyMessagesError(MessageError):
    """No message was given where at least one is needed."""


class UnknownRoleError(MessageError):
    """The role is not system, user, assistant or tool."""


class InvalidTextError(MessageError):
    """The text cannot be encoded as UTF-8, for example because of a lone surrogate."""


class InvalidToolArgumentsError(MessageError):
    """The arguments of a tool call are not the text of a JSON object."""


class OrphanToolResultError(MessageError):
    """A tool result has no open call, or a call would stay without a result."""


class MessageConflictError(MessageError):
    """A message has the id of a stored message but different content."""


class ImportLineError(_CarryingError, MessageError):
    """A line of a file cannot be imported, so nothing was imported. `line` counts from 1.

    With the unit "item" it is the place in the file's array.
    """

    def __init__(self, line: int, problem: str, unit: str = "line") -> None:
        super().__init__(f"{unit} {line}: {problem} (nothing was imported)")
        self.line = line
        self.problem = f"{unit} {line}: {problem}"


class BudgetError(CtxError):
    """Base of errors about content that does not fit the context window."""


class WindowTooSmallError(BudgetError, ValueError):
    """The window is smaller than system prompt plus reply reserve."""


class MessageTooLargeError(BudgetError):
    """The newest user message, or an output that `exclude_tools` keeps whole, does not fit alone; nothing was sent."""


class PinBudgetError(BudgetError):
    """Pinned messages would take more than their share of the budget."""


class ContextOverflowError(BudgetError):
    """The request exceeds the window, and compaction could not make it fit or is turned off."""


class SessionError(CtxError):
    """Base of errors about the contents of a session."""


class SessionNotFoundError(SessionError, LookupError):
    """The store has no such session."""


class SessionExistsError(SessionError):
    """A session of that name already exists; it is unchanged."""


class MessageNotFoundError(SessionError, LookupError):
    """The session has no such message."""


class MessageErasedError(MessageNotFoundError):
    """The message was erased and its text is not stored any more."""


class MessageIndexError(SessionError, IndexError):
    """An index is outside the live conversation."""


class NothingToUndoError(SessionError, LookupError):
    """There is no compaction or edit left to undo."""


class TurnClosedError(SessionError):
    """Another writer has closed the turn; send the question again."""


class CompactionError(CtxError):
    """A compaction failed; the session is unchanged."""


class NotEnoughHistoryError(CompactionError):
    """There are no messages that may be compacted."""


class SummarizationFailedError(CompactionError):
    """The summarizer failed, or its output broke the contract."""


class StrategyError(CompactionError):
    """A custom strategy raised, or its plan would break the conversation; nothing was changed."""


class StoreError(CtxError):
    """Base of errors of the store."""


class StoreUnavailableError(StoreError, ConnectionError):
    """The store cannot be reached, or stays locked for too long."""


class StoreCorruptError(StoreError):
    """The stored data is damaged or was not written by ctxfold."""


class StoreFormatError(StoreError):
    """The store was written by a newer version of ctxfold, or one is encrypted and was opened as plain, or the other way round."""


class HeadMovedError(_CarryingError, StoreError):
    """Another writer appended first."""

    def __init__(self, expected: int, head: int) -> None:
        super().__init__(f"expected head {expected}, found {head}: read the new records and decide again")
        self.expected = expected
        self.head = head


class BackendError(_CarryingError):
    """A model service failed.

    kind: "connect" (no connection was made), "connection" (it broke), "timeout", "rate_limit", "overloaded", "unavailable",
    "server", "auth", "quota", "rejected", "context_overflow", "reasoning_replay", "content_filter", "stream_truncated",
    "empty_response", "protocol".
    limit_tokens and requested_tokens are set when an overflow message names them, and reply_tokens when it says how much of
    requested_tokens is room for the reply; retry_after_s when the service names it.
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
        reply_tokens: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable
        self.status = status
        self.code = code
        self.limit_tokens = limit_tokens
        self.requested_tokens = requested_tokens
        self.reply_tokens = reply_tokens
        self.retry_after_s = retry_after_s
