"""Tables partitioned by owner on PostgreSQL, made when a store is created."""

from __future__ import annotations

import threading
from collections.abc import Generator
from multiprocessing.synchronize import Event
from typing import Any

import psycopg
import pytest

from ctxfold import ConfigError, SqlStore, user
from ctxfold.history.records import Draft, MessageAdded, SessionKey
from tests.support.pages import examples, page, section
from tests.support.postgres_schema import fresh_schema
from tests.support.processes import CONTEXT, import_once, start

import_once(__name__)

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


def test_the_programs_of_the_page(url: str) -> None:
    """Those on partitions, on a database that only the test uses; tests/durable runs the others."""
    names: dict[str, Any] = {}
    for block in examples(section(page("scaling.md"), "## Partitions")):
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
    for wrong in (0, 1, 1025, "4", True, 2.5):
        with pytest.raises(ConfigError, match=r"partitions is .*: give a number from 2 to 1024"):
            SqlStore(url, partitions=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"partitions=4 for sqlite:///.*: SQLite has no partitions"):
        SqlStore(f"sqlite:///{tmp_path}/a.db", partitions=4)


def test_a_store_without_partitions_says_how_to_get_them(url: str) -> None:
    SqlStore(url).close()
    with pytest.raises(ConfigError, match=r"is not partitioned, .*: leave it out, or export the sessions"):
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
