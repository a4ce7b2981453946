"""Every recorded byte stream over a real socket, sync and async: events, message, usage, finish reason, error, request."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctxfold import BackendError, Message, Request, ToolSpec, open_backend, system, tool_result, user
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.stream import Fold, StreamEvent
from tests.wire.raw_server import Play, RawServer

KEY = "sk-vector-4f1d"
MODEL = "m-test"
HERE = Path(__file__).parent
ALL = [
    json.loads(line)
    for name in ("vectors.jsonl", "own_vectors.jsonl")
    for line in (HERE / name).read_text(encoding="utf-8").splitlines()
]


def play(vector: dict[str, Any]) -> Play:
    frames = [frame.encode(vector["frame_encoding"]) for frame in vector["frames"]]
    slow = vector["then"] == "abort" or len(frames) > 20
    return Play(frames, vector["status"], vector["headers"], vector["then"], 0.002 if slow else 0.005)


def request() -> Request:
    tool = ToolSpec("now", "the time", {"type": "object", "properties": {}})
    messages = (system("Be brief.", id="s"), user("Hello", id="u"))
    return Request(messages, tools=(tool,), max_tokens=100, thinking=True)


def backend(vector: dict[str, Any], server: RawServer) -> HttpBackend:
    return open_backend(vector["provider"], MODEL, base_url=server.base_url, api_key=KEY, max_retries=0)


class Seen:
    """What one run of a vector gave."""

    def __init__(self) -> None:
        self.fold = Fold("a1", MODEL)
        self.events: list[StreamEvent] = []
        self.chunks: list[Any] = []
        self.error: BackendError | None = None

    def take(self, chunk: Any) -> None:
        self.chunks.append(chunk)
        self.events += self.fold.feed(chunk)


def run_sync(vector: dict[str, Any], server: RawServer) -> Seen:
    seen = Seen()
    with backend(vector, server) as service:
        try:
            for chunk in service.open_stream(request()):
                seen.take(chunk)
        except BackendError as error:
            seen.error = error
    return seen


async def run_async(vector: dict[str, Any], server: RawServer) -> Seen:
    seen = Seen()
    async with backend(vector, server) as service:
        try:
            async for chunk in await service.aopen_stream(request()):
                seen.take(chunk)
        except BackendError as error:
            seen.error = error
    return seen


def check_request(vector: dict[str, Any], server: RawServer) -> None:
    wanted = vector["request_expectation"]
    body = server.bodies[0]
    for name, value in wanted.get("must_contain", {}).items():
        assert body[name] == value
    assert not set(wanted.get("must_not_contain", ())) & body.keys()
    assert set(wanted.get("headers_present", ())) <= server.headers[0].keys()
    key_header = "x-api-key" if "x-api-key" in wanted.get("headers_present", ()) else "authorization"
    if vector["provider"] != "anthropic" or key_header == "x-api-key":
        assert server.headers[0][key_header].removeprefix("Bearer ") == KEY


def check_next_request(vector: dict[str, Any], message: Message) -> None:
    """The request after this reply: what the row wants back stands at the places that the vector names."""
    wanted = vector["request_expectation"].get("next_request_must_contain_messages", {})
    asked = request()
    results = [tool_result(call.id, "done", id=f"t{n}") for n, call in enumerate(message.tool_calls)]
    with open_backend(vector["provider"], MODEL, api_key=KEY) as service:
        following = replace(asked, messages=(*asked.messages, message, *results))
        rows = service.request_body(following, stream=True)["messages"]
    for place, fields in wanted.items():
        assert {name: rows[int(place)][name] for name in fields} == fields


def check_error(expected: dict[str, Any] | None, error: BackendError | None) -> None:
    if expected is None:
        assert error is None
        return
    assert error is not None
    assert (error.kind, error.retryable, error.status) == (expected["kind"], expected["retryable"], expected["status"])
    assert error.code == (None if expected["code"] is None else str(expected["code"]))
    assert (expected["message_contains"] or "") in str(error)
    assert (error.limit_tokens, error.requested_tokens) == (expected.get("limit"), expected.get("requested"))
    assert error.retry_after_s == expected.get("retry_after")
    assert KEY not in str(error)
    assert "<" not in str(error)


def check(vector: dict[str, Any], seen: Seen) -> None:
    expected = vector["expected"]
    check_error(expected["error"], seen.error)
    early = expected["error"] is not None and not expected.get("events")
    if not early:
        assert [type(e).__name__ for e in seen.events] == expected["events"]
        finishes = [c.finish_reason for c in seen.chunks if c.finish_reason is not None]
        assert (finishes[-1] if finishes else None) == expected["finish"]
    if seen.error is not None:
        partial = seen.fold.partial()
        assert ("" if partial is None else partial.text) == expected["content"]
        return
    result = seen.fold.close()
    check_message(result.message, expected)
    check_next_request(vector, result.message)
    assert result.finish_reason == expected["finish"]
    raw = [c.raw for c in seen.chunks if c.finish_reason == expected["finish"]]
    assert expected["finish_reason"] is None or f'"{expected["finish_reason"]}"' in json.dumps(raw)
    usage = expected["usage"]
    assert (None if result.usage is None else {k: getattr(result.usage, k) for k in usage or {}}) == usage
    assert "".join(c.refusal for c in seen.chunks) == expected.get("refusal", "")


def check_message(message: Message, expected: dict[str, Any]) -> None:
    assert message.reasoning == expected["reasoning"]
    assert message.text == expected["content"]
    calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in message.tool_calls]
    assert calls == expected["tool_calls"]
    if "reasoning_details" in expected:
        (part,) = (p for p in message.parts if p.type == "reasoning")
        assert part.details is not None
        assert json.loads(part.details) == expected["reasoning_details"]
    if "signatures" in expected:
        assert [p.signature for p in message.parts if p.type == "reasoning"] == expected["signatures"]
    if "refusal" in expected:
        assert message.opaque("refusal") == expected["refusal"]


def test_all_of_them_are_here() -> None:
    assert len(ALL) == 42 + 1, "the recorded ones, and our own"


@pytest.mark.parametrize("vector", ALL, ids=lambda v: v["name"])
def test_vector_sync(vector: dict[str, Any]) -> None:
    with RawServer(play(vector)) as server:
        seen = run_sync(vector, server)
        check_request(vector, server)
    check(vector, seen)


@pytest.mark.parametrize("vector", ALL, ids=lambda v: v["name"])
async def test_vector_async(vector: dict[str, Any]) -> None:
    with RawServer(play(vector)) as server:
        seen = await run_async(vector, server)
        check_request(vector, server)
    check(vector, seen)


@pytest.mark.parametrize("vector", [v for v in ALL if v["expected"]["error"] is None], ids=lambda v: v["name"])
async def test_a_vector_read_whole_gives_the_same_reply(vector: dict[str, Any]) -> None:
    """A server may stream although it was not asked to: `send` reads that too."""
    with RawServer(play(vector)) as server:
        async with backend(vector, server) as service:
            sync_reply, async_reply = service.send(request()), await service.asend(request())
        assert server.bodies[0]["stream"] is False
    for result in (sync_reply, async_reply):
        check_message(result.message, vector["expected"])
        assert result.message.model == MODEL
        assert result.finish_reason == result.message.finish_reason == vector["expected"]["finish"]
