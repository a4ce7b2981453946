"""The command line: `ctxfold --help`. What it prints is text of conversations; control characters in it are left out."""

from __future__ import annotations

import sys
import warnings

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
    warnings.formatwarning = _in_one_line
    app()


def _in_one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning without the place in our own code from which it comes."""
    return f"warning: {message}\n"
