"""Typed use of the agent middleware: read by mypy and pyright, never run."""

from __future__ import annotations

from typing import Any, assert_type

from langchain_core.retrievers import BaseRetriever

from ctxfold import AgentContext
from ctxfold.follow import Line, Listed, Trail
from langchain_ctx import ContextMiddleware, section_from


def made(retriever: BaseRetriever, state: dict[str, Any]) -> None:
    middleware = ContextMiddleware(
        context_window=64_000,
        store="sqlite:///chat.db",
        history_tools=["read_message", "search_history"],
        sections=[section_from(retriever)],
        hard_ratio=0.8,
    )
    assert_type(middleware.context("t", owner="ann"), AgentContext)
    assert_type(middleware.context(state), AgentContext)
    assert_type(middleware.erase("t"), tuple[str, ...])
    middleware.close()


async def asynchronous(middleware: ContextMiddleware) -> None:
    assert_type(await middleware.aerase("t", owner="ann"), tuple[str, ...])
    await middleware.aclose()


async def followed(ctx: AgentContext, listed: Listed, left: Trail | None) -> None:
    line = ctx.follow(listed, left)
    assert_type(line, Line)
    assert_type(ctx.trail(line.key, listed), Trail)
    assert_type(await ctx.afollow(listed, left), Line)
    assert_type(Trail.from_dict(ctx.trail(line.key, listed).to_dict()), Trail | None)
