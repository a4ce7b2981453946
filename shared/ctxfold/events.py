"""What the engine reports to its subscribers, as values."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ctxfold.errors import ConfigError
from ctxfold.given import kind_of
from ctxfold.messages import Message
from ctxfold.prices import CostLine

__all__ = [
    "Appended",
    "CompactionHeld",
    "CompactionProposal",
    "EditUndone",
    "Event",
    "GoalRefreshed",
    "HistoryCompacted",
    "Inserted",
    "MemoryLearnt",
    "MessagesErased",
    "MessagesLeftOut",
    "MessagesRestored",
    "OutputsPrepared",
    "PinsChanged",
    "PromptTruncated",
    "Removed",
    "RewriteRefused",
    "Rewriter",
    "RulesChanged",
    "SectionInjected",
    "SectionSkipped",
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
class PinsChanged:
    """Which messages are kept verbatim from here on, by id."""

    session: str
    pins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RulesChanged:
    """Fields of the policy that were set at run time, or learnt from what the provider said."""

    session: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EditUndone:
    """The last compaction or edit was taken back."""

    session: str


@dataclass(frozen=True, slots=True)
class MessagesRestored:
    """Originals came back into the view."""

    session: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class MessagesErased:
    """Messages are gone for good, by id; what was sent to others before is not in our hands."""

    session: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MessagesLeftOut:
    """A list that somebody else keeps has tool results without their call, or calls that were never answered, by message id.

    No service takes those: the session goes on without them.
    """

    session: str
    ids: tuple[str, ...]


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

    `archived` originals left the view; `covered` are the ids of those that a summary stands for now. Of their literals
    `facts_kept` stand in the summary, `facts_in_ledger` in its verbatim lines, `facts_archived` only in the log;
    `facts_invented` stand in the summary but in no source.
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
    covered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactionHeld:
    """A compaction was due but would not free enough; it is tried again when the window or the history has changed."""

    session: str
    reason: str


@dataclass(frozen=True, slots=True)
class GoalRefreshed:
    """What the conversation is for, and the step under way, were found out anew; `problem` says why they stay as they were."""

    session: str
    goal: str
    subgoal: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class OutputsPrepared:
    """So many summaries of tool outputs were stored; they are shown when room is needed. `problems` say what went wrong."""

    session: str
    messages: int
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptTruncated:
    """The server counted far fewer tokens than were sent: it cut the prompt and said nothing. Lower `context_window`."""

    session: str
    model: str
    sent_tokens: int
    counted_tokens: int


@dataclass(frozen=True, slots=True)
class RewriteRefused:
    """A compaction subscriber raised, or wanted what would break the conversation; its proposal was written as it was."""

    session: str
    reason: str


@dataclass(frozen=True, slots=True)
class SectionInjected:
    """A section with so many new items stands in the window, or travels with the request.

    `cut` of these items were shortened to fit, and `left_out` further ones did not fit at all: `hidden_chars` characters of both
    are not shown.
    """

    session: str
    kind: str
    items: int
    tokens: int
    place: str
    cut: int = 0
    left_out: int = 0
    hidden_chars: int = 0


@dataclass(frozen=True, slots=True)
class SectionSkipped:
    """A section was not asked, its source failed, or nothing of it fits; the turn goes on without it."""

    session: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class MemoryLearnt:
    """A model has looked for what to remember: so many new items, of which `replaced` took the place of older ones.

    `dropped` ones did not stand in their sources. `problem` says why nothing was kept.
    """

    session: str
    added: int = 0
    replaced: int = 0
    dropped: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class CompactionProposal:
    """A compaction before it is written: `summary` would stand for the `covered` messages, `kept` ones would follow it."""

    session: str
    summary: str
    covered: tuple[Message, ...]
    kept: tuple[Message, ...]


Rewriter: TypeAlias = "Callable[[CompactionProposal], tuple[str, Sequence[Message]] | None]"


Event: TypeAlias = (
    PromptTruncated
    | Appended
    | Inserted
    | Updated
    | Removed
    | MessagesErased
    | MessagesLeftOut
    | PinsChanged
    | RulesChanged
    | EditUndone
    | MessagesRestored
    | SessionLoaded
    | TurnEnded
    | HistoryCompacted
    | CompactionHeld
    | GoalRefreshed
    | OutputsPrepared
    | RewriteRefused
    | SectionInjected
    | SectionSkipped
    | MemoryLearnt
)
Subscriber: TypeAlias = Callable[[Event], None]


class Subscribers:
    """Who wants events. A subscriber that raises is logged, with its traceback, and breaks nothing."""

    def __init__(self) -> None:
        self._all: list[Subscriber] = []
        self.rewriters: list[Rewriter] = []  # at most one

    def add(self, subscriber: Subscriber) -> Callable[[], None]:
        """Subscribe (twice is once); the returned function unsubscribes."""
        if not callable(subscriber):
            raise ConfigError(f"the subscriber is {kind_of(subscriber)}: give a function of one event")
        _refuse_async(subscriber, "the subscriber")
        if subscriber not in self._all:
            self._all.append(subscriber)
        return lambda: self._all.remove(subscriber) if subscriber in self._all else None

    def rewrite(self, rewriter: Rewriter) -> Callable[[], None]:
        """Make it the one compaction subscriber; ConfigError when there is another. The returned function ends it."""
        if not callable(rewriter):
            raise ConfigError(
                f"the compaction subscriber is {kind_of(rewriter)}: give a function of one CompactionProposal"
            )
        _refuse_async(rewriter, "the compaction subscriber")
        if self.rewriters not in ([], [rewriter]):
            raise ConfigError("there is a compaction subscriber already: end that one first, a summary has one author")
        self.rewriters[:] = [rewriter]
        return lambda: self.rewriters.remove(rewriter) if rewriter in self.rewriters else None

    def emit(self, event: Event) -> None:
        for subscriber in tuple(self._all):
            try:
                subscriber(event)
            except Exception as error:  # noqa: BLE001 - logged; a subscriber must not break a turn
                # what it says may quote a message: that is for those who have asked for it
                _log.error(
                    "a subscriber raised %s on %s (why: at level DEBUG)", type(error).__name__, type(event).__name__
                )
                _log.debug("a subscriber raised on %s", type(event).__name__, exc_info=True)


def _refuse_async(function: object, name: str) -> None:
    """Raises ConfigError for a coroutine function, whose coroutine nobody would await."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        raise ConfigError(f"{name} is async, but it is called where nothing can be awaited: give a plain function")
