"""Decodes AWS event-stream frames (`application/vnd.amazon.eventstream`) from bytes, wherever the network splits them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from zlib import crc32

from ctxfold.errors import BackendError

MAX_FRAME_BYTES = 16 * 1024 * 1024
MAX_HEADER_BYTES = 128 * 1024  # as the protocol says
_PRELUDE = struct.Struct(">III")  # length of the frame, length of its headers, CRC-32 of both
_CRC = struct.Struct(">I")
_LEAST = _PRELUDE.size + _CRC.size
_REMEMBERED_HEADERS = 64
_STRING = 7
_SIZES: Mapping[int, int] = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}  # of values without a length of their own
_SIZED = (6, _STRING)


class Frame(NamedTuple):
    """A message of an event stream: its headers with text as value, and its payload."""

    headers: Mapping[str, str]
    payload: bytes


class EventStreamDecoder:
    """Turns bytes into frames whose checksums are right; raises BackendError("protocol") for anything else.

    A wrong checksum of a frame whose length is right is "connection", which is tried again. Headers of other types than text
    are skipped.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max = max_frame_bytes
        self._buffer = bytearray()
        self._known: dict[bytes, Mapping[str, str]] = {}

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields the frames that these bytes complete. A wrong frame raises after those before it."""
        self._buffer += data
        buffer, start = self._buffer, 0
        try:
            while len(buffer) - start >= _PRELUDE.size:
                size, header_size, prelude_crc = _PRELUDE.unpack_from(buffer, start)
                self._check_prelude(buffer, start, size, header_size, prelude_crc)
                if len(buffer) - start < size:
                    return
                frame = bytes(buffer[start : start + size])
                start += size
                yield self._frame(frame, _PRELUDE.size + header_size)
        finally:
            del buffer[:start]

    def _check_prelude(self, buffer: bytearray, start: int, size: int, header_size: int, prelude_crc: int) -> None:
        if crc32(buffer[start : start + 8]) != prelude_crc:
            raise _broken("a frame whose length has a wrong checksum")
        if not _LEAST + header_size <= size <= self._max or header_size > MAX_HEADER_BYTES:
            raise _broken(f"a frame of {size} bytes with {header_size} bytes of headers (at most {self._max} bytes)")

    def _frame(self, frame: bytes, headers_end: int) -> Frame:
        end = len(frame) - _CRC.size
        if crc32(memoryview(frame)[:end]) != _CRC.unpack_from(frame, end)[0]:
            # its length was right, so that this is Bedrock's stream: worth another try
            raise _broken(f"a frame of {len(frame)} bytes with a wrong checksum", "connection")
        raw = frame[_PRELUDE.size : headers_end]
        headers = self._known.get(raw)
        if headers is None:
            headers = _headers(raw)
            if len(self._known) < _REMEMBERED_HEADERS:  # a stream has a handful, and they are most of the work
                self._known[raw] = headers
        return Frame(headers, frame[headers_end:end])


def _headers(raw: bytes) -> Mapping[str, str]:
    """Returns the headers with text; raises BackendError("protocol") for headers that do not end where they should."""
    headers: dict[str, str] = {}
    at = 0
    try:
        while at < len(raw):
            name_end = at + 1 + raw[at]
            name, kind = raw[at + 1 : name_end].decode("utf-8"), raw[name_end]
            at = name_end + 1
            if kind in _SIZED:
                size = int.from_bytes(raw[at : at + 2])
                at += 2
            else:
                size = _SIZES[kind]
            if at + size > len(raw):
                raise IndexError(at)
            if kind == _STRING:
                headers[name] = raw[at : at + size].decode("utf-8")
            at += size
    except (IndexError, KeyError, UnicodeDecodeError):
        raise _broken(f"a frame with {len(raw)} bytes of headers that cannot be read") from None
    return headers


def _broken(what: str, kind: str = "protocol") -> BackendError:
    return BackendError(
        f"the event stream has {what}: it was changed on its way, or base_url is not that of Bedrock", kind=kind
    )
