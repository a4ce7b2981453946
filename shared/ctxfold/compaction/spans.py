"""Which entries a compaction covers: cuts that leave enough behind, and what is left when a request does not fit. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ctxfold.budget import Policy
from ctxfold.compaction.plan import Facts
from ctxfold.compaction.strategy import HEADING_TOKENS
from ctxfold.history.cuts import asked_before, kept, legal_cuts, unasked
from ctxfold.history.view import Entry, View

__all__ = [
    "answers_left",
    "choose_cut",
    "elsewhere",
    "led",
    "newest_round",
    "older_rounds",
    "rest_of_past",
    "span",
    "summary_limit",
]


def choose_cut(
    entries: Sequence[Entry],
    rules: Policy,
    *,
    keep_more: bool = True,
    overhead_tokens: int = 0,
    budget_tokens: int | None = None,
) -> int:
    """The cut that keeps the newest `keep_last` messages where they fit half of what the overhead leaves of the budget.

    With `keep_more`, it keeps whatever else fits `tail_ratio` of that. `budget_tokens` stands for the policy's where a trigger
    fires long before that is used.
    """
    budget = max(0, (rules.budget_tokens if budget_tokens is None else budget_tokens) - overhead_tokens)
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


def span(
    entries: Sequence[Entry],
    facts: Facts,
    rules: Policy,
    *,
    older: Sequence[Entry],
    question: bool = True,
    used_tokens: int | None = None,
) -> tuple[Entry, ...]:
    keep = kept(entries, pins=facts.pins, question=question)
    early = facts.mode == "close" and rules.trigger is not None and used_tokens is not None
    cut = choose_cut(
        entries,
        rules,
        keep_more=facts.mode != "forced",
        overhead_tokens=facts.overhead_tokens,
        budget_tokens=min(rules.budget_tokens, used_tokens or 0) if early else None,
    )
    covered = [e for i, e in enumerate(entries) if (i < cut or e.message.kind == "section") and e.id not in keep]
    # a summary from the days of a larger window is shortened even when nothing else may go with it
    outgrown = sum(e.tokens for e in older) > rules.summary_tokens + HEADING_TOKENS
    return (*older, *covered) if covered or outgrown else ()


def rest_of_past(
    entries: Sequence[Entry], facts: Facts, *, older: Sequence[Entry], asked: bool
) -> Iterator[tuple[Entry, ...]]:
    """All that may be covered but the newest turn, then with it; `asked` says that the newest question stands elsewhere."""
    keep = kept(entries, pins=facts.pins, question=not asked)
    cuts = legal_cuts(entries)
    asks = (i for i in range(len(entries) - 1, -1, -1) if entries[i].message.role == "user")
    for most in (len(entries) if asked else next(asks, 0), len(entries)):
        covered = [e for e in entries[: max(c for c in cuts if c <= most)] if e.id not in keep]
        if covered or older:
            yield (*older, *covered)


def older_rounds(own: Sequence[Entry], facts: Facts) -> tuple[Entry, ...]:
    """Of what is being answered, all that may be covered but the newest round, which the model has not seen."""
    newest = max((i for i, e in enumerate(own) if e.message.role == "assistant"), default=0)
    keep = kept(own, pins=facts.pins)
    cut = max((c for c in legal_cuts(own) if c <= newest), default=0)
    return tuple(e for e in own[:cut] if e.id not in keep)


def led(gone: Sequence[Entry], view: View, pins: Collection[str]) -> tuple[Entry, ...]:
    """What leaves without a summary, such that a user's message leads what is left: the question that its first message answers
    stays; where that had gone before, the answers go too."""
    ids = {e.id for e in gone}
    asked = asked_before(view.live, ids)
    return (*(e for e in gone if e.id != asked), *(answers_left(ids, view, pins) if asked is None else ()))


def answers_left(gone: Collection[str], view: View, pins: Collection[str]) -> tuple[Entry, ...]:
    """What may go of turns whose question goes with the ids `gone`, or had gone before."""
    keep = kept(view.live, pins=pins)
    return tuple(e for e in unasked(view.live, gone, after=view.turn) if e.id not in keep)


def elsewhere(entries: Sequence[Entry], view: View) -> frozenset[str]:
    """Ids of the entries that are not the open turn's own."""
    return frozenset(e.id for e in entries) - {e.id for e in view.turn}


def newest_round(entries: Sequence[Entry]) -> frozenset[str]:
    """The tool results after the last assistant message: what the model has just asked for."""
    newest = max((i for i, e in enumerate(entries) if e.message.role == "assistant"), default=0)
    return frozenset(e.id for e in entries[newest:] if e.message.role == "tool")
