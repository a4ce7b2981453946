"""The byte streams of generateContent over real sockets, sync and async, at every cut; and what the next request carries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from ctxfold import BackendError, GeminiBackend, Message, Reply, open_backend, tool_result, user
from ctxfold.backends.gemini import GeminiParser
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.stream import Fold
from tests.wire.raw_server import Play, RawServer
from tests.wire.test_vectors import KEY, MODEL, Seen, check_error, request

HERE = Path(__file__).parent
ALL = [json.loads(line) for line in (HERE / "vectors_gemini.jsonl").read_text(encoding="utf-8").splitlines()]
WHOLE = [v for v in ALL if v["expected"]["error"] is None]


def frames(vector: Mapping[str, Any]) -> list[bytes]:
    return [frame.encode(vector["frame_encoding"]) for frame in vector["frames"]]


def play(vector: Mapping[str, Any], size: int | None = None) -> Play:
    sent = frames(vector)
    if size is not None:
        data = b"".join(sent)
        sent = [data[at : at + size] for at in range(0, len(data), size or 1)] if size else [data]
    pause_s = 0.002 if vector["then"] == "abort" else 0.0
    return Play(sent, vector["status"], vector["headers"], vector["then"], pause_s)


def backend(vector: Mapping[str, Any], server: RawServer) -> HttpBackend:
    settings: dict[str, Any] = {"base_url": server.base_url, "api_key": KEY, "max_retries": 0}
    if vector["provider"] == "gemini":
        return open_backend("gemini", MODEL, wire="gemini", **settings)
    return GeminiBackend(model=MODEL, provider=vector["provider"], **settings)


def run_sync(vector: Mapping[str, Any], server: RawServer) -> Seen:
    seen = Seen()
    with backend(vector, server) as service:
        try:
            for chunk in service.open_stream(request()):
                seen.take(chunk)
        except BackendError as error:
            seen.error = error
    return seen


async def run_async(vector: Mapping[str, Any], server: RawServer) -> Seen:
    seen = Seen()
    async with backend(vector, server) as service:
        try:
            async for chunk in await service.aopen_stream(request()):
                seen.take(chunk)
        except BackendError as error:
            seen.error = error
    return seen


def contains(whole: Any, part: Any) -> bool:
    match part:
        case {**fields}:
            return isinstance(whole, dict) and all(k in whole and contains(whole[k], v) for k, v in fields.items())
        case [*items]:
            return len(whole) == len(items) and all(map(contains, whole, items))
        case _:
            return bool(whole == part)


def check_request(vector: Mapping[str, Any], server: RawServer) -> None:
    wanted = vector["request_expectation"]
    assert server.paths[0].endswith(wanted.get("url_ends_with", ""))
    assert contains(server.bodies[0], wanted.get("must_contain", {}))
    assert server.headers[0]["x-goog-api-key"] == KEY
    assert KEY not in server.paths[0]


def check(vector: Mapping[str, Any], seen: Seen) -> None:
    expected = vector["expected"]
    check_error(expected["error"], seen.error)
    early = expected["error"] is not None and not expected.get("event_order")
    if not early:
        kinds = [kind for kind, _ in groupby(type(event).__name__ for event in seen.events)]
        assert kinds == expected["event_order"]
        usage = [chunk.usage for chunk in seen.chunks if chunk.usage is not None][-1]
        assert {name: getattr(usage, name) for name in expected["usage"]} == expected["usage"]
    if seen.error is not None:
        partial = seen.fold.partial()
        assert ("" if partial is None else partial.text) == expected["content"]
        return
    check_reply(seen.fold.close(), expected)


def check_reply(reply: Reply, expected: Mapping[str, Any]) -> None:
    message = reply.message
    assert (message.reasoning, message.text) == (expected["reasoning"], expected["content"])
    assert [(c.name, json.loads(c.arguments)) for c in message.tool_calls] == [
        (c["name"], json.loads(c["arguments"])) for c in expected["tool_calls"]
    ]
    for call, wanted in zip(message.tool_calls, expected["tool_calls"], strict=True):
        assert call.id == wanted["id"] or (wanted["id"] is None and call.id)
    assert reply.finish_reason == expected["finish"]
    assert f'"{expected["finish_reason"]}"' in json.dumps(reply.raw)
    check_echo(message, expected.get("echo", []))


def check_echo(message: Message, echo: list[dict[str, Any]]) -> None:
    """The request after this reply has the reply's parts in their order, and as many responses as calls behind them."""
    results = [tool_result(call.id, "done", id=f"t{n}") for n, call in enumerate(message.tool_calls)]
    with GeminiBackend(model=MODEL, api_key=KEY) as service:
        restored = service.message_from_jsonl(service.message_to_jsonl(message))
        assert restored == message
        asked = request()
        following = replace(asked, messages=(*asked.messages, restored, *results, user("And?", id="u2")))
        contents = service.request_body(following, stream=True)["contents"]
    assert contains(contents[1 : 1 + len(echo)], echo)
    responses = [part for content in contents for part in content["parts"] if "functionResponse" in part]
    assert [part["functionResponse"]["id"] for part in responses] == [call.id for call in message.tool_calls]
    assert len(contents) == 2 + len(echo) + bool(results)


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


@pytest.mark.parametrize("size", [0, 1, 2, 5])
@pytest.mark.parametrize("vector", [v for v in ALL if v["then"] == "eof"], ids=lambda v: v["name"])
async def test_vector_cut(vector: dict[str, Any], size: int) -> None:
    with RawServer(play(vector, size)) as server:
        check(vector, run_sync(vector, server))
        check(vector, await run_async(vector, server))


@pytest.mark.parametrize("vector", WHOLE, ids=lambda v: v["name"])
async def test_a_vector_read_whole_gives_the_same_reply(vector: dict[str, Any]) -> None:
    with RawServer(play(vector)) as server:
        async with backend(vector, server) as service:
            replies = service.send(request()), await service.asend(request())
        assert all(path.endswith(":generateContent") for path in server.paths)
    for reply in replies:
        check_reply(reply, vector["expected"])


@pytest.mark.parametrize("vector", [v for v in WHOLE if v["frames"][0].startswith("data:")], ids=lambda v: v["name"])
def test_a_stream_without_alt_sse_is_one_array(vector: dict[str, Any]) -> None:
    """Without the query the service streams one growing array of the same objects."""
    events = [json.loads(frame.removeprefix("data:")) for frame in vector["frames"]]
    data = json.dumps(events).encode()
    parser = GeminiParser(open_backend("gemini", MODEL, wire="gemini", api_key=KEY).profile)
    fold = Fold("a1", MODEL)
    for at in range(0, len(data), 7):
        for chunk in parser.feed(data[at : at + 7]):
            fold.feed(chunk)
    for chunk in parser.close():
        fold.feed(chunk)
    assert parser.error is None
    check_reply(fold.close(), vector["expected"])
