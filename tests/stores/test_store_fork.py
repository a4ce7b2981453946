"""A store that was used before a fork: the child has connections and locks of its own."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ctxfold import MemoryStore, SqlStore, user
from ctxfold.history.records import Draft, MessageAdded, SessionKey
from tests.support.postgres_schema import fresh_schema

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    # Python 3.12 warns of any fork while threads run: just that is tried here
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]
KEY = SessionKey("ann", "s")
CHILDREN, APPENDS = 6, 10


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/a.db"
        return
    with fresh_schema(request.getfixturevalue("postgres_url")) as place:
        yield place


def said(name: str) -> Draft:
    return Draft(name, MessageAdded(user(f"text {name}", id=name)))


def write(store: Any, writer: int) -> None:
    for n in range(APPENDS):
        name = f"w{writer}-{n}"
        seq = store.append(KEY, [said(name)])[-1].seq
        assert [r.id for r in store.read(KEY, after=seq - 1, upto=seq)] == [name]


def forked(work: Callable[[], None]) -> int:
    """Runs the work in a forked child and returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


def ended_well(pids: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def test_parent_and_forked_children_write_at_once(url: str) -> None:
    """Step 7, item B20: 120 calls of six children beside the parent's own, none fails, none is lost."""
    with SqlStore(url) as store:
        store.append(KEY, [said("first")])
        pids = [forked(partial(write, store, n)) for n in range(CHILDREN)]
        write(store, CHILDREN)
        assert ended_well(pids) == [0] * CHILDREN
        records = store.read(KEY)
    assert [r.seq for r in records] == list(range(1, (CHILDREN + 1) * APPENDS + 2))
    for writer in range(CHILDREN + 1):
        mine = [r.id for r in records if r.id.startswith(f"w{writer}-")]
        assert mine == [f"w{writer}-{n}" for n in range(APPENDS)]


def test_processes_of_multiprocessing_end_without_closing_what_is_the_parents(url: str) -> None:
    """Step 7, item B20: a child that closes its store, and one that never used it, leave the parent's connections alone."""
    with SqlStore(url) as store:
        store.append(KEY, [said("first")])
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=store.close), context.Process(target=store.head, args=(KEY,))]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0, 0]
        write(store, 1)
    with SqlStore(url) as again:
        head = again.head(KEY)
    assert head is not None
    assert head.seq == APPENDS + 1


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "sqlite://", "memory"])
def test_locks_that_another_thread_held_do_not_block_the_child(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """Step 7, item B20: forks in the midst of the calls of other threads; each child can read and write."""
    if kind == "postgres":
        schema = fresh_schema(request.getfixturevalue("postgres_url"))
        with schema as place, SqlStore(place) as store:
            fork_beside_writers(store)
    else:
        made = MemoryStore() if kind == "memory" else SqlStore(kind if "://" in kind else f"sqlite:///{tmp_path}/a.db")
        with made as store:
            fork_beside_writers(store)


def fork_beside_writers(store: Any) -> None:
    stop = threading.Event()

    def busy(n: int) -> None:
        count = 0
        while not stop.is_set():
            store.append(SessionKey("ann", f"busy{n}"), [said(f"b{n}-{count}")])
            count += 1

    def child(writer: int) -> None:
        write(store, writer)
        for n in range(3):
            records = store.read(SessionKey("ann", f"busy{n}"))
            assert [r.seq for r in records] == list(range(1, len(records) + 1))
        store.close()

    store.append(KEY, [said("first")])
    threads = [threading.Thread(target=busy, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    try:
        # one after the other: each begins anew at a chance moment of the threads
        exits = [ended_well([forked(partial(child, n))]) for n in range(5)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert exits == [[0]] * 5
    assert store.head(KEY) is not None
