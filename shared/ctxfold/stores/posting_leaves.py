"""Packs the hits of a session's search terms into leaves: blobs of some hundred bytes, each for a range of (term, seq).

The leaves of a session are in the order of their first keys, like those of a B-tree: a leaf holds every hit from its first key
up to the first key of the next leaf. New hits are put at the end of a leaf; a leaf that has grown too long is sorted and divided.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from math import ceil

from ctxfold.errors import StoreCorruptError
from ctxfold.index.cache import Hit
from ctxfold.stores.base import indexed_term

LEAF_BYTES = 800  # SQLite stores a row of more than 1,000 bytes of such a table apart, in a page of its own
RUN = 64  # hits of a term that are encoded together
MAX_TERM_BYTES = 255
FIRST_KEY = b""  # of the first leaf of a session

_FULL, _HALF = 0.95, 0.62  # how full a divided leaf is: where hits come in order, and where they come anywhere
_KEPT = 0.9  # a leaf that is not longer once it is sorted is not divided
_CODES = "BHIQ"
MAX_COUNT = 2**32 - 1  # of a term in a document: a higher one is kept as this, as it ranks no differently
_CODE = [0] * 9 + [1] * 8 + [2] * 16 + [3] * 32  # how wide a column is, by the bits of its greatest number


def stored_term(term: str) -> bytes:
    """Returns the term as leaves hold it; UnicodeEncodeError for a lone surrogate."""
    name = indexed_term(term).encode()
    if len(name) <= MAX_TERM_BYTES:
        return name
    return name[:180] + b"#" + hashlib.sha256(name).hexdigest().encode()


def leaf_key(term: bytes, seq: int) -> bytes:
    """Returns the place of a hit among all hits of a session; keys compare as (term, seq) do."""
    return b"%b\0%b" % (term, seq.to_bytes(8, "big"))


def hits_of(data: bytes, term: bytes, among: Sequence[int] | None = None) -> list[Hit]:
    """Returns the hits of a term in a leaf, as they stand; with `among`, seqs in order, only those in these documents."""
    if data.find(bytes((len(term),)) + term) < 0:  # most leaves that are read have it; this is quick in the others
        return []
    return [hit for _, hits in _runs(data, term, among) for hit in hits]


def all_hits(data: bytes) -> dict[bytes, list[Hit]]:
    """Returns all hits of a leaf by term, each in order; a document that is there twice counts once."""
    hits_by_term: dict[bytes, list[Hit]] = {}
    again: set[bytes] = set()
    for term, hits in _runs(data):
        if term in hits_by_term:
            hits_by_term[term] += hits
            again.add(term)
        else:
            hits_by_term[term] = hits
    for term in again:
        hits_by_term[term] = _once(hits_by_term[term])
    return hits_by_term


def with_hits(data: bytes, new: Mapping[bytes, Sequence[Hit]]) -> bytes:
    """Returns the leaf with these hits at its end."""
    parts = [data]
    for term, hits in new.items():
        if len(hits) <= RUN:
            parts.append(_encoded(term, hits))
        else:
            parts += [_encoded(term, hits[at : at + RUN]) for at in range(0, len(hits), RUN)]
    return b"".join(parts)


def divided(first_key: bytes, data: bytes, new: Mapping[bytes, Sequence[Hit]]) -> list[tuple[bytes, bytes]]:
    """Returns (first key, data) of the leaves that hold what a leaf and these new hits hold, in order; the first keeps its key."""
    hits = all_hits(data)
    last = max(((term, each[-1][0]) for term, each in hits.items()), default=(b"", -1))
    in_order = min((term, each[0][0]) for term, each in new.items()) > last
    for term, each in new.items():
        hits[term] = _once((*hits[term], *each)) if term in hits else [*each]
    runs = [
        (leaf_key(term, each[at][0]), _encoded(term, each[at : at + RUN]))
        for term in sorted(hits)
        for each in (hits[term],)
        for at in range(0, len(each), RUN)
    ]
    total = sum(len(run) for _, run in runs)
    if total <= _KEPT * LEAF_BYTES:
        return [(first_key, b"".join(run for _, run in runs))]
    size = LEAF_BYTES * _FULL if in_order else total / max(2, ceil(total / (LEAF_BYTES * _HALF)))
    leaves: list[tuple[bytes, list[bytes]]] = [(first_key, [])]
    leaf_size = 0
    for key, run in runs:
        if leaf_size and leaf_size + len(run) > size:
            leaves.append((key, []))
            leaf_size = 0
        leaves[-1][1].append(run)
        leaf_size += len(run)
    return [(key, b"".join(parts)) for key, parts in leaves]


def placed(first_keys: Sequence[bytes], hits: Mapping[bytes, list[Hit]]) -> dict[bytes, dict[bytes, list[Hit]]]:
    """Returns the hits by the first key of the leaf, and by term, where they belong; keys and hits are in order."""
    by_leaf: dict[bytes, dict[bytes, list[Hit]]] = {}
    for term, each in hits.items():
        at = bisect_right(first_keys, leaf_key(term, each[0][0]))
        if at == len(first_keys) or leaf_key(term, each[-1][0]) < first_keys[at]:  # nearly always
            by_leaf.setdefault(first_keys[at - 1] if at else FIRST_KEY, {})[term] = each
            continue
        for hit in each:
            at = bisect_right(first_keys, leaf_key(term, hit[0]))
            by_leaf.setdefault(first_keys[at - 1] if at else FIRST_KEY, {}).setdefault(term, []).append(hit)
    return by_leaf


def without_documents(first_key: bytes, data: bytes, seqs: frozenset[int]) -> tuple[bytes, bytes] | None:
    """Returns (first key, data) of a leaf without these documents, the data empty where nothing is left; None when it has none.

    A first key is the key of a hit: it changes with that hit, so that nothing of an erased term remains.
    """
    if not any(hit[0] in seqs for _, hits in _runs(data) for hit in hits):
        return None
    remaining = {
        t: kept for t, hits in sorted(all_hits(data).items()) if (kept := [h for h in hits if h[0] not in seqs])
    }
    if not remaining:
        return first_key, b""
    term, hits = next(iter(remaining.items()))
    return (first_key and leaf_key(term, hits[0][0])), with_hits(b"", remaining)


def _once(hits: Iterable[Hit]) -> list[Hit]:
    by_seq = {hit[0]: hit for hit in hits}
    return [by_seq[seq] for seq in sorted(by_seq)]


# A run begins with how wide its columns are, its number of hits, the length of its term, and the term. The columns are the first
# seq, the distance of the others to it, the counts (none where all are 1, as most are), and the lengths.


@cache
def _columns(widths: int, size: int) -> struct.Struct:
    first, distance, count, length = (widths & 3, widths >> 2 & 3, widths >> 4 & 3, widths >> 6)
    counts = f"{size}{_CODES[count - 1]}" if count else ""
    return struct.Struct(f"<{_CODES[first]}{size - 1}{_CODES[distance]}{counts}{size}{_CODES[length]}")


def _encoded(term: bytes, hits: Sequence[Hit]) -> bytes:
    """Returns a run: 1 to `RUN` hits in order of seq."""
    first, most, longest = hits[0]
    size, distance = len(hits), 0
    if size > 1:
        distance = hits[-1][0] - first
        most = max([hit[1] for hit in hits])
        longest = max([hit[2] for hit in hits])
    if most > MAX_COUNT:
        return _encoded(term, [(seq, min(count, MAX_COUNT), length) for seq, count, length in hits])
    widths = _CODE[first.bit_length()] | _CODE[distance.bit_length()] << 2 | _CODE[longest.bit_length()] << 6
    if most > 1:
        widths |= (_CODE[most.bit_length()] + 1) << 4
    head = bytes((widths, size, len(term)))
    if size == 1:
        columns = (first, most, longest) if most > 1 else (first, longest)
        return head + term + _columns(widths, 1).pack(*columns)
    distances, counts = [hit[0] - first for hit in hits[1:]], [hit[1] for hit in hits] if most > 1 else []
    return head + term + _columns(widths, size).pack(first, *distances, *counts, *[hit[2] for hit in hits])


def _runs(
    data: bytes, only: bytes | None = None, among: Sequence[int] | None = None
) -> Iterator[tuple[bytes, list[Hit]]]:
    """Yields the term and the hits of each run; of the term `only`, and in the documents `among`, where these are given."""
    at, end = 0, len(data)
    try:
        while at < end:
            widths, size, length = data[at], data[at + 1], data[at + 2]
            at += 3 + length
            term = data[at - length : at]
            columns = _columns(widths, size)
            if only is None or only == term:
                values = columns.unpack_from(data, at)
                decoded = _decoded if among is None else partial(_decoded_among, among)
                yield term, decoded(values, size, bool(term), bool(widths & 0x30))
            at += columns.size
        if at > end:
            raise IndexError
    except (struct.error, IndexError):
        raise StoreCorruptError("a leaf of the search index cannot be read: restore the store from a copy") from None


def _decoded(values: tuple[int, ...], size: int, counted: bool, many: bool) -> list[Hit]:
    first = values[0]
    if size == 1:
        return [(first, values[1] if many else int(counted), values[-1])]
    seqs = [first, *[first + distance for distance in values[1:size]]]
    counts = values[size : 2 * size] if many else (int(counted),) * size
    return list(zip(seqs, counts, values[-size:], strict=True))


def _decoded_among(among: Sequence[int], values: tuple[int, ...], size: int, counted: bool, many: bool) -> list[Hit]:
    """Returns the hits of a run in these documents: few of its 64, which are looked up in its columns."""
    first, at = values[0], 1
    last = first + values[size - 1] if size > 1 else first
    hits: list[Hit] = []
    for seq in among[bisect_left(among, first) : bisect_right(among, last)]:
        if seq == first:
            place = 0
        else:
            place = at = bisect_left(values, seq - first, at, size)
            if at == size or values[at] != seq - first:
                continue
        hits.append((seq, values[size + place] if many else int(counted), values[place - size]))
    return hits
