"""The history tools of whatever session an agent's state speaks of, for `ContextMiddleware`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from langchain.tools import ToolRuntime
from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool, StructuredTool

from ctxfold.errors import ConfigError
from ctxfold.messages import ToolSpec
from ctxfold.session import AgentContext
from ctxfold.toolkit import HISTORY_TOOLS, HistoryTool, history_tools

__all__ = ["own_history_tools", "takes_tools"]

Runtime = ToolRuntime[Any, Any]


def own_history_tools(
    chosen: bool | Collection[str], context_of: Callable[[Runtime], AgentContext]
) -> tuple[BaseTool, ...]:
    """All of them, none, or those that are named; `context_of` finds the session of a tool call."""
    known = {spec.name: spec for spec in HISTORY_TOOLS}
    named = (chosen,) if isinstance(chosen, str) else chosen
    names = (known if named else ()) if isinstance(named, bool) else named
    unknown = sorted(set(names) - known.keys())
    if unknown:
        raise ConfigError(f"history_tools names {', '.join(unknown)}: there are {', '.join(known)}")
    return tuple(_tool(known[name], context_of) for name in names)


def _tool(spec: ToolSpec, context_of: Callable[[Runtime], AgentContext]) -> BaseTool:
    def bound(runtime: Runtime) -> HistoryTool:
        return next(t for t in history_tools(context_of(runtime)) if t.name == spec.name)

    def call(runtime: ToolRuntime[Any, Any], **arguments: Any) -> str:
        return bound(runtime).call(**arguments)

    async def acall(runtime: ToolRuntime[Any, Any], **arguments: Any) -> str:
        return await bound(runtime).acall(**arguments)

    return StructuredTool.from_function(
        func=call,
        coroutine=acall,
        name=spec.name,
        description=spec.description,
        args_schema=dict(spec.parameters),
    )


def takes_tools(model: BaseChatModel) -> bool:
    return type(model).bind_tools is not BaseChatModel.bind_tools
