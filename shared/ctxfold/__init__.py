"""ctxfold: the context engine behind `langchain_ctx` and `llamaindex_ctx`.

Names load on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctxfold.adapters.history_tools import HistoryTool as HistoryTool
    from ctxfold.adapters.history_tools import history_tools as history_tools
    from ctxfold.adapters.summaries import SummaryWriter as SummaryWriter
    from ctxfold.adapters.summaries import acompact_messages as acompact_messages
    from ctxfold.adapters.summaries import compact_messages as compact_messages
    from ctxfold.backends.anthropic.backend import AnthropicBackend as AnthropicBackend
    from ctxfold.backends.base import BaseBackend as BaseBackend
    from ctxfold.backends.chaos import ChaosBackend as ChaosBackend
    from ctxfold.backends.converse.backend import BedrockBackend as BedrockBackend
    from ctxfold.backends.gemini.backend import GeminiBackend as GeminiBackend
    from ctxfold.backends.openai_chat.backend import OpenAIChatBackend as OpenAIChatBackend
    from ctxfold.backends.openai_responses.backend import OpenAIResponsesBackend as OpenAIResponsesBackend
    from ctxfold.backends.profile import Profile as Profile
    from ctxfold.backends.profile import load_profile as load_profile
    from ctxfold.backends.profile import provider_names as provider_names
    from ctxfold.backends.scripted import ScriptedBackend as ScriptedBackend
    from ctxfold.backends.transport import Retry as Retry
    from ctxfold.compaction.plan import Plan as Plan
    from ctxfold.compaction.plan import Skip as Skip
    from ctxfold.compaction.strategy import CompactionInput as CompactionInput
    from ctxfold.compaction.strategy import Strategy as Strategy
    from ctxfold.compaction.strategy import Summarizer as Summarizer
    from ctxfold.compaction.summarize import Summary as Summary
    from ctxfold.compaction.transcript import DEFAULT_SUMMARY_PROMPT as DEFAULT_SUMMARY_PROMPT
    from ctxfold.connect import SessionSettings as SessionSettings
    from ctxfold.connect import open_backend as open_backend
    from ctxfold.engine.archive import Hit as Hit
    from ctxfold.engine.engine import Added as Added
    from ctxfold.engine.erase import Erasure as Erasure
    from ctxfold.engine.fit import Window as Window
    from ctxfold.engine.request import RequestOptions as RequestOptions
    from ctxfold.engine.retention import Pruned as Pruned
    from ctxfold.engine.retention import Pruning as Pruning
    from ctxfold.engine.retention import Retention as Retention
    from ctxfold.errors import BackendError as BackendError
    from ctxfold.errors import BudgetError as BudgetError
    from ctxfold.errors import CompactionError as CompactionError
    from ctxfold.errors import ConfigError as ConfigError
    from ctxfold.errors import ContextOverflowError as ContextOverflowError
    from ctxfold.errors import CtxError as CtxError
    from ctxfold.errors import CtxWarning as CtxWarning
    from ctxfold.errors import EmptyMessagesError as EmptyMessagesError
    from ctxfold.errors import HeadMovedError as HeadMovedError
    from ctxfold.errors import ImportLineError as ImportLineError
    from ctxfold.errors import InvalidTextError as InvalidTextError
    from ctxfold.errors import InvalidToolArgumentsError as InvalidToolArgumentsError
    from ctxfold.errors import MessageConflictError as MessageConflictError
    from ctxfold.errors import MessageErasedError as MessageErasedError
    from ctxfold.errors import MessageError as MessageError
    from ctxfold.errors import MessageIndexError as MessageIndexError
    from ctxfold.errors import MessageNotFoundError as MessageNotFoundError
    from ctxfold.errors import MessageTooLargeError as MessageTooLargeError
    from ctxfold.errors import MissingExtraError as MissingExtraError
    from ctxfold.errors import NotEnoughHistoryError as NotEnoughHistoryError
    from ctxfold.errors import NothingToUndoError as NothingToUndoError
    from ctxfold.errors import OrphanToolResultError as OrphanToolResultError
    from ctxfold.errors import PinBudgetError as PinBudgetError
    from ctxfold.errors import SessionError as SessionError
    from ctxfold.errors import SessionExistsError as SessionExistsError
    from ctxfold.errors import SessionNotFoundError as SessionNotFoundError
    from ctxfold.errors import StoreCorruptError as StoreCorruptError
    from ctxfold.errors import StoreError as StoreError
    from ctxfold.errors import StoreFormatError as StoreFormatError
    from ctxfold.errors import StoreUnavailableError as StoreUnavailableError
    from ctxfold.errors import StrategyError as StrategyError
    from ctxfold.errors import SummarizationFailedError as SummarizationFailedError
    from ctxfold.errors import TurnClosedError as TurnClosedError
    from ctxfold.errors import UnknownRoleError as UnknownRoleError
    from ctxfold.errors import WindowTooSmallError as WindowTooSmallError
    from ctxfold.events import Appended as Appended
    from ctxfold.events import CompactionHeld as CompactionHeld
    from ctxfold.events import CompactionProgress as CompactionProgress
    from ctxfold.events import CompactionProposal as CompactionProposal
    from ctxfold.events import CompactionStarted as CompactionStarted
    from ctxfold.events import EditUndone as EditUndone
    from ctxfold.events import Event as Event
    from ctxfold.events import GoalRefreshed as GoalRefreshed
    from ctxfold.events import HistoryCompacted as HistoryCompacted
    from ctxfold.events import IdsRepeated as IdsRepeated
    from ctxfold.events import Inserted as Inserted
    from ctxfold.events import MemoryLearnt as MemoryLearnt
    from ctxfold.events import MessagesErased as MessagesErased
    from ctxfold.events import MessagesLeftOut as MessagesLeftOut
    from ctxfold.events import MessagesRestored as MessagesRestored
    from ctxfold.events import OutputsPrepared as OutputsPrepared
    from ctxfold.events import PinsChanged as PinsChanged
    from ctxfold.events import PromptTruncated as PromptTruncated
    from ctxfold.events import Removed as Removed
    from ctxfold.events import Rewriter as Rewriter
    from ctxfold.events import RewriteRefused as RewriteRefused
    from ctxfold.events import RulesChanged as RulesChanged
    from ctxfold.events import SectionInjected as SectionInjected
    from ctxfold.events import SectionSkipped as SectionSkipped
    from ctxfold.events import SessionLoaded as SessionLoaded
    from ctxfold.events import Subscriber as Subscriber
    from ctxfold.events import TurnEnded as TurnEnded
    from ctxfold.events import Updated as Updated
    from ctxfold.events import WindowGauge as WindowGauge
    from ctxfold.history.memory_items import MemoryItem as MemoryItem
    from ctxfold.history.memory_items import Remembered as Remembered
    from ctxfold.history.records import Draft as Draft
    from ctxfold.history.records import Record as Record
    from ctxfold.history.records import SessionKey as SessionKey
    from ctxfold.inspect.explain import Explanation as Explanation
    from ctxfold.inspect.explain import MessageExplanation as MessageExplanation
    from ctxfold.inspect.report import Inspection as Inspection
    from ctxfold.memory.section import memory_section as memory_section
    from ctxfold.memory.store import Recollection as Recollection
    from ctxfold.messages import MediaPart as MediaPart
    from ctxfold.messages import Message as Message
    from ctxfold.messages import MessageKind as MessageKind
    from ctxfold.messages import Opaque as Opaque
    from ctxfold.messages import Part as Part
    from ctxfold.messages import ProviderSummary as ProviderSummary
    from ctxfold.messages import ReasoningPart as ReasoningPart
    from ctxfold.messages import Role as Role
    from ctxfold.messages import TextPart as TextPart
    from ctxfold.messages import ToolCallPart as ToolCallPart
    from ctxfold.messages import ToolResultPart as ToolResultPart
    from ctxfold.messages import ToolSpec as ToolSpec
    from ctxfold.messages import Usage as Usage
    from ctxfold.messages import Visibility as Visibility
    from ctxfold.messages import assistant as assistant
    from ctxfold.messages import system as system
    from ctxfold.messages import tool_result as tool_result
    from ctxfold.messages import user as user
    from ctxfold.policy.prices import CostLine as CostLine
    from ctxfold.policy.prices import Prices as Prices
    from ctxfold.policy.settings import Policy as Policy
    from ctxfold.policy.settings import PolicyChanges as PolicyChanges
    from ctxfold.policy.settings import PolicyFields as PolicyFields
    from ctxfold.policy.settings import ToolRule as ToolRule
    from ctxfold.policy.triggers import AllOf as AllOf
    from ctxfold.policy.triggers import AnyOf as AnyOf
    from ctxfold.policy.triggers import ColdCacheTrigger as ColdCacheTrigger
    from ctxfold.policy.triggers import EconomicTrigger as EconomicTrigger
    from ctxfold.policy.triggers import MessagesTrigger as MessagesTrigger
    from ctxfold.policy.triggers import RatioTrigger as RatioTrigger
    from ctxfold.policy.triggers import TokensTrigger as TokensTrigger
    from ctxfold.policy.triggers import Trigger as Trigger
    from ctxfold.policy.triggers import TurnsTrigger as TurnsTrigger
    from ctxfold.protocols import AsyncChunkStream as AsyncChunkStream
    from ctxfold.protocols import BackendCapabilities as BackendCapabilities
    from ctxfold.protocols import Chunk as Chunk
    from ctxfold.protocols import ChunkStream as ChunkStream
    from ctxfold.protocols import ContextBackend as ContextBackend
    from ctxfold.protocols import Document as Document
    from ctxfold.protocols import Embedder as Embedder
    from ctxfold.protocols import Head as Head
    from ctxfold.protocols import OwnerIndex as OwnerIndex
    from ctxfold.protocols import Postings as Postings
    from ctxfold.protocols import Reply as Reply
    from ctxfold.protocols import Request as Request
    from ctxfold.protocols import ResponseType as ResponseType
    from ctxfold.protocols import Rewrite as Rewrite
    from ctxfold.protocols import Store as Store
    from ctxfold.protocols import StoreCapabilities as StoreCapabilities
    from ctxfold.protocols import TokenCounter as TokenCounter
    from ctxfold.protocols import ToolCallDelta as ToolCallDelta
    from ctxfold.protocols import VectorIndex as VectorIndex
    from ctxfold.sections.section import Item as Item
    from ctxfold.sections.section import Query as Query
    from ctxfold.sections.section import Section as Section
    from ctxfold.session.context import AgentContext as AgentContext
    from ctxfold.session.context import SessionUsage as SessionUsage
    from ctxfold.session.service import ContextDelta as ContextDelta
    from ctxfold.session.service import ContextService as ContextService
    from ctxfold.stores.base import BaseStore as BaseStore
    from ctxfold.stores.key_value import KeyValueStore as KeyValueStore
    from ctxfold.stores.key_value import KeyValueTransaction as KeyValueTransaction
    from ctxfold.stores.memory import MemoryStore as MemoryStore
    from ctxfold.stores.sql import SqlStore as SqlStore
    from ctxfold.stream import Completed as Completed
    from ctxfold.stream import Content as Content
    from ctxfold.stream import ContentFirst as ContentFirst
    from ctxfold.stream import Fold as Fold
    from ctxfold.stream import StreamEvent as StreamEvent
    from ctxfold.stream import Thinking as Thinking
    from ctxfold.stream import ToolCalls as ToolCalls
    from ctxfold.tokens.counter import MessageCounter as MessageCounter
    from ctxfold.tokens.text import EncodingNotFoundError as EncodingNotFoundError
    from ctxfold.tokens.text import RatioCounter as RatioCounter
    from ctxfold.tokens.text import TextCounter as TextCounter
    from ctxfold.tokens.text import TiktokenCounter as TiktokenCounter
    from ctxfold.tokens.text import text_counter as text_counter

# fmt: off
_NAMES: dict[str, tuple[str, ...]] = {  # by the module that defines them
    "adapters.history_tools": ("HistoryTool", "history_tools"),
    "adapters.summaries": ("SummaryWriter", "acompact_messages", "compact_messages"),
    "backends.anthropic.backend": ("AnthropicBackend",),
    "backends.base": ("BaseBackend",),
    "backends.chaos": ("ChaosBackend",),
    "backends.converse.backend": ("BedrockBackend",),
    "backends.gemini.backend": ("GeminiBackend",),
    "backends.openai_chat.backend": ("OpenAIChatBackend",),
    "backends.openai_responses.backend": ("OpenAIResponsesBackend",),
    "backends.profile": ("Profile", "load_profile", "provider_names"),
    "backends.scripted": ("ScriptedBackend",),
    "backends.transport": ("Retry",),
    "compaction.plan": ("Plan", "Skip"),
    "compaction.strategy": ("CompactionInput", "Strategy", "Summarizer"),
    "compaction.summarize": ("Summary",),
    "compaction.transcript": ("DEFAULT_SUMMARY_PROMPT",),
    "connect": ("SessionSettings", "open_backend"),
    "engine.archive": ("Hit",),
    "engine.engine": ("Added",),
    "engine.erase": ("Erasure",),
    "engine.fit": ("Window",),
    "engine.request": ("RequestOptions",),
    "engine.retention": ("Pruned", "Pruning", "Retention"),
    "errors": (
        "BackendError", "BudgetError", "CompactionError", "ConfigError", "ContextOverflowError", "CtxError", "CtxWarning",
        "EmptyMessagesError", "HeadMovedError", "ImportLineError", "InvalidTextError", "InvalidToolArgumentsError",
        "MessageConflictError", "MessageErasedError", "MessageError", "MessageIndexError", "MessageNotFoundError",
        "MessageTooLargeError", "MissingExtraError", "NotEnoughHistoryError", "NothingToUndoError",
        "OrphanToolResultError", "PinBudgetError", "SessionError", "SessionExistsError", "SessionNotFoundError",
        "StoreCorruptError", "StoreError", "StoreFormatError", "StoreUnavailableError", "StrategyError",
        "SummarizationFailedError", "TurnClosedError", "UnknownRoleError", "WindowTooSmallError",
    ),
    "events": (
        "Appended", "CompactionHeld", "CompactionProgress", "CompactionProposal", "CompactionStarted", "EditUndone",
        "Event", "GoalRefreshed", "HistoryCompacted", "IdsRepeated", "Inserted", "MemoryLearnt", "MessagesErased",
        "MessagesLeftOut", "MessagesRestored", "OutputsPrepared", "PinsChanged", "PromptTruncated", "Removed", "RewriteRefused",
        "Rewriter", "RulesChanged", "SectionInjected", "SectionSkipped", "SessionLoaded", "Subscriber", "TurnEnded",
        "Updated", "WindowGauge",
    ),
    "history.memory_items": ("MemoryItem", "Remembered"),
    "history.records": ("Draft", "Record", "SessionKey"),
    "inspect.explain": ("Explanation", "MessageExplanation"),
    "inspect.report": ("Inspection",),
    "memory.section": ("memory_section",),
    "memory.store": ("Recollection",),
    "messages": (
        "MediaPart", "Message", "MessageKind", "Opaque", "Part", "ProviderSummary", "ReasoningPart", "Role", "TextPart",
        "ToolCallPart", "ToolResultPart", "ToolSpec", "Usage", "Visibility", "assistant", "system", "tool_result",
        "user",
    ),
    "policy.prices": ("CostLine", "Prices"),
    "policy.settings": ("Policy", "PolicyChanges", "PolicyFields", "ToolRule"),
    "policy.triggers": (
        "AllOf", "AnyOf", "ColdCacheTrigger", "EconomicTrigger", "MessagesTrigger", "RatioTrigger", "TokensTrigger",
        "Trigger", "TurnsTrigger",
    ),
    "protocols": (
        "AsyncChunkStream", "BackendCapabilities", "Chunk", "ChunkStream", "ContextBackend", "Document", "Embedder",
        "Head", "OwnerIndex", "Postings", "Reply", "Request", "ResponseType", "Rewrite", "Store",
        "StoreCapabilities", "TokenCounter", "ToolCallDelta", "VectorIndex",
    ),
    "sections.section": ("Item", "Query", "Section"),
    "session.context": ("AgentContext", "SessionUsage"),
    "session.service": ("ContextDelta", "ContextService"),
    "stores.base": ("BaseStore",),
    "stores.key_value": ("KeyValueStore", "KeyValueTransaction"),
    "stores.memory": ("MemoryStore",),
    "stores.sql": ("SqlStore",),
    "stream": ("Completed", "Content", "ContentFirst", "Fold", "StreamEvent", "Thinking", "ToolCalls"),
    "tokens.counter": ("MessageCounter",),
    "tokens.text": ("EncodingNotFoundError", "RatioCounter", "TextCounter", "TiktokenCounter", "text_counter"),
}
# fmt: on
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll] - it takes the names of the imports above


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"ctxfold.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'ctxfold' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
