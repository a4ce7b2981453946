"""Vectors that stay in the store: a restart embeds nothing twice, another embedder makes them anew, an erasure removes them."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import threading
from collections.abc import Callable, Generator
from multiprocessing.synchronize import Event
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from ctxfold import AgentContext, MemoryStore, SqlStore, assistant, user
from ctxfold.errors import StoreCorruptError
from ctxfold.history.records import SessionKey
from ctxfold.index.cache import Vectors
from ctxfold.retrieval.embeddings import NEWEST_RECORDS, PROBE
from tests.support.driven import Driven, turns
from tests.support.minilm import MiniLM
from tests.support.open_sessions import opened as opened_session
from tests.support.postgres_schema import fresh_schema
from tests.support.processes import CONTEXT, import_once, start

import_once(__name__)

Make = Callable[..., Driven]
KEY = SessionKey("default", "kept")
MEANINGS = ({"automobile", "car", "vehicle"}, {"red", "crimson", "colour", "color"})
KILLS = int(os.environ.get("CTXFOLD_KILLS", "4"))
QUESTION = "Which color has the vehicle?"


class Counting:
    """An embedder for which some words mean alike, or another whose numbers stand in another order; counts what it is asked."""

    def __init__(self, *, other: bool = False) -> None:
        self.asked: list[str] = []
        self.step = -1 if other else 1

    def embed(self, texts: Any) -> list[list[float]]:
        self.asked += texts
        words = [set(text.lower().replace("?", " ").replace(".", " ").split()) for text in texts]
        return [[*(float(len(w & meaning)) for meaning in MEANINGS), 0.1, 0.2][:: self.step] for w in words]

    async def aembed(self, texts: Any) -> list[list[float]]:
        return self.embed(texts)

    @property
    def messages(self) -> list[str]:
        return [text for text in self.asked if text not in (QUESTION, PROBE)]


MODEL = MiniLM()  # embeds each text once for all tests: what an embedder is asked for is counted by `Counting`


class Real(Counting):
    """A model."""

    def embed(self, texts: Any) -> list[list[float]]:
        self.asked += texts
        return MODEL.embed(texts)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def anywhere(request: pytest.FixtureRequest) -> Any:
    """The place of a store, or the store itself where it is in memory."""
    return MemoryStore() if request.param == "memory" else request.getfixturevalue(f"{request.param}_place")


@pytest.fixture
def sqlite_place(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/a.db"


@pytest.fixture
def postgres_place(postgres_url: str) -> Generator[str]:
    with fresh_schema(postgres_url) as place:
        yield place


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/a.db"
        return
    with fresh_schema(request.getfixturevalue("postgres_url")) as place:
        yield place


def opened(make: Make, url: Any, embedder: Any) -> Driven:
    return make(
        None,
        session_id=KEY.session,
        context_window=2_000,
        strategy="sliding_window",
        keep_last=2,
        embedder=embedder,
        store=url,
    )


def filled(make: Make, url: Any, embedder: Any) -> Driven:
    ctx = opened(make, url, embedder)
    ctx.add([user("My automobile is crimson.", id="m1"), assistant("Nice.", id="m2"), *turns(5)])
    return ctx


def recalled(ctx: Any) -> str:
    return str(ctx.window(recall=True, question=QUESTION).recalled)


def test_a_restart_embeds_nothing_twice(url: str, make: Make) -> None:
    first, second = Real(), Real()
    ctx = filled(make, url, first)
    before = recalled(ctx)
    assert "crimson" in before
    assert "My automobile is crimson." in first.messages
    ctx.close()
    again = opened(make, url, second)
    assert recalled(again) == before
    assert second.messages == []
    again.add(turns(2, start=50))
    recalled(again)
    assert set(second.messages).isdisjoint(first.messages)
    assert len(second.messages) == len(set(second.messages)) > 0


@pytest.mark.parametrize("at", [None, "m2", "a3"])
def test_r2_a_fork_embeds_nothing_again(anywhere: Any, make: Make, at: str | None) -> None:
    """A fork and a branch share the vectors of the records that they have in common; what they say on their own gets its own."""
    first = Real()
    ctx = filled(make, anywhere, first)
    assert "crimson" in recalled(ctx)
    second = Real()
    other = opened(make, anywhere, second)
    forked = other.ctx.fork("forked", at)
    for turn in range(3):
        forked.window(recall=True, question=QUESTION)
        forked.add([user(f"Word {turn} of the fork.", id=f"f{turn}"), assistant(f"Reply {turn}.", id=f"g{turn}")])
    assert "crimson" in str(forked.window(recall=True, question=QUESTION).recalled)
    assert set(second.messages).isdisjoint(first.messages)
    assert "Word 0 of the fork." in second.messages


def test_r2_the_vectors_of_older_visible_messages_are_kept(url: str, make: Make) -> None:
    """Recall embeds older messages that may give way before they are compacted: a restart embeds none of them again."""
    first, second = Counting(), Counting()
    settings: dict[str, Any] = {"session_id": KEY.session, "context_window": 2_400, "store": url}
    ctx = make(None, embedder=first, **settings)
    for message in [user("My automobile is crimson.", id="m1"), assistant("Nice.", id="m2"), *turns(70)]:
        ctx.add([message])
    recalled(ctx)
    assert any(text.split("word")[0].strip() in str(ctx.view().messages) for text in first.messages)
    ctx.close()
    recalled(make(None, embedder=second, **settings))
    assert second.messages == []


def test_another_worker_uses_what_one_has_embedded(url: str, make: Make) -> None:
    first, second = Counting(), Counting()
    one, two = filled(make, url, first), opened(make, url, second)
    for step in range(3):
        assert "crimson" in recalled(one)
        assert "crimson" in recalled(two)
        one.add(turns(1, start=50 + step))
    assert second.messages == []


def test_another_embedder_makes_them_anew(url: str, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ctxfold")
    filled_with = Counting()
    ctx = filled(make, url, filled_with)
    recalled(ctx)
    ctx.close()
    other, again = Counting(other=True), Counting(other=True)
    ctx = opened(make, url, other)
    assert "another embedder" not in caplog.text
    assert "crimson" in recalled(ctx)
    assert f"session {KEY.session!r} has vectors of another embedder: they are made anew" in caplog.messages
    assert sorted(other.messages) == sorted(filled_with.messages)
    ctx.close()
    with SqlStore(url) as store:
        assert len(store.embedders(KEY)) == 1, "what the embedder before had made is of no use any more"
    ctx = opened(make, url, again)
    assert "crimson" in recalled(ctx)
    assert again.messages == []


def test_an_erasure_removes_vectors(url: str, make: Make) -> None:
    ctx = filled(make, url, Counting())
    recalled(ctx)
    with SqlStore(url) as store:
        (embedder,) = store.embedders(KEY)
        before = store.vectors(KEY, embedder)
        (erased,) = (record.seq for record in store.find(KEY, ["m:m1"]))
        assert erased in before
        ctx.erasure.erase("m1")
        left = store.vectors(KEY, embedder)
        assert erased not in left
        assert left.items() <= before.items()
        # a worker that embedded the message before it was erased, and stores its vector afterwards
        store.put_vectors(KEY, embedder, before)
        assert store.vectors(KEY, embedder) == {seq: data for seq, data in before.items() if seq != erased}
        store.erase_owner(KEY.owner)
        store.put_vectors(KEY, embedder, before)
        assert (store.embedders(KEY), store.vectors(KEY, embedder)) == ({}, {})


def long_session(url: str, embedder: Any, **settings: Any) -> AgentContext:
    """Passages have room beside the tail: it need not give way, so that none of its messages, which are not stored, is embedded."""
    return AgentContext(
        session_id=KEY.session,
        context_window=2_000,
        recall_ratio=0.6,
        strategy="sliding_window",
        keep_last=2,
        store=url,
        embedder=embedder,
        **settings,
    )


def fill_long_session(url: str) -> None:
    """More messages than one question goes through, embedded by nobody."""
    with long_session(url, None) as ctx:
        ctx.add([user("My automobile is crimson.", id="m1"), assistant("Nice.", id="m2"), *turns(5)])
        ctx.add([user(f"Word {n}.", id=f"w{n}") for n in range(NEWEST_RECORDS)])


def still_to_embed(url: str) -> int:
    """Up to which record the log is still to be gone through, by the newest of the embedders."""
    with SqlStore(url) as store:
        return min(int(json.loads(data)[1]) for data in store.embedders(KEY).values())


def embed_all(url: str, make_embedder: Callable[[], Any]) -> list[str]:
    """Returns what embedders were asked for until all is embedded; a worker may be ended before, and the next one goes on."""
    asked: list[str] = []
    for _ in range(100):
        embedder = make_embedder()
        with long_session(url, embedder) as ctx:
            ctx.window(recall=True, question=QUESTION)
        asked += embedder.messages
        if not still_to_embed(url):
            return asked
    raise AssertionError(f"{still_to_embed(url)} records are still to be embedded")


def test_what_was_compacted_long_ago_follows_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of it is left out, and a question does not wait for it; the background takes several steps here, and tells them."""
    caplog.set_level(logging.INFO, "ctxfold")
    monkeypatch.setattr("ctxfold.retrieval.embeddings.NEWEST_RECORDS", 512)
    url = f"sqlite:///{tmp_path}/a.db"
    with long_session(url, None) as ctx:
        ctx.add([user("My automobile is crimson.", id="m1"), assistant("Nice.", id="m2"), *turns(5)])
        for start in range(0, 2_400, 240):
            ctx.add([user(f"Word {n}.", id=f"w{n}") for n in range(start, start + 240)])
    asked = embed_all(url, Counting)
    assert {"My automobile is crimson.", *(f"Word {n}." for n in range(2_100))} <= set(asked)
    assert len(asked) == len(set(asked))
    told = [int(n) for n in re.findall(r"messages up to record (\d+) are still to be embedded", caplog.text)]
    assert len(told) > 2
    assert told == sorted(set(told), reverse=True)
    assert told[-1] == 0
    monkeypatch.setattr("ctxfold.retrieval.embeddings.STORED_RECORDS", 500)  # read in pieces
    again = Counting()
    with long_session(url, again) as ctx:
        ctx.window(recall=True, question=QUESTION)
        assert len(opened_session(ctx).vectors) == len(asked)
    assert again.messages == []


class Paced(Counting):
    """Another embedder, so slow that a process is killed between its calls."""

    def __init__(self) -> None:
        super().__init__(other=True)

    def embed(self, texts: Any) -> list[list[float]]:
        sleep(0.004)
        return super().embed(texts)


class Gated(Counting):
    """Waits in the background, where it is asked for words of long ago, until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.waiting = threading.Event(), threading.Event()

    def embed(self, texts: Any) -> list[list[float]]:
        if "My automobile is crimson." in texts:
            self.waiting.set()
            assert self.gate.wait(300)
        return super().embed(texts)


def test_a_session_that_is_being_embedded_stays_in_memory(tmp_path: Path) -> None:
    """Read anew, it would be embedded a second time at once."""
    url, embedder = f"sqlite:///{tmp_path}/a.db", Gated()
    fill_long_session(url)
    with long_session(url, embedder, max_sessions=1) as ctx:
        ctx.window(recall=True, question=QUESTION)
        assert embedder.waiting.wait(300)
        session = opened_session(ctx)
        for n in range(3):
            ctx.at(f"other {n}").view()
        assert opened_session(ctx) is session
        embedder.gate.set()
    assert len(embedder.messages) == len(set(embedder.messages))


def embed_anew(url: str, begun: Event) -> None:
    with long_session(url, Paced()) as ctx:
        begun.set()
        while True:
            ctx.window(recall=True, question=QUESTION)


def test_killed_while_another_embedder_makes_them_anew(url: str, tmp_path: Path) -> None:
    """No vector is lost or wrong, none that is stored is made again, and those of the embedder before go at the end."""
    rng, kept = random.Random(KILLS), 0
    undisturbed = f"sqlite:///{tmp_path}/undisturbed.db"
    for place, made_by in ((url, Counting), (undisturbed, Paced)):
        fill_long_session(place)
        embed_all(place, made_by)
    with SqlStore(undisturbed) as store:
        ((name, _),) = store.embedders(KEY).items()
        expected = store.vectors(KEY, name)
    with SqlStore(url) as store:
        for _ in range(KILLS):
            begun = CONTEXT.Event()
            worker = start(embed_anew, url, begun)
            assert begun.wait(300)
            worker.join(rng.uniform(0.0, 0.25))
            worker.kill()
            worker.join()
            found = store.vectors(KEY, name)
            assert found.items() <= expected.items()
            assert len(found) >= kept
            kept = len(found)
        asked = embed_all(url, Paced)
        assert len(asked) == len(expected) - kept
        assert store.vectors(KEY, name) == expected
        assert [*store.embedders(KEY)] == [name]


def test_damaged_vectors_are_told() -> None:
    vectors = Vectors()
    vectors.add((1, 0), [1.0, 2.0])
    data = vectors.packed([1])[1]
    for damaged in (data[:-1], data[:6], b"", data + b"1234"):
        with pytest.raises(StoreCorruptError, match="stored vectors cannot be read"):
            Vectors().unpack({1: damaged})
    copy = Vectors()
    copy.unpack({1: data})
    assert copy.nearest([1.0, 2.0], 1, ()) == vectors.nearest([1.0, 2.0], 1, ())


def test_vectors_of_an_erased_log_are_none_of_the_one_that_follows(anywhere: Any, make: Make) -> None:
    """Another worker erases the session, and begins it anew: its messages have the numbers of the erased ones."""
    one, two = filled(make, anywhere, Counting()), opened(make, anywhere, Counting())
    for number in range(10):
        one.add(turns(2, start=70 + 2 * number))
        assert "crimson" in recalled(one)
    two.erasure.erase_session()
    again = opened(make, anywhere, Counting())
    again.add([user("Good morning.", id="n0"), assistant("Good morning.", id="n1")])
    again.add(
        [*turns(6, start=100), user("Her car is red.", id="n2"), assistant("Fine.", id="n3"), *turns(5, start=110)]
    )
    told = recalled(one)
    assert "Her car is red." in told
    assert "crimson" not in told


def test_no_vector_of_an_erased_message_stays_in_memory(anywhere: Any, make: Make) -> None:
    embedder = Counting()
    one, two = filled(make, anywhere, embedder), opened(make, anywhere, Counting())
    assert "crimson" in recalled(one)
    seq = next(r.seq for r in one.ctx.handle.store.find(KEY, ["m:m1"]))
    assert (seq, 0) in opened_session(one.ctx).vectors
    embedder.asked.clear()
    two.erasure.erase("m1")
    recalled(one)
    assert (seq, 0) not in opened_session(one.ctx).vectors
    assert embedder.messages == [], "the others are in the store"
