"""ctxfold for LangChain: chat model, wrapper, agent middleware, graph node, chat history, and message converters.

Names load on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_ctx.backend import LangChainBackend
    from langchain_ctx.chat_model import ChatCtx
    from langchain_ctx.checkpoints import SlimCheckpointer
    from langchain_ctx.errors import (
        ChatAuthenticationError,
        ChatConnectionError,
        ChatInvalidRequestError,
        ChatNotFoundError,
        ChatOverflowError,
        ChatPermissionError,
        ChatRateLimitError,
        ChatServiceError,
        ChatTimeoutError,
        CtxMessageTooLargeError,
        CtxOverflowError,
    )
    from langchain_ctx.history import (
        CtxChatMessageHistory,
        HistoryFactory,
        aexport_history,
        aimport_history,
        export_history,
        import_history,
    )
    from langchain_ctx.messages import from_langchain, to_langchain
    from langchain_ctx.middleware import ContextMiddleware
    from langchain_ctx.node import ContextNode
    from langchain_ctx.reasoning import with_reasoning
    from langchain_ctx.retrieval import LangChainEmbedder, section_from
    from langchain_ctx.summarizer import ChatModelSummarizer, ContextSummarizer
    from langchain_ctx.token_counting import token_counter
    from langchain_ctx.tools import history_tools
    from langchain_ctx.wrapper import ConfigurableContextModel, ContextChatModel, with_context

_WHERE = {
    "ChatAuthenticationError": "errors",
    "ChatConnectionError": "errors",
    "ChatCtx": "chat_model",
    "ChatInvalidRequestError": "errors",
    "ChatModelSummarizer": "summarizer",
    "ChatNotFoundError": "errors",
    "ChatOverflowError": "errors",
    "ChatPermissionError": "errors",
    "ChatRateLimitError": "errors",
    "ChatServiceError": "errors",
    "ChatTimeoutError": "errors",
    "ConfigurableContextModel": "wrapper",
    "ContextChatModel": "wrapper",
    "ContextMiddleware": "middleware",
    "ContextNode": "node",
    "ContextSummarizer": "summarizer",
    "CtxChatMessageHistory": "history",
    "CtxMessageTooLargeError": "errors",
    "CtxOverflowError": "errors",
    "HistoryFactory": "history",
    "LangChainBackend": "backend",
    "LangChainEmbedder": "retrieval",
    "SlimCheckpointer": "checkpoints",
    "aexport_history": "history",
    "aimport_history": "history",
    "export_history": "history",
    "from_langchain": "messages",
    "history_tools": "tools",
    "import_history": "history",
    "section_from": "retrieval",
    "to_langchain": "messages",
    "token_counter": "token_counting",
    "with_context": "wrapper",
    "with_reasoning": "reasoning",
}

__all__ = [
    "ChatAuthenticationError",
    "ChatConnectionError",
    "ChatCtx",
    "ChatInvalidRequestError",
    "ChatModelSummarizer",
    "ChatNotFoundError",
    "ChatOverflowError",
    "ChatPermissionError",
    "ChatRateLimitError",
    "ChatServiceError",
    "ChatTimeoutError",
    "ConfigurableContextModel",
    "ContextChatModel",
    "ContextMiddleware",
    "ContextNode",
    "ContextSummarizer",
    "CtxChatMessageHistory",
    "CtxMessageTooLargeError",
    "CtxOverflowError",
    "HistoryFactory",
    "LangChainBackend",
    "LangChainEmbedder",
    "SlimCheckpointer",
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
