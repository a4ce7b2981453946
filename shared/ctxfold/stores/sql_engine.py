"""Connections of the SQL store: which URLs are taken, how an engine is set up, and what its errors mean.

SQLAlchemy and the driver are imported here on first use, never at import.
"""

from __future__ import annotations

import ntpath
import os
import re
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from ctxfold.errors import ConfigError, MissingExtraError, StoreCorruptError, StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine, PoolProxiedConnection

# an async driver's URL names the same database: the store has one driver for synchronous and async code
_SQLITE = frozenset({"sqlite", "sqlite+pysqlite", "sqlite+aiosqlite"})
_POSTGRES = frozenset(
    {"postgresql", "postgres", "postgresql+psycopg", "postgresql+psycopg_async", "postgresql+asyncpg"}
)
_ASYNCPG_CACHES = ("prepared_statement_cache_size", "statement_cache_size")
_TAKEN = "use sqlite:///file.db or postgresql+psycopg://user:password@host:5432/database"
# OFF is not offered: an operating system that crashes may then leave a damaged file
_SYNCHRONOUS = frozenset({"FULL", "NORMAL"})
# what Python's sqlite3 takes of a URL; the arguments of SQLite itself need uri=true and a path that begins with file:
_SQLITE_OPTIONS = frozenset(
    {"cached_statements", "check_same_thread", "detect_types", "isolation_level", "timeout", "uri"}
)
_PREPARE_THRESHOLD = 5  # the default of psycopg
_READ_COMMITTED = "read-committed"
_ISOLATIONS = frozenset({_READ_COMMITTED, "serializable"})
_DEVICES = frozenset({"CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"}) | {
    f"{port}{number}" for port in ("COM", "LPT") for number in "123456789\u00b9\u00b2\u00b3"
}
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_OUT_OF_REACH = frozenset(
    {
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
    }
)
# serialization failure, deadlock, lock timeout, idle for too long within a transaction
_PASSING_STATES = frozenset({"40001", "40P01", "55P03", "25P03"})
# of a table that another process makes at the same moment: in the catalogue's index, by name, or by the name of its type
MADE_MEANWHILE = frozenset({"23505", "42P07", "42710"})
# bad login, resources, operator intervention, no such database
_OUT_OF_REACH_STATES = ("28", "53", "57", "3D")
_READ_ONLY = "25006"  # of a server that was the primary when the connection was made
_AWAY_STATES = ("08", "57P", _READ_ONLY)
_SEVERAL_HOSTS = re.compile(r"(postgres[^:]*://(?:[^/?]*@)?)([^/?@]*,[^/?@]*)(/[^?]*)?\??(.*)", re.S)


class Driven(Protocol):
    """A driver's own connection: a statement costs 5 µs here, 45 through SQLAlchemy's."""

    def execute(self, sql: str, parameters: Any = (), /) -> Any: ...

    def cursor(self) -> Any: ...

    def rollback(self) -> None: ...


class Dropped(Exception):  # noqa: N818
    """The server closed a pooled connection; a new one may work."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """The address of a store: the URL for the driver, and the name that may be shown (no password, no options).

    `synchronous`, `prepare_threshold` and `isolation` are options of the store URL that ctxfold reads itself. A threshold of 0
    means that a proxy such as pgbouncer may give every transaction another server connection. `serializable` is for servers
    that speak PostgreSQL without advisory locks, and refuse transactions that they cannot put in an order.
    """

    url: URL
    name: str
    sqlite: bool
    in_memory: bool
    secrets: tuple[str, ...] = ()
    synchronous: str = "FULL"
    prepare_threshold: int = _PREPARE_THRESHOLD
    serializable: bool = False
    path: str | None = None  # of the SQLite file, where the URL has one

    @property
    def file(self) -> tuple[int, int] | None:
        """Returns device and inode of the SQLite file at the path; None without such a file."""
        if self.path is None:
            return None
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def make_file(self) -> None:
        """Makes a new SQLite file, which its owner alone may read. SQLite gives the files beside it the same mode.

        A file that is there is not opened: POSIX takes a process's locks of a file away when it closes any descriptor of it.
        """
        if self.path is not None:
            with suppress(OSError):  # it is there, or SQLite says what is wrong
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    @property
    def proxied(self) -> bool:
        """Returns True when nothing may be kept in a server session: no prepared statement, no setting."""
        return self.prepare_threshold == 0

    def hide(self, text: str) -> str:
        """Returns the text without any password of this URL."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def parse_url(text: str) -> StoreAddress:
    """Returns the address in a store URL; raises ConfigError for a URL that ctxfold does not support."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        if several := _SEVERAL_HOSTS.fullmatch(text):  # as libpq has them; SQLAlchemy takes each as an option
            start, hosts, database, query = several.groups("")
            text = f"{start}{database}?{query}" + "".join(f"&host={host}" for host in hosts.split(","))
        url = make_url(text)
    except (ArgumentError, ValueError, TypeError, AttributeError):
        # the text itself may hold a password
        raise ConfigError(f"a store URL cannot be read: {_TAKEN}") from None
    if url.drivername in _SQLITE:
        return _sqlite_address(url)
    if url.drivername not in _POSTGRES:
        raise ConfigError(
            f"a store URL begins with {url.drivername!r}, which ctxfold does not support: {_TAKEN} "
            "(async code uses the same URL)"
        )
    if find_spec("psycopg") is None:
        raise MissingExtraError('PostgreSQL needs psycopg 3: pip install "ctxfold[postgres]"')
    if url.drivername == "postgresql+asyncpg":
        url = _without_asyncpg_options(url)
    threshold = _option(url, "prepare_threshold", str(_PREPARE_THRESHOLD))
    if not threshold.isdecimal():
        raise ConfigError(
            f"prepare_threshold={threshold!r} in a store URL: give 0 for pgbouncer in transaction mode (nothing is prepared), "
            "or after how many executions a statement is prepared"
        )
    isolation = _option(url, "isolation", _READ_COMMITTED)
    if isolation not in _ISOLATIONS:
        raise ConfigError(
            f"isolation={isolation!r} in a store URL: give read-committed, or serializable for a server without advisory locks"
        )
    url = url.set(drivername="postgresql+psycopg").difference_update_query(["prepare_threshold", "isolation"])
    hidden = (url.password, *(url.query.get(name) for name in ("password", "sslpassword")))
    secrets = tuple(str(text) for text in hidden if text)
    shown = url.set(query={}).render_as_string(hide_password=True)
    return StoreAddress(
        url,
        shown,
        sqlite=False,
        in_memory=False,
        secrets=secrets,
        prepare_threshold=int(threshold),
        serializable=isolation != _READ_COMMITTED,
    )


def _without_asyncpg_options(url: URL) -> URL:
    """Returns the URL with the options of asyncpg under the names that psycopg has for them."""
    options = {name: _option(url, name, "") for name in ("ssl", *_ASYNCPG_CACHES) if name in url.query}
    url = url.difference_update_query([*options])
    ssl = options.pop("ssl", None)
    if ssl is not None:
        modes = {"true": "require", "false": "disable"}
        url = url.update_query_dict({"sslmode": modes.get(ssl.lower(), ssl)})
    if any(size == "0" for size in options.values()):
        url = url.update_query_dict({"prepare_threshold": "0"})
    return url


def _option(url: URL, name: str, default: str) -> str:
    """Returns an option of the URL that ctxfold reads itself; ConfigError when it is given twice."""
    value = url.query.get(name, default)
    if not isinstance(value, str):
        raise ConfigError(f"{name} appears {len(value)} times in a store URL: give it once")
    return value


def _sqlite_address(url: URL) -> StoreAddress:
    if url.host:
        raise ConfigError(
            f"the store URL names a server, {url.host!r}, and SQLite has none: for a file write three slashes, sqlite:///file.db, "
            "or four before an absolute path"
        )
    synchronous = _option(url, "synchronous", "full").upper()
    if synchronous not in _SYNCHRONOUS:
        raise ConfigError(
            f"synchronous={synchronous.lower()!r} in a store URL: give full (an acknowledged message survives a power loss) or "
            "normal (it survives the end of the process, but not of the machine)"
        )
    url = url.set(drivername="sqlite").difference_update_query(["synchronous"])
    _check_options(url)
    if url.database in (None, "", ":memory:"):
        return StoreAddress(url, "sqlite://", sqlite=True, in_memory=True)
    path = str(url.database)
    if not (is_uri := path.startswith("file:")):
        if os.name == "nt":
            check_windows_path(path)
        # a later chdir must not open another file
        path = os.path.abspath(path)
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            raise ConfigError(f"no folder {folder!r} for the store file {path!r}: create it or choose another path")
        url = url.set(database=path)
    return StoreAddress(
        url,
        f"sqlite:///{path}",
        sqlite=True,
        in_memory=False,
        synchronous=synchronous,
        path=None if is_uri else path,
    )


def _check_options(url: URL) -> None:
    """Raises ConfigError for an argument of a SQLite URL that would be ignored, such as mode=ro."""
    from sqlalchemy.util import asbool

    others = sorted(url.query.keys() - _SQLITE_OPTIONS)
    if others and not (str(url.database).startswith("file:") and asbool(url.query.get("uri", False))):
        raise ConfigError(f"{', '.join(others)} would be ignored in a store URL of SQLite: remove it from the URL")


def check_windows_path(path: str) -> None:
    """Raises ConfigError for a path that Windows does not open as the file of that name.

    A device such as NUL accepts every write and keeps nothing. A colon behind the drive names a stream within another file, so
    that `sqlite:////C:/chat.db`, with one slash too many, would not be found.
    """
    _drive, rest = ntpath.splitdrive(path)
    if ":" in rest:
        raise ConfigError(
            f"the store file {path!r} has a colon that is not its drive's: on Windows write three slashes before the drive, "
            "sqlite:///C:/data/chat.db, and no colon in a name"
        )
    for part in filter(None, re.split(r"[\\/]", rest)):
        # Windows takes the name up to the first dot, without the spaces before it: "nul .db" is the device, too
        if part.partition(".")[0].rstrip(" ").upper() in _DEVICES:
            raise ConfigError(f"the store file {path!r} names the device {part!r} of Windows: choose another name")


def make_engine(address: StoreAddress, *, timeout_s: float, pool_size: int) -> Engine:
    """Returns an engine in autocommit mode; the store begins and ends transactions with its own statements."""
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import NullPool, StaticPool

    # a parameter would be a message's text: it must not turn up in logs and tracebacks
    options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT", "hide_parameters": True}
    setup: tuple[str, ...]
    if address.sqlite:
        options["connect_args"] = {"timeout": timeout_s, "check_same_thread": False}
        options["pool_reset_on_return"] = None  # `Connections` gives no transaction back
        # the index of record ids is hit at random: with the default 2 MB, appends slow down as it grows
        # text that gives way, also within a page, must not stay behind in the file
        # fullfsync: on macOS an fsync alone leaves the data in the cache of the disk
        setup = (
            f"PRAGMA synchronous={address.synchronous}",
            "PRAGMA fullfsync=ON",
            "PRAGMA cache_size=-32000",
            "PRAGMA secure_delete=ON",
        )
    else:
        # psycopg's own 0 means "prepare at once"
        threshold = address.prepare_threshold or None
        hosts = len(address.url.normalized_query.get("host", "1"))  # one after the other
        wait_s = address.url.query.get("connect_timeout", max(2, round(timeout_s / hosts)))
        options["connect_args"] = {"connect_timeout": wait_s, "prepare_threshold": threshold}
        options["use_native_hstore"] = False  # it costs a query for each connection
        setup = () if address.proxied else tuple(f"SET {setting}" for setting in _settings(timeout_s))
    if address.in_memory:
        options["poolclass"] = StaticPool
    elif pool_size == 0:
        options["poolclass"] = NullPool
    else:
        options |= {
            "pool_size": pool_size,
            "max_overflow": 0,
            "pool_timeout": timeout_s,
            "pool_use_lifo": True,
        }
    engine = create_engine(address.url, **options)

    def prepare(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        try:
            for statement in setup:
                cursor.execute(statement)
        finally:
            cursor.close()

    event.listen(engine, "connect", prepare)
    return engine


def _settings(timeout_s: float) -> tuple[str, ...]:
    # a plan cached while a table was small must not go on reading all of it
    return f"lock_timeout = {max(1, round(timeout_s * 1000))}", "enable_seqscan = off"


class Connections:
    """Lends connections of an engine, clean of transactions and whole.

    The one that came back last is lent again at once: what a pool does for each costs more than a statement. It goes back to the
    pool where somebody may be waiting for it.
    """

    def __init__(self, engine: Engine, size: int) -> None:
        self.engine = engine
        self._size = size
        self._kept: list[PoolProxiedConnection] = []

    @contextmanager
    def lent(self) -> Generator[Driven, None, None]:
        """Yields a connection. Raises Dropped where the server has closed it, which is then no longer lent."""
        kept, stays = self._kept, False
        try:
            pooled = kept.pop()
        except IndexError:
            pooled = self._pooled()
        connection: Any = pooled.dbapi_connection
        failures = self.engine.dialect.loaded_dbapi.Error
        try:
            yield connection
            pool: Any = self.engine.pool
            stays = not kept and kept is self._kept and self._size > 1 and pool.checkedout() < self._size
        except BaseException as error:
            broken = bool(getattr(connection, "closed", False)) or getattr(error, "sqlstate", None) == _READ_ONLY
            try:
                connection.rollback()
            except failures:
                broken = True
            if broken:
                pooled.invalidate()
            if broken and isinstance(error, failures):
                raise Dropped(str(error)) from error
            raise
        finally:
            kept.append(pooled) if stays else pooled.close()

    def _pooled(self) -> PoolProxiedConnection:
        from sqlalchemy.exc import DBAPIError

        try:
            return self.engine.raw_connection()
        except DBAPIError as error:  # the pool's first connection is asked for the server's defaults through SQLAlchemy
            if error.connection_invalidated or not isinstance(error.orig, Exception):
                raise Dropped(str(error.orig)) from error
            raise error.orig from error

    def close(self) -> None:
        """Closes those that are not lent; one that is lent now is closed when it comes back."""
        kept, self._kept = self._kept, []
        for pooled in kept:
            pooled.close()
        self.engine.dispose()

    def left_to_parent(self) -> object:
        """Begins anew in a forked process; returns what has to stay, as closing it would end the parent's sessions."""
        inherited, self._kept = (self.engine.pool, self._kept), []
        self.engine.dispose(close=False)
        return inherited


@contextmanager
def transaction(
    connection: Driven, address: StoreAddress, timeout_s: float, *, provisional: bool = False
) -> Generator[None, None, None]:
    """Runs the block in one write transaction; when it raises, `Connections` rolls back.

    A `provisional` one is not synced to the disk by itself: the log of SQLite is synced up to its end by the next one that is.
    """
    relaxed = address.sqlite and provisional and address.synchronous != "NORMAL"
    if address.sqlite:
        # a deferred transaction fails at once when another writer came between its read and its write
        begin = "BEGIN IMMEDIATE"
    else:
        begin = f"BEGIN ISOLATION LEVEL {'SERIALIZABLE' if address.serializable else 'READ COMMITTED'}"
        if address.proxied:
            # in one message to the server: the settings cost no round trip
            begin = "; ".join((begin, *(f"SET LOCAL {setting}" for setting in _settings(timeout_s))))
    if relaxed:
        connection.execute("PRAGMA synchronous=NORMAL")
    try:
        connection.execute(begin)
        yield
        connection.execute("COMMIT")
    finally:
        if relaxed:
            connection.rollback()  # where the block has failed: within a transaction the setting stays
            connection.execute(f"PRAGMA synchronous={address.synchronous}")


def _sqlite_code(error: object) -> int:
    code = getattr(error, "sqlite_errorcode", 0)
    return int(code) & 0xFF


def is_passing(error: Exception) -> bool:
    """Returns True when the same work may succeed on a second try: a lock, a lost race, a dropped connection."""
    if isinstance(error, Dropped) or _sqlite_code(error) in _LOCKED:
        return True
    return getattr(error, "sqlstate", None) in _PASSING_STATES


def is_away(error: Exception) -> bool:
    """Returns True when the server cannot be reached now, or is no primary any more: another may be in its place soon."""
    state = getattr(error, "sqlstate", "")
    if state is None:  # of the driver
        return type(error).__name__ in ("OperationalError", "InterfaceError", "ConnectionTimeout")
    return isinstance(error, Dropped) or str(state).startswith(_AWAY_STATES)


def translated(error: Exception, address: StoreAddress, timeout_s: float) -> StoreError:
    """Returns the StoreError for an error of the driver or the pool."""
    from sqlalchemy.exc import TimeoutError as PoolTimeoutError

    if isinstance(error, PoolTimeoutError):
        return StoreUnavailableError(
            f"no free connection to {address.name} for {timeout_s:g} s: raise pool_size or timeout_s"
        )
    if isinstance(error, UnicodeDecodeError) or "Could not decode to UTF-8" in str(error):
        # the driver's message quotes what is stored
        return StoreCorruptError(f"{address.name} is damaged (it holds text that is not UTF-8): restore it from a copy")
    reason = address.hide(re.sub(r"\s+", " ", str(error)).strip())[:300]
    if isinstance(error, sqlite3.Error):
        return _translated_sqlite(_sqlite_code(error), address, timeout_s, reason)
    state = str(getattr(error, "sqlstate", None) or "")
    if state in _PASSING_STATES:
        return StoreUnavailableError(f"{address.name} stayed locked for {timeout_s:g} s ({reason}): try again")
    if state in ("42P01", "42703"):
        return StoreCorruptError(f"{address.name} lacks tables or columns of ctxfold ({reason}): restore a copy")
    if state == "57014":
        return StoreUnavailableError(
            f"{address.name} cancelled a statement ({reason}): try again, or raise the server's statement_timeout"
        )
    if is_away(error) or state.startswith(_OUT_OF_REACH_STATES):
        return StoreUnavailableError(f"cannot reach {address.name} ({reason}): check server, address and login")
    return StoreError(f"{address.name} refused a statement ({reason}): nothing was written")


def _translated_sqlite(code: int, address: StoreAddress, timeout_s: float, reason: str) -> StoreError:
    if code in _DAMAGED:
        return StoreCorruptError(
            f"{address.name} is damaged or no SQLite database ({reason}): restore it or choose another file"
        )
    if code in _LOCKED:
        return StoreUnavailableError(
            f"{address.name} stayed locked for {timeout_s:g} s ({reason}): end what holds it or raise timeout_s"
        )
    if code in _OUT_OF_REACH:
        return StoreUnavailableError(
            f"cannot use {address.name} ({reason}): check the path, its permissions and the free space"
        )
    if any(
        text in reason for text in ("no such table", "no such column", "no column named", "malformed database schema")
    ):
        return StoreCorruptError(f"{address.name} lacks tables of ctxfold ({reason}): restore it from a copy")
    return StoreError(f"{address.name} refused a statement ({reason}): nothing was written")
