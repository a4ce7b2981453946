"""Defines StoreSuite, the tests that every store passes; the stores of ctxfold run it too.

```python
class TestMyStore(StoreSuite):
    def open_store(self, place: Path) -> Store:
        return MyStore(place / "sessions.db")
```

Each test runs through the sync methods and through their async forms. Needs pytest."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ctxfold.errors import (
    ConfigError,
    HeadMovedError,
    InvalidTextError,
    MessageConflictError,
    MessageError,
    SessionNotFoundError,
    StoreUnavailableError,
)
from ctxfold.history.memory_items import MemoryItem
from ctxfold.history.records import (
    Draft,
    Erased,
    MessageAdded,
    Pinned,
    PolicyChanged,
    Record,
    SessionKey,
    SnapshotTaken,
    TurnClosed,
)
from ctxfold.messages import Message, TextPart, user
from ctxfold.protocols import Document, Head, Rewrite, Store, StoreCapabilities, VectorIndex

KEY = SessionKey("ann", "s1")
OTHER = SessionKey("ann", "s2")
ABSENT = SessionKey("x", "y")


class _ThroughLoop:
    """A store whose methods run its async forms."""

    def __init__(self, store: Store, runner: asyncio.Runner) -> None:
        self._store, self._runner = store, runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        form = getattr(self._store, f"a{name}")
        return lambda *args, **kwargs: self._runner.run(form(*args, **kwargs))


def _said(name: str, text: str = "hi") -> Draft:
    return Draft(name, MessageAdded(user(text, id=name)), "t1", 1.5)


def _names(records: Iterable[Record]) -> list[str]:
    return [record.id for record in records]


def _texts(records: Iterable[Record]) -> list[str]:
    return [r.body.message.text for r in records if isinstance(r.body, MessageAdded)]


def _item(name: str, text: str, **fields: Any) -> MemoryItem:
    return MemoryItem(name, fields.pop("kind", "facts"), text, created_s=float(name[1:]), **fields)


def _remembered(store: Store, owner: str = "ann", **terms: Any) -> list[str]:
    return [item.text for item in store.memories(owner, **terms)]


class StoreSuite(ABC):
    """Subclass it as `Test...`, write `open_store`, and run pytest.

    Override the fixture `place` for a store that does not live in a folder, such as a schema of a server. Set `durable` to False
    for a store whose sessions end with it.
    """

    durable = True

    @abstractmethod
    def open_store(self, place: Any) -> Store:
        """Returns an open store. Several stores that are open at one place see the same sessions, unless `durable` is False."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Any:
        return tmp_path

    @pytest.fixture
    def opened(self, place: Any) -> Iterator[Store]:
        store = self.open_store(place)
        try:
            yield store
        finally:
            store.close()

    @pytest.fixture(params=["sync", "async"])
    def store(self, request: pytest.FixtureRequest, opened: Store) -> Iterator[Store]:
        if request.param == "sync":
            yield opened
            return
        with asyncio.Runner() as runner:
            yield cast("Store", _ThroughLoop(opened, runner))

    # the log

    def test_capabilities_are_declared(self, opened: Store) -> None:
        assert isinstance(opened.capabilities, StoreCapabilities)

    def test_append_and_read(self, store: Store) -> None:
        assert store.head(KEY) is None
        assert store.read(KEY) == ()
        first = store.append(KEY, [_said("a"), _said("b")])
        assert [(r.seq, r.id, r.turn_id, r.at_s) for r in first] == [(1, "a", "t1", 1.5), (2, "b", "t1", 1.5)]
        second = store.append(KEY, [Draft("c", TurnClosed())], known=2, expect=2)
        assert [(r.seq, r.id, r.turn_id) for r in second] == [(3, "c", None)]
        assert store.read(KEY) == (*first, *second)
        assert [r.at_s for r in store.read(KEY)] == [1.5, 1.5, 0.0]
        assert store.read(KEY, after=1, upto=2) == first[1:]
        assert store.read(KEY, after=3) == ()
        assert store.read(KEY, upto=0) == ()
        assert store.head(KEY) == Head(3, 0)

    def test_append_returns_everything_after_known(self, store: Store) -> None:
        store.append(KEY, [_said("a"), _said("b")])
        assert _names(store.append(KEY, [_said("c")], known=1)) == ["b", "c"]
        assert _names(store.append(KEY, [], known=1)) == ["b", "c"]
        assert _names(store.append(KEY, [_said("d")], known=9)) == []

    def test_an_empty_append_makes_the_session(self, store: Store) -> None:
        assert store.append(KEY, []) == ()
        assert store.head(KEY) == Head(0, 0)
        assert store.sessions("ann") == ("s1",)

    def test_replay_is_a_no_op(self, store: Store) -> None:
        store.append(KEY, [_said("a"), _said("b")])
        assert _names(store.append(KEY, [_said("a"), _said("b"), _said("c"), _said("c")], known=2)) == ["c"]
        assert _names(store.read(KEY)) == ["a", "b", "c"]
        assert [r.seq for r in store.read(KEY)] == [1, 2, 3]

    def test_same_id_with_other_content_conflicts_and_writes_nothing(self, store: Store) -> None:
        with pytest.raises(MessageConflictError, match="'a'"):
            store.append(KEY, [_said("a"), _said("a", "other")])
        assert store.head(KEY) is None
        store.append(KEY, [_said("a")])
        with pytest.raises(MessageConflictError, match=r"message 'a' .*new id.*update\(\)"):
            store.append(KEY, [_said("b"), _said("a", "other")], known=1, documents=[Document(2, {"b": 1}, 1)])
        with pytest.raises(MessageConflictError, match="record 'c'"):
            store.append(KEY, [Draft("c", TurnClosed()), Draft("c", TurnClosed("aborted"))])
        assert _names(store.read(KEY)) == ["a"]
        assert store.postings(KEY, ["b"]).documents == 0

    def test_expect_guards_the_head(self, store: Store) -> None:
        store.append(KEY, [_said("a")], expect=0)
        with pytest.raises(HeadMovedError) as caught:
            store.append(KEY, [_said("b")], known=0, expect=0)
        assert (caught.value.expected, caught.value.head) == (0, 1)
        with pytest.raises(HeadMovedError):
            store.append(SessionKey("ann", "new"), [_said("b")], expect=4)
        assert store.sessions("ann") == ("s1",)
        assert _names(store.append(KEY, [_said("b")], known=1, expect=1)) == ["b"]

    def test_known_id_guards_against_an_erasure(self, store: Store) -> None:
        store.append(KEY, [_said("a"), _said("b")])
        assert _names(store.append(KEY, [_said("c")], known=2, known_id="b")) == ["c"]
        store.erase([], gone=[KEY])
        with pytest.raises(SessionNotFoundError, match="erased"):
            store.append(KEY, [_said("d")], known=3, known_id="c")
        store.append(KEY, [_said("x"), _said("y"), _said("z")])
        with pytest.raises(SessionNotFoundError):
            store.append(KEY, [_said("d")], known=3, known_id="c")
        assert _names(store.read(KEY)) == ["x", "y", "z"]

    def test_owners_and_sessions_are_apart(self, store: Store) -> None:
        other = SessionKey("bob", "s1")
        store.append(KEY, [_said("a")])
        store.append(other, [_said("a", "different")])
        store.append(SessionKey("ann", "S0 'quoted' 会話"), [])
        assert _texts(store.read(other)) == ["different"]
        assert store.sessions("ann") == ("S0 'quoted' 会話", "s1")
        assert store.sessions("bob") == ("s1",)
        assert store.sessions("nobody") == ()

    def test_fetch_and_find_take_thousands(self, store: Store) -> None:
        store.append(KEY, [_said(f"m{n}") for n in range(1, 2101)])
        seqs = [*range(2500, 0, -1), 7, 0, -3, 10**30]
        assert [r.seq for r in store.fetch(KEY, seqs)] == list(range(1, 2101))
        ids = [*(f"m{n}" for n in range(2500, 0, -1)), "m7", "NUL \0"]
        assert [r.seq for r in store.find(KEY, ids)] == list(range(1, 2101))
        assert store.fetch(KEY, []) == store.find(KEY, []) == ()
        assert store.fetch(ABSENT, [1]) == store.find(ABSENT, ["m1"]) == ()

    def test_messages_are_numbered(self, store: Store) -> None:
        drafts = [_said("a"), Draft("p", Pinned(("a",))), _said("b"), Draft("c", TurnClosed()), _said("d")]
        assert [r.number for r in store.append(KEY, drafts)] == [1, 0, 2, 0, 3]
        store.append(KEY, [Draft("q", Pinned(("b",)))])
        store.append(KEY, [_said("b"), _said("e")])
        assert [r.number for r in store.read(KEY)] == [1, 0, 2, 0, 3, 0, 4]
        numbered = [store.numbered(KEY, n) for n in (1, 2, 3, 4)]
        assert [None if r is None else r.id for r in numbered] == ["a", "b", "d", "e"]
        assert [store.numbered(KEY, n) for n in (-1, 0, 5, 10**30)] == [None] * 4
        assert store.numbered(ABSENT, 1) is None

    def test_snapshots(self, store: Store) -> None:
        snapshots = [Draft("s1", SnapshotTaken("{}")), Draft("s2", SnapshotTaken("{}"))]
        store.append(KEY, [_said("a"), snapshots[0], _said("b"), snapshots[1]])
        store.append(KEY, [_said("c")])
        assert store.head(KEY) == Head(5, 4)
        assert [store.snapshot_before(KEY, seq) for seq in (1, 2, 3, 4, 5, 99)] == [0, 0, 2, 2, 4, 4]
        store.append(KEY, [snapshots[1]])
        assert store.head(KEY) == Head(5, 4)
        assert store.snapshot_before(ABSENT, 9) == 0

    def test_odd_and_long_text_survives(self, store: Store) -> None:
        texts = ["NUL \0 here", "emoji 🧵👩‍👩‍👧", "\u2028\u0085 中文", "x" * 10_000_000]
        store.append(KEY, [_said(f"m{n}", text) for n, text in enumerate(texts)])
        assert _texts(store.read(KEY)) == texts

    @pytest.mark.parametrize("name", ["nul\0", "\ud800", "x" * 600, "é" * 300])
    def test_names_that_no_database_takes_are_refused(self, store: Store, name: str) -> None:
        with pytest.raises(ConfigError, match="choose another"):
            store.append(SessionKey("ann", name), [])
        with pytest.raises(ConfigError, match="owner"):
            store.sessions(name)
        with pytest.raises(MessageError, match="another id"):
            store.append(KEY, [Draft(name, TurnClosed())])
        assert store.head(KEY) is None

    # search

    def test_postings(self, store: Store) -> None:
        long, odd = "x" * 5000, "nul\0 and 中文"
        documents = [Document(1, {"hello": 2, long: 1}, 3), Document(2, {"hello": 1, odd: 4}, 5), Document(3, {}, 0)]
        store.append(KEY, [_said("a"), _said("b"), _said("c")], documents=documents)
        store.append(KEY, [], documents=[*documents, Document(4, {"hello": 1}, 1), Document(4, {"hello": 1}, 1)])
        postings = store.postings(KEY, ["hello", long, odd, "absent", "hello"])
        assert (postings.documents, postings.total_length) == (4, 9)
        assert postings.by_term["hello"] == ((1, 2, 3), (2, 1, 5), (4, 1, 1))
        assert (postings.by_term[long], postings.by_term[odd], postings.by_term["absent"]) == (
            ((1, 1, 3),),
            ((2, 4, 5),),
            (),
        )
        assert postings.numbered in (0, 3), "the records with a number; 0 from a store that does not tell"
        assert store.postings(ABSENT, ["hello"]).documents == 0

    def test_postings_can_be_limited(self, store: Store) -> None:
        documents = [Document(n, {"hello": n, "helloes": 1}, 2 * n) for n in (1, 2, 3, 300)]
        store.append(KEY, [_said(f"m{n}") for n in range(300)], documents=documents)
        store.append(OTHER, [_said("a")], documents=[Document(1, {"hello": 9}, 9)])
        assert store.postings(KEY, ["hello"], newest=2).by_term == {"hello": ((3, 3, 6), (300, 300, 600))}
        assert store.postings(KEY, ["hello"], among=[300, 1, 1, 7]).by_term == {"hello": ((1, 1, 2), (300, 300, 600))}
        assert store.postings(KEY, ["hello"], among=[]).by_term == {"hello": ()}

    def test_the_empty_term_names_the_documents(self, store: Store) -> None:
        store.append(KEY, [], documents=[Document(n, {"hello": n}, 2 * n) for n in (7, 300, 1)])
        assert store.postings(KEY, [""], among=[300, 5, 1, 1]).by_term == {"": ((1, 0, 2), (300, 0, 600))}
        assert store.postings(KEY, [""], newest=2).by_term == {"": ((7, 0, 14), (300, 0, 600))}

    # leases

    def test_a_lease_has_one_holder(self, store: Store) -> None:
        assert store.lease(KEY, "work", "one", now_s=1_000, ttl_s=600)
        assert not store.lease(KEY, "work", "two", now_s=1_000, ttl_s=600)
        assert store.lease(KEY, "work", "one", now_s=1_000, ttl_s=600), "the holder keeps it for longer"
        assert store.lease(KEY, "other", "two", now_s=1_000, ttl_s=600), "another name"
        assert store.lease(OTHER, "work", "two", now_s=1_000, ttl_s=600), "another session"
        assert store.head(KEY) is None, "a lease makes no session"
        store.release(KEY, "work", "two")
        assert not store.lease(KEY, "work", "two", now_s=1_000, ttl_s=600), "only its holder gives it back"
        store.release(KEY, "work", "one")
        assert store.lease(KEY, "work", "two", now_s=1_000, ttl_s=600)

    def test_a_lease_ends_by_itself(self, store: Store) -> None:
        assert store.lease(KEY, "work", "one", now_s=1_000, ttl_s=-1)
        assert store.lease(KEY, "work", "two", now_s=1_000, ttl_s=600)

    # forks and erasure

    def test_copies_begin_with_the_same_record(self, store: Store) -> None:
        for key, drafts in ((KEY, "ab"), (OTHER, "ac"), (SessionKey("ann", "s3"), "ba"), (SessionKey("bob", "s"), "a")):
            store.append(key, [_said(name) for name in drafts])
        store.append(SessionKey("ann", "empty"), [])
        assert store.copies(KEY) == ("s2",)
        assert store.copies(OTHER) == ("s1",)
        assert store.copies(SessionKey("bob", "s")) == ()
        assert store.copies(ABSENT) == ()

    def test_erase_rewrites_records_and_the_index(self, store: Store) -> None:
        documents = [Document(1, {"secret": 1, "both": 1}, 2), Document(2, {"both": 1}, 1)]
        store.append(KEY, [_said("a", "secret"), _said("b", "open")], documents=documents)
        erased = Record(1, "a", Erased(("a",)), "t1", 1.5, 1)
        notice = Draft("erased:n", Erased(("a",)))
        assert store.erase([Rewrite(KEY, 2, ("a",), (erased,), (1,), (notice,))])
        records = store.read(KEY)
        assert [(r.seq, r.id, r.turn_id, r.at_s) for r in records[:2]] == [(1, "a", "t1", 1.5), (2, "b", "t1", 1.5)]
        assert [r.body.kind for r in records] == ["erased", "message_added", "erased"]
        assert [r.number for r in records] == [1, 2, 3]
        assert store.head(KEY) == Head(3, 0)
        postings = store.postings(KEY, ["secret", "both"])
        assert (postings.documents, postings.total_length) == (1, 1)
        assert postings.by_term == {"secret": (), "both": ((2, 1, 1),)}
        assert _names(store.append(KEY, [Draft("a", Erased(("a",)))], known=3)) == [], "the id stays taken"

    def test_erase_does_nothing_once_a_log_has_grown(self, store: Store) -> None:
        store.append(KEY, [_said("a")])
        store.append(OTHER, [_said("b"), _said("c")])
        rewrites = [Rewrite(key, 1, (), (Record(1, "x", Erased(())),), (), ()) for key in (KEY, OTHER)]
        with pytest.raises(HeadMovedError):
            store.erase(rewrites, gone=[SessionKey("ann", "s3")])
        assert [r.body.kind for r in (*store.read(KEY), *store.read(OTHER))] == ["message_added"] * 3

    def test_an_erased_session_is_new_again(self, store: Store) -> None:
        documents = [Document(1, {"hello": 1}, 1)]
        store.append(KEY, [_said("a"), Draft("s", SnapshotTaken("{}"))], documents=documents)
        store.append(OTHER, [_said("a")], documents=documents)
        assert store.lease(KEY, "work", "one", now_s=1_000, ttl_s=600)
        assert store.erase([], gone=[KEY, ABSENT])
        assert (store.head(KEY), store.read(KEY), store.sessions("ann")) == (None, (), ("s2",))
        assert store.lease(KEY, "work", "two", now_s=1_000, ttl_s=600)
        assert store.postings(KEY, ["hello"]).documents == 0
        assert store.postings(OTHER, ["hello"]).documents == 1
        assert _names(store.append(KEY, [_said("a", "anew")])) == ["a"]
        assert store.head(KEY) == Head(1, 0)
        assert (store.snapshot_before(KEY, 9), store.numbered(KEY, 2)) == (0, None)

    def test_erase_owner_leaves_the_others(self, store: Store) -> None:
        ann, anna = SessionKey("ann", "s"), SessionKey("anna", "s")
        for key in (KEY, ann, anna):
            store.append(key, [_said("a")])
            store.remember(key.owner, [_item("i1", key.owner)])
        unwritten = SessionKey("ann", "unwritten")
        assert store.lease(unwritten, "work", "one", now_s=1_000, ttl_s=600)
        assert store.erase_owner("ann")
        assert store.lease(unwritten, "work", "two", now_s=1_000, ttl_s=600)
        assert (store.sessions("ann"), store.sessions("anna")) == ((), ("s",))
        assert (_remembered(store), _remembered(store, "anna")) == ([], ["anna"])

    # vectors

    @pytest.fixture
    def vectors(self, store: Any, opened: Store) -> VectorIndex:
        """Returns the store, which has the methods of `VectorIndex`; skips the test of a store that does not declare `vectors`."""
        if not opened.capabilities.vectors:
            pytest.skip("the store does not keep vectors")
        return cast("VectorIndex", store)

    def test_vectors_are_kept_by_session_embedder_and_record(self, store: Store, vectors: VectorIndex) -> None:
        for key in (KEY, OTHER):
            store.append(key, [_said("a"), _said("b"), _said("c")])
        assert (vectors.embedders(KEY), vectors.vectors(KEY, "one")) == ({}, {})
        vectors.put_vectors(KEY, "one", {0: b"about one", 1: b"\x00\xff", 2: b"two", 3: b""})
        vectors.put_vectors(KEY, "other", {0: b"about other", 1: b"another's"})
        vectors.put_vectors(OTHER, "one", {0: b"elsewhere", 2: b"there"})
        assert vectors.embedders(KEY) == {"one": b"about one", "other": b"about other"}
        assert vectors.vectors(KEY, "one") == {1: b"\x00\xff", 2: b"two", 3: b""}
        assert vectors.vectors(KEY, "one", seqs=[2, 9]) == {2: b"two"}
        assert vectors.vectors(KEY, "one", seqs=range(1, 3_000)) == vectors.vectors(KEY, "one")
        vectors.put_vectors(KEY, "one", {2: b"newer"})
        assert vectors.vectors(KEY, "one") == {1: b"\x00\xff", 2: b"newer", 3: b""}
        vectors.drop_vectors(KEY, "one")
        assert vectors.embedders(KEY) == {"other": b"about other"}
        assert (vectors.vectors(KEY, "one"), vectors.vectors(KEY, "other")) == ({}, {1: b"another's"})
        assert vectors.vectors(OTHER, "one") == {2: b"there"}

    def test_erasure_removes_vectors_for_good(self, store: Store, vectors: VectorIndex) -> None:
        vectors_by_seq = {0: b"about", 1: b"of a", 2: b"of b"}
        for key in (KEY, OTHER):
            store.append(key, [_said("a"), _said("b")])
            vectors.put_vectors(key, "one", vectors_by_seq)
        erased = Record(1, "a", Erased(("a",)), "t1", 1.5, 1)
        store.erase([Rewrite(KEY, 2, ("a",), (erased,), (), ())])
        assert vectors.vectors(KEY, "one") == {2: b"of b"}
        vectors.put_vectors(KEY, "one", vectors_by_seq)  # by a worker that had read the message before
        assert vectors.vectors(KEY, "one") == {2: b"of b"}
        store.erase([], gone=[KEY])
        vectors.put_vectors(KEY, "one", vectors_by_seq)
        assert (vectors.embedders(KEY), vectors.vectors(KEY, "one")) == ({}, {})
        assert vectors.vectors(OTHER, "one") == {1: b"of a", 2: b"of b"}
        store.erase_owner("ann")
        vectors.put_vectors(OTHER, "one", vectors_by_seq)
        store.append(OTHER, [_said("a"), _said("b")])
        assert (vectors.embedders(OTHER), vectors.vectors(OTHER, "one")) == ({}, {})

    def test_stores_at_one_place_share_their_vectors(self, opened: Store, vectors: VectorIndex, place: Any) -> None:
        if not self.durable:
            pytest.skip("the store is not durable")
        opened.append(KEY, [_said("a")])
        vectors.put_vectors(KEY, "one", {0: b"about", 1: b"of a"})
        other = cast("Any", self.open_store(place))
        try:
            assert (other.embedders(KEY), other.vectors(KEY, "one")) == ({"one": b"about"}, {1: b"of a"})
        finally:
            other.close()

    # memory items

    def test_an_item_comes_back_as_it_was(self, store: Store) -> None:
        full = _item(
            "i1",
            "Zoë lives in “Köln”\n\x00 🙂",
            key="home",
            session="s1",
            shared=False,
            confidence=0.5,
            sources=("m1", "m2"),
            data=(("subject", "Zoë"),),
        )
        done = store.remember("ann", [full, _item("i2", "likes tea", kind="persona")])
        assert [d.item for d in done] == [full, _item("i2", "likes tea", kind="persona")]
        assert all(d.new and d.replaced is None for d in done)
        assert store.memories("ann") == (done[1].item, full), "newest first"
        assert _remembered(store, kinds=["persona"]) == ["likes tea"]
        assert _remembered(store, kinds=[]) == []
        assert _remembered(store, newest=1) == ["likes tea"]
        assert store.memories("bob") == ()

    def test_a_new_value_for_a_key_replaces_the_old_one(self, store: Store) -> None:
        store.remember("ann", [_item("i1", "lives in Paris", key="home"), _item("i2", "has a cat", key="pet")])
        (done,) = store.remember("ann", [_item("i3", "lives in Berlin", key="Home")])
        assert done.replaced is not None
        assert done.replaced.text == "lives in Paris"
        assert done.item.replaces == "lives in Paris"
        assert _remembered(store) == ["lives in Berlin", "has a cat"]
        everything = {i.id: i for i in store.memories("ann", everything=True)}
        assert everything["i1"].superseded_by == "i3"
        store.remember("ann", [_item("i4", "home of one session", key="home", session="s1", shared=False)])
        assert len(_remembered(store)) == 3, "an item of one session does not replace a shared one"

    def test_a_known_item_is_not_kept_twice_and_gains_sources(self, store: Store) -> None:
        store.remember("ann", [_item("i1", "lives in Paris", key="home", sources=("m1",), confidence=0.4)])
        (again,) = store.remember("ann", [_item("i2", "lives in Paris", key="home", sources=("m2",), confidence=0.9)])
        assert not again.new
        expected = replace(_item("i1", "lives in Paris", key="home"), sources=("m1", "m2"), confidence=0.9)
        assert again.item == expected
        assert store.memories("ann") == (again.item,)
        done = store.remember("ann", [_item("i3", "No key."), _item("i4", "no  KEY."), _item("i5", "no key")])
        assert [d.new for d in done] == [True, False, True]

    def test_forgotten_text_is_not_learnt_again_from_the_same_messages(self, store: Store) -> None:
        store.remember("ann", [_item("i1", "lives in Paris", key="home", sources=("m1",))])
        store.remember("ann", [_item("i2", "lives in Berlin", key="home", sources=("m2",))])
        assert [i.text for i in store.forget("ann", ["i1", "nobody"])] == ["lives in Paris"]
        assert store.memories("ann")[0].replaces == "", "the item that replaced it does not quote it"
        assert [i.text for i in store.forget("ann", ["i2"])] == ["lives in Berlin"]
        assert store.forget("ann", ["i2"]) == ()
        assert _remembered(store) == []
        assert {i.text + i.key for i in store.memories("ann", everything=True)} == {""}
        (same,) = store.remember("ann", [_item("i3", "lives in Berlin", key="home", sources=("m2",))])
        assert not same.new
        assert _remembered(store) == []
        (new_source,) = store.remember("ann", [_item("i4", "lives in Berlin", key="home", sources=("m2", "m9"))])
        assert new_source.new
        (by_hand,) = store.remember("ann", [_item("i5", "lives in Rome", key="home")])
        assert by_hand.new
        assert _remembered(store) == ["lives in Rome"]

    def test_erasure_deletes_the_items_that_were_learnt(self, store: Store) -> None:
        store.append(KEY, [Draft("p", PolicyChanged("{}", "c"))])
        store.remember(
            "ann",
            [
                _item("i1", "secret", key="k", session="s1", sources=("m1",)),
                _item("i2", "other", session="s1", sources=("m2",)),
                _item("i3", "of another session", session="s2", sources=("m1",)),
            ],
        )
        store.remember("ann", [_item("i4", "public", key="k", session="s1", sources=("m3",))])
        store.remember("bob", [_item("i1", "bob's", session="s1", sources=("m1",))])
        store.erase([Rewrite(KEY, 1, ("m1",), (), (), ())])
        remaining = store.memories("ann", everything=True)
        assert {i.text for i in remaining} == {"other", "of another session", "public"}
        assert {i.replaces for i in remaining} == {""}
        store.erase([], gone=[KEY])
        assert _remembered(store, everything=True) == ["of another session"]
        store.erase_owner("ann")
        assert _remembered(store, everything=True) == []
        assert _remembered(store, "bob") == ["bob's"]

    def test_items_that_no_database_takes_are_refused(self, store: Store) -> None:
        with pytest.raises(MessageError):
            store.remember("ann", [_item("i1", "x", kind="a\0b")])
        with pytest.raises(InvalidTextError):
            store.remember("ann", [_item("i1", "x\ud800")])
        with pytest.raises(ConfigError):
            store.remember("a\0", [_item("i1", "x")])
        assert store.remember("ann", []) == ()
        assert store.forget("ann", []) == ()

    # several callers

    def test_threads_that_append_keep_every_writers_order(self, opened: Store) -> None:
        def write(writer: int) -> None:
            known = 0
            for n in range(50):
                new = opened.append(KEY, [_said(f"w{writer}-{n}")], known=known)
                assert [r.seq for r in new] == list(range(known + 1, known + 1 + len(new)))
                known = new[-1].seq

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(8)))
        records = opened.read(KEY)
        assert [r.seq for r in records] == list(range(1, 401))
        for writer in range(8):
            mine = [r.id for r in records if r.id.startswith(f"w{writer}-")]
            assert mine == [f"w{writer}-{n}" for n in range(50)]

    def test_one_of_several_writers_wins_an_expected_head(self, opened: Store) -> None:
        start = threading.Barrier(4)

        def write(writer: int) -> bool:
            start.wait()
            try:
                opened.append(KEY, [_said(f"w{writer}")], expect=0)
            except HeadMovedError:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(write, range(4))) == [False, False, False, True]
        assert len(opened.read(KEY)) == 1

    def test_threads_that_remember_leave_one_item_in_force(self, opened: Store) -> None:
        def write(n: int) -> None:
            opened.remember("ann", [_item(f"i{n}", f"value {n}", key="home")])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(1, 25)))
        assert len(_remembered(opened)) == 1
        chain = {i.id: i for i in opened.memories("ann", everything=True)}
        assert len(chain) == 24
        assert sum(i.superseded_by is None for i in chain.values()) == 1

    def test_many_tasks(self, opened: Store) -> None:
        async def work() -> list[int]:
            names = [f"s{n % 5}" for n in range(50)]
            appends = (opened.aappend(SessionKey("ann", s), [_said(f"m{n}")]) for n, s in enumerate(names))
            await asyncio.gather(*appends)
            return [len(await opened.aread(SessionKey("ann", f"s{n}"))) for n in range(5)]

        assert asyncio.run(work()) == [10] * 5

    def test_a_cancelled_append_is_stored_whole_or_not_at_all(self, opened: Store) -> None:
        async def work() -> int:
            task = asyncio.ensure_future(opened.aappend(KEY, [_said("a"), _said("b")]))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return len(await opened.aread(KEY))

        assert asyncio.run(work()) in (0, 2)

    # opening and closing

    def test_stores_at_one_place_share_their_sessions(self, opened: Store, place: Any) -> None:
        if not self.durable:
            pytest.skip("the store is not durable")
        opened.append(KEY, [_said("a")], documents=[Document(1, {"hello": 1}, 1)])
        opened.remember("ann", [_item("i1", "likes tea")])
        other = self.open_store(place)
        try:
            assert _names(other.append(KEY, [_said("b")])) == ["a", "b"]
            assert _names(opened.append(KEY, [], known=1)) == ["b"]
            assert other.lease(KEY, "work", "one", now_s=1_000, ttl_s=600)
            assert not opened.lease(KEY, "work", "two", now_s=1_000, ttl_s=600)
        finally:
            other.close()
        opened.close()
        again = self.open_store(place)
        try:
            assert again.head(KEY) == Head(2, 0)
            assert again.postings(KEY, ["hello"]).by_term == {"hello": ((1, 1, 1),)}
            assert _remembered(again) == ["likes tea"]
        finally:
            again.close()

    def test_a_closed_store_says_so(self, store: Store) -> None:
        store.append(KEY, [_said("a")])
        store.close()
        store.close()
        calls: tuple[Callable[[], object], ...] = (
            lambda: store.head(KEY),
            lambda: store.read(KEY),
            lambda: store.append(KEY, [_said("b")]),
            lambda: store.sessions("ann"),
            lambda: store.memories("ann"),
        )
        for call in calls:
            with pytest.raises(StoreUnavailableError, match="closed: open a new one"):
                call()

    def test_text_that_cannot_be_encoded_is_refused(self, store: Store) -> None:
        if not self.durable:
            pytest.skip("the store need not encode text")
        bad = Message("m1", "user", (TextPart("half \ud83d"),))
        with pytest.raises(InvalidTextError):
            store.append(KEY, [Draft("m1", MessageAdded(bad))])
        assert store.head(KEY) is None
