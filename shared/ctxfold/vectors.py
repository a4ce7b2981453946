"""Texts as vectors: who makes them, and those of one session's archive, in memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import Protocol

__all__ = ["Embedder", "Vectors"]

MOST_CHUNKS = 2_048  # newest ones that a question is compared with: some 25 ms at 384 dimensions

Chunk = tuple[int, int]


class Embedder(Protocol):
    """Makes vectors of texts; near ones mean alike. What it raises costs a question its search by meaning, and nothing else."""

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]: ...

    async def aembed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]: ...


@dataclass(slots=True)
class Vectors:
    """Unit vectors of chunks: (seq of the message's record, place of its first sentence); `upto` is how far the log is in."""

    upto: int = 0
    _chunks: dict[Chunk, array[float]] = field(default_factory=dict[Chunk, "array[float]"])

    def add(self, chunk: Chunk, vector: Sequence[float]) -> None:
        length = math.sqrt(sum(x * x for x in vector)) or 1.0
        self._chunks.pop(chunk, None)
        self._chunks[chunk] = array("f", (x / length for x in vector))
        if len(self._chunks) > MOST_CHUNKS:
            del self._chunks[next(iter(self._chunks))]

    def nearest(self, vector: Sequence[float], limit: int, visible: Collection[int]) -> list[Chunk]:
        """Chunks outside of what is visible, the nearest first; none that points away."""
        wanted = array("f", vector)
        held = list(self._chunks.items())  # at once: another thread may add meanwhile
        found = [(sum(map(mul, wanted, stored)), chunk) for chunk, stored in held if chunk[0] not in visible]
        found.sort(key=lambda pair: (-pair[0], -pair[1][0], pair[1][1]))
        return [chunk for likeness, chunk in found[:limit] if likeness > 0]
