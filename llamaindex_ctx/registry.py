"""Which store a serialised memory means: stores by name, and the engines that live in this process."""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llama_index.core.llms.llm import LLM

from ctxfold.connect import open_store
from ctxfold.errors import ConfigError
from ctxfold.ports import Store
from ctxfold.session import AgentContext
from llamaindex_ctx.memory_blocks import Block, Blocks

__all__ = [
    "Live",
    "Source",
    "drop_live",
    "find_live",
    "find_source",
    "forget",
    "keep_live",
    "name_of",
    "register_store",
    "stored_name",
]


@dataclass(frozen=True, slots=True)
class Source:
    """What a name stands for: a store by URL or as an object; of memories opened through it, who writes the summaries, and
    which blocks a session has."""

    store: str | Store
    llm: LLM | None = None
    memory_blocks: Callable[[str], Sequence[Block]] | None = None

    def open(self) -> tuple[Store, bool]:
        """The store, and whether it was opened here."""
        return open_store(self.store), isinstance(self.store, str)


@dataclass(eq=False)
class Live:
    """One engine in use, shared by a memory and all copies of it."""

    key: str
    context: AgentContext
    source: Source
    opened: Store | None  # to be closed with the memory
    tokenizer_fn: Callable[[str], Sequence[Any]]
    blocks: Blocks | None = None
    beside: bool = False  # whether anything is to stand beside the conversation
    waiting: bool = False  # whether the newest messages put are calls without results


_lock = threading.Lock()
_sources: dict[str, Source] = {}
_live: weakref.WeakValueDictionary[str, Live] = weakref.WeakValueDictionary()


def register_store(
    name: str,
    store: str | Store,
    *,
    llm: LLM | None = None,
    memory_blocks: Callable[[str], Sequence[Block]] | None = None,
) -> None:
    """Give a store a name by which serialised memories refer to it, never by a URL, which may hold a password.

    `CtxMemory.from_defaults(store=name)` opens it; so does `CtxMemory.from_dict` in a process where the name was registered.
    `llm` writes the summaries of memories opened by the name, and `memory_blocks` gives the blocks of a session, by its id.
    """
    if not name or "://" in name:
        raise ConfigError(f"store name {name.partition('://')[0]!r}: give a plain name such as 'chats', not a URL")
    with _lock:
        _sources[name] = Source(store, llm, memory_blocks)


def find_source(name: str) -> Source:
    """What was registered under the name."""
    with _lock:
        source = _sources.get(name)
    if source is None:
        raise ConfigError(
            f"no store is registered as {name!r} in this process: call "
            f"llamaindex_ctx.register_store({name!r}, url_or_store) before this memory is opened"
        )
    return source


def stored_name(name: object) -> str:
    """The name that a dict gives; never a URL, which would let the dict choose what is opened."""
    if not isinstance(name, str) or "://" in name:
        raise ConfigError(
            "the dict does not name a registered store, and a URL in a dict is not trusted: give store=... beside it"
        )
    return name


def name_of(source: Source) -> str:
    """The name of a source; one is made up, for this process, if it has none."""
    with _lock:
        for name, known in _sources.items():
            same_url = isinstance(source.store, str) and known.store == source.store
            if same_url or known.store is source.store:
                return name
        name = f"process-{uuid.uuid4().hex}"
        _sources[name] = source
        return name


def forget(source: Source) -> None:
    """Drop a name that was made up for the source."""
    with _lock:
        for name in [n for n, s in _sources.items() if n.startswith("process-") and s.store is source.store]:
            del _sources[name]


def keep_live(live: Live) -> None:
    """Remember an engine for as long as a memory holds it."""
    with _lock:
        _live[live.key] = live


def drop_live(live: Live) -> None:
    """Its store is closed: what is opened from a dict from now on opens the store anew."""
    with _lock:
        _live.pop(live.key, None)


def find_live(key: str) -> Live | None:
    with _lock:
        return _live.get(key)
