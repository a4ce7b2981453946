"""`ContextNode` in the three places that it is for: a chain, a graph's node, a pre-model hook."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.channels import UntrackedValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import create_react_agent
from langgraph.warnings import LangGraphDeprecatedSinceV10

from ctxfold import ConfigError
from ctxfold.errors import EmptyMessagesError, WindowTooSmallError
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextNode

WINDOW = 1_000
FACT = "The {n}. parcel weighs {n} kilos and goes to the {n}. floor of the old house by the river. "


def told(number: int) -> str:
    return f"Note {number}. " + FACT.format(n=number) * 3


def thread(name: str = "t", **more: Any) -> Any:
    return {"configurable": {"thread_id": name, **more}}


def tokens(node: ContextNode, session: str, messages: Sequence[BaseMessage]) -> int:
    count = node.context(session).handle.counter.count_text
    return sum(count(str(m.content)) for m in messages)


# a chain


@pytest.mark.parametrize("ids", ["given", "none"])
@pytest.mark.parametrize("how", ["sync", "async"])
async def test_a_list_for_a_list(how: str, ids: str) -> None:
    """Whoever keeps the list hands it over whole: it stays as it is, and what comes out always fits."""
    async with ContextNode(context_window=WINDOW) as fit:
        kept: list[BaseMessage] = [SystemMessage("Be brief.")]
        for number in range(30):
            kept.append(HumanMessage(told(number), id=f"h{number}" if ids == "given" else None))
            before = [m.model_copy() for m in kept]
            shown = fit.invoke(kept, thread()) if how == "sync" else await fit.ainvoke(kept, thread())
            assert kept == before
            assert [shown[0].type, shown[0].content, shown[-1].content] == ["system", "Be brief.", told(number)]
            assert tokens(fit, "t", shown) < WINDOW
            kept.append(AIMessage(f"Noted {number}.", id=f"a{number}" if ids == "given" else None))
        usage = fit.context("t").usage()
        assert usage.compactions > 1
        assert usage.turns == 29  # the last answer is learnt from the next list
        said = [m.text for m in fit.context("t").messages()]
        assert said == [m.content for m in kept[:-1]], "the question that waits for its answer too"


@pytest.mark.parametrize(
    "one",
    ["Hi", HumanMessage("Hi"), ("user", "Hi"), {"role": "user", "content": "Hi"}],
    ids=["text", "message", "pair", "dict"],
)
def test_one_message_in_place_of_a_list(one: Any) -> None:
    """As LangGraph's `add_messages` takes it: the node made a message of each letter of a text."""
    with ContextNode(context_window=WINDOW) as fit:
        shown = fit.invoke({"messages": one}, thread())["llm_input_messages"]
        assert [(m.type, m.content) for m in shown] == [("human", "Hi")]
        if not isinstance(one, dict):  # which is a state
            assert [(m.type, m.content) for m in fit.invoke(one, thread("u"))] == [("human", "Hi")]


def test_in_front_of_a_model(server: ModelServer) -> None:
    """Where `trim_messages` stood; what has left the window is recalled for the question."""
    prompt = ChatPromptTemplate.from_messages([("system", "Answer from what was said."), MessagesPlaceholder("said")])
    with ContextNode(context_window=WINDOW) as fit, ChatCtx(model="lookup", base_url=server.base_url, api_key="x") as m:
        chain = prompt | fit | m
        said: list[BaseMessage] = []
        for number in range(20):
            said.append(HumanMessage(f"My locker {number} has the code {number}-{number * 7}. " + "It is grey. " * 12))
            said.append(chain.invoke({"said": said}, thread()))
        said.append(HumanMessage("What is the code of my locker 3?"))
        pieces = list(chain.stream({"said": said}, thread()))
        assert "3-21" in "".join(p.text for p in pieces)
        assert max(len(r.body["messages"]) for r in server.requests) < 30


def test_the_same_words_again_are_another_message() -> None:
    with ContextNode(context_window=8_000) as fit:
        said: list[BaseMessage] = []
        for _ in range(3):
            said.append(HumanMessage("hi"))
            fit.invoke(said, thread())
            said.append(AIMessage("hello"))
        assert [m.content for m in fit.invoke(said, thread())] == ["hi", "hello"] * 3
        assert [m.content for m in fit.invoke(said, thread())] == ["hi", "hello"] * 3


def test_going_back_behind_an_answer_is_followed() -> None:
    """Another branch takes the place of the first; going back to that one brings it back."""
    with ContextNode(context_window=8_000) as fit:
        first = [HumanMessage("one"), AIMessage("1"), HumanMessage("two"), AIMessage("2"), HumanMessage("three")]
        fit.invoke(first, thread())
        second = [*first[:2], HumanMessage("two, please")]
        assert [m.content for m in fit.invoke(second, thread())] == ["one", "1", "two, please"]
        assert [m.content for m in fit.invoke(first, thread())] == ["one", "1", "two", "2", "three"]
        assert [m.content for m in fit.invoke([*second, AIMessage("sorry")], thread())][-2:] == ["two, please", "sorry"]


def test_a_fixed_session_is_never_taken_back() -> None:
    with ContextNode(context_window=8_000, session_id="all") as fit:
        fit.invoke([HumanMessage("one"), AIMessage("1"), HumanMessage("two"), AIMessage("2")])
        shown = fit.invoke([HumanMessage("one"), AIMessage("1"), HumanMessage("three")])
        assert [m.content for m in shown] == ["one", "1", "two", "2", "three"]


def test_a_failed_call_is_asked_again() -> None:
    with ContextNode(context_window=8_000) as fit:
        said = [HumanMessage("one"), AIMessage("1"), HumanMessage("two")]
        for _ in range(3):
            assert [m.content for m in fit.invoke(said, thread())] == ["one", "1", "two"]
        assert fit.invoke("and now?", thread("other"))[0].content == "and now?"


def test_sessions_owners_and_nobodys(store_url: str) -> None:
    with ContextNode(context_window=8_000, store=store_url, owner_key="owner") as fit:
        fit.invoke([HumanMessage("ann's"), AIMessage("yes")], thread(owner="ann"))
        assert [m.content for m in fit.invoke([HumanMessage("bob's")], thread(owner="bob"))] == ["bob's"]
        with pytest.raises(ConfigError, match="no 'owner', which owner_key names"):
            fit.invoke([HumanMessage("nobody's")], thread())
    with ContextNode(context_window=8_000, store=store_url) as fit:
        fit.invoke([HumanMessage("by another name")], {"configurable": {"session_id": "t"}})
        assert [m.text for m in fit.context("t", owner="ann").messages()] == ["ann's", "yes"]
        with pytest.raises(ConfigError, match=r"session_id=.*thread_id"):
            fit.invoke([HumanMessage("whose?")])
        with pytest.raises(EmptyMessagesError):
            fit.invoke([], thread())
        with pytest.raises(ConfigError, match="messages_key"):
            fit.invoke({"chat": []}, thread())
    with ContextNode(context_window=8_000, store=store_url, owner_key="owner") as again:  # another process
        shown = again.invoke([HumanMessage("ann's"), AIMessage("yes"), HumanMessage("more")], thread(owner="ann"))
        assert [m.content for m in shown] == ["ann's", "yes", "more"]


def test_summaries_are_written_by_the_model_given() -> None:
    summary = "Parcels were noted: the 0. weighs 0 kilos, the 1. weighs 1, and so on, each for another floor of the old house."
    writer = FakeListChatModel(responses=[summary])
    with ContextNode(context_window=WINDOW, summarizer=writer) as fit:
        said: list[BaseMessage] = []
        for number in range(30):  # in steps: a list that is far larger than the budget is taken in without the model
            said += [HumanMessage(told(number)), AIMessage("Noted.")]
            if number % 5 == 4:
                shown = fit.invoke([*said, HumanMessage("And?")], thread())
        assert sum(summary in m.text for m in shown) == 1
        assert fit.invoke([*said, HumanMessage("And?")], thread()) == shown


# a graph


@tool
def look(key: int) -> str:
    """Looks something up."""
    return f"Entry {key}: " + FACT.format(n=key) * 4


ROUNDS = 25


def steps(body: Any) -> Scripted:
    """Asks for one entry after another; knows from its calls how far it is, or from the newest result."""
    results = [m["content"] for m in body["messages"] if m["role"] == "tool"]
    done = int(results[-1].split(":")[0].removeprefix("Entry ")) + 1 if results else 0
    if done == ROUNDS:
        return Scripted("All found.", reasoning="That was the last.")
    return Scripted(reasoning="One more.", tool_calls=(ScriptedCall("look", json.dumps({"key": done})),))


class State(MessagesState):
    llm_input_messages: Annotated[list[AnyMessage], UntrackedValue]


@dataclass
class Fields:
    """The same state as a dataclass."""

    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)
    llm_input_messages: Annotated[list[AnyMessage], UntrackedValue] = field(default_factory=list)


@pytest.mark.parametrize("kind", ["list", "values of a dict", "iterator"])
def test_tools_in_any_collection_are_counted(kind: str) -> None:
    """A graph often keeps its tools by name."""
    large = look.model_copy(update={"description": "Looks it up. " * 1_000})
    tools: Any = {"list": [large], "values of a dict": {"look": large}.values(), "iterator": iter([large])}[kind]
    with pytest.raises(WindowTooSmallError, match=r"the tools have \d{4} tokens"):
        ContextNode(context_window=WINDOW, tools=tools)


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("schema", [State, Fields])
async def test_a_node_of_a_graph(schema: Any, how: str) -> None:
    """A turn that outgrows the window in its middle, on a server that refuses what is too long or not well-formed."""
    with (
        ModelServer(model="m", script=steps, strict="deepseek", context_window=2_000) as server,
        ChatCtx(model="m", provider="deepseek", base_url=server.base_url, api_key="x", max_retries=0) as model,
        ContextNode(context_window=2_000, tools=[look]) as fit,
    ):
        asking = RunnableLambda(lambda s: _field(s, "llm_input_messages")) | model.bind_tools([look])
        graph = StateGraph(schema)
        graph.add_node("fit", fit)
        graph.add_node("model", asking | (lambda m: {"messages": [m]}))
        graph.add_node("tools", _run_tools)
        graph.add_edge(START, "fit")
        graph.add_edge("fit", "model")
        graph.add_conditional_edges("model", lambda s: "tools" if _field(s, "messages")[-1].tool_calls else END)
        graph.add_edge("tools", "fit")
        saver = InMemorySaver()
        app: Any = graph.compile(checkpointer=saver)
        given: Any = {"messages": [SystemMessage("Be brief."), HumanMessage("Find all.")]}
        config: Any = {**thread(), "recursion_limit": 200}
        state = app.invoke(given, config) if how == "invoke" else await app.ainvoke(given, config)
        assert state["messages"][-1].text == "All found."
        assert sum(isinstance(m, ToolMessage) for m in state["messages"]) == ROUNDS  # the graph's own list is whole
        assert len(server.requests) == ROUNDS + 1
        assert fit.context("t").usage().compactions > 0
        saved: Any = saver.get_tuple(thread())
        assert "llm_input_messages" not in saved.checkpoint["channel_values"]


def _field(state: Any, name: str) -> Any:
    return state[name] if isinstance(state, dict) else getattr(state, name)


def _run_tools(state: Any) -> dict[str, Any]:
    calls = _field(state, "messages")[-1].tool_calls
    return {"messages": [look.invoke(call) for call in calls]}


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("saver", [None, InMemorySaver])
async def test_a_pre_model_hook(how: str, saver: Any) -> None:
    """The contract of `create_react_agent`: the model sees the window, the state keeps every message; without a checkpointer
    the session is the run's."""
    with (
        ModelServer(model="m", script=steps, strict="deepseek", context_window=2_000) as server,
        ChatCtx(model="m", provider="deepseek", base_url=server.base_url, api_key="x", max_retries=0) as model,
        ContextNode(context_window=2_000, tools=[look], overhead_tokens=8) as fit,
    ):
        with pytest.warns(LangGraphDeprecatedSinceV10):
            agent = create_react_agent(
                model, [look], prompt="Be brief.", pre_model_hook=fit, checkpointer=saver and saver()
            )
        config: Any = {"recursion_limit": 200, **(thread() if saver else {})}
        given: Any = {"messages": [HumanMessage("Find all.", id="first")]}
        state = agent.invoke(given, config) if how == "invoke" else await agent.ainvoke(given, config)
        assert state["messages"][-1].text == "All found."
        assert sum(isinstance(m, ToolMessage) for m in state["messages"]) == ROUNDS
        assert len(server.requests) == ROUNDS + 1
        context = fit.context("t" if saver else "run-first")
        assert context.usage().compactions > 0
        assert context.usage().prefix.requests == ROUNDS + 1
        if saver:
            answer = agent.invoke({"messages": [HumanMessage("Thanks.")]}, config)
            assert answer["messages"][-1].text == "All found."
            assert context.usage().turns == 1


def test_from_an_earlier_checkpoint_of_a_graph() -> None:
    """Time travel: the other branch is gone from the window, and its interrupted turn with it."""
    with ContextNode(context_window=8_000) as fit:
        model = FakeListChatModel(responses=[f"answer {n}" for n in range(9)])
        graph = StateGraph(State)
        graph.add_node("fit", fit)
        graph.add_node("model", lambda s: {"messages": [model.invoke(s["llm_input_messages"])]})
        graph.add_edge(START, "fit")
        graph.add_edge("fit", "model")
        app: Any = graph.compile(checkpointer=InMemorySaver())
        for text in ("one", "two", "three"):
            app.invoke({"messages": [HumanMessage(text)]}, thread())
        early = next(s for s in app.get_state_history(thread()) if len(s.values["messages"]) == 2 and not s.next)
        app.invoke({"messages": [HumanMessage("another two")]}, early.config)
        shown = fit.invoke(app.get_state(thread()).values, thread())["llm_input_messages"]
        assert [m.content for m in shown] == ["one", "answer 0", "another two", "answer 3"]


def test_a_sub_graph_has_a_session_of_its_own() -> None:
    """On one thread and one store: what is said inside is not part of the conversation around it."""
    with ContextNode(context_window=8_000) as fit:

        def graph_around(ask: Any) -> Any:
            graph = StateGraph(State)
            graph.add_node("fit", fit)
            graph.add_node("model", ask)
            graph.add_edge(START, "fit")
            graph.add_edge("fit", "model")
            return graph

        inner = graph_around(lambda s: {"messages": [AIMessage("found inside")]}).compile()

        def outer(state: Any) -> Any:
            inner.invoke({"messages": [HumanMessage("look it up")]})
            return {"messages": [AIMessage("answered")]}

        app: Any = graph_around(outer).compile(checkpointer=InMemorySaver())
        for text in ("one", "two"):
            app.invoke({"messages": [HumanMessage(text)]}, thread())
        assert [m.text for m in fit.context("t").messages()] == ["one", "answered", "two"]
        names = fit.context("t").handle.store.sessions("default")
        assert [name.partition("|")[0] for name in names] == ["t", "t", "t"]  # the two looks inside, each its own


@pytest.mark.parametrize(("wrong", "right"), [("session", "session_id"), ("max_output_tokens", "reply_reserve_tokens")])
def test_a_name_that_others_use_is_told_the_right_one(wrong: str, right: str) -> None:
    setting: Any = {wrong: "all" if wrong == "session" else 100}
    with pytest.raises(ConfigError, match=f"there is no setting '{wrong}': ctxfold calls it {right}"):
        ContextNode(context_window=8_000, **setting)
