"""Rows of the SQL store within a connection: reading, appending, erasing. Transactions are the caller's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ctxfold.errors import HeadMovedError
from ctxfold.history.records import Record, SessionKey, fingerprint
from ctxfold.protocols import Rewrite
from ctxfold.stores.base import Fresh, checked_drafts, encoded, new_records, read_record, sealed, written_at
from ctxfold.stores.sql_engine import Driven

if TYPE_CHECKING:
    from ctxfold.stores.sql_schema import Statements
import hashlib
from collections.abc import Collection
from dataclasses import replace

from ctxfold.history.memory_items import ItemPlace, MemoryItem, Remembered, forgotten, place_of, settle
from ctxfold.stores.base import decode_item, encode_item

_CHUNK = 500
ERASED_ROWS = 5_000  # in one transaction, for which writers of SQLite wait


@dataclass(frozen=True, slots=True)
class Rows:
    """Runs the statements of one SQL dialect on a connection."""

    sql: Statements
    dialect: str

    @property
    def mark(self) -> str:
        """Returns the sign that stands for one value in a statement."""
        return "?" if self.dialect == "sqlite" else "%s"

    def marks(self, count: int) -> str:
        """Returns the list of so many values."""
        return f"({', '.join([self.mark] * count)})"

    def locked(self, connection: Driven, key: SessionKey) -> tuple[int, int, int, int, int]:
        """Returns the row of a session, created when it is new and locked until the transaction ends."""
        row = connection.execute(self.sql.lock, tuple(key)).fetchone()
        if row is None:
            connection.execute(self.sql.new_session, tuple(key))
            row = connection.execute(self.sql.lock, tuple(key)).fetchone()
        return int(row[0]), int(row[1]), int(row[2]), int(row[3]), int(row[4])

    def record_id(self, connection: Driven, key: SessionKey, seq: int) -> str | None:
        row = connection.execute(self.sql.record_id, (*key, seq)).fetchone()
        return None if row is None else str(row[0])

    def fingerprints(self, connection: Driven, key: SessionKey, ids: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Returns fingerprint and seq of the records that exist."""
        rows = self.listed(connection, self.sql.fingerprints_in, key, ids)
        return {str(row[0]): (str(row[1]), int(row[2])) for row in rows}

    def insert(
        self,
        connection: Driven,
        key: SessionKey,
        head: int,
        new: Sequence[Fresh],
        payloads: dict[str, str],
        *,
        numbered: int,
    ) -> list[Record]:
        records = new_records(new, head, numbered)
        rows: list[tuple[Any, ...]] = [
            (
                *key,
                r.seq,
                r.id,
                r.turn_id,
                r.body.kind,
                item.fingerprint,
                r.at_s,
                sealed(r, payloads[r.id]),
                r.number or None,
            )
            for r, item in zip(records, new, strict=True)
        ]
        if rows:
            self.many(connection, self.sql.insert, rows)
        return records

    def many(self, connection: Driven, sql: str, rows: list[tuple[Any, ...]]) -> None:
        cursor = connection.cursor()
        try:
            cursor.executemany(sql, rows)
        finally:
            cursor.close()

    def each(self, connection: Driven, sql: str, key: tuple[str, ...], values: Sequence[Any]) -> None:
        """Runs a statement that returns nothing with an IN list of any length."""
        for start in range(0, len(values), _CHUNK):
            chunk = values[start : start + _CHUNK]
            connection.execute(sql + self.marks(len(chunk)), (*key, *chunk))

    def range(self, connection: Driven, key: SessionKey, after: int, upto: int | None) -> tuple[Record, ...]:
        if upto is None:
            rows = connection.execute(self.sql.read, (*key, after))
        else:
            rows = connection.execute(self.sql.read_upto, (*key, after, upto))
        return tuple(map(stored_record, rows))

    def records_in(self, connection: Driven, sql: str, key: SessionKey, values: Sequence[Any]) -> tuple[Record, ...]:
        """Returns the records of a statement with an IN list, in order."""
        return tuple(map(stored_record, sorted(self.listed(connection, sql, key, values), key=lambda row: row[0])))

    def listed(self, connection: Driven, sql: str, key: tuple[str, ...], values: Sequence[Any]) -> list[Any]:
        """Returns all rows of a statement with an IN list of any length."""
        rows: list[Any] = []
        for start in range(0, len(values), _CHUNK):
            chunk = list(values[start : start + _CHUNK])
            # few lengths, so that drivers find the prepared statement again
            size = 1 << (len(chunk) - 1).bit_length()
            chunk += chunk[-1:] * (size - len(chunk))
            result = connection.execute(sql + self.marks(size), (*key, *chunk))
            rows.extend(result.fetchall())
        return rows

    def rewrite(
        self, connection: Driven, change: Rewrite, unindexed: Callable[[SessionKey, Sequence[int]], tuple[int, int]]
    ) -> bool:
        """Rewrites the records of a session for an erasure; False when an earlier attempt did so already.

        `unindexed` removes documents from the index and returns the totals. Memory items that were learnt from erased messages
        are the caller's to delete. Raises HeadMovedError when the log does not end where `change` expects.
        """
        key = change.key
        head, snapshot, _, _, numbered = self.locked(connection, key)
        fresh = checked_drafts(change.drafts)
        if head != change.expect:
            if written_at(fresh, self.fingerprints(connection, key, [item.draft.id for item in fresh]), change.expect):
                return False
            raise HeadMovedError(change.expect, head)
        rows = [
            (r.body.kind, fingerprint(r.body), sealed(r, encoded(r.body, r.id)), *key, r.seq) for r in change.records
        ]
        if rows:
            self.many(connection, self.sql.rewrite, rows)
        payloads = {item.draft.id: encoded(item.draft.body, item.draft.id) for item in fresh}
        added = self.insert(connection, key, head, fresh, payloads, numbered=numbered)
        documents, length = unindexed(key, change.unindexed)
        numbered = max((r.number for r in added), default=0) or numbered
        connection.execute(self.sql.move_head, (head + len(fresh), snapshot, documents, length, numbered, *key))
        return True

    def remove(self, connection: Driven, tables: Sequence[str], owner: str, session: str | None = None) -> None:
        """Removes every row of the owner, or of one session, from these tables."""
        rest, values = ("", (owner,)) if session is None else (f" AND session = {self.mark}", (owner, session))
        for table in tables:
            connection.execute(f"DELETE FROM {table} WHERE owner = {self.mark}{rest}", values)

    # an owner's erasure: rows without a session are out of sight, and are removed in batches

    def hide_owner(self, connection: Driven, owner: str) -> None:
        """Removes the rows of all small tables, and each log's newest record, by which a reader recognises its log."""
        from ctxfold.stores.sql_schema import SMALL_TABLES

        connection.execute(
            f"DELETE FROM ctxfold_records WHERE owner = {self.mark} AND (session, seq) IN "
            f"(SELECT session, head FROM ctxfold_sessions WHERE owner = {self.mark})",
            (owner, owner),
        )
        self.remove(connection, SMALL_TABLES, owner)

    def left_over(self, connection: Driven, owner: str) -> list[SessionKey]:
        """Returns sessions of which only rows are left: those that have the first such rows."""
        from ctxfold.stores.sql_schema import large_tables

        names = {
            str(row[0])
            for table in large_tables()
            for row in connection.execute(
                f"SELECT DISTINCT session FROM (SELECT t.session FROM {table} t WHERE t.owner = {self.mark} AND NOT EXISTS "
                f"(SELECT 1 FROM ctxfold_sessions s WHERE s.owner = {self.mark} AND s.session = t.session) "
                f"LIMIT {ERASED_ROWS}) AS first_rows",
                (owner, owner),
            )
        }
        return [SessionKey(owner, name) for name in sorted(names)]

    def remove_batch(self, connection: Driven, keys: Sequence[SessionKey]) -> None:
        """Removes some rows of sessions that are gone, unless they were begun anew."""
        from ctxfold.stores.sql_schema import large_tables

        mark, room = self.mark, ERASED_ROWS
        for key in keys:
            # a session of this name that is begun meanwhile waits for the row
            if room <= 0 or not connection.execute(self.sql.new_session, tuple(key)).rowcount:
                continue
            for table, columns in large_tables().items():
                names = ", ".join(columns)
                room -= connection.execute(
                    f"DELETE FROM {table} WHERE owner = {mark} AND session = {mark} AND ({names}) IN "
                    f"(SELECT {names} FROM {table} WHERE owner = {mark} AND session = {mark} LIMIT {max(0, room)})",
                    (*key, *key),
                ).rowcount
            self.remove(connection, ("ctxfold_sessions",), *key)

    def remove_left_over(self, connection: Driven, key: SessionKey) -> None:
        """Removes the rows that an interrupted erasure left of a session that is begun anew."""
        from ctxfold.stores.sql_schema import large_tables

        self.remove(connection, tuple(large_tables()), *key)


def stored_record(row: Sequence[Any]) -> Record:
    seq, record_id, turn_id, at_s, payload, number = row
    return read_record(int(seq), record_id, turn_id, float(at_s), payload, int(number or 0))


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
