"""The bytes of PostgreSQL's files after an erasure, as docs/sessions.md describes them; on a cluster of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from struct import unpack_from

import psycopg
import pytest

from ctxfold import AgentContext, assistant, user
from tests.conftest import NO_CLUSTER
from tests.stores.servers import Cluster, cluster_programs, started_cluster
from tests.support.driven import COUNTER, turns

WORD = b"aardvarkzanzibar"
PAGE = 8_192
HEADER = 24


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    programs = cluster_programs()
    if programs is None:
        pytest.skip(NO_CLUSTER)
    with started_cluster(programs) as running:
        yield running


def execute(cluster: Cluster, sql: str) -> None:
    with psycopg.connect(cluster.url, autocommit=True) as server:
        server.execute(sql.encode())


def files(cluster: Cluster) -> dict[str, bytes]:
    """Returns the bytes on the disk of each table and index of ctxfold."""
    with psycopg.connect(cluster.url, autocommit=True) as server:
        server.execute("CHECKPOINT")
        found = server.execute(
            "SELECT relname, pg_relation_filepath(oid) FROM pg_class WHERE relname LIKE 'ctxfold%' AND relkind IN ('r', 'i')"
        ).fetchall()
    return {name: (cluster.data / path).read_bytes() for name, path in found}


def in_files(cluster: Cluster) -> set[str]:
    return {name for name, data in files(cluster).items() if WORD in data}


def in_rows(cluster: Cluster) -> set[str]:
    """Returns the tables and indexes in which a row, a dead one too, has the word; what stands in free space does not count."""
    return {name for name, data in files(cluster).items() if any(WORD in item for item in items(data))}


def items(data: bytes) -> Iterator[bytes]:
    """Yields what the pointers of all pages lead to: the rows of a table, the entries of an index."""
    for page in (data[start : start + PAGE] for start in range(0, len(data), PAGE)):
        (lower,) = unpack_from("<H", page, 12)
        for at in range(HEADER, lower, 4):
            (pointer,) = unpack_from("<I", page, at)
            offset, flags, length = pointer & 0x7FFF, pointer >> 15 & 3, pointer >> 17
            if flags == 1:  # in use
                yield page[offset : offset + length]


@pytest.mark.parametrize("what", ["message", "session", "owner"])
def test_rows_go_with_a_vacuum_and_bytes_with_a_full_one(cluster: Cluster, what: str) -> None:
    word = WORD.decode()
    message_id = "m1" if what == "message" else f"{word}-{what}"  # an erased message keeps its id
    with AgentContext(
        store=cluster.url, session_id="s", owner=what, context_window=2_000, counter=COUNTER, background=False
    ) as context:
        context.add([user(f"The {word} is in hall 3.", id=message_id), assistant("Noted.", id="m2"), *turns(30)])
        context.edit.clear()
        assert context.search(word)
        tables = {"ctxfold_records", "ctxfold_postings"}
        indexes = set[str]() if what == "message" else {"ctxfold_records_by_id"}
        assert in_rows(cluster) == tables | indexes
        match what:
            case "message":
                context.erasure.erase(message_id)
            case "session":
                context.erasure.erase_session()
            case _:
                context.erasure.erase_owner()
    execute(cluster, "VACUUM (INDEX_CLEANUP ON)")
    assert in_rows(cluster) == set()
    execute(cluster, "VACUUM FULL")
    assert in_files(cluster) == set()
    assert any(WORD in segment.read_bytes() for segment in (cluster.data / "pg_wal").iterdir() if segment.is_file())
