"""Every public name of version 0.1.0 still imports; a renamed one warns and leads to its replacement."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest

# `__all__` of the three packages in version 0.1.0
NAMES = {
    "ctxfold": """
        AgentContext AllOf AnthropicBackend AnyOf BackendError Case ChaosBackend ColdCacheTrigger CompactionHeld
        CompactionProposal Completed Content ContentFirst ContextBackend ContextDelta ContextService CtxError
        EconomicTrigger Embedder Erasure Event Explanation Fold HistoryCompacted HistoryTool Hit Hold Inspection Item
        MemoryItem MemoryLearnt MemoryStore Message MessageCounter MessageErasedError MessageExplanation
        MessagesErased MessagesLeftOut MessagesTrigger OpenAIChatBackend Plan Policy Prices Profile Query RatioCounter
        RatioTrigger Recollection Remembered Reply Request RewriteRefused ScriptedBackend Section SectionInjected
        SectionSkipped SessionUsage SqlStore Store Strategy StrategyError StreamEvent Summarizer Summary SummaryWriter
        Thinking TiktokenCounter TokenCounter TokensTrigger ToolCalls ToolSpec TurnsTrigger Usage Window
        acompact_messages compact_messages history_tools memory_section open_backend text_counter
    """,
    "langchain_ctx": """
        ChatCtx ChatModelSummarizer ContextMiddleware ContextNode ContextSummarizer CtxChatMessageHistory
        LangChainBackend LangChainEmbedder aexport_history aimport_history export_history from_langchain history_tools
        import_history section_from to_langchain token_counter with_context with_reasoning
    """,
    "llamaindex_ctx": """
        ContextLLM CtxAsyncChatStore CtxChatStore CtxLLM CtxMemory CtxMemoryBlock LlamaIndexBackend LlamaIndexEmbedder
        LlmSummarizer SessionEvent from_chat_messages history_tools register_store section_from to_chat_messages
        with_context with_reasoning
    """,
}
PUBLIC = [(package, name) for package, names in NAMES.items() for name in names.split()]


def used(package: ModuleType, name: str) -> object:
    if name in package.__all__:
        return getattr(package, name)
    with pytest.warns(
        DeprecationWarning, match=rf"{package.__name__}\.{name} is now .* will be removed in release 2\.0"
    ) as seen:
        found: object = getattr(package, name)
    assert {warning.filename for warning in seen} == {__file__}
    return found


@pytest.mark.parametrize(("package", "name"), PUBLIC)
def test_a_name_of_the_release_before_imports(package: str, name: str) -> None:
    module = import_module(package)
    assert used(module, name) is not None


@pytest.mark.parametrize("package", NAMES)
def test_a_name_that_was_never_public_is_an_error(package: str) -> None:
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = import_module(package).no_such_name
