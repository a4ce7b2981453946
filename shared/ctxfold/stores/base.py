"""Holds what every store shares: its async forms, its checks, and the comparison that finds which drafts of an append are new."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from zlib import crc32

from ctxfold._lifecycle import Closing
from ctxfold.errors import (
    ConfigError,
    InvalidTextError,
    MessageConflictError,
    MessageError,
    SessionNotFoundError,
    StoreCorruptError,
)
from ctxfold.history.memory_items import ItemPlace, MemoryItem, Remembered, forgotten, settle
from ctxfold.history.records import NUMBERED, Body, Draft, Record, SessionKey, decode_body, encode_body, fingerprint
from ctxfold.protocols import Document, Head, Postings, Rewrite, Store, StoreCapabilities, VectorIndex
from ctxfold.validation import check_name, check_text

if TYPE_CHECKING:
    from pydantic import TypeAdapter

P = ParamSpec("P")
T = TypeVar("T")

CHECKSUM_LENGTH = 8  # hexadecimal digits in front of each stored text

_stores: weakref.WeakSet[BaseStore] = weakref.WeakSet()
_at_fork: list[BaseStore] = []  # guarded by the lock below
_fork_lock = threading.Lock()


def follow_forks(store: BaseStore) -> None:
    """Has `before_fork` and `after_fork` of a store called, for as long as the store exists."""
    _stores.add(store)


def _before_fork() -> None:
    _fork_lock.acquire()
    for store in list(_stores):
        _at_fork.append(store)
        store.before_fork()


def _after_fork(*, in_child: bool) -> None:
    try:
        while _at_fork:
            _at_fork.pop().after_fork(in_child=in_child)
    finally:
        _fork_lock.release()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=partial(_after_fork, in_child=False),
        after_in_child=partial(_after_fork, in_child=True),
    )

# three of these still fit one entry of a PostgreSQL b-tree (2704 bytes)
MAX_KEY_BYTES = 512


@dataclass(frozen=True, slots=True)
class Fresh:
    """A draft that is ready to be written, with its fingerprint."""

    draft: Draft
    fingerprint: str


class BaseStore(Store, Closing):
    """Derives the async forms and the context managers of a store from its sync methods.

    A subclass implements the abstract methods of `Store`, safe across threads. A store with async methods of its
    own overrides the derived ones and declares `StoreCapabilities(blocking=False)`. `KeyValueStore` needs fewer methods.
    """

    capabilities: StoreCapabilities = StoreCapabilities()  # pyright: ignore[reportIncompatibleMethodOverride] - not a property

    def before_fork(self) -> None:
        """Prepares for a fork of the process; called for stores that were given to `follow_forks`."""

    def after_fork(self, *, in_child: bool) -> None:
        """Resumes after a fork, in both processes; in the child no other thread runs."""

    async def offload(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a sync method for an async caller, in a worker thread when the store blocks.

        When the caller is cancelled, the thread still finishes its work.
        """
        if not self.capabilities.blocking:
            return work(*args, **kwargs)
        return await asyncio.to_thread(work, *args, **kwargs)

    async def offload_write(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a sync method as `offload` does; a cancelled caller waits until it has ended.

        Code that cleans up after a cancellation therefore sees what was stored.
        """
        if not self.capabilities.blocking:
            return work(*args, **kwargs)
        done = asyncio.get_running_loop().run_in_executor(None, copy_context().run, partial(work, *args, **kwargs))
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            while not done.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((done,))
            done.exception()  # marks it as retrieved: nobody else does
            raise

    async def ahead(self, key: SessionKey) -> Head | None:
        return await self.offload(self.head, key)

    async def aappend(
        self,
        key: SessionKey,
        drafts: Sequence[Draft],
        *,
        known: int = 0,
        expect: int | None = None,
        documents: Sequence[Document] = (),
        known_id: str | None = None,
    ) -> tuple[Record, ...]:
        """The async form of `append`. After a cancellation the records may or may not be stored: read the head again."""
        return await self.offload_write(
            self.append, key, drafts, known=known, expect=expect, documents=documents, known_id=known_id
        )

    async def aread(self, key: SessionKey, *, after: int = 0, upto: int | None = None) -> tuple[Record, ...]:
        return await self.offload(self.read, key, after=after, upto=upto)

    async def afetch(self, key: SessionKey, seqs: Sequence[int]) -> tuple[Record, ...]:
        return await self.offload(self.fetch, key, seqs)

    async def afind(self, key: SessionKey, ids: Sequence[str]) -> tuple[Record, ...]:
        return await self.offload(self.find, key, ids)

    async def anumbered(self, key: SessionKey, number: int) -> Record | None:
        return await self.offload(self.numbered, key, number)

    async def asnapshot_before(self, key: SessionKey, seq: int) -> int:
        return await self.offload(self.snapshot_before, key, seq)

    async def apostings(
        self, key: SessionKey, terms: Sequence[str], *, newest: int | None = None, among: Sequence[int] | None = None
    ) -> Postings:
        return await self.offload(self.postings, key, terms, newest=newest, among=among)

    async def alease(self, key: SessionKey, name: str, holder: str, *, now_s: float, ttl_s: float) -> bool:
        return await self.offload(self.lease, key, name, holder, now_s=now_s, ttl_s=ttl_s)

    async def arelease(self, key: SessionKey, name: str, holder: str) -> None:
        await self.offload(self.release, key, name, holder)

    async def asessions(self, owner: str) -> tuple[str, ...]:
        return await self.offload(self.sessions, owner)

    async def acopies(self, key: SessionKey) -> tuple[str, ...]:
        return await self.offload(self.copies, key)

    async def aerase(self, rewrites: Sequence[Rewrite], *, gone: Sequence[SessionKey] = ()) -> bool:
        return await self.offload(self.erase, rewrites, gone=gone)

    async def aerase_owner(self, owner: str) -> bool:
        return await self.offload(self.erase_owner, owner)

    async def aremember(self, owner: str, items: Sequence[MemoryItem]) -> tuple[Remembered, ...]:
        return await self.offload(self.remember, owner, items)

    async def amemories(
        self, owner: str, *, kinds: Sequence[str] | None = None, newest: int = 2_000, everything: bool = False
    ) -> tuple[MemoryItem, ...]:
        return await self.offload(self.memories, owner, kinds=kinds, newest=newest, everything=everything)

    async def aforget(self, owner: str, ids: Sequence[str]) -> tuple[MemoryItem, ...]:
        return await self.offload(self.forget, owner, ids)

    async def aclose(self) -> None:
        await self.offload(self.close)


class VectorStore(BaseStore, VectorIndex):
    """Derives the async forms of a store that keeps vectors too."""

    async def aembedders(self, key: SessionKey) -> Mapping[str, bytes]:
        return await self.offload(self.embedders, key)

    async def avectors(
        self, key: SessionKey, embedder: str, *, seqs: Sequence[int] | None = None
    ) -> Mapping[int, bytes]:
        return await self.offload(self.vectors, key, embedder, seqs=seqs)

    async def aput_vectors(self, key: SessionKey, embedder: str, vectors: Mapping[int, bytes]) -> None:
        await self.offload_write(self.put_vectors, key, embedder, vectors)

    async def adrop_vectors(self, key: SessionKey, embedder: str) -> None:
        await self.offload_write(self.drop_vectors, key, embedder)


def checked_key(key: SessionKey) -> SessionKey:
    """Returns the key; raises ConfigError for one that some store cannot hold."""
    for what, text in (("owner", key[0]), ("session", key[1])):
        check_text(f"the {what} name", text)
        if problem := _unfit(text):
            raise ConfigError(f"the {what} name {text[:80]!r} {problem}: choose another one")
    return key


def erased_meanwhile(key: SessionKey) -> SessionNotFoundError:
    return SessionNotFoundError(f"session {key.session!r} was erased while it was in use; nothing was written")


def _unfit(text: str) -> str | None:
    if "\0" in text:
        return "holds a NUL character"
    if text.isascii():
        size = len(text)
    else:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            return "holds a lone surrogate"
    return f"takes {size} bytes, at most {MAX_KEY_BYTES} are stored" if size > MAX_KEY_BYTES else None


def checked_items(owner: str, items: Sequence[MemoryItem]) -> tuple[MemoryItem, ...]:
    """Returns the items; raises MessageError or InvalidTextError for one that some store cannot hold."""
    checked_key(SessionKey(check_name("owner name", owner), ""))
    for item in items:
        for name in (item.id, item.session, item.kind):
            if problem := _unfit(name):
                raise MessageError(f"the memory item's name {name[:80]!r} {problem}: give another one")
        try:
            data = (f"{k}={v}" for k, v in item.data)
            "\n".join((item.text, item.key, item.replaces, *item.sources, *data)).encode()
        except UnicodeEncodeError:
            raise InvalidTextError(
                f"memory item {item.id!r} holds a lone surrogate: decode the text properly before adding it"
            ) from None
    return tuple(items)


@dataclass(slots=True)
class OwnedItems:
    """The memory items of one owner, by id, for stores that hold all of them at once; `Store` describes the methods."""

    rows: dict[str, tuple[ItemPlace, MemoryItem]] = field(default_factory=dict[str, tuple[ItemPlace, MemoryItem]])

    def remember(self, items: Sequence[MemoryItem]) -> tuple[Remembered, ...]:
        standing = sorted((row for row in self.rows.values() if row[1].superseded_by is None), key=_age)
        changed, results = settle(items, standing)
        self.rows.update({item.id: (place, item) for place, item in changed})
        return tuple(results)

    def newest(self, kinds: Sequence[str] | None, newest: int, everything: bool) -> tuple[MemoryItem, ...]:
        """Returns the newest items first, those in force unless `everything` is wanted."""
        rows = sorted(self.rows.values(), key=_age, reverse=True)
        matching = (i for _, i in rows if (everything or i.live) and (kinds is None or i.kind in kinds))
        return tuple(islice(matching, newest))

    def forget(self, ids: Sequence[str]) -> tuple[MemoryItem, ...]:
        chosen = [self.rows[i] for i in dict.fromkeys(ids) if i in self.rows and not self.rows[i][1].forgotten]
        self.rows.update({item.id: (place, forgotten(item)) for place, item in chosen})
        self._drop_quotes(item for _, item in chosen)
        return tuple(item for _, item in chosen)

    def drop_learnt(self, session: str, message_ids: Sequence[str]) -> None:
        """Deletes the items that were learnt from any of these messages of a session."""
        erased = frozenset(message_ids)
        removed = [i for _, i in self.rows.values() if i.session == session and erased & frozenset(i.sources)]
        for item in removed:
            del self.rows[item.id]
        self._drop_quotes(removed)

    def drop_session(self, session: str) -> None:
        """Deletes the items that were learnt in a session."""
        self.rows = {name: row for name, row in self.rows.items() if row[1].session != session}

    def _drop_quotes(self, removed: Iterable[MemoryItem]) -> None:
        """Clears the old text that the items which replaced these still quote."""
        for heir in {i.superseded_by or "" for i in removed} & self.rows.keys():
            place, item = self.rows[heir]
            self.rows[heir] = (place, replace(item, replaces=""))


class ItemsAtOnce(BaseStore):
    """Derives the methods for memory items of a store that reads all items of an owner at once."""

    @abstractmethod
    def items_of(self, owner: str) -> OwnedItems:
        """Returns the items of an owner."""

    @abstractmethod
    def change_items(self, owner: str, change: Callable[[OwnedItems], T]) -> T:
        """Stores what `change` makes of the items, in one transaction; it may be called again where others have written."""

    def remember(self, owner: str, items: Sequence[MemoryItem]) -> tuple[Remembered, ...]:
        ready = checked_items(owner, items)
        return self.change_items(owner, lambda owned: owned.remember(ready)) if ready else ()

    def memories(
        self, owner: str, *, kinds: Sequence[str] | None = None, newest: int = 2_000, everything: bool = False
    ) -> tuple[MemoryItem, ...]:
        checked_key(SessionKey(owner, ""))
        return self.items_of(owner).newest(kinds, newest, everything)

    def forget(self, owner: str, ids: Sequence[str]) -> tuple[MemoryItem, ...]:
        checked_key(SessionKey(owner, ""))
        return self.change_items(owner, lambda owned: owned.forget(ids)) if ids else ()


def _age(row: tuple[ItemPlace, MemoryItem]) -> tuple[float, str]:
    return row[1].created_s, row[1].id


def encode_item(item: MemoryItem) -> str:
    """Returns the item as ASCII-only JSON, which every database accepts, behind its checksum."""
    text = json.dumps(asdict(item), ensure_ascii=True, separators=(",", ":"))
    return _checksum(text, ()) + text


def decode_item(text: str) -> MemoryItem:
    """Reverses `encode_item`; raises StoreCorruptError when the text is not an item."""
    try:
        return _item_adapter().validate_json(_opened(text))
    except ValueError as error:
        raise StoreCorruptError(f"a memory item cannot be read ({str(error)[:200]}): restore a copy") from None


@cache
def _item_adapter() -> TypeAdapter[MemoryItem]:
    from pydantic import TypeAdapter

    return TypeAdapter(MemoryItem)


def indexed_term(term: str) -> str:
    """Returns the term as stored: unchanged, or its beginning and digest when it is too long for an index."""
    if len(term) <= MAX_KEY_BYTES // 4 and "\0" not in term:
        return term
    return f"{term[:64]}#{hashlib.sha256(term.encode(errors='surrogatepass')).hexdigest()}".replace("\0", " ")


def checked_drafts(drafts: Iterable[Draft]) -> tuple[Fresh, ...]:
    """Returns each draft with its fingerprint; raises MessageError for an id that cannot be stored."""
    ready: list[Fresh] = []
    for draft in drafts:
        for text in (draft.id, draft.turn_id or ""):
            if problem := _unfit(text):
                raise MessageError(f"the id {text[:80]!r} {problem}: give the message or turn another id")
        ready.append(Fresh(draft, fingerprint(draft.body)))
    return tuple(ready)


def unseen(drafts: Iterable[Fresh], stored: Mapping[str, str]) -> list[Fresh]:
    """Returns the drafts whose ids `stored` (record id -> fingerprint) lacks, each once; raises when one has changed."""
    new: dict[str, Fresh] = {}
    for item in drafts:
        twin = new.get(item.draft.id)
        known_fingerprint = stored.get(item.draft.id) if twin is None else twin.fingerprint
        if known_fingerprint is None:
            new[item.draft.id] = item
        elif known_fingerprint != item.fingerprint:
            raise MessageConflictError(conflict(item.draft))
    return list(new.values())


def conflict(draft: Draft) -> str:
    """Returns the message of the error for a draft whose id is stored with other content."""
    message = getattr(draft.body, "message", None)
    name = f"message {message.id!r}" if message is not None else f"record {draft.id!r}"
    return (
        f"{name} is already in this session with other content: give the new one a new id, "
        "or use update() to change the old one"
    )


def written_at(drafts: Sequence[Fresh], stored: Mapping[str, tuple[str, int]], head: int) -> bool:
    """Returns whether just these drafts follow the record `head` (`stored`: record id -> fingerprint and seq).

    Then the same append was done before, and its acknowledgement was lost with the connection.
    """
    places = ((item.fingerprint, seq) for seq, item in enumerate(drafts, head + 1))
    return bool(drafts) and all(stored.get(item.draft.id) == place for item, place in zip(drafts, places, strict=True))


def new_records(new: Iterable[Fresh], head: int, numbered: int) -> list[Record]:
    """Returns the records of new drafts, which follow the record `head` and the message with the number `numbered`."""
    records: list[Record] = []
    for seq, item in enumerate(new, head + 1):
        draft, brings_message = item.draft, item.draft.body.kind in NUMBERED
        numbered += brings_message
        records.append(Record(seq, draft.id, draft.body, draft.turn_id, draft.at_s, numbered if brings_message else 0))
    return records


def read_record(seq: int, record_id: str, turn_id: str | None, at_s: float, payload: str, number: int) -> Record:
    """Returns a record of what `sealed` stored of it; StoreCorruptError, with its place, for one that is damaged."""
    try:
        return Record(
            seq,
            record_id,
            decode_body(_opened(payload, (seq, record_id, turn_id, at_s, number))),
            turn_id,
            at_s,
            number,
        )
    except StoreCorruptError as error:
        raise StoreCorruptError(f"record {seq} ({record_id!r}): {error}") from None


def sealed(record: Record, payload: str) -> str:
    """Returns the text to store of a record: its encoded body behind a checksum (CRC-32) of the whole row."""
    return _checksum(payload, (record.seq, record.id, record.turn_id, record.at_s, record.number)) + payload


def _opened(stored: str, row: tuple[object, ...] = ()) -> str:
    payload = stored[CHECKSUM_LENGTH:]
    if stored[:CHECKSUM_LENGTH] != _checksum(payload, row):
        raise StoreCorruptError("it is not as it was written: restore the store from a copy")
    return payload


def _checksum(payload: str, row: tuple[object, ...]) -> str:
    return f"{crc32(repr(row).encode(errors='surrogatepass'), crc32(payload.encode(errors='surrogatepass'))):08x}"


def encoded(body: Body, record_id: str) -> str:
    """Returns the text to store; raises InvalidTextError for text that could not be read again."""
    payload = encode_body(body)
    if "\\ud" in payload:
        # escapes of surrogates: pairs are fine, a lone one is not
        try:
            decode_body(payload)
        except StoreCorruptError:
            raise InvalidTextError(
                f"record {record_id!r} holds a lone surrogate: decode the text properly before adding it"
            ) from None
    return payload
