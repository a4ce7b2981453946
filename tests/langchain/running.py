"""An agent with `ContextMiddleware` on a loopback server, and what its model was asked."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage

from ctxfold.testing import ModelServer, Scripted
from langchain_ctx import ChatCtx, ContextMiddleware

T: Any = {"configurable": {"thread_id": "t"}}


def play(body: Any) -> Scripted:
    """Names the newest question and counts the answers before; sums up in one line."""
    if body["messages"][0]["content"] != "AGENT":
        return Scripted("They asked one thing after the other.")
    asked = [str(m["content"]) for m in body["messages"] if m["role"] == "user"]
    return Scripted(f"Answer to {asked[-1][:5]}. " + "It is a long story. " * 20)


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
        bodies = [r.body["messages"] for r in self.server.requests if r.body["messages"][0]["content"] == "AGENT"]
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
