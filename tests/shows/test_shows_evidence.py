"""Evidence for questions is in the window at a fixed budget, in English, Chinese and Japanese."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctxfold import SqlStore
from tests.benchmarks import agent_logs, coding_logs, evidence
from tests.benchmarks.data import DataMissingError
from tests.support.postgres_schema import fresh_schema


def test_evidence_of_public_questions_is_in_the_window() -> None:
    try:
        small, large = evidence.measured()
    except DataMissingError as missing:
        pytest.skip(str(missing))
    assert small.questions == large.questions == 143
    assert small.half_and_half / small.questions >= 0.95
    assert large.half_and_half / large.questions >= 0.96
    assert small.tail < small.half_and_half
    assert large.tail < large.half_and_half


def test_what_tools_returned_and_were_called_with_is_in_the_window() -> None:
    """Runs that no rule was tuned on; BM25 over whole messages has the whole prompt for them."""
    try:
        told = agent_logs.sessions("not tuned on")
    except DataMissingError as missing:
        pytest.skip(str(missing))
    rows = [row for messages in told for row in agent_logs.answered(messages, 4_000)]
    ours, plain, near, _ = (sum(map(float, column)) / len(rows) for column in zip(*rows, strict=True))
    assert len(rows) > 200
    assert ours >= 0.97
    assert ours > near > plain


@pytest.mark.parametrize("window", [8_000, 16_000])
def test_what_a_coding_agent_has_read_and_tried_is_in_the_window(window: int) -> None:
    """Modules that nobody looked at for a rule. At 16,000 tokens most outputs are excerpts that stand in the window."""
    rows = [row for work in coding_logs.sessions("not looked at") for row in coding_logs.answered(work, window)]
    assert len(rows) > 180
    assert sum(bool(ours) for ours, _, _ in rows) / len(rows) >= 0.95


@pytest.mark.parametrize("language", evidence.CJK)
def test_chinese_and_japanese_words_and_names_are_found(language: str) -> None:
    found, _ = evidence.cjk_found(language)
    assert found >= 0.9 * len(evidence.CJK[language])


@pytest.mark.parametrize("language", evidence.CJK)
def test_every_store_recalls_the_same(language: str, tmp_path: Path, postgres_url: str) -> None:
    expected = evidence.cjk_found(language)
    with SqlStore(f"sqlite:///{tmp_path}/a.db") as sqlite, fresh_schema(postgres_url) as url, SqlStore(url) as postgres:
        assert evidence.cjk_found(language, sqlite) == expected
        assert evidence.cjk_found(language, postgres) == expected
