"""`ContextMiddleware` beside a checkpointer: the session goes wherever the checkpoints go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command

from ctxfold import MemoryStore
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware

T: Any = {"configurable": {"thread_id": "t"}}


def play(body: Any) -> Scripted:
    """Names the newest question and counts the answers before; sums up in one line."""
    if body["messages"][0]["content"] != "AGENT":
        return Scripted("They asked one thing after the other.")
    asked = [str(m["content"]) for m in body["messages"] if m["role"] == "user"]
    return Scripted(f"Answer to {asked[-1][:5]}. " + "It is a long story. " * 20)


@pytest.fixture(params=["memory", "sqlite"])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        yield InMemorySaver()
        return
    with SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as found:
        yield found


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


@pytest.fixture
def running(saver: Any) -> Iterator[Running]:
    with ModelServer(model="m", script=play, strict="openai") as server:
        found = Running(server, saver)
        yield found
        found.close()


def test_time_travel_to_before_a_compaction(saver: Any, store_url: str) -> None:
    """What the model is asked from an old checkpoint on is what it was asked then, to the byte; both branches go on."""
    with ModelServer(model="m", script=play, strict="openai", context_window=2_000) as server:
        on = Running(server, saver, window=2_000, store=store_url)
        asked: dict[int, Any] = {}
        for number in range(24):
            on.ask(f"Q{number:03}")
            asked[number] = on.asked()
        compactions = on.middleware.context("t").usage().compactions
        assert compactions >= 2
        for number in (5, 12, 20):
            early = on.before(f"Q{number:03}")
            on.agent.invoke(None, early)
            assert on.asked() == asked[number]
            on.ask("Q900")  # the branch is the thread's newest state now
            assert "Q900" in on.questions()
            assert f"Q{number + 1:03}" not in str(on.asked())
            state = on.agent.get_state(T)
            assert on.middleware.context(state).session != "t"
            assert [m.id for m in on.middleware.context(state).messages() if m.role != "system"] == [
                m.id for m in state.values["messages"]
            ]
        first = on.middleware.context("t")
        assert first.usage().compactions == compactions
        assert first.usage().turns == 24
        on.close()


def test_an_old_branch_goes_on_where_it_was(running: Running) -> None:
    for number in range(4):
        running.ask(f"Q{number:03}")
    newest = running.agent.get_state(T).config
    running.ask("Q900", running.before("Q001"))
    assert running.questions() == ["Q000", "Q001", "Q900"]
    running.ask("Q004", newest)
    assert running.questions() == ["Q000", "Q001", "Q002", "Q003", "Q004"]
    assert running.middleware.context("t").usage().turns == 5


@pytest.mark.parametrize("question", ["Q000", "Q001"])
def test_the_same_question_answered_again(running: Running, question: str) -> None:
    """A replay has the first answer no more; going on from that answer has the second one no more."""
    running.ask("Q000")
    running.ask("Q001")
    first = running.agent.get_state(T)
    state = running.agent.invoke(None, running.before(question))
    running.ask("Q900")
    assert running.questions()[-2:] == [question, "Q900"]
    assert state["messages"][-1].id in str(running.middleware.context(running.agent.get_state(T)).messages())
    running.ask("Q002", first.config)
    assert running.questions() == ["Q000", "Q001", "Q002"]
    newest = running.agent.get_state(T)
    live = running.middleware.context(newest).view().live
    assert [e.id for e in live] == [m.id for m in newest.values["messages"]]
    assert [e.id for e in live][:4] == [m.id for m in first.values["messages"]]


def test_a_note_is_no_branch(running: Running) -> None:
    running.ask("Q000")
    running.middleware.context("t").add("A note.")
    running.ask("Q001")
    running.ask("Q002")
    assert running.questions() == ["Q000", "A note.", "Q001", "Q002"]
    assert running.middleware.context(running.agent.get_state(T)).session == "t"


def test_an_edited_message(running: Running) -> None:
    for number in range(3):
        running.ask(f"Q{number:03}", id=f"q{number}")
    running.agent.update_state(T, {"messages": [HumanMessage("Q777", id="q1")]})
    running.ask("Q003")
    assert running.questions() == ["Q000", "Q777", "Q002", "Q003"]
    running.ask("Q004")
    assert running.questions() == ["Q000", "Q777", "Q002", "Q003", "Q004"]
    assert running.middleware.context("t").usage().turns == 5


def test_a_removed_message(running: Running) -> None:
    for number in range(3):
        running.ask(f"Q{number:03}", id=f"q{number}")
    answer = running.agent.get_state(T).values["messages"][3]
    running.agent.update_state(T, {"messages": [RemoveMessage("q1"), RemoveMessage(answer.id)]})
    running.ask("Q003")
    assert running.questions() == ["Q000", "Q002", "Q003"]
    assert "Answer to Q001" not in str(running.asked())
    running.agent.update_state(T, {"messages": [HumanMessage("Q001", id="q1")]})  # it may come again
    running.ask("Q004")
    assert running.questions() == ["Q000", "Q002", "Q003", "Q001", "Q004"]


def test_messages_added_by_hand(running: Running) -> None:
    running.ask("Q000")
    running.agent.update_state(T, {"messages": [HumanMessage("By the way."), AIMessage("I see.")]})
    running.ask("Q001")
    assert running.questions() == ["Q000", "By the way.", "Q001"]
    assert [m.id for m in running.middleware.context("t").view().live] == [
        m.id for m in running.agent.get_state(T).values["messages"]
    ]


def test_a_list_that_was_rewritten(running: Running) -> None:
    """Somebody's own summary in place of what it stands for: the session begins anew with it, the one before stays."""
    for number in range(4):
        running.ask(f"Q{number:03}", id=f"q{number}")
    kept = running.agent.get_state(T).values["messages"][-2:]
    told = HumanMessage("Summary: three questions.")
    running.agent.update_state(T, {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), told, *kept]})
    running.ask("Q004")
    assert running.questions() == ["Summary: three questions.", "Q003", "Q004"]
    running.ask("Q005")
    assert running.questions() == ["Summary: three questions.", "Q003", "Q004", "Q005"]
    assert running.middleware.context("t").usage().turns == 4


def test_a_list_that_was_cleared(running: Running) -> None:
    for number in range(3):
        running.ask(f"Q{number:03}")
    running.agent.update_state(T, {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES)]})
    running.ask("Q900")
    assert running.questions() == ["Q900"]


def test_a_trimmed_list(saver: Any) -> None:
    """Old messages that a summary stands for may leave the agent's list: the session goes on."""
    with ModelServer(model="m", script=play, strict="openai", context_window=3_000) as server:
        on = Running(server, saver, window=3_000)
        for number in range(20):
            on.ask(f"Q{number:03}")
        assert on.middleware.context("t").usage().compactions
        old = on.agent.get_state(T).values["messages"][:10]
        on.agent.update_state(T, {"messages": [RemoveMessage(m.id) for m in old]})
        on.ask("Q020")
        assert "They asked one thing after the other." in str(on.asked())
        assert on.middleware.context(on.agent.get_state(T)).session == "t"
        assert on.middleware.context("t").usage().turns == 21
        on.close()


@pytest.mark.parametrize("private", [True, False])
def test_a_copied_thread(running: Running, private: bool) -> None:
    """Each of the two goes on by itself, under its own name; with the private state, as the very same session."""
    for number in range(3):
        running.ask(f"Q{number:03}")
    values = running.agent.get_state(T).values
    other: Any = {"configurable": {"thread_id": "other"}}
    wanted = values if private else {"messages": values["messages"]}
    running.agent.update_state(other, wanted)
    running.ask("Q100", other)
    assert running.questions() == ["Q000", "Q001", "Q002", "Q100"]
    running.ask("Q003")
    assert running.questions() == ["Q000", "Q001", "Q002", "Q003"]
    assert running.middleware.context("t").usage().turns == 4
    assert running.middleware.context("other").usage().turns == 4


def test_a_thread_copied_in_the_database(tmp_path: Path, store_url: str) -> None:
    """Row by row, private state and history of checkpoints included: a branch of the copy is one of the copied session."""
    with (
        ModelServer(model="m", script=play, strict="openai", context_window=2_000) as server,
        SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as saver,
    ):
        on = Running(server, saver, window=2_000, store=store_url, history_tools=False)
        for number in range(20):
            on.ask(f"Q{number:03}")
            if number == 12:
                then = on.asked()
        early = on.before("Q012")
        rest = "checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata"
        saver.conn.execute(f"INSERT INTO checkpoints (thread_id, {rest}) SELECT 'other', {rest} FROM checkpoints")
        on.ask("Q020")
        other: Any = {"configurable": {**early["configurable"], "thread_id": "other"}}
        on.agent.invoke(None, other)
        assert on.asked() == then
        assert on.middleware.context(on.agent.get_state({"configurable": {"thread_id": "other"}})).session == "other"
        on.ask("Q021")
        assert "Q020" in on.questions()
        assert on.middleware.context("t").usage().turns == 22
        on.close()


async def test_two_runs_of_one_thread_at_once(store_url: str) -> None:
    """Each is answered; what is asked next goes on from the list that the checkpointer kept."""
    with ModelServer(model="m", script=play, strict="openai") as server:
        on = Running(server, InMemorySaver(), store=store_url)
        await on.agent.ainvoke({"messages": [HumanMessage("Q000")]}, T)
        runs = [on.agent.ainvoke({"messages": [HumanMessage(f"Q{n:03}")]}, T) for n in (1, 2)]
        answers = [state["messages"][-1].text for state in await asyncio.gather(*runs)]
        assert [a[:14] for a in answers] == ["Answer to Q001", "Answer to Q002"]
        await on.agent.ainvoke({"messages": [HumanMessage("Q003")]}, T)
        kept = [m.text for m in on.agent.get_state(T).values["messages"] if m.type == "human"]
        assert [q for q in on.questions() if q in kept] == kept
        await on.middleware.aclose()
        await on.chat.aclose()
        on.chat.close()


def test_a_new_process(saver: Any, store_url: str) -> None:
    """With the store it goes on; without, the session is made anew from the agent's messages."""
    with ModelServer(model="m", script=play, strict="openai") as server:
        for store in (store_url, None):
            thread: Any = {"configurable": {"thread_id": f"{store}"[:6]}}
            for number in range(4):
                on = Running(server, saver, store=store)
                on.ask(f"Q{number:03}", thread)
                assert on.questions() == [f"Q{n:03}" for n in range(number + 1)]
                assert on.middleware.context(on.agent.get_state(thread)).usage().turns == number + 1
                on.close()


@tool
def send(text: str) -> str:
    """Sends a mail."""
    return f"Sent: {text}"


def mailing(body: Any) -> Scripted:
    last = body["messages"][-1]
    if last["role"] == "tool":
        return Scripted(f"Done. {last['content']}")
    return Scripted(tool_calls=(ScriptedCall("send", '{"text": "draft"}'),))


def decided(decision: Any) -> Any:
    return Command(resume={"decisions": [decision]})


EDITED = {"type": "edit", "edited_action": {"name": "send", "args": {"text": "better"}}}


@pytest.mark.parametrize("decision", [{"type": "approve"}, EDITED, {"type": "reject", "message": "No."}])
@pytest.mark.parametrize("pause", ["none", "new process", "long"])
def test_a_person_decides(
    saver: Any, store_url: str, decision: Any, pause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiting call is no orphan, also in a new process and long after."""
    with ModelServer(model="m", script=mailing, strict="openai") as server:
        on = Running(server, saver, [send], store=store_url)
        hitl = HumanInTheLoopMiddleware(interrupt_on={"send": True})
        on.agent = on.with_(on.middleware, hitl)
        on.agent.invoke({"messages": [HumanMessage("Write to Ann.")]}, T)
        if pause != "none":
            on.close()
            on = Running(server, saver, [send], store=store_url)
            on.agent = on.with_(on.middleware, hitl)
        if pause == "long":
            monkeypatch.setattr("ctxfold.journal.TURN_TIMEOUT_S", -1.0)
        state = on.agent.invoke(decided(decision), T)
        monkeypatch.undo()
        words = {"approve": "Sent: draft", "edit": "Sent: better", "reject": "No."}[decision["type"]]
        sent = server.requests[-1].body["messages"]
        assert [m["role"] for m in sent] == ["system", "user", "assistant", "tool"]
        assert words in sent[3]["content"]
        assert state["messages"][-1].text.startswith("Done.")
        live = on.middleware.context("t").view().live
        assert [e.id for e in live] == [m.id for m in state["messages"]]
        assert on.middleware.context("t").usage().turns == 1
        on.close()


def test_a_call_edited_before_it_runs(saver: Any) -> None:
    """The model sees the call as it was run, and the one before is nowhere in its window."""
    with ModelServer(model="m", script=mailing, strict="openai") as server:
        on = Running(server, saver, [send])
        on.agent = create_agent(
            on.chat,
            [send],
            system_prompt="AGENT",
            middleware=[on.middleware],
            checkpointer=saver,
            interrupt_before=["tools"],
        )
        call = on.agent.invoke({"messages": [HumanMessage("Write to Ann.")]}, T)["messages"][-1]
        calls = [{**call.tool_calls[0], "args": {"text": "better"}}]
        on.agent.update_state(T, {"messages": [AIMessage("", id=call.id, tool_calls=calls)]}, as_node="model")
        state = on.agent.invoke(None, T)
        sent = server.requests[-1].body["messages"]
        assert [m["role"] for m in sent] == ["system", "user", "assistant", "tool"]
        assert sent[2]["tool_calls"][0]["function"]["arguments"] == '{"text": "better"}'
        assert sent[3]["content"] == "Sent: better"
        context = on.middleware.context("t")
        assert [e.id for e in context.view().live] == [m.id for m in state["messages"]]
        assert context.usage().reported.input_tokens == sum(
            m.usage_metadata["input_tokens"] for m in (call, state["messages"][-1])
        )
        on.close()


def test_a_tool_round_done_again(saver: Any) -> None:
    """Replayed from between call and result: the tool runs again, and the new branch has the new result."""
    runs: list[int] = []

    @tool("send")
    def counted(text: str) -> str:
        """Sends a mail."""
        runs.append(1)
        return f"Sent {len(runs)} times."

    with ModelServer(model="m", script=mailing, strict="openai") as server:
        on = Running(server, saver, [counted])
        assert on.ask("Write to Ann.") == "Done. Sent 1 times."
        between = next(s.config for s in on.agent.get_state_history(T) if s.next == ("tools",))
        state = on.agent.invoke(None, between)
        assert state["messages"][-1].text == "Done. Sent 2 times."
        branch = on.middleware.context(on.agent.get_state(T))
        assert [e.id for e in branch.view().live] == [m.id for m in state["messages"]]
        assert on.middleware.context("t").view().live[-1].message.text == "Done. Sent 1 times."
        on.close()


def test_a_run_that_failed_in_a_tool_is_taken_up(saver: Any) -> None:
    """Also after the answer was stored and the checkpoint was not: nothing is there twice."""
    failing = [True]

    @tool("send")
    def fragile(text: str) -> str:
        """Sends a mail."""
        if failing.pop():
            raise RuntimeError("the line is down")
        return "Sent."

    with ModelServer(model="m", script=mailing, strict="openai") as server:
        on = Running(server, saver, [fragile])
        with pytest.raises(RuntimeError, match="line is down"):
            on.ask("Write to Ann.")
        failing.append(False)
        state = on.agent.invoke(None, T)
        assert state["messages"][-1].text == "Done. Sent."
        assert [type(m) for m in state["messages"]] == [HumanMessage, AIMessage, ToolMessage, AIMessage]
        live = on.middleware.context(on.agent.get_state(T)).view().live
        assert [e.id for e in live] == [m.id for m in state["messages"]]
        on.close()


async def test_on_an_event_loop(tmp_path: Path, store_url: str) -> None:
    """Branch, edit and removal, asynchronous throughout."""
    with ModelServer(model="m", script=play, strict="openai") as server:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as saver:
            on = Running(server, saver, store=store_url)

            async def ask(text: str, config: Any = T) -> None:
                await on.agent.ainvoke({"messages": [HumanMessage(text, id=text)]}, config)

            for number in range(3):
                await ask(f"Q{number:03}")
            early = [s.config async for s in on.agent.aget_state_history(T) if s.next == ("model",)][1]
            await on.agent.aupdate_state(T, {"messages": [RemoveMessage("Q000"), HumanMessage("Q777", id="Q001")]})
            await ask("Q003")
            assert on.questions() == ["Q777", "Q002", "Q003"]
            await on.agent.ainvoke(None, early)
            assert on.questions() == ["Q000", "Q001"]
            await on.middleware.aclose()
            await on.chat.aclose()
            on.chat.close()


def test_an_agent_as_a_node_of_a_graph(saver: Any) -> None:
    """A sub-graph of its own memory keeps one session for all runs of its thread, apart from its caller's."""
    with ModelServer(model="m", script=play, strict="openai") as server:
        store = MemoryStore()
        on = Running(server, saver, store=store)
        inner = create_agent(
            on.chat, [], system_prompt="AGENT", middleware=[on.middleware], checkpointer=True, name="inner"
        )
        graph: Any = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner")
        app = graph.compile(checkpointer=saver)
        for number in range(3):
            app.invoke({"messages": [HumanMessage(f"Q{number:03}")]}, T)
        assert on.questions() == ["Q000", "Q001", "Q002"]
        assert store.sessions("default") == ("t|inner",)
        on.close()
