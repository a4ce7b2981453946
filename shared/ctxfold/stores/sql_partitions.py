"""Makes the tables of a PostgreSQL store that is partitioned by a hash of the owner."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlalchemy.schema import CreateTable

from ctxfold.errors import ConfigError
from ctxfold.stores.sql_schema import (
    begin_creation,
    create_tables,
    owned_tables,
    stored_partitions,
    table_of,
)

if TYPE_CHECKING:
    from sqlalchemy import Dialect

    from ctxfold.stores.sql_engine import Driven, StoreAddress

_COUNT = "partitions"  # key of ctxfold_meta
_MADE_AT_ONCE = 32  # tables in one transaction: each takes a dozen places in the server's table of locks

# The owner comes last or in the plain collation: PostgreSQL finds the partition only by a comparison in the collation of the
# partition's key. The session is in a collation of its own for the reason given in `sql_schema`.
_INDEXES: dict[str, dict[str, str]] = {
    "ctxfold_records": {
        "by_id": '(session COLLATE "C", record_id COLLATE "C", owner)',
        "snapshots": "(session COLLATE \"C\", owner, seq) WHERE kind = 'snapshot_taken'",
        "numbers": '(session COLLATE "C", number, owner) WHERE number IS NOT NULL',
    },
    "ctxfold_memory": {
        "places": "(owner, place)",
        "kinds": "(owner, kind, state, created_s)",
        "sessions": "(owner, session)",
    },
}
_UNIQUE = frozenset({"by_id"})


def check_stored(stored: int | None, requested: int, address: StoreAddress) -> None:
    """Raises ConfigError where a store that exists does not have the number of partitions that its user wants."""
    if stored is None:
        raise ConfigError(
            f"{address.name} is not partitioned, and partitions={requested} applies only when a store is created: "
            "leave it out, or export the sessions and import them into a new store"
        )
    if stored != requested:
        raise ConfigError(f"{address.name} has {stored} partitions, not {requested}: leave partitions= out")


# creation


def begun_partitions(connection: Driven) -> int | None:
    """Returns how many partitions another process has begun to make; None where no table is there yet."""
    if connection.execute("SELECT 1 WHERE to_regclass('ctxfold_meta') IS NOT NULL").fetchone() is None:
        return None
    return stored_partitions(connection)


def create_partitioned(transact: Callable[[Callable[[Driven], object]], object], dialect: Dialect, count: int) -> None:
    """Makes all tables of a new store in several transactions; another process may do the same, or complete what this one began.

    `transact` runs a piece in a transaction in which nobody else makes tables. The format version is written at the end. A store
    that another process has made meanwhile stays as it is.
    """

    def begin(connection: Driven) -> None:
        begin_creation(connection, dialect)
        connection.execute(
            f"INSERT INTO ctxfold_meta (key, value) SELECT '{_COUNT}', '{count}' "
            "WHERE NOT EXISTS (SELECT 1 FROM ctxfold_meta WHERE key = 'format_version') ON CONFLICT (key) DO NOTHING"
        )

    transact(begin)
    counts: list[int | None] = []
    transact(lambda c: counts.append(stored_partitions(c)))
    if (begun := counts[-1]) is not None:
        for first in range(0, _tables(begun), _MADE_AT_ONCE):

            def make(connection: Driven, first: int = first) -> None:
                for number in range(first, min(first + _MADE_AT_ONCE, _tables(begun))):
                    _make(connection, dialect, begun, number)

            transact(make)
    transact(lambda c: create_tables(c, dialect, partitioned=begun is not None))


def _tables(count: int) -> int:
    """Returns how many tables a store with that many partitions has."""
    return len(owned_tables()) * (1 + count)


def _make(connection: Driven, dialect: Dialect, count: int, number: int) -> None:
    """Makes one of the tables unless it is there: each partitioned table with its indexes, then its partitions."""
    at, remainder = divmod(number, 1 + count)
    name = owned_tables()[at]
    if remainder:
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {name}_p{remainder - 1} PARTITION OF {name} "
            f"FOR VALUES WITH (MODULUS {count}, REMAINDER {remainder - 1})"
        )
        return
    table = str(CreateTable(table_of(name), if_not_exists=True).compile(dialect=dialect))
    connection.execute(f"{table.rstrip()} PARTITION BY HASH (owner)")
    for index, columns in _INDEXES.get(name, {}).items():
        unique = "UNIQUE " if index in _UNIQUE else ""
        connection.execute(f"CREATE {unique}INDEX IF NOT EXISTS {name}_{index} ON {name} {columns}")
