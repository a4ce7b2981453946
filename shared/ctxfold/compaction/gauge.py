"""Measures how full the window of a session is, and when it will be compacted next."""

from __future__ import annotations

import math

from ctxfold.compaction.compact import session_facts
from ctxfold.compaction.strategy import CompactionInput
from ctxfold.events import WindowGauge
from ctxfold.protocols import TokenCounter
from ctxfold.session_state import OpenSession, Stage
from ctxfold.triggers import due_at

__all__ = ["gauge"]


def gauge(
    open_session: OpenSession, stage: Stage, counter: TokenCounter, *, auto_compact: bool | None = None
) -> WindowGauge:
    """Returns the size of the next request, of the stage's open turn or between turns, beside its limits."""
    rules, compacts_at = stage.rules, None
    used_tokens = stage.view.tokens + open_session.overhead_tokens
    if rules.auto_compact if auto_compact is None else auto_compact:
        compacts_at = rules.budget_tokens
        if rules.trigger is None:
            compacts_at = min(compacts_at, math.ceil(rules.hard_ratio * rules.budget_tokens))
        else:
            facts = session_facts(open_session, "after_turn", overhead_tokens=open_session.overhead_tokens)
            at = due_at(rules.trigger, CompactionInput(stage.view, facts, rules, counter).signals())
            compacts_at = compacts_at if at is None else min(compacts_at, at)
    return WindowGauge(
        session=open_session.key.session,
        used_tokens=used_tokens,
        budget_tokens=rules.budget_tokens,
        context_window=open_session.window_rules(stage.context_window).context_window,
        compacts_at_tokens=compacts_at,
    )
