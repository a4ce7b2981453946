"""Changes of the whole conversation: what waits for results goes with it, and nobody else's messages are lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ctxfold import MemoryStore, Message, SqlStore, assistant, tool_result, user
from ctxfold.errors import HeadMovedError, MessageNotFoundError, OrphanToolResultError, StoreUnavailableError
from ctxfold.events import Removed
from tests.support.driven import Driven, call, scripted, tool_round, turns

Make = Callable[..., Driven]


def ids(ctx: Driven) -> list[str]:
    return [m.id for m in ctx.messages()]


def test_clear_takes_a_call_that_waits(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = make()
    ctx.add([*turns(1), user("go", id="g"), *tool_round("t")[:1]])
    assert [m.id for m in ctx.edit.clear()] == ["u0", "a0", "g", "t-a"]
    assert ids(ctx) == []
    assert ctx.view().messages == ()
    with pytest.raises(OrphanToolResultError):
        ctx.add(tool_result("t-c0", "late", id="late"))
    monkeypatch.setattr("ctxfold.state.TURN_TIMEOUT_S", -1.0)  # turns that nobody writes to are ended when it is opened
    ctx.add(turns(1, start=7))
    assert ids(ctx) == ["u7", "a7"]
    assert ctx.add([user("go", id="g"), *tool_round("t")]).messages, "what was cleared may be added again"


def test_set_messages_takes_a_call_that_waits(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = make()
    ctx.add([*turns(1), user("go", id="g"), *tool_round("t")[:1]])
    ctx.edit.set_messages([user("other", id="o"), *tool_round("s")[:1]])
    assert ids(ctx) == ["o", "s-a"]
    with pytest.raises(OrphanToolResultError):
        ctx.add(tool_result("t-c0", "late", id="late"))
    ctx.add(tool_round("s")[1:])
    ctx.edit.set_messages(turns(1, start=7))
    monkeypatch.setattr("ctxfold.state.TURN_TIMEOUT_S", -1.0)
    ctx.add(turns(1, start=8))
    assert ids(ctx) == ["u7", "a7", "u8", "a8"]


def test_what_is_still_waited_for_goes_on_waiting(make: Make) -> None:
    ctx = make()
    ctx.add([*turns(1), user("go", id="g"), *tool_round("t")[:1]])
    ctx.edit.revise(lambda held: [m for m in held if m.id != "u0"])
    assert ids(ctx) == ["a0", "g", "t-a"]
    ctx.add(tool_round("t")[1:])
    assert ids(ctx) == ["a0", "g", "t-a", "t-r0"]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_revise_is_asked_anew_where_somebody_writes_meanwhile(kind: str, make: Make, tmp_path: Path) -> None:
    with MemoryStore() if kind == "memory" else SqlStore(f"sqlite:///{tmp_path}/a.db") as store:
        ctx, other = make(store=store), make(store=store)
        ctx.add(turns(2))
        asked: list[list[str]] = []

        def without_first(held: Sequence[Message]) -> list[Message]:
            asked.append([m.id for m in held])
            if len(asked) == 1:
                other.ctx.add(turns(1, start=9))
            return list(held[1:])

        ctx.edit.revise(without_first)
        assert asked == [["u0", "a0", "u1", "a1"], ["u0", "a0", "u1", "a1", "u9", "a9"]]
        assert ids(ctx) == ids(other) == ["a0", "u1", "a1", "u9", "a9"]


def test_revise_may_leave_all_as_it_is(make: Make) -> None:
    ctx = make()
    ctx.add([*turns(1), user("go", id="g"), *tool_round("t")[:1]])
    before = ctx.messages()
    ctx.edit.revise(lambda _: None)
    assert ctx.messages() == before
    ctx.add(tool_round("t")[1:])
    assert ids(ctx)[-1] == "t-r0"


def test_a_writer_that_is_always_first_is_told_of(make: Make) -> None:
    store = MemoryStore()
    ctx, other = make(store=store), make(store=store)
    ctx.add(turns(1))
    written: list[str] = []

    def never(held: Sequence[Message]) -> list[Message]:
        written.append(f"n{len(written)}")
        other.ctx.add(user("again", id=written[-1]))
        return []

    with pytest.raises(StoreUnavailableError, match="were first 32 times") as caught:
        ctx.edit.revise(never)
    assert not isinstance(caught.value, HeadMovedError)
    assert ids(ctx) == ["u0", "a0", *written]


def test_an_error_of_the_change_changes_nothing(make: Make) -> None:
    ctx = make()
    ctx.add([*turns(1), user("go", id="g"), *tool_round("t")[:1]])
    before = ctx.messages()

    def broken(held: Sequence[Message]) -> list[Message]:
        raise LookupError("not this one")

    with pytest.raises(LookupError, match="not this one"):
        ctx.edit.revise(broken)
    assert ctx.messages() == before
    ctx.add(tool_round("t")[1:])
    assert ids(ctx)[-1] == "t-r0"


def test_a_message_is_removed_by_its_id(make: Make) -> None:
    ctx = make()
    ctx.add([*turns(1), user("go", id="g"), *tool_round("t"), *turns(1, start=5)])
    assert [m.id for m in ctx.edit.remove("t-r0")] == ["t-a", "t-r0"]
    with pytest.raises(MessageNotFoundError, match="'t-a' is not in the live conversation"):
        ctx.edit.remove("t-a")
    assert ids(ctx) == ["u0", "a0", "g", "u5", "a5"]


def test_revise_leaves_what_the_user_does_not_see_and_pins(make: Make) -> None:
    ctx = make()
    ctx.add(user("told first", id="h0"), visibility="model")
    ctx.add(turns(2))
    ctx.add(user("a rule for the model", id="h1"), visibility="model")
    ctx.add(turns(2, start=2))
    ctx.pin("u0", "u2")
    asked: list[list[str]] = []

    def change(held: Sequence[Message]) -> list[Message]:
        asked.append([m.id for m in held])
        return [m for m in held if m.id not in {"u0", "a1"}]

    ctx.edit.revise(change)
    assert asked == [["u0", "a0", "u1", "a1", "u2", "a2", "u3", "a3"]]
    assert ids(ctx) == ["h0", "a0", "u1", "h1", "u2", "a2", "u3", "a3"]
    assert ctx.messages()[3].visibility == "model"
    assert [b.id for b in ctx.explain().blocks if b.why == "pinned"] == ["u2"]


def test_revise_keeps_a_note_for_the_model_with_its_call(make: Make) -> None:
    ctx = make()
    asking, found = tool_round("t")
    none = replace(found, id="none", visibility="model")
    ctx.add([user("go", id="g"), asking, none, *turns(2)])
    ctx.edit.revise(lambda held: held[:-1])
    assert ids(ctx) == ["g", "t-a", "none", "u0", "a0", "u1"]
    ctx.edit.revise(lambda held: [m for m in held if m.id != "t-a"])
    assert ids(ctx) == ["g", "u0", "a0", "u1"]


@pytest.mark.parametrize("how", ["clear", "set_messages"])
def test_a_call_that_a_reply_made_goes_too(how: str, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    ctx = make(scripted(assistant("", id="t", calls=[call("c")]), "done"), store=store)
    ctx.send("secret")
    if how == "clear":
        assert [m.text for m in ctx.edit.clear()] == ["secret", ""]
    else:
        ctx.edit.set_messages([])
    assert ids(ctx) == []
    monkeypatch.setattr("ctxfold.state.TURN_TIMEOUT_S", -1.0)
    again = make(store=store)
    again.add(user("new", id="n"))
    assert ids(again) == ["n"]


def test_another_handle_clears_a_call_that_waits(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    ctx, other = make(store=store), make(store=store)
    ctx.add([user("go", id="g"), *tool_round("t")[:1]])
    assert [m.id for m in other.edit.clear()] == ["g", "t-a"]
    assert ids(ctx) == ids(other) == []
    monkeypatch.setattr("ctxfold.state.TURN_TIMEOUT_S", -1.0)
    assert ids(make(store=store)) == []


def test_revise_keeps_rounds_that_the_user_does_not_see(make: Make) -> None:
    ctx = make()
    asking, found = (replace(m, visibility="model") for m in tool_round("t"))
    ctx.add([*turns(1), user("go", id="g"), asking, found, *turns(1, start=1)])
    ctx.edit.revise(lambda held: [m for m in held if m.id != "u1"])
    assert ids(ctx) == ["u0", "a0", "g", "t-a", "t-r0", "a1"]
    ctx.edit.revise(lambda held: held[:-1])
    assert ids(ctx) == ["u0", "a0", "g", "t-a", "t-r0"]
    ctx.add(turns(1, start=3))
    assert ids(ctx)[-2:] == ["u3", "a3"]


def test_revise_may_tell_a_call_anew_under_another_id(make: Make) -> None:
    ctx = make()
    asking, found = tool_round("t")
    ctx.add([user("go", id="g"), asking, replace(found, visibility="model"), *turns(1)])
    ctx.edit.revise(lambda held: [replace(m, id="other") if m.id == "t-a" else m for m in held])
    assert ids(ctx) == ["g", "other", "t-r0", "u0", "a0"]


def test_a_tool_round_that_differs_is_replaced_as_a_whole(make: Make) -> None:
    ctx = make()
    replaced: list[Message] = []
    ctx.ctx.subscribe(lambda event: replaced.extend(event.messages) if isinstance(event, Removed) else None)
    talk = [*turns(1), user("go", id="g"), *tool_round("t", calls=2), assistant("done", id="d")]
    ctx.add(talk)
    ctx.edit.set_messages([*talk[:-2], tool_result("t-c1", "something else", id="new")], prompts=True, recognise=True)
    assert [m.id for m in replaced] == ["t-a", "t-r0", "t-r1", "d"]
    assert [m.text for m in ctx.view().messages][-4:] == ["go", "", "found", "something else"]


def test_messages_that_a_summary_in_their_turn_stands_for_go_with_it(make: Make) -> None:
    ctx = make(context_window=220, reply_reserve_tokens=40)
    first, second = (tool_round(name, "found " * 14, calls=3) for name in "tv")
    ctx.add([user("why?", id="u"), *first, *second, assistant("so", id="z")])
    assert "summary" in [e.message.kind for e in ctx.view().live]
    ctx.edit.set_messages([user("why?", id="u"), assistant("because", id="y")], prompts=True, recognise=True)
    assert ids(ctx) == ["u", "y"]
