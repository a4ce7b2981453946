"""The conformance suite on a real Valkey server, on a cluster of three nodes with replicas, and behind sentinels."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from ctxfold import AgentContext, ConfigError, assistant, user
from ctxfold.errors import StoreUnavailableError
from ctxfold.history.records import Draft, MessageAdded, SessionKey
from ctxfold.stores import valkey_server
from ctxfold.stores.valkey import ValkeyStore
from ctxfold.testing.store_suite import StoreSuite
from ctxfold.tokens.text import RatioCounter
from tests.stores.valkey_server import SERVICE, cluster, free_port, of_service, sentinels, server

KEY = SessionKey("ann", "s1")


def said(name: str) -> Draft:
    return Draft(name, MessageAdded(user("hi", id=name)), "t1", 1.5)


@pytest.fixture(scope="session")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = free_port()
    with server(tmp_path_factory.mktemp("valkey"), port, "--appendonly", "yes"):
        yield port


@pytest.fixture(scope="session")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    with cluster(tmp_path_factory.mktemp("cluster")) as ports:
        yield ports


def of_sentinels(ports: list[int], options: str = "") -> str:
    """The URL of a user who may use the keys of ctxfold alone, in the database 2."""
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return f"valkey://ann:p%40ss%3A@{hosts}/2?sentinel={SERVICE}{options}"


class OwnersToo(StoreSuite):
    __test__ = False

    def test_the_owners_of_a_store(self, opened: ValkeyStore) -> None:
        assert opened.owners() == ()
        for owner in ("ann", "Bö{r}je: x", "*"):
            opened.append(SessionKey(owner, "s"), [said("a")])
        assert opened.owners() == ("*", "Bö{r}je: x", "ann")
        opened.erase_owner("ann")
        assert opened.owners() == ("*", "Bö{r}je: x")


class TestValkey(OwnersToo):
    __test__ = True

    @pytest.fixture
    def place(self, one_server: int) -> Iterator[str]:
        yield f"valkey://127.0.0.1:{one_server}/0"
        with redis.Redis(port=one_server) as client:
            client.flushall()

    def open_store(self, place: str) -> ValkeyStore:
        return ValkeyStore(place)


class TestValkeyCluster(OwnersToo):
    __test__ = True

    @pytest.fixture
    def place(self, three_nodes: list[int]) -> Iterator[str]:
        yield f"valkey://127.0.0.1:{three_nodes[0]}?cluster=true&wait=1"
        for port in three_nodes[:3]:
            with redis.Redis(port=port) as client:
                client.flushall()

    def open_store(self, place: str) -> ValkeyStore:
        return ValkeyStore(place)


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[int], list[int]]]:
    """The ports of sentinels, and those of a primary and its replica."""
    with sentinels(tmp_path_factory.mktemp("sentinels")) as (ports, servers):
        yield ports, list(servers)


class TestValkeySentinels(OwnersToo):
    __test__ = True

    @pytest.fixture
    def place(self, watched: tuple[list[int], list[int]]) -> Iterator[str]:
        yield of_sentinels(watched[0], "&wait=1")
        with redis.Redis(port=watched[1][0]) as client:
            assert set(client.info("keyspace")) <= {"db2"}
            client.flushall()

    def open_store(self, place: str) -> ValkeyStore:
        return ValkeyStore(place)


# a primary behind sentinels that goes


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
def test_a_writer_behind_sentinels_goes_on_with_the_next_primary(how: signal.Signals, tmp_path: Path) -> None:
    with (
        sentinels(tmp_path) as (ports, servers),
        ValkeyStore(of_sentinels(ports), timeout_s=10) as store,
        ValkeyStore(of_sentinels(ports, "&wait=1"), timeout_s=4) as waiting,
    ):
        (first, primary), (second, _) = servers.items()
        waiting.append(KEY, [said("a")])
        assert [r.id for r in store.read(KEY)] == ["a"]
        primary.send_signal(how)
        assert [r.id for r in store.append(KEY, [said("b")], known=1, known_id="a")] == ["b"]
        with pytest.raises(StoreUnavailableError, match=r"0 of 1 replicas .*: try the same again"):
            waiting.append(KEY, [said("c")], known=2, known_id="b")
        primary.kill()
        primary.wait()
        with of_service(tmp_path, first, second):  # it comes back, as a replica
            with redis.Redis(port=second) as client:
                while client.info("replication").get("slave0", {}).get("state") != "online":
                    time.sleep(0.02)
            assert [r.id for r in waiting.append(KEY, [said("c")], known=2, known_id="b")] == ["c"]
            assert [r.id for r in store.read(KEY)] == ["a", "b", "c"]


def test_a_service_that_sentinels_do_not_know_is_named(tmp_path: Path) -> None:
    with sentinels(tmp_path) as (ports, _):
        url = of_sentinels(ports)
        with (
            ValkeyStore(url.replace(SERVICE, "talks"), timeout_s=0.2) as store,
            pytest.raises(StoreUnavailableError, match="No master found for 'talks'"),
        ):
            store.head(KEY)
        with (
            ValkeyStore(url.replace("ann", "bob"), timeout_s=0.2) as store,
            pytest.raises(StoreUnavailableError, match="username-password pair") as failure,
        ):
            store.head(KEY)
        assert "p@ss" not in str(failure.value)


# through a session


def story(ctx: AgentContext) -> None:
    places = ("harbour", "mill", "school", "tower", "bridge")
    for number in range(150):
        place = places[number % 5]
        ctx.add(
            [
                user(f"The key of the {place} number {number} is {number * 7_919 % 9_973}.", id=f"u{number}"),
                assistant(f"I have noted the {place} {number}.", id=f"a{number}"),
            ]
        )


def test_windows_and_hits_are_those_of_sqlite(one_server: int, tmp_path: Path) -> None:
    urls = (f"sqlite:///{tmp_path}/a.db", f"valkey://127.0.0.1:{one_server}/1")
    found = []
    for url in urls:
        with AgentContext(session_id="equal", store=url, context_window=2_000, counter=RatioCounter()) as ctx:
            story(ctx)
        rows = []
        with AgentContext(session_id="equal", store=url, context_window=2_000, counter=RatioCounter()) as ctx:
            for number in range(100):
                question = f"What is the key number {number}, of the {('mill', 'tower')[number % 2]}?"
                shown = ctx.window(recall=True, question=question)
                hits = [(hit.reference, hit.excerpt) for hit in ctx.search(question, limit=20)]
                rows.append((shown.recalled, [m.text for m in shown.messages], hits))
        found.append(rows)
    assert found[0] == found[1]
    assert all(hits for _, _, hits in found[1])


def test_an_erased_session_leaves_no_text_on_the_server(one_server: int) -> None:
    url = f"valkey://127.0.0.1:{one_server}/2"
    with AgentContext(session_id="gone", store=url, context_window=2_000, memory="facts") as ctx:
        story(ctx)
        ctx.memory.add("facts", "The tower is harbour blue.", key="tower")
        ctx.erasure.erase("u7")
        with redis.Redis(port=one_server, db=2) as client:
            assert b"number 7 is" not in everything(client)
            assert b"number 8 is" in everything(client)
        ctx.erasure.erase_owner()
    with redis.Redis(port=one_server, db=2) as client:
        assert everything(client) == b""


def everything(client: redis.Redis) -> bytes:
    parts: list[bytes] = []
    for name in client.scan_iter():
        kind = client.type(name)
        if kind == b"string":
            parts.append(client.get(name) or b"")
        elif kind == b"hash":
            parts += [value for pair in client.hgetall(name).items() for value in pair]
        elif kind == b"set":
            parts += client.smembers(name)
        else:
            parts += client.zrange(name, 0, -1)
    return b"\n".join(parts)


def test_a_server_that_comes_back_is_used_again(tmp_path: Path) -> None:
    port = free_port()
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with ValkeyStore(f"valkey://127.0.0.1:{port}", timeout_s=20) as store:
        with server(tmp_path, port, *options):
            store.append(KEY, [said("a")])
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.append, KEY, [said("b")], known=1, known_id="a")
            with server(tmp_path, port, *options):
                assert [r.id for r in waiting.result()] == ["b"]
                assert [r.id for r in store.read(KEY)] == ["a", "b"]


def test_a_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with ValkeyStore("valkey://ann:secret@127.0.0.1:1/0", timeout_s=0.2) as store:
        with pytest.raises(StoreUnavailableError, match=r"cannot use 127\.0\.0\.1:1/0") as failure:
            store.head(KEY)
        assert "secret" not in f"{failure.value}{store!r}"


def test_a_write_that_too_few_replicas_have_says_so_and_may_be_tried_again(one_server: int) -> None:
    url = f"valkey://127.0.0.1:{one_server}/3"
    with (
        ValkeyStore(f"{url}?wait=1", timeout_s=2) as store,
        pytest.raises(StoreUnavailableError, match=r"0 of 1 replicas"),
    ):
        store.append(KEY, [said("a")])
    with ValkeyStore(url) as store:
        assert [r.id for r in store.append(KEY, [said("a")])] == ["a"]


def test_an_appends_lost_answer_does_not_double_it(one_server: int) -> None:
    with ValkeyStore(f"valkey://127.0.0.1:{one_server}/4") as store:
        store.append(KEY, [said("a")])
        other = ValkeyStore(f"valkey://127.0.0.1:{one_server}/4")
        assert [r.id for r in other.append(KEY, [said("b"), said("c")], known=1, expect=1)] == ["b", "c"]
        assert [r.id for r in other.append(KEY, [said("b"), said("c")], known=1, expect=1)] == ["b", "c"]
        assert [r.id for r in store.append(KEY, [said("d")], known=1, known_id="a")] == ["b", "c", "d"]
        other.close()


def test_a_server_that_never_answered_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valkey_server, "_FIRST_S", 0.1)
    with ValkeyStore(f"valkey://127.0.0.1:{free_port()}") as store, pytest.raises(StoreUnavailableError):
        store.sessions("ann")


@pytest.mark.parametrize(
    "url",
    [
        "valkey://h/0?cluster=true&sentinel=x",
        "valkey://h/0?wait=some",
        "http://127.0.0.1:6379",
        "valkey://",
        "valkey://:secret@127.0.0.1:99999",
        "valkey://secret@h,b:x?sentinel=m",
        "valkey://h/0?socket_timeout=secret",
        "valkey://h/0?unknown=secret",
        "valkey://h/x",
        "valkey://h/1/2",
        "valkey://h/1?cluster=true",
        "valkey://h:1/x?sentinel=m",
        "valkey://h:1?sentinel=m&unknown=secret",
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"use valkey://host:6379/0") as failure:
        ValkeyStore(url)
    assert "secret" not in str(failure.value)


def test_a_cluster_without_a_node_that_answers_is_named() -> None:
    with pytest.raises(StoreUnavailableError, match=r"Connection refused\. Check the address"):
        ValkeyStore("valkey://127.0.0.1:1/0?cluster=true")
