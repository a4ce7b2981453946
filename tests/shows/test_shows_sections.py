"""With recall, facts and a digest beside the conversation the prefix holds; and the evidence is in the window that is prepared."""

from __future__ import annotations

import pytest

from tests.benchmarks import evidence, tau_prefix
from tests.benchmarks.data import DataMissingError

RUNS = 25  # of tau-bench: enough for two compactions


def test_what_stands_beside_the_conversation_breaks_no_prefix() -> None:
    try:
        policy, conversation = tau_prefix.session_steps(RUNS)
    except DataMissingError as missing:
        pytest.skip(str(missing))
    beside = tau_prefix.played("beside", policy, conversation, beside=True)
    assert beside.unnamed == ()
    assert {cause for _, cause in beside.named} == {"compaction"}, "none by a section"
    assert beside.traffic.reuse >= 0.95
    assert beside.traffic.largest_tokens <= tau_prefix.BUDGET


def test_the_evidence_is_in_the_window_that_is_prepared() -> None:
    try:
        found = evidence.prepared()
        alone = evidence.measured()
    except DataMissingError as missing:
        pytest.skip(str(missing))
    for ours, bare in zip(found, alone, strict=True):
        # one question more or less: in a session the newest messages are neighbours of the archive too
        assert abs(ours.half_and_half - bare.half_and_half) <= 1
        assert ours.half_and_half / ours.questions >= 0.95
