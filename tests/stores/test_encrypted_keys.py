"""Encrypted stores: what a copy of the database shows, changed bits, master keys and their rotation, erasure, kills."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import struct
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from ctxfold import AgentContext, MemoryStore, Message, SqlStore, ToolCallPart, assistant, tool_result, user
from ctxfold.cli.app import app
from ctxfold.connect import encrypted, open_store
from ctxfold.errors import (
    ConfigError,
    MissingExtraError,
    SessionNotFoundError,
    StoreCorruptError,
    StoreFormatError,
)
from ctxfold.history.memory_items import MemoryItem
from ctxfold.history.records import (
    Draft,
    Erased,
    MessageAdded,
    Record,
    Sealed,
    SessionKey,
    decode_body,
    encode_body,
)
from ctxfold.protocols import Document, Rewrite, Store
from ctxfold.session.context import load_snapshot
from ctxfold.stores.encrypted import EncryptedStore
from ctxfold.tokens.text import RatioCounter
from tests.cli.test_ui import served
from tests.stores.valkey_server import free_port, server
from tests.support.postgres_schema import empty, fresh_schema
from tests.support.processes import Ready, import_once, together

import_once(__name__)

KEY = SessionKey("ann", "s1")
PLANTS = 10_000
PREFIX = 12  # characters of a planted word: no other 12 are those by chance


def one_key(name: str | None) -> tuple[str, bytes]:
    return name or "main", b"m" * 32


def line(name: str) -> str:
    return f"{name} {b64encode(os.urandom(32)).decode()}\n"


def said(name: str, text: str = "hi") -> Draft:
    return Draft(name, MessageAdded(user(text, id=name)), "t1", 1.5)


# what a copy of the database shows


class Plants:
    """Words, names and numbers that nothing else holds, each handed out once."""

    def __init__(self) -> None:
        chance = random.Random(7)
        letters = "abcdefghijklmnopqrstuvwxyz"
        words = ["".join(chance.choices(letters, k=12)) for _ in range(PLANTS // 2)]
        names = ["".join(chance.choices(letters, k=13)).capitalize() for _ in range(PLANTS // 4)]
        numbers = ["".join(chance.choices("0123456789", k=14)) for _ in range(PLANTS // 4)]
        self.all = [*words, *names, *numbers]
        chance.shuffle(self.all)
        self._left = iter(self.all)

    def some(self, count: int) -> str:
        return " ".join(next(self._left) for _ in range(count))

    def rest(self) -> str:
        return " ".join(self._left)

    def found_in(self, dump: bytes) -> set[str]:
        """Returns the plants whose beginning the dump holds, in whatever case."""
        lowered = dump.lower()
        beginnings = {plant[:PREFIX].lower().encode(): plant for plant in self.all}
        windows = {lowered[at : at + PREFIX] for at in range(len(lowered))}
        return {plant for beginning, plant in beginnings.items() if beginning in windows}


def tell_all(store: Store) -> Plants:
    """Tells a store all plants: as texts, calls, results, summaries, rules, memory, vectors, ids and names."""
    plants = Plants()
    owner = plants.some(1)
    for _ in range(4):
        with AgentContext(
            session_id=plants.some(1),
            owner=owner,
            store=store,
            context_window=6_000,
            counter=RatioCounter(),
            system=plants.some(20),
        ) as ctx:
            for _ in range(100):
                call = ToolCallPart(plants.some(1), f"t_{plants.some(1)}", f'{{"q": "{plants.some(4)}"}}')
                ctx.add(
                    [
                        user(plants.some(7), id=plants.some(1)),
                        assistant(plants.some(4), calls=[call]),
                        tool_result(call.id, plants.some(4)),
                        Message(plants.some(1), "assistant", assistant(f"Noted. {plants.some(1)}").parts),
                    ]
                )
            assert ctx.usage().compactions > 1
            ctx.memory.add("facts", plants.some(6), key=plants.some(1))
            ctx.memory.add("graph", **{name: plants.some(1) for name in ("subject", "predicate", "object")})
            ctx.edit.set_goal(plants.some(4))
            assert ctx.search(ctx.messages()[5].text, limit=3)
    with AgentContext(session_id="rest", owner=owner, store=store, context_window=6_000) as ctx:
        ctx.add(user(plants.rest()))
    return plants


def vectors_of(store: Any) -> bytes:
    """Stores a vector, and returns its bytes."""
    data = struct.pack("<64f", *(random.Random(3).random() for _ in range(64)))
    (owner,) = store.owners()
    key = SessionKey(owner, store.sessions(owner)[0])
    store.put_vectors(key, "embedder", {0: data, 1: data})
    assert store.vectors(key, "embedder") == {1: data}
    return data


def of_sqlite(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(path.parent.glob(f"{path.name}*")))


def of_postgres(url: str) -> bytes:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()").fetchall()
        dump: list[bytes] = []
        for (name,) in names:
            for row in connection.execute(f'SELECT * FROM "{name}"'.encode()).fetchall():
                dump += [
                    bytes(value) if isinstance(value, (bytes, memoryview)) else str(value).encode() for value in row
                ]
        return b"\n".join(dump)


def of_valkey(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.rglob("*.aof")))


@pytest.fixture(params=["sqlite", "postgres", "valkey"])
def dumped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The URL of a store, and a function that returns all bytes of its database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/a.db", lambda: of_sqlite(tmp_path / "a.db")
    elif request.param == "postgres":
        with fresh_schema(request.getfixturevalue("postgres_url")) as url:
            yield url, lambda: of_postgres(url)
    else:
        port = free_port()
        with server(tmp_path / "valkey", port, "--appendonly", "yes", "--appendfsync", "always"):
            yield f"valkey://127.0.0.1:{port}", lambda: of_valkey(tmp_path / "valkey")


def test_a_dump_shows_none_of_ten_thousand_plants(dumped: tuple[str, Callable[[], bytes]]) -> None:
    url, dump = dumped
    with encrypted(url, keys=one_key, hide_names=True) as store:
        plants = tell_all(store)
        vector = vectors_of(store)
        assert len({*plants.all}) == PLANTS
        (owner,) = store.owners()
        everything = "".join(str(store.read(SessionKey(owner, name))) for name in store.sessions(owner))
        assert sum(plant in everything for plant in plants.all) > PLANTS - 60, (
            "all but names and memory are in the logs"
        )
    held = dump()
    assert len(held) > 500_000
    assert plants.found_in(held) == set()
    assert vector[:PREFIX] not in held


def test_the_search_for_plants_finds_them_in_a_plain_store(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/a.db") as store:
        plants = tell_all(store)
        vector = vectors_of(store)
    held = of_sqlite(tmp_path / "a.db")
    assert len(plants.found_in(held)) == PLANTS
    assert vector[:PREFIX] in held


def test_the_statistics_that_are_left_are_those_of_the_docs(tmp_path: Path) -> None:
    """Kinds, times, counts and sizes stay readable; a term is one hash in all sessions of an owner, another for others."""
    with encrypted(f"sqlite:///{tmp_path}/a.db", keys=one_key) as store:
        for key in (KEY, SessionKey("ann", "s2"), SessionKey("bob", "s1")):
            store.append(key, [said("m1", "hello")], documents=[Document(1, {"hello": 1}, 1)])
    with SqlStore(f"sqlite:///{tmp_path}/a.db") as plain:
        (record,) = plain.read(KEY)
        assert (record.body.kind, record.at_s, record.number) == ("message_added", 1.5, 1)
        assert "m1" not in record.id
        assert plain.sessions("ann") == ("ctxfold:key", "s1", "s2")
        assert plain.copies(KEY) == ("s2",)
        other = plain.read(SessionKey("bob", "s1"))[0]
        assert other.id != record.id
        assert other.body != record.body
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        rows = connection.execute(
            "SELECT owner, session, data FROM ctxfold_postings ORDER BY owner, session"
        ).fetchall()
    mine, mine_too, others = (row[2] for row in rows)
    assert mine == mine_too
    assert mine != others
    assert b"hello" not in mine


# changed bits


def changed(store: Store, key: SessionKey, record: Record, body: object) -> None:
    """Puts another body in place of a record's, with a checksum that fits."""
    assert store.erase([Rewrite(key, 1, (), (replace(record, body=body),), (), ())])  # type: ignore[arg-type]


def test_a_changed_bit_is_an_error() -> None:
    plain = MemoryStore()
    with encrypted(plain, keys=one_key) as store:
        store.append(KEY, [said("m1", "The vault is 4711.")])
        (record,) = plain.read(KEY)
        assert isinstance(record.body, Sealed)
        for name in ("kind", "digest", "text"):
            value = str(getattr(record.body, name))
            for at in range(len(value)):
                for bit in range(7):
                    other = value[:at] + chr(ord(value[at]) ^ 1 << bit) + value[at + 1 :]
                    changed(plain, KEY, record, replace(record.body, **{name: other}))
                    with pytest.raises(StoreCorruptError):
                        store.read(KEY)
        changed(plain, KEY, record, record.body)
        assert store.read(KEY)[0].id == "m1"


def test_rows_that_were_moved_are_errors() -> None:
    plain = MemoryStore()
    with encrypted(plain, keys=one_key) as store:
        others = (SessionKey("ann", "s2"), SessionKey("bob", "s1"))
        for key in (KEY, *others):
            store.append(key, [said("m1", f"{key}")])
        (record,) = plain.read(KEY)
        for key in others:  # the row of another session, and of another owner
            (other,) = plain.read(key)
            changed(plain, key, other, record.body)
            with pytest.raises(StoreCorruptError):
                store.read(key)
        store.append(SessionKey("ann", "s3"), [said("a", "one")])
        (one,) = plain.read(SessionKey("ann", "s3"))
        renamed = Rewrite(SessionKey("ann", "s3"), 1, (), (replace(one, id="x"),), (), ())
        assert plain.erase([renamed])
        with pytest.raises(StoreCorruptError):
            store.read(SessionKey("ann", "s3"))


def test_changed_vectors_and_items_are_errors() -> None:
    plain = MemoryStore()
    with encrypted(plain, keys=one_key) as store:
        assert isinstance(store, EncryptedStore)
        store.append(KEY, [said("m1"), said("m2")])
        store.put_vectors(KEY, "one", {1: b"first", 2: b"second"})
        sealed = plain.vectors(KEY, "one")
        plain.put_vectors(KEY, "one", {1: sealed[2]})
        with pytest.raises(StoreCorruptError):
            store.vectors(KEY, "one")
        store.remember("ann", [MemoryItem("i1", "facts", "likes tea", key="drink")])
        (item,) = plain.memories("ann")
        plain.forget("ann", ["i1"])
        plain.remember("ann", [replace(item, id="i2", kind="corrections", replaces="")])
        with pytest.raises(StoreCorruptError):
            store.memories("ann")


# master keys


def test_a_key_file(tmp_path: Path) -> None:
    file, url = tmp_path / "keys", f"sqlite:///{tmp_path}/a.db"
    with pytest.raises(ConfigError, match=r"FileNotFoundError.*openssl rand -base64 32"):
        encrypted("memory://", keys=file)
    for bad in ("", "# nothing\n", "one\n", "one two three\n", "one a\n"):
        file.write_text(bad)
        with pytest.raises(ConfigError, match="openssl rand"):
            encrypted("memory://", keys=str(file))
    file.write_text(f"short {b64encode(b'x' * 16).decode()}\n")
    with pytest.raises(ConfigError, match="'short' has 16 bytes: give 32"):
        encrypted("memory://", keys=file)
    file.write_text(line("one"), "utf-8-sig")  # as some editors begin a file
    encrypted("memory://", keys=file).close()
    file.write_text(f"# the keys of the shop\n\n{line('one')}")
    with encrypted(url, keys=file) as store:
        store.append(KEY, [said("m1")])
    with encrypted(url, keys=str(file)) as store:
        assert [record.id for record in store.read(KEY)] == ["m1"]


def test_what_is_no_source_of_keys_is_refused() -> None:
    with pytest.raises(ConfigError, match="keys is an int"):
        encrypted("memory://", keys=7)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a name without spaces"):
        encrypted("memory://", keys=lambda _: ("with space", b"k" * 32))


@pytest.mark.parametrize("found", [None, "main", ("main",), ("main", "m" * 32), (b"main", b"m" * 32)], ids=repr)
def test_a_function_that_returns_no_key_is_named(found: Any) -> None:
    with pytest.raises(ConfigError, match=r"the function of keys returned .*: return the name and the bytes"):
        encrypted(MemoryStore(), keys=lambda _: found)


@pytest.mark.parametrize("rest", ["", "message_added", 'message_added x"}', "message_added x y"])
def test_a_sealed_record_that_lacks_a_part_is_an_error(rest: str) -> None:
    """Its checksum may be right: who writes in the database can compute that."""
    whole = encode_body(Sealed("message_added", "x", "y"))
    assert decode_body(whole) == Sealed("message_added", "x", "y")
    with pytest.raises(StoreCorruptError, match="a sealed record cannot be read"):
        decode_body(f'{{"sealed":"{rest}')


def test_a_missing_or_wrong_master_key_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    encrypted(url, keys=one_key).close()

    def none_of_it(name: str | None) -> tuple[str, bytes]:
        return {None: ("new", b"n" * 32)}[name]

    with pytest.raises(ConfigError, match=r"master key 'main' is in use and missing: add it"):
        encrypted(url, keys=none_of_it)
    with pytest.raises(StoreCorruptError, match="master key 'main' is not the one"):
        encrypted(url, keys=lambda name: (name or "main", b"x" * 32))


def test_without_the_library_the_error_has_the_pip_line() -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from ctxfold.connect import encrypted\n"
        "from ctxfold.errors import MissingExtraError\n"
        "try: encrypted('memory://', keys='keys')\n"
        "except MissingExtraError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 'pip install "ctxfold[encryption]"' in done.stdout
    assert issubclass(MissingExtraError, ImportError)


def test_rotation_wraps_every_key_anew(tmp_path: Path) -> None:
    file, url = tmp_path / "keys", f"sqlite:///{tmp_path}/a.db"
    old = line("master-of-old")
    file.write_text(old)
    with encrypted(url, keys=file) as store:
        assert isinstance(store, EncryptedStore)
        for owner in ("ann", "bob"):
            store.append(SessionKey(owner, "s1"), [said("m1", owner)])
        assert store.rotate() == 0
        new = line("new")
        file.write_text(old + new)
        assert store.rotate() == 3, "two owners, and the store's own"
        assert store.rotate() == 0
        file.write_text(new)
        store.append(KEY, [said("m2")])
    assert old.split()[0].encode() not in of_sqlite(tmp_path / "a.db")
    with encrypted(url, keys=file) as store:
        assert [record.id for record in store.read(KEY)] == ["m1", "m2"]
        assert store.sessions("bob") == ("s1",)


def test_a_store_that_lists_no_owners_is_told_them() -> None:
    keys = {"old": b"o" * 32}

    def find(name: str | None) -> tuple[str, bytes]:
        name = name or [*keys][-1]
        return name, keys[name]

    with encrypted(MemoryStore(), keys=find) as store:
        assert isinstance(store, EncryptedStore)
        store.append(KEY, [said("m1")])
        keys["new"] = b"n" * 32
        with pytest.raises(ConfigError, match="cannot list its owners: name them"):
            store.rotate()
        assert store.rotate(["ann", "nobody"]) == 2
        del keys["old"]
        assert store.rotate(["ann"]) == 0


class Ring:
    """Master keys by name, the last one in use; `gone` is called when one is asked for that is not there."""

    def __init__(self) -> None:
        self.keys = {"old": b"o" * 32}
        self.gone: Callable[[], object] = lambda: None

    def __call__(self, name: str | None) -> tuple[str, bytes]:
        name = name or [*self.keys][-1]
        if name not in self.keys:
            self.gone()
        return name, self.keys[name]


def test_an_owner_who_is_begun_during_a_rotation_is_under_the_new_key() -> None:
    plain, ring = Interrupted(SessionKey("ann", "ctxfold:key")), Ring()
    with encrypted(plain, keys=ring) as store:
        assert isinstance(store, EncryptedStore)

        def rotated() -> None:
            ring.keys["new"] = b"n" * 32
            assert store.rotate([]) == 1

        plain.first = rotated
        store.append(KEY, [said("m1")])
        del ring.keys["old"]
        assert [r.id for r in encrypted(plain, keys=ring).read(KEY)] == ["m1"]


def test_a_worker_reads_again_what_was_wrapped_anew_meanwhile() -> None:
    plain, ring = MemoryStore(), Ring()
    encrypted(plain, keys=ring).append(KEY, [said("m1")])
    late = Ring()
    late.keys = {"new": b"n" * 32}
    with encrypted(plain, keys=ring) as store:
        assert isinstance(store, EncryptedStore)
        ring.keys["new"] = b"n" * 32
        late.gone = lambda: store.rotate(["ann"])  # between its look at the store and its look at the keys
        assert [r.id for r in encrypted(plain, keys=late).read(KEY)] == ["m1"]


WRITERS, ROTATIONS = 4, 8


def write(url: str, file: str, number: int, stop: str, ready: Ready) -> int:
    """Writes turns of old and new owners until the file `stop` is there; every error ends the process."""
    ready()
    turns = 0
    while not os.path.exists(stop) or turns < ROTATIONS:
        with encrypted(url, keys=file) as store:
            for owner in (f"old{number}", f"new{number}-{turns}"):
                with AgentContext(session_id="s", owner=owner, store=store, context_window=500) as ctx:
                    text = f"The key number {turns} hangs in the mill behind the door. " * 3
                    ctx.add([user(text, id=f"u{turns}"), assistant("Noted.", id=f"a{turns}")])
        turns += 1
    return turns


def rotate(url: str, file: str, number: int, stop: str, ready: Ready) -> int:
    """Rotates under the writers: each key goes one rotation after the next one has come."""
    lines = Path(file).read_text().splitlines(keepends=True)
    changed = 0
    with encrypted(url, keys=file) as store:
        assert isinstance(store, EncryptedStore)
        ready()
        for n in range(ROTATIONS):
            lines = [*lines[-1:], line(f"key{n}")]
            store.rotate()  # what was begun with the key before the last
            replaced = Path(f"{file}.new")
            replaced.write_text("".join(lines))
            replaced.replace(file)
            changed += store.rotate()
    Path(stop).touch()
    return changed


def test_rotation_under_four_writers_fails_none(postgres_url: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(line("first"))
    with fresh_schema(postgres_url) as url:
        encrypted(url, keys=file).close()
        arguments = [(url, str(file), n, str(tmp_path / "stop")) for n in range(WRITERS + 1)]
        _, turns = together(write_or_rotate, arguments)
        assert turns[WRITERS] >= ROTATIONS
        with encrypted(url, keys=file) as store:
            assert isinstance(store, EncryptedStore)
            for number, count in enumerate(turns[:WRITERS]):
                expected = [name for n in range(count) for name in (f"u{n}", f"a{n}")]
                with AgentContext(session_id="s", owner=f"old{number}", store=store, context_window=500) as ctx:
                    assert [m.id for m in ctx.messages()] == expected
                    assert ctx.usage().compactions > 0
                for n in range(count):
                    new = store.read(SessionKey(f"new{number}-{n}", "s"))
                    assert [r.id for r in new if isinstance(r.body, MessageAdded)] == [f"m:u{n}", f"m:a{n}"]
            assert len(store.owners()) == WRITERS + sum(turns[:WRITERS])


def write_or_rotate(url: str, file: str, number: int, stop: str, ready: Ready) -> int:
    return (write if number < WRITERS else rotate)(url, file, number, stop, ready)


# erasure, and workers that have not heard of it


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[EncryptedStore, EncryptedStore]]:
    """Two workers at one store, each with its own memory of keys."""
    url = f"sqlite:///{tmp_path}/a.db"
    with encrypted(url, keys=one_key) as one, encrypted(url, keys=one_key) as other:
        yield one, other


def begin(store: Store, text: str) -> None:
    store.append(KEY, [said("m1", text)], documents=[Document(1, {"hello": 1}, 1)])
    store.remember("ann", [MemoryItem("i1", "facts", text, session="s1", sources=("m1",), created_s=1.0)])


def test_an_erased_owner_begins_anew_with_another_key(
    two: tuple[EncryptedStore, EncryptedStore], tmp_path: Path
) -> None:
    one, other = two
    begin(one, "before")
    sealed = [record.body for record in SqlStore(f"sqlite:///{tmp_path}/a.db").read(KEY)]
    other.erase_owner("ann")
    begin(other, "before")
    again = [record.body for record in SqlStore(f"sqlite:///{tmp_path}/a.db").read(KEY)]
    assert sealed != again
    assert str(sealed[0].text)[:8] != str(again[0].text)[:8]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "look",
    [
        lambda s: [r.id for r in s.read(KEY)] == ["m1"],
        lambda s: [r.id for r in s.find(KEY, ["m1"])] == ["m1"],
        lambda s: s.numbered(KEY, 1).id == "m1",
        lambda s: s.postings(KEY, ["hello"]).by_term == {"hello": ((1, 1, 1),)},
        lambda s: s.owner_postings("ann", ["hello"], newest=9)["s1"].by_term == {"hello": ((1, 1, 1),)},
        lambda s: [i.text for i in s.memories("ann")] == ["after"],
        lambda s: [i.text for i in s.forget("ann", ["i1"])] == ["after"],
        lambda s: [r.id for r in s.append(KEY, [said("m2")])] == ["m1", "m2"],
        lambda s: s.append(SessionKey("ann", "s2"), [said("m2")]) and s.read(KEY),
        lambda s: s.put_vectors(KEY, "one", {0: b"about", 1: b"v"}) or s.vectors(KEY, "one") == {1: b"v"},
        lambda s: s.remember("ann", [MemoryItem("i2", "facts", "new")]) and len(s.memories("ann")) == 2,
    ],
)
def test_a_worker_with_the_old_key_finds_the_new_one(
    two: tuple[EncryptedStore, EncryptedStore], look: Callable[[EncryptedStore], object]
) -> None:
    one, other = two
    begin(one, "before")
    one.find(KEY, ["m1"])
    other.erase_owner("ann")
    begin(other, "after")
    assert look(one)
    for store in two:  # and what it has written is for both to read
        assert store.read(KEY)
        assert store.append(SessionKey("ann", "s2"), []) is not None
        assert store.memories("ann", everything=True)


def test_another_worker_s_erasure_of_a_message_is_seen(two: tuple[EncryptedStore, EncryptedStore]) -> None:
    one, other = two
    begin(one, "secret")
    assert one.read(KEY)[0].body.kind == "message_added"
    assert other.erase([Rewrite(KEY, 1, ("m1",), (Record(1, "m1", Erased(("m1",)), "t1", 1.5, 1),), (1,), ())])
    assert one.read(KEY)[0].body == Erased(("m1",))
    assert one.memories("ann") == ()


def test_a_worker_with_the_old_key_writes_nothing_into_the_old_session(
    two: tuple[EncryptedStore, EncryptedStore],
) -> None:
    one, other = two
    begin(one, "before")
    other.erase_owner("ann")
    begin(other, "after")
    with pytest.raises(SessionNotFoundError, match="'s1' was erased"):
        one.append(KEY, [said("m2")], known=1, known_id="m0")
    assert [r.id for r in other.read(KEY)] == ["m1"]


class Interrupted(MemoryStore):
    """A store that calls a function once, before an append to a session."""

    def __init__(self, at: SessionKey = KEY) -> None:
        super().__init__()
        self.at = at
        self.first: Callable[[], object] | None = None

    def append(self, key: SessionKey, drafts: Any, **rest: Any) -> tuple[Record, ...]:
        if key == self.at and self.first is not None:
            first, self.first = self.first, None
            first()
        return super().append(key, drafts, **rest)


@pytest.mark.parametrize("anew", [False, True])
def test_an_owner_who_is_erased_in_the_middle_of_an_append_keeps_no_dead_session(anew: bool) -> None:
    plain = Interrupted()
    one, other = encrypted(plain, keys=one_key), encrypted(plain, keys=one_key)
    one.remember("ann", [MemoryItem("i1", "facts", "before")])

    def erased() -> None:
        other.erase_owner("ann")
        if anew:
            other.append(KEY, [said("m0")])

    plain.first = erased
    assert [r.id for r in one.append(KEY, [said("m1")])] == (["m0", "m1"] if anew else ["m1"])
    for store in (one, other):
        assert [r.id for r in store.read(KEY)] == (["m0", "m1"] if anew else ["m1"])
        assert store.memories("ann") == ()


def test_a_session_of_an_erased_key_says_so() -> None:
    plain = MemoryStore()
    with encrypted(plain, keys=one_key) as store:
        store.append(KEY, [said("m1")])
        (record,) = plain.read(KEY)
        store.erase_owner("ann")
        store.append(SessionKey("ann", "s2"), [said("m1")])
        plain.append(KEY, [Draft(record.id, record.body)])
        with pytest.raises(
            StoreCorruptError, match=r"not sealed with the key of its owner: restore .* erase the owner again"
        ):
            store.read(KEY)
        assert store.erase_owner("ann")
        assert store.sessions("ann") == ()


# plain and encrypted


def test_a_plain_store_is_not_taken_for_an_encrypted_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with AgentContext(session_id="s1", owner="ann", store=url, context_window=4_000) as ctx:
        ctx.add(user("hello"))
    with pytest.raises(StoreFormatError, match=r"plain sessions: export them, and import them into"):
        encrypted(url, keys=one_key)
    plain = MemoryStore()  # which lists no owners
    plain.append(KEY, [said("m1")])
    with encrypted(plain, keys=one_key) as store:
        with pytest.raises(StoreFormatError, match="is not encrypted: export it"):
            store.read(KEY)
        with pytest.raises(StoreFormatError, match="plain sessions"):
            store.append(SessionKey("ann", "s2"), [said("m1")])
        plain.remember("ann", [MemoryItem("i1", "facts", "plain")])
        with pytest.raises(StoreFormatError, match="'i1' is not encrypted"):
            store.memories("ann")


def test_an_encrypted_store_is_not_taken_for_a_plain_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    text = "The key hangs in the mill behind the door. " * 5
    for turns in (1, 60):  # the second has snapshots
        store = encrypted(url, keys=one_key)
        with store, AgentContext(session_id="s1", owner="ann", store=store, context_window=500) as ctx:
            for n in range(turns):
                ctx.add([user(text, id=f"u{turns}-{n}"), assistant("Noted.", id=f"a{turns}-{n}")])
        with pytest.raises(StoreFormatError, match="'s1' is encrypted: open its store with encrypted"):
            AgentContext(session_id="s1", owner="ann", store=url, context_window=500).messages()


def test_nothing_is_written_in_plain_text_beside_what_is_encrypted(tmp_path: Path) -> None:
    url, file = f"sqlite:///{tmp_path}/a.db", tmp_path / "all.json"
    with encrypted(url, keys=one_key) as store, encrypted("memory://", keys=one_key) as other:
        with AgentContext(session_id="s1", owner="ann", store=store, context_window=4_000) as ctx:
            ctx.add("The locker is 47-B.")
            ctx.files.save_snapshot(file)
        with load_snapshot(file, store=other, session_id="s2", owner="ann") as loaded:
            assert loaded.messages()[0].text == "The locker is 47-B."
        for owner in ("ann", "bob"):  # one of whom the store knows, and a new one
            with pytest.raises(StoreFormatError, match="the store of session 's2' is encrypted: open it with"):
                AgentContext(session_id="s2", owner=owner, store=url, context_window=4_000).add("hi")
            with pytest.raises(StoreFormatError, match="the store of session 's3' is encrypted: open it with"):
                load_snapshot(file, store=url, session_id="s3", owner=owner)
        assert (store.owners(), store.sessions("ann")) == (("ann",), ("s1",))
        assert b"47-B" not in of_sqlite(tmp_path / "a.db")


def test_names_are_hidden_or_not_from_the_beginning(tmp_path: Path) -> None:
    for hidden in (True, False):
        url = f"sqlite:///{tmp_path}/{hidden}.db"
        with encrypted(url, keys=one_key, hide_names=hidden) as store:
            store.append(KEY, [said("m1")])
        with pytest.raises(ConfigError, match=f"made with hide_names={hidden}: leave it out"):
            encrypted(url, keys=one_key, hide_names=not hidden)
        with encrypted(url, keys=one_key) as store:
            assert isinstance(store, EncryptedStore)
            assert (store.owners(), store.sessions("ann")) == (("ann",), ("s1",))
        with SqlStore(url) as plain:
            assert ("ann" in plain.owners()) is not hidden


def test_names_of_its_own_and_long_ones_are_refused() -> None:
    with encrypted("memory://", keys=one_key, hide_names=True) as store:
        store.append(SessionKey("o" * 352, "s" * 352), [said("m1")])
        assert store.sessions("o" * 352) == ("s" * 352,)
        with pytest.raises(ConfigError, match="a name takes 353 bytes, at most 352 are hidden"):
            store.head(SessionKey("o", "s" * 353))
        for key in (SessionKey("o" * 353, "s"), SessionKey("ctxfold:store", "s"), SessionKey("ann", "ctxfold:key")):
            with pytest.raises(ConfigError, match="choose another"):
                store.append(key, [said("m1")])


# kills

KILLED = 9
TURNS = 12


def turn(number: int) -> list[Message]:
    text = f"The key number {number} is {number * 7_919 % 9_973}, and hangs in the mill behind the door. " * 2
    return [user(text, id=f"u{number}"), assistant(f"Noted {number}.", id=f"a{number}")]


def tell(url: str, numbers: range) -> int:
    """Tells turns that are not stored yet; returns how often the session was compacted."""
    store = encrypted(url, keys=one_key, hide_names=True)
    with store, AgentContext(session_id="k", store=store, context_window=500, counter=RatioCounter()) as ctx:
        stored = {message.id for message in ctx.messages()}
        for number in numbers:
            if missing := [message for message in turn(number) if message.id not in stored]:
                ctx.add(missing)
        return ctx.usage().compactions


def kept(url: str) -> list[str]:
    store = encrypted(url, keys=one_key, hide_names=True)
    with store, AgentContext(session_id="k", store=store, context_window=500, counter=RatioCounter()) as ctx:
        found = ctx.search("key number 0") if ctx.usage().compactions else ()
        assert not found or "number 0 is" in found[0].excerpt
        return [message.text for message in ctx.messages()]


def killed_at(url: str, numbers: range, place: int) -> int:
    """Tells turns in a child that dies before a statement (even places) or after it (odd ones)."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    calls = 0

    def counted(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if 2 * calls == place:
                os._exit(KILLED)
            found = run(*args, **options)
            if 2 * calls + 1 == place:
                os._exit(KILLED)
            return found

        return call

    try:
        psycopg.Cursor.execute = counted(psycopg.Cursor.execute)  # type: ignore[method-assign]
        psycopg.Cursor.executemany = counted(psycopg.Cursor.executemany)  # type: ignore[method-assign]
        tell(url, numbers)
        os._exit(0)
    except BaseException:
        os._exit(1)


@pytest.mark.parametrize("before", [0, None], ids=["a new owner", "a turn with a compaction"])
def test_a_kill_at_any_statement_loses_and_doubles_nothing(postgres_url: str, before: int | None) -> None:
    with fresh_schema(postgres_url) as url:
        if before is None:  # as many turns as the next one compacts
            before = next(n for n in range(1, TURNS) if tell(url, range(n + 1)) > 0)
        told = range(before + 1)
        expected = [message.text for number in told for message in turn(number)]
        for place in range(2, 1_000):
            empty(url)
            if before:
                tell(url, range(before))
            ended = killed_at(url, told, place)
            assert ended in (0, KILLED)
            texts = kept(url)
            assert texts == expected[: len(texts)]
            assert len(texts) >= 2 * before
            compactions = tell(url, told)
            assert kept(url) == expected
            assert compactions in ((1,) if before and ended == 0 else (0, 1))
            if ended == 0:
                break
        assert place > (40 if before else 20)


# the command line


def test_the_command_line_opens_an_encrypted_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, url = tmp_path / "keys", f"encrypted+sqlite:///{tmp_path}/a.db"
    file.write_text(line("one"))

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, [*arguments, "--store", url])
        return done.exit_code, done.output

    code, output = run("sessions")
    assert code == 2
    assert "no store file" in output
    with pytest.raises(ConfigError, match="name the key file in the variable CTXFOLD_KEYS"):
        open_store(url)
    monkeypatch.setenv("CTXFOLD_KEYS", str(file))
    with AgentContext(session_id="s1", store=url, context_window=4_000) as ctx:
        ctx.add([user("The blue key opens the shed."), assistant("Noted.")])
    assert "s1" in run("sessions")[1]
    assert "blue key" in run("search", "s1", "shed")[1]
    assert "blue key" in run("search", "--all", "shed")[1]
    assert "blue key" in run("export", "s1", "-")[1]
    assert asyncio.run(open_store(url).asessions("default")) == ("s1",)
    with served(url) as site:
        assert "blue key" in site.text(session="s1")
        assert "ctxfold:key" not in site.client.get("/").text
