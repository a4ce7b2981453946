"""Decisions about compaction as values: what to do and why, or why not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ctxfold.history.view import Entry
from ctxfold.messages import Message

__all__ = ["Decision", "Facts", "Hold", "Mode", "Plan"]

Mode: TypeAlias = Literal["close", "cap", "forced"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a decision needs beyond the view.

    `overhead_tokens` is what the request holds besides the view (tools, scratch). `mode`: "close" after a turn (triggers and
    cooldown apply), "cap" when a request must fit, "forced" on demand.
    """

    pins: Collection[str]
    turns_since_summary: int
    turn_id: str | None = None
    overhead_tokens: int = 0
    mode: Mode = "close"


@dataclass(frozen=True, slots=True)
class Plan:
    """One epoch change: `covered` entries give way to a summary, `shown` messages stand in for their originals.

    `turn_id` is set when the covered entries are an open turn's own. `tokens_after` is an upper estimate.
    """

    strategy: str
    reason: str
    tokens_before: int
    tokens_after: int
    covered: tuple[Entry, ...] = ()
    shown: tuple[Message, ...] = ()
    turn_id: str | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """No compaction now, and why; `exhausted` when one is due but would not free enough."""

    reason: str
    exhausted: bool = False


Decision: TypeAlias = Plan | Hold
