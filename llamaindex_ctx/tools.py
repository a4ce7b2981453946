"""Tools between LlamaIndex and the engine: their description, their counting, and the history tools of a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from llama_index.core.base.llms.types import ContentBlock, TextBlock
from llama_index.core.program.function_program import get_function_tool
from llama_index.core.tools import FunctionTool
from llama_index.core.tools.types import BaseTool

from ctxfold.adapters.history_tools import HistoryTool, reading_media
from ctxfold.adapters.history_tools import history_tools as neutral_tools
from ctxfold.errors import ConfigError
from ctxfold.messages import MediaPart, Message, ToolSpec
from ctxfold.session.context import AgentContext
from llamaindex_ctx.media import plain_media_block


def tool_row(tool: object) -> Any:
    """Returns a tool in the form of chat completions, which events and payloads can hold; a row as it is."""
    return tool.metadata.to_openai_tool(skip_length_check=True) if isinstance(tool, BaseTool) else tool


def tool_spec(tool: object) -> ToolSpec:
    if isinstance(tool, ToolSpec):
        return tool
    function = _function(tool_row(tool))
    if not function.get("name"):
        raise ConfigError(
            f"tools holds {type(tool).__name__} {str(tool)[:80]!r}: give LlamaIndex tools or "
            '{"type": "function", "function": {"name": ...}}'
        )
    return ToolSpec(function["name"], function.get("description") or "", function.get("parameters") or {})


def tool_choice_of(choice: object) -> str | None:
    """Returns a tool choice from a word, a tool's name, or the object of chat completions."""
    if isinstance(choice, Mapping):
        name = _function(cast("object", choice)).get("name")
        if not isinstance(name, str):
            raise ConfigError(f"tool_choice {choice!r} names no function: use auto, none, required or a tool's name")
        return name
    if choice is None or isinstance(choice, str):
        return "required" if choice == "any" else choice
    raise ConfigError(f"tool_choice is {choice!r}: use auto, none, required or a tool's name")


def _function(row: object) -> Mapping[str, Any]:
    """Returns the "function" field of a chat-completions object, empty for anything else."""
    function: object = cast("Mapping[str, Any]", row).get("function") if isinstance(row, Mapping) else None
    return cast("Mapping[str, Any]", function) if isinstance(function, Mapping) else {}


def is_output_class(tool: BaseTool) -> bool:
    """Returns True for the tool that stands for the class of a structured output: what is called is LlamaIndex's own function."""
    return isinstance(tool, FunctionTool) and tool.fn.__module__ == get_function_tool.__module__


def counted(tool: object) -> ToolSpec:
    """Returns a tool for counting, from any shape that the LLM takes."""
    row: object = tool_row(tool)
    if not isinstance(row, Mapping):
        return ToolSpec("tool", str(row), {})
    function = _function(cast("Mapping[str, Any]", row)) or cast("Mapping[str, Any]", row)
    schema: object = function.get("parameters") or function.get("input_schema")
    parameters = cast("Mapping[str, Any]", schema) if isinstance(schema, Mapping) else function
    return ToolSpec(str(function.get("name") or "tool"), str(function.get("description") or ""), parameters)


def history_tools(context: AgentContext, *, media: bool = False) -> list[FunctionTool]:
    """Returns the tools read_message, search_history, pin_message, unpin_message and compact_history, for a `FunctionAgent`.

    read_message describes images and files by type and size. With `media` it also returns them as content blocks, for LLMs that
    accept them in tool results, such as Anthropic's; chat completions services refuse them there.
    """
    return [_tool(context, tool, media and tool.name == "read_message") for tool in neutral_tools(context)]


def _tool(context: AgentContext, tool: HistoryTool, media: bool) -> FunctionTool:
    call, acall = reading_media(context, tool, _with_media) if media else (tool.call, tool.acall)
    return FunctionTool.from_defaults(fn=call, async_fn=acall, name=tool.name, description=tool.description)


def _with_media(text: str, message: Message) -> str | list[ContentBlock]:
    media = [part for part in message.parts if isinstance(part, MediaPart)]
    if message.visibility == "user" or not media:
        return text
    return [TextBlock(text=text), *map(plain_media_block, media)]
