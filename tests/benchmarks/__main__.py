"""Runs benchmarks by name, all by default."""

from __future__ import annotations

import argparse
import time
from importlib import import_module

from rich.console import Console

from tests.benchmarks import BENCHMARKS, SHOWS
from tests.benchmarks.data import DataMissingError

WIDTH = 160  # columns of a file or pipe


def main() -> None:
    known = (*BENCHMARKS, *SHOWS)
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, not how fast")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(known))
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}: choose from {', '.join(known)}")
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    for name in options.names or known:
        start = time.perf_counter()
        try:
            for sheet in import_module(f"tests.benchmarks.{name}").run(quick=options.quick):
                sheet.show(console)
        except DataMissingError as missing:
            console.print(f"{name}: not run: {missing}\n", highlight=False)
            continue
        console.print(f"{name}: {time.perf_counter() - start:.0f} s\n", highlight=False)


if __name__ == "__main__":
    main()
