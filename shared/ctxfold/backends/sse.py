"""Server-sent events decoded from bytes, wherever the network cuts them."""

from __future__ import annotations

import re
from typing import NamedTuple

from ctxfold.errors import BackendError

__all__ = ["MAX_EVENT_BYTES", "SseDecoder", "SseEvent"]

MAX_EVENT_BYTES = 16 * 1024 * 1024
_NEWLINE = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One event; `name` is "" unless an `event:` line set it."""

    name: str
    data: str


class SseDecoder:
    """Bytes in, events out. Comments, ids and retry lines give nothing; text is UTF-8 whatever the headers say."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._line = bytearray()
        self._data: list[bytes] = []
        self._name = b""
        self._size = 0
        self._after_cr = False
        self._first = True

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events completed by these bytes; BackendError("protocol") when one outgrows the limit."""
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
            self._after_cr = False
        if not data:
            return []
        self._after_cr = data.endswith(b"\r")
        events: list[SseEvent] = []
        head, *rest = _NEWLINE.split(data)
        self._line += head
        for line in rest:
            self._take(bytes(self._line), events)
            self._line = bytearray(line)
        if self._size + len(self._line) > self._max:
            raise BackendError(
                f"one event is over {self._max} bytes: this is no chat stream, check base_url",
                kind="protocol",
            )
        return events

    def close(self) -> list[SseEvent]:
        """The event that the end of the stream cut off before its blank line, if it has data."""
        events: list[SseEvent] = []
        self._take(bytes(self._line), events)
        self._take(b"", events)
        self._line = bytearray()
        return events

    def _take(self, line: bytes, events: list[SseEvent]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                events.append(SseEvent(_text(self._name), _text(b"\n".join(self._data))))
            self._data, self._name, self._size = [], b"", 0
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value) + 1
        elif field == b"event":
            self._name = value


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BackendError(
            f"an event is not UTF-8 (byte {error.start} of {len(data)}): the server breaks the SSE standard",
            kind="protocol",
        ) from error
