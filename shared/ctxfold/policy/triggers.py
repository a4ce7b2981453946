"""Defines the triggers of compaction, and decides whether one is due."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, assert_never, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ctxfold.errors import ConfigError
from ctxfold.policy.prices import Prices

# besides system prompt and tools: less is cheaper where messages are short, and holds next to nothing
LEAST_TOKENS = 2_000
WRITTEN_SHARE = 0.6  # of a summary's limit; the rest is for sentences that are put back, which cost no model call
INSTRUCTION_TOKENS = 350  # of the request for a summary
SIZES = 32  # compared in search of the cheapest one


@dataclass(frozen=True, slots=True)
class Signals:
    """The measurements that a trigger decides on.

    `used_tokens` is the size of the next request, `prompt_tokens` the part of it that is system prompts. `messages` and `turns`
    count the live conversation, without system prompts and summaries. `idle_s` is the time since the last call to the model. The
    other four are for the economic trigger: the growth of the request from one call to the next, its size after a compaction that
    leaves nothing but system prompt, tools and a summary, the limit of a summary, and the share of what is compacted that stays
    verbatim.
    """

    used_tokens: int
    budget_tokens: int
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
    """The decision of a trigger, with the numbers that explain it."""

    due: bool
    explanation: str


class _Trigger(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class RatioTrigger(_Trigger):
    """Due when the request fills the share `at` of the budget (window less reply reserve); a late trigger compacts rarely."""

    kind: Literal["ratio"] = "ratio"
    at: float = Field(default=0.9, gt=0, le=1)


class TokensTrigger(_Trigger):
    """Due at `at` tokens; without `count_prompts`, system prompts do not count."""

    kind: Literal["tokens"] = "tokens"
    at: int = Field(default=60_000, gt=0)
    count_prompts: bool = True


class MessagesTrigger(_Trigger):
    """Due at `at` live messages; a sliding window of n messages is due at n + 1."""

    kind: Literal["messages"] = "messages"
    at: int = Field(gt=0)


class TurnsTrigger(_Trigger):
    """Due at `at` live turns; with `since_summary`, at `at` turns after the last summary."""

    kind: Literal["turns"] = "turns"
    at: int = Field(gt=0)
    since_summary: bool = False


class ColdCacheTrigger(_Trigger):
    """Due when the provider's cache has expired and the request fills `min_ratio` of the budget: no cached prefix is lost."""

    kind: Literal["cold_cache"] = "cold_cache"
    idle_s: float = Field(default=300, gt=0, description="seconds without a call after which the cache has expired")
    min_ratio: float = Field(default=0.5, gt=0, le=1)


class EconomicTrigger(_Trigger):
    """Due at the size with the lowest cost per call (see `optimal_height`), at the latest when the budget is full.

    Without `prices`, typical ones apply: in units of an uncached input token, a cached read costs 0.1, a cache write 1.25,
    output 5. `prices` may be the name of a model until `with_prices` replaces it by that model's prices.
    """

    kind: Literal["economic"] = "economic"
    prices: Prices | str = Field(default_factory=Prices.relative)


class AllOf(_Trigger):
    """Due when all of its triggers are due."""

    kind: Literal["all"] = "all"
    triggers: tuple[Trigger, ...] = Field(min_length=1)


class AnyOf(_Trigger):
    """Due when at least one of its triggers is due."""

    kind: Literal["any"] = "any"
    triggers: tuple[Trigger, ...] = Field(min_length=1)


SHAPES = "0.8, ('fraction', 0.8), ('tokens', 4_000) or ('messages', 50)"


def _from_amounts(value: Any) -> Any:
    """Returns the trigger that an amount stands for, in any of the shapes of LangChain's middleware; anything else as it is."""
    match value:
        case float():
            return {"kind": "ratio", "at": value}
        case ("fraction" | "ratio" | "tokens" | "messages" | "turns" as kind, amount) if type(amount) in (int, float):
            return {"kind": "ratio" if kind == "fraction" else kind, "at": amount}
        case [*clauses] if isinstance(value, list):  # any of them
            return {"kind": "any", "triggers": clauses}
        case dict() if value and "kind" not in value:  # all of them
            return {"kind": "all", "triggers": list(cast("dict[str, Any]", value).items())}
        case BaseModel() | {"kind": _}:
            return value
        case _:
            raise ValueError(f"give {SHAPES}, a list of these, or a trigger of ctxfold.policy.triggers")


Trigger: TypeAlias = Annotated[
    RatioTrigger | TokensTrigger | MessagesTrigger | TurnsTrigger | ColdCacheTrigger | EconomicTrigger | AllOf | AnyOf,
    Field(discriminator="kind"),
    BeforeValidator(_from_amounts),
]
Amount: TypeAlias = tuple[Literal["fraction", "ratio", "tokens", "messages", "turns"], float]
# what is taken for a trigger: a list is due when any of it is, a dict such as {"tokens": 4_000, "messages": 10} when all of it is
TriggerLike: TypeAlias = (
    Trigger | float | Amount | Mapping[str, float] | Sequence[Trigger | Amount | Mapping[str, float]]
)
AllOf.model_rebuild()
AnyOf.model_rebuild()


def evaluate(trigger: Trigger, signals: Signals) -> Verdict:
    """Returns the decision of the trigger for these signals, with the numbers that explain it."""
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


def optimal_height(prices: Prices, signals: Signals) -> float:
    """Returns the context size with the lowest cost per call; the budget where no other is, or no growth per call is known."""
    least = signals.size_after_tokens - signals.summary_tokens + LEAST_TOKENS
    if least >= signals.budget_tokens or signals.growth_tokens_per_call <= 0:
        return signals.budget_tokens
    step = math.pow(signals.budget_tokens / least, 1 / SIZES)
    sizes = (*(least * step**i for i in range(SIZES)), signals.budget_tokens)
    return min(sizes, key=lambda height: cost_per_call(prices, signals, height))


def cost_per_call(prices: Prices, signals: Signals, height: float) -> float:
    """Returns what a call costs where the context is compacted at that height, without what is the same for every height.

    Between two compactions the context grows from L to H, by g (the growth) per call, in n = (H - L) / g calls, each of which reads
    what is cached: (L + H) / 2 tokens in the mean, at price r. Writing the g new tokens costs the same for every H.
    """
    after, once = compaction_at(prices, signals, height)
    return prices.cache_read_per_mtok * (after + height) / 2 + signals.growth_tokens_per_call * once / (height - after)


def compaction_at(prices: Prices, signals: Signals, height: float) -> tuple[float, float]:
    """Returns the context size after a compaction at that height, and what the compaction costs.

    What stays is the system prompt, the tail, and a summary, which has at most half of what it stands for. The summariser reads
    everything from the cache, but for its instruction, and writes the summary; the next call writes what follows the system prompt
    instead of reading it.
    """
    fixed = signals.size_after_tokens - signals.summary_tokens
    tail = signals.tail_ratio * (height - fixed)
    summary = min(signals.summary_tokens, (height - fixed - tail) / 2)
    rewritten = (prices.cache_write_per_mtok - prices.cache_read_per_mtok) * (summary + tail)
    read = prices.cache_read_per_mtok * height + prices.input_per_mtok * INSTRUCTION_TOKENS
    return fixed + summary + tail, rewritten + read + prices.output_per_mtok * WRITTEN_SHARE * summary


def with_prices(trigger: Trigger, table: Mapping[str, Prices]) -> Trigger:
    """Returns the trigger with each model name replaced by that model's prices; raises ConfigError when the table lacks one."""
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


def depends_on_idle_time(trigger: Trigger) -> bool:
    """Returns True when the trigger depends on the time since the last call."""
    return _contains(trigger, ColdCacheTrigger)


def counts(trigger: Trigger) -> bool:
    """Returns True when the trigger names an amount (tokens, messages or turns), which holds whatever the size of the window."""
    return _contains(trigger, TokensTrigger, MessagesTrigger, TurnsTrigger)


def _contains(trigger: Trigger, *kinds: type[_Trigger]) -> bool:
    """Returns True when the trigger, or one that it is made of, is of one of these kinds."""
    parts = trigger.triggers if isinstance(trigger, AllOf | AnyOf) else ()
    return isinstance(trigger, kinds) or any(_contains(part, *kinds) for part in parts)


def due_at(trigger: Trigger, signals: Signals) -> int | None:
    """Returns the size of the request, in tokens, from which the trigger is due; None where no size makes it due as things are.

    A trigger that counts messages, turns or seconds is due at any size (0) or, so far, at none.
    """
    match trigger:
        case RatioTrigger(at=at):
            return math.ceil(at * signals.budget_tokens)
        case TokensTrigger(at=at, count_prompts=all_of_it):
            return at if all_of_it else at + signals.prompt_tokens
        case EconomicTrigger():
            return math.ceil(optimal_height(_prices(trigger), signals))
        case AllOf(triggers=triggers):
            sizes = [due_at(t, signals) for t in triggers]
            return None if None in sizes else max(size for size in sizes if size is not None)
        case AnyOf(triggers=triggers):
            return min((size for t in triggers if (size := due_at(t, signals)) is not None), default=None)
        case _:
            return 0 if evaluate(trigger, signals).due else None


def _cold(trigger: ColdCacheTrigger, signals: Signals) -> Verdict:
    share = signals.used_tokens / signals.budget_tokens
    due = signals.idle_s >= trigger.idle_s and share >= trigger.min_ratio
    return Verdict(
        due,
        f"idle for {signals.idle_s:,.0f} of {trigger.idle_s:,.0f} s with {signals.used_tokens:,} of "
        f"{signals.budget_tokens:,} tokens ({share:.0%}, at least {trigger.min_ratio:.0%} needed)",
    )


def _economic(trigger: EconomicTrigger, signals: Signals) -> Verdict:
    used, growth = signals.used_tokens, signals.growth_tokens_per_call
    height = optimal_height(_prices(trigger), signals)
    after, _ = compaction_at(_prices(trigger), signals, height)
    why = "cheapest" if height < signals.budget_tokens else "the budget comes before the cheapest size"
    return Verdict(
        used >= height,
        f"{used:,} of {height:,.0f} tokens ({why}: growth {growth:,.0f} per call, {after:,.0f} after a compaction)",
    )


def _prices(trigger: EconomicTrigger) -> Prices:
    if isinstance(trigger.prices, str):
        raise ConfigError(
            f"the economic trigger has no prices for model {trigger.prices!r}: call with_prices(trigger, table) first"
        )
    return trigger.prices


def _joined(verdicts: list[Verdict], word: str, *, due: bool) -> Verdict:
    """Joins verdicts into one sentence; of an "or" that is due, only the triggers that are due."""
    shown = [v for v in verdicts if v.due] if due and word == "or" else verdicts
    parts = [v.explanation if v.due else f"not yet: {v.explanation}" for v in shown]
    return Verdict(due, parts[0] if len(parts) == 1 else f" {word} ".join(f"({p})" for p in parts))
