"""Resolves the stores of memories, and keeps open engines and copies in other chat stores."""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.llm import LLM
from llama_index.core.storage.chat_store.base import BaseChatStore
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore

from ctxfold.adapters.calls import Invoke
from ctxfold.connect import check_store, open_store
from ctxfold.effects import Flow
from ctxfold.errors import ConfigError
from ctxfold.lru import LruCache
from ctxfold.messages import Message
from ctxfold.protocols import Store
from ctxfold.session.context import AgentContext
from llamaindex_ctx.memory_blocks import Block, Blocks, SideLoop
from llamaindex_ctx.messages import shown
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

    def add(self, messages: Sequence[Message]) -> Flow[None]:
        """Stores new messages at the end."""
        added = [without_marks(m) for m in (yield from shown(messages))]
        if isinstance(self.store, BaseChatStore):
            for message in added:
                yield from Invoke(self.store.add_message, self.store.async_add_message, self.key, message)
        elif added:
            yield from self._awaited(self.store.add_messages, added)

    def set(self, messages: Sequence[ChatMessage]) -> Flow[None]:
        """Stores messages in place of all others."""
        unmarked = [without_marks(m) for m in messages]
        if isinstance(self.store, BaseChatStore):
            yield from Invoke(self.store.set_messages, self.store.aset_messages, self.key, unmarked)
        else:
            yield from self._awaited(self.store.set_messages, unmarked)

    def clear(self) -> Flow[None]:
        """Deletes the history."""
        if isinstance(self.store, BaseChatStore):
            yield from Invoke(self.store.delete_messages, self.store.adelete_messages, self.key)
        else:
            yield from self._awaited(self.store.delete_messages)

    def _awaited(self, method: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Invoke:
        """Calls a method of a chat store that is async only."""
        return Invoke(lambda: self.side.run(method(self.key, *args)), lambda: method(self.key, *args))


@runtime_checkable
class SessionHistories(Protocol):
    """A chat store whose histories are sessions of ctxfold, as those of `CtxChatStore` are."""

    owner: str

    @property
    def store(self) -> str: ...

    def context(self, key: str) -> AgentContext: ...


@dataclass(frozen=True, slots=True)
class Source:
    """The store behind a name, by URL or as an object; of memories opened through it, who writes the summaries, and
    which blocks a session has."""

    store: str | Store
    llm: LLM | None = None
    memory_blocks: Callable[[str], Sequence[Block]] | None = None
    name: str = ""  # that it was registered under

    def open(self) -> tuple[Store, bool]:
        """Returns the store, and True when this call opened it."""
        return open_store(self.store), isinstance(self.store, str)


@dataclass(eq=False)
class Live:
    """An open engine, shared by a memory and all its copies."""

    key: str
    context: AgentContext
    source: Source
    opened: Store | None  # to be closed with the memory
    tokenizer_fn: Callable[[str], Sequence[Any]]
    blocks: Blocks | None = None
    beside: bool = False  # whether anything is to stand beside the conversation
    waiting: bool = False  # whether the newest messages put are calls without results
    copy: ChatStoreCopy | None = None  # another chat store that receives what is stored
    beside_text: str = ""  # what stood beside the conversation in the window given out last: never stored


PROCESS = "process-"  # how names begin that are made up
MADE_UP = 64  # of those that are kept, with their stores: the newest

_lock = threading.Lock()
_given: dict[str, Source] = {}
_made_up: LruCache[str, Source] = LruCache(MADE_UP)
_live: weakref.WeakValueDictionary[str, Live] = weakref.WeakValueDictionary()


def register_store(
    name: str,
    store: str | Store,
    *,
    llm: LLM | None = None,
    memory_blocks: Callable[[str], Sequence[Block]] | None = None,
) -> None:
    """Registers a store under a name by which serialised memories refer to it; they never hold a URL, which may hold a password.

    `CtxMemory.from_defaults(store=name)` opens it; so does `CtxMemory.from_dict` in a process where the name was registered.
    `llm` writes the summaries of memories that are opened by this name. `memory_blocks` is a function that returns the blocks
    of a session, given its id.
    """
    if not name or "://" in name:
        raise ConfigError(f"store name {name.partition('://')[0]!r}: give a plain name such as 'chats', not a URL")
    check_store(store)
    with _lock:
        _given[name] = Source(store, llm, memory_blocks, name)


def find_source(name: str) -> Source:
    """Returns the source that was registered under the name, or that the name was made up for. ConfigError for any other."""
    with _lock:
        source = _given.get(name) or _made_up.get(name)
    if source is not None:
        return source
    if name.startswith(PROCESS):
        raise ConfigError(
            f"this memory's store was never registered, and it is closed, belongs to another process, or is older than the newest "
            f"{MADE_UP} unregistered ones: call llamaindex_ctx.store_registry.register_store(name, url_or_store) "
            "and open memories with store=name"
        )
    raise ConfigError(
        f"no store is registered as {name!r} in this process: "
        f"call llamaindex_ctx.store_registry.register_store({name!r}, url_or_store) before "
        "this memory is opened; a file is given by its URL, such as sqlite:///chat.db"
    )


def stored_name(name: object) -> str:
    """Returns the store name in a dict; raises ConfigError for a URL, which would let the dict choose the store."""
    if not isinstance(name, str) or "://" in name:
        raise ConfigError(
            "the dict does not name a registered store, and a URL in a dict is not trusted: give store=... beside it"
        )
    return name


def name_of(source: Source) -> str:
    """Returns the name of a store: its own, or that of the same registered store, or one generated for this process."""
    with _lock:
        own = _given.get(source.name)
        if own is not None and _same_store(own, source):
            return source.name
        for name, known in (*_given.items(), *_made_up.items()):
            if _same_store(known, source):
                _made_up.get(name)  # so that it counts as used
                return name
        name = f"{PROCESS}{uuid.uuid4().hex}"
        _made_up.put(name, source)
        return name


def forget(source: Source) -> None:
    """Removes a name that was generated for the source or its Store."""
    own_store = not isinstance(source.store, str)
    _made_up.discard(lambda _, known: known is source or (own_store and known.store is source.store))


def _same_store(one: Source, other: Source) -> bool:
    same_url = isinstance(one.store, str) and isinstance(other.store, str) and one.store == other.store
    return same_url or one.store is other.store


def keep_live(live: Live) -> None:
    """Keeps an engine for as long as a memory uses it."""
    with _lock:
        _live[live.key] = live


def drop_live(live: Live) -> None:
    """Removes an engine whose store was closed, and all others over that store: dicts that name them open the store anew."""
    with _lock:
        _live.pop(live.key, None)
        if live.opened is not None:
            for key in [key for key, known in _live.items() if known.opened is live.opened]:
                _live.pop(key, None)


def find_live(key: str) -> Live | None:
    with _lock:
        return _live.get(key)
