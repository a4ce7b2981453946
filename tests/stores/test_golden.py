"""Stores as each format wrote them open, keep their contents, and go on; what is written today is what the newest one says."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest

from ctxfold import Draft, Head, MemoryItem, SqlStore
from ctxfold.history.records import Body, TurnClosed
from tests.golden import build_v1, build_v2, build_v3
from tests.support.postgres_schema import fresh_schema

KEY = build_v1.KEY
DRAFTS = {
    "v1": build_v1.DRAFTS,
    "v2": (*build_v1.DRAFTS, *build_v2.DRAFTS),
    "v3": (*build_v1.DRAFTS, *build_v2.DRAFTS),
}


@pytest.fixture(params=["sqlite", "postgresql"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=list(DRAFTS))
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(dialect: str, version: str, request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    """A store as it was written then: its schema and rows, loaded without ctxfold."""
    names = (f"{version}_schema_{dialect}.sql", f"{version}_rows.sql")
    text = "".join((build_v1.FOLDER / name).read_text(encoding="utf-8") for name in names)
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


def test_it_opens(url: str, version: str) -> None:
    drafts = DRAFTS[version]
    with SqlStore(url) as store:
        records = store.read(KEY)
        told = [(r.seq, r.id, r.body, r.turn_id, r.at_s) for r in records]
        assert told == [(n, d.id, d.body, d.turn_id, d.at_s) for n, d in enumerate(drafts, 1)]
        numbers = [r.number for r in records if r.number]
        assert numbers == list(range(1, len(numbers) + 1))
        assert store.head(KEY) == Head(len(drafts), 19)
        assert store.snapshot_before(KEY, 19) == 15
        assert store.sessions("owner-2") == (build_v1.OTHER.session,)
        found = store.postings(KEY, ["中文", "long"])
        assert (found.documents, found.total_length) == (2, 47)
        assert found.by_term == {"中文": ((3, 2, 7),), "long": ((6, 40, 40),)}


def test_it_goes_on(url: str, version: str) -> None:
    drafts = DRAFTS[version]
    with SqlStore(url) as store:
        # fingerprints are stored: a changed algorithm would make these conflicts
        assert store.append(KEY, drafts, known=len(drafts), documents=build_v1.DOCUMENTS) == ()
        added = store.append(KEY, [Draft("new", TurnClosed())], known=len(drafts))
        assert [r.seq for r in added] == [len(drafts) + 1]
        assert store.postings(KEY, []).documents == 2
    with SqlStore(url) as again:  # upgraded once
        assert again.head(KEY) == Head(len(drafts) + 1, 19)


def test_its_memory_items(url: str, version: str) -> None:
    with SqlStore(url) as store:
        items = {item.id: item for item in store.memories("default", everything=True)}
        if version == "v1":
            assert items == {}
            return
        assert items["i1"].superseded_by == "i3"
        assert (items["i3"].replaces, items["i3"].live) == ("the locker is on the left", True)
        assert items["i2"] == build_v2.ITEMS[1]
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
        assert len(store.read(build_v1.OTHER)) == 2


def test_the_builder_writes_today_what_the_newest_says(dialect: str) -> None:
    assert build_v3.build() == (build_v1.FOLDER / "v3_rows.sql").read_text(encoding="utf-8")
    written = (build_v1.FOLDER / f"v3_schema_{dialect}.sql").read_text(encoding="utf-8")
    assert build_v3.schema(dialect) == written


def test_every_kind_of_record_is_in_the_newest() -> None:
    kinds: set[Any] = set(get_args(Body))
    assert kinds == {type(d.body) for d in DRAFTS["v3"]}
