"""Every stream of the Responses API over a real socket, sync and async, however it is cut, and what goes back afterwards."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import pytest

from ctxfold import BackendError, Message, Request, open_backend, tool_result, user
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.backends.services import OpenAIResponsesBackend
from tests.wire.raw_server import Play, RawServer
from tests.wire.test_vectors import KEY, MODEL, Seen, check_error, check_message, play, request

PATH = Path(__file__).parent / "vectors_responses.jsonl"
ALL: list[dict[str, Any]] = [json.loads(line) for line in PATH.read_text(encoding="utf-8").splitlines()]
WHOLE = [v for v in ALL if v["expected"]["error"] is None]


def asked(vector: dict[str, Any]) -> Request:
    extra = {
        k: v for k, v in vector["request_expectation"].get("must_contain", {}).items() if k == "context_management"
    }
    return replace(request(), extra=extra)


def backend(vector: dict[str, Any], server: RawServer) -> HttpBackend:
    wait = 0.4 if vector["then"] == "hang" else 20.0
    return open_backend(
        "openai",
        MODEL,
        wire="openai_responses",
        base_url=server.base_url,
        api_key=KEY,
        max_retries=0,
        timeout_s=wait,
        idle_timeout_s=wait,
    )


def cut(vector: dict[str, Any], size: int) -> Play:
    """The same bytes in pieces of `size`; 0 is one piece."""
    whole = play(vector)
    data = b"".join(whole.frames)
    pieces = [data[i : i + size] for i in range(0, len(data), size)] if size else [data]
    return replace(whole, frames=pieces, pause_s=0.0)


def check(vector: dict[str, Any], seen: Seen) -> None:
    expected = vector["expected"]
    check_error(expected["error"], seen.error)
    kinds = [kind for kind, _ in groupby(type(event).__name__ for event in seen.events)]
    if vector["headers"]["content-type"] != "application/json":  # a whole reply has no order of arrival
        assert kinds == expected["event_order"]
    if seen.error is not None:
        partial = seen.fold.partial()
        assert ("" if partial is None else partial.text) == expected["content"]
        return
    result = seen.fold.close()
    check_message(result.message, expected)
    assert result.finish_reason == expected["finish"]
    assert f'"{expected["finish_reason"]}"' in json.dumps(result.raw)
    assert result.usage is not None
    assert {name: getattr(result.usage, name) for name in expected["usage"]} == expected["usage"]
    assert "".join(c.refusal for c in seen.chunks) == expected.get("refusal", "")
    check_echo(vector, result.message)


def following(message: Message, *, model: str = MODEL, **fields: Any) -> list[dict[str, Any]]:
    """The input of the request after this reply."""
    results = [tool_result(call.id, "done", id=f"t{n}") for n, call in enumerate(message.tool_calls)]
    asked_next = Request((user("Hello", id="u"), message, *results, user("And?", id="u2")), **fields)
    with OpenAIResponsesBackend(model=model, api_key=KEY) as service:
        items: list[dict[str, Any]] = service.request_body(asked_next, stream=True)["input"]
    return items


def covers(item: Any, wanted: Any) -> bool:
    """Tells whether an item has all that is wanted, and perhaps more keys."""
    if isinstance(wanted, dict):
        pairs = cast("dict[str, Any]", wanted).items()
        return isinstance(item, dict) and all(name in item and covers(item[name], value) for name, value in pairs)
    if isinstance(wanted, list):
        ones: list[Any] = [*cast("list[object]", wanted)]
        return len(item) == len(ones) and all(covers(one, other) for one, other in zip(item, ones, strict=True))
    return bool(item == wanted)


def check_echo(vector: dict[str, Any], message: Message) -> None:
    """What is wanted back stands in the next request in order, and after it the results and the next question."""
    echo, items = vector["expected"]["echo"], following(message)
    before = 0 if vector["expected"].get("compacted") else 1
    sent = items[before : before + len(echo)]
    assert covers(sent, echo), sent
    rest = [item.get("call_id") or item.get("content") for item in items[before + len(echo) :]]
    assert rest == [*(call.id for call in message.tool_calls), "And?"]


def test_all_of_them_are_here() -> None:
    assert len(ALL) == 19


@pytest.mark.parametrize("size", [None, 1, 5, 0], ids=lambda s: f"cut {s}")
@pytest.mark.parametrize("vector", ALL, ids=lambda v: v["name"])
def test_vector(vector: dict[str, Any], size: int | None) -> None:
    with RawServer(play(vector) if size is None else cut(vector, size)) as server:
        for way in ("sync", "async"):
            seen = Seen()
            with backend(vector, server) as service:
                (read_sync if way == "sync" else read_async)(service, vector, seen)
            check(vector, seen)
        wanted = vector["request_expectation"].get("must_contain", {})
        assert all({name: body.get(name) for name in wanted} == wanted for body in server.bodies)
        assert {path.rpartition("/")[2] for path in server.paths} == {"responses"}
        assert {head["authorization"] for head in server.headers} == {f"Bearer {KEY}"}


def read_sync(service: HttpBackend, vector: dict[str, Any], seen: Seen) -> None:
    try:
        for chunk in service.open_stream(asked(vector)):
            seen.take(chunk)
    except BackendError as error:
        seen.error = error


def read_async(service: HttpBackend, vector: dict[str, Any], seen: Seen) -> None:
    async def read() -> None:
        try:
            async for chunk in await service.aopen_stream(asked(vector)):
                seen.take(chunk)
        except BackendError as error:
            seen.error = error
        await service.aclose()

    asyncio.run(read())


@pytest.mark.parametrize("vector", WHOLE, ids=lambda v: v["name"])
async def test_a_vector_read_whole_kept_as_a_line_and_asked_of_another_model(vector: dict[str, Any]) -> None:
    with RawServer(play(vector)) as server:
        async with backend(vector, server) as service:
            replies = service.send(asked(vector)), await service.asend(asked(vector))
            lines = [service.message_from_jsonl(service.message_to_jsonl(reply.message)) for reply in replies]
        assert server.bodies[0]["stream"] is False
    for reply, line in zip(replies, lines, strict=True):
        check_message(reply.message, vector["expected"])
        check_echo(vector, reply.message)
        assert line == reply.message
        bare = following(reply.message, model="m-other")
        assert not any(item.keys() & {"id", "phase", "encrypted_content"} for item in bare)
        said = [item["content"] for item in bare if item.get("role") == "assistant"]
        assert "".join(said) == vector["expected"]["content"]
        calls = [item["call_id"] for item in bare if item.get("type") == "function_call"]
        assert calls == [call["id"] for call in vector["expected"]["tool_calls"]]


@pytest.mark.parametrize("vector", WHOLE, ids=lambda v: v["name"])
def test_after_a_refusal_there_is_neither_reasoning_nor_an_id(vector: dict[str, Any]) -> None:
    with RawServer(play(vector)) as server, backend(vector, server) as service:
        message = service.send(asked(vector)).message
    sent = following(message, refused_before=2)
    assert not any(item.keys() & {"id", "encrypted_content"} for item in sent)


@pytest.mark.parametrize("vector", WHOLE, ids=lambda v: v["name"])
@pytest.mark.parametrize("provider", ["openai", "anthropic", "openrouter", "vllm", "gemini", "deepseek"])
def test_a_reply_goes_to_every_other_wire_without_its_items(vector: dict[str, Any], provider: str) -> None:
    with RawServer(play(vector)) as server, backend(vector, server) as service:
        message = service.send(asked(vector)).message
    results = [tool_result(call.id, "done", id=f"t{n}") for n, call in enumerate(message.tool_calls)]
    for model in (MODEL, "m-other"):
        with open_backend(provider, model, api_key=KEY) as other:
            body = other.request_body(Request((user("Hi", id="u"), message, *results)), stream=False)
        text = json.dumps(body)
        names = ("openai_responses", "encrypted_content", "msg_1", "fc_1", "rs_1")
        if provider != "anthropic" or model != MODEL:
            assert not any(f'"{name}"' in text for name in names), text
        assert all(call.name in text for call in message.tool_calls)
