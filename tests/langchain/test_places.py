"""Whose session it is in a sub-graph: sub-agents, agents as nodes, runs side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send

from ctxfold import BackendError, MemoryStore
from ctxfold.testing import ErrorReply, ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware, with_context
from tests.langchain.faces import closed
from tests.langchain.running import Running, T, down_at_first, edited, play


def boss_and_researcher(body: Any) -> Scripted:
    messages = body["messages"]
    if messages[0]["content"] == "RESEARCHER":
        return Scripted("Found it.")
    if messages[-1]["role"] == "tool":
        return Scripted("Told.")
    return Scripted(tool_calls=(ScriptedCall("research", '{"q": "private question"}'),))


def model_on(kind: str, url: str, store: MemoryStore, window: int = 8_000) -> Any:
    if kind == "ChatCtx":
        return ChatCtx(model="m", base_url=url, api_key="x", store=store, context_window=window)  # type: ignore[arg-type]
    return with_context(ChatOpenAI(model="m", base_url=url, api_key="x"), store=store, context_window=window)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("kind", ["with_context", "ChatCtx"])
async def test_a_sub_agent_on_the_same_model_sees_only_its_own(kind: str, how: str) -> None:
    with ModelServer(model="m", script=boss_and_researcher, strict="openai") as server:
        store = MemoryStore()
        model = model_on(kind, server.base_url, store)
        inner: Any = create_agent(model, [], system_prompt="RESEARCHER")

        @tool
        async def research(q: str) -> str:
            """Looks it up."""
            asked = {"messages": [("human", q)]}
            state = inner.invoke(asked) if how == "invoke" else await inner.ainvoke(asked)
            return str(state["messages"][-1].text)

        @tool("research")
        def research_now(q: str) -> str:
            """Looks it up."""
            return str(inner.invoke({"messages": [("human", q)]})["messages"][-1].text)

        tools = [research_now if how == "invoke" else research]
        app: Any = create_agent(model, tools, system_prompt="BOSS", checkpointer=InMemorySaver())
        for turn in (1, 2):
            given = {"messages": [("human", f"go {turn}")]}
            state = app.invoke(given, T) if how == "invoke" else await app.ainvoke(given, T)
            assert state["messages"][-1].text == "Told."
        bodies = [r.body["messages"] for r in server.requests]
        assert len(bodies) == 6
        for body in bodies:
            users = [m["content"] for m in body if m["role"] == "user"]
            if body[0]["content"] == "RESEARCHER":
                assert users == ["private question"]
                assert len(body) == 2
            else:
                assert users == [f"go {n}" for n in range(1, len(users) + 1)]
        assert [m["role"] for m in bodies[-1][1:]] == [
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
            "assistant",
            "tool",
        ]
        names = store.sessions("default")
        assert len(names) == 3
        assert names[0] == "t"
        assert all(n.startswith("t|tools|") for n in names[1:])
        await closed(model)


def as_node(on: Running, *names: str) -> Any:
    """A graph whose nodes are agents that share its messages."""
    graph: Any = StateGraph(MessagesState)
    for before, name in zip((START, *names), names, strict=False):
        graph.add_node(name, create_agent(on.chat, [], system_prompt="AGENT", middleware=[on.middleware]))
        graph.add_edge(before, name)
    return graph.compile(checkpointer=on.saver)


def test_an_agent_as_a_node_goes_on_with_its_session() -> None:
    """As many model calls as the same agent makes by itself: the past is not summarised anew at each turn."""
    with ModelServer(model="m", script=play, strict="openai") as server:
        store, calls = MemoryStore(), dict[str, list[int]]()
        alone = Running(server, InMemorySaver(), window=1_500)
        placed = Running(server, InMemorySaver(), window=1_500, store=store)
        for name, app in (("alone", alone.agent), ("placed", as_node(placed, "ag"))):
            calls[name] = []
            for number in range(14):
                before = len(server.requests)
                app.invoke({"messages": [HumanMessage(f"Q{number:03}")]}, T)
                calls[name].append(len(server.requests) - before)
        assert calls["placed"] == calls["alone"]
        (name,) = store.sessions("default")
        assert name.startswith("t|ag|")
        assert placed.middleware.context(name).usage().turns == 14
        assert placed.middleware.erase("t") == (name,)
        assert store.sessions("default") == ()
        alone.close()
        placed.close()


def test_two_agents_as_nodes_keep_two_sessions() -> None:
    with ModelServer(model="m", script=play, strict="openai") as server:
        store = MemoryStore()
        on = Running(server, InMemorySaver(), store=store)
        app = as_node(on, "one", "two")
        for number in range(4):
            app.invoke({"messages": [HumanMessage(f"Q{number:03}", id=f"q{number}")]}, T)
            assert on.questions() == [f"Q{n:03}" for n in range(number + 1)]
        assert store.sessions("default") == ("t|one|q0", "t|two|q0")
        on.close()


def test_a_new_process_goes_on_with_the_session_of_a_place(store_url: str) -> None:
    with ModelServer(model="m", script=play, strict="openai") as server:
        saver = InMemorySaver()
        for number in range(4):
            on = Running(server, saver, store=store_url)
            as_node(on, "ag").invoke({"messages": [HumanMessage(f"Q{number:03}", id=f"q{number}")]}, T)
            assert on.questions() == [f"Q{n:03}" for n in range(number + 1)]
            assert on.middleware.context("t|ag|q0").usage().turns == number + 1
            on.close()


def test_a_list_that_was_changed_takes_up_no_other() -> None:
    """Edits, removals and earlier checkpoints of the caller: what is asked is the caller's list as it is now."""
    with ModelServer(model="m", script=play, strict="openai") as server:
        on = Running(server, InMemorySaver(), store=MemoryStore())
        app = as_node(on, "ag")
        edited(app, on.questions)
        on.close()


async def test_a_failed_run_gives_its_session_back() -> None:
    """The run that is taken up again goes on with it."""
    with ModelServer(model="m", script=down_at_first(), strict="openai") as server:
        store = MemoryStore()
        on = Running(server, InMemorySaver(), store=store)
        app = as_node(on, "ag")
        for number in range(3):
            with pytest.raises(BackendError, match="down"):
                await app.ainvoke({"messages": [HumanMessage(f"Q{number:03}", id=f"q{number}")]}, T)
            await app.ainvoke(None, T)
            assert on.questions() == [f"Q{n:03}" for n in range(number + 1)]
        assert store.sessions("default") == ("t|ag|q0",)
        await on.chat.aclose()
        on.close()


@pytest.mark.parametrize("own", [False, True])
def test_parallel_sends_do_not_meet(own: bool) -> None:
    """Each run is asked its own list, and none fails, also where they begin alike."""
    with ModelServer(model="m", script=play, strict="openai") as server:
        on = Running(server, InMemorySaver(), store=MemoryStore())

        def fan(state: MessagesState) -> list[Send]:
            shared = state["messages"]
            parts = [[HumanMessage(f"part{n}", id=f"p{n}-{len(shared)}")] if own else [] for n in range(4)]
            return [Send("ag", {"messages": [*shared, *part]}) for part in parts]

        agent = create_agent(on.chat, [], system_prompt="AGENT", middleware=[on.middleware])
        graph: Any = StateGraph(MessagesState).add_node("ag", agent).add_conditional_edges(START, fan, ["ag"])
        app = graph.compile(checkpointer=on.saver)
        for turn in range(4):
            before, sent = app.get_state(T).values.get("messages", []), len(server.requests)
            state = app.invoke({"messages": [HumanMessage(f"Q{turn}", id=f"q{turn}")]}, T)
            asked = [[m["content"] for m in r.body["messages"][1:]] for r in server.requests[sent:]]
            base = [*(m.text for m in before), f"Q{turn}"]
            assert sorted(asked) == [[*base, f"part{n}"] if own else base for n in range(4)]
            assert len(state["messages"]) == len(before) + 1 + (8 if own else 4)
        on.middleware.erase("t")
        on.close()


@pytest.mark.parametrize("kind", ["with_context", "ChatCtx"])
def test_where_a_model_is_called_in_a_graph(kind: str) -> None:
    """In a node of the top graph the session is the thread's; in a sub-graph the place's, by run where messages have no id."""
    with ModelServer(model="m", script=play, strict="openai") as server:
        store = MemoryStore()
        model = model_on(kind, server.base_url, store)

        def call(state: MessagesState) -> Any:
            return {"messages": [model.invoke(state["messages"])]}

        def bare(state: MessagesState) -> Any:
            model.invoke("Nobody knows me.", {"configurable": {"session_id": "other"}})
            return {"messages": [model.invoke("Hello.")]}

        def graph(node: Any) -> Any:
            return StateGraph(MessagesState).add_node("node", node).add_edge(START, "node")

        given: Any = {"messages": [HumanMessage("Hi.", id="q")]}
        graph(call).compile(checkpointer=InMemorySaver()).invoke(given, T)
        assert store.sessions("default") == ("t",)
        app = graph(graph(call).compile()).compile(checkpointer=InMemorySaver())
        for number in range(2):
            app.invoke({"messages": [HumanMessage("Hi.", id=f"q{number}")]}, T)
        assert store.sessions("default") == ("t", "t|node|q0")
        graph(graph(bare).compile()).compile(checkpointer=InMemorySaver()).invoke(given, T)
        fixed, *rest = store.sessions("default")
        assert fixed == "other"
        assert sum(n.startswith("t|node:") for n in rest) == 1


@pytest.mark.parametrize("kind", ["with_context", "ChatCtx"])
def test_a_thread_that_is_none_names_no_session(kind: str) -> None:
    store = MemoryStore()
    with ModelServer(model="m", script=lambda _: Scripted("Hi.")) as server:
        model = model_on(kind, server.base_url, store)
        for text in ("mine", "yours"):
            assert model.invoke(text, {"configurable": {"thread_id": None}}).text == "Hi."
        assert [len(r.body["messages"]) for r in server.requests] == [1, 1]
        assert store.sessions("default") == ()


def test_a_new_process_sees_an_answer_that_was_edited(store_url: str) -> None:
    with ModelServer(model="m", script=play, strict="openai") as server:
        saver = InMemorySaver()
        for number in range(3):
            on = Running(server, saver, store=store_url)
            app = as_node(on, "ag")
            state = app.invoke({"messages": [HumanMessage(f"Q{number:03}", id=f"q{number}")]}, T)
            if number == 1:
                app.update_state(T, {"messages": [AIMessage("EDITED ANSWER", id=state["messages"][-1].id)]})
            on.close()
        said = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "assistant"]
        assert said[-1] == "EDITED ANSWER"


def test_a_fixed_session_has_its_places_too() -> None:
    """In a sub-graph the fixed name stands for the thread's: sub-agents of one middleware do not meet in it."""
    with ModelServer(model="m", script=play, strict="openai") as server:
        store = MemoryStore()
        on = Running(server, InMemorySaver(), store=store, session_id="fixed")
        app = as_node(on, "ag")
        for number in range(4):
            app.invoke({"messages": [HumanMessage(f"Q{number:03}", id=f"q{number}")]}, T)
            assert on.questions() == [f"Q{n:03}" for n in range(number + 1)]
        assert store.sessions("default") == ("fixed|ag|q0",)
        assert on.middleware.context("fixed|ag|q0").usage().turns == 4
        on.close()


@pytest.mark.parametrize("kind", ["with_context", "ChatCtx"])
def test_a_task_of_a_workflow_is_no_sub_graph(kind: str) -> None:
    """LangGraph's functional API: a model that a task asks keeps the thread's session, also in a task of a task."""
    with ModelServer(model="m", script=lambda body: Scripted(f"Answer {len(body['messages'])}.")) as server:
        store = MemoryStore()
        model = model_on(kind, server.base_url, store)

        @task
        def ask(question: str) -> str:
            return str(model.invoke(question).text)

        @task
        def ask_further(question: str) -> str:
            return ask(question).result()

        @entrypoint(checkpointer=InMemorySaver())
        def workflow(question: str) -> list[str]:
            return [
                ask(f"{question}1").result(),
                ask_further(f"{question}2").result(),
                model.invoke(f"{question}3").text,
            ]

        workflow.invoke("A", T)
        assert workflow.invoke("B", T) == ["Answer 7.", "Answer 9.", "Answer 11."]
        assert store.sessions("default") == ("t",)
        assert [m.text for m in model.context("t").messages() if m.role == "user"] == [
            "A1",
            "A2",
            "A3",
            "B1",
            "B2",
            "B3",
        ]


def test_a_sub_graph_that_a_task_runs_keeps_its_own_session() -> None:
    with ModelServer(model="m", script=lambda body: Scripted("Found it.")) as server:
        store = MemoryStore()
        model = model_on("with_context", server.base_url, store)
        helper: Any = create_agent(model, [])

        @task
        def research(question: str) -> str:
            return str(helper.invoke({"messages": [HumanMessage(question, id="q1")]})["messages"][-1].text)

        @entrypoint(checkpointer=InMemorySaver())
        def workflow(question: str) -> str:
            return research(question).result()

        workflow.invoke("Private question.", T)
        assert store.sessions("default") == ("t|workflow|research|q1",)


@tool
def look(place: str) -> str:
    """Looks at a place."""
    return f"{place} is green"


@tool
def to_desk(runtime: ToolRuntime) -> Command[str]:
    """Hands the conversation over to the desk."""
    result = ToolMessage("Handed over.", tool_call_id=runtime.tool_call_id)
    return Command(goto="desk", graph=Command.PARENT, update={"messages": [*runtime.state["messages"], result]})


def hands_over_among_calls() -> Callable[[Any], Any]:
    """Hands over each time that it is asked to go; the first answer of the desk fails."""
    failed: list[bool] = []

    def answer(body: Any) -> Any:
        if body["messages"][0]["content"] == "DESK" and not failed:
            failed.append(True)
            return ErrorReply(400, {"error": {"message": "down", "type": "invalid_request_error"}})
        if body["messages"][-1]["content"] == "Go.":
            return Scripted("", tool_calls=(ScriptedCall("look", '{"place": "hill"}'), ScriptedCall("to_desk")))
        return Scripted(f"From the {body['messages'][0]['content'].lower()}.")

    return answer


@pytest.mark.parametrize("kind", ["middleware", "with_context"])
def test_a_handoff_among_parallel_calls(kind: str, store_url: str) -> None:
    """LangGraph drops the results of the calls beside it: a note stands in their place, and nobody is refused."""

    def app() -> Any:
        chat = ChatCtx(model="m", base_url=server.base_url, api_key="x", max_retries=0)  # type: ignore[arg-type]
        model = with_context(chat, store=store_url, context_window=8_000) if kind == "with_context" else chat
        own = [ContextMiddleware(store=store_url, context_window=8_000)] if kind == "middleware" else []
        graph: Any = StateGraph(MessagesState)
        for name, tools in (("front", [look, to_desk]), ("desk", [look])):
            agent = create_agent(model, tools, system_prompt=name.upper(), middleware=own)
            graph.add_node(name, agent, destinations=("desk",))
        graph.add_edge(START, "front")
        return graph.compile(checkpointer=saver)

    with ModelServer(model="m", script=hands_over_among_calls(), strict="openai") as server:
        saver = InMemorySaver()
        first = app()
        with pytest.raises(Exception, match="down"):
            first.invoke({"messages": [HumanMessage("Go.")]}, T)
        assert first.invoke(None, T)["messages"][-1].text == "From the desk."
        assert [m.type for m in first.get_state(T).values["messages"]] == ["human", "ai", "tool", "ai"]
        assert first.invoke({"messages": [HumanMessage("Thanks.")]}, T)["messages"][-1].text == "From the front."
        assert app().invoke({"messages": [HumanMessage("Go.")]}, T)["messages"][-1].text == "From the desk."
        note = "(no result: the conversation went on before this call returned)"
        handed = ["Go.", "", "Handed over.", note]
        said = ["From the desk.", "Thanks.", "From the front."]
        sent = [[m["content"] for m in r.body["messages"][1:]] for r in server.requests]
        assert sent[1] == sent[2] == handed, "the failed request is repeated as it was"
        assert sent[3] == [*handed, *said[:2]]
        assert sent[-1] == [*handed, *said, *handed]
