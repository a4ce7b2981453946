"""`context.memory`: what is remembered for an owner, as an object. Every method has an async form that begins with `a`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ctxfold.effects import ReadLog
from ctxfold.engine import Engine
from ctxfold.explain import original_record
from ctxfold.flow import Flow, arun, run
from ctxfold.history.items import MemoryItem, Remembered
from ctxfold.history.snapshot import stored_message
from ctxfold.history.view import Entry
from ctxfold.journal import Journal
from ctxfold.memory.keep import Forget, Memories, Recollection, Remember, made_item, search, visible
from ctxfold.memory.learn import EXTRACTED, check_kinds, learn

__all__ = ["SessionMemory", "learn_from_session"]

T = TypeVar("T")


class SessionMemory:
    """What is remembered for the owner of a session: facts, corrections, persona, relations and more, one table for all kinds.

    Another owner's items are never seen, and of another session's only those that are shared. A new item with the same kind and
    key replaces the old one; `forget` empties items, and erasing a message or a session takes what was learnt from it along.
    """

    def __init__(self, engine: Engine, open_journal: Callable[[], Flow[Journal]]) -> None:
        self._engine = engine
        self._open = open_journal

    def add(
        self,
        kind: str,
        text: str = "",
        *,
        key: str = "",
        shared: bool | None = None,
        confidence: float = 1.0,
        sources: Sequence[str] = (),
        **data: str,
    ) -> Remembered:
        """Keep an item; `Remembered` says what it replaced, or that it was known already.

        `key` is what it is about; `sources` are ids of messages of this session (MessageNotFoundError for others). A relation
        has `subject`, `predicate` and `object`, and needs no text; a trajectory `intent` and `outcome`.
        """
        return self._run(self._add(kind, text, key, shared, confidence, sources, data))

    async def aadd(
        self,
        kind: str,
        text: str = "",
        *,
        key: str = "",
        shared: bool | None = None,
        confidence: float = 1.0,
        sources: Sequence[str] = (),
        **data: str,
    ) -> Remembered:
        return await self._arun(self._add(kind, text, key, shared, confidence, sources, data))

    def list(self, kind: str | None = None, *, everything: bool = False) -> tuple[MemoryItem, ...]:
        """The items that this session sees, newest first; superseded and forgotten ones only where `everything` is wanted."""
        return self._run(self._list(kind, everything))

    async def alist(self, kind: str | None = None, *, everything: bool = False) -> tuple[MemoryItem, ...]:
        return await self._arun(self._list(kind, everything))

    def search(self, query: str, kind: str | None = None, *, limit: int = 10) -> tuple[Recollection, ...]:
        """The items in force that bear on the query, best first."""
        return self._run(self._search(query, kind, limit))

    async def asearch(self, query: str, kind: str | None = None, *, limit: int = 10) -> tuple[Recollection, ...]:
        return await self._arun(self._search(query, kind, limit))

    def forget(self, *ids: str) -> tuple[MemoryItem, ...]:
        """Empty items: their text is gone, and what they were learnt from does not bring them back. As they were."""
        return self._run(self._forget(ids))

    async def aforget(self, *ids: str) -> tuple[MemoryItem, ...]:
        return await self._arun(self._forget(ids))

    def learn(self, *kinds: str) -> tuple[MemoryItem, ...]:
        """Ask the summariser what this session says that is worth remembering; what is new. At the end of a session, say.

        Kinds are "facts" and "corrections"; experimental: "persona", "graph", "trajectory", "strategy". None means the first two.
        What goes wrong is told by the event MemoryLearnt.
        """
        return self._run(learn_from_session(self._engine, self._open, kinds))

    async def alearn(self, *kinds: str) -> tuple[MemoryItem, ...]:
        return await self._arun(learn_from_session(self._engine, self._open, kinds))

    # flows

    def _add(
        self,
        kind: str,
        text: str,
        key: str,
        shared: bool | None,
        confidence: float,
        sources: Sequence[str],
        data: dict[str, str],
    ) -> Flow[Remembered]:
        journal = yield from self._open()
        for message_id in sources:
            yield from original_record(journal, message_id)  # it is erased with them: they have to be there
        item = made_item(
            journal.key,
            self._engine.ports,
            kind,
            text,
            about=key,
            shared=shared,
            confidence=confidence,
            sources=sources,
            data=data,
        )
        return (yield from Remember(journal.key.owner, [item]))[0]

    def _list(self, kind: str | None, everything: bool) -> Flow[tuple[MemoryItem, ...]]:
        journal = yield from self._open()
        kinds = None if kind is None else (kind,)
        found = yield from Memories(journal.key.owner, kinds, newest=1_000_000, everything=everything)
        return tuple(visible(found, journal.key))

    def _search(self, query: str, kind: str | None, limit: int) -> Flow[tuple[Recollection, ...]]:
        journal = yield from self._open()
        return (yield from search(journal.key, query, kinds=None if kind is None else (kind,), limit=limit))

    def _forget(self, ids: Sequence[str]) -> Flow[tuple[MemoryItem, ...]]:
        journal = yield from self._open()
        mine = visible((yield from Memories(journal.key.owner, newest=1_000_000, everything=True)), journal.key)
        known = {i.id for i in mine}
        return (yield from Forget(journal.key.owner, [i for i in ids if i in known]))

    def _run(self, flow: Flow[T]) -> T:
        return run(flow, self._engine.ports)

    async def _arun(self, flow: Flow[T]) -> T:
        return await arun(flow, self._engine.ports)


def learn_from_session(
    engine: Engine, open_journal: Callable[[], Flow[Journal]], kinds: Sequence[str]
) -> Flow[tuple[MemoryItem, ...]]:
    """What the whole session says of these kinds, compacted or not, is kept; what is new."""
    wanted = check_kinds(kinds or [k for k in EXTRACTED if k in ("facts", "corrections")])
    journal = yield from open_journal()
    records = yield from ReadLog(journal.key)
    said = [(r, m) for r in records if (m := stored_message(r)) is not None]
    newest = {m.id: Entry(m.id, r.seq, m, 0) for r, m in said if m.visibility != "user"}
    items, event = yield from learn(journal, tuple(newest.values()), engine.ports, kinds=wanted)
    engine.events.emit(event)
    return items
