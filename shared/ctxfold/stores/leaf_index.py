"""The search index of a store that keeps hits in leaves: which leaves a search reads, and which a write changes.

How leaves are read and written is for the derived class to say. Transactions are the caller's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Generic, TypeVar

from ctxfold.history.records import SessionKey
from ctxfold.index.cache import Hit
from ctxfold.protocols import Document
from ctxfold.stores.posting_leaves import (
    LEAF_BYTES,
    RUN,
    divided,
    hits_of,
    leaf_key,
    placed,
    stored_term,
    with_hits,
    without_documents,
)

C = TypeVar("C")
Leaf = tuple[bytes, bytes]  # its first key and its data

ALL = 1 << 30
NEWEST_SEQ = (1 << 63) - 1
_SMALL_ARCHIVE = 400  # documents of a session whose leaves are all read when it is written to
_NEAR = 32  # seqs that are so close to each other are looked for together


class LeafIndex(ABC, Generic[C]):
    """Reads and writes the hits of sessions, over a connection or what else a store calls so."""

    @abstractmethod
    def leaves(
        self, connection: C, key: SessionKey, ranges: Sequence[tuple[bytes, bytes]], limit: int
    ) -> list[list[Leaf]]:
        """Returns for each range of keys the leaves that cover it, at most `limit`, the newest first."""

    @abstractmethod
    def leaves_of(self, connection: C, key: SessionKey, keys: Sequence[bytes]) -> list[Leaf]:
        """Returns each leaf in which one of the keys belongs, once."""

    @abstractmethod
    def every_leaf(self, connection: C, key: SessionKey) -> list[Leaf]: ...

    @abstractmethod
    def put(self, connection: C, key: SessionKey, leaves: Sequence[Leaf]) -> None: ...

    @abstractmethod
    def drop(self, connection: C, key: SessionKey, first_keys: Sequence[bytes]) -> None: ...

    # reading

    def hits(self, connection: C, key: SessionKey, terms: Sequence[str]) -> dict[str, tuple[Hit, ...]]:
        """Returns all hits of each term, oldest first."""
        names = {term: stored_term(term) for term in terms}
        ranges = [(leaf_key(name, 0), leaf_key(name, NEWEST_SEQ)) for name in names.values()]
        leaves = self.leaves(connection, key, ranges, ALL)
        return {t: joined(data, n) for (t, n), data in zip(names.items(), map(_data, leaves), strict=True)}

    def newest_hits(
        self, connection: C, key: SessionKey, terms: Sequence[str], newest: int
    ) -> dict[str, tuple[Hit, ...]]:
        """Walks back from the newest leaf of each term, for a short distance however many hits the term has."""
        names = {term: stored_term(term) for term in terms}
        ranges = [(leaf_key(name, 0), leaf_key(name, NEWEST_SEQ)) for name in names.values()]
        limit = leaves_for(newest)
        hits_by_term: dict[str, tuple[Hit, ...]] = {}
        unfinished: list[str] = []
        for (term, name), leaves in zip(names.items(), self.leaves(connection, key, ranges, limit), strict=True):
            hits_by_term[term] = joined(_data(leaves), name)[-newest:]
            if len(leaves) == limit and len(hits_by_term[term]) < newest:  # an erasure has made leaves of few hits
                unfinished.append(term)
        if unfinished:
            hits_by_term |= {t: hits[-newest:] for t, hits in self.hits(connection, key, unfinished).items()}
        return hits_by_term

    def hits_among(
        self, connection: C, key: SessionKey, terms: Sequence[str], seqs: Sequence[int]
    ) -> dict[str, tuple[Hit, ...]]:
        """Returns the hits of each term in these documents."""
        among = sorted(set(seqs))
        names = {term: stored_term(term) for term in terms}
        stretches = _stretches(among)
        ranges = [(leaf_key(n, low), leaf_key(n, high)) for n in names.values() for low, high in stretches]
        leaves = self.leaves(connection, key, ranges, ALL)
        hits_by_term: dict[str, tuple[Hit, ...]] = {}
        for at, (term, name) in enumerate(names.items()):
            mine = {k: d for each in leaves[at * len(stretches) : (at + 1) * len(stretches)] for k, d in each}
            hits_by_term[term] = joined(list(mine.values()), name, among)
        return hits_by_term

    def totals(self, connection: C, key: SessionKey) -> tuple[int, int]:
        """Returns the number of documents and the sum of their lengths, counted."""
        documents = self.hits(connection, key, [""])[""]
        return len(documents), sum(hit[2] for hit in documents)

    # writing

    def add(
        self, connection: C, key: SessionKey, documents: Sequence[Document], *, archived: int
    ) -> tuple[Document, ...]:
        """Makes documents searchable; returns those that were not already. The caller holds the session's row.

        `archived` is how many documents the session has.
        """
        by_seq = {document.seq: document for document in reversed(documents)}
        for hit in self.hits_among(connection, key, [""], list(by_seq))[""] if archived else ():
            del by_seq[hit[0]]
        new = tuple(by_seq.values())
        hits: dict[bytes, list[Hit]] = {b"": [(d.seq, 0, d.length) for d in new]} if new else {}
        for document in new:
            for term, count in document.terms.items():
                if term:
                    hits.setdefault(stored_term(term), []).append((document.seq, count, document.length))
        self._put(connection, key, hits, small=archived <= _SMALL_ARCHIVE)
        return new

    def remove(self, connection: C, key: SessionKey, seqs: Sequence[int]) -> None:
        """Removes documents with all their hits: reads the whole index of the session."""
        erased = frozenset(seqs)
        changes = ((old, without_documents(old, data, erased)) for old, data in self.every_leaf(connection, key))
        changed = [(old, *change) for old, change in changes if change is not None]
        if not changed:
            return
        self.drop(connection, key, [old for old, _, _ in changed])
        self.put(connection, key, [(new, data) for _, new, data in changed if data])

    def _put(self, connection: C, key: SessionKey, hits: Mapping[bytes, list[Hit]], *, small: bool) -> None:
        """Puts hits into the leaves where they belong, and divides those that become too long."""
        if not hits:
            return
        for each in hits.values():
            each.sort()
        if small:
            stored_leaves = self.every_leaf(connection, key)
        else:
            stored_leaves = self.leaves_of(
                connection, key, [leaf_key(t, hit[0]) for t, each in hits.items() for hit in each]
            )
        data_by_key: dict[bytes, bytes] = dict(stored_leaves)
        written: list[Leaf] = []
        for first_key, new in placed(sorted(data_by_key), hits).items():
            data = data_by_key.get(first_key, b"")
            longer = with_hits(data, new) if len(data) + sum(map(len, new)) <= LEAF_BYTES else None
            fits = longer is not None and len(longer) <= LEAF_BYTES
            written += [(first_key, longer)] if longer is not None and fits else divided(first_key, data, new)
        self.put(connection, key, written)


def _data(leaves: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    return [data for _, data in leaves]


def joined(leaves: Iterable[bytes], term: bytes, among: Sequence[int] | None = None) -> tuple[Hit, ...]:
    """Returns the hits of a term in leaves, in order. With `among`, seqs in order, only those in these documents."""
    hits_by_seq: dict[int, Hit] = {}
    for data in leaves:
        if term or among is None:
            hits_by_seq.update({hit[0]: hit for hit in hits_of(data, term, among)})
        else:
            lengths = _documents_of(data)
            hits_by_seq.update({seq: lengths[seq] for seq in among if seq in lengths})
    return tuple([hits_by_seq[seq] for seq in sorted(hits_by_seq)])


@lru_cache(maxsize=64)
def _documents_of(data: bytes) -> dict[int, Hit]:
    """Returns the lengths of documents in a leaf by seq. Cached: every search reads them, and older leaves rarely change."""
    return {hit[0]: hit for hit in hits_of(data, b"")}


def leaves_for(newest: int) -> int:
    """Returns how many leaves are read for so many hits of a term."""
    return 2 + newest // RUN


def _stretches(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """Returns (first, last) of seqs that are near each other."""
    stretches: list[tuple[int, int]] = []
    for seq in seqs:
        if stretches and seq - stretches[-1][1] <= _NEAR:
            stretches[-1] = (stretches[-1][0], seq)
        else:
            stretches.append((seq, seq))
    return stretches
