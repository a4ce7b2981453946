"""The picture of the README is what its script draws, and says what a session holds."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from examples import window_chart
from examples.demo.story import load_story


def test_the_stored_picture_is_what_the_script_draws(tmp_path: Path) -> None:
    drawn = tmp_path / "window.svg"
    assert window_chart.main([str(drawn)]) == 0
    assert drawn.read_text(encoding="utf-8") == window_chart.CHART.read_text(encoding="utf-8"), (
        "python -m examples.window_chart draws it again"
    )
    title, description = list(ET.parse(drawn).getroot())[:2]
    assert title.tag.endswith("title")
    assert "no longer fits" in str(description.text)


def test_the_window_stays_below_its_limit_and_holds_the_facts_that_are_asked_for() -> None:
    measured = window_chart.measure(load_story())
    assert len(measured.zones) == len(measured.whole) == 60
    assert max(sum(zones) for zones in measured.zones) <= measured.context_window
    assert measured.whole[measured.first_refused - 1] > measured.context_window
    assert measured.whole[measured.first_refused - 2] <= measured.context_window
    assert measured.found_facts >= 20 > 5 >= measured.trimmed_facts
