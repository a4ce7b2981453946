"""Servers that a test starts for itself on loopback: a PostgreSQL cluster, and pgbouncer before a server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

__all__ = [
    "Cluster",
    "cluster_programs",
    "free_port",
    "pgbouncer",
    "pgbouncer_program",
    "server_folder",
    "server_user",
    "started_cluster",
    "started_replica",
]


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server_user() -> dict[str, Any]:
    """Arguments of `subprocess`: PostgreSQL and pgbouncer refuse to run as root."""
    if os.geteuid() == 0:
        return {"user": "postgres", "group": "postgres", "extra_groups": []}
    return {}


@contextmanager
def server_folder() -> Generator[Path, None, None]:
    """A folder that the servers' user may write to."""
    with tempfile.TemporaryDirectory(prefix="ctxfold-server-") as name:
        if os.geteuid() == 0:
            shutil.chown(name, "postgres", "postgres")
        yield Path(name)


def pgbouncer_program() -> str | None:
    """The path of pgbouncer, or None where it is not installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def pgbouncer(
    program: str, schema: str = "public", *, connections: int, cluster: Cluster | None = None
) -> Generator[str, None, None]:
    """Starts pgbouncer in transaction mode before the test server, or before a cluster; yields a URL without options.

    It tries to reach a server that is away every 0.2 s; its own default is 15 s.
    """
    port = free_port()
    server, database = (5432, "test") if cluster is None else (cluster.port, "postgres")
    with server_folder() as folder:
        config = folder / "pgbouncer.ini"
        config.write_text(
            "[databases]\n"
            f"{database} = host=127.0.0.1 port={server} dbname={database} user=postgres "
            f"connect_query='SET search_path TO {schema}'\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = transaction\ndefault_pool_size = {connections}\nmax_client_conn = 200\n"
            "server_login_retry = 0.2\n"
        )
        config.chmod(0o644)
        with subprocess.Popen([program, "-q", str(config)], stderr=subprocess.DEVNULL, **server_user()) as process:
            try:
                url = f"postgresql://postgres@127.0.0.1:{port}/{database}"
                _wait_for(url, process)
                yield url
            finally:
                process.terminate()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        try:
            psycopg.connect(url, connect_timeout=10).close()
        except psycopg.OperationalError:
            if process.poll() is not None:
                raise
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"no answer from {url}")


def cluster_programs() -> Path | None:
    """The folder of `initdb` and `pg_ctl`, or None where PostgreSQL is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


@dataclass(frozen=True, slots=True)
class Cluster:
    """A PostgreSQL cluster of the test's own."""

    programs: Path
    data: Path
    port: int

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def control(self, *arguments: str) -> None:
        command = [str(self.programs / "pg_ctl"), "-D", str(self.data), "-w", *arguments]
        log = str(self.data.parent / "log")
        subprocess.run([*command, "-l", log], check=True, capture_output=True, timeout=300, **server_user())

    def restart(self, mode: str = "fast") -> None:
        """Restarts the server; the mode "immediate" is a crash with recovery."""
        self.control("restart", "-m", mode)


@contextmanager
def started_cluster(programs: Path) -> Generator[Cluster, None, None]:
    """Initialises and starts a cluster; stops and removes it at the end."""
    with server_folder() as folder:
        cluster = Cluster(programs, folder / "data", free_port())
        command = [str(programs / "initdb"), "-D", str(cluster.data), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        subprocess.run(command, check=True, capture_output=True, timeout=300, **server_user())
        with _running(cluster):
            yield cluster


@contextmanager
def started_replica(primary: Cluster) -> Generator[Cluster, None, None]:
    """Copies a cluster to one that follows it by streaming and answers queries; stops and removes it at the end."""
    with server_folder() as folder:
        replica = Cluster(primary.programs, folder / "data", free_port())
        command = [
            str(primary.programs / "pg_basebackup"),
            "-D",
            str(replica.data),
            "-d",
            primary.url,
            "-R",
            "-c",
            "fast",
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=300, **server_user())
        with _running(replica):
            yield replica


@contextmanager
def _running(cluster: Cluster) -> Generator[None, None, None]:
    with (cluster.data / "postgresql.conf").open("a") as settings:
        settings.write(f"\nport = {cluster.port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\n")
    cluster.control("start")
    try:
        yield
    finally:
        cluster.control("stop", "-m", "immediate")
