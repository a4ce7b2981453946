"""Third parties' measures of compaction, each in an environment of its own: compaction-conformance-kit and maf-cachebench."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.data import DataMissingError
from tests.benchmarks.sheets import Cell, Sheet

__all__ = ["run"]

ROOT = Path(__file__).resolve().parents[2]
KIT, CACHEBENCH = "compaction-conformance-kit==0.8.0", "maf-cachebench==0.4.1"
NEWER = ("python3.12", "python3.13", "python3.14")  # that maf-cachebench takes


def run(*, quick: bool = False) -> list[Sheet]:
    options = ["--quick"] if quick else []
    kit = environment("conformance", KIT, sys.executable)
    sheets = [
        _kit_sheet("as the kit has them", _printed(kit, "conformance_kit", *options)),
        _kit_sheet("without the kit's markers", _printed(kit, "conformance_kit", "--stripped", *options)),
    ]
    newer = environment("cachebench", CACHEBENCH, _newer_python())
    return [*sheets, _cachebench_sheet(_printed(newer, "conformance_cachebench", *options))]


def environment(name: str, requirement: str | Sequence[str], python: str) -> Path:
    """Returns the interpreter of an environment with ctxfold and the packages, which is made where it is missing."""
    found = ROOT / ".venv" / name / "bin" / "python"
    if not found.exists():
        subprocess.run([python, "-m", "venv", str(found.parents[1])], check=True)
    wanted = [requirement] if isinstance(requirement, str) else requirement
    install = [str(found), "-m", "pip", "install", "--quiet", "-e", str(ROOT), *wanted]
    subprocess.run(install, check=True, stderr=subprocess.DEVNULL)
    return found


def _newer_python() -> str:
    if sys.version_info >= (3, 12):
        return sys.executable
    for name in NEWER:
        found = shutil.which(name)
        if found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
            return found
    raise DataMissingError(f"{CACHEBENCH} needs Python 3.12 or newer: put one of {', '.join(NEWER)} on the path")


def _printed(python: Path, module: str, *options: str) -> list[dict[str, Any]]:
    command = [str(python), "-m", f"tests.benchmarks.{module}", *options]
    found: list[dict[str, Any]] = json.loads(
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    )
    return found


def _kit_sheet(which: str, entries: list[dict[str, Any]]) -> Sheet:
    rows = [
        (
            f"{entry['budget_fraction']:.0%}",
            entry["compactor"],
            "yes" if entry["budget_compliant"] else "no",
            entry["randomized"]["overall_final_survival"],
            entry["randomized"]["final_median_by_type"]["hard_constraint"],
            f"{entry['semantic']['conflicts']['latest']} of {entry['semantic']['conflicts']['n']}",
            f"{entry['semantic']['conflicts']['stale']} of {entry['semantic']['conflicts']['n']}",
            entry["semantic"]["distinct_pair_rate"],
        )
        for entry in sorted(entries, key=lambda e: (e["budget_fraction"], e["compactor"]))
    ]
    return Sheet(
        f"{KIT}: canaries after five rounds, {which}",
        (
            "budget",
            "how",
            "keeps it",
            "survival",
            "hard constraints",
            "latest values",
            "stale values",
            "distinct pairs",
        ),
        tuple(rows),
        "Budgets in characters, as shares of the transcript; medians of the hard constraints. Latest and stale: updates in other "
        "words whose new and old value stand in the text.",
    )


def _cachebench_sheet(found: list[dict[str, Any]]) -> Sheet:
    rows: list[tuple[Cell, ...]] = [
        (
            row["name"],
            f"{row['facts']} of {row['of']}",
            round(row["cost"]),
            row["reused"] / row["sent"],
            row["largest"],
            "yes" if row["fits"] else "no",
        )
        for row in sorted(found, key=lambda r: (not r["fits"], -r["facts"], r["cost"]))
    ]
    return Sheet(
        f"{CACHEBENCH}: facts in the request that asks for them, and input cost, window of 32,000",
        ("how", "facts", "cost", "reused", "largest request", "fits"),
        tuple(rows),
        "Its recall scenario, its strategies that need no model, and its estimated tokens; a token in the prefix of whole messages "
        "costs a tenth.",
    )
