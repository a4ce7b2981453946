"""One section over the one table of memory items, with a row of terms for each kind."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ctxfold.errors import ConfigError
from ctxfold.flow import Flow
from ctxfold.history.items import MemoryItem
from ctxfold.journal import Journal
from ctxfold.memory.keep import Memories, Recollection, ranked_items, told, visible
from ctxfold.memory.kinds import MEMORY_KINDS, MemoryKind
from ctxfold.ports import Ports
from ctxfold.zones.section import Answer, Item, Kept, Query, Section

__all__ = ["memory_section"]

NEIGHBOUR = 0.5  # of the score of the relation that it was reached by


def memory_section(kind: str, **terms: Any) -> Section:
    """A section of what is remembered: "facts", "corrections", "persona", "graph", "trajectory", "strategy", "summaries", "digest",
    "cross_session" or "tree". `terms` are those of `Section`.

    Corrections, persona and digest are shown whatever is asked, the others where they share a word with the question.
    """
    if kind not in MEMORY_KINDS:
        raise ConfigError(f"memory kind {kind!r}: use one of {', '.join(MEMORY_KINDS)}")
    return Section(kind, Kept(partial(_asked, kind)), **terms)


def _asked(kind: str, journal: Journal, query: Query, ports: Ports) -> Flow[Answer]:
    row, key = MEMORY_KINDS[kind], journal.key
    items = visible((yield from Memories(key.owner, [row.reads or kind])), key)
    if row.others:
        items = [i for i in items if i.session != key.session]
    ranking = ranked_items(items, query.text)
    found = [r for r in ranking if r.score > 0 or row.unasked]
    if row.neighbours:
        found += _neighbours(found, ranking, row)
    if kind == "tree":
        found = _downwards(found, ranking)
    return [Item(told(r.item), source=_source(r.item, row), id=r.item.id) for r in found]


def _neighbours(found: Sequence[Recollection], ranking: Sequence[Recollection], row: MemoryKind) -> list[Recollection]:
    """Items that name one of the things that those found name."""
    scores: dict[str, float] = {}
    for each in found:
        for name in _things(each.item, row):
            scores[name] = max(scores.get(name, 0.0), each.score)
    taken = {r.item.id for r in found}
    beside = [
        Recollection(r.item, NEIGHBOUR * max(scores[n] for n in shared))
        for r in ranking
        if r.item.id not in taken and (shared := scores.keys() & _things(r.item, row))
    ]
    return sorted(beside, key=lambda r: -r.score)


def _things(item: MemoryItem, row: MemoryKind) -> set[str]:
    """What a relation stands between: its first and last value."""
    values = dict(item.data)
    return {values[name].casefold() for name in (row.data[0], row.data[-1]) if name in values}


def _downwards(found: Sequence[Recollection], ranking: Sequence[Recollection]) -> list[Recollection]:
    """The topmost level, whatever it says, then what bears on the question, from the general to the detailed."""
    top = max((_level(r.item) for r in ranking), default=0)
    chosen = [r for r in ranking if _level(r.item) == top]
    chosen += [r for r in found if _level(r.item) != top]
    return sorted(chosen, key=lambda r: -_level(r.item))


def _level(item: MemoryItem) -> int:
    return int(dict(item.data).get("level", "0"))


def _source(item: MemoryItem, row: MemoryKind) -> str:
    return f"conversation {item.session!r}" if row.others and item.session else ""
