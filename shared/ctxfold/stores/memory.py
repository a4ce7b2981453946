"""A store in this process's memory: for tests, notebooks and throw-away sessions."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ctxfold.errors import HeadMovedError, StoreUnavailableError
from ctxfold.history.memory_items import MemoryItem, Remembered
from ctxfold.history.records import Draft, Record, SessionKey, fingerprint
from ctxfold.protocols import Document, Head, Postings, Rewrite, StoreCapabilities
from ctxfold.stores.base import (
    Fresh,
    OwnedItems,
    VectorStore,
    checked_drafts,
    checked_items,
    checked_key,
    erased_meanwhile,
    follow_forks,
    indexed_term,
    new_records,
    unseen,
)

if TYPE_CHECKING:
    from ctxfold.protocols import Store

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class _Log:
    records: list[Record] = field(default_factory=list[Record])
    seq_by_id: dict[str, int] = field(default_factory=dict[str, int])
    fingerprints: dict[str, str] = field(default_factory=dict[str, str])
    snapshots: list[int] = field(default_factory=list[int])
    numbered: list[int] = field(default_factory=list[int])  # seqs of the records that bring a message, by number
    terms: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict[str, list[tuple[int, int, int]]])
    documents: dict[int, int] = field(default_factory=dict[int, int])
    total_length: int = 0
    vectors: dict[str, dict[int, bytes]] = field(default_factory=dict[str, dict[int, bytes]])  # by embedder and seq

    def add(self, items: Sequence[Fresh]) -> None:
        for item, record in zip(items, new_records(items, len(self.records), len(self.numbered)), strict=True):
            if record.number:
                self.numbered.append(record.seq)
            self.records.append(record)
            self.seq_by_id[record.id] = record.seq
            self.fingerprints[record.id] = item.fingerprint
            if record.body.kind == "snapshot_taken":
                self.snapshots.append(record.seq)

    def rewrite(self, records: Sequence[Record], unindexed: Sequence[int]) -> None:
        for record in records:
            self.records[record.seq - 1] = record
            self.fingerprints[record.id] = fingerprint(record.body)
            for rows in self.vectors.values():
                rows.pop(record.seq, None)
        for seq in unindexed:
            self.total_length -= self.documents.pop(seq, 0)
        for term, hits in list(self.terms.items()):
            self.terms[term] = [hit for hit in hits if hit[0] in self.documents]
            if not self.terms[term]:
                del self.terms[term]

    def index(self, document: Document) -> None:
        if document.seq in self.documents:
            return
        self.documents[document.seq] = document.length
        self.total_length += document.length
        for term, count in document.terms.items():
            if term:
                hits, hit = self.terms.setdefault(indexed_term(term), []), (document.seq, count, document.length)
                if hits and hits[-1] > hit:
                    insort(hits, hit)
                else:
                    hits.append(hit)

    def hits(self, term: str, newest: int | None, among: Sequence[int] | None) -> tuple[tuple[int, int, int], ...]:
        """Returns the hits of a term in order of seq: all, the newest, or those in some documents; of "", the documents."""
        if not term:
            seqs = self.documents.keys() if among is None else self.documents.keys() & set(among)
            hits = sorted((seq, 0, self.documents[seq]) for seq in seqs)
            return tuple(hits if newest is None else hits[max(0, len(hits) - newest) :])
        hits = self.terms.get(term, [])
        if among is not None:
            places = ((seq, bisect_left(hits, (seq,))) for seq in sorted(set(among)))
            return tuple(hits[at] for seq, at in places if at < len(hits) and hits[at][0] == seq)
        return tuple(hits if newest is None else hits[max(0, len(hits) - newest) :])


class MemoryStore(VectorStore):
    """Keeps logs in memory, under one lock, until the process ends."""

    capabilities = StoreCapabilities(blocking=False, vectors=True)  # microseconds of work: a thread would cost more

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[SessionKey, _Log] = {}
        self._leases: dict[tuple[SessionKey, str], tuple[str, float]] = {}
        self._items: dict[str, OwnedItems] = {}
        self._closed = False
        follow_forks(self)

    def before_fork(self) -> None:
        self._lock.acquire()  # the child gets a copy of the logs: no change may be half done

    def after_fork(self, *, in_child: bool) -> None:
        self._lock.release()

    def __repr__(self) -> str:
        return "MemoryStore()"

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError("this MemoryStore is closed: open a new one")

    def _log(self, key: SessionKey) -> _Log | None:
        self._check_open()
        return self._logs.get(checked_key(key))

    def head(self, key: SessionKey) -> Head | None:
        with self._lock:
            log = self._log(key)
            if log is None:
                return None
            return Head(len(log.records), log.snapshots[-1] if log.snapshots else 0)

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
        ready = checked_drafts(drafts)
        with self._lock:
            log = self._log(key) or _Log()
            if known_id is not None and [r.id for r in log.records[known - 1 : known]] != [known_id]:
                raise erased_meanwhile(key)
            if expect is not None and expect != len(log.records):
                raise HeadMovedError(expect, len(log.records))
            log.add(unseen(ready, log.fingerprints))
            for document in documents:
                log.index(document)
            self._logs[SessionKey(*key)] = log
            return tuple(log.records[max(known, 0) :])

    def read(self, key: SessionKey, *, after: int = 0, upto: int | None = None) -> tuple[Record, ...]:
        with self._lock:
            log = self._log(key) or _Log()
            stop = len(log.records) if upto is None else max(upto, 0)
            return tuple(log.records[max(after, 0) : stop])

    def fetch(self, key: SessionKey, seqs: Sequence[int]) -> tuple[Record, ...]:
        with self._lock:
            log = self._log(key) or _Log()
            return tuple(log.records[seq - 1] for seq in sorted(set(seqs)) if 0 < seq <= len(log.records))

    def find(self, key: SessionKey, ids: Sequence[str]) -> tuple[Record, ...]:
        with self._lock:
            log = self._log(key) or _Log()
            seqs = sorted({log.seq_by_id[name] for name in ids if name in log.seq_by_id})
            return tuple(log.records[seq - 1] for seq in seqs)

    def numbered(self, key: SessionKey, number: int) -> Record | None:
        with self._lock:
            log = self._log(key) or _Log()
            return log.records[log.numbered[number - 1] - 1] if 0 < number <= len(log.numbered) else None

    def snapshot_before(self, key: SessionKey, seq: int) -> int:
        with self._lock:
            log = self._log(key) or _Log()
            at = bisect_left(log.snapshots, seq)
            return log.snapshots[at - 1] if at else 0

    def postings(
        self, key: SessionKey, terms: Sequence[str], *, newest: int | None = None, among: Sequence[int] | None = None
    ) -> Postings:
        with self._lock:
            log = self._log(key) or _Log()
            by_term = {term: log.hits(indexed_term(term), newest, among) for term in terms}
            return Postings(len(log.documents), log.total_length, by_term, len(log.numbered))

    def embedders(self, key: SessionKey) -> Mapping[str, bytes]:
        with self._lock:
            log = self._log(key) or _Log()
            return {name: rows[0] for name, rows in log.vectors.items() if 0 in rows}

    def vectors(self, key: SessionKey, embedder: str, *, seqs: Sequence[int] | None = None) -> Mapping[int, bytes]:
        with self._lock:
            rows = (self._log(key) or _Log()).vectors.get(embedder, {})
            wanted = set(rows if seqs is None else seqs) - {0}
            return {seq: rows[seq] for seq in sorted(wanted & rows.keys())}

    def put_vectors(self, key: SessionKey, embedder: str, vectors: Mapping[int, bytes]) -> None:
        with self._lock:
            if (log := self._log(key)) is not None:
                kept = {0, *(r.seq for r in log.records if r.body.kind != "erased")}
                new = {seq: data for seq, data in vectors.items() if seq in kept}
                log.vectors.setdefault(embedder, {}).update(new)

    def drop_vectors(self, key: SessionKey, embedder: str) -> None:
        with self._lock:
            (self._log(key) or _Log()).vectors.pop(embedder, None)

    def lease(self, key: SessionKey, name: str, holder: str, *, now_s: float, ttl_s: float) -> bool:
        with self._lock:
            self._log(key)  # checks the key, and that the store is open
            other, until_s = self._leases.get((SessionKey(*key), name), (holder, 0.0))
            if other != holder and until_s > now_s:
                return False
            self._leases[SessionKey(*key), name] = (holder, now_s + ttl_s)
            return True

    def release(self, key: SessionKey, name: str, holder: str) -> None:
        with self._lock:
            if self._leases.get((SessionKey(*key), name), ("", 0.0))[0] == holder:
                del self._leases[SessionKey(*key), name]

    def sessions(self, owner: str) -> tuple[str, ...]:
        checked_key(SessionKey(owner, ""))
        with self._lock:
            self._check_open()
            return tuple(sorted(key.session for key in self._logs if key.owner == owner))

    def copies(self, key: SessionKey) -> tuple[str, ...]:
        with self._lock:
            mine = self._log(key)
            first = mine.records[0].id if mine is not None and mine.records else None
            others = ((k, log.records) for k, log in self._logs.items() if k.owner == key[0] and k != key)
            return tuple(sorted(k.session for k, records in others if records and records[0].id == first))

    def erase(self, rewrites: Sequence[Rewrite], *, gone: Sequence[SessionKey] = ()) -> bool:
        ready = [(rewrite, checked_drafts(rewrite.drafts)) for rewrite in rewrites]
        with self._lock:
            logs = [self._log(rewrite.key) or _Log() for rewrite in rewrites]
            for log, rewrite in zip(logs, rewrites, strict=True):
                if len(log.records) != rewrite.expect:
                    raise HeadMovedError(rewrite.expect, len(log.records))
            for log, (rewrite, drafts) in zip(logs, ready, strict=True):
                log.rewrite(rewrite.records, rewrite.unindexed)
                log.add(unseen(drafts, log.fingerprints))
                self._owned(rewrite.key.owner).drop_learnt(rewrite.key.session, rewrite.ids)
            self._drop(frozenset(SessionKey(*checked_key(key)) for key in gone))
        return True

    def erase_owner(self, owner: str) -> bool:
        checked_key(SessionKey(owner, ""))
        with self._lock:
            keys = (*self._logs, *(key for key, _ in self._leases))  # a lease may be of a session that has no log
            self._drop(frozenset(key for key in keys if key.owner == owner))
            self._items.pop(owner, None)
        return True

    def _drop(self, keys: frozenset[SessionKey]) -> None:
        for key in keys:
            self._logs.pop(key, None)
            self._owned(key.owner).drop_session(key.session)
        self._leases = {name: lease for name, lease in self._leases.items() if name[0] not in keys}

    def remember(self, owner: str, items: Sequence[MemoryItem]) -> tuple[Remembered, ...]:
        ready = checked_items(owner, items)
        with self._lock:
            return self._owned(owner).remember(ready)

    def memories(
        self, owner: str, *, kinds: Sequence[str] | None = None, newest: int = 2_000, everything: bool = False
    ) -> tuple[MemoryItem, ...]:
        checked_key(SessionKey(owner, ""))
        with self._lock:
            return self._owned(owner).newest(kinds, newest, everything)

    def forget(self, owner: str, ids: Sequence[str]) -> tuple[MemoryItem, ...]:
        checked_key(SessionKey(owner, ""))
        with self._lock:
            return self._owned(owner).forget(ids)

    def _owned(self, owner: str) -> OwnedItems:
        self._check_open()
        return self._items.setdefault(owner, OwnedItems())

    def close(self) -> None:
        """Removes all data; may be called more than once."""
        with self._lock:
            self._closed = True
            self._logs.clear()
            self._items.clear()


if TYPE_CHECKING:
    _: Store = MemoryStore()
