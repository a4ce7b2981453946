"""Faults of servers and disks: each is retried, or told as a StoreError, and nothing is lost or doubled."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from ctxfold import AgentContext, ScriptedBackend, SqlStore, user
from ctxfold.errors import HeadMovedError, SessionNotFoundError, StoreCorruptError, StoreUnavailableError
from ctxfold.history.records import Draft, MessageAdded, SessionKey
from ctxfold.tokens.text import RatioCounter
from tests.stores.proxy import Proxy, proxied
from tests.support.postgres_schema import fresh_schema

KEY = SessionKey("ann", "s")
COMMIT = b"COMMIT\0"  # READ COMMITTED is another matter


def said(name: str) -> Draft:
    return Draft(name, MessageAdded(user(f"text {name}", id=name)))


@pytest.fixture
def schema(postgres_url: str) -> Generator[str]:
    with fresh_schema(postgres_url) as place:
        yield place


@pytest.fixture
def proxy() -> Generator[Proxy]:
    with proxied(5432) as made:
        yield made


def through(proxy: Proxy, url: str) -> str:
    # statements that are not prepared: the proxy sees their text each time
    return url.replace(":5432", f":{proxy.port}") + "&prepare_threshold=1000"


def once(text: bytes, proxy: Proxy) -> None:
    """Loses the answer to the next request that holds the text, and the connection with it."""
    left = [True]

    def matches(data: bytes) -> bool:
        return text in data and bool(left) and left.pop()

    proxy.on_request = matches


# a connection that breaks while a transaction commits


def test_a_commit_whose_answer_is_lost_counts_once(schema: str, proxy: Proxy) -> None:
    """Step 7, C: the store cannot know whether it was committed; the retry finds the records by their ids."""
    with SqlStore(through(proxy, schema)) as store:
        store.append(KEY, [said("a")])
        once(COMMIT, proxy)
        assert [r.seq for r in store.append(KEY, [said("b"), said("c")], known=1)] == [2, 3]
        assert proxy.cuts == 1
        once(COMMIT, proxy)
        assert [r.seq for r in store.append(KEY, [said("d")], known=3, expect=3)] == [4]
        assert proxy.cuts == 2
        assert [(r.seq, r.id) for r in store.read(KEY)] == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


def test_only_the_same_append_at_the_same_place_counts_as_done(schema: str) -> None:
    """Step 7, C: a head that has moved is told unless just these records moved it."""
    with SqlStore(schema) as store:
        store.append(KEY, [said("a"), said("b"), said("c")])
        assert [r.id for r in store.append(KEY, [said("b"), said("c")], known=1, expect=1)] == ["b", "c"]
        for drafts, expect in (([said("c")], 1), ([said("b"), said("x")], 1), ([said("a")], 1), ([], 1)):
            with pytest.raises(HeadMovedError):
                store.append(KEY, drafts, known=1, expect=expect)
        assert [r.id for r in store.read(KEY)] == ["a", "b", "c"]


def test_sessions_go_on_when_the_answers_to_commits_are_lost(schema: str, proxy: Proxy) -> None:
    """Step 7, C: turns, compaction, edits, forks and erasures, each with a commit whose answer is lost."""
    with (
        SqlStore(through(proxy, schema)) as store,
        AgentContext(
            ScriptedBackend(["A reply of some words. " * 20] * 90),
            store=store,
            context_window=600,
            counter=RatioCounter(),
            background=False,
        ) as ctx,
    ):
        for n in range(15):
            once(COMMIT, proxy)
            ctx.send(f"question {n} " + "word " * 20)
        assert ctx.usage().compactions > 0
        once(COMMIT, proxy)
        ctx.add(user("pinned", id="p"))
        once(COMMIT, proxy)
        ctx.pin("p")
        once(COMMIT, proxy)
        ctx.fork("branch")
        assert ctx.archive.forks() == ("branch",)
        cuts = proxy.cuts
        first = ctx.messages()[0].id
        once(COMMIT, proxy)
        erased = ctx.erasure.erase("#1")
        assert erased.ids == (first,)
        assert erased.sessions == ("default", "branch")
        assert proxy.cuts == cuts + 1
        texts = [message.text for message in ctx.messages()]
        asked = [text.split(" word")[0] for text in texts if text.startswith("question")]
    assert asked == [f"question {n}" for n in range(1, 15)]
    assert texts[-1] == "pinned"


# what a server does to a transaction


def test_a_session_that_was_idle_within_a_transaction_is_retried(schema: str, proxy: Proxy) -> None:
    """Step 7, C: 25P03 ends the connection of a client that was too slow, once; the append is repeated."""
    slow = [True]

    def delay(data: bytes) -> bool:
        if b"FOR UPDATE" in data and slow:
            slow.pop()
            time.sleep(1.0)  # the server has given up by then
        return False

    url = through(proxy, schema + "%20-cidle_in_transaction_session_timeout%3D300")
    with SqlStore(url) as store:
        store.append(KEY, [said("a")])
        proxy.on_request = delay
        slow[:] = [True]
        assert [r.seq for r in store.append(KEY, [said("b")], known=1)] == [2]
        assert not slow
        assert [r.id for r in store.read(KEY)] == ["a", "b"]


def test_deadlocks_serialization_failures_and_shutdowns_are_retried(schema: str) -> None:
    """Step 7, C: 40001, 40P01, 55P03 and 57P01 undo the transaction; it is repeated and written once."""
    with SqlStore(schema) as store, psycopg.connect(schema.replace("+psycopg", ""), autocommit=True) as server:
        store.append(KEY, [said("first")])
        server.execute("CREATE SEQUENCE tries")
        server.execute("CREATE TABLE faults (code text)")
        server.execute(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE found text; BEGIN "
            "IF nextval('tries') % 2 = 1 THEN SELECT code INTO found FROM faults; "
            "IF found = '57P01' THEN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(5); END IF; "
            "RAISE EXCEPTION 'a fault' USING ERRCODE = found; END IF; RETURN NEW; END $$"
        )
        server.execute("CREATE TRIGGER fails BEFORE INSERT ON ctxfold_records FOR EACH ROW EXECUTE FUNCTION fail()")
        for n, code in enumerate(("40001", "40P01", "55P03", "57P01", "25P03"), 2):
            server.execute("DELETE FROM faults")
            server.execute("INSERT INTO faults VALUES (%s)", (code,))
            assert [r.seq for r in store.append(KEY, [said(code)], known=n - 1)] == [n]
        row = server.execute("SELECT last_value FROM tries").fetchone()
        assert row == (10,)
        assert [r.id for r in store.read(KEY)] == ["first", "40001", "40P01", "55P03", "57P01", "25P03"]


def test_a_connection_that_breaks_while_the_store_is_opened(schema: str, proxy: Proxy) -> None:
    """Step 7, C: SQLAlchemy asks for the server's defaults itself; its errors are retried and typed like the driver's."""
    once(b"current_schema", proxy)
    with SqlStore(through(proxy, schema)) as store:
        assert proxy.cuts == 1
        assert [r.seq for r in store.append(KEY, [said("a")])] == [1]


def test_a_cancelled_statement_is_told_as_such(schema: str) -> None:
    """Step 7, C: 57014 is the server's decision, so it is not repeated; a client may repeat it with the same ids."""
    url = schema + "%20-cstatement_timeout%3D300"
    with SqlStore(url, timeout_s=20) as store, psycopg.connect(schema.replace("+psycopg", "")) as other:
        store.append(KEY, [said("a")])
        other.execute("SELECT * FROM ctxfold_sessions FOR UPDATE")
        with pytest.raises(StoreUnavailableError, match=r"cancelled a statement .*statement_timeout"):
            store.append(KEY, [said("b")])
        other.rollback()
        assert [r.seq for r in store.append(KEY, [said("b")], known=1)] == [2]


def test_more_dead_connections_than_tries(schema: str) -> None:
    """Step 7, C: after a restart every idle connection is dead; a large pool does not use up the tries."""
    with SqlStore(schema + "&application_name=ctxfold_dead", pool_size=20) as store:
        store.append(KEY, [said("a")])
        everybody = threading.Barrier(20)
        server = psycopg.connect(schema.replace("+psycopg", ""), autocommit=True)
        with closing(server):
            server.execute("BEGIN")
            server.execute("LOCK TABLE ctxfold_sessions IN ACCESS EXCLUSIVE MODE")

            def look() -> None:
                everybody.wait()
                store.head(KEY)

            threads = [threading.Thread(target=look) for _ in range(20)]
            for thread in threads:
                thread.start()
            mine = "FROM pg_stat_activity WHERE application_name = 'ctxfold_dead'"
            while server.execute(f"SELECT count(*) {mine} AND wait_event_type = 'Lock'".encode()).fetchone() != (20,):
                server.execute("SELECT pg_stat_clear_snapshot()")
                time.sleep(0.02)
            server.execute("COMMIT")
            for thread in threads:
                thread.join()
            server.execute(f"SELECT pg_terminate_backend(pid, 5000) {mine}".encode())
        assert [r.seq for r in store.append(KEY, [said("b")], known=1)] == [2]


def test_leases_go_by_the_clock_of_the_server(schema: str) -> None:
    """Step 7, C: a worker whose clock is wrong by a day neither takes a lease that is held nor holds one for ever."""
    day_s = 86_400.0
    with SqlStore(schema) as store:
        now_s = time.time()
        assert store.lease(KEY, "work", "one", now_s=now_s, ttl_s=60)
        assert not store.lease(KEY, "work", "two", now_s=now_s + day_s, ttl_s=60)
        assert store.lease(KEY, "other", "early", now_s=now_s + day_s, ttl_s=0.01)
        while not store.lease(KEY, "other", "two", now_s=now_s, ttl_s=60):
            time.sleep(0.01)
        assert store.lease(KEY, "work", "one", now_s=now_s - day_s, ttl_s=60)


# files


def test_a_deleted_file_acknowledges_nothing(tmp_path: Path) -> None:
    """Step 7, C: the open file has no name any more, so what is written to it is gone with the process."""
    path, aside = tmp_path / "a.db", tmp_path / "aside.db"
    with SqlStore(f"sqlite:///{path}") as store:
        store.append(KEY, [said("a")])
        path.rename(aside)
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match=r"a\.db was deleted while it was open: put it back"):
                store.append(KEY, [said("b")], known=1)
            assert not path.exists()
        aside.rename(path)
        assert [r.seq for r in store.append(KEY, [said("b")], known=1)] == [2]


def test_a_replaced_file_is_opened_anew(tmp_path: Path) -> None:
    """Step 7, C: a copy that was put back is what the next call reads and writes; a session that it lacks is told."""
    path, copy, other = tmp_path / "a.db", tmp_path / "copy.db", tmp_path / "other.db"
    with SqlStore(f"sqlite:///{path}") as store:
        store.append(KEY, [said("a")])
    shutil.copy(path, copy)
    with SqlStore(f"sqlite:///{other}") as store:
        store.append(KEY, [said("x"), said("y")])
    with SqlStore(f"sqlite:///{path}") as store:
        store.append(KEY, [said("b")])
        copy.replace(path)
        for name in ("a.db-wal", "a.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        assert [r.id for r in store.read(KEY)] == ["a"]
        assert [r.seq for r in store.append(KEY, [said("b")], known=1, known_id="a")] == [2]
        other.replace(path)
        for name in ("a.db-wal", "a.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        with pytest.raises(SessionNotFoundError):
            store.append(KEY, [said("c")], known=2, known_id="b")
        assert [r.id for r in store.read(KEY)] == ["x", "y"]


def test_a_file_that_goes_while_it_is_written_acknowledges_nothing(tmp_path: Path) -> None:
    """Step 7, C: the file is moved away between the beginning of a write and its commit."""
    path, aside = tmp_path / "a.db", tmp_path / "aside.db"
    outcomes = list[object]()
    with SqlStore(f"sqlite:///{path}", timeout_s=60) as store:
        store.append(KEY, [said("a")])

        def write() -> None:
            try:
                outcomes.append(store.append(KEY, [said("b")], known=1))
            except StoreUnavailableError as error:
                outcomes.append(str(error))

        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            thread = threading.Thread(target=write)
            thread.start()
            time.sleep(0.3)  # it waits for the lock by now
            path.rename(aside)
            other.execute("COMMIT")
            thread.join()
        assert len(outcomes) == 1
        assert "deleted" in str(outcomes[0])
        aside.rename(path)
        assert [r.seq for r in store.append(KEY, [said("b")], known=1)] == [2]
        assert [r.id for r in store.read(KEY)] == ["a", "b"]


@pytest.mark.parametrize("at", range(6))
def test_damaged_pages_are_typed_errors(tmp_path: Path, at: int) -> None:
    """Step 7, C: bytes that are no UTF-8, in the schema or in a row, do not come out as UnicodeDecodeError; no text is quoted."""
    path = tmp_path / "a.db"
    with (
        SqlStore(f"sqlite:///{path}") as store,
        AgentContext(store=store, context_window=4_000, counter=RatioCounter()) as ctx,
    ):
        for n in range(60):
            ctx.add(user(f"a confidential text {n} " * 10))
    data = bytearray(path.read_bytes())
    hits = [data.find(word) for word in (b"ctxfold_records", b"CREATE", b"sqlite_autoindex")]
    place = hits[at] if at < 3 else data.rfind(b"a confidential text 4") + 30 * (at - 3)
    data[place : place + 6] = b"\xff\x9d\xe7\xa9\x80\xc3"
    path.write_bytes(data)
    caught = list[str]()
    try:
        with (
            SqlStore(f"sqlite:///{path}") as store,
            AgentContext(store=store, context_window=4_000, counter=RatioCounter()) as ctx,
        ):
            for look in (ctx.view, ctx.messages, lambda: store.read(SessionKey("default", "default"))):
                try:
                    look()
                except StoreCorruptError as error:
                    caught.append(str(error))
    except StoreCorruptError as error:
        caught.append(str(error))
    assert caught
    assert "confidential" not in " ".join(caught)


FULL = """
import resource, signal, sys
from ctxfold import AgentContext
from ctxfold.tokens.text import RatioCounter
from ctxfold.errors import CtxError, StoreUnavailableError
from ctxfold.messages import user
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with AgentContext(store=sys.argv[1], context_window=100_000, counter=RatioCounter()) as ctx:
    ctx.add(user("first", id="first"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
    for n in range(1_000):
        try:
            ctx.add(user(f"m{n} " + "x" * 5_000, id=f"m{n}"))
        except StoreUnavailableError as error:
            assert "free space" in str(error), error
            break
        print(f"m{n}", flush=True)
    else:
        sys.exit("the limit was never met")
    ctx.view(), ctx.messages()
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, resource.RLIM_INFINITY))
    try:
        ctx.files.export_jsonl(sys.argv[2])
    except StoreUnavailableError as error:
        assert isinstance(error, OSError) and sys.argv[2] in str(error) and "free space" in str(error), error
    else:
        sys.exit("the export met no limit")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    ctx.add(user(f"m{n} " + "x" * 5_000, id=f"m{n}"))
    print(f"m{n}", flush=True)
"""


@pytest.mark.skipif(importlib.util.find_spec("resource") is None, reason="no limit of file sizes on this system")
def test_a_full_disk_is_told_and_the_session_goes_on(tmp_path: Path) -> None:
    """Step 7, C: a write that finds no room is a StoreUnavailableError; with room again the same session goes on."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    url = f"sqlite:///{tmp_path}/a.db"
    done = subprocess.run(
        [sys.executable, "-c", FULL, url, str(tmp_path / "a.jsonl")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "a.jsonl").exists()
    acknowledged = done.stdout.split()
    assert len(acknowledged) > 5
    with AgentContext(store=url, context_window=100_000, counter=RatioCounter(), create=False) as ctx:
        assert [message.id for message in ctx.messages()] == ["first", *acknowledged]
