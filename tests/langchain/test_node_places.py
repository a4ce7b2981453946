"""`ContextNode` inside sub-graphs and in nodes that run side by side: whose session it is, and that no list meets another's."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.channels import UntrackedValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send

from ctxfold import MemoryStore
from ctxfold.errors import MessageTooLargeError
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextNode
from tests.langchain.running import T, edited, play


class State(MessagesState):
    llm_input_messages: Annotated[list[AnyMessage], UntrackedValue]


class Nodes:
    """A node in front of a model, and what the model was asked."""

    def __init__(self, server: ModelServer, tools: Any = (), window: int = 1_500, **settings: Any) -> None:
        self.server = server
        self.chat = ChatCtx(model="m", base_url=server.base_url, api_key="x", max_retries=0)  # type: ignore[arg-type]
        self.tools = list(tools)
        self.fit = ContextNode(context_window=window, tools=tools, **settings)

    def graph(self) -> Any:
        """Fits, asks, runs tools, until there is an answer."""
        model = self.chat.bind_tools(self.tools) if self.tools else self.chat
        graph = StateGraph(State, input_schema=MessagesState, output_schema=MessagesState)
        graph.add_node("fit", self.fit)
        graph.add_node("model", lambda s: {"messages": [model.invoke([("system", "AGENT"), *s["llm_input_messages"]])]})
        graph.add_node("tools", self._run_tools)
        graph.add_edge(START, "fit")
        graph.add_edge("fit", "model")
        graph.add_conditional_edges("model", lambda s: "tools" if s["messages"][-1].tool_calls else END)
        graph.add_edge("tools", "fit")
        return graph

    def _run_tools(self, state: State) -> Any:
        calls: Any = state["messages"][-1]
        return {"messages": [t.invoke(c) for c in calls.tool_calls for t in self.tools if t.name == c["name"]]}

    def placed(self, saver: Any = None) -> Any:
        """The graph as a node, `ag`, of another one."""
        outer: Any = StateGraph(MessagesState).add_node("ag", self.graph().compile()).add_edge(START, "ag")
        return outer.compile(checkpointer=InMemorySaver() if saver is None else saver)

    def asked(self) -> list[str]:
        return [str(m["content"]) for m in self.server.requests[-1].body["messages"][1:]]

    def questions(self) -> list[str]:
        return [str(m["content"]) for m in self.server.requests[-1].body["messages"] if m["role"] == "user"]

    def close(self) -> None:
        self.fit.close()
        self.chat.close()


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
async def test_in_a_sub_graph_it_goes_on_with_its_session(how: str) -> None:
    """As at the top: one session, and the past is not summarised anew in each run."""
    with ModelServer(model="m", script=play, strict="openai") as server:
        alone, placed = Nodes(server), Nodes(server, store=MemoryStore())
        made = dict[str, int]()
        for name, on, app in (
            ("alone", alone, alone.graph().compile(checkpointer=InMemorySaver())),
            ("placed", placed, placed.placed()),
        ):
            for number in range(14):
                given = {"messages": [HumanMessage(f"Q{number:03}", id=f"q{number}")]}
                await app.ainvoke(given, T) if how == "ainvoke" else app.invoke(given, T)
            usage = on.fit.context("t" if name == "alone" else "t|ag|q0").usage()
            made[name] = usage.compactions
            assert usage.turns == 13  # the last answer is learnt from the next list
        assert made["placed"] == made["alone"] > 1
        assert names(placed) == ("t|ag|q0",)
        alone.close()
        placed.close()


def names(on: Nodes) -> tuple[str, ...]:
    return on.fit.context("t|ag|q0").handle.store.sessions("default")


def test_tool_rounds_of_one_run_are_one_session() -> None:
    """The list grows from call to call within a run, as with `pre_model_hook`."""

    @tool
    def look(key: int) -> str:
        """Looks it up."""
        return f"Entry {key}. " + "It is a long story. " * 10

    def rounds(body: Any) -> Scripted:
        since = [m["role"] for m in body["messages"]]
        done = since[::-1].index("user")
        return Scripted("Found.") if done >= 6 else Scripted(tool_calls=(ScriptedCall("look", '{"key": 1}'),))

    with ModelServer(model="m", script=rounds, strict="openai") as server:
        on = Nodes(server, [look], window=8_000, store=MemoryStore())
        app = on.placed()
        for number in range(3):
            app.invoke({"messages": [HumanMessage(f"Q{number}", id=f"q{number}")]}, T)
        assert on.questions() == ["Q0", "Q1", "Q2"]
        assert on.fit.context("t|ag|q0").usage().prefix.requests == 12
        assert names(on) == ("t|ag|q0",)
        on.close()


def test_a_new_process_goes_on(store_url: str) -> None:
    with ModelServer(model="m", script=play, strict="openai") as server:
        saver = InMemorySaver()
        for number in range(4):
            on = Nodes(server, window=8_000, store=store_url)
            on.placed(saver).invoke({"messages": [HumanMessage(f"Q{number:03}", id=f"q{number}")]}, T)
            assert on.questions() == [f"Q{n:03}" for n in range(number + 1)]
            assert on.fit.context("t|ag|q0").usage().turns == number
            assert names(on) == ("t|ag|q0",)
            on.close()


def test_the_list_is_what_the_model_is_asked() -> None:
    """Edits, removals and earlier checkpoints of the caller."""
    with ModelServer(model="m", script=play, strict="openai") as server:
        on = Nodes(server, window=8_000)
        app = on.placed()
        edited(app, on.questions)
        on.close()


def test_a_call_that_failed_is_made_again_in_the_same_session() -> None:
    with ModelServer(model="m", script=play, strict="openai") as server:
        on = Nodes(server, store=MemoryStore())
        app = on.placed()
        app.invoke({"messages": [HumanMessage("Q000", id="q0")]}, T)
        with pytest.raises(MessageTooLargeError):
            app.invoke({"messages": [HumanMessage("too much " * 2_000, id="q1")]}, T)
        app.update_state(T, {"messages": [HumanMessage("Q001", id="q1")]}, as_node="__start__")
        app.invoke(None, T)
        assert on.questions() == ["Q000", "Q001"]
        assert names(on) == ("t|ag|q0",)
        on.close()


def test_a_fixed_session_is_one_wherever_the_node_stands() -> None:
    with ModelServer(model="m", script=play, strict="openai") as server:
        on = Nodes(server, window=8_000, session_id="all")
        app = on.placed()
        for number in range(3):
            app.invoke({"messages": [HumanMessage(f"Q{number:03}", id=f"q{number}")]}, T)
        assert [m.text for m in on.fit.context().messages() if m.role == "user"] == ["Q000", "Q001", "Q002"]
        assert on.questions() == ["Q000", "Q001", "Q002"]
        on.close()


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("inside", ["sub-graph", "node"])
@pytest.mark.parametrize("own", [False, True])
async def test_parallel_sends_do_not_meet(own: bool, inside: str, how: str) -> None:
    """Each is shown its own list, also where all begin alike, and also in nodes of the top graph."""
    with ModelServer(model="m", script=play, strict="openai") as server:
        on = Nodes(server, window=8_000)

        async def ask(state: MessagesState) -> Any:
            shown = await on.fit.ainvoke(state["messages"])
            return {"messages": [await on.chat.ainvoke([("system", "AGENT"), *shown])]}

        def ask_now(state: MessagesState) -> Any:
            return {"messages": [on.chat.invoke([("system", "AGENT"), *on.fit.invoke(state["messages"])])]}

        def fan(state: MessagesState) -> list[Send]:
            shared = state["messages"]
            parts = [[HumanMessage(f"part{n}", id=f"p{n}-{len(shared)}")] if own else [] for n in range(8)]
            return [Send("ag", {"messages": [*shared, *part]}) for part in parts]

        node: Any = on.graph().compile() if inside == "sub-graph" else ask if how == "ainvoke" else ask_now
        graph: Any = StateGraph(MessagesState).add_node("ag", node).add_conditional_edges(START, fan, ["ag"])
        app = graph.compile(checkpointer=InMemorySaver())
        for turn in range(4):
            before, sent = app.get_state(T).values.get("messages", []), len(server.requests)
            given = {"messages": [HumanMessage(f"Q{turn}", id=f"q{turn}")]}
            await app.ainvoke(given, T) if how == "ainvoke" else app.invoke(given, T)
            asked = [[m["content"] for m in r.body["messages"][1:]] for r in server.requests[sent:]]
            base = [*(m.text for m in before), f"Q{turn}"]
            assert sorted(asked) == [[*base, f"part{n}"] if own else base for n in range(8)]
        if how == "ainvoke":
            await on.chat.aclose()
        on.close()


def test_a_session_beside_is_used_again() -> None:
    """Calls side by side on one thread take as many sessions as there are calls at once, however many turns there are."""
    store = MemoryStore()
    fit = ContextNode(context_window=8_000, store=store)

    def ask(state: MessagesState) -> Any:
        shown = fit.invoke(state["messages"])
        return {"messages": [AIMessage(f"{len(shown)} were shown.")]}

    graph: Any = StateGraph(MessagesState)
    for name in ("one", "two", "three"):
        graph.add_node(name, ask)
        graph.add_edge(START, name)
    app = graph.compile(checkpointer=InMemorySaver())
    for turn in range(6):
        state = app.invoke({"messages": [HumanMessage(f"Q{turn}", id=f"q{turn}")]}, T)
        shown = [m.text for m in state["messages"][-3:]]
        assert shown == [f"{4 * turn + 1} were shown."] * 3
    assert set(store.sessions("default")) <= {"t", "t~00000001", "t~00000002"}
    fit.close()
