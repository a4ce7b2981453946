"""Before and after eleven of LangChain's own middlewares, the model is sent what it is sent without ctxfold."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    HumanInTheLoopMiddleware,
    LLMToolEmulator,
    LLMToolSelectorMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    PIIMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    ToolErrorMiddleware,
    ToolRetryMiddleware,
)
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import SecretStr

from ctxfold.testing import ErrorReply, ModelServer, Scripted, ScriptedCall
from langchain_ctx import ContextMiddleware
from tests.langchain.faces import closed
from tests.langchain.running import T

Middleware = AgentMiddleware[Any, Any, Any]
EVERYWHERE: dict[str, Any] = {"apply_to_input": True, "apply_to_output": True, "apply_to_tool_results": True}
PREBUILT: dict[str, Callable[[ChatOpenAI], Middleware]] = {
    "context editing": lambda model: ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=300, keep=1)]),
    "fallback": ModelFallbackMiddleware,
    "human in the loop": lambda model: HumanInTheLoopMiddleware(interrupt_on={"look": True}),
    "model calls end": lambda model: ModelCallLimitMiddleware(run_limit=2),
    "model calls fail": lambda model: ModelCallLimitMiddleware(run_limit=2, exit_behavior="error"),
    "cards blocked": lambda model: PIIMiddleware("credit_card", strategy="block"),
    "mails hashed": lambda model: PIIMiddleware("email", strategy="hash", **EVERYWHERE),
    "mails redacted": lambda model: PIIMiddleware("email", **EVERYWHERE),
    "cards masked": lambda model: PIIMiddleware("credit_card", strategy="mask", **EVERYWHERE),
    "todo list": lambda model: TodoListMiddleware(),
    "tool calls end": lambda model: ToolCallLimitMiddleware(tool_name="look", run_limit=1, exit_behavior="end"),
    "tool calls refused": lambda model: ToolCallLimitMiddleware(run_limit=2),
    "tool emulator": lambda model: LLMToolEmulator(tools=["note"], model=model),
    "tool errors": lambda model: ToolErrorMiddleware(on_error=lambda request, error: "No such entry."),
    "tool retry": lambda model: ToolRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False),
    "tool selector": lambda model: LLMToolSelectorMiddleware(model=model, max_tools=1),
}
FAILS = ("tool errors", "tool retry")  # the middlewares that answer a call for a tool that fails
QUESTIONS = (
    "I am ann@example.com.",
    "Do both.",
    "Make a list.",
    "Look four times.",
    "My card is 4111 1111 1111 1111.",
    "Goodbye.",
)


@tool
def look(key: int) -> str:
    """Looks it up."""
    if not key:
        raise ValueError("no entry")
    return f"Entry {key}: ann@example.com, 4111 1111 1111 1111. " + "More of it. " * 20


@tool
def note(text: str) -> str:
    """Notes it."""
    return f"Noted {text}."


def desk(body: Any) -> Scripted | ErrorReply:
    """Plays the model of the agent, the one that selects tools, and the one that makes up results."""
    if "response_format" in body:
        return Scripted(json.dumps({"tools": ["look"]}))
    if "tools" not in body:
        return Scripted("Made up.")
    messages = body["messages"]
    asked = max(i for i, m in enumerate(messages) if m["role"] == "user")
    question, results = str(messages[asked]["content"]), len([m for m in messages[asked:] if m["role"] == "tool"])
    if "unavailable" in question and body["model"] == "m":
        return ErrorReply(500, {"error": {"message": "down", "type": "server_error"}})
    calls: list[ScriptedCall] = []
    if "both" in question and not results:
        calls = [ScriptedCall("look", '{"key": 1}'), ScriptedCall("note", '{"text": "x"}')]
    elif "list" in question and not results and any(t["function"]["name"] == "write_todos" for t in body["tools"]):
        calls = [ScriptedCall("write_todos", '{"todos": [{"content": "a", "status": "pending"}]}')]
    elif "four times" in question and results < 4:
        calls = [ScriptedCall("look", json.dumps({"key": results + 1}))]
    elif "fails" in question and not results:
        calls = [ScriptedCall("look", '{"key": 0}')]
    return Scripted("" if calls else f"To {question}: bob@example.com", tool_calls=tuple(calls))


async def played(made: Callable[[ChatOpenAI], list[Middleware]], how: str, questions: tuple[str, ...]) -> list[Any]:
    """Returns the requests, what failed, and the texts of the agent's state."""
    with ModelServer(script=desk, strict="openai") as server:
        model, other = (
            ChatOpenAI(model=name, base_url=server.base_url, api_key=SecretStr("x"), max_retries=0) for name in "mn"
        )
        agent: Any = create_agent(
            model, [look, note], system_prompt="BE BRIEF", middleware=made(other), checkpointer=InMemorySaver()
        )
        failures: list[str] = []
        for question in questions:
            given: Any = {"messages": [HumanMessage(question)]}
            try:
                while given is not None:
                    result = agent.invoke(given, T) if how == "invoke" else await agent.ainvoke(given, T)
                    waiting = [len(i.value["action_requests"]) for i in result.get("__interrupt__", ())]
                    given = Command(resume={"decisions": [{"type": "approve"}] * sum(waiting)}) if waiting else None
            except Exception as error:
                failures.append(f"{question} {type(error).__name__}: {error}")
        await closed(model)
        await closed(other)
        texts = [(m.type, m.text) for m in agent.get_state(T).values["messages"]]
        return [[(r.body["model"], r.body["messages"], r.body.get("tools")) for r in server.requests], failures, texts]


def without_ids(played: list[Any]) -> Any:
    """Returns what was played with the calls numbered in their order."""
    requests, failures, texts = played
    for _, messages, _ in requests:
        ids: dict[str, str] = {}
        for message in messages:
            for call in message.get("tool_calls") or ():
                call["id"] = ids.setdefault(call["id"], f"call {len(ids)}")
            if "tool_call_id" in message:
                message["tool_call_id"] = ids[message["tool_call_id"]]
    return requests, failures, texts


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("name", PREBUILT)
async def test_the_model_is_sent_the_same(name: str, how: str) -> None:
    questions = QUESTIONS
    if name in FAILS:
        questions = (*QUESTIONS, "It fails.", "And now?")
    elif name == "fallback":
        questions = (*QUESTIONS, "This is unavailable.", "And now?")

    def beside(*, first: bool) -> Callable[[ChatOpenAI], list[Middleware]]:
        def made(model: ChatOpenAI) -> list[Middleware]:
            ours = ContextMiddleware(context_window=100_000, history_tools=False)
            return [ours, PREBUILT[name](model)] if first else [PREBUILT[name](model), ours]

        return made

    stock = without_ids(await played(lambda model: [PREBUILT[name](model)], how, questions))
    assert len(stock[0]) > len(questions) - len(stock[1])
    for first in (True, False):
        assert without_ids(await played(beside(first=first), how, questions)) == stock
