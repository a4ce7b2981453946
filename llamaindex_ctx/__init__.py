"""ctxfold for LlamaIndex: memory, LLM, wrapper, chat stores and message converters. Names load on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llamaindex_ctx.agent_tools import history_tools as history_tools
    from llamaindex_ctx.backend import LlamaIndexBackend as LlamaIndexBackend
    from llamaindex_ctx.blocks import CtxMemoryBlock as CtxMemoryBlock
    from llamaindex_ctx.chat_store import CtxAsyncChatStore as CtxAsyncChatStore
    from llamaindex_ctx.chat_store import CtxChatStore as CtxChatStore
    from llamaindex_ctx.instrumentation import SessionEvent as SessionEvent
    from llamaindex_ctx.llm import CtxLLM as CtxLLM
    from llamaindex_ctx.memory import CtxMemory as CtxMemory
    from llamaindex_ctx.messages import from_chat_message as from_chat_message
    from llamaindex_ctx.messages import from_chat_messages as from_chat_messages
    from llamaindex_ctx.messages import to_chat_message as to_chat_message
    from llamaindex_ctx.messages import to_chat_messages as to_chat_messages
    from llamaindex_ctx.reasoning import with_reasoning as with_reasoning
    from llamaindex_ctx.retrieval import LlamaIndexEmbedder as LlamaIndexEmbedder
    from llamaindex_ctx.retrieval import section_from as section_from
    from llamaindex_ctx.store_registry import register_store as register_store
    from llamaindex_ctx.summarizer import LlmSummarizer as LlmSummarizer
    from llamaindex_ctx.wrapper import ContextLLM as ContextLLM
    from llamaindex_ctx.wrapper import with_context as with_context

# fmt: off
_NAMES: dict[str, tuple[str, ...]] = {  # by the module that defines them
    "agent_tools": ("history_tools",),
    "backend": ("LlamaIndexBackend",),
    "blocks": ("CtxMemoryBlock",),
    "chat_store": ("CtxAsyncChatStore", "CtxChatStore"),
    "instrumentation": ("SessionEvent",),
    "llm": ("CtxLLM",),
    "memory": ("CtxMemory",),
    "messages": ("from_chat_message", "from_chat_messages", "to_chat_message", "to_chat_messages"),
    "reasoning": ("with_reasoning",),
    "retrieval": ("LlamaIndexEmbedder", "section_from"),
    "store_registry": ("register_store",),
    "summarizer": ("LlmSummarizer",),
    "wrapper": ("ContextLLM", "with_context"),
}
# fmt: on
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll] - it takes the names of the imports above


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'llamaindex_ctx' has no attribute {name!r}")
    try:
        return getattr(import_module(f"llamaindex_ctx.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "llama_index":
            raise
        from ctxfold.errors import MissingExtraError

        raise MissingExtraError('llamaindex_ctx needs llama-index-core: pip install "ctxfold[llamaindex]"') from error


def __dir__() -> list[str]:
    return sorted(__all__)
