"""Decisions about compaction as values: a `Plan` says what to do and why, a `Skip` why nothing is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ctxfold.history.cuts import kept
from ctxfold.history.records import Subgoal
from ctxfold.history.view import Entry
from ctxfold.messages import Message

Occasion: TypeAlias = Literal["after_turn", "must_fit", "on_demand"]
Writer: TypeAlias = Literal["provider", "model", "extractive", "note", "none"]

_IN_REASONS: Mapping[Occasion, str] = {
    "after_turn": "after the turn",
    "must_fit": "before a request",
    "on_demand": "on demand",
}


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """The facts about a session that a decision needs beyond the view.

    Args:
        pins: ids of pinned messages.
        turns_since_summary: turns closed since the last summary was written.
        turn_id: the open turn that is compacted, None for the session's past.
        overhead_tokens: tokens of the request besides the view (tools, scratch).
        occasion: "after_turn" when a turn has closed (triggers and cooldown apply), "must_fit" when a request has to fit the
            budget, "on_demand" when the user asks.
        idle_s: seconds since the last message, where a turn begins.
        goal: the goal of the conversation, "" when unknown.
        subgoals: the steps towards the goal, oldest first.
        deferred: summaries of tool outputs that are not shown yet, as entries by message id.
        gives_way: ids of messages that need not stay: the newest user message where it has its answer and no request can hold it,
            and the newest system message where the open turn has a newer one.
        saved_tokens: tokens by which the view is shorter than without any compaction.
    """

    pins: Collection[str]
    turns_since_summary: int
    turn_id: str | None = None
    overhead_tokens: int = 0
    occasion: Occasion = "after_turn"
    idle_s: float = 0.0
    goal: str = ""
    subgoals: tuple[Subgoal, ...] = ()
    deferred: Mapping[str, Entry] = field(default_factory=dict[str, Entry])
    gives_way: frozenset[str] = frozenset()
    saved_tokens: int = 0

    def kept(self, entries: Sequence[Entry], *, question: bool = True) -> frozenset[str]:
        """Returns the ids that stay verbatim even left of a cut, as `cuts.kept` does, without those in `gives_way`."""
        return kept(entries, pins=self.pins, question=question) - self.gives_way


@dataclass(frozen=True, slots=True)
class Plan:
    """Describes one epoch change: a summary replaces the `covered` entries, and the `shown` messages replace their originals.

    Args:
        strategy: name of the strategy that made the plan.
        reason: why, with the numbers; stored with the compaction.
        tokens_before: tokens of the view now.
        tokens_after: upper estimate of the tokens of the view afterwards.
        covered: entries that the summary replaces.
        shown: stand-ins for messages, under the same ids.
        turn_id: set when the covered entries belong to an open turn.
        writer: who writes the summary: "provider" (the conversation's service, or else "model"), "model" (with its fallbacks),
            "extractive", "note" (one line) or "none" (the entries leave without a summary).
        text: a summary that exists already.
        rewrite: a function, sync or async, that returns the new message list; the plan becomes the difference.
        within: the covered entries are live messages, and the summary takes their place among them.
    """

    strategy: str
    reason: str
    tokens_before: int
    tokens_after: int
    covered: tuple[Entry, ...] = ()
    shown: tuple[Message, ...] = ()
    turn_id: str | None = None
    writer: Writer = "model"
    text: str | None = None
    rewrite: Callable[[], Sequence[Message] | Awaitable[Sequence[Message]]] | None = None
    within: bool = False

    @property
    def freed_tokens(self) -> int:
        """Returns the number of tokens that the plan frees at least."""
        return self.tokens_before - self.tokens_after


@dataclass(frozen=True, slots=True)
class Skip:
    """The decision not to compact now, with the reason; `exhausted` is True when one is due but would not free enough."""

    reason: str
    exhausted: bool = False


Decision: TypeAlias = Plan | Skip


def reason_for(occasion: Occasion, explanation: str) -> str:
    """Returns the reason of a plan: the occasion and the numbers behind it."""
    return f"{_IN_REASONS[occasion]}: {explanation}"
