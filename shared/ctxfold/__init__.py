"""ctxfold: the context engine behind `langchain_ctx` and `llamaindex_ctx`.

Names load on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctxfold.adapters.history_tools import history_tools as history_tools
    from ctxfold.backends.scripted import ScriptedBackend as ScriptedBackend
    from ctxfold.backends.services import AnthropicBackend as AnthropicBackend
    from ctxfold.backends.services import BedrockBackend as BedrockBackend
    from ctxfold.backends.services import GeminiBackend as GeminiBackend
    from ctxfold.backends.services import OpenAIChatBackend as OpenAIChatBackend
    from ctxfold.backends.services import OpenAIResponsesBackend as OpenAIResponsesBackend
    from ctxfold.compaction.strategy import Strategy as Strategy
    from ctxfold.compaction.strategy import Summarizer as Summarizer
    from ctxfold.connect import open_backend as open_backend
    from ctxfold.engine.retention import Retention as Retention
    from ctxfold.errors import BackendError as BackendError
    from ctxfold.errors import CompactionError as CompactionError
    from ctxfold.errors import ConfigError as ConfigError
    from ctxfold.errors import ContextOverflowError as ContextOverflowError
    from ctxfold.errors import CtxError as CtxError
    from ctxfold.errors import MessageError as MessageError
    from ctxfold.errors import SessionError as SessionError
    from ctxfold.errors import StoreError as StoreError
    from ctxfold.events import CompactionHeld as CompactionHeld
    from ctxfold.events import Event as Event
    from ctxfold.events import HistoryCompacted as HistoryCompacted
    from ctxfold.memory.store import memory_section as memory_section
    from ctxfold.messages import MediaPart as MediaPart
    from ctxfold.messages import Message as Message
    from ctxfold.messages import ReasoningPart as ReasoningPart
    from ctxfold.messages import Role as Role
    from ctxfold.messages import TextPart as TextPart
    from ctxfold.messages import ToolCallPart as ToolCallPart
    from ctxfold.messages import ToolResultPart as ToolResultPart
    from ctxfold.messages import ToolSpec as ToolSpec
    from ctxfold.messages import Usage as Usage
    from ctxfold.messages import assistant as assistant
    from ctxfold.messages import system as system
    from ctxfold.messages import tool_result as tool_result
    from ctxfold.messages import user as user
    from ctxfold.policy.prices import Prices as Prices
    from ctxfold.policy.settings import Policy as Policy
    from ctxfold.policy.settings import ToolRule as ToolRule
    from ctxfold.policy.triggers import MessagesTrigger as MessagesTrigger
    from ctxfold.policy.triggers import RatioTrigger as RatioTrigger
    from ctxfold.policy.triggers import TokensTrigger as TokensTrigger
    from ctxfold.policy.triggers import TurnsTrigger as TurnsTrigger
    from ctxfold.protocols import ContextBackend as ContextBackend
    from ctxfold.protocols import Embedder as Embedder
    from ctxfold.protocols import Reply as Reply
    from ctxfold.protocols import Request as Request
    from ctxfold.protocols import Store as Store
    from ctxfold.sections.section import Item as Item
    from ctxfold.sections.section import Query as Query
    from ctxfold.sections.section import Section as Section
    from ctxfold.session.context import AgentContext as AgentContext
    from ctxfold.session.service import ContextService as ContextService
    from ctxfold.stores.memory import MemoryStore as MemoryStore
    from ctxfold.stores.sql import SqlStore as SqlStore
    from ctxfold.stream import Completed as Completed
    from ctxfold.stream import Content as Content
    from ctxfold.stream import ContentFirst as ContentFirst
    from ctxfold.stream import Thinking as Thinking
    from ctxfold.stream import ToolCalls as ToolCalls

_NAMES: dict[str, tuple[str, ...]] = {  # by the module that defines them
    "adapters.history_tools": ("history_tools",),
    "backends.scripted": ("ScriptedBackend",),
    "backends.services": (
        "AnthropicBackend",
        "BedrockBackend",
        "GeminiBackend",
        "OpenAIChatBackend",
        "OpenAIResponsesBackend",
    ),
    "compaction.strategy": ("Strategy", "Summarizer"),
    "connect": ("open_backend",),
    "engine.retention": ("Retention",),
    "errors": (
        "BackendError",
        "CompactionError",
        "ConfigError",
        "ContextOverflowError",
        "CtxError",
        "MessageError",
        "SessionError",
        "StoreError",
    ),
    "events": ("CompactionHeld", "Event", "HistoryCompacted"),
    "memory.store": ("memory_section",),
    "messages": (
        "MediaPart",
        "Message",
        "ReasoningPart",
        "Role",
        "TextPart",
        "ToolCallPart",
        "ToolResultPart",
        "ToolSpec",
        "Usage",
        "assistant",
        "system",
        "tool_result",
        "user",
    ),
    "policy.prices": ("Prices",),
    "policy.settings": ("Policy", "ToolRule"),
    "policy.triggers": ("MessagesTrigger", "RatioTrigger", "TokensTrigger", "TurnsTrigger"),
    "protocols": ("ContextBackend", "Embedder", "Reply", "Request", "Store"),
    "sections.section": ("Item", "Query", "Section"),
    "session.context": ("AgentContext",),
    "session.service": ("ContextService",),
    "stores.memory": ("MemoryStore",),
    "stores.sql": ("SqlStore",),
    "stream": ("Completed", "Content", "ContentFirst", "Thinking", "ToolCalls"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll] - it takes the names of the imports above


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"ctxfold.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'ctxfold' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
