"""Compressed bodies undone in pieces and up to a limit: a few bytes may stand for gigabytes. Pure: bytes in, bytes out."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from ctxfold.backends.answer import MAX_REPLY_BYTES

__all__ = ["BodyDecoder", "ContentCodingError"]

PIECE_BYTES = 64 * 1024
_GZIP_MAGIC = b"\x1f"
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


class ContentCodingError(Exception):
    """A body's compression is broken, unknown, or hides more than may be taken in; the text goes on from the server's name."""


class BodyDecoder:
    """Undoes the codings of a `content-encoding` header, at most `max_bytes` in each of them."""

    def __init__(self, content_encoding: str, max_bytes: int = MAX_REPLY_BYTES) -> None:
        names = [name.strip().lower() for name in content_encoding.split(",")]
        names = [name for name in names if name not in ("", "identity")]
        for name in names:
            if name not in ("gzip", "x-gzip", "deflate"):
                raise ContentCodingError(
                    f"compressed its answer as {name!r}, although ctxfold asks for none and reads gzip and deflate only: "
                    "turn compression off at the server or proxy"
                )
        self._layers = [_Layer(name, max_bytes) for name in reversed(names)]

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What these bytes stand for, in pieces of at most 64 KiB."""
        return self._undone(data, 0)

    def _undone(self, data: bytes, depth: int) -> Iterator[bytes]:
        if depth == len(self._layers):
            yield data
            return
        for piece in self._layers[depth].feed(data):
            yield from self._undone(piece, depth + 1)


class _Layer:
    """One coding of a body."""

    def __init__(self, name: str, max_bytes: int) -> None:
        self._name = name
        self._max_bytes = max_bytes
        self._bytes = 0
        self._begun = False
        self._inflater = zlib.decompressobj(_ZLIB if name == "deflate" else _GZIP)

    def feed(self, data: bytes) -> Iterator[bytes]:
        piece = b""
        while data or len(piece) == PIECE_BYTES:  # a full piece: more may be ready without further input
            if self._inflater.eof:
                if self._name == "deflate" or data[:1] != _GZIP_MAGIC:
                    return  # padding behind the end
                self._inflater = zlib.decompressobj(_GZIP)  # gzip files may be joined
            piece = self._inflated(data)
            self._bytes += len(piece)
            if self._bytes > self._max_bytes:
                raise ContentCodingError(
                    f"sent a {self._name} body of over {self._max_bytes} bytes once decompressed: "
                    "turn compression off at the server or proxy, or check base_url"
                )
            if piece:
                yield piece
            # at the end of a file unconsumed_tail holds the rest too, and giving it back would double it
            data = self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail

    def _inflated(self, data: bytes) -> bytes:
        try:
            piece = self._inflater.decompress(data, PIECE_BYTES)
        except zlib.error as error:
            if self._begun or self._name != "deflate":
                raise ContentCodingError(f"sent a broken {self._name} body ({error})") from None
            self._begun = True  # some servers send deflate without its wrapper
            self._inflater = zlib.decompressobj(_RAW)
            return self._inflated(data)
        self._begun = True
        return piece
