"""Memory items kept and found again, as flows: every question is scoped by owner, and by session where an item is its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ctxfold.errors import ConfigError, MessageError
from ctxfold.flow import Effect, Flow
from ctxfold.given import check_text, is_a
from ctxfold.history.items import MemoryItem, Remembered
from ctxfold.history.records import SessionKey
from ctxfold.history.terms import term_counts
from ctxfold.memory.kinds import MEMORY_KINDS
from ctxfold.ports import Ports, Postings
from ctxfold.zones.ranking import bm25, frequencies, idf

__all__ = ["Forget", "Memories", "Recollection", "Remember", "made_item", "ranked_items", "search", "told", "visible"]

MOST_ITEMS = 2_000  # the newest ones in force that a question is compared with
MAX_CHARS = 8_000


@dataclass(frozen=True, slots=True)
class Recollection:
    """An item in force and how well it answers; 0 for one that shares no word with the question."""

    item: MemoryItem
    score: float


@dataclass(frozen=True, slots=True)
class Remember(Effect[tuple[Remembered, ...]]):
    owner: str
    items: Sequence[MemoryItem]

    def perform(self, ports: Ports) -> tuple[Remembered, ...]:
        return ports.store.remember(self.owner, self.items)

    async def aperform(self, ports: Ports) -> tuple[Remembered, ...]:
        return await ports.store.aremember(self.owner, self.items)


@dataclass(frozen=True, slots=True)
class Memories(Effect[tuple[MemoryItem, ...]]):
    owner: str
    kinds: Sequence[str] | None = None
    newest: int = MOST_ITEMS
    everything: bool = False

    def perform(self, ports: Ports) -> tuple[MemoryItem, ...]:
        return ports.store.memories(self.owner, kinds=self.kinds, newest=self.newest, everything=self.everything)

    async def aperform(self, ports: Ports) -> tuple[MemoryItem, ...]:
        return await ports.store.amemories(self.owner, kinds=self.kinds, newest=self.newest, everything=self.everything)


@dataclass(frozen=True, slots=True)
class Forget(Effect[tuple[MemoryItem, ...]]):
    owner: str
    ids: Sequence[str]

    def perform(self, ports: Ports) -> tuple[MemoryItem, ...]:
        return ports.store.forget(self.owner, self.ids)

    async def aperform(self, ports: Ports) -> tuple[MemoryItem, ...]:
        return await ports.store.aforget(self.owner, self.ids)


def made_item(
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
    """A new item, checked. It belongs to this session when it is about it, or was learnt from its messages, or only it may see it.

    A session has one digest: a new one replaces it.
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
    seen = row.shared if shared is None else shared
    return MemoryItem(
        id=ports.ids.new(),
        kind=kind,
        text=words,
        key=about.strip() or (key.session if kind == "digest" else ""),
        session=key.session if sources or not seen or row.of_session else "",
        shared=seen,
        confidence=confidence,
        sources=tuple(dict.fromkeys(sources)),
        data=tuple(sorted(values.items())),
        created_s=ports.clock.now_s(),
    )


def visible(items: Iterable[MemoryItem], key: SessionKey) -> list[MemoryItem]:
    """Those that this session may see."""
    return [i for i in items if i.shared or i.session == key.session]


def search(key: SessionKey, query: str, *, kinds: Sequence[str] | None, limit: int) -> Flow[tuple[Recollection, ...]]:
    """The items in force that bear on the query, best first."""
    items = visible((yield from Memories(key.owner, kinds)), key)
    return tuple(r for r in ranked_items(items, query) if r.score > 0)[: max(0, limit)]


def ranked_items(items: Sequence[MemoryItem], query: str) -> list[Recollection]:
    """All items, by BM25 over their words, then by confidence, then the newest."""
    counts = [_counts(f"{i.key} {i.text}") for i in items]
    lengths = [sum(dict(c).values()) for c in counts]
    wanted = term_counts(query)
    by_term: dict[str, list[tuple[int, int, int]]] = {term: [] for term in wanted}
    for place, found in enumerate(counts):
        for term, count in found:
            if term in by_term:
                by_term[term].append((place, count, lengths[place]))
    postings = Postings(len(items), sum(lengths), {t: tuple(hits) for t, hits in by_term.items()})
    scores = dict(bm25(postings, idf(postings, frequencies(postings))))
    found_items = [Recollection(item, scores.get(place, 0.0)) for place, item in enumerate(items)]
    return sorted(found_items, key=lambda r: (-r.score, -r.item.confidence, -r.item.created_s, r.item.id))


@lru_cache(maxsize=8_192)  # items are compared with every question, and do not change
def _counts(text: str) -> tuple[tuple[str, int], ...]:
    return tuple(term_counts(text).items())


def told(item: MemoryItem) -> str:
    """The item in the words that a model is shown: what it is about, and what it replaced."""
    row = MEMORY_KINDS.get(item.kind)
    named = item.key and not (row is not None and row.of_session)
    head = f"{item.key}: " if named and item.key.casefold() not in item.text.casefold() else ""
    return f"{head}{item.text}{f' (no longer: {item.replaces})' if item.replaces else ''}"
