"""Defines memory items: what was learnt, from which messages, and which item replaced another."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

ItemPlace = tuple[str, str, str]
# in a text of an encrypted store, parts what two equal texts have in common from the rest; a noncharacter of Unicode
SEAL = "\ufdd1"


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """Holds one item of memory, in the words that a model is shown.

    Args:
        key: the subject of the item. A new item with the same kind and key replaces the old one; "" replaces nothing.
        session: the session in which it was learnt, and with which it is erased; "" for none.
        shared: True when the owner's other sessions see it.
        confidence: between 0 and 1.
        sources: ids of the messages from which it was learnt; it is erased with any of them.
        data: further named values, such as the parts of a relation.
        superseded_by: the id of the item that replaced it; `replaces` is the text of the item that it replaced.
        forgotten: its text is erased, and its source messages do not bring it back.
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
    """Reports the result of storing an item: `item` is the current one, `replaced` the one that it has replaced.

    `new` is False when the item was known already, and when it was forgotten before and no new source supports it.
    """

    item: MemoryItem
    new: bool = True
    replaced: MemoryItem | None = None


class ItemStore(Protocol):
    """Stores memory items per owner. Async forms do the same without blocking the loop."""

    @abstractmethod
    def remember(self, owner: str, items: Sequence[MemoryItem]) -> tuple[Remembered, ...]:
        """Stores memory items in one transaction and returns what became of each, in order.

        Each replaces the one in force with the same kind and key; a known item is not stored twice.
        """
        ...

    async def aremember(self, owner: str, items: Sequence[MemoryItem]) -> tuple[Remembered, ...]: ...

    @abstractmethod
    def memories(
        self, owner: str, *, kinds: Sequence[str] | None = None, newest: int = 2_000, everything: bool = False
    ) -> tuple[MemoryItem, ...]:
        """Returns the owner's items in force, newest first; with `everything`, superseded and forgotten ones too."""
        ...

    async def amemories(
        self, owner: str, *, kinds: Sequence[str] | None = None, newest: int = 2_000, everything: bool = False
    ) -> tuple[MemoryItem, ...]: ...

    @abstractmethod
    def forget(self, owner: str, ids: Sequence[str]) -> tuple[MemoryItem, ...]:
        """Removes all readable content of these items; returns those that existed, as they were."""
        ...

    async def aforget(self, owner: str, ids: Sequence[str]) -> tuple[MemoryItem, ...]: ...


def place_of(item: MemoryItem) -> ItemPlace:
    """Returns what identifies an item in force: kind, key and audience; without a key, its words count."""
    scope = "" if item.shared else item.session
    return (scope, item.kind, f"key:{_digest(item.key)}" if item.key else f"text:{_digest(item.text)}")


def settle(
    new: Sequence[MemoryItem], standing: Iterable[tuple[ItemPlace, MemoryItem]]
) -> tuple[list[tuple[ItemPlace, MemoryItem]], list[Remembered]]:
    """Returns the rows to write, and what became of each item; `standing` are the newest items of the same identities."""
    now = dict(standing)
    rows: dict[str, tuple[ItemPlace, MemoryItem]] = {}
    results: list[Remembered] = []
    for item in new:
        place = place_of(item)
        old = now.get(place)
        if old is not None and old.forgotten and item.sources and set(item.sources) <= set(old.sources):
            results.append(Remembered(old, new=False))
            continue
        if old is not None and old.live and _digest(old.text) == _digest(item.text):
            kept = _joined(old, item)
            if kept != old:
                rows[kept.id] = (place, kept)
            now[place] = kept
            results.append(Remembered(kept, new=False))
            continue
        replaced = old if old is not None and old.live else None
        if replaced is not None:
            rows[replaced.id] = (place, replace(replaced, superseded_by=item.id))
        written = item if replaced is None else replace(item, replaces=replaced.text)
        rows[item.id] = (place, written)
        now[place] = written
        results.append(Remembered(written, replaced=replaced))
    return list(rows.values()), results


def forgotten(item: MemoryItem) -> MemoryItem:
    """Returns the item without readable content; its identity stays, so that it is not learnt again from the same messages."""
    return replace(item, text="", key="", data=(), replaces="", forgotten=True)


def _joined(old: MemoryItem, item: MemoryItem) -> MemoryItem:
    sources = tuple(dict.fromkeys((*old.sources, *item.sources)))
    return replace(old, sources=sources, confidence=max(old.confidence, item.confidence))


def normalised(text: str) -> str:
    """Returns what two texts have in common that count as the same."""
    return " ".join(text.partition(SEAL)[0].casefold().split())


def _digest(text: str) -> str:
    return hashlib.sha256(normalised(text).encode(errors="surrogatepass")).hexdigest()[:32]
