"""Stores and finds memory items. Every query is scoped by owner, and by session where an item is private to one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ctxfold.effects import Flow, StoreCall
from ctxfold.errors import ConfigError, MessageError
from ctxfold.history.memory_items import MemoryItem
from ctxfold.history.records import SessionKey
from ctxfold.history.terms import query_terms, term_counts
from ctxfold.memory.categories import MEMORY_KINDS
from ctxfold.protocols import Ports, Postings, Store
from ctxfold.retrieval.bm25 import bm25, frequencies, idf
from ctxfold.validation import check_text, is_a

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
    return tuple(term_counts(text).items())


def rendered(item: MemoryItem) -> str:
    """Returns the text that a model sees: the item's key, its text, and the text that it replaced."""
    row = MEMORY_KINDS.get(item.kind)
    named = item.key and not (row is not None and row.of_session)
    head = f"{item.key}: " if named and item.key.casefold() not in item.text.casefold() else ""
    return f"{head}{item.text}{f' (no longer: {item.replaces})' if item.replaces else ''}"
