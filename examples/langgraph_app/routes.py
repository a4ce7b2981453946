"""Routes that `langgraph.json` adds to the server: one erases what is stored of a thread, as deleting the thread does not.

`DELETE /memory/THREAD`. With authentication the server sets `request.user`, and only that user's thread is erased.
"""

from __future__ import annotations

from agent import fitting  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

__all__ = ["app"]


async def erase(request: Request) -> JSONResponse:
    owner = request.user.identity if "user" in request.scope else None
    removed = await fitting.aerase(request.path_params["thread"], owner=owner)
    return JSONResponse({"removed": list(removed)})


app = Starlette(routes=[Route("/memory/{thread}", erase, methods=["DELETE"])])
