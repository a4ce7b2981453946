"""Our token counts against what a model reports: a ratio per model, and how far it has been off lately."""

from __future__ import annotations

from ctxfold.budget import Policy
from ctxfold.history.records import Calibrated

__all__ = ["calibrated", "observed", "overflowed", "truncated"]

WEIGHT = 0.5  # of the newest reply
FORGET = 0.5  # share of the old error that each reply leaves
NOTEWORTHY = 0.01  # smaller changes of the ratio are not worth a record
LIMITS = (0.25, 4.0)  # a ratio beyond them says that something else was counted, not that we count badly
TRUNCATED = 0.6  # a prompt reported that much shorter than expected was cut on the way


def observed(known: Calibrated | None, *, model: str, estimated: int, reported: int) -> Calibrated | None:
    """What a reply teaches, None when it is nothing new. Both counts are of one request's input, in tokens."""
    if estimated <= 0 or reported <= 0:
        return None
    seen = reported / estimated
    if not LIMITS[0] <= seen <= LIMITS[1]:
        return None
    if known is None:
        return Calibrated(model, seen, 0.0, 1)
    missed = abs(seen / known.ratio - 1)
    ratio = known.ratio + WEIGHT * (seen - known.ratio)
    error = max(missed, FORGET * known.error)
    if known.samples >= 3 and missed < NOTEWORTHY and known.error < NOTEWORTHY:
        return None
    return Calibrated(model, ratio, min(error, 1.0), known.samples + 1)


def overflowed(
    known: Calibrated | None, *, model: str, estimated: int, requested: int, max_tokens: int
) -> Calibrated | None:
    """What a request that was too long teaches. Some services count the room for the reply in: what comes nearer to our count."""
    counted = min(requested, requested - max_tokens, key=lambda tokens: abs(tokens - estimated))
    return observed(known, model=model, estimated=estimated, reported=counted)


def calibrated(rules: Policy, known: Calibrated | None) -> Policy:
    """The rules in our own tokens, when the model's are smaller or larger: with the upper bound of the error."""
    if known is None:
        return rules
    factor = known.ratio * (1 + known.error)
    window = max(2, int(rules.context_window / factor))
    reserve = max(1, min(window - 1, int(rules.reply_reserve_tokens / factor)))
    summary = max(1, min(rules.summary_tokens, int(rules.summary_tokens / factor)))
    return rules.model_copy(
        update={"context_window": window, "reply_reserve_tokens": reserve, "summary_tokens": summary}
    )


def truncated(known: Calibrated | None, *, estimated: int, reported: int) -> bool:
    """Whether the model saw much less than was sent: some servers cut a prompt that does not fit, and say nothing."""
    expected = estimated * (known.ratio if known else 1.0)
    return reported > 0 and reported < TRUNCATED * expected
