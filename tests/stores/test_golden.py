"""A store as a release wrote it opens, keeps its contents, and goes on; what is written today is what it says."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest

from ctxfold import SqlStore
from ctxfold.history.memory_items import MemoryItem
from ctxfold.history.records import Draft, KnownBody, TurnClosed
from ctxfold.protocols import Head
from tests.golden import stored
from tests.support.postgres_schema import fresh_schema

KEY, DRAFTS = stored.KEY, stored.DRAFTS


@pytest.fixture(params=["sqlite", "postgresql"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    """A store as it was written then: its schema and rows, loaded without ctxfold."""
    names = (f"stored_schema_{dialect}.sql", "stored_rows.sql")
    text = "".join((stored.FOLDER / name).read_text(encoding="utf-8") for name in names)
    statements = [statement for statement in text.split(";\n") if statement.strip()]
    if dialect == "sqlite":
        with closing(sqlite3.connect(tmp_path / "golden.db", isolation_level=None)) as file:
            for statement in statements:
                file.execute(statement)
        yield f"sqlite:///{tmp_path}/golden.db"
        return
    with fresh_schema(request.getfixturevalue("postgres_url")) as place:
        with psycopg.connect(place.replace("+psycopg", ""), autocommit=True) as server:
            for statement in statements:
                # SQLite's literals of bytes, as PostgreSQL writes them
                server.execute(re.sub(r"\bx'([0-9a-f]*)'", r"'\\x\1'::bytea", statement).encode())
        yield place


def test_it_opens(url: str) -> None:
    drafts = DRAFTS
    with SqlStore(url) as store:
        records = store.read(KEY)
        told = [(r.seq, r.id, r.body, r.turn_id, r.at_s) for r in records]
        assert told == [(n, d.id, d.body, d.turn_id, d.at_s) for n, d in enumerate(drafts, 1)]
        numbers = [r.number for r in records if r.number]
        assert numbers == list(range(1, len(numbers) + 1))
        assert store.head(KEY) == Head(len(drafts), 19)
        assert store.snapshot_before(KEY, 19) == 15
        assert store.sessions("owner-2") == (stored.OTHER.session,)
        found = store.postings(KEY, ["中文", "long"])
        assert (found.documents, found.total_length) == (2, 47)
        assert found.by_term == {"中文": ((3, 2, 7),), "long": ((6, 40, 40),)}


def test_it_goes_on(url: str) -> None:
    drafts = DRAFTS
    with SqlStore(url) as store:
        # fingerprints are stored: a changed algorithm would make these conflicts
        assert store.append(KEY, drafts, known=len(drafts), documents=stored.DOCUMENTS) == ()
        added = store.append(KEY, [Draft("new", TurnClosed())], known=len(drafts))
        assert [r.seq for r in added] == [len(drafts) + 1]
        assert store.postings(KEY, []).documents == 2
    with SqlStore(url) as again:
        assert again.head(KEY) == Head(len(drafts) + 1, 19)


def test_its_memory_items(url: str) -> None:
    with SqlStore(url) as store:
        items = {item.id: item for item in store.memories("default", everything=True)}
        assert items["i1"].superseded_by == "i3"
        assert (items["i3"].replaces, items["i3"].live) == ("the locker is on the left", True)
        assert items["i2"] == stored.ITEMS[1]
        assert (items["i4"].forgotten, items["i4"].text) == (True, "")


def test_it_takes_memory_items(url: str) -> None:
    item = MemoryItem("new", "persona", "lives in Berlin", key="home town")
    with SqlStore(url) as store:
        store.remember("default", [item])
    with SqlStore(url) as store:
        assert store.memories("default", kinds=["persona"]) == (item,)


def test_an_owner_of_it_can_be_erased(url: str) -> None:
    with SqlStore(url) as store:
        assert store.erase_owner("default") is True
        assert (store.sessions("default"), store.memories("default", everything=True)) == ((), ())
        assert len(store.read(stored.OTHER)) == 2


def test_the_builder_writes_today_what_it_says(dialect: str) -> None:
    assert stored.build() == (stored.FOLDER / "stored_rows.sql").read_text(encoding="utf-8")
    written = (stored.FOLDER / f"stored_schema_{dialect}.sql").read_text(encoding="utf-8")
    assert stored.schema(dialect) == written


def test_every_kind_of_record_is_in_it() -> None:
    kinds: set[Any] = set(get_args(KnownBody))
    assert kinds == {type(d.body) for d in DRAFTS}
