"""The only clocks of the tests: patience while something is bound to happen, and CPU time where cost is the point.

How long a thing takes by the wall says more of the machine than of the code: no test asserts it. Where one thing must not wait
for another, the other is held until the first is done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60


def wait_for(happened: Callable[[], Any]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < until, f"nothing happened within {PATIENCE_S} s"
        time.sleep(0.01)


async def await_for(happened: Callable[[], Any]) -> None:
    """The same beside the other tasks of the loop."""
    until = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < until, f"nothing happened within {PATIENCE_S} s"
        await asyncio.sleep(0.001)


def cpu_s(work: Callable[[], Any], *, runs: int = 3) -> float:
    """The least CPU time of several runs, in seconds: what the work costs on a machine that others use as well."""
    spent: list[float] = []
    for _ in range(runs):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return min(spent)
