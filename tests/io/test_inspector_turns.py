"""The inspector's figures of each turn, and its charts, windows and summaries as a reader of the page sees them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from ctxfold import Prices, Reply, Request, Section, Usage, assistant, user
from ctxfold.tokens.text import MessageCounter
from tests.support.driven import COUNTER, Driven, context, scripted, turns

PRICES = Prices(
    input_per_mtok=1_000_000, cache_read_per_mtok=100_000, cache_write_per_mtok=0, output_per_mtok=5_000_000
)
HOSTILE = "</pre></details><script>document.title='owned'</script><img src=x onerror=alert(1)> & \"on\""


def counted(number: int) -> Callable[[Request], Reply]:
    """A reply for which the provider counted as we do, and had half of the input in its cache."""

    def reply(request: Request) -> Reply:
        asked = sum(MessageCounter(COUNTER).count(m) for m in request.messages)
        usage = Usage(input_tokens=asked, output_tokens=7, cache_read_tokens=asked // 2)
        message = replace(assistant(f"answer {number} " + "word " * 10, id=f"r{number}"), usage=usage)
        return Reply(message, usage, "stop")

    return reply


def talk(ctx: Any, count: int) -> list[int]:
    """The tokens of the window after each of the turns."""
    after: list[int] = []
    for number in range(count):
        ctx.send(f"question {number} " + "word " * 10)
        after.append(ctx.usage().window_tokens)
    return after


def test_each_turn_has_the_window_that_it_left(make: Callable[..., Driven]) -> None:
    documents = Section("documents", lambda query: [f"page for {query.text[:12]}"])
    ctx = make(
        scripted(*(counted(n) for n in range(60))),
        context_window=900,
        system="Be brief.",
        sections=[documents],
    )
    after = talk(ctx, 40)
    found = ctx.archive.inspect().turns
    compacted_next = [bool(t.compactions) for t in found[1:]]
    assert all(
        t.window_tokens > tokens if compacted else t.window_tokens == tokens
        for t, tokens, compacted in zip(found, after, compacted_next, strict=False)
    )
    assert [t.turn for t in found] == list(range(1, 41))
    assert ctx.usage().compactions == sum(t.compactions for t in found) > 2
    assert all("compaction" in t.breaks for t in found[1:] if t.compactions)
    assert all(t.system_tokens == found[0].system_tokens > 0 for t in found)
    assert all(sum(getattr(t, f"{zone}_tokens") for t in found) for zone in ("summary", "section", "live"))
    assert not any(t.open for t in found)


def test_an_undone_compaction_stays_where_it_was_in_force(make: Callable[..., Driven]) -> None:
    ctx = make(scripted(*(counted(n) for n in range(80))), context_window=4_000, recall_ratio=0.0)
    after = talk(ctx, 6)
    for _ in range(2):
        before = ctx.usage().window_tokens
        assert ctx.compact(force=True)
        after += talk(ctx, 2)
        assert after[-2] < before + 39  # one turn more
        ctx.undo()
        after += talk(ctx, 2)
        assert after[-1] > before
    found = ctx.archive.inspect().turns
    assert [t.window_tokens for t in found] == after
    assert [t.turn for t in found if t.compactions] == [7, 11]
    assert [(t.turn, t.breaks) for t in found if t.breaks] == [
        (7, ("compaction",)),
        (9, ("undo",)),
        (11, ("compaction",)),
        (13, ("undo",)),
    ]


def test_edits_far_back_are_undone_in_the_figures_too(make: Callable[..., Driven]) -> None:
    """More records than lie between two checkpoints of the fold come between a change and its undo, and between two undos."""
    ctx = make(context_window=200_000)
    ctx.add(turns(10))
    ctx.edit.update(7, assistant("short", id="a3"))
    ctx.add(turns(1, start=10))
    shortened = ctx.usage().window_tokens
    ctx.add(turns(599, start=11, words=1))
    ctx.edit.remove("a9")
    ctx.undo()
    ctx.undo()
    now = ctx.usage().window_tokens
    ctx.add(turns(1, start=610, words=1))
    found = ctx.archive.inspect().turns
    assert found[-1].window_tokens == ctx.usage().window_tokens
    assert found[10].window_tokens == shortened
    assert now > found[-2].window_tokens
    assert [(t.turn, t.breaks) for t in found if t.breaks] == [(11, ("edit",)), (611, ("edit", "undo"))]


def test_what_a_provider_counted_and_what_it_cost(make: Callable[..., Driven], tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 's.db'}"
    ctx = make(
        scripted(*(counted(n) for n in range(60))), context_window=900, store=store, session_id="s", prices=PRICES
    )
    talk(ctx, 20)
    ctx.add([user("told", id="told"), assistant("by hand", id="by-hand")])
    found = ctx.archive.inspect().turns
    used = ctx.usage()
    whole = sum((t.usage for t in found if t.usage is not None), Usage())
    assert whole == used.reported + used.summaries
    assert sum(t.cost or 0 for t in found) == pytest.approx(used.cost.spent)
    first = found[0].usage
    assert first is not None
    assert found[0].cost == pytest.approx(first.input_tokens - 0.9 * first.cache_read_tokens + 7 * 5)
    assert found[-1].usage is found[-1].cost is None
    assert any(t.recalled_tokens for t in found)
    with context(store=store, session_id="s") as other:
        elsewhere = other.archive.inspect().turns
        assert [replace(t, cost=None) for t in found] == list(elsewhere)
        page = other.archive.inspect().page()
    assert "recalled for one request" in page
    assert "plain input tokens by Prices.relative()" in page
    assert "recalled for one request" in ctx.archive.inspect().page()


def test_a_window_that_changed_after_the_last_turn_is_the_last_row(make: Callable[..., Driven]) -> None:
    ctx = make(context_window=4_000)
    ctx.add(turns(8))
    assert not ctx.archive.inspect().turns[-1].open
    ctx.compact(force=True)
    last = ctx.archive.inspect().turns[-1]
    assert (last.turn, last.open, last.compactions, last.breaks) == (9, True, 1, ("compaction",))
    assert last.window_tokens == ctx.usage().window_tokens
    assert ">now</td>" in ctx.archive.inspect().page()


def test_nothing_is_drawn_before_the_first_turn_ends() -> None:
    with context() as ctx:
        ctx.add([user("hello", id="hello")])
        assert ctx.archive.inspect().turns == ()
        assert "there is nothing to draw" in ctx.archive.inspect().page()


def test_an_erased_message_is_in_no_figure(make: Callable[..., Driven]) -> None:
    ctx = make(context_window=4_000)
    ctx.add(turns(8))
    whole = ctx.archive.inspect().turns
    ctx.erasure.erase("u0")
    found = ctx.archive.inspect().turns
    assert found[-1].window_tokens == ctx.usage().window_tokens < whole[-1].window_tokens
    assert found[0].window_tokens < whole[0].window_tokens


def test_many_turns_share_a_column_and_none_is_left_out_of_the_sums() -> None:
    count = 700
    with context(scripted(*(counted(n) for n in range(count))), context_window=500_000) as ctx:
        talk(ctx, count)
        page = unescape(ctx.archive.inspect().page())
        assert page.count('viewBox="0 0 350 1000"') == 2
        assert "(the largest of each 2)" in page
        assert f"input from the cache {ctx.usage().reported.cache_read_tokens:,}" in page
        assert f"Tokens in the window over {count} turns" in page
        assert "The oldest 200 turns are left out." in page


# the window, and what a summary stands for


def test_the_window_has_whole_texts_as_the_model_sees_them(make: Callable[..., Driven]) -> None:
    ctx = make(context_window=4_000)
    ctx.add([user("a " + "long " * 40 + HOSTILE, id="m"), assistant("noted", id="n")])
    found = ctx.archive.inspect()
    assert list(found.shown) == [m.text for m in ctx.messages(audience="model")]
    assert found.shown[0].endswith(HOSTILE)
    page = found.page()
    assert "<img" not in page
    assert page.count("<script") == 1


def test_each_message_stands_beside_the_summary_that_has_taken_its_place(make: Callable[..., Driven]) -> None:
    ctx = make(context_window=4_000)
    ctx.add([*turns(6), user(HOSTILE, id="hostile"), assistant("noted", id="noted")])
    ctx.compact(force=True)
    ctx.add(turns(6, start=6))
    ctx.compact(force=True)
    found = ctx.archive.inspect()
    (summary,) = [b for b in found.window.blocks if b.zone == "summary"]
    beside = {m.id: m.summary for m in found.messages}
    assert beside["u0"] == beside["hostile"] == beside["u8"] == summary.id
    visible = {b.id for b in found.window.blocks}
    assert all((m.summary == "") == (m.id in visible) for m in found.messages)
    pair = found.page().split('<div class="pair">')[1]
    assert f"stands for {sum(1 for m in beside.values() if m)} messages" in pair
    assert re.search(r"<pre>[^<]*Summary of prior conversation", pair)
