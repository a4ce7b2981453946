"""`ContextSummarizer` in LangChain's own `SummarizationMiddleware`: the agent and its settings stay as they are."""

from __future__ import annotations

import re
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold import ConfigError
from ctxfold.compaction.summarize import Summary
from ctxfold.testing import ErrorReply, ModelServer, Scripted
from langchain_ctx import ChatCtx, ContextSummarizer, token_counter

THREAD: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": 100}


def chat_on(server: ModelServer) -> ChatCtx:
    return ChatCtx(model="m", base_url=server.base_url, api_key="x", max_retries=0)


def texts(body: Any) -> str:
    return "\n".join(str(m["content"]) for m in body["messages"])


def is_agents(body: Any) -> bool:
    return str(body["messages"][0]["content"]) == "AGENT"


def play(body: Any) -> Scripted | ErrorReply:
    """Answers the agent in two words; a summary names the marks that it has read."""
    if is_agents(body):
        return Scripted("All right.")
    marks = sorted(set(re.findall(r"MARK\d+", texts(body))))
    return Scripted(f"They talked about marks, from {marks[0]} to {marks[-1]}, and so on.")


def past(count: int) -> list[Any]:
    found: list[Any] = []
    for number in range(count):
        found += [HumanMessage(f"MARK{number:04} " + "and so on " * 30), AIMessage(f"REPLY{number:04} " + "fine " * 30)]
    return found


def agent_on(chat: ChatCtx, summarizer: ContextSummarizer, **settings: Any) -> Any:
    middleware = SummarizationMiddleware(
        chat,
        summarizer=summarizer,
        token_counter=token_counter(),
        trim_tokens_to_summarize=None,
        **{"trigger": ("messages", 100), "keep": ("messages", 2), **settings},
    )
    return create_agent(chat, [], system_prompt="AGENT", middleware=[middleware], checkpointer=InMemorySaver())


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
async def test_every_replaced_message_is_read(how: str) -> None:
    """480 messages through a summariser with a window of 4,000 tokens: in pieces, and none is left out."""
    seen: list[Summary] = []
    with ModelServer(model="m", script=play) as server, chat_on(server) as chat:
        agent = agent_on(chat, ContextSummarizer(chat, context_window=4_000, on_summary=seen.append))
        agent.update_state(THREAD, {"messages": past(240)})
        given: Any = {"messages": [HumanMessage("Go on.")]}
        state = agent.invoke(given, THREAD) if how == "invoke" else await agent.ainvoke(given, THREAD)
        read = "\n".join(texts(r.body) for r in server.requests if not is_agents(r.body))
        assert {f"MARK{n:04}" for n in range(239)} <= set(read.split())
        assert seen[0].fallback_level == "model", seen[0].problems
        assert seen[0].calls > 1
        assert seen[0].text in state["messages"][0].text


def test_the_summary_before_is_carried_over() -> None:
    with ModelServer(model="m", script=play) as server, chat_on(server) as chat:
        agent = agent_on(chat, ContextSummarizer(chat, context_window=16_000), trigger=("messages", 10))
        for number in range(12):
            asked = f"MARK{number:04} costs {number}{number},50 euros. " + "and so on " * 30
            agent.invoke({"messages": [HumanMessage(asked)]}, THREAD)
        summaries = [texts(r.body) for r in server.requests if not is_agents(r.body)]
        assert len(summaries) > 1
        assert all("<previous_summary>\nThey talked about marks" in text for text in summaries[1:])
        shown = texts(server.requests[-1].body)
        assert all(f"{n}{n},50" in shown for n in range(12))  # verbatim, by the ledger


def test_a_summariser_that_is_down_costs_no_turn() -> None:
    def down(body: Any) -> Scripted | ErrorReply:
        return Scripted("All right.") if is_agents(body) else ErrorReply(500, "down")

    seen: list[Summary] = []
    with ModelServer(model="m", script=down) as server, chat_on(server) as chat:
        agent = agent_on(chat, ContextSummarizer(chat, context_window=16_000, on_summary=seen.append))
        agent.update_state(THREAD, {"messages": past(60)})
        state = agent.invoke({"messages": [HumanMessage("Go on.")]}, THREAD)
        assert state["messages"][-1].text == "All right."
        assert seen[0].fallback_level == "extractive"
        assert any("500" in problem for problem in seen[0].problems)


async def test_nothing_of_it_reaches_the_stream() -> None:
    with ModelServer(model="m", script=play) as server, chat_on(server) as chat:
        agent = agent_on(chat, ContextSummarizer(chat, context_window=16_000))
        agent.update_state(THREAD, {"messages": past(60)})
        given: Any = {"messages": [HumanMessage("Go on.")]}
        said = [c.text async for c, _ in agent.astream(given, THREAD, stream_mode="messages") if c.type != "human"]
        assert "".join(said) == "All right."


def test_braces_in_its_instructions_are_text() -> None:
    with ModelServer(model="m", script=play) as server, chat_on(server) as chat:
        agent = agent_on(chat, ContextSummarizer(chat, context_window=16_000, prompt='As {"json": 1}.'))
        agent.update_state(THREAD, {"messages": past(60)})
        agent.invoke({"messages": [HumanMessage("Go on.")]}, THREAD)
        assert any(texts(r.body).startswith('As {"json": 1}.') for r in server.requests)


def test_a_model_of_unknown_window() -> None:
    with (
        ModelServer(model="m", script=play) as server,
        chat_on(server) as chat,
        pytest.raises(ConfigError, match="context_window"),
    ):
        ContextSummarizer(chat)
