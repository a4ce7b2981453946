"""The command line: `ctxfold --help`. What it prints is text of conversations; control characters in it are left out."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command of `sys.argv`; ends the process with the exit codes of docs/cli.md."""
    try:
        from ctxfold.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print('error: the command line needs two more packages: pip install "ctxfold[cli]"', file=sys.stderr)
        raise SystemExit(2) from None
    app()
