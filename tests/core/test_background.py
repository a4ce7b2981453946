"""Summaries prepared off the hot path, leases, and how background work ends."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ctxfold import AgentContext, MemoryStore, SqlStore
from ctxfold.errors import BackendError
from ctxfold.events import HistoryCompacted
from ctxfold.history.records import SessionKey
from ctxfold.ports import Reply, Request
from ctxfold.tasks import LocalTasks
from tests.core.driven import context, scripted

DELAY_S = 0.15


def so_far(request: Request) -> str:
    """A short summary that keeps something of what it was shown."""
    found = re.findall(r"Point \d+ is \w+", request.messages[-1].text)
    return f"The talk so far: {'; '.join(found[:2]) or 'fillers'}."


class Slow:
    """A summariser that takes its time and keeps where it was called from, and when."""

    model, context_window, scratch_role = "slow", 50_000, "user"

    def __init__(self, delay_s: float = DELAY_S, error: BackendError | None = None) -> None:
        self.backend = scripted(*[so_far] * 50)
        self.delay_s, self.error = delay_s, error
        self.callers: list[Any] = []
        self.under_way = 0

    def _begin(self, caller: Any) -> None:
        self.callers.append(caller)
        if self.error is not None:
            raise self.error

    def send(self, request: Request) -> Reply:
        self._begin(threading.current_thread())
        self.under_way += 1
        time.sleep(self.delay_s)
        self.under_way -= 1
        return self.backend.send(request)

    async def asend(self, request: Request) -> Reply:
        self._begin(asyncio.current_task())
        self.under_way += 1
        try:
            await asyncio.sleep(self.delay_s)
        finally:
            self.under_way -= 1
        return await self.backend.asend(request)

    open_stream = aopen_stream = send

    def close(self) -> None: ...

    async def aclose(self) -> None: ...


def talk(number: int) -> str:
    return f"Point {number} is X{number}. " + "filler " * 20


def session(summarizer: Any, **settings: Any) -> AgentContext:
    answers = scripted(*["noted " * 10] * 200)
    settings = {"context_window": 2_000, "background": True, "summary_timeout_s": None, **settings}
    return context(answers, summarizer=summarizer, **settings)


def compactions(ctx: AgentContext) -> list[HistoryCompacted]:
    found: list[HistoryCompacted] = []
    ctx.subscribe(lambda e: found.append(e) if isinstance(e, HistoryCompacted) else None)
    return found


def test_no_summary_call_on_the_hot_path_of_a_steady_conversation_in_threads() -> None:
    slow = Slow()
    with session(slow) as ctx:
        events = compactions(ctx)
        longest = 0.0
        for number in range(60):
            begun = time.perf_counter()
            ctx.send(talk(number))
            longest = max(longest, time.perf_counter() - begun)
            time.sleep(0.03)  # a user thinks
        assert len(events) >= 2
        assert all(e.rung == "model" and "background" in e.reason for e in events)
        assert threading.main_thread() not in slow.callers
        assert longest < DELAY_S


async def test_nor_on_a_loop_where_it_is_a_task_of_the_same_loop() -> None:
    slow = Slow()
    async with session(slow) as ctx:
        events = compactions(ctx)
        me, longest = asyncio.current_task(), 0.0
        for number in range(60):
            begun = time.perf_counter()
            await ctx.asend(talk(number))
            longest = max(longest, time.perf_counter() - begun)
            await asyncio.sleep(0.03)
        assert len(events) >= 2
        assert all(e.rung == "model" and "background" in e.reason for e in events)
        assert me not in slow.callers
        assert all(isinstance(c, asyncio.Task) for c in slow.callers)
        assert longest < DELAY_S


def wait_for(check: Callable[[], bool]) -> None:
    until = time.monotonic() + 5
    while not check():
        assert time.monotonic() < until, "nothing happened within 5 s"
        time.sleep(0.01)


def test_what_was_prepared_is_thrown_away_when_its_source_changed() -> None:
    slow = Slow(0.0)
    with session(slow) as ctx:
        events = compactions(ctx)
        number = 0
        while not slow.callers:
            ctx.send(talk(number))
            number += 1
            wait_for(lambda: not any(t.name == "ctxfold-background" for t in threading.enumerate()))
        assert not events
        ctx.update(0, ctx.user_message("Point 0 is Y0 now. " + "filler " * 20))
        while not events:
            ctx.send(talk(number))
            number += 1
            time.sleep(0.02)
        assert "Y0" in str(slow.backend.requests[-1].messages)


def test_a_failure_falls_back_to_the_ordinary_path() -> None:
    broken = Slow(0.0, BackendError("down", kind="server"))
    with session(broken) as ctx:
        events = compactions(ctx)
        for number in range(40):
            ctx.send(talk(number))
            time.sleep(0.005)
        assert events
        assert events[0].rung == "extractive"
        assert "down" in str(events[0].problems)


def test_it_is_opt_in_and_the_mark_may_be_zero() -> None:
    for settings in ({"background": False}, {"prepare_ratio": 0.0}):
        slow = Slow(0.0)
        with session(slow, **settings) as ctx:
            for number in range(40):
                ctx.send(talk(number))
            assert slow.callers
            assert set(slow.callers) == {threading.current_thread()}


def begun(ctx: AgentContext, slow: Slow) -> None:
    number = 0
    while not slow.under_way:
        ctx.send(talk(number))
        number += 1
        time.sleep(0.01)
        assert number < 60


def test_closing_waits_or_does_not() -> None:
    slow = Slow(0.4)
    ctx = session(slow)
    begun(ctx, slow)
    ctx.close(wait=True)
    assert slow.under_way == 0
    slow = Slow(0.4)
    ctx = session(slow)
    begun(ctx, slow)
    at = time.perf_counter()
    ctx.close(wait=False)
    assert time.perf_counter() - at < 0.3
    wait_for(lambda: slow.under_way == 0)


async def test_aclose_waits_or_cancels() -> None:
    for wait in (True, False):
        slow = Slow(0.3)
        ctx = session(slow)
        number = 0
        while not slow.under_way:
            await ctx.asend(talk(number))
            await asyncio.sleep(0.01)
            number += 1
        at = time.perf_counter()
        await ctx.aclose(wait=wait)
        assert slow.under_way == 0
        assert (time.perf_counter() - at > 0.1) is wait
        assert len(slow.backend.requests) == (1 if wait else 0)


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


def test_two_workers_never_summarise_one_span(tmp_path: Any) -> None:
    """Two handles with stores of their own, as two processes have; one's summary is under way when the other needs one."""
    url = f"sqlite:///{tmp_path}/two.db"
    slow, other = Slow(0.5), Slow(0.0)
    settings: dict[str, Any] = {"store": url, "session": "s", "background": False}
    with session(slow, **settings, auto_compact=True) as first:
        for number in range(30):
            first.add([first.user_message(talk(number))])
        with session(other, **settings) as second:
            second.view()
            worker = threading.Thread(target=first.compact)
            worker.start()
            wait_for(lambda: slow.under_way > 0)
            second.send("and now?")
            worker.join()
            assert other.callers == []
            assert second.usage().compactions == 1
