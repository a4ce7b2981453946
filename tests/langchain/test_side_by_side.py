"""Calls side by side of one model that keeps sessions: each is asked its own list, none fails, and nothing is lost."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain_core.messages import HumanMessage, RemoveMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send

from ctxfold import BackendError, MemoryStore, Query, Section
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware, with_context
from tests.langchain.faces import closed
from tests.langchain.running import T, down_at_first, play
from tests.langchain.test_places import model_on

KINDS = pytest.mark.parametrize("kind", ["with_context", "ChatCtx"])
HOW = pytest.mark.parametrize("how", ["invoke", "ainvoke", "astream"])


@tool
def look(key: int) -> str:
    """Looks it up."""
    return f"Entry {key}."


def rounds(body: Any) -> Scripted:
    """Two rounds of tools, then an answer that names the newest question."""
    roles = [m["role"] for m in body["messages"]]
    if roles[::-1].index("user") < 4:
        return Scripted("Looking.", tool_calls=(ScriptedCall("look", json.dumps({"key": len(roles)})),))
    return play(body)


def together(count: int) -> Any:
    """Answers so many at once, when all of them are asking."""
    gates: list[Event] = []
    asked = [0]

    def answer(body: Any) -> Scripted:
        if asked[0] % count == 0:
            gates.append(Event())
        asked[0] += 1
        if asked[0] % count == 0:
            gates[-1].set()
        return replace(play(body), held=gates[-1])

    return answer


def wait_for_requests(server: ModelServer, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(server.requests) < count:
        assert time.monotonic() < deadline, f"{len(server.requests)} of {count} requests came"
        time.sleep(0.005)


async def run(app: Any, given: Any, how: str) -> None:
    if how == "invoke":
        app.invoke(given, T)
    elif how == "ainvoke":
        await app.ainvoke(given, T)
    else:
        async for _ in app.astream(given, T, stream_mode="messages", subgraphs=True):
            pass


def fanned(agent: Any, own: bool) -> Any:
    def fan(state: MessagesState) -> list[Send]:
        shared = state["messages"]
        parts = [[HumanMessage(f"part{n}", id=f"p{n}-{len(shared)}")] if own else [] for n in range(4)]
        return [Send("ag", {"messages": [*shared, *part]}) for part in parts]

    graph: Any = StateGraph(MessagesState).add_node("ag", agent).add_conditional_edges(START, fan, ["ag"])
    return graph.compile(checkpointer=InMemorySaver())


@pytest.mark.parametrize(("own", "how"), [(False, "invoke"), (True, "ainvoke"), (False, "astream"), (True, "astream")])
@KINDS
async def test_parallel_sends_to_an_agent(kind: str, own: bool, how: str) -> None:
    with ModelServer(model="m", script=rounds, strict="openai") as server:
        store = MemoryStore()
        model = model_on(kind, server.base_url, store)
        app = fanned(create_agent(model, [look], system_prompt="AGENT"), own)
        for turn in range(2):
            before, sent = app.get_state(T).values.get("messages", []), len(server.requests)
            await run(app, {"messages": [HumanMessage(f"Q{turn}", id=f"q{turn}")]}, how)
            said = app.get_state(T).values["messages"]
            assert len(said) == len(before) + 1 + (24 if own else 20)
            base = [m.text for m in before] + [f"Q{turn}"]
            asked = [[m["content"] for m in r.body["messages"][1:]] for r in server.requests[sent:]]
            assert len(asked) == 12
            for number in range(4):
                mine = [a for a in asked if own and a[len(base) : len(base) + 1] == [f"part{number}"]] if own else asked
                assert all(a[: len(base)] == base for a in mine)
                assert sorted(len(a) - len(base) - own for a in mine) == sorted([0, 2, 4] * (1 if own else 4))
        names = store.sessions("default")
        assert names[0] == "t|ag|q0"
        assert (model.erase("t") if how == "invoke" else await model.aerase("t")) == names
        assert store.sessions("default") == ()
        await closed(model)


@KINDS
async def test_parallel_runs_on_a_long_past_take_its_summary_over(kind: str) -> None:
    """Those that go on from one point are branches of it: the past is not summarised once for each of them."""
    with ModelServer(model="m", script=play, strict="openai") as server:
        model = model_on(kind, server.base_url, MemoryStore(), window=3_000)
        agent = create_agent(model, [], system_prompt="AGENT")
        graph: Any = StateGraph(MessagesState).add_node("ag", agent)
        wide: Any = [False]
        graph.add_conditional_edges(START, lambda s: [Send("ag", s)] * 4 if wide[0] else [Send("ag", s)], ["ag"])
        app = graph.compile(checkpointer=InMemorySaver())
        for turn in range(26):
            app.invoke({"messages": [HumanMessage(f"Q{turn:03}", id=f"q{turn}")]}, T)
        compacted = model.context("t|ag|q0").usage().compactions
        assert compacted > 0
        wide[0] = True
        sent = len(server.requests)
        app.invoke({"messages": [HumanMessage("All at once.", id="all")]}, T)
        asked = [r.body["messages"] for r in server.requests[sent:]]
        assert len(asked) == 4
        assert len({json.dumps(a) for a in asked}) == 1
        assert len(asked[0]) < 40 < len(app.get_state(T).values["messages"])
        model.close()


@KINDS
def test_an_agent_on_a_model_with_sessions_follows_its_callers_list(kind: str) -> None:
    """As one with `ContextMiddleware`: edits, removals and earlier checkpoints of the caller."""
    with ModelServer(model="m", script=play, strict="openai") as server:
        model = model_on(kind, server.base_url, MemoryStore())
        agent = create_agent(model, [], system_prompt="AGENT")
        graph: Any = StateGraph(MessagesState).add_node("ag", agent).add_edge(START, "ag")
        app = graph.compile(checkpointer=InMemorySaver())

        def questions() -> list[str]:
            return [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "user"]

        for number in range(3):
            app.invoke({"messages": [HumanMessage(f"Q{number:03}", id=f"q{number}")]}, T)
        early = [s.config for s in app.get_state_history(T) if not s.next][-1]
        app.update_state(T, {"messages": [HumanMessage("EDITED", id="q2")]})
        app.invoke({"messages": [HumanMessage("Q003", id="q3")]}, T)
        assert questions() == ["Q000", "Q001", "EDITED", "Q003"]
        app.update_state(T, {"messages": [RemoveMessage("q1")]})
        app.invoke({"messages": [HumanMessage("Q004", id="q4")]}, T)
        assert questions() == ["Q000", "EDITED", "Q003", "Q004"]
        app.invoke({"messages": [HumanMessage("Back.")]}, early)
        assert questions() == ["Q000", "Back."]
        model.close()


@KINDS
def test_what_a_node_adds_for_one_call_makes_no_other_session(kind: str) -> None:
    with ModelServer(model="m", script=play, strict="openai") as server:
        store = MemoryStore()
        model = model_on(kind, server.base_url, store)

        def think(state: MessagesState) -> Any:
            return {"messages": [model.invoke([*state["messages"], HumanMessage("Think twice.")])]}

        inner: Any = StateGraph(MessagesState).add_node("think", think).add_edge(START, "think")
        graph: Any = StateGraph(MessagesState).add_node("ag", inner.compile()).add_edge(START, "ag")
        app = graph.compile(checkpointer=InMemorySaver())
        for number in range(4):
            app.invoke({"messages": [HumanMessage(f"Q{number}", id=f"q{number}")]}, T)
        assert store.sessions("default") == ("t|ag|q0",)
        asked = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "user"]
        assert asked[-2:] == ["Q3", "Think twice."]
        model.close()


@KINDS
def test_a_call_in_a_place_that_failed_goes_on_in_its_session(kind: str) -> None:
    with ModelServer(model="m", script=down_at_first(), strict="openai") as server:
        store = MemoryStore()
        model = model_on(kind, server.base_url, store)
        agent = create_agent(model, [], system_prompt="AGENT")
        graph: Any = StateGraph(MessagesState).add_node("ag", agent).add_edge(START, "ag")
        app = graph.compile(checkpointer=InMemorySaver())
        for number in range(3):
            with pytest.raises(Exception, match="down") as raised:
                app.invoke({"messages": [HumanMessage(f"Q{number}", id=f"q{number}")]}, T)
            assert kind != "ChatCtx" or isinstance(raised.value, BackendError)
            app.invoke(None, T)
        asked = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "user"]
        assert asked == ["Q0", "Q1", "Q2"]
        assert store.sessions("default") == ("t|ag|q0",)
        model.close()


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@KINDS
async def test_nodes_of_the_top_graph_that_ask_the_same(kind: str, how: str) -> None:
    """The thread's one session has every answer, each with its question, and the next turn sees them all."""
    with ModelServer(model="m", script=together(3), strict="openai") as server:
        model = model_on(kind, server.base_url, MemoryStore())

        def ask_now(state: MessagesState) -> Any:
            return {"messages": [model.invoke([("system", "AGENT"), *state["messages"]])]}

        async def ask(state: MessagesState) -> Any:
            return {"messages": [await model.ainvoke([("system", "AGENT"), *state["messages"]])]}

        graph: Any = StateGraph(MessagesState)
        for name in ("one", "two", "three"):
            graph.add_node(name, ask if how == "ainvoke" else ask_now)
            graph.add_edge(START, name)
        app = graph.compile(checkpointer=InMemorySaver())
        for turn in range(3):
            await run(app, {"messages": [HumanMessage(f"Q{turn}", id=f"q{turn}")]}, how)
        said = [(m.role, m.text[:12]) for m in model.context("t").messages()]
        assert [text for role, text in said if role == "assistant"] == [
            f"Answer to Q{n}" for n in (0, 0, 0, 1, 1, 1, 2, 2, 2)
        ]
        await closed(model)


@KINDS
def test_a_batch_of_equal_questions(kind: str) -> None:
    """Every input is a turn of its own, whether it came with an id or not."""
    with ModelServer(model="m", script=together(4), strict="openai") as server:
        model = model_on(kind, server.base_url, MemoryStore())
        config: Any = {"configurable": {"session_id": "s"}}
        for given in (["Same."] * 4, [[HumanMessage("Same.", id="q")]] * 4):
            assert len(model.batch(given, config)) == 4
        said = [m.role for m in model.context("s").messages()]
        assert said == ["user", "assistant"] * 8
        model.close()


@pytest.mark.parametrize("streamed", [False, True])
@KINDS
def test_a_question_without_an_id_does_not_join_an_equal_one_that_is_asked(kind: str, streamed: bool) -> None:
    """It would lose its reply: the turn ends with the reply of the other call."""
    release = Event()
    with (
        ModelServer(model="m", script=lambda body: replace(play(body), held=release), strict="openai") as server,
        ThreadPoolExecutor(2) as pool,
    ):
        model = model_on(kind, server.base_url, MemoryStore())
        config: Any = {"configurable": {"session_id": "s"}}

        def call(question: Any) -> str:
            if streamed:
                return "".join(str(piece.text) for piece in model.stream(question, config))
            return str(model.invoke(question, config).text)

        first = pool.submit(call, [HumanMessage("Same.", id="q")])
        wait_for_requests(server, 1)
        second = pool.submit(call, "Same.")
        wait_for_requests(server, 2)
        release.set()
        assert [bool(call.result(60)) for call in (first, second)] == [True, True]
        assert [m.role for m in model.context("s").messages()] == ["user", "assistant"] * 2
        model.close()


def test_a_message_that_other_middleware_adds_makes_no_other_session() -> None:
    """In an agent that is a node, whichever of the two stands first."""

    @wrap_model_call
    def hint(request: Any, handler: Any) -> Any:
        return handler(request.override(messages=[*request.messages, HumanMessage("HINT")]))

    with ModelServer(model="m", script=play, strict="openai") as server:
        chat = ChatCtx(model="m", base_url=server.base_url, api_key="x")  # type: ignore[arg-type]
        for outside in (True, False):
            store = MemoryStore()
            with ContextMiddleware(context_window=8_000, store=store) as own:
                agent = create_agent(
                    chat, [], system_prompt="AGENT", middleware=[hint, own] if outside else [own, hint]
                )
                graph: Any = StateGraph(MessagesState).add_node("ag", agent).add_edge(START, "ag")
                app = graph.compile(checkpointer=InMemorySaver())
                for number in range(4):
                    app.invoke({"messages": [HumanMessage(f"Q{number}", id=f"q{number}")]}, T)
                assert store.sessions("default") == ("t|ag|q0",)
            asked = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "user"]
            assert asked == ["Q0", "Q1", "Q2", "Q3", "HINT"]
        chat.close()


def test_each_call_goes_out_under_its_own_system_prompt() -> None:
    """Another call of the session sets its own prompt while the first one looks for what stands beside it."""
    asked: list[str] = []

    def source(query: Query) -> list[str]:
        asked.append(query.text)
        if len(asked) == 1:
            chat.invoke([SystemMessage("You are the critic, and brief."), HumanMessage("second")])
        return ["The sea is calm."]

    with ModelServer(model="m", script=play) as server:
        inner: Any = ChatOpenAI(model="m", base_url=server.base_url, api_key="x")  # type: ignore[arg-type]
        chat = with_context(inner, session_id="s", context_window=8_000, sections=[Section("sea", source)])
        chat.invoke([SystemMessage("You are the writer."), HumanMessage("first")])
        chat.invoke([SystemMessage("You are the writer."), HumanMessage("third")])
        sent = [r.body["messages"] for r in server.requests]
        assert [m[0]["content"] for m in sent] == [
            "You are the critic, and brief.",
            "You are the writer.",
            "You are the writer.",
        ]
        assert all([m["role"] for m in body].count("system") == 1 for body in sent)
