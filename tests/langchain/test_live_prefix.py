"""Summaries on the live prefix under LangChain: with the tools, prompt and settings of the model call that needs them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ContextMiddleware
from tests.langchain.faces import Agents, closed, run
from tests.langchain.running import T
from tests.support.summaries import asks_on_live_prefix, asks_with_transcript

SUMMARY = "The user told the codes of rooms, and the assistant looked at each: Room 0 has the code 4000."
TURNS = 8
HOWS = ["invoke", "ainvoke", "stream", "astream"]


def said(number: int) -> str:
    return f"Room {number} has the code {4_000 + number * 37}. " + "It stands in the hall. " * 24


@tool
def look(room: str) -> str:
    """Looks at a room."""
    return f"{room} is empty."


def is_recalled(message: Any) -> bool:
    """Returns True for passages of the archive, which stand in one request only."""
    return str(message["content"]).startswith("Passages")


def play(body: Any) -> Scripted:
    if asks_on_live_prefix(body) or asks_with_transcript(body):
        return Scripted(SUMMARY)
    asked = [m["role"] for m in body["messages"] if not is_recalled(m)]
    if asked[-1] == "tool" or not body.get("tools"):
        return Scripted("Noted.")
    return Scripted(tool_calls=(ScriptedCall("look", '{"room": "it"}'),))


class Heard(BaseCallbackHandler):
    """The runs of models, their tokens, and what was reported of their usage."""

    def __init__(self) -> None:
        self.runs, self.tokens, self.cached = 0, "", 0

    def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        self.runs += 1

    def on_llm_new_token(self, token: str, **_: Any) -> None:
        self.tokens += token

    def on_llm_end(self, response: Any, **_: Any) -> None:
        usage = response.generations[0][0].message.usage_metadata or {}
        self.cached += usage.get("input_token_details", {}).get("cache_read", 0)


def live_after(server: ModelServer) -> list[tuple[Any, Any]]:
    """Each request for a summary on the live prefix with the request before it."""
    return [pair for pair in pairwise(r.body for r in server.requests) if asks_on_live_prefix(pair[1])]


def repeated(before: Any, live: Any) -> bool:
    """Returns True when the whole of the request before stands at the beginning, with the same tools."""
    sent = [m for m in before["messages"] if not is_recalled(m)]
    return live["messages"][: len(sent)] == sent and live["tools"] == before["tools"]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("face", ["middleware", "with_context", "ChatCtx", "ChatCtx and middleware"])
async def test_the_summary_repeats_the_call_that_needed_it(face: str, how: str) -> None:
    with ModelServer(model="m", script=play) as server:
        made = Agents(face, server, look)
        agent = made.agent("memory://", InMemorySaver(), context_window=2_000)
        heard = Heard()
        for number in range(TURNS):
            assert await run(agent, how, said(number), {**T, "callbacks": [heard]}) == "Noted."
        pairs = live_after(server)
        assert pairs
        assert all(repeated(before, live) for before, live in pairs)
        assert not any("tool_choice" in live for _, live in pairs)
        assert not any(asks_with_transcript(r.body) for r in server.requests)
        assert "codes of rooms" not in heard.tokens
        assert heard.runs == len(server.requests)
        state = agent.get_state(T).values["messages"]
        assert len(state) == TURNS * 4, "nothing of a summary is in the agent's state"
        await made.aclose()


def agent_with(server: ModelServer, middleware: list[Any], **settings: Any) -> tuple[Any, Callable[[], None]]:
    from langchain_ctx import ChatCtx

    model = ChatCtx(model="m", base_url=server.base_url, api_key="x", max_retries=0)  # type: ignore[arg-type]
    agent = create_agent(model, [look], middleware=middleware, checkpointer=InMemorySaver(), **settings)
    return agent, model.close


class Reminds(AgentMiddleware[Any, Any, Any]):
    """Adds to the system prompt of each call, inside of `ContextMiddleware`."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(system_message=SystemMessage(f"{request.system_prompt} Be brief.")))


def test_what_inner_middleware_adds_is_repeated_too() -> None:
    with ModelServer(model="m", script=play) as server:
        agent, close = agent_with(server, [ContextMiddleware(context_window=2_000), Reminds()], system_prompt="Look.")
        for number in range(TURNS):
            agent.invoke({"messages": [HumanMessage(said(number))]}, T)
        pairs = live_after(server)
        assert pairs
        assert all(live["messages"][0]["content"] == "Look. Be brief." for _, live in pairs)
        assert all(repeated(*pair) for pair in pairs)
        close()


class Answer(dict[str, Any]):
    """The shape of an answer."""


def test_an_answer_with_a_schema_is_not_repeated() -> None:
    """Its calls are forced, or its answers are JSON: neither is a summary."""
    schema = {"title": "Seen", "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    def shaped(body: Any) -> Any:
        if asks_with_transcript(body):
            return Scripted(SUMMARY)
        return Scripted(tool_calls=(ScriptedCall("Seen", '{"text": "it"}'),))

    from langchain.agents.structured_output import ToolStrategy

    with ModelServer(model="m", script=shaped) as server:
        context = ContextMiddleware(context_window=2_000)
        agent, close = agent_with(server, [context], response_format=ToolStrategy(schema))
        for number in range(TURNS):
            agent.invoke({"messages": [HumanMessage(said(number))]}, T)
        assert context.context("t").usage().compactions
        assert any(asks_with_transcript(r.body) for r in server.requests)
        assert not live_after(server)
        close()


def test_another_summariser_gets_a_transcript_and_the_agents_own_does_not() -> None:
    from langchain_ctx import ChatCtx

    for same in (True, False):
        with ModelServer(model="m", script=play) as server, ModelServer(model="m", script=play) as other:
            models = [
                ChatCtx(model="m", base_url=s.base_url, api_key="x", max_retries=0)  # type: ignore[arg-type]
                for s in (server, other)
            ]
            context = ContextMiddleware(context_window=2_000, summarizer=models[0] if same else models[1])
            agent: Any = create_agent(models[0], [look], middleware=[context], checkpointer=InMemorySaver())
            for number in range(TURNS):
                agent.invoke({"messages": [HumanMessage(said(number))]}, T)
            assert bool(live_after(server)) == same
            assert bool(other.requests) != same
            for model in models:
                model.close()


async def test_a_call_instead_of_a_summary_is_not_run() -> None:
    ran: list[str] = []

    @tool
    def spend(amount: str) -> str:
        """Spends money."""
        ran.append(amount)
        return "spent"

    def spends(body: Any) -> Any:
        if asks_on_live_prefix(body):
            return Scripted(tool_calls=(ScriptedCall("spend", '{"amount": "all"}'),))
        return Scripted(SUMMARY if asks_with_transcript(body) else "Noted.")

    with ModelServer(model="m", script=spends) as server:
        made = Agents("middleware", server, spend)
        agent = made.agent("memory://", InMemorySaver(), context_window=2_000)
        for number in range(12):
            await run(agent, "ainvoke", said(number))
        assert live_after(server)
        assert any(asks_with_transcript(r.body) for r in server.requests)
        assert ran == []
        await made.aclose()


async def test_cached_tokens_of_summaries_are_told() -> None:
    with ModelServer(model="m", script=play) as server:
        from langchain_openai import ChatOpenAI

        from langchain_ctx import with_context

        plain = ChatOpenAI(model="m", base_url=server.base_url, api_key="x", max_retries=0)  # type: ignore[arg-type]
        with with_context(plain, context_window=2_000, session_id="t", recall_ratio=0) as model:
            for number in range(15):
                await model.ainvoke(said(number))
            usage = model.context("t").usage()
            assert usage.summary_calls == len(live_after(server)) > 0
            assert usage.summaries.cache_read_tokens > 0.7 * usage.summaries.input_tokens
        await closed(plain)
