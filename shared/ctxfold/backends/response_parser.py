"""Defines the base of the parsers of all wires: bytes to server-sent events or one JSON reply, its end, and its errors."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ctxfold.backends.errors import failure, plain_failure
from ctxfold.backends.profile import Profile, UsagePaths, common_rules
from ctxfold.errors import BackendError
from ctxfold.messages import Usage
from ctxfold.protocols import Chunk
from ctxfold.validation import as_dict, as_dicts, check_depth, read_json

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


# what json.loads does, less its search for white space around the value
_decode: Callable[[str], tuple[object, int]] = json.JSONDecoder().raw_decode
MOST_TOKENS = 2**53  # more are no count
MAX_REPLY_BYTES = 64 * 1024 * 1024


class AnswerParser(ABC):
    """Decodes one reply. `error` holds its failure, to be raised after the chunks before it are read.

    `done` means that further data is ignored, `complete` that there was a finish reason and no error, `answered` that there was
    text, reasoning, a refusal or a call. A body that begins like JSON is one whole reply, whatever its content type says.
    """

    def __init__(self, profile: Profile, *, hide: Callable[[str], str] = str) -> None:
        self.error: BackendError | None = None
        self.done = False
        self.answered = False
        self._profile = profile
        self._hide = hide
        self._sse = SseDecoder()
        self._json: bytearray | None = None
        self._sniffed = False
        self._finish: str | None = None
        self._unknown_finish: str | None = None
        self._refused = False

    may_say_nothing = False  # the service's model may end its turn without a word, as Claude does after a tool's result

    @abstractmethod
    def _payload(self, payload: object, event_name: str) -> list[Chunk]:
        """Returns the chunks of one event; an error inside it becomes `error`."""

    @abstractmethod
    def _reply(self, payload: object) -> list[Chunk]:
        """Returns the chunks of a whole reply; an invalid one sets `error`."""

    def _end(self, *, said_done: bool = False, whole: bool = False) -> list[Chunk]:
        """Handles the regular end: returns late chunks and checks that the reply is not empty."""
        self.done = True
        if self.error is None:
            self._check_end()
        return []

    @property
    def complete(self) -> bool:
        return self._finish is not None and self.error is None

    def feed(self, data: bytes) -> list[Chunk]:
        """Returns the chunks that these bytes complete."""
        if not self._sniffed:
            data = data.removeprefix(b"\xef\xbb\xbf").lstrip()
            if not data:
                return []
            self._sniffed = True
            if data[:1] in b"{[<":
                self._json = bytearray()
        if self._json is None:
            return self._events(lambda: self._read(data))
        self._json += data
        if len(self._json) > MAX_REPLY_BYTES:
            self._fail("protocol", f"a reply of over {MAX_REPLY_BYTES} bytes")
        return []

    def close(self) -> list[Chunk]:
        """Returns the remaining chunks at the end of the body; a missing end becomes `error`."""
        chunks: list[Chunk] = []
        if self._json is not None and self.error is None:
            chunks = self._whole(bytes(self._json))
        elif not self.done and self.error is None:
            chunks = self._events(self._rest, tolerant=True)
        if self.error is None and not self.done:
            if self._finish is None:
                self._fail("stream_truncated", "the answer ended without a finish reason")
            else:
                chunks += self._end()
        return chunks

    def _read(self, data: bytes) -> Iterable[SseEvent]:
        """Returns the events that these bytes complete, of server-sent events unless the wire has another framing."""
        return self._sse.feed(data)

    def _rest(self) -> Iterable[SseEvent]:
        """Returns the event that the end of the body cut short, if that can be read."""
        return self._sse.close()

    def _events(self, read: Callable[[], Iterable[SseEvent]], *, tolerant: bool = False) -> list[Chunk]:
        chunks: list[Chunk] = []
        try:
            for event in read():
                if self.done or self.error is not None:
                    break
                chunks += self._event(event, tolerant=tolerant)
        except BackendError as error:
            self._fail(error.kind, str(error))
        except RecursionError:
            self._fail("protocol", "an event with JSON nested too deeply")
        return chunks

    def _event(self, event: SseEvent, *, tolerant: bool) -> list[Chunk]:
        data = event.data.strip()
        if data == "[DONE]":
            return self._end(said_done=True)
        if not data:
            return []
        check_depth(data)
        try:
            payload, end = _decode(data)
        except ValueError:
            payload, end = None, -1
        if end != len(data):
            if not tolerant:  # at the very end it is a cut event, and the missing finish reason is the error
                self._fail("protocol", f"an event that is not JSON: {data[:80]!r}")
            return []
        return self._payload(payload, event.name)

    def _whole(self, body: bytes) -> list[Chunk]:
        try:
            payload: object = read_json(body.decode("utf-8", "surrogatepass"))
        except RecursionError:
            self._fail("protocol", f"a reply of {len(body)} bytes with JSON nested too deeply")
            return []
        except ValueError:
            if body[:1] != b"<" and body.rstrip()[-1:] not in b"}]":
                self._fail("stream_truncated", f"the reply broke off after {len(body)} bytes")
            else:
                self._fail("protocol", f"a reply of {len(body)} bytes that is not JSON")
            return []
        chunks = self._reply(payload)
        return chunks if self.error is not None else chunks + self._end(said_done=True, whole=True)

    def _finished(self, raw: object, *, refused: bool = False) -> str | None:
        """Returns the normalised finish reason, None when there is none; a failed generation sets `error`."""
        self._refused = self._refused or refused
        if not isinstance(raw, str) or not raw:
            return None
        rules = common_rules()
        normalised = self._profile.finish.get(raw) or rules.finish.get(raw.lower())
        finish = normalised or raw
        self._unknown_finish = None if normalised else raw
        if finish == "stop" and self._refused:
            finish = "content_filter"
        if finish == "error":
            kind = rules.finish_error_kind.get(raw, "server")
            self._fail(kind, f"the answer ended with finish reason {raw!r}", code=raw)
        self._finish = finish
        return finish

    def _check_end(self) -> None:
        """Sets `error` for a reply without an end or without content."""
        if self._finish is None:
            self._fail("stream_truncated", "the answer ended without a finish reason")
        elif self.answered or (self._finish == "stop" and self.may_say_nothing):
            return
        elif self._finish in ("stop", "tool_calls"):
            self._fail("empty_response", "the answer has no text, no reasoning and no tool call")
        elif self._unknown_finish is not None:
            reason = self._unknown_finish
            what = f"the answer has no text, no reasoning and no tool call, and ended with finish reason {reason!r}"
            self._fail("empty_response", what, code=reason)

    def _usage_in(self, usage: object) -> Usage | None:
        """Returns the numbers of a usage object; None when it is empty or none."""
        numbers = as_dict(usage)
        return usage_from(numbers, self._profile.usage) if numbers else None

    def _no_reply(self, error: Mapping[str, Any] | None, what: str) -> list[Chunk]:
        """Sets `error` for a body that is not a reply: to the error in it, or to what it is."""
        if error is not None:
            self._failed(error)
        else:
            self._fail("protocol", what)
        return []

    def _failed(self, error: Mapping[str, Any]) -> None:
        self.error = failure(self._profile, error, hide=self._hide)

    def _fail(self, kind: str, what: str, *, code: str | None = None) -> None:
        self.error = plain_failure(self._profile, kind, what, code=code, hide=self._hide)


def usage_from(usage: Mapping[str, Any], paths: UsagePaths) -> Usage:
    """Returns the numbers of a usage object; input includes cache hits."""
    cache_read, cache_write = tokens_at(usage, paths.cache_read), tokens_at(usage, paths.cache_write)
    cached = 0 if paths.input_includes_cache else cache_read + cache_write
    return Usage(
        tokens_at(usage, paths.input) + cached,
        tokens_at(usage, paths.output),
        cache_read,
        cache_write,
        tokens_at(usage, paths.reasoning),
    )


def tokens_at(usage: Mapping[str, Any], paths: Iterable[str]) -> int:
    for path in paths:
        value: object = usage
        for step in path.split("."):
            value = as_dict(value).get(step)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MOST_TOKENS:
            return int(value)
    return 0


def first_choice(choices: object) -> Mapping[str, Any]:
    """Returns the choice with index 0, which some services leave out; an empty object when there is none."""
    for choice in as_dicts(choices):
        if not choice.get("index"):
            return choice
    return {}
