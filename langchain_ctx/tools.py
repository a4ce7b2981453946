"""Tools and tool choice between LangChain and the engine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from langchain_core.utils.function_calling import convert_to_openai_tool

from ctxfold.errors import ConfigError
from ctxfold.messages import ToolSpec

__all__ = ["bound_tools", "choice", "counted", "specs"]


def bound_tools(tools: Iterable[Any], *, strict: bool | None = None) -> list[dict[str, Any]]:
    """Tools as chat completions take them, from a dict, a pydantic class, a callable or a BaseTool."""
    return [convert_to_openai_tool(tool, strict=strict) for tool in tools]


def specs(tools: Sequence[Any] | None) -> tuple[ToolSpec, ...]:
    return tuple(_spec(tool) for tool in tools or ())


def counted(tools: Sequence[Any] | None) -> tuple[ToolSpec, ...]:
    """Tools for what they cost alone: those that run at the provider, or that are in a form of its own, by their description."""
    found: list[ToolSpec] = []
    for tool in tools or ():
        try:
            found.append(_spec(tool))
        except (ConfigError, ValueError):
            found.append(ToolSpec("provider", json.dumps(tool, default=str), {}))
    return tuple(found)


def _spec(tool: Any) -> ToolSpec:
    body = convert_to_openai_tool(tool)
    function = body.get("function")
    if body.get("type") != "function" or not isinstance(function, Mapping):
        raise ConfigError(
            f"tool of type {body.get('type')!r}: chat completions take functions only: "
            "give a function, a pydantic class or a BaseTool"
        )
    told = cast("Mapping[str, Any]", function)
    return ToolSpec(told["name"], told.get("description", ""), told.get("parameters", {}))


def choice(value: object) -> str | None:
    """LangChain's ways to say it as "auto", "none", "required" or a tool's name."""
    match value:
        case None | False:
            return None
        case True | "any":
            return "required"
        case str():
            return value
        case {"function": {"name": str(name)}}:
            return name
        case {"name": str(name)}:
            return name
        case _:
            raise ConfigError(f"tool_choice {value!r}: use 'auto', 'none', 'any', 'required' or a tool's name")
