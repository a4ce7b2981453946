"""The search index in leaves: it finds what format 2 found; an upgrade moves it in the background, whoever is killed meanwhile."""

from __future__ import annotations

import os
import random
import sqlite3
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import closing
from multiprocessing.synchronize import Event
from pathlib import Path
from time import sleep
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxfold import Document, Draft, MemoryStore, MessageCounter, SessionKey, SqlStore, StoreCorruptError, user
from ctxfold.effects import run
from ctxfold.history.records import MessageAdded
from ctxfold.history.terms import term_counts
from ctxfold.protocols import Ports, Rewrite
from ctxfold.retrieval.bm25 import ranked
from ctxfold.stores.posting_leaves import FIRST_KEY, MAX_COUNT, hits_of, leaf_key, placed, with_hits
from tests.support.driven import COUNTER
from tests.support.postgres_schema import fresh_schema
from tests.support.processes import CONTEXT, import_once, start

import_once(__name__)

LONG, SHORT = SessionKey("ann", "long"), [SessionKey("ann", f"short {n}") for n in range(20)]
KILLS = int(os.environ.get("CTXFOLD_KILLS", "8"))
QUESTIONS = int(os.environ.get("CTXFOLD_QUESTIONS", "60"))
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


def old_store(url: str) -> SqlStore:
    """A store of format 2, which writes a row for each hit."""
    SqlStore(url).close()
    execute(url, "UPDATE ctxfold_meta SET value = '2'")
    return SqlStore(url, upgrade=False)


def old_rows(url: str) -> int:
    return int(execute(url, "SELECT COUNT(*) FROM ctxfold_terms")[0][0])


def documents(first: int, count: int, seed: int) -> list[Document]:
    """Texts whose words are as common as the words of a language: few often, most rarely."""
    rng = random.Random(seed)
    found: list[Document] = []
    for seq in range(first, first + count):
        words = [WORDS[min(int(rng.paretovariate(0.7)) - 1, len(WORDS) - 1)] for _ in range(rng.randint(3, 40))]
        words += [f"box-{rng.randrange(2_000)}"]
        found.append(Document(2 * seq, Counter(words), len(words)))
    return found


def fill(store: Any, long: int = 900) -> None:
    for first in range(1, long, 50):
        store.append(LONG, (), documents=documents(first, 50, first))
    for n, key in enumerate(SHORT):
        for first in range(1, 41, 10):
            store.append(key, (), documents=documents(first, 10, n * 1_000 + first))


def rankings(store: Any, queries: int) -> list[Any]:
    """The 20 best of many questions, in the long session and in short ones, and over all of the owner's."""
    rng = random.Random(7)
    found: list[Any] = []
    for number in range(queries):
        terms = [rng.choice(WORDS[: rng.choice([8, 60, 300])]) for _ in range(rng.randint(1, 6))] + [f"box-{number}"]
        key = LONG if number % 3 else SHORT[number % len(SHORT)]
        best, weights, _ = run(
            ranked(key, tuple(dict.fromkeys(terms)), probe=rng.choice([None, 4])), Ports(store, COUNTED)
        )
        found.append(
            (best[:20], weights, store.postings(key, terms), store.postings(key, ["", *terms], among=range(1, 400)))
        )
        if number % 10 == 0:
            found.append(store.owner_postings("ann", terms, newest=rng.choice([2, 30, 5_000])))
    return found


COUNTED = MessageCounter(COUNTER)


def test_the_20_best_are_the_same_before_and_after(url: str) -> None:
    with old_store(url) as store:
        fill(store)
        before = rankings(store, QUESTIONS)
        rows = old_rows(url)
        assert rows > 15_000
        assert execute(url, "SELECT COUNT(*) FROM ctxfold_postings")[0][0] == 0
    told: list[int] = []
    with SqlStore(url, upgrade=False) as store:
        assert store.upgrade(progress=told.append) == rows == told[-1]
        assert len(told) > 5
        assert old_rows(url) == 0
        assert rankings(store, QUESTIONS) == before
        assert execute(url, "SELECT value FROM ctxfold_meta")[0][0] == "3"
    execute(url, "DELETE FROM ctxfold_postings")
    execute(url, "DELETE FROM ctxfold_sessions")
    with SqlStore(url) as store:  # written as leaves from the beginning
        fill(store)
        assert rankings(store, QUESTIONS) == before


def test_terms_of_release_0_1_are_moved_to_those_of_this_one(url: str) -> None:
    """That release wrote `cancell` for "cancelled" and `moved` for itself, beside `cancel` and `move`."""
    counts = [{"cancel": 2, "cancell": 3, "ann": 1}, {"moved": 1, "carri": 1}, {"box-7": 1, "hous": 1, "": 0}]
    with old_store(url) as store:
        store.append(LONG, (), documents=[Document(n, each, 9) for n, each in enumerate(counts, 1)])
    with SqlStore(url, upgrade=False) as store:
        store.upgrade()
        found = store.postings(LONG, ["cancel", "cancell", "ann", "move", "moved", "box-7", "hous"]).by_term
    assert {term: [tuple(hit) for hit in hits] for term, hits in found.items()} == {
        "cancel": [(1, 5, 9)],
        "cancell": [],
        "ann": [(1, 1, 9)],
        "move": [(2, 1, 9)],
        "moved": [],
        "box-7": [(3, 1, 9)],
        "hous": [(3, 1, 9)],
    }


def test_terms_that_a_new_worker_wrote_before_the_move_stay(url: str) -> None:
    words = ["embedding", "embedded", "preceding", "infringed", "agreed", "carried", "died", "moved", "planned"]
    with old_store(url) as store:
        store.append(LONG, (), documents=[Document(n, term_counts(word), 1) for n, word in enumerate(words, 1)])
        store.append(LONG, (), documents=[Document(99, term_counts("superseding"), 1)])
        store.erase([Rewrite(LONG, 0, (), (), (99,), ())])
        store.upgrade()
        assert not any(store.postings(LONG, [*term_counts("superseding")]).by_term.values()), "it was erased"
        for n, word in enumerate(words, 1):
            (hits,) = store.postings(LONG, [*term_counts(word)]).by_term.values()
            assert n in [hit[0] for hit in hits], word


def test_a_leaf_row_takes_an_eighth_of_the_space(url: str) -> None:
    with old_store(url) as store:
        fill(store)
    key, hit = "LENGTH(owner) + LENGTH(session)", "LENGTH(term) + 24"
    (before,) = execute(url, f"SELECT SUM({key} + {hit}) FROM ctxfold_terms")[0]
    with SqlStore(url) as store:
        store.upgrade()
        (after,) = execute(url, f"SELECT SUM({key} + LENGTH(first_key) + LENGTH(data)) FROM ctxfold_postings")[0]
    assert after < before / 4


def test_the_background_moves_it_while_others_write_and_erase(url: str) -> None:
    with old_store(url) as old:
        fill(old, 500)
        with SqlStore(url) as new, SqlStore(url) as third, MemoryStore() as model:
            fill(model, 500)
            for step in range(20):
                more = documents(1_000 + 10 * step, 10, step)
                writer = (old, new, third)[step % 3]
                draft = Draft(f"d{step}", MessageAdded(user("x", id=f"d{step}")), None, 1.0)
                for store in (writer, model):
                    store.append(LONG, [draft], documents=more)
                seqs = tuple(d.seq for d in documents(20 * step + 1, 7, 0))
                for store in (writer, model):
                    head = store.head(LONG)
                    assert head is not None
                    store.erase([Rewrite(LONG, head.seq, (), (), seqs, ())])
            until_moved(url)
            for store in (old, new, third):
                assert everything(store, LONG) == everything(model, LONG)
                assert [everything(store, key) for key in SHORT] == [everything(model, key) for key in SHORT]


def everything(store: Any, key: SessionKey) -> Any:
    return store.postings(key, ["", *WORDS, *(f"box-{n}" for n in range(2_000))])


def until_moved(url: str) -> None:
    for _ in range(3_000):
        if not old_rows(url):
            return
        sleep(0.01)
    raise AssertionError(f"{old_rows(url)} rows were not moved")


def upgrade_in_a_process(url: str, opened: Event) -> None:
    with SqlStore(url, upgrade=False) as store:
        opened.set()
        store.upgrade()


def kill_upgrades(url: str, longest_s: float) -> None:
    """Ends processes that upgrade the store at random moments after they have opened it."""
    rng = random.Random(KILLS)
    for _ in range(KILLS):
        opened = CONTEXT.Event()
        process = start(upgrade_in_a_process, url, opened)
        assert opened.wait(300)
        process.join(rng.uniform(0.0, longest_s))
        process.kill()
        process.join()
        process.close()


def test_killed_during_the_upgrade(url: str) -> None:
    with old_store(url) as store:
        fill(store, 600 + 60 * KILLS)
        before = [everything(store, key) for key in (LONG, *SHORT)]
        rows = old_rows(url)
    kill_upgrades(url, longest_s=0.4)
    assert execute(url, "SELECT COUNT(*) FROM ctxfold_postings")[0][0] or old_rows(url) == rows
    with SqlStore(url, upgrade=False) as store:
        assert [everything(store, key) for key in (LONG, *SHORT)] == before
        store.upgrade()
        assert old_rows(url) == 0
        assert [everything(store, key) for key in (LONG, *SHORT)] == before


def test_a_store_stays_format_2_until_it_is_said_otherwise(url: str) -> None:
    with old_store(url) as first, SqlStore(url, upgrade=False) as second:
        first.append(LONG, (), documents=[Document(1, {"a": 1}, 1)])
        assert (execute(url, "SELECT value FROM ctxfold_meta")[0][0], old_rows(url)) == ("2", 2)
        assert first.upgrade() == 2
        second.append(
            LONG, (), documents=[Document(2, {"a": 2}, 2), Document(1, {"a": 1}, 1)]
        )  # it looks before it writes
        assert old_rows(url) == 0
        for store in (first, second):
            found = store.postings(LONG, ["a"])
            assert (found.documents, found.by_term["a"]) == (2, ((1, 1, 1), (2, 2, 2)))


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
            everything(store, LONG)


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
