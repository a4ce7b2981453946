"""Strategies that nobody names in a policy: they are asked for, and do one thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ctxfold.compaction.clear_tools import clear_tools
from ctxfold.compaction.plan import Decision, Hold, Plan
from ctxfold.compaction.strategy import Case, Strategy
from ctxfold.history.cuts import kept, legal_cuts

__all__ = ["BetweenRounds", "Newest", "Trim"]


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


if TYPE_CHECKING:
    _: Strategy = Trim(1)
    _ = Newest(2)
    _ = BetweenRounds()
