"""Caches archived messages split into sentences, since what answered one question often bears on the next."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from operator import mul

from ctxfold.history.posting_cache import Hits
from ctxfold.history.prompt_safety import without_private_keys
from ctxfold.history.records import Record
from ctxfold.history.snapshot import stored_message
from ctxfold.history.terms import records, term_counts
from ctxfold.lru import LruCache

__all__ = ["MOST_CHUNKS", "PassageCache", "Reading", "Vectors", "reading"]

SIZE = 256  # messages


@dataclass(slots=True)
class Reading:
    """Holds an archived message as recall reads it; it is split into sentences when they are first asked for."""

    number: int
    message_id: str
    role: str
    name: str
    text: str
    at_s: float
    _sentences: tuple[tuple[str, frozenset[str]], ...] | None = None

    @property
    def sentences(self) -> tuple[tuple[str, frozenset[str]], ...]:
        """Each sentence, or record of JSON or a table, with its terms."""
        if self._sentences is None:
            self._sentences = tuple((each, frozenset(term_counts(each))) for each in records(self.text))
        return self._sentences


class PassageCache:
    """Holds the readings of one session that were used last, by seq, and `hits` of its index; safe across threads."""

    def __init__(self, size: int = SIZE) -> None:
        self.hits = Hits()
        self._by_seq: LruCache[int, Reading] = LruCache(size)

    def known(self, seqs: Iterable[int]) -> dict[int, Reading]:
        return self._by_seq.get_many(seqs)

    def keep(self, records: Iterable[Record]) -> dict[int, Reading]:
        """Returns and caches the readings of these records; those without a message are left out."""
        readings = {r.seq: each for r in records if (each := reading(r)) is not None}
        self._by_seq.update(readings)
        return readings


def reading(record: Record) -> Reading | None:
    """Returns the message of a record, None where it has none."""
    message = stored_message(record)
    if message is None:
        return None
    text = without_private_keys(message.text)
    return Reading(record.number, message.id, message.role, message.name or "", text, record.at_s)


MOST_CHUNKS = 2_048  # newest ones that a question is compared with: some 25 ms at 384 dimensions
Chunk = tuple[int, int]


@dataclass(slots=True)
class Vectors:
    """Holds unit vectors of chunks: (seq of the message's record, position of its first sentence).

    `upto` is the last record that was read.
    """

    upto: int = 0
    _chunks: LruCache[Chunk, array[float]] = field(default_factory=lambda: LruCache(MOST_CHUNKS))

    def __contains__(self, chunk: Chunk) -> bool:
        return self._chunks.get(chunk) is not None

    def add(self, chunk: Chunk, vector: Sequence[float]) -> None:
        length = math.sqrt(sum(x * x for x in vector)) or 1.0
        self._chunks.put(chunk, array("f", (x / length for x in vector)))

    def nearest(self, vector: Sequence[float], limit: int, visible: Collection[int]) -> dict[Chunk, float]:
        """Returns the likeness of the nearest chunks outside the visible records, the nearest first, without those of none."""
        query = array("f", vector)
        stored = self._chunks.items()
        ranked = [(sum(map(mul, query, unit)), chunk) for chunk, unit in stored if chunk[0] not in visible]
        ranked.sort(key=lambda pair: (-pair[0], -pair[1][0], pair[1][1]))
        return {chunk: likeness for likeness, chunk in ranked[:limit] if likeness > 0}
