"""An edit taken back after its messages were stored anew: no message twice, no result without its call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from ctxfold import MemoryStore, Query, Section, assistant, user
from ctxfold.engine.turn import TurnInput
from ctxfold.history.records import Draft, Record, SessionKey
from tests.properties.machine import assert_legal
from tests.support.driven import COUNTER, Driven, call, context, scripted, tool_round

Make = Callable[..., Driven]
FIRST = [user("hi", id="u1"), *tool_round("r"), assistant("found it", id="a1")]


def ids(ctx: Driven) -> list[str]:
    messages = ctx.view().messages
    assert_legal(messages)
    assert ctx.view().tokens == sum(ctx.ctx.handle.counter.count(m) for m in messages)
    other = context(store=ctx.handle.store, create=False, counter=COUNTER)
    assert other.view().messages == messages
    return [m.id for m in messages]


def test_messages_that_came_again_after_a_clear_stand_once(make: Make) -> None:
    ctx = make(store=MemoryStore())
    ctx.add(FIRST)
    ctx.edit.clear()
    ctx.add([*FIRST, user("more", id="u2"), assistant("yes", id="a2")])
    ctx.undo()
    assert ids(ctx) == [*(m.id for m in FIRST), "u2", "a2"]


def test_a_round_that_came_again_with_other_results_goes_as_a_whole(make: Make) -> None:
    ctx = make(store=MemoryStore())
    ctx.add(FIRST)
    ctx.edit.remove("r-a")
    asking, result = tool_round("r", "found something else")
    ctx.add([user("again", id="u2"), asking, result.with_role("tool")])
    ctx.add(assistant("found that", id="a2"))
    assert ids(ctx) == ["u1", "a1", "u2", "r-a", "r-r0", "a2"]
    ctx.undo()
    assert ids(ctx) == [*(m.id for m in FIRST), "u2", "a2"]
    assert ctx.archive.get("r-r0").text == "found"


def test_results_of_a_call_that_was_put_in_leave_with_it(make: Make) -> None:
    ctx = make(store=MemoryStore())
    ctx.add([user("old", id="o1"), assistant("yes", id="o2")])
    ctx.edit.set_messages([user("hi", id="u1"), tool_round("r")[0]])
    ctx.add(tool_round("r")[1:])
    ctx.undo()
    assert ids(ctx) == ["o1", "o2"]
    ctx.add(assistant("done", id="a1"))
    assert ids(ctx) == ["o1", "o2", "a1"]


def test_the_same_after_the_turn_has_closed(make: Make) -> None:
    backend = scripted("and now?")
    ctx = make(backend, store=MemoryStore())
    ctx.add([user("old", id="o1"), assistant("yes", id="o2")])
    ctx.edit.set_messages([user("hi", id="u1"), assistant("", id="r-a", calls=[call("r-c0")])])
    ctx.add([*tool_round("r")[1:], assistant("done", id="a1")])
    ctx.undo()
    assert ids(ctx) == ["o1", "o2", "a1"]
    ctx.send(user("well", id="u2"))
    assert_legal(backend.requests[0].messages)


def test_the_system_prompt_stands_once_when_an_edit_that_dropped_it_is_undone(make: Make) -> None:
    backend = scripted("one")
    ctx = make(backend, store=MemoryStore(), system="Be brief.")
    ctx.add([user("hi", id="u1"), assistant("yes", id="a1")])
    ctx.edit.revise(lambda messages: messages[-1:])
    assert [m.text for m in ctx.view().messages] == ["Be brief.", "yes"]
    ctx.undo()
    ctx.send(user("more", id="u2"))
    assert [m.text for m in backend.requests[0].messages] == ["Be brief.", "hi", "yes", "more"]


def test_of_two_system_prompts_the_one_that_was_dropped_comes_back(make: Make) -> None:
    ctx = make(store=MemoryStore(), system=("Be brief.", "Be kind."))
    ctx.add([user("hi", id="u1"), assistant("yes", id="a1")])
    ctx.edit.revise(lambda messages: [m for m in messages if m.text != "Be brief."])
    for _ in range(2):
        assert [m.text for m in ctx.view().messages] == ["Be brief.", "Be kind.", "hi", "yes"]
        assert len(set(ids(ctx))) == 4
    ctx.undo()
    assert [m.text for m in ctx.view().messages] == ["Be brief.", "Be kind.", "hi", "yes"]
    length = len(ctx.handle.store.read(SessionKey(ctx.owner, ctx.session)))
    ctx.view()
    assert len(ctx.handle.store.read(SessionKey(ctx.owner, ctx.session))) == length, "nothing is written by looking"


def test_a_question_under_way_is_not_asked_twice(make: Make) -> None:
    backend = scripted(assistant("", id="r-a", calls=[call("r-c0")]), "done")
    ctx = make(backend, store=MemoryStore())
    ctx.add(FIRST[:1])
    ctx.edit.clear()
    ctx.send([user("hi", id="u1")])
    ctx.undo()
    ctx.send(tool_round("r")[1:])
    assert [m.id for m in backend.requests[1].messages] == ["u1", "r-a", "r-r0"]


class Overtaken(MemoryStore):
    """A store in which somebody else writes right before a record of that id."""

    record_id = ""
    before: Callable[[], object]

    def append(self, key: SessionKey, drafts: Sequence[Draft], **rest: Any) -> tuple[Record, ...]:
        if any(d.id == self.record_id for d in drafts):
            self.record_id = ""
            self.before()
        return super().append(key, drafts, **rest)


def test_a_message_that_two_bring_back_at_once_stands_once(make: Make) -> None:
    store = Overtaken()
    ctx, other = make(store=store), make(store=store)
    ctx.add(FIRST)
    ctx.edit.remove("u1")
    store.before = lambda: other.ctx.restore("u1")
    store.record_id = "m:u1#2"
    ctx.add([user("hi", id="u1"), assistant("again", id="a2")])
    assert ids(ctx) == [*(m.id for m in FIRST[1:]), "u1", "a2"]


def test_a_question_that_gives_up_a_call_which_is_answered_at_that_moment(make: Make) -> None:
    """The list goes on from a call as if its run had died; another process has just stored its result and the answer."""
    store = Overtaken()
    ctx, other = make(scripted("yes"), store=store), context(store=store)
    question, called, result = [user("hi", id="u1"), *tool_round("r")]
    ctx.add([question, called])
    store.before, store.record_id = lambda: other.add([result, assistant("done", id="z1")]), "m:u2"
    listed = [question, called, user("and now?", id="u2")]
    ctx.handle.complete(TurnInput(SessionKey("default", "default"), listed, given_ids=frozenset(m.id for m in listed)))
    assert [m.id for m in ctx.messages()][:5] == ["u1", "r-a", "r-r0", "z1", "u2"]


def test_a_round_at_the_end_of_the_conversation_goes_as_a_whole(make: Make) -> None:
    ctx = make()
    ctx.add([user("hi", id="u1"), *tool_round("r", calls=2)])
    assert [m.id for m in ctx.messages()] == ["u1", "r-a", "r-r0", "r-r1"]
    ctx.edit.remove("r-a")
    assert [m.id for m in ctx.messages()] == ["u1"]


class Held(MemoryStore):
    """A store whose reader `thread` has undone an edit, and waits with what it has read for the session without that edit."""

    def __init__(self) -> None:
        super().__init__()
        self.thread: threading.Thread | None = None
        self.reads_left, self.has_read, self.may_go_on = -1, threading.Event(), threading.Event()

    def append(self, key: SessionKey, drafts: Sequence[Draft], **rest: Any) -> tuple[Record, ...]:
        if threading.current_thread() is self.thread:
            self.reads_left = 2  # the first finds what is undone
        return super().append(key, drafts, **rest)

    def read(self, key: SessionKey, **rest: Any) -> Any:
        found = super().read(key, **rest)
        if threading.current_thread() is self.thread:
            self.reads_left -= 1
            if not self.reads_left:
                self.has_read.set()
                assert self.may_go_on.wait(20)
        return found


def test_a_session_that_is_read_anew_keeps_what_another_thread_has_stored_meanwhile() -> None:
    """One thread undoes an edit, and reads the log; before it is done, another has stored its question."""
    store, backend = Held(), scripted("one", "two")

    def notes(_: Query) -> list[str]:
        if store.thread is not None:
            store.may_go_on.set()
            store.thread.join()
        return ["a note"]

    ctx = context(backend, store=store, sections=[Section("notes", notes, required=True, lifetime="request")])
    ctx.send("first")
    ctx.edit.update(0, user("First, then.", id="u"))
    store.thread = threading.Thread(target=ctx.at(ctx.session).undo)
    store.thread.start()
    assert store.has_read.wait(20)
    ctx.send("second")
    assert [m.text for m in backend.requests[1].messages if m.role != "system"][-1] == "second"
    assert "second" in [m.text for m in ctx.messages()]
