"""Rules for single tools mean the same through every face: what a tool returns stays whole, or takes no more than its limit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool

import llamaindex_ctx
from ctxfold import AgentContext, ConfigError, ToolRule
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware, with_context
from llamaindex_ctx import CtxLLM, CtxMemory
from tests.faces.test_settings_at_construction import FACES

pytestmark = [
    # agents read all attributes of their own class, deprecated ones of pydantic too
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:is_running called from within a step:DeprecationWarning"),
]
NOTES = "\n".join(f"note {n}: an entry of the list" for n in range(400))
RULES: dict[str, Any] = {
    "exclude_tools": ("read_memory",),
    "tool_rules": (ToolRule(tool="browse", excerpt_tokens=200),),
}
WINDOW = 7_000
THREAD: Any = {"configurable": {"thread_id": "t", "session_id": "t"}}


def read_memory() -> str:
    """Reads the notes."""
    return NOTES


def browse() -> str:
    """Opens a page."""
    return NOTES[:2_400]


def play(body: Any) -> Scripted:
    """A model that reads its notes, then a page."""
    outputs = [m for m in body["messages"] if m["role"] == "tool"]
    if len(outputs) < 2:
        return Scripted(tool_calls=(ScriptedCall(("read_memory", "browse")[len(outputs)], "{}"),))
    return Scripted("Both read.")


def settings(server: ModelServer) -> dict[str, Any]:
    return {"model": "m", "base_url": server.base_url, "api_key": "x", "max_retries": 0}


def of_middleware(server: ModelServer, rules: dict[str, Any]) -> None:
    middleware = ContextMiddleware(context_window=WINDOW, history_tools=False, **rules)
    with ChatCtx(**settings(server)) as chat, middleware:
        agent: Any = create_agent(chat, [tool(read_memory), tool(browse)], middleware=[middleware])
        assert agent.invoke({"messages": [("user", "Read both.")]}, THREAD)["messages"][-1].text == "Both read."


def of_with_context(server: ModelServer, rules: dict[str, Any]) -> None:
    with ChatCtx(**settings(server)) as chat, with_context(chat, context_window=WINDOW, **rules) as model:
        agent: Any = create_agent(model, [tool(read_memory), tool(browse)])
        assert agent.invoke({"messages": [("user", "Read both.")]}, THREAD)["messages"][-1].text == "Both read."


def of_chat_model(server: ModelServer, rules: dict[str, Any]) -> None:
    session: dict[str, Any] = {"store": "memory://", "context_window": WINDOW, "policy": rules}
    with ChatCtx(**settings(server), **session) as chat:
        agent: Any = create_agent(chat, [tool(read_memory), tool(browse)])
        assert agent.invoke({"messages": [("user", "Read both.")]}, THREAD)["messages"][-1].text == "Both read."


TOOLS = [FunctionTool.from_defaults(each) for each in (read_memory, browse)]


@asynccontextmanager
async def closing(server: ModelServer) -> AsyncIterator[CtxLLM]:
    llm = CtxLLM(**settings(server), context_window=64_000)
    yield llm
    llm.close()
    await llm.aclose()


async def of_memory(server: ModelServer, rules: dict[str, Any]) -> None:
    async with closing(server) as llm:
        memory = CtxMemory.from_defaults(context_window=WINDOW, **rules)
        agent = FunctionAgent(tools=list(TOOLS), llm=llm)
        assert str(await agent.run("Read both.", memory=memory)) == "Both read."
        # what a turn's own tools return stands in the agent's scratchpad until the turn has ended
        assert str(await agent.run("What have you read?", memory=memory)) == "Both read."


async def of_llm(server: ModelServer, rules: dict[str, Any]) -> None:
    async with closing(server) as inner:
        llm = llamaindex_ctx.with_context(inner, context_window=WINDOW, session_id="t", **rules)
        agent = FunctionAgent(tools=list(TOOLS), llm=llm)
        assert str(await agent.run("Read both.")) == "Both read."


AGENTS: dict[str, Callable[[ModelServer, dict[str, Any]], Any]] = {
    "ContextMiddleware": of_middleware,
    "langchain_ctx.with_context": of_with_context,
    "ChatCtx": of_chat_model,
    "CtxMemory": of_memory,
    "llamaindex_ctx.with_context": of_llm,
}


@pytest.mark.parametrize("face", AGENTS)
@pytest.mark.parametrize("rules", [{}, RULES], ids=["no rule", "rules"])
async def test_an_agent_reads_its_memory_whole_and_a_page_in_short(face: str, rules: dict[str, Any]) -> None:
    with ModelServer(model="m", script=play, strict="openai", context_window=64_000) as server:
        ran = AGENTS[face](server, rules)
        if ran is not None:
            await ran
        outputs = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "tool"]
        left_out = ["characters left out" in each for each in outputs]
        assert left_out == ([False, True] if rules else [True, False])
        assert (NOTES in outputs[0]) is bool(rules)
        assert (len(outputs[1]) < 1_000) is bool(rules)


def test_a_list_that_is_handed_over_keeps_them_too() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "read_memory", "arguments": "{}"}}
    history = [
        ChatMessage("Read both."),
        ChatMessage(role="assistant", content="", additional_kwargs={"tool_calls": [call]}),
        ChatMessage(role="tool", content=NOTES, additional_kwargs={"tool_call_id": "c", "name": "read_memory"}),
    ]
    for rules, whole in (({}, False), (RULES, True)):
        with CtxMemory.from_defaults(context_window=WINDOW, **rules) as memory:
            memory.set(history)
            assert (memory.get()[-1].content == NOTES) is whole


@FACES
def test_every_constructor_takes_and_checks_them(make: Callable[..., Any]) -> None:
    made = make(context_window=4_000, **RULES)
    if isinstance(made, AgentContext | CtxMemory):
        made.close()
    with pytest.raises(ConfigError, match="tool 'browse' is in exclude_tools too"):
        make(context_window=4_000, exclude_tools=("browse",), tool_rules=RULES["tool_rules"])
    with pytest.raises(ConfigError, match="exclude_tools is 'read_memory'"):
        make(context_window=4_000, exclude_tools="read_memory")
