"""Typed use of the LangChain face: read by mypy and pyright, never run."""

from __future__ import annotations

from typing import Any, assert_type

from langchain.chat_models import init_chat_model
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage, trim_messages
from langchain_core.retrievers import BaseRetriever

from ctxfold import AgentContext, Section
from ctxfold.adapters.summaries import SummaryWriter
from ctxfold.compaction.summarize import Summary
from langchain_ctx import (
    ContextMiddleware,
    ContextNode,
    ContextSummarizer,
    CtxChatMessageHistory,
    section_from,
    token_counter,
    with_context,
    with_reasoning,
)
from langchain_ctx.history import aexport_history, aimport_history, export_history, import_history
from langchain_ctx.wrapper import ConfigurableContextModel


def node(messages: list[BaseMessage], model: BaseChatModel) -> None:
    with ContextNode(context_window=8_000, summarizer=model, overhead_tokens=100, hard_ratio=0.8) as fit:
        chain = fit | model
        chain.invoke(messages, config={"configurable": {"session_id": "s"}})
        assert_type(fit.context("s"), AgentContext)


def plugged_in(messages: list[BaseMessage], model: BaseChatModel) -> None:
    counter = token_counter(model, tools=[{"name": "look"}])
    assert_type(counter(messages), int)
    trim_messages(messages, max_tokens=100, token_counter=counter)
    summarizer = ContextSummarizer(model, context_window=8_000, on_summary=lambda s: assert_type(s, Summary))
    assert_type(summarizer.invoke([HumanMessage("hello")]), str)
    assert_type(SummaryWriter(context_window=8_000).counter.count_text("hello"), int)


def wrapped(model: BaseChatModel, retriever: BaseRetriever) -> None:
    assert_type(section_from(retriever, lifetime="request", share=0.1), Section)
    chat = with_context(model, session_id="s", context_window=8_000, sections=[section_from(retriever)])
    assert_type(chat.context(), AgentContext)
    assert_type(with_reasoning(model), BaseChatModel)
    ContextMiddleware(context_window=8_000).close()
    ContextMiddleware(summarizer="openai:gpt-5-mini").close()


def chosen_per_call() -> None:
    chat = with_context(init_chat_model("openai:gpt-5-mini", configurable_fields=("model",)), session_id="s")
    assert_type(chat, ConfigurableContextModel)
    assert_type(chat.bind_tools([]), ConfigurableContextModel)
    assert_type(chat.context(), AgentContext)


def histories(old: BaseChatMessageHistory) -> None:
    def mirror(session: str, owner: str) -> BaseChatMessageHistory:
        return old

    with CtxChatMessageHistory.factory(store="sqlite:///chat.db", context_window=8_000, mirror=mirror) as factory:
        history = factory("s", owner="ann")
        assert_type(history, CtxChatMessageHistory)
        assert_type(import_history(old, history.context), int)
        assert_type(export_history(history.context, old), int)


async def in_async_code(old: BaseChatMessageHistory, context: AgentContext) -> None:
    assert_type(await aimport_history(old, context), int)
    assert_type(await aexport_history(context, old), int)
    async with ContextNode(context_window=8_000) as fit:
        result: Any = await fit.ainvoke([HumanMessage("hello")])
        assert isinstance(result, list)
