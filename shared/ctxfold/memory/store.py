"""Stores and finds memory items. Every query is scoped by owner, and by session where an item is private to one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from ctxfold.effects import Flow, StoreCall
from ctxfold.errors import ConfigError, MessageError
from ctxfold.history.memory_items import MemoryItem
from ctxfold.history.prompt_safety import quoted_name
from ctxfold.history.records import SessionKey
from ctxfold.index.terms import indexed_terms, query_terms
from ctxfold.protocols import Ports, Postings, Store
from ctxfold.retrieval.bm25 import bm25, frequencies, idf
from ctxfold.sections.section import EngineSource, Item, Items, Query, Section
from ctxfold.state import Session
from ctxfold.validation import check_text, is_a


@dataclass(frozen=True, slots=True)
class MemoryKind:
    """The properties of one kind of memory items.

    Args:
        shared: the owner's other sessions see its items by default.
        reads: the kind of items that its section shows, where that is not its own.
        others: its section shows only items of other sessions.
        of_session: its items belong to the session that made them, whoever sees them.
        unasked: its section also shows items that share no word with the question.
        data: named values that every item needs.
        neighbours: its section adds items that share one of those values with a matching item.
        looks_for: instruction for the extracting model; "" for kinds that no model extracts.
        roles: roles of the messages that items are extracted from.
        experimental: the quality of its extraction has not been measured.
    """

    shared: bool = True
    reads: str = ""
    others: bool = False
    of_session: bool = False
    unasked: bool = False
    data: tuple[str, ...] = ()
    neighbours: bool = False
    looks_for: str = ""
    roles: tuple[str, ...] = ("user",)
    experimental: bool = False


MEMORY_KINDS: Mapping[str, MemoryKind] = {
    "facts": MemoryKind(looks_for="a lasting fact about the user's world that the user stated"),
    "corrections": MemoryKind(
        unasked=True, looks_for="what the user corrected, and how it is to be done or called from now on"
    ),
    "persona": MemoryKind(
        unasked=True, experimental=True, looks_for="who the user is, and what the user likes, wants or avoids"
    ),
    "graph": MemoryKind(
        data=("subject", "predicate", "object"),
        neighbours=True,
        experimental=True,
        looks_for="a relation between two named things that the user stated",
    ),
    "trajectory": MemoryKind(
        data=("intent", "outcome"),
        roles=("user", "assistant"),
        experimental=True,
        looks_for="what was attempted, in which way, and whether it worked",
    ),
    "strategy": MemoryKind(
        roles=("user", "assistant"),
        experimental=True,
        looks_for="a way of going about such a task that has worked here and would work again",
    ),
    "summaries": MemoryKind(shared=False, of_session=True),
    "digest": MemoryKind(of_session=True, unasked=True),
    "cross_session": MemoryKind(reads="digest", others=True, unasked=True),
    "tree": MemoryKind(shared=False, of_session=True),
}


MAX_CHARS = 8_000


@dataclass(frozen=True, slots=True)
class Recollection:
    """A current item and its score for the question; 0 when they share no word."""

    item: MemoryItem
    score: float


def new_item(
    key: SessionKey,
    ports: Ports,
    kind: str,
    text: str,
    *,
    about: str = "",
    shared: bool | None = None,
    confidence: float = 1.0,
    sources: Sequence[str] = (),
    data: Mapping[str, str] | None = None,
) -> MemoryItem:
    """Returns a new item. Raises ConfigError or MessageError for wrong values.

    The item belongs to this session when it is about the session, was learnt from its messages, or only the session may see it. A
    session has one digest: a new one replaces it.
    """
    row = MEMORY_KINDS.get(kind)
    if row is None or row.reads:
        kinds = ", ".join(k for k, r in MEMORY_KINDS.items() if not r.reads)
        raise ConfigError(f"memory kind {kind!r}: use one of {kinds}")
    check_text("the memory item's text", text)
    check_text("the memory item's key", about)
    values = {name: str(value).strip() for name, value in (data or {}).items()}
    if missing := [name for name in row.data if not values.get(name)]:
        raise ConfigError(
            f"a memory item of kind {kind!r} needs {', '.join(row.data)}; {', '.join(missing)} is missing"
        )
    words = text.strip() or " ".join(values[name] for name in row.data)
    if not words or len(words) > MAX_CHARS:
        raise MessageError(f"the memory item has {len(words)} characters: give between 1 and {MAX_CHARS:,}")
    if not is_a(confidence, (int, float)) or not 0 <= confidence <= 1:
        raise ConfigError(f"confidence is {confidence!r}: give a number between 0 and 1")
    is_shared = row.shared if shared is None else shared
    return MemoryItem(
        id=ports.ids.new(),
        kind=kind,
        text=words,
        key=about.strip() or (key.session if kind == "digest" else ""),
        session=key.session if sources or not is_shared or row.of_session else "",
        shared=is_shared,
        confidence=confidence,
        sources=tuple(dict.fromkeys(sources)),
        data=tuple(sorted(values.items())),
        created_s=ports.clock.now_s(),
    )


def visible(items: Iterable[MemoryItem], key: SessionKey) -> list[MemoryItem]:
    """Returns the items that this session may see."""
    return [i for i in items if i.shared or i.session == key.session]


def search(key: SessionKey, query: str, *, kinds: Sequence[str] | None, limit: int) -> Flow[tuple[Recollection, ...]]:
    """Returns the current items that share a word with the query, best first."""
    items = visible((yield from StoreCall(Store.memories, key.owner, kinds=kinds)), key)
    return tuple(r for r in ranked_items(items, query) if r.score > 0)[: max(0, limit)]


def ranked_items(items: Sequence[MemoryItem], query: str) -> list[Recollection]:
    """Returns all items, ranked by BM25 over their words, then by confidence, then the newest first."""
    counts = [_counts(f"{i.key} {i.text}") for i in items]
    lengths = [sum(dict(c).values()) for c in counts]
    by_term: dict[str, list[tuple[int, int, int]]] = {term: [] for term in query_terms(query)}
    for index, item_counts in enumerate(counts):
        for term, count in item_counts:
            if term in by_term:
                by_term[term].append((index, count, lengths[index]))
    postings = Postings(len(items), sum(lengths), {t: tuple(hits) for t, hits in by_term.items()})
    scores = dict(bm25(postings, idf(postings, frequencies(postings))))
    recollections = [Recollection(item, scores.get(index, 0.0)) for index, item in enumerate(items)]
    return sorted(recollections, key=lambda r: (-r.score, -r.item.confidence, -r.item.created_s, r.item.id))


@lru_cache(maxsize=8_192)  # items are compared with every question, and do not change
def _counts(text: str) -> tuple[tuple[str, int], ...]:
    return tuple(indexed_terms(text)[0].items())


def rendered(item: MemoryItem) -> str:
    """Returns the text that a model sees: the item's key, its text, and the text that it replaced."""
    row = MEMORY_KINDS.get(item.kind)
    named = item.key and not (row is not None and row.of_session)
    head = f"{item.key}: " if named and item.key.casefold() not in item.text.casefold() else ""
    return f"{head}{item.text}{f' (no longer: {item.replaces})' if item.replaces else ''}"


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
