"""Change events, and the one subscriber that may rewrite a compaction before it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ctxfold import ConfigError, HistoryCompacted, Message, assistant, user
from ctxfold.events import (
    Appended,
    CompactionProgress,
    CompactionProposal,
    CompactionStarted,
    Inserted,
    MessagesRestored,
    PinsChanged,
    Removed,
    RewriteRefused,
    SessionLoaded,
    Updated,
)
from tests.support.driven import Driven, scripted, text_of, tool_round, turns

Make = Callable[..., Driven]


def filled(make: Make) -> tuple[Driven, list[Any]]:
    ctx = make(context_window=2_000, summarizer=scripted(*["a summary"] * 9), system="Be brief.")
    events: list[Any] = []
    ctx.subscribe(events.append)
    ctx.add([*turns(2), user("go", id="g"), *tool_round("t"), assistant("ok", id="z"), *turns(10, start=2)])
    ctx.pin("a0")
    return ctx, events


def test_the_subscriber_has_the_last_word(make: Make) -> None:
    ctx, events = filled(make)
    seen: list[CompactionProposal] = []

    def rewrite(offer: CompactionProposal) -> tuple[str, list[Message]]:
        seen.append(offer)
        more = [m for m in offer.covered if m.id in ("u1", "g", "t-a", "t-r0")]
        order = {m.id: i for i, m in enumerate(before)}
        return "My own summary.", sorted([*more, *offer.kept], key=lambda m: order[m.id])

    before = ctx.view().messages
    end = ctx.edit.on_compaction(rewrite)
    assert ctx.edit.on_compaction(rewrite), "twice is once"
    with pytest.raises(ConfigError, match="already"):
        ctx.edit.on_compaction(lambda _: None)
    ctx.compact(force=True)
    assert "a summary" in seen[0].summary
    assert "a0" in [m.id for m in seen[0].kept]
    shown = ctx.view().messages
    assert "My own summary." in text_of(shown)
    assert "a summary" not in text_of(shown)
    assert [m.id for m in shown[2:6]] == ["a0", "u1", "g", "t-a"]
    assert [e.fallback_level for e in events if isinstance(e, HistoryCompacted)][-1].endswith("rewritten")
    assert not [e for e in events if isinstance(e, RewriteRefused)]
    ctx.undo()
    assert ctx.view().messages == before
    end()
    ctx.edit.on_compaction(lambda _: None)
    ctx.compact(force=True)
    assert "a summary" in text_of(ctx.view().messages), "None leaves it as it is"


BREAKS: list[tuple[Callable[[CompactionProposal], Any], str]] = [
    (lambda o: ("mine", [m for m in o.kept if m.id != "a0"]), "must stay"),
    (lambda o: ("mine", [o.kept[0], *[m for m in o.covered if m.id == "t-a"], *o.kept[1:]]), "separates a tool call"),
    (lambda o: ("word " * 4_000, o.kept), "smaller than its source"),
    (lambda o: ("mine", o.kept[::-1]), "order"),
    (lambda o: ("mine", [*o.kept[:-1], user("forged", id=o.kept[-1].id)]), "changed the message"),
    (lambda o: (" ", o.kept), "empty"),
    (lambda o: "mine", "ValueError"),
    (lambda o: 1 / 0, "ZeroDivisionError"),
]


@pytest.mark.parametrize(("broken", "problem"), BREAKS)
def test_what_breaks_the_contract_is_reported_and_not_done(make: Make, broken: Any, problem: str) -> None:
    ctx, events = filled(make)
    ctx.edit.on_compaction(broken)
    ctx.compact(force=True)
    assert [problem in e.reason for e in events if isinstance(e, RewriteRefused)] == [True]
    assert "a summary" in text_of(ctx.view().messages)
    assert "a0" in [m.id for m in ctx.view().messages]


def test_a_rewrite_that_leaves_no_room_for_the_request_is_refused(make: Make) -> None:
    ctx = make(scripted("fine"), context_window=1_000, summarizer=scripted(*["a summary"] * 9))
    refused: list[RewriteRefused] = []
    ctx.subscribe(lambda event: refused.append(event) if isinstance(event, RewriteRefused) else None)
    ctx.add(turns(14))
    ctx.edit.on_compaction(lambda offer: ("mine", [*offer.covered[2:], *offer.kept]))
    assert ctx.send("word " * 160).message.text == "fine"
    assert ["keep less" in event.reason for event in refused] == [True]
    assert "a summary" in text_of(ctx.view().messages)


def test_every_change_is_an_event(make: Make, tmp_path: Any) -> None:
    ctx, events = filled(make)
    ctx.edit.update(0, user("new words", id="x"))
    ctx.edit.insert(0, user("first", id="first"))
    ctx.edit.remove(0)
    ctx.edit.pop()
    ctx.compact(force=True)
    ctx.restore("u1")
    ctx.edit.retain("user")
    ctx.edit.clear()
    (tmp_path / "f").write_text('{"role": "user", "content": "hi"}')
    ctx.files.import_jsonl(tmp_path / "f")
    kinds = [(type(e), getattr(e, "how", "")) for e in events if type(e).__name__ != "TurnEnded"]
    assert kinds == [
        (Appended, ""),
        (PinsChanged, ""),
        (Updated, ""),
        (Inserted, ""),
        (Removed, "removed"),
        (Removed, "popped"),
        (CompactionStarted, ""),
        (CompactionProgress, ""),
        (HistoryCompacted, ""),
        (MessagesRestored, ""),
        (Removed, "retained"),
        (Removed, "cleared"),
        (SessionLoaded, ""),
    ]
    updated = next(e for e in events if isinstance(e, Updated))
    assert (updated.old.text[:10], updated.new.text) == ("question 0", "new words")
