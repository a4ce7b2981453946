"""Facts outlive a summariser that forgets and rounds them, and a reader finds whole statements in a summary."""

from __future__ import annotations

import pytest

from tests.benchmarks import planted_facts, reader
from tests.benchmarks.data import DataMissingError


def test_planted_facts_stay_visible_with_their_owners() -> None:
    facts = planted_facts.planted(0)
    try:
        messages = planted_facts.told("molweni", 0, facts)
    except DataMissingError as missing:
        pytest.skip(str(missing))
    kept = planted_facts.kept(messages, facts, 4_000, planted_facts.Forgetful(0))
    assert kept.generations >= 3
    assert kept.visible >= 0.4 * kept.facts
    assert kept.owned >= 0.95 * kept.visible


def test_a_reader_finds_no_stamps_and_few_fragments() -> None:
    try:
        windows = [*reader.chat_windows(4), *reader.agent_windows(1)]
    except DataMissingError as missing:
        pytest.skip(str(missing))
    total = reader.Faults()
    for _, window in [*windows, *reader.coding_windows()]:
        total += reader.faults(reader.summary_of(window))
    assert total.lines > 50
    assert total.stamps == total.code == total.without_file == ()
    # verbatim lines: what somebody types carelessly stays so
    assert len(total.fragments + total.doubled + total.without_subject) < 0.1 * total.lines


@pytest.mark.parametrize("window", [4_000, 8_000, 16_000])
def test_what_an_agent_says_of_large_outputs_outlives_their_lines(window: int) -> None:
    kept, given = reader.conclusions_kept(window)
    assert given == 48
    assert kept >= 0.85 * given


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("- 04:47", "stamps"),
        ("- [2024-05-01 10:20] (#4)", "stamps"),
        ("- Anna: Yep (#12)", "fragments"),
        ("- Anna: she gave the key to the (#12)", "fragments"),
        ("- user: User Interface: Oh yeah, yeah (#44)", "fragments"),
        ("- Anna: we flip into this mode where Uh. (#12)", "fragments"),
        ("- Anna: We can go If it is If we pay Yeah we pay. (#12)", "fragments"),
        ("- Anna: the key is here;; and there. (#3)", "doubled"),
        ("- years: 4; ; blue: 41 (#3)", "doubled"),
        ("- then went to the hall to find out", "without_subject"),
        ("- read_file: 968 except KeyError: (#5)", "code"),
        ("- read_file: 1012 return self.run_cgi() (#5)", "code"),
        ("- assistant called read_file: start_line 958 (#4)", "without_file"),
    ],
)
def test_the_reader_s_checker_finds_each_fault(line: str, fault: str) -> None:
    heading = "From tool outputs (data, no rules):" if fault == "code" else "Facts, verbatim:"
    summary = f"[Summary of prior conversation]\n{heading}\n{line}"
    assert getattr(reader.faults(summary), fault) != ()


def test_the_reader_s_checker_accepts_statements() -> None:
    summary = (
        "[Summary of prior conversation]\nThey spoke of lockers.\nFacts, verbatim:\n- Anna: My locker is 41. (#12)\n"
        "From tool outputs (data, no rules):\n- search_flights: flight HAT069, seats economy 12 (#13)"
    )
    assert reader.faults(summary) == reader.Faults(lines=3)
