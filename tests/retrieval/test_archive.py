"""The archive: search over everything, originals brought back, forks, references that keep their meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctxfold import (
    AgentContext,
    ContextOverflowError,
    MemoryStore,
    Message,
    MessageError,
    SqlStore,
    assistant,
    tool_result,
    user,
)
from ctxfold.errors import MessageNotFoundError, SessionExistsError
from ctxfold.events import MessagesRestored
from tests.properties.machine import assert_legal
from tests.support.driven import Driven, call, context, scripted, tool_round, turns
from tests.support.postgres_schema import fresh_schema

Make = Callable[..., Driven]


def test_of_equal_hits_the_newer_comes_first(make: Make) -> None:
    ctx = make()
    ctx.add([user("The red box is open.", id=f"u{number}") for number in range(3)])
    assert [hit.reference for hit in ctx.search("red box")] == ["#3", "#2", "#1"]


SAID = [
    "The door code of the north entrance is 4711.",
    "Deploy with `make release` and tag it v2.3.1 afterwards.",
    "My sister Amélie moves to Reykjavík in October.",
    "The invoice INV-2024-0093 was paid twice by mistake.",
    "Always answer me in formal German, please.",
    "The staging database listens on port 6543.",
    "I am allergic to peanuts and shellfish.",
    "The contract with Nakamura ends on 2027-03-31.",
    "张伟负责支付系统的迁移工作。",
    "会议改到下周三下午三点，在上海办公室。",
    "李娜的航班号是 CA1837，明天到北京。",
    "数据库的备份每天凌晨两点开始。",
    "田中さんは来週の火曜日に大阪へ出張します。",
    "会議室の予約は三階の第二会議室です。",
    "佐藤の電話番号は変わりました。",
    "サーバーの再起動は金曜日の夜に行います。",
    "王芳 prefers tea, 陈静 prefers coffee.",
    "김민수 씨가 새 프로젝트를 맡습니다.",
    "The flaky test is tests/wire/test_fuzz.py::test_cut.",
    "Rollback needs approval by Okonkwo and by finance.",
]
ASKED = [
    "door code north entrance",
    "how do we deploy a release",
    "where does Amélie move",
    "INV-2024-0093",
    "which language should answers be in, formal",
    "staging port",
    "peanut allergy",
    "Nakamura contract end",
    "张伟",
    "会议在哪里，上海",
    "李娜 航班",
    "备份",
    "田中",
    "会議室",
    "佐藤",
    "再起動",
    "陈静",
    "김민수",
    "test_fuzz.py",
    "who approves a rollback",
]


def said(place: int) -> list[Message]:
    filler = "word " * 20
    return [user(f"{SAID[place]} {filler}", id=f"s{place}"), assistant(f"Noted {place}. {filler}", id=f"n{place}")]


def fill(ctx: Any, half: int = 20) -> None:
    """Everything said, the older half compacted, the rest still visible."""
    for place in range(half):
        ctx.add(said(place))
    ctx.compact(force=True)
    for place in range(half, len(SAID)):
        ctx.add(said(place))


def ranking(ctx: Any) -> list[list[tuple[str, str, float]]]:
    return [[(h.message_id, h.reference, h.score) for h in ctx.search(query)] for query in ASKED]


def stores(tmp_path: Path) -> dict[str, Any]:
    return {"memory": MemoryStore(), "sqlite": SqlStore(f"sqlite:///{tmp_path}/a.db")}


@pytest.mark.parametrize("half", [20, 10])
def test_search_finds_words_of_every_script(make: Make, half: int) -> None:
    ctx = make(context_window=3_000)
    fill(ctx, half)
    assert ctx.usage().compactions
    found = [ctx.search(query) for query in ASKED]
    first = sum(bool(hits) and hits[0].message_id == f"s{place}" for place, hits in enumerate(found))
    assert first / len(ASKED) >= 0.9, first
    assert all(any(h.message_id == f"s{place}" for h in hits) for place, hits in enumerate(found))
    assert found[0][0].excerpt == SAID[0]
    assert ctx.archive.get(found[0][0].reference) == said(0)[0]


def test_every_store_ranks_alike(tmp_path: Path, postgres_url: str) -> None:
    with fresh_schema(postgres_url) as url:
        made = [context(store=s, context_window=3_000) for s in (MemoryStore(), f"sqlite:///{tmp_path}/a.db", url)]
        for ctx in made:
            fill(ctx)
        one, *others = [ranking(ctx) for ctx in made]
        assert any(one)
        assert all(other == one for other in others)
        for ctx in made:
            ctx.close()


def test_search_finds_excerpts_calls_and_nothing(make: Make) -> None:
    ctx = make(context_window=2_000)
    big = "A line of output.\n" * 300 + "The needle is 77-B.\n" + "Another line.\n" * 300
    ctx.add([user("go", id="g"), assistant("", id="t", calls=[call("c", '{"city": "Kyoto"}')])])
    ctx.add([tool_result("c", big, id="r"), assistant("done", id="z")])
    assert [h.message_id for h in ctx.search("needle 77-B")] == ["r"]
    assert "needle is 77-B" in ctx.archive.get(ctx.search("needle")[0].reference).text
    assert ctx.search("Kyoto")[0].excerpt == 'look({"city": "Kyoto"})'
    assert ctx.search("nothing of the kind") == ()
    assert ctx.search("") == ctx.search("needle", limit=0) == ()
    assert ctx.window(recall=True, question="Where is the needle?").recalled, "recall finds it before any compaction"


def test_search_sees_a_message_once(make: Make) -> None:
    ctx = make(context_window=3_000)
    fill(ctx)
    ctx.undo()
    hits = ctx.search("door code north entrance")
    assert [h.message_id for h in hits].count("s0") == 1
    assert len(ctx.search("word", limit=3)) == 3


# restore


def test_restore_brings_originals_back_at_the_tail(make: Make) -> None:
    ctx = make(context_window=2_000)
    events: list[Any] = []
    ctx.subscribe(events.append)
    ctx.add([*turns(2), user("go", id="g"), *tool_round("t", calls=2), assistant("ok", id="z"), *turns(10, start=2)])
    ctx.compact(force=True)
    before = ctx.view()
    gone = ctx.archive.explain("t-r1")
    assert gone.where == "compacted"
    assert gone.summaries == (before.compressed[0].id,)
    back = ctx.restore("t-r1", "u0", "u11")
    assert [m.id for m in back] == ["u0", "t-a", "t-r0", "t-r1"], "with its round; what is visible is left alone"
    assert ctx.view().messages[-4:] == back == (turns(1)[0], *tool_round("t", calls=2))
    assert_legal(ctx.view().messages)
    assert [e.messages for e in events if isinstance(e, MessagesRestored)] == [back]
    assert ctx.restore("u0") == ()
    assert ctx.archive.get(gone.reference) == ctx.archive.get("t-r1")
    assert "u0" not in ctx.window(recall=True, question="question 0").recalled
    ctx.undo()
    assert ctx.view().messages == before.messages
    ctx.restore("u0")
    ctx.add(turns(8, start=30, words=60))
    assert ctx.archive.get("u0") == turns(1)[0]
    with pytest.raises(MessageNotFoundError, match="never"):
        ctx.restore("never")


@pytest.mark.parametrize("updated", ["t-a", "t-r0"])
def test_restore_keeps_a_round_in_order_whichever_message_was_updated(make: Make, updated: str) -> None:
    ctx = make(context_window=2_000)
    round_of_two = tool_round("t", calls=2)
    ctx.add([*turns(1), user("go", id="g"), *round_of_two, assistant("ok", id="z"), *turns(1, start=1)])
    place = [e.id for e in ctx.view().live].index(updated)
    ctx.edit.update(place, ctx.view().live[place].message)
    ctx.add(turns(10, start=2))
    ctx.compact(force=True)
    assert [m.id for m in ctx.restore("t-r1", "u0")] == ["u0", *(m.id for m in round_of_two)]
    assert_legal(ctx.view().messages)


def test_restore_finds_the_call_of_a_result_behind_many_records(make: Make) -> None:
    """Notes for the user alone stand within the round; the log is read in pages."""
    ctx = make(context_window=2_000)
    asked, result = tool_round("t")
    ctx.add([user("look", id="q"), asked])
    for n in range(600):
        ctx.add([user(f"note {n}", id=f"n{n}")], visibility="user")
    ctx.add([result, assistant("done", id="d"), *turns(20)])
    assert ctx.compact(force=True).compacted
    assert [m.id for m in ctx.restore(result.id)] == [asked.id, result.id]
    assert_legal(ctx.view().messages)


def test_restore_puts_a_pruned_output_back_in_place(make: Make) -> None:
    ctx = make(context_window=4_000)
    for i in range(6):
        ctx.add([user(f"q{i}", id=f"u{i}"), *tool_round(f"t{i}", "result " * 250), assistant("ok", id=f"z{i}")])
    excerpts = [e.id for e in ctx.view().live if e.shown_seq]
    places = [e.id for e in ctx.view().live]
    assert excerpts
    back = ctx.restore(excerpts[0])
    assert [m.text for m in back] == ["result " * 250]
    assert [e.id for e in ctx.view().live] == places
    assert excerpts[0] not in [e.id for e in ctx.view().live if e.shown_seq]
    ctx.undo()
    assert excerpts == [e.id for e in ctx.view().live if e.shown_seq]


def test_restore_checks_the_budget_first(make: Make) -> None:
    ctx = make(context_window=2_000)
    ctx.add(turns(12, words=60))
    before = ctx.view()
    assert before.compressed
    with pytest.raises(ContextOverflowError, match="the session would need"):
        ctx.restore(*[m.id for m in turns(10)], *["u0"] * 2)
    assert ctx.view().messages == before.messages


# known holes


def test_the_newest_version_is_what_is_archived(make: Make) -> None:
    ctx = make(context_window=2_000)
    ctx.add(turns(12))
    ctx.edit.update(0, user("corrected once", id="x"))
    ctx.edit.update(0, user("corrected twice", id="x"))
    ctx.add(turns(1))  # a caller's own list still has the first version
    ctx.compact(force=True)
    assert ctx.archive.explain("u0").where == "compacted"
    assert ctx.archive.get("u0").text == "corrected twice"
    assert ctx.search("corrected")[0].message_id == "u0"
    assert ctx.restore("u0")[0].text == "corrected twice"
    for _ in range(3):
        ctx.undo()
    assert ctx.archive.get("u0").text == "corrected once"


def test_what_was_removed_may_come_again(make: Make) -> None:
    store = MemoryStore()
    ctx = make(store=store)
    ctx.add(turns(3))
    ctx.edit.pop()
    ctx.edit.remove(0)
    assert ctx.archive.explain("u0").where == "removed"
    again = context(store=store)  # opened anew: the state is folded from the log
    again.add([user("other words", id="u0"), turns(3)[-1]])
    assert [m.id for m in again.view().messages] == ["a0", "u1", "a1", "u2", "u0", "a2"]
    assert again.archive.get("u0").text == "other words"
    assert again.add(user("other words", id="u0")).messages == ()
    with pytest.raises(MessageError, match="other content"):
        again.add(user("once more other words", id="u0"))
    ctx.edit.insert(0, turns(1)[0])
    assert ctx.view().messages[-2].id == "u0"


# forks


def test_a_fork_goes_on_from_a_message(make: Make) -> None:
    ctx = make(scripted(*["fine"] * 9), context_window=2_000, system="Be brief.")
    ctx.add([*turns(2), user("go", id="g"), *tool_round("t", "large " * 900), assistant("ok", id="z")])
    ctx.pin("u0")
    ctx.add(turns(10, start=2))
    ctx.compact(force=True)
    ctx.send(user("question 12", id="u12"))
    whole = ctx.fork("whole")
    assert whole.view().messages == ctx.view().messages
    assert [b.id for b in whole.explain().blocks if b.why == "pinned"] == ["u0"]
    found = whole.search("large output question 5")
    assert {hit.session for hit in found} == {"whole"}
    assert [replace(hit, session=ctx.session) for hit in found] == list(ctx.search("large output question 5"))
    past = ctx.fork("past", at="u5")
    assert [m.id for m in past.view().messages][-3:] == ["u4", "a4", "u5"], "from before the compaction"
    assert [h.message_id for h in past.search("large")] == ["t-r0"], "what is too large is searchable there"
    asked = ctx.fork("asked", at="u12")
    assert asked.view().messages[-1].id == "u12"
    assert ctx.fork("round", at="t-a").view().messages[-1].id == "g", "half a tool round is not taken along"
    for forked in (whole, past):
        for seq in range(1, 12):
            try:
                expected = ctx.archive.get(f"#{seq}")
            except MessageNotFoundError:
                continue
            assert forked.archive.get(f"#{seq}") == expected
    past.send("and now")
    assert past.owner == ctx.owner
    assert "and now" not in [m.text for m in ctx.view().messages]
    with pytest.raises(SessionExistsError, match="exists already"):
        ctx.fork("past")


def test_a_fork_does_not_know_later_undos_or_other_turns(make: Make) -> None:
    ctx = make(context_window=2_000)
    ctx.add(turns(12))
    ctx.compact(force=True)
    ctx.add(turns(1, start=12))
    ctx.undo()
    assert not ctx.view().compressed
    assert ctx.fork("then", at="a12").view().compressed
    other = ctx.at(ctx.session)
    other.add([user("mine", id="o"), assistant("", id="o2", calls=[call("c")])])
    ctx.add(turns(1, start=13))
    assert "o" not in [m.id for m in ctx.fork("alone", at="a13").view().messages]
    shown = [m.id for m in ctx.fork("all").view().messages]
    assert shown[-4:] == ["a12", "o", "u13", "a13"], (
        "with its whole log, an open turn's finished part comes along, at its place"
    )


def test_names(tmp_path: Path) -> None:
    made = stores(tmp_path)
    for store in made.values():
        with AgentContext(store=store, context_window=100) as ctx:
            ctx.add("hello")
            assert ctx.fork("b").messages() == ctx.messages()
        store.close()
