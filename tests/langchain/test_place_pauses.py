"""What outlives a process: calls that wait long for a person, processes that take turns, a process that died in a turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send

from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware
from tests.langchain.faces import closed
from tests.langchain.running import Running, T, mailing, play, send
from tests.langchain.test_node_places import Nodes
from tests.langchain.test_places import model_on

KINDS = pytest.mark.parametrize("kind", ["with_context", "ChatCtx"])


def as_node(agent: Any, saver: Any) -> Any:
    graph: Any = StateGraph(MessagesState).add_node("ag", agent).add_edge(START, "ag")
    return graph.compile(checkpointer=saver)


@contextmanager
def process(kind: str, base_url: str, store_url: str) -> Iterator[tuple[Any, list[Any]]]:
    """A new process's model and middleware: a plain model with `ContextMiddleware`, or a model that keeps the sessions."""
    if kind == "middleware":
        plain = ChatCtx(model="m", base_url=base_url, api_key="x")  # type: ignore[arg-type]
        with ContextMiddleware(context_window=8_000, store=store_url) as middleware:
            yield plain, [middleware]
        plain.close()
        return
    model = model_on(kind, base_url, store_url)  # type: ignore[arg-type]
    yield model, []
    model.close()


@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("inside", ["thread", "place"])
@pytest.mark.parametrize("pause", ["none", "new process", "long"])
@KINDS
async def test_a_person_decides_while_a_model_keeps_the_session(
    kind: str, pause: str, inside: str, how: str, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiting call is no orphan, in a new process and long after: every further turn of the thread would fail otherwise."""
    opened: list[Any] = []

    def build() -> Any:
        model = model_on(kind, server.base_url, store_url)  # type: ignore[arg-type]
        opened.append(model)
        settings: Any = {
            "system_prompt": "AGENT",
            "middleware": [HumanInTheLoopMiddleware(interrupt_on={"send": True})],
        }
        if inside == "thread":
            return create_agent(model, [send], checkpointer=saver, **settings)
        return as_node(create_agent(model, [send], **settings), saver)

    async def run(app: Any, given: Any) -> None:
        if how == "invoke":
            app.invoke(given, T)
        elif how == "ainvoke":
            await app.ainvoke(given, T)
        elif how == "stream":
            list(app.stream(given, T, stream_mode="messages"))
        else:
            [_ async for _ in app.astream(given, T, stream_mode="messages")]

    with ModelServer(model="m", script=mailing, strict="openai") as server:
        saver = InMemorySaver()
        app = build()
        await run(app, {"messages": [HumanMessage("Write to Ann.", id="q0")]})
        if pause != "none":
            app = build()
        if pause == "long":
            monkeypatch.setattr("ctxfold.state.TURN_TIMEOUT_S", -1.0)
        await run(app, Command(resume={"decisions": [{"type": "approve"}]}))
        monkeypatch.undo()
        sent = server.requests[-1].body["messages"]
        assert [m["role"] for m in sent] == ["system", "user", "assistant", "tool"]
        assert sent[-1]["content"] == "Sent: draft"
        await run(app, {"messages": [HumanMessage("And to Bob.", id="q1")]})
        roles = [m["role"] for m in server.requests[-1].body["messages"]]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
        for model in opened:
            await closed(model)


@pytest.mark.parametrize("kind", ["with_context", "ChatCtx", "middleware", "node"])
def test_processes_that_take_turns_share_the_session(kind: str, store_url: str) -> None:
    with ModelServer(model="m", script=play, strict="openai") as server:
        saver, opened = InMemorySaver(), list[Any]()

        def process() -> Any:
            if kind == "node":
                opened.append(Nodes(server, window=8_000, store=store_url))
                return opened[-1].placed(saver)
            if kind == "middleware":
                chat = ChatCtx(model="m", base_url=server.base_url, api_key="x")  # type: ignore[arg-type]
                opened.extend((chat, ContextMiddleware(context_window=8_000, store=store_url)))
                return as_node(create_agent(chat, [], system_prompt="AGENT", middleware=[opened[-1]]), saver)
            opened.append(model_on(kind, server.base_url, store_url))  # type: ignore[arg-type]
            return as_node(create_agent(opened[-1], [], system_prompt="AGENT"), saver)

        apps = [process(), process()]
        for number in range(8):
            apps[number % 2].invoke({"messages": [HumanMessage(f"Q{number}", id=f"q{number}")]}, T)
        asked = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "user"]
        assert asked == [f"Q{n}" for n in range(8)]
        context = opened[-1].fit.context("t|ag|q0") if kind == "node" else opened[-1].context("t|ag|q0")
        assert context.handle.store.sessions("default") == ("t|ag|q0",)
        assert context.usage().turns == (7 if kind == "node" else 8)
        for one in opened:
            one.close()


def test_a_system_message_in_the_middle_is_a_part_of_the_list(store_url: str) -> None:
    """Each process finds the session that the one before has left."""
    with ModelServer(model="m", script=play, strict="openai") as server:
        saver = InMemorySaver()
        for number in range(5):
            on = Running(server, saver, store=store_url)
            agent = create_agent(on.chat, [], system_prompt="AGENT", middleware=[on.middleware])
            told = [SystemMessage("Be kind.", id="kind")] if number == 2 else []
            as_node(agent, saver).invoke({"messages": [*told, HumanMessage(f"Q{number}", id=f"q{number}")]}, T)
            assert ("system", "Be kind.") in on.asked() or number < 2
            assert on.questions() == [f"Q{n}" for n in range(number + 1)]
            assert on.middleware.context("t|ag|q0").usage().turns == number + 1
            on.close()


@pytest.mark.parametrize("kind", ["ChatCtx", "node"])
def test_a_turn_that_a_dead_process_left_open_is_not_taken_for_the_lists_own(kind: str, store_url: str) -> None:
    """The place's session has one of several runs side by side; the next list has more between its messages."""
    with ModelServer(model="m", script=play, strict="openai") as server:
        saver = InMemorySaver()

        def fan(state: MessagesState) -> list[Send]:
            shared = state["messages"]
            parts = [HumanMessage(f"part{n}", id=f"p{n}-{len(shared)}") for n in range(3)]
            return [Send("ag", {"messages": [*shared, part]}) for part in parts]

        for turn in range(3):
            on = Nodes(server, window=8_000, store=store_url)
            model: Any = model_on("ChatCtx", server.base_url, store_url)  # type: ignore[arg-type]
            agent = on.graph().compile() if kind == "node" else create_agent(model, [], system_prompt="AGENT")
            graph: Any = StateGraph(MessagesState).add_node("ag", agent).add_conditional_edges(START, fan, ["ag"])
            app = graph.compile(checkpointer=saver)
            before, sent = app.get_state(T).values.get("messages", []), len(server.requests)
            app.invoke({"messages": [HumanMessage(f"Q{turn}", id=f"q{turn}")]}, T)
            asked = [[m["content"] for m in r.body["messages"][1:]] for r in server.requests[sent:]]
            assert sorted(asked) == [[*(m.text for m in before), f"Q{turn}", f"part{n}"] for n in range(3)]
            model.close()
            on.close()


@pytest.mark.parametrize("kind", ["middleware", "ChatCtx"])
def test_the_question_of_a_run_that_failed_is_asked_in_a_new_process_too(kind: str, store_url: str) -> None:
    """The place's session has its turn, which the list of the next process has an answer behind."""

    @tool
    def fails() -> str:
        """Fails."""
        raise RuntimeError("broken")

    def answer(body: Any) -> Scripted:
        asked = body["messages"][-1]["content"]
        return Scripted(tool_calls=(ScriptedCall("fails"),)) if asked == "Q0" else Scripted(f"Answer to {asked}")

    with ModelServer(model="m", script=answer, strict="openai") as server:
        saver = InMemorySaver()
        for turns in ((0, 1), (2,), (3,)):
            with process(kind, server.base_url, store_url) as (model, middleware):
                app = as_node(create_agent(model, [fails], middleware=middleware), saver)
                for turn in turns:
                    with nullcontext() if turn else pytest.raises(RuntimeError, match="broken"):
                        app.invoke({"messages": [HumanMessage(f"Q{turn}", id=f"q{turn}")]}, T)
        asked = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "user"]
        assert asked == ["Q0", "Q1", "Q2", "Q3"]


@pytest.mark.parametrize("kind", ["middleware", "ChatCtx"])
def test_a_call_that_a_handoff_took_out_does_not_hinder_a_new_process(kind: str, store_url: str) -> None:
    """A supervisor's handoff leaves its own call in the message; the place's session still waits for the other one."""

    @tool
    def to_desk(runtime: ToolRuntime) -> Command[str]:
        """Hands the conversation over to the desk."""
        *before, calling = runtime.state["messages"]
        own = [c for c in calling.tool_calls if c["id"] == runtime.tool_call_id]
        rewritten = AIMessage(calling.content, tool_calls=own, id=calling.id)
        added = [ToolMessage("Handed over.", tool_call_id=runtime.tool_call_id), HumanMessage("Go on.")]
        return Command(goto="desk", graph=Command.PARENT, update={"messages": [*before, rewritten, *added]})

    def answer(body: Any) -> Scripted:
        asked = body["messages"][-1]["content"]
        both = (ScriptedCall("send", '{"text": "draft"}'), ScriptedCall("to_desk"))
        return Scripted(tool_calls=both) if asked == "Q0" else Scripted(f"Answer to {asked}")

    with ModelServer(model="m", script=answer, strict="openai") as server:
        saver = InMemorySaver()
        for turns in ((0, 1), (2,), (3,)):
            with process(kind, server.base_url, store_url) as (model, middleware):
                graph: Any = StateGraph(MessagesState).add_edge(START, "ag")
                for name in ("ag", "desk"):
                    agent = create_agent(model, [send, to_desk], middleware=middleware)
                    graph.add_node(name, agent, destinations=("desk",))
                app = graph.compile(checkpointer=saver)
                for turn in turns:
                    app.invoke({"messages": [HumanMessage(f"Q{turn}", id=f"q{turn}")]}, T)
        asked = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "user"]
        assert asked == ["Q0", "Go on.", "Q1", "Q2", "Q3"]
