"""Tools that add messages beside their result, among parallel calls: all results stand behind the calls, and nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ContextMiddleware, with_context
from tests.langchain.faces import closed
from tests.langchain.running import T

CALLS = (
    ScriptedCall("load", '{"name": "plan"}'),
    ScriptedCall("look", '{"key": 1}'),
    ScriptedCall("load", '{"name": "list"}'),
)
QUESTIONS = ("Load and look.", "Once more, load and look.", "Goodbye.")


@tool
def load(name: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Loads a file, which the user hands in."""
    return Command(
        update={"messages": [ToolMessage("loaded", tool_call_id=tool_call_id), HumanMessage(f"FILE {name}")]}
    )


@tool
def look(key: int) -> str:
    """Looks it up."""
    return f"entry {key}"


def desk(body: Any) -> Scripted:
    """Calls the tools for a question that says so, then answers."""
    last = body["messages"][-1]
    text = str(last["content"])
    return Scripted("", tool_calls=CALLS) if "look" in text and last["role"] == "user" else Scripted("Done.")


def model_of(strict: str, url: str) -> Any:
    if strict == "openai":
        return ChatOpenAI(model="m", base_url=url, api_key="x", max_retries=0)  # type: ignore[arg-type]
    return ChatAnthropic(model="m", base_url=url.removesuffix("/v1"), api_key="x", max_retries=0)  # type: ignore[call-arg, arg-type]


def shape(body: Any) -> list[str]:
    """The roles of a request, with each result by itself as Anthropic has them among the user's blocks."""
    rows: list[str] = []
    for message in body["messages"]:
        content = message["content"]
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        for block in blocks if message["role"] == "user" else blocks[:1]:
            rows.append("tool" if block["type"] == "tool_result" else message["role"])
    return [r for r in rows if r != "system"]


CONFIG: Any = {**T, "recursion_limit": 12}
AS_LISTED = ["human", "ai", "tool", "human", "tool", "tool", "human", "ai"]
ROUND = ["user", "assistant", "tool", "tool", "tool", "user", "user", "assistant"]


@pytest.mark.parametrize("saver", [True, False])
@pytest.mark.parametrize("strict", ["openai", "anthropic"])
@pytest.mark.parametrize("how", ["middleware", "wrapper", "async middleware"])
async def test_the_results_come_first(how: str, strict: str, saver: bool, tmp_path: Path) -> None:
    with ModelServer(script=desk, strict=strict) as server:
        url = f"sqlite:///{tmp_path}/s.db"
        inner = model_of(strict, server.base_url)
        ours = ContextMiddleware(context_window=50_000, store=url, history_tools=False)
        wrapped = with_context(inner, session_id="t", store=url, context_window=50_000)
        agent: Any = create_agent(
            wrapped if how == "wrapper" else inner,
            [load, look],
            middleware=[] if how == "wrapper" else [ours],
            checkpointer=InMemorySaver() if saver else None,
        )
        messages: list[Any] = []
        for question in QUESTIONS:
            given = {"messages": [*([] if saver else messages), HumanMessage(question)]}
            result = await agent.ainvoke(given, CONFIG) if how.startswith("async") else agent.invoke(given, CONFIG)
            messages = result["messages"]
        assert [m.type for m in messages] == [*AS_LISTED, *AS_LISTED, "human", "ai"]
        assert shape(server.requests[-1].body) == [*ROUND, *ROUND, "user"]
        context = wrapped.context() if how == "wrapper" else ours.context("t")
        stored = [(m.id, m.role) for m in context.messages()]
        assert [role for _, role in stored] == [*ROUND, *ROUND, "user", "assistant"]
        if saver:
            assert {i for i, _ in stored} == {m.id for m in messages}
        assert [*context.handle.store.sessions("default")] == ["t"], "no branch was made"
        ours.close()
        await closed(wrapped)
