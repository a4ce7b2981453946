"""Tables of a PostgreSQL store that are partitioned by a hash of the owner, from the beginning or by a move while it is in use.

A move makes the partitioned tables beside the old ones. From then on triggers write each change to both, the rows that were
there before follow in batches, and at the end the new tables take the names of the old ones in one short transaction. Workers
need not know of it, those of the release before neither. What is to do stands in the store, so whoever is ended in between
goes on where it was. A move that is cancelled goes back step by step in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import MetaData
from sqlalchemy.schema import CreateTable

from ctxfold.errors import ConfigError
from ctxfold.stores.sql_schema import (
    begin_creation,
    column_names,
    create_tables,
    key_names,
    owned_tables,
    stored_partitions,
    table_of,
)

if TYPE_CHECKING:
    from sqlalchemy import Dialect

    from ctxfold.stores.sql_engine import Driven, StoreAddress

_COUNT, _MOVE = "partitions", "partition_move"  # keys of ctxfold_meta
_MADE_AT_ONCE = 32  # tables in one transaction: each takes a dozen places in the server's table of locks
_ROWS = 2_000  # copied in one transaction: some 30 ms
_LOCK_MS = 300  # how long others may have to queue behind a move that waits for a table
_MOVING = "ctxfold_moving_"

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


def _partitioned() -> tuple[str, ...]:
    """Returns the tables that are partitioned; that of format 2, which new stores leave empty, is not."""
    return tuple(name for name in owned_tables() if name != "ctxfold_terms")


def check_stored(stored: int | None, requested: int, address: StoreAddress) -> None:
    """Raises ConfigError where a store that exists does not have the number of partitions that its user wants."""
    if stored is None:
        raise ConfigError(
            f"{address.name} is not partitioned, and partitions={requested} applies only when a store is created: "
            "leave it out, or move the "
            f"store with SqlStore(url).partition({requested})"
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
                    _make(connection, dialect, begun, number, "ctxfold_")

            transact(make)
    transact(lambda c: create_tables(c, dialect, partitioned=begun is not None))


def _tables(count: int) -> int:
    """Returns how many tables a store with that many partitions has."""
    return len(_partitioned()) * (1 + count)


def _make(connection: Driven, dialect: Dialect, count: int, number: int, prefix: str) -> None:
    """Makes one of the tables unless it is there: each partitioned table with its indexes, then its partitions."""
    at, remainder = divmod(number, 1 + count)
    name = _partitioned()[at]
    parent = name.replace("ctxfold_", prefix)
    if remainder:
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {name}_p{remainder - 1} PARTITION OF {parent} "
            f"FOR VALUES WITH (MODULUS {count}, REMAINDER {remainder - 1})"
        )
        return
    table = table_of(name).to_metadata(MetaData(), name=parent)
    table.dialect_options["postgresql"]["partition_by"] = "HASH (owner)"
    connection.execute(str(CreateTable(table, if_not_exists=True).compile(dialect=dialect)))
    for index, columns in _INDEXES.get(name, {}).items():
        unique = "UNIQUE " if index in _UNIQUE else ""
        connection.execute(f"CREATE {unique}INDEX IF NOT EXISTS {parent}_{index} ON {parent} {columns}")


# the move of a store that is in use


@dataclass(frozen=True, slots=True)
class _Move:
    """The progress of a move: the tables that are made, the old ones that are watched and copied, and the key reached so far.

    One that is cancelled only goes back.
    """

    partitions: int
    made: int = 0
    watched: int = 0
    copied: int = 0
    after: tuple[str | int, ...] | None = None
    cancelled: bool = False


def begin_move(connection: Driven, address: StoreAddress, count: int) -> None:
    """Notes that the store is to be moved, unless that was begun or done; ConfigError for another number of partitions."""
    connection.execute(
        f"INSERT INTO ctxfold_meta (key, value) SELECT '{_MOVE}', %s "
        f"WHERE NOT EXISTS (SELECT 1 FROM ctxfold_meta WHERE key = '{_COUNT}') ON CONFLICT (key) DO NOTHING",
        (json.dumps(asdict(_Move(count))),),
    )
    move = _begun(connection)
    if move is None:
        check_stored(stored_partitions(connection), count, address)
    elif move.cancelled:
        raise ConfigError(
            f"a move of {address.name} was cancelled, and the cancellation is not complete: complete it with cancel_partition()"
        )
    elif move.partitions != count:
        raise ConfigError(
            f"a move of {address.name} to {move.partitions} partitions was begun: complete it with "
            f"partition({move.partitions}), or cancel it with cancel_partition()"
        )


def _begun(connection: Driven) -> _Move | None:
    """Returns the move that is under way and holds it until the transaction ends; None where there is none."""
    row = connection.execute(f"SELECT value FROM ctxfold_meta WHERE key = '{_MOVE}' FOR UPDATE").fetchone()
    if row is None:
        return None
    fields = json.loads(row[0])
    after = fields.pop("after")
    return _Move(**fields, after=None if after is None else tuple(after))


def move_some(connection: Driven, dialect: Dialect) -> int | None:
    """Does the next piece of a move within the caller's transaction: how many rows were copied; None when nothing is left to do,
    because it is done, or was cancelled."""
    move = _begun(connection)
    if move is None or move.cancelled:
        return None
    tables = _partitioned()
    rows = 0
    if move.made < _tables(move.partitions):
        move = _make_some(connection, dialect, move)
    elif move.watched < len(tables):
        connection.execute(f"SET LOCAL lock_timeout = {_LOCK_MS}")
        _watch(connection, tables[move.watched])
        move = replace(move, watched=move.watched + 1)
    elif move.copied < len(tables):
        last, rows = _copy(connection, tables[move.copied], move.after)
        move = replace(move, copied=move.copied + (last is None), after=last)
    else:
        _swap(connection, tables, move.partitions)
        return 0
    _note(connection, move)
    return rows


def _note(connection: Driven, move: _Move) -> None:
    connection.execute(f"UPDATE ctxfold_meta SET value = %s WHERE key = '{_MOVE}'", (json.dumps(asdict(move)),))


def begin_cancel(connection: Driven) -> bool:
    """Notes that the move that is under way is cancelled; False where there is none. Waits for the piece that is being done."""
    move = _begun(connection)
    if move is None:
        return False
    _note(connection, replace(move, cancelled=True))
    return True


def cancel_some(connection: Driven) -> bool:
    """Takes back the last piece of a cancelled move within the caller's transaction; False when nothing is left of it."""
    move = _begun(connection)
    if move is None or not move.cancelled:
        return False
    connection.execute(f"SET LOCAL lock_timeout = {_LOCK_MS}")
    if move.watched:
        table = _partitioned()[move.watched - 1]
        connection.execute(f"DROP TRIGGER ctxfold_both ON {table}")
        connection.execute(f"DROP FUNCTION {_new(table)}_both()")
        _note(connection, replace(move, watched=move.watched - 1))
    elif move.made:
        remaining = max(0, move.made - _MADE_AT_ONCE)
        for number in reversed(range(remaining, move.made)):
            at, remainder = divmod(number, 1 + move.partitions)
            table = _partitioned()[at]
            connection.execute(f"DROP TABLE {f'{table}_p{remainder - 1}' if remainder else _new(table)}")
        _note(connection, replace(move, made=remaining))
    else:
        connection.execute(f"DELETE FROM ctxfold_meta WHERE key = '{_MOVE}'")
    return True


def _make_some(connection: Driven, dialect: Dialect, move: _Move) -> _Move:
    """Makes some of the new tables; they belong to the role of the old ones, and to whom it has granted these."""
    tables = _partitioned()
    _become_owner(connection, tables[0])
    until = min(move.made + _MADE_AT_ONCE, _tables(move.partitions))
    for number in range(move.made, until):
        _make(connection, dialect, move.partitions, number, _MOVING)
        at, remainder = divmod(number, 1 + move.partitions)
        if remainder == 0:
            _grant(connection, tables[at])
    connection.execute("RESET ROLE")
    return replace(move, made=until)


_OF_TABLE = "FROM pg_class WHERE oid = to_regclass(%s)"


def _become_owner(connection: Driven, table: str) -> None:
    """Makes what follows belong to the role of the table: another login that has the role may then complete or cancel the move."""
    role = connection.execute(f"SELECT quote_ident(pg_get_userbyid(relowner)) {_OF_TABLE}", (table,)).fetchone()[0]
    connection.execute(f"SET LOCAL ROLE {role}")


def _grant(connection: Driven, table: str) -> None:
    granted = connection.execute(
        "SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END, privilege_type, is_grantable "
        "FROM (SELECT (aclexplode(relacl)).* FROM pg_class WHERE oid = to_regclass(%s)) AS granted",
        (table,),
    ).fetchall()
    for grantee, privilege, grantable in granted:
        option = " WITH GRANT OPTION" if grantable else ""
        connection.execute(f"GRANT {privilege} ON {_new(table)} TO {grantee}{option}")


def _new(table: str) -> str:
    """Returns the name of a partitioned table while rows are moved to it."""
    return table.replace("ctxfold_", _MOVING)


def _watch(connection: Driven, table: str) -> None:
    """Has each change of the table made in the new one too. Waits for the transactions that write to it."""
    columns, keys = column_names(table), key_names(table)
    # whoever writes may find the tables by another path
    schema = connection.execute(
        "SELECT quote_ident(nspname) FROM pg_namespace WHERE oid = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass(%s))",
        (table,),
    ).fetchone()[0]
    new = f"{schema}.{_new(table)}"
    others = [name for name in columns if name not in keys]
    _become_owner(connection, table)
    connection.execute(
        f"CREATE OR REPLACE FUNCTION {_new(table)}_both() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF TG_OP = 'DELETE' THEN "
        f"DELETE FROM {new} WHERE {' AND '.join(f'{name} = OLD.{name}' for name in keys)}; "
        "ELSE "
        f"INSERT INTO {new} ({', '.join(columns)}) VALUES ({', '.join(f'NEW.{name}' for name in columns)}) "
        f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}; "
        "END IF; RETURN NULL; END $$"
    )
    connection.execute(f"DROP TRIGGER IF EXISTS ctxfold_both ON {table}")
    connection.execute(
        f"CREATE TRIGGER ctxfold_both AFTER INSERT OR UPDATE OR DELETE ON {table} "
        f"FOR EACH ROW EXECUTE FUNCTION {_new(table)}_both()"
    )
    connection.execute("RESET ROLE")


def _copy(
    connection: Driven, table: str, after: tuple[str | int, ...] | None
) -> tuple[tuple[str | int, ...] | None, int]:
    """Copies the next rows of a table: the key of the last one, None at the end, and how many.

    The rows are locked: one that is deleted or changed meanwhile is so in both tables. Those that are written meanwhile are in
    both already, so that the end is reached however many there are.
    """
    columns, keys = ", ".join(column_names(table)), ", ".join(key_names(table))
    where = "" if after is None else f"WHERE ({keys}) > ({', '.join(['%s'] * len(after))}) "
    copied_keys: list[Any] = connection.execute(
        f"WITH batch AS MATERIALIZED (SELECT {columns} FROM {table} {where}ORDER BY {keys} LIMIT {_ROWS} FOR SHARE), "
        f"copied AS (INSERT INTO {_new(table)} ({columns}) SELECT {columns} FROM batch ON CONFLICT DO NOTHING) "
        f"SELECT {keys} FROM batch ORDER BY {keys}",
        after or (),
    ).fetchall()
    return (_key(copied_keys[-1]) if len(copied_keys) == _ROWS else None), len(copied_keys)


def _key(row: Any) -> tuple[str | int, ...]:
    # bytes, as postings have them, are no JSON
    return tuple(f"\\x{value.hex()}" if isinstance(value, bytes) else value for value in row)


def _swap(connection: Driven, tables: tuple[str, ...], count: int) -> None:
    """Puts the new tables in the place of the old ones, which are dropped."""
    connection.execute(f"SET LOCAL lock_timeout = {_LOCK_MS}")
    connection.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
    connection.execute(f"DROP TABLE {', '.join(tables)}")
    for table in tables:
        connection.execute(f"DROP FUNCTION {_new(table)}_both()")
        connection.execute(f"ALTER TABLE {_new(table)} RENAME TO {table}")
        for index in ("pkey", *_INDEXES.get(table, ())):
            connection.execute(f"ALTER INDEX {_new(table)}_{index} RENAME TO {table}_{index}")
    connection.execute(f"DELETE FROM ctxfold_meta WHERE key = '{_MOVE}'")
    connection.execute(f"INSERT INTO ctxfold_meta (key, value) VALUES ('{_COUNT}', '{count}')")
