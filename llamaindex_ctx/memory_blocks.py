"""LlamaIndex's memory blocks beside a conversation: asked as sections, fed with what is compacted."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeAlias, TypeVar

from llama_index.core.base.llms.types import ChatMessage, TextBlock
from llama_index.core.memory import StaticMemoryBlock
from llama_index.core.memory.memory import BaseMemoryBlock

from ctxfold import Item, Query, Section
from ctxfold.errors import ConfigError, MessageNotFoundError
from ctxfold.events import Event, HistoryCompacted
from ctxfold.messages import Message
from ctxfold.retrieval.originals import (
    readable_text,
)
from ctxfold.session.context import AgentContext
from ctxfold.validation import all_of, as_list, name_path

_log = logging.getLogger("ctxfold")
T = TypeVar("T")
Block: TypeAlias = BaseMemoryBlock[Any]
Owed: TypeAlias = tuple[int, ChatMessage]  # a message and the number of its batch
SHARE = 0.3  # of the prompt's budget, at most, for each block that may be cut: what `Memory` leaves to all of them
MOST = 0.8  # of it, for a block of priority 0 that is not static: the newest messages need the rest


@dataclass(frozen=True, slots=True)
class _Asking:
    """The history and the keywords of the call that asks the blocks."""

    history: Callable[[], list[ChatMessage]]
    kwargs: Mapping[str, Any]
    on_loop: bool


_served: dict[int, tuple[str, str]] = {}  # by the object of a block, the owner and the session that it serves
_asking: ContextVar[_Asking | None] = ContextVar("ctxfold_asking", default=None)


@contextmanager
def asking(
    history: Callable[[], list[ChatMessage]], kwargs: Mapping[str, Any], *, on_loop: bool = False
) -> Generator[None]:
    """Passes this history and these keywords to the blocks within the block; `on_loop` says that the caller can await them."""
    token = _asking.set(_Asking(history, kwargs, on_loop))
    try:
        yield
    finally:
        _asking.reset(token)


class SideLoop:
    """Runs coroutines for synchronous code, on an event loop in a thread of its own.

    Always the same one: clients of services cannot be used from a second loop.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may close it wherever this thread is
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the coroutine's result. ConfigError in the loop's own thread, which would wait for itself."""
        if threading.current_thread() is self._thread:
            work.close()
            raise ConfigError(
                "a memory block or chat store called its memory synchronously: await aput, aget, ... there"
            )
        with self._lock:  # so that the work stands before the end in the loop's queue
            begun = asyncio.run_coroutine_threadsafe(work, self._running())
        return begun.result()

    def _running(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is None:
            self._loop = loop = asyncio.new_event_loop()
            self._thread = thread = threading.Thread(target=_run, args=(loop,), name="ctxfold-blocks", daemon=True)
            thread.start()
        return loop

    def close(self) -> None:
        """Ends the loop; callers that still wait for it are cancelled."""
        with self._lock:
            loop, self._loop, self._thread = self._loop, None, None
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.run_until_complete(_end_tasks())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.run_until_complete(_end_tasks())  # those that its threads have begun meanwhile
    loop.close()


async def _end_tasks() -> None:
    """Cancels all other tasks, and those that they start while they end, until none remains."""
    while True:
        await asyncio.sleep(0)  # what stands in the queue may begin one
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(eq=False)
class Blocks:
    """The blocks of one session: `sections` ask them, `feed` hands over what was compacted.

    A block belongs to one session, because it may keep what it was given: asked for another one, it says nothing.
    """

    blocks: Sequence[Block]
    side: SideLoop = field(default_factory=SideLoop)
    _session: tuple[str, str] | None = None
    _covered: deque[str] = field(default_factory=deque[str])
    _batches: int = 0
    _owed: dict[str, list[Owed]] = field(default_factory=dict[str, list[Owed]])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.blocks = all_of(
            "memory_blocks", self.blocks, BaseMemoryBlock, "each has to be a memory block of LlamaIndex"
        )
        names = [_kind(block.name) for block in self.blocks]
        twice = next((n for n in names if names.count(n) > 1), None)
        if twice is not None:
            raise ConfigError(f"two memory blocks are called {twice!r}: give each a name of its own")

    def sections(self) -> tuple[Section, ...]:
        """Returns a section for each block in order of priority; those of priority 0 are required.

        A static block of priority 0 is never cut. Any other one may grow until the conversation could not go on, so it is cut
        at four fifths of the budget, and the event says so.
        """
        return tuple(
            Section(
                _kind(b.name),
                _Source(self, b),
                lifetime="request",
                share=SHARE if b.priority else None if isinstance(b, StaticMemoryBlock) else MOST,
                min_free_ratio=0.0,
                timeout_s=30,
                required=b.priority == 0,
            )
            for b in sorted(self.blocks, key=lambda block: block.priority)
        )

    def bind(self, context: AgentContext) -> None:
        """Makes them the blocks of that session from now on. ConfigError for one that keeps what another session has said."""
        self._session = (context.owner, context.session)
        for block in self.blocks:
            if isinstance(block, StaticMemoryBlock):
                continue
            if _served.setdefault(id(block), self._session) != self._session:
                raise ConfigError(
                    f"the memory block {block.name!r} belongs to another session, whose messages it may keep: give each memory "
                    "blocks of its own"
                )
            weakref.finalize(block, _served.pop, id(block), None)
        context.subscribe(self._on_event)

    def belong_to(self, query: Query) -> bool:
        return self._session == (query.owner, query.session)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, HistoryCompacted) and self._session is not None and event.session == self._session[1]:
            self._covered.extend(event.covered)

    # feeding

    def feed(self, context: AgentContext) -> None:
        """Passes the messages that were compacted since the last call to all blocks that accept them.

        What a block fails to take is logged, and offered again with what is compacted next.
        """
        if self._covered:
            self.side.run(self.afeed(context))

    async def afeed(self, context: AgentContext) -> None:
        number, ids = self._next_batch()
        if not ids:
            return
        try:
            stored = [await _message_or_none(context, message_id) for message_id in ids]
        except BaseException:
            self._covered.extendleft(reversed(ids))
            raise
        messages = [_flat(m) for m in stored if m is not None]
        for block in self.blocks:  # before anything is awaited: whoever is cancelled then owes them still
            self._owe(block, [(number, m.model_copy(deep=True)) for m in messages])
        name = _name(context.owner, context.session)
        await asyncio.gather(*(self._deliver(block, name) for block in self.blocks))

    def _next_batch(self) -> tuple[int, list[str]]:
        """Returns a new batch of compacted messages: its number, higher than those before, and the ids."""
        ids: list[str] = []
        with self._lock:
            self._batches += 1
            with suppress(IndexError):
                while True:
                    ids.append(self._covered.popleft())
            return self._batches, ids

    def _owe(self, block: Block, messages: Sequence[Owed]) -> None:
        with self._lock:
            owed = [*self._owed.get(block.name, ()), *messages]
            self._owed[block.name] = sorted(owed, key=itemgetter(0))  # batches may fail out of order

    async def _deliver(self, block: Block, session: str) -> None:
        with self._lock:
            owed = self._owed.pop(block.name, [])
        if not owed:
            return  # another batch's turn has handed it over
        try:
            await block.aput([message for _, message in owed], from_short_term_memory=True, session_id=session)
        except Exception as error:  # noqa: BLE001 - logged; the messages themselves are stored
            template = "memory block %r did not take %d compacted messages, which it is offered again: %s: %s"
            _log.error(template, block.name, len(owed), type(error).__name__, error)
            self._owe(block, owed)
        except BaseException:
            self._owe(block, owed)
            raise


def _name(owner: str, session: str) -> str:
    """Returns the name by which a block, and a vector store that many blocks share, knows the session.

    It is the session's own name for the default owner, and `owner/session` for any other; no two sessions have the same.
    """
    return name_path(session) if owner == "default" else name_path(owner, session)


async def _message_or_none(context: AgentContext, message_id: str) -> Message | None:
    try:
        return await context.archive.aget(message_id)
    except MessageNotFoundError:
        return None  # erased meanwhile, or another owner's session of the same name


@dataclass(frozen=True, slots=True)
class _Source:
    """A block as the source of a section."""

    owner: Blocks
    block: Block

    def __call__(self, query: Query) -> Any:
        if not self.owner.belong_to(query):
            return ()
        asking_now = _asking.get()
        work = self._ask(query, asking_now or _Asking(list, {}, on_loop=False))
        return work if asking_now is not None and asking_now.on_loop else self.owner.side.run(work)

    async def _ask(self, query: Query, asking_now: _Asking) -> tuple[Item, ...]:
        history = await asyncio.to_thread(asking_now.history)
        if query.text and (not history or history[-1].role != "user" or history[-1].content != query.text):
            history.append(ChatMessage(role="user", content=query.text))
        name = _name(query.owner, query.session)
        content: object = await self.block.aget(history, session_id=name, **asking_now.kwargs)
        return tuple(Item(text) for text in _texts(content) if text.strip())


def _texts(content: object) -> Sequence[str]:
    """Returns the texts of a block's answer, which is a text, content blocks or messages."""
    if isinstance(content, str):
        return (content,)
    parts = as_list(content)
    messages = [m for m in parts if isinstance(m, ChatMessage)]
    if messages:
        return [f"{m.role.value}: {m.content or ''}" for m in messages]
    return ["\n".join(_text(part) for part in parts)]


def _text(part: object) -> str:
    if isinstance(part, TextBlock):
        return part.text
    where = getattr(part, "url", None) or getattr(part, "path", None) or "not shown"
    return f"[{getattr(part, 'block_type', type(part).__name__)}: {where}]"


def _flat(message: Message) -> ChatMessage:
    """Returns a message as text: a block hands it to models without the tools, whose services refuse calls and results then."""
    as_user = message.role == "tool"
    text = f"Result of a tool call:\n{message.text}" if as_user else readable_text(message)
    return ChatMessage(role="user" if as_user else message.role, content=text)


def _kind(name: str) -> str:
    return re.sub(r"[^\w-]+", "_", name) or "memory"
