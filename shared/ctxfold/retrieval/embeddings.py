"""Finds passages of archived messages whose embeddings are near the question's, in addition to BM25."""

from __future__ import annotations

import hashlib
import json
import logging
import struct
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ctxfold.effects import Call, Effect, Flow, Start, StoreCall
from ctxfold.errors import StoreCorruptError
from ctxfold.history.prompt_safety import without_private_keys
from ctxfold.history.records import Compacted, SessionKey
from ctxfold.history.snapshot import stored_message
from ctxfold.history.view import Entry
from ctxfold.index.cache import Chunk, Vectors, chunks, unit
from ctxfold.index.terms import records as parts_of
from ctxfold.messages import Message
from ctxfold.protocols import Embedder, Ports, Store, VectorIndex
from ctxfold.state import Session

_log = logging.getLogger("ctxfold")

BATCH = 64  # texts of one call
NEWEST_RECORDS = 4_096  # of the log, gone through for one question; older ones follow in the background
FILLED_RECORDS = 512  # of the log, in one step of that
STORED_RECORDS = 4_096  # of the log, whose stored vectors are read at once
NEAREST = 512  # chunks
PROBE = "The quick brown fox jumps over the lazy dog."  # its vector tells embedders apart
SAME = 0.002  # square of the distance: a likeness of 0.999


@dataclass(frozen=True, slots=True)
class Embed(Effect[Sequence[Sequence[float]]]):
    """Returns a vector for each text."""

    embedder: Embedder
    texts: Sequence[str]

    def perform(self, ports: Ports) -> Sequence[Sequence[float]]:
        return self.embedder.embed(self.texts)

    async def aperform(self, ports: Ports) -> Sequence[Sequence[float]]:
        return await self.embedder.aembed(self.texts)


def near_chunks(
    session: Session,
    query: str,
    *,
    visible: Container[int],
    older: Sequence[Entry],
) -> Flow[Mapping[Chunk, float]]:
    """Returns the likeness of the nearest chunks of messages that are not visible; nothing without an embedder.

    Embeds messages first that were compacted since the last question, and those in `older`. Messages from long before the first
    question follow in the background. A store that keeps vectors is asked for them first. Exceptions of the embedder propagate.
    """
    if session.ports.embedder is None:
        return {}
    vectors, head = session.vectors, session.state.head
    work = _Work(session, session.ports.embedder, vectors, keeps=session.ports.store.capabilities.vectors)
    first_question = not vectors.embedder
    query_vector = yield from _embedded_query(work, query)
    last = min(head, vectors.upto + NEWEST_RECORDS)
    if last > vectors.upto:
        yield from _embed_compacted(work, vectors.upto, last)
        vectors.upto = last
    if first_question and last == head and not vectors.filled_from:
        yield from _drop_others(work)
    yield from _embed(work, {e.seq: e.message for e in older if not e.shown_seq})
    if vectors.filled_from and not vectors.filling:
        vectors.filling = True
        if not (yield from Start(_fill_in_background(work))):
            yield from _fill(work)
            vectors.filling = False
    return (yield from Call(lambda: vectors.nearest(query_vector, NEAREST, visible)))


@dataclass(frozen=True, slots=True)
class _Work:
    """The parts needed to embed messages of a session; `keeps` says that the store keeps the vectors.

    An erasure gives the session new `vectors`; work under way keeps its own, and stores none of them.
    """

    session: Session
    embedder: Embedder
    vectors: Vectors
    keeps: bool


def _embedded_query(work: _Work, query: str) -> Flow[Sequence[float]]:
    """Returns the query's vector. With the first one, finds out which of the stored vectors this embedder has made."""
    session, vectors = work.session, work.vectors
    if vectors.embedder:
        (query_vector,) = yield from Embed(work.embedder, [query])
        return query_vector
    query_vector, probed = yield from Embed(work.embedder, [query, PROBE])
    probe: Sequence[float] = unit(probed)
    name = hashlib.sha256(struct.pack(f"<{len(probe)}f", *probe)).hexdigest()[:32]
    filled_from = upto = max(0, session.state.head - NEWEST_RECORDS)
    if work.keeps:
        stored = {n: _mark(d) for n, d in (yield from StoreCall(VectorIndex.embedders, session.key)).items()}
        same = [n for n, (_, _, other) in stored.items() if _alike(probe, other)]
        if same:
            name = same[0]
            upto, filled_from, probe = stored[name]
            yield from _read_stored(work, name, max(upto, session.state.head))
        elif stored:
            _log.info("session %r has vectors of another embedder: they are made anew", session.key.session)
    vectors.upto, vectors.filled_from, vectors.probe, vectors.embedder = upto, filled_from, probe, name
    return query_vector


def _read_stored(work: _Work, name: str, last: int) -> Flow[None]:
    """Takes the stored vectors of the messages up to a record into memory, in pieces: as a whole they would be there twice."""
    for first in range(1, last + 1, STORED_RECORDS):
        seqs = range(first, min(first + STORED_RECORDS, last + 1))
        stored = yield from StoreCall(VectorIndex.vectors, work.session.key, name, seqs=seqs)
        work.vectors.unpack(stored)


def share_vectors(source: SessionKey, key: SessionKey, head: int) -> Flow[None]:
    """Gives a session the vectors of another one with the same records up to `head`."""
    for name, data in (yield from StoreCall(VectorIndex.embedders, source)).items():
        upto, filled_from, probe = _mark(data)
        mark = _encoded_mark(min(upto, head), min(filled_from, head), probe)
        for first in range(1, head + 1, STORED_RECORDS):
            seqs = range(first, min(first + STORED_RECORDS, head + 1))
            rows = yield from StoreCall(VectorIndex.vectors, source, name, seqs=seqs)
            yield from StoreCall(VectorIndex.put_vectors, key, name, {0: mark, **rows})


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    """Returns whether two vectors of the same text are of the same embedder: services differ a little from call to call."""
    return len(one) == len(other) and sum((x - y) ** 2 for x, y in zip(one, other, strict=True)) < SAME


def _embed_compacted(work: _Work, after: int, upto: int) -> Flow[None]:
    """Embeds the messages that compactions in these records have covered: those of the archive, and no others."""
    session = work.session
    records = yield from StoreCall(Store.read, session.key, after=after, upto=upto)
    taken = [b for r in records if isinstance(b := r.body, Compacted) and r.id not in session.state.undone]
    ids = list(dict.fromkeys(i for b in taken for i in (*b.covered, *(m.id for m in b.shown))))
    for start in range(0, len(ids), BATCH):
        found = yield from StoreCall(Store.find, session.key, [f"m:{i}" for i in ids[start : start + BATCH]])
        yield from _embed(work, {r.seq: m for r in found if (m := stored_message(r)) is not None})
    if ids:
        yield from _keep(work, (), upto=upto)


def _keep(work: _Work, seqs: Iterable[int], *, upto: int) -> Flow[None]:
    """Stores the vectors of these messages, and up to where all are stored."""
    vectors = work.vectors
    if work.keeps and vectors is work.session.vectors:
        rows = {0: _encoded_mark(max(upto, vectors.upto), vectors.filled_from, vectors.probe), **vectors.packed(seqs)}
        yield from StoreCall(VectorIndex.put_vectors, work.session.key, vectors.embedder, rows)


def _fill_in_background(work: _Work) -> Flow[None]:
    """Embeds what was compacted long before the first question. Never fails: the next question tries again."""
    vectors = work.vectors
    try:
        while vectors.filled_from:
            yield from _fill(work)
    except Exception as error:  # noqa: BLE001 - somebody else's embedder, or the store: reported, and the session goes on
        _log.warning("older messages of session %r were not embedded: %r", work.session.key.session, error)
    finally:
        vectors.filling = False


def _fill(work: _Work) -> Flow[None]:
    """Embeds what was compacted in the records just before those that are done."""
    vectors, key = work.vectors, work.session.key
    first = max(0, vectors.filled_from - FILLED_RECORDS)
    yield from _embed_compacted(work, first, vectors.filled_from)
    vectors.filled_from = first
    yield from _keep(work, (), upto=0)
    _log.info("session %r: messages up to record %d are still to be embedded", key.session, first)
    if not first:
        yield from _drop_others(work)


def _drop_others(work: _Work) -> Flow[None]:
    """Removes the vectors of other embedders, once those of this one are complete."""
    if not work.keeps:
        return
    for name in (yield from StoreCall(VectorIndex.embedders, work.session.key)):
        if name != work.vectors.embedder:
            yield from StoreCall(VectorIndex.drop_vectors, work.session.key, name)


def _mark(data: bytes) -> tuple[int, int, Sequence[float]]:
    try:
        upto, filled_from, probe = json.loads(data)
        return int(upto), int(filled_from), [float(x) for x in probe]
    except (ValueError, TypeError):
        raise StoreCorruptError("stored vectors cannot be read: restore the store from a copy") from None


def _encoded_mark(upto: int, filled_from: int, probe: Sequence[float]) -> bytes:
    return json.dumps([upto, filled_from, [round(x, 6) for x in probe]]).encode()


def _embed(work: _Work, messages: Mapping[int, Message]) -> Flow[None]:
    """Embeds the chunks of messages, by seq, that have no vector yet, neither here nor in the store, and keeps these."""
    vectors = work.vectors
    texts: dict[Chunk, str] = {}
    for seq, message in messages.items():
        said = parts_of(without_private_keys(message.text)) if message.kind == "message" else ()
        texts |= {(seq, at): text for at, text in chunks(said) if (seq, at) not in vectors}
    if not texts:
        return
    if work.keeps:  # another worker may have been here
        seqs = [*dict.fromkeys(seq for seq, _ in texts)]
        vectors.unpack((yield from StoreCall(VectorIndex.vectors, work.session.key, vectors.embedder, seqs=seqs)))
    new = [chunk for chunk in texts if chunk not in vectors]
    for start in range(0, len(new), BATCH):
        batch = new[start : start + BATCH]
        made = yield from Embed(work.embedder, [texts[c] for c in batch])
        for chunk, vector in zip(batch, made, strict=True):
            vectors.add(chunk, vector)
    yield from _keep(work, {seq for seq, _ in new}, upto=0)
