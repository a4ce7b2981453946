"""One generator, two drivers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from ctxfold import BackendError, ConfigError
from ctxfold.effects import All, DetachedCall, Effect, Flow, arun, run
from ctxfold.protocols import Ports

PORTS = cast("Ports", object())


@dataclass(frozen=True, slots=True)
class Get(Effect[int]):
    value: int

    def perform(self, ports: Ports) -> int:
        if self.value < 0:
            raise ValueError(self.value)
        return self.value

    async def aperform(self, ports: Ports) -> int:
        await asyncio.sleep(0)
        return self.perform(ports)


def total(*values: int) -> Flow[int]:
    found = 0
    for value in values:
        found += yield from Get(value)
    return found


def caught() -> Flow[str]:
    try:
        yield from Get(-1)
    except ValueError as error:
        return f"caught {error} then {(yield from Get(3))}"
    return "nothing"


def test_both_drivers_give_the_same() -> None:
    assert run(total(1, 2, 3), PORTS) == asyncio.run(arun(total(1, 2, 3), PORTS)) == 6
    assert run(caught(), PORTS) == asyncio.run(arun(caught(), PORTS)) == "caught -1 then 3"
    with pytest.raises(ValueError, match="-2"):
        run(total(1, -2), PORTS)
    with pytest.raises(ValueError, match="-2"):
        asyncio.run(arun(total(1, -2), PORTS))


def test_all_gathers_in_order() -> None:
    def both() -> Flow[tuple[int, ...]]:
        return (yield from All((total(1), total(2, 3))))

    assert run(both(), PORTS) == asyncio.run(arun(both(), PORTS)) == (1, 5)


async def test_cancellation_is_thrown_into_the_flow() -> None:
    seen: list[str] = []

    @dataclass(frozen=True, slots=True)
    class Wait(Effect[None]):
        def perform(self, ports: Ports) -> None: ...

        async def aperform(self, ports: Ports) -> None:
            await asyncio.sleep(60)

    def waiting() -> Flow[None]:
        try:
            yield from Wait()
        except asyncio.CancelledError:
            seen.append(f"cancelled, {(yield from Get(1))}")
            raise

    task = asyncio.create_task(arun(waiting(), PORTS))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled, 1"]


def test_a_running_loop_is_no_obstacle() -> None:
    async def inside() -> int:
        return run(total(4), PORTS)

    assert asyncio.run(inside()) == 4


def test_all_with_threads_begins_together() -> None:
    barrier = threading.Barrier(3, timeout=60)

    def meets(value: int) -> Flow[int]:
        yield from DetachedCall(barrier.wait)
        return value

    def together() -> Flow[tuple[int, ...]]:
        return (yield from All(tuple(meets(n) for n in range(3)), threads=True))

    assert run(together(), PORTS) == asyncio.run(arun(together(), PORTS)) == (0, 1, 2)


def apart(function: Callable[[], Any], timeout_s: float | None = None) -> Flow[Any]:
    return (yield from DetachedCall(function, timeout_s))


def driven(flow: Flow[Any]) -> Any:
    return run(flow, PORTS)


def adriven(flow: Flow[Any]) -> Any:
    return asyncio.run(arun(flow, PORTS))


def test_a_call_apart_gives_what_the_call_gives() -> None:
    async def later() -> int:
        await asyncio.sleep(0)
        return 7

    def fails() -> int:
        raise TimeoutError("its own")

    assert run(apart(lambda: 7), PORTS) == asyncio.run(arun(apart(lambda: 7), PORTS)) == 7
    assert asyncio.run(arun(apart(later), PORTS)) == 7
    assert asyncio.run(arun(apart(lambda: later()), PORTS)) == 7
    for drive in (driven, adriven):
        with pytest.raises(TimeoutError, match="its own"):
            drive(apart(fails, 5.0))
    for function in (later, lambda: later()):
        with pytest.raises(ConfigError, match="is async"):
            run(apart(function), PORTS)


def test_a_call_apart_is_left_behind_when_its_time_is_over() -> None:
    gate = threading.Event()
    try:
        for drive in (driven, adriven):
            with pytest.raises(BackendError, match=r"no answer within 0\.05 s") as caught:
                drive(apart(gate.wait, 0.05))  # asyncio.run would wait for the loop's own threads
            assert caught.value.kind == "timeout"
    finally:
        gate.set()
