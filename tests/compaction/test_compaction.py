"""When room is made, by whom, and what a failed attempt leaves: nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from ctxfold import (
    BackendError,
    CompactionHeld,
    ConfigError,
    HistoryCompacted,
    MemoryStore,
    Message,
    ScriptedBackend,
    assistant,
    system,
    tool_result,
    user,
)
from ctxfold.compaction.steps import choose_cut
from ctxfold.compaction.strategy import CompactionInput, Plan
from ctxfold.compaction.tool_outputs import excerpt, sized
from ctxfold.errors import NotEnoughHistoryError, StoreUnavailableError, StrategyError
from ctxfold.history.cuts import complete_prefix, kept, legal_cuts, round_of
from ctxfold.history.view import Entry
from ctxfold.policy.settings import policy_for
from ctxfold.protocols import BackendCapabilities
from ctxfold.tokens.text import MessageCounter
from tests.properties.machine import assert_legal
from tests.support.driven import COUNTER, Driven, call, context, scripted, text_of, tool_round, turns
from tests.support.open_sessions import opened
from tests.support.oracle import OracleSummarizer, fact, facts

Make = Callable[..., Driven]
MESSAGES = MessageCounter(COUNTER)
DOWN = BackendError("down", kind="server")


def entries(messages: list[Message], tokens: int = 10) -> list[Entry]:
    return [Entry(m.id, i + 1, m, tokens, number=i + 1) for i, m in enumerate(messages)]


def watched(ctx: Driven) -> list[Any]:
    events: list[Any] = []
    ctx.subscribe(lambda e: events.append(e) if isinstance(e, HistoryCompacted | CompactionHeld) else None)
    return events


# cuts


def test_rounds_are_never_cut() -> None:
    whole = entries([user("q", id="u"), *tool_round("t", calls=2), assistant("ok", id="z")])
    assert legal_cuts(whole) == {0, 1, 4, 5}
    assert [round_of(whole, i) for i in range(5)] == [(0, 1), (1, 4), (1, 4), (1, 4), (4, 5)]
    assert complete_prefix(whole[:3]) == 1
    assert legal_cuts([]) == {0}
    assert kept(whole, pins={"t-r1"}) == {"u", "t-a", "t-r0", "t-r1"}
    assert kept(entries([system("s", id="s"), user("a", id="a"), user("b", id="b")]), pins=()) == {"s", "b"}


def test_the_cut_keeps_what_it_can() -> None:
    rules = policy_for(1_000)  # budget 800
    plain = entries(turns(20))
    assert choose_cut(plain, rules, keep_more=False) == 34, "the last six"
    assert choose_cut(plain, rules) < 34, "more where it fits"
    assert choose_cut(entries(turns(2)), rules, keep_more=False) == 0
    assert choose_cut(entries(turns(20), tokens=100), rules) >= 36, "fewer where six do not fit half"
    assert choose_cut([], rules) == 0
    opened = entries([*turns(1), user("q", id="u"), assistant("", id="t", calls=[call("c")])], tokens=500)
    assert choose_cut(opened, rules) in legal_cuts(opened)


# tiers


def test_nothing_happens_below_the_trigger(make: Make) -> None:
    ctx = make()
    events = watched(ctx)
    ctx.add(turns(8))
    assert events == []
    assert ctx.usage().compactions == 0


def test_soft_tier_replaces_tool_outputs(make: Make) -> None:
    ctx = make(context_window=2_000)
    events = watched(ctx)
    for i in range(5):
        ctx.add([user(f"q{i}", id=f"u{i}"), *tool_round(f"t{i}", "result " * 150), assistant("ok", id=f"z{i}")])
    assert {e.strategy for e in events} == {"clear_tools"}
    assert events[0].tokens_after < events[0].tokens_before
    view = ctx.view().messages
    assert_legal(view)
    first = next(m for m in view if m.id == "t0-r0")
    assert "archived as #3" in first.text
    assert ctx.archive.get("t0-r0").text == "result " * 150
    assert ctx.archive.explain("t0-r0").where == "excerpt"
    assert view[-2].text == "result " * 150, "the newest outputs stay"


def test_hard_tier_summarises_and_repeats_facts(make: Make) -> None:
    oracle = OracleSummarizer(MESSAGES)
    ctx = make(context_window=2_000, summarizer=oracle)
    events = watched(ctx)
    for i in range(30):
        ctx.add(
            [user(f"{fact(f'code {i} is X{i}')} " + "word " * 30, id=f"u{i}"), assistant("noted " * 20, id=f"a{i}")]
        )
    done = [e for e in events if isinstance(e, HistoryCompacted)]
    assert {(e.strategy, e.fallback_level) for e in done} == {("summarize", "model")}
    assert all(e.tokens_after < e.tokens_before and not e.problems for e in done)
    assert facts(text_of(ctx.view().messages)) == [f"code {i} is X{i}" for i in range(30)]
    assert all(r.thinking is False for r in oracle.requests)
    assert ctx.view().tokens <= 1_600


def test_truncate_asks_no_model(make: Make) -> None:
    ctx = make(summarizer=scripted(), strategy="truncate")
    events = watched(ctx)
    ctx.add(turns(30))
    assert {e.fallback_level for e in events} == {"truncate"}
    assert ctx.view().tokens <= 800


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (DOWN, "down"),
        ("", "no text"),
        ("word " * 3_000, "the limit is"),
        (lambda _: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_the_ladder_ends_without_a_model(make: Make, reply: Any, problem: str) -> None:
    ctx = make(summarizer=scripted(*[reply] * 40))
    events = watched(ctx)
    ctx.add([user("The door code is 4711.", id="d"), assistant("Noted.", id="n"), *turns(30)])
    done = [e for e in events if isinstance(e, HistoryCompacted)]
    assert {e.fallback_level for e in done} == {"extractive"}
    assert len(done[0].problems) == 1, "without tool outputs there is nothing to leave out"
    assert all(problem in p for p in done[0].problems)
    assert "4711" in text_of(ctx.view().messages)


def test_second_rung_leaves_tool_outputs_out(make: Make) -> None:
    def picky(request: Any) -> Any:
        return DOWN if "result result" in request.messages[-1].text else "short"

    ctx = make(summarizer=scripted(*[picky] * 20))
    events = watched(ctx)
    ctx.add([user("q", id="q"), *tool_round("t", "result " * 40), assistant("ok", id="z"), *turns(10)])
    ctx.compact(force=True)
    assert events[-1].fallback_level == "model, tool outputs left out"
    assert len(events[-1].problems) == 1


def test_one_user_message_and_sixty_tool_rounds(make: Make) -> None:
    replies: list[Any] = [assistant("", id=f"m{i}", calls=[call(f"c{i}")]) for i in range(60)]
    backend = ScriptedBackend([*replies, "done"])
    ctx = make(backend, context_window=1_500, summarizer=OracleSummarizer(MESSAGES), system="Be brief.")
    ctx.send(user(f"The task. {fact('task 1')}", id="task"))
    for i in range(60):
        ctx.send(tool_result(f"c{i}", f"{fact(f'step {i}')} " + "found " * 25, id=f"r{i}"))
    assert ctx.usage().compactions > 0
    for request in backend.requests:
        assert_legal(request.messages)
        assert "task" in [m.id for m in request.messages]
        assert MESSAGES.count_all(request.messages) <= 1_200
    newest = text_of(backend.requests[-1].messages)
    assert {"step 59", "task 1"} <= set(facts(newest))
    assert ctx.view().messages[-1].text == "done"
    assert dict(ctx.usage().prefix.breaks).keys() <= {"compaction"}


def test_old_outputs_of_the_asking_turn_give_way_first(make: Make) -> None:
    replies: list[Any] = [assistant("", id=f"m{i}", calls=[call(f"c{i}")]) for i in range(12)]
    ctx = make(ScriptedBackend(replies), context_window=2_000, summarizer=scripted())
    events = watched(ctx)
    ctx.send("go")
    for i in range(11):
        ctx.send(tool_result(f"c{i}", "found " * 150, id=f"r{i}"))
    assert events[0].strategy == "clear_tools"


def test_large_tool_results_are_excerpts_from_the_first_time_on(make: Make) -> None:
    backend = scripted(assistant("", id="m1", calls=[call("c1"), call("c2"), call("c3")]), "done")
    ctx = make(backend)
    ctx.send("look")
    ctx.send([tool_result(f"c{i}", f"start{i} " + "x " * 2_000 + f"end{i}", id=f"r{i}") for i in (1, 2, 3)])
    sent = [m for m in backend.requests[1].messages if m.role == "tool"]
    assert all("left out; the whole output is archived" in m.text for m in sent)
    assert sent[0].text.startswith("start1")
    assert sent[0].text.endswith("end1")
    assert MESSAGES.count_all(backend.requests[1].messages) <= 800
    assert ctx.archive.get("r1").text.startswith("start1 x x")
    assert ctx.usage().prefix.breaks == ()
    small = tool_result("c", "short", id="s")
    assert sized([small], rules=policy_for(1_000), counter=MESSAGES) == [(small, None)]
    assert excerpt(small, reference="#1", max_chars=160) == small


def test_no_progress_is_said_once_and_tried_again_when_things_change(make: Make) -> None:
    ctx = make(keep_last=6)
    events = watched(ctx)
    ctx.add([user("word " * 140, id="u0"), assistant("x", id="a0")])
    ctx.pin("u0")
    for i in range(1, 3):
        ctx.add([user("word " * 250, id=f"u{i}"), assistant("ok", id=f"a{i}")])
    held = [e for e in events if isinstance(e, CompactionHeld)]
    assert len(held) <= 2
    ctx.unpin("u0")
    ctx.add(turns(6, start=10, words=30))
    assert isinstance(events[-1], HistoryCompacted)
    assert ctx.window().view.tokens <= 800


def test_cooldown_waits_for_turns_unless_the_window_is_full(make: Make) -> None:
    ctx = make(cooldown_turns=50, summarizer=scripted(*["short"] * 50), soft_ratio=0.3, hard_ratio=0.4)
    events = watched(ctx)
    ctx.add(turns(60, words=4))
    done = [e for e in events if isinstance(e, HistoryCompacted)]
    ctx.add(turns(4, start=60, words=4))
    assert [e for e in events if isinstance(e, HistoryCompacted)] == done
    assert ctx.window().view.tokens <= 800


@pytest.mark.parametrize("cooldown", [0, 1, 2, 5])
def test_two_summaries_are_exactly_the_cooldown_apart(make: Make, cooldown: int) -> None:
    """Step 7, mutant: `cooldown_turns` off by one. The conversation is over the trigger at every turn and fits the window."""
    summarizer = scripted(*["short"] * 50)
    ctx = make(
        cooldown_turns=cooldown, summarizer=summarizer, soft_ratio=0.2, hard_ratio=0.2, keep_last=1, min_free_ratio=0.01
    )
    events = watched(ctx)
    compacted_at: list[int] = []
    for turn in range(24):
        before = len(events)
        ctx.add(turns(1, start=turn, words=14))
        if any(isinstance(e, HistoryCompacted) for e in events[before:]):
            compacted_at.append(turn)
    assert {b - a for a, b in pairwise(compacted_at)} == {max(1, cooldown)}


def test_a_summary_of_equal_size_is_rejected(make: Make) -> None:
    """Step 7, mutant: a summary of equal size accepted. One token less is taken."""
    source = turns(4, words=10)

    class Exactly:
        def __init__(self, tokens: int) -> None:
            self.tokens = tokens

        def should_summarize(self, history: list[Message]) -> bool:
            return True

        def summarize(self, history: list[Message]) -> list[Message]:
            text = next(t for t in ("x" * n for n in range(5_000)) if MESSAGES.count(user(t, id="new")) == self.tokens)
            return [user(text, id="new"), *history[4:]]

    whole = sum(MESSAGES.count(m) for m in source[:4])
    for tokens, taken in ((whole, False), (whole - 1, True)):
        ctx = make(context_window=8_000, strategy=Exactly(tokens))
        ctx.ctx.set_policy(auto_compact=False)
        ctx.add(source)
        if taken:
            ctx.compact(force=True)
            assert [m.kind for m in ctx.view().messages][:1] == ["summary"]
            continue
        with pytest.raises(StrategyError, match=f"{whole} tokens of {whole}"):
            ctx.compact(force=True)
        assert ctx.view().messages == tuple(source)


def test_a_written_plan_of_equal_size_is_rejected(make: Make) -> None:
    """The same for a strategy that hands in the text of the summary with its plan."""
    source = turns(4, words=10)
    whole = sum(MESSAGES.count(m) for m in source[:4])

    class Written:
        name = "written"

        def __init__(self, text: str) -> None:
            self.text = text

        def plan(self, case: CompactionInput) -> Plan:
            covered = case.view.live[:4]
            return Plan(
                "", "a test", case.view.tokens, case.view.tokens, covered=covered, text=self.text, writer="none"
            )

    equal = next(t for t in ("x" * n for n in range(5_000)) if MESSAGES.count(user(t, id="s")) == whole)
    ctx = make(context_window=8_000, strategy=Written(equal))
    ctx.ctx.set_policy(auto_compact=False)
    ctx.add(source)
    with pytest.raises(NotEnoughHistoryError, match=f"would not be smaller: {whole} of {whole}"):
        ctx.compact(force=True)
    assert ctx.view().messages == tuple(source)
    smaller = make(context_window=8_000, strategy=Written(equal[:-20]))
    smaller.ctx.set_policy(auto_compact=False)
    smaller.add(source)
    smaller.compact(force=True)
    assert smaller.view().messages[0].kind == "summary"


def test_a_summary_that_is_not_smaller_is_rejected(make: Make) -> None:
    ctx = make(summarizer=scripted(*["word " * 60] * 9), summary_tokens=500)
    ctx.add([user("a", id="1"), assistant("b", id="2"), *turns(3, words=2)])
    before = ctx.view().messages
    with pytest.raises(NotEnoughHistoryError, match=r"smaller|nothing was compacted"):
        ctx.compact(force=True)
    assert ctx.view().messages == before


def test_a_lost_race_changes_nothing() -> None:
    with MemoryStore() as store:
        other = context(store=store)

        def meanwhile(_: Any) -> str:
            other.edit.remove(0)
            return "a summary of what is gone"

        one = context(store=store, context_window=2_000, summarizer=scripted(meanwhile))
        one.add(turns(12))
        with pytest.raises(NotEnoughHistoryError, match="another writer changed the span"):
            one.compact(force=True)
        assert [m.id for m in one.view().messages] == [m.id for m in turns(12)][1:]
        assert one.usage().compactions == 0


def test_messages_that_arrive_meanwhile_do_not_spoil_a_compaction() -> None:
    with MemoryStore() as store:
        other = context(store=store, context_window=4_000)

        def meanwhile(_: Any) -> str:
            other.add(turns(3, start=50, words=60))
            return "short"

        one = context(store=store, context_window=4_000, summarizer=scripted(meanwhile))
        one.add(turns(12))
        assert one.compact(force=True).compacted
        assert [m.id for m in one.view().messages][-2:] == ["u52", "a52"]


def test_two_contexts_compact_one_sqlite_session_at_once(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    won = threading.Event()

    def slow(_: Any) -> str:
        assert won.wait(60), "the other, who does without a model, is first"
        return "short"

    with context(store=url, context_window=3_000) as first:
        first.add(turns(20))
    contexts = [context(store=url, context_window=3_000, summarizer=scripted(slow)) for _ in range(2)]
    results: list[Any] = []

    def work(ctx: Any) -> None:
        try:
            results.append(ctx.compact(force=True).compacted)
            won.set()
        except NotEnoughHistoryError as error:
            results.append(str(error))

    threads = [threading.Thread(target=work, args=(c,)) for c in contexts]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(map(str, results))[0] == "True"
    assert sum(r is True for r in results) == 1
    views = [[m.id for m in c.view().messages] for c in contexts]
    assert views[0] == views[1]
    assert contexts[0].usage().compactions == 1
    for c in contexts:
        c.close()


async def test_a_cancelled_compaction_changes_nothing() -> None:
    started = asyncio.Event()

    class Slow(ScriptedBackend):
        async def asend(self, request: Any) -> Any:
            started.set()
            await asyncio.sleep(60)

    with context(context_window=2_000, summarizer=Slow([])) as ctx:
        await ctx.aadd(turns(12))
        before = [e.version for e in ctx.view()]
        task = asyncio.create_task(ctx.acompact(force=True))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [e.version for e in ctx.view()] == before
        assert opened(ctx).compacting == 0


async def test_a_cancellation_during_maintenance_keeps_the_reply() -> None:
    started = asyncio.Event()

    class Slow(ScriptedBackend):
        async def asend(self, request: Any) -> Any:
            started.set()
            await asyncio.sleep(60)

    with context(scripted(*["word " * 150] * 9), summarizer=Slow([])) as ctx:
        tasks = []
        for i in range(8):
            tasks.append(asyncio.create_task(ctx.asend(f"question {i}")))
            waiting = asyncio.create_task(started.wait())
            await asyncio.wait({tasks[-1], waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if started.is_set():
                break
        assert started.is_set()
        tasks[-1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[-1]
        assert ctx.view().messages[-1].role == "assistant"
        assert not opened(ctx).state.open


def test_a_store_that_fails_during_maintenance_keeps_the_reply(make: Make) -> None:
    from ctxfold.errors import StoreUnavailableError

    class Failing(MemoryStore):
        def append(self, key: Any, drafts: Any, **kwargs: Any) -> Any:
            if kwargs.get("documents"):
                raise StoreUnavailableError("disk full")
            return super().append(key, drafts, **kwargs)

    ctx = make(scripted(*["word " * 100] * 30), store=Failing(), summarizer=scripted(*["short"] * 60))
    events = watched(ctx)
    for i in range(6):
        ctx.send(f"question {i}")
    assert any("disk full" in e.reason for e in events if isinstance(e, CompactionHeld))
    assert ctx.usage().replies == 0 or ctx.usage().turns == 6


def test_a_smaller_window_shortens_the_old_summary(make: Make) -> None:
    store = MemoryStore()
    big = make(store=store, context_window=20_000, summarizer=scripted(*["fact " * 600] * 4))
    big.add(turns(60, words=40))
    big.compact(force=True)
    small = make(store=store, context_window=1_000)
    assert small.window().view.tokens <= 800


def test_summaries_of_summaries_keep_facts(make: Make) -> None:
    ctx = make(summarizer=OracleSummarizer(MESSAGES))
    ctx.add([user(fact("the safe is 90-13"), id="safe"), assistant("ok", id="ok")])
    for i in range(100):
        ctx.add(turns(1, start=i))
    assert ctx.usage().compactions > 3
    assert sum(b.zone == "summary" for b in ctx.explain().blocks) == 1
    assert "the safe is 90-13" in facts(text_of(ctx.view().messages))


def test_recall_finds_what_left_the_view(make: Make) -> None:
    backend = scripted("one", "two", "three")
    ctx = make(backend, context_window=1_500, summarizer=scripted(*["nothing of note"] * 90))
    ctx.add([user("The spare key is under the blue flowerpot.", id="k"), assistant("Noted.", id="n")])
    ctx.add([user("会议改到星期四下午三点。", id="c"), assistant("好的。", id="n2")])
    ctx.add(turns(80))
    assert "k" not in [m.id for m in ctx.view().messages]
    ctx.send("Where is the spare key?")
    assert "blue flowerpot" in text_of(m for m in backend.requests[0].messages if m.kind == "section")
    ctx.send("会议是什么时候？")
    assert "星期四" in text_of(m for m in backend.requests[1].messages if m.kind == "section")
    ctx.send("Where is the spare key?", recall=False)
    assert not [m for m in backend.requests[2].messages if m.kind == "section"]
    assert "blue flowerpot" in ctx.window(recall=True, question="And the spare key?").recalled
    assert all(MESSAGES.count_all(r.messages) <= 1_200 for r in backend.requests)


def test_two_large_questions_in_a_row(make: Make) -> None:
    backend = scripted("one", "two")
    ctx = make(backend, summarizer=OracleSummarizer(MESSAGES))
    ctx.send(user("word " * 400 + fact("first"), id="u1"))
    ctx.send(user("word " * 400 + fact("second"), id="u2"))
    said = [m for m in backend.requests[1].messages if m.kind != "section"]
    assert said[-1].id == "u2"
    assert facts(text_of(said)) == ["first", "second"]


class CompactingBackend(ScriptedBackend):
    """Stands for a service that compacts on its own side."""

    capabilities = BackendCapabilities(compacts_itself=True)


@pytest.mark.parametrize("how", ["backend", "request", "neither"])
def test_a_provider_that_compacts_by_itself_is_left_to_do_so(make: Make, how: str) -> None:
    """Step 7, D C8: up to 95 % of the budget; from there on the session is compacted all the same."""
    kind = CompactingBackend if how == "backend" else ScriptedBackend
    extra = {"context_management": {"edits": [{"type": "compact"}]}} if how == "request" else {}
    ctx = make(
        kind(["fine"] * 80), context_window=2_000, reply_reserve_tokens=400, summarizer=scripted(*["short"] * 20)
    )
    assert ctx.usage().turns_since_summary is None
    shares: list[float] = []
    for number in range(80):
        before = ctx.view().tokens / ctx.usage().budget_tokens
        ctx.send(f"question {number} " + "word " * 20, extra=extra)
        if ctx.handle.compacted_in_turn():
            shares.append(before)
            assert ctx.usage().turns_since_summary == 0
    assert ctx.usage().turns_since_summary in range(80)
    assert shares
    assert all(share > 0.90 for share in shares) is (how != "neither")


def test_a_summary_may_be_limited_for_one_call(make: Make) -> None:
    """Step 7, D C9: the limit goes to the summariser and bounds what is written."""
    writer = scripted("word " * 30, "word " * 30)
    ctx = make(context_window=4_000, summarizer=writer)
    ctx.add(turns(20))
    outcome = ctx.ctx.service.compact_context(summary_tokens=100)
    assert outcome.status == "compacted"
    assert ctx.view().compressed[0].tokens <= 100 + 32
    assert ctx.policy.summary_tokens > 100, "of this call only"
    with pytest.raises(ConfigError, match="summary_tokens"):
        ctx.ctx.service.compact_context(summary_tokens=0)


class Failing(MemoryStore):
    """Takes nothing any more once it is down."""

    down = False

    def append(self, *args: Any, **kwargs: Any) -> Any:
        if self.down:
            raise StoreUnavailableError("the disk is full")
        return super().append(*args, **kwargs)


def test_what_became_of_a_compaction_is_a_value() -> None:
    """Step 7, D C9: a failure of the store too, and the session is as it was."""
    store = Failing()
    with context(summarizer=scripted(*["word " * 400] * 9), store=store, context_window=4_000) as ctx:
        assert ctx.service.compact_context().status == "no_change"
        ctx.add(turns(20))
        before = ctx.view().messages
        store.down = True
        outcome = ctx.service.compact_context()
        assert (outcome.status, outcome.compacted) == ("not_stored", False)
        assert "the disk is full" in outcome.reason
        assert ctx.view().messages == before
        with pytest.raises(StoreUnavailableError):
            ctx.compact(force=True)
        store.down = False
        assert ctx.service.compact_context().status == "compacted"
