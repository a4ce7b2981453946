"""`ContextMiddleware` in `create_agent`, against a server as strict as DeepSeek."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool

from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware

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
        asked = [r.body for r in server.requests if r.body.get("tools")]
        assert len(asked) == ROUNDS + 1
        assert all(any("sixty pages" in str(m["content"]) for m in body["messages"]) for body in asked)
        usage = middleware.context("run-q").usage()
        assert usage.turns == 1
        assert usage.compactions > 0
        middleware.close()
        chat.close()
