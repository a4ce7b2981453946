"""Tool outputs summarised ahead: the prompt stays as it is until room is needed, and nothing is lost on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from ctxfold import (
    BackendError,
    HistoryCompacted,
    MemoryStore,
    Message,
    Request,
    ToolCallPart,
    assistant,
    tool_result,
    user,
)
from ctxfold.errors import StoreUnavailableError
from ctxfold.events import OutputsPrepared
from tests.compaction.test_background import Slow, quiet
from tests.support.driven import Driven, context, scripted, text_of
from tests.support.open_sessions import opened
from tests.timing import await_for, wait_for

Make = Callable[..., Driven]


def output(number: int) -> str:
    return (
        f"Room {number} at hotel H{number}X costs {100 + number} EUR. " + "The view is fine and the bed is soft. " * 25
    )


def looked_up(number: int) -> list[Message]:
    part = ToolCallPart(f"c{number}", "rooms", f'{{"page": {number}}}')
    return [
        user(f"Page {number}, please.", id=f"u{number}"),
        assistant("", id=f"a{number}", calls=[part]),
        tool_result(part.id, output(number), id=f"t{number}"),
        assistant("There.", id=f"z{number}"),
    ]


def short(request: Request) -> str:
    """What a decent model says: the first sentence of the result."""
    text = request.messages[-1].text
    return text[text.index("Room ") : text.index(" EUR.") + 5]


def filled(ctx: Any, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        ctx.add(looked_up(number))


def heard(ctx: Any, *kinds: type) -> list[Any]:
    found: list[Any] = []
    ctx.subscribe(lambda e: found.append(e) if isinstance(e, kinds) else None)
    return found


def test_the_oldest_are_summarised_and_the_window_stays_as_it_is(make: Make) -> None:
    summarizer = scripted(*[short] * 20)
    ctx = make(summarizer=summarizer, context_window=20_000)
    filled(ctx, 9)
    before = ctx.window().messages
    assert ctx.service.summarize_tool_pairs() == 3, "all but the newest six"
    assert ctx.service.summarize_tool_pairs() == 0
    assert len(summarizer.requests) == 3
    assert "rooms" in summarizer.requests[0].messages[-1].text, "the model sees the call"
    assert ctx.window().messages == before
    assert ctx.usage().compactions == 0
    assert ctx.service.apply_tool_pair_summaries() == 3
    assert ctx.service.apply_tool_pair_summaries() == 0
    shown = {m.id: m.text for m in ctx.window().messages}
    assert shown["t0"].startswith("Room 0 at hotel H0X costs 100 EUR.")
    assert "archived as #3" in shown["t0"]
    assert shown["t3"] == output(3)
    assert ctx.archive.get("t0").text == output(0)
    assert ctx.messages(audience="user")[2].text == output(0), "users still see the original"


def test_they_are_shown_under_pressure_and_do_not_hold_a_summary_back(make: Make) -> None:
    ctx = make(summarizer=scripted(*[short] * 99), context_window=5_000, soft_ratio=0.5, auto_compact=False)
    done = heard(ctx, HistoryCompacted)
    filled(ctx, 10)
    assert ctx.service.summarize_tool_pairs() == 4
    ctx.set_policy(auto_compact=True)
    filled(ctx, 1, start=10)
    assert [e.strategy for e in done] == ["tool_summaries"]
    assert done[0].archived == 4
    assert not ctx.handle.compacted_in_turn()
    assert ctx.view().compressed == ()


def test_a_backlog_is_pressure_of_its_own_where_it_frees_enough(make: Make) -> None:
    ctx = make(summarizer=scripted(*[short] * 99), context_window=7_500, soft_ratio=0.9)
    done = heard(ctx, HistoryCompacted)
    filled(ctx, 11)
    assert ctx.service.summarize_tool_pairs() == 5
    filled(ctx, 1, start=11)
    assert done == [], "five wait"
    assert ctx.service.summarize_tool_pairs() == 1
    filled(ctx, 1, start=12)
    assert [e.strategy for e in done] == ["tool_summaries"]
    assert "6 summaries of tool outputs wait" in done[0].reason


def test_what_has_no_summary_yet_gives_way_to_an_excerpt_beside_them(make: Make) -> None:
    ctx = make(
        summarizer=scripted(*[short] * 2, *[BackendError("down", kind="server")] * 20),
        context_window=5_000,
        auto_compact=False,
        max_summary_calls=2,
    )
    done = heard(ctx, HistoryCompacted)
    filled(ctx, 8)
    assert ctx.service.summarize_tool_pairs() == 2
    filled(ctx, 4, start=8)
    ctx.set_policy(auto_compact=True)
    filled(ctx, 1, start=12)
    assert [e.strategy for e in done] == ["clear_tools"]
    shown = {m.id: m.text for m in ctx.window().messages}
    assert "summary of" in shown["t0"]
    assert "left out" in shown["t2"]


@pytest.mark.parametrize("references", [True, False])
def test_the_whole_output_is_named_where_references_are(references: bool) -> None:
    with context(
        summarizer=scripted(*[short] * 9), context_window=5_000, auto_compact=False, references=references
    ) as ctx:
        filled(ctx, 9)
        assert ctx.service.summarize_tool_pairs() == 3
        ctx.set_policy(auto_compact=True)
        filled(ctx, 5, start=9)
        shown = next(m.text for m in ctx.window().messages if m.id == "t0")
    assert "[summary of " in shown
    assert ("archived as #3]" in shown) == references


@pytest.mark.parametrize("strategy", ["tiered", "tool_summaries"])
def test_in_the_background_of_ordinary_turns(strategy: str) -> None:
    settings = {"tool_summaries": True} if strategy == "tiered" else {}
    with context(
        summarizer=scripted(*[short] * 99), context_window=5_000, strategy=strategy, soft_ratio=0.5, **settings
    ) as ctx:
        done, told = heard(ctx, HistoryCompacted), heard(ctx, OutputsPrepared)
        for number in range(14):
            ctx.add(looked_up(number))
            quiet(ctx)
        assert {e.strategy for e in done} == {"tool_summaries"}
        assert sum(e.messages for e in told) >= 4
        assert all(e.problems == () for e in told)
        for number in range(14):
            assert ctx.archive.get(f"t{number}").text == output(number)


async def test_and_as_a_task_of_the_loop() -> None:
    async with context(summarizer=scripted(*[short] * 99), context_window=5_000, tool_summaries=True) as ctx:
        for number in range(9):
            await ctx.aadd(looked_up(number))
        tasks = ctx.handle.engine.ports.tasks
        assert tasks is not None
        await tasks.aclose(wait=True)
        assert await ctx.service.aapply_tool_pair_summaries() == 3


def test_mid_turn_they_make_room_for_an_agents_own_rounds() -> None:
    calls = [assistant("", id=f"a{i}", calls=[ToolCallPart(f"c{i}", "rooms", f'{{"page": {i}}}')]) for i in range(14)]
    backend = scripted(*calls, assistant("Done.", id="z"))
    settings: dict[str, Any] = {"context_window": 5_000, "strategy": "tool_summaries"}
    with context(backend, summarizer=scripted(*[short] * 99), **settings) as ctx:
        done = heard(ctx, HistoryCompacted)
        ctx.send("Look at all pages.")
        for number in range(14):
            quiet(ctx)
            ctx.send([tool_result(f"c{number}", output(number), id=f"t{number}")])
        assert done[0].strategy == "tool_summaries"
        assert "Room 0 at hotel H0X costs 100 EUR" in text_of(backend.requests[-1].messages)
        assert ctx.archive.get("t0").text == output(0)


def test_a_model_that_fails_leaves_an_extractive_summary(make: Make) -> None:
    ctx = make(summarizer=scripted(*[BackendError("down", kind="server")] * 9), context_window=20_000)
    told = heard(ctx, OutputsPrepared)
    filled(ctx, 8)
    assert ctx.service.summarize_tool_pairs() == 2
    assert ctx.service.apply_tool_pair_summaries() == 2
    shown = {m.id: m.text for m in ctx.window().messages}
    assert "H0X" in shown["t0"]
    assert "100 EUR" in shown["t0"]
    ctx.set_policy(tool_summaries=True)
    filled(ctx, 1, start=8)
    assert any("down" in p for e in told for p in e.problems)


def test_what_a_summary_leaves_out_stands_beside_it_word_for_word(make: Make) -> None:
    ctx = make(summarizer=scripted(*["The rooms at hotel H0X were listed."] * 9), context_window=20_000)
    filled(ctx, 7)
    ctx.service.summarize_tool_pairs()
    ctx.service.apply_tool_pair_summaries()
    shown = {m.id: m.text for m in ctx.window().messages}["t0"]
    assert shown.startswith("The rooms")
    assert "100 EUR" in shown
    assert "Facts, verbatim" not in shown


def test_a_store_that_fails_loses_no_summary() -> None:
    class Failing(MemoryStore):
        broken = False

        def append(self, key: Any, drafts: Any, **kwargs: Any) -> Any:
            if self.broken and any(d.body.kind == "outputs_summarised" for d in drafts):
                raise StoreUnavailableError("disk full")
            return super().append(key, drafts, **kwargs)

    store, summarizer = Failing(), scripted(*[short] * 99)
    with context(store=store, summarizer=summarizer, context_window=20_000, tool_summaries=True) as ctx:
        told = heard(ctx, OutputsPrepared)
        store.broken = True
        filled(ctx, 8)
        quiet(ctx)
        filled(ctx, 1, start=8)
        quiet(ctx)
        store.broken = False
        filled(ctx, 1, start=9)
        quiet(ctx)
        assert any("disk full" in p for e in told for p in e.problems)
        assert len(summarizer.requests) == 4, "each output was summarised once"
        assert ctx.service.apply_tool_pair_summaries() == 4


def test_they_outlive_a_restart_a_snapshot_and_an_undo(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/pairs.db"
    settings: dict[str, Any] = {"store": url, "context_window": 20_000}
    with context(summarizer=scripted(*[short] * 99), **settings) as ctx:
        filled(ctx, 8)
        assert ctx.service.summarize_tool_pairs() == 2
        for number in range(1_000):  # beyond the next snapshot of the state
            ctx.edit.set_goal(f"goal {number}")
    with context(**settings) as again:
        before = again.window().messages
        assert again.service.apply_tool_pair_summaries() == 2
        again.undo()
        assert again.window().messages == before
        assert again.service.apply_tool_pair_summaries() == 2
        again.files.export_jsonl(tmp_path / "all.jsonl")
        after = again.window().messages
    with context(session_id="other", context_window=20_000) as other:
        other.files.import_jsonl(tmp_path / "all.jsonl")
        assert other.window().messages == after


def test_pins_and_changed_messages_are_left_alone(make: Make) -> None:
    ctx = make(summarizer=scripted(*[short] * 99), context_window=20_000)
    filled(ctx, 9)
    ctx.pin("t0")
    assert ctx.service.summarize_tool_pairs() == 2
    place = next(i for i, e in enumerate(ctx.view().live) if e.id == "t1")
    ctx.edit.update(place, tool_result("c1", "Nothing was found.", id="t1"))
    ctx.pin("t2")
    assert ctx.service.apply_tool_pair_summaries() == 0
    ctx.unpin("t2")
    assert ctx.service.apply_tool_pair_summaries() == 1
    shown = {m.id: m.text for m in ctx.window().messages}
    assert shown["t0"] == output(0)
    assert shown["t1"] == "Nothing was found."


def test_the_calls_are_counted_once(make: Make) -> None:
    summarizer = scripted(*[short] * 99)
    ctx = make(summarizer=summarizer, context_window=20_000, max_summary_calls=3)
    filled(ctx, 12)
    assert ctx.service.summarize_tool_pairs() == 6, "three by the model, the others without"
    assert len(summarizer.requests) == 3


def test_closing_ends_what_is_under_way_and_gives_nothing_up() -> None:
    slow = Slow()
    slow.backend = scripted(*[short] * 99)
    store = MemoryStore()
    ctx = context(store=store, summarizer=slow, context_window=20_000, tool_summaries=True)
    filled(ctx, 12)
    wait_for(lambda: slow.under_way > 0)
    ctx.close(wait=False)
    assert slow.under_way > 0, "closed while it is held"
    slow.gate.set()
    wait_for(lambda: not any(t.name == "ctxfold-background" for t in threading.enumerate()))
    with context(store=store, summarizer=scripted(*[short] * 99), context_window=20_000) as again:
        assert again.archive.get("t0").text == output(0)
        assert again.service.summarize_tool_pairs() == 0, "the lease of the one that was stopped ends by itself"
        store.release(ctx.handle.key, "tool summaries", opened(ctx).worker)
        assert again.service.summarize_tool_pairs() == 6


async def test_a_loop_that_ends_leaves_no_half_summary() -> None:
    slow = Slow()
    ctx = context(summarizer=slow, context_window=20_000, tool_summaries=True)
    for number in range(8):
        await ctx.aadd(looked_up(number))
    await await_for(lambda: slow.under_way == 1)
    await ctx.aclose(wait=False)
    assert (slow.under_way, slow.cancelled) == (0, 1)
    assert not opened(ctx).tool_summaries.running
