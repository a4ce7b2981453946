"""Eight processes on one session: nothing lost, nothing doubled, order kept per writer."""

from __future__ import annotations

from collections.abc import Generator
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from ctxfold import SqlStore, user
from ctxfold.history.records import Draft, MessageAdded, SessionKey
from tests.support.postgres_schema import fresh_schema
from tests.support.processes import CONTEXT, import_once, start

KEY = SessionKey("default", "shared")
import_once(__name__)

PROCESSES, APPENDS = 8, 40


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/a.db"
        return
    with fresh_schema(request.getfixturevalue("postgres_url")) as place:
        yield place


def write(url: str, writer: int, all_here: Barrier) -> None:
    """Creates the store if it is first, appends, and replays every fifth append."""
    known = 0
    all_here.wait(300)
    with SqlStore(url, timeout_s=60) as store:
        for n in range(APPENDS):
            name = f"w{writer}-{n}"
            drafts = [Draft(name, MessageAdded(user(f"text {name}", id=name)))]
            known = store.append(KEY, drafts, known=known)[-1].seq
            if n % 5 == 0:
                store.append(KEY, drafts, known=known)


def test_eight_processes_on_one_session(url: str) -> None:
    all_here = CONTEXT.Barrier(PROCESSES)
    processes = [start(write, url, n, all_here) for n in range(PROCESSES)]
    for process in processes:
        process.join(timeout=900)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    with SqlStore(url) as store:
        records = store.read(KEY)
    assert [r.seq for r in records] == list(range(1, PROCESSES * APPENDS + 1))
    for writer in range(PROCESSES):
        mine = [r.id for r in records if r.id.startswith(f"w{writer}-")]
        assert mine == [f"w{writer}-{n}" for n in range(APPENDS)]
