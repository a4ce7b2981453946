"""When to make room, and how: nothing, tool outputs (soft), or a summary (hard). Pure; asked before anything is done."""

from __future__ import annotations

from collections.abc import Sequence

from ctxfold.budget import Policy
from ctxfold.compaction.clear_tools import clear_tools
from ctxfold.compaction.plan import Decision, Facts, Hold, Plan
from ctxfold.history.cuts import kept, legal_cuts
from ctxfold.history.view import Entry, View
from ctxfold.ports import TokenCounter

__all__ = ["choose_cut", "decide", "summary_limit"]

HEADING_TOKENS = 32  # a summary's limit is for its text: role and heading come on top


def decide(view: View, facts: Facts, *, rules: Policy, counter: TokenCounter) -> Decision:
    """The cheapest step that frees enough, or the reason for none. Constant time while no trigger fires."""
    budget = rules.budget_tokens
    used = view.tokens + facts.overhead_tokens
    ratio = used / budget
    if facts.mode == "close" and ratio <= rules.soft_ratio:
        return Hold(f"{used} of {budget} tokens used, soft trigger at {rules.soft_ratio:.0%}")
    if facts.mode == "cap" and used <= budget:
        return Hold(f"{used} of {budget} tokens used: the request fits")
    reason = f"{facts.mode}: {used} of {budget} tokens used ({ratio:.0%})"
    if facts.mode != "forced":
        plans = _clear(view, facts, rules, counter, reason)
        pruned = next((p for p in plans if _enough(p, facts, rules)), None)
        if pruned is not None:
            return pruned
    if facts.mode == "close" and ratio <= rules.hard_ratio:
        return Hold(f"{reason}: tool outputs alone would free too little, hard trigger at {rules.hard_ratio:.0%}")
    if facts.mode == "close" and ratio <= 1 and facts.turns_since_summary < rules.cooldown_turns:
        return Hold(f"{reason}: last summary {facts.turns_since_summary} turns ago, cooldown {rules.cooldown_turns}")
    return _summarize(view, facts, rules, reason)


def _clear(view: View, facts: Facts, rules: Policy, counter: TokenCounter, reason: str) -> list[Plan]:
    """Old tool outputs of the session; and, when a request must fit, those of the asking turn."""
    scopes: list[tuple[Sequence[Entry], str | None]] = [(view.live, None)]
    if facts.mode == "cap" and facts.turn_id is not None:
        scopes.append((view.turn, facts.turn_id))
    plans: list[Plan] = []
    for entries, turn_id in scopes:
        keep = kept(entries, pins=facts.pins)
        shown, saved = clear_tools(entries, budget_tokens=rules.budget_tokens, keep=keep, counter=counter)
        if shown:
            plans.append(Plan("clear_tools", reason, view.tokens, view.tokens - saved, shown=shown, turn_id=turn_id))
    return plans


def _enough(plan: Plan, facts: Facts, rules: Policy) -> bool:
    freed = plan.tokens_before - plan.tokens_after
    # half-way between the triggers: the newest half of the budget is never pruned, so the soft one itself is seldom reached
    target = (rules.soft_ratio + max(rules.soft_ratio, rules.hard_ratio)) / 2
    fits = plan.tokens_after + facts.overhead_tokens <= target * rules.budget_tokens
    return freed >= rules.min_free_ratio * rules.budget_tokens and fits


def _summarize(view: View, facts: Facts, rules: Policy, reason: str) -> Decision:
    """A summary of the session's past; when that frees too little, of the asking turn's own finished rounds."""
    session = _span(view.live, facts, rules, older=view.compressed)
    plans = [_plan(view, session, rules, reason, turn_id=None)]
    if view.turn and facts.turn_id is not None:
        own = _span(view.turn, facts, rules, older=())
        plans.append(_plan(view, own, rules, reason, turn_id=facts.turn_id))
    if facts.mode == "cap" and any(e.message.role == "user" and e.message.kind == "message" for e in view.turn):
        # the newest user message is the turn's own: the one before it may go where nothing else makes enough room
        session = _span(view.live, facts, rules, older=view.compressed, question=False)
        plans.append(_plan(view, session, rules, reason, turn_id=None))
    needed = rules.min_free_ratio * rules.budget_tokens if facts.mode == "close" else 1
    useful = [p for p in plans if p is not None and p.tokens_before - p.tokens_after >= needed]
    fitting = [p for p in useful if p.tokens_after + facts.overhead_tokens <= rules.budget_tokens]
    if fitting:
        return fitting[0]
    if useful and facts.mode != "close":
        return min(useful, key=lambda p: p.tokens_after)
    return Hold(
        f"{reason}: no span is left whose summary would free "
        f"{rules.min_free_ratio:.0%} of the budget; system, pins and the newest messages fill it",
        exhausted=True,
    )


def _span(
    entries: Sequence[Entry], facts: Facts, rules: Policy, *, older: Sequence[Entry], question: bool = True
) -> tuple[Entry, ...]:
    keep = kept(entries, pins=facts.pins, question=question)
    cut = choose_cut(entries, rules, keep_more=facts.mode != "forced", overhead_tokens=facts.overhead_tokens)
    covered = [e for e in entries[:cut] if e.id not in keep]
    # a summary from the days of a larger window is shortened even when nothing else may go with it
    outgrown = sum(e.tokens for e in older) > rules.summary_tokens + HEADING_TOKENS
    return (*older, *covered) if covered or outgrown else ()


def choose_cut(entries: Sequence[Entry], rules: Policy, *, keep_more: bool = True, overhead_tokens: int = 0) -> int:
    """The cut that keeps the newest `keep_last` messages where they fit half of what the overhead leaves of the budget.

    With `keep_more`, it keeps whatever else fits `tail_ratio` of that.
    """
    budget = max(0, rules.budget_tokens - overhead_tokens)
    cuts = sorted(legal_cuts(entries))
    after = [0] * (len(entries) + 1)
    for index in range(len(entries) - 1, -1, -1):
        after[index] = after[index + 1] + entries[index].tokens
    wanted = max((c for c in cuts if c <= len(entries) - rules.keep_last), default=0)
    target = rules.tail_ratio * budget
    if keep_more and after[wanted] <= target:
        return min(c for c in cuts if after[c] <= target)
    half = budget / 2
    if after[wanted] <= half:
        return wanted
    return min((c for c in cuts if after[c] <= half), default=0)


def summary_limit(source_tokens: int, rules: Policy) -> int:
    """Most tokens that a summary of such a source may take: always fewer than it replaces."""
    return min(rules.summary_tokens, source_tokens // 2)


def _plan(view: View, covered: tuple[Entry, ...], rules: Policy, reason: str, *, turn_id: str | None) -> Plan | None:
    if not covered:
        return None
    tokens = sum(e.tokens for e in covered)
    after = view.tokens - tokens + summary_limit(tokens, rules)
    strategy = "truncate" if rules.strategy == "truncate" else "summarize"
    return Plan(strategy, reason, view.tokens, after, covered=covered, turn_id=turn_id)
