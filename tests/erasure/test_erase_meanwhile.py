"""Erasures beside others: failures, readers, older files, other processes, models that are answering."""

from __future__ import annotations

import gc
import json
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from ctxfold import Reply, Section, SqlStore, StoreError, assistant, memory_section, user
from ctxfold.errors import NotEnoughHistoryError
from ctxfold.events import MessagesErased, Subscribers
from tests.erasure.erasing import MARK, SAID, assert_gone, filled, opened_store
from tests.erasure.scan import places_of
from tests.properties.machine import assert_legal
from tests.support.driven import Driven, context, scripted, text_of, tool_round, turns
from tests.support.open_sessions import opened as opened_session


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Any]:
    with opened_store(request, tmp_path) as opened:
        yield opened


def test_other_processes_see_it_when_they_look_next(store: Any) -> None:
    # two engines over one store share nothing but the store
    with context(store=store) as one, context(store=store) as two:
        filled(one)
        assert MARK in text_of(two.view().messages)
        events: list[Any] = []
        one.subscribe(events.append)
        one.erasure.erase("m")
        assert [e for e in events if isinstance(e, MessagesErased)] == [MessagesErased("default", ("m",))]
        assert_gone(two, store)
        assert two.view().messages == one.view().messages
        assert two.usage().prefix.breaks == ()  # it had sent nothing yet


def test_what_was_learnt_goes_also_where_another_session_shows_it(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store, session_id="s")
    ctx.add([user(SAID, id="m"), assistant("noted", id="n"), *turns(2)])
    memory = ctx.ctx.memory
    memory.add("facts", f"the locker is {MARK}", key="locker", sources=["m"])
    memory.add("facts", "every question carries a number", sources=["u0"])
    settings: Any = {"sections": [memory_section("facts", share=0.5)], "context_window": 4_000}
    with context(scripted("the left one", "as I said"), store=store, session_id="other", **settings) as other:
        other.send("which locker is it? does a question carry a number?")
        assert MARK in text_of(other.view().messages)
        erased = ctx.erasure.erase("m")
        assert erased.sessions == ("s", "other")
        assert places_of(MARK, store) == []
        assert [i.text for i in memory.list(everything=True)] == ["every question carries a number"]
        assert_legal(other.view().messages)
        other.send("and the number that a question carries?")
        assert MARK not in text_of(other.view().messages)
        assert "every question carries a number" in text_of(other.view().messages)
        ctx.erasure.erase_session()
        assert "every question carries a number" not in text_of(other.view().messages)
        assert memory.list(everything=True) == ()


def test_what_was_learnt_from_a_summary_of_it_goes(make: Callable[..., Driven], store: Any) -> None:
    ctx = filled(make(store=store, session_id="s"))
    summary = ctx.view().compressed[0].id
    ctx.ctx.memory.add("digest", f"about {MARK}", sources=[summary])
    ctx.erasure.erase("m")
    assert_gone(ctx, store)
    assert ctx.ctx.memory.list(everything=True) == ()


def test_an_erasure_that_fails_has_done_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with SqlStore(f"sqlite:///{path}") as store, context(store=store) as ctx:
        filled(ctx)
        fork = ctx.fork("f")
        before = ctx.messages(), fork.messages()
        with closing(sqlite3.connect(path)) as file:
            # the last write of the transaction, in the second session that it touches
            file.execute(
                "CREATE TRIGGER full BEFORE INSERT ON ctxfold_records WHEN NEW.kind = 'erased' AND NEW.session = 'f' "
                "BEGIN SELECT RAISE(ABORT, 'disk full'); END"
            )
        with pytest.raises(StoreError, match="disk full"):
            ctx.erasure.erase("m")
        assert (ctx.messages(), fork.messages()) == before
        with closing(sqlite3.connect(path)) as file:
            file.execute("DROP TRIGGER full")
        ctx.erasure.erase("m")
        assert_gone(fork, store)


def test_a_reader_in_the_way_is_reported_and_the_next_call_finishes(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with SqlStore(f"sqlite:///{path}", timeout_s=0.2) as store, context(store=store) as ctx:
        filled(ctx)
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT COUNT(*) FROM ctxfold_records").fetchone()
            assert ctx.erasure.erase("m").settled is False
            reader.execute("COMMIT")
        assert ctx.erasure.erase("m").settled is True
        assert places_of(MARK, store) == []


class Erasing:
    """A summariser during whose answer somebody else, with an engine of his own, erases."""

    model, context_window, scratch_role = "erasing", 100_000, "system"

    def __init__(self, answer: str, erase: Callable[[], object]) -> None:
        self.answer, self.erase, self.only = answer, erase, ""

    def send(self, request: Any) -> Reply:
        if self.only not in text_of(request.messages):
            return Reply(assistant("nothing", id="other"))
        self.erase()
        return Reply(assistant(self.answer, id="late"))


def test_a_summary_under_way_is_not_written_from_erased_text(store: Any) -> None:
    with context(store=store, context_window=3_000) as eraser:
        filled(eraser)
        eraser.undo()  # the restored message: only the summary has the mark
        assert MARK in text_of(eraser.view().messages)
        eraser.add(turns(12, start=50, words=20))
        late = Erasing(f"- the locker is {MARK}", lambda: eraser.erasure.erase("m"))
        settings: dict[str, Any] = {"summary_timeout_s": None, "context_window": 3_000, "create": False}
        with context(store=store, summarizer=late, **settings) as ctx:
            with pytest.raises(NotEnoughHistoryError, match="another writer changed the span first"):
                ctx.compact(force=True)
            assert_gone(ctx, store)


def test_what_is_learnt_meanwhile_is_not_kept(store: Any) -> None:
    with context(store=store) as eraser:
        eraser.add([user(SAID, id="m"), assistant("noted", id="n")])
        item = {"kind": "facts", "text": SAID, "sources": ["m"], "key": "locker"}
        late = Erasing(json.dumps({"items": [item]}), lambda: eraser.erasure.erase("m"))
        with context(store=store, summarizer=late, create=False) as ctx:
            heard: list[Any] = []
            ctx.subscribe(heard.append)
            assert ctx.memory.learn("facts") == ()
            assert "erased meanwhile" in heard[-1].problem
            assert places_of(MARK, store) == []


class Overtaken(SqlStore):
    """A store in which others are first: one of `meanwhile` is called before each erasure is written."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.meanwhile: list[Callable[[], object]] = []
        self.whole_reads = 0

    def read(self, key: Any, *, after: int = 0, upto: int | None = None) -> Any:
        self.whole_reads += (key.session, after, upto) == ("default", 0, None)
        return super().read(key, after=after, upto=upto)

    def erase(self, rewrites: Any, *, gone: Any = ()) -> bool:
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return super().erase(rewrites, gone=gone)


@pytest.fixture
def overtaken(tmp_path: Path) -> Generator[Overtaken]:
    with Overtaken(f"sqlite:///{tmp_path}/a.db") as store:
        yield store


def test_writers_that_come_meanwhile_do_not_make_an_erasure_read_all_again(
    overtaken: Overtaken, tmp_path: Path
) -> None:
    """A long log takes seconds: an erasure that began anew for each message would never end beside a busy session."""
    with SqlStore(f"sqlite:///{tmp_path}/a.db") as store, context(store=store) as other:
        filled(other)
        with context(store=overtaken, create=False) as ctx:
            overtaken.meanwhile = [lambda n=n: other.add(f"late {n}") for n in range(9)]  # type: ignore[misc]
            before = overtaken.whole_reads
            assert ctx.erasure.erase("m").ids == ("m",)
            assert overtaken.whole_reads == before + 1
            assert_gone(ctx, store)
            assert [m.text for m in ctx.messages()][-9:] == [f"late {n}" for n in range(9)]
            assert other.view().messages == ctx.view().messages


def test_two_erasures_at_once_are_both_done(overtaken: Overtaken, tmp_path: Path) -> None:
    with SqlStore(f"sqlite:///{tmp_path}/a.db") as store, context(store=store) as other:
        other.add("My bike is Quokka-77.")
        filled(other)
        with context(store=overtaken, create=False) as ctx:
            overtaken.meanwhile = [
                lambda: other.add("late"),
                lambda: other.erasure.erase("#1"),
                lambda: other.add("later"),
            ]
            ctx.erasure.erase("m")
            assert_gone(ctx, store)
            assert_gone(ctx, store, "Quokka-77")
            assert [m.text for m in ctx.messages()][-2:] == ["late", "later"]


def test_a_session_that_was_begun_anew_meanwhile_is_left_alone(overtaken: Overtaken, tmp_path: Path) -> None:
    with SqlStore(f"sqlite:///{tmp_path}/a.db") as store, context(store=store) as other:
        filled(other)

        def begin_anew() -> None:
            other.erasure.erase_session()
            for number in range(90):
                other.add(f"new {number}")

        with context(store=overtaken, create=False) as ctx:
            overtaken.meanwhile = [begin_anew]
            assert ctx.erasure.erase("m").ids == ()
        with context(store=store) as found:
            assert [m.text for m in found.messages()] == [f"new {number}" for number in range(90)]


def test_a_summary_of_a_tool_output_is_not_stored_after_it_was_erased(store: Any) -> None:
    with context(store=store, context_window=20_000) as eraser:
        for n in range(9):
            said = "page " * 120 + (MARK if n == 0 else "")
            eraser.add([user("look", id=f"q{n}"), *tool_round(f"t{n}", said), assistant("done", id=f"d{n}")])
        late = Erasing(f"it says {MARK}", lambda: eraser.erasure.erase("t0-r0"))
        late.only = MARK
        settings: dict[str, Any] = {"create": False, "summary_timeout_s": None, "context_window": 20_000}
        with context(store=store, summarizer=late, **settings) as ctx:
            assert ctx.service.summarize_tool_pairs() == 3
            assert [
                m.id for r in store.read(("default", "default")) for m in getattr(r.body, "shown", None) or ()
            ] != []
            assert places_of(MARK, store) == []


@pytest.mark.parametrize("whole", [False, True])
def test_a_worker_keeps_nothing_in_memory_of_what_another_has_erased(tmp_path: Path, *, whole: bool) -> None:
    """What a session was asked for, what recall has read and what was sent are held in memory between requests."""
    noted = Section("notes", lambda _: [f"the note says {MARK}"])
    with (
        SqlStore(f"sqlite:///{tmp_path}/a.db") as store,
        context(scripted(*["left"] * 9), store=store, sections=[noted], strategy="sliding_window", keep_last=2) as one,
        context(store=store) as two,
    ):
        one.add([user(SAID, id="m"), assistant("noted", id="n"), *turns(20)])
        one.send("On which side is the locker?")
        assert SAID in str(one.window(recall=True, question="Where is the locker?").recalled)
        assert holds(opened_session(one), MARK)
        if whole:
            two.erasure.erase_session()
            two.add([user("anew", id="x"), assistant("yes", id="y")])
        else:
            two.erasure.erase("m")
        one.messages()
        assert not holds(opened_session(one), MARK)


def holds(root: object, text: str) -> bool:
    """Tells whether a string with the text can be reached from an object; the engine, its ports and the modules around it aside."""
    seen, found = {id(getattr(root, "ports", None))}, [root]
    while found:
        each = found.pop()
        if isinstance(each, str):
            if text in each:
                return True
        elif id(each) not in seen and not isinstance(each, type | ModuleType | FunctionType | Subscribers):
            seen.add(id(each))
            found += gc.get_referents(each)
    return False
