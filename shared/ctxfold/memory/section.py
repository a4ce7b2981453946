"""Shows memory items as one section, with settings for each category."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ctxfold.effects import Flow, StoreCall
from ctxfold.errors import ConfigError
from ctxfold.history.memory_items import MemoryItem
from ctxfold.history.prompt_safety import quoted_name
from ctxfold.memory.categories import MEMORY_KINDS, MemoryKind
from ctxfold.memory.store import Recollection, ranked_items, rendered, visible
from ctxfold.protocols import Store
from ctxfold.sections.section import EngineSource, Item, Items, Query, Section
from ctxfold.state import Session

NEIGHBOUR = 0.5  # of the score of the relation that leads to it


def memory_section(kind: str, **terms: Any) -> Section:
    """Returns a section that shows memory items of a kind; `terms` are the keyword arguments of `Section`.

    Kinds are "facts", "corrections", "persona", "graph", "trajectory", "strategy", "summaries", "digest", "cross_session" and
    "tree". Corrections, persona and digest are shown for every question, the others only when they share a word with it.
    """
    if kind not in MEMORY_KINDS:
        raise ConfigError(f"memory kind {kind!r}: use one of {', '.join(MEMORY_KINDS)}")
    return Section(kind, EngineSource(partial(_items, kind)), **terms)


def _items(kind: str, session: Session, query: Query) -> Flow[Items]:
    row, key = MEMORY_KINDS[kind], session.key
    items = visible((yield from StoreCall(Store.memories, key.owner, kinds=[row.reads or kind])), key)
    if row.others:
        items = [i for i in items if i.session != key.session]
    ranking = ranked_items(items, query.text)
    matches = [r for r in ranking if r.score > 0 or row.unasked]
    if row.neighbours:
        matches += _neighbours(matches, ranking, row)
    if kind == "tree":
        matches = _downwards(matches, ranking)
    return [Item(rendered(r.item), source=_source(r.item, row), id=r.item.id) for r in matches]


def _neighbours(
    matches: Sequence[Recollection], ranking: Sequence[Recollection], row: MemoryKind
) -> list[Recollection]:
    """Returns the other items that name a thing which a match names."""
    scores: dict[str, float] = {}
    for match in matches:
        for name in _things(match.item, row):
            scores[name] = max(scores.get(name, 0.0), match.score)
    matched_ids = {r.item.id for r in matches}
    neighbours = [
        Recollection(r.item, NEIGHBOUR * max(scores[n] for n in shared))
        for r in ranking
        if r.item.id not in matched_ids and (shared := scores.keys() & _things(r.item, row))
    ]
    return sorted(neighbours, key=lambda r: -r.score)


def _things(item: MemoryItem, row: MemoryKind) -> set[str]:
    """Returns the two things that a relation connects: its first and last value."""
    values = dict(item.data)
    return {values[name].casefold() for name in (row.data[0], row.data[-1]) if name in values}


def _downwards(matches: Sequence[Recollection], ranking: Sequence[Recollection]) -> list[Recollection]:
    """Returns the whole top level, then the matches of the others, from the general to the detailed."""
    top = max((_level(r.item) for r in ranking), default=0)
    chosen = [r for r in ranking if _level(r.item) == top]
    chosen += [r for r in matches if _level(r.item) != top]
    return sorted(chosen, key=lambda r: -_level(r.item))


def _level(item: MemoryItem) -> int:
    return int(dict(item.data).get("level", "0"))


def _source(item: MemoryItem, row: MemoryKind) -> str:
    return f"conversation {quoted_name(item.session)}" if row.others and item.session else ""
