"""Prices are the user's; what was spent and saved follows from usage alone."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from ctxfold import Prices, Usage
from ctxfold.policy.prices import CostLine, cost, cost_line

PRICES = Prices(input_per_mtok=3, cache_read_per_mtok=0.3, cache_write_per_mtok=3.75, output_per_mtok=15)


def test_cost_splits_the_input_into_plain_read_and_written():
    usage = Usage(input_tokens=1_000_000, output_tokens=100_000, cache_read_tokens=600_000, cache_write_tokens=300_000)
    assert cost(usage, PRICES) == pytest.approx(0.1 * 3 + 0.6 * 0.3 + 0.3 * 3.75 + 0.1 * 15)


def test_cost_counts_reasoning_once():
    with_reasoning = Usage(output_tokens=100, reasoning_tokens=80)
    assert cost(with_reasoning, PRICES) == cost(Usage(output_tokens=100), PRICES)


def test_cost_of_more_hits_than_input_is_never_negative():
    # some servers report hits per block, rounded up
    assert cost(Usage(input_tokens=10, cache_read_tokens=16), PRICES) >= 0


def test_relative_prices_are_in_plain_input_tokens():
    prices = Prices.relative(read=0.1, write=1.25, output=5)
    assert cost(Usage(input_tokens=1_000_000), prices) == 1
    assert prices.cache_write_per_mtok == 1.25
    assert prices == Prices.model_validate_json(prices.model_dump_json())


@pytest.mark.parametrize("bad", [-1, math.inf, math.nan])
def test_prices_refuse_what_is_no_price(bad):
    with pytest.raises(ValidationError):
        Prices(input_per_mtok=bad, cache_read_per_mtok=0, cache_write_per_mtok=0, output_per_mtok=0)


def test_saved_by_cache_is_the_difference_to_plain_input_and_may_be_negative():
    hits = cost_line(
        Usage(input_tokens=1_000_000, cache_read_tokens=1_000_000), PRICES, uncompacted_input_tokens=1_000_000
    )
    assert hits.saved_by_cache == pytest.approx(3 - 0.3)
    writes = cost_line(
        Usage(input_tokens=1_000_000, cache_write_tokens=1_000_000), PRICES, uncompacted_input_tokens=1_000_000
    )
    assert writes.saved_by_cache == pytest.approx(3 - 3.75)


def test_saved_by_compaction_prices_old_history_as_hits_and_charges_the_summaries():
    usage = Usage(input_tokens=1_000_000, cache_read_tokens=900_000)
    summaries = Usage(input_tokens=100_000, output_tokens=10_000)
    line = cost_line(usage, PRICES, uncompacted_input_tokens=5_000_000, summaries=summaries)
    assert line.spent == pytest.approx(cost(usage, PRICES) + cost(summaries, PRICES))
    assert line.saved_by_compaction == pytest.approx(4 * 0.3 - (0.1 * 3 + 0.01 * 15))


def test_without_any_hit_the_avoided_tokens_cost_plain_input():
    line = cost_line(Usage(input_tokens=1_000_000), PRICES, uncompacted_input_tokens=2_000_000)
    assert line.saved_by_compaction == pytest.approx(3)


def test_a_summary_that_avoided_nothing_is_a_loss():
    line = cost_line(Usage(), PRICES, uncompacted_input_tokens=0, summaries=Usage(output_tokens=1_000))
    assert line.saved_by_compaction == pytest.approx(-0.015)


def test_lines_add_up_and_read_well():
    total = CostLine(1, 2, 3) + CostLine(0.5, -1, 0)
    assert total == CostLine(1.5, 1, 3)
    assert str(total) == "spent 1.5000, saved by cache 1.0000, saved by compaction 3.0000"
