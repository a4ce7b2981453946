"""One search over all sessions of an owner: the ranking of one index, on every store, and nothing of anybody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ctxfold import AgentContext, ConfigError, MemoryStore, Message, SqlStore, Store, assistant, user
from ctxfold.errors import UnknownRoleError
from ctxfold.history.records import SessionKey
from ctxfold.protocols import Postings
from tests.retrieval.test_archive import ASKED, SAID, said
from tests.stores.outside_store import TableStore
from tests.support.driven import Driven, context, tool_round, turns
from tests.support.postgres_schema import fresh_schema

NAMES = ("a", "b", "c", "d")


@pytest.fixture(params=["memory", "sqlite", "postgresql", "outside"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Store]:
    match request.param:
        case "memory":
            found: Store = MemoryStore()
        case "sqlite":
            found = SqlStore(f"sqlite:///{tmp_path}/a.db")
        case "outside":
            found = TableStore(tmp_path / "a.db")
        case _:
            found = SqlStore(request.getfixturevalue("emptied_schema"))
    yield found
    found.close()


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Generator[Callable[..., tuple[Any, ...]]]:
    """Runs `search_owner` of a context, or its async form on a loop."""
    with asyncio.Runner() as runner:
        driver = runner if request.param == "async" else None
        yield lambda ctx, *args, **kwargs: Driven(ctx, driver).archive.search_owner(*args, **kwargs)


def exchange(place: int) -> list[Message]:
    if place < len(SAID):
        return said(place)
    filler = "word " * 20
    return [user(f"hall {place} {filler}", id=f"s{place}"), assistant(f"Noted {place}. {filler}", id=f"n{place}")]


def split(store: Store, owner: str = "ann") -> AgentContext:
    """Forty exchanges in four sessions, of each the older half compacted."""
    for at, name in enumerate(NAMES):
        with context(store=store, owner=owner, session_id=name, context_window=3_000) as ctx:
            for place in range(10 * at, 10 * at + 10):
                ctx.add(exchange(place))
                if place % 10 == 5:
                    ctx.compact(force=True)
            assert ctx.usage().compactions
    return context(store=store, owner=owner, session_id="a", context_window=3_000)


def test_the_ranking_is_that_of_one_index(store: Store, ask: Callable[..., Any]) -> None:
    with split(store) as ctx, context(context_window=100_000) as joined:
        for place in range(40):
            joined.add(exchange(place))
        for query in ASKED:
            apart = {h.message_id: h.score for h in ask(ctx, query, 50)}
            assert apart == {h.message_id: pytest.approx(h.score) for h in joined.search(query, 50)}
            assert apart


def test_a_hit_says_where_and_when(store: Store, ask: Callable[..., Any]) -> None:
    with split(store) as ctx:
        hit = ask(ctx, "staging port")[0]
        place = int(hit.message_id[1:])
        assert (hit.session, hit.role) == (NAMES[place // 10], "user")
        assert "staging" in hit.excerpt
        assert ctx.at(hit.session).archive.get(hit.reference).id == hit.message_id
        assert abs(hit.at_s - datetime.now(UTC).timestamp()) < 3_600
        own = ctx.at(hit.session).search("staging port")[0]
        assert (own.session, own.at_s, own.excerpt) == (hit.session, hit.at_s, hit.excerpt)


def test_other_owners_are_never_searched(store: Store, ask: Callable[..., Any]) -> None:
    secret = "the vault combination is 9921"
    for owner, session in (("mallory", "a"), ("ann2", "zz"), ("an", "b")):
        with context(store=store, owner=owner, session_id=session) as other:
            other.add(user(secret, id="secret"))
            other.add(assistant("noted", id="n"))
            other.edit.clear()  # archived: in the index of the store
            other.add(user(f"{secret}, once more", id="again"))
    with split(store) as ctx:
        assert not ask(ctx, "vault combination 9921")
        assert not ask(ctx, "vault combination 9921", sessions=["a", "b", "zz"])
        assert len(ask(ctx.at("a", owner="mallory"), "vault combination 9921")) == 2
    with pytest.raises(ConfigError, match="owner name is empty"):
        context(store=store, session_id="x").at("x", owner="")


def test_erased_messages_are_not_found(store: Store, ask: Callable[..., Any]) -> None:
    with split(store) as ctx:
        compacted, live = ask(ctx, "door code north entrance")[0], ask(ctx, "hall 39")[0]
        assert (compacted.session, live.session) == ("a", "d")
        ctx.at("a").erasure.erase(compacted.message_id)
        ctx.at("d").erasure.erase(live.message_id)
        found = {h.message_id for query in ("door code north entrance", "hall 39") for h in ask(ctx, query, 100)}
        assert found
        assert not found & {compacted.message_id, live.message_id}
        ctx.at("d").erasure.erase_session()
        assert {h.session for h in ask(ctx, "word", 100)} == {"a", "b", "c"}
        ctx.erasure.erase_owner()
        assert not ask(ctx, "word", 100)


def test_filters(store: Store, ask: Callable[..., Any]) -> None:
    with split(store) as ctx:
        everything = ask(ctx, "word", 100)
        assert {h.session for h in everything} == set(NAMES)
        assert {h.session for h in ask(ctx, "word", 100, sessions=["b", "c", "missing"])} == {"b", "c"}
        assert not ask(ctx, "word", sessions=[])
        assert {h.role for h in everything} == {"user", "assistant"}
        replies = ask(ctx, "word", 100, roles=["assistant"])
        assert replies == tuple(h for h in everything if h.role == "assistant")
        assert len(ask(ctx, "word", 3)) == 3
        times = sorted(h.at_s for h in everything)
        middle = datetime.fromtimestamp(times[len(times) // 2], UTC)
        late = ask(ctx, "word", 100, since=middle)
        early = ask(ctx, "word", 100, until=middle)
        assert {h.at_s >= middle.timestamp() for h in late} == {True}
        assert {h.at_s < middle.timestamp() for h in early} == {True}
        assert {(h.session, h.message_id) for h in (*late, *early)} == {(h.session, h.message_id) for h in everything}
        assert len(ask(ctx, "word", 100, since=timedelta(hours=1))) == len(everything)
        assert not ask(ctx, "word", 100, until=timedelta(hours=1))
        assert not ask(ctx, "")
        assert not ask(ctx, "zebra")


def test_excerpts_and_restored_messages_count_once(store: Store, ask: Callable[..., Any]) -> None:
    with context(store=store, owner="ann", session_id="a", context_window=2_000) as ctx:
        ctx.add(turns(12))
        ctx.compact(force=True)
        ctx.restore("u0")
        ctx.add([user("go", id="g"), *tool_round("t", "large " * 900), assistant("ok", id="z")])
        ctx.service.inject("code", ["a question of the section, for an answer"])
        blocks = ctx.explain().blocks
        assert any(b.why.startswith("excerpt") for b in blocks), [b.why for b in blocks]
        for query in ("large output", "question 0", "answer"):
            hits = ctx.search(query, 100)
            assert [(h.message_id, h.score) for h in ask(ctx, query, 100)] == [
                (h.message_id, pytest.approx(h.score)) for h in hits
            ]
            assert hits


def test_what_is_no_filter_is_refused() -> None:
    with context(session_id="a") as ctx:
        ctx.add("a word")
        for wrong in (
            {"sessions": "a"},
            {"sessions": [1]},
            {"roles": "user"},
            {"since": datetime(2026, 1, 1)},  # noqa: DTZ001 - it is what is refused
            {"until": timedelta(days=-1)},
            {"since": 5},
            {"limit": 0},
        ):
            with pytest.raises(ConfigError):
                ctx.archive.search_owner("word", **wrong)
        with pytest.raises(UnknownRoleError, match="role is 'robot'"):
            ctx.archive.search_owner("word", roles=["robot"])


def test_a_fork_adds_no_second_hit(store: Store, ask: Callable[..., Any]) -> None:
    with split(store) as ctx:
        before = [(h.message_id, h.excerpt) for h in ask(ctx, "staging port", 100)]
        ctx.at("a").fork("a2")
        assert sorted((h.message_id, h.excerpt) for h in ask(ctx, "staging port", 100)) == sorted(before)


def test_what_only_the_user_sees_is_not_found(store: Store, ask: Callable[..., Any]) -> None:
    with context(store=store, owner="ann", session_id="a") as ctx:
        ctx.add("a private zebra", visibility="user")
        ctx.add("a public zebra")
        assert [h.excerpt for h in ask(ctx, "zebra")] == ["a public zebra"]


def test_a_search_writes_nothing(store: Store, ask: Callable[..., Any]) -> None:
    with split(store) as ctx:
        keys = [SessionKey("ann", name) for name in NAMES]
        before = [store.read(key) for key in keys]
        assert ask(ctx, "word")
        assert [store.read(key) for key in keys] == before


class Counting(SqlStore):
    """Counts how its index is asked."""

    def __init__(self, url: str) -> None:
        self.asked: list[str] = []
        super().__init__(url)

    def postings(self, *args: Any, **kwargs: Any) -> Postings:
        self.asked.append("session")
        return super().postings(*args, **kwargs)

    def owner_postings(self, owner: str, terms: Sequence[str], *, newest: int) -> Mapping[str, Postings]:
        self.asked.append("owner")
        return super().owner_postings(owner, terms, newest=newest)


def test_a_sql_store_is_asked_once_for_all_sessions(tmp_path: Path) -> None:
    with Counting(f"sqlite:///{tmp_path}/a.db") as store, split(store) as ctx:
        store.asked.clear()
        assert ctx.archive.search_owner("staging port")
        assert store.asked == ["owner"]
        assert ctx.archive.search_owner("word", sessions=["c"])
        assert store.asked == ["owner", "session"]


def test_of_a_frequent_word_the_newest_count() -> None:
    """Of so many sessions that only 64 hits of each are read, those are the newest, and rare words lose nothing."""
    with MemoryStore() as store, context(store=store, owner="ann", session_id="s0", context_window=100_000) as ctx:
        ctx.add([user("rare beginning, common", id="first"), *(user(f"common {n}", id=f"m{n}") for n in range(200))])
        ctx.edit.clear()
        assert len(ctx.archive.search_owner("common", 500)) == 201
        for n in range(1, 1_100):
            store.append(SessionKey("ann", f"s{n}"), ())
        found = ctx.archive.search_owner("common", 500)
        assert {h.message_id for h in found} == {f"m{n}" for n in range(136, 200)}
        first, second = ctx.archive.search_owner("rare common", 2)
        assert first.message_id == "first"
        assert second.score < 0.1 < first.score  # nearly every message has the common word, unread ones too


def test_the_index_of_all_sessions_is_that_of_each(postgres_url: str, tmp_path: Path) -> None:
    terms = ["word", "port", "absent", "word"]
    with fresh_schema(postgres_url) as url:
        for store in (SqlStore(f"sqlite:///{tmp_path}/a.db"), SqlStore(url)):
            with store, split(store), split(store, owner="bob"):
                for newest in (1, 3, 1_000):
                    apart = {n: store.postings(SessionKey("ann", n), terms, newest=newest) for n in NAMES}
                    assert store.owner_postings("ann", terms, newest=newest) == apart
                assert store.owner_postings("nobody", terms, newest=3) == {}
