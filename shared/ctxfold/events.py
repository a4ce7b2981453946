"""What the engine reports to its subscribers, as values."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ctxfold.messages import Message
from ctxfold.prices import CostLine

__all__ = [
    "Appended",
    "CompactionHeld",
    "Event",
    "HistoryCompacted",
    "Inserted",
    "MessagesRestored",
    "PromptTruncated",
    "Removed",
    "SessionLoaded",
    "Subscriber",
    "Subscribers",
    "TurnEnded",
    "Updated",
]

_log = logging.getLogger("ctxfold")


@dataclass(frozen=True, slots=True)
class Appended:
    """Messages were stored, in order."""

    session: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Inserted:
    session: str
    message: Message
    index: int


@dataclass(frozen=True, slots=True)
class Updated:
    session: str
    old: Message
    new: Message


@dataclass(frozen=True, slots=True)
class Removed:
    """Messages left the view by an edit."""

    session: str
    messages: tuple[Message, ...]
    how: Literal["removed", "popped", "retained", "cleared"]


@dataclass(frozen=True, slots=True)
class MessagesRestored:
    """Originals came back into the view."""

    session: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class SessionLoaded:
    """Messages, or a whole session, were read from a file."""

    session: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class TurnEnded:
    session: str
    turn_id: str
    status: str


@dataclass(frozen=True, slots=True)
class HistoryCompacted:
    """An epoch change. Counts are messages and tokens of the view before and after; `rung` says who wrote the summary.

    `archived` originals left the view. Of their literals `facts_kept` stand in the summary, `facts_in_ledger` in its verbatim
    lines, `facts_archived` only in the log; `facts_invented` stand in the summary but in no source.
    """

    session: str
    strategy: str
    reason: str
    rung: str
    messages_before: int
    messages_after: int
    tokens_before: int
    tokens_after: int
    problems: tuple[str, ...] = ()
    archived: int = 0
    facts_kept: int = 0
    facts_in_ledger: int = 0
    facts_archived: int = 0
    facts_invented: int = 0
    summary_calls: int = 0
    cost: CostLine | None = None


@dataclass(frozen=True, slots=True)
class CompactionHeld:
    """A compaction was due but would not free enough; it is tried again when the window or the history has changed."""

    session: str
    reason: str


@dataclass(frozen=True, slots=True)
class PromptTruncated:
    """The server counted far fewer tokens than were sent: it cut the prompt and said nothing. Lower `context_window`."""

    session: str
    model: str
    sent_tokens: int
    counted_tokens: int


Event: TypeAlias = (
    PromptTruncated
    | Appended
    | Inserted
    | Updated
    | Removed
    | MessagesRestored
    | SessionLoaded
    | TurnEnded
    | HistoryCompacted
    | CompactionHeld
)
Subscriber: TypeAlias = Callable[[Event], None]


class Subscribers:
    """Who wants events. A subscriber that raises is logged, with its traceback, and breaks nothing."""

    def __init__(self) -> None:
        self._all: list[Subscriber] = []

    def add(self, subscriber: Subscriber) -> Callable[[], None]:
        """Subscribe (twice is once); the returned function unsubscribes."""
        if subscriber not in self._all:
            self._all.append(subscriber)
        return lambda: self._all.remove(subscriber) if subscriber in self._all else None

    def emit(self, event: Event) -> None:
        for subscriber in tuple(self._all):
            try:
                subscriber(event)
            except Exception:  # noqa: BLE001 - logged with its traceback; a subscriber must not break a turn
                _log.exception("a subscriber raised on %s", type(event).__name__)
