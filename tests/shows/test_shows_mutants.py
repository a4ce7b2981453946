"""The list of mutants fits the sources, so that `python -m tests.mutants` can try them all."""

from __future__ import annotations

from tests.mutants import MUTANTS
from tests.mutants.mutant import problems


def test_every_mutant_can_be_tried() -> None:
    assert problems(MUTANTS) == []
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 1_000
