"""The commands, gathered from the modules that hold them."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from ctxfold.cli import reading, writing
from ctxfold.cli.remembering import memory

__all__ = ["app"]

app = typer.Typer(
    name="ctxfold",
    help="Look at, search and change the conversations that ctxfold keeps in a store.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    reading.sessions,
    reading.show,
    reading.window,
    reading.search,
    reading.inspect,
    writing.compact,
    writing.undo,
    writing.fork,
    writing.export,
    writing.import_,
    writing.erase,
):
    app.command(command.__name__.rstrip("_"))(command)
app.add_typer(memory, name="memory")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ctxfold {version('ctxfold')}")
        raise typer.Exit


@app.callback()
def describe(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="say which one it is")
    ] = False,
) -> None:
    """Look at, search and change the conversations that ctxfold keeps in a store."""
