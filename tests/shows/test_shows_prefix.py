"""Over a thousand requests in one session: every break of the prefix has its name; the economic trigger finds the price."""

from __future__ import annotations

import pytest

from tests.benchmarks import tau_prefix
from tests.benchmarks.data import DataMissingError
from tests.benchmarks.replay import Step

RUNS = 18  # of tau-bench, which are enough for six compactions


@pytest.fixture(scope="module")
def session() -> tuple[str, list[Step]]:
    try:
        return tau_prefix.session_steps()
    except DataMissingError as missing:
        pytest.skip(str(missing))


def test_every_break_in_the_bytes_has_a_name_and_the_rest_is_reused(session: tuple[str, list[Step]]) -> None:
    late = tau_prefix.played("defaults", *session)
    assert late.unnamed == ()
    assert {cause for _, cause in late.named} == {"compaction"}
    assert len(late.named) == len(late.traffic.breaks) <= late.compactions
    assert late.traffic.reuse >= 0.98
    assert late.traffic.largest_tokens <= tau_prefix.BUDGET


def test_the_economic_trigger_is_about_as_cheap_as_the_best_fixed_one() -> None:
    try:
        session = tau_prefix.session_steps(RUNS)
    except DataMissingError as missing:
        pytest.skip(str(missing))
    ours = tau_prefix.economic(*session)
    fixed = tau_prefix.swept(*session, tau_prefix.SWEPT[:2])  # costs rise from the first
    assert ours.compactions > 4
    assert ours.unnamed == ()
    assert ours.cost <= 1.05 * min(p.cost for p in fixed)
