"""Defines the events that subscribers receive, and the list of subscribers."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ctxfold.errors import ConfigError
from ctxfold.messages import Message, Usage
from ctxfold.policy.prices import CostLine
from ctxfold.validation import kind_of

_log = logging.getLogger("ctxfold")


@dataclass(frozen=True, slots=True)
class Appended:
    """Messages were stored, in order."""

    session: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Inserted:
    """A message was inserted before the live message that had this index."""

    session: str
    message: Message
    index: int


@dataclass(frozen=True, slots=True)
class Updated:
    """A live message was replaced under its id."""

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
    """The pins changed; `pins` holds the ids of all messages that are now kept verbatim."""

    session: str
    pins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RulesChanged:
    """Fields of the policy were set at run time, or learnt from a provider's answer."""

    session: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EditUndone:
    """The last compaction or edit was undone."""

    session: str


@dataclass(frozen=True, slots=True)
class MessagesRestored:
    """Originals were restored to the view."""

    session: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class MessagesErased:
    """Messages were erased permanently; `ids` names them, and is empty where the whole session was erased.

    Copies that were sent to a provider earlier are not affected.
    """

    session: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MessagesLeftOut:
    """A caller's list holds tool results without their call, or calls that were never answered, by message id.

    No provider accepts those, so the session continues without them.
    """

    session: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IdsRepeated:
    """Several messages of a caller's list have one of these ids: they are told apart by content and place."""

    session: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SessionLoaded:
    """Messages, or a whole session, were read from a file."""

    session: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """A turn ended; `status` is "completed", "aborted" or "discarded"."""

    session: str
    turn_id: str
    status: str


@dataclass(frozen=True, slots=True)
class HistoryCompacted:
    """A compaction was committed. Counts are messages and tokens of the view before and after.

    `fallback_level` names the writer of the summary. `archived` originals left the view; `covered` holds the ids of those that
    a summary now replaces. Of the facts in them, `facts_kept` are in the text of the summary, `facts_put_back` in its verbatim
    lines and `facts_archived` only in the log; `facts_invented` are in the summary but in no source. `summary_usage` is what
    the summariser reported for the `summary_calls`, and `live_prefix` says that the summary was written on the live prefix of
    the conversation.
    """

    session: str
    strategy: str
    reason: str
    fallback_level: str
    messages_before: int
    messages_after: int
    tokens_before: int
    tokens_after: int
    problems: tuple[str, ...] = ()
    archived: int = 0
    facts_kept: int = 0
    facts_put_back: int = 0
    facts_archived: int = 0
    facts_invented: int = 0
    summary_calls: int = 0
    cost: CostLine | None = None
    covered: tuple[str, ...] = ()
    summary_usage: Usage = field(default_factory=Usage)
    live_prefix: bool = False


@dataclass(frozen=True, slots=True)
class LossNoticed:
    """A `reply` says that earlier content is missing, after a compaction. The next request recalls for its question too, once."""

    session: str
    reply: Message


@dataclass(frozen=True, slots=True)
class CompactionStarted:
    """A compaction begins; it ends with HistoryCompacted or CompactionHeld.

    `messages` is the number of messages to replace, and `tokens` their size. `asks_model` is True when a model writes the
    summary, which takes time; `background` when the conversation continues meanwhile.
    """

    session: str
    strategy: str
    reason: str
    messages: int
    tokens: int
    asks_model: bool
    background: bool = False


@dataclass(frozen=True, slots=True)
class CompactionProgress:
    """The summariser has answered `calls_done` of at least `calls_needed` calls for the summary that is being written."""

    session: str
    calls_done: int
    calls_needed: int


@dataclass(frozen=True, slots=True)
class CompactionHeld:
    """A compaction was due but failed, or would free too little; it is tried again once the window or the history has changed."""

    session: str
    reason: str


@dataclass(frozen=True, slots=True)
class GoalRefreshed:
    """A model derived the goal of the conversation and the current step again; `problem` says why both stayed as they were."""

    session: str
    goal: str
    subgoal: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class OutputsPrepared:
    """Summaries of `messages` tool outputs were stored, to be shown when the window fills. `problems` lists failures."""

    session: str
    messages: int
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptTruncated:
    """The server counted far fewer tokens than were sent, because it cut the prompt silently. Lower `context_window`."""

    session: str
    model: str
    sent_tokens: int
    counted_tokens: int


@dataclass(frozen=True, slots=True)
class RewriteRefused:
    """A compaction subscriber raised, or its rewrite would break the conversation; the original proposal was written."""

    session: str
    reason: str


@dataclass(frozen=True, slots=True)
class SectionInjected:
    """A section with `items` new items was placed in the window or in one request.

    `cut` of these items were shortened to fit, and `left_out` further ones did not fit at all; `hidden_chars` counts the
    characters of both that are not shown.
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
    """A section was not queried, its source failed, or none of its items fit; the turn continues without it."""

    session: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class MemoryLearnt:
    """A model extracted memory items: `added` are new, and `replaced` of these took the place of older ones.

    `dropped` items were not supported by their sources. `problem` says why nothing was kept.
    """

    session: str
    added: int = 0
    replaced: int = 0
    dropped: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class WindowGauge:
    """The fill level of the window, emitted with each request and returned by `gauge()`, in tokens as the model counts them.

    `used_tokens` is the size of the newest request: messages, system prompts, recalled passages, tools. `budget_tokens` is the
    largest size that leaves the reply reserve free. Without passages, which give way, the next compaction is due at
    `compacts_at_tokens`, at the latest when the budget is full, and `until_compaction_tokens` can be added until then, 0 when
    it is due; both are None where compaction is off. Tool outputs may be replaced by excerpts earlier.
    """

    session: str
    used_tokens: int
    budget_tokens: int
    context_window: int
    compacts_at_tokens: int | None
    until_compaction_tokens: int | None = None

    @property
    def room_tokens(self) -> int:
        """Returns the tokens that can still be added to the request."""
        return max(0, self.budget_tokens - self.used_tokens)

    @property
    def forecast(self) -> str:
        """Returns the room that is left and the distance to the next compaction, in words."""
        until = self.until_compaction_tokens
        distance = "compaction is off" if until is None else f"{until:,} until the next compaction"
        return f"{self.room_tokens:,} tokens left, {distance}"

    def __str__(self) -> str:
        share = self.used_tokens / self.budget_tokens
        return f"{self.used_tokens:,} of {self.budget_tokens:,} tokens used ({share:.0%}), {self.forecast}"


@dataclass(frozen=True, slots=True)
class CompactionProposal:
    """A compaction before it is written: `summary` would replace the `covered` messages and `kept` would follow it."""

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
    | IdsRepeated
    | MessagesLeftOut
    | PinsChanged
    | RulesChanged
    | EditUndone
    | MessagesRestored
    | SessionLoaded
    | TurnEnded
    | LossNoticed
    | CompactionStarted
    | CompactionProgress
    | HistoryCompacted
    | CompactionHeld
    | GoalRefreshed
    | OutputsPrepared
    | RewriteRefused
    | SectionInjected
    | SectionSkipped
    | MemoryLearnt
    | WindowGauge
)
Subscriber: TypeAlias = Callable[[Event], None]


class Subscribers:
    """Delivers events to subscribers. An exception of a subscriber is logged and does not break the turn.

    `always` receives each event too; it is none of those that were added, for which alone some events are made.
    """

    def __init__(self, always: Subscriber | None = None) -> None:
        self._always = () if always is None else (always,)
        self._all: list[Subscriber] = []
        self.rewriters: list[Rewriter] = []  # at most one

    def add(self, subscriber: Subscriber) -> Callable[[], None]:
        """Adds a subscriber once, however often it is given; the returned function removes it."""
        if not callable(subscriber):
            raise ConfigError(f"the subscriber is {kind_of(subscriber)}: give a function of one event")
        _refuse_async(subscriber, "the subscriber")
        if subscriber not in self._all:
            self._all.append(subscriber)
        return lambda: self._all.remove(subscriber) if subscriber in self._all else None

    def rewrite(self, rewriter: Rewriter) -> Callable[[], None]:
        """Sets the only compaction subscriber; the returned function removes it. Raises ConfigError when there is another."""
        if not callable(rewriter):
            raise ConfigError(
                f"the compaction subscriber is {kind_of(rewriter)}: give a function of one CompactionProposal"
            )
        _refuse_async(rewriter, "the compaction subscriber")
        if self.rewriters not in ([], [rewriter]):
            raise ConfigError("there already is a compaction subscriber: remove it first, a summary has one author")
        self.rewriters[:] = [rewriter]
        return lambda: self.rewriters.remove(rewriter) if rewriter in self.rewriters else None

    def __bool__(self) -> bool:
        return bool(self._all)

    def emit(self, *events: Event) -> None:
        for event, subscriber in ((event, s) for event in events for s in (*self._always, *self._all)):
            try:
                subscriber(event)
            except Exception as error:  # noqa: BLE001 - logged; a subscriber must not break a turn
                # the exception may quote a message, so its text is logged at level DEBUG only
                _log.error(
                    "a subscriber raised %s on %s (details at level DEBUG)", type(error).__name__, type(event).__name__
                )
                _log.debug("a subscriber raised on %s", type(event).__name__, exc_info=True)


def _refuse_async(function: object, name: str) -> None:
    """Raises ConfigError for a coroutine function, whose coroutine nobody would await."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        raise ConfigError(f"{name} is async, but it is called from synchronous code: give a plain function")
