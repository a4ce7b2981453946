"""What LangChain's own SummarizationMiddleware does wrong, each with the same agent and model and ours in its place."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold import HistoryCompacted
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware
from tests.support.summaries import asks_on_live_prefix
from tests.timing import wait_for

THREAD: Any = {"recursion_limit": 500, "configurable": {"thread_id": "t"}}
WRITING = "Summary: "


def texts(body: Any) -> str:
    return "\n".join(str(m.get("content")) for m in body["messages"])


def chat_on(server: ModelServer) -> ChatCtx:
    return ChatCtx(model="m", provider="deepseek", base_url=server.base_url, api_key="x", max_retries=0, timeout=60)


def is_agents(body: Any, mark: str = "AGENT") -> bool:
    """Returns False for requests for summaries, of which some begin as the agent's do."""
    return mark in texts(body).split("\n")[0] and not asks_on_live_prefix(body)


def asked_by_agent(server: ModelServer, mark: str = "AGENT") -> list[Any]:
    return [r.body for r in server.requests if is_agents(r.body, mark)]


def asked_for_summary(server: ModelServer, mark: str = "AGENT") -> list[Any]:
    return [r.body for r in server.requests if not is_agents(r.body, mark)]


def play(body: Any) -> Scripted:
    """Answers the agent in two words, and sums up by the marks it sees."""
    if is_agents(body):
        return Scripted("All right.", reasoning="Hm.")
    return Scripted(WRITING + "they talked about marks.", reasoning="Hm.")


def past(count: int, words: int = 30) -> list[Any]:
    found: list[Any] = []
    for number in range(count):
        found += [
            HumanMessage(f"MARK{number:04} " + "and so on " * words),
            AIMessage(f"REPLY{number:04} " + "fine " * words),
        ]
    return found


def agent_with(server: ModelServer, middleware: Any, tools: Any = (), prompt: str = "AGENT") -> tuple[ChatCtx, Any]:
    chat = chat_on(server)
    return chat, create_agent(
        chat, list(tools), system_prompt=prompt, middleware=[middleware], checkpointer=InMemorySaver()
    )


def agent_with_theirs(server: ModelServer, tools: Any = (), prompt: str = "AGENT", **settings: Any) -> tuple[Any, Any]:
    chat = chat_on(server)
    theirs: Any = SummarizationMiddleware(chat, **settings)
    agent = create_agent(chat, list(tools), system_prompt=prompt, middleware=[theirs], checkpointer=InMemorySaver())
    return chat, agent


def test_1_every_replaced_message_is_seen_by_a_summary() -> None:
    """480 messages before the window: theirs reads 30 of them (trimmed to 4,000 tokens) and drops the rest unread."""

    def seen(server: ModelServer) -> set[str]:
        read = "\n".join(texts(b) for b in asked_for_summary(server))
        return {f"MARK{n:04}" for n in range(240) if f"MARK{n:04}" in read}

    with ModelServer(model="m", script=play, strict="deepseek") as server:
        chat, agent = agent_with_theirs(server, trigger=("messages", 100), keep=("messages", 2))
        agent.update_state(THREAD, {"messages": past(240)})
        agent.invoke({"messages": [HumanMessage("Go on.")]}, THREAD)
        assert 0 < len(seen(server)) < 100
        chat.close()
    with ModelServer(model="m", script=play, strict="deepseek") as server:
        middleware = ContextMiddleware(context_window=8_000)
        chat, agent = agent_with(server, middleware)
        agent.update_state(THREAD, {"messages": past(240)})
        agent.invoke({"messages": [HumanMessage("Go on.")]}, THREAD)
        shown = texts(asked_by_agent(server)[-1])
        unshown = {f"MARK{n:04}" for n in range(240) if f"MARK{n:04}" not in shown}
        wait_for(lambda: unshown <= seen(server))  # a long import is summarised in the background
        chat.close()


def test_2_the_summary_before_is_in_the_next_one() -> None:
    """Theirs cuts what it sums up to its newest 4,000 tokens, and the summary before stands at the other end."""

    def summaries(server: ModelServer, agent: Any, turns: int) -> list[Any]:
        for number in range(turns):
            agent.invoke({"messages": [HumanMessage(f"MARK{number:04} " + "and so on " * 300)]}, THREAD)
        found = asked_for_summary(server)
        assert len(found) >= 2
        return found[1:]

    with ModelServer(model="m", script=play, strict="deepseek") as server:
        chat, agent = agent_with_theirs(server, trigger=("messages", 20), keep=("messages", 2))
        assert not any(WRITING in texts(body) for body in summaries(server, agent, 24))
        chat.close()
    with ModelServer(model="m", script=play, strict="deepseek", context_window=8_000) as server:
        chat, agent = agent_with(server, ContextMiddleware(context_window=8_000))
        assert all(WRITING in texts(body) for body in summaries(server, agent, 24))
        chat.close()


@tool
def read(page: int) -> str:
    """Reads a page."""
    return f"Page {page}. " + "words and words " * 100


def reading(count: int) -> Any:
    def script(body: Any) -> Scripted:
        if not is_agents(body):
            return Scripted(WRITING + "pages were read.", reasoning="Hm.")
        calls = [c for m in body["messages"] for c in m.get("tool_calls") or ()]
        done = max((int(json.loads(c["function"]["arguments"])["page"]) for c in calls), default=0)
        if done >= count:
            return Scripted("Read all.", reasoning="Done.")
        more = tuple(ScriptedCall("read", json.dumps({"page": done + n})) for n in (1, 2))
        return Scripted(reasoning="Next.", tool_calls=more)

    return script


TOO_LONG = "Previous conversation was too long to summarize."


def test_3_one_question_and_many_rounds() -> None:
    """Theirs asks nobody, and puts a sentence in place of everything, the question included."""
    with ModelServer(model="m", script=reading(60), strict="deepseek", context_window=40_000) as server:
        chat, agent = agent_with_theirs(server, [read], trigger=("tokens", 6_000), keep=("messages", 4))
        agent.invoke({"messages": [HumanMessage("Read the sixty pages.")]}, THREAD)
        assert asked_for_summary(server) == []
        assert TOO_LONG in texts(asked_by_agent(server)[-1])
        assert "Read the sixty pages." not in texts(asked_by_agent(server)[-1])
        chat.close()
    with ModelServer(model="m", script=reading(60), strict="deepseek", context_window=6_000) as server:
        middleware = ContextMiddleware(context_window=6_000)
        chat, agent = agent_with(server, middleware, [read])
        state = agent.invoke({"messages": [HumanMessage("Read the sixty pages.")]}, THREAD)
        assert state["messages"][-1].text == "Read all."
        assert sum(isinstance(m, ToolMessage) for m in state["messages"]) == 60
        assert all("Read the sixty pages." in texts(body) for body in asked_by_agent(server))
        assert not any(TOO_LONG in texts(r.body) for r in server.requests)
        assert middleware.context("t").usage().compactions > 0
        chat.close()


def test_4_no_result_without_its_call() -> None:
    """Results of two calls side by side, and the cut between: theirs goes back to the nearer call only."""

    def orphans(body: Any) -> set[str]:
        called = {c["id"] for m in body["messages"] for c in m.get("tool_calls") or ()}
        return {m["tool_call_id"] for m in body["messages"] if m["role"] == "tool"} - called

    def call(name: str) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": "read", "args": {"page": 1}, "id": name}])

    rounds = [call("a"), call("b"), ToolMessage("A", tool_call_id="a"), ToolMessage("B", tool_call_id="b")]
    with ModelServer(model="m", script=play) as server:
        chat, agent = agent_with_theirs(server, [read], trigger=("messages", 20), keep=("messages", 3))
        agent.update_state(THREAD, {"messages": [*past(10), *rounds]})
        agent.invoke({"messages": [HumanMessage("Go on.")]}, THREAD)
        assert orphans(asked_by_agent(server)[-1]) == {"a"}
        chat.close()
    with ModelServer(model="m", script=play) as server:
        chat, agent = agent_with(server, ContextMiddleware(context_window=2_000, history_tools=False), [read])
        agent.update_state(THREAD, {"messages": [*past(10), *rounds]})
        for _ in range(3):
            agent.invoke({"messages": [HumanMessage("Go on.")]}, THREAD)
        assert all(orphans(body) == set() for body in asked_by_agent(server))
        chat.close()


def test_5_what_is_kept_never_exceeds_the_window() -> None:
    """Twenty kept messages of 1,000 tokens each: theirs keeps them all, far over its trigger, and the service refuses."""
    with ModelServer(model="m", script=play, strict="deepseek", context_window=8_000) as server:
        chat, agent = agent_with_theirs(server, trigger=("tokens", 4_000))
        agent.update_state(THREAD, {"messages": past(9, words=400)})
        with pytest.raises(ContextOverflowError):
            agent.invoke({"messages": [HumanMessage("Go on.")]}, THREAD)
        assert asked_for_summary(server) == []
        chat.close()
    with ModelServer(model="m", script=play, strict="deepseek", context_window=8_000) as server:
        middleware = ContextMiddleware(context_window=8_000)
        chat, agent = agent_with(server, middleware)
        agent.update_state(THREAD, {"messages": past(9, words=400)})
        state = agent.invoke({"messages": [HumanMessage("Go on.")]}, THREAD)
        assert state["messages"][-1].text == "All right."
        usage = middleware.context("t").usage()
        assert usage.window_tokens <= usage.budget_tokens
        chat.close()


def test_6_a_long_prompt_does_not_make_a_summary_of_every_turn() -> None:
    """System prompt and tools fill most of the window: two-word turns are not summarised one by one."""
    prompt = "AGENT " + "Mind this rule as well. " * 500

    def summaries(server: ModelServer, agent: Any) -> int:
        for number in range(10):
            state = agent.invoke({"messages": [HumanMessage(f"Turn {number}")]}, THREAD)
            assert state["messages"][-1].text == "All right."
        return len(asked_for_summary(server))

    with ModelServer(model="m", script=play, strict="deepseek", context_window=4_000) as server:
        chat, agent = agent_with_theirs(server, [read], prompt, trigger=("tokens", 2_400), keep=("messages", 2))
        assert summaries(server, agent) >= 8
        chat.close()
    with ModelServer(model="m", script=play, strict="deepseek", context_window=4_000) as server:
        middleware = ContextMiddleware(context_window=4_000, history_tools=False)
        chat, agent = agent_with(server, middleware, [read], prompt)
        assert summaries(server, agent) <= 1
        chat.close()


def chinese() -> list[Any]:
    words = "请继续说明这个问题的原因和结果。" * 20
    return [m for n in range(22) for m in (HumanMessage(f"第{n}个问题：{words}"), AIMessage("好的。"))]


def thoughtful() -> list[Any]:
    thought = {"reasoning_content": "I wonder whether that is so. " * 120}
    return [m for n in range(12) for m in (HumanMessage(f"Q{n}"), AIMessage("Yes.", additional_kwargs=thought))]


@pytest.mark.parametrize("told", [chinese, thoughtful])
def test_7_reasoning_and_chinese_are_counted(told: Any) -> None:
    """Reasoning is nothing to theirs, Chinese a quarter of what it is: far below the trigger, and the service refuses."""
    with ModelServer(model="m", script=play, strict="deepseek", context_window=4_000) as server:
        chat, agent = agent_with_theirs(server, trigger=("tokens", 2_500), keep=("messages", 2))
        agent.update_state(THREAD, {"messages": told()})
        with pytest.raises(ContextOverflowError):
            agent.invoke({"messages": [HumanMessage("Go on.")]}, THREAD)
        assert asked_for_summary(server) == []
        chat.close()
    with ModelServer(model="m", script=play, strict="deepseek", context_window=4_000) as server:
        middleware = ContextMiddleware(context_window=4_000)
        chat, agent = agent_with(server, middleware)
        agent.update_state(THREAD, {"messages": told()})
        agent.invoke({"messages": [HumanMessage("Go on.")]}, THREAD)
        assert len(asked_by_agent(server)) == 1  # none was refused and sent again
        assert middleware.context("t").usage().compactions > 0
        chat.close()


def test_8_braces_in_a_prompt_of_ones_own() -> None:
    prompt = 'Answer as {"summary": "..."}.'
    with ModelServer(model="m", script=play, strict="deepseek") as server:
        chat, agent = agent_with_theirs(
            server, trigger=("messages", 20), keep=("messages", 2), summary_prompt=prompt + " {messages}"
        )
        agent.update_state(THREAD, {"messages": past(20)})
        with pytest.raises(KeyError, match="summary"):
            agent.invoke({"messages": [HumanMessage("Go on.")]}, THREAD)
        chat.close()
    with ModelServer(model="m", script=play, strict="deepseek", context_window=2_000) as server:
        chat, agent = agent_with(
            server, ContextMiddleware(context_window=2_000, history_tools=False, summary_prompt=prompt)
        )
        for number in range(30):
            agent.invoke({"messages": [HumanMessage(f"MARK{number:04} " + "and so on " * 30)]}, THREAD)
        assert prompt in texts(asked_for_summary(server)[0])
        chat.close()


class Held:
    """Answers the agent at once, and a request for a summary when the test says so."""

    def __init__(self) -> None:
        self.events: list[threading.Event] = []

    def __call__(self, body: Any) -> Scripted:
        if is_agents(body):
            return Scripted("All right.", reasoning="Hm.")
        self.events.append(threading.Event())
        return Scripted(WRITING + "they talked.", reasoning="Hm.", held=self.events[-1])

    @property
    def waiting(self) -> bool:
        return not all(e.is_set() for e in self.events)

    def let_go(self) -> None:
        for event in self.events:
            event.set()

    async def let_all_end(self, tasks: Any) -> None:
        """Until nothing is under way in the background."""
        while tasks.running:
            self.let_go()
            await asyncio.sleep(0.001)


async def test_9_a_turn_does_not_wait_for_a_summary() -> None:
    """Theirs is written while the user waits; ours, prepared ahead, beside the turns, on a loop that stays free."""

    def turn(agent: Any, number: int) -> Any:
        return agent.ainvoke({"messages": [HumanMessage(f"MARK{number:04} " + "and so on " * 30)]}, THREAD)

    held, waited = Held(), 0
    with ModelServer(model="m", script=held, strict="deepseek") as server:
        chat, agent = agent_with_theirs(server, trigger=("messages", 30), keep=("messages", 4))
        for number in range(30):
            asked = asyncio.create_task(turn(agent, number))
            while not (held.waiting or asked.done()):
                await asyncio.sleep(0.001)
            if held.waiting:
                waited += 1
                await asyncio.sleep(0.1)
                assert not asked.done()
                held.let_go()
            await asked
        assert waited == len(asked_for_summary(server)) > 0
        await chat.aclose()
        chat.close()
    held, ended = Held(), 0
    with ModelServer(model="m", script=held, strict="deepseek", context_window=4_000) as server:
        middleware = ContextMiddleware(context_window=4_000, background=True, history_tools=False)
        chat, agent = agent_with(server, middleware)
        context, events = middleware.context("t"), list[HistoryCompacted]()
        context.subscribe(lambda e: events.append(e) if isinstance(e, HistoryCompacted) else None)
        tasks: Any = context.handle.engine.ports.tasks
        for number in range(40):
            await turn(agent, number)
            assert server.cancelled == 0, "a turn waited for a summary until it gave it up"
            ended += tasks.running
            if ended % 3 == 0:
                await held.let_all_end(tasks)
        await held.let_all_end(tasks)
        assert ended > 3
        assert context.usage().compactions > 0
        assert asked_for_summary(server)
        assert all(e.fallback_level == "model" and "background" in e.reason for e in events)
        await middleware.aclose()
        await chat.aclose()
        chat.close()
