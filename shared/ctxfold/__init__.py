"""ctxfold: the context engine behind `langchain_ctx` and `llamaindex_ctx`.

Names load on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctxfold.archive import Hit
    from ctxfold.backends.anthropic import AnthropicBackend
    from ctxfold.backends.chaos import ChaosBackend
    from ctxfold.backends.openai_chat import OpenAIChatBackend
    from ctxfold.backends.profile import Profile
    from ctxfold.backends.scripted import ScriptedBackend
    from ctxfold.budget import MessageCounter, Policy
    from ctxfold.compaction.plan import Hold, Plan
    from ctxfold.compaction.strategy import Case, Strategy, Summarizer
    from ctxfold.connect import open_backend
    from ctxfold.erase import Erasure
    from ctxfold.errors import BackendError, CtxError, MessageErasedError, StrategyError
    from ctxfold.events import (
        CompactionHeld,
        CompactionProposal,
        Event,
        HistoryCompacted,
        MemoryLearnt,
        MessagesErased,
        MessagesLeftOut,
        RewriteRefused,
        SectionInjected,
        SectionSkipped,
    )
    from ctxfold.explain import Explanation, MessageExplanation
    from ctxfold.history.items import MemoryItem, Remembered
    from ctxfold.inspection import Inspection
    from ctxfold.memory.keep import Recollection
    from ctxfold.memory.sections import memory_section
    from ctxfold.messages import Message, ToolSpec, Usage
    from ctxfold.ports import ContextBackend, Reply, Request, Store, TokenCounter
    from ctxfold.prices import Prices
    from ctxfold.room import Window
    from ctxfold.service import ContextDelta, ContextService
    from ctxfold.session import AgentContext, SessionUsage
    from ctxfold.stores.memory import MemoryStore
    from ctxfold.stores.sql import SqlStore
    from ctxfold.stream import Completed, Content, ContentFirst, Fold, StreamEvent, Thinking, ToolCalls
    from ctxfold.summaries import Summary, SummaryWriter, acompact_messages, compact_messages
    from ctxfold.tokens import RatioCounter, TiktokenCounter, text_counter
    from ctxfold.toolkit import HistoryTool, history_tools
    from ctxfold.trigger import (
        AllOf,
        AnyOf,
        ColdCacheTrigger,
        EconomicTrigger,
        MessagesTrigger,
        RatioTrigger,
        TokensTrigger,
        TurnsTrigger,
    )
    from ctxfold.vectors import Embedder
    from ctxfold.zones.section import Item, Query, Section

_WHERE = {
    "AgentContext": "session",
    "AllOf": "trigger",
    "AnthropicBackend": "backends.anthropic",
    "AnyOf": "trigger",
    "BackendError": "errors",
    "Case": "compaction.strategy",
    "ChaosBackend": "backends.chaos",
    "ColdCacheTrigger": "trigger",
    "CompactionHeld": "events",
    "CompactionProposal": "events",
    "Completed": "stream",
    "Content": "stream",
    "ContentFirst": "stream",
    "ContextBackend": "ports",
    "ContextDelta": "service",
    "ContextService": "service",
    "CtxError": "errors",
    "EconomicTrigger": "trigger",
    "Embedder": "vectors",
    "Erasure": "erase",
    "Event": "events",
    "Explanation": "explain",
    "Fold": "stream",
    "HistoryCompacted": "events",
    "HistoryTool": "toolkit",
    "Hit": "archive",
    "Hold": "compaction.plan",
    "Inspection": "inspection",
    "Item": "zones.section",
    "MemoryItem": "history.items",
    "MemoryLearnt": "events",
    "MemoryStore": "stores.memory",
    "Message": "messages",
    "MessageCounter": "budget",
    "MessageErasedError": "errors",
    "MessageExplanation": "explain",
    "MessagesErased": "events",
    "MessagesLeftOut": "events",
    "MessagesTrigger": "trigger",
    "OpenAIChatBackend": "backends.openai_chat",
    "Plan": "compaction.plan",
    "Policy": "budget",
    "Prices": "prices",
    "Profile": "backends.profile",
    "Query": "zones.section",
    "RatioCounter": "tokens",
    "RatioTrigger": "trigger",
    "Recollection": "memory.keep",
    "Remembered": "history.items",
    "Reply": "ports",
    "Request": "ports",
    "RewriteRefused": "events",
    "ScriptedBackend": "backends.scripted",
    "Section": "zones.section",
    "SectionInjected": "events",
    "SectionSkipped": "events",
    "SessionUsage": "session",
    "SqlStore": "stores.sql",
    "Store": "ports",
    "Strategy": "compaction.strategy",
    "StrategyError": "errors",
    "StreamEvent": "stream",
    "Summarizer": "compaction.strategy",
    "Summary": "summaries",
    "SummaryWriter": "summaries",
    "acompact_messages": "summaries",
    "compact_messages": "summaries",
    "Thinking": "stream",
    "TiktokenCounter": "tokens",
    "TokenCounter": "ports",
    "TokensTrigger": "trigger",
    "ToolCalls": "stream",
    "ToolSpec": "messages",
    "TurnsTrigger": "trigger",
    "Usage": "messages",
    "Window": "room",
    "history_tools": "toolkit",
    "memory_section": "memory.sections",
    "open_backend": "connect",
    "text_counter": "tokens",
}

__all__ = [
    "AgentContext",
    "AllOf",
    "AnthropicBackend",
    "AnyOf",
    "BackendError",
    "Case",
    "ChaosBackend",
    "ColdCacheTrigger",
    "CompactionHeld",
    "CompactionProposal",
    "Completed",
    "Content",
    "ContentFirst",
    "ContextBackend",
    "ContextDelta",
    "ContextService",
    "CtxError",
    "EconomicTrigger",
    "Embedder",
    "Erasure",
    "Event",
    "Explanation",
    "Fold",
    "HistoryCompacted",
    "HistoryTool",
    "Hit",
    "Hold",
    "Inspection",
    "Item",
    "MemoryItem",
    "MemoryLearnt",
    "MemoryStore",
    "Message",
    "MessageCounter",
    "MessageErasedError",
    "MessageExplanation",
    "MessagesErased",
    "MessagesLeftOut",
    "MessagesTrigger",
    "OpenAIChatBackend",
    "Plan",
    "Policy",
    "Prices",
    "Profile",
    "Query",
    "RatioCounter",
    "RatioTrigger",
    "Recollection",
    "Remembered",
    "Reply",
    "Request",
    "RewriteRefused",
    "ScriptedBackend",
    "Section",
    "SectionInjected",
    "SectionSkipped",
    "SessionUsage",
    "SqlStore",
    "Store",
    "Strategy",
    "StrategyError",
    "StreamEvent",
    "Summarizer",
    "Summary",
    "SummaryWriter",
    "Thinking",
    "TiktokenCounter",
    "TokenCounter",
    "TokensTrigger",
    "ToolCalls",
    "ToolSpec",
    "TurnsTrigger",
    "Usage",
    "Window",
    "acompact_messages",
    "compact_messages",
    "history_tools",
    "memory_section",
    "open_backend",
    "text_counter",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"ctxfold.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'ctxfold' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
