"""Holds posting lists in memory: those of the archive's index that were read last, and those of messages in the view."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ctxfold.lru import LruCache

Hit: TypeAlias = tuple[int, int, int]  # seq, count of the term in it, its length
TERMS, SINGLE = 256, 512  # that are kept: terms, and single hits of each
LENGTHS = 4_096  # of documents that are kept


class Hits:
    """Holds newest hits of terms and lengths of documents, while the index keeps the size at which they were read, and single
    hits, which never change.

    For one session; replaced after an erasure. Safe across threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._size = (0, 0)
        self._newest: LruCache[str, tuple[int, tuple[Hit, ...]]] = LruCache(TERMS)
        self._lengths: dict[int, int | None] = {}
        self._single: LruCache[str, dict[int, Hit | None]] = LruCache(TERMS)

    def newest(self, terms: Sequence[str], at_most: int) -> dict[str, tuple[Hit, ...]]:
        """Returns the newest hits, at most that many, of the terms that are cached, as of the newest reading's size."""
        known = self._newest.get_many(terms)
        return {term: hits[-at_most:] for term, (limit, hits) in known.items() if limit >= at_most}

    def keep(self, size: tuple[int, int], hits_by_term: Mapping[str, tuple[Hit, ...]], at_most: int) -> bool:
        """Stores the newest hits of an index of this size. Returns False when the size has changed: older entries are outdated."""
        with self._lock:
            same = self._resized(size)
            self._newest.update({t: (at_most, hits) for t, hits in hits_by_term.items()})
        return same

    def _resized(self, size: tuple[int, int]) -> bool:
        same = size == self._size
        if not same:
            self._newest.clear()
            self._lengths = {}
            self._size = size
        return same

    def lengths(self, seqs: Iterable[int]) -> tuple[tuple[int, int], dict[int, int | None]]:
        """Returns the size of the index when it was last read, and the cached lengths by seq; None for a seq without a document."""
        with self._lock:
            return self._size, {seq: self._lengths[seq] for seq in seqs if seq in self._lengths}

    def keep_lengths(self, size: tuple[int, int], lengths: Mapping[int, int | None]) -> None:
        """Stores the lengths of documents in an index of this size."""
        with self._lock:
            self._resized(size)
            self._lengths.update(lengths)
            if len(self._lengths) > LENGTHS:
                self._lengths = dict(lengths)

    def among(self, terms: Sequence[str], seqs: Sequence[int]) -> tuple[dict[str, tuple[Hit, ...]], tuple[int, ...]]:
        """Returns the hits of the terms in these documents, and the documents for which not all terms are cached."""
        with self._lock:
            known = [self._single.get(term) or {} for term in terms]
            unknown = tuple(seq for each in known for seq in seqs if seq not in each)
            hits_by_term = {
                term: tuple([hit for seq in seqs if (hit := each.get(seq)) is not None])
                for term, each in zip(terms, known, strict=True)
            }
        return hits_by_term, tuple(sorted(set(unknown)))

    def keep_among(self, hits_by_term: Mapping[str, Sequence[Hit]], seqs: Sequence[int]) -> None:
        """Stores all hits of the terms in these documents; a document without a hit does not hold the term."""
        with self._lock:
            for term, hits in hits_by_term.items():
                by_seq = {hit[0]: hit for hit in hits}
                new = {seq: by_seq.get(seq) for seq in seqs}
                known = self._single.get_or_make(term, dict)
                known.update(new)
                if len(known) > SINGLE:
                    self._single.put(term, new)


@dataclass(frozen=True, slots=True)
class LiveIndex:
    """Indexes messages of the view as the archive's index would: the hits of each term in order of seq, and lengths by seq."""

    hits: Mapping[str, tuple[Hit, ...]] = field(default_factory=dict[str, tuple[Hit, ...]])
    lengths: Mapping[int, int] = field(default_factory=dict[int, int])

    def without(self, seqs: Collection[int]) -> LiveIndex:
        """Returns the index without these messages."""
        remaining = {term: tuple([hit for hit in hits if hit[0] not in seqs]) for term, hits in self.hits.items()}
        lengths = {seq: length for seq, length in self.lengths.items() if seq not in seqs}
        return LiveIndex({term: hits for term, hits in remaining.items() if hits}, lengths)

    def with_messages(self, messages: Iterable[tuple[int, Mapping[str, int], int]]) -> LiveIndex:
        """Returns the index with these messages too, each the seq of its record, how often it has each term, and its length."""
        hits, lengths = dict(self.hits), dict(self.lengths)
        newest, in_order = max(lengths, default=0), True
        for seq, counts, length in messages:
            lengths[seq] = length
            in_order, newest = in_order and seq > newest, max(seq, newest)
            for term, count in counts.items():
                hits[term] = (*hits.get(term, ()), (seq, count, length))
        return LiveIndex(hits if in_order else {term: tuple(sorted(each)) for term, each in hits.items()}, lengths)
