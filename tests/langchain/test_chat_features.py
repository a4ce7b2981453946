"""What LangChain builds on a chat model: content blocks, event streams, profiles, caches, limits and loops."""

from __future__ import annotations

import asyncio
import json
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.caches import InMemoryCache
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models.chat_model_stream import ChatModelStream
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.rate_limiters import BaseRateLimiter
from langchain_core.tools import tool
from pydantic import BaseModel

from ctxfold import ConfigError
from ctxfold.errors import CtxWarning
from ctxfold.testing import ModelServer, RawReply, Scripted, ScriptedCall
from langchain_ctx import ChatCtx
from langchain_ctx.messages import from_langchain, to_langchain

V3_IS_BETA = pytest.mark.filterwarnings("ignore:.*_stream_v3.*:langchain_core._api.LangChainBetaWarning")
CALLS = (ScriptedCall("weather", '{"city": "Köln"}', id="c1"), ScriptedCall("weather", '{"city": "Bonn"}', id="c2"))
RICH = Scripted("It is warm there.", reasoning="Let me look it up first.", tool_calls=CALLS)


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"22 C in {city}"


def chat_on(server: ModelServer, **settings: Any) -> ChatCtx:
    return ChatCtx(**{"model": "m", "base_url": server.base_url, "api_key": "x", "max_retries": 0, **settings})


def merged(chunks: Sequence[AIMessageChunk]) -> AIMessageChunk:
    first, *rest = chunks
    return sum(rest, start=first)


@pytest.fixture
def rich() -> Iterator[ModelServer]:
    """A server that always thinks, speaks and calls two tools at once."""
    with ModelServer(model="m", script=lambda _: RICH) as server:
        yield server


# content blocks


@pytest.mark.parametrize("version", ["v0", "v1"])
def test_reasoning_text_and_calls_stay_apart_in_merged_chunks(rich: ModelServer, version: str) -> None:
    with chat_on(rich, output_version=version) as chat:
        chunks = list(chat.stream("warm?"))
    whole = merged(chunks)
    blocks = whole.content_blocks
    assert [b["type"] for b in blocks] == ["reasoning", "text", "tool_call", "tool_call"]
    assert (blocks[0]["reasoning"], blocks[1]["text"]) == (RICH.reasoning, RICH.content)
    assert [b["args"] for b in blocks[2:]] == [{"city": "Köln"}, {"city": "Bonn"}]
    if version == "v1":
        indices = [b["index"] for c in chunks for b in c.content if "index" in b]
        kinds = {b["index"]: b["type"] for c in chunks for b in c.content if "index" in b}
        assert len(kinds) == 4
        assert len(indices) > len(kinds)  # each segment came in several pieces
    assert [c.chunk_position for c in chunks] == [*[None] * (len(chunks) - 1), "last"]
    for name in ("model_name", "finish_reason"):
        assert sum(name in c.response_metadata for c in chunks) == 1
    assert sum(c.usage_metadata is not None for c in chunks) == 1


def test_segments_of_one_kind_are_not_joined() -> None:
    def sse(**delta: Any) -> bytes:
        return (
            b"data: "
            + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}).encode()
            + b"\n\n"
        )

    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    frames = (sse(reasoning_content="one"), sse(content="A"), sse(reasoning_content="two"), sse(content="B"), end)
    with (
        ModelServer(model="m", script=[RawReply(frames=frames)] * 2) as server,
        chat_on(server, output_version="v1") as chat,
    ):
        whole = merged(list(chat.stream("x")))
        assert [b.get("reasoning", b.get("text")) for b in whole.content_blocks] == ["one", "A", "two", "B"]
        back = from_langchain(whole)
        assert [p.type for p in back.parts][:4] == ["reasoning", "text", "reasoning", "text"]
        assert to_langchain(back).content == whole.content


@V3_IS_BETA
@pytest.mark.parametrize("version", [None, "v1"])
async def test_event_streams_have_every_block(rich: ModelServer, version: str | None) -> None:
    with chat_on(rich, output_version=version) as chat:
        stream = chat.stream_events("warm?", version="v3")
        assert isinstance(stream, ChatModelStream)
        assert "".join(stream.text) == RICH.content
        message = stream.output
        later = await (await chat.astream_events("warm?", version="v3")).output
    for one in (message, later):
        assert isinstance(one, AIMessage)
        assert [b["type"] for b in one.content_blocks] == ["reasoning", "text", "tool_call", "tool_call"]
        assert [c["args"]["city"] for c in one.tool_calls] == ["Köln", "Bonn"]
        assert one.usage_metadata is not None
        assert one.response_metadata["model_name"] == "m"
        assert one.response_metadata["finish_reason"] == "tool_calls"


@V3_IS_BETA
async def test_event_streams_belong_to_the_configs_session(server: ModelServer) -> None:
    with chat_on(server, model="lookup", store="memory://", context_window=8_000) as chat:
        for name, number in (("a", 41), ("b", 42)):
            config: Any = {"configurable": {"session_id": name}}
            told = chat.stream_events(f"The code is {number}.", config, version="v3").output
            asked = await (await chat.astream_events("What is the code?", config, version="v3")).output
            assert asked.text == f"The code is {number}."
            context = chat.context(name)
            assert [m.role for m in context.window().messages] == ["user", "assistant"] * 2
            assert [m.id for m in context.window().messages][1::2] == [told.id, asked.id]
            # a full list, as agents send it, holds nothing new but its last message
            known: list[BaseMessage] = [told, HumanMessage("And what is the code now?")]
            await chat.ainvoke(known, config)
            assert context.usage().turns == 3
            assert len(context.window().messages) == 6


async def test_the_older_event_stream_belongs_to_it_too(server: ModelServer) -> None:
    with chat_on(server, model="lookup", store="memory://", context_window=8_000) as chat:
        config: Any = {"configurable": {"session_id": "a"}}
        kinds = [e["event"] async for e in chat.astream_events("The code is 41.", config, version="v2")]
        assert (kinds[0], kinds[-1]) == ("on_chat_model_start", "on_chat_model_end")
        assert len(chat.context("a").window().messages) == 2


# what a model tells about itself


def test_a_profile_comes_from_the_row_and_the_user() -> None:
    with ChatCtx(model="deepseek-v4-pro", provider="deepseek", api_key="x") as chat:
        assert chat.profile is not None
        told = chat.profile
        assert (told["max_input_tokens"], told["max_output_tokens"]) == (1_000_000, 384_000)
        assert told["reasoning_output"]
        assert told["tool_calling"]
        assert told["tool_choice"]
    with ChatCtx(model="m", base_url="http://127.0.0.1:9/v1", api_key="x", context_window=5_000) as chat:
        assert chat.profile is not None
        assert chat.profile["max_input_tokens"] == 5_000
        assert "max_output_tokens" not in chat.profile
    with ChatCtx(model="m", base_url="http://127.0.0.1:9/v1", api_key="x", profile={"max_input_tokens": 7}) as chat:
        assert chat.profile == {"max_input_tokens": 7}


def test_the_version_is_told_to_traces() -> None:
    with ChatCtx(model="m", base_url="http://127.0.0.1:9/v1", api_key="x") as chat:
        versions = (chat.metadata or {})["lc_versions"]
        assert {"ctxfold", "langchain-core"} <= versions.keys()


def test_replies_and_traces_name_the_same_provider(rich: ModelServer) -> None:
    for provider in ("deepseek", "openai", "generic"):
        with chat_on(rich, provider=provider) as chat:
            named = chat.invoke("x").response_metadata["model_provider"]
            assert chat._get_ls_params()["ls_provider"] == named


# caches and limits


def test_a_plain_model_is_cached_by_all_that_changes_its_answer(rich: ModelServer) -> None:
    cache = InMemoryCache()
    seed = {"seed": 1}
    with (
        chat_on(rich, cache=cache) as chat,
        chat_on(rich, cache=cache, temperature=1.0) as warmer,
        chat_on(rich, cache=cache, extra_body=seed) as seeded,
    ):
        first, again = chat.invoke("warm?"), chat.invoke("warm?")
        assert len(rich.requests) == 1
        assert (again.text, again.tool_calls) == (first.text, first.tool_calls)
        assert again.additional_kwargs["reasoning_content"] == RICH.reasoning
        for other in (warmer, seeded, chat.bind(stop=["x"]), chat.bind_tools([weather]), chat.bind(model="other")):
            before = len(rich.requests)
            other.invoke("warm?")
            assert len(rich.requests) == before + 1
        with chat_on(rich, cache=cache, output_version="v1") as blocks:
            assert isinstance(blocks.invoke("warm?").content, list)


def test_a_session_is_never_answered_from_a_cache(server: ModelServer) -> None:
    from langchain_core.globals import set_llm_cache

    set_llm_cache(InMemoryCache())
    try:
        with chat_on(server, model="lookup", session="s", context_window=8_000) as chat:
            chat.invoke("Hello.")
            chat.invoke("Hello.")
            assert chat.context().usage().turns == 2
    finally:
        set_llm_cache(None)
    assert len(server.requests) == 2


class Counted(BaseRateLimiter):
    """Lets everything through and counts it."""

    def __init__(self) -> None:
        self.passed = 0

    def acquire(self, *, blocking: bool = True) -> bool:
        self.passed += 1
        return True

    async def aacquire(self, *, blocking: bool = True) -> bool:
        self.passed += 1
        return True


@V3_IS_BETA
async def test_a_rate_limiter_is_asked_once_per_request(rich: ModelServer) -> None:
    limiter = Counted()
    with chat_on(rich, rate_limiter=limiter) as chat:
        chat.invoke("x")
        await chat.ainvoke("x")
        list(chat.stream("x"))
        [c async for c in chat.astream("x")]
        _ = chat.stream_events("x", version="v3").output
    assert limiter.passed == len(rich.requests) == 5


# event loops


def test_two_loops_in_two_threads_and_one_after_the_other(rich: ModelServer) -> None:
    """One model, many loops: each has connections of its own, and nothing is left open when a loop ends without `aclose`."""
    chat = chat_on(rich)
    texts: list[str] = []
    together = threading.Barrier(2)

    async def talk() -> None:
        for _ in range(5):
            together.wait(60)
            asked = [chat.ainvoke("x") for _ in range(3)]
            texts.extend(m.text for m in await asyncio.gather(*asked))
            texts.append(merged([c async for c in chat.astream("x")]).text)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        threads = [threading.Thread(target=lambda: asyncio.run(talk())) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        texts.append(asyncio.run(chat.ainvoke("x")).text)
        texts.append(chat.invoke("x").text)
    assert texts == [RICH.content] * 42


def test_models_are_dropped_without_close_and_without_warnings(rich: ModelServer) -> None:
    async def once() -> str:
        return (await chat_on(rich).ainvoke("x")).text

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [asyncio.run(once()) for _ in range(3)] == [RICH.content] * 3
        assert chat_on(rich).invoke("x").text == RICH.content


# thinking and forced calls


def test_a_forced_call_is_made_without_thinking_where_both_cannot_be() -> None:
    script = [RICH, RICH, Scripted("ok")]
    with ModelServer(model="m", script=script, strict="deepseek") as server:
        with chat_on(server, provider="deepseek") as chat:
            chat.bind_tools([weather], tool_choice="any").invoke("x")
            chat.bind_tools([weather], tool_choice="weather").invoke("x")
            chat.bind_tools([weather]).invoke("x")
        assert [r.body["thinking"]["type"] for r in server.requests] == ["disabled", "disabled", "enabled"]


def test_a_model_that_cannot_be_forced_chooses_between_tools_and_is_refused_one() -> None:
    """LangChain's agents ask for "any" tool where one is the structured answer; a tool's name is a demand."""
    with (
        ModelServer(model="m", script=[RICH], strict="deepseek") as server,
        chat_on(server, provider="deepseek", thinking=True) as chat,
    ):
        with pytest.warns(CtxWarning, match="leaves it to the model whether it calls a tool"):
            chat.bind_tools([weather], tool_choice="any").invoke("x")
        assert [(r.body["thinking"]["type"], r.body["tool_choice"]) for r in server.requests] == [("enabled", "auto")]
        with pytest.raises(ConfigError, match="cannot force a tool call while thinking"):
            chat.bind_tools([weather], tool_choice="weather").invoke("x")


class Song(BaseModel):
    """A song."""

    title: str


NEWEST = {"model": "claude-opus-5-5", "provider": "anthropic"}
BLUE = Scripted(reasoning="Hm.", tool_calls=(ScriptedCall("Song", '{"title": "Blue"}'),))
UNFORCED = pytest.mark.parametrize(
    "settings",
    [NEWEST, {"model": "claude-sonnet-4-6", "provider": "anthropic", "thinking": True}],
    ids=["always", "thinks"],
)


@UNFORCED
@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream"])
async def test_structured_output_of_a_model_that_cannot_be_forced(settings: dict[str, Any], how: str) -> None:
    with ModelServer(script=[BLUE, Scripted("Blue."), BLUE], strict="anthropic") as server:
        with ChatCtx(base_url=server.base_url, api_key="k", max_tokens=4_000, **settings) as chat:
            song = chat.with_structured_output(Song)

            async def ask() -> Any:
                match how:
                    case "invoke":
                        return song.invoke("x")
                    case "ainvoke":
                        return await song.ainvoke("x")
                    case _:
                        return [*song.stream("x")][-1]

            assert await ask() == Song(title="Blue")
            with pytest.raises(OutputParserException, match=r"without the tool call of the schema.*json_schema"):
                await ask()
            both = chat.with_structured_output(Song, include_raw=True).invoke("x")
            assert isinstance(both, dict)
            assert (both["parsed"], both["parsing_error"]) == (Song(title="Blue"), None)
            await chat.aclose()
        assert all("tool_choice" not in request.body for request in server.requests)
        assert all("thinking" in str(request.body) for request in server.requests)


def test_an_agent_has_the_provider_enforce_the_schema_of_a_model_that_cannot_be_forced() -> None:
    """LangChain chooses by the profile for models that it does not know by name."""
    with ModelServer(script=[Scripted('{"title": "Blue"}'), BLUE], strict="anthropic") as server:
        with ChatCtx(base_url=server.base_url, api_key="k", **NEWEST) as chat:
            given: Any = {"messages": [("user", "A song.")]}
            assert create_agent(chat, [], response_format=Song).invoke(given)["structured_response"] == Song(
                title="Blue"
            )
            with pytest.warns(CtxWarning, match="leaves it to the model"):
                state = create_agent(chat, [], response_format=ToolStrategy(Song)).invoke(given)
            assert state["structured_response"] == Song(title="Blue")
        formats = [(request.body.get("output_config") or {}).get("format") for request in server.requests]
        assert [form is not None for form in formats] == [True, False]
