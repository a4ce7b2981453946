"""The only module that knows httpx: clients, and the channels that perform the steps of an exchange."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
import types
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never, cast
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import httpx

from ctxfold.backends.content_coding import BodyDecoder, ContentCodingError
from ctxfold.backends.exchange import DroppedError, Head, Open, Read, Sleep, Step
from ctxfold.backends.failures import plain_failure
from ctxfold.backends.profile import Profile
from ctxfold.backends.retry import Retry
from ctxfold.backends.watchdog import Guard, Watchdog
from ctxfold.errors import BackendError

__all__ = ["AsyncHttpChannel", "Clients", "HttpChannel"]

# room for a thousand streams at once; idle connections are few and given up before common proxies do it
IDLE_S = 20.0
MAX_IDLE = 64
LIMITS = httpx.Limits(max_connections=2048, max_keepalive_connections=MAX_IDLE, keepalive_expiry=IDLE_S)


@dataclass(eq=False, slots=True)
class Lane:
    """A client that serves one request at a time, so that the socket of its connection is known before a response is there."""

    client: httpx.Client
    sock: socket.socket | None = None
    idle_since_s: float = 0.0


class Clients:
    """Lanes for blocking calls and one async client per event loop, made on first use.

    Injected clients are used and never closed; the sockets that they use again are not known.
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
        self._given = client
        self._async_given = async_client
        self._lock = threading.Lock()
        self._idle: list[Lane] = []  # the one used last at the end
        self._busy: set[Lane] = set()
        self._tls: ssl.SSLContext | None = None
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[httpx.AsyncClient]] = (
            WeakKeyDictionary()
        )
        self._async: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()

    def take_lane(self) -> Lane:
        """A lane for one request; `return_lane` gives it back."""
        if self._given is not None:
            return Lane(self._given)
        with self._lock:
            if self._tls is None:
                self._tls = httpx.create_ssl_context()  # slow to make: shared by all lanes
            lane = self._idle.pop() if self._idle else Lane(httpx.Client(limits=LIMITS, verify=self._tls))
            self._busy.add(lane)
        return lane

    def return_lane(self, lane: Lane) -> None:
        """Keeps the lane for another request, unless it was closed meanwhile; lanes that were idle for long are closed."""
        now_s = time.monotonic()
        with self._lock:
            if lane not in self._busy:  # an injected client, or closed by `close`
                return
            self._busy.remove(lane)
            lane.idle_since_s = now_s
            self._idle.append(lane)
            stale = sum(now_s - one.idle_since_s > IDLE_S for one in self._idle)
            stale = max(stale, len(self._idle) - MAX_IDLE)
            expired, self._idle = self._idle[:stale], self._idle[stale:]
        for one in expired:
            one.client.close()

    async def loop_client(self) -> httpx.AsyncClient:
        if self._async_given is not None:
            return self._async_given
        loop = asyncio.get_running_loop()
        client = self._async.get(loop)
        if client is None:
            keeper = _kept_until_the_loop_ends()
            client = await anext(keeper)
            with self._lock:
                self._async[loop], self._by_loop[loop] = client, keeper
        return client

    def close(self) -> None:
        with self._lock:
            lanes = [*self._idle, *self._busy]
            self._idle.clear()
            self._busy.clear()
        for lane in lanes:
            lane.client.close()

    async def aclose(self) -> None:
        """Closes the lanes and the running loop's client; those of other loops close with their loop."""
        self.close()
        loop = asyncio.get_running_loop()
        with self._lock:
            keeper = self._by_loop.pop(loop, None)
            self._async.pop(loop, None)
        if keeper is not None:
            await keeper.aclose()


async def _kept_until_the_loop_ends() -> AsyncGenerator[httpx.AsyncClient]:
    """A started async generator is closed by its loop's shutdown: so nothing leaks when nobody calls `aclose`."""
    async with httpx.AsyncClient(limits=LIMITS) as client:
        yield client


class _Base:
    """What both channels share: where they are in the exchange, and what an httpx error means there."""

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

    def _timeout(self, step: Open, read_s: float | None) -> httpx.Timeout:
        connect_s = self._clients.connect_timeout_s
        return httpx.Timeout(connect=connect_s, read=read_s, write=step.timeout_s, pool=connect_s)

    def _note(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith((".connect_tcp.started", ".connect_unix_socket.started")):
            self._new_connection = True

    def _late(self, what: str, seconds: float) -> BackendError:
        return plain_failure(self._profile, "timeout", f"{what} from {self._origin} within {seconds:g} s")

    def _in_head(self, error: Exception) -> BackendError:
        """An error before the response's head was there."""
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
        """An error inside the body; None when it only means that the body ended early."""
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
    """The blocking channel. A read's deadline is kept by the watchdog thread, as a socket read knows none of its own."""

    def __init__(self, clients: Clients, profile: Profile, retry: Retry) -> None:
        super().__init__(clients, profile, retry)
        self._lane: Lane | None = None
        self._response: httpx.Response | None = None
        self._body: Iterator[bytes] = iter(())
        self._guard: Guard | None = None

    def perform(self, step: Step) -> Any:
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

    def _open(self, step: Open) -> Head:
        self.close()
        self._start(step)
        self._lane = lane = self._clients.take_lane()
        self._guard = guard = Guard(lane.sock)
        request = lane.client.build_request(
            "POST",
            step.url,
            content=step.body,
            headers=dict(step.headers),
            timeout=self._timeout(step, step.timeout_s),
        )
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
        self._guard = _guarded(self._response)
        lane.sock = None if self._guard is None else self._guard.sock
        self._body = _bodies(self._response)
        return Head(self._response.status_code, dict(self._response.headers))

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
            told = self._in_body(problem)
            if told is not None:
                raise told from problem
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

    async def _open(self, step: Open) -> Head:
        await self.aclose()
        self._start(step)
        client = await self._clients.loop_client()
        request = client.build_request(
            "POST", step.url, content=step.body, headers=dict(step.headers), timeout=self._timeout(step, None)
        )
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
        return Head(response.status_code, dict(response.headers))

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
                # had without waiting, and without a timer, which would cost more than the bytes
                return cast("bytes", stop.value)
            async with asyncio.timeout(timeout_s):
                return await _resumed(begun, waits_for)
        except StopAsyncIteration:
            return b""
        except TimeoutError as error:
            raise self._late("nothing more", timeout_s) from error
        except (httpx.HTTPError, httpx.StreamError, OSError, ContentCodingError) as error:
            told = self._in_body(error)
            if told is not None:
                raise told from error
            return b""

    async def aclose(self) -> None:
        """Ends the connection at once, unless the body was read to its end."""
        response, self._response = self._response, None
        self._body = None
        if response is not None:
            await response.aclose()


@types.coroutine
def _resumed(begun: Generator[Any, Any, bytes], waits_for: Any) -> Generator[Any, Any, bytes]:
    """Goes on with a coroutine that has been started by hand, as `yield from` would from its beginning."""
    while True:
        try:
            sent = yield waits_for
        except BaseException as error:  # noqa: BLE001  handed on, cancellation too
            resume = partial(begun.throw, error)
        else:
            resume = partial(begun.send, sent)
        try:
            waits_for = resume()
        except StopIteration as stop:
            return cast("bytes", stop.value)


def _bodies(response: httpx.Response) -> Iterator[bytes]:
    """The body's bytes as they come, decompressed in pieces: httpx would undo a whole read at once, whatever its size."""
    if response.is_stream_consumed:  # a transport of one's own has read it already
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
            await asyncio.sleep(0)  # a few bytes may stand for many pieces, and others wait for the loop


_CONNECTED = (".connect_tcp.complete", ".connect_unix_socket.complete", ".start_tls.complete")


def _guarded(response: httpx.Response) -> Guard | None:
    """A guard over the connection's own socket; None where there is none."""
    sock = None if response.http_version == "HTTP/2" else _own_socket(response.extensions.get("network_stream"))
    return None if sock is None else Guard(sock)


def _own_socket(stream: Any) -> socket.socket | None:
    """The socket of a network stream of httpcore; None where requests share it (HTTP/2), or a transport of one's own has none."""
    with contextlib.suppress(AttributeError):
        tls = stream.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() == "h2":
            return None
        found = stream.get_extra_info("socket")
        return found if isinstance(found, socket.socket) else None
    return None
