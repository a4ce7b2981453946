"""The cost line: spent, saved by cache, saved by compaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ctxfold import AgentContext, HistoryCompacted, OpenAIChatBackend, Prices, Reply, Request, Usage, assistant
from ctxfold.cli.app import app
from ctxfold.policy.triggers import EconomicTrigger
from ctxfold.session.context import SessionUsage
from ctxfold.testing import ModelServer, Scripted
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
    assert ctx.usage().cost.spent == 0
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


def test_without_prices_costs_are_in_plain_input_tokens(make: Callable[..., Driven]) -> None:
    cost = make(scripted("hi")).usage().cost
    assert cost.in_tokens
    assert str(cost) == "spent 0 plain input tokens, saved by cache 0, saved by compaction 0"


def played(*, turns: int = 120, **settings: Any) -> SessionUsage:
    """The usage of a session on a server with a prefix cache, whose answers and summaries have 100 words."""
    script = lambda _: Scripted("noted " * 100)  # noqa: E731
    with (
        ModelServer(script=script) as server,
        OpenAIChatBackend(provider="generic", model="m", base_url=server.base_url) as backend,
        AgentContext(backend, system="Be brief. " * 100, recall_ratio=0, **settings) as ctx,
    ):
        for number in range(turns):
            ctx.send(f"Question {number}: " + "filler " * 100)
        return ctx.usage()


@pytest.mark.parametrize("window", [8_000, 40_000])
def test_r6_usage_says_what_a_session_would_have_cost_with_the_economic_trigger(window: int) -> None:
    late = played(context_window=window).cost
    economic = played(context_window=window, trigger=EconomicTrigger()).cost
    assert late.with_economic == pytest.approx(economic.spent, rel=0.12)
    assert economic.with_economic == pytest.approx(economic.spent, rel=0.12), (
        "that of a session which has it is its own"
    )


def test_r6_a_session_that_no_trigger_would_have_compacted_costs_the_same_with_it() -> None:
    cost = played(turns=4, context_window=40_000).cost
    assert cost.with_economic == pytest.approx(cost.spent)


def test_r6_usage_explain_the_inspector_and_the_doctor_say_the_same(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/cost.db"
    settings: dict[str, Any] = {"context_window": 8_000, "store": store, "session_id": "s", "prices": None}
    used = played(**settings, turns=60).cost
    assert 0 < used.with_economic != used.spent
    with AgentContext(store=store, session_id="s", context_window=8_000) as ctx:
        assert ctx.usage().cost == used, "in another process too"
        assert ctx.explain().cost == ctx.archive.inspect().window.cost == used
        assert str(used) in str(ctx.explain())
        assert str(used) in ctx.archive.inspect().page()
    done = CliRunner().invoke(app, ["doctor", "--store", store])
    assert str(used) in " ".join(done.output.split())


def test_r6_with_prices_the_estimate_is_in_their_currency(make: Callable[..., Driven]) -> None:
    ctx = make(scripted(*[answer(n) for n in range(60)]), prices=PRICES)
    for number in range(30):
        ctx.send(f"Point {number}. " + "filler " * 20)
    cost = ctx.usage().cost
    assert not cost.in_tokens
    assert "with EconomicTrigger() about" in str(cost)
    assert str(cost + cost).startswith(f"spent {2 * cost.spent:.4f}, ")
