"""Facts outlive ten generations of summaries, and bad summarisers lose nothing in silence."""

from __future__ import annotations

import pytest

from tests.benchmarks import bad_summariser, survival
from tests.benchmarks.data import DataMissingError


@pytest.mark.parametrize("case", survival.CASES, ids=lambda c: f"{c.source}-{'fit' if c.fits else 'many'}")
def test_marked_facts_are_visible_or_their_reference_resolves(case: survival.Case) -> None:
    try:
        found = survival.survived(case)
    except DataMissingError as missing:
        pytest.skip(str(missing))
    assert found.generations == survival.GENERATIONS
    assert found.lost == ()
    assert found.visible + found.resolved == found.facts
    if case.fits:
        assert found.visible == found.facts == survival.GENERATIONS * survival.FITTING
    else:
        assert found.resolved > 20
    if case.source == "tau_airline":
        assert found.widest >= 20


RUNS = 8  # of tau-bench, which lead to a dozen summaries; all thirty of the benchmark lead to four times as many


@pytest.mark.parametrize("fault", bad_summariser.FAULTS)
def test_a_bad_summariser_loses_no_argument_and_raises_nothing(fault: str) -> None:
    try:
        found = bad_summariser.outcome(fault, RUNS)
    except DataMissingError as missing:
        pytest.skip(str(missing))
    assert found.errors == ()
    assert found.at_call.lost == found.at_end.lost == ()
    assert found.at_end.visible + found.at_end.resolved > 100
    fallback_levels = dict(found.fallback_levels)
    if fault not in ("none", "rewrites numbers"):
        assert "model" not in fallback_levels
        assert found.problems >= sum(fallback_levels.values())
    assert sum(fallback_levels.values()) >= 8
