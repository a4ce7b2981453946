"""A store for another database driver, as somebody outside of ctxfold would write it: sqlite3 by hand, six methods."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from ctxfold.stores.key_value import KeyValueStore


class TableTransaction:
    """The rows of one table of keys and values."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def get(self, key: bytes) -> bytes | None:
        row = self._connection.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def put(self, key: bytes, value: bytes) -> None:
        self._connection.execute("REPLACE INTO entries VALUES (?, ?)", (key, value))

    def delete(self, key: bytes) -> None:
        self._connection.execute("DELETE FROM entries WHERE key = ?", (key,))

    def scan(self, first: bytes, end: bytes, *, reverse: bool = False) -> Iterable[tuple[bytes, bytes]]:
        order = "DESC" if reverse else "ASC"
        sql = f"SELECT key, value FROM entries WHERE key >= ? AND key < ? ORDER BY key {order}"
        return self._connection.execute(sql, (first, end))


class TableStore(KeyValueStore):
    """Keeps sessions in one table of a file; each transaction opens the file."""

    driver_errors = (sqlite3.Error,)

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        with self._connected() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")

    @contextmanager
    def _connected(self) -> Generator[sqlite3.Connection]:
        connection = sqlite3.connect(self._path, timeout=30, isolation_level=None)
        try:
            yield connection
        finally:
            connection.close()

    @contextmanager
    def transaction(self, *, write: bool) -> Generator[TableTransaction]:
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            yield TableTransaction(connection)
            connection.execute("COMMIT")  # closing without it rolls back

    def disconnect(self) -> None:
        """No connection is kept open."""
