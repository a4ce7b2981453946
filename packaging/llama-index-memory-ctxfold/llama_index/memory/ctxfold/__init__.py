"""Exports ctxfold's memory, and what it is set up with, under LlamaIndex's namespace for memories."""

from llamaindex_ctx import CtxMemory, CtxMemoryBlock, LlmSummarizer
from llamaindex_ctx.store_registry import register_store

__all__ = ["CtxMemory", "CtxMemoryBlock", "LlmSummarizer", "register_store"]
