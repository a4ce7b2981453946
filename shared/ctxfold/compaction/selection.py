"""Selects the entries that a compaction covers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ctxfold.compaction.plan import SessionFacts
from ctxfold.compaction.strategy import HEADING_TOKENS
from ctxfold.history.cuts import kept, legal_cuts, question_to_keep, unasked
from ctxfold.history.view import Entry, View
from ctxfold.policy.settings import Policy


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
