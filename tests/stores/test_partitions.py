"""Tables partitioned by owner on PostgreSQL: made at creation, or moved to while workers write and movers are killed."""

from __future__ import annotations

import json
import os
import random
import re
import threading
import uuid
from collections.abc import Generator
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from ctxfold import (
    ConfigError,
    Document,
    Draft,
    MemoryItem,
    SessionKey,
    SqlStore,
    StoreError,
    StoreUnavailableError,
    user,
)
from ctxfold.cli.app import app
from ctxfold.history.records import MessageAdded
from ctxfold.protocols import Rewrite
from tests.stores.test_statements import taken_down
from tests.support.postgres_schema import fresh_schema
from tests.support.processes import CONTEXT, import_once, start

import_once(__name__)

KILLS = int(os.environ.get("CTXFOLD_KILLS", "4"))
KEY = SessionKey("ann", "s")


@pytest.fixture
def url(postgres_url: str) -> Generator[str]:
    with fresh_schema(postgres_url) as place:
        yield place


def rows(url: str, sql: str) -> list[Any]:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as server:
        cursor = server.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def said(name: str) -> Draft:
    return Draft(name, MessageAdded(user(f"text {name}", id=name)), "t1", 1.0)


def partitions(url: str) -> dict[str, int]:
    """How many partitions each table has."""
    sql = (
        "SELECT parent.relname, count(child.inhrelid) FROM pg_class parent "
        "LEFT JOIN pg_inherits child ON child.inhparent = parent.oid "
        "WHERE parent.relkind = 'p' AND parent.relnamespace = current_schema()::regnamespace GROUP BY 1"
    )
    return dict(rows(url, sql))


def every(count: int) -> dict[str, int]:
    names = ("leases", "memory", "postings", "records", "sessions", "vectors")
    return {f"ctxfold_{name}": count for name in names}


PAGE = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")


def test_the_programs_of_the_page(url: str) -> None:
    """docs/scaling.md as it stands, on a database of the test's own."""
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.S | re.M):
        code = block.replace("postgresql+psycopg://user:password@host/database", url)
        exec(compile(code, "scaling.md", "exec", dont_inherit=True), names)
    assert partitions(url) == every(16)
    names["store"].close()


# creation


def test_rows_are_spread_by_owner(url: str) -> None:
    with SqlStore(url, partitions=4) as store:
        for n in range(40):
            store.append(SessionKey(f"owner {n}", "s"), [said("a"), said("b")])
    assert partitions(url) == every(4)
    sizes = [rows(url, f"SELECT count(*), count(DISTINCT owner) FROM ctxfold_records_p{n}")[0] for n in range(4)]
    assert all(count == 2 * owners > 0 for count, owners in sizes)
    assert sum(count for count, _ in sizes) == 80
    for again in (SqlStore(url), SqlStore(url, partitions=4)):
        with again as store:
            assert [r.id for r in store.read(SessionKey("owner 7", "s"))] == ["a", "b"]


def test_another_number_is_told(url: str, tmp_path: Any) -> None:
    SqlStore(url, partitions=4).close()
    with pytest.raises(ConfigError, match=r"test has 4 partitions, not 8: leave partitions= out"):
        SqlStore(url, partitions=8)
    with SqlStore(url) as store, pytest.raises(ConfigError, match="has 4 partitions, not 8"):
        store.partition(8)
    for wrong in (0, 1, 1025, "4", True, 2.5):
        with pytest.raises(ConfigError, match=r"partitions is .*: give a number from 2 to 1024"):
            SqlStore(url, partitions=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"partitions=4 for sqlite:///.*: SQLite has no partitions"):
        SqlStore(f"sqlite:///{tmp_path}/a.db", partitions=4)
    with SqlStore(f"sqlite:///{tmp_path}/a.db") as file, pytest.raises(ConfigError, match="SQLite has no partitions"):
        file.partition(4)


def test_a_store_without_partitions_says_how_to_get_them(url: str) -> None:
    SqlStore(url).close()
    with pytest.raises(ConfigError, match=r"is not partitioned, .*SqlStore\(url\)\.partition\(4\)"):
        SqlStore(url, partitions=4)
    assert partitions(url) == {}


def test_created_by_many_at_once(url: str) -> None:
    """Some say a number and some do not; a store is made once, and whoever comes second opens it."""
    begin, failures = threading.Barrier(6), list[BaseException]()

    def use(n: int) -> None:
        begin.wait()
        try:
            with SqlStore(url, partitions=8 if n % 2 else None) as store:
                store.append(KEY, [said(f"m{n}")])
        except ConfigError as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with SqlStore(url) as store:
        written = len(store.read(KEY))
    assert partitions(url) in ({}, every(8))
    if partitions(url):
        assert (failures, written) == ([], 6)
    else:  # one without a number was first
        assert written == 3
        assert all("is not partitioned" in str(error) for error in failures)


def create(url: str, opened: Event) -> None:
    opened.set()
    SqlStore(url, partitions=32).close()


def test_a_killed_creation_is_completed(url: str) -> None:
    """By whoever opens the store next, who need not say the number."""
    opened = CONTEXT.Event()
    process = start(create, url, opened)
    assert opened.wait(300)
    while not partitions(url).get("ctxfold_sessions"):
        assert process.exitcode is None
    process.kill()
    process.join()
    with SqlStore(url) as store:
        store.append(KEY, [said("a")])
    assert partitions(url) == every(32)


# the move


def test_a_running_worker_follows(url: str) -> None:
    """What it has read stays, what it writes is there, and its next statements go to one partition."""
    with taken_down() as statements, SqlStore(url) as worker:
        worker.append(KEY, [said("a"), said("b")], documents=[Document(1, {"word": 1}, 3)])
        worker.remember("ann", [MemoryItem("i1", "facts", "one", key="k", created_s=1.0)])
        worker.lease(KEY, "work", "me", now_s=1.0, ttl_s=600)
        worker.put_vectors(KEY, "e", {0: b"about", 1: b"12"})
        copied = list[int]()
        with SqlStore(url) as mover:
            assert mover.partition(4, progress=copied.append) == copied[-1] == 8
            assert mover.partition(4) == 0
        assert partitions(url) == every(4)
        worker.append(KEY, [said("c")])
        statements.sent.clear()
        assert worker.find(KEY, ["a"])[0].seq == 1
        assert not [text for text in statements if 'owner COLLATE "C"' in text]
        assert [r.id for r in worker.read(KEY)] == ["a", "b", "c"]
        assert worker.postings(KEY, ["word"]).by_term == {"word": ((1, 1, 3),)}
        assert worker.vectors(KEY, "e") == {1: b"12"}
        assert [i.id for i in worker.memories("ann")] == ["i1"]
        assert not worker.lease(KEY, "work", "another", now_s=1.0, ttl_s=600)
        assert worker.erase_owner("ann")
        assert worker.read(KEY) == ()


def test_privileges_stay(url: str) -> None:
    """Workers may log in as a role that has been granted the tables; it has the new ones too, and may write during the move."""
    role = f"ctxfold_{uuid.uuid4().hex[:12]}"
    schema = url.rpartition("%3D")[2]
    with SqlStore(url) as store:
        store.append(KEY, [said(f"m{n}") for n in range(5)])
        rows(url, f"CREATE ROLE {role} LOGIN")
        try:
            rows(url, f"GRANT USAGE ON SCHEMA {schema} TO {role}")
            rows(url, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")
            with SqlStore(url.replace("postgres@", f"{role}@")) as worker:

                def write(copied: int) -> None:
                    assert copied < 30  # it does not wait until nobody writes
                    if copied >= 5:
                        worker.append(KEY, [said(f"during {copied}")])

                store.partition(2, progress=write)
                worker.append(KEY, [said("after")])
                names = [r.id for r in worker.read(KEY)]
                assert names[:5] == [f"m{n}" for n in range(5)]
                assert len(names) > 6
                assert names[-1] == "after"
        finally:
            rows(url, f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_another_login_that_has_the_role_cancels_or_completes(url: str) -> None:
    names = [f"ctxfold_{uuid.uuid4().hex[:12]}" for _ in range(3)]
    role, first, second = names
    schema = url.rpartition("%3D")[2]
    with SqlStore(url) as store:
        store.append(KEY, [said("a"), said("b")])
    try:
        rows(
            url,
            f"CREATE ROLE {role}; CREATE ROLE {first} LOGIN IN ROLE {role}; CREATE ROLE {second} LOGIN IN ROLE {role}",
        )
        rows(url, f"GRANT ALL ON SCHEMA {schema} TO {role}")
        for (table,) in rows(url, f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'"):
            rows(url, f"ALTER TABLE {table} OWNER TO {role}")
        with (
            SqlStore(url.replace("postgres@", f"{first}@")) as beginner,
            SqlStore(url.replace("postgres@", f"{second}@")) as other,
        ):
            begun(beginner, 2)
            assert other.cancel_partition()
            assert remains(url) == []
            begun(beginner, 2)
            other.partition(2)
            assert [r.id for r in other.read(KEY)] == [r.id for r in beginner.read(KEY)] == ["a", "b"]
        assert partitions(url) == every(2)
    finally:
        for name in (first, second, role):
            rows(url, f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


def test_a_table_that_somebody_holds(url: str) -> None:
    """The move gives up instead of keeping others waiting, says so, and is completed later, with the number that was begun."""
    with SqlStore(url, timeout_s=2) as store:
        store.append(KEY, [said("a")])
        with psycopg.connect(url.replace("+psycopg", "")) as reader:
            reader.execute("SELECT count(*) FROM ctxfold_records")
            with pytest.raises(StoreUnavailableError, match="stayed locked"):
                store.partition(2)
            store.append(KEY, [said("b")])
        with pytest.raises(ConfigError, match=r"to 2 partitions was begun: complete it with partition\(2\), or"):
            store.partition(3)
        store.partition(2)
        assert [r.id for r in store.read(KEY)] == ["a", "b"]
    assert partitions(url) == every(2)


# cancelling


def remains(url: str) -> list[Any]:
    """What a move makes in the schema, by name."""
    here = "current_schema()::regnamespace"
    made = "relname LIKE 'ctxfold_moving%' OR relname ~ '_p[0-9]+$'"
    found = f"SELECT relname FROM pg_class WHERE relnamespace = {here} AND ({made}) "
    found += f"UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = {here} "
    found += (
        "UNION ALL SELECT tgname FROM pg_trigger WHERE tgrelid = to_regclass('ctxfold_sessions') AND NOT tgisinternal "
    )
    return rows(url, f"{found} UNION ALL SELECT key FROM ctxfold_meta WHERE key LIKE 'partition%'")


class Stopped(Exception):
    """Ends a move where it is."""


def stop(_copied: int) -> None:
    raise Stopped


def begun(store: SqlStore, partitions: int) -> None:
    """Moves a store until its first rows are copied."""
    with pytest.raises(Stopped):
        store.partition(partitions, progress=stop)


def test_a_move_is_cancelled(url: str) -> None:
    with SqlStore(url) as store:
        assert not store.cancel_partition()
        store.append(KEY, [said("a"), said("b")], documents=[Document(1, {"word": 1}, 3)])
        begun(store, 40)  # more tables than are dropped in one transaction
        store.append(KEY, [said("c")])
        assert len(remains(url)) > 6 * 41
        assert store.cancel_partition()
        assert remains(url) == []
        assert not store.cancel_partition()
        store.append(KEY, [said("d")])
        assert [r.id for r in store.read(KEY)] == ["a", "b", "c", "d"]
        assert store.partition(4) > 0  # another number now
        assert not store.cancel_partition()  # it is complete
        assert [r.id for r in store.read(KEY)] == ["a", "b", "c", "d"]
    assert partitions(url) == every(4)


def test_a_mover_learns_that_its_move_is_cancelled(url: str) -> None:
    with SqlStore(url) as store, SqlStore(url) as other:
        store.append(KEY, [said("a")])
        with pytest.raises(StoreError, match=r"was cancelled meanwhile: call partition\(2\) to start again"):
            store.partition(2, progress=lambda _: other.cancel_partition())
        assert remains(url) == []


def test_a_mover_learns_that_somebody_moves_to_another_number(url: str) -> None:
    with SqlStore(url) as store, SqlStore(url) as other:
        store.append(KEY, [said("a")])

        def instead(_copied: int) -> None:
            other.cancel_partition()
            other.partition(3)

        with pytest.raises(StoreError, match=r"was cancelled meanwhile: call partition\(2\)"):
            store.partition(2, progress=instead)
        assert [r.id for r in store.read(KEY)] == ["a"]
    assert partitions(url) == every(3)


def test_a_cancelling_that_was_ended_is_completed(url: str) -> None:
    """A reader holds a table meanwhile: nobody waits for it for long, and the rest is taken back later. The mover stops at once."""
    with SqlStore(url, timeout_s=2) as store:
        store.append(KEY, [said("a")])

        def cancel(_copied: int) -> None:
            with psycopg.connect(url.replace("+psycopg", "")) as reader:
                reader.execute("SELECT count(*) FROM ctxfold_records")
                with pytest.raises(StoreUnavailableError, match="stayed locked"):
                    store.cancel_partition()
                store.append(KEY, [said("b")])

        with pytest.raises(StoreError, match="was cancelled meanwhile"):
            store.partition(2, progress=cancel)
        with pytest.raises(
            ConfigError, match=r"was cancelled, and the cancellation is not complete: complete it with cancel_partition"
        ):
            store.partition(2)
        assert store.cancel_partition()
        assert [r.id for r in store.read(KEY)] == ["a", "b"]
    assert remains(url) == []


def test_on_the_command_line(url: str, tmp_path: Path) -> None:
    def ctxfold(*arguments: str, store: str = url) -> Any:
        return CliRunner().invoke(app, ["partition", "--store", store, *arguments])

    with SqlStore(url) as store:
        store.append(KEY, [said("a"), said("b")])
        assert ctxfold("--cancel").stdout == "no move is under way\n"
        begun(store, 4)
        wrong = ctxfold("8", "--json")
        assert (wrong.exit_code, "cancel_partition()" in wrong.stderr) == (2, True)
        assert ctxfold("--cancel").stdout == "cancelled: the tables are as before\n"
        done = ctxfold("8")
        assert done.stdout == "8 partitions, 3 rows copied by this call\n"
        assert json.loads(ctxfold("8", "--json").stdout) == {"partitions": 8, "copied": 0}
        assert [r.id for r in store.read(KEY)] == ["a", "b"]
    assert partitions(url) == every(8)
    for arguments in ((), ("8", "--cancel")):
        assert ctxfold(*arguments).exit_code == 2
    SqlStore(f"sqlite:///{tmp_path}/a.db").close()
    assert "SQLite has no partitions" in ctxfold("8", store=f"{tmp_path}/a.db").stderr


def test_writers_go_on_while_moves_are_cancelled(url: str) -> None:
    halt, results, writers = CONTEXT.Event(), list[Any](), list[Any]()
    with SqlStore(url) as store:
        store.append(KEY, [said(f"m{n}") for n in range(5_000)])
        for number in range(2):
            received, sent = CONTEXT.Pipe(duplex=False)
            writers.append(start(write, url, number, halt, sent))
            results.append(received)
            sent.close()
        for _ in range(6):
            begun(store, 8)
            assert store.cancel_partition()
        assert remains(url) == []
        halt.set()
        for number, (result, writer) in enumerate(zip(results, writers, strict=True)):
            told = result.recv()
            writer.join()
            check(store, number, *told)
        assert len(store.read(KEY)) == 5_000


# kills


def move(url: str, opened: Event) -> None:
    with SqlStore(url) as store:
        opened.set()
        store.partition(8)


def write(url: str, number: int, stop: Event, result: Connection) -> None:
    """Appends, indexes, erases, learns and leases until it is stopped; sends what has to be there then."""
    rng = random.Random(number)
    key = SessionKey(f"writer {number}", "s")
    ids, indexed, items = list[str](), dict[int, int](), list[str]()
    with SqlStore(url) as store:
        while not stop.is_set():
            names = [f"{len(ids) + n}" for n in range(rng.randint(1, 4))]
            seqs = range(len(ids) + 1, len(ids) + 1 + len(names))
            documents = [Document(seq, {"common": 1, f"w{seq}": 1}, 2) for seq in seqs]
            store.append(key, [said(name) for name in names], known=len(ids), documents=documents)
            ids += names
            indexed |= dict.fromkeys(seqs, 2)
            store.put_vectors(key, "e", dict.fromkeys(seqs, b"1234"))
            if rng.random() < 0.2:
                gone = rng.choice(list(indexed))
                del indexed[gone]
                record = store.fetch(key, [gone])[0]
                store.erase([Rewrite(key, len(ids), (record.id,), (record,), (gone,), ())])
            if rng.random() < 0.3:
                name = f"i{len(items)}"
                store.remember(key.owner, [MemoryItem(name, "facts", name, key="k", created_s=float(len(items)))])
                items.append(name)
            store.lease(key, "work", "me", now_s=1.0, ttl_s=60)
            store.release(key, "work", "me")
            if rng.random() < 0.05:  # begun anew
                store.erase_owner(key.owner)
                ids, indexed, items = [], {}, []
        result.send((ids, indexed, items))


def check(store: SqlStore, number: int, ids: list[str], indexed: dict[int, int], items: list[str]) -> None:
    key = SessionKey(f"writer {number}", "s")
    found = store.read(key)
    assert [r.id for r in found] == ids
    assert [r.seq for r in found] == list(range(1, len(ids) + 1))
    assert store.postings(key, ["common"]).by_term["common"] == tuple((seq, 1, 2) for seq in sorted(indexed))
    assert set(store.vectors(key, "e")) == set(indexed)
    assert [i.id for i in store.memories(key.owner)] == items[-1:]
    assert len(store.memories(key.owner, everything=True)) == len(items)


def moved_while_killed(url: str, kills: int, rng: random.Random) -> int:
    """Moves a store that is written to, with at most so many kills of the mover; returns how many hit it before it was done."""
    with SqlStore(url) as store:
        for n in range(30):
            key = SessionKey(f"owner {n}", "s")
            documents = [Document(seq, {"common": 1, f"w{seq}": 2}, 3) for seq in range(1, 101)]
            store.append(key, [said(f"m{k}") for k in range(300)], documents=documents)
        before = [(store.read(SessionKey(f"owner {n}", "s")), store.sessions(f"owner {n}")) for n in range(30)]
    stop, results, writers = CONTEXT.Event(), list[Any](), list[Any]()
    for number in range(2):
        received, sent = CONTEXT.Pipe(duplex=False)
        writers.append(start(write, url, number, stop, sent))
        results.append(received)
        sent.close()
    hits = 0
    for _ in range(kills):
        opened = CONTEXT.Event()
        mover = start(move, url, opened)
        assert opened.wait(300)
        mover.join(rng.uniform(0.0, 0.25))
        hits += mover.exitcode is None
        mover.kill()
        mover.join()
        if partitions(url) == every(8):
            break
    with SqlStore(url) as store:
        store.partition(8)
        stop.set()
        for number, (result, writer) in enumerate(zip(results, writers, strict=True)):
            told = result.recv()
            writer.join()
            check(store, number, *told)
        after = [(store.read(SessionKey(f"owner {n}", "s")), store.sessions(f"owner {n}")) for n in range(30)]
        assert after == before
        for n in range(30):
            assert len(store.postings(SessionKey(f"owner {n}", "s"), ["common"]).by_term["common"]) == 100
    assert partitions(url) == every(8)
    left = "SELECT count(*) FROM pg_class WHERE relname LIKE 'ctxfold_moving%' AND relnamespace = current_schema()::regnamespace"
    assert rows(url, left) == [(0,)]
    assert rows(url, "SELECT count(*) FROM pg_proc WHERE pronamespace = current_schema()::regnamespace") == [(0,)]
    return hits


def test_killed_during_the_move(postgres_url: str) -> None:
    """What was acknowledged is there once, whatever was done to it meanwhile."""
    rng, hits = random.Random(KILLS), 0
    while hits < KILLS:
        with fresh_schema(postgres_url) as url:
            hits += moved_while_killed(url, KILLS - hits, rng)
    print(f"{hits} kills hit a move")


def test_rows_that_are_deleted_while_they_are_copied(url: str) -> None:
    """An erasure that had begun when its rows are copied, and ends afterwards: the copy waits for it."""
    with SqlStore(url) as store:
        store.append(KEY, [said("a"), said("b")])
        store.append(SessionKey("ann", "kept"), [said("c")])
    place = url.replace("+psycopg", "")
    name = f"mover_{uuid.uuid4().hex[:8]}"
    waiting = f"SELECT 1 FROM pg_stat_activity WHERE application_name = '{name}' AND wait_event_type = 'Lock'"
    with (
        psycopg.connect(place) as holder,
        psycopg.connect(place) as eraser,
        SqlStore(f"{url}&application_name={name}") as store,
    ):
        holder.execute("DELETE FROM ctxfold_vectors WHERE owner = 'nobody'")  # the last table to be watched
        mover = threading.Thread(target=store.partition, args=(2,))
        mover.start()
        watched = "SELECT 1 FROM pg_trigger WHERE tgname = 'ctxfold_both' AND tgrelid = 'ctxfold_records'::regclass"
        while not rows(url, watched):
            assert mover.is_alive()
        eraser.execute("DELETE FROM ctxfold_records WHERE owner = 'ann' AND session = 's'")
        holder.commit()
        while not rows(url, f"{waiting} AND query NOT LIKE 'CREATE TRIGGER%'"):
            assert mover.is_alive()
        eraser.commit()
        mover.join()
        assert store.read(KEY) == ()
        assert [r.id for r in store.read(SessionKey("ann", "kept"))] == ["c"]
    assert partitions(url) == every(2)
