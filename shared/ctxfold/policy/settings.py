"""Defines the settings of a session (`Policy`), and makes them from the arguments of constructors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Literal, Self, TypeAlias, TypedDict, Unpack, cast

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
from ctxfold.policy.triggers import Amount, Trigger, TriggerLike, with_prices
from ctxfold.validation import whole_number

Learnt: TypeAlias = Literal[
    "summaries", "digest", "tree", "facts", "corrections", "persona", "graph", "trajectory", "strategy"
]
PruningOrder: TypeAlias = Literal["reactive", "task_aware", "mig", "subgoal", "subgoal_mig"]

LEAST_BUDGET_TOKENS = 16  # a user message of about ten words, with what a message costs beside its text
MAX_SESSIONS = 256  # that an engine keeps open, where the user says nothing
SMALL_TOKENS = 1_600  # budget from which on summaries, and the part of the tail that stays, grow faster than the budget
SMALL_SUMMARY_TOKENS = 160  # of a summary in such a budget
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
        default=0.20, gt=0, lt=1, description="share that the newest messages take after a summary"
    )
    keep_last: int = Field(default=6, ge=1, description="newest messages that stay when they fit half of the budget")
    min_free_ratio: float = Field(default=0.20, ge=0, lt=1, description="share that a compaction has to free at least")
    pin_ratio: float = Field(default=0.25, gt=0, lt=1)
    tool_result_ratio: float = Field(
        default=0.25, gt=0, lt=1, description="a larger tool result is shown as an excerpt"
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
        default=0.80, ge=0, lt=1, description="largest share of recalled passages; 0 turns recall off"
    )
    recall_tokens: int = Field(
        default=4_096,
        ge=0,
        description="most tokens of recalled passages, whatever their share: they are new to the prompt cache in each request",
    )
    summary_tokens: int = Field(
        gt=0,
        description="upper limit of a summary; of 2,000 or more, without the state of an agent's work, at most 300",
    )
    cooldown_turns: int = Field(default=2, ge=0, description="turns between two summaries, unless the window is full")
    summary_prompt: str | None = Field(
        default=None,
        description="instructions for the summarizer in place of the built-in ones; {words} is replaced by the limit",
    )
    summary_timeout_s: float | None = Field(default=120.0, gt=0, description="per call to the summarizer")
    max_summary_calls: int | None = Field(default=None, ge=0, description="calls to the summarizer per session")
    probe: bool = Field(
        default=False, description="a model answers questions from a summary before the summary is accepted"
    )
    strict_summaries: bool = Field(
        default=False, description="a summary that no model wrote is refused with SummarizationFailedError"
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
        description="summaries, excerpts and recalled passages name the messages that they come from, such as `#17`",
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

    @field_validator("memory", mode="before")
    @classmethod
    def _one_kind(cls, memory: object) -> object:
        return (memory,) if isinstance(memory, str) else memory

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
    trigger: TriggerLike | None
    keep: float | Amount
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
    strict_summaries: bool
    background: bool
    prepare_ratio: float
    tool_summaries: bool
    references: bool
    memory: Learnt | tuple[Learnt, ...]
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

    The reply reserve takes a fifth of the window, a summary at most a fifth of the rest (64 to 2,048 tokens), and less where that
    rest is between 800 and 3,200 tokens. Raises ConfigError for an unknown setting or a value that is not allowed,
    WindowTooSmallError when the reply reserve leaves nothing for the prompt.
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
    values: dict[str, object] = {"context_window": window, "reply_reserve_tokens": reserve, **settings}
    if strategy is not None:  # one that is not given stays unset, so that a stored session keeps its own
        values["strategy"] = strategy
    if values.pop("keep", None) is not None and "keep" in settings:
        values |= kept(settings["keep"], window - reserve)
    values["summary_tokens"] = values.get("summary_tokens") or _summary_tokens(window - reserve)
    try:
        policy = Policy.model_validate(values)
    except ValidationError as error:
        raise _config_error(error) from None
    if policy.trigger is not None:
        with_prices(policy.trigger, {})  # a model name in place of prices is an error now, not at the first turn
    return policy


def kept(keep: float | Amount, budget_tokens: int) -> dict[str, object]:
    """Returns the settings for the newest messages that `keep` names: a number of them, their tokens, or their share."""
    usual = "fraction" if isinstance(keep, float) else "messages"
    kind, amount = keep if isinstance(keep, tuple | list) and len(keep) == 2 else (usual, keep)
    if kind == "messages" and type(amount) is int and amount > 0:
        return {"keep_last": amount}
    share = amount if kind == "fraction" else amount / budget_tokens if kind == "tokens" and type(amount) is int else 0
    if type(share) is float and 0 < share < 1:
        return {"keep_last": 1, "tail_ratio": share}
    shapes = "4, ('messages', 4), ('tokens', 1_000) or ('fraction', 0.2)"
    raise ConfigError(
        f"keep is {repr(keep)[:80]}: give the newest messages that stay as {shapes}, less than the budget of {budget_tokens} tokens"
    )


def _summary_tokens(budget_tokens: int) -> int:
    """Returns the limit of a summary: a fifth of the budget.

    It is 160 of 800 to 2,000 tokens, where recall needs the room more, and grows from there to the fifth of 3,200.
    """
    share = min(budget_tokens // 5, max(SMALL_SUMMARY_TOKENS, 2 * (budget_tokens - SMALL_TOKENS) // 5))
    return min(2_048, max(64, share))


def policy_from(
    base: Policy,
    *,
    context_window: int | None,
    reply_reserve_tokens: int | None,
    strategy: str | None,
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
}

# what is meant by names of other libraries: of the settings the first that there is, or what to do instead
_MEANT_BY = (
    ("context_window", "context_length context_size max_context_tokens max_input_tokens max_token_limit token_limit"),
    ("context_window", "window"),
    ("context_window limits the whole conversation; the limit of one reply is an argument of its call", "max_tokens"),
    ("reply_reserve_tokens", "max_completion_tokens max_output_tokens num_output"),
    ("give trigger=('tokens', 4_000) with that number", "max_tokens_before_summary"),
    ("give trigger=('messages', 50) with that number", "max_messages"),
    ("keep_last", "buffer_size k messages_to_keep n_messages window_size"),
    ("hard_ratio", "chat_history_token_ratio"),
    ("min_free_ratio", "clear_at_least token_flush_size"),
    ("summary_tokens", "max_summary_tokens"),
    ("summary_prompt", "initial_summary_prompt summarize_prompt summary_template"),
    ("leave it out: a summary has its own heading, and summary_prompt says how it is written", "summary_prefix"),
    ("leave it out: long spans go in parts, and summary_tokens limits the summary", "trim_tokens_to_summarize"),
    ("counter", "token_counter tokenizer tokenizer_fn"),
    ("model|llm|backend|summarizer", "llm model summarizer"),
    ("store", "async_database_uri async_engine chat_memory chat_store checkpointer connection connection_string"),
    ("store", "database_url db path sql_store uri url"),
    ("leave it out: a store has tables of its own", "db_schema table_name"),
    ("session_id", "chat_store_key conversation_id session thread thread_id"),
    ("owner", "user user_id"),
    ("base_url", "api_base"),
    ("system|the first message of the list is the system prompt", "instructions system system_message system_prompt"),
    (
        "leave it out: system prompt, whole tool rounds and newest question always stay",
        "end_on include_system start_on",
    ),
    ("leave it out: no message is ever cut in two", "allow_partial"),
    ("sections", "memory_blocks memory_blocks_template"),
    ("leave it out: Section(place=...) says where a text stands", "insert_method"),
    ("leave it out: that is always so", "count_initial_tokens return_messages"),
    ("it is an argument of a call, such as send, or of the model", "stop temperature tools"),
    ("it goes to the agent or the chat engine, and not to the model", "memory"),
    ("truncate", "last trim"),  # a strategy, as the next one
    ("summarize", "summary"),
)
_FIELDS = Policy.model_fields
_FOREIGN = {name: meaning for meaning, names in _MEANT_BY for name in names.split()}


def _config_error(error: ValidationError) -> ConfigError:
    """Returns the error for the first wrong setting: its name, its value and the values that it may have."""
    first = error.errors(include_url=False)[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] != "extra_forbidden":
        hint = f", such as {_EXAMPLES[name]}" if name in _EXAMPLES and first["type"] != "value_error" else ""
        problem = first["msg"].removeprefix("Value error, ")
        return ConfigError(f"policy setting {name} is {repr(first['input'])[:80]}: {problem}{hint}")
    return unknown_setting(name)


def meant_by(name: str, known: Collection[str]) -> str | None:
    """Returns what a name of another library means here: one of the `known` names, or advice; None for a name of no library."""
    meanings = _FOREIGN.get(name, "").split("|")
    return next((meaning for meaning in meanings if meaning in known or " " in meaning), meanings[-1]) or None


def unknown_setting(name: str, parameters: Sequence[str] = (), fields: Collection[str] = _FIELDS) -> ConfigError:
    """Returns the error for a setting that neither a policy nor a constructor with these parameters has.

    A constructor of no session has no `fields` of a policy.
    """
    names = tuple(dict.fromkeys((*fields, *parameters)))
    if (meant := meant_by(name, names)) is not None and meant != name:
        return ConfigError(f"there is no setting {name!r}: {meant if ' ' in meant else f'ctxfold calls it {meant}'}")
    near = get_close_matches(name, names, cutoff=0.65)
    known = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names)}"
    return ConfigError(f"there is no setting {name!r}: {known}")


def check_settings(
    given: Iterable[str], known: Collection[str], parameters: Sequence[str], fields: Collection[str] = _FIELDS
) -> None:
    """Raises ConfigError for a name that is not known; `parameters` and `fields` are those that its error may name instead."""
    if unknown := next((name for name in given if name not in known), None):
        raise unknown_setting(unknown, parameters, fields)


def session_limit(max_sessions: object) -> int:
    """Returns how many sessions an engine keeps open; ConfigError for what is no whole number of 1 or more."""
    if max_sessions is None:
        return MAX_SESSIONS
    return whole_number("max_sessions", max_sessions, "give how many sessions may stay open in memory, 1 or more")
