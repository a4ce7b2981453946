"""Step 7, item A6: a fallback to a larger model has that model's window, whichever was asked first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelFallbackMiddleware, wrap_model_call
from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import Field

from ctxfold.testing import ModelServer, Scripted
from langchain_ctx import ChatCtx, ContextMiddleware, with_context

T: Any = {"configurable": {"thread_id": "t", "session_id": "t"}}
SHORT = "Which of the rooms is free? " * 30
LONG = "The room on the left is free from nine to ten, the one on the right after that. " * 180  # about 3,600 tokens


def answering(name: str) -> Any:
    def answer(body: Any) -> Scripted:
        return Scripted(f"{name} has read it. " + "It is a long story. " * 20)

    return answer


def chat_on(server: ModelServer, name: str, **settings: Any) -> ChatCtx:
    return ChatCtx(model=name, provider="generic", base_url=server.base_url, api_key="x", max_retries=0, **settings)


@pytest.mark.parametrize("big_first", [False, True])
def test_fallback_in_an_agent(big_first: bool) -> None:
    """The small model refuses at 2,000 tokens, though 16,000 are configured: the large one keeps its window."""
    with (
        ModelServer(model="small", script=answering("small"), context_window=2_000) as tight,
        ModelServer(model="big", script=answering("big"), context_window=16_000) as wide,
        ContextMiddleware(context_window=16_000, history_tools=False) as middleware,
    ):
        small, big = chat_on(tight, "small"), chat_on(wide, "big")
        saver = InMemorySaver()
        by_small = create_agent(small, [], middleware=[ModelFallbackMiddleware(big), middleware], checkpointer=saver)
        by_big = create_agent(big, [], middleware=[ModelFallbackMiddleware(small), middleware], checkpointer=saver)
        first, second = (by_big, by_small) if big_first else (by_small, by_big)
        for agent in (first, second) * 6:
            assert agent.invoke({"messages": [HumanMessage(SHORT)]}, T)["messages"][-1].text
        assert any(r.body["model"] == "small" for r in tight.requests)
        for agent in (by_small, by_big):
            answer = agent.invoke({"messages": [HumanMessage(LONG)]}, T)["messages"][-1].text
            assert answer.startswith("big has read it"), "the small one cannot take it, the large one can"
            assert middleware.context("t").policy.context_window == 16_000
        assert by_small.invoke({"messages": [HumanMessage("And now?")]}, T)["messages"][-1].text.startswith("small")
        assert middleware.context("t").policy.context_window == 2_000
        small.close()
        big.close()


@pytest.mark.parametrize("big_first", [False, True])
@pytest.mark.parametrize("configured", [2_000, 16_000])
def test_wrapped_models_that_share_a_session(tmp_path: Path, big_first: bool, configured: int) -> None:
    """`with_fallbacks` between two wrapped models of one session, the small one's window configured rightly or not."""
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    with (
        ModelServer(model="small", script=answering("small"), context_window=2_000) as tight,
        ModelServer(model="big", script=answering("big"), context_window=16_000) as wide,
    ):
        chats = chat_on(tight, "small"), chat_on(wide, "big")
        small = with_context(chats[0], store=url, context_window=configured)
        big = with_context(chats[1], store=url, context_window=16_000)
        first, second = (big, small) if big_first else (small, big)
        for model in (first, second) * 6:
            assert model.invoke([HumanMessage(SHORT)], T).content
        assert small.with_fallbacks([big]).invoke([HumanMessage(LONG)], T).content.startswith("big has read it")
        assert big.with_fallbacks([small]).invoke([HumanMessage(LONG)], T).content.startswith("big has read it")
        assert (small.context("t").policy.context_window, big.context("t").policy.context_window) == (2_000, 16_000)
        for each in (small, big, *chats):
            each.close()


def anthropic_model(server: ModelServer, max_tokens: int = 4_000) -> BaseChatModel:
    from langchain_anthropic import ChatAnthropic  # takes a second: only the worker that runs this is to wait

    url: Any = server.base_url.removesuffix("/v1")
    return ChatAnthropic(model="m", base_url=url, api_key="x", max_retries=0, max_tokens=max_tokens)  # type: ignore[arg-type, call-arg]


def openai_model(server: ModelServer, max_tokens: int = 4_000) -> BaseChatModel:
    return ChatOpenAI(model="m", base_url=server.base_url, api_key="x", max_retries=0, max_tokens=max_tokens)  # type: ignore[arg-type, call-arg]


@pytest.mark.parametrize("face", ["middleware", "with_context"])
@pytest.mark.parametrize("make", [anthropic_model, openai_model])
def test_replies_that_a_model_object_allows_itself(make: Any, face: str) -> None:
    """Half of the window is for a reply that no call names; the service says so once, and the session stays within the rest."""
    strict: Any = "anthropic" if make is anthropic_model else "openai"
    with ModelServer(model="m", script=answering("it"), context_window=8_000, strict=strict) as server:
        model, settings = make(server), {"context_window": 8_000}
        if face == "middleware":
            agent = create_agent(model, [], middleware=[ContextMiddleware(**settings)], checkpointer=InMemorySaver())
        else:
            agent = create_agent(with_context(model, **settings), [], checkpointer=InMemorySaver())
        for number in range(12):
            given = {"messages": [HumanMessage(f"{number}. {LONG[:3_000]}")]}
            assert agent.invoke(given, T)["messages"][-1].text.startswith("it has read it")
        assert len(server.requests) - server.prefix_stats().requests == 1


@pytest.mark.parametrize("max_tokens", [7_900, 8_000])
@pytest.mark.parametrize("make", [anthropic_model, openai_model])
def test_a_reply_that_leaves_no_room_for_the_question(tmp_path: Path, make: Any, max_tokens: int) -> None:
    """The error names the setting, and the session has its whole window again once the setting is lower."""
    store = f"sqlite:///{tmp_path / 'chat.db'}"
    with ModelServer(model="m", script=answering("it"), context_window=8_000) as server:
        chat = with_context(make(server, max_tokens), session_id="s", store=store, context_window=8_000)
        with pytest.raises(ContextOverflowError, match="send less, lower max_tokens, or set context_window"):
            chat.invoke(LONG[:3_000])
        chat.close()
        lowered = with_context(make(server, 400), session_id="s", store=store, context_window=8_000)
        assert lowered.invoke(LONG[:3_000]).text.startswith("it has read it")
        assert lowered.context().policy.context_window == 8_000
        lowered.close()


class TooLong(Exception):
    """An error as Google's client raises it, without the status that others have."""


class Terse(FakeListChatModel):
    """Refuses more than 8,000 characters, in the words of Gemini."""

    refused: list[int] = Field(default_factory=list[int])

    def _call(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> str:
        used = sum(len(m.text) for m in messages) // 4
        if used > 2_000:
            self.refused.append(used)
            raise TooLong(f"400 The input token count ({used}) exceeds the maximum number of tokens allowed (2000).")
        return super()._call(messages, *args, **kwargs)


def test_a_limit_that_a_client_without_a_status_names() -> None:
    model = Terse(responses=["Fine."])
    chat = with_context(model, session_id="s", context_window=16_000)
    for number in range(12):
        assert chat.invoke(f"{number}. {SHORT}").text == "Fine."
    assert len(model.refused) == 1
    assert chat.context().policy.context_window == 2_000


def test_a_limit_that_means_none_to_the_service_is_its_own(server: ModelServer) -> None:
    """LM Studio and llama.cpp take -1 for no limit: the session leaves it to the model."""
    chat = with_context(openai_model(server), session_id="s", context_window=8_000)
    with ContextMiddleware(context_window=8_000, history_tools=False) as middleware:

        @wrap_model_call
        def unlimited(request: Any, handler: Any) -> Any:
            return handler(request.override(model_settings={"max_tokens": -1}))

        agent = create_agent(openai_model(server), [], middleware=[unlimited, middleware])
        for ask in (
            lambda: chat.invoke("Hi", max_tokens=-1),
            lambda: agent.invoke({"messages": [HumanMessage("Hi")]}, T),
        ):
            ask()
            assert server.requests[-1].body["max_completion_tokens"] == -1
        chat.close()


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("inside", [True, False])
async def test_l8_a_limit_belongs_to_the_model_that_answered(inside: bool, how: str) -> None:
    """A small model is picked for one question, by middleware inside or outside of ContextMiddleware, and overflows once."""

    class Picks(AgentMiddleware[Any, Any, Any]):
        def _picked(self, request: Any) -> Any:
            return request.override(model=small) if "SMALL" in str(request.messages[-1].content) else request

        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(self._picked(request))

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return await handler(self._picked(request))

    with (
        ModelServer(model="small", script=answering("small"), context_window=2_000) as tight,
        ModelServer(model="big", script=answering("big"), context_window=16_000) as wide,
        ContextMiddleware(context_window=16_000, history_tools=False) as middleware,
    ):
        small, big = chat_on(tight, "small"), chat_on(wide, "big")
        order = [middleware, Picks()] if inside else [Picks(), middleware]
        agent: Any = create_agent(big, [], middleware=order, checkpointer=InMemorySaver())

        async def ask(text: str) -> str:
            given = {"messages": [HumanMessage(text)]}
            found = agent.invoke(given, T) if how == "invoke" else await agent.ainvoke(given, T)
            return str(found["messages"][-1].text)

        for _ in range(8):
            assert (await ask(SHORT)).startswith("big")
        budget = middleware.context("t").usage().budget_tokens
        for _ in range(2):
            assert (await ask("SMALL: " + SHORT)).startswith("small")
        assert (await ask(LONG)).startswith("big")
        assert middleware.context("t").usage().budget_tokens == budget
        assert middleware.context("t").policy.context_window == 16_000
        small.close()
        big.close()
