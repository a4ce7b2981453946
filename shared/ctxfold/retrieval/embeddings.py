"""Finds passages of archived messages whose embeddings are near the question's, in addition to BM25."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ctxfold.effects import Call, Effect, Flow, StoreCall
from ctxfold.history.passage_cache import Chunk
from ctxfold.history.prompt_safety import without_private_keys
from ctxfold.history.records import Compacted
from ctxfold.history.snapshot import stored_message
from ctxfold.history.terms import records as parts_of
from ctxfold.history.view import Entry
from ctxfold.messages import Message
from ctxfold.protocols import Embedder, Ports, Store
from ctxfold.session_state import OpenSession

__all__ = ["near_chunks"]

CHUNK_SENTENCES = 4
BATCH = 64  # texts of one call
NEWEST_RECORDS = 4_096  # of the log: messages that older compactions covered are found by words only
NEAREST = 256  # chunks


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
    open_session: OpenSession,
    query: str,
    ports: Ports,
    *,
    visible: Collection[int],
    older: Sequence[Entry] = (),
) -> Flow[Mapping[Chunk, float]]:
    """Returns the likeness of the nearest chunks of messages that are not visible; nothing without an embedder.

    Embeds messages first that were compacted since the last question, and those in `older`. Exceptions of the embedder propagate.
    """
    if ports.embedder is None:
        return {}
    yield from _embed_compacted(open_session, ports.embedder)
    yield from _embed(open_session, ports.embedder, {e.seq: e.message for e in older if not e.shown_seq})
    (query_vector,) = yield from Embed(ports.embedder, [query])
    vectors = open_session.vectors
    return (yield from Call(lambda: vectors.nearest(query_vector, NEAREST, visible)))


def _embed_compacted(open_session: OpenSession, embedder: Embedder) -> Flow[None]:
    """Embeds the messages that compactions have covered since the last call: those of the archive, and no others."""
    vectors, head = open_session.vectors, open_session.state.head
    records = yield from StoreCall(
        Store.read, open_session.key, after=max(vectors.upto, head - NEWEST_RECORDS), upto=head
    )
    taken = [b for r in records if isinstance(b := r.body, Compacted) and r.id not in open_session.state.undone]
    ids = dict.fromkeys(i for b in taken for i in (*b.covered, *(m.id for m in b.shown)))
    found = yield from StoreCall(Store.find, open_session.key, [f"m:{i}" for i in ids])
    yield from _embed(open_session, embedder, {r.seq: m for r in found if (m := stored_message(r)) is not None})
    vectors.upto = head


def _embed(open_session: OpenSession, embedder: Embedder, messages: Mapping[int, Message]) -> Flow[None]:
    """Embeds the chunks of messages, by seq, that have no vector yet."""
    vectors = open_session.vectors
    texts: dict[Chunk, str] = {}
    for seq, message in messages.items():
        said = parts_of(without_private_keys(message.text)) if message.kind == "message" else ()
        for first in range(0, len(said), CHUNK_SENTENCES):
            if (seq, first) not in vectors:
                texts[seq, first] = " ".join(said[first : first + CHUNK_SENTENCES])
    chunks = list(texts)
    for start in range(0, len(chunks), BATCH):
        batch = chunks[start : start + BATCH]
        made = yield from Embed(embedder, [texts[c] for c in batch])
        for chunk, vector in zip(batch, made, strict=True):
            vectors.add(chunk, vector)
