"""The search index in leaves finds what a store in memory finds."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxfold import MemoryStore, SqlStore
from ctxfold.errors import StoreCorruptError
from ctxfold.history.records import SessionKey
from ctxfold.protocols import Document, Rewrite
from ctxfold.stores.posting_leaves import FIRST_KEY, MAX_COUNT, hits_of, leaf_key, placed, with_hits
from tests.support.postgres_schema import fresh_schema

LONG = SessionKey("ann", "long")
WORDS = [
    f"{a}{b}{c}"
    for a in "bdfgk"
    for b in ("ar", "ol", "un", "é", "ee")
    for c in ("", "t", "mer", "zin", "ß", "o", "il")
]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/a.db"
        return
    with fresh_schema(request.getfixturevalue("postgres_url")) as place:
        yield place


def execute(url: str, sql: str) -> list[Any]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as file:
            return file.execute(sql).fetchall()
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as server:
        cursor = server.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def documents(first: int, count: int, seed: int) -> list[Document]:
    """Texts whose words are as common as the words of a language: few often, most rarely."""
    rng = random.Random(seed)
    found: list[Document] = []
    for seq in range(first, first + count):
        words = [WORDS[min(int(rng.paretovariate(0.7)) - 1, len(WORDS) - 1)] for _ in range(rng.randint(3, 40))]
        words += [f"box-{rng.randrange(2_000)}"]
        found.append(Document(2 * seq, Counter(words), len(words)))
    return found


def test_newest_hits_behind_leaves_that_an_erasure_emptied(url: str) -> None:
    with SqlStore(url) as store:
        store.append(LONG, (), documents=[Document(seq, {"common": 1, "other": 2}, 3) for seq in range(1, 2_001)])
        kept = (5, 9, 300, *range(310, 2_000, 100))
        gone = tuple(seq for seq in range(1, 2_001) if seq not in kept)
        store.erase([Rewrite(LONG, 0, (), (), gone, ())])
        for newest in (1, 3, 16, 100):
            expected = tuple((seq, 1, 3) for seq in kept)[-newest:]
            assert store.postings(LONG, ["common"], newest=newest).by_term == {"common": expected}
            assert store.owner_postings("ann", ["common"], newest=newest)["long"].by_term == {"common": expected}


def test_no_erased_term_stays_as_the_key_of_a_leaf(url: str) -> None:
    with SqlStore(url) as store:
        for first in range(1, 400, 10):
            store.append(LONG, (), documents=documents(first, 10, first))
        for seq in range(2, 782, 2):
            store.erase([Rewrite(LONG, 0, (), (), (seq,), ())])
        left = {term.encode() for d in documents(391, 10, 391) for term in d.terms} | {b""}
        keys = [bytes(row[0]) for row in execute(url, "SELECT first_key FROM ctxfold_postings")]
        assert {key.partition(b"\0")[0] for key in keys} <= left


def test_a_damaged_leaf_is_told(url: str) -> None:
    with SqlStore(url) as store:
        store.append(LONG, (), documents=documents(1, 5, 1))
        execute(url, "UPDATE ctxfold_postings SET data = SUBSTR(data, 1, LENGTH(data) - 1)")
        with pytest.raises(StoreCorruptError, match="leaf of the search index"):
            store.postings(LONG, ["", WORDS[0]])


Step = tuple[str, list[int], list[str]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "erase"]),
        st.lists(st.integers(1, 300) | st.integers(1, 2**40), min_size=1, max_size=12, unique=True),
        st.lists(st.sampled_from(["a", "ab", "b" * 300, "z\0z", "日本", *WORDS[:40]]), min_size=1, max_size=30),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(1, MAX_COUNT))
def test_it_holds_what_a_store_in_memory_holds(steps: Sequence[Step], count: int) -> None:
    terms = ["", "a", "ab", "b" * 300, "z\0z", "日本", "absent", *WORDS[:40]]
    with SqlStore("sqlite://") as store, MemoryStore() as model:
        for what, seqs, words in steps:
            for each in (store, model):
                if what == "add":
                    new = [
                        Document(s, {w: (count if w == "a" else 1 + s % 3) for w in words}, s + len(words))
                        for s in seqs
                    ]
                    each.append(LONG, (), documents=new)
                else:
                    each.erase([Rewrite(LONG, 0, (), (), tuple(seqs), ())])
        assert store.postings(LONG, terms) == model.postings(LONG, terms)
        for newest in (1, 7):
            assert store.postings(LONG, terms, newest=newest) == model.postings(LONG, terms, newest=newest)
        assert store.postings(LONG, terms, among=range(1, 300, 3)) == model.postings(
            LONG, terms, among=range(1, 300, 3)
        )


def test_a_count_beyond_all_texts_is_kept_as_the_highest_one() -> None:
    with SqlStore("sqlite://") as store:
        store.append(LONG, (), documents=[Document(1, {"a": MAX_COUNT + 1}, 9), Document(2, {"a": 2}, 9)])
        assert store.postings(LONG, ["a"]).by_term["a"] == ((1, MAX_COUNT, 9), (2, 2, 9))


@given(
    st.dictionaries(st.integers(1, 400), st.tuples(st.integers(1, 3), st.integers(1, 900)), min_size=1, max_size=150),
    st.sets(st.integers(1, 420), max_size=40),
)
def test_wanted_hits_are_those_of_all(documents: dict[int, tuple[int, int]], wanted: set[int]) -> None:
    hits = [(seq, *documents[seq]) for seq in sorted(documents)]
    leaf = with_hits(b"", {b"box": hits, b"hall": [(1, 2, 3)]})
    assert hits_of(leaf, b"box") == hits
    assert hits_of(leaf, b"box", sorted(wanted)) == [hit for hit in hits if hit[0] in wanted]


def test_hits_go_into_the_leaf_of_their_key() -> None:
    """One of a term may belong in a later leaf than the first of them: it would not be found, or not erased, in the first one's."""
    later = leaf_key(b"b", 10)
    hits = {b"a": [(12, 1, 5)], b"b": [(5, 1, 5), (9, 1, 5), (10, 2, 5), (12, 1, 5)], b"c": [(1, 1, 5)]}
    assert placed([FIRST_KEY, later], hits) == {
        FIRST_KEY: {b"a": hits[b"a"], b"b": hits[b"b"][:2]},
        later: {b"b": hits[b"b"][2:], b"c": hits[b"c"]},
    }
