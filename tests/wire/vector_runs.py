"""Plays byte streams with a stated outcome against the public backends: shared by the vectors of several wires."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from ctxfold import BackendError, Message, Reply, Request, ToolSpec, system, tool_result, user
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.protocols import Chunk
from ctxfold.stream import Fold
from tests.wire.raw_server import Play

KEY = "sk-vector-4f1d"
MODEL = "m-test"
TOOL = ToolSpec("now", "the time", {"type": "object", "properties": {}})
ASKED = Request((system("Be brief.", id="s"), user("Hello", id="u")), tools=(TOOL,), max_tokens=2000, thinking=True)


def vectors(name: str) -> list[dict[str, Any]]:
    """Returns the vectors of a file beside this one."""
    return [json.loads(line) for line in (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()]


def frames(vector: dict[str, Any]) -> list[bytes]:
    """Returns the bytes of each network write."""
    if vector["frame_encoding"] == "base64":
        return [base64.b64decode(frame) for frame in vector["frames"]]
    return [frame.encode(vector["frame_encoding"]) for frame in vector["frames"]]


def cuts(data: bytes) -> Iterator[list[bytes]]:
    """Yields the body in one piece and cut at every 5, 2 and 1 bytes."""
    for size in (max(1, len(data)), 5, 2, 1):
        yield [data[start : start + size] for start in range(0, len(data), size)]


def play(vector: dict[str, Any], pieces: list[bytes] | None = None) -> Play:
    """Returns the answer of a raw server: the vector's own writes, or these."""
    written = frames(vector) if pieces is None else pieces
    pause_s = 0.0 if pieces is not None else 0.002
    return Play(written, vector["status"], vector["headers"], vector["then"], pause_s)


@dataclass
class Seen:
    """What one run of a vector gave."""

    fold: Fold = field(default_factory=lambda: Fold("a1", MODEL))
    kinds: list[str] = field(default_factory=list[str])
    error: BackendError | None = None

    def take(self, chunk: Chunk) -> None:
        self.kinds += [type(event).__name__ for event in self.fold.feed(chunk)]


def run_sync(service: HttpBackend, asked: Request = ASKED) -> Seen:
    seen = Seen()
    try:
        for chunk in service.open_stream(asked):
            seen.take(chunk)
    except BackendError as error:
        seen.error = error
    return seen


async def run_async(service: HttpBackend, asked: Request = ASKED) -> Seen:
    seen = Seen()
    try:
        async for chunk in await service.aopen_stream(asked):
            seen.take(chunk)
    except BackendError as error:
        seen.error = error
    return seen


def check(vector: dict[str, Any], seen: Seen, service: HttpBackend) -> None:
    """Compares what a run gave with what the vector states."""
    expected = vector["expected"]
    check_error(expected["error"], seen.error)
    if expected.get("event_order") and (seen.error is None or expected["error"].get("in_stream")):
        assert [kind for kind, _ in groupby(seen.kinds)] == expected["event_order"]
    if seen.error is not None:
        partial = seen.fold.partial()
        assert ("" if partial is None else partial.text) == expected["content"]
        return
    reply = seen.fold.close()
    check_reply(vector, reply)
    check_echo(vector, reply.message, service)


def check_error(expected: dict[str, Any] | None, error: BackendError | None) -> None:
    if expected is None:
        assert error is None, error
        return
    assert error is not None
    assert (error.kind, error.retryable, error.status) == (expected["kind"], expected["retryable"], expected["status"])
    assert error.code == (None if expected["code"] is None else str(expected["code"]))
    assert (expected["message_contains"] or "") in str(error)
    assert (error.limit_tokens, error.requested_tokens) == (expected.get("limit"), expected.get("requested"))
    assert KEY not in str(error)


def check_reply(vector: dict[str, Any], reply: Reply) -> None:
    expected, message = vector["expected"], reply.message
    assert (message.reasoning, message.text) == (expected["reasoning"], expected["content"])
    calls = [(c.id, c.name, json.loads(c.arguments)) for c in message.tool_calls]
    assert calls == [(c["id"], c["name"], json.loads(c["arguments"])) for c in expected["tool_calls"]]
    assert reply.finish_reason == message.finish_reason == expected["finish"]
    usage = expected["usage"]
    assert (None if reply.usage is None else {name: getattr(reply.usage, name) for name in usage or {}}) == usage
    if "signatures" in expected:
        assert [p.signature for p in message.parts if p.type == "reasoning"] == expected["signatures"]


def next_rows(service: HttpBackend, message: Message, asked: Request = ASKED) -> list[dict[str, Any]]:
    """Returns the messages of the request that follows this reply and, where it has calls, their results."""
    results = [tool_result(call.id, "done", id=f"t{n}") for n, call in enumerate(message.tool_calls)]
    following = (*asked.messages, message, *results, user("And now?", id="u2"))
    body = service.request_body(Request(following, tools=asked.tools, max_tokens=2000), stream=True)
    rows: list[dict[str, Any]] = body["messages"]
    return rows


def check_echo(vector: dict[str, Any], message: Message, service: HttpBackend) -> None:
    """The next request carries the turn as the vector states it."""
    if "echo" in vector["expected"]:
        rows = next_rows(service, message)
        assert [row for row in rows if row["role"] == "assistant"] == vector["expected"]["echo"]
