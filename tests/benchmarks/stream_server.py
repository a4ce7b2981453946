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

from ctxfold.testing.served_converse import event_frame

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


def anthropic_event(number: int, count: int) -> bytes:
    """The same as the Messages API streams it: named events, a signed block of thinking, then a block of text."""
    thinks = number < count // 4
    piece = f" {WORDS[number % len(WORDS)]}"
    delta = {"type": "thinking_delta", "thinking": piece} if thinks else {"type": "text_delta", "text": piece}
    event = _named({"type": "content_block_delta", "index": int(not thinks), "delta": delta})
    if number == 0:
        usage = {"input_tokens": 900, "output_tokens": 1}
        message = {
            "id": "msg_7f3a9c1e",
            "type": "message",
            "role": "assistant",
            "model": "measured-model",
            "content": [],
        }
        opened = {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}
        return _named({"type": "message_start", "message": {**message, "usage": usage}}) + _named(opened) + event
    if number == count // 4:
        signed = {"type": "signature_delta", "signature": "c2lnbmVk"}
        opened = {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}
        return (
            b"".join(
                _named(body)
                for body in (
                    {"type": "content_block_delta", "index": 0, "delta": signed},
                    {"type": "content_block_stop", "index": 0},
                    opened,
                )
            )
            + event
        )
    if number < count - 1:
        return event
    stopped = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": count}}
    ends: tuple[dict[str, object], ...] = (
        {"type": "content_block_stop", "index": 1},
        stopped,
        {"type": "message_stop"},
    )
    return event + b"".join(_named(body) for body in ends)


def gemini_event(number: int, count: int) -> bytes:
    """The same as generateContent streams it: a whole reply object with each piece, and running usage."""
    part: dict[str, object] = {"text": f" {WORDS[number % len(WORDS)]}"}
    if number < count // 4:
        part["thought"] = True
    candidate: dict[str, object] = {"content": {"parts": [part], "role": "model"}, "index": 0}
    if number == count - 1:
        candidate["finishReason"] = "STOP"
    usage = {"promptTokenCount": 900, "candidatesTokenCount": number, "totalTokenCount": 900 + number}
    body = {
        "candidates": [candidate],
        "usageMetadata": {**usage, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 900}]},
        "modelVersion": "measured-model",
        "responseId": "7f3a9c1e",
    }
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\r\n\r\n"


def responses_event(number: int, count: int) -> bytes:
    """The same as the Responses API streams it: events with names, a summary of the reasoning, then the items complete."""
    thinks = number < count // 4
    piece = {"delta": f" {WORDS[number % len(WORDS)]}", "sequence_number": number, "obfuscation": "xq7xq7xq7xq7"}
    where = {"item_id": f"{'rs' if thinks else 'msg'}_7f3a9c1e7f3a9c1e7f3a9c1e", "output_index": int(not thinks)}
    if thinks:
        return _named({"type": "response.reasoning_summary_text.delta", **where, "summary_index": 0, **piece})
    delta = _named({"type": "response.output_text.delta", **where, "content_index": 0, "logprobs": [], **piece})
    if number == count // 4:
        item: dict[str, object] = {
            "type": "reasoning",
            "id": "rs_7f3a9c1e7f3a9c1e7f3a9c1e",
            "summary": [],
            "encrypted_content": "gAAAA",
        }
        return _named({"type": "response.output_item.done", "output_index": 0, "item": item}) + delta
    if number < count - 1:
        return delta
    usage = {"input_tokens": 900, "output_tokens": count, "total_tokens": 900 + count}
    response: dict[str, object] = {
        "object": "response",
        "status": "completed",
        "model": "measured-model",
        "output": [],
        "usage": usage,
    }
    return delta + _named({"type": "response.completed", "response": response})


def _named(body: dict[str, object]) -> bytes:
    return f"event: {body['type']}\ndata: {json.dumps(body, separators=(',', ':'))}\n\n".encode()


def converse_event(number: int, count: int) -> bytes:
    """The same as ConverseStream sends it: binary frames with checksums, padding, and usage after the end."""
    piece, thinks = f" {WORDS[number % len(WORDS)]}", number < count // 4
    delta: dict[str, object] = {"reasoningContent": {"text": piece}} if thinks else {"text": piece}
    body = {"contentBlockIndex": int(not thinks), "delta": delta, "p": "abcdefghijklmnopq"}
    frame = _frame("contentBlockDelta", body)
    if number < count - 1:
        return frame
    usage = {"inputTokens": 900, "outputTokens": count, "totalTokens": 900 + count}
    return frame + _frame("messageStop", {"stopReason": "end_turn"}) + _frame("metadata", {"usage": usage})


def _frame(kind: str, body: dict[str, object]) -> bytes:
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return event_frame(headers, json.dumps(body, separators=(",", ":")).encode())


EVENTS = {
    "/anthropic": (anthropic_event, b""),
    "/converse": (converse_event, b""),
    "/gemini": (gemini_event, b""),
    "/responses": (responses_event, b""),
    "/v1": (event, b"data: [DONE]\n\n"),
}


@contextmanager
def streaming_server() -> Iterator[str]:
    """Its base address, to which a path of EVENTS goes.

    Query: `events`, `pause_ms` between them, `together` to hold the rest until so many have begun.
    """
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
                url = urlsplit(head.split(b" ")[1].decode())
                await self.stream(
                    writer, url.path, {name: int(values[0]) for name, values in parse_qs(url.query).items()}
                )
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def stream(self, writer: asyncio.StreamWriter, path: str, query: dict[str, int]) -> None:
        write, done = EVENTS[path]
        count, pause_s, together = query.get("events", 20), query.get("pause_ms", 0) / 1e3, query.get("together", 0)
        writer.write(HEAD)
        for number in range(count):
            data = write(number, count)
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await writer.drain()
            if pause_s:
                await asyncio.sleep(pause_s)
            if together and number == 0:
                await self.wait_for(together)
        writer.write((b"%x\r\n%s\r\n" % (len(done), done) if done else b"") + b"0\r\n\r\n")
        await writer.drain()

    async def wait_for(self, together: int) -> None:
        self.begun += 1
        if self.begun == together:
            self.begun = 0
            self.all_begun.set()
            self.all_begun = asyncio.Event()
            return
        await self.all_begun.wait()
