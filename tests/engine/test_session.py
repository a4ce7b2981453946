"""The object a user holds: editing, pins, undo, export, explain, events, several contexts on one store."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxfold import (
    AgentContext,
    CompactionError,
    ContextOverflowError,
    MemoryStore,
    MessageError,
    SqlStore,
    TextPart,
    assistant,
    system,
    tool_result,
    user,
)
from ctxfold.errors import NothingToUndoError, OrphanToolResultError, PinBudgetError, UnknownRoleError
from tests.support.driven import Driven, call, context, scripted, text_of, tool_round, turns

Make = Callable[..., Driven]


def ids(ctx: Driven) -> list[str]:
    return [m.id for m in ctx.view().messages]


def test_create_read_update_delete(make: Make) -> None:
    ctx = make()
    ctx.add([*turns(1), user("go", id="g"), *tool_round("t", calls=2), assistant("ok", id="z")])
    assert ids(ctx) == ["u0", "a0", "g", "t-a", "t-r0", "t-r1", "z"]
    old = ctx.edit.update(0, user("changed", id="ignored"))
    assert (old.id, ctx.view().messages[0].id, ctx.view().messages[0].text) == ("u0", "u0", "changed")
    ctx.edit.update(-1, assistant("ok!", id="x"))
    ctx.edit.insert(2, user("between", id="b"))
    ctx.edit.insert(8, user("last", id="l"))
    assert ids(ctx) == ["u0", "a0", "b", "g", "t-a", "t-r0", "t-r1", "z", "l"]
    with pytest.raises(OrphanToolResultError, match="inside a tool round"):
        ctx.edit.insert(5, user("no", id="no"))
    assert [m.id for m in ctx.edit.remove(6)] == ["t-a", "t-r0", "t-r1"]
    assert [m.id for m in ctx.edit.pop()] == ["l"]
    assert [m.id for m in ctx.edit.retain("user")] == ["a0", "z"]
    assert [m.id for m in ctx.edit.clear()] == ["u0", "b", "g"]
    assert ids(ctx) == []
    assert ctx.add(turns(1)).messages == tuple(turns(1)), "what was cleared may be added again"


def test_an_updated_summary_is_no_question(make: Make) -> None:
    ctx = make(context_window=1_200, summarizer=scripted(*["short"] * 9))
    ctx.add(user("the question", id="u"))
    for number in range(12):
        ctx.add(tool_round(f"t{number}", "out " * 60))
    ctx.compact(force=True)
    place = next(i for i, e in enumerate(ctx.view().live) if e.message.kind == "summary")
    ctx.edit.update(place, user("a better summary", id="x"))
    assert [(m.kind, m.text) for m in ctx.view().messages[:2]] == [
        ("message", "the question"),
        ("summary", "a better summary"),
    ]
    for number in range(12, 24):
        ctx.add(tool_round(f"t{number}", "out " * 60))
    ctx.compact(force=True)
    assert [m.kind for m in ctx.view().messages[:3]] == ["message", "summary", "message"]
    assert ctx.view().messages[0].id == "u"


def test_an_updated_section_is_known_as_one(make: Make) -> None:
    ctx = make()
    ctx.add([user("hi", id="u"), assistant("yes", id="a")])
    service = ctx.ctx.service
    service.inject("documents", ["the car is red"])
    place = next(i for i, e in enumerate(ctx.view().live) if e.message.kind == "section")
    ctx.edit.update(place, user("the car is blue", id="x"))
    assert ctx.view().live[place].message.kind == "section"
    assert service.remove("documents")
    assert [m.id for m in ctx.view().messages] == ["u", "a"]


def test_an_updated_reply_is_still_of_the_model_that_wrote_it(make: Make) -> None:
    ctx = make(scripted("one", model="m1"))
    ctx.send("hi")
    ctx.edit.update(1, assistant("better", id="x"))
    assert [(m.text, m.model, m.usage) for m in ctx.view().messages[1:]] == [("better", "m1", None)]


def test_updates_that_would_orphan(make: Make) -> None:
    ctx = make()
    ctx.add([user("go", id="g"), *tool_round("t"), assistant("ok", id="z")])
    with pytest.raises(OrphanToolResultError, match="must keep their ids"):
        ctx.edit.update(1, assistant("none", id="x"))
    with pytest.raises(OrphanToolResultError, match="must answer the same"):
        ctx.edit.update(2, tool_result("other", "x", id="x"))
    with pytest.raises(MessageError, match="is user"):
        ctx.edit.update(0, assistant("x", id="x"))
    ctx.edit.update(2, tool_result("t-c0", "corrected", id="x"))
    assert ctx.view().messages[2].text == "corrected"


def test_undo_takes_edits_back_one_by_one(make: Make) -> None:
    ctx = make(system="Be brief.")
    ctx.add(turns(3))
    states = [ids(ctx)]
    for edit in (
        lambda: ctx.edit.remove(0),
        lambda: ctx.edit.insert(5, user("end", id="e")),
        lambda: ctx.edit.update(0, assistant("new", id="x")),
        lambda: ctx.edit.set_messages([user("only", id="o"), *tool_round("t")]),
        lambda: ctx.edit.clear(),
    ):
        edit()
        states.append(ids(ctx))
    for expected in reversed(states[:-1]):
        ctx.undo()
        assert ids(ctx) == expected
    assert text_of(ctx.view().messages) == text_of([system("Be brief.", id="s"), *turns(3)])
    with pytest.raises(NothingToUndoError):
        ctx.undo()
    assert ctx.add(user("end", id="e")).messages, "what an undo took away may be added again"


def test_undo_of_a_compaction(make: Make) -> None:
    ctx = make(context_window=2_000, summarizer=scripted(*["short"] * 9))
    ctx.add(turns(16))
    before = ids(ctx)
    ctx.compact(force=True)
    assert len(ids(ctx)) < len(before)
    ctx.undo()
    assert ids(ctx) == before
    ctx.compact(force=True)
    ctx.add(user("word " * 1_200, id="big"))
    with pytest.raises(ContextOverflowError, match="after the undo, the session would need"):
        ctx.undo()


def test_pins_survive_with_their_round(make: Make) -> None:
    ctx = make(context_window=2_000)
    ctx.add([*turns(2), user("go", id="g"), *tool_round("t", calls=2), assistant("ok", id="z"), *turns(8, start=2)])
    ctx.pin("t-r0", "u0")
    ctx.compact(force=True)
    left = ids(ctx)
    assert [i for i in left if i in {"u0", "t-a", "t-r0", "t-r1"}] == ["u0", "t-a", "t-r0", "t-r1"]
    assert "a0" not in left
    whys = {b.id: b.why for b in ctx.explain().blocks}
    assert whys["u0"] == "pinned"
    ctx.unpin("u0", "t-r0")
    ctx.compact(force=True)
    assert "u0" not in ids(ctx)
    assert "t-a" not in ids(ctx)


def test_pins_have_a_budget(make: Make) -> None:
    ctx = make()
    ctx.add(turns(4, words=60))
    with pytest.raises(PinBudgetError, match="their share is 200"):
        ctx.pin("u0", "a0", "u1", "a1")
    assert all(b.why != "pinned" for b in ctx.explain().blocks)


def test_prompts_keep_their_place(make: Make) -> None:
    store = MemoryStore()
    make(store=store).add([*turns(2)])
    late = make(store=store, system="A")
    assert [m.text for m in late.view().messages][:1] == ["A"]
    for _ in range(3):
        late.add(turns(1, start=5))
    assert [m.text for m in late.view().messages].count("A") == 1
    both = make(store=store, system=["A", "B"])
    assert [m.text for m in both.view().messages][:2] == ["A", "B"]
    changed = make(store=store, system=["C"])
    assert [m.text for m in changed.view().messages][:2] == ["C", "question 0 " + "word " * 12]
    with pytest.raises(NothingToUndoError):
        changed.undo()


def test_a_system_message_that_came_with_the_conversation_stays(make: Make) -> None:
    ctx = make(system="A")
    ctx.add([system("given", id="s"), *turns(1)])
    ctx.add(turns(1, start=1))
    assert [m.text for m in ctx.view().messages][:2] == ["A", "given"]
    ctx.edit.set_messages([system("A", id="again"), user("x", id="x")])
    assert [m.text for m in ctx.view().messages] == ["A", "given", "x"]


def test_two_contexts_on_one_store_see_each_other(make: Make, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    one, two = make(scripted("one"), store=url), make(store=url)
    one.send("hi")
    assert text_of(two.view().messages) == "hi\none"
    two.add(turns(1))
    assert ids(one)[-2:] == ["u0", "a0"]
    two.edit.remove(0)
    assert len(ids(one)) == 3
    one.undo()
    assert ids(two) == ids(one)
    assert ids(make(store=url)) == ids(one)
    assert ids(make(store=url, owner="somebody else")) == []


def test_edits_are_decided_anew_on_the_new_head(make: Make) -> None:
    class Racing(MemoryStore):
        """Another writer is first, right before an edit is written."""

        rival: AgentContext | None = None

        def append(self, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("expect") is not None and self.rival is not None:
                rival, self.rival = self.rival, None
                rival.edit.remove(0)
            return super().append(*args, **kwargs)

    store = Racing()
    one, two = make(store=store), context(store=store)
    one.add(turns(3))
    store.rival = two
    one.edit.update(3, assistant("changed", id="x"))
    assert ids(one) == ["a0", "u1", "a1", "u2", "a2"]
    assert one.view().messages[2].text == "changed"
    store.rival = two
    one.pin("u2")
    store.rival = two
    one.edit.insert(1, user("new", id="n"))
    store.rival = two
    one.edit.pop()
    store.rival = two
    one.undo()
    two.close()


def test_export(make: Make, tmp_path: Path) -> None:
    ctx = make(context_window=2_000, system="Be brief.")
    ctx.add([*turns(10), user("go", id="g"), *tool_round("t"), assistant("ok 好", id="z", reasoning="hm")])
    ctx.compact(force=True)
    path = tmp_path / "out.jsonl"
    count = ctx.files.export_jsonl(path)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert count == len(lines) == 1 + 20 + 4
    assert [x["id"] for x in lines if x["role"] == "tool"] == ["t-r0"]
    assert {x["zone"] for x in lines} == {"window", "archive"}
    shown = ctx.files.export_jsonl(path, zone="window")
    zones = [json.loads(line)["zone"] for line in path.read_text(encoding="utf-8").splitlines()]
    assert shown == len(ids(ctx))
    assert zones == sorted(zones, key=["immutable", "compressed", "incremental"].index)
    assert [p.name for p in tmp_path.iterdir()] == ["out.jsonl"]


def test_explain(make: Make) -> None:
    ctx = make(context_window=2_000, system="Be brief.")
    ctx.add(turns(14))
    ctx.compact(force=True)
    found = ctx.explain()
    assert found.used_tokens == sum(b.tokens for b in found.blocks) == ctx.usage().window_tokens
    assert [b.zone for b in found.blocks][:2] == ["system", "summary"]
    assert "Be brief." in str(found)
    assert found.to_dict()["session"] == "default"
    assert ctx.archive.explain("u0").where == "compacted"
    assert ctx.archive.explain("a13").where == "visible"
    assert ctx.archive.get("u0") == turns(1)[0]
    ctx.add([user("go", id="g"), assistant("", id="t", calls=[call("c")])])
    assert ctx.archive.explain("g").where == "open turn"


def test_events(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    ctx = make(scripted("one"), context_window=2_000)
    seen: list[str] = []

    def broken(event: object) -> None:
        raise RuntimeError("subscriber")

    ctx.subscribe(broken)
    stop = ctx.subscribe(lambda e: seen.append(type(e).__name__))
    with caplog.at_level(logging.ERROR, "ctxfold"):
        ctx.send("hi")
        ctx.edit.update(0, user("ho", id="x"))
        ctx.edit.insert(0, user("first", id="f"))
        ctx.edit.pop()
    assert seen == ["Appended", "WindowGauge", "Appended", "TurnEnded", "Updated", "Inserted", "Removed"]
    assert "on Appended" in caplog.text
    stop()
    ctx.edit.clear()
    assert len(seen) == 7


def test_known_messages_are_kept_once(make: Make) -> None:
    ctx = make()
    given = [*turns(2), user("go", id="g"), *tool_round("t"), assistant("ok", id="z")]
    assert ctx.add(given).messages == tuple(given)
    assert ctx.add([*given, user("new", id="n")]).messages == (user("new", id="n"),)
    assert len(ids(ctx)) == 9
    ctx.edit.insert(0, given[0])
    assert len(ids(ctx)) == 9


def test_compacting_what_cannot_be(make: Make) -> None:
    ctx = make()
    with pytest.raises(CompactionError, match="nothing was compacted"):
        ctx.compact(force=True)


def test_messages_with_parts(make: Make) -> None:
    ctx = make()
    made = user("hi")
    assert made.parts == (TextPart("hi"),)
    assert system("s").role == "system"
    assert tool_result("c", "out", name="f").tool_results[0].name == "f"
    assert (ctx.session, ctx.owner, ctx.policy.context_window) == ("default", "default", 1_000)
    assert ctx.handle.backend is None


def test_an_own_store_is_left_open(make: Make) -> None:
    with SqlStore("sqlite://") as store:
        with context(store=store) as ctx:
            ctx.add(turns(1))
        with context(store=store) as ctx:
            assert len(ctx.view().messages) == 2


def test_what_a_context_can_be_asked(make: Callable[..., Driven]) -> None:
    """Step 7, D A5: len, extend, find_by_role, is_full."""
    ctx = make(context_window=400, system="Be brief.", auto_compact=False)
    assert len(ctx.ctx) == 1
    assert bool(make(session_id="empty").ctx), "an empty conversation is a context all the same"
    ctx.add([user("Hello.", id="u"), assistant("Hi.", id="a")])
    assert len(ctx.ctx) == 3
    assert [m.id for m in ctx.view().by_role("user")] == ["u"]
    assert [m.text for m in ctx.view().by_role("system")] == ["Be brief."]
    with pytest.raises(UnknownRoleError, match="narrator"):
        ctx.view().by_role("narrator")
    tokens = ctx.view().tokens
    assert not ctx.edit.is_full()
    assert not ctx.edit.is_full(max_tokens=400 - tokens)
    assert ctx.edit.is_full(max_tokens=401 - tokens)
