"""Recall by meaning: sentences of archived messages whose vectors are near the question's, beside what BM25 finds by words."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ctxfold.effects import FetchLog, FindLog, ReadLog
from ctxfold.flow import Call, Effect, Flow
from ctxfold.history.data import without_private_keys
from ctxfold.history.records import Compacted, Record
from ctxfold.history.snapshot import stored_message
from ctxfold.history.terms import sentences
from ctxfold.journal import Journal
from ctxfold.ports import Ports
from ctxfold.vectors import Embedder
from ctxfold.zones.recall import Passage

__all__ = ["near_passages"]

CHUNK_SENTENCES = 4
BATCH = 64  # texts of one call
NEWEST_RECORDS = (
    4_096  # of the log, whose compactions are gone through; what older ones took out is found by words only
)
NEAREST = 24  # chunks


@dataclass(frozen=True, slots=True)
class Embed(Effect[Sequence[Sequence[float]]]):
    """A vector for each text."""

    embedder: Embedder
    texts: Sequence[str]

    def perform(self, ports: Ports) -> Sequence[Sequence[float]]:
        return self.embedder.embed(self.texts)

    async def aperform(self, ports: Ports) -> Sequence[Sequence[float]]:
        return await self.embedder.aembed(self.texts)


def near_passages(journal: Journal, query: str, ports: Ports, *, visible: Collection[int]) -> Flow[tuple[Passage, ...]]:
    """The sentences of the nearest chunks, the nearest first; empty without an embedder.

    What was compacted since the last question is embedded first; whatever the embedder raises comes out of here.
    """
    if ports.embedder is None:
        return ()
    yield from _take_in(journal, ports.embedder)
    (wanted,) = yield from Embed(ports.embedder, [query])
    vectors = journal.vectors
    chunks = yield from Call(lambda: vectors.nearest(wanted, NEAREST, visible))
    records = yield from FetchLog(journal.key, tuple({seq for seq, _ in chunks}))
    by_seq = {r.seq: r for r in records}
    return tuple(p for seq, first in chunks if seq in by_seq for p in _passages(by_seq[seq], first))


def _take_in(journal: Journal, embedder: Embedder) -> Flow[None]:
    """Make vectors of the messages that compactions have taken out of the view since: what the archive has, and nothing else."""
    vectors, head = journal.vectors, journal.state.head
    records = yield from ReadLog(journal.key, after=max(vectors.upto, head - NEWEST_RECORDS), upto=head)
    taken = [b for r in records if isinstance(b := r.body, Compacted) and r.id not in journal.state.undone]
    ids = dict.fromkeys(i for b in taken for i in (*b.covered, *(m.id for m in b.shown)))
    texts: dict[tuple[int, int], str] = {}
    for record in (yield from FindLog(journal.key, [f"m:{i}" for i in ids])):
        said = _sentences(record)
        for first in range(0, len(said), CHUNK_SENTENCES):
            texts[record.seq, first] = " ".join(said[first : first + CHUNK_SENTENCES])
    chunks = list(texts)
    for start in range(0, len(chunks), BATCH):
        batch = chunks[start : start + BATCH]
        made = yield from Embed(embedder, [texts[c] for c in batch])
        for chunk, vector in zip(batch, made, strict=True):
            vectors.add(chunk, vector)
    vectors.upto = head


def _sentences(record: Record) -> list[str]:
    message = stored_message(record)
    return [] if message is None or message.kind != "message" else sentences(without_private_keys(message.text))


def _passages(record: Record, first: int) -> list[Passage]:
    message, said = stored_message(record), _sentences(record)
    if message is None:
        return []
    places = range(first, min(first + CHUNK_SENTENCES, len(said)))
    return [Passage(record.number, message.id, message.role, place, said[place], 0.0) for place in places]
