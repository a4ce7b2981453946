"""Defines KeyValueStore, which derives a whole store from an ordered map of bytes with transactions."""

from __future__ import annotations

import json
import threading
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import ClassVar, Protocol, TypeVar

from ctxfold.errors import HeadMovedError, InvalidTextError, StoreCorruptError, StoreUnavailableError
from ctxfold.history.records import Draft, Record, SessionKey, fingerprint
from ctxfold.protocols import Document, Head, Postings, Rewrite
from ctxfold.stores.base import (
    Fresh,
    ItemsAtOnce,
    OwnedItems,
    checked_drafts,
    checked_key,
    decode_item,
    encode_item,
    encoded,
    erased_meanwhile,
    indexed_term,
    new_records,
    read_record,
    sealed,
    unseen,
    written_at,
)

T = TypeVar("T")

# the first part of each key: what the entry holds
_HEAD, _RECORD, _ID, _NUMBER, _SNAPSHOT = b"h", b"r", b"i", b"n", b"s"
_DOCUMENT, _TERM, _LEASE, _ITEM = b"d", b"t", b"l", b"m"
_OF_SESSION = (_HEAD, _RECORD, _ID, _NUMBER, _SNAPSHOT, _DOCUMENT, _TERM, _LEASE)


class KeyValueTransaction(Protocol):
    """An ordered map of bytes to bytes, as one transaction sees it, its own writes included."""

    def get(self, key: bytes) -> bytes | None: ...

    def put(self, key: bytes, value: bytes) -> None:
        """Stores a value under a key, replacing an older one."""
        ...

    def delete(self, key: bytes) -> None:
        """Removes an entry; a missing key is no error."""
        ...

    def scan(self, first: bytes, end: bytes, *, reverse: bool = False) -> Iterable[tuple[bytes, bytes]]:
        """Returns the entries with first <= key < end in the order of their bytes, or in the opposite order."""
        ...


@dataclass(frozen=True, slots=True)
class _State:
    """The head of a session as it is stored."""

    seq: int = 0
    snapshot: int = 0
    documents: int = 0
    length: int = 0
    numbered: int = 0


class KeyValueStore(ItemsAtOnce):
    """A store over any database with transactions that maps byte keys, in order, to byte values.

    A subclass implements `transaction` and `disconnect`, and a transaction object with `get`, `put`, `delete` and `scan`.
    `ctxfold.testing.store_suite` tests the result. `driver_errors` are the exceptions of the driver, which the store raises as
    StoreUnavailableError. Override a method of `Store` where the database has a faster way.
    """

    driver_errors: ClassVar[tuple[type[Exception], ...]] = ()

    def __init__(self) -> None:
        self._closed = False
        self._closing_lock = threading.Lock()

    @abstractmethod
    def transaction(self, *, write: bool) -> AbstractContextManager[KeyValueTransaction]:
        """Opens a transaction that commits at the end of its block, and rolls everything back when the block raises.

        Write transactions exclude each other across all processes that share the database, so that an entry that was read does
        not change before the commit. A read transaction sees one state of the database throughout.
        """

    @abstractmethod
    def disconnect(self) -> None:
        """Closes the database; called once."""

    def close(self) -> None:
        """Closes the database; idempotent."""
        with self._closing_lock:
            closed, self._closed = self._closed, True
        if not closed:
            self.disconnect()

    @contextmanager
    def _begin(self, *, write: bool) -> Generator[KeyValueTransaction, None, None]:
        if self._closed:
            raise StoreUnavailableError(f"this {type(self).__name__} is closed: open a new one")
        try:
            with self.transaction(write=write) as entries:
                yield entries
        except self.driver_errors as error:
            raise StoreUnavailableError(
                f"{type(self).__name__} cannot use its database ({error}): try again"
            ) from error
        except UnicodeEncodeError:
            raise InvalidTextError("an id or term holds a lone surrogate: decode the text properly") from None

    # the log

    def head(self, key: SessionKey) -> Head | None:
        checked_key(key)
        with self._begin(write=False) as entries:
            state = _state(entries, key)
        return None if state is None else Head(state.seq, state.snapshot)

    def append(
        self,
        key: SessionKey,
        drafts: Sequence[Draft],
        *,
        known: int = 0,
        expect: int | None = None,
        documents: Sequence[Document] = (),
        known_id: str | None = None,
    ) -> tuple[Record, ...]:
        checked_key(key)
        ready = checked_drafts(drafts)
        payloads = {item.draft.id: encoded(item.draft.body, item.draft.id) for item in ready}
        with self._begin(write=True) as entries:
            state = _state(entries, key) or _State()
            stored = _stored_ids(entries, key, (item.draft.id for item in ready))
            if known_id is not None and _stored_ids(entries, key, (known_id,)).get(known_id, ("", 0))[1] != known:
                raise erased_meanwhile(key)
            if expect is not None and expect != state.seq and not written_at(ready, stored, expect):
                raise HeadMovedError(expect, state.seq)
            new = unseen(ready, {name: stored_fingerprint for name, (stored_fingerprint, _) in stored.items()})
            state = _add(entries, key, state, new, payloads)
            for document in documents:
                state = _index(entries, key, state, document)
            _put_state(entries, key, state)
            return _records(entries, key, known, state.seq)

    def read(self, key: SessionKey, *, after: int = 0, upto: int | None = None) -> tuple[Record, ...]:
        checked_key(key)
        with self._begin(write=False) as entries:
            head = (_state(entries, key) or _State()).seq
            return _records(entries, key, after, head if upto is None else min(upto, head))

    def fetch(self, key: SessionKey, seqs: Sequence[int]) -> tuple[Record, ...]:
        checked_key(key)
        with self._begin(write=False) as entries:
            head = (_state(entries, key) or _State()).seq
            return tuple(_record(entries, key, seq) for seq in sorted(set(seqs)) if 0 < seq <= head)

    def find(self, key: SessionKey, ids: Sequence[str]) -> tuple[Record, ...]:
        checked_key(key)
        with self._begin(write=False) as entries:
            stored = _stored_ids(entries, key, (name for name in ids if "\0" not in name))
            return tuple(_record(entries, key, seq) for seq in sorted({seq for _, seq in stored.values()}))

    def numbered(self, key: SessionKey, number: int) -> Record | None:
        checked_key(key)
        with self._begin(write=False) as entries:
            if not 0 < number <= (_state(entries, key) or _State()).numbered:
                return None
            seq = entries.get(_key(_NUMBER, *key, number=number))
            return None if seq is None else _record(entries, key, int(seq))

    def snapshot_before(self, key: SessionKey, seq: int) -> int:
        checked_key(key)
        with self._begin(write=False) as entries:
            end = min(max(seq, 0), (_state(entries, key) or _State()).seq + 1)
            snapshots = entries.scan(_key(_SNAPSHOT, *key, number=0), _key(_SNAPSHOT, *key, number=end), reverse=True)
            return next((_last_number(name) for name, _ in snapshots), 0)

    def postings(
        self, key: SessionKey, terms: Sequence[str], *, newest: int | None = None, among: Sequence[int] | None = None
    ) -> Postings:
        checked_key(key)
        with self._begin(write=False) as entries:
            state = _state(entries, key) or _State()
            by_term = {term: _hits(entries, key, indexed_term(term), newest, among) for term in terms}
        return Postings(state.documents, state.length, by_term, state.numbered)

    def sessions(self, owner: str) -> tuple[str, ...]:
        checked_key(SessionKey(owner, ""))
        with self._begin(write=False) as entries:
            return _sessions(entries, owner)

    def copies(self, key: SessionKey) -> tuple[str, ...]:
        checked_key(key)
        with self._begin(write=False) as entries:
            first = _first_id(entries, key)
            others = [SessionKey(key[0], name) for name in _sessions(entries, key[0]) if name != key[1]]
            return tuple(k.session for k in others if first is not None and _first_id(entries, k) == first)

    # leases

    def lease(self, key: SessionKey, name: str, holder: str, *, now_s: float, ttl_s: float) -> bool:
        entry = _key(_LEASE, *checked_key(key), name)
        with self._begin(write=True) as entries:
            stored = entries.get(entry)
            other, until_s = (holder, 0.0) if stored is None else json.loads(stored)
            if other != holder and until_s > now_s:
                return False
            entries.put(entry, _json([holder, now_s + ttl_s]))
            return True

    def release(self, key: SessionKey, name: str, holder: str) -> None:
        entry = _key(_LEASE, *checked_key(key), name)
        with self._begin(write=True) as entries:
            stored = entries.get(entry)
            if stored is not None and json.loads(stored)[0] == holder:
                entries.delete(entry)

    # memory items

    def items_of(self, owner: str) -> OwnedItems:
        with self._begin(write=False) as entries:
            return _owned(entries, owner)

    def change_items(self, owner: str, change: Callable[[OwnedItems], T]) -> T:
        with self._begin(write=True) as entries, _changed_items(entries, owner) as owned:
            return change(owned)

    # erasure

    def erase(self, rewrites: Sequence[Rewrite], *, gone: Sequence[SessionKey] = ()) -> bool:
        removed = [SessionKey(*checked_key(key)) for key in gone]
        with self._begin(write=True) as entries:
            for rewrite in rewrites:
                if _rewrite(entries, rewrite):
                    with _changed_items(entries, rewrite.key.owner) as owned:
                        owned.drop_learnt(rewrite.key.session, rewrite.ids)
            for key in removed:
                _remove(entries, (_prefix(kind, *key) for kind in _OF_SESSION))
                with _changed_items(entries, key.owner) as owned:
                    owned.drop_session(key.session)
        return self.settle_erasure()

    def erase_owner(self, owner: str) -> bool:
        checked_key(SessionKey(owner, ""))
        with self._begin(write=True) as entries:
            _remove(entries, (_prefix(kind, owner) for kind in (*_OF_SESSION, _ITEM)))
        return self.settle_erasure()

    def settle_erasure(self) -> bool:
        """Returns True once the database's files hold no erased data.

        Override it for a database that keeps old pages until they are overwritten.
        """
        return True


# keys: parts end with a NUL, which no owner, session, id or term holds; numbers follow as eight bytes


def _prefix(kind: bytes, *parts: str) -> bytes:
    return b"".join((kind, b"\0", *(part.encode() + b"\0" for part in parts)))


def _key(kind: bytes, *parts: str, number: int | None = None) -> bytes:
    return _prefix(kind, *parts) + (b"" if number is None else number.to_bytes(8, "big"))


def _last_number(key: bytes) -> int:
    return int.from_bytes(key[-8:], "big")


def _after(prefix: bytes) -> bytes:
    """Returns the end of the range of keys that begin with a prefix."""
    return prefix[:-1] + b"\1"


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()


def _remove(entries: KeyValueTransaction, prefixes: Iterable[bytes]) -> None:
    for prefix in prefixes:
        for key, _ in list(entries.scan(prefix, _after(prefix))):
            entries.delete(key)


# sessions and records


def _state(entries: KeyValueTransaction, key: SessionKey) -> _State | None:
    stored = entries.get(_key(_HEAD, *key))
    return None if stored is None else _State(**json.loads(stored))


def _put_state(entries: KeyValueTransaction, key: SessionKey, state: _State) -> None:
    entries.put(_key(_HEAD, *key), _json(asdict(state)))


def _sessions(entries: KeyValueTransaction, owner: str) -> tuple[str, ...]:
    prefix = _prefix(_HEAD, owner)
    return tuple(sorted(key[len(prefix) : -1].decode() for key, _ in entries.scan(prefix, _after(prefix))))


def _stored_ids(entries: KeyValueTransaction, key: SessionKey, ids: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Returns fingerprint and seq of those records that are there, by id."""
    values = ((name, entries.get(_key(_ID, *key, name))) for name in dict.fromkeys(ids))
    pairs = ((name, json.loads(value)) for name, value in values if value is not None)
    return {name: (str(pair[0]), int(pair[1])) for name, pair in pairs}


def _first_id(entries: KeyValueTransaction, key: SessionKey) -> str | None:
    stored = entries.get(_key(_RECORD, *key, number=1))
    return None if stored is None else str(json.loads(stored)[0])


def _put_record(entries: KeyValueTransaction, key: SessionKey, record: Record, payload: str, digest: str) -> None:
    row = [record.id, record.turn_id, record.at_s, record.number, sealed(record, payload)]
    entries.put(_key(_RECORD, *key, number=record.seq), _json(row))
    entries.put(_key(_ID, *key, record.id), _json([digest, record.seq]))


def _decoded(seq: int, stored: bytes) -> Record:
    record_id, turn_id, at_s, number, payload = json.loads(stored)
    return read_record(seq, record_id, turn_id, at_s, payload, number)


def _record(entries: KeyValueTransaction, key: SessionKey, seq: int) -> Record:
    stored = entries.get(_key(_RECORD, *key, number=seq))
    if stored is None:
        raise StoreCorruptError(f"record {seq} of session {key[1]!r} is missing: restore the store from a copy")
    return _decoded(seq, stored)


def _records(entries: KeyValueTransaction, key: SessionKey, after: int, upto: int) -> tuple[Record, ...]:
    if upto <= max(after, 0):
        return ()
    first, end = _key(_RECORD, *key, number=max(after, 0) + 1), _key(_RECORD, *key, number=upto + 1)
    return tuple(_decoded(_last_number(name), stored) for name, stored in entries.scan(first, end))


def _add(
    entries: KeyValueTransaction, key: SessionKey, state: _State, new: Sequence[Fresh], payloads: dict[str, str]
) -> _State:
    for item, record in zip(new, new_records(new, state.seq, state.numbered), strict=True):
        _put_record(entries, key, record, payloads[record.id], item.fingerprint)
        state = replace(state, seq=record.seq)
        if record.number:
            entries.put(_key(_NUMBER, *key, number=record.number), str(record.seq).encode())
            state = replace(state, numbered=record.number)
        if record.body.kind == "snapshot_taken":
            entries.put(_key(_SNAPSHOT, *key, number=record.seq), b"")
            state = replace(state, snapshot=record.seq)
    return state


def _rewrite(entries: KeyValueTransaction, rewrite: Rewrite) -> bool:
    """Rewrites a session for an erasure; False when an earlier attempt did so already."""
    key, state = SessionKey(*checked_key(rewrite.key)), _state(entries, rewrite.key) or _State()
    fresh = checked_drafts(rewrite.drafts)
    if state.seq != rewrite.expect:
        if written_at(fresh, _stored_ids(entries, key, (item.draft.id for item in fresh)), rewrite.expect):
            return False
        raise HeadMovedError(rewrite.expect, state.seq)
    for record in rewrite.records:
        kept = replace(_record(entries, key, record.seq), body=record.body)
        _put_record(entries, key, kept, encoded(record.body, record.id), fingerprint(record.body))
    state = _unindex(entries, key, state, frozenset(rewrite.unindexed))
    payloads = {item.draft.id: encoded(item.draft.body, item.draft.id) for item in fresh}
    _put_state(entries, key, _add(entries, key, state, fresh, payloads))
    return True


# the search index


def _index(entries: KeyValueTransaction, key: SessionKey, state: _State, document: Document) -> _State:
    name = _key(_DOCUMENT, *key, number=document.seq)
    if entries.get(name) is not None:
        return state
    entries.put(name, str(document.length).encode())
    for term, count in document.terms.items():
        if term:
            hit = _json([count, document.length])
            entries.put(_key(_TERM, *key, indexed_term(term), number=document.seq), hit)
    return replace(state, documents=state.documents + 1, length=state.length + document.length)


def _unindex(entries: KeyValueTransaction, key: SessionKey, state: _State, seqs: frozenset[int]) -> _State:
    for seq in seqs:
        name = _key(_DOCUMENT, *key, number=seq)
        length = entries.get(name)
        if length is not None:
            entries.delete(name)
            state = replace(state, documents=state.documents - 1, length=state.length - int(length))
    prefix = _prefix(_TERM, *key)
    for name, _ in list(entries.scan(prefix, _after(prefix))) if seqs else ():
        if _last_number(name) in seqs:
            entries.delete(name)
    return state


def _hits(
    entries: KeyValueTransaction, key: SessionKey, term: str, newest: int | None, among: Sequence[int] | None
) -> tuple[tuple[int, int, int], ...]:
    prefix = _prefix(_TERM, *key, term) if term else _prefix(_DOCUMENT, *key)
    if among is not None:
        names = (prefix + seq.to_bytes(8, "big") for seq in sorted(set(among)) if 0 < seq < 1 << 63)
        entries_of_term = [(name, stored) for name in names if (stored := entries.get(name)) is not None]
    elif newest is None:
        entries_of_term = list(entries.scan(prefix, _after(prefix)))
    else:
        entries_of_term = [*islice(entries.scan(prefix, _after(prefix), reverse=True), newest)][::-1]
    hits = ((name, json.loads(stored) if term else (0, stored)) for name, stored in entries_of_term)
    return tuple((_last_number(name), int(count), int(length)) for name, (count, length) in hits)


# memory items


def _owned(entries: KeyValueTransaction, owner: str) -> OwnedItems:
    prefix, rows = _prefix(_ITEM, owner), OwnedItems()
    for _, stored in entries.scan(prefix, _after(prefix)):
        place, payload = json.loads(stored)
        item = decode_item(payload)
        rows.rows[item.id] = ((place[0], place[1], place[2]), item)
    return rows


@contextmanager
def _changed_items(entries: KeyValueTransaction, owner: str) -> Generator[OwnedItems]:
    """Loads the items of an owner and stores the differences at the end of the block."""
    owned = _owned(entries, owner)
    before = dict(owned.rows)
    yield owned
    for name in before.keys() - owned.rows.keys():
        entries.delete(_key(_ITEM, owner, name))
    for name, row in owned.rows.items():
        if before.get(name) is not row:
            entries.put(_key(_ITEM, owner, name), _json([row[0], encode_item(row[1])]))
