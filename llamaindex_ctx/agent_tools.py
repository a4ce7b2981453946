"""The history tools of a session as LlamaIndex tools."""

from __future__ import annotations

from llama_index.core.tools import FunctionTool

from ctxfold.session import AgentContext
from ctxfold.toolkit import history_tools as neutral_tools

__all__ = ["history_tools"]


def history_tools(context: AgentContext) -> list[FunctionTool]:
    """read_message, search_history, pin_message, unpin_message and compact_history, for a `FunctionAgent`."""
    return [
        FunctionTool.from_defaults(
            fn=tool.call,
            async_fn=tool.acall,
            name=tool.name,
            description=tool.description,
        )
        for tool in neutral_tools(context)
    ]
