"""A run may end with a tool's result: of a tool that answers itself, or before an error. The next question begins a new turn."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from ctxfold import AgentContext, TurnsTrigger
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ContextMiddleware
from tests.langchain.faces import FACES, Agents, closed
from tests.langchain.running import T


@tool(return_direct=True)
def answer(number: int) -> str:
    """Answers the user."""
    return f"Locker {number}."


def calling(body: Any) -> Scripted:
    """A model that has the tool answer."""
    questions = [m["content"] for m in body["messages"] if m["role"] == "user"]
    return Scripted(tool_calls=(ScriptedCall("answer", f'{{"number": {len(questions)}}}'),))


@FACES
async def test_others_see_the_turns_before(face: str, store_url: str) -> None:
    """What is in an open turn is hidden from others; a turn that nothing ends would hide the rest of the conversation."""
    with ModelServer(model="m", script=calling, strict="openai") as server:
        made = Agents(face, server, answer)
        app = made.agent(store_url, InMemorySaver())
        for number in range(3):
            await app.ainvoke({"messages": [HumanMessage(f"Q{number}")]}, T)
        with AgentContext(session_id="t", store=store_url, context_window=8_000) as other:
            texts = [m.text or "CALL" for m in other.messages()]
            assert texts[:6] == ["Q0", "CALL", "Locker 1.", "Q1", "CALL", "Locker 2."]
            assert other.usage().turns == 1, "the second ends for sure with the third question"
            assert [h.excerpt for h in other.search("Locker 2")][:1] == ["Locker 2."]
        await made.aclose()


class Locker(BaseModel):
    """A locker."""

    number: int


@pytest.mark.parametrize("how", ["answer", "Locker"])
async def test_a_trigger_is_asked_after_such_a_turn(how: str) -> None:
    """Beside the agent's tools stands a structured answer, whose call and result end the run too."""

    def script(body: Any) -> Scripted:
        if not body.get("tools"):
            return Scripted("They asked for lockers.")
        return Scripted(tool_calls=(ScriptedCall(how, '{"number": 7}'),))

    with ModelServer(model="m", script=script, strict="openai") as server:
        model = ChatOpenAI(model="m", base_url=server.base_url, api_key="x", max_retries=0)  # type: ignore[arg-type]
        settings: Any = {"trigger": TurnsTrigger(at=4, since_summary=True), "strategy": "summarize", "keep_last": 2}
        with ContextMiddleware(context_window=64_000, history_tools=False, **settings) as context:
            ways: Any = {"tools": [answer]} if how == "answer" else {"response_format": ToolStrategy(Locker)}
            app = create_agent(model, middleware=[context], checkpointer=InMemorySaver(), **ways)
            for number in range(14):
                await app.ainvoke({"messages": [HumanMessage(f"Which locker is that of person {number}? " * 20)]}, T)
            used = context.context("t").usage()
            assert used.turns in (12, 13)
            assert used.compactions in (2, 3)
        await closed(model)


async def test_a_thread_goes_on_after_an_excluded_output_was_refused() -> None:
    """The result stays in the agent's messages, and no request has room for it; it gives way once a question follows."""

    @tool
    def read() -> str:
        """Reads the notes."""
        return "note " * 4_000

    def script(body: Any) -> Scripted:
        asked = str(body["messages"][-1]["content"])
        return (
            Scripted(tool_calls=(ScriptedCall("read", "{}"),)) if asked == "Read." else Scripted(f"Answer to {asked}")
        )

    with ModelServer(model="m", script=script, strict="openai") as server:
        model = ChatOpenAI(model="m", base_url=server.base_url, api_key="x", max_retries=0)  # type: ignore[arg-type]
        with ContextMiddleware(context_window=2_000, exclude_tools=("read",), history_tools=False) as context:
            app = create_agent(model, [read], middleware=[context], checkpointer=InMemorySaver())
            with pytest.raises(Exception, match="its tool is in exclude_tools"):
                await app.ainvoke({"messages": [HumanMessage("Read.")]}, T)
            for question in ("Next.", "And now?"):
                state = await app.ainvoke({"messages": [HumanMessage(question)]}, T)
                assert state["messages"][-1].text == f"Answer to {question}"
            assert "note note" in context.context("t").archive.get("#3").text
        await closed(model)
