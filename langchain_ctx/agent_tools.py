"""The history tools of a session as LangChain tools."""

from __future__ import annotations

from typing import Any

from langchain_core.tools import BaseTool, StructuredTool

from ctxfold.errors import CtxError
from ctxfold.messages import Message
from ctxfold.session import AgentContext
from ctxfold.toolkit import HistoryTool
from ctxfold.toolkit import history_tools as neutral_tools
from langchain_ctx.content import Content, plain_content

__all__ = ["history_tools"]

_TAKEN = frozenset({"image", "image_url", "document", "file"})  # blocks that a ToolMessage may hold beside text


def history_tools(context: AgentContext, *, media: bool = False) -> list[BaseTool]:
    """read_message, search_history, pin_message, unpin_message and compact_history, for `create_agent` or `bind_tools`.

    read_message names images and files with type and size. With `media` it returns them as content blocks too: for models that
    take them in tool results, such as Anthropic's; chat completions refuse them there.
    """
    return [_tool(context, tool, media and tool.name == "read_message") for tool in neutral_tools(context)]


def _tool(context: AgentContext, tool: HistoryTool, media: bool) -> BaseTool:
    def read(reference: str, offset: int = 0) -> Content:
        text = tool.call(reference=reference, offset=offset)
        try:
            return _with_media(text, context.get(reference)) if not offset else text
        except CtxError:
            return text  # it says what is wrong with the reference

    async def aread(reference: str, offset: int = 0) -> Content:
        text = await tool.acall(reference=reference, offset=offset)
        try:
            return _with_media(text, await context.aget(reference)) if not offset else text
        except CtxError:
            return text

    return StructuredTool.from_function(
        func=read if media else tool.call,
        coroutine=aread if media else tool.acall,
        name=tool.name,
        description=tool.description,
        args_schema=tool.parameters,
    )


def _with_media(text: str, message: Message) -> Content:
    content = plain_content(message)
    if message.visibility == "user" or isinstance(content, str):
        return text
    blocks: list[Any] = [b for b in content if isinstance(b, dict) and b.get("type") in _TAKEN]
    return [{"type": "text", "text": text}, *blocks] if blocks else text
