"""`with_context` in all that listens to tokens: as the bare model does it, each token once; cache and limiter are the model's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_core.runnables import RunnableLambda
from langchain_deepseek import ChatDeepSeek
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

from ctxfold.testing import ModelServer, Scripted
from langchain_ctx import with_context, with_reasoning

pytestmark = pytest.mark.filterwarnings("ignore:astream_events version='v1' is deprecated")
Way = Callable[[Any, str], Any]
SAID = "one two three four five six"


def talk(body: Any) -> Scripted:
    return Scripted(SAID, reasoning="Let me count.", chunks=6)


@contextmanager
def serving(make: Any, **settings: Any) -> Iterator[tuple[ModelServer, BaseChatModel, BaseChatModel]]:
    """The bare model, only its reasoning sent back, and the same in a session, each as it is used."""
    with ModelServer(model="m", script=talk, strict="deepseek") as server:
        model = make(server, **settings)
        yield server, with_reasoning(model), with_context(model, session_id="s", context_window=8_000)
        model.root_client.close()


def deepseek(server: ModelServer, **settings: Any) -> Any:
    return ChatDeepSeek(model_name="m", api_base=server.base_url, api_key="x", max_retries=0, **settings)


def openai(server: ModelServer, **settings: Any) -> Any:
    return ChatOpenAI(model="m", base_url=server.base_url, api_key="x", max_retries=0, stream_usage=True, **settings)


class Tokens(BaseCallbackHandler):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
        self.seen.append(str(token))


async def by_events(model: Any, version: str) -> list[str]:
    return [
        e["data"]["chunk"].text
        async for e in model.astream_events("Count.", version=version)
        if e["event"] == "on_chat_model_stream"
    ]


async def by_events_of_a_chain(model: Any, version: str) -> list[str]:
    """The model is invoked inside; the listener is what makes it stream."""

    async def inside(given: str) -> str:
        return str((await model.ainvoke(given)).text)

    return [
        e["data"]["chunk"].text
        async for e in RunnableLambda(inside).astream_events("Count.", version=version)
        if e["event"] == "on_chat_model_stream"
    ]


def graph_of(model: Any, how: str) -> Any:
    def node(state: Any) -> Any:
        if how == "invoke":
            return {"messages": [model.invoke(state["messages"])]}
        parts = list(model.stream(state["messages"]))
        return {"messages": [sum(parts[1:], parts[0])]}

    async def anode(state: Any) -> Any:
        if how == "invoke":
            return {"messages": [await model.ainvoke(state["messages"])]}
        parts = [p async for p in model.astream(state["messages"])]
        return {"messages": [sum(parts[1:], parts[0])]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", RunnableLambda(node, anode))
    graph.add_edge(START, "ask")
    return graph.compile()


GIVEN: Any = {"messages": [HumanMessage("Count.")]}


async def by_messages(model: Any, how: str) -> list[str]:
    pieces = graph_of(model, how).astream(GIVEN, stream_mode="messages")
    return [c.text async for c, _ in pieces if isinstance(c, AIMessage)]


async def by_messages_sync(model: Any, how: str) -> list[str]:
    return [c.text for c, _ in graph_of(model, how).stream(GIVEN, stream_mode="messages") if isinstance(c, AIMessage)]


async def by_agent(model: Any, _: str) -> list[str]:
    agent = create_agent(model, [])
    return [c.text async for c, _ in agent.astream(GIVEN, stream_mode="messages") if isinstance(c, AIMessage)]


async def by_callbacks(model: Any, how: str) -> list[str]:
    tokens = Tokens()
    config: Any = {"callbacks": [tokens]}
    _ = list(model.stream("Count.", config)) if how == "sync" else [p async for p in model.astream("Count.", config)]
    return tokens.seen


WAYS: dict[str, tuple[Way, str]] = {
    "astream_events v1": (by_events, "v1"),
    "astream_events v2": (by_events, "v2"),
    "astream_events v2 of a chain": (by_events_of_a_chain, "v2"),
    "messages mode, invoke": (by_messages, "invoke"),
    "messages mode, stream": (by_messages, "stream"),
    "messages mode, sync, invoke": (by_messages_sync, "invoke"),
    "messages mode, sync, stream": (by_messages_sync, "stream"),
    "messages mode, agent": (by_agent, ""),
    "callbacks": (by_callbacks, "sync"),
    "callbacks, async": (by_callbacks, "async"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [deepseek, openai])
async def test_the_pieces_are_the_bare_models(make: Any, way: str) -> None:
    listen, how = WAYS[way]
    with serving(make) as (server, bare, wrapped):
        wanted = await listen(bare, how)
        assert await listen(wrapped, how) == wanted
        assert "".join(wanted) == SAID
        assert len([piece for piece in wanted if piece]) > 3  # they did come in pieces
        assert len(server.requests) == 2
        said: Any = wrapped
        assert [m.text for m in said.context().messages()] == ["Count.", SAID]
        client: Any = bare
        await client.root_async_client.close()


@pytest.mark.parametrize("way", ["messages mode, invoke", "messages mode, sync, invoke", "messages mode, agent"])
@pytest.mark.parametrize("make", [deepseek, openai])
async def test_the_models_cache_also_answers_where_tokens_are_listened_to(make: Any, way: str) -> None:
    """Two sessions at the same point: the second is answered by the cache, and by nothing else."""
    listen, how = WAYS[way]
    cache = InMemoryCache()
    with serving(make, cache=cache) as (server, bare, wrapped):
        first = await listen(wrapped, how)
        other = with_context(wrapped.inner, session_id="other", context_window=8_000)  # type: ignore[attr-defined]
        again = await listen(other, how)
        assert "".join(first) == "".join(again) == SAID
        assert len(server.requests) == 1
        assert [m.text for m in other.context().messages()] == ["Count.", SAID]
        client: Any = bare
        await client.root_async_client.close()


class Counted(InMemoryRateLimiter):
    """Counts what it lets pass."""

    def __init__(self) -> None:
        super().__init__(requests_per_second=1_000, check_every_n_seconds=0.001, max_bucket_size=100)
        self.passed = 0

    def acquire(self, *, blocking: bool = True) -> bool:
        self.passed += 1
        return super().acquire(blocking=blocking)

    async def aacquire(self, *, blocking: bool = True) -> bool:
        self.passed += 1
        return await super().aacquire(blocking=blocking)


@pytest.mark.parametrize("way", WAYS)
async def test_the_limiter_counts_each_request_once(way: str) -> None:
    listen, how = WAYS[way]
    limiter = Counted()
    with serving(openai, rate_limiter=limiter) as (server, bare, wrapped):
        await listen(wrapped, how)
        assert limiter.passed == len(server.requests) == 1
        client: Any = bare
        await client.root_async_client.close()
