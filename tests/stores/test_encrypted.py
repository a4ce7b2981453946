"""Encrypted stores: the conformance suite over every store, what a dump shows, keys and their rotation, erasure, damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from ctxfold import MemoryStore, SqlStore, Store
from ctxfold.connect import encrypted
from ctxfold.testing.store_suite import StoreSuite
from tests.stores.outside_store import TableStore
from tests.stores.valkey_server import cluster, free_port, server
from tests.support.postgres_schema import OnPostgres

MASTER = b"m" * 32


def one_key(name: str | None) -> tuple[str, bytes]:
    return name or "main", MASTER


class TestMemoryStore(StoreSuite):
    durable = False

    def open_store(self, place: Path) -> Store:
        return encrypted(MemoryStore(), keys=one_key)


class TestSqlite(StoreSuite):
    def open_store(self, place: Path) -> Store:
        return encrypted(f"sqlite:///{place}/a.db", keys=one_key)


class TestSqliteWithHiddenNames(StoreSuite):
    def open_store(self, place: Path) -> Store:
        return encrypted(SqlStore(f"sqlite:///{place}/a.db"), keys=one_key, hide_names=True)


class TestOutsideStore(StoreSuite):
    def open_store(self, place: Path) -> Store:
        return encrypted(TableStore(place / "a.db"), keys=one_key)


class TestPostgres(OnPostgres):
    def open_store(self, place: str) -> Store:
        return encrypted(place, keys=one_key, hide_names=True)


class TestValkey(StoreSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def port(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
        port = free_port()
        with server(tmp_path_factory.mktemp("valkey"), port):
            yield port

    @pytest.fixture
    def place(self, port: int) -> Iterator[str]:
        yield f"valkey://127.0.0.1:{port}"
        with redis.Redis(port=port) as client:
            client.flushall()

    def open_store(self, place: str) -> Store:
        return encrypted(place, keys=one_key)


class TestValkeyCluster(StoreSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def ports(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
        with cluster(tmp_path_factory.mktemp("cluster")) as ports:
            yield ports

    @pytest.fixture
    def place(self, ports: list[int]) -> Iterator[str]:
        yield f"valkey://127.0.0.1:{ports[0]}?cluster=true"
        for port in ports[:3]:
            with redis.Redis(port=port) as client:
                client.flushall()

    def open_store(self, place: str) -> Store:
        return encrypted(place, keys=one_key, hide_names=True)
