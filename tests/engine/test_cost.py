"""The cost line: spent, saved by cache, saved by compaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ctxfold import HistoryCompacted, Prices, Reply, Request, Usage, assistant
from tests.support.driven import COUNTER, Driven, context, scripted

PRICES = Prices(input_per_mtok=1e6, cache_read_per_mtok=1e5, cache_write_per_mtok=1e6, output_per_mtok=5e6)


def answer(number: int) -> Callable[[Request], Reply]:
    """A reply whose usage is our own count of what was asked; half of it came from the cache."""

    def reply(request: Request) -> Reply:
        asked = sum(COUNTER.count(m.text) for m in request.messages)
        usage = Usage(asked, 10, asked // 2)
        return Reply(replace(assistant("noted " * 8, id=f"a{number}"), usage=usage), usage, "stop")

    return reply


def summary(request: Request) -> Reply:
    return Reply(assistant("So far: fillers.", id="s"), Usage(100, 20), "stop")


def test_usage_and_events_say_what_was_spent_and_saved(make: Callable[..., Driven], tmp_path: Any) -> None:
    settings: dict[str, Any] = {
        "summarizer": scripted(*[summary] * 9, context_window=50_000),
        "prices": PRICES,
        "store": f"sqlite:///{tmp_path}/cost.db",
    }
    ctx = make(scripted(*[answer(n) for n in range(60)]), **settings)
    events: list[HistoryCompacted] = []
    ctx.subscribe(lambda e: events.append(e) if isinstance(e, HistoryCompacted) else None)
    assert ctx.usage().cost is not None
    for number in range(40):
        ctx.send(f"Point {number}. " + "filler " * 20)
    used = ctx.usage()
    assert len(events) >= 2
    said = used.reported
    cached, plain = said.cache_read_tokens, said.input_tokens - said.cache_read_tokens
    summaries = sum(e.summary_calls for e in events)
    assert used.cost.spent == pytest.approx(plain + 0.1 * cached + 5 * said.output_tokens + summaries * 200)
    assert used.cost.saved_by_cache == pytest.approx(0.9 * cached)
    assert used.cost.saved_by_compaction > 0
    costs = [e.cost for e in events]
    assert all(c is not None for c in costs)
    assert [c.spent for c in costs if c] == sorted(c.spent for c in costs if c)
    with context(**{k: v for k, v in settings.items() if k != "summarizer"}) as again:
        assert again.usage().cost == used.cost  # it is in the log


def test_without_prices_nothing_is_said(make: Callable[..., Driven]) -> None:
    assert make(scripted("hi")).usage().cost is None
