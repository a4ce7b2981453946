"""Fair timing on a noisy machine: everything is built first, then measured round-robin in small blocks."""

from __future__ import annotations

import contextlib
import gc
import signal
import statistics
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

__all__ = ["Lane", "OverLimitError", "Plan", "frozen_heap", "limited", "race"]


class OverLimitError(Exception):
    """A turn took longer than a cell may."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`turns` are measured per lane in blocks of `block`; a lane that would take over `slow_s` makes fewer, down to `least`.

    A lane whose very first turn takes over `limit_s` is cut.
    """

    turns: int = 200
    block: int = 20
    least: int = 3
    slow_s: float = 6.0
    limit_s: float = 60.0

    @property
    def rounds(self) -> int:
        return -(-self.turns // self.block)


@dataclass(slots=True)
class Lane:
    """One operation at one size; `turn(n)` does the n-th turn."""

    name: str
    size: int
    turn: Callable[[int], object]
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    cut: str = ""
    count: int = 0
    quota: int = 0

    def median_ms(self) -> float:
        return statistics.median(self.wall_s) * 1e3

    def mean_ms(self) -> float:
        return statistics.fmean(self.wall_s) * 1e3

    def cpu_median_ms(self) -> float:
        return statistics.median(self.cpu_s) * 1e3

    def cpu_mean_ms(self) -> float:
        return statistics.fmean(self.cpu_s) * 1e3

    def once(self) -> tuple[float, float]:
        """Wall and CPU seconds of one turn."""
        cpu, wall = time.process_time(), time.perf_counter()
        self.turn(self.count)
        passed = time.perf_counter() - wall, time.process_time() - cpu
        self.count += 1
        return passed

    def warm_up(self, plan: Plan) -> None:
        """A block of unmeasured turns, fewer of slow ones; settles how many turns the lane will make."""
        try:
            with limited(plan.limit_s):
                first_s, _ = self.once()
        except OverLimitError:
            self.cut = f">{plan.limit_s:g} s, cut"
            return
        spent_s, made = first_s, 1
        while made < plan.block and spent_s < plan.slow_s / 4:
            spent_s += self.once()[0]
            made += 1
        self.quota = min(plan.turns, max(plan.least, int(plan.slow_s * made / spent_s)))

    def measure(self, turns: int) -> None:
        """At most so many turns, within the quota."""
        for _ in range(min(turns, self.quota - len(self.wall_s))):
            wall, cpu = self.once()
            self.wall_s.append(wall)
            self.cpu_s.append(cpu)


def race(lanes: Sequence[Lane], plan: Plan) -> None:
    """Measure all lanes in turns, so that noise of the machine hits them alike."""
    with frozen_heap():
        for lane in lanes:
            lane.warm_up(plan)
        for _ in range(plan.rounds):
            for lane in lanes:
                lane.measure(-(-lane.quota // plan.rounds))


@contextlib.contextmanager
def frozen_heap() -> Iterator[None]:
    """What was built before is not walked by the collector again: else its size would be measured, not the turn.

    A heap that was frozen before stays so: in the suite it has a million objects, which each later collection would walk.
    """
    frozen_before = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen_before:
            gc.unfreeze()


@contextlib.contextmanager
def limited(seconds: float) -> Generator[None, None, None]:
    """OverLimitError in the block after so many seconds; no limit off the main thread or where there is no interval timer."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_signal: int, _frame: object) -> None:
        raise OverLimitError(f"longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
