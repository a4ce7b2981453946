"""Typed use of `llamaindex_ctx` around LLMs: read by mypy and pyright, never run."""

from __future__ import annotations

from typing import assert_type

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms.mock import MockLLM

from ctxfold import AgentContext, Event, Policy, Section
from llamaindex_ctx import CtxLLM, CtxMemory, LlmSummarizer, with_context, with_reasoning
from llamaindex_ctx.backend import LlamaIndexBackend
from llamaindex_ctx.instrumentation import SessionEvent
from llamaindex_ctx.retrieval import section_from
from llamaindex_ctx.wrapper import ContextLLM


def llms() -> None:
    own = CtxLLM(model="m", provider="deepseek", api_key="x")
    assert_type(with_reasoning(own), CtxLLM)
    assert_type(with_reasoning(MockLLM()), MockLLM)
    with with_context(own, session_id="s", store="sqlite://", context_window=8_000, hard_ratio=0.8) as chat:
        assert_type(chat, ContextLLM)
        assert_type(chat.at("t", owner="ann"), ContextLLM)
        assert_type(chat.context(), AgentContext)


def backends() -> None:
    AgentContext(LlamaIndexBackend(MockLLM()), context_window=100, summarizer=LlmSummarizer(MockLLM()))


def sections(retriever: BaseRetriever) -> None:
    assert_type(section_from(retriever, kind="handbook", limit=3, lifetime="request"), Section)


def told(event: SessionEvent) -> str:
    happened: Event = event.event
    return f"{event.session} {event.name} {happened.session}"


def settings(whole: Policy) -> None:
    with_context(MockLLM(), policy=whole, keep_last=4, strategy="truncate")
    CtxMemory.from_defaults("s", policy=whole, reply_reserve_tokens=500)
    with_context(MockLLM(), hard_rati=0.8)  # type: ignore[call-arg]
    with_context(MockLLM(), hard_ratio="most")  # type: ignore[arg-type]
    with_context(MockLLM(), session="s")  # type: ignore[call-arg]
    CtxMemory.from_defaults("s", keep_last="all")  # type: ignore[arg-type]
    CtxMemory.from_defaults("s", keep_lst=4)  # type: ignore[call-arg]
