"""Any LlamaIndex LLM as the engine's backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole, ThinkingBlock
from llama_index.core.llms.mock import MockLLM
from pydantic import PrivateAttr

from ctxfold import (
    AgentContext,
    BackendError,
    ConfigError,
    MessageError,
    Request,
    ScriptedBackend,
    Thinking,
    ToolSpec,
    tool_result,
    user,
)
from ctxfold.stream import Fold
from ctxfold.testing import ErrorReply, ModelServer, Scripted, ScriptedCall
from ctxfold.tokens.text import RatioCounter
from llamaindex_ctx import CtxLLM
from llamaindex_ctx.backend import LlamaIndexBackend
from tests.llamaindex.served_llm import stock_llm

LOOK = ToolSpec("look", "Looks something up.", {"type": "object", "properties": {"key": {"type": "string"}}})


@asynccontextmanager
async def serving(
    script: Any, *, provider: str = "generic", **settings: Any
) -> AsyncIterator[tuple[ModelServer, CtxLLM]]:
    """A server and an LLM that speaks to it; its connections are closed at the end."""
    with ModelServer(**({"model": "m", "script": script} if script is not None else {}), **settings) as server:
        llm = CtxLLM(model=server.model, provider=provider, base_url=server.base_url, api_key="x", max_retries=0)
        yield server, llm
        llm.close()
        await llm.aclose()


async def whole(backend: LlamaIndexBackend, request: Request) -> list[Any]:
    """The reply by each of the four ways."""
    found: list[Any] = [backend.send(request), await backend.asend(request)]
    fold = Fold("s")
    for chunk in backend.open_stream(request):
        fold.feed(chunk)
    found.append(fold.close())
    fold = Fold("a")
    async for chunk in await backend.aopen_stream(request):
        fold.feed(chunk)
    return [*found, fold.close()]


async def test_four_ways_give_one_reply() -> None:
    async with serving(lambda _: Scripted("Good morning to you.", "let me think")) as (server, llm):
        asked = Request([user("hello", id="u")], max_tokens=50, temperature=0.5, stop=("END",))
        for reply in await whole(LlamaIndexBackend(llm), asked):
            assert reply.message.text == "Good morning to you."
            assert reply.message.reasoning == "let me think"
            assert (reply.finish_reason, reply.message.model) == ("stop", "m")
            assert reply.usage.input_tokens > 0
            assert reply.usage.output_tokens > 0
        for request in server.requests:
            assert (request.body["max_tokens"], request.body["temperature"]) == (50, 0.5)
            assert request.body["stop"] in ("END", ["END"])


async def test_tools_are_offered_and_called() -> None:
    calls = (ScriptedCall("look", '{"key": "a"}', "c1"), ScriptedCall("look", '{"key": "b"}', "c2"))
    async with serving(lambda _: Scripted("Looking.", tool_calls=calls)) as (server, llm):
        request = Request([user("hello", id="u")], tools=(LOOK,), tool_choice="required")
        for reply in await whole(LlamaIndexBackend(llm), request):
            assert [(c.id, c.arguments) for c in reply.message.tool_calls] == [
                ("c1", '{"key": "a"}'),
                ("c2", '{"key": "b"}'),
            ]
            assert reply.message.text == "Looking."
        sent = server.requests[0].body
        assert sent["tools"][0]["function"]["parameters"]["properties"] == {"key": {"type": "string"}}
        assert sent["tool_choice"] == "required"
        LlamaIndexBackend(llm).send(Request([user("hello", id="u")], tools=(LOOK,), tool_choice="look"))
        assert server.requests[-1].body["tool_choice"]["function"] == {"name": "look"}


async def test_a_session_over_it_streams_calls_tools_and_summarises() -> None:
    def answer(body: Any) -> Scripted:
        if body.get("tools") and body["messages"][-1]["role"] == "user":
            return Scripted(tool_calls=(ScriptedCall("look", '{"key": "a"}', "c1"),))
        return Scripted("So far, so good.", "thinking" if body["messages"][-1]["content"] == "well?" else "")

    async with serving(answer, provider="deepseek", strict="deepseek") as (server, llm):
        backend = LlamaIndexBackend(llm, context_window=1_200)
        with AgentContext(backend, counter=RatioCounter(), system="Be brief.") as ctx:
            call = ctx.send("look up a", tools=(LOOK,)).message.tool_calls[0]
            assert (
                ctx.send([tool_result(call.id, "found a", id="r1")], tools=(LOOK,)).message.text == "So far, so good."
            )
            assert Thinking in [type(e) for e in ctx.send_stream("well?")]
            for number in range(12):
                text = "".join(e.text for e in ctx.send_stream(f"question {number} " + "word " * 60))  # type: ignore[union-attr]
                assert text == "So far, so good."
            events = [e async for e in ctx.asend_stream("and async? " + "word " * 60)]
            assert events
            assert (await ctx.asend("once more")).message.text == "So far, so good."
            assert ctx.usage().compactions > 0
            assert "So far, so good." in ctx.view().compressed[0].message.text
        assert not any("ctxfold" in str(r.body) for r in server.requests)  # our marks stay at home


async def test_the_mock_llm_keeps_a_session() -> None:
    backend = LlamaIndexBackend(MockLLM(max_tokens=5), context_window=700)
    with AgentContext(backend, counter=RatioCounter()) as ctx:
        for number in range(10):
            assert ctx.send(f"question {number} " + "word " * 60).message.text
            assert list(ctx.send_stream(f"streamed {number}"))
        assert ctx.usage().compactions > 0
        assert (await ctx.asend("bye")).message.text
        assert [e async for e in ctx.asend_stream("really")]


OVERFLOW = "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens."


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (ErrorReply(400, {"error": {"message": OVERFLOW, "code": "context_length_exceeded"}}), "context_overflow"),
        (ErrorReply(429, {"error": {"message": "slow down"}}, {"retry-after": "3"}), "rate_limit"),
        (ErrorReply(503, {"error": {"message": "later"}}), "unavailable"),
    ],
)
async def test_errors_are_backend_errors(reply: ErrorReply, kind: str) -> None:
    asked = Request([user("hello", id="u")])
    async with serving(lambda _: reply) as (_, llm):
        backend = LlamaIndexBackend(llm)
        for call in (backend.send, backend.open_stream):
            with pytest.raises(BackendError) as caught:
                call(asked)
            assert caught.value.kind == kind
            assert caught.value.limit_tokens == (4096 if kind == "context_overflow" else None)
        for acall in (backend.asend, backend.aopen_stream):
            with pytest.raises(BackendError) as caught:
                await acall(asked)
            assert caught.value.kind == kind


class Playing(MockLLM):
    """Streams what it was given; an exception is raised in its turn."""

    _pieces: tuple[Any, ...] = PrivateAttr(default=())

    @classmethod
    def of(cls, *pieces: Any) -> Playing:
        made = cls()
        made._pieces = pieces
        return made

    def stream_chat(self, messages: Any, **kwargs: Any) -> Any:
        def play() -> Any:
            for piece in self._pieces:
                if isinstance(piece, Exception):
                    raise piece
                yield piece

        return play()

    async def astream_chat(self, messages: Any, **kwargs: Any) -> Any:
        async def play() -> Any:
            for piece in self._pieces:
                if isinstance(piece, Exception):
                    raise piece
                yield piece

        return play()

    def chat(self, messages: Any, **kwargs: Any) -> Any:
        return self._pieces[-1]


def piece(text: str, thought: str, **fields: Any) -> ChatResponse:
    thinking = ThinkingBlock(content=thought, additional_information={"signature": "SIG"})
    message = ChatMessage(role=MessageRole.ASSISTANT, content=text)
    message.blocks.insert(0, thinking)
    return ChatResponse(message=message, **fields)


@pytest.mark.parametrize("raw", [{"usage": {"input_tokens": 3, "output_tokens": 4}, "stop_reason": "end_turn"}, None])
async def test_cumulative_pieces_without_deltas(raw: Any) -> None:
    last = piece("yes, indeed", "hm, so", raw=raw)
    if raw is None:
        last.additional_kwargs.update(prompt_tokens=3, completion_tokens=4, finish_reason="end_turn")
    backend = LlamaIndexBackend(Playing.of(piece("", "hm"), piece("yes", "hm, so"), last))
    for reply in await whole_streams(backend):
        message = reply.message
        assert (message.reasoning, message.text, message.finish_reason) == ("hm, so", "yes, indeed", "end_turn")
        assert next(p.signature for p in message.parts if p.type == "reasoning") == "SIG"
        assert (reply.usage.input_tokens, reply.usage.output_tokens) == (3, 4)
    assert backend.send(Request([user("a", id="1")])).message.reasoning == "hm, so"


async def whole_streams(backend: LlamaIndexBackend) -> list[Any]:
    request, folds = Request([user("a", id="1")]), [Fold("s"), Fold("a")]
    for chunk in backend.open_stream(request):
        folds[0].feed(chunk)
    async for chunk in await backend.aopen_stream(request):
        folds[1].feed(chunk)
    return [fold.close() for fold in folds]


@pytest.mark.parametrize(
    ("error", "kind"),
    [(TimeoutError("late"), "timeout"), (ConnectionError("x"), "connect"), (RuntimeError("b"), "server")],
)
async def test_a_stream_that_fails_or_is_empty_is_a_backend_error(error: Exception, kind: str) -> None:
    asked = Request([user("a", id="1")])
    backend = LlamaIndexBackend(Playing.of(piece("a", "b"), error))
    with pytest.raises(BackendError) as caught:
        list(backend.open_stream(asked))
    assert caught.value.kind == kind
    with pytest.raises(BackendError):
        [c async for c in await backend.aopen_stream(asked)]
    empty = LlamaIndexBackend(Playing.of())
    with pytest.raises(BackendError, match="before its first"):
        empty.open_stream(asked)
    with pytest.raises(BackendError, match="before its first"):
        await empty.aopen_stream(asked)
    stream = backend.open_stream(asked)
    stream.close()
    astream = await backend.aopen_stream(asked)
    await astream.aclose()


def test_what_it_cannot_do_is_told_before_anything_is_sent() -> None:
    with pytest.raises(ConfigError, match="does not support function calls"):
        LlamaIndexBackend(MockLLM()).send(Request([user("a", id="1")], tools=(LOOK,)))

    def refuse(_: Any) -> Any:
        raise MessageError("no")

    own: Callable[[Any], Any] = refuse
    llm = CtxLLM(model="m", backend=ScriptedBackend([own]))
    with pytest.raises(MessageError):
        LlamaIndexBackend(llm).send(Request([user("a", id="1")]))


def test_the_window_is_the_metadatas_or_the_users() -> None:
    assert LlamaIndexBackend(MockLLM()).context_window == MockLLM().metadata.context_window
    backend = LlamaIndexBackend(MockLLM(), context_window=9)
    assert (backend.context_window, backend.model) == (9, MockLLM().metadata.model_name)
    backend.close()


async def test_a_summary_has_no_limit_that_thinking_would_use_up() -> None:
    """Thinking counts as output, and LLM classes do not tell whether their model thinks. The prompt states the length."""

    def script(body: Any) -> Scripted:
        spent = "max_tokens" in body
        return Scripted("" if spent else "Ann keeps bees.", "I think. " * 20, finish_reason="length" if spent else None)

    with ModelServer(script=script) as server:
        async with stock_llm(server) as llm:
            backend = ScriptedBackend([f"answer {number}" for number in range(12)])
            with AgentContext(
                backend, summarizer=LlamaIndexBackend(llm), context_window=1_200, counter=RatioCounter()
            ) as ctx:
                for number in range(12):
                    ctx.send(f"question {number} " + "word " * 60)
                assert ctx.usage().compactions > 0
                assert "Ann keeps bees." in ctx.view().compressed[0].message.text
        assert all("max_tokens" not in request.body for request in server.requests)


def test_what_a_service_of_ours_does_is_known_but_for_a_summary_that_no_message_can_hold() -> None:
    llm = CtxLLM(model="gpt-5.2", provider="openai", wire="openai_responses", api_key="k")
    own, found = llm.backend.capabilities, LlamaIndexBackend(llm).capabilities
    assert own.compacts_from is not None
    assert (found.provider, found.compacts_from) == ("openai", None)
    assert found.of_model is not None
    assert found.of_model("another").compacts_from is None
    short = Request([user("Sum up.", id="u")], thinking=False, max_tokens=50)
    assert own.sparing is not None
    assert found.sparing is not None
    assert found.sparing(short) == own.sparing(short)
