"""Strategies that nobody names in a policy: they are asked for, and do one thing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ctxfold.compaction.clear_tools import clear_tools
from ctxfold.compaction.plan import Decision, Hold, Plan
from ctxfold.compaction.scoring import bearing
from ctxfold.compaction.strategy import Case, Strategy
from ctxfold.history.cuts import kept, legal_cuts
from ctxfold.history.view import Entry

__all__ = ["BetweenRounds", "Focus", "Newest", "Trim"]

FLOOR = 0.2  # of the score of what bears most on a topic; what is below does not bear on it
MOST = 0.5  # of the older tokens that a topic may keep


@dataclass(frozen=True, slots=True)
class Trim:
    """The oldest messages leave without a word until the view fits `budget_tokens`; whole rounds, never what has to stay."""

    budget_tokens: int
    name: str = "trim"

    def plan(self, case: Case) -> Decision:
        live = case.view.live
        excess = case.view.tokens - self.budget_tokens
        if excess <= 0:
            return Hold(f"{case.view.tokens} of {self.budget_tokens} tokens used: nothing to trim")
        keep = kept(live, pins=case.facts.pins)
        summaries = sum(e.tokens for e in case.view.compressed)
        for cut in sorted(legal_cuts(live)):
            old = tuple(e for e in live[:cut] if e.id not in keep)
            if old and summaries + sum(e.tokens for e in old) >= excess:
                return case.drop(old, f"trim: to {self.budget_tokens} tokens")
        old = tuple(e for e in live[: max(legal_cuts(live))] if e.id not in keep)
        return case.drop(old, f"trim: towards {self.budget_tokens} tokens") if old else Hold("trim: nothing may go")


@dataclass(frozen=True, slots=True)
class Newest:
    """All but the newest `count` messages go to the archive, where recall finds them; summaries stay, and whole tool rounds."""

    count: int
    name: str = "newest"

    def plan(self, case: Case) -> Decision:
        old = case.older_than(self.count)
        if not old:
            return Hold(f"newest: there are no more than {self.count} messages")
        before = case.view.tokens
        after = before - sum(e.tokens for e in old)
        return Plan(self.name, f"newest: {self.count} stay", before, after, covered=old, writer="nobody")


@dataclass(frozen=True, slots=True)
class Focus:
    """A summary takes the place of all that is older than the newest messages, but for exchanges that bear on a topic.

    An exchange is a user message with all that answers it: it stays whole or goes whole. Those that bear most come first, up to
    half of the older tokens. Without a `topic`, it is the goal and the step under way, or the newest question.
    """

    topic: str = ""
    name: str = "focus"

    def plan(self, case: Case) -> Decision:
        exchanges = _exchanges(case.older_than(case.rules.keep_last))
        topic = self.topic or _under_way(case)
        scores = bearing(["\n".join(_said(e) for e in x) for x in exchanges], topic)
        room = MOST * sum(e.tokens for x in exchanges for e in x)
        stay: set[int] = set()
        for i in sorted(range(len(exchanges)), key=lambda i: (-scores[i], -i)):
            room -= sum(e.tokens for e in exchanges[i])
            if scores[i] <= 0 or scores[i] < FLOOR * max(scores) or room < 0:
                break
            stay.add(i)
        gone = [e for i, x in enumerate(exchanges) if i not in stay for e in x]
        reason = f"focus: {len(stay)} of {len(exchanges)} older exchanges bear on it"
        return case.summarize(gone, reason) if gone else Hold(f"{reason}; nothing else is left to summarise")


@dataclass(frozen=True, slots=True)
class BetweenRounds:
    """Above the soft ratio, tool outputs of the turn under way but its newest round's give way to excerpts: once a turn, and
    without a model."""

    name: str = "between_rounds"

    def plan(self, case: Case) -> Decision:
        rules, view, before = case.rules, case.view, case.view.tokens
        _, own = view.parted()
        if not own:
            return Hold("no turn is under way")
        if any(e.shown_seq not in (0, e.seq) for e in own):
            return Hold("outputs of this turn have given way already")
        if case.used_tokens <= rules.soft_ratio * rules.budget_tokens:
            return Hold(f"{case.used_tokens} of {rules.budget_tokens} tokens used: below the soft ratio")
        newest = max((i for i, e in enumerate(own) if e.message.role == "assistant"), default=0)
        keep = kept(own, pins=case.facts.pins) | frozenset(e.id for e in own[newest:])
        plans: list[Plan] = []
        for entries, turn_id in ((own[: len(own) - len(view.turn)], None), (view.turn, case.facts.turn_id)):
            shown, saved = clear_tools(entries, budget_tokens=0, keep=keep, counter=case.counter)
            reason = f"between rounds: {case.used_tokens} of {rules.budget_tokens} tokens used"
            if shown:
                plans.append(Plan("clear_tools", reason, before, before - saved, shown=shown, turn_id=turn_id))
        return min(plans, key=lambda p: p.tokens_after, default=Hold("no output of this turn is worth clearing"))


def _exchanges(entries: Sequence[Entry]) -> list[list[Entry]]:
    found: list[list[Entry]] = []
    for entry in entries:
        if not found or (entry.message.role == "user" and entry.message.kind == "message"):
            found.append([])
        found[-1].append(entry)
    return found


def _said(entry: Entry) -> str:
    message = entry.message
    return "\n".join([message.text, *(f"{c.name} {c.arguments}" for c in message.tool_calls)])


def _under_way(case: Case) -> str:
    facts = case.facts
    step = next((s.text for s in facts.subgoals[-1:] if not s.completed), "")
    newest = (e.message for e in reversed((*case.view.live, *case.view.turn)))
    question = next((m.text for m in newest if m.role == "user" and m.kind == "message"), "")
    return f"{facts.goal} {step}".strip() or question


if TYPE_CHECKING:
    _: Strategy = Trim(1)
    _ = Newest(2)
    _ = Focus()
    _ = BetweenRounds()
