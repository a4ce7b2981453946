"""The LangChain face of ctxfold: a chat history, a chat model, and converters between the two message types.

Names load on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_ctx.backend import LangChainBackend
    from langchain_ctx.chat import ChatCtx
    from langchain_ctx.convert import from_langchain, to_langchain
    from langchain_ctx.history import CtxChatMessageHistory
    from langchain_ctx.summarizer import ChatModelSummarizer

_WHERE = {
    "ChatCtx": "chat",
    "ChatModelSummarizer": "summarizer",
    "CtxChatMessageHistory": "history",
    "LangChainBackend": "backend",
    "from_langchain": "convert",
    "to_langchain": "convert",
}

__all__ = [
    "ChatCtx",
    "ChatModelSummarizer",
    "CtxChatMessageHistory",
    "LangChainBackend",
    "from_langchain",
    "to_langchain",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'langchain_ctx' has no attribute {name!r}")
    try:
        return getattr(import_module(f"langchain_ctx.{_WHERE[name]}"), name)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("langchain_core"):
            raise
        from ctxfold.errors import MissingExtraError

        raise MissingExtraError('LangChain is not installed: pip install "ctxfold[langchain]"') from error


def __dir__() -> list[str]:
    return sorted(__all__)
