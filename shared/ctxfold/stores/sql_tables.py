"""The tables of a SQL store, read and written over pooled connections."""

from __future__ import annotations

import random
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import count
from typing import Any, TypeVar

from ctxfold.errors import HeadMovedError, InvalidTextError, StoreUnavailableError
from ctxfold.history.memory_items import MemoryItem, Remembered
from ctxfold.history.records import Draft, Record, SessionKey
from ctxfold.index.cache import Hit
from ctxfold.protocols import Document, Head, Postings, Rewrite, StoreCapabilities
from ctxfold.stores import sql_rows as sql_memory
from ctxfold.stores.base import (
    VectorStore,
    checked_drafts,
    checked_items,
    checked_key,
    encoded,
    erased_meanwhile,
    unseen,
    written_at,
)
from ctxfold.stores.sql_engine import (
    Connections,
    Driven,
    Dropped,
    StoreAddress,
    is_away,
    is_passing,
    make_engine,
    transaction,
    translated,
)
from ctxfold.stores.sql_index import SqlIndex
from ctxfold.stores.sql_rows import Rows, stored_record
from ctxfold.telemetry import record_retry

T = TypeVar("T")

_TRIES_TO_SERIALIZE = 48  # each writer that comes at the same moment may be refused by each other one


class _Queue:
    """A lock for threads that share a store, which waits no longer than the store's time-out."""

    def __init__(self, address: StoreAddress, timeout_s: float) -> None:
        self._lock = threading.Lock()
        self._address = address
        self._timeout_s = timeout_s

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=self._timeout_s):
            raise StoreUnavailableError(
                f"{self._address.name} was busy for {self._timeout_s:g} s with other threads: raise timeout_s"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class SqlTables(VectorStore):
    """Reads and writes tables that are there. Who makes them is for the derived class to say, in `_prepare`."""

    capabilities = StoreCapabilities(owner_index=True, vectors=True)
    _tries = 12

    def __init__(self, address: StoreAddress, *, timeout_s: float, pool_size: int) -> None:
        """Makes what a store has in memory; connects to nothing."""
        self._address = address
        self._timeout_s = timeout_s
        self._engine = make_engine(address, timeout_s=timeout_s, pool_size=pool_size)
        self._connections = Connections(self._engine, 0 if address.in_memory else pool_size)
        from sqlalchemy.exc import TimeoutError as PoolTimeoutError

        self._failures = (self._engine.dialect.loaded_dbapi.Error, PoolTimeoutError, Dropped)
        self._use_statements(partitioned=False)
        self._closed = False
        self._ready = False
        self._file: tuple[int, int] | None = None
        self._forked_in_use = False
        self._unqueued = nullcontext()
        self._make_locks()
        self._finalizer = weakref.finalize(self, self._connections.close)

    def _use_statements(self, *, partitioned: bool) -> None:
        from ctxfold.stores.sql_schema import Statements

        dialect = "sqlite" if self._address.sqlite else "postgresql"
        # those of a store without partitions find an owner's rows in one with, but ask every partition
        self._sql = Statements.of(dialect, partitioned=partitioned, lock_rows=self._address.serializable)
        self._rows = Rows(self._sql, dialect)
        self._index = SqlIndex(self._rows)

    def _make_locks(self) -> None:
        self._state = threading.Condition()
        self._busy = 0
        self._forking = False
        self._creation = threading.Lock()
        # SQLite lets waiting writers poll; threads that share this store queue here instead
        self._alone = _Queue(self._address, self._timeout_s) if self._address.sqlite else self._unqueued

    def before_fork(self) -> None:
        """Ends SQLite's running calls and closes its connections.

        SQLite keeps its locks of a file in memory of the process. A child that inherits them while a connection is open believes
        that it holds locks that it does not have, also on connections that it opens itself.
        """
        if not self._address.sqlite:
            return
        self._state.acquire()
        self._forking = True
        quiet = self._state.wait_for(lambda: self._busy == 0, timeout=self._timeout_s)
        if quiet and not self._address.in_memory:
            self._connections.close()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._forked_in_use = self._address.sqlite and self._busy > 0
            self._make_locks()  # other threads of the parent may have held them
            if not self._address.sqlite:
                # the parent's: to close one here would end its session on the server
                self._inherited = self._connections.left_to_parent()
        elif self._address.sqlite:
            self._forking = False
            self._state.notify_all()
            self._state.release()

    def __repr__(self) -> str:
        return f"SqlStore({self._address.name!r})"

    # connections

    def _write(self, work: Callable[[Driven], T], *, provisional: bool = False) -> T:
        return self._call(partial(self._within, work, provisional=provisional), alone=True)

    def _within(self, work: Callable[[Driven], T], connection: Driven, *, provisional: bool = False) -> T:
        with transaction(connection, self._address, self._timeout_s, provisional=provisional):
            return work(connection)

    def _read(self, work: Callable[[Driven], T]) -> T:
        if self._address.proxied:
            work = partial(self._within, work)  # the settings hold within a transaction alone
        return self._call(work, alone=self._address.in_memory)

    def _call(self, work: Callable[[Driven], T], *, alone: bool) -> T:
        """Runs the work on the store's tables; `close` waits for it."""
        with self._state:
            if self._forking:
                self._state.wait_for(lambda: not self._forking)
            self._check_open()
            self._busy += 1
        try:
            self._prepare()
            return self._tried(work, alone=alone)
        finally:
            with self._state:
                self._busy -= 1
                if self._closed or self._forking:
                    self._state.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError(f"{self!r} is closed: open a new one")
        if self._forked_in_use:
            raise StoreUnavailableError(
                f"this process was forked while a call to {self._address.name} had been running for {self._timeout_s:g} s: "
                "SQLite's locks cannot be used in it, so start it anew (multiprocessing: spawn) or fork at another moment"
            )

    def _tried(self, work: Callable[[Driven], T], *, alone: bool) -> T:
        """Runs the work on a pooled connection, and retries it after a lock, a dropped connection, or while a server is away."""
        deadline_s = time.monotonic() + self._timeout_s
        tries = _TRIES_TO_SERIALIZE if self._address.serializable else self._tries
        for attempt in count(1):
            try:
                with self._alone if alone else self._unqueued:
                    file = self._file
                    with self._connections.lent() as connection:
                        result = work(connection)
                    if alone and file is not None and self._address.file != file:
                        raise StoreUnavailableError(
                            f"the file of {self._address.name} was deleted or replaced during a write, which may be lost: "
                            "put the file back and write again with the same ids"
                        )
                    return result
            except (*self._failures, UnicodeDecodeError) as error:
                # one that has never answered may not be there at all
                awaited = self._ready and not (self._closed or self._address.sqlite) and is_away(error)
                again = awaited or (attempt < tries and is_passing(error))
                if not again or time.monotonic() > deadline_s:
                    raise translated(error, self._address, self._timeout_s) from None
            except UnicodeEncodeError:
                raise InvalidTextError("an id or term holds a lone surrogate: decode the text properly") from None
            record_retry("sqlite" if self._address.sqlite else "postgresql")
            time.sleep(random.uniform(0.001, 0.005 * 2 ** min(attempt, 6)))
        raise AssertionError("unreachable")

    @abstractmethod
    def _prepare(self) -> None:
        """Sees before each call that the tables are there, and uses the statements for them."""

    def close(self) -> None:
        """Waits for running calls, then closes every connection; may be called more than once."""
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
        known_id: str | None = None,
    ) -> tuple[Record, ...]:
        checked_key(key)
        ready = checked_drafts(drafts)
        # encoded before the transaction, which others wait for
        payloads = {item.draft.id: encoded(item.draft.body, item.draft.id) for item in ready}

        def work(connection: Driven) -> tuple[Record, ...]:
            head, snapshot, archived, length, numbered = self._rows.locked(connection, key)
            if not head and not archived:
                self._rows.remove_left_over(connection, key)
            ids = [*(() if known_id is None else (known_id,)), *(item.draft.id for item in ready)]
            there = self._rows.fingerprints(connection, key, ids) if head else {}
            if known_id is not None and there.get(known_id, ("", 0))[1] != known:
                raise erased_meanwhile(key)
            if expect is not None and expect != head and not written_at(ready, there, expect):
                raise HeadMovedError(expect, head)
            new = unseen(ready, {name: fingerprint for name, (fingerprint, _) in there.items()})
            records = self._rows.insert(connection, key, head, new, payloads, numbered=numbered)
            added: tuple[Document, ...] = ()
            if documents:
                added = self._index.add(connection, key, documents, archived=archived)
            if new or added:
                snapshot = max((r.seq for r in records if r.body.kind == "snapshot_taken"), default=snapshot)
                totals = (archived + len(added), length + sum(document.length for document in added))
                numbered = max((r.number for r in records), default=0) or numbered
                moved = (head + len(records), snapshot, *totals, numbered, *key)
                connection.execute(self._sql.move_head, moved)
            older = self._rows.range(connection, key, known, head) if known < head else ()
            return (*older, *(record for record in records if record.seq > known))

        return self._write(work, provisional=all(item.provisional for item in drafts) and not documents)

    def read(self, key: SessionKey, *, after: int = 0, upto: int | None = None) -> tuple[Record, ...]:
        checked_key(key)
        return self._read(lambda c: self._rows.range(c, key, after, upto))

    def fetch(self, key: SessionKey, seqs: Sequence[int]) -> tuple[Record, ...]:
        checked_key(key)
        checked_seqs = sorted({seq for seq in seqs if 0 < seq < 1 << 63})
        return self._read(lambda c: self._rows.records_in(c, self._sql.fetch_in, key, checked_seqs))

    def find(self, key: SessionKey, ids: Sequence[str]) -> tuple[Record, ...]:
        checked_key(key)
        checked_ids = sorted({name for name in ids if "\0" not in name})
        return self._read(lambda c: self._rows.records_in(c, self._sql.find_in, key, checked_ids))

    def numbered(self, key: SessionKey, number: int) -> Record | None:
        checked_key(key)
        if not 0 < number < 1 << 63:
            return None
        row = self._read(lambda c: c.execute(self._sql.numbered, (*key, number)).fetchone())
        return None if row is None else stored_record(row)

    def snapshot_before(self, key: SessionKey, seq: int) -> int:
        checked_key(key)
        row = self._read(lambda c: c.execute(self._sql.snapshot_before, (*key, seq)).fetchone())
        return 0 if row is None else int(row[0])

    def postings(
        self, key: SessionKey, terms: Sequence[str], *, newest: int | None = None, among: Sequence[int] | None = None
    ) -> Postings:
        checked_key(key)
        distinct_terms = list(dict.fromkeys(terms))

        def work(connection: Driven) -> tuple[Any, dict[str, tuple[Hit, ...]]]:
            totals = connection.execute(self._sql.archive, tuple(key)).fetchone()
            if among is not None:
                return totals, self._index.hits_among(connection, key, distinct_terms, among)
            if newest is not None:
                return totals, self._index.newest_hits(connection, key, distinct_terms, newest)
            return totals, self._index.hits(connection, key, distinct_terms)

        totals, by_term = self._read(work)
        documents, length, numbered = (0, 0, 0) if totals is None else map(int, totals)
        return Postings(documents, length, {term: by_term[term] for term in terms}, numbered)

    def owner_postings(self, owner: str, terms: Sequence[str], *, newest: int) -> Mapping[str, Postings]:
        checked_key(SessionKey(owner, ""))
        distinct_terms = list(dict.fromkeys(terms))

        def work(connection: Driven) -> tuple[list[Any], dict[str, dict[str, tuple[Hit, ...]]]]:
            sizes = connection.execute(self._sql.owner_archives, (owner,)).fetchall()
            return sizes, self._index.owner_hits(connection, owner, distinct_terms, newest)

        sizes, by_session = self._read(work)
        return {
            str(session): Postings(
                int(documents),
                int(length),
                {term: by_session.get(str(session), {}).get(term, ()) for term in terms},
                int(numbered),
            )
            for session, documents, length, numbered in sizes
        }

    async def aowner_postings(self, owner: str, terms: Sequence[str], *, newest: int) -> Mapping[str, Postings]:
        return await self.offload(self.owner_postings, owner, terms, newest=newest)

    # vectors

    def embedders(self, key: SessionKey) -> Mapping[str, bytes]:
        checked_key(key)
        rows = self._read(lambda c: c.execute(self._sql.embedders, tuple(key)).fetchall())
        return {str(embedder): bytes(data) for embedder, data in rows}

    def vectors(self, key: SessionKey, embedder: str, *, seqs: Sequence[int] | None = None) -> Mapping[int, bytes]:
        checked_key(key)
        place = (*key, embedder)

        def work(connection: Driven) -> list[Any]:
            if seqs is not None:
                return self._rows.listed(connection, self._sql.vectors_in, place, seqs)
            return list(connection.execute(self._sql.vectors, place).fetchall())

        return {int(seq): bytes(data) for seq, data in self._read(work)}

    def put_vectors(self, key: SessionKey, embedder: str, vectors: Mapping[int, bytes]) -> None:
        checked_key(key)

        def work(connection: Driven) -> None:
            if connection.execute(self._sql.lock, tuple(key)).fetchone() is None:
                return
            kept = {0, *(int(r[0]) for r in self._rows.listed(connection, self._sql.not_erased_in, key, [*vectors]))}
            rows: list[tuple[object, ...]] = [(*key, embedder, s, data) for s, data in vectors.items() if s in kept]
            if rows:
                self._rows.many(connection, self._sql.put_vectors, rows)

        if vectors:
            self._write(work)

    def drop_vectors(self, key: SessionKey, embedder: str) -> None:
        checked_key(key)
        self._write(lambda c: c.execute(self._sql.drop_vectors, (*key, embedder)))

    # leases

    def lease(self, key: SessionKey, name: str, holder: str, *, now_s: float, ttl_s: float) -> bool:
        owner, session = checked_key(key)

        def work(connection: Driven) -> bool:
            clock = self._sql.server_time
            now = float(connection.execute(clock).fetchone()[0]) if clock else now_s
            values = (owner, session, name, holder, now + ttl_s, now)
            return bool(connection.execute(self._sql.take_lease, values).rowcount > 0)

        return self._write(work)

    def release(self, key: SessionKey, name: str, holder: str) -> None:
        values = (*checked_key(key), name, holder)
        self._write(lambda c: c.execute(self._sql.drop_lease, values))

    def sessions(self, owner: str) -> tuple[str, ...]:
        checked_key(SessionKey(owner, ""))
        rows = self._read(lambda c: c.execute(self._sql.sessions, (owner,)).fetchall())
        return tuple(sorted(str(row[0]) for row in rows))

    def owners(self) -> tuple[str, ...]:
        """Returns the owners that have sessions, sorted: for whoever runs the store, and for no program that serves one of them."""
        return tuple(sorted(str(row[0]) for row in self._read(lambda c: c.execute(self._sql.owners, ()).fetchall())))

    def copies(self, key: SessionKey) -> tuple[str, ...]:
        owner, session = checked_key(key)

        def work(connection: Driven) -> list[Any]:
            first = self._rows.record_id(connection, key, 1)
            return list(connection.execute(self._sql.copies, (owner, session, owner, first or "")))

        return tuple(sorted(str(row[0]) for row in self._read(work)))

    # memory

    def remember(self, owner: str, items: Sequence[MemoryItem]) -> tuple[Remembered, ...]:
        ready = checked_items(owner, items)
        return self._write(lambda c: sql_memory.remember(self._rows, c, owner, ready)) if ready else ()

    def memories(
        self, owner: str, *, kinds: Sequence[str] | None = None, newest: int = 2_000, everything: bool = False
    ) -> tuple[MemoryItem, ...]:
        checked_key(SessionKey(owner, ""))
        return self._read(lambda c: sql_memory.memories(self._rows, c, owner, kinds, newest, everything))

    def forget(self, owner: str, ids: Sequence[str]) -> tuple[MemoryItem, ...]:
        checked_key(SessionKey(owner, ""))
        return self._write(lambda c: sql_memory.forget(self._rows, c, owner, ids)) if ids else ()

    # erasure

    def erase(self, rewrites: Sequence[Rewrite], *, gone: Sequence[SessionKey] = ()) -> bool:
        from ctxfold.stores.sql_schema import owned_tables

        def work(connection: Driven) -> None:
            def unindexed(key: SessionKey, seqs: Sequence[int]) -> tuple[int, int]:
                if seqs:
                    self._index.remove(connection, key, seqs)
                return self._index.totals(connection, key)

            for change in sorted(rewrites, key=lambda r: r.key):
                if self._rows.rewrite(connection, change, unindexed):
                    seqs = (*(record.seq for record in change.records), *change.unindexed)
                    self._rows.each(connection, self._sql.drop_vectors_in, change.key, seqs)
                    sql_memory.without_sources(self._rows, connection, change.key.owner, change.key.session, change.ids)
            for owner, session in sorted(map(checked_key, gone)):
                self._rows.remove(connection, owned_tables(), owner, session)

        if rewrites or gone:
            self._write(work)
        return self._settled()

    def erase_owner(self, owner: str) -> bool:
        """Takes the sessions out of sight in one short transaction, then removes their rows in batches.

        An erasure that was interrupted in between is completed by the next one. The rows that are left belong to no session, and a
        session that is begun anew under the same name removes them first.
        """
        checked_key(SessionKey(owner, ""))
        self._write(lambda c: self._rows.hide_owner(c, owner))
        while keys := self._read(lambda c: self._rows.left_over(c, owner)):
            self._write(partial(self._rows.remove_batch, keys=keys))
        return self._settled()

    def _settled(self) -> bool:
        """Removes older text from SQLite's files; returns False when another process prevents it."""
        if not self._address.sqlite or self._address.in_memory:
            return True
        try:
            return self._call(lambda c: not c.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0], alone=True)
        except StoreUnavailableError:
            return False  # what was asked for is written; the files follow
