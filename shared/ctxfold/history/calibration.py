"""Learns from replies and refusals how a model counts tokens and how much it takes, and corrects the rules accordingly."""

from __future__ import annotations

from dataclasses import replace

from ctxfold.history.records import Calibrated
from ctxfold.history.view import WindowTokens
from ctxfold.messages import Usage
from ctxfold.policy.settings import Policy, resized

WEIGHT = 0.5  # of the newest reply
FORGET = 0.5  # share of the old error that each reply leaves
WIDENS_AFTER = 3  # replies: one prompt of text that is counted too high is no reason for a wider window
NOTEWORTHY = 0.01  # smaller changes of the ratio are not worth a record
LIMITS = (0.25, 4.0)  # a ratio beyond them says that something else was counted, not that we count badly
TRUNCATED = 0.6  # a prompt reported that much shorter than expected was cut on the way


def observed(known: Calibrated | None, *, model: str, estimated: int, reported: int) -> Calibrated | None:
    """Returns what a reply teaches, None when it is nothing new. Both counts are of one request's input, in tokens."""
    if estimated <= 0 or reported <= 0:
        return None
    ratio_now = reported / estimated
    if not LIMITS[0] <= ratio_now <= LIMITS[1]:
        return None
    if known is None or not known.samples:
        return Calibrated(model, ratio_now, 0.0, 1)
    missed = abs(ratio_now / known.ratio - 1)
    ratio = known.ratio + WEIGHT * (ratio_now - known.ratio)
    error = max(missed, FORGET * known.error)
    if known.samples >= 3 and missed < NOTEWORTHY and known.error < NOTEWORTHY:
        return None
    return Calibrated(model, ratio, min(error, 1.0), known.samples + 1)


def reported_size(window: WindowTokens, usage: Usage | None) -> WindowTokens:
    """Returns the window with the ratio to what the provider counted, if that was the same request."""
    ratio = (usage.input_tokens if usage else 0) / max(1, window.own_count)
    return replace(window, ratio=ratio) if LIMITS[0] <= ratio <= LIMITS[1] else window


def overflowed(
    known: Calibrated | None, *, model: str, estimated: int, requested: int | None, limit: int | None, max_tokens: int
) -> Calibrated | None:
    """Returns what a refused request teaches about its model, None when that is nothing new.

    `requested` and `limit` are what the refusal named, in the model's tokens. Some services count the room for the reply in
    `requested`: the number that comes nearer to our own count is taken.
    """
    learnt = None
    if requested is not None:
        counted = min(requested, requested - max_tokens, key=lambda tokens: abs(tokens - estimated))
        learnt = observed(known, model=model, estimated=estimated, reported=counted)
    if limit is None or limit <= 1 or (known is not None and known.limit == limit):
        return learnt
    return replace(learnt or known or Calibrated(model, 1.0, 0.0, 0), limit=limit)


def prompt_limit(rules: Policy, limit: int, *, reply_tokens: int, least_tokens: int) -> int:
    """Returns the window whose budget leaves room for such a reply within a model's limit, as the reserve is resized with it.

    Where the rest would not even hold the `least_tokens` of the request, only a smaller reply helps: returns the limit as it is.
    """
    prompt = limit - reply_tokens
    return prompt + min(rules.reply_reserve_tokens, prompt // 4) if prompt >= least_tokens else limit


def with_known_limit(rules: Policy, known: Calibrated | None) -> Policy:
    """Returns the rules with the model's own limit, where that is narrower than the configured window; never a wider window."""
    limit = None if known is None else known.limit
    return rules if limit is None or limit >= rules.context_window else resized(rules, limit)


def calibrated(rules: Policy, known: Calibrated | None) -> Policy:
    """Returns the rules in ctxfold's own tokens, converted from the model's by the upper bound of the observed ratio.

    They get wider only after three replies.
    """
    if known is None:
        return rules
    factor = known.ratio * (1 + known.error)
    if known.samples < WIDENS_AFTER:
        factor = max(factor, 1.0)
    window = max(2, int(rules.context_window / factor))
    reserve = max(1, min(window - 1, int(rules.reply_reserve_tokens / factor)))
    summary = max(1, min(rules.summary_tokens, int(rules.summary_tokens / factor)))
    return rules.model_copy(
        update={"context_window": window, "reply_reserve_tokens": reserve, "summary_tokens": summary}
    )


def was_truncated(known: Calibrated | None, *, estimated: int, reported: int) -> bool:
    """Returns True when the model saw much less than was sent: some servers cut a prompt that does not fit, and say nothing."""
    expected = estimated * (known.ratio if known else 1.0)
    return reported > 0 and reported < TRUNCATED * expected
