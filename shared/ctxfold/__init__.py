"""ctxfold: the context engine behind `langchain_ctx` and `llamaindex_ctx`.

Names load on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctxfold.backends.anthropic import AnthropicBackend
    from ctxfold.backends.chaos import ChaosBackend
    from ctxfold.backends.openai_chat import OpenAIChatBackend
    from ctxfold.backends.profile import Profile
    from ctxfold.backends.scripted import ScriptedBackend
    from ctxfold.budget import MessageCounter, Policy
    from ctxfold.connect import open_backend
    from ctxfold.engine import Window
    from ctxfold.errors import BackendError, CtxError
    from ctxfold.events import CompactionHeld, Event, HistoryCompacted
    from ctxfold.messages import Message, ToolSpec, Usage
    from ctxfold.ports import ContextBackend, Reply, Request, Store, TokenCounter
    from ctxfold.session import AgentContext, SessionUsage
    from ctxfold.stores.memory import MemoryStore
    from ctxfold.stores.sql import SqlStore
    from ctxfold.stream import Content, ContentFirst, Fold, StreamEvent, Thinking, ToolCalls
    from ctxfold.tokens import RatioCounter, TiktokenCounter, text_counter

_WHERE = {
    "AgentContext": "session",
    "AnthropicBackend": "backends.anthropic",
    "BackendError": "errors",
    "ChaosBackend": "backends.chaos",
    "CompactionHeld": "events",
    "Content": "stream",
    "ContentFirst": "stream",
    "ContextBackend": "ports",
    "CtxError": "errors",
    "Event": "events",
    "Fold": "stream",
    "HistoryCompacted": "events",
    "MemoryStore": "stores.memory",
    "Message": "messages",
    "MessageCounter": "budget",
    "OpenAIChatBackend": "backends.openai_chat",
    "Policy": "budget",
    "Profile": "backends.profile",
    "RatioCounter": "tokens",
    "Reply": "ports",
    "Request": "ports",
    "ScriptedBackend": "backends.scripted",
    "SessionUsage": "session",
    "SqlStore": "stores.sql",
    "Store": "ports",
    "StreamEvent": "stream",
    "Thinking": "stream",
    "TiktokenCounter": "tokens",
    "TokenCounter": "ports",
    "ToolCalls": "stream",
    "ToolSpec": "messages",
    "Usage": "messages",
    "Window": "engine",
    "open_backend": "connect",
    "text_counter": "tokens",
}

__all__ = [
    "AgentContext",
    "AnthropicBackend",
    "BackendError",
    "ChaosBackend",
    "CompactionHeld",
    "Content",
    "ContentFirst",
    "ContextBackend",
    "CtxError",
    "Event",
    "Fold",
    "HistoryCompacted",
    "MemoryStore",
    "Message",
    "MessageCounter",
    "OpenAIChatBackend",
    "Policy",
    "Profile",
    "RatioCounter",
    "Reply",
    "Request",
    "ScriptedBackend",
    "SessionUsage",
    "SqlStore",
    "Store",
    "StreamEvent",
    "Thinking",
    "TiktokenCounter",
    "TokenCounter",
    "ToolCalls",
    "ToolSpec",
    "Usage",
    "Window",
    "open_backend",
    "text_counter",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"ctxfold.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'ctxfold' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
