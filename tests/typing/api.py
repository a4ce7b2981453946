"""Typed use of the public API: read by mypy and pyright, never run."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import assert_type

from ctxfold import (
    AgentContext,
    Event,
    HistoryCompacted,
    MemoryStore,
    Message,
    MessagesTrigger,
    OpenAIChatBackend,
    Policy,
    Prices,
    RatioTrigger,
    Reply,
    ScriptedBackend,
    SqlStore,
    Strategy,
    Summarizer,
    TokensTrigger,
    ToolSpec,
    TurnsTrigger,
    history_tools,
    user,
)
from ctxfold.adapters.history_tools import HistoryTool
from ctxfold.compaction.strategy import CompactionInput, Plan, Skip
from ctxfold.engine.archive import Hit
from ctxfold.engine.engine import Added
from ctxfold.engine.erase import Erasure
from ctxfold.engine.fit import Window
from ctxfold.errors import StrategyError
from ctxfold.events import CompactionProposal
from ctxfold.history.records import GoalSet
from ctxfold.inspect.explain import Explanation, MessageExplanation
from ctxfold.inspect.report import Inspection
from ctxfold.policy.triggers import AllOf, AnyOf, ColdCacheTrigger, EconomicTrigger
from ctxfold.session.context import SessionUsage, aload_snapshot, load_snapshot
from ctxfold.stream import StreamEvent


def sync_use(path: Path) -> None:
    backend = OpenAIChatBackend(provider="generic", model="lookup", base_url="http://127.0.0.1:9/v1", api_key="x")
    with AgentContext(
        backend, session_id="s", store="sqlite:///chat.db", context_window=8_000, system="Be brief."
    ) as ctx:
        assert_type(ctx.send("hello", max_tokens=10, context_window=4_000, tools=(ToolSpec("look"),)), Reply)
        for event in ctx.send_stream("hello", on_abort="keep_partial"):
            assert_type(event, StreamEvent)
        assert_type(ctx.add([user("a", id="1")]), Added)
        assert_type(ctx.window(recall=True), Window)
        assert_type(ctx.window().messages, tuple[Message, ...])
        assert_type(ctx.usage(), SessionUsage)
        assert_type(ctx.explain(), Explanation)
        assert_type(ctx.archive.inspect(), Inspection)
        assert_type(ctx.archive.inspect().page(), str)
        assert_type(ctx.erasure.erase("1", "#2"), Erasure)
        assert_type(ctx.erasure.erase_older_than(timedelta(days=30)), Erasure)
        assert_type(ctx.erasure.erase_session(), Erasure)
        assert_type(ctx.erasure.erase_owner(), bool)
        assert_type(ctx.archive.forks(), tuple[str, ...])
        assert_type(ctx.archive.explain("1"), MessageExplanation)
        assert_type(ctx.archive.get("1"), Message)
        assert_type(ctx.edit.update(0, user("b", id="1")), Message)
        assert_type(ctx.edit.remove(0), tuple[Message, ...])
        assert_type(ctx.edit.retain("user"), tuple[Message, ...])
        assert_type(ctx.files.export_jsonl(path, zone="window", native=True), int)
        assert_type(ctx.files.import_jsonl(path), int)
        ctx.files.save_snapshot(path)
        assert_type(load_snapshot(path, backend, session_id="new"), AgentContext)
        assert_type(ctx.search("words", limit=3), tuple[Hit, ...])
        assert_type(ctx.archive.search_owner("words", 3, sessions=["a"], roles=["user"]), tuple[Hit, ...])
        assert_type(ctx.restore("1", "#2"), tuple[Message, ...])
        assert_type(ctx.fork("other", at="1"), AgentContext)
        assert_type(ctx.set_policy(auto_compact=False), Policy)
        assert_type(ctx.policy.auto_compact, bool)
        ctx.edit.set_goal("book a hotel")
        assert_type(ctx.service.summarize_tool_pairs() + ctx.service.apply_tool_pair_summaries(), int)
        ctx.edit.set_subgoal(None)
        assert_type(ctx.edit.goal(), GoalSet)
        assert_type(ctx.messages(audience="user"), tuple[Message, ...])
        assert_type(ctx.add("a note", visibility="user"), Added)
        assert_type(history_tools(ctx), tuple[HistoryTool, ...])
        ctx.edit.on_compaction(shortened)()
        assert_type(ctx.at("other", owner="me"), AgentContext)
        ctx.pin("1", "2")
        ctx.compact()
        ctx.undo()
        stop = ctx.subscribe(heard)
        stop()


async def async_use() -> None:
    async with AgentContext(ScriptedBackend(["hi"]), store=MemoryStore(), context_window=100) as ctx:
        assert_type(await ctx.asend("hello"), Reply)
        async for event in ctx.asend_stream("hello"):
            assert_type(event, StreamEvent)
        assert_type(await ctx.aadd("x"), Added)
        assert_type(await ctx.awindow(), Window)
        await ctx.apin("1")
        assert_type(await ctx.files.aexport_jsonl("all.jsonl"), int)
        await ctx.files.asave_snapshot("whole.json")
        assert_type(await aload_snapshot("whole.json"), AgentContext)
        await ctx.acompact()
        await ctx.aundo()


def shortened(offer: CompactionProposal) -> tuple[str, tuple[Message, ...]]:
    return offer.summary[:100], offer.kept


def heard(event: Event) -> None:
    if isinstance(event, HistoryCompacted):
        assert_type(event.problems, tuple[str, ...])


def stores() -> None:
    with SqlStore("sqlite://") as store:
        AgentContext(store=store, context_window=100, hard_ratio=0.8)


class KeepTen:
    name = "keep_ten"

    def plan(self, case: CompactionInput) -> Plan | Skip:
        old = case.older_than(10)
        return case.drop(old, "more than ten messages") if old else Skip("ten messages or fewer")


class DropOld:
    def should_summarize(self, history: list[Message]) -> bool:
        return len(history) > 10

    def summarize(self, history: list[Message]) -> list[Message]:
        return history[-10:]


def strategies() -> None:
    strategy: Strategy = KeepTen()
    summarizer: Summarizer = DropOld()
    trigger = AnyOf(triggers=(AllOf(triggers=(TurnsTrigger(at=5), TokensTrigger(at=500))), MessagesTrigger(at=50)))
    try:
        AgentContext(context_window=100, strategy=strategy, trigger=trigger)
        AgentContext(context_window=100, strategy=summarizer, trigger=EconomicTrigger(prices=Prices.relative()))
        AgentContext(
            context_window=100, strategy="truncate", trigger=AnyOf(triggers=(RatioTrigger(), ColdCacheTrigger()))
        )
    except StrategyError:
        return
