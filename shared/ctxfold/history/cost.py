"""What a session has cost so far, by its user's prices."""

from __future__ import annotations

from ctxfold.history.log import SessionState
from ctxfold.prices import CostLine, Prices, cost_line

__all__ = ["session_cost"]


def session_cost(state: SessionState, prices: Prices | None) -> CostLine | None:
    """Spent and saved; None without prices. What compaction saved is by our own counts of the views before and after it."""
    if prices is None:
        return None
    whole = state.usage.input_tokens + state.avoided_tokens
    return cost_line(state.usage, prices, uncompacted_input_tokens=whole, summaries=state.summary_usage)
