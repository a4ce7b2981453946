"""Any LangChain chat model as the engine's backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain_core import exceptions as lc
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_deepseek import ChatDeepSeek
from langchain_openai import ChatOpenAI

from ctxfold import (
    AgentContext,
    BackendError,
    ConfigError,
    Request,
    ScriptedBackend,
    Thinking,
    ToolSpec,
    assistant,
    tool_result,
    user,
)
from ctxfold.stream import Fold
from ctxfold.testing import ErrorReply, ModelServer, Scripted, ScriptedCall
from ctxfold.tokens.text import RatioCounter
from langchain_ctx import ChatCtx
from langchain_ctx.backend import LangChainBackend

Maker = Callable[[ModelServer], BaseChatModel]
LOOK = ToolSpec("look", "Looks something up.", {"type": "object", "properties": {"key": {"type": "string"}}})


def chat_ctx(server: ModelServer) -> BaseChatModel:
    return ChatCtx(model=server.model, base_url=server.base_url, api_key="x", max_retries=0)


def chat_openai(server: ModelServer) -> BaseChatModel:
    return ChatOpenAI(  # type: ignore[call-arg]
        model=server.model, base_url=server.base_url, api_key="x", max_retries=0, stream_usage=True
    )


def chat_deepseek(server: ModelServer) -> BaseChatModel:
    return ChatDeepSeek(model=server.model, api_base=server.base_url, api_key="x", max_retries=0, stream_usage=True)  # type: ignore[arg-type]


@asynccontextmanager
async def serving(make: Maker, script: Any, **settings: Any) -> AsyncIterator[tuple[ModelServer, BaseChatModel]]:
    """A server and a model that speaks to it; the model's connections are closed at the end."""
    with ModelServer(**({"model": "m", "script": script} if script is not None else {}), **settings) as server:
        model: Any = make(server)
        yield server, model
        if isinstance(model, ChatCtx):
            await model.aclose()
            model.close()
        else:
            await model.root_async_client.close()
            model.root_client.close()


MODELS = [chat_ctx, chat_openai, chat_deepseek]


@pytest.fixture
def asked() -> Request:
    return Request([user("hello", id="u")], max_tokens=50, temperature=0.5, stop=("END",))


async def whole(backend: LangChainBackend, request: Request) -> list[Any]:
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


@pytest.mark.parametrize("make", MODELS)
async def test_four_ways_give_one_reply(make: Maker, asked: Request) -> None:
    async with serving(make, lambda _: Scripted("Good morning to you.", "let me think")) as (server, model):
        backend = LangChainBackend(model, context_window=8_000)
        for reply in await whole(backend, asked):
            assert reply.message.text == "Good morning to you."
            assert reply.message.reasoning == ("" if make is chat_openai else "let me think")  # ChatOpenAI drops it
            assert reply.message.finish_reason == reply.finish_reason == "stop"
            assert reply.message.model == "m"
            assert reply.usage is not None
            assert reply.usage.input_tokens > 0
            assert reply.usage.output_tokens > 0
        for request in server.requests:
            assert request.body.get("max_tokens", request.body.get("max_completion_tokens")) == 50
            assert request.body["temperature"] == 0.5
            assert request.body["stop"] in ("END", ["END"])


@pytest.mark.parametrize("make", MODELS)
async def test_tools_are_bound_and_called(make: Maker) -> None:
    calls = (ScriptedCall("look", '{"key": "a"}', "c1"), ScriptedCall("look", '{"key": "b"}', "c2"))
    async with serving(make, lambda _: Scripted("Looking.", tool_calls=calls)) as (server, model):
        request = Request([user("hello", id="u")], tools=(LOOK,), tool_choice="required")
        for reply in await whole(LangChainBackend(model), request):
            assert [(c.id, c.name) for c in reply.message.tool_calls] == [("c1", "look"), ("c2", "look")]
            assert [c.arguments for c in reply.message.tool_calls] == ['{"key": "a"}', '{"key": "b"}']
            assert reply.message.text == "Looking."
        sent = server.requests[0].body
        assert sent["tools"][0]["function"]["parameters"]["properties"] == {"key": {"type": "string"}}
        assert sent["tool_choice"] == "required"


@pytest.mark.parametrize("make", MODELS)
async def test_a_session_over_it_streams_calls_tools_and_summarises(make: Maker) -> None:
    def answer(body: Any) -> Scripted:
        if body.get("tools") and body["messages"][-1]["role"] == "user":
            return Scripted(tool_calls=(ScriptedCall("look", '{"key": "a"}', f"c{len(body['messages'])}"),))
        return Scripted("So far, so good.")

    async with serving(make, answer) as (_, model):
        backend = LangChainBackend(model, context_window=1_200)
        with AgentContext(backend, counter=RatioCounter(), system="Be brief.") as ctx:
            call = ctx.send("look up a", tools=(LOOK,)).message.tool_calls[0]
            assert (
                ctx.send([tool_result(call.id, "found a", id="r1")], tools=(LOOK,)).message.text == "So far, so good."
            )
            for number in range(12):
                text = "".join(e.text for e in ctx.send_stream(f"question {number} " + "word " * 60))  # type: ignore[union-attr]
                assert text == "So far, so good."
            events = [e async for e in ctx.asend_stream("and async? " + "word " * 60)]
            assert events
            assert (await ctx.asend("once more")).message.text == "So far, so good."
            assert ctx.usage().compactions > 0
            assert "So far, so good." in ctx.view().compressed[0].message.text  # the model wrote the summary
            assert ctx.usage().reported.output_tokens > 0


async def test_reasoning_goes_back_where_the_model_sends_it() -> None:
    with ModelServer(model="m", script=lambda _: Scripted("yes", "because")) as server:
        model = ChatCtx(model="m", provider="deepseek", base_url=server.base_url, api_key="x")
        with AgentContext(LangChainBackend(model), context_window=8_000) as ctx:
            kinds = [type(e) for e in ctx.send_stream("well?")]
            assert Thinking in kinds
            assert ctx.view().live[-1].message.reasoning == "because"


OVERFLOW = "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens."


@pytest.mark.parametrize("make", [chat_openai, chat_ctx])
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (ErrorReply(400, {"error": {"message": OVERFLOW, "code": "context_length_exceeded"}}), "context_overflow"),
        (ErrorReply(429, {"error": {"message": "slow down"}}, {"retry-after": "3"}), "rate_limit"),
        (ErrorReply(401, {"error": {"message": "bad key"}}), "auth"),
        (ErrorReply(503, {"error": {"message": "later"}}), "unavailable"),
    ],
)
async def test_errors_are_backend_errors(make: Maker, reply: ErrorReply, kind: str, asked: Request) -> None:
    async with serving(make, lambda _: reply) as (_, model):
        backend = LangChainBackend(model)
        for call in (backend.send, backend.open_stream):
            with pytest.raises(BackendError) as caught:
                call(asked)
            assert caught.value.kind == kind
            if kind == "context_overflow":
                assert caught.value.limit_tokens == 4096
            if kind == "rate_limit":
                assert (caught.value.retryable, caught.value.retry_after_s) == (True, 3.0)
        for acall in (backend.asend, backend.aopen_stream):
            with pytest.raises(BackendError) as caught:
                await acall(asked)
            assert caught.value.kind == kind


async def test_model_and_extra_fields_of_a_request_reach_the_service() -> None:
    async with serving(chat_openai, [Scripted("ok")] * 2) as (server, model):
        backend = LangChainBackend(model)
        request = Request([user("hello", id="u")], model="larger", extra={"top_k": 3})
        backend.send(request)
        for _ in backend.open_stream(request):
            pass
        assert [(r.body["model"], r.body["top_k"]) for r in server.requests] == [("larger", 3)] * 2


class Thinker(FakeListChatModel):
    """Has a setting `thinking` of its own, as Claude's class has, and keeps the arguments of each call."""

    thinking: dict[str, Any] | None = None
    given: list[dict[str, Any]] = []  # noqa: RUF012

    def _call(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> str:
        self.given.append(kwargs)
        return super()._call(messages, stop, run_manager, **kwargs)


@pytest.mark.filterwarnings("ignore:Thinker is not known to send reasoning back")
def test_the_setting_thinking_is_for_models_of_ours() -> None:
    model = Thinker(responses=["ok"], given=[])
    LangChainBackend(model).send(Request([user("hello", id="u")], thinking=False))
    assert model.given == [{}]


@pytest.mark.parametrize("effort", [None, "high"])
async def test_a_summary_by_a_model_that_thinks_has_no_limit(effort: str | None) -> None:
    def chat(server: ModelServer) -> BaseChatModel:
        return ChatOpenAI(model=server.model, base_url=server.base_url, api_key="x", reasoning_effort=effort)  # type: ignore[arg-type]

    async with serving(chat, lambda _: Scripted("So far: fillers.")) as (server, model):
        writer = LangChainBackend(model)
        with AgentContext(ScriptedBackend([]), summarizer=writer, context_window=1_000, auto_compact=False) as ctx:
            for n in range(12):
                ctx.add([user(f"question {n} " + "filler " * 20, id=f"u{n}"), assistant(f"answer {n}", id=f"a{n}")])
            ctx.compact(force=True)
        limits = {"max_tokens", "max_completion_tokens"} & server.requests[0].body.keys()
        assert bool(limits) == (effort is None)


class Failing(FakeListChatModel):
    """Raises what a partner package does, without a status or words that a service would use."""

    error: Any

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise self.error("no luck")

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        raise self.error("no luck")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (lc.ContextOverflowError, "context_overflow"),
        (lc.ModelAuthenticationError, "auth"),
        (lc.ModelPermissionDeniedError, "auth"),
        (lc.ModelInvalidRequestError, "rejected"),
        (lc.ModelNotFoundError, "rejected"),
        (lc.ModelRateLimitError, "rate_limit"),
        (lc.ModelTimeoutError, "timeout"),
        (lc.ModelConnectionError, "connect"),
        (lc.ModelAPIError, "server"),
    ],
)
def test_errors_of_langchains_own_classes_have_their_kinds(error: type[Exception], kind: str, asked: Request) -> None:
    backend = LangChainBackend(Failing(responses=["unreached"], error=error))
    for call in (backend.send, backend.open_stream):
        with pytest.raises(BackendError, match="no luck") as caught:
            call(asked)
        assert caught.value.kind == kind


async def test_a_limit_told_by_the_service_is_learnt() -> None:
    async with serving(chat_openai, None, context_window=900) as (_, model):
        with AgentContext(LangChainBackend(model), context_window=20_000) as ctx:
            for number in range(14):
                ctx.send(f"The code of room {number} is R{number}. " + "filler " * 60)
            assert ctx.usage().compactions > 0
            assert ctx.explain().to_dict()["context_window"] <= 900


class Recording(BaseChatModel):
    """Keeps what it was asked; streams pieces that were given."""

    @property
    def _llm_type(self) -> str:
        return "recording"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("whole"))])

    pieces: list[Any] = []  # noqa: RUF012
    seen: list[Any] = []  # noqa: RUF012

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Iterator[Any]:
        self.seen.append(messages)
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield ChatGenerationChunk(message=piece)


@pytest.mark.filterwarnings("ignore:Recording is not known to send reasoning back")
def test_signed_thoughts_come_back_as_the_blocks_they_were() -> None:
    blocks = [
        AIMessageChunk([{"type": "thinking", "thinking": "hm", "index": 0}]),
        AIMessageChunk([{"type": "thinking", "signature": "SIG", "index": 0}]),
        AIMessageChunk([{"type": "text", "text": "yes", "index": 1}], usage_metadata=usage(3, 0)),
        AIMessageChunk("", usage_metadata=usage(0, 4), response_metadata={"stop_reason": "end_turn"}),
    ]
    model = Recording(pieces=blocks, seen=[])
    with AgentContext(LangChainBackend(model), context_window=8_000) as ctx:
        list(ctx.send_stream("well?"))
        stored = ctx.view().live[-1].message
        assert (stored.reasoning, stored.text, stored.finish_reason) == ("hm", "yes", "end_turn")
        assert stored.usage is not None
        assert (stored.usage.input_tokens, stored.usage.output_tokens) == (3, 4)
        list(ctx.send_stream("again?"))
    assert model.seen[1][1].content == [
        {"type": "thinking", "thinking": "hm", "signature": "SIG", "index": 0},
        {"type": "text", "text": "yes", "index": 1},
    ]


class Unstreamed(BaseChatModel):
    """A model that does not stream: LangChain yields its whole message in place of pieces."""

    @property
    def _llm_type(self) -> str:
        return "unstreamed"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        message = AIMessage(
            "Let me look.",
            tool_calls=[{"name": "look", "args": {"key": "a"}, "id": "c1"}],
            additional_kwargs={"reasoning_content": "where?"},
            response_metadata={"model_name": "big", "finish_reason": "tool_calls"},
            usage_metadata=usage(3, 4),
        )
        return ChatResult(generations=[ChatGeneration(message=message)])


async def test_the_stream_of_a_model_that_does_not_stream_has_its_whole_answer() -> None:
    replies = await whole(LangChainBackend(Unstreamed(), context_window=8_000), Request((user("hello", id="u"),)))
    assert len({(r.message.parts, r.message.usage, r.message.model, r.message.finish_reason) for r in replies}) == 1
    assert [(c.id, c.parsed()) for c in replies[2].message.tool_calls] == [("c1", {"key": "a"})]
    assert replies[2].usage is not None


def usage(into: int, out: int) -> Any:
    return {"input_tokens": into, "output_tokens": out, "total_tokens": into + out}


async def test_a_stream_that_fails_or_is_empty_is_a_backend_error(asked: Request) -> None:
    failing = LangChainBackend(Recording(pieces=[AIMessageChunk("a"), lc.ModelTimeoutError("late")], seen=[]))
    with pytest.raises(BackendError, match="late") as caught:
        list(failing.open_stream(asked))
    assert caught.value.kind == "timeout"
    stream = failing.open_stream(asked)
    stream.close()
    with pytest.raises(BackendError, match="late"):
        [c async for c in await failing.aopen_stream(asked)]
    for raised in (ConnectionError("refused"), RuntimeError("boom")):
        broken = LangChainBackend(Recording(pieces=[raised], seen=[]))
        with pytest.raises(BackendError) as caught:
            broken.open_stream(asked)
        assert caught.value.kind == ("connect" if isinstance(raised, ConnectionError) else "server")


def test_the_window_is_the_profiles_or_the_users() -> None:
    known = ChatOpenAI(model="gpt-4o", api_key="x")  # type: ignore[arg-type]
    assert LangChainBackend(known).context_window == 128_000
    assert LangChainBackend(known, context_window=9).context_window == 9
    unknown = LangChainBackend(FakeListChatModel(responses=["x"]))
    assert unknown.context_window is None
    assert unknown.model == "FakeListChatModel"
    with pytest.raises(ConfigError, match="context_window"):
        AgentContext(unknown)


def test_what_it_cannot_do_is_told_before_anything_is_sent() -> None:
    with pytest.raises(ConfigError, match="bind_tools"):
        LangChainBackend(FakeListChatModel(responses=["x"])).send(Request([user("a", id="1")], tools=(LOOK,)))
    with (
        ModelServer(model="m", script=[]) as server,
        ChatCtx(model="m", base_url=server.base_url, api_key="x", session="s", context_window=900) as chat,
        pytest.raises(ConfigError, match="session of its own"),
    ):
        LangChainBackend(chat)


class Watching(BaseCallbackHandler):
    def __init__(self) -> None:
        self.tokens: list[str] = []

    def on_llm_new_token(self, token: str, **kwargs: Any) -> None:
        self.tokens.append(token)


def test_a_surrounding_run_hears_it_only_when_told_to() -> None:
    quiet, loud = Watching(), Watching()
    model = GenericFakeChatModel(messages=iter([AIMessage("one two"), AIMessage("one two")]))
    request = Request([user("a", id="1")])

    def run(_: Any) -> list[Any]:
        return [
            *LangChainBackend(model).open_stream(request),
            *LangChainBackend(model, config={"callbacks": [loud]}).open_stream(request),
        ]

    assert RunnableLambda(run).invoke("x", {"callbacks": [quiet]})
    assert quiet.tokens == []
    assert "".join(loud.tokens) == "one two"
