"""Runs peers of other projects: `python -m tests.partners [NAME ...]`, all of them by default.

Each runs in the environment .venv/partners/NAME, which has ctxfold and the packages of NAME.txt, the newest that pip finds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


def environment(name: str) -> Path:
    """Returns the interpreter of the peer's environment, which is made or brought up to date."""
    folder = ROOT / ".venv" / "partners" / name
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True, symlinks=True)
    install = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--upgrade",
        "-e",
        str(ROOT),
        "-r",
        str(HERE / f"{name}.txt"),
    ]
    subprocess.run(install, check=True, stderr=subprocess.DEVNULL)
    return python


def main(names: list[str]) -> int:
    known = sorted(path.stem for path in HERE.glob("*.txt"))
    if unknown := sorted(set(names) - set(known)):
        sys.exit(f"there is no peer {', '.join(unknown)}: use {', '.join(known)}")
    failed: list[str] = []
    for name in names or known:
        begun = time.monotonic()
        run = [str(environment(name)), "-c", f"from tests.partners.{name} import main; main()"]
        code = subprocess.run(run, cwd=ROOT, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, check=False).returncode
        print(f"{'ok    ' if code == 0 else 'FAILED'} {name} in {time.monotonic() - begun:.0f} s", flush=True)
        failed += [name] if code else []
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
