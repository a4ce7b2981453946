"""Benchmarks of two trees side by side: each tree runs its own code, and the table has the times of both."""

from __future__ import annotations

import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from tests.benchmarks.against import COMPARED, TreesDifferError, compare, worktree

BENCHMARK = """
from types import SimpleNamespace
from engine import TIME

SIZES, PEER_SIZES = (1, 2, 3), (1,)

def run(*, quick):
    print("a line of a library")
    rows = [("turn", size, "-" if size == 400 else TIME * size, "2 x") for size in (SIZES if not quick else (100, 400))]
    columns = ("name", "size", "ms", "ratio")
    return [SimpleNamespace(title=title, columns=columns, rows=rows) for title, rows in (("Time", rows), ("Peers", []))]
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Returns a repository whose last commit takes 2 ms where the working tree takes 1 ms."""
    tree = tmp_path / "repository"
    for folder in ("shared", "tests/benchmarks"):
        (tree / folder).mkdir(parents=True)
    (tree / "tests/benchmarks/per_turn.py").write_text(BENCHMARK)
    (tree / "tests/benchmarks/__init__.py").touch()
    engine = tree / "shared/engine.py"
    engine.write_text("TIME = 2.0")
    who = ["-c", "user.name=a", "-c", "user.email=a@b.invalid"]
    for command in (["init", "--quiet"], ["add", "."], [*who, "commit", "--quiet", "-m", "First"]):
        subprocess.run(["git", "-C", str(tree), *command], check=True)
    engine.write_text("TIME = 1.0  # changed")
    return tree


def test_both_trees_run_their_own_code(repository: Path) -> None:
    with worktree(repository, "HEAD") as before:
        (sheet,) = compare(before, repository, "per_turn", rounds=2)
        (quick,) = compare(before, repository, "per_turn", rounds=1, quick=True)
    assert not before.exists()
    assert sheet.rows == (
        ("turn, 1000", "ms", 2_000.0, 1_000.0, "0.50 x", "0.50 x"),
        ("turn, 10000", "ms", 20_000.0, 10_000.0, "0.50 x", "0.50 x"),
    )
    assert quick.rows == (("turn, 100", "ms", 200.0, 100.0, "0.50 x", "0.50 x"),)


def test_tables_of_other_shapes_are_refused(repository: Path) -> None:
    with worktree(repository, "HEAD") as before:
        benchmark = repository / "tests/benchmarks/per_turn.py"
        benchmark.write_text(BENCHMARK.replace("(SIZES if", "((*SIZES, 5) if"))
        with pytest.raises(TreesDifferError, match="'Time' of per_turn has 2 rows before and 3 now"):
            compare(before, repository, "per_turn", rounds=1)
        benchmark.write_text(BENCHMARK.replace('"Time"', '"Hours"').replace('"Peers"', '"Others"'))
        with pytest.raises(TreesDifferError, match=r"no table of per_turn in common.*Peers.*Hours"):
            compare(before, repository, "per_turn", rounds=1)


def test_a_table_that_only_one_tree_has_is_named(repository: Path) -> None:
    with worktree(repository, "HEAD") as before:
        benchmark = repository / "tests/benchmarks/per_turn.py"
        benchmark.write_text(BENCHMARK.replace('("Peers", [])', '("Further wires", rows), ("Peers", [])'))
        (sheet,) = compare(before, repository, "per_turn", rounds=1)
    assert sheet.title == "per_turn: Time"
    assert "Only one tree has: Further wires." in sheet.note


@pytest.mark.parametrize("name", COMPARED)
def test_the_constants_that_are_set_exist(name: str) -> None:
    module = import_module(f"tests.benchmarks.{name}")
    for constant, value in COMPARED[name].items():
        assert set(value) <= set(getattr(module, constant))
