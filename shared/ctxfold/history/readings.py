"""Archived messages as recall reads them, sentence by sentence; kept, as what answered one question often bears on the next."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from ctxfold.history.data import without_private_keys
from ctxfold.history.hits import Hits
from ctxfold.history.records import Record
from ctxfold.history.snapshot import stored_message
from ctxfold.history.terms import sentences, term_counts

__all__ = ["Reading", "Readings", "reading"]

SIZE = 256  # messages


@dataclass(frozen=True, slots=True)
class Reading:
    """The sentences of a message, each with its terms."""

    number: int
    message_id: str
    role: str
    sentences: tuple[tuple[str, frozenset[str]], ...]


class Readings:
    """The readings of one session that were used last, by seq, and `hits` of its index; safe across threads."""

    def __init__(self, size: int = SIZE) -> None:
        self.hits = Hits()
        self._size = size
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Reading] = OrderedDict()

    def known(self, seqs: Iterable[int]) -> dict[int, Reading]:
        with self._lock:
            found = {seq: self._kept[seq] for seq in seqs if seq in self._kept}
            for seq in found:
                self._kept.move_to_end(seq)
        return found

    def keep(self, records: Iterable[Record]) -> dict[int, Reading]:
        """What the records say; those that hold no message are left out."""
        found = {r.seq: each for r in records if (each := reading(r)) is not None}
        with self._lock:
            self._kept.update(found)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
        return found


def reading(record: Record) -> Reading | None:
    """The message of a record by its sentences."""
    message = stored_message(record)
    if message is None:
        return None
    told = ((each, frozenset(term_counts(each))) for each in sentences(without_private_keys(message.text)))
    return Reading(record.number, message.id, message.role, tuple(told))
