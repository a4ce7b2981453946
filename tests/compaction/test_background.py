"""Summaries prepared off the hot path, leases, and how background work ends."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from multiprocessing.synchronize import Event
from typing import Any

import psycopg
import pytest

from ctxfold import AgentContext, BackendError, HistoryCompacted, MemoryStore, Reply, Request, SqlStore, user
from ctxfold.effects import LocalTasks
from ctxfold.history.records import SessionKey
from tests.support.driven import context, scripted
from tests.support.postgres_schema import fresh_schema
from tests.support.processes import CONTEXT, import_once, start
from tests.timing import PATIENCE_S, await_for, wait_for

import_once(__name__)


def so_far(request: Request) -> str:
    """A short summary that keeps something of what it was shown."""
    found = re.findall(r"Point \d+ is \w+", request.messages[-1].text)
    return f"The talk so far: {'; '.join(found[:2]) or 'fillers'}."


class Slow:
    """A summariser that answers once `gate` is open, and keeps where it was called from.

    Only a test opens the gate, and never while a turn is on: a turn that waited for a summary would end with this one's error.
    """

    model, context_window, scratch_role = "slow", 50_000, "user"

    def __init__(self, *, held: bool = True, error: BackendError | None = None) -> None:
        self.backend = scripted(*[so_far] * 50)
        self.error = error
        self.gate = threading.Event()
        self.callers: list[Any] = []
        self.under_way = self.cancelled = 0
        self.in_vain = False  # somebody has waited too long: no call after that waits
        if not held:
            self.gate.set()

    def _begin(self, caller: Any) -> None:
        assert not self.in_vain
        self.callers.append(caller)
        if self.error is not None:
            raise self.error

    def send(self, request: Request) -> Reply:
        self._begin(threading.current_thread())
        self.under_way += 1
        opened = self.gate.wait(PATIENCE_S)
        self.under_way -= 1
        self.in_vain = not opened
        assert opened, f"nobody opened the gate within {PATIENCE_S} s"
        return self.backend.send(request)

    async def asend(self, request: Request) -> Reply:
        self._begin(asyncio.current_task())
        self.under_way += 1
        try:
            await await_for(self.gate.is_set)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        except AssertionError:
            self.in_vain = True
            raise
        finally:
            self.under_way -= 1
        return await self.backend.asend(request)

    open_stream = aopen_stream = send

    def close(self) -> None: ...

    async def aclose(self) -> None: ...


def talk(number: int, *, fillers: int = 20) -> str:
    return f"Point {number} is X{number}. " + "filler " * fillers


def session(summarizer: Any, **settings: Any) -> AgentContext:
    answers = scripted(*["noted " * 10] * 200)
    settings = {"context_window": 2_000, "background": True, "summary_timeout_s": None, **settings}
    return context(answers, summarizer=summarizer, **settings)


def compactions(ctx: AgentContext) -> list[HistoryCompacted]:
    found: list[HistoryCompacted] = []
    ctx.subscribe(lambda e: found.append(e) if isinstance(e, HistoryCompacted) else None)
    return found


def busy(ctx: AgentContext) -> bool:
    """Whether something is under way in the background."""
    tasks: Any = ctx.handle.engine.ports.tasks
    return tasks is not None and tasks.running > 0


def quiet(ctx: AgentContext) -> None:
    """Until nothing is under way in the background."""
    wait_for(lambda: not busy(ctx))


def sent_until(done: Callable[[], object], ctx: AgentContext, number: int = 0, *, fillers: int = 20) -> int:
    """Sends one turn after the other until `done` is true; returns the number of the next one."""
    while not done():
        ctx.send(talk(number, fillers=fillers))
        number += 1
        quiet(ctx)
    return number


TURNS_AT_ONCE = 3  # that end while one summary is held: as many as there is room for


def test_no_summary_call_on_the_hot_path_of_a_steady_conversation_in_threads() -> None:
    slow, ended = Slow(), 0
    with session(slow) as ctx:
        events = compactions(ctx)
        for number in range(60):
            ctx.send(talk(number))
            ended += busy(ctx)
            if ended % TURNS_AT_ONCE == 0:
                slow.gate.set()
                quiet(ctx)
                slow.gate.clear()
        slow.gate.set()
        assert ended >= 2 * TURNS_AT_ONCE, "turns end while a summary is being written"
        assert len(events) >= 2
        assert all(e.fallback_level == "model" and "background" in e.reason for e in events)
        assert threading.main_thread() not in slow.callers


async def test_nor_on_a_loop_where_it_is_a_task_of_the_same_loop() -> None:
    slow, ended = Slow(), 0
    async with session(slow) as ctx:
        events, me = compactions(ctx), asyncio.current_task()
        for number in range(60):
            await ctx.asend(talk(number))
            ended += busy(ctx)
            if ended % TURNS_AT_ONCE == 0:
                slow.gate.set()
                await await_for(lambda: not busy(ctx))
                slow.gate.clear()
        slow.gate.set()
        assert ended >= 2 * TURNS_AT_ONCE
        assert len(events) >= 2
        assert all(e.fallback_level == "model" and "background" in e.reason for e in events)
        assert me not in slow.callers
        assert all(isinstance(c, asyncio.Task) for c in slow.callers)


def test_what_was_prepared_is_thrown_away_when_its_source_changed() -> None:
    slow = Slow(held=False)
    with session(slow) as ctx:
        events = compactions(ctx)
        number = sent_until(lambda: slow.callers, ctx)
        assert not events
        ctx.edit.update(0, user("Point 0 is Y0 now. " + "filler " * 20))
        sent_until(lambda: events, ctx, number)
        assert "Y0" in str(slow.backend.requests[-1].messages)


def long_turns(slow: Slow) -> AgentContext:
    """A session in whose window five or six turns have room."""
    answers = scripted(*["noted " * 90] * 20)
    return context(answers, summarizer=slow, context_window=1_500, background=True, summary_timeout_s=None)


def test_no_summary_is_paid_for_twice_where_few_turns_have_room() -> None:
    """The new question counts among the newest messages: what has to go before it ends earlier than what was prepared."""
    slow = Slow(held=False)
    with long_turns(slow) as ctx:
        events = compactions(ctx)
        for number in range(16):
            ctx.send(talk(number, fillers=140))
            quiet(ctx)
        assert len(events) >= 5
        assert len(slow.callers) <= len(events) + 1
        assert sum("background" in e.reason for e in events) > len(events) / 2


def test_what_was_prepared_is_thrown_away_when_a_message_of_it_was_pinned() -> None:
    slow = Slow(held=False)
    with long_turns(slow) as ctx:
        events = compactions(ctx)
        number = sent_until(lambda: slow.callers, ctx, fillers=140)
        assert not events
        ctx.pin("#1")
        sent_until(lambda: events, ctx, number, fillers=140)
        assert any(m.text.startswith("Point 0 is X0.") for m in ctx.view().messages)


def test_a_failure_falls_back_to_the_ordinary_path() -> None:
    broken = Slow(error=BackendError("down", kind="server"))
    with session(broken) as ctx:
        events = compactions(ctx)
        for number in range(40):
            ctx.send(talk(number))
            quiet(ctx)
        assert events
        assert events[0].fallback_level == "extractive"
        assert "down" in str(events[0].problems)


def test_it_is_opt_in_and_the_mark_may_be_zero() -> None:
    for settings in ({"background": False}, {"prepare_ratio": 0.0}):
        slow = Slow(held=False)
        with session(slow, **settings) as ctx:
            for number in range(40):
                ctx.send(talk(number))
            assert slow.callers
            assert set(slow.callers) == {threading.current_thread()}


def begun(slow: Slow) -> AgentContext:
    """A session in whose background a summary is held."""
    ctx = session(slow)
    for number in range(60):
        ctx.send(talk(number))
        if busy(ctx):
            break
    wait_for(lambda: slow.under_way == 1)
    return ctx


def test_closing_waits_or_does_not() -> None:
    slow = Slow()
    closing = threading.Thread(target=begun(slow).close, kwargs={"wait": True})
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    slow.gate.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert (slow.under_way, len(slow.backend.requests)) == (0, 1)
    slow = Slow()
    begun(slow).close(wait=False)
    assert slow.under_way == 1, "closed while it is held"
    slow.gate.set()
    wait_for(lambda: slow.under_way == 0)


@pytest.mark.parametrize("wait", [True, False])
async def test_aclose_waits_or_cancels(wait: bool) -> None:
    slow = Slow()
    ctx = session(slow)
    for number in range(60):
        await ctx.asend(talk(number))
        if busy(ctx):
            break
    await await_for(lambda: slow.under_way == 1)
    closing = asyncio.create_task(ctx.aclose(wait=wait))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not (wait and closing.done())
    if wait:
        slow.gate.set()
    await closing
    assert (slow.under_way, slow.cancelled, len(slow.backend.requests)) == ((0, 0, 1) if wait else (0, 1, 0))


async def test_tasks_take_nothing_more_once_closed() -> None:
    async def work() -> None: ...

    tasks = LocalTasks()
    await tasks.aclose(wait=True)
    assert tasks.start(lambda stopped: None) is False
    assert tasks.start_on_loop(work()) is False
    assert tasks.running == 0


KEY = SessionKey("me", "s")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_lease_is_one_holders_until_it_ends(kind: str, tmp_path: Any) -> None:
    with MemoryStore() if kind == "memory" else SqlStore(f"sqlite:///{tmp_path}/l.db") as store:
        assert store.lease(KEY, "summary", "a", now_s=0, ttl_s=10)
        assert store.lease(KEY, "summary", "a", now_s=5, ttl_s=10)
        assert not store.lease(KEY, "summary", "b", now_s=14, ttl_s=10)
        assert await store.alease(KEY, "other", "b", now_s=14, ttl_s=10)
        assert await store.alease(KEY, "summary", "b", now_s=15, ttl_s=10)
        store.release(KEY, "summary", "a")
        assert not store.lease(KEY, "summary", "a", now_s=16, ttl_s=10)
        await store.arelease(KEY, "summary", "b")
        assert store.lease(KEY, "summary", "a", now_s=16, ttl_s=10)


def test_postgres_leases(postgres_url: str) -> None:
    with SqlStore(postgres_url) as store:
        store.release(KEY, "summary", "a")
        store.release(KEY, "summary", "b")
        assert store.lease(KEY, "summary", "a", now_s=0, ttl_s=10)
        assert not store.lease(KEY, "summary", "b", now_s=9, ttl_s=10)
        store.release(KEY, "summary", "a")
        assert store.lease(KEY, "summary", "b", now_s=9, ttl_s=10)
        store.release(KEY, "summary", "b")


class Watched(SqlStore):
    """Tells when another worker has what is wanted here."""

    def __init__(self, url: str, refused: Callable[[], None]) -> None:
        super().__init__(url)
        self.refused = refused

    def lease(self, *args: Any, **kwargs: Any) -> bool:
        got = super().lease(*args, **kwargs)
        if not got:
            self.refused()
        return got


def test_two_workers_never_summarise_one_span(tmp_path: Any) -> None:
    """Two handles with stores of their own, as two processes have; one's summary is under way when the other needs one."""
    url = f"sqlite:///{tmp_path}/two.db"
    slow, other = Slow(), Slow(held=False)
    settings: dict[str, Any] = {"session_id": "s", "background": False}
    with session(slow, store=url, **settings, auto_compact=False) as first:
        for number in range(60):  # more than the window holds
            first.add([user(talk(number))])
        worker = threading.Thread(target=first.compact)

        def end() -> None:
            slow.gate.set()
            worker.join()

        with Watched(url, end) as store, session(other, store=store, **settings) as second:
            second.view()
            worker.start()
            wait_for(lambda: slow.under_way > 0)
            second.send("and now?")
            assert slow.gate.is_set(), "the other has asked for the lease"
            assert other.callers == []
            assert second.usage().compactions == 1


class Unending:
    """A summariser that says when it is asked, and never answers."""

    model, context_window, scratch_role = "unending", 50_000, "user"

    def __init__(self, asked: Event) -> None:
        self.asked = asked

    def send(self, request: Request) -> Reply:
        self.asked.set()
        while True:
            time.sleep(60)

    def close(self) -> None: ...


def compact_without_end(url: str, asked: Event) -> None:
    with session(Unending(asked), store=url, session_id="s", background=False, auto_compact=False) as ctx:
        ctx.compact(force=True)


def age_leases(url: str, seconds: float) -> None:
    """As if the leases had been taken so long ago."""
    change = f"UPDATE ctxfold_leases SET until_s = until_s - {seconds}"
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as file:
            file.execute(change)
    else:
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as server:
            server.execute(change.encode())


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_the_lease_of_a_worker_that_died_in_a_compaction_is_taken_over(
    kind: str, request: pytest.FixtureRequest, tmp_path: Any
) -> None:
    """Not before it has ended: by the clock of the database, where that is a server, whatever the workers' clocks say."""
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/a.db"
        if kind == "postgres":
            url = stack.enter_context(fresh_schema(request.getfixturevalue("postgres_url")))
        asked, other = CONTEXT.Event(), Slow(held=False)
        settings: dict[str, Any] = {"store": url, "session_id": "s", "background": False}
        with session(other, **settings, auto_compact=False) as filled:
            filled.add([user(talk(number)) for number in range(60)])
        worker = start(compact_without_end, url, asked)
        assert asked.wait(300)
        worker.kill()
        worker.join()
        refused: list[bool] = []
        store = stack.enter_context(Watched(url, lambda: refused.append(True)))
        ctx = stack.enter_context(session(other, **settings | {"store": store}))
        assert (ctx.service.maybe_compact(), len(refused)) == ("none", 1)
        assert (other.callers, ctx.usage().compactions) == ([], 0)
        if kind == "postgres":
            ahead_s = time.time() + 1e6
            assert not store.lease(SessionKey(ctx.owner, ctx.session), "summary", "ahead", now_s=ahead_s, ttl_s=1)
        age_leases(url, 1_000.0)
        assert ctx.service.maybe_compact() == "hard"
        assert (len(other.callers), ctx.usage().compactions) == (1, 1)
        assert len(ctx.messages()) == 60


def test_a_span_that_was_summarised_before_the_lease_was_free_is_not_summarised_again(tmp_path: Any) -> None:
    """The other ends between this worker's last look at the log and its next try for the lease."""
    url = f"sqlite:///{tmp_path}/two.db"
    slow, other = Slow(), Slow(held=False)
    settings: dict[str, Any] = {"session_id": "s", "background": False}

    class Late(SqlStore):
        refused = False

        def lease(self, *args: Any, **kwargs: Any) -> bool:
            if self.refused:
                slow.gate.set()
                worker.join()
            taken = super().lease(*args, **kwargs)
            self.refused = self.refused or not taken
            return taken

    with session(slow, store=url, **settings, auto_compact=False) as first:
        for number in range(60):
            first.add([user(talk(number))])
        worker = threading.Thread(target=first.compact)
        with Late(url) as store, session(other, store=store, **settings) as second:
            second.view()
            worker.start()
            wait_for(lambda: slow.under_way > 0)
            second.send("and now?")
            assert store.refused
            assert other.callers == []
            assert second.usage().compactions == 1
            assert store.lease(SessionKey(second.owner, second.session), "summary", "next", now_s=0, ttl_s=1), (
                "it was given back"
            )


def test_what_was_prepared_is_not_used_for_a_request_that_has_to_fit_after_its_source_changed() -> None:
    slow = Slow(held=False)
    with session(slow) as ctx:
        events = compactions(ctx)
        sent_until(lambda: slow.callers, ctx)
        assert not events
        ctx.edit.update(0, user("Point 0 is Y0 now. " + "filler " * 20))
        ctx.send(talk(99, fillers=900))
        assert events
        assert "Y0" in str(slow.backend.requests[-1].messages)


def test_what_was_prepared_early_is_not_written_again_before_it_is_due() -> None:
    slow = Slow(held=False)
    with session(slow, prepare_ratio=0.6) as ctx:
        events = compactions(ctx)
        asked = sent_until(lambda: slow.callers, ctx)
        assert sent_until(lambda: events, ctx, asked) > asked + 2
        assert "background" in events[0].reason
        assert len(slow.callers) == 1
