"""`isolation=serializable`, for servers without advisory locks: tried on PostgreSQL, which is made to refuse transactions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator

import psycopg
import pytest

from ctxfold import ConfigError, SqlStore, user
from ctxfold.errors import StoreUnavailableError
from ctxfold.history.memory_items import MemoryItem
from ctxfold.history.records import Draft, MessageAdded, SessionKey
from ctxfold.protocols import Document
from tests.support.postgres_schema import fresh_schema

KEY = SessionKey("ann", "s")
# a third of the statements and of the commits fail, as they do where many write; sequences count what is undone as well
FAULTS = (
    "CREATE SEQUENCE tries",
    (
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('tries') % 3 = 0 THEN "
        "RAISE EXCEPTION 'restart transaction' USING ERRCODE = CASE currval('tries') % 2 WHEN 0 THEN '40001' ELSE '40P01' END; "
        "END IF; RETURN NEW; END $$"
    ),
    "CREATE TRIGGER refuses BEFORE UPDATE ON ctxfold_sessions FOR EACH ROW EXECUTE FUNCTION refuse()",
    (
        "CREATE CONSTRAINT TRIGGER refuses_late AFTER UPDATE ON ctxfold_sessions DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION refuse()"
    ),
    (
        "CREATE CONSTRAINT TRIGGER refuses_late AFTER INSERT ON ctxfold_memory DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION refuse()"
    ),
)


@pytest.fixture
def schema(postgres_url: str) -> Generator[str]:
    with fresh_schema(postgres_url) as place:
        yield place


def said(name: str) -> Draft:
    return Draft(name, MessageAdded(user(f"text {name}", id=name)), "t1", 1.0)


def at_once(count: int, work: Callable[[int], object]) -> None:
    """Runs the work in threads that begin together; raises what one of them raised."""
    begin, failures = threading.Barrier(count), list[BaseException]()

    def run(n: int) -> None:
        begin.wait()
        try:
            work(n)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def refuse(schema: str) -> None:
    with psycopg.connect(schema.replace("+psycopg", ""), autocommit=True) as server:
        for statement in FAULTS:
            server.execute(statement.encode())


def test_writers_that_are_refused_try_again(schema: str) -> None:
    """Five workers append to one session and to sessions of their own: what was acknowledged is there once, in order."""
    url = f"{schema}&isolation=serializable"
    SqlStore(url).close()
    refuse(schema)
    stores = [SqlStore(url, pool_size=2, timeout_s=120) for _ in range(5)]

    def work(n: int) -> None:
        own = SessionKey("ann", f"own {n}")
        for k in range(8):
            stores[n].append(KEY, [said(f"{n}-{k}")], documents=[Document(1_000 * n + k + 1, {"word": 1}, 1)])
            stores[n].append(own, [said(f"{k}")], known=k, expect=k)

    at_once(5, work)
    found = stores[0].read(KEY)
    assert [r.seq for r in found] == list(range(1, 41))
    for n in range(5):
        assert [r.id for r in found if r.id.startswith(f"{n}-")] == [f"{n}-{k}" for k in range(8)]
        assert [r.id for r in stores[1].read(SessionKey("ann", f"own {n}"))] == [f"{k}" for k in range(8)]
    postings = stores[2].postings(KEY, ["word"])
    assert postings.documents == len(postings.by_term["word"]) == 40
    with psycopg.connect(schema.replace("+psycopg", "")) as server:
        row = server.execute("SELECT last_value FROM tries").fetchone()
    assert row is not None
    assert row[0] > 2 * 80  # asked twice for each append, more often for those that were refused
    for store in stores:
        store.close()


def test_an_item_has_one_heir_whoever_writes(schema: str) -> None:
    """The row that is locked in place of an advisory lock lets one worker at a time settle an owner's items."""
    url = f"{schema}&isolation=serializable"
    SqlStore(url).close()
    refuse(schema)
    stores = [SqlStore(url, pool_size=2, timeout_s=120) for _ in range(4)]

    def work(n: int) -> None:
        for k in range(5):
            stores[n].remember("ann", [MemoryItem(f"{n}-{k}", "facts", f"{n}-{k}", key="k", created_s=float(k))])

    at_once(4, work)
    items = stores[0].memories("ann", everything=True)
    assert len(items) == 20
    assert len([item for item in items if item.superseded_by is None]) == 1
    assert len({item.superseded_by for item in items}) == 20
    assert stores[0].erase_owner("ann")
    assert stores[0].memories("ann", everything=True) == ()
    for store in stores:
        store.close()


@pytest.mark.parametrize("partitions", [None, 4])
def test_made_by_many_at_once(schema: str, partitions: int | None) -> None:
    url = f"{schema}&isolation=serializable"

    def work(n: int) -> None:
        with SqlStore(url, pool_size=1, partitions=partitions, timeout_s=120) as store:
            store.append(KEY, [said(f"m{n}")])

    at_once(6, work)
    with SqlStore(schema) as store:
        assert sorted(r.id for r in store.read(KEY)) == [f"m{n}" for n in range(6)]


def test_the_tries_are_bounded(schema: str) -> None:
    """A server that refuses always is told, with the number of seconds, and nothing is written."""
    with SqlStore(f"{schema}&isolation=serializable", timeout_s=1) as store:
        store.append(KEY, [said("a")])
        with psycopg.connect(schema.replace("+psycopg", ""), autocommit=True) as server:
            server.execute(
                "CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'restart transaction' USING ERRCODE = '40001'; END $$"
            )
            server.execute("CREATE TRIGGER never BEFORE INSERT ON ctxfold_records EXECUTE FUNCTION never()")
        with pytest.raises(StoreUnavailableError, match=r"for 1 s \(restart transaction"):
            store.append(KEY, [said("b")])
        assert [r.id for r in store.read(KEY)] == ["a"]


@pytest.mark.parametrize("value", ["snapshot", "SERIALIZABLE", "serializable&isolation=serializable"])
@pytest.mark.usefixtures("postgres_url")
def test_a_wrong_isolation_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="isolation") as caught:
        SqlStore(f"postgresql://ann:tops3cret@127.0.0.1:9/db?isolation={value}")
    assert "tops3cret" not in str(caught.value)
