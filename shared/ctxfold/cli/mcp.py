"""Implements `ctxfold mcp`: an MCP server over one owner's sessions, for any program that speaks the Model Context Protocol."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Annotated, Any, ParamSpec

import typer

from ctxfold.cli.common import OWNER, Owner, StoreUrl, opened, within
from ctxfold.cli.owner_tools import INSTRUCTIONS, OwnerTools
from ctxfold.errors import ConfigError, CtxError

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
    """Serve an owner's sessions to MCP clients: search, read, list_sessions, remember, pin, unpin.

    Example: ctxfold mcp --read-only
    """
    with within(), opened(store) as place:
        server = mcp_server(OwnerTools(place, owner), read_only=read_only)
        if http is None:
            server.run("stdio")
        elif hasattr(server.settings, "port"):  # mcp 1
            server.settings.port = http
            server.run("streamable-http")
        else:
            server.run("streamable-http", host="127.0.0.1", port=http)


def mcp_server(tools: OwnerTools, *, read_only: bool = False) -> Any:
    """Returns the server: `MCPServer` of mcp 2, `FastMCP` of mcp 1. Raises ConfigError where the package `mcp` is missing."""
    try:
        from mcp.types import ToolAnnotations

        two = find_spec("mcp.server.mcpserver") is not None
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise ConfigError('an MCP server needs one more package: pip install "ctxfold[mcp]"') from None
    home = import_module("mcp.server.mcpserver" if two else "mcp.server.fastmcp")
    named: dict[str, Any] = {"instructions": INSTRUCTIONS, "log_level": "WARNING"}
    server: Any = (
        home.MCPServer("ctxfold", version=version("ctxfold"), **named) if two else home.FastMCP("ctxfold", **named)
    )
    hints = [(tool, {"readOnlyHint": True}) for tool in tools.reading]
    hints += [] if read_only else [(tool, {"destructiveHint": False}) for tool in tools.writing]
    for tool, hint in hints:
        annotations = ToolAnnotations.model_validate({**hint, "openWorldHint": False})
        # text alone: with structured content beside it a client shows each answer twice
        server.add_tool(_told(tool, home.exceptions.ToolError), annotations=annotations, structured_output=False)
    return server


def _told(tool: Callable[P, str], tool_error: type[Exception]) -> Callable[P, str]:
    """Returns the tool with its errors as answers that a model reads; other errors are the server's to hide."""

    @wraps(tool)
    def called(*args: P.args, **kwargs: P.kwargs) -> str:
        try:
            return tool(*args, **kwargs)
        except CtxError as error:
            raise tool_error(str(error)) from None

    return called
