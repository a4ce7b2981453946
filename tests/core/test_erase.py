"""What is erased is nowhere any more: not in a table, an index, a file, a summary, a fork or an export made later."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ctxfold import MemoryStore, SqlStore, memory_section
from ctxfold.errors import (
    ConfigError,
    MessageErasedError,
    MessageError,
    MessageNotFoundError,
    NotEnoughHistoryError,
    NothingToUndoError,
    SessionNotFoundError,
    StoreError,
)
from ctxfold.events import MessagesErased
from ctxfold.messages import Usage, assistant, tool_result, user
from ctxfold.ports import Reply
from tests.core.driven import Driven, call, context, scripted, text_of, tool_round, turns
from tests.core.postgres_schema import fresh_schema
from tests.core.scan import places_of
from tests.golden import build_v1 as golden
from tests.properties.machine import assert_legal

MARK = "Zanzibar-4711"
SAID = f"the locker is {MARK} on the left"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Any]:
    match request.param:
        case "memory":
            with MemoryStore() as opened:
                yield opened
        case "sqlite":
            with SqlStore(f"sqlite:///{tmp_path}/a.db") as opened:
                yield opened
        case _:
            with fresh_schema(request.getfixturevalue("postgres_url")) as url, SqlStore(url) as opened:
                yield opened


def filled(ctx: Any) -> Any:
    """A session in which the mark went wherever a message's text goes: summaries of summaries, excerpts, edits, the index."""
    ctx.set_policy(context_window=3_000)
    ctx.add(turns(4))
    ctx.add([user(SAID, id="m"), assistant("noted", id="n")])
    ctx.add(turns(10, start=10, words=20))
    ctx.compact()
    ctx.add(turns(12, start=30, words=20))
    ctx.compact()
    assert ctx.usage().compactions == 2
    ctx.restore("m")
    assert text_of(ctx.view().compressed[i].message for i in range(len(ctx.view().compressed))).count(MARK)
    return ctx


def assert_gone(ctx: Any, store: Any, mark: str = MARK) -> None:
    assert places_of(mark, store) == []
    assert mark not in text_of(ctx.messages()) + text_of(ctx.window().messages) + str(ctx.explain())
    assert ctx.search(mark) == ()
    assert_legal(ctx.window().messages)


def test_a_message_leaves_every_place(make: Callable[..., Driven], store: Any) -> None:
    ctx = filled(make(store=store, session="s"))
    assert places_of(MARK, store)
    before = [m.id for m in ctx.messages()]
    summary = ctx.view().compressed[0].message
    erased = ctx.erase("m")
    assert (erased.ids, erased.sessions, erased.removed, erased.settled) == (("m",), ("s",), (), True)
    assert_gone(ctx, store)
    assert [m.id for m in ctx.messages()] == [i for i in before if i != "m"]
    anew = ctx.view().compressed[0].message
    assert (anew.id, "question 1 " in anew.text) == (summary.id, True)  # the rest of the span is still there
    assert ctx.counter.count(anew) <= ctx.counter.count(summary)


def test_a_reference_to_an_erased_message_says_so(make: Callable[..., Driven]) -> None:
    ctx = filled(make())
    reference = ctx.explain_message("m").reference
    ctx.erase(reference)
    for ask in (ctx.get, ctx.explain_message, ctx.restore):
        for name in ("m", reference):
            with pytest.raises(MessageErasedError, match="was erased"):
                ask(name)
    with pytest.raises(MessageErasedError):
        ctx.fork("f", at="m")
    with pytest.raises(MessageNotFoundError, match="never-was"):
        ctx.erase("u1", "never-was")
    assert ctx.get("u1").text.startswith("question 1 ")  # nothing was done


def test_erasing_again_changes_nothing(make: Callable[..., Driven], store: Any) -> None:
    ctx = filled(make(store=store))
    ctx.erase("m")
    before = ctx.messages(), ctx.view().messages
    again = ctx.erase("m", "m")
    assert (again.ids, again.sessions, again.settled) == ((), (), True)
    assert (ctx.messages(), ctx.view().messages) == before


def test_a_tool_round_goes_as_a_whole(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store)
    ctx.add([user("look", id="q"), *tool_round("t", f"{MARK} " * 200, calls=2), assistant("done", id="d")])
    ctx.add([user("look again", id="q2"), *tool_round("t2"), assistant("done", id="d2")])
    assert ctx.explain_message("t-r1").where == "excerpt"
    assert ctx.erase("t-r1").ids == ("t-a", "t-r0", "t-r1")
    assert_gone(ctx, store)
    assert [m.id for m in ctx.messages()] == ["q", "d", "q2", "t2-a", "t2-r0", "d2"]


def test_a_call_id_that_comes_again_is_another_round(make: Callable[..., Driven]) -> None:
    ctx = make()
    for n in range(3):
        answer = tool_result("call_0", f"found {n}", id=f"r{n}")
        asked = assistant("", id=f"c{n}", calls=[call("call_0")])
        ctx.add([user("look", id=f"q{n}"), asked, answer, assistant("done", id=f"d{n}")])
    assert ctx.erase("r1").ids == ("c1", "r1")


def test_every_version_of_a_message_goes(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store)
    ctx.add([user(SAID, id="m"), assistant("noted", id="n"), *turns(2)])
    ctx.update(0, user(f"rather {MARK}, on the right", id="m"))
    ctx.update(0, user("never mind", id="m"))
    ctx.erase("m")
    assert_gone(ctx, store)
    with pytest.raises(NothingToUndoError):
        ctx.undo()


def test_removed_discarded_and_hidden_messages_go_too(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store)
    ctx.add([user(SAID, id="m"), assistant("noted", id="n")])
    ctx.add(f"for you only: {MARK}", visibility="user")
    ctx.remove(0)
    hidden = next(m.id for m in ctx.messages() if m.visibility == "user")
    ctx.erase("m", hidden)
    assert_gone(ctx, store)
    ctx.undo()  # of the removal: nothing comes back
    assert_gone(ctx, store)


def test_what_was_put_before_an_erased_message_stays_in_place(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store)
    ctx.add(turns(3))
    ctx.insert(2, user("in between", id="x"))
    ctx.insert(2, user("more", id="y"))  # before x
    order = [m.id for m in ctx.messages()]
    ctx.erase("u1", "x")
    with context(store=store, create=False) as again:
        expected = [i for i in order if i not in ("u1", "x")]
        assert [m.id for m in ctx.messages()] == [m.id for m in again.messages()] == expected


def test_forks_and_what_was_forked_from_are_covered(make: Callable[..., Driven], store: Any) -> None:
    ctx = filled(make(store=store, session="a"))
    fork = ctx.fork("b")
    fork.add(turns(2, start=90))
    second = fork.fork("c", at="u11")
    assert ctx.forks() == ("b", "c")
    assert fork.forks() == ("c",)
    assert second.forks() == ()
    assert second.erase("m").sessions == ("c", "a", "b")
    for each in (ctx, fork, second):
        assert_gone(each, store)
        with pytest.raises(MessageErasedError):
            each.get("m")
    assert "u90" in [m.id for m in fork.messages()]


def test_what_only_has_the_same_name_in_another_session_stays(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store, session="a")
    ctx.add(turns(2))
    fork = ctx.fork("b")
    stranger = context(store=store, session="stranger")
    for other, text in ((ctx, SAID), (fork, "said in the fork"), (stranger, "said by a stranger")):
        other.add([user(text, id="m"), assistant("noted", id="n")])
    assert ctx.erase("m").sessions == ("a",)
    assert fork.get("m").text == "said in the fork"
    assert stranger.get("m").text == "said by a stranger"


def test_exports_made_later_have_nothing_of_it(make: Callable[..., Driven], store: Any, tmp_path: Path) -> None:
    ctx = filled(make(store=store, session="s"))
    ctx.erase("m")
    ctx.ctx.export_jsonl(tmp_path / "out.jsonl")
    ctx.ctx.save_snapshot(tmp_path / "out.json")
    for file in ("out.jsonl", "out.json"):
        assert MARK.encode() not in (tmp_path / file).read_bytes()
    with context(store=store, session="copy") as copy:
        copy.import_jsonl(tmp_path / "out.jsonl")
        assert copy.messages() == ctx.messages()
        assert copy.view().messages == ctx.view().messages
        with pytest.raises(MessageErasedError):
            copy.get("m")


def test_undo_after_an_erasure_brings_back_the_rest(make: Callable[..., Driven], store: Any) -> None:
    ctx = filled(make(store=store, session="s"))
    ctx.erase("m")
    for _ in range(2):  # the restored message is gone, both compactions are left
        ctx.undo()
        assert_gone(ctx, store)
    assert [m.id for m in ctx.view().messages] == [m.id for m in ctx.messages()]
    with pytest.raises(NothingToUndoError):
        ctx.undo()


def test_the_sums_of_a_session_stay(make: Callable[..., Driven]) -> None:
    ctx = make(scripted(Reply(replace(assistant("hi", id="r"), usage=Usage(12, 3)))))
    ctx.send(user(SAID, id="m"))
    before = ctx.usage()
    assert ctx.erase("m", "r").ids == ("m", "r")
    with context(store=ctx.ctx._engine.ports.store) as again:
        assert again.usage().reported == before.reported == Usage(12, 3)
        assert again.usage().replies == 1


def test_a_span_that_is_erased_whole_leaves_no_summary(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store)
    ctx.add(turns(20))
    assert ctx.view().compressed
    gone = [m.id for m in ctx.messages() if m.id not in {e.id for e in ctx.view()}]
    ctx.erase(*gone)
    assert ctx.view().compressed == ()
    with context(store=store, create=False) as again:
        assert again.view().messages == ctx.view().messages


def test_a_summary_is_not_erased_by_its_own_name(make: Callable[..., Driven]) -> None:
    ctx = filled(make())
    with pytest.raises(MessageError, match="is a summary: erase messages that it stands for"):
        ctx.erase(ctx.view().compressed[0].id)


def test_an_open_turn_that_loses_a_message_is_over(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store)
    ctx.add(turns(1))
    asked = assistant(f"let me look for {MARK}", id="c", calls=[call("k")])
    assert ctx.add([user("look", id="q"), asked]).turn_id is not None
    assert ctx.erase("c").ids == ("c",)
    assert_gone(ctx, store)
    assert [m.id for m in ctx.messages()] == ["u0", "a0", "q"]
    ctx.add("and now?")
    assert_legal(ctx.window().messages)


def test_an_erased_message_does_not_come_back_with_an_old_list(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store)
    old = [user(SAID, id="m"), assistant("noted", id="n")]
    ctx.add(old)
    ctx.erase("m")
    assert [m.id for m in ctx.add([*old, user("next", id="x")]).messages] == ["x"]
    assert_gone(ctx, store)
    with pytest.raises(MessageErasedError, match="an id of its own"):
        ctx.add([user("something else", id="m")])


def test_other_processes_see_it_when_they_look_next(store: Any) -> None:
    # two engines over one store share nothing but the store
    with context(store=store) as one, context(store=store) as two:
        filled(one)
        assert MARK in text_of(two.view().messages)
        events: list[Any] = []
        one.subscribe(events.append)
        one.erase("m")
        assert [e for e in events if isinstance(e, MessagesErased)] == [MessagesErased("default", ("m",))]
        assert_gone(two, store)
        assert two.view().messages == one.view().messages
        assert two.usage().prefix.breaks == ()  # it had sent nothing yet


def test_the_next_request_says_why_its_prefix_broke(make: Callable[..., Driven]) -> None:
    ctx = make(scripted("one", "two", "three"))
    ctx.send(user(SAID, id="m"))
    ctx.send("more")
    ctx.erase("m")
    ctx.send("again")
    assert ctx.usage().prefix.breaks == (("erasure", 1),)


def test_a_session_goes_with_all_that_belongs_to_it(make: Callable[..., Driven], store: Any) -> None:
    ctx = filled(make(store=store, session="s"))
    other = context(store=store, session="other")
    other.add("hello")
    erased = ctx.erase_session()
    assert (erased.removed, erased.settled) == (("s",), True)
    assert places_of(MARK, store) == []
    assert store.sessions("default") == ("other",)
    assert ctx.messages() == ()  # it begins anew
    assert text_of(other.messages()) == "hello"
    assert ctx.erase_session().removed == ("s",)
    assert ctx.erase_session().removed == ()


def test_a_fork_of_an_erased_session_keeps_its_own_words(make: Callable[..., Driven], store: Any) -> None:
    ctx = filled(make(store=store, session="s", system="Be brief."))
    fork = ctx.fork("f")
    fork.add([user("mine", id="x"), assistant("yours", id="y")])
    erased = ctx.erase_session()
    assert (erased.removed, erased.sessions) == (("s",), ("f",))
    assert places_of(MARK, store) == []
    assert text_of(fork.messages()) == "Be brief.\nmine\nyours"
    assert fork.erase_session().sessions == ()


def test_erasing_a_fork_leaves_what_it_was_forked_from(make: Callable[..., Driven], store: Any) -> None:
    ctx = filled(make(store=store, session="s"))
    before = ctx.messages()
    assert ctx.fork("f").erase_session().removed == ("f",)
    assert ctx.messages() == before


def test_others_notice_that_a_session_is_gone(store: Any) -> None:
    with context(store=store, session="s") as one, context(store=store, session="s", create=False) as two:
        one.add(turns(3))
        assert len(two.messages()) == 6
        one.erase_session()
        with pytest.raises(SessionNotFoundError, match="does not exist"):
            two.messages()
        one.add([user("a new one", id="u0")])
        assert text_of(two.messages()) == "a new one"


def test_a_reply_that_was_under_way_does_not_revive_a_session(store: Any) -> None:
    with context(store=store, session="s") as eraser:
        eraser.add(turns(2))

        class Slow:
            model, context_window, scratch_role = "slow", None, "system"

            def send(self, request: Any) -> Reply:
                eraser.erase_session()
                return Reply(assistant(f"as you said, {SAID}", id="late"))

        with context(Slow(), store=store, session="s") as asker, pytest.raises(SessionNotFoundError):
            asker.send(SAID)
        assert places_of(MARK, store) == []
        assert store.sessions("default") == ()


def test_an_owner_goes_with_everything(make: Callable[..., Driven], store: Any) -> None:
    ctx = filled(make(store=store, session="s", owner="ann"))
    ctx.fork("f")
    with context(store=store, session="s", owner="ann'") as other:
        other.add(turns(2))
        assert ctx.erase_owner() is True
        assert places_of(MARK, store) == []
        assert store.sessions("ann") == ()
        assert len(other.messages()) == 4
    assert [k for k in places_of("ann", store) if "ann'" not in k and isinstance(store, MemoryStore)] == []


def test_retention_by_age(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store, system="Be brief.")
    ctx.add(turns(2))
    moment = datetime.now(UTC)
    ctx.add([user("new", id="x"), assistant("newer", id="y")])
    assert ctx.erase_older_than(timedelta(days=1)).ids == ()
    assert ctx.erase_older_than(moment).ids == ("u0", "a0", "u1", "a1")
    assert text_of(ctx.messages()) == "Be brief.\nnew\nnewer"
    assert ctx.erase_older_than(timedelta(0)).ids == ("x", "y")
    with pytest.raises(ConfigError, match="no time zone"):
        ctx.erase_older_than(datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point
    with pytest.raises(ConfigError, match="lies in the future"):
        ctx.erase_older_than(timedelta(days=-1))


def test_what_was_found_out_from_the_conversation_goes_too(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store)
    ctx.set_goal("find the locker")
    ctx.add([user(SAID, id="m"), assistant("noted", id="n"), *turns(2)])
    ctx.erase("m")
    assert ctx.goal().goal == "find the locker"  # the user's own word


def test_what_was_learnt_goes_also_where_another_session_shows_it(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store, session="s")
    ctx.add([user(SAID, id="m"), assistant("noted", id="n"), *turns(2)])
    memory = ctx.ctx.memory
    memory.add("facts", f"the locker is {MARK}", key="locker", sources=["m"])
    memory.add("facts", "every question carries a number", sources=["u0"])
    settings: Any = {"sections": [memory_section("facts", share=0.5)], "context_window": 4_000}
    with context(scripted("the left one", "as I said"), store=store, session="other", **settings) as other:
        other.send("which locker is it? does a question carry a number?")
        assert MARK in text_of(other.view().messages)
        erased = ctx.erase("m")
        assert erased.sessions == ("s", "other")
        assert places_of(MARK, store) == []
        assert [i.text for i in memory.list(everything=True)] == ["every question carries a number"]
        assert_legal(other.view().messages)
        other.send("and the number that a question carries?")
        assert MARK not in text_of(other.view().messages)
        assert "every question carries a number" in text_of(other.view().messages)
        ctx.erase_session()
        assert "every question carries a number" not in text_of(other.view().messages)
        assert memory.list(everything=True) == ()


def test_what_was_learnt_from_a_summary_of_it_goes(make: Callable[..., Driven], store: Any) -> None:
    ctx = filled(make(store=store, session="s"))
    summary = ctx.view().compressed[0].id
    ctx.ctx.memory.add("digest", f"about {MARK}", sources=[summary])
    ctx.erase("m")
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
            ctx.erase("m")
        assert (ctx.messages(), fork.messages()) == before
        with closing(sqlite3.connect(path)) as file:
            file.execute("DROP TRIGGER full")
        ctx.erase("m")
        assert_gone(fork, store)


def test_a_reader_in_the_way_is_reported_and_the_next_call_finishes(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with SqlStore(f"sqlite:///{path}", timeout_s=0.2) as store, context(store=store) as ctx:
        filled(ctx)
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT COUNT(*) FROM ctxfold_records").fetchone()
            assert ctx.erase("m").settled is False
            reader.execute("COMMIT")
        assert ctx.erase("m").settled is True
        assert places_of(MARK, store) == []


def test_a_store_of_format_1_has_no_remains_either(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("PRAGMA secure_delete=OFF")
        file.executescript((golden.FOLDER / "v1_schema_sqlite.sql").read_text(encoding="utf-8"))
        file.executescript((golden.FOLDER / "v1_rows.sql").read_text(encoding="utf-8"))
        for number in range(200):  # rows that push each other from page to page
            file.execute(
                "INSERT INTO ctxfold_terms VALUES ('default', ?, ?, ?, 1, 1)",
                ("s", f"{MARK}-{number * 7919 % 200}", number),
            )
    with SqlStore(f"sqlite:///{path}") as store:
        assert store.read(golden.KEY)
        assert store.erase_owner("default") is True
        assert places_of(MARK, store) == []
        assert store.sessions("owner-2") == (golden.OTHER.session,)
        with closing(sqlite3.connect(path)) as file:
            assert dict(file.execute("SELECT * FROM ctxfold_meta").fetchall()) == {"format_version": "2"}


def test_the_page_on_erasing_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "erasure.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    names: dict[str, Any] = {}
    exec(compile(example, "erasure.md", "exec"), names)
    with names["ctx"] as ctx:
        assert ctx.messages() == ()


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
        late = Erasing(f"- the locker is {MARK}", lambda: eraser.erase("m"))
        settings: dict[str, Any] = {"summary_timeout_s": None, "context_window": 3_000, "create": False}
        with context(store=store, summarizer=late, **settings) as ctx:
            with pytest.raises(NotEnoughHistoryError, match="another writer changed the span first"):
                ctx.compact()
            assert_gone(ctx, store)


def test_what_is_learnt_meanwhile_is_not_kept(store: Any) -> None:
    with context(store=store) as eraser:
        eraser.add([user(SAID, id="m"), assistant("noted", id="n")])
        item = {"kind": "facts", "text": SAID, "sources": ["m"], "key": "locker"}
        late = Erasing(json.dumps({"items": [item]}), lambda: eraser.erase("m"))
        with context(store=store, summarizer=late, create=False) as ctx:
            heard: list[Any] = []
            ctx.subscribe(heard.append)
            assert ctx.memory.learn("facts") == ()
            assert "erased meanwhile" in heard[-1].problem
            assert places_of(MARK, store) == []


def test_a_summary_of_a_tool_output_is_not_stored_after_it_was_erased(store: Any) -> None:
    with context(store=store, context_window=20_000) as eraser:
        for n in range(9):
            said = "page " * 120 + (MARK if n == 0 else "")
            eraser.add([user("look", id=f"q{n}"), *tool_round(f"t{n}", said), assistant("done", id=f"d{n}")])
        late = Erasing(f"it says {MARK}", lambda: eraser.erase("t0-r0"))
        late.only = MARK
        settings: dict[str, Any] = {"create": False, "summary_timeout_s": None, "context_window": 20_000}
        with context(store=store, summarizer=late, **settings) as ctx:
            assert ctx.summarize_tools() == 3
            assert [
                m.id for r in store.read(("default", "default")) for m in getattr(r.body, "shown", None) or ()
            ] != []
            assert places_of(MARK, store) == []
