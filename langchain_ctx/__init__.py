"""The LangChain face of ctxfold: a chat history, a chat model, and converters between the two message types.

Names load on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_ctx.agent_tools import history_tools
    from langchain_ctx.backend import LangChainBackend
    from langchain_ctx.chat import ChatCtx
    from langchain_ctx.convert import from_langchain, to_langchain
    from langchain_ctx.copying import aexport_history, aimport_history, export_history, import_history
    from langchain_ctx.counting import token_counter
    from langchain_ctx.embedding import LangChainEmbedder
    from langchain_ctx.history import CtxChatMessageHistory
    from langchain_ctx.middleware import ContextMiddleware
    from langchain_ctx.node import ContextNode
    from langchain_ctx.plugged import ContextSummarizer
    from langchain_ctx.reasoning import with_reasoning
    from langchain_ctx.sections import section_from
    from langchain_ctx.summarizer import ChatModelSummarizer
    from langchain_ctx.wrapped import with_context

_WHERE = {
    "ChatCtx": "chat",
    "ChatModelSummarizer": "summarizer",
    "ContextMiddleware": "middleware",
    "ContextNode": "node",
    "ContextSummarizer": "plugged",
    "CtxChatMessageHistory": "history",
    "LangChainBackend": "backend",
    "LangChainEmbedder": "embedding",
    "aexport_history": "copying",
    "aimport_history": "copying",
    "export_history": "copying",
    "from_langchain": "convert",
    "history_tools": "agent_tools",
    "import_history": "copying",
    "section_from": "sections",
    "to_langchain": "convert",
    "token_counter": "counting",
    "with_context": "wrapped",
    "with_reasoning": "reasoning",
}

__all__ = [
    "ChatCtx",
    "ChatModelSummarizer",
    "ContextMiddleware",
    "ContextNode",
    "ContextSummarizer",
    "CtxChatMessageHistory",
    "LangChainBackend",
    "LangChainEmbedder",
    "aexport_history",
    "aimport_history",
    "export_history",
    "from_langchain",
    "history_tools",
    "import_history",
    "section_from",
    "to_langchain",
    "token_counter",
    "with_context",
    "with_reasoning",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'langchain_ctx' has no attribute {name!r}")
    try:
        return getattr(import_module(f"langchain_ctx.{_WHERE[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("langchain", "langchain_core", "langgraph"):
            raise
        from ctxfold.errors import MissingExtraError

        raise MissingExtraError('LangChain is not installed: pip install "ctxfold[langchain]"') from error


def __dir__() -> list[str]:
    return sorted(__all__)
