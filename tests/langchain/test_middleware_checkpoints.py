"""`ContextMiddleware` beside a checkpointer: the session goes wherever the checkpoints go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from ctxfold import MemoryStore
from ctxfold.testing import ModelServer
from tests.langchain.running import Running, T, play


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


@pytest.mark.parametrize("edited", [True, False])
def test_a_secret_that_a_summary_replaces_is_sent_until_it_is_erased(saver: Any, *, edited: bool) -> None:
    """To remove or change it in the agent's state is not enough: a trimmed message may still be recalled."""
    with ModelServer(model="m", script=play, strict="openai", context_window=3_000) as server:
        on = Running(server, saver, window=3_000)
        on.ask("The passphrase is zebra-9911.", id="secret")
        for number in range(20):
            on.ask(f"Q{number:03}")
        on.agent.update_state(
            T, {"messages": [HumanMessage("[gone]", id="secret") if edited else RemoveMessage("secret")]}
        )
        on.ask("What is the passphrase?")
        assert "zebra-9911" in str(on.asked())
        on.middleware.context("t").erasure.erase("secret")
        for question in ("What is the passphrase?", "What is the passphrase now?"):
            on.ask(question)
            assert "zebra" not in str(on.asked())
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
