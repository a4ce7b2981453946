"""`ChatCtx` without a session: a plain chat model over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core import exceptions as lc
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableBinding
from langchain_core.tools import tool
from pydantic import BaseModel, SecretStr, ValidationError

from ctxfold import BackendError, ConfigError, OpenAIChatBackend, ScriptedBackend
from ctxfold.errors import EmptyMessagesError, InvalidTextError, WindowTooSmallError
from ctxfold.testing import ErrorReply, ModelServer, RawReply, Scripted, ScriptedCall
from langchain_ctx import ChatCtx
from langchain_ctx.errors import ChatOverflowError

CALLS = (ScriptedCall("weather", '{"city": "Köln"}', id="c1"), ScriptedCall("weather", '{"city":"Bonn"}', id="c2"))
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 80},
    "completion_tokens_details": {"reasoning_tokens": 5},
}


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"22 C in {city}"


class Forecast(BaseModel):
    """A forecast."""

    city: str
    degrees: int


@pytest.fixture
def play() -> Iterator[Any]:
    """A ChatCtx whose server plays the replies given, and that server."""
    opened: list[Any] = []

    def make(*script: Any, strict: Any = None, **settings: Any) -> tuple[ChatCtx, ModelServer]:
        server = ModelServer(model="m", script=list(script), strict=strict).start()
        opened.append(server)
        settings = {"model": "m", "api_key": "x", "max_retries": 0, **settings}
        chat = ChatCtx(base_url=server.base_url, **settings)
        opened.append(chat)
        return chat, server

    yield make
    for one in reversed(opened):
        one.close()


def merged(chunks: Iterator[AIMessageChunk] | list[AIMessageChunk]) -> AIMessageChunk:
    whole: AIMessageChunk | None = None
    for chunk in chunks:
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    return whole


RICH = Scripted(content="It is warm.", reasoning="Let me look.", tool_calls=CALLS, usage=USAGE)


def check_rich(message: AIMessage) -> None:
    assert message.text == "It is warm."
    assert message.additional_kwargs["reasoning_content"] == "Let me look."
    assert [(c["name"], c["args"], c["id"]) for c in message.tool_calls] == [
        ("weather", {"city": "Köln"}, "c1"),
        ("weather", {"city": "Bonn"}, "c2"),
    ]
    assert message.usage_metadata == {
        "input_tokens": 100,
        "output_tokens": 20,
        "total_tokens": 120,
        "input_token_details": {"cache_read": 80},
        "output_token_details": {"reasoning": 5},
    }
    meta = message.response_metadata
    assert (meta["model_name"], meta["finish_reason"], meta["model_provider"]) == ("m", "tool_calls", "generic")
    kinds = [b["type"] for b in message.content_blocks]
    assert kinds == ["reasoning", "text", "tool_call", "tool_call"]
    assert message.id


@pytest.mark.parametrize("version", [None, "v1"])
async def test_a_reply_has_everything_whole_or_streamed(play: Any, version: str | None) -> None:
    chat, _ = play(*[RICH] * 4, output_version=version)
    check_rich(chat.invoke("warm?"))
    check_rich(await chat.ainvoke("warm?"))
    pieces = list(chat.stream("warm?"))
    check_rich(merged(pieces))
    assert len({p.id for p in pieces}) == 1
    assert [p.chunk_position for p in pieces if p.chunk_position] == ["last"]
    assert sum(p.usage_metadata is not None for p in pieces) == 1
    check_rich(merged([p async for p in chat.astream("warm?")]))


def test_calls_without_index_or_id_are_told_apart(play: Any) -> None:
    def sse(*deltas: str) -> RawReply:
        frames = [f'data: {{"choices":[{{"index":0,"delta":{{"tool_calls":[{d}]}}}}]}}\n\n'.encode() for d in deltas]
        end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'
        return RawReply(frames=(*frames, end))

    chat, _ = play(
        sse(
            '{"function":{"name":"a","arguments":"{}"}}',
            '{"function":{"name":"b","arguments":"{\\"x\\":"}}',
            '{"function":{"arguments":"1}"}}',
        ),
        sse(
            '{"index":0,"id":"p","function":{"name":"a","arguments":"{}"}}',
            '{"index":0,"id":"q","function":{"name":"a","arguments":"{}"}}',
        ),
        sse(
            '{"function":{"name":"a","arguments":"{\\"x\\":1}"}}',
            '{"function":{"name":"a","arguments":"{\\"x\\":2}"}}',
        ),
        sse(  # with each piece, as some servers send them
            '{"index":0,"id":"p","function":{"name":"a","arguments":"{\\"x\\":"}}',
            '{"index":0,"id":"p","function":{"name":"a","arguments":"1}"}}',
        ),
    )
    first = merged(chat.stream("go"))
    assert [(c["name"], c["args"]) for c in first.tool_calls] == [("a", {}), ("b", {"x": 1})]
    assert all(c["id"] for c in first.tool_calls)
    assert [c["id"] for c in merged(chat.stream("go")).tool_calls] == ["p", "q"]
    assert [c["args"] for c in merged(chat.stream("go")).tool_calls] == [{"x": 1}, {"x": 2}]
    (repeated,) = merged(chat.stream("go")).tool_calls
    assert (repeated["id"], repeated["name"], repeated["args"]) == ("p", "a", {"x": 1})


def test_a_plain_model_sends_the_list_as_it_is(play: Any) -> None:
    chat, server = play(Scripted("ok"), temperature=0.5, max_tokens=50, stop=["END"], extra_body={"top_k": 3})
    chat.invoke(
        [
            SystemMessage("be brief"),
            HumanMessage("a"),
            AIMessage("b"),
            HumanMessage([{"type": "image", "url": "http://x/y.png"}]),
        ],
        {"configurable": {"session_id": "ignored without a store", "thread_id": "too"}},
        seed=7,
    )
    body = server.requests[0].body
    assert [m["role"] for m in body["messages"]] == ["system", "user", "assistant", "user"]
    assert body["messages"][3]["content"] == [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]
    assert (body["temperature"], body["max_tokens"], body["stop"], body["top_k"], body["seed"]) == (
        0.5,
        50,
        ["END"],
        3,
        7,
    )


def test_arguments_of_the_call_beat_the_fields(play: Any) -> None:
    chat, server = play(*[Scripted("ok")] * 2, temperature=0.5, max_tokens=50)
    chat.invoke("x", model="other", temperature=0, max_tokens=5, stop=["A"])
    body = server.requests[0].body
    assert (body["model"], body["temperature"], body["max_tokens"], body["stop"]) == ("other", 0, 5, ["A"])
    chat.bind(max_completion_tokens=7, stop="END").invoke("x")  # the limit's newer name, and a stop that is one text
    body = server.requests[1].body
    assert (body["max_tokens"], "max_completion_tokens" in body, body["stop"]) == (7, False, ["END"])


def test_tools_are_bound_in_every_form(play: Any) -> None:
    def lookup(word: str) -> str:
        """Look a word up."""
        return word

    schema = {"type": "function", "function": {"name": "raw", "parameters": {"type": "object", "properties": {}}}}
    chat, server = play(*[Scripted("ok")] * 7)
    for choice, sent in [
        ("any", "required"),
        (True, "required"),
        ("auto", "auto"),
        ("none", "none"),
        ("lookup", {"type": "function", "function": {"name": "lookup"}}),
        ({"type": "function", "function": {"name": "lookup"}}, {"type": "function", "function": {"name": "lookup"}}),
        ({"type": "tool", "name": "lookup"}, {"type": "function", "function": {"name": "lookup"}}),
    ]:
        bound = chat.bind_tools([weather, Forecast, lookup, schema], tool_choice=choice)
        assert isinstance(bound, RunnableBinding)
        bound.invoke("x")
        body = server.requests[-1].body
        assert [t["function"]["name"] for t in body["tools"]] == ["weather", "Forecast", "lookup", "raw"]
        assert body["tool_choice"] == sent
    with pytest.raises(ConfigError, match="web_search"):
        chat.bind_tools([{"type": "web_search"}]).invoke("x")


def test_a_tool_round_goes_back_with_reasoning(play: Any) -> None:
    chat, server = play(RICH, Scripted("Both 22."), strict="deepseek", provider="deepseek")
    messages: list[BaseMessage] = [HumanMessage("Köln and Bonn?")]
    messages.append(chat.bind_tools([weather]).invoke(messages))
    messages += [ToolMessage("22", tool_call_id=i, name="weather") for i in ("c1", "c2")]
    assert chat.bind_tools([weather]).invoke(messages).content == "Both 22."
    sent = server.requests[1].body["messages"][1]
    assert sent["reasoning_content"] == "Let me look."
    assert [c["function"]["arguments"] for c in sent["tool_calls"]] == [c.arguments for c in CALLS]


def test_broken_arguments_are_told_as_invalid_calls(play: Any) -> None:
    chat, _ = play(Scripted(tool_calls=(ScriptedCall("t", "{bad", id="c"),)))
    reply = chat.invoke("x")
    assert reply.tool_calls == []
    assert reply.invalid_tool_calls[0]["args"] == "{bad"


@pytest.mark.parametrize("method", ["function_calling", "json_schema", "json_mode"])
@pytest.mark.parametrize("include_raw", [False, True])
def test_structured_output(play: Any, method: Any, include_raw: bool) -> None:
    text = '{"city": "Köln", "degrees": 22}'
    called = Scripted(tool_calls=(ScriptedCall("Forecast", text),))
    chat, server = play(*[called if method == "function_calling" else Scripted(text)] * 2)
    given = chat.with_structured_output(Forecast, method=method, include_raw=include_raw).invoke("x")
    assert (given["parsed"] if include_raw else given) == Forecast(city="Köln", degrees=22)
    if method == "function_calling":
        assert server.requests[0].body["tool_choice"]["function"]["name"] == "Forecast"
    else:
        assert (
            server.requests[0].body["response_format"]["type"]
            == {"json_schema": "json_schema", "json_mode": "json_object"}[method]
        )
    plain = chat.with_structured_output(Forecast.model_json_schema(), method=method, strict=None).invoke("x")
    assert plain == {"city": "Köln", "degrees": 22}


def test_a_parsing_error_is_told_beside_the_message(play: Any) -> None:
    chat, _ = play(Scripted("no json"))
    given = chat.with_structured_output(Forecast, method="json_schema", include_raw=True).invoke("x")
    assert given["parsed"] is None
    assert isinstance(given["parsing_error"], lc.OutputParserException)


def test_in_a_chain(play: Any) -> None:
    chat, _ = play(Scripted("hello Ann"))
    assert (ChatPromptTemplate.from_template("greet {name}") | chat).invoke({"name": "Ann"}).content == "hello Ann"


ERRORS = [
    (ErrorReply(401, {"error": {"message": "bad key"}}), lc.ModelAuthenticationError),
    (ErrorReply(403, {"error": {"message": "not with this key"}}), lc.ModelPermissionDeniedError),
    (ErrorReply(404, {"error": {"message": "no such model"}}), lc.ModelNotFoundError),
    (ErrorReply(429, {"error": {"message": "slow down"}}), lc.ModelRateLimitError),
    (ErrorReply(429, {"error": {"message": "pay", "code": "insufficient_quota"}}), lc.ModelRateLimitError),
    (ErrorReply(500, {"error": {"message": "oops"}}), lc.ModelAPIError),
    (ErrorReply(400, {"error": {"message": "no"}}), lc.ModelInvalidRequestError),
    (RawReply(frames=(b"<html>garbage",), headers={"content-type": "text/html"}), lc.ModelAPIError),
    (
        ErrorReply(
            400, {"error": {"message": "maximum context length is 10 tokens", "code": "context_length_exceeded"}}
        ),
        lc.ContextOverflowError,
    ),
]


@pytest.mark.parametrize(("reply", "theirs"), ERRORS, ids=[t.__name__ + str(i) for i, (_, t) in enumerate(ERRORS)])
async def test_errors_are_ours_and_theirs(play: Any, reply: Any, theirs: type[Exception]) -> None:
    chat, _ = play(*[reply] * 4)
    for attempt in (lambda: chat.invoke("x"), lambda: list(chat.stream("x"))):
        with pytest.raises(theirs) as caught:
            attempt()
        assert isinstance(caught.value, BackendError)
        assert getattr(caught.value, "is_retryable", None) is caught.value.retryable, "by which LangChain's retries go"
    with pytest.raises(theirs):
        await chat.ainvoke("x")
    with pytest.raises(theirs):
        [c async for c in chat.astream("x")]


def test_an_unreachable_server_is_told() -> None:
    with ChatCtx(model="m", base_url="http://127.0.0.1:9/v1", max_retries=0) as chat:
        with pytest.raises(lc.ModelConnectionError) as caught:
            chat.invoke("x")
        assert getattr(caught.value, "is_retryable", None) is True


def test_an_overflow_of_a_plain_model_is_told(server: ModelServer) -> None:
    with ChatCtx(model="lookup", base_url=server.base_url, api_key="x") as chat, pytest.raises(ChatOverflowError):
        chat.invoke("word " * 20_000)


def test_bad_input_is_told(play: Any) -> None:
    chat, server = play()
    with pytest.raises(EmptyMessagesError):
        chat.invoke([])
    with pytest.raises(InvalidTextError):
        chat.invoke("\ud800")
    with pytest.raises(ConfigError, match="tool_choice"):
        chat.bind_tools([weather], tool_choice="nope").invoke("x")
    assert not server.requests


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({}, ConfigError),
        ({"model": "m", "base_url": "nowhere"}, ConfigError),
        ({"model": "m", "provider": "nobody"}, ConfigError),
        ({"model": "m", "session": "s"}, ConfigError),
        ({"model": "m", "session": "s", "context_window": 0}, ConfigError),
        ({"model": "m", "session": "", "context_window": 100}, ConfigError),
        ({"model": "m", "session": "s", "context_window": 100, "max_tokens": 100}, WindowTooSmallError),
        ({"model": "m", "session": "s", "context_window": 100, "policy": {"nope": 1}}, ConfigError),
        ({"model": "m", "policy": {"hard_ration": 0.5}}, ConfigError),
        ({"model": "m", "policy": {"hard_ratio": 5}}, ConfigError),
        ({"model": "m", "sections": ["x"]}, ConfigError),
        ({"model": "m", "contxt_window": 100}, ValidationError),
    ],
)
def test_bad_settings_are_told_at_once(settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        ChatCtx(**{"base_url": "http://127.0.0.1:9/v1", **settings})


@pytest.mark.parametrize(
    ("field", "advice"),
    [
        ("contxt_window", r"has no field 'contxt_window': did you mean context_window\?"),
        ("keep_last", r"give policy=\{'keep_last': \.\.\.\}"),
        ("top_p", r"goes into extra_body=\{'top_p': \.\.\.\}"),
        ("reasoning_effort", r"goes into extra_body=\{'reasoning_effort'"),
    ],
)
def test_an_unknown_field_is_told_its_place(field: str, advice: str) -> None:
    with pytest.raises(ValidationError, match=advice):
        ChatCtx(model="m", base_url="http://127.0.0.1:9/v1", **{field: 4})  # type: ignore[arg-type]


def test_the_key_comes_from_the_rows_variable_and_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", "sk-very-secret")
    with ChatCtx(model="deepseek-chat", provider="deepseek") as chat:
        assert chat.api_key == SecretStr("sk-very-secret")
        assert "sk-very-secret" not in repr(chat) + str(chat._identifying_params)


class Counted(ScriptedBackend):
    """Counts how often it was closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1


async def test_an_injected_backend_is_used_and_left_open() -> None:
    backend = Counted(["one", "two"])
    with ChatCtx(backend=backend) as chat:
        assert chat.invoke("x").content == "one"
        assert chat.model == backend.model
    async with ChatCtx(backend=backend) as again:
        assert again.invoke("x").content == "two"
    assert backend.closed == 0


def test_tokens_are_counted_with_our_counter() -> None:
    with ChatCtx(model="m", backend=ScriptedBackend([])) as chat:
        plain = chat.get_num_tokens_from_messages([AIMessage("hello world")])
        thought = chat.get_num_tokens_from_messages(
            [AIMessage("hello world", additional_kwargs={"reasoning_content": "so " * 100})]
        )
        assert thought > plain + 90
        assert chat.get_num_tokens_from_messages([HumanMessage("x")], tools=[weather]) > 20
        assert chat.get_num_tokens("hello") == 1


def test_params_for_tracing_and_caching() -> None:
    chat: BaseChatModel = ChatCtx(model="m", provider="openai", api_key="x", temperature=0.1, max_tokens=9, stop=["E"])
    told = chat._get_ls_params(model="n")
    assert (told["ls_provider"], told["ls_model_name"], told["ls_temperature"]) == ("ctx-openai", "n", 0.1)
    assert (told["ls_max_tokens"], told["ls_stop"]) == (9, ["E"])
    assert chat._llm_type == "chat-ctx"
    other = ChatCtx(model="m", provider="openai", api_key="x", temperature=0.2)
    assert chat._get_llm_string() != other._get_llm_string()


def test_one_backend_under_two_faces() -> None:
    backend = OpenAIChatBackend(model="m", base_url="http://127.0.0.1:9/v1")
    assert ChatCtx(backend=backend).context_backend is backend
