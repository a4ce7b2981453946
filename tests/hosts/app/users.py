"""Names the user of a request by its header, and keeps the threads of users apart, as LangGraph's documentation shows it."""

from __future__ import annotations

from typing import Any

from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
async def user(headers: dict[bytes, bytes]) -> str:
    name = headers.get(b"x-user", b"").decode()
    if not name:
        raise Auth.exceptions.HTTPException(status_code=401, detail="no user")
    return name


@auth.on
async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> dict[str, Any]:
    value.setdefault("metadata", {})["user"] = ctx.user.identity
    return {"user": ctx.user.identity}


@auth.on.assistants
async def everyone(ctx: Auth.types.AuthContext, value: Any) -> bool:
    return True
