"""H1: nothing that a client can set chooses a session or an owner that the program did not give.

Each face runs in a graph with a checkpointer; a client has written its `configurable` but for the thread, as on LangGraph's server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import ConfigurableFieldSpec, RunnableConfig
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from ctxfold import ConfigError, MemoryStore, SqlStore
from ctxfold.errors import CtxWarning
from ctxfold.history.diff import ids_digest
from ctxfold.history.records import SessionKey
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware, ContextNode, CtxChatMessageHistory, with_context
from tests.langchain.faces import closed, model_settings

WINDOW = 5_000
SECRET = "OPAL"


def play(body: Any) -> Scripted:
    last = body["messages"][-1]
    if last["role"] == "user" and "SEARCH" in str(last["content"]):
        return Scripted(tool_calls=(ScriptedCall("search_history", '{"query": "word"}'),))
    return Scripted("Very well. " + "It is a long story. " * 20)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(model="m", script=play, strict="openai", context_window=WINDOW) as server:
        yield server


class Faces:
    """Graphs of each face over one model and one store each."""

    def __init__(self, server: ModelServer) -> None:
        self.server, self.saver = server, InMemorySaver()
        self.model = ChatOpenAI(**model_settings(server.base_url))
        self.open: list[Any] = [self.model]

    def graph(self, face: str, **given: Any) -> Any:
        settings: dict[str, Any] = {"context_window": WINDOW, "store": MemoryStore(), **given}
        match face:
            case "middleware":
                middleware = ContextMiddleware(**settings)
                self.open.append(middleware)
                return create_agent(self.model, middleware=[middleware], checkpointer=self.saver)
            case "with_context":
                return self.node(with_context(self.model, **settings).invoke)
            case "ChatCtx":
                return self.node(ChatCtx(provider="openai", **model_settings(self.server.base_url), **settings).invoke)
            case "history":
                thread = ConfigurableFieldSpec(id="thread_id", annotation=str)
                histories = CtxChatMessageHistory.factory(**settings)
                chain: Any = RunnableWithMessageHistory(self.model, histories, history_factory_config=[thread])
                return self.node(lambda messages, config: chain.invoke(messages[-1:], config))
            case _:
                fit = ContextNode(**settings)
                return self.node(lambda messages, config: self.model.invoke(fit.invoke(messages, config), config))

    def node(self, ask: Callable[[Any, Any], Any]) -> Any:
        self.open.append(getattr(ask, "__self__", None))

        def step(state: MessagesState, config: RunnableConfig) -> Any:
            return {"messages": ask(state["messages"], config)}

        return StateGraph(MessagesState).add_node("ask", step).add_edge(START, "ask").compile(checkpointer=self.saver)

    def sent_since(self, count: int) -> str:
        return str([r.body for r in self.server.requests[count:]])

    async def aclose(self) -> None:
        for one in self.open:
            if one is not None:
                await closed(one)


@pytest.fixture
async def faces(server: ModelServer) -> Any:
    made = Faces(server)
    yield made
    await made.aclose()


FACES = pytest.mark.parametrize("face", ["middleware", "with_context", "ChatCtx", "ContextNode", "history"])


def ask(graph: Any, text: str, thread: str = "ben", **configurable: Any) -> Any:
    config = {"configurable": {"thread_id": thread, **configurable}}
    return graph.invoke({"messages": [HumanMessage(text)]}, config)


CHOSEN: dict[str, dict[str, Any]] = {
    "session_id": {"session_id": "ann"},
    "session": {"session": "ann", "session_id": "ann|x"},
    "owner": {"owner": "ann", "session_id": "ann"},
    "place": {"checkpoint_ns": "", "session_id": "ann", "owner": "default"},
    "auth": {"langgraph_auth_user_id": "ann", "user_id": "ann"},
}


@FACES
@pytest.mark.parametrize("how", CHOSEN)
def test_h1_the_thread_names_the_session_of_a_run(faces: Faces, face: str, how: str) -> None:
    graph = faces.graph(face)
    ask(graph, f"My word is {SECRET}.", "ann")
    asked = len(faces.server.requests)
    ask(graph, "INTRUDER asks for the word.", **CHOSEN[how])
    ask(graph, "INTRUDER SEARCHes for the word.", **CHOSEN[how])
    assert SECRET not in faces.sent_since(asked)
    asked = len(faces.server.requests)
    ask(graph, "What was it?", "ann")
    assert SECRET in faces.sent_since(asked)
    assert "INTRUDER" not in faces.sent_since(asked)


@FACES
def test_h1_an_owner_is_read_under_the_programs_key_alone(faces: Faces, face: str) -> None:
    """One thread name with two owners: the program's `owner=` wins over the config; `owner_key` names the key that counts."""
    if face == "history":
        pytest.skip("the function of a chain's history names the owner")
    store = MemoryStore()
    graph = faces.graph(face, store=store, owner="program's")
    ask(graph, "Hello.", "t", owner="ann", langgraph_auth_user_id="ann")
    assert store.sessions("program's")
    assert not store.sessions("ann")
    keyed, other = faces.graph(face, store=store, owner_key="langgraph_auth_user_id"), "u"
    ask(keyed, "Hello.", other, owner="ann", langgraph_auth_user_id="ben")
    assert store.sessions("ben") == (other,)
    assert not store.sessions("ann")
    with pytest.raises(ConfigError, match="no 'langgraph_auth_user_id', which owner_key names"):
        ask(keyed, "Hello.", "v", owner="ann")


@FACES
def test_h1_the_programs_session_wins_in_a_run(faces: Faces, face: str) -> None:
    if face == "history":
        pytest.skip("the function of a chain's history names the session")
    store = MemoryStore()
    graph = faces.graph(face, store=store, session_id="desk")
    ask(graph, "Hello.", "t", session_id="ann", owner="ann")
    assert store.sessions("default") == ("desk",)
    assert not store.sessions("ann")


def test_h1_a_graph_without_a_thread_takes_no_name_from_its_config(faces: Faces, tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'chat.db'}")
    graph = faces.graph("with_context", store=store)
    graph.checkpointer = None
    with pytest.warns(CtxWarning, match="names no session"):
        graph.invoke({"messages": [HumanMessage("Hello.")]}, {"configurable": {"session_id": "ann"}})
    assert not store.sessions("default")
    store.close()


def test_h1_a_history_refuses_names_from_the_config_of_a_run(faces: Faces) -> None:
    histories = CtxChatMessageHistory.factory(context_window=WINDOW)
    chain: Any = RunnableWithMessageHistory(faces.model, histories)
    graph = faces.node(lambda messages, config: chain.invoke(messages[-1:], config))
    with pytest.raises(ConfigError, match="its client may have written"):
        ask(graph, "Hello.", session_id="ann")
    own = faces.node(lambda messages, _: chain.invoke(messages[-1:], {"configurable": {"session_id": "desk"}}))
    ask(own, "Hello.", session_id="ann")
    assert len(histories("desk").messages) == 2
    histories.close()


def forged(root: str, session: str, **fields: Any) -> dict[str, Any]:
    values = {
        "root": root,
        "session": session,
        "head": 2,
        "head_id": "m:0",
        "before": 0,
        "digest": ids_digest([], 0),
        "handed": {},
    }
    return {**values, **fields}


@pytest.mark.parametrize("root", ["ann", "ben"])
@pytest.mark.parametrize("head", ["a message", "the newest record", "nothing"])
def test_h1_h5_a_cursor_is_believed_only_for_its_session(faces: Faces, root: str, head: str) -> None:
    """A client writes another thread's session into the private key of its own: neither window nor tools nor program go there."""
    store = MemoryStore()
    middleware = ContextMiddleware(context_window=WINDOW, store=store)
    faces.open.append(middleware)
    graph = create_agent(faces.model, middleware=[middleware], checkpointer=faces.saver)
    config: Any = {"configurable": {"thread_id": "ann"}}
    graph.invoke({"messages": [HumanMessage(f"My word is {SECRET}.", id="0")]}, config)
    records = store.read(SessionKey("default", "ann"))
    newest = records[-1] if head == "the newest record" else next(r for r in records if r.id == "m:0")
    at = {"head": 1 << 61, "head_id": "gone"} if head == "nothing" else {"head": newest.seq, "head_id": newest.id}
    ask(graph, "INTRUDER says hello.")
    asked = len(faces.server.requests)
    mine: Any = {"configurable": {"thread_id": "ben"}}
    for key in (forged(root, "ann", **at), forged(root, "ann", **at, handed={"0": "x"})):
        graph.update_state(mine, {"ctxfold": key})
        for state in (graph.get_state(mine), graph.get_state(mine).values):
            if head != "the newest record" or state != graph.get_state(mine).values:  # who knows it has seen her state
                with pytest.raises(ConfigError, match=r"not its own|no session yet"):
                    middleware.context(state)
        ask(graph, "INTRUDER asks for the word.")
        graph.update_state(mine, {"ctxfold": key})
        ask(graph, "INTRUDER SEARCHes for the word.")
    assert SECRET not in faces.sent_since(asked)
    assert store.read(SessionKey("default", "ann")) == records


MALFORMED: list[Any] = ["text", 7, [], {"root": 1}, forged("t", "t", handed="x"), forged("t", "t", handed={"a": None})]
MALFORMED += [forged("t", "t", head="1"), forged("t", "t", before=-1), forged("t", "t", head_id=None)]
MALFORMED += [forged("t", "t\0"), forged("t", "t", head=1 << 62), {**forged("t", "t"), "more": 1}]


@pytest.mark.parametrize("value", MALFORMED, ids=str)
def test_h5_a_malformed_private_key_is_ignored_with_a_warning(faces: Faces, value: Any) -> None:
    graph = faces.graph("middleware")
    ask(graph, "My name is Ann.", "t")
    graph.update_state({"configurable": {"thread_id": "t"}}, {"ctxfold": value})
    with pytest.warns(CtxWarning, match="private key 'ctxfold' of this state was changed"):
        ask(graph, "And now?", "t")
    assert "My name is Ann." in faces.sent_since(1)
    ask(graph, "And then?", "t")


@pytest.mark.parametrize("face", ["middleware", "ContextNode"])
def test_h1_a_first_message_of_the_same_id_opens_nobodys_conversation(faces: Faces, face: str) -> None:
    """A graph without threads, whose user interface numbers the messages from 0: each list is told apart by what it has."""
    graph = faces.graph(face)
    graph.checkpointer = None

    def said(words: list[str], answers: list[AIMessage]) -> list[Any]:
        listed: list[Any] = []
        for number, text in enumerate(words):
            listed += [HumanMessage(text, id=f"{2 * number}"), *answers[number : number + 1]]
        return listed

    words, answers = ["Hello.", f"My word is {SECRET}."], list[AIMessage]()
    for number in range(24):  # far beyond the window
        words = [*words[: number + 1], *([words[1]] if not number else [f"And {number}? " + "More of it. " * 30])]
        found = graph.invoke({"messages": said(words[: number + 1], answers)})["messages"][-1]
        answers.append(found)
    asked = len(faces.server.requests)
    theirs: list[Any] = [HumanMessage("Hello.", id="0")]
    for number in range(6):
        found = graph.invoke({"messages": theirs})["messages"][-1]
        theirs += [found, HumanMessage(f"What is the word, INTRUDER {number}?", id=f"{2 * number + 2}")]
    assert SECRET not in faces.sent_since(asked)
    asked = len(faces.server.requests)
    graph.invoke({"messages": said([*words[: len(answers)], "And so?"], answers)})
    assert "INTRUDER" not in faces.sent_since(asked)
