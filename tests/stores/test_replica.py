"""A streaming replica serves what only reads archives, and only while it has all that the store has: never something older."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, event

from ctxfold import AgentContext, ConfigError, Message, SqlStore, assistant, user
from tests.conftest import NO_CLUSTER
from tests.stores.servers import Cluster, cluster_programs, started_cluster, started_replica
from tests.support.driven import COUNTER

Servers = tuple[Cluster, Cluster]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    programs = cluster_programs()
    if programs is None:
        pytest.skip(NO_CLUSTER)
    with started_cluster(programs) as primary:
        SqlStore(primary.url).close()
        with started_replica(primary) as replica:
            yield primary, replica


@contextmanager
def opened(servers: Servers, session: str, owner: str = "ann", **settings: Any) -> Generator[AgentContext]:
    primary, replica = servers
    with (
        SqlStore(primary.url, replica=replica.url) as store,
        AgentContext(
            store=store,
            owner=owner,
            session_id=session,
            context_window=2_000,
            counter=COUNTER,
            background=False,
            **settings,
        ) as context,
    ):
        yield context


@contextmanager
def counted(servers: Servers) -> Generator[Counter[str]]:
    """How many statements each server is sent by stores that are opened meanwhile."""
    names = {server.port: name for server, name in zip(servers, ("primary", "replica"), strict=True)}
    sent = Counter[str]()

    class Cursor(psycopg.Cursor[Any]):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            sent[names[self.connection.info.port]] += 1
            return super().execute(query, params, **options)

    def listen(connection: Any, _record: object) -> None:
        connection.cursor_factory = Cursor

    event.listen(Engine, "connect", listen)
    try:
        yield sent
    finally:
        event.remove(Engine, "connect", listen)


def rows(server: Cluster, sql: str) -> list[Any]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def caught_up(servers: Servers) -> None:
    """Waits until the replica has what the store has now."""
    primary, replica = servers
    at = rows(primary, "SELECT pg_current_wal_insert_lsn()")[0][0]
    until(lambda: rows(replica, f"SELECT pg_last_wal_replay_lsn() >= '{at}'::pg_lsn")[0][0])


def until(done: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 120
    while not done():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@contextmanager
def behind(servers: Servers) -> Generator[None]:
    """The replica stays where it is meanwhile."""
    caught_up(servers)
    rows(servers[1], "SELECT pg_wal_replay_pause()")
    until(lambda: rows(servers[1], "SELECT pg_get_wal_replay_pause_state()") == [("paused",)])
    try:
        yield
    finally:
        rows(servers[1], "SELECT pg_wal_replay_resume()")


def said(count: int, about: str = "box") -> list[Message]:
    pairs = (
        (user(f"Where is {about} {n}?", id=f"q{n}"), assistant(f"It is in hall {n}.", id=f"a{n}")) for n in range(count)
    )
    return [message for pair in pairs for message in pair]


def archive(context: AgentContext, word: str = "hall") -> tuple[Any, ...]:
    """All that a replica may answer."""
    return context.messages(), context.search(word), context.search_owner(word)


async def aarchive(context: AgentContext, word: str = "hall") -> tuple[Any, ...]:
    return await context.amessages(), await context.asearch(word), await context.asearch_owner(word)


def test_archives_are_read_from_the_replica(servers: Servers) -> None:
    with counted(servers) as sent, opened(servers, "read") as context:
        context.add(said(60))
        context.compact()
        caught_up(servers)
        with AgentContext(
            store=servers[0].url, owner="ann", session_id="read", context_window=2_000, counter=COUNTER
        ) as plain:
            expected = archive(plain)
        assert [len(found) for found in expected] == [120, 10, 10]
        context.messages()  # connects
        sent.clear()
        assert context.messages() == expected[0]
        # what is new in the log and where it ends; where it ends there, and all of it
        assert sent == {"primary": 2, "replica": 2}
        sent.clear()
        assert archive(context) == expected
        assert sent["primary"] == 5
        assert sent["replica"] > 5
        sent.clear()
        assert asyncio.run(aarchive(context)) == expected
        assert sent["primary"] == 5


def test_a_turn_asks_the_store_itself(servers: Servers) -> None:
    """It needs what was written just now; nothing of it is worth the question whether a replica has that."""
    with counted(servers) as sent, opened(servers, "turn") as context:
        context.add(said(60))
        context.compact()
        caught_up(servers)
        assert "hall 3." in context.window(recall=True, question="Where is box 3?").recalled
        context.view()
        context.messages("model")
        context.add(user("And box 4?", id="new"))
        assert sent["primary"] > 0
        assert sent["replica"] == 0


def test_what_a_replica_does_not_have_yet_is_shown(servers: Servers) -> None:
    with opened(servers, "late") as context, behind(servers):
        context.add(said(5))
        context.add(user("Where is the wrench?", id="wrench"))
        assert [m.id for m in context.messages()][-1] == "wrench"
        assert [h.message_id for h in context.search("wrench")] == ["wrench"]
        assert [h.message_id for h in context.search_owner("wrench")] == ["wrench"]
        context.clear()  # goes to the index, without a new message
        assert [h.message_id for h in context.search("wrench")] == ["wrench"]


def test_what_was_erased_is_not_shown_by_a_replica_that_still_has_it(servers: Servers) -> None:
    with opened(servers, "erased", owner="eve") as context:
        context.add(said(5))
        context.at("other").add(user("The secret is in hall 77.", id="elsewhere"))
        context.add(user("The secret is in hall 99.", id="secret"))
        assert len(context.search_owner("secret")) == 2
        with behind(servers):
            context.erase("secret")
            context.at("other").erase_session()
            assert all("99" not in m.text for m in context.messages())
            assert context.search("secret") == ()
            assert context.search_owner("secret") == ()
            context.erase_session()
            context.add([*said(5), user("Begun anew.", id="secret")])  # a log as long as the old one
            assert context.messages()[-1].text == "Begun anew."
            assert context.search("hall 99 secret")[0].excerpt != "The secret is in hall 99."


def test_the_changes_of_others_do_not_matter(servers: Servers) -> None:
    with counted(servers) as sent, opened(servers, "kept", owner="kim") as context:
        context.add(said(5))
        with behind(servers), opened(servers, "busy", owner="bob") as busy:
            busy.add(said(5))
            sent.clear()
            archive(context)
            assert sent["primary"] == 5
            context.at("second").add(said(5))
            sent.clear()
            context.search_owner("hall")
            assert sent["replica"] == 1  # the owner has another session since
            sent.clear()
            context.search("hall")
            assert sent["primary"] == 2  # which does not concern this one


def test_a_replica_that_is_down_is_left_alone_for_a_while(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ctxfold.stores")
    with counted(servers) as sent, opened(servers, "down", owner="dan") as context:
        context.add(said(60))
        caught_up(servers)
        expected = archive(context)
        servers[1].control("stop", "-m", "immediate")
        try:
            for _ in range(3):
                assert archive(context) == expected
            with opened(servers, "down", owner="dan") as again:  # a store can be opened meanwhile
                assert archive(again) == expected
        finally:
            servers[1].control("start")
        told = [r.getMessage() for r in caplog.records if r.name == "ctxfold.stores"]
        assert len(told) == 2  # once for each store
        assert all("until its replica can be used again: cannot reach postgresql" in text for text in told)

        def used() -> bool:
            sent.clear()
            assert archive(context) == expected
            return sent["replica"] > 5

        until(used)
        assert caplog.records[-1].getMessage().startswith("the archive is read from SqlStore(")
        assert str(servers[1].port) in caplog.records[-1].getMessage()


def test_a_query_that_meets_what_the_replica_replays(servers: Servers) -> None:
    """A table that is locked there, as the last step of a move to partitions does, is read from the store."""
    primary, replica = servers
    with opened(servers, "locked", owner="lou") as context:
        context.add(said(5))
        expected = archive(context)
        caught_up(servers)
        with psycopg.connect(primary.url) as holder:
            holder.execute("LOCK TABLE ctxfold_records IN ACCESS EXCLUSIVE MODE")
            rows(primary, "SELECT pg_switch_wal()")
            locked = (
                "SELECT 1 FROM pg_locks WHERE relation = 'ctxfold_records'::regclass AND mode = 'AccessExclusiveLock'"
            )
            until(lambda: rows(replica, locked))
            rows(replica, "SELECT pg_wal_replay_pause()")
        try:
            assert archive(context) == expected
        finally:
            rows(replica, "SELECT pg_wal_replay_resume()")


def test_a_store_that_is_moved_to_partitions(servers: Servers) -> None:
    with opened(servers, "moved", owner="moe") as context:
        context.add(said(60))
        context.compact()
        expected = archive(context)
        with SqlStore(servers[0].url) as mover:
            mover.partition(2)
        assert archive(context) == expected
        context.at("next").add(user("After the move.", id="after"))
        caught_up(servers)
        assert archive(context)[:2] == expected[:2]
        assert context.at("next").messages()[-1].id == "after"


def test_what_is_no_replica(servers: Servers, tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    url = servers[0].url
    with pytest.raises(ConfigError, match=r"replica= for sqlite:///.*: SQLite has no replicas"):
        SqlStore(f"sqlite:///{tmp_path}/a.db", replica=url)
    with pytest.raises(ConfigError, match=r"replica=sqlite:///.*: give the URL of a PostgreSQL server"):
        SqlStore(url, replica=f"sqlite:///{tmp_path}/a.db")
    rows(servers[0], "CREATE DATABASE empty")
    empty = url.removesuffix("/postgres") + "/empty"
    with (
        SqlStore(url, replica=empty) as store,
        AgentContext(store=store, session_id="s", context_window=2_000) as context,
    ):
        context.add(said(3))
        assert len(context.messages()) == 6
    assert "/empty has no tables of ctxfold: give the URL of a replica of SqlStore" in caplog.text
    with psycopg.connect(empty) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'ctxfold%'").fetchone() == (0,)
