"""Starts processes that have the engine, its encoding and the calling test module already: a server loads them once and forks."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any

__all__ = ["CONTEXT", "Ready", "WorkerDiedError", "import_once", "start", "together"]

CONTEXT: ForkServerContext = multiprocessing.get_context("forkserver")
_IMPORTED: list[str] = [
    "ctxfold.session.context",
    "ctxfold.stores.sql",
    "psycopg",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.dialects.sqlite",
    "tests.support.encoding",
]

Ready = Callable[[], None]  # says that a process is prepared, and returns once all of them are


class WorkerDiedError(Exception):
    """A process ended before its work was done."""


def import_once(module: str) -> None:
    """Has the server import the module; to be called when the module is imported, with its `__name__`."""
    _IMPORTED.append(module)
    CONTEXT.set_forkserver_preload(_IMPORTED)


def start(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Starts a function of a module that was given to `import_once`."""
    process = CONTEXT.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def together(work: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> tuple[float, list[Any]]:
    """Runs `work(*arguments, ready)` in a process for each tuple of arguments, all of them from one moment on.

    Returns the seconds from that moment to the last result, and the results. Each process calls `ready` once it is prepared.
    WorkerDiedError as soon as one ends without a result, however long the others would take; these are killed then.
    """
    processes: list[BaseProcess] = []
    ours: list[Any] = []  # the connection is of another class on Windows
    try:
        for values in arguments:
            our, its = CONTEXT.Pipe()
            processes.append(start(_worker, work, values, its))
            its.close()  # so that the end of the process is the end of the pipe
            ours.append(our)
        _received(ours, processes)
        start_s = time.perf_counter()
        for connection in ours:
            connection.send(None)
        results = _received(ours, processes)
        took_s = time.perf_counter() - start_s
    except BaseException:
        for process in processes:
            process.kill()
        raise
    finally:
        for process in processes:
            process.join()
        for connection in ours:
            connection.close()
    return took_s, results


def _received(connections: Sequence[Any], processes: Sequence[BaseProcess]) -> list[Any]:
    """Returns one object from each process, in their order."""
    received: dict[int, Any] = {}
    while len(received) < len(connections):
        for found in wait([c for n, c in enumerate(connections) if n not in received]):
            number = next(n for n, connection in enumerate(connections) if connection is found)
            try:
                received[number] = connections[number].recv()
            except EOFError:
                processes[number].join()
                raise WorkerDiedError(
                    f"process {number + 1} of {len(connections)} ended with exit code {processes[number].exitcode} before its work "
                    "was done: its traceback stands above, unless it was killed"
                ) from None
    return [received[number] for number in range(len(connections))]


def _worker(work: Callable[..., Any], arguments: tuple[Any, ...], connection: Connection) -> None:
    def ready() -> None:
        connection.send(None)
        connection.recv()

    connection.send(work(*arguments, ready))
