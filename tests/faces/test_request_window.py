"""Step 7, D A7: `context_window` of one request, through every face; the next request has the session's own again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from llama_index.core.base.llms.types import ChatMessage

from ctxfold.errors import ConfigError, ContextOverflowError
from ctxfold.messages import user
from ctxfold.testing import ModelServer
from ctxfold.tokens.text import MessageCounter, text_counter
from langchain_ctx import ChatCtx, ContextMiddleware, ContextNode, with_context
from llamaindex_ctx import CtxLLM
from llamaindex_ctx import with_context as with_llm_context
from tests.llamaindex.loopback_llm import LoopbackLLM
from tests.support.driven import turns

WINDOW, NARROW = 20_000, 1_500
Ask = Callable[[str, int | None], object]


def sent_tokens(server: ModelServer) -> int:
    """What the newest request of the conversation holds, as its session counts."""
    counter = MessageCounter(text_counter("lookup"))
    body = next(r.body for r in reversed(server.requests) if len(r.body["messages"]) > 1 and "And now" in str(r.body))
    assert "context_window" not in body
    return sum(counter.count(user(str(m["content"]), id="x")) for m in body["messages"])


def check(server: ModelServer, ask: Ask) -> None:
    ask("And now, one?", None)
    assert sent_tokens(server) > 3_500
    ask("And now, two?", NARROW)
    assert sent_tokens(server) <= NARROW


@pytest.mark.parametrize("by", ["argument", "config", "bound", "stream"])
def test_chat_ctx(by: str) -> None:
    with ModelServer(model="lookup") as server:
        chat = ChatCtx(
            model="lookup",
            base_url=server.base_url,
            api_key="x",  # type: ignore[arg-type]
            session="s",
            context_window=WINDOW,
            max_tokens=100,
        )
        chat.context().add(turns(60, words=40))

        def ask(text: str, window: int | None) -> object:
            match by:
                case "argument":
                    return chat.invoke(text, context_window=window)
                case "config":
                    return chat.invoke(text, {"configurable": {} if window is None else {"context_window": window}})
                case "bound":
                    return chat.bind(context_window=window).invoke(text)
                case _:
                    return list(chat.stream(text, context_window=window))

        with chat:
            check(server, ask)
            assert chat.context().policy.context_window == WINDOW


@pytest.mark.asyncio
async def test_chat_ctx_async() -> None:
    async with ModelServer(model="lookup") as server:
        chat = ChatCtx(
            model="lookup",
            base_url=server.base_url,
            api_key="x",  # type: ignore[arg-type]
            session="s",
            context_window=WINDOW,
            max_tokens=100,
        )
        async with chat:
            await chat.context().aadd(turns(60, words=40))
            await chat.ainvoke("And now, one?")
            assert sent_tokens(server) > 3_500
            async for _ in chat.astream("And now, two?", context_window=NARROW):
                pass
            assert sent_tokens(server) <= NARROW


@pytest.mark.parametrize("by", ["argument", "config", "stream"])
def test_with_context_of_langchain(by: str) -> None:
    with ModelServer(model="lookup") as server, httpx.Client() as http:
        inner = ChatOpenAI(model="lookup", base_url=server.base_url, api_key="x", max_retries=0, http_client=http)  # type: ignore[arg-type]
        chat = with_context(inner, session_id="s", context_window=WINDOW, reply_reserve_tokens=100)
        chat.context().add(turns(60, words=40))

        def ask(text: str, window: int | None) -> object:
            if by == "argument":
                return chat.invoke(text, context_window=window)
            if by == "stream":
                return list(chat.stream(text, context_window=window))
            return chat.invoke(text, {"configurable": {} if window is None else {"context_window": window}})

        with chat:
            check(server, ask)


class OneWindow(AgentMiddleware[Any, Any, Any]):
    """Has the model calls of a run fit a window of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.window: int | None = None

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(model_settings={"context_window": self.window}))


def test_middleware() -> None:
    middleware = ContextMiddleware(context_window=WINDOW, reply_reserve_tokens=100)
    with ModelServer(model="lookup") as server, httpx.Client() as http, middleware:
        inner = ChatOpenAI(model="lookup", base_url=server.base_url, api_key="x", max_retries=0, http_client=http)  # type: ignore[arg-type]
        own = OneWindow()
        agent: Any = create_agent(inner, [], middleware=[own, middleware])
        history = [HumanMessage(m.text, id=m.id) for m in turns(60, words=40) if m.role == "user"]

        def ask(text: str, window: int | None) -> object:
            own.window = window
            thread = {"configurable": {"thread_id": text}}
            return agent.invoke({"messages": [*history, HumanMessage(text)]}, thread)

        ask("And now, one?", None)
        whole = sent_tokens(server)
        ask("And now, two?", 800)
        assert sent_tokens(server) <= 800 < whole


def test_node() -> None:
    with ContextNode(context_window=WINDOW, reply_reserve_tokens=100, session_id="s") as node:
        node.context().add(turns(60, words=40))
        whole = node.invoke([HumanMessage("One?", id="q1")])
        narrow = node.invoke([HumanMessage("Two?", id="q2")], {"configurable": {"context_window": NARROW}})
    counter = MessageCounter(text_counter(None))
    sizes = [sum(counter.count(user(m.text, id="x")) for m in found) for found in (whole, narrow)]
    assert sizes[0] > 3_500
    assert sizes[1] <= NARROW


@pytest.mark.parametrize("how", ["chat", "stream_chat"])
def test_with_context_of_llamaindex(how: str) -> None:
    with ModelServer(model="lookup") as server:
        inner = LoopbackLLM(server, window=WINDOW)
        llm = with_llm_context(inner, session_id="s", context_window=WINDOW, reply_reserve_tokens=100)
        llm.context().add(turns(60, words=40))

        def ask(text: str, window: int | None) -> object:
            said = [ChatMessage(role="user", content=text)]
            options = {} if window is None else {"context_window": window}
            answer = getattr(llm, how)(said, **options)
            return answer if how == "chat" else list(answer)

        check(server, ask)
        llm.close()
        inner.close()


def test_without_a_session_a_larger_request_is_an_overflow() -> None:
    """Nothing could be compacted; the request is not sent."""
    text = "one and two " * 500
    with ModelServer(model="lookup") as server:
        chat = ChatCtx(model="lookup", base_url=server.base_url, api_key="x", max_tokens=100)  # type: ignore[arg-type]
        llm = CtxLLM(model="lookup", base_url=server.base_url, api_key="x", max_tokens=100)
        said = [ChatMessage(role="user", content=text)]
        with chat:
            for ask in (
                lambda window: chat.invoke(text, context_window=window),
                lambda window: list(chat.stream(text, context_window=window)),
                lambda window: chat.invoke(text, {"configurable": {"context_window": window}}),
                # the call's own goes before that of its config
                lambda window: chat.invoke(text, {"configurable": {"context_window": 9_000}}, context_window=window),
                lambda window: llm.chat(said, context_window=window),
                lambda window: list(llm.stream_chat(said, context_window=window)),
            ):
                with pytest.raises(ContextOverflowError, match="100 for its reply, its window is 600"):
                    ask(600)
                with pytest.raises(ConfigError, match="context_window is 'no'"):
                    ask("no")
                assert server.requests == []
                ask(6_000)
                assert "context_window" not in server.requests[-1].body
                server.clear_requests()
        llm.close()
