"""When a summary is due: triggers as values that a policy can store, each of which explains itself in one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, assert_never

from pydantic import BaseModel, ConfigDict, Field

from ctxfold.errors import ConfigError
from ctxfold.prices import Prices

__all__ = [
    "AllOf",
    "AnyOf",
    "ColdCacheTrigger",
    "EconomicTrigger",
    "MessagesTrigger",
    "RatioTrigger",
    "Signals",
    "TokensTrigger",
    "Trigger",
    "TurnsTrigger",
    "Verdict",
    "counts",
    "evaluate",
    "minds_idle",
    "optimal_height",
    "with_prices",
]


@dataclass(frozen=True, slots=True)
class Signals:
    """What a trigger may look at, at one moment.

    `used_tokens` is the request as it would be sent, `prompt_tokens` of it are system prompts; `messages` and `turns` are of
    the live conversation (system prompts and summaries aside). `idle_s` is the time since the last call to the model. The other
    four feed the economic trigger: how much the request grows from one call to the next, its size right after a compaction, what
    the summariser writes, and the share of the request before a compaction that stays verbatim on top of `size_after_tokens`.
    """

    used_tokens: int
    budget_tokens: int
    context_window: int
    messages: int = 0
    turns: int = 0
    turns_since_summary: int = 0
    idle_s: float = 0.0
    growth_tokens_per_call: float = 0.0
    size_after_tokens: int = 0
    summary_tokens: int = 0
    tail_ratio: float = 0.0
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a compaction is due, and the numbers that say so."""

    due: bool
    explanation: str


class _Trigger(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class RatioTrigger(_Trigger):
    """Due when the request fills that share of the budget (window less reply reserve): late, so that compactions are few."""

    kind: Literal["ratio"] = "ratio"
    at: float = Field(default=0.9, gt=0, le=1)


class TokensTrigger(_Trigger):
    """Due at that many tokens; without `count_prompts`, system prompts are not among them."""

    kind: Literal["tokens"] = "tokens"
    at: int = Field(default=60_000, gt=0)
    count_prompts: bool = True


class MessagesTrigger(_Trigger):
    """Due at that many live messages; a sliding window of n fires at n + 1."""

    kind: Literal["messages"] = "messages"
    at: int = Field(gt=0)


class TurnsTrigger(_Trigger):
    """Due at that many live turns; with `since_summary`, at that many turns after the last summary."""

    kind: Literal["turns"] = "turns"
    at: int = Field(gt=0)
    since_summary: bool = False


class ColdCacheTrigger(_Trigger):
    """Due when the provider's cache has gone cold and the request fills `min_ratio` of the budget: no prefix is lost then."""

    kind: Literal["cold_cache"] = "cold_cache"
    idle_s: float = Field(default=300, gt=0, description="seconds without a call after which the cache has gone")
    min_ratio: float = Field(default=0.5, gt=0, le=1)


class EconomicTrigger(_Trigger):
    """Due at the size at which the cost per call is least (see `optimal_height`), at the latest when the budget is full.

    `prices` may be a model's name until `with_prices` puts that model's prices in its place.
    """

    kind: Literal["economic"] = "economic"
    prices: Prices | str


class AllOf(_Trigger):
    """Due when every one of its triggers is."""

    kind: Literal["all"] = "all"
    triggers: tuple[Trigger, ...] = Field(min_length=1)


class AnyOf(_Trigger):
    """Due when one of its triggers is."""

    kind: Literal["any"] = "any"
    triggers: tuple[Trigger, ...] = Field(min_length=1)


Trigger: TypeAlias = Annotated[
    RatioTrigger | TokensTrigger | MessagesTrigger | TurnsTrigger | ColdCacheTrigger | EconomicTrigger | AllOf | AnyOf,
    Field(discriminator="kind"),
]
AllOf.model_rebuild()
AnyOf.model_rebuild()


def evaluate(trigger: Trigger, signals: Signals) -> Verdict:
    """Whether the trigger fires on these signals, and why, or why not, with the numbers."""
    used, budget = signals.used_tokens, signals.budget_tokens
    match trigger:
        case RatioTrigger(at=at):
            share = used / budget
            return Verdict(share >= at, f"{used:,} of {budget:,} tokens ({share:.0%}), due at {at:.0%}")
        case TokensTrigger(at=at, count_prompts=all_of_it):
            counted = used if all_of_it else used - signals.prompt_tokens
            note = "" if all_of_it else ", system prompts left out"
            return Verdict(counted >= at, f"{counted:,} of {at:,} tokens{note}")
        case MessagesTrigger(at=at):
            return Verdict(signals.messages >= at, f"{signals.messages:,} of {at:,} messages")
        case TurnsTrigger(at=at, since_summary=since):
            turns = signals.turns_since_summary if since else signals.turns
            return Verdict(turns >= at, f"{turns:,} of {at:,} turns{' since the last summary' if since else ''}")
        case ColdCacheTrigger():
            return _cold(trigger, signals)
        case EconomicTrigger():
            return _economic(trigger, signals)
        case AllOf(triggers=triggers):
            verdicts = [evaluate(t, signals) for t in triggers]
            return _joined(verdicts, "and", due=all(v.due for v in verdicts))
        case AnyOf(triggers=triggers):
            verdicts = [evaluate(t, signals) for t in triggers]
            return _joined(verdicts, "or", due=any(v.due for v in verdicts))
        case _:
            assert_never(trigger)


def optimal_height(
    prices: Prices, *, growth: float, size_after: float, summary: float, tail_ratio: float = 0.0
) -> float:
    """The context size H* at which compacting makes the cost per call least; infinite where nothing is gained by it.

    Between two compactions the context grows from L to H, by g (`growth`) per call, in n = (H - L) / g calls. Of L, a
    (`size_after`: system prompt and summary) is always the same, and the tail is a share t (`tail_ratio`) of H: L = a + t H. With
    x = H - L that is L = (a + t x) / (1 - t) and L + H = (2 a + (1 + t) x) / (1 - t). Each call reads what is cached at price r:
    n (L + H) / 2 tokens in all, so r (L + H) / 2 per call. Writing the g new tokens costs the same per call for every H. A
    compaction costs once per cycle: the summariser reads H from the cache (of that, r L per cycle; the rest, r x = r g n, is again
    the same per call), writes the summary, o S, and the next call writes the new context of L instead of reading it, w L. Of
    (w + r) L + o S the part with x is the same per call too; the rest is F = (w + r) a / (1 - t) + o S. What depends on x:

        c(x) = r (1 + t) x / (2 (1 - t)) + g F / x,   c'(x) = 0
        =>   x* = sqrt(2 g F (1 - t) / (r (1 + t))),   H* = (x* + a) / (1 - t)
    """
    read, write, output = prices.cache_read_per_mtok, prices.cache_write_per_mtok, prices.output_per_mtok
    if read <= 0:
        return math.inf
    rest = 1 - tail_ratio
    once = (write + read) * size_after / rest + output * summary
    grown = math.sqrt(2 * growth * once * rest / (read * (1 + tail_ratio)))
    return (grown + size_after) / rest


def with_prices(trigger: Trigger, table: Mapping[str, Prices]) -> Trigger:
    """The trigger with every model name replaced by that model's prices; ConfigError for a model that the table lacks."""
    match trigger:
        case EconomicTrigger(prices=str(model)):
            if model not in table:
                raise ConfigError(
                    f"the economic trigger needs the prices of model {model!r}, the table has {', '.join(sorted(table)) or 'none'}"
                    ": add them to it, or give EconomicTrigger(prices=Prices(...))"
                )
            return EconomicTrigger(prices=table[model])
        case AllOf(triggers=triggers):
            return AllOf(triggers=tuple(with_prices(t, table) for t in triggers))
        case AnyOf(triggers=triggers):
            return AnyOf(triggers=tuple(with_prices(t, table) for t in triggers))
        case _:
            return trigger


def minds_idle(trigger: Trigger) -> bool:
    """Whether the time since the last call matters to it."""
    match trigger:
        case AllOf(triggers=triggers) | AnyOf(triggers=triggers):
            return any(map(minds_idle, triggers))
        case _:
            return isinstance(trigger, ColdCacheTrigger)


def counts(trigger: Trigger) -> bool:
    """Returns whether it names an amount (tokens, messages or turns), which the user wants obeyed at any size of the window."""
    match trigger:
        case AllOf(triggers=triggers) | AnyOf(triggers=triggers):
            return any(map(counts, triggers))
        case _:
            return isinstance(trigger, TokensTrigger | MessagesTrigger | TurnsTrigger)


def _cold(trigger: ColdCacheTrigger, signals: Signals) -> Verdict:
    share = signals.used_tokens / signals.budget_tokens
    due = signals.idle_s >= trigger.idle_s and share >= trigger.min_ratio
    return Verdict(
        due,
        f"idle for {signals.idle_s:,.0f} of {trigger.idle_s:,.0f} s with {signals.used_tokens:,} of "
        f"{signals.budget_tokens:,} tokens ({share:.0%}, at least {trigger.min_ratio:.0%} needed)",
    )


def _economic(trigger: EconomicTrigger, signals: Signals) -> Verdict:
    prices = trigger.prices
    if isinstance(prices, str):
        raise ConfigError(
            f"the economic trigger has no prices for model {prices!r}: call with_prices(trigger, table) first"
        )
    used, budget, growth = signals.used_tokens, signals.budget_tokens, signals.growth_tokens_per_call
    if growth <= 0:
        return Verdict(
            used >= budget, f"{used:,} of {budget:,} tokens, no growth per call known: due when the budget is full"
        )
    best = optimal_height(
        prices,
        growth=growth,
        size_after=signals.size_after_tokens,
        summary=signals.summary_tokens,
        tail_ratio=signals.tail_ratio,
    )
    height = min(best, budget)
    after = signals.size_after_tokens + signals.tail_ratio * height
    why = f"cheapest at {best:,.0f}" if best <= budget else "the budget comes before the cheapest size"
    return Verdict(
        used >= height,
        f"{used:,} of {height:,.0f} tokens ({why}: growth {growth:,.0f} per call, {after:,.0f} after a "
        f"compaction, summary {signals.summary_tokens:,})",
    )


def _joined(verdicts: list[Verdict], word: str, *, due: bool) -> Verdict:
    """One sentence; of an "or" that fired only the triggers that did."""
    told = [v for v in verdicts if v.due] if due and word == "or" else verdicts
    parts = [v.explanation if v.due else f"not yet: {v.explanation}" for v in told]
    return Verdict(due, parts[0] if len(parts) == 1 else f" {word} ".join(f"({p})" for p in parts))
