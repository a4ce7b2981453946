"""A server that streams chat events from a process of its own, so that its CPU is not counted as the client's."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from urllib.parse import parse_qs, urlsplit

__all__ = ["WORDS", "event", "raise_file_limit", "streaming_server"]

WORDS = ("the", "harbour", "lies", "in", "fog", "and", "every", "lamp", "along", "the", "quay", "burns", "low")
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(number: int, count: int) -> bytes:
    """One of `count` events as a provider writes them: a quarter of reasoning, then text, finish reason and usage last."""
    delta: dict[str, str] = {}
    if number == 0:
        delta["role"] = "assistant"
    field = "reasoning_content" if number < count // 4 else "content"
    delta[field] = f" {WORDS[number % len(WORDS)]}"
    body: dict[str, object] = {
        "id": "chatcmpl-7f3a9c1e",
        "object": "chat.completion.chunk",
        "created": 1_795_305_173,
        "model": "measured-model",
        "system_fingerprint": "fp_44709d6fcb",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}],
    }
    if number == count - 1:
        body["choices"] = [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
        body["usage"] = {"prompt_tokens": 900, "completion_tokens": count, "total_tokens": 900 + count}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


@contextmanager
def streaming_server() -> Iterator[str]:
    """Its base address. Query: `events`, `pause_ms` between them, `together` to hold the rest until so many have begun."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        if not ours.poll(30):
            raise RuntimeError("the streaming server did not start within 30 s")
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join(10)
        ours.close()


def raise_file_limit(wanted: int) -> None:
    """Sockets for so many streams, as far as the system lets a process ask."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard) if hard > 0 else wanted, hard))


def _serve(pipe: Connection) -> None:
    raise_file_limit(4096)
    asyncio.run(_run(pipe))


async def _run(pipe: Connection) -> None:
    gate = _Gate()
    server = await asyncio.start_server(gate.serve, "127.0.0.1", 0, backlog=2048)
    pipe.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


class _Gate:
    """Connections, and the streams that wait for each other."""

    def __init__(self) -> None:
        self.begun = 0
        self.all_begun = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length")
                )
                await reader.readexactly(length)
                query = parse_qs(urlsplit(head.split(b" ")[1].decode()).query)
                await self.stream(writer, {name: int(values[0]) for name, values in query.items()})
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def stream(self, writer: asyncio.StreamWriter, query: dict[str, int]) -> None:
        count, pause_s, together = query.get("events", 20), query.get("pause_ms", 0) / 1e3, query.get("together", 0)
        writer.write(HEAD)
        for number in range(count):
            data = event(number, count)
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await writer.drain()
            if pause_s:
                await asyncio.sleep(pause_s)
            if together and number == 0:
                await self.wait_for(together)
        done = b"data: [DONE]\n\n"
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(done), done))
        await writer.drain()

    async def wait_for(self, together: int) -> None:
        self.begun += 1
        if self.begun == together:
            self.begun = 0
            self.all_begun.set()
            self.all_begun = asyncio.Event()
            return
        await self.all_begun.wait()
