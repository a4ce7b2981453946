"""What LangChain's own SummarizationMiddleware does wrong, each with the same agent and model and ours in its place."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware

THREAD: Any = {"recursion_limit": 500, "configurable": {"thread_id": "t"}}
WRITING = "Summary: "


def texts(body: Any) -> str:
    return "\n".join(str(m.get("content")) for m in body["messages"])


def chat_on(server: ModelServer) -> ChatCtx:
    return ChatCtx(model="m", provider="deepseek", base_url=server.base_url, api_key="x", max_retries=0)


def asked_by_agent(server: ModelServer, mark: str = "AGENT") -> list[Any]:
    return [r.body for r in server.requests if mark in texts(r.body).split("\n")[0]]


def asked_for_summary(server: ModelServer, mark: str = "AGENT") -> list[Any]:
    return [r.body for r in server.requests if mark not in texts(r.body).split("\n")[0]]


def play(body: Any) -> Scripted:
    """Answers the agent in two words, and sums up by the marks it sees."""
    if "AGENT" in texts(body).split("\n")[0]:
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


def test_1_every_replaced_message_is_seen_by_a_summary() -> None:
    """480 messages before the window: theirs reads 30 of them (trimmed to 4,000 tokens) and drops the rest unread."""

    def seen(server: ModelServer) -> set[str]:
        read = "\n".join(texts(b) for b in asked_for_summary(server))
        return {f"MARK{n:04}" for n in range(240) if f"MARK{n:04}" in read}

    with ModelServer(model="m", script=play, strict="deepseek") as server:
        chat = chat_on(server)
        theirs = SummarizationMiddleware(chat, trigger=("messages", 100), keep=("messages", 2))
        agent = create_agent(chat, [], system_prompt="AGENT", middleware=[theirs], checkpointer=InMemorySaver())
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
        unseen = (
            {f"MARK{n:04}" for n in range(240)}
            - seen(server)
            - {f"MARK{n:04}" for n in range(240) if f"MARK{n:04}" in shown}
        )
        assert not unseen
        chat.close()


def test_2_the_summary_before_is_in_the_next_one() -> None:
    with ModelServer(model="m", script=play, strict="deepseek", context_window=2_000) as server:
        middleware = ContextMiddleware(context_window=2_000)
        chat, agent = agent_with(server, middleware)
        for number in range(60):
            agent.invoke({"messages": [HumanMessage(f"MARK{number:04} " + "and so on " * 30)]}, THREAD)
        summaries = asked_for_summary(server)
        assert len(summaries) >= 2
        assert all(WRITING in texts(body) for body in summaries[1:])
        chat.close()


@tool
def read(page: int) -> str:
    """Reads a page."""
    return f"Page {page}. " + "words and words " * 100


def reading(count: int) -> Any:
    def script(body: Any) -> Scripted:
        if "AGENT" not in texts(body).split("\n")[0]:
            return Scripted(WRITING + "pages were read.", reasoning="Hm.")
        calls = [c for m in body["messages"] for c in m.get("tool_calls") or ()]
        done = max((int(json.loads(c["function"]["arguments"])["page"]) for c in calls), default=0)
        if done >= count:
            return Scripted("Read all.", reasoning="Done.")
        more = tuple(ScriptedCall("read", json.dumps({"page": done + n})) for n in (1, 2))
        return Scripted(reasoning="Next.", tool_calls=more)

    return script


def test_3_and_4_one_question_and_many_rounds_of_parallel_calls() -> None:
    """Theirs gives the model "Previous conversation was too long to summarize."; a batch cut in two leaves an orphan.

    The strict service refuses an orphan of either kind, so that an agent which finishes has sent none.
    """
    with ModelServer(model="m", script=reading(60), strict="deepseek", context_window=6_000) as server:
        middleware = ContextMiddleware(context_window=6_000)
        chat, agent = agent_with(server, middleware, [read])
        state = agent.invoke({"messages": [HumanMessage("Read the sixty pages.")]}, THREAD)
        assert state["messages"][-1].text == "Read all."
        assert sum(isinstance(m, ToolMessage) for m in state["messages"]) == 60
        assert all("Read the sixty pages." in texts(body) for body in asked_by_agent(server))
        assert not any("too long to summarize" in texts(r.body) for r in server.requests)
        assert middleware.context("t").usage().compactions > 0
        chat.close()


def test_5_what_is_kept_never_exceeds_the_window() -> None:
    """Twenty kept messages of 1,000 tokens each: theirs keeps them all, far over its trigger."""
    with ModelServer(model="m", script=play, strict="deepseek", context_window=8_000) as server:
        middleware = ContextMiddleware(context_window=8_000)
        chat, agent = agent_with(server, middleware)
        agent.update_state(THREAD, {"messages": past(10, words=400)})
        state = agent.invoke({"messages": [HumanMessage("Go on.")]}, THREAD)
        assert state["messages"][-1].text == "All right."
        usage = middleware.context("t").usage()
        assert usage.window_tokens <= usage.budget_tokens
        chat.close()


def test_6_a_long_prompt_does_not_make_a_summary_of_every_turn() -> None:
    """System prompt and tools fill most of the window: two-word turns are not summarised one by one."""
    prompt = "AGENT " + "Mind this rule as well. " * 500
    with ModelServer(model="m", script=play, strict="deepseek", context_window=4_000) as server:
        chat, agent = agent_with(server, ContextMiddleware(context_window=4_000, history_tools=False), [read], prompt)
        for number in range(10):
            state = agent.invoke({"messages": [HumanMessage(f"Turn {number}")]}, THREAD)
            assert state["messages"][-1].text == "All right."
        assert len(asked_for_summary(server)) <= 1
        chat.close()


def test_7_reasoning_and_chinese_are_counted() -> None:
    """40,000 characters of reasoning are 6 tokens to theirs, Chinese a quarter of what it is: requests that overflow."""

    def thoughtful(body: Any) -> Scripted:
        if "AGENT" in texts(body).split("\n")[0]:
            return Scripted("好的。", reasoning="我再想一想这个问题。" * 60)
        return Scripted(WRITING + "谈话。", reasoning="Hm.")

    with ModelServer(model="m", script=thoughtful, strict="deepseek", context_window=6_000) as server:
        middleware = ContextMiddleware(context_window=6_000)
        chat, agent = agent_with(server, middleware)
        for number in range(20):
            agent.invoke({"messages": [HumanMessage(f"第{number}个问题：" + "请继续说明。" * 20)]}, THREAD)
        assert len(asked_by_agent(server)) == 20  # none was refused and sent again
        assert middleware.context("t").usage().compactions > 0
        chat.close()


def test_8_braces_in_a_prompt_of_ones_own() -> None:
    with ModelServer(model="m", script=play, strict="deepseek", context_window=2_000) as server:
        middleware = ContextMiddleware(
            context_window=2_000, summary_prompt='Answer as {"summary": "..."} in {words} words.'
        )
        chat, agent = agent_with(server, middleware)
        for number in range(30):
            agent.invoke({"messages": [HumanMessage(f"MARK{number:04} " + "and so on " * 30)]}, THREAD)
        summaries = asked_for_summary(server)
        assert summaries
        assert '{"summary": "..."}' in texts(summaries[0])
        chat.close()


async def test_9_the_event_loop_is_free_while_a_summary_is_written() -> None:
    def slow(body: Any) -> Scripted:
        if "AGENT" in texts(body).split("\n")[0]:
            return Scripted("All right.", reasoning="Hm.")
        return Scripted(WRITING + "they talked.", reasoning="Hm.", delay_s=1.5)

    with ModelServer(model="m", script=slow, strict="deepseek", context_window=2_000) as server:
        middleware = ContextMiddleware(context_window=2_000)
        chat, agent = agent_with(server, middleware)
        agent.update_state(THREAD, {"messages": past(30)})
        loop, gaps = asyncio.get_running_loop(), list[float]()

        async def tick() -> None:
            while True:
                before = loop.time()
                await asyncio.sleep(0.01)
                gaps.append(loop.time() - before)

        ticking = asyncio.create_task(tick())
        await agent.ainvoke({"messages": [HumanMessage("Go on.")]}, THREAD)
        ticking.cancel()
        assert asked_for_summary(server)
        assert max(gaps) < 1.2
        chat.close()
