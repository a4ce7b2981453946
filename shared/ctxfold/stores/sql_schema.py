"""The SQL store: its tables, how they are made, and its statements.

Every table but the first begins with the owner: erasing one goes by that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Column, Double, Index, LargeBinary, MetaData, Table, Text, collate, make_url, text
from sqlalchemy.schema import CreateIndex, CreateTable

from ctxfold.errors import ConfigError, StoreCorruptError, StoreFormatError

if TYPE_CHECKING:
    from sqlalchemy import Dialect

    from ctxfold.stores.sql_engine import Driven, StoreAddress

FORMAT_VERSION = 3  # 1 and 2 were those of pre-releases

# any fixed number will do: it only has to be the same in every process
_CREATION_LOCK = 0x63_74_78_66_6F_6C_64

_metadata = MetaData()

Table(
    "ctxfold_meta",
    _metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
    sqlite_with_rowid=False,
)


def _of_session(name: str, *columns: Column[Any], rowid: bool = False) -> Table:
    """Defines a table whose rows belong to a session of an owner, by which their key begins."""
    owner, session = Column("owner", Text, primary_key=True), Column("session", Text, primary_key=True)
    return Table(name, _metadata, owner, session, *columns, sqlite_with_rowid=rowid)


_of_session(
    "ctxfold_sessions",
    Column("head", BigInteger, nullable=False),
    Column("snapshot_seq", BigInteger, nullable=False),
    Column("documents", BigInteger, nullable=False),
    Column("total_length", BigInteger, nullable=False),
    Column("numbered", BigInteger, nullable=False, server_default="0"),
)
_records = _of_session(
    "ctxfold_records",
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("record_id", Text, nullable=False),
    Column("turn_id", Text),
    Column("kind", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("at_s", Double, nullable=False),
    Column("payload", Text, nullable=False),
    Column("number", BigInteger),
    rowid=True,
)


def _record_indexes(dialect: str) -> tuple[Index, ...]:
    names = (_records.c.owner, _records.c.session, _records.c.record_id)
    # in a collation of their own: with cached plans or stale statistics PostgreSQL mixes up indexes that begin alike
    # and reads the whole session (100 ms instead of 1 at 100,000 records)
    owner, session, record_id = names if dialect == "sqlite" else (collate(name, "C") for name in names)
    snapshots: dict[str, Any] = {f"{dialect}_where": text("kind = 'snapshot_taken'")}
    numbers: dict[str, Any] = {f"{dialect}_where": text("number IS NOT NULL")}
    return (
        Index("ctxfold_records_by_id", owner, session, record_id, unique=True),
        Index("ctxfold_records_snapshots", owner, session, _records.c.seq, **snapshots),
        Index("ctxfold_records_numbers", owner, session, _records.c.number, **numbers),
    )


_INDEXES = {dialect: _record_indexes(dialect) for dialect in ("sqlite", "postgresql")}

# hits by search term, packed by `posting_leaves`; those of the empty term stand for the documents themselves
_of_session(
    "ctxfold_postings",
    Column("first_key", LargeBinary, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)
# vectors of a message's chunks by embedder; what is known of the embedder itself stands under seq 0
_of_session(
    "ctxfold_vectors",
    Column("embedder", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
    rowid=True,
)
# work that one worker at a time may do, until a moment in Unix time
_of_session(
    "ctxfold_leases",
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("until_s", Double, nullable=False),
)

# what was learnt: `place` is a digest of what no two items in force share, `state` live, superseded or forgotten
_memory = Table(
    "ctxfold_memory",
    _metadata,
    Column("owner", Text, primary_key=True),
    Column("item_id", Text, primary_key=True),
    Column("session", Text, nullable=False),
    Column("place", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("created_s", Double, nullable=False),
    Column("payload", Text, nullable=False),
    sqlite_with_rowid=False,
)
_MEMORY_INDEXES = (
    Index("ctxfold_memory_places", _memory.c.owner, _memory.c.place),
    Index("ctxfold_memory_kinds", _memory.c.owner, _memory.c.kind, _memory.c.state, _memory.c.created_s),
    Index("ctxfold_memory_sessions", _memory.c.owner, _memory.c.session),
)


def stored_version(connection: Driven, address: StoreAddress) -> int | None:
    """Returns the stored format version, None before all tables exist; raises when this ctxfold cannot read it."""
    if address.sqlite:
        present = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'ctxfold_meta'"
    else:
        present = "SELECT 1 WHERE to_regclass('ctxfold_meta') IS NOT NULL"
    if connection.execute(present).fetchone() is None:
        return None
    row = connection.execute("SELECT value FROM ctxfold_meta WHERE key = 'format_version'").fetchone()
    version = "" if row is None else str(row[0])
    if row is None and _in_the_making(connection, address):
        return None
    if not version.isdecimal():
        raise StoreCorruptError(f"{address.name} has ctxfold tables without a format version: restore a copy")
    if int(version) != FORMAT_VERSION:
        advice = "upgrade ctxfold" if int(version) > FORMAT_VERSION else "it is of a pre-release: begin a new store"
        raise StoreFormatError(
            f"{address.name} has store format {version}, this ctxfold reads {FORMAT_VERSION}: {advice}"
        )
    return FORMAT_VERSION


def _in_the_making(connection: Driven, address: StoreAddress) -> bool:
    """Returns whether a server has the first table, but another process has not made the others yet, or was ended before."""
    if address.sqlite:
        return False
    if stored_partitions(connection) is not None:
        return True
    return connection.execute("SELECT 1 WHERE to_regclass('ctxfold_sessions') IS NULL").fetchone() is not None


def stored_partitions(connection: Driven) -> int | None:
    """Returns how many partitions a store has, or will have when its creation is complete; None where it is not partitioned."""
    row = connection.execute("SELECT value FROM ctxfold_meta WHERE key = 'partitions'").fetchone()
    return None if row is None else int(row[0])


def lock_creation(connection: Driven, dialect: Dialect, *, by_row: bool) -> None:
    """Lets one process at a time make the tables of a server, until the transaction ends.

    CREATE TABLE IF NOT EXISTS alone still collides in the catalogue. A lock `by_row` needs the first table.
    """
    if dialect.name == "sqlite":
        return
    if by_row:
        connection.execute(
            "INSERT INTO ctxfold_meta (key, value) VALUES ('creation_lock', '') "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        )
    else:
        connection.execute(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})")


def begin_creation(connection: Driven, dialect: Dialect) -> int | None:
    """Makes the first table; returns how many partitions another process has begun to make, None for none."""
    meta = CreateTable(_metadata.tables["ctxfold_meta"], if_not_exists=True)
    connection.execute(str(meta.compile(dialect=dialect)))
    return stored_partitions(connection)


def create_tables(connection: Driven, dialect: Dialect, *, partitioned: bool = False) -> None:
    """Creates all tables in the caller's transaction; tables that another process has created meanwhile are kept.

    A partitioned store has the tables with partitions already, with indexes of their own.
    """
    for statement in _creation(f"{dialect.name}+{dialect.driver}", partitioned):
        connection.execute(statement)
    connection.execute(
        f"INSERT INTO ctxfold_meta (key, value) VALUES ('format_version', '{FORMAT_VERSION}') "
        "ON CONFLICT (key) DO NOTHING"
    )


@cache
def _creation(driver: str, partitioned: bool) -> tuple[str, ...]:
    """Returns the statements that make all tables; compiling them takes longer than running them."""
    dialect = make_url(f"{driver}://").get_dialect()()
    indexes = () if partitioned else (*_INDEXES[dialect.name], *_MEMORY_INDEXES)
    return (
        *(str(CreateTable(t, if_not_exists=True).compile(dialect=dialect)) for t in _metadata.sorted_tables),
        *(str(CreateIndex(i, if_not_exists=True).compile(dialect=dialect)) for i in indexes),
    )


def table_of(name: str) -> Table:
    return _metadata.tables[name]


def key_names(table: str) -> tuple[str, ...]:
    """Returns the columns of a table's primary key."""
    return tuple(column.name for column in _metadata.tables[table].primary_key)


def owned_tables() -> tuple[str, ...]:
    """Returns the tables whose rows belong to an owner and a session, first those whose rows every writer locks."""
    names = [table.name for table in _metadata.sorted_tables if "owner" in table.columns]
    return tuple(sorted(names, key=lambda name: (name != "ctxfold_sessions", name)))


# of an owner, few rows; the others have a row for each record or term
SMALL_TABLES = ("ctxfold_sessions", "ctxfold_memory", "ctxfold_leases")


@cache
def large_tables() -> dict[str, tuple[str, ...]]:
    """Returns the owned tables that may have very many rows, with what beside owner and session makes their key."""
    return {
        name: tuple(column for column in key_names(name) if column not in ("owner", "session"))
        for name in owned_tables()
        if name not in SMALL_TABLES
    }


_MINE = "owner = ? AND session = ?"
_MINE_C = "owner{owner_c} = ? AND session{c} = ?"
_COLUMNS = "seq, record_id, turn_id, at_s, payload, number"


@dataclass(frozen=True, slots=True)
class Statements:
    """The SQL texts in one driver's parameter style; those that end in `_in` take a list from `Rows.marks`."""

    lock: str = f"SELECT head, snapshot_seq, documents, total_length, numbered FROM ctxfold_sessions WHERE {_MINE}"
    head: str = f"SELECT head, snapshot_seq FROM ctxfold_sessions WHERE {_MINE}"
    archive: str = f"SELECT documents, total_length, numbered FROM ctxfold_sessions WHERE {_MINE}"
    sessions: str = "SELECT session FROM ctxfold_sessions WHERE owner = ?"
    owners: str = "SELECT DISTINCT owner FROM ctxfold_sessions"
    new_session: str = (
        "INSERT INTO ctxfold_sessions (owner, session, head, snapshot_seq, documents, total_length, numbered) "
        "VALUES (?, ?, 0, 0, 0, 0, 0) ON CONFLICT DO NOTHING"
    )
    move_head: str = (
        "UPDATE ctxfold_sessions SET head = ?, snapshot_seq = ?, documents = ?, total_length = ?, numbered = ? "
        f"WHERE {_MINE}"
    )
    insert: str = (
        "INSERT INTO ctxfold_records "
        "(owner, session, seq, record_id, turn_id, kind, fingerprint, at_s, payload, number) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    read: str = f"SELECT {_COLUMNS} FROM ctxfold_records WHERE {_MINE} AND seq > ? ORDER BY seq"
    read_upto: str = f"SELECT {_COLUMNS} FROM ctxfold_records WHERE {_MINE} AND seq > ? AND seq <= ? ORDER BY seq"
    numbered: str = f"SELECT {_COLUMNS} FROM ctxfold_records WHERE {_MINE_C} AND number = ?"
    snapshot_before: str = (
        f"SELECT seq FROM ctxfold_records WHERE {_MINE_C} AND seq < ? AND kind = 'snapshot_taken' "
        "ORDER BY seq DESC LIMIT 1"
    )
    fingerprints_in: str = (
        f"SELECT record_id, fingerprint, seq FROM ctxfold_records WHERE {_MINE_C} AND record_id{{c}} IN "
    )
    fetch_in: str = f"SELECT {_COLUMNS} FROM ctxfold_records WHERE {_MINE} AND seq IN "
    find_in: str = f"SELECT {_COLUMNS} FROM ctxfold_records WHERE {_MINE_C} AND record_id{{c}} IN "
    owner_archives: str = "SELECT session, documents, total_length, numbered FROM ctxfold_sessions WHERE owner = ?"
    take_lease: str = (
        "INSERT INTO ctxfold_leases (owner, session, name, holder, until_s) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (owner, session, name) DO UPDATE SET holder = excluded.holder, until_s = excluded.until_s "
        "WHERE ctxfold_leases.until_s <= ? OR ctxfold_leases.holder = excluded.holder"
    )
    # workers' clocks differ; read first, because a distributed table refuses volatile functions in a write
    server_time: str = ""
    drop_lease: str = f"DELETE FROM ctxfold_leases WHERE {_MINE} AND name = ? AND holder = ?"
    record_id: str = f"SELECT record_id FROM ctxfold_records WHERE {_MINE} AND seq = ?"
    rewrite: str = f"UPDATE ctxfold_records SET kind = ?, fingerprint = ?, payload = ? WHERE {_MINE} AND seq = ?"
    every_leaf: str = f"SELECT first_key, data FROM ctxfold_postings WHERE {_MINE} ORDER BY first_key LIMIT ?"
    put_leaf: str = (
        "INSERT INTO ctxfold_postings (owner, session, first_key, data) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (owner, session, first_key) DO UPDATE SET data = excluded.data"
    )
    drop_leaf: str = f"DELETE FROM ctxfold_postings WHERE {_MINE} AND first_key = ?"
    leaves: str = (
        f"SELECT first_key, data FROM ctxfold_postings WHERE {_MINE} AND first_key <= ? "
        f"AND first_key >= COALESCE((SELECT first_key FROM ctxfold_postings WHERE {_MINE} AND first_key <= ? "
        "ORDER BY first_key DESC LIMIT 1), ?) ORDER BY first_key DESC LIMIT ?"
    )
    leaves_of: str = ""
    # one walk down the primary key for each session; SQLite keeps the order of a CROSS JOIN, and has no LATERAL
    owner_leaves: str = (
        "SELECT t.session, t.data FROM ctxfold_sessions s CROSS JOIN ctxfold_postings t "
        "WHERE s.owner = ? AND t.owner = ? AND t.session = s.session AND t.first_key <= ? AND t.first_key >= MAX("
        "COALESCE((SELECT x.first_key FROM ctxfold_postings x WHERE x.owner = ? AND x.session = s.session "
        "AND x.first_key <= ? ORDER BY x.first_key DESC LIMIT 1), x''), "
        "COALESCE((SELECT x.first_key FROM ctxfold_postings x WHERE x.owner = ? AND x.session = s.session "
        "AND x.first_key <= ? ORDER BY x.first_key DESC LIMIT 1 OFFSET ?), x''))"
    )
    embedders: str = f"SELECT embedder, data FROM ctxfold_vectors WHERE {_MINE} AND seq = 0"
    vectors: str = f"SELECT seq, data FROM ctxfold_vectors WHERE {_MINE} AND embedder = ? AND seq > 0"
    vectors_in: str = f"SELECT seq, data FROM ctxfold_vectors WHERE {_MINE} AND embedder = ? AND seq IN "
    put_vectors: str = (
        "INSERT INTO ctxfold_vectors (owner, session, embedder, seq, data) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (owner, session, embedder, seq) DO UPDATE SET data = excluded.data"
    )
    drop_vectors: str = f"DELETE FROM ctxfold_vectors WHERE {_MINE} AND embedder = ?"
    drop_vectors_in: str = f"DELETE FROM ctxfold_vectors WHERE {_MINE} AND seq IN "
    not_erased_in: str = f"SELECT seq FROM ctxfold_records WHERE {_MINE} AND kind <> 'erased' AND seq IN "
    copies: str = (
        "SELECT s.session FROM ctxfold_sessions s WHERE s.owner = ? AND s.session <> ? AND EXISTS ("
        "SELECT 1 FROM ctxfold_records r WHERE r.owner = ? AND r.session = s.session AND r.seq = 1 AND r.record_id = ?)"
    )
    standing_in: str = (
        "SELECT place, payload, created_s, item_id FROM ctxfold_memory "
        "WHERE owner = ? AND state <> 'superseded' AND place IN "
    )
    memories_in: str = "SELECT place, payload FROM ctxfold_memory WHERE owner = ? AND item_id IN "
    session_memories: str = f"SELECT payload FROM ctxfold_memory WHERE {_MINE}"
    live_memories: str = (
        "SELECT payload FROM ctxfold_memory WHERE owner = ? {kinds}AND state = 'live' "
        "ORDER BY created_s DESC, item_id DESC LIMIT ?"
    )
    every_memory: str = (
        "SELECT payload FROM ctxfold_memory WHERE owner = ? {kinds}ORDER BY created_s DESC, item_id DESC LIMIT ?"
    )
    put_memory: str = (
        "INSERT INTO ctxfold_memory (owner, item_id, session, place, kind, state, created_s, payload) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (owner, item_id) DO UPDATE SET "
        "state = excluded.state, payload = excluded.payload"
    )
    lock_owner: str = ""
    drop_memory: str = "DELETE FROM ctxfold_memory WHERE owner = ? AND item_id = ?"

    @classmethod
    def of(cls, dialect: str, *, partitioned: bool = False, lock_rows: bool = False) -> Statements:
        """Returns the statements for SQLite or PostgreSQL; with `lock_rows`, for a server that has no advisory locks."""
        mark, collation = ("?", "") if dialect == "sqlite" else ("%s", ' COLLATE "C"')
        owner_collation = "" if partitioned else collation  # its partition is found in the plain one
        plain = cls()
        texts = {
            each.name: getattr(plain, each.name)
            .replace("?", mark)
            .replace("{owner_c}", owner_collation)
            .replace("{c}", collation)
            for each in fields(plain)
        }
        if dialect == "sqlite":
            return cls(**texts)
        texts["lock"] += " FOR UPDATE"
        texts["server_time"] = "SELECT EXTRACT(EPOCH FROM clock_timestamp())::double precision"
        # one writer of an owner's memory at a time: places are read, then written
        texts["lock_owner"] = (
            "INSERT INTO ctxfold_leases (owner, session, name, holder, until_s) VALUES (%s, '', 'memory', '', 0) "
            "ON CONFLICT (owner, session, name) DO UPDATE SET holder = excluded.holder"
            if lock_rows
            else "SELECT pg_advisory_xact_lock(hashtextextended(%s, 7236))"
        )
        # all ranges in one round trip
        texts["leaves"] = (
            "SELECT r.at, t.first_key, t.data FROM unnest(%s::bytea[], %s::bytea[]) WITH ORDINALITY AS r(low, high, at) "
            "CROSS JOIN LATERAL (SELECT first_key, data FROM ctxfold_postings WHERE owner = %s AND session = %s "
            "AND first_key <= r.high AND first_key >= COALESCE((SELECT first_key FROM ctxfold_postings "
            "WHERE owner = %s AND session = %s AND first_key <= r.low ORDER BY first_key DESC LIMIT 1), r.low) "
            "ORDER BY first_key DESC LIMIT %s) t"
        )
        texts["leaves_of"] = (
            "SELECT first_key, data FROM ctxfold_postings WHERE owner = %s AND session = %s AND first_key = ANY(ARRAY("
            "SELECT DISTINCT (SELECT first_key FROM ctxfold_postings WHERE owner = %s AND session = %s AND first_key <= k.k "
            "ORDER BY first_key DESC LIMIT 1) FROM unnest(%s::bytea[]) AS k(k)))"
        )
        texts["owner_leaves"] = (
            "SELECT s.session, t.data FROM ctxfold_sessions s CROSS JOIN LATERAL (SELECT data FROM ctxfold_postings p "
            "WHERE p.owner = %s AND p.session = s.session AND p.first_key <= %s AND p.first_key >= COALESCE(("
            "SELECT x.first_key FROM ctxfold_postings x WHERE x.owner = %s AND x.session = s.session "
            "AND x.first_key <= %s ORDER BY x.first_key DESC LIMIT 1), '') ORDER BY p.first_key DESC LIMIT %s) t WHERE s.owner = %s"
        )
        return cls(**texts)


_COUNT = "partitions"  # key of ctxfold_meta
_MADE_AT_ONCE = 32  # tables in one transaction: each takes a dozen places in the server's table of locks

# The owner comes last or in the plain collation: PostgreSQL finds the partition only by a comparison in the collation of the
# partition's key. The session is in a collation of its own for the reason given in `sql_schema`.
_PARTITION_INDEXES: dict[str, dict[str, str]] = {
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
    for index, columns in _PARTITION_INDEXES.get(name, {}).items():
        unique = "UNIQUE " if index in _UNIQUE else ""
        connection.execute(f"CREATE {unique}INDEX IF NOT EXISTS {name}_{index} ON {name} {columns}")
