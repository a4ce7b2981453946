"""Memory items on every store: one in force per place, replaced, forgotten and erased alike."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctxfold.errors import ConfigError, InvalidTextError, MessageError
from ctxfold.history.items import MemoryItem
from ctxfold.history.records import Draft, PolicyChanged, SessionKey
from ctxfold.ports import Rewrite
from ctxfold.stores.memory import MemoryStore
from ctxfold.stores.sql import SqlStore
from tests.core.postgres_schema import fresh_schema

KEY = SessionKey("ann", "s1")


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


def item(name: str, text: str, **fields: Any) -> MemoryItem:
    return MemoryItem(name, fields.pop("kind", "facts"), text, created_s=float(name[1:]), **fields)


def texts(store: Any, owner: str = "ann", **terms: Any) -> list[str]:
    return [i.text for i in store.memories(owner, **terms)]


def test_an_item_comes_back_as_it_was(store: Any) -> None:
    full = item(
        "i1",
        "Zoë lives in “Köln”\n\x00 🙂",
        key="home",
        session="s1",
        shared=False,
        confidence=0.5,
        sources=("m1", "m2"),
        data=(("subject", "Zoë"),),
    )
    done = store.remember("ann", [full, item("i2", "likes tea", kind="persona")])
    assert [d.item for d in done] == [full, item("i2", "likes tea", kind="persona")]
    assert all(d.new and d.replaced is None for d in done)
    assert store.memories("ann") == (done[1].item, full), "newest first"
    assert texts(store, kinds=["persona"]) == ["likes tea"]
    assert texts(store, kinds=[]) == []
    assert texts(store, newest=1) == ["likes tea"]
    assert store.memories("bob") == ()


def test_a_new_value_for_a_key_replaces_the_old_one_and_says_so(store: Any) -> None:
    store.remember("ann", [item("i1", "lives in Paris", key="home"), item("i2", "has a cat", key="pet")])
    (done,) = store.remember("ann", [item("i3", "lives in Berlin", key="Home")])
    assert done.replaced is not None
    assert done.replaced.text == "lives in Paris"
    assert done.item.replaces == "lives in Paris"
    assert texts(store) == ["lives in Berlin", "has a cat"]
    everything = {i.id: i for i in store.memories("ann", everything=True)}
    assert everything["i1"].superseded_by == "i3"
    store.remember("ann", [item("i4", "home of one session", key="home", session="s1", shared=False)])
    assert len(texts(store)) == 3, "who sees it counts too"


def test_what_is_known_is_not_kept_twice_and_gains_sources(store: Any) -> None:
    store.remember("ann", [item("i1", "lives in Paris", key="home", sources=("m1",), confidence=0.4)])
    (again,) = store.remember("ann", [item("i2", "lives in Paris", key="home", sources=("m2",), confidence=0.9)])
    assert not again.new
    assert again.item == replace(item("i1", "lives in Paris", key="home"), sources=("m1", "m2"), confidence=0.9)
    assert store.memories("ann") == (again.item,)
    done = store.remember("ann", [item("i3", "No key."), item("i4", "no  KEY."), item("i5", "no key")])
    assert [d.new for d in done] == [True, False, True]


def test_forgotten_text_is_gone_and_is_not_learnt_again_from_the_same_messages(store: Any) -> None:
    store.remember("ann", [item("i1", "lives in Paris", key="home", sources=("m1",))])
    store.remember("ann", [item("i2", "lives in Berlin", key="home", sources=("m2",))])
    assert [i.text for i in store.forget("ann", ["i1", "nobody"])] == ["lives in Paris"]
    assert store.memories("ann")[0].replaces == "", "what replaced it does not quote it"
    assert [i.text for i in store.forget("ann", ["i2"])] == ["lives in Berlin"]
    assert store.forget("ann", ["i2"]) == ()
    assert texts(store) == []
    assert {i.text + i.key for i in store.memories("ann", everything=True)} == {""}
    (same,) = store.remember("ann", [item("i3", "lives in Berlin", key="home", sources=("m2",))])
    assert not same.new
    assert texts(store) == []
    (said_again,) = store.remember("ann", [item("i4", "lives in Berlin", key="home", sources=("m2", "m9"))])
    assert said_again.new
    (by_hand,) = store.remember("ann", [item("i5", "lives in Rome", key="home")])
    assert by_hand.new
    assert texts(store) == ["lives in Rome"]


def test_erasure_takes_what_was_learnt_along(store: Any) -> None:
    store.append(KEY, [Draft("p", PolicyChanged("{}", "c"))])
    store.remember(
        "ann",
        [
            item("i1", "secret", key="k", session="s1", sources=("m1",)),
            item("i2", "other", session="s1", sources=("m2",)),
            item("i3", "of another session", session="s2", sources=("m1",)),
        ],
    )
    store.remember("ann", [item("i4", "public", key="k", session="s1", sources=("m3",))])
    store.remember("bob", [item("i1", "bob's", session="s1", sources=("m1",))])
    store.erase([Rewrite(KEY, 1, ("m1",), (), (), ())])
    left = store.memories("ann", everything=True)
    assert {i.text for i in left} == {"other", "of another session", "public"}
    assert {i.replaces for i in left} == {""}
    store.erase([], gone=[KEY])
    assert texts(store, everything=True) == ["of another session"]
    store.erase_owner("ann")
    assert texts(store, everything=True) == []
    assert texts(store, "bob") == ["bob's"]


def test_writers_at_once_leave_one_item_in_force(store: Any) -> None:
    def write(n: int) -> None:
        store.remember("ann", [item(f"i{n}", f"value {n}", key="home")])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(1, 25)))
    assert len(texts(store)) == 1
    chain = {i.id: i for i in store.memories("ann", everything=True)}
    assert len(chain) == 24
    assert sum(i.superseded_by is None for i in chain.values()) == 1


def test_what_no_store_could_keep_is_refused(store: Any) -> None:
    with pytest.raises(MessageError):
        store.remember("ann", [item("i1", "x", kind="a\0b")])
    with pytest.raises(InvalidTextError):
        store.remember("ann", [item("i1", "x\ud800")])
    with pytest.raises(ConfigError):
        store.remember("a\0", [item("i1", "x")])
    assert store.remember("ann", []) == ()
    assert store.forget("ann", []) == ()


async def test_async_forms(store: Any) -> None:
    assert (await store.aremember("ann", [item("i1", "x")]))[0].new
    assert [i.text for i in await store.amemories("ann", kinds=["facts"])] == ["x"]
    assert [i.text for i in await store.aforget("ann", ["i1"])] == ["x"]
