"""Runs of an agent that stop between a tool call and its result: a person decides, a tool fails, somebody edits or replays."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.types import Command

from ctxfold.testing import ModelServer
from tests.langchain.running import Running, T, mailing, send


def decided(decision: Any) -> Any:
    return Command(resume={"decisions": [decision]})


EDITED = {"type": "edit", "edited_action": {"name": "send", "args": {"text": "better"}}}


@pytest.mark.parametrize("decision", [{"type": "approve"}, EDITED, {"type": "reject", "message": "No."}])
@pytest.mark.parametrize("pause", ["none", "new process", "long"])
def test_a_person_decides(
    saver: Any, store_url: str, decision: Any, pause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiting call is no orphan, also in a new process and long after."""
    with ModelServer(model="m", script=mailing, strict="openai") as server:
        on = Running(server, saver, [send], store=store_url)
        hitl = HumanInTheLoopMiddleware(interrupt_on={"send": True})
        on.agent = on.with_(on.middleware, hitl)
        on.agent.invoke({"messages": [HumanMessage("Write to Ann.")]}, T)
        if pause != "none":
            on.close()
            on = Running(server, saver, [send], store=store_url)
            on.agent = on.with_(on.middleware, hitl)
        if pause == "long":
            monkeypatch.setattr("ctxfold.state.TURN_TIMEOUT_S", -1.0)
        state = on.agent.invoke(decided(decision), T)
        monkeypatch.undo()
        words = {"approve": "Sent: draft", "edit": "Sent: better", "reject": "No."}[decision["type"]]
        sent = server.requests[-1].body["messages"]
        assert [m["role"] for m in sent] == ["system", "user", "assistant", "tool"]
        assert words in sent[3]["content"]
        assert state["messages"][-1].text.startswith("Done.")
        live = on.middleware.context("t").view().live
        assert [e.id for e in live] == [m.id for m in state["messages"]]
        assert on.middleware.context("t").usage().turns == 1
        on.close()


def test_a_call_edited_before_it_runs(saver: Any) -> None:
    """The model sees the call as it was run, and the one before is nowhere in its window."""
    with ModelServer(model="m", script=mailing, strict="openai") as server:
        on = Running(server, saver, [send])
        on.agent = create_agent(
            on.chat,
            [send],
            system_prompt="AGENT",
            middleware=[on.middleware],
            checkpointer=saver,
            interrupt_before=["tools"],
        )
        call = on.agent.invoke({"messages": [HumanMessage("Write to Ann.")]}, T)["messages"][-1]
        calls = [{**call.tool_calls[0], "args": {"text": "better"}}]
        on.agent.update_state(T, {"messages": [AIMessage("", id=call.id, tool_calls=calls)]}, as_node="model")
        state = on.agent.invoke(None, T)
        sent = server.requests[-1].body["messages"]
        assert [m["role"] for m in sent] == ["system", "user", "assistant", "tool"]
        assert sent[2]["tool_calls"][0]["function"]["arguments"] == '{"text": "better"}'
        assert sent[3]["content"] == "Sent: better"
        context = on.middleware.context("t")
        assert [e.id for e in context.view().live] == [m.id for m in state["messages"]]
        assert context.usage().reported.input_tokens == sum(
            m.usage_metadata["input_tokens"] for m in (call, state["messages"][-1])
        )
        on.close()


def test_a_tool_round_done_again(saver: Any) -> None:
    """Replayed from between call and result: the tool runs again, and the new branch has the new result."""
    runs: list[int] = []

    @tool("send")
    def counted(text: str) -> str:
        """Sends a mail."""
        runs.append(1)
        return f"Sent {len(runs)} times."

    with ModelServer(model="m", script=mailing, strict="openai") as server:
        on = Running(server, saver, [counted])
        assert on.ask("Write to Ann.") == "Done. Sent 1 times."
        between = next(s.config for s in on.agent.get_state_history(T) if s.next == ("tools",))
        state = on.agent.invoke(None, between)
        assert state["messages"][-1].text == "Done. Sent 2 times."
        branch = on.middleware.context(on.agent.get_state(T))
        assert [e.id for e in branch.view().live] == [m.id for m in state["messages"]]
        assert on.middleware.context("t").view().live[-1].message.text == "Done. Sent 1 times."
        on.close()


def test_a_run_that_failed_in_a_tool_is_taken_up(saver: Any) -> None:
    """Also after the answer was stored and the checkpoint was not: nothing is there twice."""
    failing = [True]

    @tool("send")
    def fragile(text: str) -> str:
        """Sends a mail."""
        if failing.pop():
            raise RuntimeError("the line is down")
        return "Sent."

    with ModelServer(model="m", script=mailing, strict="openai") as server:
        on = Running(server, saver, [fragile])
        with pytest.raises(RuntimeError, match="line is down"):
            on.ask("Write to Ann.")
        failing.append(False)
        state = on.agent.invoke(None, T)
        assert state["messages"][-1].text == "Done. Sent."
        assert [type(m) for m in state["messages"]] == [HumanMessage, AIMessage, ToolMessage, AIMessage]
        live = on.middleware.context(on.agent.get_state(T)).view().live
        assert [e.id for e in live] == [m.id for m in state["messages"]]
        on.close()
