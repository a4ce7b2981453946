"""Keeps a chat store of the user's up to date with what a memory stores, as LlamaIndex's own memories do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.storage.chat_store.base import BaseChatStore
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore

from ctxfold.messages import Message
from llamaindex_ctx.memory_blocks import SideLoop
from llamaindex_ctx.messages import shown, to_chat_messages
from llamaindex_ctx.metadata import without_marks


@dataclass(frozen=True, slots=True)
class ChatStoreCopy:
    """A history of another chat store, which receives every message after the memory has stored it.

    An error of the chat store is raised as it comes. The memory has the messages then, the chat store not.
    """

    store: BaseChatStore | AsyncDBChatStore
    key: str
    side: SideLoop = field(default_factory=SideLoop)  # for synchronous calls of a chat store that is async only

    def read(self) -> list[ChatMessage]:
        """Returns the history, archived messages included."""
        if isinstance(self.store, BaseChatStore):
            return self.store.get_messages(self.key)
        return self.side.run(self.store.get_messages(self.key, status=None))

    def add(self, messages: Sequence[Message]) -> None:
        """Stores new messages at the end."""
        added = [without_marks(m) for m in to_chat_messages(messages)]
        if isinstance(self.store, BaseChatStore):
            for message in added:
                self.store.add_message(self.key, message)
        elif added:
            self.side.run(self.store.add_messages(self.key, added))

    async def aadd(self, messages: Sequence[Message]) -> None:
        added = [without_marks(m) for m in await shown(messages)]
        if isinstance(self.store, BaseChatStore):
            for message in added:
                await self.store.async_add_message(self.key, message)
        elif added:
            await self.store.add_messages(self.key, added)

    def set(self, messages: Sequence[ChatMessage]) -> None:
        """Stores messages in place of all others."""
        unmarked = [without_marks(m) for m in messages]
        if isinstance(self.store, BaseChatStore):
            self.store.set_messages(self.key, unmarked)
        else:
            self.side.run(self.store.set_messages(self.key, unmarked))

    async def aset(self, messages: Sequence[ChatMessage]) -> None:
        unmarked = [without_marks(m) for m in messages]
        if isinstance(self.store, BaseChatStore):
            await self.store.aset_messages(self.key, unmarked)
        else:
            await self.store.set_messages(self.key, unmarked)

    def clear(self) -> None:
        """Deletes the history."""
        if isinstance(self.store, BaseChatStore):
            self.store.delete_messages(self.key)
        else:
            self.side.run(self.store.delete_messages(self.key))

    async def aclear(self) -> None:
        if isinstance(self.store, BaseChatStore):
            await self.store.adelete_messages(self.key)
        else:
            await self.store.delete_messages(self.key)
