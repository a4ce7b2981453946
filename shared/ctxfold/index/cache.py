"""Caches archived messages split into sentences, since what answered one question often bears on the next."""

from __future__ import annotations

import heapq
import json
import math
import struct
import sys
import threading
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from operator import mul
from typing import Any, TypeAlias

from ctxfold.errors import StoreCorruptError
from ctxfold.history.prompt_safety import without_private_keys
from ctxfold.history.records import Record
from ctxfold.history.snapshot import stored_message
from ctxfold.index.terms import (
    LEAD_CHARS,
    MAX_JSON_CHARS,
    is_english,
    records,
    rough_terms,
    sentences,
    speakers_of,
    stretches,
    terms,
)
from ctxfold.lru import LruCache, lazy_pattern
from ctxfold.messages import Message, ToolCallPart
from ctxfold.tokens.media import with_media_named

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


# messages of so many characters: a question reads a hundred of them, and the next question others; of longer ones a quarter
SIZE, SHORT_CHARS = 1_024, 1_000
CHUNK_CHARS = 60  # short sentences that follow each other get a vector together, up to so many characters
# of a longer one, as it is written in UTF-8, so many bytes get one: models read 128 tokens of a text, some 4 bytes each
PIECE_BYTES, PIECES = 400, 64
LONG_ARGUMENTS = 320  # characters; shorter arguments of a tool call stay as they came

_STAMP = lazy_pattern(r"(?:\[[^\]\n]{1,48}\] ?)?(?:[^\W\d_][^:\n\"'`{}()<>\[\]]{0,39}: )?")


@dataclass(slots=True)
class Reading:
    """Holds an archived message as recall reads it; it is split into sentences when they are first asked for.

    `text` is all that it says: its text, then its tool calls, which `calls` holds one by one.
    """

    number: int
    message_id: str
    role: str
    name: str
    text: str
    at_s: float
    calls: tuple[str, ...] = ()
    _sentences: tuple[str, ...] | None = None
    _places: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    _text_count: int = 0

    @property
    def sentences(self) -> tuple[str, ...]:
        """Returns each sentence, or record of JSON or a table, or line of a tool call."""
        if self._sentences is None:
            text_records = records(self.text.removesuffix("\n".join(self.calls)))
            self._text_count = len(text_records)
            sentences_of_all = (*text_records, *(each for call in self.calls for each in sentences(call)))
            # one index, since a set of terms for each of the 200,000 lines of a log takes ten times the room of the log
            places = defaultdict[str, list[int]](list)
            english = is_english(self.text)
            for place, sentence in enumerate(sentences_of_all):
                for term in {*terms(sentence), *(() if english else rough_terms(sentence))}:
                    places[term].append(place)
            self._places = {term: tuple(each) for term, each in places.items()}
            self._sentences = sentences_of_all
        return self._sentences

    def places(self, term: str) -> tuple[int, ...]:
        """Returns the places of the sentences that have the term, in order."""
        return self._places.get(term, ()) if self.sentences else ()

    def in_text(self, term: str) -> bool:
        """Tells whether the text has the term, apart from the tool calls."""
        return any(place < self._text_count for place in self.places(term)[:1])

    def in_calls(self, term: str) -> bool:
        """Tells whether one of the tool calls has the term."""
        return any(place >= self._text_count for place in self.places(term)[-1:])


def stamp(text: str) -> str:
    """Returns the time and the speaker with which a message's text begins, "" where it does not."""
    lead = text[:LEAD_CHARS]
    if ":" not in lead and "<" not in lead and lead[:1] != "[":  # most
        return ""
    end, lines = 0, text[: 4 * LEAD_CHARS].split("\n", 3)[:3]
    for line, (speaker, words, _) in zip(lines, speakers_of(lines), strict=True):
        if words or not line.strip():
            end += len(line.rstrip()) - len(words) if speaker else 0
            break
        end += len(line) + 1  # a line of its own
    match = _STAMP.match(text)
    return text[: max(end, match.end() if match else 0)]


class PassageCache:
    """Holds what questions of one session read last: readings by seq, `hits` of its index, and the index of visible messages.

    Safe across threads.
    """

    def __init__(self, size: int = SIZE) -> None:
        self.hits = Hits()
        self._short, self._long = LruCache[int, Reading](size), LruCache[int, Reading](size // 4)
        self._live: tuple[Mapping[int, Message], LiveIndex] = {}, LiveIndex()

    def known(self, seqs: Collection[int]) -> dict[int, Reading]:
        return self._short.get_many(seqs) | self._long.get_many(seqs)

    def keep(self, records: Iterable[Record]) -> dict[int, Reading]:
        """Returns and caches the readings of these records; those without a message are left out."""
        readings = {r.seq: each for r in records if (each := reading(r)) is not None}
        self._short.update({seq: each for seq, each in readings.items() if len(each.text) <= SHORT_CHARS})
        self._long.update({seq: each for seq, each in readings.items() if len(each.text) > SHORT_CHARS})
        return readings

    def unread(self, messages: Mapping[int, Message]) -> list[Message]:
        """Returns those of these messages, by seq, that `live_index` has not read."""
        last, _ = self._live
        return [message for seq, message in messages.items() if last.get(seq) is not message]

    def live_index(
        self, messages: Mapping[int, Message], counts: Callable[[Message], tuple[Mapping[str, int], int]]
    ) -> LiveIndex:
        """Returns the index of these messages, by seq; those of the last call are not read again.

        `counts` returns how often a message has each term, and its length.
        """
        last, index = self._live
        if changed := [seq for seq, message in last.items() if messages.get(seq) is not message]:
            index = index.without(frozenset(changed))
        if new := [seq for seq in messages if seq not in index.lengths]:
            index = index.with_messages((seq, *counts(messages[seq])) for seq in new)
        self._live = messages, index
        return index


def reading(record: Record) -> Reading | None:
    """Returns the message of a record, None where it has none."""
    message = stored_message(record)
    if message is None:
        return None
    message = with_media_named(message, record.number)
    calls = tuple(without_private_keys(_call_text(call)) for call in message.tool_calls)
    text = "\n".join(filter(None, (without_private_keys(message.text), *calls)))
    return Reading(record.number, message.id, message.role, message.name or "", text, record.at_s, calls)


def _call_text(call: ToolCallPart) -> str:
    """Returns `name(arguments)`. Of long arguments, texts that have several lines follow it, so that recall finds single lines."""
    arguments = call.parsed() if LONG_ARGUMENTS < len(call.arguments) <= MAX_JSON_CHARS else None
    texts = {name: value for name, value in (arguments or {}).items() if isinstance(value, str) and "\n" in value}
    if arguments is None or not texts:
        return f"{call.name}({call.arguments})"
    others = json.dumps({name: value for name, value in arguments.items() if name not in texts}, ensure_ascii=False)
    return "\n".join([f"{call.name}({others})", *(f"{name}: {text}" for name, text in texts.items())])


Chunk = tuple[int, int]  # seq of a message's record; place of its first sentence times PIECES, and which piece of it


def chunks(said: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yields the texts of a message that get a vector each, with the second number of their `Chunk`.

    They are sentences, since the one that answers stands among others: short ones together, and a long one in pieces.
    """
    first, text = 0, ""
    for place, sentence in enumerate([*said, ""]):
        if sentence and text and len(text) + len(sentence) < CHUNK_CHARS:
            text = f"{text} {sentence}"
            continue
        most_chars = max(1, len(text) * PIECE_BYTES // max(1, len(text.encode())))
        pieces = stretches(text, most_chars) if text else ()
        yield from ((first * PIECES + min(number, PIECES - 1), piece) for number, piece in enumerate(pieces))
        first, text = place, sentence


_HEAD = struct.Struct("<II")


class Vectors:
    """Holds unit vectors of chunks: see `Chunk`. Safe across threads.

    All messages that were compacted in records after `filled_from`, up to `upto`, have theirs. `embedder` names what made them,
    and is empty before the first question; `probe` is its vector of a text that is always the same.
    """

    def __init__(self) -> None:
        self.embedder = ""
        self.probe: Sequence[float] = ()
        self.filled_from = self.upto = 0
        self.filling = False
        self._lock = threading.Lock()
        self._size = 0
        self._chunks: dict[Chunk, int] = {}
        self._values = array("f")

    def __contains__(self, chunk: Chunk) -> bool:
        return chunk in self._chunks

    def __len__(self) -> int:
        return len(self._chunks)

    def add(self, chunk: Chunk, vector: Sequence[float]) -> None:
        self._add([chunk], unit(vector), len(vector))

    def _add(self, chunks: Sequence[Chunk], values: array[float], size: int) -> None:
        with self._lock:
            if self._chunks and size != self._size:
                raise ValueError(f"the embedder returned a vector of {size} numbers after one of {self._size}")
            self._size = size
            for place, chunk in enumerate(chunks):
                if chunk not in self._chunks:
                    self._chunks[chunk] = len(self._chunks)
                    self._values.extend(values[place * size : (place + 1) * size])

    def packed(self, seqs: Iterable[int]) -> dict[int, bytes]:
        """Returns the vectors of these messages as a store keeps them; those without any are left out."""
        seq_set = frozenset(seqs)
        chunks: dict[int, list[Chunk]] = {}
        with self._lock:
            for chunk in reversed(self._chunks):  # the newest ones: those that were added last
                if chunk[0] in seq_set:
                    chunks.setdefault(chunk[0], []).append(chunk)
                elif len(chunks) == len(seq_set):
                    break
            return {seq: self._packed(numbers) for seq, numbers in chunks.items()}

    def _packed(self, chunks: Sequence[Chunk]) -> bytes:
        values = array("f")
        for chunk in chunks:
            at = self._chunks[chunk] * self._size
            values.extend(self._values[at : at + self._size])
        return packed_vectors([first for _, first in chunks], values)

    def unpack(self, rows: Mapping[int, bytes]) -> None:
        """Adds vectors that `packed` returned, by seq. Raises StoreCorruptError for other data."""
        for seq, data in rows.items():
            places, values = unpacked_vectors(data)
            if places:
                self._add([(seq, first) for first in places], values, len(values) // len(places))

    def nearest(self, vector: Sequence[float], limit: int, visible: Container[int]) -> dict[Chunk, float]:
        """Returns the likeness of the nearest chunks outside the visible records, nearest first, where it is above 0."""
        query = array("f", vector)
        with self._lock:
            if self._chunks and len(query) != self._size:
                raise ValueError(f"the embedder returned a vector of {len(query)} numbers after one of {self._size}")
            products = _products(self._values, query, len(self._chunks))
            chunks = list(self._chunks)
        for count in (limit, 4 * limit, len(chunks)):  # fewer are left where many are visible
            pairs = _highest(products, chunks, count)
            ranked = [(score, chunk) for score, chunk in pairs if score > 0 and chunk[0] not in visible]
            if len(ranked) >= limit or count >= len(chunks):
                break
        return {
            chunk: score for score, chunk in heapq.nsmallest(limit, ranked, key=lambda p: (-p[0], -p[1][0], p[1][1]))
        }


def unit(vector: Sequence[float]) -> array[float]:
    """Returns the vector with the length 1; one of length 0 stays."""
    length = math.sqrt(sum(x * x for x in vector)) or 1.0
    return array("f", (x / length for x in vector))


def packed_vectors(places: Sequence[int], values: array[float]) -> bytes:
    """Returns vectors of equal size, one after the other in `values`, with a number for each."""
    head = _HEAD.pack(len(places), len(values)) + struct.pack(f"<{len(places)}I", *places)
    return head + _little_endian(values).tobytes()


def unpacked_vectors(data: bytes) -> tuple[tuple[int, ...], array[float]]:
    """Reverses `packed_vectors`; raises StoreCorruptError for other bytes."""
    try:
        count, size = _HEAD.unpack_from(data)
        places: tuple[int, ...] = struct.unpack_from(f"<{count}I", data, _HEAD.size)
        values = array("f", data[_HEAD.size + 4 * count :])
    except (struct.error, ValueError):
        count, size, places, values = 0, 1, (), array("f")
    if len(values) != size or (count and size % count):
        raise StoreCorruptError("stored vectors cannot be read: restore the store from a copy")
    return places, _little_endian(values)


def _little_endian(values: array[float]) -> array[float]:
    if sys.byteorder == "little":
        return values
    swapped = values[:]
    swapped.byteswap()
    return swapped


def _products(values: array[float], query: array[float], count: int) -> Any:
    """Returns the product of each vector with the query: 100,000 of 384 numbers take some 10 ms with numpy, two seconds without."""
    size = len(query)
    numpy = _numpy()
    if numpy is not None and count:
        matrix = numpy.frombuffer(values, dtype=numpy.float32).reshape(count, size)
        return matrix @ numpy.frombuffer(query, dtype=numpy.float32)
    return [sum(map(mul, query, values[at : at + size])) for at in range(0, count * size, size)]


def _highest(products: Any, chunks: Sequence[Chunk], count: int) -> Iterable[tuple[float, Chunk]]:
    """Returns at least the `count` highest products with their chunks, and all that are equal to the last of them."""
    numpy = _numpy()
    if numpy is None or not chunks:
        return zip(products, chunks, strict=True)
    if count < len(chunks):
        places = numpy.flatnonzero(products >= numpy.partition(products, -count)[-count])
        products, chunks = products[places], [chunks[int(place)] for place in places]
    scores: list[float] = products.tolist()
    return zip(scores, chunks, strict=True)


@cache
def _numpy() -> Any:
    return import_module("numpy") if find_spec("numpy") else None
