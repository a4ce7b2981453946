"""Every statement that the SQL store sends names the owner and the session, taken from the driver while everything runs."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, event

from ctxfold import Retention, SqlStore, assistant, user
from ctxfold.history.memory_items import MemoryItem
from ctxfold.history.records import Draft, MessageAdded, SessionKey
from ctxfold.protocols import Document, Rewrite
from ctxfold.stores.sql_schema import Statements
from tests.support.driven import context
from tests.support.postgres_schema import fresh_schema

LONG, SHORT = SessionKey("ann", "long"), SessionKey("ann", "short")

# what a statement may go by instead of owner and session -> why; the beginnings of the statements
BY_OWNER = {
    "the owner's sessions are listed": (
        "SELECT session FROM ctxfold_sessions",
        "SELECT session, documents, total_length, numbered FROM ctxfold_sessions",
    ),
    "a search over all sessions of the owner": (
        "SELECT t.session, t.data FROM ctxfold_sessions",
        "SELECT s.session, t.data FROM ctxfold_sessions",
    ),
    "the forks of a session are among the owner's others": ("SELECT s.session FROM ctxfold_sessions",),
    "memory items belong to the owner": (
        "SELECT place, payload, created_s, item_id FROM ctxfold_memory",
        "SELECT place, payload FROM ctxfold_memory",
        "SELECT payload FROM ctxfold_memory",
        "DELETE FROM ctxfold_memory WHERE owner = ? AND item_id = ?",
    ),
    "an erasure of the owner": (
        "DELETE FROM ctxfold_records WHERE owner = ? AND (session, seq) IN",
        *(f"DELETE FROM {table} WHERE owner = ?" for table in ("ctxfold_sessions", "ctxfold_memory", "ctxfold_leases")),
        *(
            f"SELECT DISTINCT session FROM (SELECT t.session FROM {table} t WHERE t.owner = ?"
            for table in ("ctxfold_postings", "ctxfold_records", "ctxfold_vectors")
        ),
    ),
}
OF_THE_STORE = ("SELECT DISTINCT owner FROM ctxfold_sessions",)  # whoever runs it asks for its owners
SCHEMA = ("CREATE ", "PRAGMA ", "SELECT ? FROM sqlite_master", "SELECT ? WHERE to_regclass(")


class Sent:
    """Takes down the texts that drivers are given, values left out, with the first values of each."""

    def __init__(self) -> None:
        self.sent: dict[str, tuple[str, Any]] = {}

    def add(self, text: str, values: Any = ()) -> None:
        self.sent.setdefault(plain(text), (text, values))

    def __iter__(self) -> Iterator[str]:
        return iter(self.sent)


def plain(text: str) -> str:
    """The statement in one line with ? for each value and number."""
    text = re.sub(r"x?'(?:[^']|'')*'|%s|(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]\d+)?\b", "?", text)
    return re.sub(r"\s+", " ", text).strip()


@contextmanager
def taken_down() -> Generator[Sent]:
    """Listens to every connection that SQLAlchemy opens meanwhile."""
    found = Sent()

    class Cursor(psycopg.Cursor[Any]):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            found.add(str(query), params)
            return super().execute(query, params, **options)

        def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
            rows = list(params_seq)
            found.add(str(query), rows[0])
            super().executemany(query, rows, **options)

    def listen(connection: Any, _record: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.set_trace_callback(found.add)
        else:
            connection.cursor_factory = Cursor

    event.listen(Engine, "connect", listen)
    try:
        yield found
    finally:
        event.remove(Engine, "connect", listen)


@pytest.fixture(params=["sqlite", "postgres", "serializable"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/a.db"
        return
    with fresh_schema(request.getfixturevalue("postgres_url")) as place:
        yield f"{place}&isolation=serializable" if request.param == "serializable" else place


# which rows a statement goes by


def scopes(text: str) -> Iterator[str]:
    """The statement and each query within it, on its own: a query within leaves () in what is around it."""
    queries, is_query = [""], [True]
    for part in re.finditer(r"[()]|[^()]+", text):
        if part.group() == "(":
            is_query.append(text.startswith("SELECT ", part.end()))
            if is_query[-1]:
                queries[-1] += "()"
                queries.append("")
                continue
        elif part.group() == ")" and is_query.pop():
            yield queries.pop()
            continue
        queries[-1] += part.group()
    yield queries.pop()


TABLE = re.compile(r"(?:FROM|JOIN|UPDATE|INTO) (ctxfold_\w+)(?: (?!WHERE|SET|ORDER|CROSS|ON|LIMIT)(\w+))?")
COLLATED = r'(?: COLLATE "C")?'


def missing(text: str) -> list[str]:
    """What of owner and session the rows of a table are not chosen by, as "table.column"."""
    found: list[str] = []
    for scope in scopes(text):
        if inserted := re.match(r"INSERT INTO (ctxfold_\w+) \(([\w, ]+)\) VALUES", scope):
            columns = inserted.group(2).split(", ")
            found += [f"{inserted.group(1)}.{name}" for name in ("owner", "session") if name not in columns]
            continue
        for table, alias in TABLE.findall(scope):
            prefix = rf"{alias}\." if alias else r"(?<![\w.])"
            if not re.search(rf"{prefix}owner{COLLATED} = \?", scope):  # of a value: no other table's owner
                found.append(f"{table}.owner")
            if not re.search(rf"{prefix}session{COLLATED} = (?:\?|\w+\.session)", scope):
                found.append(f"{table}.session")
    return found


def excuse(text: str, reasons: dict[str, tuple[str, ...]]) -> str | None:
    return next((why for why, starts in reasons.items() if text.startswith(starts)), None)


def wrong(statements: Sent) -> dict[str, list[str]]:
    """Statements that name no owner or no session, and are not among the reasons above."""
    found: dict[str, list[str]] = {}
    for text in statements:
        if text.startswith(SCHEMA) or text in OF_THE_STORE or "ctxfold_" not in text.replace("ctxfold_meta", ""):
            continue
        lacks = missing(text)
        if excuse(text, BY_OWNER):
            lacks = [name for name in lacks if not name.endswith(".session")]
        if lacks:
            found[text] = lacks
    return found


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("SELECT head FROM ctxfold_sessions WHERE owner = ? AND session = ?", []),
        ("SELECT head FROM ctxfold_sessions WHERE session = ?", ["ctxfold_sessions.owner"]),
        ("UPDATE ctxfold_records SET kind = ? WHERE owner = ? AND seq = ?", ["ctxfold_records.session"]),
        ("DELETE FROM ctxfold_terms", ["ctxfold_terms.owner", "ctxfold_terms.session"]),
        ('SELECT seq FROM ctxfold_records WHERE owner COLLATE "C" = ? AND session COLLATE "C" = ? AND seq IN (?, ?)', []),
        ("INSERT INTO ctxfold_leases (owner, name) VALUES (?, ?)", ["ctxfold_leases.session"]),
        ("INSERT INTO ctxfold_sessions VALUES (?, ?)", ["ctxfold_sessions.owner", "ctxfold_sessions.session"]),
        (
            ("SELECT s.head FROM ctxfold_sessions s WHERE s.owner = ? AND s.session = ? AND EXISTS (SELECT 1 FROM "
            "ctxfold_records r WHERE r.owner = s.owner AND r.session = s.session AND r.seq = (SELECT MAX(seq) FROM "
            "ctxfold_vectors WHERE owner = ?))"),
            ["ctxfold_vectors.session", "ctxfold_records.owner"],
        ),
        (
            "SELECT s.session FROM ctxfold_sessions s CROSS JOIN ctxfold_terms t WHERE s.owner = ? AND s.session = ?",
            ["ctxfold_terms.owner", "ctxfold_terms.session"],
        ),
    ],
)  # fmt: skip
def test_the_reading_of_a_statement(text: str, lacks: list[str]) -> None:
    assert missing(text) == lacks


# a run that uses everything


def said(name: str) -> Draft:
    return Draft(name, MessageAdded(user("hi", id=name)), "t1", 1.0)


def use_index(store: Any, key: SessionKey, first: int) -> None:
    documents = [Document(seq, {"common": 1, f"w{seq}": 2}, 3) for seq in range(first, first + 450)]
    store.append(key, (), documents=documents[:430])
    store.append(key, (), documents=documents[430:])
    for options in ({}, {"newest": 3}, {"among": [first, first + 1]}):
        assert store.postings(key, ["common"], **options).by_term["common"]
    assert store.owner_postings(key.owner, ["common"], newest=2)[key.session].by_term["common"]
    head = store.head(key)
    store.erase([Rewrite(key, head.seq, (), (), (first, first + 1), ())])
    assert store.postings(key, ["common"]).documents == 448


def use_log(store: Any) -> None:
    drafts = [said(f"m{n}") for n in range(4)]
    store.append(LONG, drafts)
    store.append(SHORT, drafts, known=0)
    assert len(store.append(LONG, [said("more")], known=2, expect=4, known_id="m1")) == 3
    assert len(store.read(LONG)) == 5
    assert len(store.read(LONG, after=1, upto=3)) == 2
    assert [r.seq for r in (*store.fetch(LONG, [1]), *store.find(LONG, ["m1"]))] == [1, 2]
    assert store.numbered(LONG, 2).seq == 2
    assert store.snapshot_before(LONG, 5) == 0
    assert store.sessions("ann") == ("long", "short")
    assert store.owners() == ("ann",)
    assert store.copies(LONG) == ("short",)
    assert store.lease(LONG, "work", "me", now_s=1.0, ttl_s=60)
    store.release(LONG, "work", "me")
    store.put_vectors(LONG, "e", {0: b"about", 1: b"1234"})
    assert (store.embedders(LONG), store.vectors(LONG, "e")) == ({"e": b"about"}, {1: b"1234"})
    assert store.vectors(LONG, "e", seqs=[1]) == {1: b"1234"}
    store.drop_vectors(LONG, "e")


def use_memory(store: Any) -> None:
    item = MemoryItem("i1", "facts", "one", key="k", session="long", sources=("m1",))
    store.remember("ann", [item, MemoryItem("i2", "facts", "two", session="long")])
    store.remember("ann", [MemoryItem("i3", "facts", "other", key="k", session="long", sources=("m2",))])
    assert len(store.memories("ann", kinds=["facts"], everything=True)) == 3
    assert len(store.memories("ann")) == 2
    assert [i.id for i in store.forget("ann", ["i2"])] == ["i2"]
    head = store.head(LONG)
    store.put_vectors(LONG, "e", {1: b"1234"})
    record = store.read(LONG, upto=1)[0]
    store.erase([Rewrite(LONG, head.seq, ("m1", "m2"), (record,), (), (said("erased"),))])
    assert [i.id for i in store.memories("ann", everything=True)] == ["i2"]


def use_everything(url: str, **options: Any) -> None:
    with SqlStore(url, **options) as store:
        use_log(store)
        use_index(store, LONG, 10)
        use_memory(store)
        with context(store=store, session_id="talk", context_window=700) as ctx:
            for n in range(30):
                ctx.add([user(f"question {n} " + "word " * 20, id=f"u{n}"), assistant("noted " * 10, id=f"a{n}")])
            ctx.compact()
            assert ctx.search("question 3")
            assert ctx.archive.search_owner("question 3")
            ctx.undo()
            ctx.fork("branch")
            ctx.erasure.erase("u3")
            ctx.erasure.prune(Retention(max_messages=10))
            assert ctx.archive.inspect().turns
            store.erase((), gone=[SHORT])
            assert store.erase_owner(ctx.owner)
        store.erase_owner("ann")
        store.append(LONG, [said("anew")])


def unsent(statements: Sent, dialect: str, **options: bool) -> set[str]:
    """Names of the store's statements that were not sent."""
    wanted = Statements.of(dialect, **options)
    texts = {each.name: plain(getattr(wanted, each.name)).partition("{kinds}")[0] for each in fields(wanted)}
    return {name for name, text in texts.items() if text and not any(each.startswith(text) for each in statements)}


def test_each_statement_names_owner_and_session(url: str) -> None:
    with taken_down() as statements:
        use_everything(url)
    sqlite, serializable = url.startswith("sqlite"), url.endswith("serializable")
    assert unsent(statements, "sqlite" if sqlite else "postgresql", lock_rows=serializable) == set()
    assert any("advisory" in text for text in statements) is not (sqlite or serializable)
    assert [text for text in statements if text.startswith("BEGIN")] == [
        "BEGIN IMMEDIATE" if sqlite else f"BEGIN ISOLATION LEVEL {'SERIALIZABLE' if serializable else 'READ COMMITTED'}"
    ]
    assert wrong(statements) == {}
    used = [why for text in statements if (why := excuse(text, BY_OWNER))]
    assert set(used) == {*BY_OWNER}


def test_each_statement_goes_to_one_partition(postgres_url: str) -> None:
    """The server plans each statement of a partitioned store, with the values that were sent, for one partition of each table."""
    with fresh_schema(postgres_url) as url:
        with taken_down() as statements:
            use_everything(url, partitions=8)
        assert unsent(statements, "postgresql", partitioned=True) == set()
        assert wrong(statements) == {}
        planned, functions = 0, re.compile(r"\b(\w+) ?\(")
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as server:
            server.execute("SET enable_seqscan = off")
            # a distributed table refuses both: what it writes is computed on each of its copies
            changing = {row[0] for row in server.execute("SELECT proname FROM pg_proc WHERE provolatile = 'v'")}
            assert "clock_timestamp" in changing
            assert [t for t in statements if "ctxfold_" in t and changing & {*functions.findall(t.lower())}] == []
            sequences = (
                "SELECT relname FROM pg_class WHERE relkind = 'S' AND relnamespace = current_schema()::regnamespace"
            )
            assert server.execute(sequences.encode()).fetchall() == []
            for text, values in statements.sent.values():
                if not text.startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")) or text in OF_THE_STORE:
                    continue
                plan = str(server.execute(f"EXPLAIN {text}".encode(), values).fetchall())
                found = re.findall(r"ctxfold_(\w+?)_p(\d+)\b", plan)
                for table in {table for table, _ in found}:
                    assert len({number for name, number in found if name == table}) == 1, plan
                planned += bool(found)
        assert planned > 60
