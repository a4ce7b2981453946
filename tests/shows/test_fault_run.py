"""The fault run of `make bench ARGS=faults` at a small size: nothing that was acknowledged is lost, doubled or out of order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.benchmarks.faults import QUICK, Outcome, postgres_faults, sqlite_kills
from tests.conftest import NO_CLUSTER
from tests.stores.servers import cluster_programs, pgbouncer_program


def assert_whole(outcome: Outcome) -> None:
    assert (outcome.lost, outcome.doubled, outcome.misplaced) == (0, 0, 0), outcome
    assert outcome.acknowledged > 0


def test_faults_of_a_postgresql_server_lose_nothing() -> None:
    """Step 7, shows: terminated and cancelled backends, statement timeouts and restarts, with clients that retry."""
    programs = cluster_programs()
    if programs is None:
        pytest.skip(NO_CLUSTER)
    outcomes = postgres_faults(programs, QUICK)
    least = [QUICK.backends, QUICK.timeouts, QUICK.restarts, *([QUICK.restarts] if pgbouncer_program() else [])]
    assert [outcome.faults >= wanted for outcome, wanted in zip(outcomes, least, strict=True)] == [True] * len(least)
    assert sum(outcome.failed_calls for outcome in outcomes) > 0
    for outcome in outcomes:
        assert_whole(outcome)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_kills_of_a_sqlite_writer_lose_nothing(tmp_path: Path) -> None:
    """Step 7, shows: a writer is killed, and the next process repeats the turn that was not acknowledged."""
    outcome = sqlite_kills(tmp_path, QUICK.kills)
    assert outcome.faults == QUICK.kills
    assert_whole(outcome)


def test_the_comparison_sees_what_is_wrong() -> None:
    """Step 7, shows: a count that cannot rise would show nothing."""
    cases = {
        "lost": (["a", "b", "c"], ["a", "c"]),
        "doubled": (["a", "b"], ["a", "b", "a"]),
        "misplaced": (["a", "b", "c"], ["b", "c", "x", "a"]),
    }
    for name, (acknowledged, stored) in cases.items():
        outcome = Outcome("made up")
        outcome.compare(acknowledged, stored)
        wrong = {field for field in ("lost", "doubled", "misplaced") if getattr(outcome, field)}
        assert wrong == {name}
