"""A server that follows a PostgreSQL store, and is asked where it has all that the store has."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ctxfold.errors import ConfigError, StoreError, StoreFormatError
from ctxfold.stores.base import follow_forks
from ctxfold.stores.sql_engine import Driven, parse_url
from ctxfold.stores.sql_tables import SqlTables

T = TypeVar("T")

_PATIENCE_S = 2.0  # for a connection, or a lock that is replayed
_REST_S = 5.0  # for which a replica that failed is left alone

_logger = logging.getLogger("ctxfold.stores")


class Replica(SqlTables):
    """Reads from the replica of a store, and from the store what the replica fails to answer. Whatever writes goes to the store."""

    _tries = 1  # the store itself can answer

    def __init__(self, primary: SqlTables, url: str, timeout_s: float, pool_size: int) -> None:
        address = parse_url(url)
        if address.sqlite:
            raise ConfigError(f"replica={address.name}: give the URL of a PostgreSQL server that follows the store")
        address = replace(address, serializable=False)  # a standby has no such transactions
        super().__init__(address, timeout_s=min(timeout_s, _PATIENCE_S), pool_size=pool_size)
        self._store = weakref.ref(primary)  # which closes this one
        self._rests_until_s = 0.0
        self._away = False
        follow_forks(self)

    @property
    def _primary(self) -> SqlTables:
        store = self._store()
        assert store is not None, "whoever reads has the store"
        return store

    def is_current(self, owner: str, session: str | None) -> bool:
        """Returns whether the replica has the session, or every session of the owner, as the store itself has it now."""
        if time.monotonic() < self._rests_until_s:
            return False
        primary = self._primary
        # as partitions and format require
        self._sql, self._rows, self._index = (primary._sql, primary._rows, primary._index)
        newest = primary._newest(owner, session)
        return self._newest(owner, session) == newest and time.monotonic() >= self._rests_until_s

    def _read(self, work: Callable[[Driven], T]) -> T:
        if time.monotonic() >= self._rests_until_s:
            try:
                result = super()._read(work)
            except StoreError as error:
                self._rest(error)
            else:
                self._back()
                return result
        return self._primary._read(work)

    def _write(self, work: Callable[[Driven], T], *, provisional: bool = False) -> T:
        return self._primary._write(work, provisional=provisional)

    def _rest(self, error: StoreError) -> None:
        self._rests_until_s = time.monotonic() + _REST_S
        self._engine.dispose()  # the others may be broken too
        if not self._away:
            self._away = True
            _logger.warning("the archive is read from %r until its replica can be used again: %s", self._primary, error)

    def _back(self) -> None:
        if self._away:
            self._away = False
            _logger.info("the archive is read from %r again", self)

    def _prepare(self) -> None:
        """Looks once whether the server has tables of this format; makes none."""
        if not self._ready:
            self._tried(self._check, alone=False)
            self._ready = True

    def _check(self, connection: Driven) -> None:
        from ctxfold.stores.sql_schema import FORMAT_VERSION, stored_version

        version = stored_version(connection, self._address)
        if version != FORMAT_VERSION:
            has = "no tables of ctxfold" if version is None else f"store format {version}, and not {FORMAT_VERSION}"
            raise StoreFormatError(f"{self._address.name} has {has}: give the URL of a replica of {self._primary!r}")
