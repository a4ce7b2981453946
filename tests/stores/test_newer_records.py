"""V2: what a newer release has written is kept, and left out with a warning; V7: what is damaged is an error."""

from __future__ import annotations

import json
import random
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ctxfold import AgentContext, CtxError, Message, Retention, ScriptedBackend, SqlStore, assistant, user
from ctxfold.errors import CtxWarning, StoreCorruptError
from ctxfold.history.memory_items import MemoryItem
from ctxfold.history.records import Draft, PolicyChanged, SessionKey, SnapshotTaken, Unknown, decode_body, encode_body
from tests.support.driven import context

KEY = SessionKey("default", "s")


def talk(store: SqlStore, **settings: Any) -> AgentContext:
    backend = ScriptedBackend(["noted"] * 20)
    return context(backend, store=store, session_id="s", **{"context_window": 2_000, **settings})


def filled(url: str) -> list[Message]:
    with SqlStore(url) as store, talk(store) as ctx:
        for n in range(40):
            ctx.add([user(f"question {n} about item {n * 7}", id=f"u{n}"), assistant(f"answer {n}", id=f"a{n}")])
        ctx.compact(force=True)
        store.remember("default", [MemoryItem("i1", "facts", "the locker is on the left", key="locker")])
        store.put_vectors(KEY, "e", {0: b"about", 3: b"1234"})
        return list(ctx.messages())


# what a newer release writes


def added(**fields: Any) -> str:
    message = {"id": "new", "role": "user", "parts": [{"type": "text", "text": "hello"}]} | fields
    return json.dumps({"kind": "message_added", "message": message})


NEWER = {
    "a kind": (json.dumps({"kind": "mood_set", "mood": "calm"}), None),
    "a field of a record": (json.dumps({"kind": "pinned", "ids": ["u1"], "until": 7}), None),
    "a field of a message": (added(tone="calm"), "hello"),
    "a part": (added(parts=[{"type": "text", "text": "hello"}, {"type": "smell", "of": "coffee"}]), "hello"),
    "a field of a part": (added(parts=[{"type": "text", "text": "hello", "language": "en"}]), "hello"),
    "a role": (added(role="referee"), None),
    "a visibility": (added(visibility="referee"), None),
    "a kind of message": (added(kind="aside"), None),
    "a status": (json.dumps({"kind": "turn_closed", "status": "adjourned"}), None),
}


@pytest.mark.parametrize("what", NEWER)
def test_v2_a_record_of_a_newer_release_is_read(what: str, tmp_path: Path) -> None:
    text, shown = NEWER[what]
    url = f"sqlite:///{tmp_path}/a.db"
    before = filled(url)
    with SqlStore(url) as store:
        with talk(store) as running:
            assert running.view()
            head = store.head(KEY)
            assert head is not None
            store.append(KEY, [Draft("m:new", Unknown(json.loads(text)["kind"], text), None, 1.0)])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CtxWarning)
                running.add(user("and then?", id="then"))  # a running worker
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CtxWarning)
            with talk(store) as ctx:  # a new one
                told = [m.id for m in ctx.messages() if m.id != "new"]
                assert told == [*(m.id for m in before), "then"]
                texts = [m.text for m in ctx.view().messages]
                assert ("hello" in texts) == (shown is not None)
                assert ctx.send("go on").message.text
        kept = next(r for r in store.read(KEY) if r.id == "m:new")
        if isinstance(kept.body, Unknown):
            assert json.loads(encode_body(kept.body)) == json.loads(text)


@pytest.mark.parametrize("erases", [False, True])
@pytest.mark.parametrize("what", ["a version", "a message of a new record"])
def test_v2_a_snapshot_of_a_newer_release_is_passed_over(what: str, erases: bool, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    before = filled(url)
    with SqlStore(url) as store, warnings.catch_warnings():
        warnings.simplefilter("ignore", CtxWarning)
        with talk(store) as ctx:
            snapshots = [r.body.state for r in store.read(KEY) if isinstance(r.body, SnapshotTaken)]
        value = json.loads(snapshots[-1])
        if what == "a version":
            value = {"version": 9, "mood": "calm"}
        else:
            text = json.dumps({"kind": "mood_told", "message": {"id": "new"}})
            head = store.append(KEY, [Draft("m:new", Unknown("mood_told", text), None, 1.0)])[-1].seq
            value["live"].append(["new", head, 0, 5, 0])
        newer = SnapshotTaken(json.dumps(value, separators=(",", ":")))
        store.append(KEY, [Draft("s:newer", newer, None, 1.0)])
        with talk(store) as ctx:
            assert list(ctx.messages()) == before
            assert ctx.send("go on").message.text
            if erases:
                ctx.erasure.erase("u3")
        with talk(store) as again:
            assert [m.id for m in again.messages()][:3] == ["u0", "a0", "u1"]
            assert ("u3" in [m.id for m in again.messages()]) != erases


def test_v2_each_is_said_once() -> None:
    with pytest.warns(CtxWarning, match="parts of the type 'taste'.*upgrade ctxfold"):
        body = decode_body(added(parts=[{"type": "taste"}]))
    assert json.loads(body.message.parts[0].json) == {"type": "taste"}  # type: ignore[union-attr]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode_body(added(parts=[{"type": "taste"}]))


@pytest.mark.parametrize(
    "policy",
    [
        {"context_window": 2_000, "reply_reserve_tokens": 400, "summary_tokens": 160, "mood": "calm"},
        {"context_window": 2_000, "reply_reserve_tokens": 400, "summary_tokens": 160, "pruning_order": "by_mood"},
        {"context_window": 2_000, "reply_reserve_tokens": 400, "summary_tokens": 160, "trigger": {"type": "moody"}},
        {"context_window": 2_000, "reply_reserve_tokens": 400, "summary_tokens": 160, "strategy": "moody"},
    ],
    ids=["field", "choice", "trigger", "strategy"],
)
def test_v2_settings_of_a_newer_release(policy: dict[str, Any], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    filled(url)
    with SqlStore(url) as store, warnings.catch_warnings():
        warnings.simplefilter("ignore", CtxWarning)
        with talk(store) as running:
            assert running.view()
            store.append(KEY, [Draft("p", PolicyChanged(json.dumps(policy), "c", ()), None, 1.0)])
            running.add(user("and then?", id="then"))
            assert running.send("go on").message.text
        with talk(store) as new:
            assert new.send("go on").message.text
            new.set_policy(keep_last=5)
        stored = [r.body.policy for r in store.read(KEY) if isinstance(r.body, PolicyChanged)]
        if "mood" in policy:  # kept by those who do not know it
            assert json.loads(stored[-1])["mood"] == "calm"


def test_policies_are_stored_where_they_differ_from_the_defaults(tmp_path: Path) -> None:
    with SqlStore(f"sqlite:///{tmp_path}/a.db") as store, talk(store, keep_last=5) as ctx:
        assert ctx.messages() == ()
        (policy,) = [r.body.policy for r in store.read(KEY) if isinstance(r.body, PolicyChanged)]
    assert json.loads(policy) == {
        "context_window": 2_000,
        "reply_reserve_tokens": 400,
        "summary_tokens": 160,
        "keep_last": 5,
    }


# what is damaged


def cells(path: Path) -> Iterator[tuple[str, str, int, Any]]:
    with closing(sqlite3.connect(path)) as file:
        tables = [row[0] for row in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in sorted(tables):
            columns = [row[1] for row in file.execute(f"PRAGMA table_info({table})")]
            rows = file.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
            for at, row in enumerate(rows):
                for column, value in zip(columns, row, strict=True):
                    if value is not None:
                        yield table, column, at, value


def flipped(value: Any, rng: random.Random) -> Any:
    if isinstance(value, int):
        return value ^ (1 << rng.randrange(8))
    if isinstance(value, float):
        return value * 2 ** rng.choice([-1, 1, 20])
    data = bytearray(value.encode() if isinstance(value, str) else value)
    if not data:
        return "x" if isinstance(value, str) else b"x"
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(7)
    return bytes(data).decode(errors="replace") if isinstance(value, str) else bytes(data)


def use(url: str) -> list[Message]:
    with SqlStore(url) as store, talk(store) as ctx:
        told = list(ctx.messages())
        ctx.search("question item")
        ctx.archive.inspect()
        store.memories("default", everything=True)
        ctx.send("go on")
        ctx.compact(force=True)
        ctx.erasure.prune(Retention(max_messages=1_000))
        return told


def test_v7_a_damaged_store_is_an_error_or_the_right_text(tmp_path: Path) -> None:
    """One bit of one cell after the other: each call gives what was stored, or a typed error."""
    whole = tmp_path / "whole.db"
    right = filled(f"sqlite:///{whole}")
    with closing(sqlite3.connect(whole)) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    rng = random.Random(7)
    by_column: dict[tuple[str, str], list[tuple[int, Any]]] = {}
    for table, column, at, value in cells(whole):
        by_column.setdefault((table, column), []).append((at, value))
    found: list[str] = []
    for (table, column), places in by_column.items():
        for at, value in rng.sample(places, min(len(places), 5)):
            broken = tmp_path / "broken.db"
            for leftover in tmp_path.glob("broken.db*"):
                leftover.unlink()
            broken.write_bytes(whole.read_bytes())
            new = flipped(value, rng)
            with closing(sqlite3.connect(broken, isolation_level=None)) as file:
                names = [row[1] for row in file.execute(f"PRAGMA table_info({table})")]
                row = file.execute(f"SELECT {', '.join(names)} FROM {table}").fetchall()[at]
                where = " AND ".join(f"{name} IS ?" for name in names)
                file.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE {where}", (new, *row))
            try:
                told = use(f"sqlite:///{broken}")
            except CtxError:
                continue
            except Exception as error:  # a raw error is what this test looks for
                found.append(f"{table}.{column} {value!r:.40} -> {new!r:.40}: {error!r:.200}")
                continue
            texts = {m.id: m.text for m in right}
            if any(m.id in texts and texts[m.id] != m.text for m in told):
                found.append(f"{table}.{column} {value!r:.40} -> {new!r:.40}: another text")
            elif table == "ctxfold_records" and column in ("seq", "turn_id", "payload") and len(told) < len(right):
                found.append(f"{table}.{column} {value!r:.40} -> {new!r:.40}: {len(right) - len(told)} messages lost")
    assert found == []


@pytest.mark.parametrize("column", ["payload", "turn_id", "seq", "at_s", "record_id"])
def test_v7_a_changed_row_is_told_with_its_place(column: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with SqlStore(url) as store, talk(store) as ctx:
        ctx.send("the locker is on the left")
    change = {"payload": "REPLACE(payload, 'left', 'reft')", "turn_id": "turn_id || 'x'", "seq": "seq + 100"}
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as file:
        sql = change.get(column, {"at_s": "at_s + 1", "record_id": "record_id || 'x'"}.get(column, ""))
        done = file.execute(
            f"UPDATE ctxfold_records SET {column} = {sql} WHERE kind = 'message_added' AND payload LIKE '%locker%'"
        )
        assert done.rowcount == 1
    with SqlStore(url) as store, pytest.raises(StoreCorruptError, match=r"record \d+ \('m:"):
        store.read(KEY)
