"""Assembles the commands of the command line."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from ctxfold.cli.mcp import mcp
from ctxfold.cli.reading import doctor, inspect, search, sessions, show, watch, window
from ctxfold.cli.ui import ui
from ctxfold.cli.writing import compact, erase, export, fork, import_, memory, prune, undo

app = typer.Typer(
    name="ctxfold",
    help="Inspect, search and change the conversations that ctxfold keeps in a store.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
reading = (sessions, show, window, search, inspect)
writing = (compact, undo, fork, export, import_, erase, prune)
for command in (*reading, *writing, watch, ui, mcp, doctor):
    app.command(command.__name__.rstrip("_"))(command)
app.add_typer(memory, name="memory")


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"ctxfold {version('ctxfold')}")
        raise typer.Exit


@app.callback()
def describe(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Inspect, search and change the conversations that ctxfold keeps in a store."""
