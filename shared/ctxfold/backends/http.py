"""Opens HTTP clients and performs requests on them; the only module that imports httpx.

Compressed bodies are decoded in pieces and up to a limit, since a few bytes may expand to gigabytes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
import time
import types
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, assert_never, cast
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, finalize

import httpx

from ctxfold.backends.errors import plain_failure
from ctxfold.backends.profile import Profile
from ctxfold.backends.response_parser import MAX_REPLY_BYTES
from ctxfold.backends.transport import DroppedError, Open, Read, ResponseHead, Retry, Sleep, Step
from ctxfold.errors import BackendError

PIECE_BYTES = 64 * 1024
LINGER_S = 1.0  # of the thread that watches deadlines, once it has none
_GZIP_MAGIC = b"\x1f"
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


class ContentCodingError(Exception):
    """A body is compressed wrongly, in an unknown way, or beyond the limit; the text continues a sentence about the server."""


class BodyDecoder:
    """Decodes the codings of a `content-encoding` header, each up to `max_bytes`."""

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
        """Yields the decoded bytes in pieces of at most 64 KiB."""
        pieces: Iterator[bytes] = iter((data,))
        for layer in self._layers:
            pieces = chain.from_iterable(map(layer.feed, pieces))
        return pieces


class _Layer:
    """Decodes one coding of a body."""

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


# allows a thousand streams at once; idle connections are few and closed before common proxies close them
IDLE_S = 20.0
MAX_IDLE = 64
LIMITS = httpx.Limits(max_connections=2048, max_keepalive_connections=MAX_IDLE, keepalive_expiry=IDLE_S)


@dataclass(eq=False, slots=True)
class Lane:
    """A client that serves one request at a time, so that the socket of its connection is known before the response."""

    client: httpx.Client
    sock: socket.socket | None = None
    idle_since_s: float = 0.0


class Clients:
    """Holds lanes for blocking calls and one async client per event loop, made on first use.

    Idle lanes are closed at the latest when this object is collected. Injected clients are never closed; the sockets that they
    reuse are unknown.
    """

    def __init__(
        self,
        client: httpx.Client | None = None,
        async_client: httpx.AsyncClient | None = None,
        *,
        connect_timeout_s: float,
    ) -> None:
        self.connect_timeout_s = connect_timeout_s
        self.watchdog = Watchdog()
        self._injected = client
        self._async_injected = async_client
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[Lane] = []  # the one used last at the end
        self._busy: set[Lane] = set()
        self._tls: ssl.SSLContext | None = None
        # the client of each loop, and what closes it
        self._by_loop: WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[httpx.AsyncClient, AsyncGenerator[httpx.AsyncClient]]
        ] = WeakKeyDictionary()
        # few callers close a model: without this Python warns of its sockets
        finalize(self, _close_lanes, self._idle).atexit = False

    def take_lane(self) -> Lane:
        """Returns a lane for one request; `return_lane` gives it back."""
        if self._process != os.getpid():
            self._leave_parent()
        if self._injected is not None:
            return Lane(self._injected)
        with self._lock:
            lane = self._idle.pop() if self._idle else Lane(httpx.Client(limits=LIMITS, verify=self._tls_context()))
            self._busy.add(lane)
        return lane

    def _leave_parent(self) -> None:
        """Gives up what belongs to the process that this one was forked from: its connections, and its thread for deadlines."""
        with self._lock:
            if self._process == os.getpid():  # another thread was faster
                return
            self._process, self.watchdog = os.getpid(), Watchdog()
            lanes = [*self._idle]
            self._idle.clear()
            self._busy.clear()
        _close_lanes(lanes)

    def _tls_context(self) -> ssl.SSLContext:
        """Returns the context of all lanes and loops: it is slow to make. The caller holds the lock."""
        if self._tls is None:
            self._tls = httpx.create_ssl_context()
        return self._tls

    def return_lane(self, lane: Lane) -> None:
        """Keeps the lane for another request, unless it was closed meanwhile, and closes lanes that were idle for too long."""
        now_s = time.monotonic()
        with self._lock:
            if lane not in self._busy:  # an injected client, or closed by `close`
                return
            self._busy.remove(lane)
            lane.idle_since_s = now_s
            self._idle.append(lane)
            stale = sum(now_s - one.idle_since_s > IDLE_S for one in self._idle)
            stale = max(stale, len(self._idle) - MAX_IDLE)
            expired = self._idle[:stale]
            del self._idle[:stale]
        _close_lanes(expired)

    async def loop_client(self) -> httpx.AsyncClient:
        if self._async_injected is not None:
            return self._async_injected
        loop = asyncio.get_running_loop()
        own = self._by_loop.get(loop)
        if own is None:
            with self._lock:
                tls = self._tls_context()
            keeper = _kept_until_the_loop_ends(tls)
            own = await anext(keeper), keeper
            with self._lock:
                self._by_loop[loop] = own
        return own[0]

    def close(self) -> None:
        with self._lock:
            lanes = [*self._idle, *self._busy]
            self._idle.clear()
            self._busy.clear()
        _close_lanes(lanes)

    async def aclose(self) -> None:
        """Closes the lanes and the running loop's client; those of other loops close with their loop."""
        self.close()
        loop = asyncio.get_running_loop()
        with self._lock:
            own = self._by_loop.pop(loop, None)
        if own is not None:
            await own[1].aclose()


def _close_lanes(lanes: Iterable[Lane]) -> None:
    for lane in lanes:
        lane.client.close()


async def _kept_until_the_loop_ends(tls: ssl.SSLContext) -> AsyncGenerator[httpx.AsyncClient]:
    """Yields a client that the shutdown of its loop closes, so that nothing leaks when nobody calls `aclose`."""
    async with httpx.AsyncClient(limits=LIMITS, verify=tls) as client:
        yield client


class _Base:
    """Base of both channels: translates httpx errors by the stage of the request."""

    def __init__(self, clients: Clients, profile: Profile, retry: Retry) -> None:
        self._clients = clients
        self._profile = profile
        self._retry = retry
        self._origin = ""
        self._new_connection = False
        self._timeout_s = 0.0

    def _start(self, step: Open) -> None:
        parts = urlsplit(step.url)
        self._origin = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
        self._new_connection = False
        self._timeout_s = step.timeout_s

    def _request(
        self, client: httpx.Client | httpx.AsyncClient, step: Open, signed: Mapping[str, str], read_s: float | None
    ) -> httpx.Request:
        connect_s = self._clients.connect_timeout_s
        timeout = httpx.Timeout(connect=connect_s, read=read_s, write=step.timeout_s, pool=connect_s)
        headers = {**step.headers, **signed}
        return client.build_request("POST", step.url, content=step.body, headers=headers, timeout=timeout)

    def _note(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith((".connect_tcp.started", ".connect_unix_socket.started")):
            self._new_connection = True

    def _late(self, what: str, seconds: float) -> BackendError:
        return plain_failure(self._profile, "timeout", f"{what} from {self._origin} within {seconds:g} s")

    def _in_head(self, error: Exception) -> BackendError:
        """Translates an error before the head of the response arrived."""
        match error:
            case httpx.ConnectTimeout() | httpx.PoolTimeout():
                limit = self._clients.connect_timeout_s
                return self._failed("connect", f"no connection to {self._origin} within {limit:g} s")
            case httpx.ConnectError() | httpx.UnsupportedProtocol() | httpx.ProxyError():
                return self._failed("connect", f"cannot connect to {self._origin} ({error})")
            case httpx.TimeoutException():
                return self._late("no answer", self._timeout_s)
            case httpx.RemoteProtocolError() if "disconnected" not in str(error):
                return self._failed("protocol", f"{self._origin} does not speak HTTP ({error})")
            case _:
                dropped = self._failed("connection", f"{self._origin} closed the connection before it answered")
                if self._new_connection:
                    return dropped
                return DroppedError(str(dropped), kind="connection", retryable=dropped.retryable)

    def _in_body(self, error: Exception) -> BackendError | None:
        """Translates an error inside the body; returns None when it only means that the body ended early."""
        match error:
            case httpx.TimeoutException():
                return self._late("nothing more", self._timeout_s)
            case httpx.RemoteProtocolError() if "peer closed" in str(error):
                return None  # the parser knows whether the answer was complete
            case httpx.RemoteProtocolError() | httpx.DecodingError():
                return self._failed("protocol", f"{self._origin} sent a broken body ({error})")
            case ContentCodingError():
                return self._failed("protocol", f"{self._origin} {error}")
            case _:
                return self._failed("connection", f"the connection to {self._origin} broke off")

    def _failed(self, kind: str, what: str) -> BackendError:
        return plain_failure(self._profile, kind, what)


class HttpChannel(_Base):
    """The blocking channel. A watchdog thread enforces the deadline of a read, because a socket read has no total timeout."""

    def __init__(self, clients: Clients, profile: Profile, retry: Retry) -> None:
        super().__init__(clients, profile, retry)
        self._lane: Lane | None = None
        self._response: httpx.Response | None = None
        self._body: Iterator[bytes] = iter(())
        self._guard: Guard | None = None

    def perform(self, step: Step) -> Any:
        try:
            match step:
                case Read():
                    return self._read(step.timeout_s)
                case Open():
                    return self._open(step)
                case Sleep():
                    self.close()
                    return self._retry.sleep(step.seconds)
                case _:
                    assert_never(step)
        except BackendError as error:
            return error

    def _open(self, step: Open) -> ResponseHead:
        self.close()
        self._start(step)
        signed: Mapping[str, str] = {} if step.sign is None else step.sign(step)
        self._lane = lane = self._clients.take_lane()
        self._guard = guard = Guard(lane.sock)
        request = self._request(lane.client, step, signed, step.timeout_s)
        request.extensions["trace"] = self._note
        problem: Exception | None = None
        self._clients.watchdog.arm(guard, step.timeout_s)
        try:
            # a redirect could carry the key to another host, whatever an injected client does elsewhere
            self._response = lane.client.send(request, stream=True, follow_redirects=False)
        except (httpx.HTTPError, OSError) as error:
            problem = error
        finally:
            self._clients.watchdog.disarm(guard)
        if guard.expired:
            raise self._late("no answer", step.timeout_s) from problem
        if self._response is None:
            assert problem is not None
            raise self._in_head(problem) from problem
        shared = self._response.http_version == "HTTP/2"
        lane.sock = None if shared else _own_socket(self._response.extensions.get("network_stream"))
        self._guard = None if lane.sock is None else Guard(lane.sock)
        self._body = _bodies(self._response)
        return ResponseHead(self._response.status_code, dict(self._response.headers))

    def _note(self, event: str, info: Mapping[str, Any]) -> None:
        super()._note(event, info)
        if event.endswith(_CONNECTED) and self._guard is not None:
            self._guard.watch(_own_socket(info.get("return_value")))

    def _read(self, timeout_s: float) -> bytes:
        self._timeout_s = timeout_s
        guard = self._guard
        if guard is not None:
            self._clients.watchdog.arm(guard, timeout_s)
        problem: Exception | None = None
        try:
            data = next(self._body, b"")
        except (httpx.HTTPError, httpx.StreamError, OSError, ContentCodingError) as error:
            data, problem = b"", error
        finally:
            if guard is not None:
                self._clients.watchdog.disarm(guard)
        if not data and guard is not None and guard.expired:
            raise self._late("nothing more", timeout_s) from problem
        if problem is not None:
            failure = self._in_body(problem)
            if failure is not None:
                raise failure from problem
        return data

    def close(self) -> None:
        """Ends the connection at once, unless the body was read to its end."""
        response, self._response = self._response, None
        lane, self._lane = self._lane, None
        self._guard = None
        self._body = iter(())
        if response is not None:
            response.close()
        if lane is not None:
            self._clients.return_lane(lane)


class AsyncHttpChannel(_Base):
    """The channel on an event loop; cancelling a step closes the connection."""

    def __init__(self, clients: Clients, profile: Profile, retry: Retry) -> None:
        super().__init__(clients, profile, retry)
        self._response: httpx.Response | None = None
        self._body: AsyncIterator[bytes] | None = None

    async def perform(self, step: Step) -> Any:
        try:
            match step:
                case Read():
                    return await self._read(step.timeout_s)
                case Open():
                    return await self._open(step)
                case Sleep():
                    await self.aclose()
                    return await self._retry.asleep(step.seconds)
                case _:
                    assert_never(step)
        except BackendError as error:
            return error

    async def _open(self, step: Open) -> ResponseHead:
        await self.aclose()
        self._start(step)
        signed: Mapping[str, str] = {} if step.sign is None else await asyncio.to_thread(step.sign, step)
        client = await self._clients.loop_client()
        request = self._request(client, step, signed, None)
        request.extensions["trace"] = self._anote
        try:
            async with asyncio.timeout(step.timeout_s):
                response = await client.send(request, stream=True, follow_redirects=False)
        except TimeoutError as error:
            raise self._late("no answer", step.timeout_s) from error
        except (httpx.HTTPError, OSError) as error:
            raise self._in_head(error) from error
        self._response = response
        self._body = _async_bodies(response)
        return ResponseHead(response.status_code, dict(response.headers))

    async def _anote(self, event: str, info: Mapping[str, Any]) -> None:
        self._note(event, info)

    async def _read(self, timeout_s: float) -> bytes:
        if self._body is None:
            return b""
        self._timeout_s = timeout_s
        begun = self._body.__anext__().__await__()
        try:
            try:
                waits_for = next(begun)
            except StopIteration as stop:
                # the data was already there: a timer would cost more than the read
                return cast("bytes", stop.value)
            async with asyncio.timeout(timeout_s):
                return await _resumed(begun, waits_for)
        except StopAsyncIteration:
            return b""
        except TimeoutError as error:
            raise self._late("nothing more", timeout_s) from error
        except (httpx.HTTPError, httpx.StreamError, OSError, ContentCodingError) as error:
            failure = self._in_body(error)
            if failure is not None:
                raise failure from error
            return b""

    async def aclose(self) -> None:
        """Ends the connection at once, unless the body was read to its end."""
        response, self._response = self._response, None
        self._body = None
        if response is not None:
            await response.aclose()


@types.coroutine
def _resumed(begun: Generator[Any, Any, bytes], waits_for: Any) -> Generator[Any, Any, bytes]:
    """Continues a coroutine that was started by hand, as `yield from` does from the beginning."""
    while True:
        try:
            sent = yield waits_for
        except BaseException as error:  # noqa: BLE001  passed on to the coroutine, cancellation too
            resume = partial(begun.throw, error)
        else:
            resume = partial(begun.send, sent)
        try:
            waits_for = resume()
        except StopIteration as stop:
            return cast("bytes", stop.value)


def _bodies(response: httpx.Response) -> Iterator[bytes]:
    """Yields the body's bytes as they arrive, decompressed in pieces: httpx would decompress a whole read at once."""
    if response.is_stream_consumed:  # a custom transport has read it already
        return response.iter_bytes()
    coding = response.headers.get("content-encoding")
    return response.iter_raw() if coding is None else _decoded(response, coding)


def _decoded(response: httpx.Response, coding: str) -> Iterator[bytes]:
    decoder = BodyDecoder(coding)
    for data in response.iter_raw():
        yield from decoder.feed(data)


def _async_bodies(response: httpx.Response) -> AsyncIterator[bytes]:
    if response.is_stream_consumed:
        return response.aiter_bytes()
    coding = response.headers.get("content-encoding")
    return response.aiter_raw() if coding is None else _adecoded(response, coding)


async def _adecoded(response: httpx.Response, coding: str) -> AsyncIterator[bytes]:
    decoder = BodyDecoder(coding)
    async for data in response.aiter_raw():
        for piece in decoder.feed(data):
            yield piece
            await asyncio.sleep(0)  # a few bytes may expand to many pieces, and other tasks wait for the loop


_CONNECTED = (".connect_tcp.complete", ".connect_unix_socket.complete", ".start_tls.complete")


def _own_socket(stream: Any) -> socket.socket | None:
    """Returns the socket of an httpcore stream; None when requests share it (HTTP/2) or a custom transport has none."""
    with contextlib.suppress(AttributeError):
        tls = stream.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() == "h2":
            return None
        sock = stream.get_extra_info("socket")
        return sock if isinstance(sock, socket.socket) else None
    return None


# deadlines on blocking sockets: one thread shuts a socket down when its time is up


@dataclass(eq=False, slots=True)
class Guard:
    """A connection with a deadline, from before it has a socket; `expired` once the deadline has cut it off."""

    sock: socket.socket | None
    deadline_s: float = 0.0
    expired: bool = False

    def watch(self, sock: socket.socket | None) -> None:
        """Sets the socket of the connection, and shuts it down at once when the deadline has passed."""
        self.sock = sock
        if self.expired:
            _shut(sock)


class Watchdog:
    """Enforces deadlines in a daemon thread, which starts with the first one and ends after a while without any; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._guards: set[Guard] = set()
        self._thread: threading.Thread | None = None
        self._wakes_at_s = float("inf")

    def arm(self, guard: Guard, timeout_s: float) -> None:
        """Shuts the socket down after `timeout_s` seconds, unless `disarm` comes first."""
        guard.deadline_s = time.monotonic() + timeout_s
        with self._lock:  # the plain lock: this runs for every read of a stream
            self._guards.add(guard)
            if self._thread is None:
                self._wakes_at_s = guard.deadline_s
                self._thread = threading.Thread(target=self._watch, name="ctxfold-deadlines", daemon=True)
                self._thread.start()
            elif guard.deadline_s < self._wakes_at_s:
                self._changed.notify()

    def disarm(self, guard: Guard) -> None:
        with self._lock:
            self._guards.discard(guard)

    def _watch(self) -> None:
        with self._changed:
            quiet_since_s = time.monotonic()
            while True:
                now_s = time.monotonic()
                for guard in [g for g in self._guards if g.deadline_s <= now_s]:
                    self._guards.discard(guard)
                    guard.expired = True  # before the socket is read: `watch` sets it and then looks at this
                    _shut(guard.sock)
                if self._guards:
                    quiet_since_s = now_s
                elif now_s - quiet_since_s >= LINGER_S:
                    self._thread = None
                    return
                # sleeping until a deadline that is gone by then would keep a thread for each model of a program that makes many
                self._wakes_at_s = min([now_s + LINGER_S, *(g.deadline_s for g in self._guards)])
                self._changed.wait(max(self._wakes_at_s - time.monotonic(), 0.0))


def _shut(sock: socket.socket | None) -> None:
    if sock is not None:
        with contextlib.suppress(OSError):  # closed meanwhile
            # the plain socket's method: that of a TLS socket would drop its state under the reader
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
