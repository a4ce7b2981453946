"""Recall: the same ranking on every store, exact while hits are few, bounded work beyond."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from ctxfold.budget import MessageCounter
from ctxfold.flow import run
from ctxfold.history.readings import Readings
from ctxfold.history.records import SessionKey
from ctxfold.messages import user
from ctxfold.ports import Document, Ports, Postings
from ctxfold.stores.memory import MemoryStore
from ctxfold.stores.sql import SqlStore
from ctxfold.zones.ranking import HITS, PROBE, bm25, frequencies, idf, ranked
from ctxfold.zones.recall import document, passages
from tests.core.driven import COUNTER
from tests.core.postgres_schema import fresh_schema

KEY = SessionKey("ann", "s1")
MANY = 6_000


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Any]:
    match request.param:
        case "memory":
            with MemoryStore() as store:
                yield store
        case "postgres":
            with fresh_schema(request.getfixturevalue("postgres_url")) as url, SqlStore(url) as store:
                yield store
        case _:
            with SqlStore(f"sqlite:///{tmp_path}/a.db") as store:
                yield store


def ranking(store: Any, *terms: str) -> list[tuple[int, float]]:
    return run(ranked(KEY, terms), Ports(store, MessageCounter(COUNTER)))[0]


def filled(store: Any) -> None:
    """ "common" stands everywhere, "half" in every other document, "rare" in two old ones."""
    documents: list[Document] = []
    for seq in range(1, MANY + 1):
        terms = {"common": 1} | ({"half": 1} if seq % 2 else {}) | ({"rare": 1} if seq in (5, 8) else {})
        documents.append(Document(seq, terms, 4))
    store.append(KEY, [], documents=documents)


def test_hits_can_be_limited(store: Any) -> None:
    documents = [Document(seq, {"a": seq, "b": 1} if seq % 2 else {"a": seq}, seq + 1) for seq in (3, 1, 2, 5, 4)]
    store.append(KEY, [], documents=documents)
    newest = store.postings(KEY, ["a", "b", "c"], newest=2)
    assert newest.by_term == {"a": ((4, 4, 5), (5, 5, 6)), "b": ((3, 1, 4), (5, 1, 6)), "c": ()}
    among = store.postings(KEY, ["a", "b"], among=[4, 3, 77, 3])
    assert among.by_term == {"a": ((3, 3, 4), (4, 4, 5)), "b": ((3, 1, 4),)}
    assert (newest.documents, newest.total_length) == (among.documents, among.total_length) == (5, 20)
    assert store.postings(KEY, ["a"], among=[]).by_term == {"a": ()}


def test_few_hits_are_ranked_exactly(store: Any) -> None:
    texts = ["red box", "a red red door", "green box and more words", "nothing"]
    store.append(KEY, [], documents=[document(n, user(text, id=f"m{n}")) for n, text in enumerate(texts, 1)])
    everything = store.postings(KEY, ["red", "box"])
    assert ranking(store, "red", "box") == bm25(everything, idf(everything, frequencies(everything)))
    assert ranking(store, "red", "box")[0][0] == 1
    assert ranking(store, "absent") == []


def test_old_rare_hits_are_found_and_common_terms_still_tell_them_apart(store: Any) -> None:
    filled(store)
    found = ranking(store, "common", "half", "rare")
    assert [seq for seq, _ in found[:2]] == [5, 8]  # both hold "rare", only 5 holds "half"
    assert found[0][1] > found[1][1]


def test_documents_beside_the_index_are_ranked_as_if_they_stood_in_it(store: Any) -> None:
    texts = ["red box", "a red red door", "green box and more words", "nothing", "a red box on a red floor"]
    documents = [document(n, user(text, id=f"m{n}")) for n, text in enumerate(texts, 1)]
    store.append(KEY, [], documents=documents[:3])
    ports = Ports(store, MessageCounter(COUNTER))
    mixed = run(ranked(KEY, ("red", "box"), beside=documents[3:]), ports)
    whole = MemoryStore()
    whole.append(KEY, [], documents=documents)
    assert mixed == run(ranked(KEY, ("red", "box")), Ports(whole, MessageCounter(COUNTER)))
    # one that was indexed by a compaction that was undone has its place once
    twice = run(ranked(KEY, ("red", "box"), beside=documents[2:]), ports)[0]
    assert [seq for seq, _ in twice] == [seq for seq, _ in mixed[0]]


def test_a_rare_word_beside_a_large_index_is_found_first(store: Any) -> None:
    filled(store)
    live = Document(MANY + 1, {"common": 1, "rare": 1}, 4)
    found = run(ranked(KEY, ("common", "half", "rare"), beside=[live]), Ports(store, MessageCounter(COUNTER)))[0]
    assert {seq for seq, _ in found[:3]} == {5, 8, MANY + 1}


def test_work_is_bounded_where_every_term_is_common(store: Any) -> None:
    filled(store)
    found = ranking(store, "common")
    assert PROBE <= len(found) <= HITS
    assert max(seq for seq, _ in found) == MANY
    assert all(score >= 0 for _, score in found)


def test_frequencies_are_estimated_from_how_dense_the_newest_hits_lie() -> None:
    dense = tuple((seq, 1, 1) for seq in range(901, 1001))
    sparse = tuple((seq, 1, 1) for seq in range(505, 1001, 5))
    postings = Postings(1_000, 1_000, {"dense": dense, "sparse": sparse, "few": ((7, 1, 1),)})
    found = frequencies(postings, at_most=100)
    assert found["dense"] == 1_000
    assert found["sparse"] == pytest.approx(200, rel=0.05)
    assert found["few"] == 1


def test_sentences_near_a_hit_are_found_less_with_each_step() -> None:
    from ctxfold.history.records import MessageAdded, Record

    text = "Zero here. One here. Two here. Three here. The zebra came. Five here. Six here. Seven here. Eight here."
    record = Record(1, "m:x", MessageAdded(user(text, id="x")))
    read = Readings().keep([record])
    found = {p.place: p.score for p in passages(read, {1: 1.0}, {"zebra": 8.0})}
    assert sorted(found) == [1, 2, 3, 4, 5, 6, 7]
    assert found[4] > found[3] > found[2] > found[1] == found[7]
