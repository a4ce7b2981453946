"""Triggers are stored values that say why they fire; the economic one is checked against a replay of every other size."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from ctxfold import (
    CompactionHeld,
    ConfigError,
    MessagesTrigger,
    Prices,
    RatioTrigger,
    TokensTrigger,
    TurnsTrigger,
    user,
)
from ctxfold.compaction.strategy import CompactionInput, Plan, Skip
from ctxfold.policy.triggers import (
    AllOf,
    AnyOf,
    ColdCacheTrigger,
    EconomicTrigger,
    Signals,
    Trigger,
    evaluate,
    optimal_height,
    with_prices,
)
from tests.support.driven import context, scripted

PRICES = Prices.relative()
SIGNALS = Signals(
    used_tokens=61_204,
    budget_tokens=100_000,
    messages=41,
    turns=12,
    turns_since_summary=5,
    idle_s=400,
    growth_tokens_per_call=300,
    size_after_tokens=8_000,
    summary_tokens=1_000,
)
ADAPTER: TypeAdapter[Trigger] = TypeAdapter(Trigger)


@pytest.mark.parametrize(
    ("trigger", "due", "explanation"),
    [
        (RatioTrigger(), False, "61,204 of 100,000 tokens (61%), due at 90%"),
        (RatioTrigger(at=0.6), True, "61,204 of 100,000 tokens (61%), due at 60%"),
        (TokensTrigger(), True, "61,204 of 60,000 tokens"),
        (TokensTrigger(at=61_205), False, "61,204 of 61,205 tokens"),
        (MessagesTrigger(at=41), True, "41 of 41 messages"),
        (MessagesTrigger(at=42), False, "41 of 42 messages"),
        (TurnsTrigger(at=12), True, "12 of 12 turns"),
        (TurnsTrigger(at=12, since_summary=True), False, "5 of 12 turns since the last summary"),
        (
            ColdCacheTrigger(),
            True,
            "idle for 400 of 300 s with 61,204 of 100,000 tokens (61%, at least 50% needed)",
        ),
        (
            ColdCacheTrigger(idle_s=600),
            False,
            "idle for 400 of 600 s with 61,204 of 100,000 tokens (61%, at least 50% needed)",
        ),
        (
            ColdCacheTrigger(min_ratio=0.7),
            False,
            "idle for 400 of 300 s with 61,204 of 100,000 tokens (61%, at least 70% needed)",
        ),
    ],
)
def test_each_trigger_explains_itself_with_numbers(trigger, due, explanation):
    verdict = evaluate(trigger, SIGNALS)
    assert (verdict.due, verdict.explanation) == (due, explanation)


def test_all_needs_every_one_and_any_needs_one():
    fires, waits = TokensTrigger(), RatioTrigger()
    assert not evaluate(AllOf(triggers=(fires, waits)), SIGNALS).due
    assert evaluate(AnyOf(triggers=(fires, waits)), SIGNALS).due
    assert evaluate(AllOf(triggers=(fires, MessagesTrigger(at=2))), SIGNALS).due
    assert not evaluate(AnyOf(triggers=(waits,)), SIGNALS).due


def test_a_combination_says_which_parts_fired():
    fires, waits = TokensTrigger(), RatioTrigger()
    both = evaluate(AllOf(triggers=(fires, waits)), SIGNALS).explanation
    assert both == "(61,204 of 60,000 tokens) and (not yet: 61,204 of 100,000 tokens (61%), due at 90%)"
    assert evaluate(AnyOf(triggers=(waits, fires)), SIGNALS).explanation == "61,204 of 60,000 tokens"


def test_triggers_survive_storage_nested():
    trigger = AnyOf(
        triggers=(
            AllOf(triggers=(RatioTrigger(at=0.5), TurnsTrigger(at=3, since_summary=True))),
            AnyOf(triggers=(ColdCacheTrigger(), MessagesTrigger(at=9))),
            EconomicTrigger(prices=PRICES),
            EconomicTrigger(prices="some-model"),
            TokensTrigger(),
        )
    )
    assert ADAPTER.validate_json(ADAPTER.dump_json(trigger)) == trigger
    assert hash(trigger) == hash(ADAPTER.validate_python(trigger.model_dump()))


@pytest.mark.parametrize(
    "value",
    [
        {"kind": "ratio", "at": 1.5},
        {"kind": "tokens", "at": 0},
        {"kind": "messages"},
        {"kind": "all", "triggers": []},
        {"kind": "never"},
        {"kind": "ratio", "att": 0.5},
    ],
)
def test_a_value_that_is_no_trigger_is_refused(value):
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(value)


def test_r5_the_economic_trigger_fires_at_the_cheapest_size_and_names_it():
    best = optimal_height(PRICES, SIGNALS)
    assert 13_000 < best < 16_000
    assert EconomicTrigger().prices == PRICES
    trigger = EconomicTrigger(prices=PRICES)
    below = evaluate(trigger, replace(SIGNALS, used_tokens=int(best)))
    above = evaluate(trigger, replace(SIGNALS, used_tokens=int(best) + 1))
    assert (below.due, above.due) == (False, True)
    assert above.explanation == (
        f"{int(best) + 1:,} of {best:,.0f} tokens (cheapest: growth 300 per call, 8,000 after a compaction)"
    )


def test_the_budget_stays_the_hard_cap():
    signals = replace(SIGNALS, budget_tokens=10_000, used_tokens=10_000)
    verdict = evaluate(EconomicTrigger(prices=PRICES), signals)
    assert verdict.due
    assert "the budget comes before the cheapest size" in verdict.explanation
    free_reads = Prices.relative(read=0)
    assert optimal_height(free_reads, SIGNALS) == SIGNALS.budget_tokens
    assert not evaluate(EconomicTrigger(prices=free_reads), replace(signals, used_tokens=9_999)).due


def test_without_known_growth_the_economic_trigger_waits_for_the_budget():
    signals = replace(SIGNALS, growth_tokens_per_call=0)
    assert not evaluate(EconomicTrigger(prices=PRICES), signals).due
    assert evaluate(EconomicTrigger(prices=PRICES), replace(signals, used_tokens=100_000)).due


def test_a_model_name_stands_for_prices_that_the_user_sets():
    trigger = AllOf(triggers=(AnyOf(triggers=(EconomicTrigger(prices="m"), TokensTrigger())), RatioTrigger(at=0.1)))
    with pytest.raises(ConfigError, match="no prices for model 'm'"):
        evaluate(trigger, SIGNALS)
    with pytest.raises(ConfigError, match="model 'm', the table has other"):
        with_prices(trigger, {"other": PRICES})
    priced = with_prices(trigger, {"m": PRICES})
    assert evaluate(priced, SIGNALS).due
    assert "cheapest" in evaluate(priced, SIGNALS).explanation


def replayed(prices: Prices, height: float, signals: Signals, calls: int = 20_000) -> float:
    """Cost per call of a session that compacts at `height`, every token charged as a provider would."""
    read, write, output = prices.cache_read_per_mtok, prices.cache_write_per_mtok, prices.output_per_mtok
    fixed = signals.size_after_tokens - signals.summary_tokens
    total, size, cached, growth = 0.0, float(fixed), 0.0, signals.growth_tokens_per_call
    for _ in range(calls):
        total += read * cached + write * (size - cached)
        cached = size
        size += growth
        if size >= height:
            tail = signals.tail_ratio * (size - fixed)
            summary = min(signals.summary_tokens, (size - fixed - tail) / 2)
            total += read * cached + write * (size - cached) + prices.input_per_mtok * 350 + output * 0.6 * summary
            size, cached = fixed + tail + summary, fixed
    return total / calls


@pytest.mark.parametrize(
    "prices",
    [
        Prices.relative(),
        Prices.relative(read=0.5, write=1, output=4),
        Prices.relative(read=0.02, write=1, output=2),
        Prices.relative(read=0.25, write=1.25, output=8),
    ],
)
@pytest.mark.parametrize(
    ("budget", "fixed", "growth", "summary", "tail"),
    [
        (100_000, 7_000, 300, 1_000, 0.0),
        (8_000, 1_300, 200, 1_600, 0.2),
        (32_000, 20, 45, 2_048, 0.2),
        (200_000, 20_000, 2_000, 2_048, 0.2),
        (64_000, 3_300, 800, 2_048, 0.2),
    ],
)
def test_r5_no_other_size_is_more_than_five_per_cent_cheaper(prices, budget, fixed, growth, summary, tail):
    signals = replace(
        SIGNALS,
        budget_tokens=budget,
        growth_tokens_per_call=growth,
        size_after_tokens=fixed + summary,
        summary_tokens=summary,
        tail_ratio=tail,
    )
    ours = replayed(prices, optimal_height(prices, signals), signals)
    sizes = [fixed + 2_000 + (budget - fixed - 2_000) * n / 100 for n in range(101)]
    assert ours <= 1.05 * min(replayed(prices, height, signals, calls=5_000) for height in sizes)


@pytest.mark.parametrize(
    ("trigger", "first"),
    [(MessagesTrigger(at=20), 10), (TurnsTrigger(at=10), 10), (TokensTrigger(at=1_500), None)],
    ids=["messages", "turns", "tokens"],
)
@pytest.mark.parametrize("words", [3, 12, 60])
def test_a_trigger_with_an_amount_is_obeyed_in_a_large_window(trigger: Any, first: int | None, words: int) -> None:
    """Step 7, item B8: it was asked once and then no more, until a fifth of the window had been added."""
    compacted: list[int] = []
    with context(
        scripted(*["fine " * words] * 60),
        context_window=128_000,
        system="Rule. " * 530,
        trigger=trigger,
        summarizer=scripted(*["Short."] * 60),
    ) as ctx:
        assert 750 < ctx.view().tokens < 1_450
        for number in range(1, 61):
            ctx.send(f"question {number} " + "word " * words)
            if ctx.handle.compacted_in_turn():
                compacted.append(number)
            elif isinstance(trigger, MessagesTrigger | TurnsTrigger):
                assert len(ctx.view().live) < 20, "due, and nothing was done"
        assert len(compacted) >= 2
        assert first is None or compacted[0] == first
        assert min(b - a for a, b in pairwise(compacted)) >= 2, "the cooldown holds"


def test_a_trigger_with_an_amount_is_asked_again_after_a_hold() -> None:
    """Step 7, item B8: pins keep all of what could go at first; the hold is told once, and ends with the next message that may."""
    held: list[CompactionHeld] = []
    with context(
        scripted(*["fine"] * 30),
        context_window=128_000,
        trigger=MessagesTrigger(at=8),
        keep_last=2,
        pin_ratio=0.9,
        summarizer=scripted(*["Short."] * 30),
    ) as ctx:
        ctx.subscribe(lambda e: held.append(e) if isinstance(e, CompactionHeld) else None)
        for number in range(16):
            question = user(f"question {number}", id=f"q{number}")
            answer = ctx.send(question).message
            if number < 4:
                ctx.pin(question.id, answer.id)
        assert ctx.usage().compactions > 0
        assert 1 <= len(held) <= ctx.usage().compactions + 1, "told once, not at every turn"


class Growing:
    """Wants each span to give way to a text that is longer."""

    name = "growing"

    def plan(self, case: CompactionInput) -> Plan | Skip:
        old = case.older_than(2)
        if not old:
            return Skip("too little")
        return Plan("", "due", case.view.tokens, case.view.tokens, covered=old, text="word " * 4_000)


def test_a_failed_attempt_waits_for_more_than_a_decision_does() -> None:
    """Step 7, item B8: a summary that is refused may have cost a call of the model, so it is not tried at every turn."""
    held: list[CompactionHeld] = []
    with context(
        scripted(*["fine"] * 40), context_window=128_000, trigger=MessagesTrigger(at=8), strategy=Growing()
    ) as ctx:
        ctx.subscribe(lambda e: held.append(e) if isinstance(e, CompactionHeld) else None)
        for number in range(40):
            ctx.send(f"question {number}")
        assert ctx.usage().compactions == 0
        assert 2 <= len(held) <= 20, "it is tried again, but not every time"


def test_system_prompts_can_be_left_out_of_the_count() -> None:
    """Step 7, D B2: a long prompt does not use up what the conversation may take."""
    signals = replace(SIGNALS, prompt_tokens=8_000)
    assert evaluate(TokensTrigger(at=60_000), signals).due
    verdict = evaluate(TokensTrigger(at=60_000, count_prompts=False), signals)
    assert (verdict.due, verdict.explanation) == (False, "53,204 of 60,000 tokens, system prompts left out")
    first: dict[bool, int] = {}
    for counted in (True, False):
        with context(
            scripted(*["fine " * 20] * 30),
            context_window=128_000,
            system="Rule. " * 400,
            trigger=TokensTrigger(at=1_000, count_prompts=counted),
            summarizer=scripted(*["Short."] * 30),
        ) as ctx:
            for number in range(30):
                ctx.send(f"question {number} " + "word " * 20)
                if ctx.usage().compactions:
                    first[counted] = number
                    break
    assert first[True] + 5 < first[False]
