"""Every change of a session is told, as a value; whoever listens cannot break it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from ctxfold import BackendError, HistoryCompacted, assistant, user
from ctxfold.errors import PinBudgetError
from ctxfold.events import (
    Appended,
    EditUndone,
    Inserted,
    MessagesRestored,
    PinsChanged,
    Removed,
    RulesChanged,
    SessionLoaded,
    TurnEnded,
    Updated,
)
from tests.support.driven import Driven, scripted, turns

Make = Callable[..., Driven]


def heard(ctx: Driven) -> list[Any]:
    found: list[Any] = []
    ctx.subscribe(found.append)
    return found


def test_each_edit_is_told(make: Make, tmp_path: Any) -> None:
    ctx = make()
    events = heard(ctx)
    ctx.add(turns(1))
    ctx.edit.insert(0, user("first", id="f"))
    ctx.edit.update(0, user("the first", id="f"))
    ctx.edit.remove(0)
    ctx.edit.pop()
    ctx.add([assistant("again", id="x"), user("more", id="y")])
    ctx.edit.retain("user")
    ctx.edit.clear()
    ctx.undo()
    kinds = [(type(e), getattr(e, "how", "")) for e in events if not isinstance(e, TurnEnded)]
    assert kinds == [
        (Appended, ""),
        (Inserted, ""),
        (Updated, ""),
        (Removed, "removed"),
        (Removed, "popped"),
        (Appended, ""),
        (Removed, "retained"),
        (Removed, "cleared"),
        (EditUndone, ""),
    ]
    changed = next(e for e in events if isinstance(e, Updated))
    assert (changed.old.text, changed.new.text) == ("first", "the first")


def test_a_whole_new_list_is_a_removal_and_an_addition(make: Make) -> None:
    ctx = make()
    ctx.add(turns(1))
    events = heard(ctx)
    ctx.edit.set_messages([user("anew", id="n")])
    assert [type(e) for e in events[:2]] == [Removed, Appended]
    assert [m.id for m in events[0].messages] == ["u0", "a0"]
    assert [m.id for m in events[1].messages] == ["n"]


def test_pins_and_rules_are_told_when_they_change(make: Make) -> None:
    ctx = make()
    ctx.add([*turns(2), user("word " * 900, id="long"), assistant("ok", id="z")])
    events = heard(ctx)
    ctx.pin("u0", "a0")
    ctx.unpin("u0")
    with pytest.raises(PinBudgetError):
        ctx.pin("long")
    ctx.set_policy(auto_compact=False, soft_ratio=0.5)
    ctx.set_policy(auto_compact=False)
    assert events == [
        PinsChanged("default", ("u0", "a0")),
        PinsChanged("default", ("a0",)),
        RulesChanged("default", ("auto_compact", "soft_ratio")),
    ]


def test_a_limit_that_the_provider_tells_is_a_change_of_rules(make: Make) -> None:
    overflow = BackendError("too long", kind="context_overflow", limit_tokens=600)
    ctx = make(scripted(overflow, *["fits now"] * 9), context_window=4_000)
    ctx.add(turns(20))
    events = heard(ctx)
    ctx.send("and now?")
    told = next(e for e in events if isinstance(e, RulesChanged))
    assert "context_window" in told.fields
    assert ctx.policy.context_window == 600


def test_compacted_restored_and_loaded_are_told(make: Make, tmp_path: Any) -> None:
    ctx = make(context_window=2_000)
    events = heard(ctx)
    ctx.add(turns(12))
    ctx.compact(force=True)
    ctx.restore("u0")
    ctx.files.export_jsonl(tmp_path / "a.jsonl", zone="window")
    other = make(session_id="other", context_window=2_000)
    loaded = heard(other)
    other.files.import_jsonl(tmp_path / "a.jsonl")
    assert {HistoryCompacted, MessagesRestored} <= {type(e) for e in events}
    assert SessionLoaded in {type(e) for e in loaded}


def test_a_subscriber_that_raises_breaks_nothing_and_is_asked_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    ctx = make()
    calls: list[Any] = []

    def broken(event: Any) -> None:
        calls.append(event)
        raise ValueError("mine")

    stop = ctx.subscribe(broken)
    ctx.subscribe(broken)
    with caplog.at_level(logging.ERROR, logger="ctxfold"):
        ctx.add(user("one", id="1"))
    assert len(calls) == 1
    assert "ValueError" in caplog.text
    stop()
    ctx.add(user("two", id="2"))
    assert len(calls) == 1
    assert len(ctx.messages()) == 2
