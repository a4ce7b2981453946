"""What only a durable store can do or suffer: files, servers, formats, locks, lost connections, cancellation."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from ctxfold import AgentContext, ConfigError, CtxError, Message, ScriptedBackend, SqlStore, StoreError, TextPart, user
from ctxfold.errors import (
    InvalidTextError,
    MissingExtraError,
    StoreCorruptError,
    StoreFormatError,
    StoreUnavailableError,
)
from ctxfold.history.records import Draft, MessageAdded, SessionKey
from ctxfold.protocols import Head
from ctxfold.stores.sql_engine import parse_url
from ctxfold.tokens.text import RatioCounter
from tests.support.open_sessions import opened
from tests.support.postgres_schema import fresh_schema

KEY = SessionKey("ann", "s1")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/a.db"
        return
    with fresh_schema(request.getfixturevalue("postgres_url")) as place:
        yield place


def said(name: str, text: str = "hi") -> Draft:
    return Draft(name, MessageAdded(user(text, id=name)), "t1", 1.5)


def run_sql(url: str, *statements: str) -> None:
    """Statements past the store, as another program would send them."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as file:
            for statement in statements:
                file.execute(statement)
    else:
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as server:
            for statement in statements:
                server.execute(statement.encode())


# opening


def test_two_handles_see_each_other(url: str) -> None:
    with SqlStore(url) as one, SqlStore(url) as two:
        one.append(KEY, [said("a")])
        assert [r.id for r in two.append(KEY, [said("b")])] == ["a", "b"]
        assert [r.id for r in one.append(KEY, [], known=1)] == ["b"]
    with SqlStore(url) as again:
        assert again.head(KEY) == Head(2, 0)


def test_first_use_by_many_at_once(url: str) -> None:
    stores = [SqlStore(url, pool_size=2) for _ in range(8)]
    start, failures = threading.Barrier(8), list[BaseException]()

    def use(n: int) -> None:
        start.wait()
        try:
            stores[n].append(KEY, [said(f"m{n}")])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [r.seq for r in stores[0].read(KEY)] == list(range(1, 9))
    for store in stores:
        store.close()


def test_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with SqlStore("sqlite:///a.db") as store:
        monkeypatch.chdir(tmp_path / "elsewhere")
        store.append(KEY, [said("a")])
    assert (tmp_path / "a.db").exists()


def test_sqlite_file_is_in_wal_mode(tmp_path: Path) -> None:
    with SqlStore(f"sqlite:///{tmp_path}/a.db") as store:
        store.append(KEY, [])
        with closing(sqlite3.connect(tmp_path / "a.db")) as file:
            assert file.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_sqlalchemy_loads_on_first_construction() -> None:
    code = (
        "import sys, ctxfold.stores.sql as s; assert 'sqlalchemy' not in sys.modules; "
        "s.SqlStore('sqlite://').close(); assert 'sqlalchemy' in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=environment, timeout=300)


def test_a_forgotten_store_leaves_no_open_connection(url: str) -> None:
    store = SqlStore(url)
    store.append(KEY, [said("a")])
    del store
    # a connection left open would warn here, and warnings are errors
    gc.collect()


# wrong settings


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://u:secret@h/d", "'mysql'"),
        ("postgresql+pg8000://u:secret@h/d", "postgresql\\+psycopg://"),
        ("sqlite+pysqlcipher:///a.db", "sqlite:///file.db"),
        ("secret nonsense", "cannot be read"),
        ("postgresql://u:secret@h:port/d", "cannot be read"),
        ("sqlite:////no/such/folder/a.db", "no folder '/no/such/folder'"),
    ],
)
def test_wrong_urls(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        SqlStore(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "ignored"),
    [
        ("sqlite:///a.db?mode=ro", "mode"),
        ("sqlite:///a.db?timeout=3&nolock=1&mode=ro", "mode, nolock"),
        ("sqlite:///a.db?uri=true&mode=ro", "mode"),
        ("sqlite:///file:a.db?mode=ro", "mode"),
        ("sqlite:///file:a.db?uri=false&mode=ro", "mode"),
        ("sqlite://?cache=shared", "cache"),
    ],
)
def test_arguments_that_sqlite_would_ignore_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, ignored: str
) -> None:
    """With mode=ro the file was opened for reading and writing."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"^{ignored} would be ignored .* remove it"):
        SqlStore(url)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///a.db?timeout=3&cached_statements=50",
        "sqlite:///a.db?uri=false&synchronous=normal",
        "sqlite:///file:a.db?uri=true&mode=rwc&timeout=3",
    ],
)
def test_arguments_that_sqlite_takes_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.chdir(tmp_path)
    with SqlStore(url) as store:
        store.append(KEY, [said("a")])
    assert (tmp_path / "a.db").exists()


def test_urls_of_async_drivers_name_the_same_database(tmp_path: Path) -> None:
    file = tmp_path / "chat.db"
    with SqlStore(f"sqlite+aiosqlite:///{file}") as store:
        store.append(KEY, [said("a")])
    with SqlStore(f"sqlite:///{file}") as store:
        assert store.head(KEY) is not None
    with SqlStore("sqlite+aiosqlite:///:memory:") as store:
        assert store.head(KEY) is None


@pytest.mark.parametrize(
    ("query", "options", "threshold"),
    [
        ("", {}, 5),
        ("?ssl=verify-full", {"sslmode": "verify-full"}, 5),
        ("?ssl=true&statement_cache_size=100", {"sslmode": "require"}, 5),
        ("?prepared_statement_cache_size=0", {}, 0),
    ],
)
def test_options_of_asyncpg_have_counterparts(query: str, options: dict[str, str], threshold: int) -> None:
    address = parse_url(f"postgresql+asyncpg://u:secret@h:5433/d{query}")
    assert (address.url.drivername, address.url.host, address.url.port) == ("postgresql+psycopg", "h", 5433)
    assert (dict(address.url.query), address.prepare_threshold) == (options, threshold)
    assert "secret" not in address.name


def test_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r'pip install "ctxfold\[postgres\]"'):
        SqlStore("postgresql://ann@h/d")


def test_wrong_numbers() -> None:
    with pytest.raises(ConfigError, match="timeout_s=0"):
        SqlStore("sqlite://", timeout_s=0)
    with pytest.raises(ConfigError, match="pool_size=-1"):
        SqlStore("sqlite://", pool_size=-1)


# places that fail


def test_garbage_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"this is no database, it is a text that is long enough" * 100)
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(StoreCorruptError, match=r"a\.db is damaged .*restore"):
            SqlStore(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with SqlStore(f"sqlite:///{path}") as store:
        store.append(KEY, [said(f"m{n}", "x" * 3000) for n in range(200)])
    data = bytearray(path.read_bytes())
    data[8192:] = b"\xff" * (len(data) - 8192)
    path.write_bytes(data)
    with pytest.raises(StoreCorruptError, match="restore"):
        SqlStore(f"sqlite:///{path}")


def test_folder_instead_of_file(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="check the path"):
        SqlStore(f"sqlite:///{tmp_path}")


def test_unreadable_record_is_named(url: str) -> None:
    with SqlStore(url) as store:
        store.append(KEY, [said("a"), said("b")])
        run_sql(url, "UPDATE ctxfold_records SET payload = '{broken' WHERE seq = 2")
        with pytest.raises(StoreCorruptError, match=r"record 2 \('b'\)"):
            store.read(KEY)
        assert [r.id for r in store.read(KEY, upto=1)] == ["a"]


def test_newer_format(url: str) -> None:
    with SqlStore(url) as store:
        store.append(KEY, [said("a")])
    run_sql(url, "UPDATE ctxfold_meta SET value = '4'")
    with pytest.raises(StoreFormatError, match="format 4, this ctxfold reads 3: upgrade"):
        SqlStore(url)
    run_sql(url, "UPDATE ctxfold_meta SET value = '2'")
    with pytest.raises(
        StoreFormatError, match="format 2, this ctxfold reads 3: it is of a pre-release: begin a new store"
    ):
        SqlStore(url)


def test_lost_version_and_lost_tables(url: str) -> None:
    with SqlStore(url) as store:
        store.append(KEY, [said("a")])
        run_sql(url, "DELETE FROM ctxfold_meta", "DROP TABLE ctxfold_records")
        with pytest.raises(StoreCorruptError, match="lacks tables"):
            store.read(KEY)
    with pytest.raises(StoreCorruptError, match="without a format version"):
        SqlStore(url)


@pytest.mark.usefixtures("postgres_url")
def test_unreachable_server_hides_the_password() -> None:
    address = "postgresql://ann:tops3cret@127.0.0.1:9/db?sslpassword=0ther"
    with pytest.raises(
        StoreUnavailableError, match=r"ann:\*\*\*@127\.0\.0\.1:9/db .*check server, address and login"
    ) as caught:
        SqlStore(address)
    assert "tops3cret" not in str(caught.value)
    assert "0ther" not in str(caught.value)


def test_unknown_database(postgres_url: str) -> None:
    address = postgres_url.rpartition("/")[0] + "/no_such_database"
    with pytest.raises(StoreUnavailableError, match="no_such_database"):
        SqlStore(address)


def test_a_lock_held_too_long(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with SqlStore(f"sqlite:///{path}", timeout_s=0.2) as store:
        store.append(KEY, [said("a")])
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailableError, match=r"locked for 0\.2 s"):
                store.append(KEY, [said("b")])
            assert [r.id for r in store.read(KEY)] == ["a"]
            other.execute("ROLLBACK")
        assert [r.seq for r in store.append(KEY, [said("b")], known=1)] == [2]


def test_a_row_lock_held_too_long(postgres_url: str) -> None:
    with fresh_schema(postgres_url) as url, SqlStore(url, timeout_s=3) as store:
        store.append(KEY, [said("a")])
        with psycopg.connect(url.replace("+psycopg", "")) as other:
            other.execute("SELECT * FROM ctxfold_sessions FOR UPDATE")
            with pytest.raises(StoreUnavailableError, match=r"locked for 3 s"):
                store.append(KEY, [said("b")])
            other.rollback()
        assert [r.seq for r in store.append(KEY, [said("b")], known=1)] == [2]


def test_connections_cut_by_the_server_are_replaced(postgres_url: str) -> None:
    with fresh_schema(postgres_url) as url, SqlStore(url + "&application_name=ctxfold_cut") as store:
        store.append(KEY, [said("a")])
        run_sql(
            url,
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE application_name = 'ctxfold_cut' AND state = 'idle'",
        )
        assert store.head(KEY) == Head(1, 0)
        assert [r.seq for r in store.append(KEY, [said("b")], known=1)] == [2]


def test_more_threads_than_connections(url: str) -> None:
    with SqlStore(url, pool_size=1) as store:
        store.append(KEY, [said("a")])
        threads = [threading.Thread(target=store.read, args=(KEY,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.head(KEY) == Head(1, 0)


# values


def test_lone_surrogates_never_reach_the_store(url: str) -> None:
    bad = Message("m1", "user", (TextPart("half \ud83d"),))
    with SqlStore(url) as store:
        with pytest.raises(CtxError) as caught:
            store.append(KEY, [Draft("m1", MessageAdded(bad))])
        assert isinstance(caught.value, InvalidTextError)
        with pytest.raises(InvalidTextError):
            store.postings(KEY, ["\ud83d"])
        assert store.head(KEY) is None


def test_a_refused_statement_undoes_the_whole_append(url: str) -> None:
    with SqlStore(url) as store:
        assert store.head(KEY) is None
        if url.startswith("sqlite"):
            check = "BEFORE INSERT ON ctxfold_records WHEN NEW.record_id = 'x' BEGIN SELECT RAISE(ABORT, 'no x'); END"
            run_sql(url, f"CREATE TRIGGER no_x {check}")
        else:
            run_sql(url, "ALTER TABLE ctxfold_records ADD CONSTRAINT no_x CHECK (record_id <> 'x')")
        with pytest.raises(StoreError, match=r"refused a statement .*nothing was written"):
            store.append(KEY, [said("a"), said("x", "a secret text")])
        assert store.head(KEY) is None
        assert store.read(KEY) == ()
        assert [r.seq for r in store.append(KEY, [said("a")])] == [1]


def test_numbers_beyond_a_database_are_missing(url: str) -> None:
    with SqlStore(url) as store:
        store.append(KEY, [said("a")])
        assert [r.seq for r in store.fetch(KEY, [1, 10**30])] == [1]


# async


async def test_async_calls_leave_the_loop_free(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with SqlStore(f"sqlite:///{path}", timeout_s=60) as store:
        await store.aappend(KEY, [said("a")])
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = asyncio.create_task(store.aappend(KEY, [said("b")], known=1))
            for _ in range(20):
                await asyncio.sleep(0.01)
            assert not waiting.done()
            other.execute("COMMIT")
        assert [r.seq for r in await waiting] == [2]


async def test_a_cancelled_question_that_waited_for_a_lock_leaves_no_turn_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with (
        SqlStore(f"sqlite:///{path}", timeout_s=60) as store,
        AgentContext(ScriptedBackend(["one"]), store=store, context_window=1_000, counter=RatioCounter()) as ctx,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        asking = asyncio.create_task(ctx.asend("hi"))
        for _ in range(20):
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.sleep(0.01)
        other.execute("COMMIT")
        with pytest.raises(asyncio.CancelledError):
            await asking
        await store.aappend(SessionKey(ctx.owner, ctx.session), [])  # behind whatever was under way
        assert ctx.view().messages == ()
        assert not opened(ctx).state.open


async def test_cancelled_appends_lose_and_double_nothing(url: str) -> None:
    async with SqlStore(url) as store:
        await store.aappend(KEY, [])
        for n in range(30):
            task = asyncio.create_task(store.aappend(KEY, [said(f"m{n}")]))
            await asyncio.sleep(n % 6 * 0.0005)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            # as the engine does: read the head again, then append the same records once more
            head = await store.ahead(KEY)
            assert head is not None
            await store.aappend(KEY, [said(f"m{n}")], known=head.seq)
        records = await store.aread(KEY)
    assert [r.id for r in records] == [f"m{n}" for n in range(30)]
    assert [r.seq for r in records] == list(range(1, 31))
