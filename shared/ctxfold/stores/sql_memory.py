"""Rows of memory items within a connection. Transactions are the caller's; which item is in force is `history.items`'."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ctxfold.history.memory_items import ItemPlace, MemoryItem, Remembered, forgotten, place_of, settle
from ctxfold.stores.base import decode_item, encode_item
from ctxfold.stores.sql_engine import Driven
from ctxfold.stores.sql_rows import Rows


@dataclass(frozen=True, slots=True)
class _Row:
    """An item as it is stored."""

    owner: str
    place: str
    item: MemoryItem

    def values(self) -> tuple[str | float, ...]:
        item = self.item
        state = "forgotten" if item.forgotten else "superseded" if item.superseded_by else "live"
        return (self.owner, item.id, item.session, self.place, item.kind, state, item.created_s, encode_item(item))


def remember(rows: Rows, connection: Driven, owner: str, items: Sequence[MemoryItem]) -> tuple[Remembered, ...]:
    """Stores new items and the items that they replace; see `Store.remember`."""
    _locked(rows, connection, owner)
    places = {_stored(place_of(i)): place_of(i) for i in items}
    stored = rows.listed(connection, rows.sql.standing_in, (owner,), sorted(places))
    standing = [(places[row[0]], decode_item(row[1])) for row in sorted(stored, key=lambda r: (r[2], r[3]))]
    changed, results = settle(items, standing)
    _write(rows, connection, [_Row(owner, _stored(place), item) for place, item in changed])
    return tuple(results)


def memories(
    rows: Rows, connection: Driven, owner: str, kinds: Sequence[str] | None, newest: int, everything: bool
) -> tuple[MemoryItem, ...]:
    """Returns items, the newest first; with `everything`, superseded and forgotten ones too."""
    sql = rows.sql.every_memory if everything else rows.sql.live_memories
    condition = ""
    if kinds is not None:
        condition = f"AND kind IN {rows.marks(len(kinds))} " if kinds else "AND 1 = 0 "
    stored = connection.execute(sql.format(kinds=condition), (owner, *(kinds or ()), newest)).fetchall()
    return tuple(decode_item(row[0]) for row in stored)


def forget(rows: Rows, connection: Driven, owner: str, ids: Collection[str]) -> tuple[MemoryItem, ...]:
    """Erases the text of items, and returns those that existed."""
    _locked(rows, connection, owner)
    stored = rows.listed(connection, rows.sql.memories_in, (owner,), sorted(ids))
    chosen = [(str(place), decode_item(payload)) for place, payload in stored]
    emptied = [_Row(owner, place, forgotten(item)) for place, item in chosen if not item.forgotten]
    _write(rows, connection, [*emptied, *_without_quotations(rows, connection, owner, [i for _, i in chosen])])
    return tuple(item for _, item in chosen if not item.forgotten)


def without_sources(rows: Rows, connection: Driven, owner: str, session: str, message_ids: Collection[str]) -> None:
    """Deletes the items that were learnt from any of these messages of a session."""
    sources = frozenset(message_ids)
    stored = connection.execute(rows.sql.session_memories, (owner, session)).fetchall()
    learnt = [item for item in (decode_item(row[0]) for row in stored) if not sources.isdisjoint(item.sources)]
    _write(rows, connection, _without_quotations(rows, connection, owner, learnt))
    if learnt:
        rows.many(connection, rows.sql.drop_memory, [(owner, i) for i in sorted({item.id for item in learnt})])


def _without_quotations(rows: Rows, connection: Driven, owner: str, removed_items: Sequence[MemoryItem]) -> list[_Row]:
    """Returns the items that have replaced removed ones and quote their text, without the quotation."""
    successor_ids = {i.superseded_by for i in removed_items if i.superseded_by} - {i.id for i in removed_items}
    stored = rows.listed(connection, rows.sql.memories_in, (owner,), sorted(successor_ids))
    return [_Row(owner, str(place), replace(decode_item(payload), replaces="")) for place, payload in stored]


def _write(rows: Rows, connection: Driven, new_rows: Sequence[_Row]) -> None:
    if new_rows:
        rows.many(connection, rows.sql.put_memory, [row.values() for row in new_rows])


def _locked(rows: Rows, connection: Driven, owner: str) -> None:
    if rows.dialect != "sqlite":
        connection.execute(rows.sql.lock_owner, (owner,))


def _stored(place: ItemPlace) -> str:
    return hashlib.sha256(repr(place).encode(errors="surrogatepass")).hexdigest()[:32]
