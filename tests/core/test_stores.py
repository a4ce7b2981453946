"""What every store does, on memory, SQLite and PostgreSQL, through the sync and the async forms."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from ctxfold.errors import (
    ConfigError,
    HeadMovedError,
    MessageConflictError,
    MessageError,
    StoreUnavailableError,
)
from ctxfold.history.records import Draft, MessageAdded, SessionKey, SnapshotTaken, TurnClosed
from ctxfold.messages import user
from ctxfold.ports import Document, Head
from ctxfold.stores.memory import MemoryStore
from ctxfold.stores.sql import SqlStore
from tests.core.postgres_schema import fresh_schema

KEY = SessionKey("ann", "s1")


class ThroughLoop:
    """A store whose methods run its async forms."""

    def __init__(self, store: Any, runner: asyncio.Runner) -> None:
        self.store, self.runner = store, runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        form = getattr(self.store, f"a{name}")
        return lambda *args, **kwargs: self.runner.run(form(*args, **kwargs))


@pytest.fixture(params=["memory", "sqlite", "sqlite-memory", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Any]:
    match request.param:
        case "memory":
            with MemoryStore() as store:
                yield store
        case "postgres":
            with fresh_schema(request.getfixturevalue("postgres_url")) as url, SqlStore(url) as store:
                yield store
        case name:
            with SqlStore("sqlite://" if name == "sqlite-memory" else f"sqlite:///{tmp_path}/a.db") as store:
                yield store


@pytest.fixture(params=["sync", "async"])
def store(request: pytest.FixtureRequest, opened: Any) -> Generator[Any]:
    if request.param == "sync":
        yield opened
        return
    with asyncio.Runner() as runner:
        yield ThroughLoop(opened, runner)


def said(name: str, text: str = "hi") -> Draft:
    return Draft(name, MessageAdded(user(text, id=name)), "t1", 1.5)


def names(records: Any) -> list[str]:
    return [record.id for record in records]


def test_append_and_read(store: Any) -> None:
    assert store.head(KEY) is None
    assert store.read(KEY) == ()
    first = store.append(KEY, [said("a"), said("b")])
    assert [(r.seq, r.id, r.turn_id, r.at_s) for r in first] == [(1, "a", "t1", 1.5), (2, "b", "t1", 1.5)]
    second = store.append(KEY, [Draft("c", TurnClosed())], known=2, expect=2)
    assert [(r.seq, r.id, r.turn_id) for r in second] == [(3, "c", None)]
    assert store.read(KEY) == (*first, *second)
    assert store.read(KEY, after=1, upto=2) == first[1:]
    assert store.read(KEY, after=3) == ()
    assert store.read(KEY, upto=0) == ()
    assert store.head(KEY) == Head(3, 0)


def test_append_returns_everything_after_known(store: Any) -> None:
    store.append(KEY, [said("a"), said("b")])
    assert names(store.append(KEY, [said("c")], known=1)) == ["b", "c"]
    assert names(store.append(KEY, [], known=1)) == ["b", "c"]
    assert names(store.append(KEY, [said("d")], known=9)) == []


def test_an_empty_append_makes_the_session(store: Any) -> None:
    assert store.append(KEY, []) == ()
    assert store.head(KEY) == Head(0, 0)
    assert store.sessions("ann") == ("s1",)


def test_replay_is_a_no_op(store: Any) -> None:
    store.append(KEY, [said("a"), said("b")])
    assert names(store.append(KEY, [said("a"), said("b"), said("c"), said("c")], known=2)) == ["c"]
    assert names(store.read(KEY)) == ["a", "b", "c"]
    assert [r.seq for r in store.read(KEY)] == [1, 2, 3]


def test_same_id_with_other_content_conflicts_and_writes_nothing(store: Any) -> None:
    with pytest.raises(MessageConflictError, match="'a'"):
        store.append(KEY, [said("a"), said("a", "other")])
    assert store.head(KEY) is None
    store.append(KEY, [said("a")])
    with pytest.raises(MessageConflictError, match=r"message 'a' .*new id.*update\(\)"):
        store.append(KEY, [said("b"), said("a", "other")], known=1)
    with pytest.raises(MessageConflictError, match="record 'c'"):
        store.append(KEY, [Draft("c", TurnClosed()), Draft("c", TurnClosed("aborted"))])
    assert names(store.read(KEY)) == ["a"]


def test_expect_guards_the_head(store: Any) -> None:
    store.append(KEY, [said("a")], expect=0)
    with pytest.raises(HeadMovedError) as caught:
        store.append(KEY, [said("b")], known=0, expect=0)
    assert (caught.value.expected, caught.value.head) == (0, 1)
    with pytest.raises(HeadMovedError):
        store.append(SessionKey("ann", "new"), [said("b")], expect=4)
    assert store.sessions("ann") == ("s1",)
    assert names(store.append(KEY, [said("b")], known=1, expect=1)) == ["b"]


def test_owners_and_sessions_are_apart(store: Any) -> None:
    other = SessionKey("bob", "s1")
    store.append(KEY, [said("a")])
    store.append(other, [said("a", "different")])
    store.append(SessionKey("ann", "S0 'quoted' 会話"), [])
    assert store.read(other)[0].body.message.text == "different"
    assert store.sessions("ann") == ("S0 'quoted' 会話", "s1")
    assert store.sessions("bob") == ("s1",)
    assert store.sessions("nobody") == ()


def test_fetch_and_find_take_thousands(store: Any) -> None:
    store.append(KEY, [said(f"m{n}") for n in range(1, 2101)])
    seqs = [*range(2500, 0, -1), 7, 0, -3]
    assert [r.seq for r in store.fetch(KEY, seqs)] == list(range(1, 2101))
    ids = [*(f"m{n}" for n in range(2500, 0, -1)), "m7", "NUL \0"]
    assert [r.seq for r in store.find(KEY, ids)] == list(range(1, 2101))
    assert store.fetch(KEY, []) == store.find(KEY, []) == ()
    assert store.fetch(SessionKey("x", "y"), [1]) == ()


def test_snapshots(store: Any) -> None:
    store.append(KEY, [said("a"), Draft("s1", SnapshotTaken("{}")), said("b"), Draft("s2", SnapshotTaken("{}"))])
    store.append(KEY, [said("c")])
    assert store.head(KEY) == Head(5, 4)
    assert [store.snapshot_before(KEY, seq) for seq in (1, 2, 3, 4, 5, 99)] == [0, 0, 2, 2, 4, 4]
    store.append(KEY, [Draft("s2", SnapshotTaken("{}"))])
    assert store.head(KEY) == Head(5, 4)
    assert store.snapshot_before(SessionKey("x", "y"), 9) == 0


def test_postings(store: Any) -> None:
    long, odd = "x" * 5000, "nul\0 and 中文"
    documents = [Document(1, {"hello": 2, long: 1}, 3), Document(2, {"hello": 1, odd: 4}, 5), Document(3, {}, 0)]
    store.append(KEY, [said("a"), said("b"), said("c")], documents=documents)
    store.append(KEY, [], documents=[*documents, Document(4, {"hello": 1}, 1), Document(4, {"hello": 1}, 1)])
    found = store.postings(KEY, ["hello", long, odd, "absent", "hello"])
    assert (found.documents, found.total_length) == (4, 9)
    assert found.by_term["hello"] == ((1, 2, 3), (2, 1, 5), (4, 1, 1))
    assert (found.by_term[long], found.by_term[odd], found.by_term["absent"]) == (((1, 1, 3),), ((2, 4, 5),), ())
    assert store.postings(SessionKey("x", "y"), ["hello"]).documents == 0


def test_odd_and_long_text_survives(store: Any) -> None:
    texts = ["NUL \0 here", "emoji 🧵👩‍👩‍👧", "\u2028\u0085 中文", "x" * 10_000_000]
    store.append(KEY, [said(f"m{n}", text) for n, text in enumerate(texts)])
    assert [record.body.message.text for record in store.read(KEY)] == texts


@pytest.mark.parametrize("name", ["nul\0", "\ud800", "x" * 600, "é" * 300])
def test_names_that_no_database_takes_are_refused(store: Any, name: str) -> None:
    with pytest.raises(ConfigError, match="choose another"):
        store.append(SessionKey("ann", name), [])
    with pytest.raises(ConfigError, match="owner"):
        store.sessions(name)
    with pytest.raises(MessageError, match="another id"):
        store.append(KEY, [Draft(name, TurnClosed())])
    assert store.head(KEY) is None


def test_closed_store_says_so(store: Any, opened: Any) -> None:
    store.append(KEY, [said("a")])
    store.close()
    store.close()
    for call in (store.head, store.read):
        with pytest.raises(StoreUnavailableError, match="closed: open a new one"):
            call(KEY)
    with pytest.raises(StoreUnavailableError, match="closed"):
        store.sessions("ann")
    assert "password" not in repr(opened)


async def test_async_context_manager(opened: Any) -> None:
    async with opened as store:
        await store.aappend(KEY, [said("a")])
    with pytest.raises(StoreUnavailableError):
        await opened.ahead(KEY)


def test_eight_threads_keep_every_writers_order(opened: Any) -> None:
    failures: list[BaseException] = []

    def write(writer: int) -> None:
        known = 0
        try:
            for n in range(50):
                new = opened.append(KEY, [said(f"w{writer}-{n}")], known=known)
                assert [r.seq for r in new] == list(range(known + 1, known + 1 + len(new)))
                known = new[-1].seq
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    records = opened.read(KEY)
    assert [r.seq for r in records] == list(range(1, 401))
    for writer in range(8):
        mine = [r.id for r in records if r.id.startswith(f"w{writer}-")]
        assert mine == [f"w{writer}-{n}" for n in range(50)]


async def test_many_tasks(opened: Any) -> None:
    await asyncio.gather(*(opened.aappend(SessionKey("ann", f"s{n % 5}"), [said(f"m{n}")]) for n in range(50)))
    logs = [await opened.aread(SessionKey("ann", f"s{n}")) for n in range(5)]
    assert [len(log) for log in logs] == [10] * 5
