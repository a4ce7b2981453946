"""Models that are not ours: their reasoning sent back, and their context managed in an existing chain."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.caches import InMemoryCache
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_core.runnables import ConfigurableField
from langchain_core.tools import tool
from langchain_deepseek import ChatDeepSeek
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from openai import BadRequestError, UnprocessableEntityError
from pydantic import BaseModel, Field

from ctxfold import ConfigError
from ctxfold.errors import MessageTooLargeError
from ctxfold.testing import ErrorReply, ModelServer, RawReply, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware, with_context, with_reasoning
from tests.langchain.faces import closed

ROUNDS = 10
Maker = Callable[[ModelServer], BaseChatModel]


@tool
def look(key: int) -> str:
    """Looks something up."""
    return f"Entry {key}."


class Found(BaseModel):
    """What was found."""

    key: int


def steps(body: Any) -> Scripted:
    done = sum(m["role"] == "tool" for m in body["messages"])
    if done == ROUNDS:
        return Scripted("All found.", reasoning="That was the last.")
    arguments = json.dumps({"key": done})
    return Scripted(reasoning=f"Number {done} is next.", tool_calls=(ScriptedCall("look", arguments),))


def deepseek(server: ModelServer, **settings: Any) -> BaseChatModel:
    return ChatDeepSeek(model_name="m", api_base=server.base_url, api_key="x", max_retries=0, **settings)


def openai(server: ModelServer, **settings: Any) -> BaseChatModel:
    return ChatOpenAI(model="m", base_url=server.base_url, api_key="x", max_retries=0, **settings)


@contextmanager
def serving(make: Maker, script: Any = steps, **settings: Any) -> Iterator[tuple[ModelServer, BaseChatModel]]:
    with ModelServer(model="m", script=script, strict="deepseek", **settings) as server:
        model: Any = make(server)
        yield server, model
        model.root_client.close()


@pytest.mark.parametrize("make", [deepseek, openai])
def test_it_is_the_same_model(make: Maker) -> None:
    """Class, fields and connections are the model's; the model itself is left as it was."""
    with serving(make) as (_, model):
        helped: Any = with_reasoning(model)
        assert isinstance(helped, type(model))
        assert type(helped).__name__ == type(model).__name__
        assert helped.model_dump(exclude={"api_key", "openai_api_key"}) == model.model_dump(
            exclude={"api_key", "openai_api_key"}
        )
        assert helped.root_client is model.root_client  # type: ignore[attr-defined]
        assert with_reasoning(helped) is helped
        assert with_reasoning(model) is not model
        assert type(model) in (ChatDeepSeek, ChatOpenAI)


@pytest.mark.parametrize("make", [deepseek, openai])
def test_structured_output_of_a_helped_model(make: Maker) -> None:
    def play(body: Any) -> Scripted:
        return Scripted('{"key": 7}')

    with serving(make, play) as (_, model):
        asked = with_reasoning(model).with_structured_output(
            {"title": "Found", "type": "object", "properties": {"key": {"type": "integer"}}}, method="json_mode"
        )
        assert asked.invoke("Give JSON.") == {"key": 7}


def test_a_conversation_without_reasoning_is_sent_as_before() -> None:
    with serving(openai, lambda _: Scripted("Hi.")) as (server, model):
        thread: Any = [("user", "a"), ("ai", "b"), ("user", "c")]
        with pytest.raises(BadRequestError):
            with_reasoning(model).invoke(thread)
        assert "reasoning_content" not in server.requests[-1].body["messages"][1]


def test_answers_from_before_get_an_empty_thought() -> None:
    """Once one answer has its reasoning, the service wants the field in all."""
    with serving(openai, lambda _: Scripted("Hi.", reasoning="Hm.")) as (server, model):
        first = with_reasoning(model).invoke("a")
        assert first.additional_kwargs["reasoning_content"] == "Hm."
        with_reasoning(model).invoke([("user", "a"), first, ("user", "b"), ("ai", "No thought."), ("user", "c")])
        sent = [m for m in server.requests[-1].body["messages"] if m["role"] == "assistant"]
        assert [m["reasoning_content"] for m in sent] == ["Hm.", ""]


def test_an_answer_of_another_class_is_one_without_a_thought() -> None:
    told = ChatMessage(role="assistant", content="b")
    with serving(openai, lambda _: Scripted("Hi.", reasoning="Hm.")) as (server, model):
        first = with_reasoning(model).invoke("a")
        with_reasoning(model).invoke([("user", "a"), told, ("user", "b"), first, ("user", "c")])
        sent = [m for m in server.requests[-1].body["messages"] if m["role"] == "assistant"]
        assert [m["reasoning_content"] for m in sent] == ["", "Hm."]
    with ModelServer(model="m", script=lambda _: Scripted("Hi.")) as server:
        plain: Any = openai(server)
        assert with_reasoning(plain).invoke([("user", "a"), told, ("user", "c")]).text == "Hi."
        assert "reasoning_content" not in server.requests[-1].body["messages"][1]
        plain.root_client.close()


def test_reasoning_in_content_blocks() -> None:
    with serving(openai, lambda _: Scripted("Hi.", reasoning="Hm.")) as (server, model):
        block = AIMessage([{"type": "reasoning", "reasoning": "As a block."}, {"type": "text", "text": "Yes."}])
        with_reasoning(model).invoke([("user", "a"), block, ("user", "b")])
        assert server.requests[-1].body["messages"][1]["reasoning_content"] == "As a block."


def test_models_that_send_it_themselves_stay_as_they_are() -> None:
    with ModelServer(model="m", script=steps) as server:
        own = ChatCtx(model="m", base_url=server.base_url, api_key="x")
        assert with_reasoning(own) is own
        own.close()
    from langchain_anthropic import ChatAnthropic  # takes a second: only the worker that runs this is to wait

    other: Any = ChatAnthropic(model="claude-x", api_key="x")
    assert with_reasoning(other) is other


def test_a_model_that_cannot_be_helped_is_named_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"FakeListChatModel gives no way.*ChatCtx"):
        with_reasoning(FakeListChatModel(responses=["a"]))


# with_context


def talk(body: Any) -> Scripted:
    """Says which questions it sees; thinks about it."""
    asked = [str(m["content"])[:5] for m in body["messages"] if m["role"] == "user"]
    return Scripted(f"I see {asked[-1]}. " + "It is a long story. " * 20, reasoning="Hm.", chunks=4)


async def say(model: Any, how: str, given: Any, config: Any = None) -> AIMessage:
    match how:
        case "invoke":
            answer = model.invoke(given, config)
        case "ainvoke":
            answer = await model.ainvoke(given, config)
        case "stream":
            parts = list(model.stream(given, config))
            answer = sum(parts[1:], parts[0])
        case _:
            parts = [p async for p in model.astream(given, config)]
            answer = sum(parts[1:], parts[0])
    assert isinstance(answer, AIMessage)
    return answer


HOWS = ["invoke", "ainvoke", "stream", "astream"]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("make", [deepseek, openai])
async def test_an_existing_model_in_a_small_window(make: Maker, how: str, store_url: str) -> None:
    """Twelve questions through a window of 1,000 tokens; replies are stored under the ids that were shown."""
    with serving(make, talk, context_window=1_000) as (_, model):
        chat = with_context(model, session_id="s", store=store_url, context_window=1_000)
        for number in range(12):
            answer = await say(chat, how, f"Q{number:03} please")
            assert answer.text.startswith(f"I see Q{number:03}")
            assert answer.additional_kwargs["reasoning_content"] == "Hm."
            assert answer.response_metadata["finish_reason"] == "stop"
            assert chat.context().archive.get(answer.id or "").text == answer.text
        usage = chat.context().usage()
        assert usage.turns == 12
        assert usage.compactions > 0
        chat.close()
        client: Any = model
        await client.root_async_client.close()


@pytest.mark.parametrize("make", [deepseek, openai])
@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
async def test_an_agent_on_a_wrapped_model(make: Maker, how: str) -> None:
    """Ten tool rounds with thoughts; the session is the thread's."""
    with serving(make) as (server, model):
        chat = with_context(model, store="memory://", context_window=32_000)
        agent = create_agent(chat, [look], checkpointer=InMemorySaver())
        config: Any = {"recursion_limit": 200, "configurable": {"thread_id": "t"}}
        given: Any = {"messages": [HumanMessage("Find all.")]}
        state = agent.invoke(given, config) if how == "invoke" else await agent.ainvoke(given, config)
        assert state["messages"][-1].text == "All found."
        assert sum(isinstance(m, ToolMessage) for m in state["messages"]) == ROUNDS
        assert len(server.requests) == ROUNDS + 1
        assert chat.context("t").usage().turns == 1
        client: Any = model
        await client.root_async_client.close()


async def test_no_token_twice() -> None:
    """In an event stream and in LangGraph's message stream every token comes once."""
    with serving(openai, talk) as (_, model):
        chat = with_context(model, session_id="s", context_window=8_000)
        whole = chat.invoke("Q000 please").text
        chain = chat | StrOutputParser()
        pieces = [
            e["data"]["chunk"].text
            async for e in chain.astream_events("Q000 again", version="v2")
            if e["event"] == "on_chat_model_stream"
        ]
        assert "".join(pieces) == whole
        agent = create_agent(chat, [])
        seen = [c async for c, _ in agent.astream({"messages": [HumanMessage("Q000 once")]}, stream_mode="messages")]
        assert "".join(c.text for c in seen if isinstance(c, AIMessage)) == whole
        client: Any = model
        await client.root_async_client.close()


def test_tools_structured_output_and_profile_are_the_models() -> None:
    def play(body: Any) -> Scripted:
        if body.get("tools"):
            return Scripted(tool_calls=(ScriptedCall("Found", '{"key": 7}'),))
        return Scripted('{"key": 7}')

    with serving(lambda s: openai(s, extra_body={"thinking": {"type": "disabled"}}), play) as (server, model):
        chat = with_context(model, session_id="s", context_window=8_000)
        for method in ("function_calling", "json_mode", "json_schema"):
            assert chat.with_structured_output(Found, method=method).invoke("Give JSON.") == Found(key=7)
            told: Any = chat.with_structured_output(Found, method=method, include_raw=True).invoke("Give JSON.")
            assert told["parsed"] == Found(key=7)
        assert chat.context().usage().replies == 6
        assert len(server.requests[-1].body["messages"]) > 2
        assert chat.profile == model.profile


async def structured(chain: Any, how: str, given: Any) -> Any:
    """What the parser makes of the reply, by each way to ask."""
    match how:
        case "invoke":
            return chain.invoke(given)
        case "ainvoke":
            return await chain.ainvoke(given)
        case "stream":
            return list(chain.stream(given))[-1]
        case _:
            return [one async for one in chain.astream(given)][-1]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("face", ["with_context", "ChatCtx"])
async def test_an_answer_by_a_function_stays_in_the_conversation(face: str, how: str) -> None:
    """No result follows the call, because a parser reads it; the next question sees both."""

    def play(body: Any) -> Scripted:
        names = [t["function"]["name"] for t in body.get("tools") or ()]
        return Scripted(tool_calls=(ScriptedCall("Found", '{"key": 7}'),)) if names == ["Found"] else Scripted("Hm.")

    with ModelServer(model="m", script=play, strict="openai") as server:
        settings: Any = {"model": "m", "base_url": server.base_url, "api_key": "x", "max_retries": 0}
        model = ChatOpenAI(**settings)
        chat: Any = (
            with_context(model, session_id="s", context_window=8_000)
            if face == "with_context"
            else ChatCtx(**settings, session_id="s", context_window=8_000)
        )
        chain = chat.with_structured_output(Found, method="function_calling")
        for question in ("Give JSON.", "Give more."):
            assert await structured(chain, how, question) == Found(key=7)
        await structured(chat, how, "Thanks.")
        asked = server.requests[-1].body["messages"]
        assert [m["role"] for m in asked] == ["user", "assistant", "tool", "user", "assistant", "tool", "user"]
        await closed(chat)
        await closed(model)


def test_tools_of_the_callers_own_wait_for_their_results() -> None:
    """Beside a schema in `response_format` a model may call tools, which the caller runs."""
    with ModelServer(
        model="m", script=[Scripted(tool_calls=(ScriptedCall("look"),)), Scripted('{"key": 7}')]
    ) as server:
        model = ChatOpenAI(model="m", base_url=server.base_url, api_key="x", max_retries=0)  # type: ignore[arg-type]
        chat = with_context(model, session_id="s", context_window=8_000)
        chain: Any = chat.with_structured_output(
            Found, method="json_schema", include_raw=True, strict=True, tools=[look]
        )
        (call,) = chain.invoke("Look.")["raw"].tool_calls
        chain.invoke([ToolMessage("Entry 7.", tool_call_id=call["id"])])
        assert [m.get("content") for m in server.requests[-1].body["messages"]][-1] == "Entry 7."
        assert chat.context().usage().turns == 1


@pytest.mark.parametrize("place", ["", "part:1|node:2"])
def test_a_router_and_an_answer_from_one_list(place: str) -> None:
    """A graph's nodes each ask with the graph's own list, in which a router's answer never stands."""

    def play(body: Any) -> Scripted:
        if body.get("tools"):
            return Scripted(tool_calls=(ScriptedCall("Found", '{"key": 7}'),))
        return Scripted(f"Answer {len(body['messages'])}.")

    with ModelServer(model="m", script=play, strict="openai") as server:
        model = ChatOpenAI(model="m", base_url=server.base_url, api_key="x", max_retries=0)  # type: ignore[arg-type]
        chat = with_context(model, store="memory://", context_window=8_000)
        router = chat.with_structured_output(Found, method="function_calling")
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": place}}
        listed: list[BaseMessage] = []
        for number in range(3):
            listed.append(HumanMessage(f"Q{number}", id=f"q{number}"))
            assert router.invoke(listed, config) == Found(key=7)
            listed.append(chat.invoke(listed, config))
        asked = [m["content"] for m in server.requests[-1].body["messages"]]
        assert asked == ["Q0", "Answer 1.", "Q1", "Answer 3.", "Q2"]


def test_tools_that_run_at_the_provider_are_the_models_affair() -> None:
    search = {"type": "web_search", "filters": {"allowed_domains": ["example.org"] * 40}}
    chat = with_context(FakeListChatModel(responses=["found"]), session_id="s", context_window=8_000)
    assert chat.bind(tools=[search, look]).invoke("Search.").text == "found"
    small = with_context(FakeListChatModel(responses=["found"]), session_id="s", context_window=200)
    told = r"has 6 tokens, the system prompt 0, tools and what else is sent \d{3}: together .* give fewer tools"
    with pytest.raises(MessageTooLargeError, match=told):
        small.bind(tools=[search]).invoke("Search.")


@pytest.mark.parametrize("store", [False, True])
def test_a_models_own_field_called_store_is_not_a_session_store(store: bool) -> None:
    with serving(lambda s: openai(s, store=store), lambda _: Scripted("Hi.")) as (server, model):
        assert with_context(model, session_id="s", context_window=8_000).invoke("hello").text == "Hi."
        agent = create_agent(model, [], middleware=[ContextMiddleware(context_window=8_000)])
        assert agent.invoke({"messages": [HumanMessage("hello")]})["messages"][-1].text == "Hi."
        assert [r.body["store"] for r in server.requests] == [store, store]


def test_the_models_cache_and_rate_limiter_still_work() -> None:
    limiter = InMemoryRateLimiter(requests_per_second=1_000, check_every_n_seconds=0.001, max_bucket_size=10)
    with serving(lambda s: openai(s, cache=InMemoryCache(), rate_limiter=limiter), talk) as (server, model):
        chat = with_context(model, store="memory://", context_window=8_000)
        first = chat.invoke("Q000", {"configurable": {"session_id": "a"}})
        again = chat.invoke("Q000", {"configurable": {"session_id": "b"}})
        assert first.text == again.text
        assert len(server.requests) == 1
        assert limiter.available_tokens < 10


def test_a_failure_is_the_models_own_and_leaves_the_session_as_it_was() -> None:
    refused = ErrorReply(422, {"error": {"message": "no", "type": "invalid"}})
    with serving(openai, [refused, Scripted("Hi.")]) as (_, model):
        chat = with_context(model, session_id="s", context_window=8_000)
        with pytest.raises(UnprocessableEntityError):
            chat.invoke("hello")
        assert chat.context().messages() == ()
        assert chat.invoke("hello").text == "Hi."


def test_an_overflow_is_learnt_and_the_call_made_again() -> None:
    """The window given is far too large: the service says so, and the next request fits."""
    with serving(openai, talk, context_window=1_000) as (_, model):
        chat = with_context(model, session_id="s", context_window=100_000)
        for number in range(20):
            assert chat.invoke(f"Q{number:03} please").text.startswith(f"I see Q{number:03}")
        assert chat.context().usage().compactions > 0
        assert chat.context().handle.engine.rules.context_window == 100_000
        assert chat.context().usage().budget_tokens <= 1_000


def test_without_a_session_the_call_is_passed_on() -> None:
    with serving(openai, talk) as (server, model):
        chat = with_context(model, store="memory://", context_window=8_000)
        assert chat.invoke("Q000").text == model.invoke("Q000").text
        assert "".join(c.text for c in chat.stream("Q000")) == model.invoke("Q000").text
        assert all(len(r.body["messages"]) == 1 for r in server.requests)


def test_a_copy_goes_on_with_the_same_sessions() -> None:
    fake = FakeListChatModel(responses=["a", "b"])
    chat = with_context(fake, session_id="s", context_window=8_000)
    chosen = chat.configurable_fields(owner=ConfigurableField("whose"))
    assert chosen.invoke("hello").text == "a"
    assert chosen.with_config(configurable={"whose": "ann"}).invoke("hello").text == "b"
    assert chat.context().usage().turns == 1
    assert chat.context(owner="ann").usage().turns == 1


@pytest.mark.parametrize("profile", [None, {"reasoning_output": True}])
def test_a_thinking_model_that_cannot_be_helped_is_taken(profile: Any) -> None:
    """Mistral's and Groq's services take requests without the reasoning; a warning names a package that drops it."""
    chat = with_context(FakeListChatModel(responses=["a"], profile=profile), session_id="s", context_window=8_000)
    assert chat.invoke("hello").text == "a"


def test_a_model_with_sessions_of_its_own_and_an_unknown_window_are_refused() -> None:
    with ModelServer(model="m", script=steps) as server:
        own = ChatCtx(model="m", base_url=server.base_url, api_key="x", session="s", context_window=8_000)
        with pytest.raises(ConfigError, match="sessions of its own"):
            with_context(own, session_id="s", context_window=8_000)
        own.close()
    twice = with_context(FakeListChatModel(responses=["a"]), store="memory://", context_window=8_000)
    with pytest.raises(ConfigError, match="sessions of its own"):
        with_context(twice, session_id="s", context_window=8_000)
    with pytest.raises(ConfigError, match="context_window"):
        with_context(FakeListChatModel(responses=["a"]), session_id="s")


def test_a_model_whose_service_keeps_the_conversation_is_refused() -> None:
    """It would send the newest messages alone, whatever the window is."""
    with ModelServer(model="m", script=steps) as server:
        model = ChatOpenAI(model="m", base_url=server.base_url, api_key="x", use_previous_response_id=True)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"use_previous_response_id=True: the service keeps .* leave that out"):
            with_context(model, context_window=8_000)
        agent: Any = create_agent(model, middleware=[ContextMiddleware(context_window=8_000)])
        with pytest.raises(ConfigError, match="leave that out"):
            agent.invoke({"messages": [HumanMessage("Hi")]})
        assert not server.requests


class Spoiling(FakeListChatModel):
    """A model that keeps the messages of its requests, and changes them in place."""

    requests: list[list[BaseMessage]] = Field(default_factory=list)

    def _call(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> str:
        self.requests.append([*messages])
        assert not messages[0].additional_kwargs
        messages[0].additional_kwargs["spoilt"] = True
        messages.clear()
        return super()._call([], *args, **kwargs)


def test_the_messages_of_a_window_are_converted_once() -> None:
    """The next request has the same messages, but for those that the model has changed meanwhile."""
    inner = Spoiling(responses=["One.", "Two.", "Three."])
    model = with_context(inner, session_id="s", context_window=8_000)
    for text in ("First.", "Second.", "Third."):
        model.invoke(text)
    _, second, third = inner.requests
    assert [m.text for m in third] == ["First.", "One.", "Second.", "Two.", "Third."]
    assert third[0] is not second[0]
    assert all(third[i] is second[i] for i in (1, 2))


def test_an_erased_message_stays_in_no_converted_window() -> None:
    inner = Spoiling(responses=["One.", "Two."])
    model = with_context(inner, session_id="s", context_window=8_000)
    model.invoke("My secret is 47-B.")
    kept = weakref.ref(inner.requests.pop()[0])
    context = model.context()
    context.erasure.erase(context.view().live[0].id)
    gc.collect()
    assert kept() is None


ERASURES: dict[str, Callable[[Any], object]] = {
    "thread": lambda model: model.erase("s"),
    "message": lambda model: model.context("s").erasure.erase("secret"),
    "session": lambda model: model.context("s").erasure.erase_session(),
    "owner": lambda model: model.context("s").erasure.erase_owner(),
}


@pytest.mark.parametrize("erase", ERASURES.values(), ids=ERASURES)
def test_no_window_is_kept_of_what_was_erased(erase: Callable[[Any], object]) -> None:
    with with_context(FakeListChatModel(responses=["Noted."]), session_id="s", context_window=4_000) as model:
        model.invoke([HumanMessage("My code is 4711-sesame.", id="secret")])
        assert _messages_with("4711-sesame"), "the window waits for the next call"
        erase(model)
        assert _messages_with("4711-sesame") == []


def _messages_with(text: str) -> list[BaseMessage]:
    gc.collect()
    messages = [m for m in gc.get_objects() if issubclass(type(m), BaseMessage)]  # isinstance would ask dead proxies
    return [m for m in messages if text in m.text]


def two_answers(body: Any) -> RawReply:
    """Two answers to one request, in turns where they are streamed; the second one ends first."""

    def choice(index: int, finish: str | None = None, **said: str) -> dict[str, Any]:
        return {"index": index, "message": said, "delta": said, "finish_reason": finish}

    usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
    if not body.get("stream"):
        both = [choice(0, "stop", role="assistant", content="ab"), choice(1, "length", role="assistant", content="XY")]
        frame = json.dumps({"id": "x", "model": "m", "choices": both, "usage": usage}).encode()
        return RawReply(headers={"content-type": "application/json"}, frames=(frame,))
    each = [choice(0, content="a"), choice(1, content="X"), choice(1, "length", content="Y"), choice(0, content="b")]
    lists = [*([one] for one in each), [choice(1), choice(0, "stop")], []]
    rows = [{"id": "x", "model": "m", "choices": choices} for choices in lists]
    rows[-1]["usage"] = usage
    return RawReply(frames=(*(f"data: {json.dumps(row)}\n\n".encode() for row in rows), b"data: [DONE]\n\n"))


@pytest.mark.parametrize("streamed", [False, True])
async def test_l13_of_several_answers_the_first_is_kept(streamed: bool) -> None:
    with ModelServer(model="m", script=two_answers) as server:
        model = openai(server, n=2, stream_usage=True)
        with with_context(model, session_id="s", context_window=8_000) as chat:
            if streamed:
                assert "".join([piece.text for piece in chat.stream("Say two things.")]) == "ab"
            else:
                assert chat.invoke("Say two things.").text == "ab"
            stored = chat.context().messages()[-1]
            assert (stored.text, stored.finish_reason) == ("ab", "stop")
            assert stored.usage is not None
            assert stored.usage.output_tokens == 4
        await closed(model)
