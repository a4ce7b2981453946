"""Assembles the commands of the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ctxfold.cli.mcp import mcp
from ctxfold.cli.reading import diff, doctor, inspect, search, sessions, show, watch, why, window
from ctxfold.cli.ui import ui
from ctxfold.cli.writing import compact, erase, export, fork, import_, memory, pin, policy, prune, undo

GROUPS: Mapping[str, Sequence[Callable[..., None]]] = {
    "Read": (sessions, show, search, window, why, diff, inspect, watch),
    "Change": (compact, undo, pin, policy, fork, erase, prune),
    "Files": (export, import_),
    "Serve and check": (ui, mcp, doctor),
}


class Grouped(TyperGroup):
    """Lists the commands by what they are for, each with the example that ends its help; no line is cut."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        groups = {title: [command.__name__.rstrip("_") for command in group] for title, group in GROUPS.items()}
        for title, names in {**groups, "Memory": ["memory"]}.items():
            rows: list[tuple[str, str]] = []
            for name in names:
                summary, *_, example = (self.commands[name].help or "").split("\n\n")
                rows += [(name, summary), ("", example)]
            with formatter.section(title):
                formatter.write_dl(rows)


app = typer.Typer(
    name="ctxfold",
    cls=Grouped,
    subcommand_metavar="COMMAND",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in chain.from_iterable(GROUPS.values()):
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
