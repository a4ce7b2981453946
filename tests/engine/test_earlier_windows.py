"""What a request held, told later and in another process: its messages, the recalled ones, and what gave way to them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxfold import ToolSpec, assistant, user
from ctxfold.errors import SessionNotFoundError
from ctxfold.inspect.explain import difference
from tests.support.driven import Driven, context, scripted, tool_round

FILLER = "and then we talked for a while about one thing and another, as people do on a long afternoon " * 4
TOPICS = ("harbour", "orchard", "library", "station", "bakery")


def visit(number: int) -> list[Any]:
    topic = TOPICS[number % len(TOPICS)]
    text = f"The {topic} of visit {number} opens at {number + 6} with ticket code {topic[:3].upper()}{number}. {FILLER}"
    return [user(text, id=f"u{number}"), assistant(f"Noted for visit {number}.", id=f"a{number}")]


def lived(ctx: Any, questions: int = 6) -> Any:
    """Compacted visits, then questions about the first of them: passages are recalled, and older turns give way."""
    for number in range(20):
        ctx.add(visit(number))
    for number in range(questions):
        topic = TOPICS[number % len(TOPICS)]
        ctx.send(f"With which ticket code does the {topic} of visit {number} open?")
    return ctx


def settings(**more: Any) -> dict[str, Any]:
    return {
        "context_window": 2_000,
        "soft_ratio": 0.9,
        "system": "Be brief.",
        "summarizer": scripted(*["They plan visits."] * 99),
        **more,
    }


def replies() -> Any:
    return scripted(*[f"Code {n}." for n in range(99)])


def check(ctx: Any, requests: Any) -> None:
    """Every request that was made is told as it was sent."""
    rows = ctx.archive.inspect().turns
    seqs = [seq for row in rows for seq in row.requests]
    assert len(seqs) == len(requests)
    for seq, request in zip(seqs, requests, strict=True):
        told = ctx.archive.window_at(seq)
        held = [m for m in request.messages if "\n- #" not in m.text]
        assert [m.text for m in told.messages if m.role != "system"] == [m.text for m in held if m.role != "system"]
        passages = "\n".join(m.text for m in request.messages if m not in held)
        assert list(told.recalled) == list(dict.fromkeys(re.findall(r"^- (#\d+) ", passages, flags=re.M)))
        assert (told.zones["recalled"] > 0) == bool(passages)
        assert told.used_tokens == sum(told.zones.values())
        assert told.used_tokens + told.gauge.room_tokens == told.budget_tokens
        assert not set(told.gave_way) & {b.reference for b in told.blocks}


def test_every_request_is_told_as_it_was_sent(make: Callable[..., Driven]) -> None:
    backend = replies()
    ctx = lived(make(backend, **settings()))
    check(ctx, backend.requests)
    windows = [ctx.archive.window_at(seq) for row in ctx.archive.inspect().turns for seq in row.requests]
    assert any(w.gave_way for w in windows)
    assert all(w.recalled for w in windows)


def test_another_process_tells_the_same(tmp_path: Path) -> None:
    backend, store = replies(), f"sqlite:///{tmp_path}/chat.db"
    with context(backend, store=store, **settings()) as ctx:
        lived(ctx)
        own = ctx.explain()
        with context(store=store, context_window=9_999, create=False) as other:
            check(other, backend.requests)
            told = other.explain()
    assert (told.zones, told.recalled, told.gave_way) == (own.zones, own.recalled, own.gave_way)
    assert re.fullmatch(r"system prompts \d+, summaries \d+, conversation [\d,]+, recalled [\d,]+", told.held)


def test_after_compactions_an_undo_and_an_erasure(make: Callable[..., Driven]) -> None:
    backend = replies()
    ctx = lived(make(backend, **settings()), questions=2)
    rows = ctx.archive.inspect().turns
    seq = rows[-1].requests[-1]
    before = ctx.archive.window_at(seq)
    ctx.compact(force=True)
    assert ctx.archive.window_at(seq).blocks == before.blocks
    ctx.undo()
    assert ctx.archive.window_at(seq).blocks == before.blocks
    ctx.add(visit(77))
    erased = next(b for b in before.blocks if b.role == "user" and b.zone == "live")
    ctx.erasure.erase(erased.id)
    assert erased.id not in {b.id for b in ctx.archive.window_at(seq).blocks}


def test_the_requests_of_a_turn_that_is_open(make: Callable[..., Driven]) -> None:
    tools = [ToolSpec("look", "Looks.", {"type": "object", "properties": {}})]
    (asks, result) = tool_round("t")
    ctx = make(scripted(asks, "done"), context_window=4_000)
    ctx.send("look for it", tools=tools)
    (row,) = ctx.archive.inspect().turns
    assert row.open
    first = ctx.archive.window_at(row.requests[0])
    assert [b.role for b in first.blocks] == ["user"]
    assert first.zones["tools"] > 0
    ctx.send(result, tools=tools)
    (row,) = ctx.archive.inspect().turns
    assert not row.open
    second = ctx.archive.window_at(row.requests[1])
    assert [b.role for b in second.blocks] == ["user", "assistant", "tool"]
    told = difference(first, second)
    assert ([b.role for b in told.came], told.left, told.changed) == (["assistant", "tool"], (), ())
    assert told.zones["live"] == second.zones["live"] - first.zones["live"] > 0


def test_the_difference_of_two_windows(make: Callable[..., Driven]) -> None:
    ctx = lived(make(replies(), **settings()))
    rows = ctx.archive.inspect().turns
    first, last = (ctx.archive.window_at(row.requests[-1]) for row in (rows[-6], rows[-1]))
    told = difference(first, last)
    assert {b.id for b in told.came}.isdisjoint(b.id for b in first.blocks)
    assert {b.id for b in told.left}.isdisjoint(b.id for b in last.blocks)
    assert set(told.recalled) == set(last.recalled) - set(first.recalled)
    assert set(told.no_longer_recalled) == set(first.recalled) - set(last.recalled)
    assert difference(first, first) == type(told)((), (), (), dict.fromkeys(first.zones, 0), (), ())


def test_a_session_that_was_never_there(make: Callable[..., Driven]) -> None:
    ctx = make()
    with pytest.raises(SessionNotFoundError):
        ctx.at("other", create=False).archive.window_at(1)


def test_a_compaction_tells_what_was_missed_and_recalled_since(make: Callable[..., Driven]) -> None:
    missing = "I don't have that information in our conversation any more."
    ctx = lived(make(scripted("Code 0.", missing, "Code 2."), **settings()), questions=3)
    report = ctx.archive.inspect()
    *earlier, last = [step for step in report.timeline if step.what == "compaction"]
    assert earlier
    (reply,) = [m.reference for m in report.messages if m.text == missing]
    assert (last.missing, [step.missing for step in earlier]) == ((reply,), [()] * len(earlier))
    recalled = {reference for row in report.turns for reference in row.recalled}
    told = [reference for step in (*earlier, last) for reference in step.recalled]
    assert len(told) == len(set(told)), "each by the compaction that covered it"
    compacted = {m.reference for m in report.messages if m.where == "compacted"}
    assert set(told) == recalled & compacted != set()
    assert [step.turn for step in report.timeline] == sorted(step.turn for step in report.timeline)
    assert 1 < last.turn <= 21
    assert (last.calls, last.tokens_before > last.tokens_after) == (1, True)


def test_messages_tell_their_turn_and_tools(make: Callable[..., Driven]) -> None:
    ctx = make(context_window=4_000)
    ctx.add([user("look", id="q"), *tool_round("t"), assistant("found", id="a"), user("and?", id="q2")])
    told = {m.id: (m.turn, m.tools) for m in ctx.archive.inspect().messages}
    assert told == {"q": (1, ()), "t-a": (1, ("look",)), "t-r0": (1, ("look",)), "a": (1, ()), "q2": (2, ())}


def test_looking_ends_no_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool waits for a person for longer than a turn may be silent, and somebody looks at the session meanwhile."""
    store = f"sqlite:///{tmp_path}/chat.db"
    asks, result = tool_round("t")
    with context(scripted(asks, "done"), store=store, session_id="s") as ctx:
        ctx.send("look for it")
        monkeypatch.setattr("ctxfold.state.TURN_TIMEOUT_S", -1.0)
        with context(store=store, session_id="s", create=False) as other:
            assert other.archive.explain("t-a").where == "open turn"
        assert ctx.send(result).message.text == "done"
    with context(scripted("more"), store=store, session_id="s") as writer:
        writer.send("and more")
