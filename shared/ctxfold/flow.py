"""One generator of effects, two drivers: engine logic is written once and runs sync and async.

A flow yields effects and receives their results: `records = yield from ReadLog(key)`. An effect's exception is thrown into the
flow, which decides. This is the one core module that may name asyncio.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from ctxfold.errors import BackendError

if TYPE_CHECKING:
    from ctxfold.ports import Ports

__all__ = ["All", "Call", "Deadline", "Effect", "Flow", "arun", "run"]

T = TypeVar("T")


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
    """Several flows as one effect: in order when driven synchronously, gathered when driven on a loop.

    When one fails, those still under way are cancelled and waited for.
    """

    flows: tuple[Flow[Any], ...]

    def perform(self, ports: Ports) -> tuple[Any, ...]:
        return tuple(run(flow, ports) for flow in self.flows)

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
        future: Future[T] = Future()
        context = copy_context()

        def work() -> None:
            try:
                future.set_result(context.run(self.effect.perform, ports))
            except BaseException as error:  # noqa: BLE001 - raised again on the thread that waits
                future.set_exception(error)

        threading.Thread(target=work, name="ctxfold-deadline", daemon=True).start()
        try:
            return future.result(self.timeout_s)
        except TimeoutError:
            if future.done():
                raise  # the call's own
            raise self._expired() from None

    async def aperform(self, ports: Ports) -> T:
        scope = asyncio.timeout(self.timeout_s)
        try:
            async with scope:
                return await self.effect.aperform(ports)
        except TimeoutError:
            if not scope.expired():
                raise
            raise self._expired() from None

    def _expired(self) -> BackendError:
        return BackendError(f"no answer within {self.timeout_s:g} s: given up", kind="timeout", retryable=True)


@dataclass(frozen=True, slots=True)
class Call(Effect[T]):
    """A plain function that takes its time; driven on a loop it runs in a worker thread, so that the loop stays free."""

    function: Callable[[], T]

    def perform(self, ports: Ports) -> T:
        return self.function()

    async def aperform(self, ports: Ports) -> T:
        return await asyncio.to_thread(self.function)
