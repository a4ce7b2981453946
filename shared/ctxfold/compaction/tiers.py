"""When to make room, and how: nothing, tool outputs (soft), or a summary (hard). Pure; asked before anything is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from ctxfold.compaction.clear_tools import asked_again, clear_tools
from ctxfold.compaction.plan import Decision, Hold, Plan, Writer
from ctxfold.compaction.scoring import pruning_order
from ctxfold.compaction.spans import elsewhere, led, newest_round, older_rounds, rest_of_past, span, summary_limit
from ctxfold.compaction.strategy import MIN_FREE_TOKENS, Case, Strategy
from ctxfold.history.cuts import kept
from ctxfold.history.view import Entry, View
from ctxfold.messages import Message
from ctxfold.trigger import Verdict, counts

__all__ = ["BUILT_IN", "SlidingWindow", "Tiered"]

BACKLOG = 6  # summaries of tool outputs that wait; as many are shown without other pressure, if that frees enough
SURE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Tiered:
    """The cheapest step that frees enough, or the reason for none. Constant time while no trigger fires.

    Old tool outputs go first (`prunes`): to summaries that were written ahead, then to excerpts. Then a span gives way to a summary
    (`covers`) by `writer`.
    """

    name: str = "tiered"
    prunes: bool = True
    excerpts: bool = True
    covers: bool = True
    writer: Writer = "model"

    def plan(self, case: Case) -> Decision:
        facts, rules = case.facts, case.rules
        if facts.mode == "cap" and case.fits:
            return Hold(f"{_share(case)}: the request fits")
        soft, hard = _verdicts(case)
        if facts.mode == "close" and not (hard.due or (soft.due and self.prunes)):
            return self._backlog(case) or Hold(soft.explanation if self.prunes else hard.explanation)
        reason = f"{facts.mode}: {hard.explanation if rules.trigger else _share(case)}"
        if self.prunes and (facts.mode != "forced" or not self.covers):
            plans = [*self._shown(case, reason), *self._clear(case, reason)]
            if facts.mode == "cap" and not self.covers:
                plans += self._clear(case, reason, recent=True)
                plans += self._clear(case, reason, recent=True, last_resort=True)
            pruned = next((p for p in plans if _enough(p, case, alone=not self.covers)), None)
            if pruned is not None:
                return pruned
        if not self.covers and facts.mode != "cap":
            return Hold(f"{reason}: tool outputs would free too little", exhausted=hard.due)
        if facts.mode == "close" and not hard.due:
            return Hold(f"{reason}: tool outputs alone would free too little, {hard.explanation}")
        if facts.mode == "close" and case.fits and facts.turns_since_summary < rules.cooldown_turns:
            return Hold(
                f"{reason}: last summary {facts.turns_since_summary} turns ago, cooldown {rules.cooldown_turns}"
            )
        return self._fitting(case, self._better(case, self._cover(case, reason), reason), reason)

    def _fitting(self, case: Case, decision: Decision, reason: str) -> Decision:
        """The decision; where a request has to fit and does not, what is left of the past goes too, the newest turn last, or of
        what is being answered all rounds but the newest."""
        facts, view = case.facts, case.view
        if facts.mode != "cap" or _sure(decision, case):
            return decision
        past, own = view.parted()
        parts = rest_of_past(past, facts, older=view.compressed, asked=bool(own))
        rounds = self._own_plan(case, older_rounds(own, facts), reason)
        plans = [p for p in (*(self._plan(case, part, reason) for part in parts), rounds) if p is not None]
        if sure := next((p for p in plans if _sure(p, case)), None):
            return sure
        most = decision.tokens_after if isinstance(decision, Plan) else view.tokens
        if most + facts.overhead_tokens <= case.rules.budget_tokens:
            return decision
        return min((p for p in plans if p.tokens_after < most), key=lambda p: p.tokens_after, default=decision)

    def _backlog(self, case: Case) -> Plan | None:
        """Many summaries of tool outputs that wait are pressure of their own, where showing them frees enough for an epoch."""
        if not self.prunes or len(case.facts.deferred) < BACKLOG:
            return None
        reason = f"{case.facts.mode}: {len(case.facts.deferred)} summaries of tool outputs wait"
        return next((p for p in self._shown(case, reason) if _enough(p, case, alone=True)), None)

    def _shown(self, case: Case, reason: str) -> list[Plan]:
        """Summaries of tool outputs that were written ahead, in place of the outputs."""
        if not case.facts.deferred:
            return []
        tokens = case.view.tokens
        found = [(*_ready(scope.entries, case, scope.turn_id), scope.turn_id) for scope in _scopes(case)]
        return [
            Plan("tool_summaries", reason, tokens, tokens - saved, shown=shown, turn_id=turn_id)
            for shown, saved, turn_id in found
            if shown
        ]

    def _better(self, case: Case, decision: Decision, reason: str) -> Decision:
        """The decision; where a request has to fit and it frees next to nothing or too little, all tool outputs but the newest
        round's may give way, however new, if that frees more."""
        if case.facts.mode != "cap" or not self.prunes:
            return decision
        before = case.view.tokens
        after = decision.tokens_after if isinstance(decision, Plan) else before
        if before - after >= MIN_FREE_TOKENS and after + case.facts.overhead_tokens <= case.rules.budget_tokens:
            return decision
        pruned = min(
            self._clear(case, reason, recent=True, last_resort=True), key=lambda p: p.tokens_after, default=None
        )
        return pruned if pruned is not None and pruned.tokens_after < after else decision

    def _clear(self, case: Case, reason: str, *, recent: bool = False, last_resort: bool = False) -> list[Plan]:
        """Old tool outputs of the session; and, when a request must fit, those of the asking turn. With `recent`, new ones too;
        as a `last_resort` those that were asked for again."""
        facts, rules, view = case.facts, case.rules, case.view
        if not self.excerpts and facts.mode != "cap":
            return []
        plans: list[Plan] = []
        for entries, turn_id, newer_tokens in _scopes(case):
            order, wanted, budget = None, None, rules.budget_tokens
            ready, gained = _ready(entries, case, turn_id)
            if rules.pruning_order != "reactive":
                goal = facts.goal or _newest_question(view)
                order = pruning_order(entries, rules.pruning_order, goal=goal, subgoals=facts.subgoals)
                wanted = max(0, _wanted(case) - gained)
                budget //= 2  # half as much is protected: an order decides only where there is more to choose from than is needed
            shown, saved = clear_tools(
                entries,
                budget_tokens=0 if recent else budget,
                keep=_untouched(entries, case, turn_id)
                | (newest_round(entries) if recent else frozenset[str]())
                | {m.id for m in ready},
                counter=case.counter,
                newer_tokens=newer_tokens,
                order=order,
                wanted_tokens=wanted,
                last_resort=last_resort,
            )
            if shown:
                shown, after = (*ready, *shown), view.tokens - saved - gained
                plans.append(Plan("clear_tools", reason, view.tokens, after, shown=shown, turn_id=turn_id))
        return plans

    def _cover(self, case: Case, reason: str) -> Decision:
        """A summary of the session's past; when that frees too little, of the finished rounds of what is being answered."""
        view, facts, rules = case.view, case.facts, case.rules
        past, own = view.parted()
        # where the user has named an amount, the tail is a share of what can be compacted
        amount = rules.trigger is not None and counts(rules.trigger)
        used = case.touchable_tokens + facts.overhead_tokens if amount else case.used_tokens
        session = span(past, facts, rules, older=view.compressed, used_tokens=used)
        plans = [self._plan(case, session, reason)]
        if own:
            plans.append(self._own_plan(case, span(own, facts, rules, older=()), reason))
        if facts.mode == "cap" and own:
            # the newest user message is not among these: the one before it may go where nothing else makes enough room
            session = span(past, facts, rules, older=view.compressed, question=False)
            plans.append(self._plan(case, session, reason))
        needed = case.needed_tokens if facts.mode == "close" else 1
        useful = [p for p in plans if p is not None and p.tokens_before - p.tokens_after >= needed]
        fitting = [p for p in useful if p.tokens_after + facts.overhead_tokens <= rules.budget_tokens]
        if fitting:
            return next((p for p in fitting if _sure(p, case)), fitting[0])
        if useful and facts.mode != "close":
            return min(useful, key=lambda p: p.tokens_after)
        least = f"{needed:,.0f} tokens (min_free_ratio is {rules.min_free_ratio:.0%})" if needed > 1 else "anything"
        return Hold(
            f"{reason}: no span is left whose summary would free {least}; system, pins and the newest messages fill it",
            exhausted=True,
        )

    def _own_plan(self, case: Case, covered: tuple[Entry, ...], reason: str) -> Plan | None:
        """A summary amid what is being answered; of an open turn only its own messages may go."""
        view, turn_id = case.view, case.facts.turn_id
        if not view.turn:
            plan = self._plan(case, covered, reason)
            return plan and replace(plan, within=True)
        others = elsewhere(covered, view)
        plan = self._plan(case, tuple(e for e in covered if e.id not in others), reason)
        return plan and replace(plan, turn_id=turn_id)

    def _plan(self, case: Case, covered: tuple[Entry, ...], reason: str) -> Plan | None:
        if not covered:
            return None
        tokens = sum(e.tokens for e in covered)
        after = case.view.tokens - tokens + summary_limit(tokens, case.rules)
        strategy = "truncate" if self.writer == "note" else "summarize"
        before = case.view.tokens
        return Plan(strategy, reason, before, after, covered=covered, writer=self.writer)


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """The newest `keep_last` messages, cut legally; what is older leaves without a word, and older summaries with it.

    It fires at every turn that exceeds them, or by the policy's trigger. Where even those messages do not fit, as truncate does.
    """

    name: str = "sliding_window"

    def plan(self, case: Case) -> Decision:
        facts, rules = case.facts, case.rules
        if facts.mode == "cap":
            return Tiered(prunes=False, writer="note").plan(case)
        due = case.due() or Verdict(
            len(case.view.live) > rules.keep_last,
            f"{len(case.view.live):,} messages, the newest {rules.keep_last:,} stay",
        )
        if facts.mode == "close" and not due.due:
            return Hold(due.explanation)
        old = led(case.older_than(rules.keep_last), case.view, facts.pins)
        return case.drop(old, f"{facts.mode}: {due.explanation}") if old else Hold(f"{due.explanation}: none may go")


BUILT_IN: Mapping[str, Strategy] = {
    s.name: s
    for s in (
        Tiered(),
        Tiered("summarize", prunes=False),
        Tiered("truncate", prunes=False, writer="note"),
        Tiered("clear_tools", covers=False),
        Tiered("tool_summaries", excerpts=False, covers=False),
        SlidingWindow(),
    )
}


def _newest_question(view: View) -> str:
    newest = (e.message for e in chain(reversed(view.turn), reversed(view.live)) if e.message.role == "user")
    return next((m.text for m in newest if m.kind == "message"), "")


class _Scope(NamedTuple):
    """Where tool outputs may give way at once; `newer_tokens` of the conversation come after."""

    entries: Sequence[Entry]
    turn_id: str | None
    newer_tokens: int


def _scopes(case: Case) -> list[_Scope]:
    """The live conversation; when a request must fit, what was before it and what is being answered."""
    if case.facts.mode != "cap":
        return [_Scope(case.view.live, None, 0)]
    past, own = case.view.parted()
    return [
        _Scope(past, None, sum(e.tokens for e in own)),
        _Scope(own, case.facts.turn_id if case.view.turn else None, 0),
    ]


def _untouched(entries: Sequence[Entry], case: Case, turn_id: str | None) -> frozenset[str]:
    """Ids of what stays as it is; where an open turn is compacted, all that is not its own."""
    return kept(entries, pins=case.facts.pins) | (elsewhere(entries, case.view) if turn_id else frozenset[str]())


def _ready(entries: Sequence[Entry], case: Case, turn_id: str | None) -> tuple[tuple[Message, ...], int]:
    """Summaries that may stand in for tool outputs now, and the tokens that they save."""
    waiting = case.facts.deferred
    if not waiting:
        return (), 0
    keep = _untouched(entries, case, turn_id)
    if case.facts.mode != "cap" and any(e.shown_seq for e in entries):
        keep |= asked_again(entries)
    found = [
        (e, waiting[e.id])
        for e in entries
        if e.id in waiting and e.id not in keep and not e.shown_seq and waiting[e.id].seq == e.seq
    ]
    return tuple(d.message for _, d in found), sum(e.tokens - d.tokens for e, d in found)


def _sure(decision: Decision, case: Case) -> bool:
    """Whether it makes the request fit: a span of a few words may have no summary that is shorter."""
    if not isinstance(decision, Plan) or decision.tokens_after + case.facts.overhead_tokens > case.rules.budget_tokens:
        return False
    return bool(decision.shown) or decision.tokens_before - decision.tokens_after >= SURE_TOKENS


def _share(case: Case) -> str:
    used, budget = case.used_tokens, case.rules.budget_tokens
    return f"{used} of {budget} tokens used ({used / budget:.0%})"


def _verdicts(case: Case) -> tuple[Verdict, Verdict]:
    """Whether tool outputs may give way, and whether a summary is due: by the policy's trigger, else by its ratios."""
    rules = case.rules
    if case.facts.mode != "close":
        always = Verdict(True, _share(case))
        return always, always
    if (due := case.due()) is not None:
        return due, due
    ratio = case.used_tokens / rules.budget_tokens
    soft = Verdict(ratio > rules.soft_ratio, f"{_share(case)}, soft trigger at {rules.soft_ratio:.0%}")
    return soft, Verdict(ratio > rules.hard_ratio, f"hard trigger at {rules.hard_ratio:.0%}")


def _target(case: Case) -> float:
    """Half-way between the triggers: the newest half of the budget is never pruned, so the soft one itself is seldom reached."""
    rules = case.rules
    if case.facts.mode == "close" and rules.trigger is not None:
        return case.used_tokens - case.needed_tokens
    return (rules.soft_ratio + max(rules.soft_ratio, rules.hard_ratio)) / 2 * rules.budget_tokens


def _wanted(case: Case) -> int:
    """What an order other than oldest first saves before it stops."""
    return int(max(case.needed_tokens, case.used_tokens - _target(case) + case.needed_tokens))


def _enough(plan: Plan, case: Case, *, alone: bool) -> bool:
    """Whether pruning is worth an epoch; unless it is `alone`, whether it also puts the next step off. A request has to fit."""
    freed, used = plan.tokens_before - plan.tokens_after, plan.tokens_after + case.facts.overhead_tokens
    if case.facts.mode == "forced":
        return freed > 0
    most = case.rules.budget_tokens if alone and case.facts.mode == "cap" else _target(case)
    return freed >= case.needed_tokens and (used <= most or (alone and case.facts.mode == "close"))


if TYPE_CHECKING:
    _: Strategy = Tiered()
    _ = SlidingWindow()
