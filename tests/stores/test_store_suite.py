"""The conformance suite on the stores of ctxfold and on one from outside, and mutants of that one which it must find."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent

from ctxfold import AgentContext, MemoryStore, ScriptedBackend, SqlStore, Store
from ctxfold.testing.store_suite import StoreSuite
from tests.stores.outside_store import TableStore
from tests.support.postgres_schema import OnPostgres


class TestMemoryStore(StoreSuite):
    durable = False

    def open_store(self, place: Path) -> Store:
        return MemoryStore()


class TestSqliteInMemory(StoreSuite):
    durable = False

    def open_store(self, place: Path) -> Store:
        return SqlStore("sqlite://")


class TestSqlite(StoreSuite):
    def open_store(self, place: Path) -> Store:
        return SqlStore(f"sqlite:///{place}/a.db")


class TestPostgres(OnPostgres):
    def open_store(self, place: str) -> Store:
        return SqlStore(place)


class TestPostgresPartitions(TestPostgres):
    def open_store(self, place: str) -> Store:
        return SqlStore(place, partitions=2)


class TestPostgresSerializable(TestPostgres):
    def open_store(self, place: str) -> Store:
        return SqlStore(f"{place}&isolation=serializable")


class TestOutsideStore(StoreSuite):
    def open_store(self, place: Path) -> Store:
        return TableStore(place / "a.db")


def test_an_outside_store_keeps_a_conversation(tmp_path: Path) -> None:
    with TableStore(tmp_path / "a.db") as store:
        with AgentContext(ScriptedBackend(["hello"]), store=store, context_window=8_000) as ctx:
            ctx.send("The blue key opens the shed.")
            ctx.pin(ctx.view().messages[0].id)
        with AgentContext(ScriptedBackend(["again"]), store=store, context_window=8_000) as ctx:
            assert ctx.send("hi").message.text == "again"
            assert [m.text for m in ctx.messages()] == ["The blue key opens the shed.", "hello", "hi", "again"]
            ctx.erasure.erase("#1")
            assert ctx.search("blue key") == ()


# name of the mutant and the test of the suite that finds it -> its methods
MUTANTS = {
    ("Undone", "erase_does_nothing_once_a_log_has_grown"): """
        @contextmanager
        def transaction(self, *, write):
            with self._connected() as connection:
                yield TableTransaction(connection)  # commits each statement
        """,
    ("Shared", "threads_that_append_keep_every_writers_order"): """
        @contextmanager
        def transaction(self, *, write):
            with self._connected() as connection:
                connection.execute("BEGIN DEFERRED")
                yield TableTransaction(connection)
                connection.execute("COMMIT")
        """,
    ("Lost", "append_and_read"): """
        @contextmanager
        def transaction(self, *, write):
            with self._connected() as connection:
                connection.execute("BEGIN IMMEDIATE")
                yield TableTransaction(connection)
        """,
    ("Unexpected", "expect_guards_the_head"): """
        def append(self, key, drafts, *, expect=None, **rest):
            return super().append(key, drafts, **rest)
        """,
    ("Resurrected", "known_id_guards_against_an_erasure"): """
        def append(self, key, drafts, *, known_id=None, **rest):
            return super().append(key, drafts, **rest)
        """,
    ("NewOnly", "append_returns_everything_after_known"): """
        def append(self, key, drafts, **rest):
            ids = {draft.id for draft in drafts}
            return tuple(record for record in super().append(key, drafts, **rest) if record.id in ids)
        """,
    ("Unsorted", "fetch_and_find_take_thousands"): """
        def fetch(self, key, seqs):
            found = []
            for seq in seqs:
                found += super().fetch(key, [seq])
            return tuple(found)
        """,
    ("Oldest", "postings_can_be_limited"): """
        def postings(self, key, terms, *, newest=None, among=None):
            found = super().postings(key, terms, among=among)
            return replace(found, by_term={t: hits[:newest] for t, hits in found.by_term.items()})
        """,
    ("Included", "snapshots"): """
        def snapshot_before(self, key, seq):
            return super().snapshot_before(key, seq + 1)
        """,
    ("Stolen", "a_lease_has_one_holder"): """
        def release(self, key, name, holder):
            super().release(key, name, "one")
        """,
    ("Everyone", "a_lease_has_one_holder"): """
        def lease(self, key, name, holder, **times):
            return True
        """,
    ("Remaining", "erase_rewrites_records_and_the_index"): """
        def erase(self, rewrites, *, gone=()):
            return super().erase([replace(r, unindexed=()) for r in rewrites], gone=gone)
        """,
    ("Learnt", "erasure_deletes_the_items_that_were_learnt"): """
        def erase(self, rewrites, *, gone=()):
            return super().erase([replace(r, ids=()) for r in rewrites], gone=gone)
        """,
    ("Foreign", "copies_begin_with_the_same_record"): """
        def copies(self, key):
            return tuple(name for name in self.sessions(key.owner) if name != key.session)
        """,
    ("Open", "a_closed_store_says_so"): """
        def close(self):
            pass
        """,
    ("Sleeping", "append_and_read"): """
        async def aread(self, key, **rest):
            return ()
        """,
}


# the same of ctxfold's SQL store, for what the outside one does not have
SQL_MUTANTS = {
    ("Mixed", "vectors_are_kept_by_session_embedder_and_record"): """
        def vectors(self, key, embedder, *, seqs=None):
            return {n: v for e in self.embedders(key) for n, v in super(Mixed, self).vectors(key, e, seqs=seqs).items()}
        """,
    ("First", "vectors_are_kept_by_session_embedder_and_record"): """
        def put_vectors(self, key, embedder, vectors):
            there = {*self.vectors(key, embedder), *([0] if embedder in self.embedders(key) else [])}
            super().put_vectors(key, embedder, {seq: data for seq, data in vectors.items() if seq not in there})
        """,
    ("Kept", "vectors_are_kept_by_session_embedder_and_record"): """
        def drop_vectors(self, key, embedder):
            pass
        """,
    ("Left", "erasure_removes_vectors_for_good"): """
        def erase(self, rewrites, *, gone=()):
            return super().erase([replace(r, records=()) for r in rewrites], gone=gone)
        """,
    ("Restored", "erasure_removes_vectors_for_good"): """
        def put_vectors(self, key, embedder, vectors):
            if self.head(key) is None:
                self.append(key, [])
            super().put_vectors(key, embedder, vectors)
        """,
    ("Forgetful", "stores_at_one_place_share_their_vectors"): """
        def put_vectors(self, key, embedder, vectors):
            self.vectors = lambda key, embedder, **rest: vectors
        """,
}


def test_the_suite_finds_every_mutant(tmp_path: Path) -> None:
    lines = [
        "from contextlib import contextmanager",
        "from dataclasses import replace",
        "from ctxfold.testing.store_suite import StoreSuite",
        "from ctxfold import SqlStore",
        "from tests.stores.outside_store import TableStore, TableTransaction",
    ]
    mutants = MUTANTS | SQL_MUTANTS
    for (name, killer), change in mutants.items():
        base, place = (
            ("SqlStore", "f'sqlite:///{place}/a.db'")
            if (name, killer) in SQL_MUTANTS
            else ("TableStore", "place / 'a.db'")
        )
        lines += [f"class {name}({base}):", indent(dedent(change), "    ")]
        lines += [f"class Test{name}(StoreSuite):", f"    def open_store(self, place): return {name}({place})"]
    file = tmp_path / "test_mutants.py"
    file.write_text("\n".join(lines))
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    nodes = [f"{file}::Test{name}::test_{killer}" for name, killer in mutants]
    run = subprocess.run(
        [*command, "-c", root / "pyproject.toml", *nodes], cwd=root, capture_output=True, text=True, check=False
    )
    found = set(re.findall(r"^FAILED .*::Test(\w+)::", run.stdout, re.MULTILINE))
    assert found == {name for name, _ in mutants}, run.stdout + run.stderr
