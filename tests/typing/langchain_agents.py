"""Typed use of the agent middleware: read by mypy and pyright, never run."""

from __future__ import annotations

from typing import Any, assert_type

from langchain_core.language_models import BaseChatModel
from langchain_core.retrievers import BaseRetriever

from ctxfold import AgentContext
from ctxfold.engine.attach import Attachment
from ctxfold.history.diff import Cursor, IncomingList
from langchain_ctx import (
    ContextMiddleware,
    ContextNode,
    CtxChatMessageHistory,
    section_from,
    with_context,
)


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


async def followed(ctx: AgentContext, listed: IncomingList, left: Cursor | None) -> None:
    line = ctx.handle.follow(listed, left)
    assert_type(line, Attachment)
    assert_type(ctx.handle.cursor_at(line.key, listed), Cursor)
    assert_type(await ctx.handle.afollow(listed, left), Attachment)
    assert_type(Cursor.from_dict(ctx.handle.cursor_at(line.key, listed).to_dict()), Cursor | None)


def misspelt(model: BaseChatModel) -> None:
    ContextMiddleware(context_window=8_000, hard_rati=0.8)  # type: ignore[call-arg]
    ContextMiddleware(context_window=8_000, hard_ratio="most")  # type: ignore[arg-type]
    ContextNode(context_window=8_000, session="s")  # type: ignore[call-arg]
    ContextNode(context_window=8_000, keep_last="all")  # type: ignore[arg-type]
    with_context(model, session_id="s", sectoins=[])  # type: ignore[call-overload]
    CtxChatMessageHistory("s", context_window=8_000, summary_tokens="few")  # type: ignore[arg-type]
    CtxChatMessageHistory.factory(context_window=8_000, memry=())  # type: ignore[call-arg]
