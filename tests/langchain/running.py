"""An agent with `ContextMiddleware` on a loopback server, and what its model was asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, RemoveMessage
from langchain_core.tools import tool

from ctxfold.testing import ErrorReply, ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware
from tests.support.summaries import asks_on_live_prefix

T: Any = {"configurable": {"thread_id": "t"}}


def play(body: Any) -> Scripted:
    """Names the newest question and counts the answers before; sums up in one line."""
    if body["messages"][0]["content"] != "AGENT" or asks_on_live_prefix(body):
        return Scripted("They asked one thing after the other.")
    asked = [str(m["content"]) for m in body["messages"] if m["role"] == "user"]
    return Scripted(f"Answer to {asked[-1][:5]}. " + "It is a long story. " * 20)


@tool
def send(text: str) -> str:
    """Sends a mail."""
    return f"Sent: {text}"


def mailing(body: Any) -> Scripted:
    last = body["messages"][-1]
    if last["role"] == "tool":
        return Scripted(f"Done. {last['content']}")
    return Scripted(tool_calls=(ScriptedCall("send", '{"text": "draft"}'),))


def down_at_first() -> Callable[[Any], Any]:
    """A script that refuses each question once."""
    failed = set[str]()

    def answer(body: Any) -> Any:
        question = str(body["messages"][-1]["content"])
        if question in failed:
            return play(body)
        failed.add(question)
        return ErrorReply(400, {"error": {"message": "down", "type": "invalid_request_error"}})

    return answer


def edited(app: Any, questions: Callable[[], list[str]]) -> None:
    """Edits, removals and an earlier checkpoint of the caller's: what is asked is the caller's list as it is now."""
    for number in range(3):
        app.invoke({"messages": [HumanMessage(f"Q{number:03}", id=f"q{number}")]}, T)
    early = [s.config for s in app.get_state_history(T) if not s.next][-1]
    app.update_state(T, {"messages": [HumanMessage("EDITED", id="q2")]})
    app.invoke({"messages": [HumanMessage("Q003", id="q3")]}, T)
    assert questions() == ["Q000", "Q001", "EDITED", "Q003"]
    app.update_state(T, {"messages": [RemoveMessage("q1")]})
    app.invoke({"messages": [HumanMessage("Q004")]}, T)
    assert questions() == ["Q000", "EDITED", "Q003", "Q004"]
    app.invoke({"messages": [HumanMessage("Q005", id="q5")]}, T)
    assert questions() == ["Q000", "EDITED", "Q003", "Q004", "Q005"]
    app.invoke({"messages": [HumanMessage("Back.")]}, early)
    assert questions() == ["Q000", "Back."]


class Running:
    """An agent on a server, and what its model was asked."""

    def __init__(self, server: ModelServer, saver: Any, tools: Any = (), window: int = 8_000, **settings: Any) -> None:
        self.server, self.saver, self.tools = server, saver, tools
        self.chat = ChatCtx(model="m", base_url=server.base_url, api_key="x", max_retries=0)  # type: ignore[arg-type]
        self.middleware = ContextMiddleware(context_window=window, **settings)
        self.agent: Any = self.with_(self.middleware)

    def with_(self, *middleware: Any) -> Any:
        return create_agent(
            self.chat, list(self.tools), system_prompt="AGENT", middleware=list(middleware), checkpointer=self.saver
        )

    def ask(self, text: str, config: Any = T, **more: Any) -> str:
        return str(self.agent.invoke({"messages": [HumanMessage(text, **more)]}, config)["messages"][-1].text)

    def asked(self) -> list[Any]:
        """The newest request for an answer, without the system prompt."""
        answers = (r.body for r in self.server.requests if not asks_on_live_prefix(r.body))
        bodies = [b["messages"] for b in answers if b["messages"][0]["content"] == "AGENT"]
        return [(m["role"], m.get("content")) for m in bodies[-1][1:]]

    def questions(self) -> list[str]:
        return [str(text) for role, text in self.asked() if role == "user"]

    def before(self, text: str) -> Any:
        """The newest checkpoint at which this was about to be answered."""
        return next(
            s.config
            for s in self.agent.get_state_history(T)
            if s.next == ("model",) and s.values["messages"][-1].text == text
        )

    def close(self) -> None:
        self.middleware.close()
        self.chat.close()
