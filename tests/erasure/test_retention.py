"""Retention: what is beyond the limits goes, by one worker at a time, and an interrupted run is resumed."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ctxfold import AgentContext, ConfigError, MemoryStore, Retention, SqlStore, assistant, user
from ctxfold.engine.retention import Pruned, Pruning
from ctxfold.errors import SessionNotFoundError
from ctxfold.history.records import Draft, Record, SessionKey
from tests.support.driven import call, context, scripted, tool_round
from tests.support.postgres_schema import fresh_schema
from tests.support.processes import import_once, start

import_once(__name__)

DAY_S = 86_400.0
LEASE_S = 0.2
KILLS = int(os.environ.get("CTXFOLD_KILLS", "6"))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        yield MemoryStore()
        return
    if request.param == "sqlite":
        with SqlStore(f"sqlite:///{tmp_path / 'kept.db'}") as found:
            yield found
        return
    with SqlStore(request.getfixturevalue("emptied_schema")) as found:
        yield found


def written(store: Any, session: str, *, turns: int, days_ago: float, text: str = "word") -> AgentContext:
    """A session whose turns were stored one an hour, the last of them some days ago."""
    with context(store=MemoryStore(), session_id=session, context_window=50_000) as made:
        for n in range(turns):
            made.add([user(f"{text} {n} of {session}", id=f"u{n}"), assistant(f"noted {n}", id=f"a{n}")])
        records = made.handle.store.read(SessionKey("default", session))
    end_s = time.time() - days_ago * DAY_S
    drafts = [
        Draft(r.id, r.body, r.turn_id, end_s - 3_600.0 * (len(records) - number)) for number, r in enumerate(records)
    ]
    store.append(SessionKey("default", session), drafts)
    return context(store=store, session_id=session, context_window=50_000)


def texts(ctx: AgentContext) -> list[str]:
    return [m.id for m in ctx.messages() if m.role != "system"]


def test_by_age(store: Any) -> None:
    """Old messages go; a session that was not used since is removed; another owner's stay."""
    live = written(store, "live", turns=40, days_ago=0)
    written(store, "idle", turns=3, days_ago=40)
    other = context(store=store, session_id="idle", owner="bob", context_window=50_000)
    other.add([user("mine", id="u0"), assistant("yes", id="a0")])
    before = texts(live)
    done = live.erasure.prune(Retention(max_age=timedelta(days=1)))
    kept = texts(live)
    assert 0 < len(kept) < len(before)
    assert kept == before[-len(kept) :]
    assert (done.sessions, done.removed, done.busy) == (("live",), ("idle",), False)
    assert done.messages == len(before) - len(kept)
    assert (store.sessions("default"), texts(other)) == (("live",), ["u0", "a0"])
    again = live.erasure.prune(Retention(max_age=timedelta(days=1)))
    assert again == Pruned()
    assert live.erasure.prune(Retention(max_age=timedelta(minutes=1))).removed == (
        "live",
    )  # the erasure itself is no use of it


def test_h4_sessions_that_nobody_used_go_and_others_keep_all(store: Any) -> None:
    live = written(store, "live", turns=40, days_ago=0)
    written(store, "idle", turns=3, days_ago=40)
    before = texts(live)
    done = live.erasure.prune(Retention(max_idle=timedelta(days=30)))
    assert (done.messages, done.removed, store.sessions("default")) == (0, ("idle",), ("live",))
    assert texts(live) == before
    assert live.erasure.prune(Retention(max_idle=timedelta(days=30))) == Pruned()
    with pytest.raises(ConfigError, match="max_idle is 0:00:00: give a span of time above zero"):
        Retention(max_idle=timedelta(0))


def test_by_count_and_bytes(store: Any) -> None:
    ctx = written(store, "s", turns=20, days_ago=0)
    before = texts(ctx)
    assert ctx.erasure.prune(Retention(max_messages=10)).messages == 30
    assert texts(ctx) == before[-10:]
    ctx.erasure.prune(Retention(max_bytes=600))
    kept = texts(ctx)
    assert 0 < len(kept) < 10
    assert kept == before[-len(kept) :]
    assert ctx.erasure.prune(Retention(max_messages=10, max_bytes=600)) == Pruned()
    assert "word 0 of s" not in str(store.read(SessionKey("default", "s")))


def test_rules_of_sessions(store: Any) -> None:
    for name in ("a", "b", "c"):
        ctx = written(store, name, turns=5, days_ago=0)
    seen: list[Pruning] = []
    rules = {"b": None, "c": Retention(max_messages=2)}
    done = ctx.erasure.prune(Retention(max_messages=4), by_session=rules, on_progress=seen.append)
    assert (done.messages, done.sessions) == (14, ("a", "c"))
    assert [(p.session, p.done, p.total) for p in seen] == [("a", 1, 3), ("b", 2, 3), ("c", 3, 3)]
    assert [len(texts(ctx.at(name))) for name in ("a", "b", "c")] == [4, 10, 2]
    assert ctx.erasure.prune(None, by_session={"b": Retention(max_messages=6)}).sessions == ("b",)


def test_tool_rounds_and_open_turns_stay_whole(store: Any) -> None:
    ctx = context(store=store, session_id="s", context_window=50_000)
    for n in range(3):
        ctx.add([user(f"q{n}", id=f"u{n}"), *tool_round(f"t{n}"), assistant("done", id=f"a{n}")])
    call, result = tool_round("w1")
    ctx.add([user("waiting", id="w"), call])
    ctx.erasure.prune(Retention(max_messages=1))
    ctx.add([result, assistant("done", id="w2")])
    kept = texts(ctx)
    assert kept[-4:] == ["w", "w1-a", "w1-r0", "w2"]
    assert {"t2-a", "t2-r0"} & set(kept) in (set(), {"t2-a", "t2-r0"})
    assert "u0" not in kept


def test_turns_that_a_model_has_answered_are_beyond_the_limits_too(store: Any) -> None:
    """Their messages are stored in a turn of their own, unlike those that are added."""
    ctx = context(scripted("one", "two", assistant("", id="c", calls=[call("c1")])), store=store, session_id="s")
    for question in ("first?", "second?", "third?"):
        ctx.send(question)
    assert ctx.erasure.prune(Retention(max_messages=1)).messages == 3
    assert [m.text for m in ctx.messages()] == ["two", "third?", ""], "the open turn stays, and does not count"


async def test_async(store: Any) -> None:
    ctx = written(store, "s", turns=5, days_ago=0)
    assert (await ctx.erasure.aprune(Retention(max_messages=4))).messages == 6


def test_one_worker_at_a_time(store: Any) -> None:
    """Another worker says that it is not its turn, until the lease is given back; other owners have their own."""
    ctx = written(store, "s", turns=5, days_ago=0)
    found: list[Pruned] = []

    def beside(_: Pruning) -> None:
        other = context(store=store, session_id="s", context_window=50_000)
        found.append(other.erasure.prune(Retention(max_messages=2)))
        bob = context(store=store, session_id="x", owner="bob", context_window=50_000)
        found.append(bob.erasure.prune(Retention(max_messages=2)))

    ctx.erasure.prune(Retention(max_messages=4), on_progress=beside)
    assert [done.busy for done in found] == [True, False]
    assert len(texts(ctx)) == 4
    with pytest.raises(ZeroDivisionError):
        ctx.erasure.prune(Retention(max_messages=2), on_progress=lambda _: 1 / 0)  # type: ignore[arg-type,return-value]
    assert not ctx.erasure.prune(Retention(max_messages=2)).busy


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="Retention has no limit: give max_age, max_idle, max_messages or max_bytes"):
        Retention()
    with pytest.raises(ConfigError, match="max_age is 0:00:00: give a span of time above zero"):
        Retention(max_age=timedelta(0))
    with pytest.raises(ConfigError, match="max_messages is 0: give a number of 1 or more"):
        Retention(max_messages=0)


def prune(url: str, retention: Retention) -> None:
    with context(store=url, session_id="s00", context_window=50_000) as ctx:
        ctx.erasure.prune(retention, lease_s=LEASE_S)


def erase_owner(url: str) -> None:
    with SqlStore(url) as store:
        store.erase_owner("default")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'killed.db'}"
        return
    with fresh_schema(request.getfixturevalue("postgres_url")) as found:
        yield found


def killed(work: Any, seconds: float, *arguments: Any) -> None:
    process = start(work, *arguments)
    process.join(seconds)
    process.kill()
    process.join()


def test_killed_runs_are_resumed(url: str) -> None:
    """Workers are killed while they prune: each session is as before or has what the limits leave, and the last run ends it."""
    chance, sessions = random.Random(5), [f"s{n:02}" for n in range(24)]
    with SqlStore(url) as store:
        for name in sessions:
            written(store, name, turns=12, days_ago=0)
    limit = 24
    for number in range(KILLS):
        limit = max(2, limit - max(2, 22 // KILLS))
        killed(prune, chance.uniform(0.02, 0.5), url, Retention(max_messages=limit))
        with context(store=url, session_id="s00", context_window=50_000) as ctx:
            sizes = {name: texts(ctx.at(name, create=False)) for name in sessions}
        for kept in sizes.values():
            assert kept == [f"{role}{n}" for n in range(12) for role in "ua"][-len(kept) :], number
            assert len(kept) >= limit
    with context(store=url, session_id="s00", context_window=50_000) as ctx:
        done = resumed(ctx)
        assert not done.busy
        assert {len(texts(ctx.at(name))) for name in sessions} == {2}


def resumed(ctx: AgentContext) -> Pruned:
    """Takes over from the worker that was killed last, whose lease ends by itself."""
    for _ in range(200):
        if not (done := ctx.erasure.prune(Retention(max_messages=2), lease_s=LEASE_S)).busy:
            return done
        time.sleep(0.05)
    raise AssertionError("the lease of a killed worker does not end")


def test_a_killed_erasure_of_an_owner_is_completed(url: str) -> None:
    """From its first transaction on nothing is read any more; a session that is begun anew has nothing of the old one."""
    chance = random.Random(6)
    key = SessionKey("default", "s0")
    for number in range(max(2, KILLS // 2)):
        with SqlStore(url) as store:
            for session in range(4):
                written(store, f"s{session}", turns=150, days_ago=0)
            reader = context(store=url, session_id="s1", context_window=50_000)
            assert texts(reader)
            killed(erase_owner, chance.uniform(0.0, 0.2), url)
            if store.sessions("default"):
                assert len(store.sessions("default")) == 4  # nothing was done yet
            else:
                assert texts(reader) == []  # it has the log open
                anew = context(store=store, session_id="s0", context_window=50_000)
                anew.add([user("anew", id="u0"), assistant("yes", id="a0")])
                assert texts(anew) == ["u0", "a0"], number
                assert "word" not in str(store.read(key))
            reader.close()
            store.erase_owner("default")
            assert [store.read(SessionKey("default", f"s{n}")) for n in range(4)] == [(), (), (), ()]


def test_an_erasure_of_an_owner_that_ends_between_its_batches_leaves_nothing_in_sight(url: str) -> None:
    """The worker is killed as soon as the sessions are out of sight, while rows of theirs are left."""
    names = [f"s{n}" for n in range(8)]
    with SqlStore(url) as store:
        for _ in range(20):
            for name in names:
                written(store, name, turns=150, days_ago=0, text="word " * 40)
            readers = [context(store=url, session_id=name, context_window=50_000) for name in names]
            assert all(map(texts, readers))
            process = start(erase_owner, url)
            while store.sessions("default") and process.is_alive():
                pass
            process.kill()
            process.join()
            left = [name for name in names if store.read(SessionKey("default", name))]
            if left:
                break
            for reader in readers:
                reader.close()
        assert left
        assert store.sessions("default") == ()
        assert [texts(reader) for reader in readers] == [[]] * len(names), "each has its log open"
        for name in left:
            anew = context(store=store, session_id=name, context_window=50_000)
            anew.add([user("anew", id="u0"), assistant("yes", id="a0")])
            assert texts(anew) == ["u0", "a0"]
            assert "word" not in str(store.read(SessionKey("default", name)))
        for reader in readers:
            reader.close()
        store.erase_owner("default")
        assert [store.read(SessionKey("default", name)) for name in names] == [()] * len(names)


class HalfErased(SqlStore):
    """Is read while another worker erases the owner: the session is out of sight, and some of its rows are gone."""

    path: Path

    def read(self, key: SessionKey, *, after: int = 0, upto: int | None = None) -> tuple[Record, ...]:
        head = self.head(key)
        with closing(sqlite3.connect(self.path)) as other, other:
            other.execute("DELETE FROM ctxfold_records WHERE seq IN (1, ?)", (head.seq if head else 0,))
            other.execute("DELETE FROM ctxfold_sessions")
        return super().read(key, after=after, upto=upto)


def test_a_session_that_is_half_erased_is_gone(tmp_path: Path) -> None:
    with HalfErased(f"sqlite:///{tmp_path / 'half.db'}") as store:
        store.path = tmp_path / "half.db"
        with pytest.raises(SessionNotFoundError, match="does not exist"):
            written(store, "s", turns=3, days_ago=0)


def test_writers_meet_an_erasure_of_their_owner(url: str) -> None:
    """Sessions that are begun while the owner is erased keep what is written after it, whole and in order."""
    with SqlStore(url) as store:
        for session in range(6):
            written(store, f"s{session}", turns=60, days_ago=0)
        stop = threading.Event()
        wrong: list[BaseException] = []

        def write(session: str) -> None:
            try:
                while not stop.is_set():
                    with context(store=url, session_id=session, context_window=50_000) as ctx:
                        ctx.add([user("anew", id=ctx.handle.new_id()), assistant("yes", id=ctx.handle.new_id())])
                        ctx.messages()
            except SessionNotFoundError:
                return write(session)  # erased between two of its calls
            except BaseException as error:
                wrong.append(error)

        writers = [threading.Thread(target=write, args=(f"s{n}",)) for n in range(2)]
        for writer in writers:
            writer.start()
        for _ in range(5):
            store.erase_owner("default")
        stop.set()
        for writer in writers:
            writer.join()
        assert wrong == []
        for name in store.sessions("default"):
            records = store.read(SessionKey("default", name))
            assert [r.seq for r in records] == [*range(1, len(records) + 1)]
            assert "word" not in str(records)
