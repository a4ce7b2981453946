"""One generator of effects, two drivers: engine logic is written once and runs sync and async.

A flow yields effects and receives their results: `records = yield from ReadLog(key)`. An effect's exception is thrown into the
flow, which decides. This is the one core module that may name asyncio.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

from ctxfold.errors import BackendError, ConfigError

if TYPE_CHECKING:
    from ctxfold.ports import Ports

__all__ = ["LONG_CHARS", "All", "Apart", "Call", "Deadline", "Effect", "Flow", "arun", "in_thread", "off_loop", "run"]

T = TypeVar("T")
LONG_CHARS = 20_000  # from here on work on a text leaves the event loop


class Effect(ABC, Generic[T]):
    """One request to the outside world: `result = yield from effect`."""

    __slots__ = ()

    @abstractmethod
    def perform(self, ports: Ports) -> T: ...

    @abstractmethod
    async def aperform(self, ports: Ports) -> T: ...

    def __iter__(self) -> Flow[T]:
        result: T = yield self
        return result


Flow: TypeAlias = Generator[Effect[Any], Any, T]


def run(flow: Flow[T], ports: Ports) -> T:
    """Drive a flow to its end on this thread."""
    try:
        effect = next(flow)
        while True:
            try:
                result = effect.perform(ports)
            except BaseException as error:  # noqa: BLE001 - the flow decides, also on cancellation
                effect = flow.throw(error)
            else:
                effect = flow.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        flow.close()


async def arun(flow: Flow[T], ports: Ports) -> T:
    """Drive a flow to its end on the running loop; cancellation is thrown into the flow."""
    try:
        effect = next(flow)
        while True:
            try:
                result = await effect.aperform(ports)
            except BaseException as error:  # noqa: BLE001 - the flow decides, also on cancellation
                effect = flow.throw(error)
            else:
                effect = flow.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        flow.close()


@dataclass(frozen=True, slots=True)
class All(Effect[tuple[Any, ...]]):
    """Several flows as one effect: gathered when driven on a loop, in order when driven synchronously.

    With `threads`, the latter at once too, each in a thread of its own. When one fails, those still under way are cancelled,
    where they can be, and waited for.
    """

    flows: tuple[Flow[Any], ...]
    threads: bool = False

    def perform(self, ports: Ports) -> tuple[Any, ...]:
        if not self.threads or len(self.flows) < 2:
            return tuple(run(flow, ports) for flow in self.flows)
        with ThreadPoolExecutor(len(self.flows), "ctxfold-all") as pool:
            begun = [pool.submit(copy_context().run, run, flow, ports) for flow in self.flows]
        return tuple(future.result() for future in begun)

    async def aperform(self, ports: Ports) -> tuple[Any, ...]:
        tasks = [asyncio.ensure_future(arun(flow, ports)) for flow in self.flows]
        try:
            return tuple(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise


@dataclass(frozen=True, slots=True)
class Deadline(Effect[T]):
    """An effect that is given up after `timeout_s`: BackendError of kind "timeout" then.

    On a loop it is cancelled. A synchronous call cannot be: it runs in a worker thread, is left behind, and its result dropped.
    """

    effect: Effect[T]
    timeout_s: float

    def perform(self, ports: Ports) -> T:
        return _within(_left_alone(lambda: self.effect.perform(ports)), self.timeout_s)

    async def aperform(self, ports: Ports) -> T:
        scope = asyncio.timeout(self.timeout_s)
        try:
            async with scope:
                return await self.effect.aperform(ports)
        except TimeoutError:
            if not scope.expired():
                raise
            raise _expired(self.timeout_s) from None


@dataclass(frozen=True, slots=True)
class Apart(Effect[T]):
    """A function that may never return, in a daemon thread of its own: neither the caller's loop nor the end of the program
    waits for it. BackendError of kind "timeout" after `timeout_s`; None waits for ever.

    What it returns is awaited where that is awaitable: on the loop, within the same time. Driven synchronously, with
    `own_loop`, it is awaited on a loop that lives as long as this call, in its thread; without, that is a ConfigError, for a
    coroutine function before it is called.
    """

    function: Callable[[], T | Awaitable[T]]
    timeout_s: float | None = None
    own_loop: bool = False

    def perform(self, ports: Ports) -> T:
        if self.own_loop:
            return _within(_left_alone(self._whole), self.timeout_s)
        if inspect.iscoroutinefunction(self.function):
            raise self._only_async()
        result = _within(_left_alone(self.function), self.timeout_s)
        if not inspect.isawaitable(result):
            return result
        if inspect.iscoroutine(result):
            result.close()
        raise self._only_async()

    async def aperform(self, ports: Ports) -> T:
        scope = asyncio.timeout(self.timeout_s)
        try:
            async with scope:
                plain = not inspect.iscoroutinefunction(self.function)
                result: Any = await asyncio.wrap_future(_left_alone(self.function)) if plain else self.function()
                found: T = await result if inspect.isawaitable(result) else result
                return found
        except TimeoutError:
            if not scope.expired():
                raise
            raise _expired(self.timeout_s or 0.0) from None

    def _whole(self) -> T:
        result: Any = self.function()
        if not inspect.isawaitable(result):
            return cast("T", result)

        async def awaited() -> T:
            found: T = await result
            return found

        return asyncio.run(awaited())

    def _only_async(self) -> ConfigError:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return ConfigError(
            f"{name} is async: call the async methods (asend, ...), or give one that can be called plainly"
        )


def _left_alone(function: Callable[[], T]) -> Future[T]:
    """The result to come of a call in a thread that nobody has to wait for."""
    future: Future[T] = Future()
    context = copy_context()

    def work() -> None:
        future.set_running_or_notify_cancel()  # from here on it cannot be cancelled: whoever waits leaves it behind
        try:
            future.set_result(context.run(function))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            future.set_exception(error)

    threading.Thread(target=work, name="ctxfold-apart", daemon=True).start()
    return future


def _within(future: Future[T], timeout_s: float | None) -> T:
    try:
        return future.result(timeout_s)
    except TimeoutError:
        if future.done():
            raise  # the call's own
        raise _expired(timeout_s or 0.0) from None


def _expired(timeout_s: float) -> BackendError:
    return BackendError(f"no answer within {timeout_s:g} s: given up", kind="timeout", retryable=True)


@dataclass(frozen=True, slots=True)
class Call(Effect[T]):
    """A plain function that takes its time; driven on a loop it runs in a worker thread, so that the loop stays free."""

    function: Callable[[], T]

    def perform(self, ports: Ports) -> T:
        return self.function()

    async def aperform(self, ports: Ports) -> T:
        return await in_thread(self.function)


def off_loop(function: Callable[[], T], chars: int) -> Flow[T]:
    """Returns the function's result; one that goes through at least `LONG_CHARS` characters runs in a worker thread when driven on
    a loop."""
    if chars < LONG_CHARS:
        return function()
    return (yield from Call(function))


async def in_thread(function: Callable[[], T]) -> T:
    """What the function returns; the loop stays free meanwhile."""
    return await asyncio.to_thread(function)
