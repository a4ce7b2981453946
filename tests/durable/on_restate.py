"""Turns of examples/restate_agent on Restate's server, with worker and server processes that are killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx

from ctxfold.testing import ModelServer
from tests.durable.kills import TURNS, Killed, found, question
from tests.durable.restate_server import Restate, free_ports, running
from tests.support.processes import import_once, start

__all__ = ["Application", "application", "journal_bytes", "killed"]

# what the application needs: the module itself opens its store when it is imported
for module in ("restate", "hypercorn.asyncio", "ctxfold.backends.openai_chat", __name__):
    import_once(module)


def _serve(port: int, environment: dict[str, str], die_at: int | None) -> None:
    """Serves the example's application; a process with `die_at` kills itself at that event of its sessions."""
    os.environ |= environment
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    from examples.restate_agent import agent

    left = [die_at or 0]

    def count(_: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if die_at is not None:
        agent.context.subscribe(count)
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.errorlog = None
    asyncio.run(serve(agent.app, config))  # type: ignore[arg-type]


@dataclass(slots=True)
class Application:
    """The example on a server, with one worker process at a time."""

    restate: Restate
    port: int
    environment: dict[str, str]
    worker: BaseProcess | None = None

    def start_worker(self, die_at: int | None = None) -> None:
        self.worker = start(_serve, self.port, self.environment, die_at)

    def kill_worker(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.join()

    def ask(self, session: str, number: int, text: str) -> str:
        """Runs a turn, or waits for one that was begun; repeats what a killed server did not answer. Returns the reply's id."""
        url = f"{self.restate.ingress}/agent/{session}/turn"
        headers = {"idempotency-key": f"{session}-{number}"}
        while True:
            try:
                answer = httpx.post(url, json=text, headers=headers, timeout=300)
            except httpx.TransportError:
                time.sleep(0.05)
                continue
            if answer.status_code in (502, 503, 504):
                time.sleep(0.05)
                continue
            return str(answer.raise_for_status().json())


@contextmanager
def application(
    program: Path, folder: Path, store_url: str, model_url: str, window: int = 4_000
) -> Iterator[Application]:
    """The example, whose worker runs and is known to the server."""
    environment = {
        "MODEL": "generic:m",
        "OPENAI_BASE_URL": model_url,
        "CTXFOLD_STORE": store_url,
        "CONTEXT_WINDOW": str(window),
    }
    (port,) = free_ports(1)
    with running(program, folder) as server:
        it = Application(server, port, environment)
        try:
            it.start_worker()
            _until_served(port)
            server.register(f"http://127.0.0.1:{port}")
            yield it
        finally:
            it.kill_worker()


def killed(program: Path, folder: Path, store_url: str, model: ModelServer, kills: int) -> Killed:
    """Kills worker processes until it has done so as often as `kills`, and the server at every twentieth.

    Three kinds of moments take turns: any, an event of a session (something was stored, of which Restate does not know), and a
    request that the model is just answering.
    """
    window = 8_000  # the example's logs are long
    with application(program, folder, store_url, model.base_url, window) as it:
        began = time.monotonic()
        _turns(it, "plain")
        run_s = time.monotonic() - began
        result, chance = Killed(found(store_url, "plain", window)), random.Random(7)
        while result.kills < kills:
            session = f"s{len(result.sessions)}"
            client = threading.Thread(target=_turns, args=(it, session), daemon=True)
            client.start()
            while result.kills < kills and _comes_to_its_end(it, model, client, result.kills % 3, chance, run_s):
                it.kill_worker()
                result.kills += 1
                if result.kills % 20 == 10:
                    it.restate.kill()
                    it.restate.start()
                dies = result.kills % 3 == 1 and result.kills < kills
                it.start_worker(die_at=chance.randint(1, 12) if dies else None)
            client.join(180)
            assert not client.is_alive(), "the turns do not end"
            result.sessions.append(found(store_url, session, window))
    return result


def _comes_to_its_end(
    it: Application, model: ModelServer, client: threading.Thread, kind: int, chance: random.Random, run_s: float
) -> bool:
    """Returns True at the moment at which the worker is to be killed, or has killed itself; False where the turns ended before."""
    assert it.worker is not None
    match kind:
        case 0:
            client.join(chance.uniform(0.0, run_s))
        case 1:
            while it.worker.is_alive() and client.is_alive():
                it.worker.join(0.02)
        case _:
            before = len(model.requests)
            while len(model.requests) == before and client.is_alive():
                time.sleep(0.001)
            client.join(chance.uniform(0.0, 0.03))
    return client.is_alive()


def _turns(it: Application, session: str) -> None:
    for number in range(TURNS):
        it.ask(session, number, question(number))


def journal_bytes(server: Restate) -> int:
    """Returns the size of all entries of all journals, inputs and outputs among them, as the server stores them."""
    return int(server.query("SELECT sum(raw_length) AS bytes FROM sys_journal")[0]["bytes"])


def _until_served(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            httpx.get(f"http://127.0.0.1:{port}/restate/health", timeout=5).raise_for_status()
            return
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
