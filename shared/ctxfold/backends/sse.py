"""Decodes server-sent events from bytes, wherever the network splits them."""

from __future__ import annotations

import re
from typing import NamedTuple

from ctxfold.errors import BackendError

MAX_EVENT_BYTES = 16 * 1024 * 1024
_NEWLINE = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """A server-sent event; `name` is "" unless an `event:` line set it."""

    name: str
    data: str


class SseDecoder:
    """Turns bytes into events. Comments, ids and retry lines are ignored; text is UTF-8 whatever the headers say."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._line = bytearray()
        self._data: bytes | bytearray | None = None
        self._name = b""
        self._after_cr = False
        self._first = True

    def feed(self, data: bytes) -> list[SseEvent]:
        """Returns the events that these bytes complete; raises BackendError("protocol") for one beyond the size limit."""
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
            self._after_cr = False
        if not data:
            return []
        self._after_cr = data.endswith(b"\r")
        events: list[SseEvent] = []
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")  # several times faster than the regular expression
        lines = _NEWLINE.split(data) if b"\r" in data else data.split(b"\n")
        tail = lines.pop()
        if lines and self._line:
            lines[0] = bytes(self._line + lines[0])
            self._line.clear()
        for line in lines:
            self._take(line, events)
        self._line += tail
        if len(self._line) + len(self._data or b"") > self._max:
            raise BackendError(
                f"one event is over {self._max} bytes: this is not a chat stream, check base_url",
                kind="protocol",
            )
        return events

    def close(self) -> list[SseEvent]:
        """Returns the event that the end of the stream cut off before its blank line, if it has data."""
        events: list[SseEvent] = []
        self._take(bytes(self._line), events)
        self._take(b"", events)
        self._line.clear()
        return events

    def _take(self, line: bytes, events: list[SseEvent]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data is not None:
                events.append(SseEvent(_text(self._name) if self._name else "", _text(self._data)))
            self._data, self._name = None, b""
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            value = value.removeprefix(b" ")
            if self._data is None:
                self._data = value
            else:  # one buffer: a list of many short lines would take far more than the limit
                self._data = bytearray(self._data) if isinstance(self._data, bytes) else self._data
                self._data += b"\n"
                self._data += value
        elif field == b"event":
            self._name = value.removeprefix(b" ")


def _text(data: bytes | bytearray) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BackendError(
            f"an event is not UTF-8 (byte {error.start} of {len(data)}): the server breaks the SSE standard",
            kind="protocol",
        ) from error
