"""One generator, two drivers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

import pytest

from ctxfold.flow import All, Effect, Flow, arun, run
from ctxfold.ports import Ports

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
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled, 1"]


def test_a_running_loop_is_no_obstacle() -> None:
    async def inside() -> int:
        return run(total(4), PORTS)

    assert asyncio.run(inside()) == 4
