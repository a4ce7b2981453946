"""One generator of effects, two drivers: engine logic is written once and runs sync and async.

A flow yields effects and receives their results: `records = yield from ReadLog(key)`. An effect's exception is thrown into the
flow, which decides. This is the one core module that may name asyncio.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from ctxfold.ports import Ports

__all__ = ["All", "Effect", "Flow", "arun", "run"]

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
    """Several flows as one effect: in order when driven synchronously, gathered when driven on a loop."""

    flows: tuple[Flow[Any], ...]

    def perform(self, ports: Ports) -> tuple[Any, ...]:
        return tuple(run(flow, ports) for flow in self.flows)

    async def aperform(self, ports: Ports) -> tuple[Any, ...]:
        return tuple(await asyncio.gather(*(arun(flow, ports) for flow in self.flows)))
