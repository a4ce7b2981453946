"""A durable store: SQLite by file, PostgreSQL by URL, through SQLAlchemy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ctxfold.errors import ConfigError, StoreUnavailableError
from ctxfold.stores.base import follow_forks
from ctxfold.stores.sql_engine import MADE_MEANWHILE, Driven, parse_url, transaction
from ctxfold.stores.sql_tables import SqlTables
from ctxfold.validation import whole_number

if TYPE_CHECKING:
    from ctxfold.protocols import OwnerIndex, Store, VectorIndex

_MOST_PARTITIONS = 1024


class SqlStore(SqlTables):
    """Keeps logs in `sqlite:///file.db` or `postgresql+psycopg://user:password@host/database`.

    Safe across threads, tasks and processes. The constructor connects and creates the tables, and raises StoreError when it
    cannot. `timeout_s` limits the wait for locks, for a connection and for the server, also for one that has answered and is
    away now: `postgresql://user:password@host1,host2/database?target_session_attrs=read-write` finds the next primary. `sqlite://`
    is a database in memory, which ends with this object. Async forms run in worker threads.

    `partitions` (2 to 1024) creates a new PostgreSQL store with that many partitions, by a hash of the owner. It is not needed
    to open an existing store. To partition a store that exists, export its sessions and import them into a new one.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 30.0,
        pool_size: int = 8,
        partitions: int | None = None,
    ) -> None:
        if timeout_s <= 0 or pool_size < 0:
            raise ConfigError(
                f"timeout_s={timeout_s:g} and pool_size={pool_size}: give a time above zero, and a size of 0 or more"
            )
        super().__init__(parse_url(url), timeout_s=timeout_s, pool_size=pool_size)
        self._partitions = None if partitions is None else self._checked_partitions(partitions)
        try:
            self._prepare()
        except BaseException:
            self._finalizer()
            raise
        follow_forks(self)

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
        """Makes the tables at first, and for a SQLite file that has taken the place of the one that was open."""
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
                self._connections.close()
            self._ready, self._file = False, None
            self._address.make_file()
            self._tried(self._create, alone=True)
            file = self._address.file
            if file != file_before:
                self._connections.close()  # connections that are opened from here on lead to `file`, or the next call sees it
            self._ready, self._file = True, file

    def _create(self, connection: Driven) -> None:
        from ctxfold.stores.sql_schema import create_tables, stored_version

        version = stored_version(connection, self._address)
        while version is None and not self._address.sqlite:
            self._create_on_server(connection)
            version = stored_version(connection, self._address)
        if version is None:
            if not self._address.in_memory:
                connection.execute("PRAGMA journal_mode=WAL")
            with transaction(connection, self._address, self._timeout_s):
                create_tables(connection, self._engine.dialect)
        if not self._address.sqlite:
            self._look_for_partitions(connection)

    def _create_on_server(self, connection: Driven) -> None:
        """Makes the tables of a new store, those with partitions in several transactions; completes what another process began."""
        from ctxfold.stores.sql_schema import (
            begin_creation,
            begun_partitions,
            create_partitioned,
            create_tables,
        )

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
        from ctxfold.stores.sql_schema import (
            check_stored,
            stored_partitions,
        )

        stored = stored_partitions(connection)
        if self._partitions is not None:
            check_stored(stored, self._partitions, self._address)
        self._use_statements(partitioned=stored is not None)


if TYPE_CHECKING:
    _: Store = SqlStore("sqlite://")
    _index: OwnerIndex = SqlStore("sqlite://")
    _vectors: VectorIndex = SqlStore("sqlite://")
