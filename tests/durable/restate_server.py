"""Real Restate servers on loopback, from the npm package @restatedev/restate-server; `make restate` installs it."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

__all__ = ["Restate", "binary", "free_ports", "running"]

STARTS_IN_S: Final = 60.0
NPM: Final = Path(__file__).resolve().parents[2] / ".venv" / "npm" / "node_modules" / "@restatedev"

# one partition and little memory: the defaults are for a server with a machine of its own
SETTINGS: Final = """
bind-ip = "127.0.0.1"
listen-mode = "tcp"
node-name = "one"
default-num-partitions = 1
disable-telemetry = true
rocksdb-total-memory-size = "128 MiB"
log-filter = "warn"
log-disable-ansi-codes = true
bind-port = {node}
base-dir = "{folder}"

[ingress]
bind-port = {ingress}

[admin]
bind-port = {admin}
disable-web-ui = true

[default-retry-policy]
initial-interval = "20ms"
exponentiation-factor = 1.5
max-attempts = "unlimited"
max-interval = "200ms"
"""


def binary() -> Path | None:
    """Returns the server's program; None where it is not installed."""
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    installed = NPM / f"restate-server-{platform.system().lower()}-{machine}" / "bin" / "restate-server"
    if os.access(installed, os.X_OK):
        return installed
    found = shutil.which("restate-server")
    return Path(found) if found else None


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@dataclass(slots=True)
class Restate:
    """A server that keeps its data in `folder`. It may be killed and started again."""

    program: Path
    folder: Path
    ingress: str
    admin: str
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the server, and returns once it takes requests."""
        with (self.folder / "log.txt").open("ab") as log:
            command = [str(self.program), "--no-logo", "--config-file", str(self.folder / "restate.toml")]
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder)
        deadline = time.monotonic() + STARTS_IN_S
        while not (_answers(f"{self.admin}/health") and _answers(f"{self.ingress}/restate/health")):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError((self.folder / "log.txt").read_text(encoding="utf-8")[-4_000:])
            time.sleep(0.02)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def register(self, worker_url: str) -> None:
        """Tells the server where the services are."""
        body = {"uri": worker_url, "force": True}
        httpx.post(f"{self.admin}/deployments", json=body, timeout=60).raise_for_status()

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Returns rows of the server's own tables."""
        headers = {"Accept": "application/json"}
        answer = httpx.post(f"{self.admin}/query", json={"query": sql}, headers=headers, timeout=60)
        answer.raise_for_status()
        rows: list[dict[str, Any]] = answer.json()["rows"]
        return rows


@contextmanager
def running(program: Path, folder: Path) -> Iterator[Restate]:
    """A server that takes requests."""
    ingress, admin, node = free_ports(3)
    folder.mkdir(parents=True, exist_ok=True)
    settings = SETTINGS.format(node=node, ingress=ingress, admin=admin, folder=folder / "data")
    (folder / "restate.toml").write_text(settings, encoding="utf-8")
    server = Restate(program, folder, f"http://127.0.0.1:{ingress}", f"http://127.0.0.1:{admin}")
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.TransportError:
        return False
