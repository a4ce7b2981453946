"""A log with the mark in every kind of record that can hold text: after the erasure no record holds it, and the log still folds."""

from __future__ import annotations

from typing import Any

from ctxfold import MemoryStore, Message, TextPart, assistant, tool_result, user
from ctxfold.history.records import (
    Compacted,
    Draft,
    GoalSet,
    MessageAdded,
    MessageInserted,
    MessageReplaced,
    OutputsSummarised,
    PolicyChanged,
    Restored,
    SessionKey,
    Subgoal,
    TurnClosed,
)
from ctxfold.history.view import Placed, SectionNote, section
from ctxfold.policy.settings import policy_for
from ctxfold.tokens.text import RatioCounter
from tests.erasure.scan import places_of
from tests.support.driven import COUNTER, call, context, turns

KEY = SessionKey("default", "default")
MARK = "Zanzibar-4711"
SAID = f"the locker is {MARK} on the left"


def summary(name: str, text: str) -> Message:
    return Message(name, "user", (TextPart(text),), kind="summary")


def stored(*bodies: Any, turn: str | None = None) -> MemoryStore:
    store = MemoryStore()
    rules = PolicyChanged(policy_for(3_000).model_dump_json(), COUNTER.id)
    drafts = [Draft("r0", rules), *(_draft(n, b, turn) for n, b in enumerate(bodies, 1))]
    store.append(KEY, drafts)
    return store


def _draft(number: int, body: Any, turn: str | None) -> Draft:
    named = f"m:{body.message.id}" if isinstance(body, MessageAdded | MessageInserted) else f"r{number}"
    return Draft(named, body, turn, float(number))


def added(*messages: Message) -> list[MessageAdded]:
    return [MessageAdded(m) for m in messages]


def test_every_kind_of_record() -> None:
    output = tool_result("c1", f"{MARK} " * 50, id="r")
    store = stored(
        *added(*turns(3), user("look", id="q"), assistant(f"calling for {MARK}", id="c", calls=[call("c1")])),
        MessageAdded(output, tool_result("c1", f"{MARK} ...", id="r")),
        OutputsSummarised((tool_result("c1", f"in short: {MARK}", id="r"), tool_result("x", "another", id="other"))),
        GoalSet(f"find {MARK}", (Subgoal(f"ask for {MARK}", 3), Subgoal("", 5)), ("subgoal",)),
        GoalSet(f"find {MARK}", (Subgoal(f"ask for {MARK}", 3),), ()),
        *added(assistant("done", id="d")),
        MessageReplaced(assistant(f"done with {MARK}", id="d")),
        MessageInserted(user(f"also {MARK}", id="i"), before="c"),
        MessageInserted(section("s1", f"recalled: {MARK}", SectionNote("recall", (Placed("k"),)))),
        MessageInserted(section("s2", "by hand", SectionNote("facts", (Placed("k"),), by_hand=True))),
        MessageInserted(section("s3", f"- {SAID}", SectionNote("corrections", (Placed("k"),), by_hand=True))),
        Compacted(("u0", "a0", "i"), summary("S1", f"so far: {MARK}"), (tool_result("c1", f"({MARK})", id="r"),)),
        Compacted(("S1", "u1"), summary("S2", f"further: {MARK}")),
        Compacted(("u2",), summary("S3", "only of question 2")),
        Restored(user(f"also {MARK}", id="i"), 16),
        *added(user(SAID, id="m")),
    )
    # a section is looked at for what was said before it
    store.append(KEY, [Draft("z", MessageInserted(section("s4", f"- {SAID}", SectionNote("x", (), by_hand=True))))])
    with context(store=store, create=False) as ctx:
        kept_summary = next(e.message for e in ctx.view().compressed if e.id == "S3")
        ctx.erasure.erase("r", "d", "i", "m")
        records = store.read(KEY)
        with_mark = [r for r in records if MARK in repr(r)]
        # the user's own step stays; a section by hand that only shares a word with what was erased stays
        assert [r.body.kind for r in with_mark] == ["goal_set", "message_inserted"]
        assert with_mark[0].body == GoalSet("", (Subgoal(f"ask for {MARK}", 3), Subgoal("", 5)), ("subgoal",))
        assert ctx.edit.goal() == GoalSet("", (Subgoal("", 3),), ())
        assert next(r.body for r in records if isinstance(r.body, OutputsSummarised)).shown[0].id == "other"
        assert next(e.message for e in ctx.view().compressed if e.id == "S3") == kept_summary
        assert {m.id for m in ctx.messages()} >= {"u0", "q", "s2"}
        assert not {m.id for m in ctx.messages()} & {"c", "r", "d", "i", "m", "s1", "s4"}


def test_snapshots_are_rewritten_and_open_as_before() -> None:
    with MemoryStore() as store:
        with context(store=store, context_window=1_500) as ctx:
            for start in range(0, 400, 40):
                ctx.add(turns(40, start=start))
            ctx.add([user(SAID, id="m"), assistant("noted", id="n"), *turns(3, start=900)])
            ctx.pin("m")
            snapshots = [r for r in store.read(KEY) if r.body.kind == "snapshot_taken"]
            assert len(snapshots) >= 3
            ctx.erasure.erase("m", "u3", "u399")
            window = ctx.window().messages
        after = [r for r in store.read(KEY) if r.body.kind == "snapshot_taken"]
        assert [r.id for r in after][: len(snapshots)] == [r.id for r in snapshots]
        with context(store=store, context_window=1_500) as again:
            assert again.window().messages == window
            assert again.view().tokens == sum(again.handle.counter.count(m) for m in again.view().messages)
        assert places_of(MARK, store) == []


def test_another_counter_counts_anew() -> None:
    other = RatioCounter(2.0)
    with MemoryStore() as store:
        with context(store=store) as ctx:
            ctx.add(turns(20))
        with context(store=store, counter=other, auto_compact=False) as ctx:
            ctx.erasure.erase("u0")
        with context(store=store, auto_compact=False) as again:
            assert again.view().tokens == sum(again.handle.counter.count(m) for m in again.view().messages)


def test_an_open_turn_in_a_snapshot() -> None:
    with MemoryStore() as store:
        with context(store=store) as ctx:
            ctx.add([user("look", id="q"), assistant(f"for {MARK}", id="c", calls=[call("k")])])
            with context(store=store) as other:
                other.add(turns(20))
                other.compact() if not other.usage().compactions else None
            assert any("k" in repr(r.body) for r in store.read(KEY))
            ctx.erasure.erase("c")
            assert [r.body for r in store.read(KEY) if isinstance(r.body, TurnClosed)] == [TurnClosed("aborted")]
        with context(store=store) as again:
            assert "q" in [m.id for m in again.messages()]
        assert places_of(MARK, store) == []
