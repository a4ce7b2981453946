"""Lanes in processes of their own, as memories run in programs: the heap that one fills does not slow the others down."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from tests.benchmarks.lanes import Lane, OverLimitError, Plan, frozen_heap, limited

__all__ = ["Make", "Maker", "race_apart"]

Make = Callable[[int], Callable[[int], object]]  # what makes a turn for a size
Maker = Callable[[str, ExitStack], Make]  # gives that of a name; the stack ends with the process
WAIT_S = 60


def race_apart(maker: Maker, names: Sequence[str], sizes: Sequence[int], plan: Plan) -> list[Lane]:
    """The lanes of all names, a process for each name; built first, then measured in turns, so that noise hits them alike.

    `maker` is a function of a module. A process that is not measured waits, and takes no time.
    """
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker(maker, name, sizes, plan)) for name in names]
        lanes = [[Lane(name, size, _elsewhere) for size in sizes] for name in names]
        for worker, row in zip(workers, lanes, strict=True):
            for lane, (lane.cut, lane.quota) in zip(row, worker.recv(), strict=True):
                assert lane.cut or lane.quota
        for _ in range(plan.rounds):
            for worker, row in zip(workers, lanes, strict=True):
                for index, lane in enumerate(row):
                    if not lane.cut:
                        worker.send((index, -(-lane.quota // plan.rounds)))
                        wall_s, cpu_s = worker.recv()
                        lane.wall_s += wall_s
                        lane.cpu_s += cpu_s
    return [lane for row in lanes for lane in row]


def _elsewhere(_turn: int) -> object:
    raise AssertionError("this lane runs in another process")


@contextmanager
def _worker(maker: Maker, name: str, sizes: Sequence[int], plan: Plan) -> Generator[Connection, None, None]:
    """A process whose lanes are built and warm; the first it sends is what became of each."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process: BaseProcess = context.Process(target=_serve, args=(there, maker, name, sizes, plan), daemon=True)
    process.start()
    there.close()
    try:
        while not here.poll(1):
            if not process.is_alive():
                raise RuntimeError(f"the process of {name!r} ended with exit code {process.exitcode}")
        yield here
        here.send(None)
        process.join(WAIT_S)
    finally:
        here.close()
        process.kill()
        process.join()


def _serve(connection: Connection, maker: Maker, name: str, sizes: Sequence[int], plan: Plan) -> None:
    with ExitStack() as stack:
        lanes = _built(name, maker(name, stack), sizes, plan)
        with frozen_heap():
            for lane in lanes:
                if not lane.cut:
                    lane.warm_up(plan)
            connection.send([(lane.cut, lane.quota) for lane in lanes])
            while (asked := connection.recv()) is not None:
                index, turns = asked
                lane = lanes[index]
                before = len(lane.wall_s)
                lane.measure(turns)
                connection.send((lane.wall_s[before:], lane.cpu_s[before:]))


def _built(name: str, make: Make, sizes: Sequence[int], plan: Plan) -> list[Lane]:
    """The lanes of one memory; where one would take longer than it may, to fill and for its turns, it and all larger ones are
    cut."""
    lanes: list[Lane] = []
    cut = ""
    for size in sizes:
        lane = Lane(name, size, _elsewhere, cut=cut)
        lanes.append(lane)
        if cut:
            continue
        start = time.perf_counter()
        try:
            with limited(plan.limit_s):
                lane.turn = make(size)
                turn_s, _ = lane.once()
            if turn_s * (1 + plan.least) > plan.limit_s:
                lane.cut = cut = f"{turn_s:.0f} s a turn, cut"
        except OverLimitError:
            lane.cut = cut = f">{time.perf_counter() - start:.0f} s, cut"
            gc.collect()
    return lanes
