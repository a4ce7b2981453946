"""Defines a mutant: one change of one source file, with the tests that have to notice it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of `file` (below shared/ctxfold): `old`, which occurs once, becomes `new`.

    `tests` are node ids (below tests/) of which at least one has to fail then.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def of(file: str, *mutants: tuple[str, str, str, str]) -> tuple[Mutant, ...]:
    """Returns the mutants of one file from (name, old text, new text, node ids separated by spaces)."""
    return tuple(Mutant(name, file, old, new, tuple(tests.split())) for name, old, new, tests in mutants)


def mutated(mutant: Mutant, root: Path = ROOT) -> str:
    """Returns the text of the file with the change; raises ValueError unless the old text occurs exactly once."""
    text = (root / "shared" / "ctxfold" / mutant.file).read_text()
    count = text.count(mutant.old)
    if count != 1:
        raise ValueError(f"{mutant.name}: {mutant.old!r} occurs {count} times in {mutant.file}: correct tests/mutants/")
    return text.replace(mutant.old, mutant.new)


def problems(mutants: Iterable[Mutant]) -> list[str]:
    """Returns why mutants cannot be tried: a text that is gone, a change that is none, a test that does not exist."""
    found: list[str] = []
    for mutant in mutants:
        try:
            compile(mutated(mutant), mutant.file, "exec")
        except (OSError, ValueError, SyntaxError) as error:
            found.append(f"{mutant.name}: {error}")
        if mutant.old == mutant.new:
            found.append(f"{mutant.name}: nothing is changed")
        for node in mutant.tests:
            path, _, name = node.partition("::")
            source = ROOT / "tests" / path
            defined = name.split("::")[0]  # a method may be inherited from a suite
            if not source.is_file() or (defined and f" {defined}(" not in source.read_text()):
                found.append(f"{mutant.name}: there is no test {node}")
    return found
