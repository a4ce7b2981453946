"""The plots of the pages show the figures of their tables, as stored, and are described in words."""

from __future__ import annotations

import re
import runpy
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
IMAGE = re.compile(r"!\[([^\]]*)\]\(images/([\w-]+)\.svg\)")
PAGES = ("comparison.md", "context-quality.md")


@pytest.fixture(scope="module")
def plots() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "plots.py"))


def test_the_stored_plots_are_those_of_the_tables(plots: dict[str, Any]) -> None:
    assert plots["main"](["--check"]) == 0, "python docs/plots.py draws them again"


def test_every_plot_is_on_a_page_and_described_there(plots: dict[str, Any]) -> None:
    described = {name: alt for page in PAGES for alt, name in IMAGE.findall((DOCS / page).read_text(encoding="utf-8"))}
    assert set(described) == {*plots["PLOTS"], "window"}
    assert [name for name, alt in described.items() if len(alt) < 100] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_figures_of_a_description_stand_on_its_page(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    rest = IMAGE.sub("", text)
    for alt, name in IMAGE.findall(text):
        missing = [n for n in re.findall(r"\d[\d,]*\.?\d*|\.\d+", alt) if n.rstrip(",.") not in rest]
        assert name == "window" or missing == []


def test_the_bars_are_as_long_as_their_figures(plots: dict[str, Any]) -> None:
    prefix = ET.fromstring(plots["PLOTS"]["prefix"]().svg())
    bars = [r for r in prefix.iter("{http://www.w3.org/2000/svg}rect") if r.get("height") == str(plots["BAR"])]
    widths = [float(r.attrib["width"]) for r in bars if r.get("fill") in (plots["LIGHT"], plots["BLUE"])]
    reused, new = widths[0], widths[1]
    assert reused / (reused + new) == pytest.approx(0.867, abs=0.002)
    assert sum(widths[4:]) == pytest.approx(plots["WIDTH"] - plots["LEFT"] - plots["RIGHT"], abs=0.2)
