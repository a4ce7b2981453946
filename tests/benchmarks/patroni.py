"""PostgreSQL nodes under Patroni, with etcd, on loopback: `apt-get install patroni etcd-server postgresql` has the programs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.benchmarks.data import DataMissingError
from tests.stores.servers import cluster_programs, free_port, server_folder, server_user

__all__ = ["LOOP_S", "TTL_S", "Node", "Patroni", "patroni"]

TTL_S, LOOP_S, RETRY_S = 20, 3, 5  # how long a leader that is gone is waited for; Patroni's defaults are 30, 10 and 10
READY_IN_S = 120.0


@dataclass
class Node:
    """A PostgreSQL server and the Patroni that keeps it."""

    name: str
    folder: Path
    port: int
    api_port: int
    process: subprocess.Popen[bytes] | None = None

    def kill_server(self) -> None:
        """Ends the server without a word; its Patroni sees to it."""
        first_line = (self.folder / "data" / "postmaster.pid").read_text().splitlines()[0]
        os.kill(int(first_line), signal.SIGKILL)

    def kill(self) -> None:
        """Ends both, as when the machine is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        with suppress(FileNotFoundError, ProcessLookupError):
            self.kill_server()


@dataclass
class Patroni:
    """Three nodes, one of which is the primary and waits for another with each commit."""

    programs: Path
    etcd_port: int
    nodes: list[Node] = field(default_factory=list)

    @property
    def url(self) -> str:
        hosts = "&".join(f"host=127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql+psycopg://postgres@/postgres?{hosts}&target_session_attrs=read-write"

    def start(self, node: Node) -> None:
        settings = node.folder / "patroni.json"  # which is YAML as well
        settings.write_text(json.dumps(self._settings(node)))
        with (node.folder / "log").open("ab") as log:
            node.process = subprocess.Popen(
                ["patroni", str(settings)], stdout=log, stderr=log, cwd=node.folder, **server_user()
            )

    def _settings(self, node: Node) -> dict[str, Any]:
        timing = {"ttl": TTL_S, "loop_wait": LOOP_S, "retry_timeout": RETRY_S}
        parameters = {"unix_socket_directories": "", "wal_log_hints": "on", "max_connections": 60}
        logins = {"superuser": {"username": "postgres"}, "replication": {"username": "postgres"}}
        return {
            "scope": "ctxfold",
            "name": node.name,
            "restapi": {"listen": f"127.0.0.1:{node.api_port}", "connect_address": f"127.0.0.1:{node.api_port}"},
            "etcd3": {"host": f"127.0.0.1:{self.etcd_port}"},
            "bootstrap": {
                "dcs": {**timing, "synchronous_mode": True, "postgresql": {"use_pg_rewind": True}},
                "initdb": [{"encoding": "UTF8"}, {"auth": "trust"}, {"username": "postgres"}],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{node.port}",
                "connect_address": f"127.0.0.1:{node.port}",
                "data_dir": str(node.folder / "data"),
                "bin_dir": str(self.programs),
                "pgpass": str(node.folder / "pgpass"),
                "pg_hba": ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"],
                "authentication": logins,
                "parameters": parameters,
            },
        }

    def members(self) -> list[dict[str, Any]]:
        """What the first Patroni that answers says of the nodes."""
        for node in self.nodes:
            with suppress(httpx.HTTPError):
                return list(httpx.get(f"http://127.0.0.1:{node.api_port}/cluster", timeout=5).json()["members"])
        return []

    def leaders(self) -> list[Node]:
        """The primary, or none while there is none."""
        names = [member["name"] for member in self.members() if member["role"] == "leader"]
        return [node for node in self.nodes if node.name in names]

    def switch_over(self) -> None:
        """Makes a replica the primary, in good order."""
        [node] = self.leaders()
        address = f"http://127.0.0.1:{node.api_port}/switchover"
        httpx.post(address, json={"leader": node.name}, timeout=READY_IN_S).raise_for_status()

    def is_whole(self) -> bool:
        """Every node runs, on one timeline, and the primary has a replica that it waits for."""
        members = self.members()
        roles = sorted(member["role"] for member in members if member["state"] in ("running", "streaming"))
        lines = {member.get("timeline") for member in members}
        return roles == ["leader", "replica", "sync_standby"] and len(lines) == 1

    def wait(self) -> None:
        _until(self.is_whole, f"the nodes under Patroni: {self.members()}")


@contextmanager
def patroni(nodes: int = 3) -> Iterator[Patroni]:
    """Starts etcd and the nodes, and ends them."""
    programs = cluster_programs()
    if programs is None or not (shutil.which("patroni") and shutil.which("etcd")):
        raise DataMissingError("no Patroni: apt-get install patroni etcd-server postgresql")
    with server_folder() as folder, _etcd(folder / "etcd") as etcd_port:
        running = Patroni(programs, etcd_port)
        for number in range(nodes):
            node = Node(f"node{number}", folder / str(number), free_port(), free_port())
            node.folder.mkdir()
            if os.geteuid() == 0:
                shutil.chown(node.folder, "postgres", "postgres")
            running.nodes.append(node)
        try:
            for node in running.nodes:
                running.start(node)
            running.wait()
            yield running
        finally:
            for node in running.nodes:
                node.kill()


@contextmanager
def _etcd(folder: Path) -> Iterator[int]:
    port, peers = free_port(), free_port()
    own, other = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
    command = ["etcd", "--data-dir", str(folder), "--listen-client-urls", own, "--advertise-client-urls", own]
    command += ["--listen-peer-urls", other, "--initial-advertise-peer-urls", other, "--initial-cluster"]
    command.append(f"default={other}")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **server_user()) as process:
        try:
            _until(lambda: _answers(f"{own}/health"), "etcd")
            yield port
        finally:
            process.kill()


def _answers(address: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(address, timeout=5).is_success
    return False


def _until(ready: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + READY_IN_S
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not ready after {READY_IN_S:g} s: {what}")
        time.sleep(0.1)
