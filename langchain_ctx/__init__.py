"""ctxfold for LangChain: chat model, wrapper, agent middleware, graph node, chat history, and message converters.

Names load on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_ctx.backend import LangChainBackend as LangChainBackend
    from langchain_ctx.chat_model import ChatCtx as ChatCtx
    from langchain_ctx.errors import ChatAuthenticationError as ChatAuthenticationError
    from langchain_ctx.errors import ChatConnectionError as ChatConnectionError
    from langchain_ctx.errors import ChatInvalidRequestError as ChatInvalidRequestError
    from langchain_ctx.errors import ChatNotFoundError as ChatNotFoundError
    from langchain_ctx.errors import ChatOverflowError as ChatOverflowError
    from langchain_ctx.errors import ChatPermissionError as ChatPermissionError
    from langchain_ctx.errors import ChatRateLimitError as ChatRateLimitError
    from langchain_ctx.errors import ChatServiceError as ChatServiceError
    from langchain_ctx.errors import ChatTimeoutError as ChatTimeoutError
    from langchain_ctx.errors import CtxMessageTooLargeError as CtxMessageTooLargeError
    from langchain_ctx.errors import CtxOverflowError as CtxOverflowError
    from langchain_ctx.history import CtxChatMessageHistory as CtxChatMessageHistory
    from langchain_ctx.history import HistoryFactory as HistoryFactory
    from langchain_ctx.history import aexport_history as aexport_history
    from langchain_ctx.history import aimport_history as aimport_history
    from langchain_ctx.history import export_history as export_history
    from langchain_ctx.history import import_history as import_history
    from langchain_ctx.messages import from_langchain as from_langchain
    from langchain_ctx.messages import to_langchain as to_langchain
    from langchain_ctx.middleware import ContextMiddleware as ContextMiddleware
    from langchain_ctx.node import ContextNode as ContextNode
    from langchain_ctx.reasoning import with_reasoning as with_reasoning
    from langchain_ctx.retrieval import LangChainEmbedder as LangChainEmbedder
    from langchain_ctx.retrieval import section_from as section_from
    from langchain_ctx.summarizer import ChatModelSummarizer as ChatModelSummarizer
    from langchain_ctx.summarizer import ContextSummarizer as ContextSummarizer
    from langchain_ctx.token_counting import token_counter as token_counter
    from langchain_ctx.tools import history_tools as history_tools
    from langchain_ctx.wrapper import ConfigurableContextModel as ConfigurableContextModel
    from langchain_ctx.wrapper import ContextChatModel as ContextChatModel
    from langchain_ctx.wrapper import with_context as with_context

# fmt: off
_NAMES: dict[str, tuple[str, ...]] = {  # by the module that defines them
    "backend": ("LangChainBackend",),
    "chat_model": ("ChatCtx",),
    "errors": (
        "ChatAuthenticationError", "ChatConnectionError", "ChatInvalidRequestError", "ChatNotFoundError",
        "ChatOverflowError", "ChatPermissionError", "ChatRateLimitError", "ChatServiceError", "ChatTimeoutError",
        "CtxMessageTooLargeError", "CtxOverflowError",
    ),
    "history": (
        "CtxChatMessageHistory", "HistoryFactory", "aexport_history", "aimport_history", "export_history",
        "import_history",
    ),
    "messages": ("from_langchain", "to_langchain"),
    "middleware": ("ContextMiddleware",),
    "node": ("ContextNode",),
    "reasoning": ("with_reasoning",),
    "retrieval": ("LangChainEmbedder", "section_from"),
    "summarizer": ("ChatModelSummarizer", "ContextSummarizer"),
    "token_counting": ("token_counter",),
    "tools": ("history_tools",),
    "wrapper": ("ConfigurableContextModel", "ContextChatModel", "with_context"),
}
# fmt: on
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
