"""The user's last word on a compaction: another summary, other messages kept; what breaks the contract is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ctxfold.compaction.plan import Plan
from ctxfold.compaction.strategy import Case, rewritten
from ctxfold.compaction.summarize import Summary
from ctxfold.errors import StrategyError
from ctxfold.events import CompactionProposal, Rewriter, RewriteRefused
from ctxfold.history.view import Entry
from ctxfold.messages import Message, user

__all__ = ["proposed"]

NAME = "on_compaction"


def proposed(
    session: str, plan: Plan, summary: Summary | None, case: Case, rewriters: Sequence[Rewriter]
) -> tuple[Plan, Summary | None, RewriteRefused | None]:
    """The plan and its summary as the subscriber wants them; as they were, with a report, when it broke the contract.

    An open turn's own rounds are not offered.
    """
    if not rewriters or summary is None or not summary.text or plan.turn_id is not None:
        return plan, summary, None
    gone = {e.id for e in plan.covered}
    history: tuple[Entry, ...] = (*case.view.compressed, *case.view.live)
    kept = tuple(e.message for e in history if e.id not in gone)
    offer = CompactionProposal(session, summary.text, tuple(e.message for e in plan.covered), kept)
    try:
        answer = rewriters[0](offer)
        if answer is None:
            return plan, summary, None
        text, left = answer
        return (*_accepted(plan, summary, case, text, left), None)
    except Exception as error:  # noqa: BLE001 - a subscriber must not break a turn: the report holds what it did
        reason = str(error) if isinstance(error, StrategyError) else repr(error)
        return plan, summary, RewriteRefused(session, reason)


def _accepted(
    plan: Plan, summary: Summary, case: Case, text: str, left: Sequence[Message]
) -> tuple[Plan, Summary | None]:
    if not text.strip():
        raise StrategyError("the summary is empty")
    system = [e.message for e in case.view.system]
    made = rewritten(replace(plan, strategy=NAME), case, [*system, user(text, id=NAME), *left])
    if not isinstance(made, Plan):
        raise StrategyError(made.reason)
    needed, budget = made.tokens_after + case.facts.overhead_tokens, case.rules.budget_tokens
    if needed > budget and needed > plan.tokens_after + case.facts.overhead_tokens:
        raise StrategyError(f"the request would need {needed} tokens, the budget is {budget}: keep less")
    # the counts were of the other text
    changed = replace(
        summary, text=text, rung=f"{summary.rung}, rewritten", kept=0, in_ledger=0, archived=0, invented=0
    )
    return replace(plan, covered=made.covered, tokens_after=made.tokens_after), changed
