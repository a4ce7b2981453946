"""Defines the settings of a session (`Policy`), the triggers of compaction, and the prices of tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, TypeAlias, TypedDict, Unpack, assert_never, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from ctxfold.errors import ConfigError, WindowTooSmallError
from ctxfold.messages import Usage
from ctxfold.validation import whole_number

MTOK = 1_000_000


class Prices(BaseModel):
    """Prices per million tokens, in one currency of the user's choice."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    input_per_mtok: float = Field(ge=0, description="input that was neither read from the cache nor written to it")
    cache_read_per_mtok: float = Field(ge=0)
    cache_write_per_mtok: float = Field(ge=0)
    output_per_mtok: float = Field(ge=0, description="reasoning included")

    @classmethod
    def relative(cls, *, read: float = 0.1, write: float = 1.25, output: float = 5) -> Self:
        """Returns prices in units of a plain input token, for decisions in which the currency does not matter."""
        return cls(input_per_mtok=1, cache_read_per_mtok=read, cache_write_per_mtok=write, output_per_mtok=output)


def cost(usage: Usage, prices: Prices) -> float:
    """Returns the cost of the usage. Reasoning counts as output, cache hits and cache writes as input."""
    plain = max(0, usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens)
    total = (
        plain * prices.input_per_mtok
        + usage.cache_read_tokens * prices.cache_read_per_mtok
        + usage.cache_write_tokens * prices.cache_write_per_mtok
        + usage.output_tokens * prices.output_per_mtok
    )
    return total / MTOK


@dataclass(frozen=True, slots=True)
class CostLine:
    """The cost of a session, summary calls included, and what the cache and compaction saved.

    A saving is negative when caching or compaction cost more than it saved.
    """

    spent: float = 0.0
    saved_by_cache: float = 0.0
    saved_by_compaction: float = 0.0

    def __add__(self, other: CostLine) -> CostLine:
        return CostLine(
            self.spent + other.spent,
            self.saved_by_cache + other.saved_by_cache,
            self.saved_by_compaction + other.saved_by_compaction,
        )

    def __str__(self) -> str:
        return (
            f"spent {self.spent:.4f}, saved by cache {self.saved_by_cache:.4f}, "
            f"saved by compaction {self.saved_by_compaction:.4f}"
        )


def cost_line(
    usage: Usage, prices: Prices, *, uncompacted_input_tokens: int, summaries: Usage | None = None
) -> CostLine:
    """Returns what a session spent and saved.

    `usage` sums the calls of the conversation, `summaries` those of the summarizer. `uncompacted_input_tokens` is the input that
    the same calls would have had without compaction. The difference is priced as cache reads when the provider reported any hit
    (old history would have been one), else as plain input, less the cost of the summary calls. `spent` already includes the cache
    writes that compaction caused.
    """
    summary_usage = summaries or Usage()
    total = usage + summary_usage
    uncached = Usage(input_tokens=total.input_tokens, output_tokens=total.output_tokens)
    spent = cost(total, prices)
    avoided = uncompacted_input_tokens - usage.input_tokens
    price = prices.cache_read_per_mtok if usage.cache_read_tokens else prices.input_per_mtok
    return CostLine(
        spent=spent,
        saved_by_cache=cost(uncached, prices) - spent,
        saved_by_compaction=avoided * price / MTOK - cost(summary_usage, prices),
    )


@dataclass(frozen=True, slots=True)
class Signals:
    """The measurements that a trigger decides on.

    `used_tokens` is the size of the next request, `prompt_tokens` the part of it that is system prompts. `messages` and `turns`
    count the live conversation, without system prompts and summaries. `idle_s` is the time since the last call to the model. The
    other four are for the economic trigger: the growth of the request from one call to the next, its size right after a
    compaction, the length of a summary, and the share of the request before a compaction that stays verbatim in addition to
    `size_after_tokens`.
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


Trigger: TypeAlias = Annotated[
    RatioTrigger | TokensTrigger | MessagesTrigger | TurnsTrigger | ColdCacheTrigger | EconomicTrigger | AllOf | AnyOf,
    Field(discriminator="kind"),
]
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


def optimal_height(
    prices: Prices, *, growth: float, size_after: float, summary: float, tail_ratio: float = 0.0
) -> float:
    """Returns the context size H* at which compaction gives the lowest cost per call; infinite when it never saves anything.

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
    match trigger:
        case AllOf(triggers=triggers) | AnyOf(triggers=triggers):
            return any(map(depends_on_idle_time, triggers))
        case _:
            return isinstance(trigger, ColdCacheTrigger)


def counts(trigger: Trigger) -> bool:
    """Returns True when the trigger names an amount (tokens, messages or turns), which holds whatever the size of the window."""
    match trigger:
        case AllOf(triggers=triggers) | AnyOf(triggers=triggers):
            return any(map(counts, triggers))
        case _:
            return isinstance(trigger, TokensTrigger | MessagesTrigger | TurnsTrigger)


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
            return math.ceil(min(signals.budget_tokens, _cheapest_height(trigger, signals)))
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
    used, budget, growth = signals.used_tokens, signals.budget_tokens, signals.growth_tokens_per_call
    best = _cheapest_height(trigger, signals)
    if growth <= 0:
        return Verdict(
            used >= budget, f"{used:,} of {budget:,} tokens, no growth per call known: due when the budget is full"
        )
    height = min(best, budget)
    after = signals.size_after_tokens + signals.tail_ratio * height
    why = f"cheapest at {best:,.0f}" if best <= budget else "the budget comes before the cheapest size"
    return Verdict(
        used >= height,
        f"{used:,} of {height:,.0f} tokens ({why}: growth {growth:,.0f} per call, {after:,.0f} after a "
        f"compaction, summary {signals.summary_tokens:,})",
    )


def _cheapest_height(trigger: EconomicTrigger, signals: Signals) -> float:
    """Returns the size with the lowest cost per call; the budget as long as no growth per call is known."""
    prices = trigger.prices
    if isinstance(prices, str):
        raise ConfigError(
            f"the economic trigger has no prices for model {prices!r}: call with_prices(trigger, table) first"
        )
    if signals.growth_tokens_per_call <= 0:
        return signals.budget_tokens
    return optimal_height(
        prices,
        growth=signals.growth_tokens_per_call,
        size_after=signals.size_after_tokens,
        summary=signals.summary_tokens,
        tail_ratio=signals.tail_ratio,
    )


def _joined(verdicts: list[Verdict], word: str, *, due: bool) -> Verdict:
    """Joins verdicts into one sentence; of an "or" that is due, only the triggers that are due."""
    shown = [v for v in verdicts if v.due] if due and word == "or" else verdicts
    parts = [v.explanation if v.due else f"not yet: {v.explanation}" for v in shown]
    return Verdict(due, parts[0] if len(parts) == 1 else f" {word} ".join(f"({p})" for p in parts))


Learnt: TypeAlias = Literal[
    "summaries", "digest", "tree", "facts", "corrections", "persona", "graph", "trajectory", "strategy"
]
PruningOrder: TypeAlias = Literal["reactive", "task_aware", "mig", "subgoal", "subgoal_mig"]

LEAST_BUDGET_TOKENS = 16  # a user message of about ten words, with what a message costs beside its text
MAX_SESSIONS = 256  # that an engine keeps open, where the user says nothing
EXCERPT_TOKENS = 160  # least size of the excerpt of an output that is too large from the first time on


class ToolRule(BaseModel):
    """Says how the outputs of one tool are compacted.

    Attributes:
        tool: the name of the tool, as the model calls it.
        clear_first: outputs of this tool are replaced before those of other tools, even new ones; only outputs that the model
            has not seen yet stay. Other tools' outputs stay when that frees enough.
        excerpt_tokens: upper limit of an output, in tokens. Of a larger one the model only ever sees an excerpt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tool: str = Field(min_length=1)
    clear_first: bool = False
    excerpt_tokens: int | None = Field(default=None, ge=EXCERPT_TOKENS)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.clear_first and self.excerpt_tokens is None:
            raise ValueError(
                f"the rule for tool {self.tool!r} is empty: give clear_first=True or excerpt_tokens, or name the tool in "
                "exclude_tools"
            )
        return self


class Policy(BaseModel):
    """The settings of a session, stored in its log so that every entry point decides alike. Ratios are shares of
    `budget_tokens`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    context_window: int = Field(gt=0, description="tokens of prompt and reply together")
    reply_reserve_tokens: int = Field(gt=0, description="tokens kept free for the reply")
    auto_compact: bool = True
    strategy: str = Field(
        default="tiered",
        description="tiered, summarize, provider, truncate, sliding_window, clear_tools, tool_summaries, or an object's name",
    )
    trigger: Trigger | None = Field(
        default=None, description="when compaction is due, in place of the two ratios below"
    )
    pruning_order: PruningOrder = Field(default="reactive", description="which tool outputs are cleared first")
    soft_ratio: float = Field(default=0.60, gt=0, le=1)
    hard_ratio: float = Field(default=0.90, gt=0, le=1)
    tail_ratio: float = Field(
        default=0.20,
        gt=0,
        lt=1,
        description="share that the newest messages take after a summary",
    )
    keep_last: int = Field(
        default=6,
        ge=1,
        description="newest messages that stay when they fit half of the budget",
    )
    min_free_ratio: float = Field(
        default=0.20,
        ge=0,
        lt=1,
        description="share that a compaction has to free at least",
    )
    pin_ratio: float = Field(default=0.25, gt=0, lt=1)
    tool_result_ratio: float = Field(
        default=0.25,
        gt=0,
        lt=1,
        description="a larger tool result is shown as an excerpt",
    )
    excerpt_ratio: float = Field(
        default=0.01,
        gt=0,
        lt=1,
        description="share of such an excerpt, 160 tokens or more; a smaller one keeps the cached prefix longer",
    )
    exclude_tools: tuple[str, ...] = Field(
        default=(), description="tools whose outputs and arguments are never shortened; a summary may stand for them"
    )
    tool_rules: tuple[ToolRule, ...] = Field(
        default=(), description="for single tools: whether their outputs give way first, and how large they may be"
    )
    recall_ratio: float = Field(
        default=0.70,
        ge=0,
        lt=1,
        description="largest share of recalled passages; 0 turns recall off",
    )
    recall_tokens: int = Field(
        default=4_096,
        ge=0,
        description="most tokens of recalled passages, whatever their share: they are new to the prompt cache in each request",
    )
    summary_tokens: int = Field(gt=0, description="upper limit of a summary")
    cooldown_turns: int = Field(
        default=2,
        ge=0,
        description="turns between two summaries, unless the window is full",
    )
    summary_prompt: str | None = Field(
        default=None,
        description="instructions for the summarizer in place of the built-in ones; {words} is replaced by the limit",
    )
    summary_timeout_s: float | None = Field(default=120.0, gt=0, description="per call to the summarizer")
    max_summary_calls: int | None = Field(default=None, ge=0, description="calls to the summarizer per session")
    probe: bool = Field(
        default=False, description="a model answers questions from a summary before the summary is accepted"
    )
    background: bool = Field(default=False, description="summaries are prepared in the background")
    prepare_ratio: float = Field(
        default=0.75,
        ge=0,
        le=1,
        description="share from which on a summary is prepared in the background; 0 turns it off",
    )
    tool_summaries: bool = Field(
        default=False,
        description="older tool outputs are summarized ahead; the summaries are shown when the window fills",
    )
    references: bool = Field(
        default=True,
        description="lines of a summary name their source messages, such as `#17`",
    )
    memory: tuple[Learnt, ...] = Field(
        default=(),
        description="what compactions store in memory: summaries, digest, tree; and, extracted in the background by a model, "
        "facts, corrections, persona, graph, trajectory, strategy",
    )
    count_reasoning: bool = True
    alternating_roles: bool = Field(
        default=False,
        description="adjacent messages of one role are sent as one, for models whose template demands alternating roles",
    )

    @field_validator("tool_rules")
    @classmethod
    def _one_rule_each(cls, tool_rules: tuple[ToolRule, ...], info: ValidationInfo) -> tuple[ToolRule, ...]:
        names = [rule.tool for rule in tool_rules]
        excluded: tuple[str, ...] = info.data.get("exclude_tools", ())
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"tool {name!r} has {names.count(name)} rules: join them into one ToolRule")
            if name in excluded:
                raise ValueError(
                    f"tool {name!r} is in exclude_tools too, so its outputs are never compacted: give one of the two"
                )
        return tool_rules

    @model_serializer(mode="wrap")
    def _without_empty_rules(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out rules of tools where there are none: a release that does not know them reads the session."""
        fields: dict[str, Any] = dump(self)
        return {name: value for name, value in fields.items() if value or name not in ("exclude_tools", "tool_rules")}

    @property
    def recall_share_tokens(self) -> int:
        """Returns the most tokens that recalled passages may take."""
        return min(int(self.recall_ratio * self.budget_tokens), self.recall_tokens)

    @property
    def budget_tokens(self) -> int:
        """Returns the largest size of a request: the window less the reply reserve."""
        return self.context_window - self.reply_reserve_tokens


class PolicyFields(TypedDict, total=False):
    """The fields of `Policy` that constructors take as keyword arguments.

    `context_window`, `reply_reserve_tokens` and `strategy` are missing, because constructors have parameters of these names.
    """

    auto_compact: bool
    trigger: Trigger | None
    pruning_order: PruningOrder
    soft_ratio: float
    hard_ratio: float
    tail_ratio: float
    keep_last: int
    min_free_ratio: float
    pin_ratio: float
    tool_result_ratio: float
    excerpt_ratio: float
    exclude_tools: tuple[str, ...]
    tool_rules: tuple[ToolRule, ...]
    recall_ratio: float
    recall_tokens: int
    summary_tokens: int
    cooldown_turns: int
    summary_prompt: str | None
    summary_timeout_s: float | None
    max_summary_calls: int | None
    probe: bool
    background: bool
    prepare_ratio: float
    tool_summaries: bool
    references: bool
    memory: tuple[Learnt, ...]
    count_reasoning: bool
    alternating_roles: bool


class PolicyChanges(PolicyFields, total=False):
    """All fields of `Policy`, for `set_policy`."""

    context_window: int
    reply_reserve_tokens: int
    strategy: str


def policy_for(
    context_window: int,
    *,
    reply_reserve_tokens: int | None = None,
    strategy: str | None = None,
    **settings: Unpack[PolicyFields],
) -> Policy:
    """Returns a Policy for a window, with the defaults that depend on its size.

    The reply reserve takes a fifth of the window, a summary a fifth of the rest (64 to 2,048 tokens). Raises ConfigError for an
    unknown setting or a value that is not allowed, WindowTooSmallError when the reply reserve leaves nothing for the prompt.
    """
    window = whole_number("context_window", context_window, "give the model's window in tokens, 1 or more, as a number")
    reserve = max(1, window // 5)
    if reply_reserve_tokens is not None:
        advice = "give the tokens kept free for the reply, 1 or more, or None for a fifth of the window"
        reserve = whole_number("reply_reserve_tokens", reply_reserve_tokens, advice)
    if reserve >= window:
        raise WindowTooSmallError(
            f"context_window is {window} tokens and the reply reserve {reserve}: nothing is left for the prompt; "
            "raise context_window or lower reply_reserve_tokens"
        )
    values: dict[str, object] = {
        "context_window": window,
        "reply_reserve_tokens": reserve,
        **settings,
    }
    if strategy is not None:  # one that is not given stays unset, so that a stored session keeps its own
        values["strategy"] = strategy
    values["summary_tokens"] = values.get("summary_tokens") or min(2_048, max(64, (window - reserve) // 5))
    try:
        made = Policy.model_validate(values)
    except ValidationError as error:
        raise _config_error(error) from None
    if made.trigger is not None:
        with_prices(made.trigger, {})  # a model name in place of prices is an error now, not at the first turn
    return made


def policy_from(
    base: Policy,
    *,
    context_window: int | None = None,
    reply_reserve_tokens: int | None = None,
    strategy: str | None = None,
    **settings: Unpack[PolicyFields],
) -> Policy:
    """Returns the policy with other settings; what is None or not given stays as in `base`.

    Another window changes the reply reserve and the length of summaries as `resized` does. Raises what `policy_for` raises.
    """
    if context_window is not None:
        window = whole_number(
            "context_window", context_window, "give the model's window in tokens, 1 or more, as a number"
        )
        base = resized(base, window)
    named = {"reply_reserve_tokens": reply_reserve_tokens, "strategy": strategy}
    overrides = {name: value for name, value in named.items() if value is not None}
    # a strategy that the policy leaves unset stays unset, so that a stored session keeps its own
    own = {name: value for name, value in base if name in base.model_fields_set}
    values = cast("Any", {**own, **overrides, **settings})
    return policy_for(**values)


def resized(rules: Policy, context_window: int) -> Policy:
    """Returns the policy for a window of another size. In a smaller one, the reply reserve takes at most a fifth."""
    if context_window >= rules.context_window:
        return rules.model_copy(update={"context_window": context_window})
    reserve = min(rules.reply_reserve_tokens, max(1, context_window // 5))
    summary = min(rules.summary_tokens, policy_for(context_window, reply_reserve_tokens=reserve).summary_tokens)
    return rules.model_copy(
        update={"context_window": context_window, "reply_reserve_tokens": reserve, "summary_tokens": summary}
    )


def needs_goal(rules: Policy) -> bool:
    """Returns True when tool outputs give way in an order that depends on the goal of the conversation."""
    prunes = rules.strategy not in ("provider", "summarize", "truncate", "sliding_window")
    return prunes and rules.pruning_order != "reactive"


def needs_tool_summaries(rules: Policy) -> bool:
    """Returns True when tool outputs are summarised ahead of time."""
    return rules.tool_summaries or rules.strategy == "tool_summaries"


def check_least(rules: Policy) -> None:
    """Raises WindowTooSmallError for a window in which not even a short question fits."""
    if rules.budget_tokens < LEAST_BUDGET_TOKENS:
        raise WindowTooSmallError(
            f"context_window is {rules.context_window} tokens and the reply reserve {rules.reply_reserve_tokens}: "
            f"{rules.budget_tokens} are left for the prompt, and a short question needs {LEAST_BUDGET_TOKENS}; "
            "raise context_window or lower reply_reserve_tokens"
        )


_EXAMPLES = {
    "exclude_tools": "exclude_tools=('read_memory',)",
    "tool_rules": "tool_rules=(ctxfold.ToolRule(tool='browse', clear_first=True),)",
    "trigger": "ctxfold.TokensTrigger(at=4_000)",
}

# names of other libraries, and the settings that correspond to them
_FOREIGN_NAMES = {
    "async_database_uri": "store",
    "chat_history_token_ratio": "hard_ratio",
    "clear_at_least": "min_free_ratio",
    "chat_store": "store",
    "chat_store_key": "session_id",
    "connection": "store",
    "connection_string": "store",
    "keep": "keep_last",
    "llm": "summarizer",
    "max_token_limit": "context_window",
    "max_tokens": "reply_reserve_tokens",
    "model": "summarizer",
    "session": "session_id",
    "summarize_prompt": "summary_prompt",
    "thread": "session_id",
    "thread_id": "session_id",
    "token_counter": "counter",
    "token_flush_size": "min_free_ratio",
    "token_limit": "context_window",
}


def _config_error(error: ValidationError) -> ConfigError:
    """Returns the error for the first wrong setting: its name, its value and the values that it may have."""
    first = error.errors(include_url=False)[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] != "extra_forbidden":
        hint = f", such as {_EXAMPLES[name]}" if name in _EXAMPLES and first["type"] != "value_error" else ""
        problem = first["msg"].removeprefix("Value error, ")
        return ConfigError(f"policy setting {name} is {repr(first['input'])[:80]}: {problem}{hint}")
    return unknown_setting(name)


def unknown_setting(name: str, parameters: Sequence[str] = ()) -> ConfigError:
    """Returns the error for a setting that neither a policy nor a constructor with these parameters has."""
    if name in _FOREIGN_NAMES:
        return ConfigError(f"there is no setting {name!r}: ctxfold calls it {_FOREIGN_NAMES[name]}")
    names = tuple(dict.fromkeys((*Policy.model_fields, *parameters)))
    near = get_close_matches(name, names, cutoff=0.65)
    known = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names)}"
    return ConfigError(f"there is no setting {name!r}: {known}")


def session_limit(max_sessions: object) -> int:
    """Returns how many sessions an engine keeps open; ConfigError for what is no whole number of 1 or more."""
    if max_sessions is None:
        return MAX_SESSIONS
    return whole_number("max_sessions", max_sessions, "give how many sessions may stay open in memory, 1 or more")
