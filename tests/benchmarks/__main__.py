"""Runs benchmarks by name, all by default; `against COMMIT [name ...]` compares times with another commit."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.benchmarks import BENCHMARKS, SHOWS
from tests.benchmarks.against import COMPARED, compare, worktree
from tests.benchmarks.data import DataMissingError

WIDTH = 160  # columns of a file or pipe


def main() -> None:
    known = (*BENCHMARKS, *SHOWS)
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, not how fast")
    parser.add_argument("--rounds", type=int, default=4, help="against: runs of each tree (default: 4)")
    asking = parser.add_argument_group("answers", "the model that answers, and where its answers are kept")
    asking.add_argument("--base-url", help="of a server that speaks OpenAI's chat completions")
    asking.add_argument("--model")
    asking.add_argument(
        "--results", default="answers.jsonl", help="JSON lines; a restart goes on (default: answers.jsonl)"
    )
    asking.add_argument("--questions", type=int, default=60, help="of each set (default: 60)")
    options = parser.parse_args()
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    if options.names[:1] == ["against"]:
        if len(options.names) < 2:
            parser.error("against which commit?")
        known = tuple(COMPARED)
        commit, names = options.names[1], options.names[2:]
    else:
        commit, names = None, options.names
    unknown = sorted(set(names) - set(known))
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}: choose from {', '.join(known)}")
    if commit is None:
        answering = {name: getattr(options, name) for name in ("base_url", "model", "results", "questions")}
        _show(console, names or known, answering, quick=options.quick)
        return
    here = Path(__file__).resolve().parents[2]
    with worktree(here, commit) as before:
        for name in names or known:
            for sheet in compare(before, here, name, rounds=options.rounds, quick=options.quick):
                sheet.show(console)


def _show(console: Console, names: Sequence[str], answering: dict[str, Any], *, quick: bool) -> None:
    for name in names:
        settings = answering if name == "answers" else {}
        start = time.perf_counter()
        try:
            for sheet in import_module(f"tests.benchmarks.{name}").run(quick=quick, **settings):
                sheet.show(console)
        except DataMissingError as missing:
            console.print(f"{name}: not run: {missing}\n", highlight=False)
            continue
        console.print(f"{name}: {time.perf_counter() - start:.0f} s\n", highlight=False)


if __name__ == "__main__":
    main()
