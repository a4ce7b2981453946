"""What a run is told of its session: events, metadata, and no word of a summary among its own tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest, ModelResponse
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import HumanMessage
from langchain_deepseek import ChatDeepSeek
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold.testing import ModelServer, Scripted
from langchain_ctx import ChatCtx, ContextMiddleware, with_context
from langchain_ctx.summarizer import ChatModelSummarizer
from tests.langchain.faces import closed
from tests.support.summaries import asks_on_live_prefix

T: Any = {"configurable": {"thread_id": "t"}}
WINDOW, TURNS = 1_200, 14  # past the window, twice


def is_agents(body: Any) -> bool:
    return body["messages"][0]["content"] == "AGENT" and not asks_on_live_prefix(body)


def play(body: Any) -> Scripted:
    if not is_agents(body):
        return Scripted("SECRET summary of it all.", reasoning="Short.")
    return Scripted("All is well. " + "It is a long story. " * 20, reasoning="Hm.")


def model_on(server: ModelServer, kind: str) -> Any:
    if kind == "ChatCtx":
        return ChatCtx(model="m", provider="deepseek", base_url=server.base_url, api_key="x")  # type: ignore[arg-type]
    if kind == "ChatDeepSeek":
        return ChatDeepSeek(model_name="m", api_base=server.base_url, api_key="x")  # type: ignore[arg-type]
    return ChatOpenAI(model="m", base_url=server.base_url, api_key="x", streaming=True)  # type: ignore[arg-type]


def agent_on(server: ModelServer, kind: str = "ChatCtx", **settings: Any) -> tuple[Any, Any, ContextMiddleware]:
    model = model_on(server, kind)
    middleware = ContextMiddleware(context_window=WINDOW, history_tools=False, **settings)
    agent = create_agent(model, [], system_prompt="AGENT", middleware=[middleware], checkpointer=InMemorySaver())
    return model, agent, middleware


def asked(number: int) -> Any:
    return {"messages": [HumanMessage(f"Q{number:03}")]}


@pytest.mark.parametrize("kind", ["ChatCtx", "ChatDeepSeek", "ChatOpenAI"])
@pytest.mark.parametrize("writer", ["the model", "another"])
async def test_summaries_never_reach_the_users_stream(kind: str, writer: str) -> None:
    with ModelServer(model="m", script=play, strict="deepseek", context_window=WINDOW) as server:
        other = model_on(server, kind)
        model, agent, middleware = agent_on(server, kind, **({"summarizer": other} if writer == "another" else {}))
        pieces: list[Any] = []
        told = middleware.context("t").usage
        for number in range(8):
            pieces += [piece for piece, _ in agent.stream(asked(number), T, stream_mode="messages")]
        compacted = [told().compactions]
        for number in range(8, 16):
            pieces += [piece async for piece, _ in agent.astream(asked(number), T, stream_mode="messages")]
        compacted.append(told().compactions)
        for number in range(16, 24):
            events = [e async for e in agent.astream_events(asked(number), T, version="v2")]
            assert sum(e["event"] == "on_chat_model_start" for e in events) == 1
            pieces += [e["data"]["chunk"] for e in events if e["event"] == "on_chat_model_stream"]
            pieces += [e["data"]["output"] for e in events if e["event"] == "on_chat_model_end"]
        assert 0 < compacted[0] < compacted[1] < told().compactions, "in each of the three"
        assert any(not is_agents(r.body) for r in server.requests)
        said = "".join(piece.text for piece in pieces)
        assert said.count("All is well.") == 32  # once each; by events as chunks and as the whole
        assert "SECRET" not in said
        await closed(model)
        await closed(other)


class Heard(BaseCallbackHandler):
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.metadata: list[dict[str, Any]] = []

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        self.events.append((name, data))

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        if "ctxfold:summary" not in (kwargs["tags"] or ()):
            self.metadata.append(kwargs["metadata"])


class AsyncHeard(AsyncCallbackHandler):
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.metadata: list[dict[str, Any]] = []

    async def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        self.events.append((name, data))

    async def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        if "ctxfold:summary" not in (kwargs["tags"] or ()):
            self.metadata.append(kwargs["metadata"])


@pytest.mark.parametrize("how", ["stream", "astream"])
async def test_compactions_are_told(how: str) -> None:
    """To callbacks, and to a stream that asks for custom data; with counts and reasons, never with text."""
    with ModelServer(model="m", script=play, strict="deepseek", context_window=WINDOW) as server:
        model, agent, middleware = agent_on(server)
        direct: list[Any] = []
        middleware.context("t").subscribe(direct.append)
        middleware.context("t").edit.on_compaction(
            lambda _: 1 / 0
        )  # a mistake of the program's: the summary is written
        heard: Any = Heard() if how == "stream" else AsyncHeard()
        streamed: list[Any] = []
        config: Any = {**T, "callbacks": [heard], "metadata": {"customer": "c7"}}
        for number in range(TURNS):
            if how == "stream":
                streamed += agent.stream(asked(number), config, stream_mode="custom")
            else:
                streamed += [piece async for piece in agent.astream(asked(number), config, stream_mode="custom")]
        wanted = [e for e in direct if type(e).__name__ == "HistoryCompacted"]
        assert len(wanted) >= 1
        mine = [data for name, data in heard.events if name == "ctxfold.HistoryCompacted"]
        assert [d["tokens_after"] for d in mine] == [e.tokens_after for e in wanted]
        assert mine[0]["session"] == "t"
        told = [p["ctxfold"] for p in streamed if p["ctxfold"]["event"] == "HistoryCompacted"]
        assert [t["tokens_before"] for t in told] == [e.tokens_before for e in wanted]
        refused = [data["reason"] for name, data in heard.events if name == "ctxfold.RewriteRefused"]
        assert len(refused) == len(wanted)
        assert "ZeroDivisionError" in refused[0]
        assert "SECRET" not in str(heard.events)
        assert {m["customer"] for m in heard.metadata} == {"c7"}, "the run's own stay"
        assert heard.metadata[0]["ctxfold_session"] == "t"
        assert heard.metadata[0]["ctxfold_listed"] == heard.metadata[0]["ctxfold_shown"] == 1
        assert heard.metadata[-1]["ctxfold_listed"] == 2 * TURNS - 1
        assert heard.metadata[-1]["ctxfold_shown"] < 2 * TURNS - 1
        await closed(model)


@pytest.mark.parametrize("face", ["ContextMiddleware", "with_context", "ChatCtx"])
@pytest.mark.parametrize("how", ["stream", "astream"])
async def test_the_status_is_live_in_the_custom_stream(face: str, how: str) -> None:
    """A compaction is heard of while the summariser is asked; the gauge comes with each request."""
    release = Event()

    def script(body: Any) -> Scripted:
        return replace(play(body), held=None if is_agents(body) else release)

    with ModelServer(model="m", script=script, strict="deepseek", context_window=WINDOW) as server:
        model, agent, _ = agent_on(server)
        if face != "ContextMiddleware":
            await closed(model)
            model = model_on(server, "ChatDeepSeek")
            own: Any = with_context(model, store="memory://", context_window=WINDOW)
            if face == "ChatCtx":
                settings: Any = {"provider": "deepseek", "base_url": server.base_url, "api_key": "x"}
                own = ChatCtx(model="m", store="memory://", context_window=WINDOW, **settings)
            agent = create_agent(own, [], system_prompt="AGENT", checkpointer=InMemorySaver())
        status: list[Any] = []

        def hear(piece: Any) -> None:
            status.append(piece["ctxfold"])
            if status[-1]["event"] == "CompactionStarted":
                release.set()  # no summary is written before this was heard

        for number in range(TURNS):
            if how == "stream":
                for piece in agent.stream(asked(number), T, stream_mode="custom"):
                    hear(piece)
            else:
                async for piece in agent.astream(asked(number), T, stream_mode="custom"):
                    hear(piece)
        names = [s["event"] for s in status]
        assert names.count("WindowGauge") == TURNS
        assert status[0]["room_tokens"] == status[0]["budget_tokens"] - status[0]["used_tokens"]
        start = names.index("CompactionStarted")
        assert names[start : start + 3] == ["CompactionStarted", "CompactionProgress", "HistoryCompacted"]
        assert status[start]["asks_model"]
        if face != "ContextMiddleware":
            own.close()
            if how == "astream":
                await own.aclose()
        await closed(model)


async def test_a_run_hears_of_its_own_session_only() -> None:
    """Two owners with a thread of one name, at once: only the one whose history is long hears of compactions."""
    with ModelServer(model="m", script=play, strict="deepseek", context_window=WINDOW) as server:
        model, _, middleware = agent_on(server, owner_key="owner")
        heard = {"ann": AsyncHeard(), "bob": AsyncHeard()}

        async def turn(owner: str, text: str) -> None:
            config: Any = {"configurable": {"thread_id": "x", "owner": owner}, "callbacks": [heard[owner]]}
            await agents[owner].ainvoke({"messages": [HumanMessage(text)]}, config)

        # a checkpointer knows no owners: each has one
        agents = {
            owner: create_agent(model, [], system_prompt="AGENT", middleware=[middleware], checkpointer=InMemorySaver())
            for owner in heard
        }
        for number in range(TURNS):
            await asyncio.gather(turn("ann", f"Q{number}"), *([turn("bob", "Q")] if number % 8 == 0 else []))
        assert middleware.context("x", owner="ann").usage().compactions >= 1
        assert middleware.context("x", owner="bob").usage().compactions == 0
        assert heard["ann"].events
        assert heard["bob"].events == []
        await closed(model)


def test_a_summary_is_a_run_of_its_own() -> None:
    """Its trace hangs in the tree of the run that needed it, and is tagged as internal."""
    starts: list[Any] = []

    class Listening(Heard):
        def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
            starts.append(kwargs)

    with ModelServer(model="m", script=play, strict="deepseek", context_window=WINDOW) as server:
        writer = model_on(server, "ChatDeepSeek").model_copy(update={"callbacks": [Listening()]})
        model, agent, _ = agent_on(server, summarizer=ChatModelSummarizer(writer))
        for number in range(TURNS):
            agent.invoke(asked(number), T)
        assert starts
        assert all("nostream" in s["tags"] for s in starts)
        assert all(s["parent_run_id"] is not None for s in starts)
        model.close()
        writer.root_client.close()


def test_the_middleware_alone() -> None:
    """Called without a graph around it, as in a unit test of an agent's parts: nobody is told, and nothing fails."""
    model = FakeListChatModel(responses=["All is well. " + "It is a long story. " * 20] * 40)
    middleware = ContextMiddleware(context_window=1_000, history_tools=False)

    def answer(request: ModelRequest[Any]) -> ModelResponse[Any]:
        return ModelResponse([request.model.invoke(request.messages)])

    messages: list[Any] = []
    for number in range(20):
        messages.append(HumanMessage(f"Q{number}", id=f"q{number}"))
        request: Any = ModelRequest(model=model, messages=[*messages], state={"messages": messages})
        messages += middleware.wrap_model_call(request, answer).model_response.result
    assert middleware.context("run-q0").usage().compactions >= 1
    assert middleware.context("run-q0").usage().turns == 20
