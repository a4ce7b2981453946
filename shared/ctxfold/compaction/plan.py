"""Decisions about compaction as values: what to do and why, or why not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ctxfold.history.records import Subgoal
from ctxfold.history.view import Entry
from ctxfold.messages import Message

__all__ = ["Decision", "Facts", "Hold", "Mode", "Plan", "Writer"]

Mode: TypeAlias = Literal["close", "cap", "forced"]
Writer: TypeAlias = Literal["model", "extractive", "note", "nobody"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a decision needs beyond the view.

    `overhead_tokens` is what the request holds besides the view (tools, scratch). `mode`: "close" after a turn (triggers and
    cooldown apply), "cap" when a request must fit, "forced" on demand. `idle_s` is the time since the last message, where a
    turn begins. `deferred` are stand-ins for tool outputs that wait to be shown, by message id.
    """

    pins: Collection[str]
    turns_since_summary: int
    turn_id: str | None = None
    overhead_tokens: int = 0
    mode: Mode = "close"
    idle_s: float = 0.0
    goal: str = ""
    subgoals: tuple[Subgoal, ...] = ()
    deferred: Mapping[str, Entry] = field(default_factory=dict[str, Entry])


@dataclass(frozen=True, slots=True)
class Plan:
    """One epoch change: `covered` entries give way to a summary, `shown` messages stand in for their originals.

    `writer` says who writes the summary: the model (with its fallbacks), the extractive summary, a one-line note, or nobody: the
    entries leave without a word. `text` is a summary that is written already. `rewrite` makes the new message list when it is
    called, and may be async; what it changed then becomes the plan. `turn_id` is set when the covered entries are an open turn's
    own; with `within` they are live ones, and the summary takes their place among them.
    `tokens_after` is an upper estimate.
    """

    strategy: str
    reason: str
    tokens_before: int
    tokens_after: int
    covered: tuple[Entry, ...] = ()
    shown: tuple[Message, ...] = ()
    turn_id: str | None = None
    writer: Writer = "model"
    text: str | None = None
    rewrite: Callable[[], Sequence[Message] | Awaitable[Sequence[Message]]] | None = None
    within: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """No compaction now, and why; `exhausted` when one is due but would not free enough."""

    reason: str
    exhausted: bool = False


Decision: TypeAlias = Plan | Hold
