"""Implements the command line, `ctxfold --help`. Control characters in printed conversations are removed."""

from __future__ import annotations

import io
import sys
import warnings
from importlib.metadata import version

__all__ = ["main"]


def main() -> None:
    """Runs the command of `sys.argv` and ends the process with an exit code of docs/cli.md."""
    if sys.argv[1:] == ["--version"]:  # answered without the half second that the commands take to import
        print(f"ctxfold {version('ctxfold')}")
        return
    try:
        from ctxfold.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print('error: the command line needs two more packages: pip install "ctxfold[cli]"', file=sys.stderr)
        raise SystemExit(2) from None
    warnings.formatwarning = _in_one_line
    for stream in (sys.stdout, sys.stderr):
        # a pipe on Windows has a code page of 256 characters, and conversations have any
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()


def _in_one_line(message: Warning | str, *_: object, **__: object) -> str:
    """Formats a warning without its location in the source code."""
    return f"warning: {message}\n"
