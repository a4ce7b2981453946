"""The built-in strategies: `Tiered` goes through the steps in order of cost; the others follow one simple rule each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ctxfold.compaction.extract import flat
from ctxfold.compaction.goal import relevance
from ctxfold.compaction.steps import (
    ClearToolOutputs,
    ShortenArguments,
    ShowToolSummaries,
    Step,
    SummarizeSpan,
    Thresholds,
    newest_round,
    newest_user_text,
    sign_bound,
    with_their_answers,
)
from ctxfold.compaction.strategy import MIN_FREE_TOKENS, CompactionInput, Decision, Plan, Skip, Strategy, reason_for
from ctxfold.compaction.tool_outputs import Clearing, clear_tools, outputs_of
from ctxfold.history.cuts import legal_cuts
from ctxfold.history.view import Entry
from ctxfold.messages import is_question
from ctxfold.policy.triggers import Verdict

WAITING_SUMMARIES = 6  # of tool outputs: as many are shown without other pressure, if that frees enough
FOCUS_FLOOR = 0.2  # of the score of the most relevant exchange; less relevant ones are summarised
FOCUS_SHARE = 0.5  # of the older tokens that a topic may keep
BY_MODEL = SummarizeSpan()


@dataclass(frozen=True, slots=True)
class Tiered:
    """Takes the cheapest step that frees enough: first those that prune tool outputs, then a summary of a span.

    Without `summary` the strategy writes one only where a request has to fit. Constant time while no trigger fires.
    """

    name: str = "tiered"
    pruning: tuple[Step, ...] = (ShowToolSummaries(), ClearToolOutputs(gently=True), ClearToolOutputs())
    summary: SummarizeSpan | None = BY_MODEL

    @property
    def shortens_arguments(self) -> bool:
        """Tells whether large arguments of calls may give way before anything else is due."""
        return any(isinstance(step, ClearToolOutputs) for step in self.pruning)

    def plan(self, case: CompactionInput) -> Decision:
        limits = Thresholds.of(case)
        match case.facts.occasion:
            case "after_turn":
                return self._after_turn(case, limits)
            case "must_fit":
                return self._to_fit(case, limits)
            case "on_demand":
                return self._on_demand(case, limits)

    def _after_turn(self, case: CompactionInput, limits: Thresholds) -> Decision:
        """Prunes when the soft trigger fires, summarises when the hard one does; both have to free enough for an epoch."""
        facts, soft, hard = case.facts, limits.soft, limits.hard
        if not hard.due and not (soft.due and self.pruning):
            return self._show_waiting(case, limits) or Skip((soft if self.pruning else hard).explanation)
        # outputs give way step by step: all at once only where a summary would follow
        pruning = self.pruning if hard.due else [s for s in self.pruning if s != ClearToolOutputs()]
        for plan in _plans(pruning, case, limits):
            lasts = self.summary is None or plan.tokens_after <= limits.target_tokens
            if plan.freed_tokens >= limits.min_freed_tokens and lasts:
                return plan
        if self.summary is None:
            return Skip(f"{limits.reason}: tool outputs would free too little", exhausted=hard.due)
        if not hard.due:
            return Skip(f"{limits.reason}: tool outputs alone would free too little, {hard.explanation}")
        turns, cooldown = facts.turns_since_summary, case.rules.cooldown_turns
        if case.fits and turns < cooldown:
            return Skip(f"{limits.reason}: last summary {turns} turns ago, cooldown {cooldown}")
        return self.summary.choose(case, limits)

    def _show_waiting(self, case: CompactionInput, limits: Thresholds) -> Plan | None:
        """Shows the tool summaries when many of them wait, where that alone frees enough for an epoch."""
        waiting = len(case.facts.deferred)
        if not self.pruning or waiting < WAITING_SUMMARIES:
            return None
        reason = reason_for(case.facts.occasion, f"{waiting} summaries of tool outputs wait")
        plans = ShowToolSummaries().plans(case, replace(limits, reason=reason))
        return next((p for p in plans if p.freed_tokens >= limits.min_freed_tokens), None)

    def _on_demand(self, case: CompactionInput, limits: Thresholds) -> Decision:
        """Takes the last step at once, whatever it frees."""
        if self.summary is not None:
            return self.summary.choose(case, limits)
        pruned = next((p for p in _plans(self.pruning, case, limits) if p.freed_tokens > 0), None)
        return pruned or Skip(f"{limits.reason}: tool outputs would free too little", exhausted=True)

    def _to_fit(self, case: CompactionInput, limits: Thresholds) -> Decision:
        """Takes the first step that makes the request fit; in the end whatever frees most."""
        most = limits.target_tokens if self.summary is not None else limits.budget_tokens
        for plan in _plans(self._pruning_to_fit(), case, limits):
            if plan.freed_tokens >= limits.min_freed_tokens and plan.tokens_after <= most:
                return plan
        summary = self.summary or BY_MODEL
        decision = summary.choose(case, limits)
        frees_little = not isinstance(decision, Plan) or decision.freed_tokens < MIN_FREE_TOKENS
        if self.pruning and (frees_little or not limits.fits(decision, case.view)):
            everything = ClearToolOutputs(spare_recent=False, spare_repeated=False).plans(case, limits)
            decision = _smallest(everything, decision, case)
        if limits.certain(decision):
            return decision
        wider = tuple(summary.wider_plans(case, limits))
        if certain := next((p for p in wider if limits.certain(p)), None):
            return certain
        return decision if limits.fits(decision, case.view) else _smallest(wider, decision, case)

    def _pruning_to_fit(self) -> tuple[Step, ...]:
        """Returns the pruning steps for a request that has to fit: without a summary to follow, recent outputs may go too."""
        if not self.pruning:
            return ()
        steps: tuple[Step, ...] = (ShowToolSummaries(), ClearToolOutputs(gently=True), ClearToolOutputs())
        if self.summary is None:
            steps += (ClearToolOutputs(spare_recent=False), ClearToolOutputs(spare_recent=False, spare_repeated=False))
        return steps


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Keeps the newest `keep_last` messages, cut legally; older ones leave without a summary, and older summaries with them.

    It compacts after every turn that exceeds them, or by the policy's trigger. Where even those messages do not fit, it
    truncates.
    """

    name: str = "sliding_window"

    def plan(self, case: CompactionInput) -> Decision:
        facts, rules = case.facts, case.rules
        if facts.occasion == "must_fit":
            return _TRUNCATE.plan(case)
        due = case.due() or Verdict(
            len(case.view.live) > rules.keep_last,
            f"{len(case.view.live):,} messages, the newest {rules.keep_last:,} stay",
        )
        if facts.occasion == "after_turn" and not due.due:
            return Skip(due.explanation)
        older = with_their_answers(case.older_than(rules.keep_last), case.view, facts.pins)
        if not older:
            return Skip(f"{due.explanation}: none may go")
        return case.drop(older, reason_for(facts.occasion, due.explanation))


@dataclass(frozen=True, slots=True)
class Trim:
    """Drops the oldest messages, in whole rounds, until the view fits `budget_tokens`."""

    budget_tokens: int
    name: str = "trim"

    def plan(self, case: CompactionInput) -> Decision:
        live = case.view.live
        excess = case.view.tokens - self.budget_tokens
        if excess <= 0:
            return Skip(f"{case.view.tokens} of {self.budget_tokens} tokens used: nothing to trim")
        keep = case.facts.kept(live)
        summaries = sum(e.tokens for e in case.view.compressed)
        older: tuple[Entry, ...] = ()
        for cut in sorted(legal_cuts(live)):
            older = tuple(e for e in live[:cut] if e.id not in keep)
            if older and summaries + sum(e.tokens for e in older) >= excess:
                return case.drop(older, f"trim: to {self.budget_tokens} tokens")
        return case.drop(older, f"trim: towards {self.budget_tokens} tokens") if older else Skip("trim: nothing may go")


@dataclass(frozen=True, slots=True)
class Newest:
    """Keeps the newest `count` messages in whole tool rounds, and the summaries; recall finds the others in the archive."""

    count: int
    name: str = "newest"

    def plan(self, case: CompactionInput) -> Decision:
        older = case.older_than(self.count)
        if not older:
            return Skip(f"newest: there are no more than {self.count} messages")
        before = case.view.tokens
        after = before - sum(e.tokens for e in older)
        return Plan(self.name, f"newest: {self.count} stay", before, after, covered=older, writer="none")


@dataclass(frozen=True, slots=True)
class Focus:
    """Summarises everything older than the newest messages, except for exchanges that are relevant to a topic.

    An exchange is a user message with all that answers it; it is kept whole or summarised whole. The most relevant ones are kept,
    up to half of the older tokens. Without a `topic`, the goal and the current step count, or else the newest question.
    """

    topic: str = ""
    name: str = "focus"

    def plan(self, case: CompactionInput) -> Decision:
        exchanges = _exchanges(case.older_than(case.rules.keep_last))
        scores = relevance(["\n".join(flat(e.message) for e in x) for x in exchanges], self.topic or _topic(case))
        left_tokens = FOCUS_SHARE * sum(e.tokens for x in exchanges for e in x)
        relevant: set[int] = set()
        for i in sorted(range(len(exchanges)), key=lambda i: (-scores[i], -i)):
            left_tokens -= sum(e.tokens for e in exchanges[i])
            if scores[i] <= 0 or scores[i] < FOCUS_FLOOR * max(scores) or left_tokens < 0:
                break
            relevant.add(i)
        others = [e for i, x in enumerate(exchanges) if i not in relevant for e in x]
        reason = f"focus: {len(relevant)} of {len(exchanges)} older exchanges bear on it"
        return case.summarize(others, reason) if others else Skip(f"{reason}; nothing else is left to summarise")


@dataclass(frozen=True, slots=True)
class BetweenRounds:
    """Above the soft ratio, replaces tool outputs of the turn under way with excerpts, except those of its newest round.

    Once a turn, and without a model.
    """

    name: str = "between_rounds"

    def plan(self, case: CompactionInput) -> Decision:
        rules, view, before = case.rules, case.view, case.view.tokens
        _, own = view.parted()
        if not own:
            return Skip("no turn is under way")
        if any(e.shown_seq not in (0, e.seq) for e in own if e.message.role == "tool"):
            return Skip("outputs of this turn have given way already")
        if case.used_tokens <= rules.soft_ratio * rules.budget_tokens:
            return Skip(f"{case.used_tokens} of {rules.budget_tokens} tokens used: below the soft ratio")
        unseen = frozenset(e.id for e in own[newest_round(own) :])
        keep = case.facts.kept(own) | unseen | outputs_of(rules.exclude_tools, own)
        reason = f"between rounds: {case.used_tokens} of {rules.budget_tokens} tokens used"
        plans: list[Plan] = []
        for entries, turn_id in ((own[: len(own) - len(view.turn)], None), (view.turn, case.facts.turn_id)):
            bound = Clearing(rules, bound_ids=sign_bound(entries, view))
            shown, saved = clear_tools(entries, budget_tokens=0, keep=keep, counter=case.counter, clearing=bound)
            if shown:
                plans.append(Plan("clear_tools", reason, before, before - saved, shown=shown, turn_id=turn_id))
        return min(plans, key=lambda p: p.tokens_after, default=Skip("no output of this turn is worth clearing"))


@dataclass(frozen=True, slots=True)
class EarlyArguments:
    """Shortens large arguments of calls where they take a quarter of the budget, whatever else that holds."""

    name: str = "early_arguments"

    def plan(self, case: CompactionInput) -> Decision:
        plan = next(ShortenArguments().plans(case, Thresholds.of(case)), None)
        return plan or Skip("arguments of earlier calls take little room")


_TRUNCATE = Tiered("truncate", pruning=(), summary=SummarizeSpan("note"))

BUILT_IN: Mapping[str, Strategy] = {
    s.name: s
    for s in (
        Tiered(),
        Tiered("summarize", pruning=()),
        _TRUNCATE,
        Tiered("provider", pruning=(), summary=SummarizeSpan("provider")),
        Tiered("clear_tools", summary=None),
        Tiered("tool_summaries", pruning=(ShowToolSummaries(),), summary=None),
        SlidingWindow(),
    )
}


# built-in strategies that do nothing after a turn that is below the ratios of the policy
BY_RATIO = frozenset(name for name, strategy in BUILT_IN.items() if isinstance(strategy, Tiered))


def _plans(steps: Sequence[Step], case: CompactionInput, limits: Thresholds) -> Iterator[Plan]:
    for step in steps:
        yield from step.plans(case, limits)


def _smallest(plans: Iterator[Plan] | Sequence[Plan], decision: Decision, case: CompactionInput) -> Decision:
    """Returns the plan that leaves the fewest tokens; the decision where none leaves fewer than that."""
    after = decision.tokens_after if isinstance(decision, Plan) else case.view.tokens
    return min((p for p in plans if p.tokens_after < after), key=lambda p: p.tokens_after, default=decision)


def _exchanges(entries: Sequence[Entry]) -> list[list[Entry]]:
    exchanges: list[list[Entry]] = []
    for entry in entries:
        if not exchanges or is_question(entry.message):
            exchanges.append([])
        exchanges[-1].append(entry)
    return exchanges


def _topic(case: CompactionInput) -> str:
    facts = case.facts
    step = next((s.text for s in facts.subgoals[-1:]), "")
    return f"{facts.goal} {step}".strip() or newest_user_text(case.view)


if TYPE_CHECKING:
    _: Strategy = Tiered()
    _ = SlidingWindow()
    _ = Trim(1)
    _ = Newest(2)
    _ = Focus()
    _ = BetweenRounds()
    _ = EarlyArguments()
