"""ctxfold for LlamaIndex: memory, LLM, wrapper, chat stores and message converters. Names load on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llamaindex_ctx.blocks import CtxMemoryBlock as CtxMemoryBlock
    from llamaindex_ctx.chat_store import CtxChatStore as CtxChatStore
    from llamaindex_ctx.llm import CtxLLM as CtxLLM
    from llamaindex_ctx.memory import CtxMemory as CtxMemory
    from llamaindex_ctx.reasoning import with_reasoning as with_reasoning
    from llamaindex_ctx.summarizer import LlmSummarizer as LlmSummarizer
    from llamaindex_ctx.tools import history_tools as history_tools
    from llamaindex_ctx.wrapper import with_context as with_context

_NAMES: dict[str, tuple[str, ...]] = {  # by the module that defines them
    "blocks": ("CtxMemoryBlock",),
    "chat_store": ("CtxChatStore",),
    "llm": ("CtxLLM",),
    "memory": ("CtxMemory",),
    "reasoning": ("with_reasoning",),
    "tools": ("history_tools",),
    "summarizer": ("LlmSummarizer",),
    "wrapper": ("with_context",),
}
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
