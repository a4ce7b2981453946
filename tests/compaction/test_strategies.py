"""Strategies, built in and of one's own: what they leave, what they may not do, and when they are asked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctxfold import (
    CompactionHeld,
    ConfigError,
    HistoryCompacted,
    MemoryStore,
    Message,
    MessagesTrigger,
    Prices,
    RatioTrigger,
    TokensTrigger,
    TurnsTrigger,
    assistant,
    tool_result,
    user,
)
from ctxfold.compaction.strategy import CompactionInput, Plan, Skip
from ctxfold.errors import CtxWarning, NotEnoughHistoryError, StrategyError
from ctxfold.history.records import PolicyChanged, SessionKey
from ctxfold.policy.triggers import AllOf, AnyOf, ColdCacheTrigger, EconomicTrigger
from tests.properties.machine import assert_legal
from tests.support.driven import Driven, call, context, scripted, text_of, tool_round, turns
from tests.support.open_sessions import set_clock

Make = Callable[..., Driven]
DOCS = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCS, flags=re.S)


def watched(ctx: Any) -> list[Any]:
    events: list[Any] = []
    ctx.subscribe(lambda e: events.append(e) if isinstance(e, HistoryCompacted | CompactionHeld) else None)
    return events


def ids(ctx: Any) -> list[str]:
    return [m.id for m in ctx.view().messages]


class KeepTen:
    name = "keep_ten"

    def plan(self, case: CompactionInput) -> Plan | Skip:
        old = case.older_than(10)
        return case.drop(old, "more than ten messages") if old else Skip("ten messages or fewer")


class Newest:
    def __init__(self, change: Callable[[list[Message]], Any]) -> None:
        self.change = change

    def should_summarize(self, history: list[Message]) -> bool:
        return len(history) > 10

    def summarize(self, history: list[Message]) -> Any:
        return self.change(history)


# built in


def test_sliding_window_keeps_the_newest(make: Make) -> None:
    ctx = make(system="Be brief.", strategy="sliding_window", keep_last=6, context_window=8_000)
    events = watched(ctx)
    ctx.add(turns(10))
    assert ids(ctx)[1:] == [m.id for m in turns(10)][-6:]
    assert events[-1].fallback_level == "dropped"
    assert events[-1].facts_archived >= 0
    assert ctx.archive.get("u0").id == "u0"
    ctx.add([user("go", id="q"), *tool_round("t", calls=5), assistant("ok", id="z")])
    assert_legal(ctx.view().messages)
    assert "t-a" in ids(ctx), "a round is cut as a whole or not at all"


def test_truncate_says_how_many_went(make: Make) -> None:
    ctx = make(strategy="truncate", summarizer=scripted())
    ctx.add(turns(40))
    first = ctx.view().compressed[0].message.text
    gone = 80 - sum(e.message.kind == "message" for e in ctx.view())
    assert f"\n{gone} earlier messages are archived." in first
    few = make(strategy="truncate")
    few.add(turns(2))
    with pytest.raises(NotEnoughHistoryError):
        few.compact(force=True)


def test_summarize_leaves_tool_outputs_and_clear_tools_leaves_words(make: Make) -> None:
    def fill(ctx: Driven) -> list[Any]:
        events = watched(ctx)
        for i in range(8):
            ctx.add([user(f"q{i}", id=f"u{i}"), *tool_round(f"t{i}", "result " * 150), assistant("ok", id=f"z{i}")])
        return [e.strategy for e in events if isinstance(e, HistoryCompacted)]

    assert set(fill(make(context_window=2_000, strategy="summarize", summarizer=scripted(*["A talk."] * 9)))) == {
        "summarize"
    }
    cleared = make(context_window=2_000, strategy="clear_tools")
    assert set(fill(cleared)) == {"clear_tools"}
    assert "u0" in ids(cleared)
    cleared.ctx.add(turns(60, start=100))
    assert cleared.window().view.tokens <= 1_600, "where a request would not fit, a summary is made all the same"


@pytest.mark.parametrize("order", ["reactive", "task_aware", "mig", "subgoal", "subgoal_mig"])
def test_every_pruning_order_makes_room(make: Make, order: str) -> None:
    ctx = make(context_window=2_000, strategy="clear_tools", pruning_order=order)
    events = watched(ctx)
    for i in range(8):
        words = f"topic{i % 3} " * 200
        ctx.add([user(f"about topic{i % 3}", id=f"u{i}"), *tool_round(f"t{i}", words), assistant("ok", id=f"z{i}")])
    done = [e for e in events if isinstance(e, HistoryCompacted)]
    assert done
    assert ctx.view().tokens <= 2_000
    assert all(e.tokens_before - e.tokens_after >= 320 for e in done), "an epoch frees a fifth of the budget"


def test_an_output_that_was_asked_for_again_is_kept(make: Make) -> None:
    def look(name: str, what: str) -> list[Message]:
        called = assistant("", id=f"{name}-a", calls=[call(f"{name}-c", f'{{"what": "{what}"}}')])
        found = tool_result(f"{name}-c", f"{what} " * 210, id=f"{name}-r")
        return [user("look", id=f"{name}-u"), called, found, assistant("ok", id=f"{name}-z")]

    ctx = make(context_window=4_000, strategy="clear_tools")
    for number in range(10):
        ctx.add(look(f"old{number}", f"apples{number}"))
    assert ctx.archive.explain("old0-r").where == "excerpt"
    ctx.add(look("again", "apples0"))
    for number in range(8):
        ctx.add(look(f"new{number}", f"pears{number}"))
    assert ctx.archive.explain("again-r").where == "visible", "its first output was cut, and it was missed"
    assert ctx.archive.explain("new0-r").where == "excerpt", "newer, but nobody asked for it again"


# one's own


def strategies_of(store: MemoryStore) -> set[str]:
    key = SessionKey("default", store.sessions("default")[0])
    return {json.loads(r.body.policy)["strategy"] for r in store.read(key) if isinstance(r.body, PolicyChanged)}


def test_a_strategy_of_ones_own(make: Make) -> None:
    store = MemoryStore()
    ctx = make(store=store, context_window=8_000, strategy=KeepTen())
    ctx.add(turns(12))
    assert ids(ctx) == [m.id for m in turns(12)][-10:]
    assert ctx.policy.strategy == "keep_ten"
    with pytest.warns(CtxWarning, match="'keep_ten', which is not built in .*strategy=.*until then 'tiered' is used"):
        context(store=store, context_window=8_000)
    assert strategies_of(store) == {"keep_ten"}, "it stays in the log"
    assert ids(make(store=store, context_window=8_000, strategy=KeepTen())) == ids(ctx)
    other = make(store=store, context_window=8_000, strategy="tiered")
    assert ids(other) == ids(ctx)
    with pytest.raises(ConfigError, match="no_such"):
        context(strategy="no_such")


def test_a_summarizer_of_ones_own(make: Make) -> None:
    def newest(history: list[Message]) -> list[Message]:
        return [history[0], user("We spoke.", id=f"sum{len(history)}"), *history[-4:]]

    ctx = make(system="Be brief.", context_window=8_000, strategy=Newest(newest))
    events = watched(ctx)
    ctx.add(turns(6))
    assert [m.kind for m in ctx.view().messages] == ["message", "summary", *["message"] * 4]
    assert "We spoke." in text_of(ctx.view().messages)
    assert (events[-1].strategy, events[-1].fallback_level) == ("Newest", "given")
    ctx.add(turns(6, start=50))
    assert len(ctx.view()) == 6


def boom(_: list[Message]) -> list[Message]:
    raise RuntimeError("boom")


BROKEN: list[tuple[Callable[[list[Message]], Any], str]] = [
    (lambda h: h[1:], "must stay"),
    (lambda h: h[:-2], "must stay"),
    (lambda h: [h[0], *h[3:]], "separates a tool call"),
    (lambda h: [*h[:1], user("word " * 900, id="s"), *h[-4:]], "smaller than its source"),
    (lambda h: [h[0], *reversed(h[1:])], "order"),
    (lambda h: [h[0], replace(h[1], parts=()), *h[2:]], "changed the message"),
    (lambda h: [h[0], tool_result("x", "y", id="n"), *h[-2:]], "not text"),
    (lambda _: "nonsense", "list of messages"),
    (boom, "boom"),
]


@pytest.mark.parametrize(("change", "problem"), BROKEN, ids=[p for _, p in BROKEN])
def test_a_summarizer_that_breaks_its_contract_changes_nothing(make: Make, change: Any, problem: str) -> None:
    ctx = make(scripted("fine"), system="Be brief.", context_window=8_000, strategy=Newest(change))
    events = watched(ctx)
    ctx.add(
        [
            user("q", id="q"),
            *tool_round("t", calls=2),
            assistant("ok", id="z"),
            *turns(4),
            user("last", id="last"),
            assistant("x", id="y"),
        ]
    )
    before = ids(ctx)
    with pytest.raises(StrategyError, match=problem):
        ctx.compact(force=True)
    assert ids(ctx) == before
    assert problem in events[0].reason, "and the turn that asked it went through"
    assert ctx.send("hello").message.text == "fine"


def test_a_strategy_that_breaks_its_contract(make: Make) -> None:
    class Wrong:
        name = "wrong"

        def __init__(self, decide: Callable[[CompactionInput], Any]) -> None:
            self.plan = decide

    def covering(*wanted: str) -> Callable[[CompactionInput], Any]:
        return lambda case: case.drop([e for e in case.view if e.id in wanted], "because")

    for decide, problem in (
        (covering("t-r0"), "separates"),
        (covering("u3"), "must stay"),
        (lambda case: Plan("w", "", 9, 1, covered=(replace(case.view.live[0], seq=999),)), "not in the conversation"),
        (lambda _: Plan("w", "", 9, 1, shown=(user("forged", id="u1"), user("x", id="zz"))), "another message"),
        (lambda _: 1 / 0, "ZeroDivisionError"),
    ):
        ctx = make(context_window=8_000, strategy=Wrong(decide))
        ctx.add([*tool_round("t"), assistant("ok", id="z"), *turns(4)])
        before = ids(ctx)
        with pytest.raises(StrategyError, match=problem):
            ctx.compact(force=True)
        assert ids(ctx) == before
    with pytest.raises(StrategyError, match="not a strategy"):
        make(strategy=object())


def test_a_request_fits_whatever_the_strategy_does(make: Make) -> None:
    for own in (Newest(boom), Newest(lambda h: h)):
        backend = scripted(*["word " * 80] * 12)
        ctx = make(backend, strategy=own, summarizer=scripted(*["A talk."] * 30))
        for i in range(12):
            ctx.send(f"question {i}")
        assert ctx.usage().compactions > 0


# triggers


def test_triggers_of_the_policy_explain_themselves(make: Make) -> None:
    for trigger, why in (
        (TokensTrigger(at=600), "of 600 tokens"),
        (MessagesTrigger(at=20), "of 20 messages"),
        (TurnsTrigger(at=10), "of 10 turns"),
        (AllOf(triggers=(TurnsTrigger(at=5), TokensTrigger(at=500))), " and "),
        (EconomicTrigger(prices=Prices.relative()), "cheapest"),
    ):
        ctx = make(
            context_window=8_000,
            trigger=trigger,
            tail_ratio=0.05,
            summary_tokens=64,
            summarizer=scripted(*["A talk."] * 60),
        )
        events = watched(ctx)
        for i in range(120):
            ctx.add(turns(1, start=i, words=20))
        done = [e for e in events if isinstance(e, HistoryCompacted)]
        assert done, trigger
        assert why in done[0].reason
        assert all(e.tokens_before - e.tokens_after >= min(0.2 * e.tokens_before, 256) for e in done)
    with pytest.raises(ConfigError, match="gpt-x"):
        context(trigger=EconomicTrigger(prices="gpt-x"))


class Watch:
    def __init__(self) -> None:
        self.at = 1_000_000.0

    def now_s(self) -> float:
        return self.at


COLD = ColdCacheTrigger(idle_s=300, min_ratio=0.2)


@pytest.mark.parametrize("trigger", [COLD, AnyOf(triggers=(RatioTrigger(at=0.9), COLD))])
def test_a_cold_cache_is_used_before_the_next_turn(make: Make, trigger: Any) -> None:
    backend = scripted(*["reply " * 30] * 30)
    ctx = make(
        backend,
        context_window=4_000,
        trigger=trigger,
        summarizer=scripted(*["A talk."] * 9),
    )
    clock = Watch()
    set_clock(ctx.ctx, clock)
    events = watched(ctx)
    for i in range(15):
        clock.at += 20
        ctx.send(f"question {i} " + "word " * 20)
    assert events == []
    clock.at += 1_000
    ctx.send("and now?")
    assert [e.strategy for e in events] == ["summarize"]
    assert "idle for 1,000 of 300 s" in events[0].reason
    assert backend.requests[-1].messages[0].kind == "summary", "it is made before the request, not after"


# thrash


def test_ten_two_word_turns_cost_one_summary_call_at_most(make: Make) -> None:
    for trigger in (None, TokensTrigger(at=5), MessagesTrigger(at=2), TurnsTrigger(at=1)):
        seen = scripted(*["A talk."] * 20)
        ctx = make(context_window=8_000, trigger=trigger, summarizer=seen, cooldown_turns=0, keep_last=1)
        for i in range(10):
            ctx.add([user("two words", id=f"u{i}"), assistant("yes, sir", id=f"a{i}")])
        assert len(seen.requests) <= 1


def test_what_cannot_be_helped_is_tried_once_and_recovers(make: Make) -> None:
    store, seen = MemoryStore(), scripted(*["A talk."] * 20)
    ctx = make(store=store, summarizer=seen, system="rule " * 500, hard_ratio=0.5, soft_ratio=0.4)
    events = watched(ctx)
    for i in range(10):
        ctx.add([user("two words", id=f"u{i}"), assistant("yes, sir", id=f"a{i}")])
    assert len(seen.requests) <= 1
    assert 1 <= len([e for e in events if isinstance(e, CompactionHeld)]) <= 2
    assert "system, pins and the newest messages fill it" in events[0].reason
    wide = make(store=store, summarizer=seen, system="rule " * 500, context_window=4_000)
    more = watched(wide)
    wide.add(turns(60, start=100))
    assert isinstance(more[-1], HistoryCompacted)


def test_compactions_are_few(make: Make) -> None:
    ctx = make(context_window=2_000, summarizer=scripted(*["A talk."] * 99))
    events = watched(ctx)
    total = 0
    for i in range(150):
        ctx.add(turns(1, start=i))
        total += sum(e.tokens for e in list(ctx.view().live)[-2:])
    done = [e for e in events if isinstance(e, HistoryCompacted)]
    freed = min(e.tokens_before - e.tokens_after for e in done)
    assert freed >= 0.2 * 1_600
    assert len(done) <= -(-total // freed)


# docs


def test_the_examples_of_the_docs_run() -> None:
    assert len(EXAMPLES) == 6
    for example in EXAMPLES:
        names: dict[str, Any] = {}
        exec(compile(example, "strategies.md", "exec"), names)
        if "shorter" in names:  # a list without a session
            assert [m.id for m in names["shorter"][1:]] == ["a3", "q18", "a18", "q19", "a19"]
            continue
        with names["ctx"] as ctx:
            ctx.add(turns(40))
            before = len(ctx.view())
            if before == 81 or "summarize" in example.split("class")[0]:
                ctx.compact(force=True)
            assert len(ctx.view()) < 80
        lines = [x for x in example.splitlines() if x.strip() and not x.startswith(("from ", "import "))]
        assert len(lines) < 10


def test_relevance_decides_which_of_uniform_outputs_go(make: Make) -> None:
    """Step 7, D C13: all orders used to wait until every candidate was needed, and so cut the same."""
    cut: dict[str, set[int]] = {}
    for order in ("reactive", "task_aware", "mig", "subgoal", "subgoal_mig"):
        ctx = make(context_window=40_000, strategy="clear_tools", pruning_order=order)
        ctx.edit.set_goal("Find out who holds the gate key.")
        for number in range(60):
            topic = "the gate key and who holds it" if number < 4 else f"parcel {number} and where it lies"
            ctx.edit.set_subgoal(f"step {number // 10}")
            ctx.add(
                [
                    user(f"Look at {number}.", id=f"u{number}"),
                    *tool_round(f"t{number}", f"This is about {topic}. " * 55),
                ]
            )
            ctx.add(assistant("Seen.", id=f"s{number}"))
            if ctx.usage().compactions:
                break
        shown = {e.id: bool(e.shown_seq) for e in ctx.view().live if e.message.role == "tool"}
        cut[order] = {int(name[1:].split("-")[0]) for name, away in shown.items() if away}
        assert cut[order], order
    assert cut["reactive"] == set(range(len(cut["reactive"]))), "the oldest"
    assert not cut["task_aware"] & set(range(4)), "what the goal is about stays"
    assert not set(range(4)) <= cut["mig"], "one of them does, the others say the same"
    assert len({frozenset(ids) for ids in cut.values()}) >= 3
