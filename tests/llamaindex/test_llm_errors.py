"""`CtxLLM`: what goes wrong is typed, a stream that is left is closed, calls run side by side."""

from __future__ import annotations

import asyncio
import threading

import pytest
from llama_index.core.base.llms.types import ChatMessage

from ctxfold import BackendError, ContextOverflowError
from ctxfold.testing import ErrorReply, ModelServer, RawReply, Scripted
from llamaindex_ctx import CtxLLM
from tests.llamaindex.served_llm import COMPLETE_WAYS, HELLO, KEY, WAYS, ask, served
from tests.timing import await_for

HALF = b'data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\n'


@pytest.mark.parametrize("way", WAYS + COMPLETE_WAYS)
async def test_a_refused_key_is_a_typed_error_that_does_not_hold_the_key(way: str) -> None:
    body = {
        "error": {
            "message": f"Incorrect API key provided: {KEY}",
            "type": "invalid_request_error",
            "code": "invalid_api_key",
        }
    }
    async with served(ErrorReply(401, body)) as (llm, _):
        with pytest.raises(BackendError) as raised:
            await ask(llm, way, HELLO if "chat" in way else "Hello?")
    assert raised.value.kind == "auth"
    assert KEY not in str(raised.value)


@pytest.mark.parametrize("way", WAYS)
async def test_an_unreachable_server_is_a_typed_error(way: str) -> None:
    async with ModelServer(script=[]) as server:
        address = server.base_url
    llm = CtxLLM(model="m", base_url=address, max_retries=0)
    with pytest.raises(BackendError) as raised:
        await ask(llm, way)
    assert raised.value.kind == "connect"
    await llm.aclose()


@pytest.mark.parametrize("way", WAYS)
async def test_an_overflow_is_typed_and_the_limit_it_told_is_remembered(way: str) -> None:
    async with served(settings={"context_window": 100_000}, context_window=200) as (llm, _):
        with pytest.raises(ContextOverflowError, match="200") as raised:
            await ask(llm, way, [ChatMessage(role="user", content="word " * 1000)])
        assert isinstance(raised.value.__cause__, BackendError)
        assert llm.metadata.context_window == 200
    async with served(settings={"context_window": 150}, context_window=200) as (llm, _):
        with pytest.raises(ContextOverflowError, match="200"):
            await ask(llm, way, [ChatMessage(role="user", content="word " * 1000)])
        assert llm.metadata.context_window == 150, "the smaller one, which its user has set"


@pytest.mark.parametrize("way", ["stream_chat", "astream_chat"])
async def test_a_stream_that_breaks_off_is_a_typed_error_after_what_had_come(way: str) -> None:
    seen: list[str] = []
    async with served(RawReply(frames=(HALF,), then="abort")) as (llm, _):
        with pytest.raises(BackendError) as raised:
            if way == "stream_chat":
                seen.extend(r.delta for r in llm.stream_chat(HELLO))
            else:
                async for response in await llm.astream_chat(HELLO):
                    seen.append(response.delta)
    assert raised.value.kind == "connection"
    assert way == "stream_chat" or seen == ["half"]


@pytest.mark.parametrize("way", ["stream_chat", "astream_chat"])
async def test_leaving_a_stream_closes_the_connection(way: str) -> None:
    async with served(RawReply(frames=(HALF,), then="hang")) as (llm, server):
        if way == "stream_chat":
            left = llm.stream_chat(HELLO)
            assert next(left).delta
            left.close()
        else:
            stream = await llm.astream_chat(HELLO)
            assert (await anext(stream)).delta
            await stream.aclose()
        await await_for(lambda: server.cancelled == 1)


async def test_async_calls_run_side_by_side() -> None:
    held = threading.Event()
    async with served(*[Scripted("ok", held=held)] * 10) as (llm, server):
        asked = asyncio.gather(*(llm.achat(HELLO) for _ in range(10)))
        await await_for(lambda: len(server.requests) == 10)
        assert not asked.done()
        held.set()
        assert [r.message.content for r in await asked] == ["ok"] * 10
