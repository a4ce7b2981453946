"""Steps by which a strategy makes room, cheapest first: show tool summaries, clear tool outputs, summarize a span.

Each step proposes plans in order of preference; `Thresholds` says which of them is worth a break of the prefix. All of it is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from ctxfold.compaction.goal import pruning_order
from ctxfold.compaction.strategy import (
    HEADING_TOKENS,
    CompactionInput,
    Decision,
    Plan,
    SessionFacts,
    Skip,
    Writer,
    reason_for,
)
from ctxfold.compaction.tool_outputs import Clearing, clear_tools, outputs_of, repeated_outputs, shortened_calls, signed
from ctxfold.history.cuts import kept, legal_cuts, question_to_keep, unasked
from ctxfold.history.view import Entry, View
from ctxfold.messages import Message
from ctxfold.policy.settings import Policy
from ctxfold.policy.triggers import Verdict, counts


def choose_cut(
    entries: Sequence[Entry],
    rules: Policy,
    *,
    keep_more: bool = True,
    overhead_tokens: int = 0,
    budget_tokens: int | None = None,
) -> int:
    """Returns the cut that keeps the newest `keep_last` messages where they fit half of the budget without the overhead.

    With `keep_more`, it also keeps whatever else fits `tail_ratio` of that budget. `budget_tokens` replaces the policy's budget
    where a trigger fires long before that is used.
    """
    budget = max(0, (rules.budget_tokens if budget_tokens is None else budget_tokens) - overhead_tokens)
    cuts = sorted(legal_cuts(entries))
    after = [0] * (len(entries) + 1)
    for index in range(len(entries) - 1, -1, -1):
        after[index] = after[index + 1] + entries[index].tokens
    keeps_last = max((c for c in cuts if c <= len(entries) - rules.keep_last), default=0)
    target = rules.tail_ratio * budget
    if keep_more and after[keeps_last] <= target:
        return min(c for c in cuts if after[c] <= target)
    half = budget / 2
    if after[keeps_last] <= half:
        return keeps_last
    return min((c for c in cuts if after[c] <= half), default=0)


def summary_limit(source_tokens: int, rules: Policy) -> int:
    """Returns the most tokens that a summary may take: always fewer than its source has."""
    return min(rules.summary_tokens, source_tokens // 2)


def span_to_summarize(
    entries: Sequence[Entry],
    facts: SessionFacts,
    rules: Policy,
    *,
    older: Sequence[Entry],
    question: bool = True,
    used_tokens: int | None = None,
) -> tuple[Entry, ...]:
    """Returns the summaries in `older` and the entries before the cut that may be covered; empty when there are none.

    Without `question` the newest user message may be covered too. `used_tokens` is the size to which a trigger let the request
    grow.
    """
    keep = facts.kept(entries, question=question)
    early = facts.occasion == "after_turn" and rules.trigger is not None and used_tokens is not None
    cut = choose_cut(
        entries,
        rules,
        keep_more=facts.occasion != "on_demand",
        overhead_tokens=facts.overhead_tokens,
        budget_tokens=min(rules.budget_tokens, used_tokens or 0) if early else None,
    )
    covered = [e for i, e in enumerate(entries) if (i < cut or e.message.kind == "section") and e.id not in keep]
    # a summary from a time with a larger window is shortened even when nothing else may be covered
    outgrown = sum(e.tokens for e in older) > rules.summary_tokens + HEADING_TOKENS
    return (*older, *covered) if covered or outgrown else ()


def widest_spans(
    entries: Sequence[Entry], facts: SessionFacts, *, older: Sequence[Entry], has_question: bool
) -> Iterator[tuple[Entry, ...]]:
    """Yields everything that may be covered, without the newest turn, then with it.

    `has_question` says that the newest question is elsewhere, so that all turns of the entries are older ones.
    """
    keep = facts.kept(entries, question=not has_question)
    cuts = legal_cuts(entries)
    questions = (i for i in range(len(entries) - 1, -1, -1) if entries[i].message.role == "user")
    for most in (len(entries) if has_question else next(questions, 0), len(entries)):
        covered = [e for e in entries[: max(c for c in cuts if c <= most)] if e.id not in keep]
        if covered or older:
            yield (*older, *covered)


def rounds_before_newest(own: Sequence[Entry], facts: SessionFacts) -> tuple[Entry, ...]:
    """Returns the entries of a turn that may be covered, without its newest round, which the model has not seen."""
    newest = newest_round(own)
    keep = facts.kept(own)
    cut = max((c for c in legal_cuts(own) if c <= newest), default=0)
    return tuple(e for e in own[:cut] if e.id not in keep)


def with_their_answers(removed: Sequence[Entry], view: View, pins: Collection[str]) -> tuple[Entry, ...]:
    """Returns the entries to remove without a summary such that a user message leads the remaining ones.

    The question that the first remaining message answers stays; where it was removed before, its answers are removed too.
    """
    removed_ids = {e.id for e in removed}
    question_id = question_to_keep(view.live, removed_ids)
    if question_id is not None:
        return tuple(e for e in removed if e.id != question_id)
    return (*removed, *orphaned_answers(removed_ids, view, pins))


def orphaned_answers(removed_ids: Collection[str], view: View, pins: Collection[str]) -> tuple[Entry, ...]:
    """Returns the removable entries of turns whose question is removed with the ids, or was removed before."""
    keep = kept(view.live, pins=pins)
    return tuple(e for e in unasked(view.live, removed_ids, after=view.turn) if e.id not in keep)


def ids_outside_turn(entries: Sequence[Entry], view: View) -> frozenset[str]:
    """Returns the ids of the entries that are not the open turn's own."""
    return frozenset(e.id for e in entries) - {e.id for e in view.turn}


def newest_results(entries: Sequence[Entry]) -> frozenset[str]:
    """Returns the ids of the tool results after the last assistant message, which the model has not seen."""
    return frozenset(e.id for e in entries[newest_round(entries) :] if e.message.role == "tool")


def newest_round(entries: Sequence[Entry]) -> int:
    """Returns the index of the newest assistant message, with which the newest round begins; 0 where there is none."""
    return max((i for i, e in enumerate(entries) if e.message.role == "assistant"), default=0)


ARGUMENT_RATIO = 0.25  # of the budget, which arguments of earlier calls may take
CERTAIN_TOKENS = 64  # freed by a summary: a span of a few words may have none that is shorter


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The conditions under which steps are due, and how much a plan has to free.

    Args:
        soft: the verdict on replacing tool outputs.
        hard: the verdict on writing a summary.
        reason: the reason for a plan.
        min_freed_tokens: the least that an epoch has to free.
        target_tokens: most tokens of the view at which the next, dearer step is put off.
        budget_tokens: most tokens of the view with which the request fits.
    """

    soft: Verdict
    hard: Verdict
    reason: str
    min_freed_tokens: float
    target_tokens: float
    budget_tokens: int

    @classmethod
    def of(cls, case: CompactionInput) -> Thresholds:
        rules, after_turn, overhead = case.rules, case.facts.occasion == "after_turn", case.facts.overhead_tokens
        used = f"{case.used_tokens} of {rules.budget_tokens} tokens used ({case.used_tokens / rules.budget_tokens:.0%})"
        triggered = case.due() if after_turn else Verdict(True, used)
        if triggered is not None:
            soft = hard = triggered
        else:
            ratio = case.used_tokens / rules.budget_tokens
            soft = Verdict(ratio > rules.soft_ratio, f"{used}, soft trigger at {rules.soft_ratio:.0%}")
            hard = Verdict(ratio > rules.hard_ratio, f"hard trigger at {rules.hard_ratio:.0%}")
        needed = case.needed_tokens
        if after_turn and rules.trigger is not None:
            target = case.used_tokens - needed
        else:
            # half-way between the triggers: the newest half of the budget is never pruned, so the soft one is seldom reached
            target = (rules.soft_ratio + max(rules.soft_ratio, rules.hard_ratio)) / 2 * rules.budget_tokens
        return cls(
            soft,
            hard,
            reason_for(case.facts.occasion, hard.explanation if rules.trigger else used),
            needed,
            target - overhead,
            rules.budget_tokens - overhead,
        )

    def fits(self, decision: Decision, view: View) -> bool:
        """Tells whether the request fits afterwards, by the plan's own estimate."""
        after = decision.tokens_after if isinstance(decision, Plan) else view.tokens
        return after <= self.budget_tokens

    def certain(self, decision: Decision) -> bool:
        """Tells whether the plan makes the request fit even when its summary turns out as long as allowed."""
        if not isinstance(decision, Plan) or decision.tokens_after > self.budget_tokens:
            return False
        return bool(decision.shown) or decision.freed_tokens >= CERTAIN_TOKENS


class Step(Protocol):
    """A way of making room."""

    def plans(self, case: CompactionInput, limits: Thresholds) -> Iterator[Plan]:
        """Yields plans, the preferred one first; nothing where this step cannot help."""
        ...


@dataclass(frozen=True, slots=True)
class ShowToolSummaries:
    """Shows summaries of tool outputs that were written ahead, in place of the outputs."""

    def plans(self, case: CompactionInput, limits: Thresholds) -> Iterator[Plan]:
        for scope in _scopes(case):
            shown, saved = _deferred_summaries(scope, case)
            if shown:
                tokens = case.view.tokens
                yield Plan("tool_summaries", limits.reason, tokens, tokens - saved, shown=shown, turn_id=scope.turn_id)


@dataclass(frozen=True, slots=True)
class ClearToolOutputs:
    """Replaces tool outputs and large arguments of calls with excerpts: of the past and, when a request must fit, of its turn.

    With `gently` an output keeps a quarter of what is shown of it, and is cut further at a later epoch. Without `spare_recent`
    new outputs are cut too, except those of the newest round. Without `spare_repeated` so are outputs of calls that were made
    again after their first output had been cut.
    """

    gently: bool = False
    spare_recent: bool = True
    spare_repeated: bool = True

    def plans(self, case: CompactionInput, limits: Thresholds) -> Iterator[Plan]:
        """Yields a plan for the outputs that give way first by a rule of the policy, where there are any, then one for all."""
        first_tools = {rule.tool for rule in case.rules.tool_rules if rule.clear_first}
        for scope in _scopes(case):
            if all(e.message.role != "tool" for e in scope.entries):
                continue
            first_ids = outputs_of(first_tools, scope.entries) - newest_results(scope.entries)
            for first_only in (True, False) if first_ids else (False,):
                plan = self._plan(case, limits, scope, first_ids, first_only=first_only)
                if plan is not None:
                    yield plan

    def _plan(
        self,
        case: CompactionInput,
        limits: Thresholds,
        scope: _Scope,
        first_ids: frozenset[str],
        *,
        first_only: bool,
    ) -> Plan | None:
        rules, view, entries = case.rules, case.view, scope.entries
        summaries, gained = ((), 0) if first_only else _deferred_summaries(scope, case)
        order, enough, budget = None, None, rules.budget_tokens
        if rules.pruning_order != "reactive":
            goal = case.facts.goal or newest_user_text(view)
            order = pruning_order(entries, rules.pruning_order, goal=goal, subgoals=case.facts.subgoals)
            excess = view.tokens - limits.target_tokens
            enough = max(0, int(max(limits.min_freed_tokens, excess + limits.min_freed_tokens)) - gained)
            budget //= 2  # an order decides only where there is more to choose from than is needed
        keep = _unchangeable(scope, case) | {m.id for m in summaries}
        if not self.spare_recent:
            keep |= newest_results(entries)
        excerpts, saved = clear_tools(
            entries,
            budget_tokens=budget if self.spare_recent else 0,
            keep=keep,
            counter=case.counter,
            newer_tokens=scope.newer_tokens,
            clearing=Clearing(
                rules,
                order=order,
                enough_tokens=enough,
                gently=self.gently,
                last_resort=not self.spare_repeated,
                question=newest_user_text(view),
                bound_ids=sign_bound(entries, view),
                first_ids=first_ids,
                first_only=first_only,
            ),
        )
        if not excerpts:
            return None
        shown, after = (*summaries, *excerpts), view.tokens - saved - gained
        return Plan("clear_tools", limits.reason, view.tokens, after, shown=shown, turn_id=scope.turn_id)


@dataclass(frozen=True, slots=True)
class ShortenArguments:
    """Replaces large arguments of calls with excerpts, all but the newest round's, where these take a quarter of the budget.

    The tools have been given them, so they are worth less than anything else that takes as much room. A quarter is some four times
    what is sent anew after the break of the prefix.
    """

    def plans(self, case: CompactionInput, limits: Thresholds) -> Iterator[Plan]:
        view = case.view
        needed = max(limits.min_freed_tokens, ARGUMENT_RATIO * case.rules.budget_tokens)
        reason = reason_for(case.facts.occasion, "arguments of earlier calls")
        plans: list[Plan] = []
        newest = _newest_caller(view)
        for scope in (_Scope(view.live, None, 0), _Scope(view.turn, case.facts.turn_id, 0)):
            keep = _unchangeable(scope, case) | sign_bound(scope.entries, view) | {newest}
            shown, saved = shortened_calls(scope.entries, keep=keep, counter=case.counter, rules=case.rules)
            if saved >= needed:
                before = view.tokens
                text = f"{reason} take {saved} of {case.rules.budget_tokens} tokens"
                plans.append(Plan("clear_tools", text, before, before - saved, shown=shown, turn_id=scope.turn_id))
        yield from sorted(plans, key=lambda p: p.tokens_after)


@dataclass(frozen=True, slots=True)
class SummarizeSpan:
    """Replaces a span with a summary by `writer`: of the past, of rounds of the turn being answered, or of both."""

    writer: Writer = "model"

    def plans(self, case: CompactionInput, limits: Thresholds) -> Iterator[Plan]:
        """Yields a plan for the past, then those for the finished rounds of the turn being answered.

        When a request must fit, a last one covers the past with the user message that was the newest before this turn.
        """
        view, facts, rules = case.view, case.facts, case.rules
        past, own = view.parted()
        # where the user has named an amount, the tail is a share of what can be compacted
        amount = rules.trigger is not None and counts(rules.trigger)
        used = case.touchable_tokens + facts.overhead_tokens if amount else case.used_tokens
        spans = [
            self._plan(case, limits, span_to_summarize(past, facts, rules, older=view.compressed, used_tokens=used))
        ]
        if own:
            within = span_to_summarize(own, facts, rules, older=())
            if outputs_of(rules.exclude_tools, own) & newest_results(own):
                # other outputs of the newest round leave room for it when they arrive; what is never shortened may not
                older_ids = {e.id for e in rounds_before_newest(own, facts)}
                within = tuple(e for e in within if e.id in older_ids)
            spans += self._plans_within(case, limits, within)
        if own and facts.occasion == "must_fit":
            covered = span_to_summarize(past, facts, rules, older=view.compressed, question=False)
            spans.append(self._plan(case, limits, covered))
        yield from (plan for plan in spans if plan is not None)

    def wider_plans(self, case: CompactionInput, limits: Thresholds) -> Iterator[Plan]:
        """Yields plans that leave out `keep_last`: the past without and with its newest turn, then all rounds but the newest."""
        past, own = case.view.parted()
        spans = widest_spans(past, case.facts, older=case.view.compressed, has_question=bool(own))
        plans = [self._plan(case, limits, covered) for covered in spans]
        plans += self._plans_within(case, limits, rounds_before_newest(own, case.facts))
        yield from (plan for plan in plans if plan is not None)

    def choose(self, case: CompactionInput, limits: Thresholds) -> Decision:
        """Returns the first plan that frees enough and makes the request fit.

        Where none does, the one that frees most; after a turn, a skip.
        """
        after_turn = case.facts.occasion == "after_turn"
        needed = limits.min_freed_tokens if after_turn else 1
        useful = [p for p in self.plans(case, limits) if p.freed_tokens >= needed]
        fitting = [p for p in useful if limits.fits(p, case.view)]
        if fitting:
            return next((p for p in fitting if limits.certain(p)), fitting[0])
        if useful and not after_turn:
            return min(useful, key=lambda p: p.tokens_after)
        ratio = case.rules.min_free_ratio
        least = f"{needed:,.0f} tokens (min_free_ratio is {ratio:.0%})" if needed > 1 else "anything"
        return Skip(
            f"{limits.reason}: no span is left whose summary would free {least}; "
            "system, pins and the newest messages fill it",
            exhausted=True,
        )

    def _plans_within(
        self, case: CompactionInput, limits: Thresholds, covered: tuple[Entry, ...]
    ) -> Iterator[Plan | None]:
        """Yields a plan for a span of the turn being answered: for what the conversation has of it, and for its open turn.

        A turn is in both parts where it was given up while a call waited, and went on when the result came.
        """
        outside = ids_outside_turn(covered, case.view)
        plan = self._plan(case, limits, tuple(e for e in covered if e.id in outside))
        yield plan and replace(plan, within=True)
        plan = self._plan(case, limits, tuple(e for e in covered if e.id not in outside))
        yield plan and replace(plan, turn_id=case.facts.turn_id)

    def _plan(self, case: CompactionInput, limits: Thresholds, covered: tuple[Entry, ...]) -> Plan | None:
        if not covered:
            return None
        before, source_tokens = case.view.tokens, sum(e.tokens for e in covered)
        after = before - source_tokens + summary_limit(source_tokens, case.rules)
        strategy = {"note": "truncate", "provider": "provider"}.get(self.writer, "summarize")
        return Plan(strategy, limits.reason, before, after, covered=covered, writer=self.writer)


class _Scope(NamedTuple):
    """Entries whose tool outputs may be replaced in one plan; `newer_tokens` of the conversation follow them."""

    entries: Sequence[Entry]
    turn_id: str | None
    newer_tokens: int


def _scopes(case: CompactionInput) -> list[_Scope]:
    """Returns the live conversation; when a request must fit, the past, and the two parts of the turn being answered."""
    view = case.view
    if case.facts.occasion != "must_fit":
        return [_Scope(view.live, None, 0)]
    past, own = view.parted()
    own_tokens, turn_tokens = (sum(e.tokens for e in entries) for entries in (own, view.turn))
    return [
        _Scope(past, None, own_tokens),
        _Scope(own[: len(own) - len(view.turn)], None, turn_tokens),
        _Scope(view.turn, case.facts.turn_id, 0),
    ]


def _unchangeable(scope: _Scope, case: CompactionInput) -> frozenset[str]:
    """Returns the ids that stay as they are, outputs of excluded tools too."""
    return case.facts.kept(scope.entries) | outputs_of(case.rules.exclude_tools, scope.entries)


def sign_bound(entries: Sequence[Entry], view: View) -> frozenset[str]:
    """Returns the ids of calls in the turn being answered that a service may check against its own reasoning or signature."""
    _, own = view.parted()
    own_ids = {e.id for e in own}
    return frozenset(e.id for e in entries if e.id in own_ids and e.message.tool_calls and signed(e.message))


def _newest_caller(view: View) -> str:
    """Returns the id of the assistant message that ends the conversation, tool results aside; "" where none does."""
    last = next((e for e in view.newest_first() if e.message.role != "tool"), None)
    return last.id if last is not None and last.message.tool_calls else ""


def _deferred_summaries(scope: _Scope, case: CompactionInput) -> tuple[tuple[Message, ...], int]:
    """Returns the waiting summaries that may replace tool outputs now, and the tokens that they save."""
    deferred = case.facts.deferred
    if not deferred:
        return (), 0
    keep = _unchangeable(scope, case)
    if case.facts.occasion != "must_fit" and any(e.shown_seq for e in scope.entries):
        keep |= repeated_outputs(scope.entries)
    pairs = [
        (entry, deferred[entry.id])
        for entry in scope.entries
        if entry.id in deferred and entry.id not in keep and not entry.shown_seq and deferred[entry.id].seq == entry.seq
    ]
    return tuple(s.message for _, s in pairs), sum(entry.tokens - s.tokens for entry, s in pairs)


def newest_user_text(view: View) -> str:
    """Returns the text of the newest message that the user said."""
    newest = view.newest_user()
    return "" if newest is None else newest.message.text
