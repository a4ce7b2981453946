"""Lists of messages on their way into a memory, and out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.storage.chat_store.base_db import MessageStatus

from ctxfold.errors import ConfigError, MessageError
from ctxfold.given import is_a, kind_of
from ctxfold.messages import Message
from llamaindex_ctx.marks import ID_KEY, section
from llamaindex_ctx.revert import to_chat_messages

__all__ = [
    "archive_stays",
    "carry_ids",
    "chat_messages",
    "heavy",
    "listed",
    "once",
    "question",
    "shown",
    "with_recalled",
    "with_status",
    "without_own",
]

# from here on, converting and counting would hold up an event loop
MANY = 200  # messages
LONG = 200_000  # characters


def listed(messages: Iterable[ChatMessage | str]) -> Sequence[ChatMessage | str]:
    """The list, once it is one of messages and strings. MessageError otherwise: a text would be taken letter by letter."""
    if is_a(messages, (str, ChatMessage, Mapping)) or not is_a(messages, Iterable):
        raise MessageError(f"the messages are {kind_of(messages)}: give a list of them")
    found = messages if isinstance(messages, list | tuple) else [*messages]
    wrong = [m for m in found if not is_a(m, (str, ChatMessage))]
    if wrong:
        raise MessageError(f"a message is {kind_of(wrong[0])}: give ChatMessage(role='user', content='...'), or a text")
    return found


def chat_messages(messages: Iterable[ChatMessage | str]) -> list[ChatMessage]:
    """As `listed`, each text as a user message."""
    return [ChatMessage(content=m) if isinstance(m, str) else m for m in listed(messages)]


def question(input: Any) -> str | None:
    """The words of what is about to be asked: a text, a message, or what else chat engines take, such as a QueryBundle."""
    if isinstance(input, ChatMessage):
        return input.content
    return None if input is None else str(input)


def heavy(messages: Sequence[ChatMessage | str]) -> bool:
    return len(messages) > MANY or sum(len(m if isinstance(m, str) else m.content or "") for m in messages) > LONG


async def shown(messages: Sequence[Message]) -> list[ChatMessage]:
    """The messages converted, in a thread where they are many."""
    if len(messages) > MANY:
        return await asyncio.to_thread(to_chat_messages, messages)
    return to_chat_messages(messages)


def with_recalled(messages: list[ChatMessage], recalled: str) -> list[ChatMessage]:
    if not recalled:
        return messages
    last_is_user = bool(messages) and messages[-1].role == "user"
    messages.insert(len(messages) - 1 if last_is_user else len(messages), section(recalled))
    return messages


def with_status(
    messages: Sequence[Message], view: Sequence[Message], status: MessageStatus | None
) -> Sequence[Message]:
    """All messages, or those that stand in the view as they are, or those that only the archive has."""
    if status is None:
        return messages
    ids: Collection[str] = {m.id for m in view}
    return [m for m in messages if (m.id in ids) == (status is MessageStatus.ACTIVE)]


def archive_stays(status: MessageStatus | None) -> None:
    """ConfigError for who wants the archive emptied."""
    if status is MessageStatus.ARCHIVED:
        raise ConfigError("a memory keeps its archive: memory.context.erase_session() takes a session out of the store")


def without_own(messages: Sequence[Message], view: Sequence[Message]) -> list[Message]:
    """The messages without summaries of this very session, which an engine hands back."""
    known = {m.id for m in view if m.kind == "summary"}
    return [m for m in messages if m.id not in known]


def carry_ids(messages: Iterable[ChatMessage | str]) -> bool:
    """Whether any of them was handed out by a memory before."""
    return any(not isinstance(m, str) and ID_KEY in m.additional_kwargs for m in messages)


def once(messages: Sequence[Message]) -> list[Message]:
    return list({m.id: m for m in messages}.values())
