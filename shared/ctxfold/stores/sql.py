"""A durable store: SQLite by file, PostgreSQL by URL, through SQLAlchemy."""

from __future__ import annotations

import logging
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ctxfold.errors import ConfigError, StoreError, StoreUnavailableError
from ctxfold.history.records import SessionKey
from ctxfold.stores.base import checked_key, follow_forks
from ctxfold.stores.sql_engine import MADE_MEANWHILE, Driven, parse_url, transaction
from ctxfold.stores.sql_index import STAYS_FORMAT, OldRow
from ctxfold.stores.sql_tables import SqlTables
from ctxfold.telemetry import record_archive_read
from ctxfold.validation import whole_number

if TYPE_CHECKING:
    from ctxfold.protocols import OwnerIndex, Replicated, Store, VectorIndex
    from ctxfold.stores.sql_replica import Replica

_MOST_PARTITIONS = 1024
_UPGRADE = SessionKey("", "")  # whose lease the worker has that moves the search index
_UPGRADE_LEASE_S = 30.0

_logger = logging.getLogger("ctxfold.stores")


class SqlStore(SqlTables):
    """Keeps logs in `sqlite:///file.db` or `postgresql+psycopg://user:password@host/database`.

    Safe across threads, tasks and processes. The constructor connects and creates the tables, and raises StoreError when it
    cannot. `timeout_s` limits the wait for locks, for a connection and for the server. `sqlite://` is a database in memory,
    which ends with this object. Async forms run in worker threads.

    A store of an older format is upgraded: its tables at once, its search index afterwards, by a thread of this object. With
    `upgrade=False` a store of format 2 is left as it is, so that workers of the previous release can still use it.

    `partitions` (2 to 1024) creates a new PostgreSQL store with that many partitions, by a hash of the owner. It is not needed
    to open an existing store; see `partition`.

    `replica` is the URL of a server that replicates a PostgreSQL store. Searches, and reads of whole conversations, go there
    while it is up to date with the store for the session, or for the owner's sessions; see `for_archive`.
    """

    _replica: Replica | None = None

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 30.0,
        pool_size: int = 8,
        upgrade: bool = True,
        partitions: int | None = None,
        replica: str | None = None,
    ) -> None:
        if timeout_s <= 0 or pool_size < 0:
            raise ConfigError(
                f"timeout_s={timeout_s:g} and pool_size={pool_size}: give a time above zero, and a size of 0 or more"
            )
        super().__init__(parse_url(url), timeout_s=timeout_s, pool_size=pool_size)
        self._partitions = None if partitions is None else self._checked_partitions(partitions)
        self._upgrade = upgrade
        self._stop = threading.Event()
        self._mover: threading.Thread | None = None
        try:
            self._replica = None if replica is None else self._following(replica, pool_size)
            self._prepare()
        except BaseException:
            self._finalizer()
            raise
        follow_forks(self)

    def _following(self, url: str, pool_size: int) -> Replica:
        from ctxfold.stores.sql_replica import Replica

        if self._address.sqlite:
            raise ConfigError(
                f"replica= for {self._address.name}: SQLite has no replicas, PostgreSQL has; leave it out"
            )
        self.capabilities = replace(self.capabilities, replica=True)
        return Replica(self, url, self._timeout_s, pool_size)

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._mover = None  # threads stay in the parent
        super().after_fork(in_child=in_child)

    def _checked_partitions(self, count: int) -> int:
        if self._address.sqlite:
            raise ConfigError(
                f"partitions={count} for {self._address.name}: SQLite has no partitions, PostgreSQL has; leave it out"
            )
        advice = f"give a number from 2 to {_MOST_PARTITIONS}"
        if not 2 <= (number := whole_number("partitions", count, advice)) <= _MOST_PARTITIONS:
            raise ConfigError(f"partitions is {count}: {advice}")
        return number

    def _prepare(self) -> None:
        """Makes or upgrades the tables at first, and for a SQLite file that has taken the place of the one that was open."""
        if self._rows.outdated.is_set():
            self._use_statements(partitioned=True, old_rows=self._index.old_rows)
        if self._ready and self._address.file == self._file:
            return
        with self._creation:
            file_before = self._address.file
            if self._ready and file_before == self._file:
                return
            if self._ready and file_before is None:
                raise StoreUnavailableError(
                    f"the file of {self._address.name} was deleted while it was open: put it back, or open a new store"
                )
            if self._ready:
                self._engine.dispose()
            self._ready, self._file = False, None
            self._tried(self._create, alone=True)
            file = self._address.file
            if file != file_before:
                self._engine.dispose()  # connections that are opened from here on lead to `file`, or the next call sees it
            self._ready, self._file = True, file
            if self._upgrade and self._index.old_rows:
                self._start_mover()

    def _create(self, connection: Driven) -> None:
        from ctxfold.stores.sql_schema import (
            FORMAT_VERSION,
            create_tables,
            stored_partitions,
            stored_version,
            upgrade_tables,
        )

        version = stored_version(connection, self._address)
        while version is None and not self._address.sqlite:
            self._create_on_server(connection)
            version = stored_version(connection, self._address)
        if version != FORMAT_VERSION:
            if version is None and not self._address.in_memory:
                connection.execute("PRAGMA journal_mode=WAL")
            with transaction(connection, self._address, self._timeout_s):
                self._lock_creation(connection)
                if version is not None and (self._upgrade or version < STAYS_FORMAT):
                    upgrade_tables(connection, self._engine.dialect)
                else:
                    partitioned = version is not None and stored_partitions(connection) is not None
                    create_tables(connection, self._engine.dialect, partitioned=partitioned)
            version = stored_version(connection, self._address)
        if not self._address.sqlite:
            self._look_for_partitions(connection)
        self._index.old_rows = version == STAYS_FORMAT or self._index.any_old_row(connection)

    def _create_on_server(self, connection: Driven) -> None:
        """Makes the tables of a new store, those with partitions in several transactions; completes what another process began."""
        from ctxfold.stores.sql_partitions import begun_partitions, create_partitioned
        from ctxfold.stores.sql_schema import begin_creation, create_tables

        dialect = self._engine.dialect
        count = self._partitions or begun_partitions(connection)
        if self._address.serializable:
            self._make_first_table(connection)

        def transact(work: Callable[[Driven], object]) -> None:
            with transaction(connection, self._address, self._timeout_s):
                self._lock_creation(connection)
                work(connection)

        if count is not None:
            create_partitioned(transact, dialect, count)
            return
        with transaction(connection, self._address, self._timeout_s):
            self._lock_creation(connection)
            if begin_creation(connection, dialect) is None:  # else another process was quicker, with partitions
                create_tables(connection, dialect)

    def _make_first_table(self, connection: Driven) -> None:
        """Makes the table whose row is locked, on its own."""
        from ctxfold.stores.sql_schema import begin_creation

        try:
            begin_creation(connection, self._engine.dialect)
        except self._failures as error:
            if getattr(error, "sqlstate", None) not in MADE_MEANWHILE:
                raise

    def _lock_creation(self, connection: Driven) -> None:
        from ctxfold.stores.sql_schema import lock_creation

        lock_creation(connection, self._engine.dialect, by_row=self._address.serializable)

    def _look_for_partitions(self, connection: Driven) -> None:
        from ctxfold.stores.sql_partitions import check_stored
        from ctxfold.stores.sql_schema import stored_partitions

        stored = stored_partitions(connection)
        if self._partitions is not None:
            check_stored(stored, self._partitions, self._address)
        self._use_statements(partitioned=stored is not None)

    def _start_mover(self) -> None:
        if self._mover is None or not self._mover.is_alive():
            work = partial(_move_in_background, weakref.ref(self), self._stop)
            self._mover = threading.Thread(target=work, name="ctxfold-upgrade", daemon=True)
            self._mover.start()

    def upgrade(self, *, progress: Callable[[int], object] | None = None) -> int:
        """Upgrades the store to the newest format, its search index included, and returns how many rows this call moved.

        `progress` is called with that number after each transaction. Other workers may use the store meanwhile. An interrupted
        upgrade is resumed by the next call. A store that was opened without `upgrade=False` does the same in a thread.
        """
        from ctxfold.stores.sql_schema import upgrade_tables

        def begin(connection: Driven) -> None:
            self._lock_creation(connection)
            upgrade_tables(connection, self._engine.dialect)

        self._write(begin)
        moved, after = 0, _BEGINNING
        while (step := self._move_some(after)) is not None:
            after, rows = step
            moved += rows
            if progress is not None and rows:
                progress(moved)
        return moved

    def partition(self, partitions: int, *, progress: Callable[[int], object] | None = None) -> int:
        """Moves a PostgreSQL store to tables with that many partitions (2 to 1024); returns how many rows this call copied.

        Rows are distributed by a hash of the owner. `progress` is called with the number of rows after each transaction. Other
        workers may read and write meanwhile. An interrupted move is resumed by calling it again with the same number of
        partitions. It needs disk space for a second copy, and the role that created the tables.

        Raises StoreUnavailableError when other transactions hold the tables for long (call it again), and StoreError when the
        move is cancelled meanwhile.
        """
        count = self._checked_partitions(partitions)
        from ctxfold.stores.sql_partitions import begin_move, move_some
        from ctxfold.stores.sql_schema import stored_partitions

        self._write(lambda c: begin_move(c, self._address, count))
        copied = 0
        while (rows := self._write(lambda c: move_some(c, self._engine.dialect))) is not None:
            copied += rows
            if progress is not None and rows:
                progress(copied)
        if self._read(stored_partitions) != count:
            raise StoreError(
                f"the move of {self._address.name} was cancelled meanwhile: call partition({count}) to start again"
            )
        return copied

    def cancel_partition(self) -> bool:
        """Cancels a move to partitions that is not complete, and restores the tables; returns False when there is none.

        Other workers may read and write meanwhile. An interrupted cancellation is resumed by calling it again. Raises
        StoreUnavailableError as `partition` does.
        """
        if self._address.sqlite:
            return False
        from ctxfold.stores.sql_partitions import begin_cancel, cancel_some

        begun = self._write(begin_cancel)
        while self._write(cancel_some):
            pass
        return begun

    def _move_some(self, after: OldRow) -> tuple[OldRow, int] | None:
        """Moves some rows of format 2 behind `after`: where to go on, and how many; None when there is none left at all."""
        step = self._write(lambda c: self._index.move_old_rows(c, after))
        if step is not None:
            return step
        if after != _BEGINNING:
            return _BEGINNING, 0  # rows that came before it meanwhile
        self._index.old_rows = False
        if not self._address.sqlite and not self._address.serializable:
            with suppress(StoreUnavailableError):  # readers are in the way: VACUUM gives the space back later
                self._write(self._index.truncate_old_rows)
        return None

    def _close_mover(self) -> None:
        self._stop.set()
        mover, self._mover = self._mover, None
        if mover is not None and mover is not threading.current_thread():
            mover.join(self._timeout_s)

    def close(self) -> None:
        """Waits for running calls, then closes every connection; may be called more than once."""
        self._close_mover()
        super().close()
        if self._replica is not None:
            self._replica.close()

    # replicas

    def for_archive(self, owner: str, session: str | None = None) -> Store:
        """Returns the store for reading archives: the replica if it is up to date for the session or owner, else this one."""
        checked_key(SessionKey(owner, "" if session is None else session))
        if self._replica is None:
            return self
        current = self._replica.is_current(owner, session)
        record_archive_read(at_replica=current)
        return self._replica if current else self


_BEGINNING: OldRow = ("", "", "", -1)


def _move_in_background(reference: weakref.ref[SqlStore], stop: threading.Event) -> None:
    """Moves the search index of a store to the newest format while the store is in use, one worker at a time."""
    holder, after = uuid.uuid4().hex, _BEGINNING
    while not stop.is_set():
        store = reference()
        if store is None:
            return
        start_s = time.monotonic()
        try:
            if not store.lease(_UPGRADE, "upgrade", holder, now_s=time.time(), ttl_s=_UPGRADE_LEASE_S):
                pause_s = 1.0
                step: tuple[OldRow, int] | None = (after, 0)
            else:
                step = store._move_some(after)  # pyright: ignore[reportPrivateUsage]
                pause_s = time.monotonic() - start_s  # as long as it took: others write, too
            if step is None:
                store.release(_UPGRADE, "upgrade", holder)
                return
            after = step[0]
        except StoreUnavailableError:
            pause_s = 1.0  # the database is away or busy, or the store was closed
        except StoreError:
            _logger.exception(
                "the search index of %r could not be upgraded; it goes on when the store is opened again", store
            )
            return
        del store
        stop.wait(pause_s)


if TYPE_CHECKING:
    _: Store = SqlStore("sqlite://")
    _index: OwnerIndex = SqlStore("sqlite://")
    _vectors: VectorIndex = SqlStore("sqlite://")
    _replicated: Replicated = SqlStore("sqlite://")
