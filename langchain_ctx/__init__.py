"""ctxfold for LangChain: chat model, wrapper, agent middleware, graph node, chat history, and message converters.

Names load on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_ctx.backend import section_from as section_from
    from langchain_ctx.backend import token_counter as token_counter
    from langchain_ctx.chat_model import ChatCtx as ChatCtx
    from langchain_ctx.history import CtxChatMessageHistory as CtxChatMessageHistory
    from langchain_ctx.middleware import ContextMiddleware as ContextMiddleware
    from langchain_ctx.models import with_reasoning as with_reasoning
    from langchain_ctx.node import ContextNode as ContextNode
    from langchain_ctx.summarizer import ContextSummarizer as ContextSummarizer
    from langchain_ctx.tools import history_tools as history_tools
    from langchain_ctx.wrapper import with_context as with_context

_NAMES: dict[str, tuple[str, ...]] = {  # by the module that defines them
    "backend": ("section_from", "token_counter"),
    "chat_model": ("ChatCtx",),
    "history": ("CtxChatMessageHistory",),
    "middleware": ("ContextMiddleware",),
    "models": ("with_reasoning",),
    "node": ("ContextNode",),
    "summarizer": ("ContextSummarizer",),
    "tools": ("history_tools",),
    "wrapper": ("with_context",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll] - it takes the names of the imports above


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'langchain_ctx' has no attribute {name!r}")
    try:
        return getattr(import_module(f"langchain_ctx.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("langchain", "langchain_core", "langgraph"):
            raise
        from ctxfold.errors import MissingExtraError

        raise MissingExtraError('LangChain is not installed: pip install "ctxfold[langchain]"') from error


def __dir__() -> list[str]:
    return sorted(__all__)
