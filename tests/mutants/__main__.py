"""Breaks the engine on purpose, one place at a time, and reports which of the breaks its tests do not notice.

`python -m tests.mutants [NAME ...] [--workers 2]`, where a name is that of a mutant or of an area, copies the source tree once for
each worker. For each mutant it applies the change to a copy, runs the tests that have to notice it, and takes the change back. The
exit code is 1 when fewer than 95 % of the mutants are killed, or when one cannot be tried.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, TypeAlias

from tests.mutants import AREAS, MUTANTS
from tests.mutants.mutant import ROOT, Mutant, mutated, problems
from tests.mutants.serve import TIMED_OUT, TestServer

LEFT_OUT = (".*", "__pycache__", "build", "dist", "site")  # of the tree that is copied
SHARE = 0.95  # of the mutants that have to be killed
TIMEOUT_S = 300.0  # a mutant that hangs counts as killed
Result: TypeAlias = Literal["killed", "survived", "not tried"]


def _copied(to: Path) -> Path:
    """Copies the tree and compiles it, so that a run compiles only what its mutant changes; returns the folder."""
    shutil.copytree(ROOT, to, ignore=shutil.ignore_patterns(*LEFT_OUT))
    (to / ".git").write_text(f"gitdir: {ROOT / '.git'}\n")  # an older release is built from the history
    for name in ("shared", "langchain_ctx", "llamaindex_ctx", "tests/support"):
        compileall.compile_dir(to / name, quiet=2)
    return to


def _try(mutant: Mutant, root: Path, server: TestServer) -> tuple[Result, str]:
    """Returns what became of a mutant in the copy at `root`, with the last lines of the tests' output."""
    path = root / "shared" / "ctxfold" / mutant.file
    original, times = path.read_bytes(), path.stat()
    try:
        path.write_text(mutated(mutant, root), encoding="utf-8")
        code, output = server.run(mutant.tests, TIMEOUT_S)
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # what was compiled from it is valid again
    if code == TIMED_OUT:
        return "killed", f"by the time-out of {TIMEOUT_S:g} s"
    lines = output.strip().splitlines() or [""]
    last = next((line for line in lines if line.startswith("FAILED")), lines[-1])
    results: dict[int, Result] = {0: "survived", 1: "killed"}
    return results.get(code, "not tried"), last


def _check_unchanged(mutants: Sequence[Mutant], server: TestServer) -> None:
    """Exits unless the tests pass without any change: a test that fails anyway kills nothing."""
    code, output = server.run(sorted({test for mutant in mutants for test in mutant.tests}))
    if code:
        sys.exit(f"the tests do not pass on the unchanged sources:\n{output[-4_000:]}")


def _results(mutants: Sequence[Mutant], workers: int) -> Iterator[tuple[Mutant, Result, str]]:
    """Tries the mutants, as many at once as there are workers; yields what became of them in their order."""
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        roots = [_copied(Path(folder, str(number))) for number in range(workers)]
        servers = [TestServer(root) for root in roots]
        copies: SimpleQueue[tuple[Path, TestServer]] = SimpleQueue()
        for copy in zip(roots, servers, strict=True):
            copies.put(copy)

        def tried(mutant: Mutant) -> tuple[Mutant, Result, str]:
            copy = copies.get()
            try:
                return mutant, *_try(mutant, *copy)
            finally:
                copies.put(copy)

        try:
            _check_unchanged(mutants, servers[0])
            with ThreadPoolExecutor(workers) as pool:
                yield from pool.map(tried, mutants)
        finally:
            for server in servers:
                server.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants or areas to try (default: all)")
    parser.add_argument("--workers", type=int, default=2, help="mutants tried at once (default: 2)")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - {m.name for m in MUTANTS} - AREAS.keys())
    if unknown:
        parser.error(f"there is no mutant or area {', '.join(unknown)}")
    names = {*options.names, *(m.name for area in AREAS.keys() & set(options.names) for m in AREAS[area])}
    chosen = [m for m in MUTANTS if not names or m.name in names]
    if wrong := problems(chosen):
        sys.exit("\n".join(wrong))
    start = time.monotonic()
    results: list[Result] = []
    for mutant, result, line in _results(chosen, options.workers):
        results.append(result)
        print(f"{result:9} {mutant.file:26} {mutant.name}: {line}"[:200], flush=True)
    killed = results.count("killed")
    print(f"{killed} of {len(results)} killed ({killed / len(results):.0%}) in {time.monotonic() - start:.0f} s")
    return 0 if killed >= SHARE * len(results) and "not tried" not in results else 1


if __name__ == "__main__":
    sys.exit(main())
