"""Implements `ctxfold ui`: a live page on loopback over a store. It changes nothing but pins, and undoes on request."""

from __future__ import annotations

from typing import Annotated

import typer

from ctxfold.cli.common import OWNER_VARIABLE, StoreUrl, checked_owner, opened, output, within
from ctxfold.errors import ConfigError


def ui(
    store: StoreUrl,
    owner: Annotated[
        str | None,
        typer.Option("--owner", envvar=OWNER_VARIABLE, callback=checked_owner, help="show only this owner's sessions"),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="port of 127.0.0.1; 0 takes a free one")] = 0,
) -> None:
    """Serve a live page over a store: the window of each turn, and why a message is in it or not. Ctrl-C ends it.

    It opens for whoever has the printed address, on this machine alone.

    Example: ctxfold ui
    """
    with within(), opened(store) as place:
        try:
            from ctxfold.cli.ui_server import serve
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("anyio", "starlette", "uvicorn"):
                raise
            raise ConfigError('the page needs two more packages: pip install "ctxfold[ui]"') from None
        serve(place, owner, port, lambda address: output().print(f"open {address}", style=None))
