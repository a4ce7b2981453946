"""Executes the notebooks and stores their outputs; with --check, only says whether they run."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 300


def without_services(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment without keys and endpoints of services, so that a notebook runs on its own test server."""
    return {k: v for k, v in environment.items() if not k.endswith("_API_KEY") and not k.startswith("CTXFOLD_")}


def run(path: Path, *, store: bool, environment: Mapping[str, str]) -> str | None:
    """Returns why the notebook failed in this environment, or None; `store` writes its outputs back."""
    import nbformat  # takes a second to import, which every worker of pytest would wait for
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT_S,
        kernel_name="python3",
        record_timing=False,  # times would change on every run
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute(env=dict(environment))
    except (CellExecutionError, TimeoutError, RuntimeError) as error:
        return str(error)
    text = nbformat.writes(notebook)
    for place in (str(ROOT), str(Path.home()) + "/"):
        if place in text:
            return f"an output names a folder of this machine ({place}): print relative paths"
    if store:
        path.write_text(text + "\n", encoding="utf-8")
    return None


def main() -> int:
    """0 if every notebook ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="store nothing")
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: every one in notebooks/")
    options = parser.parse_args()
    failed = 0
    paths = options.notebooks or sorted((ROOT / "notebooks").glob("*.ipynb"))
    for path in paths:
        start = time.monotonic()
        problem = run(path.resolve(), store=not options.check, environment=without_services(os.environ))
        failed += problem is not None
        print(f"{'FAILED' if problem else 'ok':6} {path.name} ({time.monotonic() - start:.1f} s)")
        if problem:
            print(problem)
    print(f"{len(paths) - failed} of {len(paths)} notebooks ran")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
