"""HTTP/1.1 on asyncio streams: requests read whole, replies written plain or chunked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

HEAD_LIMIT = 64 * 1024
BODY_LIMIT = 256 * 1024 * 1024
_LINGER = "hh" if os.name == "nt" else "ii"  # struct linger has two short fields on Windows, two int fields elsewhere


class BadRequestError(Exception):
    """The bytes are not an HTTP request this server reads; carries the status to answer with."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request that was read to its end; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    keep_alive: bool


class WatchedReader(asyncio.StreamReader):
    """A stream reader that also tells when the peer has gone, while nobody reads."""

    def __init__(self, *, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=limit, loop=loop)
        self.gone = asyncio.Event()

    def feed_eof(self) -> None:
        """Marks the end of input."""
        self.gone.set()
        super().feed_eof()

    def set_exception(self, exc: BaseException) -> None:
        """Marks a broken connection."""
        self.gone.set()
        super().set_exception(exc)  # type: ignore[arg-type]


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpRequest | None:
    """Returns the next request, or None when the peer closed between two requests."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise BadRequestError(400, f"closed after {len(error.partial)} bytes of the head") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise BadRequestError(431, f"request head is over {HEAD_LIMIT} bytes") from error
    first, *lines = head.decode("latin-1").lstrip("\r\n").rstrip("\r\n").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequestError(400, f"not a request line: {first[:100]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadRequestError(400, f"not a header line: {line[:100]!r}")
        headers[name.strip().lower()] = value.strip()
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await _read_body(reader, headers)
    connection = headers.get("connection", "").lower()
    keep_alive = "close" not in connection if parts[2] == "HTTP/1.1" else "keep-alive" in connection
    return HttpRequest(parts[0], parts[1].partition("?")[0], headers, body, keep_alive)


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    try:
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return await _read_chunks(reader)
        length = int(headers.get("content-length", "0"))
        if not 0 <= length <= BODY_LIMIT:
            raise BadRequestError(413, f"content-length is {length}, the limit is {BODY_LIMIT}")
        return await reader.readexactly(length)
    except ValueError as error:
        raise BadRequestError(400, f"not a length: {error}") from error
    except asyncio.IncompleteReadError as error:
        raise BadRequestError(400, f"body ended after {len(error.partial)} bytes") from error


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        if not 0 < size <= BODY_LIMIT - len(body):
            raise BadRequestError(413, f"chunked body is over {BODY_LIMIT} bytes")
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    while (await reader.readuntil(b"\r\n")) != b"\r\n":
        pass  # trailers mean nothing here
    return bytes(body)


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """Status line and headers, with the blank line."""
    try:
        reason = HTTPStatus(status).phrase
    except ValueError:  # 529 and the like: providers use numbers nobody registered
        reason = "Unknown"
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def plain(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """Returns a whole response with its length."""
    fields = {"content-type": "application/json", **(headers or {}), "content-length": str(len(body))}
    return head(status, fields) + body


def chunk(data: bytes) -> bytes:
    """Encodes a chunk of a chunked body. An empty chunk would end the body, so nothing is returned for it."""
    return b"%x\r\n%s\r\n" % (len(data), data) if data else b""


LAST_CHUNK = b"0\r\n\r\n"


async def reset(writer: asyncio.StreamWriter) -> None:
    """Closes with a TCP reset instead of an orderly end."""
    with contextlib.suppress(ConnectionError):
        await writer.drain()
    await asyncio.sleep(0.02)  # a reset overtakes bytes the peer has not read yet
    raw: socket.socket | None = writer.get_extra_info("socket")
    if raw is not None and not writer.is_closing():
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack(_LINGER, 1, 0))
    writer.transport.abort()


_used_ports: set[int] = set()  # of the whole process, as the caches of clients are
_BINDINGS = 64


def loopback_socket(used_ports: set[int] = _used_ports) -> socket.socket:
    """Returns a socket bound to a free port of 127.0.0.1 that no server of this process has had, and adds the port to `used_ports`.

    Clients are cached by address (langchain-openai does that): a closed one of an earlier server would be used for a new one.
    """
    passed: list[socket.socket] = []
    try:
        while True:
            # its protocol by name: asyncio turns Nagle's algorithm off for such sockets alone, and a frame is to leave at once
            bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            bound.bind(("127.0.0.1", 0))
            port = int(bound.getsockname()[1])
            if port not in used_ports or len(passed) == _BINDINGS:
                used_ports.add(port)
                return bound
            passed.append(bound)  # kept open, or the system would offer the port again
    finally:
        for other in passed:
            other.close()
