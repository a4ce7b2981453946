"""A route of the program's own beside the server's: it erases what is stored of a thread, which the server cannot know of."""

from __future__ import annotations

from agent import fitting  # pyright: ignore[reportMissingImports] - the server imports this folder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

__all__ = ["app"]


async def erase(request: Request) -> JSONResponse:
    """Erases the sessions of a thread: `DELETE /threads/{thread}/context`, beside the server's own deletion of the thread."""
    names = await fitting.aerase(request.path_params["thread"])
    return JSONResponse({"erased": names})


app = Starlette(routes=[Route("/threads/{thread}/context", erase, methods=["DELETE"])])
