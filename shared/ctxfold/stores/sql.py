"""A durable store: SQLite by file, PostgreSQL by URL, through SQLAlchemy."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ctxfold.errors import (
    ConfigError,
    HeadMovedError,
    InvalidTextError,
    StoreCorruptError,
    StoreUnavailableError,
)
from ctxfold.history.records import Draft, Record, SessionKey, SnapshotTaken, decode_body, encode_body
from ctxfold.ports import Document, Head, Postings
from ctxfold.stores.base import BaseStore, Fresh, checked_drafts, checked_key, indexed_term, unseen
from ctxfold.stores.sql_engine import (
    Driven,
    Dropped,
    connected,
    is_passing,
    make_engine,
    parse_url,
    transaction,
    translated,
)

if TYPE_CHECKING:
    from ctxfold.ports import Store

__all__ = ["SqlStore"]

P = ParamSpec("P")
T = TypeVar("T")

_CHUNK = 500
_TRIES = 12


class SqlStore(BaseStore):
    """Logs in `sqlite:///file.db` or `postgresql+psycopg://user:password@host/database`.

    Safe across threads, tasks and processes. The first call, not the constructor, connects and makes the
    tables. `timeout_s` bounds waiting for locks, for a connection and for the server. `sqlite://` lives in
    memory, as long as this object. Async forms run in worker threads.
    """

    def __init__(self, url: str, *, timeout_s: float = 30.0, pool_size: int = 8) -> None:
        if timeout_s <= 0 or pool_size < 1:
            raise ConfigError(f"timeout_s={timeout_s:g} and pool_size={pool_size}: give numbers above zero")
        self._place = parse_url(url)
        self._timeout_s = timeout_s
        self._engine = make_engine(self._place, timeout_s=timeout_s, pool_size=pool_size)
        from sqlalchemy.exc import TimeoutError as PoolTimeoutError

        from ctxfold.stores.sql_schema import Statements, marks

        self._failures = (self._engine.dialect.loaded_dbapi.Error, PoolTimeoutError, Dropped)

        self._dialect = "sqlite" if self._place.sqlite else "postgresql"
        self._sql = Statements.of(self._dialect)
        self._marks = marks
        self._state = threading.Condition()
        self._busy = 0
        self._closed = False
        self._ready = False
        self._creation = threading.Lock()
        # SQLite lets waiting writers poll; threads of one process queue here instead
        self._turn = threading.Lock() if self._place.sqlite else None
        self._finalizer = weakref.finalize(self, self._engine.dispose)

    def __repr__(self) -> str:
        return f"SqlStore({self._place.name!r})"

    async def _offload(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        # a cancelled caller leaves the thread to finish its transaction
        return await asyncio.to_thread(work, *args, **kwargs)

    # connections

    def _write(self, work: Callable[[Driven], T]) -> T:
        def within(connection: Driven) -> T:
            with transaction(connection, self._place):
                return work(connection)

        with self._in_use():
            return self._tried(within, alone=True)

    def _read(self, work: Callable[[Driven], T]) -> T:
        with self._in_use():
            return self._tried(work, alone=self._place.in_memory)

    @contextmanager
    def _in_use(self) -> Generator[None, None, None]:
        with self._state:
            self._check_open()
            self._busy += 1
        try:
            self._prepare()
            yield
        finally:
            with self._state:
                self._busy -= 1
                self._state.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError(f"{self!r} is closed: open a new one")

    def _tried(self, work: Callable[[Driven], T], *, alone: bool) -> T:
        """Do the work on a pooled connection, again while it only met a lock or a dropped connection."""
        deadline_s = time.monotonic() + self._timeout_s
        for attempt in range(1, _TRIES + 1):
            try:
                with self._my_turn(alone), connected(self._engine) as connection:
                    return work(connection)
            except self._failures as error:
                if attempt == _TRIES or not is_passing(error) or time.monotonic() > deadline_s:
                    raise translated(error, self._place, self._timeout_s) from None
            except UnicodeEncodeError:
                raise InvalidTextError("an id or term holds a lone surrogate: decode the text properly") from None
            time.sleep(random.uniform(0.001, 0.005 * 2 ** min(attempt, 6)))
        raise AssertionError("unreachable")

    @contextmanager
    def _my_turn(self, alone: bool) -> Generator[None, None, None]:
        if self._turn is None or not alone:
            yield
            return
        if not self._turn.acquire(timeout=self._timeout_s):
            raise StoreUnavailableError(
                f"{self._place.name} was busy for {self._timeout_s:g} s with other threads: raise timeout_s"
            )
        try:
            yield
        finally:
            self._turn.release()

    def _prepare(self) -> None:
        if self._ready:
            return
        from ctxfold.stores.sql_schema import create_tables, stored_version

        def create(connection: Driven) -> None:
            if stored_version(connection, self._place) is not None:
                return
            if self._place.sqlite and not self._place.in_memory:
                connection.execute("PRAGMA journal_mode=WAL")
            with transaction(connection, self._place):
                create_tables(connection, self._engine.dialect)
            stored_version(connection, self._place)

        with self._creation:
            if not self._ready:
                self._tried(create, alone=True)
                self._ready = True

    def close(self) -> None:
        """Wait for running calls, then close every connection; idempotent."""
        with self._state:
            self._closed = True
            self._state.wait_for(lambda: self._busy == 0, timeout=self._timeout_s)
        self._finalizer()

    # the log

    def head(self, key: SessionKey) -> Head | None:
        owner, session = checked_key(key)
        row = self._read(lambda c: c.execute(self._sql.head, (owner, session)).fetchone())
        return None if row is None else Head(int(row[0]), int(row[1]))

    def append(
        self,
        key: SessionKey,
        drafts: Sequence[Draft],
        *,
        known: int = 0,
        expect: int | None = None,
        documents: Sequence[Document] = (),
    ) -> tuple[Record, ...]:
        checked_key(key)
        ready = checked_drafts(drafts)
        # encoded before the transaction, which others wait for
        payloads = {item.draft.id: _encoded(item.draft) for item in ready}

        def work(connection: Driven) -> tuple[Record, ...]:
            head, snapshot, archived, length = self._locked(connection, key)
            if expect is not None and expect != head:
                raise HeadMovedError(expect, head)
            stored = self._fingerprints(connection, key, [item.draft.id for item in ready]) if head else {}
            new = unseen(ready, stored)
            records = self._insert(connection, key, head, new, payloads)
            added = self._index(connection, key, documents) if documents else ()
            if new or added:
                snapshot = max((r.seq for r in records if isinstance(r.body, SnapshotTaken)), default=snapshot)
                totals = (archived + len(added), length + sum(document.length for document in added))
                moved = (head + len(records), snapshot, *totals, *key)
                connection.execute(self._sql.move_head, moved)
            older = self._range(connection, key, known, head) if known < head else ()
            return (*older, *(record for record in records if record.seq > known))

        return self._write(work)

    def _locked(self, connection: Driven, key: SessionKey) -> tuple[int, int, int, int]:
        """The session's row, made when it is new and held until the transaction ends."""
        row = connection.execute(self._sql.lock, tuple(key)).fetchone()
        if row is None:
            connection.execute(self._sql.new_session, tuple(key))
            row = connection.execute(self._sql.lock, tuple(key)).fetchone()
        return int(row[0]), int(row[1]), int(row[2]), int(row[3])

    def _fingerprints(self, connection: Driven, key: SessionKey, ids: Sequence[str]) -> dict[str, str]:
        return {str(row[0]): str(row[1]) for row in self._listed(connection, self._sql.fingerprints_in, key, ids)}

    def _insert(
        self,
        connection: Driven,
        key: SessionKey,
        head: int,
        new: Sequence[Fresh],
        payloads: dict[str, str],
    ) -> tuple[Record, ...]:
        records = tuple(
            Record(seq, item.draft.id, item.draft.body, item.draft.turn_id, item.draft.at_s)
            for seq, item in enumerate(new, head + 1)
        )
        rows: list[tuple[Any, ...]] = [
            (*key, r.seq, r.id, r.turn_id, r.body.kind, item.fingerprint, r.at_s, payloads[r.id])
            for r, item in zip(records, new, strict=True)
        ]
        if rows:
            self._executemany(connection, self._sql.insert, rows)
        return records

    def _index(self, connection: Driven, key: SessionKey, documents: Sequence[Document]) -> tuple[Document, ...]:
        """Make documents searchable; returns those that were not already."""
        by_seq = {document.seq: document for document in reversed(documents)}
        for row in self._listed(connection, self._sql.indexed_in, key, list(by_seq)):
            del by_seq[int(row[0])]
        rows: list[tuple[Any, ...]] = []
        for document in by_seq.values():
            rows.append((*key, "", document.seq, 0, document.length))
            rows.extend(
                (*key, indexed_term(term), document.seq, count, document.length)
                for term, count in document.terms.items()
                if term
            )
        if rows:
            self._executemany(connection, self._sql.insert_term, rows)
        return tuple(by_seq.values())

    def _executemany(self, connection: Driven, sql: str, rows: list[tuple[Any, ...]]) -> None:
        cursor = connection.cursor()
        try:
            cursor.executemany(sql, rows)
        finally:
            cursor.close()

    def read(self, key: SessionKey, *, after: int = 0, upto: int | None = None) -> tuple[Record, ...]:
        checked_key(key)
        return self._read(lambda c: self._range(c, key, after, upto))

    def _range(self, connection: Driven, key: SessionKey, after: int, upto: int | None) -> tuple[Record, ...]:
        if upto is None:
            found = connection.execute(self._sql.read, (*key, after))
        else:
            found = connection.execute(self._sql.read_upto, (*key, after, upto))
        return tuple(_record(row) for row in found)

    def fetch(self, key: SessionKey, seqs: Sequence[int]) -> tuple[Record, ...]:
        checked_key(key)
        wanted = sorted({seq for seq in seqs if 0 < seq < 1 << 63})
        return self._read(
            lambda c: tuple(_record(row) for row in self._listed(c, self._sql.fetch_in, key, wanted, order=0))
        )

    def find(self, key: SessionKey, ids: Sequence[str]) -> tuple[Record, ...]:
        checked_key(key)
        wanted = sorted({name for name in ids if "\0" not in name})
        return self._read(
            lambda c: tuple(_record(row) for row in self._listed(c, self._sql.find_in, key, wanted, order=0))
        )

    def _listed(
        self,
        connection: Driven,
        sql: str,
        key: tuple[str, ...],
        values: Sequence[Any],
        *,
        order: int | None = None,
    ) -> list[Any]:
        """All rows of a statement with an IN list of any length, sorted by column `order` where given."""
        rows: list[Any] = []
        for start in range(0, len(values), _CHUNK):
            chunk = list(values[start : start + _CHUNK])
            # few lengths, so that drivers find the prepared statement again
            size = 1 << (len(chunk) - 1).bit_length()
            chunk += chunk[-1:] * (size - len(chunk))
            found = connection.execute(sql + self._marks(size, self._dialect), (*key, *chunk))
            rows.extend(found.fetchall())
        if order is not None:
            rows.sort(key=lambda row: row[order])
        return rows

    def snapshot_before(self, key: SessionKey, seq: int) -> int:
        checked_key(key)
        row = self._read(lambda c: c.execute(self._sql.snapshot_before, (*key, seq)).fetchone())
        return 0 if row is None else int(row[0])

    def postings(
        self, key: SessionKey, terms: Sequence[str], *, newest: int | None = None, among: Sequence[int] | None = None
    ) -> Postings:
        checked_key(key)
        names = {term: indexed_term(term) for term in terms}
        wanted = sorted({name for name in names.values() if name})

        def work(connection: Driven) -> tuple[Any, list[Any]]:
            totals = connection.execute(self._sql.archive, tuple(key)).fetchone()
            if among is not None:
                return totals, self._hits_among(connection, key, wanted, among)
            if newest is not None:
                return totals, self._newest_hits(connection, key, wanted, newest)
            return totals, self._listed(connection, self._sql.postings_in, key, wanted, order=1)

        totals, rows = self._read(work)
        by_name: dict[str, list[tuple[int, int, int]]] = {}
        for name, seq, count, length in rows:
            by_name.setdefault(name, []).append((seq, count, length))
        by_term = {term: tuple(by_name.get(name, ())) for term, name in names.items()}
        documents, length = (0, 0) if totals is None else (int(totals[0]), int(totals[1]))
        return Postings(documents, length, by_term)

    def _newest_hits(self, connection: Driven, key: SessionKey, terms: Sequence[str], newest: int) -> list[Any]:
        """One short walk down the primary key per term, however many hits it has."""
        rows: list[Any] = []
        for term in terms:
            rows += reversed(connection.execute(self._sql.newest_hits, (*key, term, newest)).fetchall())
        return rows

    def _hits_among(self, connection: Driven, key: SessionKey, terms: Sequence[str], seqs: Sequence[int]) -> list[Any]:
        rows: list[Any] = []
        for term in terms:
            rows += self._listed(connection, self._sql.hits_among_in, (*key, term), sorted(set(seqs)))
        return sorted(rows, key=lambda row: row[1])

    # leases

    def lease(self, key: SessionKey, name: str, holder: str, *, now_s: float, ttl_s: float) -> bool:
        owner, session = checked_key(key)
        values = (owner, session, name, holder, now_s + ttl_s, now_s)
        return self._write(lambda c: bool(c.execute(self._sql.take_lease, values).rowcount > 0))

    def release(self, key: SessionKey, name: str, holder: str) -> None:
        values = (*checked_key(key), name, holder)
        self._write(lambda c: c.execute(self._sql.drop_lease, values))

    def sessions(self, owner: str) -> tuple[str, ...]:
        checked_key(SessionKey(owner, ""))
        rows = self._read(lambda c: c.execute(self._sql.sessions, (owner,)).fetchall())
        return tuple(sorted(str(row[0]) for row in rows))


def _encoded(draft: Draft) -> str:
    payload = encode_body(draft.body)
    if "\\ud" in payload:
        # escapes of surrogates: pairs are fine, a lone one could never be read again
        try:
            decode_body(payload)
        except StoreCorruptError:
            raise InvalidTextError(
                f"record {draft.id!r} holds a lone surrogate: decode the text properly before adding it"
            ) from None
    return payload


def _record(row: Sequence[Any]) -> Record:
    seq, record_id, turn_id, at_s, payload = row
    try:
        return Record(int(seq), record_id, decode_body(payload), turn_id, float(at_s))
    except StoreCorruptError as error:
        raise StoreCorruptError(f"record {seq} ({record_id!r}): {error}") from None


if TYPE_CHECKING:
    _: Store = SqlStore("sqlite://")
