"""Implements `ctxfold mcp`: an MCP server over one owner's sessions, for any program that speaks the Model Context Protocol."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer

from ctxfold.cli.common import OWNER, Owner, StoreUrl, opened, within
from ctxfold.cli.owner_tools import INSTRUCTIONS, OwnerTools
from ctxfold.errors import ConfigError, CtxError

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

P = ParamSpec("P")


def mcp(
    store: StoreUrl,
    owner: Owner = OWNER,
    read_only: Annotated[bool, typer.Option("--read-only", help="offer no tool that changes anything")] = False,
    http: Annotated[
        int | None,
        typer.Option(
            "--http",
            min=1,
            max=65_535,
            metavar="PORT",
            help="serve http://127.0.0.1:PORT/mcp instead of stdin and stdout",
        ),
    ] = None,
) -> None:
    """Serve an owner's sessions to MCP clients: search, read, list_sessions, remember, pin, unpin."""
    with within(), opened(store) as place:
        server = mcp_server(OwnerTools(place, owner), read_only=read_only)
        if http is None:
            server.run("stdio")
        else:
            server.run("streamable-http", host="127.0.0.1", port=http)


def mcp_server(tools: OwnerTools, *, read_only: bool = False) -> MCPServer:
    """Returns the server. Raises ConfigError where the package `mcp` is missing or too old."""
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.types import ToolAnnotations
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise ConfigError('an MCP server needs one more package: pip install "ctxfold[mcp]"') from None
    server = MCPServer("ctxfold", instructions=INSTRUCTIONS, version=version("ctxfold"), log_level="WARNING")
    for tool in tools.reading:
        server.add_tool(_told(tool), annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
    for tool in () if read_only else tools.writing:
        server.add_tool(_told(tool), annotations=ToolAnnotations(destructive_hint=False, open_world_hint=False))
    return server


def _told(tool: Callable[P, str]) -> Callable[P, str]:
    """Returns the tool with its errors as answers that a model reads; other errors are the server's to hide."""
    from mcp.server.mcpserver.exceptions import ToolError

    @wraps(tool)
    def called(*args: P.args, **kwargs: P.kwargs) -> str:
        try:
            return tool(*args, **kwargs)
        except CtxError as error:
            raise ToolError(str(error)) from None

    return called
