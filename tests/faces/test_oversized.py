"""Step 7, item A5: a question that never fits is refused, and blocks nothing that comes after it, through any face."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from llama_index.core.base.llms.types import ChatMessage

from ctxfold import AgentContext, BackendError, Message, ScriptedBackend, ToolCallPart, assistant, tool_result, user
from ctxfold.errors import MessageTooLargeError
from langchain_ctx import ContextMiddleware, ContextNode, CtxChatMessageHistory, with_context
from llamaindex_ctx import CtxMemory
from tests.support.driven import COUNTER

WINDOW, SMALL = 8_000, 2_500
BIG = "Here comes the long report of the whole year. " * 2_300  # more than 20,000 tokens
THREAD: Any = {"configurable": {"thread_id": "s"}}
Asked = list[str]


def backend() -> ScriptedBackend:
    return ScriptedBackend(["ok"] * 50)


def engine(store: str, window: int = WINDOW, **settings: Any) -> AgentContext:
    return AgentContext(backend(), store=store, context_window=window, counter=COUNTER, **settings)


def fitting(messages: Any, window: int = WINDOW) -> None:
    text = "".join(m.text for m in messages)
    assert COUNTER.count(text) <= 0.8 * window


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'big.db'}"


@pytest.mark.parametrize("summarizer", [None, "fails"])
@pytest.mark.parametrize(
    "stored",
    [
        [user(BIG, id="big")],
        [user("before", id="b"), assistant("yes", id="c"), user(BIG, id="big")],
        [user("tell me", id="b"), assistant(BIG, id="big")],
        [
            user("look", id="b"),
            assistant("", id="c", calls=[ToolCallPart("1", "look", "{}")]),
            tool_result("1", BIG, id="big"),
        ],
    ],
    ids=["question", "later question", "answer", "result"],
)
def test_the_next_short_question_works(store: str, stored: list[Message], summarizer: str | None) -> None:
    """Step 7, item A5: through the engine, in the window of the session, after a restart, and in a smaller window."""
    settings: dict[str, Any] = {}
    if summarizer:
        settings["summarizer"] = ScriptedBackend([BackendError("down", kind="server")] * 90)
    ctx = engine(store, **settings)
    ctx.add(stored)
    assert ctx.send("short").message.text == "ok"
    with pytest.raises(MessageTooLargeError):
        ctx.send(BIG)
    assert ctx.send("short again").message.text == "ok"
    again = engine(store, SMALL, **settings)
    assert again.send("and now?").message.text == "ok"
    fitting(again.view().messages, SMALL)
    assert again.archive.get("big").id == "big", "the original is read back"


@pytest.mark.parametrize("window", [WINDOW, SMALL])
def test_a_session_written_under_a_large_window(store: str, window: int) -> None:
    large = engine(store, 100_000)
    large.send([user(BIG, id="big")])
    large.add(user(BIG + "once more", id="bigger"))
    small = engine(store, window)
    assert small.send("short").message.text == "ok"
    fitting(small.view().messages, window)


def test_a_list_that_still_holds_what_was_refused(store: str) -> None:
    ctx = engine(store)
    with pytest.raises(MessageTooLargeError):
        ctx.send([user(BIG, id="big")])
    assert ctx.messages() == ()
    assert ctx.send([user(BIG, id="big"), user("short", id="s")]).message.text == "ok"
    assert [m.id for m in ctx.messages()][:2] == ["big", "s"]
    assert ctx.archive.get("big").text == BIG


def model() -> FakeListChatModel:
    return FakeListChatModel(responses=["ok"])


def through_wrapper(store: str, window: int) -> Callable[[str], str]:
    told: list[BaseMessage] = []
    chat = with_context(model(), session_id="s", store=store, context_window=window)

    def ask(text: str) -> str:
        told.append(HumanMessage(text))
        told.append(answer := chat.invoke(told))
        return answer.text

    return ask


def through_middleware(store: str, window: int) -> Callable[[str], str]:
    saver = InMemorySaver()
    agent = create_agent(
        model(), [], middleware=[ContextMiddleware(store=store, context_window=window)], checkpointer=saver
    )
    return lambda text: agent.invoke({"messages": [HumanMessage(text)]}, THREAD)["messages"][-1].text


def through_graph(store: str, window: int) -> Callable[[str], str]:
    fit = ContextNode(store=store, context_window=window)

    def answer(state: MessagesState, config: RunnableConfig) -> Any:
        shown: Any = fit.invoke(state["messages"], config)
        fitting(shown, window)
        return {"messages": [AIMessage("ok")]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    app = graph.compile(checkpointer=InMemorySaver())
    return lambda text: app.invoke({"messages": [HumanMessage(text)]}, THREAD)["messages"][-1].text


def through_node_and_list(store: str, window: int) -> Callable[[str], str]:
    """A list without ids, handed over whole each time."""
    told: list[BaseMessage] = []
    fit = ContextNode(store=store, context_window=window)

    def ask(text: str) -> str:
        told.append(HumanMessage(text))
        shown: Any = fit.invoke(list(told), THREAD)
        fitting(shown, window)
        told.append(AIMessage("ok"))
        return "ok"

    return ask


def through_history(store: str, window: int) -> Callable[[str], str]:
    history = CtxChatMessageHistory("s", store=store, context_window=window)

    def ask(text: str) -> str:
        history.add_messages([HumanMessage(text)])
        fitting(history.messages, window)
        history.add_messages([AIMessage("ok")])
        return "ok"

    return ask


def through_memory(store: str, window: int) -> Callable[[str], str]:
    memory = CtxMemory.from_defaults("s", store=store, context_window=window)

    def ask(text: str) -> str:
        memory.put(ChatMessage(role="user", content=text))
        shown = memory.get()
        assert COUNTER.count("".join(m.content or "" for m in shown)) <= 0.8 * window
        memory.put(ChatMessage(role="assistant", content="ok"))
        return "ok"

    return ask


FACES = [
    through_wrapper,
    through_middleware,
    through_graph,
    through_node_and_list,
    through_history,
    through_memory,
]


@pytest.mark.parametrize("face", FACES)
def test_every_face_goes_on_after_a_refused_question(
    store: str, face: Callable[[str, int], Callable[[str], str]]
) -> None:
    """Step 7, item A5: the caller's list may keep what was refused; two restarts, one in a smaller window."""
    ask = face(store, WINDOW)
    assert ask("hello") == "ok"
    with pytest.raises(MessageTooLargeError):
        ask(BIG)
    for number in range(3):
        assert ask(f"short {number}") == "ok"
    for window in (WINDOW, SMALL):
        again = face(store, window)
        assert again("after a restart") == "ok"
