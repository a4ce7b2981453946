"""Chat histories by key in a ctxfold store, for LlamaIndex's own memories, which trim for themselves."""

from __future__ import annotations

import asyncio
import json
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.storage.chat_store.base import BaseChatStore
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus
from llama_index.core.storage.chat_store.loading import RECOGNIZED_CHAT_STORES
from pydantic import Field, PrivateAttr, computed_field

from ctxfold._lifecycle import Closing
from ctxfold.adapters.tool_rounds import unanswered
from ctxfold.errors import ConfigError, MessageNotFoundError
from ctxfold.history.records import SessionKey
from ctxfold.lru import LruCache
from ctxfold.messages import Message, Opaque, result_as_text
from ctxfold.policy.settings import session_limit
from ctxfold.protocols import Store
from ctxfold.session.context import AgentContext
from ctxfold.validation import check_name
from llamaindex_ctx.memory_settings import chat_store_source, source_of
from llamaindex_ctx.messages import from_chat_messages, listed, to_chat_message, to_chat_messages, with_distinct_ids
from llamaindex_ctx.metadata import is_section, without_marks
from llamaindex_ctx.store_registry import Source, find_source, forget, name_of, stored_name

ARCHIVED = "/archived"
AS_PUT = "llama_index:as_put"  # what a message was before it was told in another role
HANDLES = 256  # of sessions, at least: they hold no messages
TURNS = 64  # histories that share one wait for each other's writers
WINDOW = 1_000_000  # nothing is ever compacted here: the memory above trims, or a CtxMemory that opens the session

_alive: weakref.WeakValueDictionary[str, _Shared] = weakref.WeakValueDictionary()


@dataclass(eq=False)
class _Shared:
    """The state that a chat store shares with its copies."""

    source: Source
    store: Store
    ours: bool
    max_sessions: int
    handles: LruCache[SessionKey, AgentContext]
    first: AgentContext | None = None
    # who changes a whole history would be overtaken again and again by who adds to it; other processes may do so still
    turns: tuple[threading.Lock, ...] = field(default_factory=lambda: tuple(threading.Lock() for _ in range(TURNS)))

    def opened(self, key: SessionKey) -> AgentContext:
        """Returns the session; an existing one keeps the policy that a memory has set."""
        new = self.store.head(key) is None
        if self.first is None:
            self.first = AgentContext(
                session_id=key.session,
                owner=key.owner,
                store=self.store,
                context_window=WINDOW,
                auto_compact=False,
                create=new,
                max_sessions=self.max_sessions,
            )
        return self.first.at(key.session, owner=key.owner, create=new)


class CtxChatStore(BaseChatStore, Closing):
    """Chat histories by key. Each is a session that `CtxMemory` opens under the same name, and vice versa.

    Messages are returned as they were stored, complete and in order, with an id for each tool call; nothing is summarised or
    trimmed. Deleted and replaced messages leave the history and stay in the archive. Safe across threads and tasks; copies share
    the store.

    Args:
        store: `sqlite:///file.db`, `postgresql+psycopg://...`, a registered name, a Store, or None for memory.
        owner: the user or tenant to whom the histories belong.
        max_sessions: how many histories stay open in memory, 256 by default; any other is read from the store when it is used.
    """

    owner: str = Field(default="default", description="whose histories they are")

    _shared: _Shared = PrivateAttr()

    def __init__(
        self, store: str | Store | None = None, *, owner: str = "default", max_sessions: int | None = None
    ) -> None:
        fields: dict[str, Any] = {"owner": check_name("owner name", owner)}
        super().__init__(**fields)
        most = session_limit(max_sessions)
        source = source_of(store, None)
        opened, ours = source.open()
        self._shared = _Shared(source, opened, ours, most, LruCache(max(HANDLES, most)))

    @classmethod
    def class_name(cls) -> str:
        return "CtxChatStore"

    @computed_field(description="the registered name of the store, never its URL")  # type: ignore[prop-decorator]
    @property
    def store(self) -> str:
        name = name_of(self._shared.source)
        _alive[name] = self._shared
        return name

    def context(self, key: str) -> AgentContext:
        """Returns the session of a key, which is created when it is new: search, undo, export."""
        return self._context(check_name("session name", key))

    def _context(self, key: str) -> AgentContext:
        name = SessionKey(self.owner, key)
        return self._shared.handles.get_or_make(name, lambda: self._shared.opened(name))

    def _turn(self, key: str) -> threading.Lock:
        return self._shared.turns[hash((self.owner, key)) % TURNS]

    # reading

    def get_messages(self, key: str) -> list[ChatMessage]:
        """Returns the whole history as it was stored; [] for an unknown key."""
        return [_as_put(m) for m in self._stored(key)]

    def get_keys(self) -> list[str]:
        """Returns the keys that hold messages, sorted; reads each history."""
        return [key for key in self._shared.store.sessions(self.owner) if self._holds_any(key)]

    def _holds_any(self, key: str) -> bool:
        view = self._context(key).view()
        return any(m.visibility != "model" for m in view.messages)

    def _stored(self, key: str) -> tuple[Message, ...]:
        if self._shared.store.head(SessionKey(self.owner, check_name("session name", key))) is None:
            return ()
        return self.context(key).messages(audience="user")

    # writing

    def set_messages(self, key: str, messages: Sequence[ChatMessage]) -> None:
        """Replaces the history of a key in one step."""
        context = self.context(key)
        with self._turn(key):
            context.edit.set_messages(_rewritten(messages, context), prompts=True, recognise=True)

    def add_message(self, key: str, message: ChatMessage, idx: int | None = None) -> None:
        """Stores a message at the end, or before the one at `idx`."""
        if idx is None:
            self.add_messages(key, [message])
            return
        context = self.context(key)

        def inserted(stored: Sequence[Message]) -> list[Message]:
            before, after = stored[:idx], stored[idx:]
            return _rewritten([*map(_as_stored, before), message, *map(_as_stored, after)], context)

        with self._turn(key):
            context.edit.revise(inserted)

    def add_messages(self, key: str, messages: Sequence[ChatMessage]) -> None:
        """Stores messages at the end: all of them, or none when it raises."""
        context = self.context(key)
        with self._turn(key):
            fresh = _converted(messages, context, [e.message for e in context.view().turn])
            if fresh:
                context.add(fresh)

    def move_oldest(self, key: str, count: int, *, to: str | None = None) -> list[ChatMessage]:
        """Moves the oldest messages of a history to the end of another, and returns them; adds them before it removes them."""
        moved = self._stored(key)[: max(0, count)]
        if moved and to is not None:
            self.add_messages(to, [_as_stored(m) for m in moved])
        if moved:
            self._drop(key, frozenset(m.id for m in moved))
        return [_as_put(m) for m in moved]

    def _drop(self, key: str, ids: frozenset[str]) -> None:
        """Removes exactly these messages, whoever writes meanwhile; the rest of a tool round is stored again."""
        context = self.context(key)

        def rest(stored: Sequence[Message]) -> list[Message] | None:
            remaining = [_as_stored(m) for m in stored if m.id not in ids]
            return None if len(remaining) == len(stored) else _rewritten(remaining, context)

        with self._turn(key):
            context.edit.revise(rest)

    async def async_add_message(self, key: str, message: ChatMessage, idx: int | None = None) -> None:
        await asyncio.to_thread(self.add_message, key, message, idx)

    def delete_messages(self, key: str) -> list[ChatMessage] | None:
        """Empties the history of a key and returns its messages; None when it was empty."""
        stored = self.get_messages(key)
        if not stored:
            return None
        with self._turn(key):
            self.context(key).edit.clear(prompts=True)
        return stored

    def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Removes only the message at `idx` and returns it; None when there is none."""
        stored = self._stored(key)
        if not -len(stored) <= idx < len(stored):
            return None
        removed = stored[idx]
        if removed.tool_calls or removed.tool_results or not self._remove_live(key, removed.id):
            self._drop(key, frozenset([removed.id]))
        return _as_put(removed)

    def _remove_live(self, key: str, message_id: str) -> bool:
        """Removes a live message through the engine. Returns False for one that is not live."""
        try:
            with self._turn(key):
                return bool(self.context(key).edit.remove(message_id))
        except MessageNotFoundError:
            return False

    def delete_last_message(self, key: str) -> ChatMessage | None:
        return self.delete_message(key, -1)

    # copies

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> CtxChatStore:
        """Restores a chat store over the store registered under its name. Raises ConfigError for an unknown name or a URL."""
        name, owner = stored_name(data.get("store")), check_name("owner name", data.get("owner", "default"))
        find_source(name)
        shared = _alive.get(name)
        if shared is None:
            return cls(name, owner=owner)
        again = cls.model_construct(owner=owner)
        again._shared = shared
        return again

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).from_dict, (self.to_dict(),))

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> CtxChatStore:
        return self.model_copy()

    def close(self) -> None:
        """Closes the store if this object opened it; its copies cannot be used afterwards."""
        self._forget()
        if self._shared.ours:
            self._shared.store.close()

    async def aclose(self) -> None:
        self._forget()
        if self._shared.ours:
            await self._shared.store.aclose()

    def _forget(self) -> None:
        for name in [n for n, shared in _alive.items() if shared is self._shared]:
            del _alive[name]
        forget(self._shared.source)


class CtxAsyncChatStore(AsyncDBChatStore, Closing):
    """Chat histories for LlamaIndex's own `Memory`: `Memory.from_defaults("ann",
    chat_store=CtxAsyncChatStore("sqlite:///chat.db"))`.

    The active messages of a session are the history under its key, as in `CtxChatStore`. Archived messages are the history
    under "<key>/archived", so a key must not end with "/archived". The parameters are those of `CtxChatStore`, and those of
    LlamaIndex's `SQLAlchemyChatStore`: `async_database_uri` or `async_engine` in place of `store`.
    """

    _histories: CtxChatStore = PrivateAttr()

    def __init__(
        self, store: str | Store | None = None, *, owner: str = "default", max_sessions: int | None = None, **stock: Any
    ) -> None:
        super().__init__()
        self._histories = CtxChatStore(chat_store_source(store, stock), owner=owner, max_sessions=max_sessions)

    @classmethod
    def class_name(cls) -> str:
        return "CtxAsyncChatStore"

    @property
    def histories(self) -> CtxChatStore:
        """Returns the chat store that holds the histories, those of archived messages included."""
        return self._histories

    async def get_messages(
        self,
        key: str,
        status: MessageStatus | None = MessageStatus.ACTIVE,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[ChatMessage]:
        """Returns the messages with that status, oldest first; with None, archived and active ones."""
        messages = [m for name in _names(key, status) for m in await self._histories.aget_messages(name)]
        start = offset or 0
        return messages[start:] if limit is None else messages[start : start + limit]

    async def count_messages(self, key: str, status: MessageStatus | None = MessageStatus.ACTIVE) -> int:
        return len(await self.get_messages(key, status))

    async def add_message(self, key: str, message: ChatMessage, status: MessageStatus = MessageStatus.ACTIVE) -> None:
        await self.add_messages(key, [message], status)

    async def add_messages(
        self, key: str, messages: Sequence[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        await asyncio.to_thread(self._histories.add_messages, _names(key, status)[0], messages)

    async def set_messages(
        self, key: str, messages: Sequence[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        await self._histories.aset_messages(_names(key, status)[0], list(messages))

    async def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Removes the active message at `idx`."""
        return await self._histories.adelete_message(_names(key, MessageStatus.ACTIVE)[0], idx)

    async def delete_messages(self, key: str, status: MessageStatus | None = None) -> None:
        for name in _names(key, status):
            await self._histories.adelete_messages(name)

    async def delete_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        return await asyncio.to_thread(self._histories.move_oldest, _names(key, MessageStatus.ACTIVE)[0], n)

    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        archived = _names(key, MessageStatus.ARCHIVED)[0]
        return await asyncio.to_thread(self._histories.move_oldest, key, n, to=archived)

    async def get_keys(self) -> list[str]:
        keys = await self._histories.aget_keys()
        return sorted({key.removesuffix(ARCHIVED) for key in keys})

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> CtxAsyncChatStore:
        return self.model_copy()

    def close(self) -> None:
        """Closes the store if this object opened it."""
        self._histories.close()

    async def aclose(self) -> None:
        await self._histories.aclose()


def _names(key: str, status: MessageStatus | None) -> tuple[str, ...]:
    """Returns the histories that hold a key's messages with that status, older ones first.

    Raises ConfigError for a key that is the name of another key's archived messages.
    """
    if check_name("session name", key).endswith(ARCHIVED):
        raise ConfigError(
            f"the key {key!r} ends with {ARCHIVED!r}, which names the archived messages of {key.removesuffix(ARCHIVED)!r}: "
            "give another key, or read them with status=MessageStatus.ARCHIVED"
        )
    match status:
        case MessageStatus.ACTIVE:
            return (key,)
        case MessageStatus.ARCHIVED:
            return (key + ARCHIVED,)
        case _:
            return (key + ARCHIVED, key)


def _converted(messages: Sequence[ChatMessage], context: AgentContext, turn: Sequence[Message] = ()) -> list[Message]:
    conversation = [m for m in listed(messages) if isinstance(m, str) or not is_section(m)]
    return from_chat_messages(conversation, context.handle.new_id, unanswered(turn), stray=_as_user)


def _rewritten(messages: Sequence[ChatMessage], context: AgentContext) -> list[Message]:
    """Returns the messages as a separate history, each under an id of its own."""
    return with_distinct_ids(_converted(messages, context), context.handle.new_id)


def _as_user(message: Message) -> Message:
    """Converts a result that answers no call to a user message that keeps the original."""
    as_user = result_as_text(message)
    as_put = to_chat_message(message).model_dump(mode="json")
    return replace(as_user, parts=(*as_user.parts, Opaque(AS_PUT, json.dumps(as_put))))


def _as_put(message: Message, *, keep_id: bool = False) -> ChatMessage:
    before = message.opaque(AS_PUT)
    messages = to_chat_messages([message])[0] if before is None else ChatMessage.model_validate(before)
    return without_marks(messages, keep_id=keep_id)


def _as_stored(message: Message) -> ChatMessage:
    """Returns the message as it was put, with its id, so that it can be put again."""
    return _as_put(message, keep_id=True)


# so that ChatMemoryBuffer.from_dict knows the class by its name
RECOGNIZED_CHAT_STORES[CtxChatStore.class_name()] = CtxChatStore  # type: ignore[assignment]
