"""How many tokens there are, who may use them, and what a message costs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ctxfold.errors import ConfigError, WindowTooSmallError
from ctxfold.given import json_problem, whole_number
from ctxfold.media import medium_of, medium_tokens
from ctxfold.messages import (
    MediaPart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
)
from ctxfold.tokens import TextCounter
from ctxfold.trigger import Trigger, with_prices

__all__ = ["MessageCounter", "Policy", "PruningOrder", "check_least", "policy", "resized"]

Learnt: TypeAlias = Literal[
    "summaries", "digest", "tree", "facts", "corrections", "persona", "graph", "trajectory", "strategy"
]
PruningOrder: TypeAlias = Literal["reactive", "task_aware", "mig", "subgoal", "subgoal_mig"]

LEAST_BUDGET_TOKENS = 16  # a user message of about ten words, with what a message costs beside its text
MESSAGE_OVERHEAD_TOKENS = 4  # role and separators, as in OpenAI's published counting recipe for chat messages
LONG_TEXT_CHARS = 20_000  # the counts of longer texts are kept,
LONG_TEXTS = 8  # of the newest so many
MEDIA_KEPT = 1_024  # counts of media that are remembered: a message is counted several times, and its data is large


class Policy(BaseModel):
    """A session's rules, kept in its log so that every face decides alike. Ratios are of `budget_tokens`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    context_window: int = Field(gt=0, description="tokens that the model takes in and gives out, together")
    reply_reserve_tokens: int = Field(gt=0, description="tokens kept free for the reply")
    auto_compact: bool = True
    strategy: str = Field(
        default="tiered",
        description="tiered, summarize, truncate, sliding_window, clear_tools, tool_summaries, or a strategy object's name",
    )
    trigger: Trigger | None = Field(
        default=None, description="when compaction is due, in place of the two ratios below"
    )
    pruning_order: PruningOrder = Field(default="reactive", description="which tool outputs give way first")
    soft_ratio: float = Field(default=0.60, gt=0, le=1)
    hard_ratio: float = Field(default=0.90, gt=0, le=1)
    tail_ratio: float = Field(
        default=0.20,
        gt=0,
        lt=1,
        description="share that the newest messages keep after a summary",
    )
    keep_last: int = Field(
        default=6,
        ge=1,
        description="newest messages kept, where they fit half of the budget",
    )
    min_free_ratio: float = Field(
        default=0.20,
        ge=0,
        lt=1,
        description="an epoch change frees at least this share",
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
        description="share that such an excerpt takes, 160 tokens or more: the smaller, the longer a prefix lasts",
    )
    recall_ratio: float = Field(
        default=0.25,
        ge=0,
        lt=1,
        description="most that recalled passages take; 0 turns it off",
    )
    summary_tokens: int = Field(gt=0, description="upper limit of a summary")
    cooldown_turns: int = Field(
        default=2,
        ge=0,
        description="turns between two summaries, unless the window is full",
    )
    summary_prompt: str | None = Field(
        default=None,
        description="instructions for the summariser in place of the built-in ones; {words} becomes the limit",
    )
    summary_timeout_s: float | None = Field(default=120.0, gt=0, description="per call to the summariser")
    max_summary_calls: int | None = Field(default=None, ge=0, description="calls to the summariser per session")
    probe: bool = Field(default=False, description="a model answers questions from a summary before it is taken")
    background: bool = Field(default=False, description="summaries are prepared off the hot path")
    prepare_ratio: float = Field(
        default=0.75, ge=0, le=1, description="from here on a summary is prepared in the background; 0 turns it off"
    )
    tool_summaries: bool = Field(
        default=False,
        description="older tool outputs are summarised ahead, and the summaries shown when room is needed",
    )
    references: bool = Field(
        default=True,
        description="ledger lines name the messages that they come from: `#17`",
    )
    memory: tuple[Learnt, ...] = Field(
        default=(),
        description="what compactions leave in memory: summaries, digest, tree; and, asked of the summariser in the background, "
        "facts, corrections, persona, graph, trajectory, strategy",
    )
    count_reasoning: bool = True
    alternating_roles: bool = Field(
        default=False,
        description="neighbours of one role are asked as one message, for models whose template wants user and assistant in turns",
    )

    @property
    def budget_tokens(self) -> int:
        """What a request may hold: the window less the reply reserve."""
        return self.context_window - self.reply_reserve_tokens


def policy(
    context_window: int,
    *,
    reply_reserve_tokens: int | None = None,
    summary_tokens: int | None = None,
    **rules: object,
) -> Policy:
    """A Policy with the defaults that depend on the window: reply reserve a fifth, summary a fifth of the rest (64 to 2,048)."""
    window = whole_number("context_window", context_window, "give the model's window in tokens, 1 or more, as a number")
    reserve = max(1, window // 5)
    if reply_reserve_tokens is not None:
        advice = "give the tokens kept free for the reply, 1 or more, or None for a fifth of the window"
        reserve = whole_number("max_tokens (reply_reserve_tokens)", reply_reserve_tokens, advice)
    if reserve >= window:
        raise WindowTooSmallError(
            f"context_window is {window} tokens and the reply reserve {reserve}: nothing is left for the prompt; "
            "raise context_window or lower max_tokens"
        )
    limit = summary_tokens or min(2_048, max(64, (window - reserve) // 5))
    values = {
        "context_window": window,
        "reply_reserve_tokens": reserve,
        "summary_tokens": limit,
        **rules,
    }
    try:
        made = Policy.model_validate(values)
    except ValidationError as error:
        raise _wrong(error) from None
    if made.trigger is not None:
        with_prices(made.trigger, {})  # a model's name in place of its prices is found out now, not at the first turn
    return made


def resized(rules: Policy, context_window: int) -> Policy:
    """Returns the rules for a window of another size. In a smaller one, the reply reserve takes a fifth of it at most."""
    if context_window >= rules.context_window:
        return rules.model_copy(update={"context_window": context_window})
    reserve = min(rules.reply_reserve_tokens, max(1, context_window // 5))
    summary = min(rules.summary_tokens, policy(context_window, reply_reserve_tokens=reserve).summary_tokens)
    return rules.model_copy(
        update={"context_window": context_window, "reply_reserve_tokens": reserve, "summary_tokens": summary}
    )


def check_least(rules: Policy) -> None:
    """Raises WindowTooSmallError for a window in which not even a short question fits."""
    if rules.budget_tokens < LEAST_BUDGET_TOKENS:
        raise WindowTooSmallError(
            f"context_window is {rules.context_window} tokens and the reply reserve {rules.reply_reserve_tokens}: "
            f"{rules.budget_tokens} are left for the prompt, and a short question needs {LEAST_BUDGET_TOKENS}; "
            "raise context_window or lower max_tokens"
        )


# what others call it, and what it is called here
_ELSEWHERE = {
    "async_database_uri": "store",
    "chat_history_token_ratio": "tail_ratio",
    "chat_store": "store",
    "chat_store_key": "session (session_id)",
    "connection": "store",
    "connection_string": "store",
    "keep": "keep_last",
    "llm": "summarizer",
    "max_token_limit": "context_window",
    "max_tokens": "reply_reserve_tokens",
    "model": "summarizer",
    "summarize_prompt": "summary_prompt",
    "token_counter": "counter",
    "token_flush_size": "hard_ratio",
    "token_limit": "context_window",
}


def _wrong(error: ValidationError) -> ConfigError:
    """The first thing that is wrong: which setting, what it is, and what it may be."""
    first = error.errors(include_url=False)[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] != "extra_forbidden":
        hint = ", such as ctxfold.TokensTrigger(at=4_000)" if name == "trigger" else ""
        return ConfigError(f"policy setting {name} is {repr(first['input'])[:80]}: {first['msg']}{hint}")
    if name in _ELSEWHERE:
        return ConfigError(f"there is no setting {name!r}: here it is {_ELSEWHERE[name]}")
    near = get_close_matches(name, Policy.model_fields, cutoff=0.65)
    known = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(Policy.model_fields)}"
    return ConfigError(f"there is no setting {name!r}: {known}")


class MessageCounter:
    """Tokens of whole messages and tools: visible text, tool calls and results, media, and reasoning when it is sent."""

    def __init__(self, text: TextCounter, *, count_reasoning: bool = True) -> None:
        self._text = text
        # a long text is counted several times on its way into the view, the first time in a worker thread
        self._long = lru_cache(maxsize=LONG_TEXTS)(text.count)
        self._count_reasoning = count_reasoning
        self._media: dict[tuple[str, str | None, int, int], int] = {}
        self.id = f"{text.id}{'+reasoning' if count_reasoning else ''}"

    def count(self, message: Message) -> int:
        total = MESSAGE_OVERHEAD_TOKENS
        for part in message.parts:
            match part:
                case TextPart(text=text):
                    total += self.count_text(text)
                case ReasoningPart(text=text):
                    total += self._text.count(text) if self._count_reasoning else 0
                case ToolCallPart():
                    total += MESSAGE_OVERHEAD_TOKENS + self._text.count(f"{part.id}{part.name}{part.arguments}")
                case ToolResultPart():
                    total += self.count_text(part.content) + self._text.count(part.call_id)
                case MediaPart():
                    total += self._of_medium(part)
                case _:
                    continue
        return total

    def _of_medium(self, part: MediaPart) -> int:
        key = (part.kind, part.mime, len(part.data), hash(part.data))
        known = self._media.get(key)
        if known is None:
            known = medium_tokens(medium_of(part), self.count_text)
            if len(self._media) >= MEDIA_KEPT:
                self._media.clear()
            self._media[key] = known
        return known

    def count_all(self, messages: Iterable[Message]) -> int:
        return sum(self.count(m) for m in messages)

    def count_text(self, text: str) -> int:
        return self._long(text) if len(text) >= LONG_TEXT_CHARS else self._text.count(text)

    def count_tools(self, tools: Iterable[ToolSpec]) -> int:
        """Tools cost what their JSON schema costs. ConfigError for a schema that JSON cannot hold."""
        return sum(MESSAGE_OVERHEAD_TOKENS + self._text.count(_schema(t)) for t in tools)


def _schema(tool: ToolSpec) -> str:
    try:
        return json.dumps([tool.name, tool.description, dict(tool.parameters)], ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"JSON cannot hold the parameters of tool {tool.name!r} ({json_problem(error)}): give a JSON schema of plain values"
        ) from None
