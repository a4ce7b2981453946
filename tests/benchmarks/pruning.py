"""Five orders in which tool outputs give way: how many arguments that later calls copy are still visible?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from ctxfold import Message
from ctxfold.compaction.goal import pruning_order
from ctxfold.compaction.tool_outputs import EXCERPT_CHARS, excerpt
from ctxfold.history.records import Subgoal
from ctxfold.history.view import Entry
from ctxfold.policy.settings import PruningOrder
from tests.benchmarks.data import Trajectory, copied_arguments, flat, tau
from tests.benchmarks.replay import COUNTER
from tests.benchmarks.sheets import Cell, Sheet

__all__ = ["KINDS", "SHARES", "Kept", "kept_arguments", "run"]

KINDS: tuple[PruningOrder, ...] = get_args(PruningOrder)
SHARES = (0.25, 0.5, 0.75)
GROUPS = (1, 4)  # runs in one session: one task, or one after the other


@dataclass(frozen=True, slots=True)
class Kept:
    """Of `copied` arguments whose value only tool outputs had said, how many still stood in one when the call was made."""

    kind: PruningOrder
    runs_each: int
    pruned: float
    copied: int
    visible: int


def kept_arguments(kind: PruningOrder, pruned: float, runs_each: int, runs: int | None = None) -> Kept:
    """At every call that copies a value: the tool outputs before it are pruned, in that order, until the share of their tokens is
    gone; then the value is looked for in all that is left."""
    copied = visible = 0
    for messages, groups in _sessions(runs_each, runs):
        texts = [flat(m).casefold() for m in messages]
        stood = [COUNTER.count(m) for m in messages]
        excerpts = [
            excerpt(m, reference=m.id, max_chars=EXCERPT_CHARS) if m.role == "tool" else m
            for m, n in zip(messages, stood, strict=True)
        ]
        short = [flat(m).casefold() for m in excerpts]
        saved = [n - COUNTER.count(m) for m, n in zip(excerpts, stood, strict=True)]
        found = [c for c in copied_arguments(messages) if _only_outputs([messages[i] for i in c.seen])]
        for at in sorted({c.at for c in found}):
            gone = _pruned(kind, messages[:at], groups, pruned, saved)
            for c in (c for c in found if c.at == at):
                copied += 1
                value = c.value.casefold()
                visible += any(value in (short[i] if i in gone else texts[i]) for i in c.seen)
    return Kept(kind, runs_each, pruned, copied, visible)


def _only_outputs(said_by: Sequence[Message]) -> bool:
    """Whether only tool outputs said it; an earlier call's argument says it too, but had copied it itself."""
    roles = {m.role for m in said_by if not m.tool_calls}
    return roles == {"tool"}


def _sessions(runs_each: int, runs: int | None) -> list[tuple[tuple[Message, ...], list[Trajectory]]]:
    found = tau()[:runs]
    groups = [list(found[i : i + runs_each]) for i in range(0, len(found) - runs_each + 1, runs_each)]
    return [(tuple(m for t in group for m in t.messages), group) for group in groups]


def _pruned(
    kind: PruningOrder, messages: Sequence[Message], groups: Sequence[Trajectory], share: float, saved: Sequence[int]
) -> set[int]:
    entries = [Entry(m.id, i + 1, m, 0) for i, m in enumerate(messages)]
    order = pruning_order(entries, kind, subgoals=_subgoals(messages, groups))
    wanted = share * sum(saved[i] for i in order)
    gone: set[int] = set()
    pruned = 0
    for index in order:
        if pruned >= wanted:
            break
        pruned += saved[index]
        gone.add(index)
    return gone


def _subgoals(messages: Sequence[Message], groups: Sequence[Trajectory]) -> tuple[Subgoal, ...]:
    """One per run: what its person says first; those before the newest are completed."""
    seqs = {m.id: seq for seq, m in enumerate(messages, 1)}
    begun = [t for t in groups if t.messages[0].id in seqs]
    return tuple(Subgoal(t.messages[0].text, seqs[t.messages[0].id], completed=t is not begun[-1]) for t in begun)


def measured(runs: int | None = None, shares: Sequence[float] = SHARES) -> list[Kept]:
    """Every order, at every share, for single runs and for several in one session."""
    return [kept_arguments(k, share, each, runs) for each in GROUPS for k in KINDS for share in shares]


def never_better(found: Sequence[Kept]) -> list[str]:
    """Orders that at no share and in no session length keep more than oldest first does."""
    base = {(k.runs_each, k.pruned): k.visible for k in found if k.kind == "reactive"}
    return [
        kind for kind in KINDS[1:] if all(k.visible <= base[k.runs_each, k.pruned] for k in found if k.kind == kind)
    ]


def run(*, quick: bool = False) -> list[Sheet]:
    """One row per order and session length."""
    found = measured(8 if quick else None)
    rows: list[tuple[Cell, ...]] = []
    for each in GROUPS:
        for kind in KINDS:
            mine = [k for k in found if k.kind == kind and k.runs_each == each]
            rows.append((kind, f"{each}", mine[0].copied, *(f"{k.visible / k.copied:.3f}" for k in mine)))
    worst = ", ".join(never_better(found)) or "none"
    return [
        Sheet(
            "tau-bench airline: copied arguments still visible after tool outputs were pruned",
            ("order", "runs per session", "arguments", *(f"{share:.0%} pruned" for share in SHARES)),
            tuple(rows),
            "Arguments whose value only tool outputs had said. Pruned outputs keep an excerpt of 160 characters; all of them "
            f"can be read back by reference. Orders that never beat oldest first (reactive): {worst}.",
        )
    ]
