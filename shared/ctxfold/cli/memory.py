"""Implements `ctxfold memory`: the memory items of an owner."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ctxfold.cli.common import (
    OWNER,
    AsJson,
    Name,
    Owner,
    StoreUrl,
    opened,
    output,
    print_json,
    print_result,
    session,
    shown,
    within,
)
from ctxfold.errors import ConfigError, MessageNotFoundError

memory = typer.Typer(help="List, add and forget the memory items of an owner.", no_args_is_help=True)
MOST = 1_000_000
RESERVED = frozenset({"kind", "text", "key", "shared", "confidence", "sources", "self"})


@memory.command("list")
def list_(
    store: StoreUrl,
    owner: Owner = OWNER,
    kind: Annotated[str | None, typer.Option("--kind", help="facts, corrections, persona, graph, ...")] = None,
    everything: Annotated[bool, typer.Option("--all", help="also replaced items")] = False,
    as_json: AsJson = False,
) -> None:
    """List memory items, newest first."""
    with within(as_json=as_json), opened(store) as place:
        items = place.memories(owner, kinds=None if kind is None else [kind], newest=MOST, everything=everything)
        items = tuple(item for item in items if not item.forgotten)
        if as_json:
            print_json([asdict(item) for item in items])
            return
        table = Table("id", "kind", "about", "text", "session", box=None)
        for item in items:
            text = f"{item.text} (replaced)" if item.superseded_by else item.text
            table.add_row(item.id[:8], item.kind, *(Text(shown(t)) for t in (item.key, text, item.session)))
        output().print(table if items else "nothing is remembered")


@memory.command()
def add(
    name: Name,
    kind: Annotated[str, typer.Argument(help="facts, corrections, persona, graph, trajectory, strategy, ...")],
    store: StoreUrl,
    text: Annotated[str, typer.Argument(help="the text that a model is shown")] = "",
    owner: Owner = OWNER,
    about: Annotated[str, typer.Option("--about", help="its subject; replaces the item with the same subject")] = "",
    data: Annotated[list[str] | None, typer.Option("--data", metavar="NAME=VALUE", help="such as subject=Ann")] = None,
    as_json: AsJson = False,
) -> None:
    """Add a memory item on behalf of session SESSION."""
    with within(as_json=as_json), session(store, name, owner) as context:
        added = context.memory.add(kind, text, key=about, **_named(data or ()))
        if as_json:
            print_json(asdict(added))
            return
        outcome = (
            f"replaced: {added.replaced.text}"
            if added.replaced is not None
            else "new"
            if added.new
            else "known already"
        )
        output().print(Text(f"{added.item.id[:8]} {shown(outcome)}"))


def _named(pairs: list[str] | tuple[str, ...]) -> dict[str, Any]:
    bare = next((pair for pair in pairs if "=" not in pair), None)
    if bare is not None:
        raise ConfigError(f"--data {bare!r}: give a name and a value, such as subject=Ann")
    reserved = next((pair for pair in pairs if pair.partition("=")[0] in RESERVED), None)
    if reserved is not None:
        raise ConfigError(f"--data {reserved!r}: that name is reserved: choose another one")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


@memory.command()
def forget(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="as `memory list` shows them, or in full")],
    store: StoreUrl,
    owner: Owner = OWNER,
    as_json: AsJson = False,
) -> None:
    """Forget items for good: their text is erased, and their sources do not bring them back."""
    with within(as_json=as_json), opened(store) as place:
        items = place.memories(owner, newest=MOST, everything=True)
        chosen: list[str] = []
        for start in ids:
            matches = [i.id for i in items if i.id.startswith(start) and not i.forgotten]
            if len(matches) != 1:
                raise MessageNotFoundError(
                    f"{len(matches)} items begin with {start!r}: look at `ctxfold memory list --all`"
                )
            chosen += matches
        forgotten = place.forget(owner, chosen)
        place.erase(())  # removes the text from the file as well
        payload = {"forgotten": [i.id for i in forgotten]}
        print_result(payload, f"forgotten: {len(forgotten)} items", as_json=as_json)
