"""The PostgreSQL store behind pgbouncer in transaction mode: each transaction may get another server connection."""

from __future__ import annotations

import threading
from collections.abc import Generator

import psycopg
import pytest

from ctxfold import AgentContext, ConfigError, ScriptedBackend, SqlStore, user
from ctxfold.errors import StoreUnavailableError
from ctxfold.history.records import Draft, MessageAdded, SessionKey
from ctxfold.tokens.text import RatioCounter
from tests.conftest import NO_PGBOUNCER
from tests.stores.servers import pgbouncer, pgbouncer_program
from tests.support.postgres_schema import fresh_schema

SWITCH = "?prepare_threshold=0"


def proxied(postgres_url: str, connections: int) -> Generator[str]:
    program = pgbouncer_program()
    if program is None:
        pytest.skip(NO_PGBOUNCER)
    with (
        fresh_schema(postgres_url) as direct,
        pgbouncer(program, direct.rpartition("%3D")[2], connections=connections) as url,
    ):
        yield url


@pytest.fixture
def crowded(postgres_url: str) -> Generator[str]:
    """A pgbouncer with three server connections, for many clients."""
    yield from proxied(postgres_url, 3)


@pytest.fixture
def single(postgres_url: str) -> Generator[str]:
    """A pgbouncer with one server connection, which every client gets."""
    yield from proxied(postgres_url, 1)


@pytest.mark.parametrize("pool_size", [0, 4])
def test_many_clients_share_few_server_connections(crowded: str, pool_size: int) -> None:
    """Step 7, item B18: no call fails with "prepared statement does not exist"."""
    failures = list[BaseException]()

    def work(n: int) -> None:
        key = SessionKey("ann", f"s{n % 3}")
        try:
            with SqlStore(crowded + SWITCH, pool_size=pool_size) as store:
                for k in range(25):
                    name = f"{n}-{k}"
                    known = store.append(key, [Draft(name, MessageAdded(user("hi", id=name)))])[-1].seq
                    assert store.find(key, [name])[0].seq == known
                    assert store.read(key, after=known - 1, upto=known)[0].id == name
                    store.postings(key, ["hi"])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with SqlStore(crowded + SWITCH) as store:
        for s in range(3):
            ids = [record.id for record in store.read(SessionKey("ann", f"s{s}"))]
            for n in (s, s + 3):
                assert [name for name in ids if name.startswith(f"{n}-")] == [f"{n}-{k}" for k in range(25)]


def test_nothing_stays_behind_in_the_server_session(single: str) -> None:
    """Step 7, item B18: no session-level SET, prepared statement, advisory lock, channel or temporary table."""
    with (
        SqlStore(single + SWITCH) as store,
        AgentContext(
            ScriptedBackend(["A reply of some words. " * 20] * 40),
            store=store,
            context_window=600,
            counter=RatioCounter(),
            background=False,
        ) as ctx,
    ):
        for n in range(20):
            ctx.send(f"question {n} " + "word " * 20)
        assert ctx.usage().compactions > 0
        assert ctx.search("question 3")
        store.lease(SessionKey("ann", "s"), "work", "me", now_s=0.0, ttl_s=10)
        ctx.erasure.erase("#1")
        assert ctx.archive.forks() == ()
        with psycopg.connect(single, autocommit=True, prepare_threshold=None) as same:
            row = same.execute(
                "SELECT current_setting('lock_timeout'), current_setting('enable_seqscan'), "
                "(SELECT count(*) FROM pg_prepared_statements), "
                "(SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'), "
                "(SELECT count(*) FROM pg_listening_channels()), "
                "(SELECT count(*) FROM pg_class WHERE relpersistence = 't' AND relnamespace = pg_my_temp_schema())"
            ).fetchone()
    assert row == ("0", "on", 0, 0, 0, 0)


def test_waiting_for_a_lock_is_bounded_behind_the_proxy_too(crowded: str) -> None:
    """Step 7, item B18: the lock timeout goes with each transaction, and holds for reads as well."""
    key = SessionKey("ann", "s")
    with SqlStore(crowded + SWITCH, timeout_s=2) as store:
        store.append(key, [Draft("a", MessageAdded(user("hi", id="a")))])
        with psycopg.connect(crowded, prepare_threshold=None) as other:
            other.execute("LOCK TABLE ctxfold_sessions, ctxfold_records IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(StoreUnavailableError, match="locked for 2 s"):
                store.read(key)
            with pytest.raises(StoreUnavailableError, match="locked for 2 s"):
                store.append(key, [Draft("b", MessageAdded(user("hi", id="b")))])
            other.rollback()
        assert [record.id for record in store.read(key)] == ["a"]


@pytest.mark.parametrize("value", ["none", "-1", "0&prepare_threshold=5"])
@pytest.mark.usefixtures("postgres_url")
def test_a_wrong_prepare_threshold_is_refused(value: str) -> None:
    """Step 7, item B18: the value is named, the password is not."""
    with pytest.raises(ConfigError, match="prepare_threshold") as caught:
        SqlStore(f"postgresql://ann:tops3cret@127.0.0.1:9/db?prepare_threshold={value}")
    assert "tops3cret" not in str(caught.value)
