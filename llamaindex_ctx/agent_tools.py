"""Offers the history tools of a session as LlamaIndex tools."""

from __future__ import annotations

from llama_index.core.base.llms.types import ContentBlock, TextBlock
from llama_index.core.tools import FunctionTool

from ctxfold.adapters.history_tools import HistoryTool, reading_media
from ctxfold.adapters.history_tools import history_tools as neutral_tools
from ctxfold.messages import MediaPart, Message
from ctxfold.session.context import AgentContext
from llamaindex_ctx.media import plain_media_block


def history_tools(context: AgentContext, *, media: bool = False) -> list[FunctionTool]:
    """Returns the tools read_message, search_history, pin_message, unpin_message and compact_history, for a `FunctionAgent`.

    read_message describes images and files by type and size. With `media` it also returns them as content blocks, for LLMs that
    accept them in tool results, such as Anthropic's; chat completions services refuse them there.
    """
    return [_tool(context, tool, media and tool.name == "read_message") for tool in neutral_tools(context)]


def _tool(context: AgentContext, tool: HistoryTool, media: bool) -> FunctionTool:
    call, acall = reading_media(context, tool, _with_media) if media else (tool.call, tool.acall)
    return FunctionTool.from_defaults(
        fn=call,
        async_fn=acall,
        name=tool.name,
        description=tool.description,
    )


def _with_media(text: str, message: Message) -> str | list[ContentBlock]:
    media = [part for part in message.parts if isinstance(part, MediaPart)]
    if message.visibility == "user" or not media:
        return text
    return [TextBlock(text=text), *map(plain_media_block, media)]
