"""Conversations between a session and any other LangChain chat history: each message once, however often they are copied."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import BaseMessage, message_to_dict

from ctxfold.errors import ConfigError
from ctxfold.given import kind_of
from ctxfold.messages import Message
from ctxfold.session import AgentContext
from langchain_ctx.convert import from_langchain, to_langchain
from langchain_ctx.errors import translated
from langchain_ctx.listing import with_refusals
from langchain_ctx.naming import named

__all__ = ["aexport_history", "aimport_history", "export_history", "import_history"]


def import_history(history: BaseChatMessageHistory, context: AgentContext) -> int:
    """Store what another history holds in a session, in its order; how many messages were new to it.

    Messages without ids are known by content and place, so that importing a history once more, when it has grown, brings what
    was added. What does not fit the window is summarised at once.
    """
    _check(history, context)
    messages = with_refusals([from_langchain(m) for m in named(history.messages)])
    with translated():
        return len(context.add(messages, skip_orphans=True).messages) if messages else 0


async def aimport_history(history: BaseChatMessageHistory, context: AgentContext) -> int:
    """As `import_history`, in async code."""
    _check(history, context)
    messages = with_refusals([from_langchain(m) for m in named(await history.aget_messages())])
    with translated():
        return len((await context.aadd(messages, skip_orphans=True)).messages) if messages else 0


def export_history(context: AgentContext, history: BaseChatMessageHistory) -> int:
    """Give another history the messages of a session that it lacks, as they were said, summaries aside; how many those were.

    It knows a message by its id or, where it keeps none, by its content.
    """
    _check(history, context)
    missing = _missing(context.messages(), history.messages)
    if missing:
        history.add_messages(missing)
    return len(missing)


async def aexport_history(context: AgentContext, history: BaseChatMessageHistory) -> int:
    """As `export_history`, in async code."""
    _check(history, context)
    missing = _missing(await context.amessages(), await history.aget_messages())
    if missing:
        await history.aadd_messages(missing)
    return len(missing)


def _check(history: object, context: object) -> None:
    if not isinstance(history, BaseChatMessageHistory):
        raise ConfigError(
            f"the history is {kind_of(history)}: give a BaseChatMessageHistory; a list goes into "
            "InMemoryChatMessageHistory(messages=...)"
        )
    if not isinstance(context, AgentContext):
        raise ConfigError(f"the context is {kind_of(context)}: give an AgentContext, as `.context` of a history is one")


def _missing(own: Sequence[Message], theirs: Sequence[BaseMessage]) -> list[BaseMessage]:
    ids = {m.id for m in theirs if m.id}
    nameless = Counter(_content(m) for m in theirs if not m.id)
    found: list[BaseMessage] = []
    for told in map(to_langchain, own):
        if told.id in ids:
            continue
        if nameless[_content(told)] > 0:
            nameless[_content(told)] -= 1
        else:
            found.append(told)
    return found


def _content(message: BaseMessage) -> str:
    body = message_to_dict(message)["data"]
    return json.dumps([message.type, body["content"], body.get("tool_calls"), body.get("tool_call_id")], default=str)
