"""Faults while clients write and retry with the same ids: counts what was acknowledged, lost, doubled or out of order.

PostgreSQL: backends terminated or cancelled, statement timeouts, restarts of a cluster that is started here, with clients in
processes of their own, also behind pgbouncer. SQLite: writers killed with SIGKILL. `CTXFOLD_RESTARTS` is the number of restarts
of a quick run. Every fourth turn is larger than the window, so that it is stored in pieces.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

from ctxfold import AgentContext, Message, SqlStore, StoreError, ToolCallPart, assistant, tool_result, user
from ctxfold.tokens.text import RatioCounter
from tests.benchmarks.data import DataMissingError
from tests.benchmarks.sheets import Sheet
from tests.stores.servers import Cluster, cluster_programs, pgbouncer, pgbouncer_program, started_cluster
from tests.support.processes import CONTEXT, Ready, import_once, together

__all__ = ["FULL", "QUICK", "Outcome", "Sizes", "postgres_faults", "run", "sqlite_kills"]

import_once(__name__)

CLIENTS = 4
WINDOW = 600
CLIENT_NAME = "ctxfold_faults"
STATEMENT_TIMEOUT_MS = 60


@dataclass(frozen=True, slots=True)
class Sizes:
    backends: int
    timeouts: int
    restarts: int
    kills: int


FULL = Sizes(backends=300, timeouts=100, restarts=10, kills=200)
QUICK = Sizes(backends=12, timeouts=4, restarts=int(os.environ.get("CTXFOLD_RESTARTS", "2")), kills=8)


@dataclass(slots=True)
class Outcome:
    """Counts of one kind of fault; the last three must be 0."""

    kind: str
    faults: int = 0
    acknowledged: int = 0
    failed_calls: int = 0
    lost: int = 0
    doubled: int = 0
    misplaced: int = 0

    def compare(self, acknowledged: list[str], stored: list[str]) -> None:
        """Adds one session: the ids that were acknowledged, in order, against those that its messages have."""
        there = set(stored)
        present = [name for name in acknowledged if name in there]
        among = set(acknowledged)
        unique = list(dict.fromkeys(name for name in stored if name in among))
        self.acknowledged += len(acknowledged)
        self.lost += len(acknowledged) - len(present)
        self.doubled += len(stored) - len(there)
        self.misplaced += sum(one != other for one, other in zip(present, unique, strict=True))


def turn(session: str, n: int) -> list[Message]:
    name = f"{session}-{n}"
    question = user(f"question {name}", id=f"{name}-u")
    if n % 4 != 3:
        return [question, assistant(f"answer {name}", id=f"{name}-a")]
    messages = [question]
    for k in range(5):
        call = ToolCallPart(f"{name}-c{k}", "look", "{}")
        messages += [
            assistant("", id=f"{name}-a{k}", calls=[call]),
            tool_result(call.id, f"found {name} " * 60, id=f"{name}-r{k}"),
        ]
    return [*messages, assistant(f"answer {name}", id=f"{name}-a")]


def opened(store: SqlStore, session: str) -> AgentContext:
    return AgentContext(
        store=store, session_id=session, context_window=WINDOW, counter=RatioCounter(), background=False
    )


def messages_of(url: str, session: str) -> list[str]:
    with SqlStore(url) as store, opened(store, session) as ctx:
        return [message.id for message in ctx.messages()]


@dataclass(slots=True)
class Client:
    """Writes turn after turn until told to stop; a call that fails is repeated with the same ids."""

    url: str
    session: str
    stop: threading.Event | Event
    turns: Any = None  # a counter that other processes read
    acknowledged: list[str] = field(default_factory=list[str])
    failures: list[str] = field(default_factory=list[str])
    crash: BaseException | None = None

    def work(self) -> None:
        try:
            n = 0
            while not self.stop.is_set():
                n = self._connected(n)
        except BaseException as error:
            self.crash = error

    def _connected(self, n: int) -> int:
        """Writes from turn `n` on; returns where to go on after a failure, as a process that begins anew does."""
        chance = random.Random(f"{self.session}-{n}-{len(self.failures)}")
        with (
            suppress(StoreError),
            SqlStore(self.url, timeout_s=5, pool_size=2) as store,
            opened(store, self.session) as ctx,
        ):
            while not self.stop.is_set():
                messages = turn(self.session, n)
                try:
                    ctx.add(messages)
                except StoreError as error:
                    self.failures.append(str(error))
                    if chance.random() < 0.3:
                        return n
                    time.sleep(0.01)
                    continue
                self.acknowledged += [message.id for message in messages]
                n += 1
                if self.turns is not None:
                    self.turns.value = n
        time.sleep(0.02)  # the server may be starting
        return n


def beside_clients(url: str, outcome: Outcome, cause: Callable[[list[Client]], int]) -> Outcome:
    """Runs clients while `cause` brings about faults and counts them; compares all sessions afterwards."""
    stop = threading.Event()
    clients = [Client(url, f"{outcome.kind}-{n}", stop) for n in range(CLIENTS)]
    threads = [threading.Thread(target=client.work) for client in clients]
    for thread in threads:
        thread.start()
    try:
        outcome.faults = cause(clients)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for client in clients:
        if client.crash is not None:
            raise client.crash
        outcome.failed_calls += len(client.failures)
        outcome.compare(client.acknowledged, messages_of(url.partition("?")[0], client.session))
    return outcome


def _administrator(cluster: Cluster) -> psycopg.Connection:
    return psycopg.connect(cluster.url, autocommit=True, application_name="administrator")


def _backends(cluster: Cluster, count: int, clients: list[Client]) -> int:
    """Cancels a backend that waits for a lock and terminates one at any moment of its work, in turn.

    Between two faults a client writes at least one turn: otherwise nothing would be acknowledged that could be lost.
    """
    done = 0
    with closing(_administrator(cluster)) as server:
        while done < count:
            _wait_for_progress(clients)
            if done % 2:
                done += _signalled(server, "pg_terminate_backend", "state <> 'idle'")
                time.sleep(0.005)
            else:
                with server.transaction():
                    server.execute("LOCK TABLE ctxfold_records IN EXCLUSIVE MODE")
                    while not _signalled(server, "pg_cancel_backend", "wait_event_type = 'Lock'"):
                        time.sleep(0.002)
                done += 1
    return done


def _wait_for_progress(clients: list[Client]) -> None:
    before = sum(len(client.acknowledged) for client in clients)
    while sum(len(client.acknowledged) for client in clients) == before:
        if any(client.crash for client in clients):
            return
        time.sleep(0.001)


def _signalled(server: psycopg.Connection, function: str, which: str) -> bool:
    server.execute("SELECT pg_stat_clear_snapshot()")
    chosen = f"SELECT pid FROM pg_stat_activity WHERE application_name = '{CLIENT_NAME}' AND {which} ORDER BY random() LIMIT 1"
    hit = server.execute(f"SELECT {function}(pid) FROM ({chosen}) AS chosen".encode()).fetchone()
    return hit == (True,)


def _timeouts(cluster: Cluster, count: int, clients: list[Client]) -> int:
    """Holds a lock for longer than a statement may take, until enough statements have timed out."""

    def seen() -> int:
        return sum("statement timeout" in text for client in clients for text in client.failures)

    with closing(_administrator(cluster)) as server:
        while seen() < count and not any(client.crash for client in clients):
            if any(len(client.acknowledged) < 4 for client in clients):
                time.sleep(0.01)
                continue
            with server.transaction():
                server.execute("LOCK TABLE ctxfold_sessions IN EXCLUSIVE MODE")
                time.sleep(3 * STATEMENT_TIMEOUT_MS / 1000)
            time.sleep(0.05)
    return seen()


def _write_until_stopped(
    url: str, session: str, stop: Event, turns: Any, ready: Ready
) -> tuple[list[str], list[str], str]:
    """Returns what was acknowledged, the failures, and what ended the client, if anything did."""
    client = Client(url, session, stop, turns)
    ready()
    client.work()
    return client.acknowledged, client.failures, "" if client.crash is None else repr(client.crash)


def beside_processes(url: str, cluster: Cluster, outcome: Outcome, restarts: int) -> Outcome:
    """Restarts the server under the load of client processes; between two restarts each of them writes at least one turn."""
    stop, turns = CONTEXT.Event(), [CONTEXT.Value("q", 0, lock=False) for _ in range(CLIENTS)]
    sessions = [f"{outcome.kind}-{n}" for n in range(CLIENTS)]
    arguments = [(url, session, stop, turns[n]) for n, session in enumerate(sessions)]

    def cause() -> None:
        try:
            for n in range(restarts + 1):
                before = [counter.value for counter in turns]
                while any(counter.value == value for counter, value in zip(turns, before, strict=True)):
                    if stop.is_set():
                        return
                    time.sleep(0.01)
                if n < restarts:
                    cluster.restart("immediate" if n % 2 else "fast")
                    outcome.faults += 1
        finally:
            stop.set()

    restarting = threading.Thread(target=cause)
    restarting.start()
    try:
        _, results = together(_write_until_stopped, arguments)
    finally:
        stop.set()
        restarting.join()
    for session, (acknowledged, failures, crash) in zip(sessions, results, strict=True):
        if crash:
            raise AssertionError(f"the client of {session!r} ended: {crash}")
        outcome.failed_calls += len(failures)
        outcome.compare(acknowledged, messages_of(cluster.url, session))
    return outcome


def postgres_faults(programs: Path, sizes: Sizes) -> list[Outcome]:
    with started_cluster(programs) as cluster:
        url = f"{cluster.url.replace('postgresql://', 'postgresql+psycopg://')}?application_name={CLIENT_NAME}"
        hasty = f"{url}&options=-cstatement_timeout%3D{STATEMENT_TIMEOUT_MS}"
        SqlStore(url).close()
        outcomes = [
            beside_clients(
                url,
                Outcome("terminated or cancelled backends"),
                lambda clients: _backends(cluster, sizes.backends, clients),
            ),
            beside_clients(
                hasty, Outcome("statement timeouts"), lambda clients: _timeouts(cluster, sizes.timeouts, clients)
            ),
            beside_processes(url, cluster, Outcome("restarts of the server"), sizes.restarts),
        ]
        program = pgbouncer_program()
        if program is not None:
            with pgbouncer(program, connections=CLIENTS, cluster=cluster) as pooled:
                behind = f"{pooled.replace('postgresql://', 'postgresql+psycopg://')}?prepare_threshold=0"
                outcomes.append(beside_processes(behind, cluster, Outcome("restarts behind pgbouncer"), sizes.restarts))
        return outcomes


def sqlite_kills(folder: Path, kills: int) -> Outcome:
    """Kills a writing process again and again; the next one begins with the turn that was not acknowledged."""
    outcome = Outcome("kill -9 of a SQLite writer")
    url, chance, done = f"sqlite:///{folder}/killed.db", random.Random(7), 0
    for _ in range(kills):
        acknowledged, pid = _writer(url, done)
        with os.fdopen(acknowledged, "rb") as pipe:
            pipe.read(1)  # it has opened the session
            done += len(
                pipe.read(chance.randrange(12))
            )  # turns that are acknowledged first, however slow the machine is
            time.sleep(chance.uniform(0.0, 0.004))
            os.kill(pid, signal.SIGKILL)
            done += len(pipe.read())
        os.waitpid(pid, 0)
        outcome.faults += 1
    outcome.compare([m.id for n in range(done) for m in turn("killed", n)], messages_of(url, "killed"))
    return outcome


def _writer(url: str, first: int) -> tuple[int, int]:
    """Forks a process that writes turns and sends a byte for each that was acknowledged; returns its pipe and its id."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writes)
        return reads, pid
    try:
        with SqlStore(url) as store, opened(store, "killed") as ctx:
            os.write(writes, b"o")
            n = first
            while True:
                ctx.add(turn("killed", n))
                os.write(writes, b".")
                n += 1
    finally:
        os._exit(1)


def run(*, quick: bool = False) -> list[Sheet]:
    programs = cluster_programs()
    if programs is None:
        raise DataMissingError("PostgreSQL's initdb is not installed (Debian: apt-get install postgresql)")
    sizes = QUICK if quick else FULL
    with TemporaryDirectory() as folder:
        outcomes = [sqlite_kills(Path(folder), sizes.kills), *postgres_faults(programs, sizes)]
    rows = tuple((o.kind, o.faults, o.failed_calls, o.acknowledged, o.lost, o.doubled, o.misplaced) for o in outcomes)
    columns = ("fault", "faults", "failed calls", "messages acknowledged", "lost", "doubled", "out of order")
    return [Sheet("Clients that retry with the same ids", columns, rows, "The last three columns must be 0.")]
