"""Parses replies of Bedrock's Converse, whole or as frames of an AWS event stream, into chunks. Pure: bytes in, chunks out."""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from zlib import crc32

from ctxfold.backends.errors import error_body
from ctxfold.backends.profile import Profile
from ctxfold.backends.response_parser import AnswerParser, SseEvent
from ctxfold.errors import BackendError
from ctxfold.protocols import Chunk, ToolCallDelta, Wire
from ctxfold.validation import as_dict, as_dicts, as_text, json_object

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
                if crc32(buffer[start : start + 8]) != prelude_crc:
                    raise _broken("a frame whose length has a wrong checksum")
                if not _LEAST + header_size <= size <= self._max or header_size > MAX_HEADER_BYTES:
                    told = f"{size} bytes with {header_size} bytes of headers (at most {self._max} bytes)"
                    raise _broken(f"a frame of {told}")
                if len(buffer) - start < size:
                    return
                frame = bytes(buffer[start : start + size])
                start += size
                yield self._frame(frame, _PRELUDE.size + header_size)
        finally:
            del buffer[:start]

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


SERVER_TOOL = "server_tool_use"
_KNOWN = frozenset({"text", "citationsContent", "reasoningContent", "toolUse"})
WIRE: Wire = "bedrock_converse"  # the name under which texts keep their citations


@dataclass(slots=True)
class _OpenBlock:
    """An unfinished content block. `start` is what its first event held; text and reasoning have no first event."""

    start: Mapping[str, Any] = field(default_factory=dict[str, Any])
    kind: str = ""
    begun: bool = False
    signature: str = ""
    redacted: list[str] = field(default_factory=list[str])
    input: list[str] = field(default_factory=list[str])
    results: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    citations: list[object] = field(default_factory=list[object])
    image: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def sealed(self) -> dict[str, Any] | None:
        """Returns an image, or a block of a tool that the service ran itself, so that it can be sent back; None for any other."""
        body = {name: value for name, value in as_dict(self.start.get(self.kind)).items() if value is not None}
        if self.kind == "toolResult":
            return {"toolResult": {**body, "content": _joined(self.results)}}
        if self.kind == "toolUse" and self.is_server_tool:
            return {"toolUse": {**body, "input": json_object("".join(self.input)) or {}}}
        if self.kind == "image" or self.image:
            sources = [as_dict(piece.get("source")) for piece in self.image]
            source = {name: value for one in sources for name, value in one.items()}
            if pieces := [as_text(one["bytes"]) for one in sources if "bytes" in one]:
                source["bytes"] = _joined_base64(pieces)
            return {
                "image": {
                    **body,
                    **{name: value for one in self.image for name, value in one.items()},
                    "source": source,
                }
            }
        return None

    def first(self) -> bool:
        """Returns True once, for the chunk that begins a part."""
        begun, self.begun = self.begun, True
        return not begun

    @property
    def is_server_tool(self) -> bool:
        return as_dict(self.start.get("toolUse")).get("type") == SERVER_TOOL


class ConverseParser(AnswerParser):
    """Decodes one reply of Converse, whole or as frames of an event stream.

    Redacted reasoning and the blocks of tools that the service ran itself become one sealed chunk each.
    """

    may_say_nothing = True

    def __init__(self, profile: Profile, *, hide: Callable[[str], str] = str) -> None:
        super().__init__(profile, hide=hide)
        self._frames = EventStreamDecoder()
        self._open: dict[int, _OpenBlock] = {}
        self._text_begun = False
        self._call_ids: set[str] = set()

    def _read(self, data: bytes) -> Iterator[SseEvent]:
        for frame in self._frames.feed(data):
            kind = frame.headers.get(":message-type", "event")
            if kind == "event":
                yield SseEvent(frame.headers.get(":event-type", ""), _text(frame))
            else:
                self._failed(_exception(frame))
                return

    def _rest(self) -> tuple[SseEvent, ...]:
        return ()  # a frame that was cut short holds nothing that its checksum vouches for

    def _payload(self, payload: object, event_name: str) -> list[Chunk]:
        body = as_dict(payload)
        index = body.get("contentBlockIndex")
        number = index if isinstance(index, int) else 0
        match event_name:
            case "contentBlockStart":
                return self._started(number, as_dict(body.get("start")), body)
            case "contentBlockDelta":
                return self._delta(number, as_dict(body.get("delta")), body)
            case "contentBlockStop":
                return self._stopped(number, body)
            case "messageStop":
                rest = [chunk for open_number in list(self._open) for chunk in self._stopped(open_number, body)]
                finish = self._finished(body.get("stopReason"))
                return [*rest, Chunk(raw=body, finish_reason=finish, empty_content=self._text_begun)]
            case "metadata":
                usage = self._usage_in(body.get("usage"))
                chunks = [Chunk(raw=body, usage=usage)] if usage is not None else []
                # it is the last event, and comes after the finish reason
                return [*chunks, *(self._end() if self._finish is not None else ())]
            case _:
                return []

    def _started(self, number: int, start: Mapping[str, Any], body: Mapping[str, Any]) -> list[Chunk]:
        block = self._open[number] = _OpenBlock(start, next(iter(start), ""))
        if block.kind != "toolUse" or block.is_server_tool:
            return []
        self.answered = True
        call = as_dict(start.get("toolUse"))
        identity = as_text(call.get("toolUseId"))
        if identity in self._call_ids:
            identity = ""  # two calls with one id could not be told apart
        self._call_ids.add(identity)
        delta = ToolCallDelta(number, identity or None, as_text(call.get("name")) or None)
        return [self._chunk(body, tool_calls=(delta,), own_part=True)]

    def _delta(self, number: int, delta: Mapping[str, Any], body: Mapping[str, Any]) -> list[Chunk]:
        block = self._open.get(number)
        if block is None:
            block = self._open[number] = _OpenBlock()
        if "text" in delta:
            return self._content(block, as_text(delta["text"]), body)
        if "reasoningContent" in delta:
            return self._reasoning(block, as_dict(delta["reasoningContent"]), body)
        if "toolUse" in delta:
            piece = as_text(as_dict(delta["toolUse"]).get("input"))
            block.input.append(piece)
            if not piece or block.is_server_tool:
                return []
            return [self._chunk(body, tool_calls=(ToolCallDelta(number, arguments=piece),))]
        if "citation" in delta:
            block.citations.append(delta["citation"])
        if "image" in delta:
            block.image.append(dict(as_dict(delta["image"])))
        if "toolResult" in delta:
            block.results += as_dicts(delta["toolResult"])
        return []

    def _content(self, block: _OpenBlock, text: str, body: Mapping[str, Any]) -> list[Chunk]:
        self._text_begun = True
        if not text:
            return []
        self.answered = True
        return [self._chunk(body, content=text, own_part=block.first())]

    def _reasoning(self, block: _OpenBlock, delta: Mapping[str, Any], body: Mapping[str, Any]) -> list[Chunk]:
        block.signature += as_text(delta.get("signature"))
        redacted = as_text(delta.get("redactedContent"))
        if redacted:
            block.redacted.append(redacted)
        text = as_text(delta.get("text"))
        if not text:
            return []
        self.answered = True
        return [self._chunk(body, reasoning=text, own_part=block.first())]

    def _stopped(self, number: int, body: Mapping[str, Any]) -> list[Chunk]:
        block = self._open.pop(number, None)
        if block is None:
            return []
        chunks: list[Chunk] = []
        if block.signature:
            chunks.append(self._chunk(body, signature=block.signature, own_part=block.first()))
        if block.redacted:
            sealed = {"reasoningContent": {"redactedContent": _joined_base64(block.redacted)}}
            chunks.append(self._chunk(body, sealed=sealed))
        if block.citations:
            chunks.append(self._chunk(body, text_extra={WIRE: {"citations": block.citations}}))
        sealed_block = block.sealed()
        if sealed_block is not None:
            self.answered = True
            chunks.append(self._chunk(body, sealed=sealed_block))
        return chunks

    def _reply(self, payload: object) -> list[Chunk]:
        body = as_dict(payload)
        if type(body.get("output")) is not dict:
            error = error_body(payload) or ({"message": body["message"]} if "message" in body else None)
            return self._no_reply(error, "a reply without output")
        chunks: list[Chunk] = []
        for number, block in enumerate(as_dicts(as_dict(as_dict(body["output"]).get("message")).get("content"))):
            chunks += self._block(number, block)
        finish = self._finished(body.get("stopReason"))
        return [*chunks, Chunk(raw=body, finish_reason=finish, usage=self._usage_in(body.get("usage")))]

    def _block(self, number: int, block: Mapping[str, Any]) -> list[Chunk]:
        """Returns the chunks of a whole block; one of an unknown kind is kept as it is."""
        match block:
            case {"text": str(text)}:
                return [*self._delta(number, {"text": text}, {}), *self._stopped(number, {})]
            case {"citationsContent": {"content": list()}}:
                cited = block["citationsContent"]
                text = "".join(as_text(one.get("text")) for one in as_dicts(cited["content"]))
                citations = [{"citation": one} for one in as_dicts(cited.get("citations"))]
                deltas: list[dict[str, Any]] = [{"text": text}, *citations]
                chunks = [chunk for delta in deltas for chunk in self._delta(number, delta, {})]
                return [*chunks, *self._stopped(number, {})]
            case {"reasoningContent": {"reasoningText": dict()}}:
                inner = as_dict(block["reasoningContent"]["reasoningText"])
                return [*self._delta(number, {"reasoningContent": inner}, {}), *self._stopped(number, {})]
            case {"reasoningContent": dict()}:
                return [self._chunk({}, sealed=block)]
            case {"toolUse": dict()} if as_dict(block["toolUse"]).get("type") != SERVER_TOOL:
                call = as_dict(block["toolUse"])
                tool_input: object = call.get("input") or {}
                arguments = tool_input if isinstance(tool_input, str) else json.dumps(tool_input, ensure_ascii=False)
                opened = self._started(number, {"toolUse": call}, {})
                return [*opened, self._chunk({}, tool_calls=(ToolCallDelta(number, arguments=arguments),))]
            # nothing, or what is not of the form that it is taken back in
            case _ if block.keys() <= _KNOWN and not as_dict(block.get("toolUse")):
                return []
            case _:
                self.answered = True
                return [self._chunk({}, sealed=block)]

    def _chunk(self, raw: Mapping[str, Any], **fields: Any) -> Chunk:
        return Chunk(raw=raw, empty_content=self._text_begun, **fields)


def _exception(frame: Frame) -> dict[str, Any]:
    """Returns an exception or an error of the stream as an error object; its code is the name that the service gave it."""
    headers = frame.headers
    body: Mapping[str, Any] = {}
    try:
        body = as_dict(json.loads(frame.payload)) if frame.payload else {}
    except (ValueError, RecursionError):
        body = {"message": frame.payload[:2000].decode("utf-8", "replace")}
    message = body.get("message") or body.get("Message") or headers.get(":error-message")
    return {"message": message, "code": headers.get(":exception-type") or headers.get(":error-code")}


def _text(frame: Frame) -> str:
    try:
        return frame.payload.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BackendError(
            f"an event is not UTF-8 (byte {error.start} of {len(frame.payload)}): check base_url", kind="protocol"
        ) from error


def _joined(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the contents of a streamed tool result, with the pieces of a text as one."""
    joined: list[dict[str, Any]] = []
    for item in results:
        if joined and item.keys() == joined[-1].keys() == {"text"}:
            joined[-1] = {"text": as_text(joined[-1]["text"]) + as_text(item["text"])}
        else:
            joined.append(item)
    return joined


def _joined_base64(pieces: list[str]) -> str:
    """Returns the base64 of all pieces; each piece of a blob is encoded on its own."""
    if len(pieces) == 1:
        return pieces[0]
    try:
        return base64.b64encode(b"".join(base64.b64decode(piece, validate=True) for piece in pieces)).decode()
    except binascii.Error:
        return "".join(pieces)
