"""Live status: what a subscriber hears while a compaction runs, and the gauge of the window."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxfold import (
    AgentContext,
    BackendError,
    CompactionError,
    CompactionHeld,
    HistoryCompacted,
    MessagesTrigger,
    Prices,
    RatioTrigger,
    ScriptedBackend,
    TokensTrigger,
    TurnsTrigger,
)
from ctxfold.events import CompactionProgress, CompactionStarted, WindowGauge
from ctxfold.policy.triggers import AllOf, AnyOf, EconomicTrigger

STATUS = (CompactionStarted, CompactionProgress, HistoryCompacted, CompactionHeld)
LONG = "The report on the harbour says that berth {} needs new planks before the winter comes. "


def talking(summaries: list[Any], **settings: Any) -> tuple[AgentContext, list[Any]]:
    backend, summarizer = ScriptedBackend(["Noted."] * 200), ScriptedBackend(summaries)
    ctx = AgentContext(backend, **{"context_window": 2_000, "summarizer": summarizer, **settings})
    events: list[Any] = []
    ctx.subscribe(events.append)
    return ctx, events


def fill(ctx: AgentContext, turns: int = 60) -> None:
    for number in range(turns):
        ctx.send(LONG.format(number) * 2)


def test_each_compaction_starts_and_ends() -> None:
    ctx, events = talking(["The user lists berths that need new planks."] * 50)
    with ctx:
        fill(ctx)
    status = [e for e in events if isinstance(e, STATUS)]
    assert status[0].__class__ is CompactionStarted
    kinds = [type(e) for e in status]
    assert kinds[:3] == [CompactionStarted, CompactionProgress, HistoryCompacted]
    assert kinds.count(CompactionStarted) == kinds.count(HistoryCompacted) > 1
    started, ended = status[0], status[2]
    assert started.asks_model
    assert not started.background
    assert started.messages > 10
    assert ended.tokens_before > started.tokens > ended.tokens_before - ended.tokens_after
    assert (status[1].calls_done, status[1].calls_needed) == (1, 1)


def test_the_start_is_heard_before_the_summariser_is_asked() -> None:
    order: list[str] = []

    def summary(request: Any) -> str:
        order.append("asked")
        return "The user lists berths that need new planks."

    ctx, _ = talking([summary] * 50)
    ctx.subscribe(lambda e: order.append(type(e).__name__) if isinstance(e, STATUS) else None)
    with ctx:
        fill(ctx, 30)
    assert order[:4] == ["CompactionStarted", "asked", "CompactionProgress", "HistoryCompacted"]


def test_a_long_span_reports_how_far_it_is() -> None:
    """One call for each part of a span that is larger than the summariser's window, then one for the whole."""
    ctx, events = talking(["Many berths need new planks."] * 50, context_window=20_000, auto_compact=False)
    with ctx:
        fill(ctx, 100)
        ctx.set_policy(context_window=3_000, reply_reserve_tokens=600)
        ctx.compact(force=True)
        calls = ctx.usage().summary_calls
    progress = [(e.calls_done, e.calls_needed) for e in events if isinstance(e, CompactionProgress)]
    assert len(progress) > 1
    assert progress == sorted(progress)
    assert all(done <= needed for done, needed in progress)
    assert progress[-1] == (calls, calls)


def test_a_compaction_that_fails_is_heard_to_end() -> None:
    ctx, events = talking([], strategy="summarize", probe=True)
    with ctx:
        ctx.edit.on_compaction(lambda proposal: ("  ", proposal.kept))  # refused: the original proposal is written
        fill(ctx, 40)
    kinds = [type(e) for e in events if isinstance(e, STATUS)]
    assert kinds.count(CompactionStarted) == kinds.count(HistoryCompacted) + kinds.count(CompactionHeld)


def test_a_store_that_fails_ends_it_too() -> None:
    class Broken(BaseException):
        pass

    def broken(request: Any) -> str:
        raise Broken

    ctx, events = talking([broken])
    with pytest.raises(Broken):
        fill(ctx)
    assert [type(e) for e in events if isinstance(e, STATUS)] == [CompactionStarted, CompactionHeld]


@pytest.mark.parametrize("fails", [True, False])
def test_on_demand(fails: bool) -> None:
    answer: Any = BackendError("down", kind="server", status=500) if fails else "Berths need planks."
    ctx, events = talking([answer] * 4, max_summary_calls=4, auto_compact=False)
    with ctx:
        fill(ctx, 12)
        assert [e for e in events if isinstance(e, STATUS)] == []
        ctx.compact(force=True)
        kinds = [type(e) for e in events if isinstance(e, STATUS) and not isinstance(e, CompactionProgress)]
        assert kinds == [CompactionStarted, HistoryCompacted]
        with pytest.raises(CompactionError):
            ctx.compact(force=True)


# the gauge


def test_the_gauge_is_told_with_each_request_and_on_demand() -> None:
    ctx, events = talking([], context_window=2_000, summarizer=None)
    with ctx:
        fill(ctx, 5)
        gauges = [e for e in events if isinstance(e, WindowGauge)]
        assert len(gauges) == 5
        assert [g.used_tokens for g in gauges] == sorted({g.used_tokens for g in gauges})
        now = ctx.explain().gauge
        assert now.used_tokens == ctx.usage().window_tokens
        assert now.budget_tokens == ctx.policy.budget_tokens == 1_600
        assert now.room_tokens == 1_600 - now.used_tokens
        assert now.compacts_at_tokens == 1_440  # hard_ratio
        assert now.until_compaction_tokens == 1_440 - ctx.view().tokens  # the reply to it counts, too
        assert f"{now.room_tokens:,} tokens left, {now.until_compaction_tokens:,} until the next compaction" in str(now)
        assert now.forecast in str(ctx.explain())
        assert now.forecast in ctx.explain()._repr_html_()
        assert ctx.explain().to_dict()["gauge"]["forecast"] == now.forecast


def test_the_gauge_comes_true() -> None:
    """The compaction comes with the turn that passes the size which the gauge has named, and not before."""
    ctx, events = talking(["The user lists berths."] * 50)
    with ctx:
        for number in range(40):
            before = ctx.explain().gauge
            ctx.send(LONG.format(number) * 2)
            compacted = any(isinstance(e, HistoryCompacted) for e in events)
            grown = [e for e in events if isinstance(e, WindowGauge)][-1].used_tokens
            assert before.until_compaction_tokens is not None
            if compacted:
                assert grown + 10 >= before.compacts_at_tokens
                return
            assert grown < before.compacts_at_tokens
    raise AssertionError("no compaction came")


async def test_the_gauge_where_compaction_is_off() -> None:
    ctx, _ = talking([], auto_compact=False)
    async with ctx:
        await ctx.asend("Hello.")
        gauge = (await ctx.aexplain()).gauge
        assert gauge.compacts_at_tokens is gauge.until_compaction_tokens is None
        assert str(gauge).endswith("compaction is off")


def test_a_trigger_that_counts_turns_leaves_the_budget() -> None:
    ctx, _ = talking([], trigger=TurnsTrigger(at=50))
    with ctx:
        fill(ctx, 2)
        assert ctx.explain().gauge.compacts_at_tokens == ctx.policy.budget_tokens


SIZES = RatioTrigger(at=0.5), TokensTrigger(at=700), EconomicTrigger(prices=Prices.relative())
COUNTS = MessagesTrigger(at=1), MessagesTrigger(at=10_000), TurnsTrigger(at=1), TurnsTrigger(at=10_000)
LEAVES = st.sampled_from([*SIZES, *COUNTS])
TRIGGERS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, min_size=1, max_size=3).flatmap(
        lambda some: st.sampled_from([AllOf(triggers=tuple(some)), AnyOf(triggers=tuple(some))])
    ),
    max_leaves=5,
)


@given(TRIGGERS)
def test_the_gauge_and_the_trigger_agree(trigger: Any) -> None:
    """At the size that the gauge names the trigger is due, one token below it is not."""
    from ctxfold.policy.triggers import Signals, due_at, evaluate

    def signals(used: int) -> Signals:
        return Signals(
            used_tokens=used,
            budget_tokens=1_600,
            messages=20,
            turns=10,
            growth_tokens_per_call=30.0,
            size_after_tokens=300,
            summary_tokens=150,
            tail_ratio=0.2,
        )

    at = due_at(trigger, signals(800))
    if at is None:
        assert not evaluate(trigger, signals(1_600)).due
    else:
        assert evaluate(trigger, signals(at)).due
        assert at == 0 or not evaluate(trigger, signals(at - 1)).due
