"""A session that follows a list which somebody else keeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ctxfold import MemoryStore, Message, ScriptedBackend, ToolCallPart, assistant, tool_result, user
from ctxfold.engine.attach import Attachment
from ctxfold.history.diff import Cursor, ids_digest
from ctxfold.history.records import SessionKey
from tests.support.driven import Driven


class Kept:
    """The caller's list, in the engine's own terms."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = [*messages]

    @property
    def ids(self) -> list[str]:
        return [m.id for m in self._messages]

    def digest(self, end: int) -> str:
        return ids_digest(self.ids, end)

    def versions(self, indices: Sequence[int]) -> list[str]:
        return [repr((self._messages[i].text, self._messages[i].tool_calls)) for i in indices]

    def message(self, index: int) -> Message:
        return self._messages[index]


class Caller:
    """Somebody with a list, who keeps a trail beside each of its states."""

    def __init__(self, make: Callable[..., Driven], **settings: Any) -> None:
        self.store = MemoryStore()
        self.ctx = make(session_id="s", store=self.store, context_window=4_000, **settings)
        self.states: list[tuple[list[Message], Cursor | None]] = [([], None)]

    def line(self, messages: Sequence[Message], left: Cursor | None) -> Attachment:
        found: Attachment = self.ctx.handle.follow(Kept(messages), left)
        return found

    def say(self, *new: Message, at: int = -1, messages: Sequence[Message] | None = None) -> Driven:
        """Go on from a state, or from an edited list of its messages."""
        old, left = self.states[at]
        messages = [*(old if messages is None else messages), *new]
        line = self.line(messages, left)
        session = Driven(self.ctx.ctx.at(line.key.session), self.ctx._runner)
        newest = max((i for i, m in enumerate(messages) if m.id in line.known), default=-1)
        fresh = messages[newest + 1 :]
        if fresh:
            session.add(fresh)
        # kept as plain values, as a checkpointer would
        kept = json.loads(json.dumps(self.ctx.handle.cursor_at(line.key, Kept(messages)).to_dict()))
        self.states.append((messages, Cursor.from_dict(kept)))
        return session


def turn(number: int) -> tuple[Message, Message]:
    return user(f"question {number}", id=f"u{number}"), assistant(f"answer {number}", id=f"a{number}")


def seen(session: Driven) -> list[str]:
    return [e.id for e in session.view().live]


def test_going_on_is_the_same_session(make: Callable[..., Driven]) -> None:
    caller = Caller(make)
    for number in range(5):
        session = caller.say(*turn(number))
    assert session.ctx.session == "s"
    assert seen(session) == [m.id for m in caller.states[-1][0]]
    assert caller.store.sessions("default") == ("s",)


def test_an_earlier_state_goes_on_in_a_branch(make: Callable[..., Driven]) -> None:
    """Each branch has what its list has; the first one is untouched, and goes on as it was."""
    caller = Caller(make)
    for number in range(4):
        first = caller.say(*turn(number))
    branch = caller.say(*turn(90), at=2)
    assert branch.ctx.session != "s"
    assert seen(branch) == ["u0", "a0", "u1", "a1", "u90", "a90"]
    assert seen(caller.say(*turn(91))) == ["u0", "a0", "u1", "a1", "u90", "a90", "u91", "a91"]
    assert seen(caller.say(*turn(4), at=4)) == [i for n in range(5) for i in (f"u{n}", f"a{n}")]
    assert first.ctx.session == "s"
    assert len(caller.store.sessions("default")) == 2


def test_an_earlier_state_whose_later_replies_were_all_compacted_goes_on_in_a_branch(
    make: Callable[..., Driven],
) -> None:
    """A large question, not answered yet, takes the room of every reply."""
    caller = Caller(make)
    for number in range(5):
        caller.say(*turn(number))
    later = caller.say(user("big " * 3_180, id="big"))
    later.window()
    assert seen(later) == ["big"]
    assert seen(caller.say(user("back", id="back"), at=2)) == ["u0", "a0", "u1", "a1", "back"]


def test_a_branch_has_the_summaries_pins_and_rules_of_its_moment(make: Callable[..., Driven]) -> None:
    caller = Caller(make, backend=ScriptedBackend(["They spoke of many things."] * 50))
    long = "word " * 120
    window: dict[int, tuple[str, ...]] = {}
    for number in range(45):
        session = caller.say(user(f"{number} {long}", id=f"u{number}"), assistant("Yes.", id=f"a{number}"))
        if number == 2:
            session.pin("u1")
        window[number + 1] = tuple(m.text for m in session.view().messages)
    assert session.usage().compactions >= 2
    for state in (4, 20, 44):
        branch = Driven(caller.ctx.ctx.at(_branched(caller, state).key.session), caller.ctx._runner)
        assert tuple(m.text for m in branch.view().messages) == window[state]
        pinned = [b.id for b in branch.explain().blocks if b.why == "pinned"]
        assert pinned == ["u1"]


def _branched(caller: Caller, state: int) -> Attachment:
    messages, left = caller.states[state]
    return caller.line([*messages, user("another", id="another")], left)


def test_a_note_makes_no_branch(make: Callable[..., Driven]) -> None:
    caller = Caller(make)
    session = caller.say(*turn(0))
    session.add(user("a note", id="note"))
    again = caller.say(*turn(1))
    assert again.ctx.session == "s"
    assert seen(again) == ["u0", "a0", "note", "u1", "a1"]


def test_edits_and_removals(make: Callable[..., Driven]) -> None:
    caller = Caller(make)
    for number in range(3):
        caller.say(*turn(number))
    old = caller.states[-1][0]
    edited = [user("other words", id="u1") if m.id == "u1" else m for m in old if m.id not in ("u0", "a0")]
    session = caller.say(*turn(3), messages=edited)
    assert seen(session) == ["u1", "a1", "u2", "a2", "u3", "a3"]
    assert session.archive.get("u1").text == "other words"
    assert session.ctx.session == "s"
    assert seen(caller.say(user("question 0", id="u0"))) == ["u1", "a1", "u2", "a2", "u3", "a3", "u0"]


def call(name: str, arguments: str = "{}") -> Message:
    return Message(f"call-{name}", "assistant", (ToolCallPart(name, "look", arguments),))


def test_a_turn_under_way_is_told_anew_when_it_was_edited(make: Callable[..., Driven]) -> None:
    caller = Caller(make)
    caller.say(*turn(0))
    caller.say(user("look", id="u1"), call("c"))
    old = caller.states[-1][0]
    other = [*old[:-1], call("c", '{"key": 2}')]
    line = caller.line([*other, tool_result("c", "found", id="r")], caller.states[-1][1])
    assert line.restored == {"u1", "call-c"}
    assert line.known == {"u0", "a0"}
    session = caller.say(tool_result("c", "found", id="r"), assistant("done", id="a1"), messages=other)
    assert seen(session) == ["u0", "a0", "u1", "call-c", "r", "a1"]
    assert session.archive.get("call-c").tool_calls[0].arguments == '{"key": 2}'


def test_a_round_whose_calls_changed_afterwards_leaves_the_window(make: Callable[..., Driven]) -> None:
    caller = Caller(make)
    caller.say(user("look", id="u1"), call("c"), tool_result("c", "found", id="r"), assistant("done", id="a1"))
    old = caller.states[-1][0]
    session = caller.say(*turn(2), messages=[replace(call("d"), id=m.id) if m.id == "call-c" else m for m in old])
    assert seen(session) == ["u1", "a1", "u2", "a2"]


def test_a_turn_that_was_taken_for_dead_is_told_anew(
    make: Callable[..., Driven], monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller(make)
    caller.say(*turn(0))
    caller.say(user("look", id="u1"), call("c"))
    monkeypatch.setattr("ctxfold.state.TURN_TIMEOUT_S", -1.0)
    caller.ctx = make(session_id="s", store=caller.store, context_window=4_000)  # another process, much later
    monkeypatch.undo()
    session = caller.say(tool_result("c", "found", id="r"), assistant("done", id="a1"))
    assert seen(session) == ["u0", "a0", "u1", "call-c", "r", "a1"]


def test_what_was_taken_out_of_the_session_stays_out(make: Callable[..., Driven]) -> None:
    caller = Caller(make)
    for number in range(3):
        session = caller.say(*turn(number))
    session.edit.pop()
    line = caller.line(caller.states[-1][0], caller.states[-1][1])
    assert line.restored == frozenset()
    assert "a2" not in line.known


def test_an_id_of_a_message_that_the_list_has_lost_may_be_used_again(make: Callable[..., Driven]) -> None:
    caller = Caller(make)
    caller.say(*turn(0))
    session = caller.say(*turn(1))
    session.add(user("a note", id="note"))
    again = caller.say(user("of the list", id="note"), *turn(2))
    assert again.ctx.session == "s"
    assert [m.text for m in again.view().messages][4:] == ["of the list", "question 2", "answer 2"]


@pytest.mark.parametrize(
    "listed",
    [
        pytest.param([user("quite another", id="x")], id="another conversation"),
        pytest.param([user("in short", id="x"), *turn(2)], id="a summary of somebody's own"),
        pytest.param([*turn(0), user("between", id="x"), *turn(1), *turn(2)], id="a message put between"),
        pytest.param([*turn(1), *turn(0), *turn(2)], id="another order"),
    ],
)
def test_another_list_is_another_session(make: Callable[..., Driven], listed: list[Message]) -> None:
    caller = Caller(make)
    for number in range(3):
        caller.say(*turn(number))
    session = caller.say(*turn(3), messages=listed)
    assert session.ctx.session != "s"
    assert seen(session) == [*(m.id for m in listed), "u3", "a3"]


def test_a_copy_under_another_name(make: Callable[..., Driven]) -> None:
    """It takes the name that it asks for, where that is free, and the first session goes on by itself."""
    caller = Caller(make)
    for number in range(3):
        caller.say(*turn(number))
    messages, left = caller.states[-1]
    for _ in range(2):
        other = Driven(caller.ctx.ctx.at("other"), caller.ctx._runner)
        line = other.handle.follow(Kept(messages), left)
        assert line.known == {m.id for m in messages}
        assert line.key.session.startswith("other")
    assert len(caller.store.sessions("default")) == 3
    assert caller.say(*turn(3)).ctx.session == "s"
    assert caller.ctx.archive.forks() == tuple(n for n in caller.store.sessions("default") if n != "s")


def test_a_store_that_has_forgotten_begins_anew(make: Callable[..., Driven]) -> None:
    caller = Caller(make)
    for number in range(3):
        session = caller.say(*turn(number))
    session.erasure.erase_session()
    line = caller.line(caller.states[-1][0], caller.states[-1][1])
    assert line == Attachment(SessionKey("default", "s"), frozenset())


def test_a_name_that_was_used_again_for_something_else_is_left_alone(make: Callable[..., Driven]) -> None:
    caller = Caller(make)
    for number in range(3):
        session = caller.say(*turn(number))
    session.erasure.erase_session()
    for number in range(40, 50):
        session.add(turn(number))
    line = caller.line(caller.states[-1][0], caller.states[-1][1])
    assert line.key.session.startswith("s~")
    assert not line.known & {"u0", "u40"}


def test_a_copy_whose_first_session_is_forgotten_takes_its_own_name(make: Callable[..., Driven]) -> None:
    caller = Caller(make)
    session = caller.say(*turn(0))
    session.erasure.erase_session()
    other = Driven(caller.ctx.ctx.at("other"), caller.ctx._runner)
    line = other.handle.follow(Kept(caller.states[-1][0]), caller.states[-1][1])
    assert line == Attachment(SessionKey("default", "other"), frozenset())


def test_a_trail_of_another_version_is_none(make: Callable[..., Driven]) -> None:
    caller = Caller(make)
    caller.say(*turn(0))
    kept = caller.states[-1][1]
    assert kept is not None
    assert Cursor.from_dict(kept.to_dict()) == kept
    assert Cursor.from_dict({**kept.to_dict(), "more": 1}) is None
    assert Cursor.from_dict({"session": "s"}) is None


def test_a_list_whose_older_part_changed_does_not_only_go_on(make: Callable[..., Driven]) -> None:
    """The session no longer shows the older part, so that only its digest tells."""
    caller = Caller(make)
    caller.say(*turn(1)).edit.remove(0)
    caller.say(*turn(2))
    messages, left = caller.states[-1]
    assert left is not None
    assert left.before > 0
    assert left.precedes(Kept([*messages, *turn(3)]))
    assert not left.precedes(Kept([replace(messages[0], id="another"), *messages[1:], *turn(3)]))


class Counting(Sequence[str]):
    """Ids that count how often one of them is read."""

    def __init__(self, ids: list[str]) -> None:
        self.all, self.reads = ids, 0

    def __len__(self) -> int:
        return len(self.all)

    def __getitem__(self, index: Any) -> Any:
        found = self.all[index]
        self.reads += len(found) if isinstance(index, slice) else 1
        return found


@pytest.mark.parametrize("length", [1_000, 10_000, 100_000])
def test_a_digest_reads_as_many_ids_of_a_long_list_as_of_a_short_one(length: int) -> None:
    ids = Counting([f"m{n}" for n in range(length)])
    ids_digest(ids, length - 10)
    assert ids.reads < 140


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 1_000, 10_000])
def test_a_digest_changes_with_the_place_of_the_older_messages(length: int) -> None:
    ids = [f"m{n}" for n in range(length)]
    digest = ids_digest([*ids, "later"], length)
    assert digest == ids_digest([*ids, "another"], length)
    for place in {0, length // 3, length // 2, length - 1}:
        assert ids_digest([*ids[:place], "new", *ids[place:]], length) != digest
        assert ids_digest([*ids[:place], *ids[place + 1 :], "later"], length) != digest
