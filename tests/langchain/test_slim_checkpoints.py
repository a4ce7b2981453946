"""Checkpoints that refer to large contents in the store: every reader of the state gets whole messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Overwrite, Send

from ctxfold import ConfigError, MemoryStore, MessageNotFoundError, SqlStore
from ctxfold.history.records import SessionKey
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware, SlimCheckpointer
from tests.langchain.running import T
from tests.support.postgres_schema import fresh_schema

ROUNDS = 3


def text_of(page: int) -> str:
    return f"page {page} begins. " + f"Line of page {page} with a – dash. " * 200


def joined(state: list[Any], writes: list[list[Any]]) -> list[Any]:
    return [*state, *(m for write in writes for m in write)]


class State(TypedDict):
    messages: Annotated[list[Any], DeltaChannel(joined, snapshot_frequency=3)]


@tool
def read_page(page: int) -> str:
    """Reads a page."""
    return text_of(page)


@tool
def read_parts(page: int) -> list[dict[str, Any]]:
    """Reads a page in parts."""
    return [{"type": "text", "text": text_of(page)}, {"type": "text", "text": "the end"}]


def script(body: Any) -> Scripted:
    """Reads three pages, in text and in parts, then answers."""
    done = sum(m["role"] == "tool" for m in body["messages"])
    asked = sum(m["role"] == "user" for m in body["messages"])
    if done < ROUNDS * asked:
        name = "read_parts" if done % 3 == 2 else "read_page"
        return Scripted(tool_calls=(ScriptedCall(name, f'{{"page": {done}}}'),))
    return Scripted(f"Read {done} pages.")


class Agent:
    """An agent over a checkpointer, slim or not."""

    def __init__(
        self, server: ModelServer, store: Any, saver: Any, *, slim: bool = True, owner_key: Any = None, **settings: Any
    ) -> None:
        self.chat = ChatCtx(model="m", base_url=server.base_url, api_key="x", max_retries=0)  # type: ignore[arg-type]
        self.middleware = ContextMiddleware(
            context_window=64_000, store=store, history_tools=False, owner_key=owner_key
        )
        self.saver = self.middleware.slim_checkpointer(saver, **settings) if slim else saver
        self.app: Any = create_agent(
            self.chat, [read_page, read_parts], middleware=[self.middleware], checkpointer=self.saver
        )

    def ask(self, text: str, config: Any = T) -> list[Any]:
        return list(self.app.invoke({"messages": [HumanMessage(text)]}, config)["messages"])

    def close(self) -> None:
        self.middleware.close()
        self.chat.close()


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(model="m", script=script, strict="openai") as running:
        yield running


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        yield InMemorySaver()
    elif request.param == "sqlite":
        with SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as found:
            yield found
    else:
        with (
            fresh_schema(request.getfixturevalue("postgres_url")) as url,
            PostgresSaver.from_conn_string(url.replace("+psycopg", "")) as found,
        ):
            found.setup()
            yield found


def contents(messages: Any) -> list[Any]:
    return [m.content for m in messages]


def test_every_reader_gets_whole_messages(server: ModelServer, saver: Any, store_url: str) -> None:
    """The run, the state, its history and a new process's agent; the checkpointer alone has references."""
    first = Agent(server, store_url, saver)
    told = first.ask("Read.")
    outputs = [m for m in told if isinstance(m, ToolMessage)]
    assert contents(outputs) == [text_of(0), text_of(1), read_parts.invoke({"page": 2})]
    first.close()
    again = Agent(server, store_url, saver)
    assert again.app.get_state(T).values["messages"] == told
    history = [s.values["messages"] for s in again.app.get_state_history(T)]
    assert all(messages == told[: len(messages)] for messages in history)
    assert "Line of page" not in str([*saver.list(T)])
    assert str([*saver.list(T)]).count("read this state through ContextMiddleware.slim_checkpointer") > ROUNDS
    answered = again.ask("Read on.")
    assert answered[: len(told)] == told
    assert "Line of page 1 with" in str(server.requests[-1].body)  # the model is asked with the texts
    again.close()


def test_time_travel_gives_equal_messages(server: ModelServer, saver: Any, store_url: str) -> None:
    slim, plain = Agent(server, store_url, saver), Agent(server, None, InMemorySaver(), slim=False)
    for agent in (slim, plain):
        agent.ask("Read.")
        agent.ask("Read on.")
    early: list[Any] = []
    for agent in (slim, plain):
        states = [s for s in agent.app.get_state_history(T) if s.next == ("model",)]
        early.append([contents(s.values["messages"]) for s in states])
        early.append(contents(agent.app.invoke(None, states[-2].config)["messages"]))
        early.append(contents(agent.app.get_state(T).values["messages"]))
        agent.close()
    assert early[:3] == early[3:]


async def test_async_savers(server: ModelServer, tmp_path: Path, store_url: str) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as saver:
        agent = Agent(server, store_url, saver)
        states = [agent.app.ainvoke({"messages": [HumanMessage("Read.")]}, thread(n)) for n in "ab"]
        told = (await asyncio.gather(*states))[0]["messages"]
        assert (await agent.app.aget_state(thread("a"))).values["messages"] == told
        history = [s.values["messages"] async for s in agent.app.aget_state_history(thread("a"))]
        assert all(messages == told[: len(messages)] for messages in history)
        raw = [found async for found in saver.alist(thread("a"))]
        assert "Line of page" not in str(raw)
        await agent.saver.adelete_thread("a")
        assert (await agent.app.aget_state(thread("a"))).values == {}
        with SqlStore(store_url) as store:
            assert {"a", "b", "b|:checkpoints"} <= {*store.sessions("default")}
            assert "a|:checkpoints" not in store.sessions("default")
        await agent.middleware.aclose()
        await agent.chat.aclose()
        agent.chat.close()


def thread(name: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": name, **more}}


@pytest.mark.parametrize("how", ["id", "age"])
def test_an_erased_message_reads_as_a_note(server: ModelServer, saver: Any, store_url: str, how: str) -> None:
    agent = Agent(server, store_url, saver)
    told = agent.ask("Read.")
    output = next(m for m in told if isinstance(m, ToolMessage))
    context = agent.middleware.context("t")
    if how == "id":
        context.erase(output.id)
    else:
        context.erase_older_than(timedelta(0))
    messages = agent.app.get_state(T).values["messages"]
    assert [m.content for m in messages if isinstance(m, ToolMessage)].count(
        "[the content of this message was erased]"
    ) == (1 if how == "id" else ROUNDS)
    assert "Line of page 0" not in store_text(store_url)
    answer = agent.ask("Read on.")  # the agent goes on, and erased text does not come back
    assert answer[-1].text
    if how == "id":  # with everything erased, the agent reads the page anew
        assert "Line of page 0" not in store_text(store_url)
    agent.close()


def test_a_writer_that_still_has_the_text_does_not_bring_it_back(
    server: ModelServer, tmp_path: Path, store_url: str
) -> None:
    """Another worker read the state before the erasure and writes a checkpoint after it."""
    with SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as saver:
        agent = Agent(server, store_url, saver)
        outputs = [m for m in agent.ask("Read.") if isinstance(m, ToolMessage)]
        whole = agent.saver.get_tuple(T)
        assert whole is not None
        agent.middleware.context("t").erase(outputs[0].id)
        other = agent.middleware.slim_checkpointer(saver)
        other.put(whole.config, whole.checkpoint, whole.metadata, {})
        read = agent.app.get_state(T).values["messages"]
        assert [m.content for m in read if isinstance(m, ToolMessage)] == [
            "[the content of this message was erased]",
            *contents(outputs[1:]),
        ]
        assert "Line of page 0" not in store_text(store_url)
        agent.close()


def store_text(url: str) -> str:
    with SqlStore(url) as store:
        names = store.sessions("default")
        return str([store.read(SessionKey("default", name)) for name in names])


def test_an_erased_thread_is_an_error_or_a_note(server: ModelServer, saver: Any, store_url: str) -> None:
    agent = Agent(server, store_url, saver)
    agent.ask("Read.")
    assert set(agent.middleware.erase("t")) == {"t", "t|:checkpoints"}
    with pytest.raises(
        MessageNotFoundError, match=r"'t\|:checkpoints' of owner 'default': it was erased with its thread"
    ):
        agent.app.get_state(T)
    agent.close()
    lenient = Agent(server, store_url, saver, missing="placeholder")
    messages = lenient.app.get_state(T).values["messages"]
    assert "[the content of this message is not in the store any more]" in contents(messages)
    lenient.close()


def test_erasing_the_session_or_the_owner_takes_the_contents(server: ModelServer, store_url: str) -> None:
    agent = Agent(server, store_url, InMemorySaver())
    for name in "ab":
        agent.ask("Read.", thread(name))
    agent.middleware.context("a").erase_session()
    assert "a|:checkpoints" not in session_names(store_url)
    agent.middleware.context("a").erase_owner()
    assert session_names(store_url) == ()
    agent.close()


def session_names(url: str, owner: str = "default") -> tuple[str, ...]:
    with SqlStore(url) as store:
        return store.sessions(owner)


@pytest.mark.parametrize("how", ["thread", "session", "owner"])
def test_a_thread_that_another_process_deleted_begins_anew(
    server: ModelServer, saver: Any, store_url: str, how: str
) -> None:
    """A client sends the same message again, to a process that stored its content before the deletion."""
    first, other = Agent(server, store_url, saver), Agent(server, store_url, saver)
    question = HumanMessage(text_of(7), id="q")
    first.app.invoke({"messages": [question]}, T)
    if how == "thread":
        other.saver.delete_thread("t")
    else:
        saver.delete_thread("t")
        context = other.middleware.context("t")
        context.erase_session() if how == "session" else context.erase_owner()
    again = first.app.invoke({"messages": [question]}, T)["messages"]
    assert contents(again)[0] == text_of(7)
    for agent in (first, other):
        assert agent.app.get_state(T).values["messages"] == again
        agent.close()


def test_owners_do_not_read_each_other(server: ModelServer, saver: Any, store_url: str) -> None:
    """The owner of a run counts, also for a reader that names none; a reference that a user makes up reaches nobody else's."""
    agent = Agent(server, store_url, saver, owner_key="owner")
    told = agent.ask("Read.", thread("t", owner="ann"))
    assert "t|:checkpoints" in session_names(store_url, "ann")
    assert agent.app.get_state(T).values["messages"] == told
    assert next(iter(agent.app.get_state_history(T))).values["messages"] == told
    with SqlStore(store_url) as store:
        reference = store.read(SessionKey("ann", "t|:checkpoints"))[0].id
    forged = HumanMessage("Hello", additional_kwargs={"ctxfold_content": reference})
    with pytest.raises(MessageNotFoundError, match=r"'u\|:checkpoints' of owner 'bob'"):
        agent.app.update_state(thread("u", owner="bob"), {"messages": [forged]})
        agent.app.get_state(thread("u", owner="bob"))
    agent.saver.delete_thread("t")
    assert "t|:checkpoints" not in session_names(store_url, "ann")
    agent.close()


def test_what_stands_in_other_channels(saver: Any) -> None:
    """A graph without an agent: large questions and replies, lists of blocks, Overwrite."""

    def node(state: MessagesState) -> Any:
        return {"messages": Overwrite([*state["messages"], AIMessage("reply " * 900, id="r")])}

    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    store = MemoryStore()
    app = graph.compile(checkpointer=SlimCheckpointer(saver, store=store, min_chars=100))
    image = [{"type": "image", "base64": "QUJD" * 500, "mime_type": "image/png"}]
    given = [HumanMessage("question " * 99, id="q"), HumanMessage(image, id="i"), HumanMessage("short", id="s")]
    told = app.invoke({"messages": given}, T)["messages"]
    assert app.get_state(T).values["messages"] == told
    assert contents(told) == ["question " * 99, image, "short", "reply " * 900]
    raw = str([*saver.list(T)])
    assert ("question question" in raw, "QUJDQUJD" in raw, "reply reply" in raw, "short" in raw) == (
        False,
        False,
        False,
        True,
    )


def test_a_send_keeps_its_timeout(saver: Any) -> None:
    """Tasks that wait in a checkpoint are sent again from there."""
    sends = [Send("work", {"messages": [HumanMessage(text_of(n), id=f"q{n}")]}, timeout=60.0 + n) for n in range(2)]
    graph = StateGraph(MessagesState)
    graph.add_node("work", lambda state: {"messages": AIMessage("done")})
    graph.add_conditional_edges(START, lambda _: sends, ["work"])
    app = graph.compile(checkpointer=SlimCheckpointer(saver, store=MemoryStore()), interrupt_before=["work"])
    app.invoke({"messages": []}, T)
    found = app.checkpointer.get_tuple(T)
    waiting = [*found.checkpoint["channel_values"].get("__pregel_tasks", ()), *(w[2] for w in found.pending_writes)]
    assert [one for one in waiting if isinstance(one, Send)] == sends


def test_delta_channels(saver: Any) -> None:
    """LangGraph's delta channels store each write once; their writes and snapshots refer to contents too."""

    def node(state: State) -> Any:
        return {"messages": [AIMessage(text_of(len(state["messages"])), id=f"a{len(state['messages'])}")]}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    app = graph.compile(checkpointer=SlimCheckpointer(saver, store=MemoryStore()))
    for number in range(5):
        told = app.invoke({"messages": [HumanMessage(f"Q{number}", id=f"q{number}")]}, T)["messages"]
    assert len(told) == 10
    assert app.get_state(T).values["messages"] == told
    assert "Line of page" not in str([*saver.list(T)])
    histories = [s.values.get("messages", []) for s in app.get_state_history(T)]
    assert all(messages == told[: len(messages)] for messages in histories)


def test_writes_without_ids(saver: Any) -> None:
    """A tool's output is named by its call, as LangGraph gives it an id later; a question without an id stays whole."""
    slim = SlimCheckpointer(saver, store=MemoryStore(), min_chars=100)
    graph = StateGraph(MessagesState)
    graph.add_node("node", lambda _: {})
    graph.add_edge(START, "node")
    app = graph.compile(checkpointer=slim)
    app.invoke({"messages": [HumanMessage("short", id="s")]}, T)
    config = app.get_state(T).config
    writes = [ToolMessage("output " * 99, tool_call_id="c"), HumanMessage("question " * 99)]
    slim.put_writes(config, [("messages", writes)], "task")
    raw = str(saver.get_tuple(config))
    assert ("output output" in raw, "question question" in raw) == (False, True)
    whole = slim.get_tuple(config)
    assert whole is not None
    assert contents(next(v for _, channel, v in whole.pending_writes or () if channel == "messages")) == contents(
        writes
    )


def test_plain_checkpoints_stay_readable(server: ModelServer, saver: Any, store_url: str) -> None:
    """The option may be turned on in the middle of a thread, and what is new is slim."""
    before = Agent(server, store_url, saver, slim=False)
    told = before.ask("Read.")
    before.close()
    after = Agent(server, store_url, saver)
    assert after.app.get_state(T).values["messages"] == told
    answered = after.ask("Read on.")
    assert after.app.get_state(T).values["messages"] == answered
    newest = saver.get_tuple(T)
    assert "Line of page" not in str(newest)
    after.close()


def test_searches_leave_the_contents_out(server: ModelServer, store_url: str) -> None:
    agent = Agent(server, store_url, InMemorySaver())
    agent.ask("Read.")
    hits = agent.middleware.context("t").search_owner("begins page", limit=50)
    assert {hit.session for hit in hits} == {"t"}
    agent.close()


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="missing is 'skip': use one of error, placeholder"):
        SlimCheckpointer(InMemorySaver(), store=MemoryStore(), missing="skip")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="min_chars is 0: give the characters from which on"):
        SlimCheckpointer(InMemorySaver(), store=MemoryStore(), min_chars=0)


@pytest.mark.parametrize(
    "content",
    [
        "\ud800" * 2_000,
        [{"type": "text", "text": "\ud800" * 2_000}],
        [{"type": "text", "text": "x" * 2_000, "pages": {1: 2}}],
    ],
    ids=["a lone surrogate", "one in a block", "keys that are numbers"],
)
def test_a_content_comes_back_as_it_was(content: Any) -> None:
    """JSON makes texts of keys that are numbers, so that such a content stays in the checkpoint."""
    with MemoryStore() as store:
        app = echo(SlimCheckpointer(InMemorySaver(), store=store))
        app.invoke({"messages": [HumanMessage(content, id="m")]}, T)
        assert contents(app.get_state(T).values["messages"]) == [content]


def echo(saver: Any) -> Any:
    """Returns a graph that keeps the messages it is given."""
    graph = StateGraph(MessagesState)
    graph.add_node("keep", lambda _: {"messages": []})
    graph.add_edge(START, "keep")
    return graph.compile(checkpointer=saver)
