"""Connections, deadlines, retries and failures on a real socket, sync and async through one caller."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ctxfold import BackendError, ConfigError, OpenAIChatBackend, Reply, Request, user
from ctxfold.backends.transport import Retry
from ctxfold.protocols import Chunk
from tests.timing import await_for, wait_for
from tests.wire.raw_server import DONE, HANG_S, Play, RawServer, event, reply

REQUEST = Request((user("hi", id="u"),))
OK = Play([reply()], then="keep")
STREAM = Play([event("a"), event("b"), event(finish="stop"), DONE])
BUSY = Play([b'{"error":{"message":"busy"}}'], status=503, then="keep")
QUICK = Retry(2, first_delay_s=0.001)


class Caller:
    """The four calls of a backend, driven sync or on a loop."""

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def send(self, backend: OpenAIChatBackend) -> Reply:
        if self.mode == "sync":
            with backend:
                return backend.send(REQUEST)

        async def run() -> Reply:
            async with backend:
                return await backend.asend(REQUEST)

        return asyncio.run(run())

    def stream(self, backend: OpenAIChatBackend, opened: Callable[[], None] = lambda: None) -> list[Chunk]:
        if self.mode == "sync":
            with backend, backend.open_stream(REQUEST) as stream:
                opened()
                return list(stream)

        async def run() -> list[Chunk]:
            async with backend, await backend.aopen_stream(REQUEST) as stream:
                opened()
                return [chunk async for chunk in stream]

        return asyncio.run(run())


@pytest.fixture(params=["sync", "async"])
def caller(request: pytest.FixtureRequest) -> Caller:
    return Caller(request.param)


def make(server: RawServer, **settings: Any) -> OpenAIChatBackend:
    return OpenAIChatBackend(**{"model": "m", "base_url": server.base_url, "retry": QUICK, **settings})


def failing(call: Callable[[], Any]) -> BackendError:
    with pytest.raises(BackendError) as caught:
        call()
    return caught.value


def test_retries_until_the_service_recovers(caller: Caller) -> None:
    with RawServer(BUSY, BUSY, OK) as server:
        assert caller.send(make(server)).message.text == "ok"
        assert len(server.bodies) == 3


def test_gives_up_after_max_retries(caller: Caller) -> None:
    with RawServer(BUSY) as server:
        assert failing(lambda: caller.send(make(server))).kind == "unavailable"
        assert len(server.bodies) == 3


@pytest.mark.parametrize("status", [400, 401, 402, 413])
def test_what_cannot_succeed_is_not_retried(caller: Caller, status: int) -> None:
    with RawServer(Play([b"{}"], status=status)) as server:
        assert not failing(lambda: caller.send(make(server))).retryable
        assert len(server.bodies) == 1


def test_an_empty_answer_is_asked_again_before_the_first_event(caller: Caller) -> None:
    empty = Play([event(""), event(finish="stop"), DONE])
    with RawServer(empty, STREAM) as server:
        chunks = caller.stream(make(server))
        assert "".join(c.content for c in chunks) == "ab"
        assert len(server.bodies) == 2


def test_never_retried_after_the_first_event(caller: Caller) -> None:
    with RawServer(Play([event("a")], then="abort")) as server:
        opened: list[bool] = []
        error = failing(lambda: caller.stream(make(server), lambda: opened.append(True)))
        assert opened
        assert error.kind == "connection"
        assert len(server.bodies) == 1


def test_errors_before_the_first_event_come_at_the_opening(caller: Caller) -> None:
    said = b'data: {"error":{"message":"maximum context length is 10 tokens, you requested 20 tokens"}}\n\n'
    with RawServer(Play([event(""), said])) as server:
        opened: list[bool] = []
        error = failing(lambda: caller.stream(make(server), lambda: opened.append(True)))
        assert not opened
        assert (error.kind, error.limit_tokens, error.requested_tokens) == ("context_overflow", 10, 20)


def test_retry_after_is_waited_for_or_not_waited_for_at_all(caller: Caller) -> None:
    waits: list[float] = []

    async def asleep(seconds: float) -> None:
        waits.append(seconds)

    retry = Retry(2, sleep=waits.append, asleep=asleep)
    short = Play([b"{}"], status=429, headers={"retry-after": "7"}, then="keep")
    long = Play([b"{}"], status=429, headers={"retry-after": "3600"}, then="keep")
    with RawServer(short, long) as server:
        error = failing(lambda: caller.send(make(server, retry=retry)))
        assert waits == [7.0]
        assert (error.kind, error.retry_after_s) == ("rate_limit", 3600.0)
        assert len(server.bodies) == 2


def test_unreachable_server(caller: Caller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    backend = OpenAIChatBackend(model="m", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0)
    error = failing(lambda: caller.send(backend))
    assert (error.kind, error.retryable) == ("connect", True)
    assert str(port) in str(error)


@pytest.mark.parametrize(
    "play",
    [
        Play([b"220 mail.example ESMTP ready\r\n\r\n"], head=False),
        Play([b"<!doctype html><html><script>x</script></html>"]),
        Play([b"data: {not json\n\n", DONE]),
        Play([b'{"choices": []}']),
        Play([b'{"hello": "world"}']),
        Play([b"[1, 2}"]),
        Play([], status=301, headers={"location": "http://elsewhere/"}),
    ],
    ids=["smtp", "html", "bad-event", "no-choices", "other-json", "bad-json", "redirect"],
)
def test_garbage_is_a_protocol_error(caller: Caller, play: Play) -> None:
    for call in (caller.send, caller.stream):
        with RawServer(play) as server:
            error = failing(lambda call=call, server=server: call(make(server)))  # type: ignore[misc]
            assert (error.kind, error.retryable) == ("protocol", False)
            assert "<" not in str(error)
            assert len(server.bodies) == 1


def test_an_error_body_with_status_200(caller: Caller) -> None:
    for call in (caller.send, caller.stream):
        with RawServer(Play([b'{"error":{"message":"no credit","code":"insufficient_quota"}}'])) as server:
            assert failing(lambda call=call, server=server: call(make(server))).kind == "quota"  # type: ignore[misc]


def test_a_whole_reply_to_a_stream_request(caller: Caller) -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    with RawServer(Play([reply("text", "tool_calls", tool_calls=calls)])) as server:
        (chunk,) = caller.stream(make(server))
        assert chunk.content == "text"
        assert [c.name for c in chunk.tool_calls] == ["f"]


def test_first_event_deadline_counts_through_comments(caller: Caller) -> None:
    """Were each comment a new beginning, they would all be read, and the end after them be the error."""
    comments = Play([b": wait\n\n"] * 600, pause_s=0.05)
    with RawServer(comments) as server:
        error = failing(lambda: caller.stream(make(server, timeout_s=0.3, max_retries=0, retry=None)))
        assert error.kind == "timeout"
        assert server.gone.wait(HANG_S / 3)


def test_comments_keep_the_idle_timer_alive(caller: Caller) -> None:
    frames = [event("a"), *[b": still here\n\n"] * 10, event("b", finish="stop"), DONE]
    with RawServer(Play(frames, pause_s=0.12)) as server:
        assert "".join(c.content for c in caller.stream(make(server, idle_timeout_s=1))) == "ab"


def test_a_pause_after_the_first_event_is_a_timeout(caller: Caller) -> None:
    with RawServer(Play([event("a")], then="hang")) as server:
        error = failing(lambda: caller.stream(make(server, timeout_s=10 * HANG_S, idle_timeout_s=0.3)))
        assert (error.kind, error.retryable) == ("timeout", True)
        assert server.gone.wait(HANG_S / 3)


def test_a_silent_server_is_a_timeout(caller: Caller) -> None:
    for call in (caller.send, caller.stream):
        for head in (False, True):
            with RawServer(Play([], then="hang", head=head)) as server:
                backend = make(server, timeout_s=0.3, max_retries=0, retry=None)
                assert failing(lambda call=call, b=backend: call(b)).kind == "timeout"  # type: ignore[misc]


def test_a_slow_reader_is_no_idle_server() -> None:
    with RawServer(STREAM) as server, make(server, idle_timeout_s=2) as backend:
        stream = backend.open_stream(REQUEST)
        wait_for(lambda: server.played)
        time.sleep(2.5)
        assert "".join(c.content for c in stream) == "ab"


def test_a_finished_answer_does_not_wait_for_done(caller: Caller) -> None:
    with RawServer(Play([event("a", finish="stop")], then="abort")) as server:
        assert [c.content for c in caller.stream(make(server))] == ["a"]
    with RawServer(Play([event("a", finish="stop"), DONE], then="hang")) as server:
        assert [c.content for c in caller.stream(make(server, idle_timeout_s=10 * HANG_S))] == ["a"]
        assert server.gone.wait(HANG_S / 3), "the client left: the server would have ended it only later"


def test_closing_a_stream_closes_its_connection() -> None:
    with RawServer(Play([event("a")], then="hang")) as server, make(server) as backend:
        stream = backend.open_stream(REQUEST)
        assert next(iter(stream)).content == "a"
        stream.close()
        assert server.gone.wait(HANG_S / 3)
        assert list(stream) == []


async def test_cancelling_a_stream_closes_its_connection() -> None:
    with RawServer(Play([event("a")], then="hang")) as server:
        async with make(server) as backend:
            stream = await backend.aopen_stream(REQUEST)
            assert (await anext(stream)).content == "a"

            async def read() -> Chunk:
                return await anext(stream)

            waiting = asyncio.create_task(read())
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await asyncio.to_thread(server.gone.wait, HANG_S / 3)


async def test_cancelling_while_opening_closes_its_connection() -> None:
    with RawServer(Play([], then="hang")) as server:
        async with make(server) as backend:
            opening = asyncio.create_task(backend.aopen_stream(REQUEST))
            await await_for(lambda: server.bodies)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            assert await asyncio.to_thread(server.gone.wait, HANG_S / 3)


async def test_a_dropped_idle_connection_is_tried_once_more_on_a_new_one() -> None:
    dropped = Play([], head=False)
    with RawServer(OK, dropped, OK, OK, dropped, OK) as server, make(server, max_retries=0, retry=None) as backend:
        assert [backend.send(REQUEST).message.text for _ in range(2)] == ["ok", "ok"]
        async with backend:
            assert [(await backend.asend(REQUEST)).message.text for _ in range(2)] == ["ok", "ok"]
        assert (server.connections, len(server.bodies)) == (4, 6)


def test_a_new_connection_that_is_dropped_is_an_error(caller: Caller) -> None:
    with RawServer(Play([], head=False)) as server:
        error = failing(lambda: caller.send(make(server, max_retries=0, retry=None)))
        assert (error.kind, error.retryable) == ("connection", True)
        assert len(server.bodies) == 1


def test_connections_are_kept_between_streams() -> None:
    whole = Play([event("a", finish="stop") + DONE], then="keep")
    with RawServer(whole) as server, make(server) as backend:
        for _ in range(3):
            assert len(list(backend.open_stream(REQUEST))) == 1
        assert server.connections == 1


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_a_backend_that_nobody_closes_leaves_no_connection(in_a_cycle: bool) -> None:
    with RawServer(OK) as server:
        backend = make(server)
        backend.send(REQUEST)
        holder: list[Any] = [backend]
        if in_a_cycle:
            holder.append(holder)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del backend, holder
            gc.collect()
            wait_for(lambda: server.played)
        assert [w.message for w in caught if w.category is ResourceWarning] == []


def test_the_thread_for_deadlines_ends_with_the_calls() -> None:
    """A program that makes a model for each of its requests does not gather threads, whatever their timeout."""
    before = {*threading.enumerate()}
    slow = Play(
        [reply()[:20], reply()[20:]], then="keep", pause_s=0.2
    )  # so that the thread waits for the deadline by then
    with RawServer(slow) as server:
        backend = make(server, timeout_s=600.0)
        backend.send(REQUEST)
        wait_for(lambda: not [t for t in threading.enumerate() if t.name == "ctxfold-deadlines" and t not in before])
        backend.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_connections_and_deadlines_of_its_own() -> None:
    """As a server has it that loads the program, warms it up, and then forks its workers."""
    with RawServer(OK) as server:
        backend = make(server)
        backend.send(REQUEST)
        if not (child := os.fork()):
            with contextlib.suppress(BaseException):
                answered = backend.send(REQUEST).message.text == "ok"
                threads = [t.name for t in threading.enumerate()]
                os._exit(0 if answered and "ctxfold-deadlines" in threads else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert server.connections == 2
        assert backend.send(REQUEST).message.text == "ok"
        assert server.connections == 2
        backend.close()


def test_one_backend_on_several_event_loops() -> None:
    """Each asyncio.run is a loop of its own; nothing is left open although nobody calls aclose."""
    with RawServer(OK) as server:
        backend = make(server)
        for _ in range(3):
            assert asyncio.run(backend.asend(REQUEST)).message.text == "ok"


async def test_injected_clients_are_used_and_left_open() -> None:
    with RawServer(OK) as server, httpx.Client() as client:
        async with httpx.AsyncClient() as async_client:
            backend = make(server, http_client=client, async_http_client=async_client)
            async with backend:
                backend.send(REQUEST)
                await backend.asend(REQUEST)
            assert not client.is_closed
            assert not async_client.is_closed


async def test_hundreds_of_streams_at_once() -> None:
    """With more sockets than select() can watch, and than the pool of an httpx client holds by itself."""
    count, opened, everyone = 600, 0, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + event("a"))
        opened += 1
        if opened == count:
            everyone.set()
        await everyone.wait()
        writer.write(event("b", finish="stop") + DONE)
        await writer.drain()
        writer.close()

    async def read(backend: OpenAIChatBackend) -> str:
        return "".join([chunk.content async for chunk in await backend.aopen_stream(REQUEST)])

    async with await asyncio.start_server(serve, "127.0.0.1", 0, backlog=count) as server:
        port = server.sockets[0].getsockname()[1]
        base_url = f"http://127.0.0.1:{port}/v1"
        async with OpenAIChatBackend(model="m", base_url=base_url, connect_timeout_s=300) as backend:
            texts = await asyncio.gather(*(read(backend) for _ in range(count)))
    assert texts == ["ab"] * count


def test_a_body_cut_short() -> None:
    """A length that the body does not reach: the peer closed, whatever the parser then makes of it."""
    whole = reply()
    for frames, kind in (([event("a")], "stream_truncated"), ([whole[:30]], "stream_truncated")):
        with RawServer(Play(frames, headers={"content-length": "9999"})) as server:
            backend = make(server, max_retries=0, retry=None)
            for call in (Caller("sync").stream, Caller("async").stream):
                assert failing(lambda call=call, b=backend: call(b)).kind == kind  # type: ignore[misc]
    with RawServer(Play([b"nonsense"], headers={"transfer-encoding": "chunked"})) as server:
        for call in (Caller("sync").stream, Caller("async").stream):
            assert failing(lambda call=call: call(make(server))).kind == "protocol"  # type: ignore[misc]


async def test_injected_transports_need_no_socket() -> None:
    """An httpx transport of one's own has no socket to watch; the answer is read all the same."""
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=event("a", finish="stop") + DONE))
    with httpx.Client(transport=transport) as client:
        async with httpx.AsyncClient(transport=transport) as async_client:
            backend = OpenAIChatBackend(model="m", http_client=client, async_http_client=async_client)
            assert [c.content for c in backend.open_stream(REQUEST)] == ["a"]
            assert [c.content async for c in await backend.aopen_stream(REQUEST)] == ["a"]


def test_what_arrived_with_a_failure_is_given_first() -> None:
    """Content and an error in the same bytes: the answer has begun, so that the request is not sent again."""
    requests: list[httpx.Request] = []
    failure = b'data: {"error":{"message":"overloaded","code":503}}\n\n'

    def respond(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200, content=event("a") + failure)

    with httpx.Client(transport=httpx.MockTransport(respond)) as client:
        stream = OpenAIChatBackend(model="m", http_client=client, retry=QUICK).open_stream(REQUEST)
        assert next(iter(stream)).content == "a"
        with pytest.raises(BackendError):
            list(stream)
    assert len(requests) == 1


def test_an_answer_that_only_lacks_its_epilogue_is_whole() -> None:
    def body() -> Iterator[bytes]:
        yield event("a", finish="stop")
        raise httpx.ReadError("the peer has gone")

    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=body()))
    with httpx.Client(transport=transport) as client:
        stream = OpenAIChatBackend(model="m", http_client=client, retry=QUICK).open_stream(REQUEST)
        assert [c.content for c in stream] == ["a"]


def test_many_threads_share_one_backend() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with RawServer(STREAM) as server, make(server) as backend, ThreadPoolExecutor(16) as pool:
        runs = [pool.submit(lambda: "".join(c.content for c in backend.open_stream(REQUEST))) for _ in range(48)]
        assert {run.result() for run in runs} == {"ab"}


def test_threads_and_loops_share_what_was_read_of_authorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading them takes 25 ms, which each loop of a program that calls `asyncio.run` again and again would pay."""
    with RawServer(*[OK] * 3) as server, make(server) as backend:
        assert backend.send(REQUEST).message.text
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))  # whoever reads them again fails
        for _ in range(2):
            assert asyncio.run(backend.asend(REQUEST)).message.text


def test_the_key_is_never_shown(caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    key = "sk-very-secret-77"
    caplog.set_level(logging.DEBUG)
    said = b'{"error":{"message":"Incorrect API key provided: sk-very-secret-77."}}'
    with RawServer(Play([said], status=401)) as server:
        backend = make(server, api_key=key)
        error = failing(lambda: caller.send(backend))
        assert server.headers[0]["authorization"] == f"Bearer {key}"
    assert error.kind == "auth"
    shown = f"{error!r} {error} {backend!r} {vars(backend)} {caplog.text}"
    assert "Incorrect API key" in shown
    assert key not in shown


def test_bad_settings_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"base_url": "localhost:80"}, "base_url"),
        ({"base_url": "http://[::1/v1"}, "base_url"),
        ({"model": ""}, "model"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"max_retries": -1}, "max_retries"),
        ({"api_key": "a\nb"}, "API key"),
        ({"provider": "nobody"}, "deepseek"),
        ({"provider": "deepseek"}, "DEEPSEEK_API_KEY"),
        ({"provider": "anthropic", "api_key": "k"}, "anthropic_messages"),
    ]
    for settings, hint in wrong:
        with pytest.raises(ConfigError, match=hint):
            OpenAIChatBackend(**{"model": "m", **settings})
    monkeypatch.setenv("DEEPSEEK_API_KEY", "k\n")
    assert OpenAIChatBackend(model="m", provider="deepseek").profile.name == "deepseek"
