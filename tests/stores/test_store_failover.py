"""PostgreSQL servers that go away and come back, or hand over to another: a call waits for the one that takes writes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from ctxfold import SqlStore, user
from ctxfold.errors import StoreError, StoreUnavailableError
from ctxfold.history.records import Draft, MessageAdded, SessionKey
from tests.conftest import NO_CLUSTER
from tests.stores.servers import Cluster, cluster_programs, started_cluster, started_replica
from tests.support.pages import examples, page, section
from tests.support.postgres_schema import fresh_schema

KEY = SessionKey("ann", "s")


def said(name: str) -> Draft:
    return Draft(name, MessageAdded(user(f"text {name}", id=name)))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    programs = cluster_programs()
    if programs is None:
        pytest.skip(NO_CLUSTER)
    with started_cluster(programs) as made:
        yield made


def several(*hosts: str) -> str:
    return f"postgresql://postgres@{','.join(hosts)}/postgres?target_session_attrs=read-write"


def test_a_server_that_comes_back_is_waited_for(cluster: Cluster) -> None:
    with SqlStore(several(f"127.0.0.1:{cluster.port}"), timeout_s=60) as store, ThreadPoolExecutor(1) as pool:
        store.append(KEY, [said("a")])
        cluster.control("stop", "-m", "immediate")
        waiting = pool.submit(store.append, KEY, [said("b")], known=1, known_id="a")
        with pytest.raises(StoreUnavailableError, match=r"cannot reach .*: check server"):
            SqlStore(cluster.url)  # not by one that has never met it: the address may be wrong
        assert not waiting.done()
        cluster.control("start")
        assert [record.id for record in waiting.result()] == ["b"]
        assert [record.id for record in store.read(KEY)] == ["a", "b"]


def test_one_that_stays_away_is_told_and_a_later_call_finds_it(cluster: Cluster) -> None:
    with SqlStore(cluster.url, timeout_s=0.5) as store:
        store.append(KEY, [said("a")])
        cluster.control("stop", "-m", "immediate")
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match=r"cannot reach .*: check server"):
                store.append(KEY, [said("b")], known=1)
        cluster.control("start")
        assert [record.id for record in store.append(KEY, [said("b")], known=1, known_id="a")] == ["b"]


def test_a_primary_that_becomes_read_only_is_left_for_the_next(cluster: Cluster) -> None:
    """As a managed server hands over: its connections stay, and refuse what writes."""
    with started_replica(cluster) as replica:
        with SqlStore(several(f"127.0.0.1:{cluster.port}", f"127.0.0.1:{replica.port}"), timeout_s=60) as store:
            store.append(KEY, [said("a")])
            with psycopg.connect(replica.url, autocommit=True) as follower:
                while not _records(follower):
                    time.sleep(0.02)
            replica.control("promote")
            with psycopg.connect(cluster.url, autocommit=True) as former:
                former.execute("ALTER SYSTEM SET default_transaction_read_only = on")
                former.execute("SELECT pg_reload_conf()")
                while former.execute("SHOW default_transaction_read_only").fetchone() != ("on",):
                    time.sleep(0.02)
                assert [record.id for record in store.append(KEY, [said("b")], known=1, known_id="a")] == ["b"]
                assert _records(former) == 1
        with SqlStore(several("127.0.0.1:1", f"127.0.0.1:{replica.port}")) as store:
            assert [record.id for record in store.read(KEY)] == ["a", "b"]


def _records(server: psycopg.Connection) -> int:
    [table] = server.execute("SELECT to_regclass('ctxfold_records')").fetchone() or [None]
    return 0 if table is None else int((server.execute("SELECT count(*) FROM ctxfold_records").fetchone() or [0])[0])


def test_parameters_of_libpq_are_not_overruled(postgres_url: str) -> None:
    with pytest.raises(StoreError, match="connect_timeout"):
        SqlStore(f"{postgres_url}?connect_timeout=soon")


@pytest.mark.parametrize("hosts", ["127.0.0.1:1,127.0.0.1:5432", "127.0.0.1:1,127.0.0.1", "127.0.0.1,127.0.0.1:1"])
def test_several_hosts_as_libpq_has_them(hosts: str, postgres_url: str) -> None:
    with fresh_schema(postgres_url) as place:
        url = place.replace("postgres@127.0.0.1:5432", f"postgres:a%2Cb@{hosts}")
        with SqlStore(url) as store:
            assert store.head(KEY) is None
            assert "a,b" not in repr(store)


def test_the_example_of_the_page(postgres_url: str) -> None:
    [block] = examples(section(page("scaling.md"), "## When a primary goes"))
    with fresh_schema(postgres_url) as place:
        code = block.replace("user:password@db1:5432,db2:5432,db3:5432", "postgres@127.0.0.1:1,127.0.0.1:5432")
        code = code.replace("/database", "/test").replace("?target", f"?{place.partition('?')[2]}&target")
        names: dict[str, Any] = {}
        exec(compile(code, "scaling.md", "exec", dont_inherit=True), names)
        with names["store"] as store:
            assert [record.id for record in store.append(KEY, [said("a")])] == ["a"]
