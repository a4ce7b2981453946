"""Hits of the archive's index that were read last: a question often has words of the one before."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

__all__ = ["Hit", "Hits"]

Hit: TypeAlias = tuple[int, int, int]  # seq, count of the term in it, its length
TERMS, SINGLE = 256, 512  # that are kept: terms, and single hits of each


class Hits:
    """Newest hits of terms, while the index has the size at which they were read, and single ones, which never change.

    Of one session; made anew after an erasure. Safe across threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._size = (0, 0)
        self._newest: OrderedDict[str, tuple[int, tuple[Hit, ...]]] = OrderedDict()
        self._single: OrderedDict[str, dict[int, Hit | None]] = OrderedDict()

    def newest(self, terms: Sequence[str], at_most: int) -> dict[str, tuple[Hit, ...]]:
        """The newest hits, at most so many, of those terms of which they are known, as of the size of the newest reading."""
        with self._lock:
            known = {t: self._newest[t] for t in terms if t in self._newest and self._newest[t][0] >= at_most}
            for term in known:
                self._newest.move_to_end(term)
        return {t: hits[-at_most:] for t, (_, hits) in known.items()}

    def keep(self, size: tuple[int, int], found: Mapping[str, tuple[Hit, ...]], at_most: int) -> bool:
        """Newest hits, read from an index of this size; False when that is another than before: what was known is outdated."""
        with self._lock:
            same = size == self._size
            if not same:
                self._newest.clear()
                self._size = size
            self._newest.update({t: (at_most, hits) for t, hits in found.items()})
            _bound(self._newest, TERMS)
        return same

    def among(self, terms: Sequence[str], seqs: Sequence[int]) -> tuple[dict[str, tuple[Hit, ...]], tuple[int, ...]]:
        """The hits of the terms in these documents, and the documents in which not all of them are known."""
        with self._lock:
            known = [self._single.get(term, {}) for term in terms]
            unknown = tuple(seq for each in known for seq in seqs if seq not in each)
            found = {
                term: tuple([hit for seq in seqs if (hit := each.get(seq)) is not None])
                for term, each in zip(terms, known, strict=True)
            }
        return found, tuple(sorted(set(unknown)))

    def keep_among(self, found: Mapping[str, Sequence[Hit]], seqs: Sequence[int]) -> None:
        """All hits of terms in these documents; a document that is not among them does not hold the term."""
        with self._lock:
            for term, hits in found.items():
                held = {hit[0]: hit for hit in hits}
                new = {seq: held.get(seq) for seq in seqs}
                both = self._single.pop(term, {}) | new
                self._single[term] = both if len(both) <= SINGLE else new
            _bound(self._single, TERMS)


def _bound(kept: OrderedDict[Any, Any], size: int) -> None:
    while len(kept) > size:
        kept.popitem(last=False)
