"""The only module that knows httpx: clients, and the channels that perform the steps of an exchange."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import types
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from functools import partial
from typing import Any, assert_never, cast
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import httpx

from ctxfold.backends.exchange import DroppedError, Head, Open, Read, Sleep, Step
from ctxfold.backends.failures import plain_failure
from ctxfold.backends.profile import Profile
from ctxfold.backends.retry import Retry
from ctxfold.backends.watchdog import Guard, Watchdog
from ctxfold.errors import BackendError

__all__ = ["AsyncHttpChannel", "Clients", "HttpChannel"]

# room for a thousand streams at once; idle connections are few and given up before common proxies do it
LIMITS = httpx.Limits(max_connections=2048, max_keepalive_connections=64, keepalive_expiry=20.0)


class Clients:
    """One sync client and one async client per event loop, made on first use; injected ones are used and never closed."""

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
        self._client: httpx.Client | None = None
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[httpx.AsyncClient]] = (
            WeakKeyDictionary()
        )
        self._async: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()

    def sync_client(self) -> httpx.Client:
        if self._given is not None:
            return self._given
        with self._lock:
            if self._client is None:
                self._client = httpx.Client(limits=LIMITS)
            return self._client

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
            client, self._client = self._client, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Closes the sync client and the running loop's; those of other loops close with their loop."""
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

    def _note(self, event: str, info: object) -> None:
        if event == "connection.connect_tcp.started":
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
            case _:
                return self._failed("connection", f"the connection to {self._origin} broke off")

    def _failed(self, kind: str, what: str) -> BackendError:
        return plain_failure(self._profile, kind, what)


class HttpChannel(_Base):
    """The blocking channel. A read's deadline is kept by the watchdog thread, as a socket read knows none of its own."""

    def __init__(self, clients: Clients, profile: Profile, retry: Retry) -> None:
        super().__init__(clients, profile, retry)
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
        client = self._clients.sync_client()
        request = client.build_request(
            "POST",
            step.url,
            content=step.body,
            headers=dict(step.headers),
            timeout=self._timeout(step, step.timeout_s),
        )
        request.extensions["trace"] = self._note
        try:
            response = client.send(request, stream=True)
        except (httpx.HTTPError, OSError) as error:
            raise self._in_head(error) from error
        self._response = response
        self._body = response.iter_raw() if _as_sent(response) else response.iter_bytes()
        sock = _socket(response)
        self._guard = Guard(sock) if sock is not None else None
        return Head(response.status_code, dict(response.headers))

    def _read(self, timeout_s: float) -> bytes:
        self._timeout_s = timeout_s
        guard = self._guard
        if guard is not None:
            self._clients.watchdog.arm(guard, timeout_s)
        problem: Exception | None = None
        try:
            data = next(self._body, b"")
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
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
        self._guard = None
        self._body = iter(())
        if response is not None:
            response.close()


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
                response = await client.send(request, stream=True)
        except TimeoutError as error:
            raise self._late("no answer", step.timeout_s) from error
        except (httpx.HTTPError, OSError) as error:
            raise self._in_head(error) from error
        self._response = response
        self._body = response.aiter_raw() if _as_sent(response) else response.aiter_bytes()
        return Head(response.status_code, dict(response.headers))

    async def _anote(self, event: str, info: object) -> None:
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
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
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


def _as_sent(response: httpx.Response) -> bool:
    """Whether the body may be taken as it comes: not compressed, and not read already by a transport of one's own."""
    return not response.is_stream_consumed and "content-encoding" not in response.headers


def _socket(response: httpx.Response) -> socket.socket | None:
    """The connection's own socket; None where it is shared (HTTP/2) or there is none (a transport of one's own)."""
    stream = response.extensions.get("network_stream")
    if stream is None or response.http_version == "HTTP/2":
        return None
    with contextlib.suppress(AttributeError):
        found = stream.get_extra_info("socket")
        return found if isinstance(found, socket.socket) else None
    return None
