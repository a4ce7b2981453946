"""docs/architecture.md and CONTRIBUTING.md name files, folders and commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATH = re.compile(r"`((?:[\w-]+/)*[\w-]+\.(?:py|md|json|toml|yaml)|(?:[\w-]+/)+)`")


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_path_that_the_page_names_exists(page: str) -> None:
    named = set(PATH.findall((ROOT / page).read_text(encoding="utf-8")))
    assert len(named) > 4
    places = (ROOT, ROOT / "shared/ctxfold")
    missing = {n for n in named if not any((p / n).exists() for p in places) and "NAME" not in n}
    assert missing <= {"request.py", "parse.py", "backend.py"}, "only a wire that does not exist yet has no folder"


def test_every_make_target_that_contributing_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    areas = {f"test-{p.name}" for p in (ROOT / "tests").iterdir() if p.is_dir()}
    named = set(re.findall(r"`?make ([a-z-]+)", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    assert {"setup", "test", "test-engine"} <= named
    assert named <= targets | areas


def test_every_area_of_the_tests_is_in_the_table() -> None:
    table = set(
        re.findall(
            r"`(\w+)`",
            (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Tests")[1].split("\nTests go")[0],
        )
    )
    folders = {p.name for p in (ROOT / "tests").iterdir() if p.is_dir() and any(p.glob("test_*.py"))}
    assert folders <= table


def test_every_layer_is_drawn() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    drawn = page.split("## The layers")[1].split("```")[1]
    package = ROOT / "shared/ctxfold"
    entries = {p.stem for p in package.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()}
    assert {e for e in entries if not e.startswith("_")} <= set(re.findall(r"\w+", drawn))
