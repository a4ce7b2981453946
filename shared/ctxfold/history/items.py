"""Memory items: what was learnt, from where, and what took its place. Which one is in force is decided here, for every store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

__all__ = ["ItemStore", "MemoryItem", "Place", "Remembered", "forgotten", "place_of", "settle"]

Place = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One thing to remember, in the words that a model is shown.

    Args:
        key: what it is about; a new item with the same kind and key replaces the old one. "" replaces nothing.
        session: where it was learnt, "" for no session; it is erased with it.
        shared: whether the owner's other sessions see it.
        confidence: between 0 and 1.
        sources: ids of the messages that it was learnt from; it is erased with any of them.
        data: further named values, such as the parts of a relation.
        superseded_by: the id of the item that replaced it; `replaces` is the text of the one that this one replaced.
        forgotten: its text is gone, and what it was learnt from does not bring it back.
    """

    id: str
    kind: str
    text: str
    key: str = ""
    session: str = ""
    shared: bool = True
    confidence: float = 1.0
    sources: tuple[str, ...] = ()
    data: tuple[tuple[str, str], ...] = ()
    created_s: float = 0.0
    superseded_by: str | None = None
    replaces: str = ""
    forgotten: bool = False

    @property
    def live(self) -> bool:
        return self.superseded_by is None and not self.forgotten


@dataclass(frozen=True, slots=True)
class Remembered:
    """What became of a new item: `item` is the one in force, `replaced` the one that it has replaced.

    `new` is False when it was known already, and when it had been forgotten and nothing new speaks for it.
    """

    item: MemoryItem
    new: bool = True
    replaced: MemoryItem | None = None


class ItemStore(Protocol):
    """Memory items per owner. Async forms do the same without blocking the loop."""

    def remember(self, owner: str, items: Sequence[MemoryItem]) -> tuple[Remembered, ...]:
        """Keep memory items, in one transaction: each takes the place of the one in force with the same kind and key, and a known
        one is not kept twice. What became of each, in order."""
        ...

    async def aremember(self, owner: str, items: Sequence[MemoryItem]) -> tuple[Remembered, ...]: ...

    def memories(
        self, owner: str, *, kinds: Sequence[str] | None = None, newest: int = 2_000, everything: bool = False
    ) -> tuple[MemoryItem, ...]:
        """The owner's newest items in force, newest first; superseded and forgotten ones too where `everything` is wanted."""
        ...

    async def amemories(
        self, owner: str, *, kinds: Sequence[str] | None = None, newest: int = 2_000, everything: bool = False
    ) -> tuple[MemoryItem, ...]: ...

    def forget(self, owner: str, ids: Sequence[str]) -> tuple[MemoryItem, ...]:
        """Empty items of everything that could be read; as they were, without those that were not there."""
        ...

    async def aforget(self, owner: str, ids: Sequence[str]) -> tuple[MemoryItem, ...]: ...


def place_of(item: MemoryItem) -> Place:
    """What no two items in force have in common: kind, key and who sees it; without a key, the words count."""
    scope = "" if item.shared else item.session
    return (scope, item.kind, f"key:{_digest(item.key)}" if item.key else f"text:{_digest(item.text)}")


def settle(
    new: Sequence[MemoryItem], standing: Iterable[tuple[Place, MemoryItem]]
) -> tuple[list[tuple[Place, MemoryItem]], list[Remembered]]:
    """The rows to write, new or changed, and what became of each item; `standing` are the newest ones of their places."""
    now = dict(standing)
    rows: dict[str, tuple[Place, MemoryItem]] = {}
    found: list[Remembered] = []
    for item in new:
        place = place_of(item)
        old = now.get(place)
        if old is not None and old.forgotten and item.sources and set(item.sources) <= set(old.sources):
            found.append(Remembered(old, new=False))
            continue
        if old is not None and old.live and _digest(old.text) == _digest(item.text):
            kept = _joined(old, item)
            if kept != old:
                rows[kept.id] = (place, kept)
            now[place] = kept
            found.append(Remembered(kept, new=False))
            continue
        replaced = old if old is not None and old.live else None
        if replaced is not None:
            rows[replaced.id] = (place, replace(replaced, superseded_by=item.id))
        written = item if replaced is None else replace(item, replaces=replaced.text)
        rows[item.id] = (place, written)
        now[place] = written
        found.append(Remembered(written, replaced=replaced))
    return list(rows.values()), found


def forgotten(item: MemoryItem) -> MemoryItem:
    """The item without anything that could be read; its place stays, so that it is not learnt again from the same messages."""
    return replace(item, text="", key="", data=(), replaces="", forgotten=True)


def _joined(old: MemoryItem, item: MemoryItem) -> MemoryItem:
    sources = tuple(dict.fromkeys((*old.sources, *item.sources)))
    return replace(old, sources=sources, confidence=max(old.confidence, item.confidence))


def _digest(text: str) -> str:
    return hashlib.sha256(" ".join(text.casefold().split()).encode(errors="surrogatepass")).hexdigest()[:32]
