"""ctxfold for LlamaIndex: memory, LLM, wrapper, chat stores and message converters. Names load on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llamaindex_ctx.agent_tools import history_tools
    from llamaindex_ctx.backend import LlamaIndexBackend
    from llamaindex_ctx.blocks import CtxMemoryBlock
    from llamaindex_ctx.chat_store import CtxAsyncChatStore, CtxChatStore
    from llamaindex_ctx.instrumentation import SessionEvent
    from llamaindex_ctx.llm import CtxLLM
    from llamaindex_ctx.memory import CtxMemory
    from llamaindex_ctx.messages import from_chat_message, from_chat_messages, to_chat_message, to_chat_messages
    from llamaindex_ctx.reasoning import with_reasoning
    from llamaindex_ctx.retrieval import LlamaIndexEmbedder, section_from
    from llamaindex_ctx.store_registry import register_store
    from llamaindex_ctx.summarizer import LlmSummarizer
    from llamaindex_ctx.wrapper import ContextLLM, with_context

_WHERE = {
    "ContextLLM": "wrapper",
    "CtxAsyncChatStore": "chat_store",
    "CtxChatStore": "chat_store",
    "CtxLLM": "llm",
    "CtxMemory": "memory",
    "CtxMemoryBlock": "blocks",
    "LlamaIndexBackend": "backend",
    "LlamaIndexEmbedder": "retrieval",
    "LlmSummarizer": "summarizer",
    "SessionEvent": "instrumentation",
    "from_chat_message": "messages",
    "from_chat_messages": "messages",
    "history_tools": "agent_tools",
    "register_store": "store_registry",
    "section_from": "retrieval",
    "to_chat_message": "messages",
    "to_chat_messages": "messages",
    "with_context": "wrapper",
    "with_reasoning": "reasoning",
}

__all__ = [
    "ContextLLM",
    "CtxAsyncChatStore",
    "CtxChatStore",
    "CtxLLM",
    "CtxMemory",
    "CtxMemoryBlock",
    "LlamaIndexBackend",
    "LlamaIndexEmbedder",
    "LlmSummarizer",
    "SessionEvent",
    "from_chat_message",
    "from_chat_messages",
    "history_tools",
    "register_store",
    "section_from",
    "to_chat_message",
    "to_chat_messages",
    "with_context",
    "with_reasoning",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'llamaindex_ctx' has no attribute {name!r}")
    try:
        return getattr(import_module(f"llamaindex_ctx.{_WHERE[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "llama_index":
            raise
        from ctxfold.errors import MissingExtraError

        raise MissingExtraError('llamaindex_ctx needs llama-index-core: pip install "ctxfold[llamaindex]"') from error


def __dir__() -> list[str]:
    return sorted(__all__)
