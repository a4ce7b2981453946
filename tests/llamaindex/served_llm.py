"""`CtxLLM` on a scripted server over real sockets, asked in each of its ways, and two tools for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from ctxfold.testing import ModelServer
from llamaindex_ctx import CtxLLM

KEY = "sk-never-to-be-seen"
WAYS = ["chat", "achat", "stream_chat", "astream_chat"]
COMPLETE_WAYS = ["complete", "acomplete", "stream_complete", "astream_complete"]
HELLO = [ChatMessage(role="user", content="Hello?")]


@asynccontextmanager
async def stock_llm(server: ModelServer, **settings: Any) -> AsyncIterator[OpenAILike]:
    """LlamaIndex's own LLM on the server, with tools; its connections are closed at the end."""
    async with httpx.AsyncClient() as client:
        base = {"model": "m", "api_base": server.base_url, "api_key": "x", "context_window": 8_000}
        kind = {"is_chat_model": True, "is_function_calling_model": True, "async_http_client": client}
        yield OpenAILike(**{**base, **kind, **settings})


@asynccontextmanager
async def served(*replies: Any, settings: dict[str, Any] | None = None, **server_settings: Any) -> AsyncIterator[Any]:
    async with ModelServer(script=list(replies) or None, **server_settings) as server:
        base = {"model": "m", "base_url": server.base_url, "api_key": KEY, "context_window": 64_000}
        llm = CtxLLM(**{**base, **(settings or {})})
        try:
            yield llm, server
        finally:
            await llm.aclose()


async def ask(llm: CtxLLM, way: str, given: Any = HELLO, **options: Any) -> list[Any]:
    """All responses of one call, whichever form it has."""
    answer = getattr(llm, way)(given, **options)
    if way.startswith("a"):
        answer = await answer
    if "stream" not in way:
        return [answer]
    return [r async for r in answer] if way.startswith("a") else list(answer)


def kinds(response: ChatResponse) -> list[str]:
    return [block.block_type for block in response.message.blocks]


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def look(place: str) -> str:
    """Looks at a place."""
    return f"{place} is green"


ADD, LOOK = FunctionTool.from_defaults(add), FunctionTool.from_defaults(look)
