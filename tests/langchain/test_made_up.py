"""Sessions without a store that nobody named: the newest are kept, and those that a run is in."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest, ModelResponse
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold import MemoryStore
from ctxfold.history.records import SessionKey
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware, ContextNode
from langchain_ctx.sessions import ANONYMOUS_SESSIONS, WAITING_S, AnonymousSessions
from tests.langchain.running import T, play

SILENT = FakeListChatModel(responses=["Noted."])


def chat_on(server: ModelServer) -> ChatCtx:
    return ChatCtx(model="m", base_url=server.base_url, api_key="x", max_retries=0)  # type: ignore[arg-type]


def kept(face: Any) -> tuple[str, ...]:
    return face._sessions.store.sessions("default")  # type: ignore[no-any-return]


def ask_alone(middleware: ContextMiddleware, number: int) -> None:
    """Makes a session as a run does, at a tenth of what a graph and a server cost."""
    messages = [HumanMessage(f"Q{number:03}", id=f"q{number}")]
    request: Any = ModelRequest(model=SILENT, messages=messages, state={"messages": messages})
    middleware.wrap_model_call(request, lambda asked: ModelResponse([asked.model.invoke(asked.messages)]))


def test_a_middleware_without_store_and_checkpointer() -> None:
    """Of ever so many runs the newest sessions stay; one that is gone is made anew from the messages that come back."""
    with (
        ModelServer(model="m", script=play, strict="openai") as server,
        chat_on(server) as chat,
        ContextMiddleware(context_window=8_000) as middleware,
    ):
        agent: Any = create_agent(chat, [], system_prompt="AGENT", middleware=[middleware])
        first = agent.invoke({"messages": [HumanMessage("Q000", id="q0")]})["messages"]
        assert kept(middleware) == ("run-q0",)
        for number in range(1, ANONYMOUS_SESSIONS):
            ask_alone(middleware, number)
        # whoever comes back is among the newest again
        second = agent.invoke({"messages": [*first, HumanMessage("Q999")]})["messages"]
        assert len(kept(middleware)) == ANONYMOUS_SESSIONS
        agent.invoke({"messages": [HumanMessage("One more.", id="more")]})
        assert len(kept(middleware)) == ANONYMOUS_SESSIONS
        assert "run-q0" in kept(middleware)
        assert "run-q1" not in kept(middleware)
        assert middleware.context("run-q0").usage().turns == 2
        # the one that was dropped
        agent.invoke({"messages": [HumanMessage("Q001", id="q1"), AIMessage("Noted."), HumanMessage("Again.")]})
        asked = [m["content"] for m in server.requests[-1].body["messages"]]
        assert asked == ["AGENT", "Q001", "Noted.", "Again."]
        assert len(second) == 4


async def test_a_run_that_waits_for_its_tools_is_not_dropped() -> None:
    with (
        ModelServer(model="m", script=lambda body: calling(body), strict="openai") as server,
        ContextMiddleware(context_window=8_000) as middleware,
    ):
        chat = chat_on(server)
        inner: Any = create_agent(chat, [], system_prompt="INNER", middleware=[middleware])
        seen: list[bool] = []

        @tool
        async def delegate() -> str:
            """Has many others look."""
            await inner.ainvoke({"messages": [HumanMessage("Look.")]}, {"configurable": {}})
            with ThreadPoolExecutor(1) as pool:  # where no run is known
                list(pool.map(partial(ask_alone, middleware), range(1, ANONYMOUS_SESSIONS + 5)))
            seen.append("run-q0" in kept(middleware))
            return "Looked."

        agent: Any = create_agent(chat, [delegate], system_prompt="AGENT", middleware=[middleware])
        state = await agent.ainvoke({"messages": [HumanMessage("Delegate.", id="q0")]})
        assert state["messages"][-1].text == "Done."
        assert seen == [True]
        assert middleware.context("run-q0").usage().replies == 2
        assert len(kept(middleware)) == ANONYMOUS_SESSIONS
        await chat.aclose()


def calling(body: Any) -> Scripted:
    if body["messages"][0]["content"] == "INNER":
        return Scripted("Nothing there.")
    if body["messages"][-1]["role"] == "tool":
        return Scripted("Done.")
    return Scripted(tool_calls=(ScriptedCall("delegate", json.dumps({})),))


def test_sessions_with_a_name_and_a_store_of_ones_own_stay() -> None:
    """A thread's session is its user's; so is all that is in a store that was given."""
    with ContextNode(context_window=8_000) as fit:
        for number in range(ANONYMOUS_SESSIONS + 5):
            fit.invoke([HumanMessage("hi", id=f"q{number}")], {"configurable": {"thread_id": f"t{number}"}})
        assert len(kept(fit)) == ANONYMOUS_SESSIONS + 5
        for number in range(ANONYMOUS_SESSIONS + 5):
            fit.invoke([HumanMessage("hi", id=f"q{number}")])
        assert len(kept(fit)) == 2 * ANONYMOUS_SESSIONS + 5
    store = MemoryStore()
    with ContextNode(context_window=8_000, store=store) as fit:
        for number in range(ANONYMOUS_SESSIONS + 5):
            fit.invoke([HumanMessage("hi", id=f"q{number}")])
        assert len(store.sessions("default")) == ANONYMOUS_SESSIONS + 5


def test_sub_agents_of_a_thread_without_a_store() -> None:
    """Each of their runs has a session of its own under the thread's name; the thread's own stays."""
    with (
        ModelServer(model="m", script=lambda body: delegating(body), strict="openai") as server,
        chat_on(server) as chat,
        ContextMiddleware(context_window=100_000) as middleware,
    ):
        inner: Any = create_agent(SILENT, [], system_prompt="INNER", middleware=[middleware])

        @tool
        def delegate(times: int) -> str:
            """Has others look, one after the other."""
            for _ in range(times):
                inner.invoke({"messages": [HumanMessage("Look.")]})
            return "Looked."

        agent: Any = create_agent(
            chat, [delegate], system_prompt="AGENT", middleware=[middleware], checkpointer=InMemorySaver()
        )
        for _ in range(2):
            agent.invoke({"messages": [HumanMessage("Delegate.")]}, T)
        names = kept(middleware)
        assert len(names) == ANONYMOUS_SESSIONS + 1
        assert names[0] == "t"
        assert all(name.startswith("t|tools|") for name in names[1:])
        assert middleware.context("t").usage().turns == 2


def delegating(body: Any) -> Scripted:
    if body["messages"][-1]["role"] == "tool":
        return Scripted("Done.")
    return Scripted(tool_calls=(ScriptedCall("delegate", json.dumps({"times": ANONYMOUS_SESSIONS - 100})),))


class Clock:
    now = 0.0

    def now_s(self) -> float:
        return self.now


def key(number: int) -> SessionKey:
    return SessionKey("default", f"run-{number}")


def enter(made_up: AnonymousSessions, number: int, *, waiting: bool = False) -> None:
    with made_up.entering(key(number)) as found:
        found(key(number))
        made_up.set_waiting(key(number), waiting)


def test_which_go() -> None:
    gone: list[SessionKey] = []
    clock = Clock()
    made_up = AnonymousSessions(gone.append, clock)
    enter(made_up, 0, waiting=True)
    with made_up.entering(key(1)) as found:
        found(key(1))
        for number in range(2, ANONYMOUS_SESSIONS + 4):
            enter(made_up, number)
        assert gone == [key(2), key(3)]  # one waits, one is in use
    assert gone == [key(2), key(3), key(4)]
    clock.now += WAITING_S + 1
    enter(made_up, 1)
    assert gone == [key(2), key(3), key(4), key(0)]


@pytest.mark.parametrize("fails", [False, True])
def test_a_call_that_fails_holds_nothing(fails: bool) -> None:
    gone: list[SessionKey] = []
    made_up = AnonymousSessions(gone.append)
    for number in range(ANONYMOUS_SESSIONS + 3):
        try:
            with made_up.entering(key(number)) as found:
                found(key(number))
                if fails:
                    raise ValueError(number)
        except ValueError:
            continue
    assert gone == [key(0), key(1), key(2)]
