"""The history tools of a session as LangChain tools."""

from __future__ import annotations

from langchain_core.tools import BaseTool, StructuredTool

from ctxfold.session import AgentContext
from ctxfold.toolkit import history_tools as neutral_tools

__all__ = ["history_tools"]


def history_tools(context: AgentContext) -> list[BaseTool]:
    """read_message, search_history, pin_message, unpin_message and compact_history, for `create_agent` or `bind_tools`."""
    return [
        StructuredTool.from_function(
            func=tool.call,
            coroutine=tool.acall,
            name=tool.name,
            description=tool.description,
            args_schema=tool.parameters,
        )
        for tool in neutral_tools(context)
    ]
