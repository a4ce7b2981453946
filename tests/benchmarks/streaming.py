"""What reading a stream costs beside raw httpx and json.loads, when its first token is there, and 1,000 streams at once."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import httpx

from ctxfold import (
    AnthropicBackend,
    BedrockBackend,
    GeminiBackend,
    OpenAIChatBackend,
    OpenAIResponsesBackend,
    Request,
    user,
)
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.protocols import Wire
from ctxfold.stream import Fold
from tests.benchmarks.lanes import frozen_heap
from tests.benchmarks.sheets import Cell, Sheet, times
from tests.benchmarks.stream_server import WORDS, raise_file_limit, streaming_server

__all__ = ["run"]

REQUEST = Request((user("Tell me of the harbour.", id="u1"),))
Payloads: TypeAlias = Callable[[bytes, bytes], bytes]  # new bytes, what was left of the last; returns what is left
BODY = {"model": "m", "messages": [{"role": "user", "content": "Tell me of the harbour."}], "stream": True}


@dataclass(frozen=True, slots=True)
class Sizes:
    events: int = 2_000
    rounds: int = 9
    spaced_events: int = 200
    streams: int = 1_000
    events_each: int = 20
    first_pause_ms: int = 300


QUICK = Sizes(events=100, rounds=1, spaced_events=10, streams=20, events_each=5, first_pause_ms=10)


def run(*, quick: bool = False) -> list[Sheet]:
    """Four tables: CPU per event, the same on further wires, first token, many streams."""
    sizes = QUICK if quick else Sizes()
    with streaming_server() as address, asyncio.Runner() as runner:
        cpu = [_cpu(address, sizes, runner), _further_wires(address, sizes)]
        return [*cpu, _first(address, sizes, runner), _many(address, sizes, runner)]


def _backend(url: str) -> OpenAIChatBackend:
    return OpenAIChatBackend(provider="generic", model="m", base_url=url, profile={"name": "measured", "path": ""})


# CPU


def _cpu(address: str, sizes: Sizes, runner: asyncio.Runner) -> Sheet:
    rows: list[tuple[Cell, ...]] = []
    for label, events, pause_ms in (
        ("as fast as it comes", sizes.events, 0),
        ("one event a read", sizes.spaced_events, 1),
    ):
        url = f"{address}/v1?events={events}&pause_ms={pause_ms}"
        with httpx.Client() as client, _backend(url) as backend:
            sync = _race([partial(_raw, client, url), partial(_read, backend)], sizes.rounds)
        both = runner.run(_async_race(url, sizes.rounds))
        for mode, (raw_s, ours_s) in (("sync", sync), ("async", both)):
            rows.append((label, mode, events, raw_s / events * 1e6, ours_s / events * 1e6, times(ours_s, raw_s)))
    return Sheet(
        "CPU per streamed event",
        ("arrival", "client", "events", "raw, µs", "ctxfold, µs", "ratio"),
        tuple(rows),
        "open_stream and Fold beside raw httpx bytes and json.loads, each chunked as it came. "
        "Process CPU time, the watchdog thread's included; medians of rounds taken in turns. Target: 2.0 x or less.",
    )


def _further_wires(address: str, sizes: Sizes) -> Sheet:
    """CPU per event on the wires beside chat completions, each with its own frames."""
    rows: list[tuple[Cell, ...]] = []
    wires: dict[str, tuple[type[HttpBackend], Wire, Payloads]] = {
        "/anthropic": (AnthropicBackend, "anthropic_messages", _payloads),
        "/converse": (BedrockBackend, "bedrock_converse", _framed),
        "/gemini": (GeminiBackend, "gemini", partial(_payloads, end=b"\r\n\r\n")),
        "/responses": (OpenAIResponsesBackend, "openai_responses", _payloads),
    }
    for path, (backend_type, wire, payloads) in wires.items():
        url = f"{address}{path}?events={sizes.spaced_events}&pause_ms=1"
        profile = {"name": "measured", "wire": wire, "path": ""}
        with httpx.Client() as client, backend_type(model="m", base_url=url, profile=profile, api_key="k") as backend:
            raw_s, ours_s = _race([partial(_raw, client, url, payloads), partial(_read, backend)], sizes.rounds)
        per_event = (raw_s / sizes.spaced_events * 1e6, ours_s / sizes.spaced_events * 1e6)
        rows.append((wire, sizes.spaced_events, *per_event, times(ours_s, raw_s)))
    return Sheet(
        "CPU per streamed event on further wires",
        ("wire", "events", "raw, µs", "ctxfold, µs", "ratio"),
        tuple(rows),
        "As above, synchronous, one event a read. Target: 1.6 x or less.",
    )


def _race(lanes: list[Callable[[], Any]], rounds: int) -> tuple[float, float]:
    spent: list[list[float]] = [[], []]
    with frozen_heap():
        for number in range(rounds + 1):
            for lane, seconds in zip(lanes, spent, strict=True):
                start = time.process_time()
                lane()
                if number:  # the first round warms up
                    seconds.append(time.process_time() - start)
    return statistics.median(spent[0]), statistics.median(spent[1])


async def _async_race(url: str, rounds: int) -> tuple[float, float]:
    spent: list[list[float]] = [[], []]
    async with httpx.AsyncClient() as client, _backend(url) as backend:
        with frozen_heap():
            for number in range(rounds + 1):
                for lane, seconds in zip((lambda: _araw(client, url), lambda: _aread(backend)), spent, strict=True):
                    start = time.process_time()
                    await lane()
                    if number:
                        seconds.append(time.process_time() - start)
    return statistics.median(spent[0]), statistics.median(spent[1])


def _payloads(data: bytes, rest: bytes, end: bytes = b"\n\n") -> bytes:
    """Every whole event's payload loaded; what is left over."""
    *events, rest = (rest + data).split(end)
    for line in events:
        if line != b"data: [DONE]":
            json.loads(line[line.index(b"data: ") + 6 :])
    return rest


def _framed(data: bytes, rest: bytes) -> bytes:
    """The same of an event stream, whose frames begin with their length and that of their headers; checksums are not read."""
    rest += data
    while len(rest) >= 12 and len(rest) >= (size := int.from_bytes(rest[:4])):
        json.loads(rest[12 + int.from_bytes(rest[4:8]) : size - 4])
        rest = rest[size:]
    return rest


def _raw(client: httpx.Client, url: str, payloads: Payloads = _payloads) -> None:
    rest = b""
    with client.stream("POST", url, json=BODY) as response:
        for data in response.iter_bytes():
            rest = payloads(data, rest)


async def _araw(client: httpx.AsyncClient, url: str) -> None:
    rest = b""
    async with client.stream("POST", url, json=BODY) as response:
        async for data in response.aiter_bytes():
            rest = _payloads(data, rest)


def _read(backend: HttpBackend) -> str:
    fold = Fold("a1")
    for chunk in backend.open_stream(REQUEST):
        fold.feed(chunk)
    return fold.close().message.text


async def _aread(backend: OpenAIChatBackend) -> str:
    fold = Fold("a1")
    async for chunk in await backend.aopen_stream(REQUEST):
        fold.feed(chunk)
    return fold.close().message.text


# first token


def _first(address: str, sizes: Sizes, runner: asyncio.Runner) -> Sheet:
    url = f"{address}/v1?events=3&pause_ms={sizes.first_pause_ms}"
    rounds = min(sizes.rounds, 5)
    with httpx.Client() as client, _backend(url) as backend:
        for opened in (_raw_first(client, url), _first_event(backend)):
            assert opened  # connections are there
        raw = statistics.median(_raw_first(client, url) for _ in range(rounds))
        ours = statistics.median(_first_event(backend) for _ in range(rounds))
    in_async = runner.run(_afirst_event(url, rounds))
    rows: tuple[tuple[Cell, ...], ...] = (
        ("raw httpx, first bytes", raw * 1e3, _waited(raw, sizes)),
        ("ctxfold, first event", ours * 1e3, _waited(ours, sizes)),
        ("ctxfold async, first event", in_async * 1e3, _waited(in_async, sizes)),
    )
    return Sheet(
        f"First token on an open connection, the next one {sizes.first_pause_ms} ms later",
        ("client", "after the request, ms", "waited for the next"),
        rows,
    )


def _waited(seconds: float, sizes: Sizes) -> str:
    return "yes" if seconds * 1e3 >= sizes.first_pause_ms else "no"


def _raw_first(client: httpx.Client, url: str) -> float:
    start = time.perf_counter()
    with client.stream("POST", url, json=BODY) as response:
        pieces = response.iter_bytes()
        next(pieces)
        spent = time.perf_counter() - start
        for _ in pieces:
            pass
    return spent


def _first_event(backend: OpenAIChatBackend) -> float:
    start, spent, fold = time.perf_counter(), 0.0, Fold("a1")
    for chunk in backend.open_stream(REQUEST):
        if fold.feed(chunk) and not spent:
            spent = time.perf_counter() - start
    return spent


async def _afirst_event(url: str, rounds: int) -> float:
    times_s: list[float] = []
    async with _backend(url) as backend:
        for _ in range(rounds + 1):
            start, spent, fold = time.perf_counter(), 0.0, Fold("a1")
            async for chunk in await backend.aopen_stream(REQUEST):
                if fold.feed(chunk) and not spent:
                    spent = time.perf_counter() - start
            times_s.append(spent)
    return statistics.median(times_s[1:])


# many at once


def _many(address: str, sizes: Sizes, runner: asyncio.Runner) -> Sheet:
    raise_file_limit(sizes.streams * 2 + 256)
    url = f"{address}/v1?events={sizes.events_each}&together={sizes.streams}"
    rows = [
        _crowd("raw httpx", sizes, runner, _raw_crowd(url, sizes)),
        _crowd("ctxfold", sizes, runner, _own_crowd(url, sizes)),
    ]
    return Sheet(
        f"{sizes.streams:,} streams at once on one async client, {sizes.events_each} events each",
        ("client", "streams", "complete", "lost", "seconds", "CPU s", "CPU per event, µs"),
        tuple(rows),
        "The server holds every second event back until all streams have begun, so all are open at the same time.",
    )


def _crowd(name: str, sizes: Sizes, runner: asyncio.Runner, crowd: Coroutine[Any, Any, int]) -> tuple[Cell, ...]:
    wall, cpu = time.perf_counter(), time.process_time()
    whole = runner.run(crowd)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    lost = str(sizes.streams - whole)
    return name, sizes.streams, whole, lost, wall, cpu, cpu / sizes.streams / sizes.events_each * 1e6


async def _raw_crowd(url: str, sizes: Sizes) -> int:
    limits = httpx.Limits(max_connections=2048, max_keepalive_connections=64)  # as in our client
    async with httpx.AsyncClient(limits=limits, timeout=60) as client:
        done = await asyncio.gather(*(_araw(client, url) for _ in range(sizes.streams)), return_exceptions=True)
    return sum(result is None for result in done)


async def _own_crowd(url: str, sizes: Sizes) -> int:
    """How many came complete, to the word."""
    whole = "".join(f" {WORDS[n % len(WORDS)]}" for n in range(sizes.events_each // 4, sizes.events_each - 1))
    async with _backend(url) as backend:
        texts = await asyncio.gather(*(_aread(backend) for _ in range(sizes.streams)), return_exceptions=True)
    return sum(text == whole for text in texts)
