"""A real llama.cpp server through the backend: streams, reasoning, tools, overflow, cancellation, dropped connections."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ctxfold import (
    BackendError,
    Content,
    ContentFirst,
    Message,
    Reply,
    Request,
    Thinking,
    ToolCalls,
    ToolSpec,
    assistant,
    system,
    tool_result,
    user,
)
from ctxfold.protocols import Chunk
from ctxfold.stream import Fold, StreamEvent
from tests.realmodel.llama import ANSWER, CALL, ENDLESS, THINK, LlamaServer

WEATHER = ToolSpec(
    "weather",
    "the weather in a city",
    {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Lima"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
ASKED: tuple[Message, ...] = (system("Be brief.", id="s"), user("How is the weather in Oslo?", id="u1"))


def request(*messages: Message, extra: dict[str, Any] = ANSWER, max_tokens: int = 24, **fields: Any) -> Request:
    return Request(messages or ASKED, max_tokens=max_tokens, temperature=0.0, extra=extra, **fields)


class Seen:
    """Events and reply of one stream."""

    def __init__(self) -> None:
        self.fold = Fold("a1")
        self.events: list[StreamEvent] = []

    def take(self, chunk: Chunk) -> None:
        self.events += self.fold.feed(chunk)

    def texts(self, *kinds: type[Any]) -> list[str]:
        return [event.text for event in self.events if isinstance(event, kinds)]

    def reply(self) -> Reply:
        return self.fold.close()


@pytest.fixture(params=["sync", "async"])
def seen(request: pytest.FixtureRequest, llama: LlamaServer) -> Any:
    """Runs one streamed request, sync and async."""

    async def arun(asked: Request) -> Seen:
        result = Seen()
        async with llama.backend() as backend, await backend.aopen_stream(asked) as stream:
            async for chunk in stream:
                result.take(chunk)
        return result

    def run(asked: Request) -> Seen:
        result = Seen()
        with llama.backend() as backend, backend.open_stream(asked) as stream:
            for chunk in stream:
                result.take(chunk)
        return result

    return run if request.param == "sync" else lambda asked: asyncio.run(arun(asked))


def test_an_answer_comes_in_pieces_and_adds_up_to_the_whole_one(seen: Any, llama: LlamaServer) -> None:
    result = seen(request())
    reply = result.reply()
    assert len(result.texts(Content)) > 10
    assert {type(e) for e in result.events} == {Content}
    assert reply.message.text == "".join(result.texts(Content))
    assert reply.finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.output_tokens == 24
    with llama.backend() as backend:
        whole = backend.send(request())
    assert (whole.message.text, whole.message.model) == (reply.message.text, "smol")


def test_reasoning_comes_apart_from_the_answer(seen: Any, llama: LlamaServer) -> None:
    result = seen(request(extra=THINK, max_tokens=60))
    kinds = [type(event) for event in result.events]
    thoughts = len(result.texts(Thinking))
    assert thoughts > 5
    assert kinds[: thoughts + 1] == [Thinking] * thoughts + [ContentFirst]
    assert set(kinds[thoughts + 1 :]) <= {Content}
    message = result.reply().message
    assert message.reasoning == "".join(result.texts(Thinking))
    assert message.text == "".join(result.texts(Content, ContentFirst))
    assert len(message.text.strip()) >= 8
    assert "think>" not in message.reasoning + message.text
    with llama.backend() as backend:
        whole = backend.send(request(extra=THINK, max_tokens=60))
    assert whole.message.reasoning.strip() == message.reasoning.strip()
    assert whole.message.text == message.text


def test_an_error_inside_a_stream_is_typed(seen: Any) -> None:
    """A thinking budget that ends the block against the grammar makes this server fail in the middle of its answer."""
    with pytest.raises(BackendError, match="grammar") as caught:
        seen(request(extra={**THINK, "thinking_budget_tokens": 16}, max_tokens=60))
    assert (caught.value.kind, caught.value.status) == ("server", None)


def test_a_forced_tool_call_and_the_round_after_it(seen: Any, llama: LlamaServer) -> None:
    result = seen(request(extra=CALL, max_tokens=200, tools=(WEATHER,), tool_choice="required"))
    reply = result.reply()
    assert {type(event) for event in result.events} == {ToolCalls}
    assert reply.finish_reason == "tool_calls"
    (call,) = reply.message.tool_calls
    assert call.name == "weather"
    assert json.loads(call.arguments)["city"] in ("Oslo", "Lima")
    with llama.backend() as backend:
        whole = backend.send(request(extra=CALL, max_tokens=200, tools=(WEATHER,), tool_choice="required"))
        assert [(c.name, c.arguments) for c in whole.message.tool_calls] == [(call.name, call.arguments)]
        answer = tool_result(call.id, "rain, 4 degrees", id="t1")
        closing = backend.send(request(*ASKED, reply.message, answer, tools=(WEATHER,)))
    assert closing.usage is not None
    assert reply.usage is not None
    assert closing.usage.input_tokens > reply.usage.input_tokens


@pytest.mark.parametrize("streamed", [False, True])
def test_an_overflow_tells_limit_and_request(small_llama: LlamaServer, streamed: bool) -> None:
    long = user("one two three four five six seven eight nine ten " * 150, id="u1")
    with small_llama.backend() as backend, pytest.raises(BackendError) as caught:
        backend.open_stream(request(long)) if streamed else backend.send(request(long))
    error = caught.value
    assert (error.kind, error.status, error.limit_tokens) == ("context_overflow", 400, small_llama.context)
    assert error.requested_tokens is not None
    assert error.requested_tokens > 1500


def test_what_no_room_is_left_for_is_cut_by_length(small_llama: LlamaServer) -> None:
    with small_llama.backend() as backend:
        reply = backend.send(request(user("word " * 980, id="u1"), max_tokens=500))
    assert reply.finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.output_tokens < 100


def endless() -> Request:
    return request(max_tokens=ENDLESS, extra={**ANSWER, "ignore_eos": True})


def test_closing_a_stream_frees_the_slot(llama: LlamaServer) -> None:
    with llama.backend() as backend:
        stream = backend.open_stream(endless())
        assert next(iter(stream)).content
        assert llama.busy()
        stream.close()
        assert llama.tokens_made() < ENDLESS / 2


async def test_cancelling_a_task_frees_the_slot(llama: LlamaServer) -> None:
    got = asyncio.Event()

    async def read() -> None:
        async with llama.backend() as backend:
            async for _ in await backend.aopen_stream(endless()):
                got.set()

    task = asyncio.create_task(read())
    await got.wait()
    assert await asyncio.to_thread(llama.busy)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(llama.tokens_made) < ENDLESS / 2


REQUESTS = 150


def numbered(number: int) -> Request:
    return request(user(f"Number {number}?", id=f"u{number}"), max_tokens=3)


def test_alternating_requests_survive_dropped_connections(llama: LlamaServer) -> None:
    """The server closes some connections after a stream that it promised to keep; no retry but the one for that is on."""
    with llama.backend(max_retries=0) as backend:
        for number in range(REQUESTS):
            if number % 2:
                assert backend.send(numbered(number)).usage is not None
            else:
                assert [c for c in backend.open_stream(numbered(number)) if c.usage is not None]


async def test_alternating_requests_survive_dropped_connections_async(llama: LlamaServer) -> None:
    async with llama.backend(max_retries=0) as backend:
        for number in range(REQUESTS):
            if number % 2:
                assert (await backend.asend(numbered(number))).usage is not None
            else:
                stream = await backend.aopen_stream(numbered(number))
                assert [c async for c in stream if c.usage is not None]


def test_an_earlier_reply_with_its_reasoning_goes_back(llama: LlamaServer) -> None:
    """The row sends reasoning back; the template shows it, so the prompt grows by it."""
    plain = assistant("It rains.", id="a1")
    thought = assistant("It rains.", id="a2", reasoning="four degrees and clouds over the harbour")
    with llama.backend() as backend:
        sizes = [
            reply.usage.input_tokens
            for said in (plain, thought)
            if (reply := backend.send(request(*ASKED, said, user("And Lima?", id="u2"), max_tokens=2))).usage
        ]
    assert sizes[1] > sizes[0] + 8
