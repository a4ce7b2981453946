"""Defines SessionMemory, the object behind `context.memory`. Each method has an async form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ctxfold.effects import Flow, FlowMethods, StoreCall, async_method, sync_method
from ctxfold.engine.engine import Engine
from ctxfold.history.memory_items import MemoryItem, Remembered
from ctxfold.history.snapshot import stored_message
from ctxfold.history.view import Entry
from ctxfold.inspect.explain import original_record
from ctxfold.memory.extraction import (
    EXTRACTED,
    check_kinds,
    learn,
)
from ctxfold.memory.store import (
    MEMORY_KINDS,
    Recollection,
    new_item,
    search,
    visible,
)
from ctxfold.protocols import Ports, Store
from ctxfold.state import Session

T = TypeVar("T")


class SessionMemory(FlowMethods):
    """The memory of a session's owner: facts, corrections, persona, relations and more, in one table for all kinds.

    Another owner's items are never seen, and of another session's only those that are shared. A new item with the same kind and
    key replaces the old one; `forget` empties items, and erasing a message or a session takes what was learnt from it along.
    """

    def __init__(self, engine: Engine, load_session: Callable[[], Flow[Session]]) -> None:
        self._engine = engine
        self._open = load_session

    @sync_method
    def add(
        self,
        /,
        kind: str,
        text: str = "",
        *,
        key: str = "",
        shared: bool | None = None,
        confidence: float = 1.0,
        sources: Sequence[str] = (),
        **data: str,
    ) -> Flow[Remembered]:
        """Stores an item; `Remembered` says what it replaced, or that it was known already.

        `key` is what it is about; `sources` are ids of messages of this session (MessageNotFoundError for others). A relation
        has `subject`, `predicate` and `object`, and needs no text; a trajectory `intent` and `outcome`.
        """
        session = yield from self._open()
        for message_id in sources:
            yield from original_record(session, message_id)  # it is erased with them: they have to be there
        item = new_item(
            session.key,
            self._engine.ports,
            kind,
            text,
            about=key,
            shared=shared,
            confidence=confidence,
            sources=sources,
            data=data,
        )
        return (yield from StoreCall(Store.remember, session.key.owner, [item]))[0]

    aadd = async_method(add)

    @sync_method
    def list(self, kind: str | None = None, *, everything: bool = False) -> Flow[tuple[MemoryItem, ...]]:
        """Returns the items that this session sees, newest first; with `everything`, superseded and forgotten ones too."""
        session = yield from self._open()
        kinds = None if kind is None else (kind,)
        items = yield from StoreCall(
            Store.memories, session.key.owner, kinds=kinds, newest=1_000_000, everything=everything
        )
        return tuple(visible(items, session.key))

    alist = async_method(list)  # noqa: A003 - the method above

    @sync_method
    def search(self, query: str, kind: str | None = None, *, limit: int = 10) -> Flow[tuple[Recollection, ...]]:
        """Returns the current items that match the query, best first."""
        session = yield from self._open()
        return (yield from search(session.key, query, kinds=None if kind is None else (kind,), limit=limit))

    asearch = async_method(search)

    @sync_method
    def forget(self, *ids: str) -> Flow[tuple[MemoryItem, ...]]:
        """Forgets items and returns them as they were. Their text is erased, and their source messages do not bring them back."""
        session = yield from self._open()
        mine = visible(
            (yield from StoreCall(Store.memories, session.key.owner, newest=1_000_000, everything=True)),
            session.key,
        )
        known = {i.id for i in mine}
        return (yield from StoreCall(Store.forget, session.key.owner, [i for i in ids if i in known]))

    aforget = async_method(forget)

    @sync_method
    def learn(self, *kinds: str) -> Flow[tuple[MemoryItem, ...]]:
        """Asks the summariser what in this session is worth remembering, and returns the new items; for the end of a session.

        Kinds are "facts" and "corrections"; experimental: "persona", "graph", "trajectory", "strategy". None means the first
        two. What goes wrong is told by the event MemoryLearnt.
        """
        return learn_from_session(self._engine, self._open, kinds)

    alearn = async_method(learn)

    @property
    def _ports(self) -> Ports:
        return self._engine.ports


def learn_from_session(
    engine: Engine, load_session: Callable[[], Flow[Session]], kinds: Sequence[str]
) -> Flow[tuple[MemoryItem, ...]]:
    """Stores what the whole session says of these kinds, compacted or not, and returns the new items."""
    checked_kinds = check_kinds(kinds or [k for k in EXTRACTED if not MEMORY_KINDS[k].experimental])
    session = yield from load_session()
    records = yield from StoreCall(Store.read, session.key)
    stored_messages = [(r, m) for r in records if (m := stored_message(r)) is not None]
    newest = {m.id: Entry(m.id, r.seq, m, 0) for r, m in stored_messages if m.visibility != "user"}
    items, event = yield from learn(session, tuple(newest.values()), kinds=checked_kinds)
    engine.events.emit(event)
    return items
