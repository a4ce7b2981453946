"""`ContextMiddleware` in `create_agent`, against a server as strict as DeepSeek."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from itertools import pairwise
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core import exceptions as lc
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_deepseek import ChatDeepSeek
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from openai import InternalServerError
from pydantic import BaseModel

from ctxfold import ConfigError, MemoryStore
from ctxfold.errors import WindowTooSmallError
from ctxfold.testing import ErrorReply, ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware
from tests.support.summaries import asks_on_live_prefix

ROUNDS = 60
PAGE = "The quick brown fox reads line after line of the long page. " * 34  # about 2 kB


@tool
def read(page: int) -> str:
    """Reads one page."""
    return f"Page {page}. {PAGE}"


def rounds(count: int) -> Any:
    """A model that reads page after page, then answers; it knows where it is by the number of the newest call."""

    def play(body: Any) -> Scripted:
        if not body.get("tools"):
            return Scripted("Pages were read one after the other.", reasoning="Short.")
        messages = body["messages"]
        calls = [c for m in messages for c in m.get("tool_calls") or ()]
        done = max((int(json.loads(c["function"]["arguments"])["page"]) for c in calls), default=0)
        if done >= count:
            return Scripted("All pages are read.", reasoning="That was the last.")
        arguments = json.dumps({"page": done + 1})
        return Scripted(reasoning=f"Page {done + 1} is next.", tool_calls=(ScriptedCall("read", arguments),))

    return play


def chat_on(server: ModelServer, **settings: Any) -> ChatCtx:
    return ChatCtx(model="m", provider="deepseek", base_url=server.base_url, api_key="x", max_retries=0, **settings)


async def run(agent: Any, how: str, given: Any, config: Any) -> Any:
    if how == "invoke":
        return agent.invoke(given, config)
    return await agent.ainvoke(given, config)


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
async def test_sixty_tool_rounds_in_a_small_window(how: str) -> None:
    """One user message, 60 outputs of 2 kB: no request is refused, and the agent's own list is whole."""
    with ModelServer(model="m", script=rounds(ROUNDS), strict="deepseek", context_window=8_000) as server:
        chat = chat_on(server)
        middleware = ContextMiddleware(context_window=8_000)
        agent = create_agent(chat, [read], system_prompt="Read all pages.", middleware=[middleware])
        given = {"messages": [HumanMessage("Read sixty pages, please.", id="q")]}
        state = await run(agent, how, given, {"recursion_limit": 500})
        assert state["messages"][-1].text == "All pages are read."
        outputs = [m for m in state["messages"] if isinstance(m, ToolMessage)]
        assert [m.text for m in outputs] == [f"Page {n}. {PAGE}" for n in range(1, ROUNDS + 1)]
        assert len(state["messages"]) == 2 * ROUNDS + 2
        asked = [r.body for r in server.requests if r.body.get("tools") and not asks_on_live_prefix(r.body)]
        assert len(asked) == ROUNDS + 1
        assert all(any("sixty pages" in str(m["content"]) for m in body["messages"]) for body in asked)
        usage = middleware.context("run-q").usage()
        assert usage.turns == 1
        assert usage.compactions > 0
        middleware.close()
        chat.close()


def talk(body: Any) -> Scripted:
    """Names the newest question it was asked."""
    asked = [str(m["content"]) for m in body["messages"] if m["role"] == "user"]
    return Scripted(f"Answer to {asked[-1][:5]}. " + "It is a long story. " * 20, reasoning="Hm.")


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
async def test_turns_of_a_thread_with_a_checkpointer(how: str, store_url: str) -> None:
    """The session is the thread's; replies have the same ids in both; a new process goes on where the old one was."""
    with ModelServer(model="m", script=talk, strict="deepseek", context_window=2_000) as server:
        chat, saver = chat_on(server), InMemorySaver()
        for start in (0, 10):
            middleware = ContextMiddleware(context_window=2_000, store=store_url)
            agent = create_agent(chat, [], system_prompt="Be kind.", middleware=[middleware], checkpointer=saver)
            for thread in ("a", "b"):
                for number in range(start, start + 10):
                    config = {"configurable": {"thread_id": thread}}
                    state = await run(agent, how, {"messages": [HumanMessage(f"Q{number:03}")]}, config)
                    assert state["messages"][-1].text.startswith(f"Answer to Q{number:03}")
                assert len(state["messages"]) == 2 * (start + 10)
            for thread in ("a", "b"):
                context = middleware.context(thread)
                assert context.usage().turns == start + 10
                assert context.usage().compactions > 0 or not start
                stored = [m.id for m in context.messages() if m.role != "system"]
                if thread == "b":
                    assert stored == [m.id for m in state["messages"]]
            middleware.close()
        chat.close()


def test_interrupt_and_resume() -> None:
    """A call that waits for a person is no orphan, and is asked once."""

    @tool
    def confirm(what: str) -> str:
        """Asks a person."""
        return f"They said {interrupt(what)}."

    def play(body: Any) -> Scripted:
        last = body["messages"][-1]
        if last["role"] == "tool":
            return Scripted(f"Noted: {last['content']}", reasoning="Good.")
        return Scripted(reasoning="Ask.", tool_calls=(ScriptedCall("confirm", '{"what": "Go?"}'),))

    with ModelServer(model="m", script=play, strict="deepseek") as server:
        chat, middleware = chat_on(server), ContextMiddleware(context_window=8_000)
        agent = create_agent(chat, [confirm], middleware=[middleware], checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "t"}}
        state = agent.invoke({"messages": [HumanMessage("Start.")]}, config)
        assert state["__interrupt__"][0].value == "Go?"
        assert middleware.context("t").usage().turns == 0
        state = agent.invoke(Command(resume="yes"), config)
        assert state["messages"][-1].text == "Noted: They said yes."
        assert len(server.requests) == 2
        assert middleware.context("t").usage().turns == 1
        again = agent.invoke({"messages": [HumanMessage("Once more.")]}, config)
        assert again["__interrupt__"]
        chat.close()


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
async def test_time_travel(how: str) -> None:
    """From an earlier checkpoint on, a branch of the session goes the agent's new way; the way before stays as it was."""
    with ModelServer(model="m", script=talk, strict="deepseek") as server:
        chat, middleware = chat_on(server), ContextMiddleware(context_window=8_000)
        agent = create_agent(chat, [], middleware=[middleware], checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "t"}}
        for number in range(4):
            await run(agent, how, {"messages": [HumanMessage(f"Q{number:03}")]}, config)
            if number == 1:
                early = agent.get_state(config).config
        middleware.context("t").add("A note.")
        await run(agent, how, {"messages": [HumanMessage("Q004")]}, config)
        assert "A note." in str(server.requests[-1].body["messages"])
        state = await run(agent, how, {"messages": [HumanMessage("Q900")]}, early)
        assert len(state["messages"]) == 6
        asked = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "user"]
        assert asked == ["Q000", "Q001", "Q900"]
        branch = middleware.context(agent.get_state(config))
        assert [e.id for e in branch.view().live] == [m.id for m in state["messages"]]
        assert "Q003" in str(middleware.context("t").view().messages)
        chat.close()


def test_an_agent_that_has_a_long_past_gets_the_middleware() -> None:
    """Adopted at its first call: older turns are the session's closed turns, and are summarised."""
    with ModelServer(model="m", script=talk, strict="deepseek", context_window=2_000) as server:
        chat, saver = chat_on(server), InMemorySaver()
        config: Any = {"configurable": {"thread_id": "t"}}
        past: list[Any] = []
        for number in range(40):
            past += [HumanMessage(f"Q{number:03} and {'so on ' * 20}"), AIMessage("It was a long story. " * 10)]
        create_agent(chat, [], checkpointer=saver).update_state(config, {"messages": past})
        middleware = ContextMiddleware(context_window=2_000)
        agent = create_agent(chat, [], middleware=[middleware], checkpointer=saver)
        state = agent.invoke({"messages": [HumanMessage("Q040")]}, config)
        assert state["messages"][-1].text.startswith("Answer to Q040")
        assert len(state["messages"]) == 82
        stored = [m.id for m in middleware.context("t").messages()]
        assert stored == [m.id for m in state["messages"]]
        chat.close()


class Report(BaseModel):
    """What was found."""

    pages: int


def test_a_structured_answer_closes_its_turn() -> None:
    def play(body: Any) -> Scripted:
        if body["messages"][-1]["role"] == "tool":
            return Scripted(tool_calls=(ScriptedCall("Report", '{"pages": 1}'),))
        return Scripted(tool_calls=(ScriptedCall("read", '{"page": 1}'),))

    with ModelServer(model="m", script=play, strict="deepseek") as server:
        chat, middleware = chat_on(server, thinking=False), ContextMiddleware(context_window=8_000)
        agent = create_agent(
            chat, [read], response_format=ToolStrategy(Report), middleware=[middleware], checkpointer=InMemorySaver()
        )
        config: Any = {"configurable": {"thread_id": "t"}}
        for turn in (1, 2):
            state = agent.invoke({"messages": [HumanMessage(f"Read {turn}.")]}, config)
            assert state["structured_response"] == Report(pages=1)
            live = [e.id for e in middleware.context("t").view().live]  # a turn that is open is not among them
            assert live == [m.id for m in state["messages"]]
        chat.close()


def test_a_sub_agent_has_a_session_of_its_own(store_url: str) -> None:
    """It runs on its caller's thread, with the same store, and sees nothing of the caller's conversation."""

    def play(body: Any) -> Scripted:
        names = {t["function"]["name"] for t in body.get("tools") or ()}
        if "delegate" not in names:
            return Scripted(f"Sub saw {len(body['messages'])}.", reasoning="Hm.")
        if body["messages"][-1]["role"] == "tool":
            return Scripted(f"Heard: {body['messages'][-1]['content']}", reasoning="Hm.")
        return Scripted(reasoning="Hm.", tool_calls=(ScriptedCall("delegate", '{"task": "Do it."}'),))

    with ModelServer(model="m", script=play, strict="deepseek") as server:
        chat, middleware = chat_on(server), ContextMiddleware(context_window=8_000, store=store_url)
        inner = create_agent(chat, [], middleware=[middleware])

        @tool
        def delegate(task: str) -> str:
            """Gives a task away."""
            return str(inner.invoke({"messages": [HumanMessage(task)]})["messages"][-1].text)

        agent = create_agent(chat, [delegate], middleware=[middleware], checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "t"}}
        for turn in (1, 2):
            state = agent.invoke({"messages": [HumanMessage("Go.")]}, config)
            assert state["messages"][-1].text == "Heard: Sub saw 1."
            assert middleware.context("t").usage().turns == turn
        middleware.close()
        chat.close()


def test_the_providers_overflow_is_learnt_and_the_call_made_again() -> None:
    with ModelServer(model="m", script=talk, strict="deepseek", context_window=1_000) as server:
        chat, middleware = chat_on(server), ContextMiddleware(context_window=100_000)
        agent = create_agent(chat, [], middleware=[middleware], checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "t"}}
        for number in range(20):
            state = agent.invoke({"messages": [HumanMessage(f"Q{number:03}")]}, config)
            assert state["messages"][-1].text.startswith(f"Answer to Q{number:03}")
        assert middleware.context("t").usage().budget_tokens < 1_000
        chat.close()


def test_a_failed_call_leaves_the_session_as_it_was() -> None:
    """The model's own error comes out, for retries and fallbacks around; the same question can be asked again."""
    with ModelServer(model="m", script=[ErrorReply(500, "down"), Scripted("Hi.")], strict="openai") as server:
        model: Any = ChatOpenAI(model="m", base_url=server.base_url, api_key="x", max_retries=0)
        middleware = ContextMiddleware(context_window=8_000)
        agent = create_agent(model, [], middleware=[middleware], checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "t"}}
        with pytest.raises(InternalServerError):
            agent.invoke({"messages": [HumanMessage("hello")]}, config)
        assert middleware.context("t").messages() == ()
        assert agent.invoke(None, config)["messages"][-1].text == "Hi."
        assert middleware.context("t").usage().turns == 1
        model.root_client.close()


@pytest.mark.parametrize("how", ["invoke", "astream"])
async def test_a_thinking_model_that_is_not_ours(how: str) -> None:
    """Its reasoning goes back, with nothing to add; tokens come once."""
    with ModelServer(model="m", script=rounds(20), strict="deepseek", context_window=8_000) as server:
        model: Any = ChatDeepSeek(model_name="m", api_base=server.base_url, api_key="x", max_retries=0)
        agent = create_agent(model, [read], middleware=[ContextMiddleware(context_window=8_000)])
        given: Any = {"messages": [HumanMessage("Read twenty pages.")]}
        config: Any = {"recursion_limit": 200}
        if how == "invoke":
            last = agent.invoke(given, config)["messages"][-1].text
        else:
            seen = [c async for c, _ in agent.astream(given, config, stream_mode="messages")]
            last = "".join(c.text for c in seen if isinstance(c, AIMessage))
        assert last == "All pages are read."
        model.root_client.close()
        await model.root_async_client.close()


def test_requests_grow_at_their_end() -> None:
    """Between compactions each request begins with the one before it."""
    with ModelServer(model="m", script=rounds(30), strict="deepseek", context_window=16_000) as server:
        chat = chat_on(server)
        middleware = ContextMiddleware(context_window=16_000)
        agent = create_agent(chat, [read], system_prompt="Read.", middleware=[middleware])
        agent.invoke({"messages": [HumanMessage("Read thirty pages.", id="q")]}, {"recursion_limit": 200})
        usage = middleware.context("run-q").usage()
        bodies = [r.body["messages"] for r in server.requests if r.body.get("tools")]
        # recalled passages stand at the end of one request only
        asked = [[m for m in b if m["role"] != "user" or "Read thirty" in m["content"]] for b in bodies]
        broken = sum(b[: len(a)] != a for a, b in pairwise(asked))
        assert broken <= usage.compactions
        chat.close()


def test_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match="hard_ratio"):
        ContextMiddleware(context_window=8_000, hard_ratio=7)
    with pytest.raises(WindowTooSmallError, match="the tools have 394 tokens; a window of 500 has 400"):
        ContextMiddleware(context_window=500)
    ContextMiddleware(context_window=500, history_tools=False)
    with ModelServer(model="m", script=talk) as server:
        chat = chat_on(server, session="own", context_window=8_000)
        agent = create_agent(chat, [], middleware=[ContextMiddleware(context_window=8_000)])
        with pytest.raises(ConfigError, match="sessions of its own"):
            agent.invoke({"messages": [HumanMessage("hello")]})
        chat.close()
        plain = chat_on(server)
        agent = create_agent(plain, [], middleware=[ContextMiddleware(context_window=600)])
        with pytest.raises(lc.ContextOverflowError):
            agent.invoke({"messages": [HumanMessage("too long " * 1_000)]})
        plain.close()


def test_changes_of_other_middleware_to_a_request_stay_in_that_request() -> None:
    """Some mark blocks for a provider's cache in place; the next request shows the messages as the session has them."""

    class Marks(AgentMiddleware[Any, Any, Any]):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            for message in request.messages:
                assert "marked" not in str(message)
                if isinstance(message.content, list):
                    message.content[0]["marked"] = True
                message.additional_kwargs["marked"] = True
                for call in getattr(message, "tool_calls", ()):
                    call["args"]["marked"] = True
            return handler(request)

    question = HumanMessage([{"type": "text", "text": "Read a page."}], id="u0", additional_kwargs={"own": {"a": [1]}})
    with ModelServer(model="m", script=rounds(2)) as server, ContextMiddleware(context_window=64_000) as context:
        chat = chat_on(server)
        agent = create_agent(chat, [read], middleware=[context, Marks()], checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "t"}}
        agent.invoke({"messages": [question]}, config)
        answer = agent.invoke({"messages": [HumanMessage("And the next one?", id="u1")]}, config)
        assert answer["messages"][-1].text == "All pages are read."
        assert len(server.requests) == 4
        chat.close()


def test_a_message_that_is_edited_in_place_during_a_run_is_asked_as_it_is_then() -> None:
    """The list of the next model call has the same objects: what tells the edit is their content alone."""
    texts = ["Read two pages.", "Read two short pages.", "Read two pages."]

    class Edits(AgentMiddleware[Any, Any, Any]):
        def before_model(self, state: Any, runtime: Any) -> None:
            question = state["messages"][0]
            question.content = texts[sum(m.type == "ai" for m in state["messages"])]

    with ModelServer(model="m", script=rounds(2)) as server, ContextMiddleware(context_window=64_000) as context:
        chat = chat_on(server)
        agent = create_agent(chat, [read], middleware=[Edits(), context])
        agent.invoke({"messages": [HumanMessage("Read.", id="u0")]}, {"configurable": {"thread_id": "t"}})
        asked = [next(m["content"] for m in r.body["messages"] if m["role"] == "user") for r in server.requests]
        assert asked == texts
        chat.close()


def test_a_model_call_of_an_agent_reads_its_log_once() -> None:
    class CountingStore(MemoryStore):
        reads = 0

        def read(self, *args: Any, **kwargs: Any) -> Any:
            self.reads += 1
            return super().read(*args, **kwargs)

    store = CountingStore()
    with ModelServer(model="m", script=talk) as server, ContextMiddleware(context_window=8_000, store=store) as context:
        chat = chat_on(server)
        agent = create_agent(chat, [], middleware=[context], checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "t"}}
        agent.invoke({"messages": [HumanMessage("Hello.")]}, config)
        before = store.reads
        agent.invoke({"messages": [HumanMessage("And again.")]}, config)
        assert store.reads - before == 1
        chat.close()


def test_a_call_leaves_nothing_for_the_garbage_collector() -> None:
    requests: list[weakref.ref[Any]] = []

    class Noting(AgentMiddleware[Any, Any, Any]):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            requests.append(weakref.ref(request))
            return handler(request)

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            requests.append(weakref.ref(request))
            return await handler(request)

    with ModelServer(script=lambda body: Scripted("Noted.")) as server:
        agent: Any = create_agent(chat_on(server), [], middleware=[Noting(), ContextMiddleware(context_window=64_000)])
        gc.disable()
        try:
            agent.invoke({"messages": [("user", "I like tea.")]})
            asyncio.run(agent.ainvoke({"messages": [("user", "I like tea.")]}))
            assert [request() for request in requests] == [None, None]
        finally:
            gc.enable()
