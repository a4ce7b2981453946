"""Work off the hot path: a worker thread for sync callers, a task on the caller's own loop for async ones."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any

__all__ = ["LocalTasks", "apause", "pause"]


def pause(seconds: float) -> None:
    time.sleep(seconds)


async def apause(seconds: float) -> None:
    await asyncio.sleep(seconds)


class LocalTasks:
    """Background work of one engine. No second event loop is made: a thread runs the sync driver, a loop the async one.

    A thread cannot be stopped from outside: it is told, stops before its next step, and what it had begun is dropped.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads: set[threading.Thread] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        """How many pieces of work are under way."""
        with self._lock:
            return len(self._threads) + len(self._tasks)

    def start(self, work: Callable[[Callable[[], bool]], None]) -> bool:
        """Run `work` in a thread of its own; it is given a function that says whether to stop. False once closed."""
        context = copy_context()

        def body() -> None:
            try:
                context.run(work, self._stop.is_set)
            finally:
                with self._lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=body, name="ctxfold-background", daemon=True)
        with self._lock:
            if self._stop.is_set():
                return False
            self._threads.add(thread)
        thread.start()
        return True

    def start_on_loop(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run `work` as a task of the running loop. False once closed."""
        with self._lock:
            if self._stop.is_set():
                work.close()
                return False
            task = asyncio.get_running_loop().create_task(work, name="ctxfold-background")
            self._tasks.add(task)
        task.add_done_callback(self._done)
        return True

    def _done(self, task: asyncio.Task[None]) -> None:
        with self._lock:
            self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told already; retrieved, so that the loop does not complain

    def close(self, *, wait: bool) -> None:
        """End all work: threads are waited for, or told to stop. Tasks of a loop cannot be waited for here: they are cancelled."""
        threads, tasks = self._taken(wait)
        for task in tasks:
            loop = task.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)
        for thread in threads if wait else ():
            thread.join()
        self._stop.set()

    async def aclose(self, *, wait: bool) -> None:
        """The same without blocking the loop; the running loop's own tasks are waited for, or cancelled."""
        threads, tasks = self._taken(wait)
        here = asyncio.get_running_loop()
        mine = [t for t in tasks if t.get_loop() is here]
        for task in tasks:
            if task.get_loop() is here:
                if not wait:
                    task.cancel()
            elif not task.get_loop().is_closed():
                task.get_loop().call_soon_threadsafe(task.cancel)
        await asyncio.gather(*mine, return_exceptions=True)
        for thread in threads if wait else ():
            await asyncio.to_thread(thread.join)
        self._stop.set()

    def _taken(self, wait: bool) -> tuple[list[threading.Thread], list[asyncio.Task[None]]]:
        with self._lock:
            if not wait:
                self._stop.set()
            return list(self._threads), list(self._tasks)
