"""The loop beside synchronous code: whoever waits for something on it is told when it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from llamaindex_ctx.memory_blocks import SideLoop


async def forever() -> None:
    await asyncio.Event().wait()


def in_thread(side: SideLoop, work: Coroutine[Any, Any, None]) -> Future[None]:
    """What `run` comes to, asked for in a thread of its own."""
    outcome = Future[None]()

    def run() -> None:
        try:
            outcome.set_result(side.run(work))
        except Exception as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


class Raced(SideLoop):
    """Another thread closes it as soon as `run` has the loop, and ends the loop if it need not wait for `run`."""

    def _running(self) -> asyncio.AbstractEventLoop:
        loop, thread = super()._running(), self._thread
        closing = threading.Thread(target=self.close)
        closing.start()
        closing.join(0.2)
        if not closing.is_alive() and thread is not None:
            thread.join(60)
        return loop


def test_work_that_meets_the_end_of_the_loop_is_cancelled() -> None:
    with pytest.raises(CancelledError):
        in_thread(Raced(), forever()).result(60)


def test_work_that_is_begun_while_the_loop_ends_is_cancelled() -> None:
    begun, late = threading.Event(), Future[Future[None]]()

    async def first() -> None:
        begun.set()
        try:
            await forever()
        finally:
            late.set_result(asyncio.run_coroutine_threadsafe(forever(), asyncio.get_running_loop()))

    side = SideLoop()
    outcome = in_thread(side, first())
    assert begun.wait(60)
    side.close()
    for waiting in (outcome, late.result(60)):
        with pytest.raises(CancelledError):
            waiting.result(60)


def test_after_its_end_it_runs_anew() -> None:
    async def answer() -> int:
        return 42

    side = SideLoop()
    for _ in range(2):
        assert side.run(answer()) == 42
        side.close()
