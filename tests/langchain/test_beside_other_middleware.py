"""The model gets the agent's list as it is: after earlier checkpoints, edits, unfinished rounds and made-up answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    ModelRetryMiddleware,
    ToolCallLimitMiddleware,
    wrap_model_call,
)
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, convert_to_openai_messages
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from ctxfold import AgentContext
from ctxfold.testing import ErrorReply, ModelServer, Scripted, ScriptedCall
from tests.langchain.faces import Agents
from tests.langchain.running import Running, T, send
from tests.support.summaries import asks_on_live_prefix, asks_with_transcript

HOW = pytest.mark.parametrize("how", ["invoke", "ainvoke"])
DOWN = ErrorReply(500, {"error": {"message": "down", "type": "server_error"}})


@tool
def look(key: int) -> str:
    """Looks it up."""
    return f"Entry {key}."


@tool(return_direct=True)
def show(key: int) -> str:
    """Shows it."""
    return f"Page {key}."


@wrap_model_call
def only_first(request: Any, handler: Any) -> Any:
    """Puts a system prompt in front of the first question alone."""
    return handler(request.override(system_message=SystemMessage("PROMPT") if len(request.messages) == 1 else None))


class Desk:
    """Calls the tools that a question names, and answers anything else; `down` says in front of what it fails."""

    def __init__(self) -> None:
        self.down = ""

    def __call__(self, body: Any) -> Any:
        last = body["messages"][-1]
        if self.down and self.down in str(last["content"]):
            return DOWN
        names = [n for n in ("look", "show", "send") if last["role"] == "user" and n in last["content"]]
        arguments = {"look": '{"key": 1}', "show": '{"key": 2}', "send": '{"text": "draft"}'}
        calls = [
            ScriptedCall(n, arguments[n])
            for n in names
            for _ in range(2 if n == "look" and "twice" in last["content"] else 1)
        ]
        return Scripted("" if calls else f"Answer to {last['content']}", tool_calls=tuple(calls))


@pytest.fixture
def saver(how: str, tmp_path: Path) -> Iterator[Any]:
    if how == "ainvoke":
        yield InMemorySaver()
        return
    with SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as found:
        yield found


async def run(agent: Any, how: str, given: Any, config: Any = T) -> Any:
    return agent.invoke(given, config) if how == "invoke" else await agent.ainvoke(given, config)


def words(server: ModelServer) -> list[str]:
    """The newest request after the system prompt, without calls."""
    return [str(m["content"]) for m in server.requests[-1].body["messages"][1:] if m.get("content")]


def start_of(agent: Any, *, asked: bool) -> Any:
    """The thread's oldest checkpoint, or the one before its first model call."""
    states = [*agent.get_state_history(T)]
    return states[-2 if asked else -1].config


@HOW
@pytest.mark.parametrize("change", ["another question", "same question", "edited question"])
async def test_a_thread_that_is_begun_anew(saver: Any, store_url: str, how: str, change: str) -> None:
    """A run from before the first answer continues nothing: no message of the old path is sent, and the old path goes on."""
    with ModelServer(model="m", script=Desk(), strict="openai") as server:
        on = Running(server, saver, store=store_url)
        for text in ("One.", "Two."):
            on.ask(text)
        old = on.agent.get_state(T).config
        if change == "another question":
            question = "Other."
            await run(on.agent, how, {"messages": [HumanMessage(question)]}, start_of(on.agent, asked=False))
        elif change == "same question":
            question = "One."
            await run(on.agent, how, None, start_of(on.agent, asked=False))
        else:
            question, asked = "Edited.", start_of(on.agent, asked=True)
            first = on.agent.get_state(asked).values["messages"][0]
            await run(
                on.agent, how, None, on.agent.update_state(asked, {"messages": [HumanMessage(question, id=first.id)]})
            )
        assert words(server) == [question]
        on.close()
        on = Running(server, saver, store=store_url)
        await run(on.agent, how, {"messages": [HumanMessage("Next.")]})
        assert words(server) == [question, f"Answer to {question}", "Next."]
        await run(on.agent, how, {"messages": [HumanMessage("Three.")]}, old)
        assert words(server) == ["One.", "Answer to One.", "Two.", "Answer to Two.", "Three."]
        on.close()


async def test_a_thread_that_is_begun_anew_on_an_async_checkpointer(tmp_path: Path) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as saver:
        with ModelServer(model="m", script=Desk(), strict="openai") as server:
            on = Running(server, saver)
            await run(on.agent, "ainvoke", {"messages": [HumanMessage("One.")]})
            first = [s async for s in on.agent.aget_state_history(T)][-1].config
            await run(on.agent, "ainvoke", {"messages": [HumanMessage("Other.")]}, first)
            assert words(server) == ["Other."]
            on.close()


def test_a_new_checkpointer_goes_on_with_the_session(store_url: str) -> None:
    """Checkpoints in memory end with their process, the session does not."""
    with ModelServer(model="m", script=Desk(), strict="openai") as server:
        for text in ("One.", "Two."):
            on = Running(server, InMemorySaver(), store=store_url)
            on.ask(text)
            on.close()
        assert words(server) == ["One.", "Answer to One.", "Two."]


@HOW
async def test_a_question_in_place_of_a_decision(saver: Any, how: str) -> None:
    """One of the round's calls was refused by a limit, another waits for a person: the next question leaves the round out."""
    with ModelServer(model="m", script=Desk(), strict="openai") as server:
        on = Running(server, saver, [look, send])
        waits = HumanInTheLoopMiddleware(interrupt_on={"send": True})
        on.agent = on.with_(on.middleware, waits, ToolCallLimitMiddleware(tool_name="look", run_limit=1))
        on.ask("First.")
        state = await run(on.agent, how, {"messages": [HumanMessage("look twice and send.")]})
        assert state["messages"][-1].type == "tool"
        await run(on.agent, how, {"messages": [HumanMessage("Never mind.")]})
        assert words(server) == ["First.", "Answer to First.", "look twice and send.", "Never mind."]
        on.ask("Last.")
        assert words(server)[2:] == ["look twice and send.", "Never mind.", "Answer to Never mind.", "Last."]
        on.close()


@HOW
async def test_an_answer_that_retrying_middleware_makes_up(saver: Any, how: str) -> None:
    """The failed round stays in front of it, and its turn is over."""
    desk = Desk()
    with ModelServer(model="m", script=desk, strict="openai") as server:
        on = Running(server, saver, [look])
        on.agent = on.with_(ModelRetryMiddleware(max_retries=1, initial_delay=0, jitter=False), on.middleware)
        on.ask("First.")
        desk.down = "Entry"
        state = await run(on.agent, how, {"messages": [HumanMessage("look.")]})
        made_up = state["messages"][-1].text
        assert made_up.startswith("Model call failed")
        await run(on.agent, how, {"messages": [HumanMessage("Next.")]})
        assert words(server) == ["First.", "Answer to First.", "look.", "Entry 1.", made_up, "Next."]
        context = on.middleware.context("t")
        assert [e.id for e in context.view().live] == [m.id for m in on.agent.get_state(T).values["messages"]]
        on.close()


@HOW
async def test_an_exchange_that_is_added_behind_an_unfinished_round(saver: Any, how: str) -> None:
    with ModelServer(model="m", script=Desk(), strict="openai") as server:
        on = Running(server, saver, [send])
        on.agent = on.with_(on.middleware, HumanInTheLoopMiddleware(interrupt_on={"send": True}))
        await run(on.agent, how, {"messages": [HumanMessage("send.")]})
        on.agent.update_state(T, {"messages": [HumanMessage("Added."), AIMessage("Added answer.")]})
        await run(on.agent, how, {"messages": [HumanMessage("Next.")]})
        assert words(server) == ["send.", "Added.", "Added answer.", "Next."]
        on.close()


@HOW
@pytest.mark.parametrize("change", ["edited result", "edited question", "removed question"])
async def test_what_is_changed_after_a_failed_request(saver: Any, how: str, change: str) -> None:
    """The failed request has stored the result of a tool, or a question behind one that was returned as the answer."""
    desk = Desk()
    with ModelServer(model="m", script=desk, strict="openai") as server:
        on = Running(server, saver, [look, show])
        on.ask("First.")
        asked = "look."
        if change != "edited result":
            asked = "Old."
            on.ask("show.")
        desk.down = "Entry" if change == "edited result" else asked
        with pytest.raises(Exception, match="down"):
            await run(on.agent, how, {"messages": [HumanMessage(asked)]})
        last = on.agent.get_state(T).values["messages"][-1]
        new, given = "New.", None
        if change == "edited result":
            on.agent.update_state(T, {"messages": [last.model_copy(update={"content": new})]})
        elif change == "edited question":
            on.agent.update_state(T, {"messages": [HumanMessage(new, id=last.id)]})
        else:
            on.agent.update_state(T, {"messages": [RemoveMessage(last.id)]})
            given = {"messages": [HumanMessage(new)]}
        await run(on.agent, how, given)
        before = ["look."] if change == "edited result" else ["show.", "Page 2."]
        assert words(server) == ["First.", "Answer to First.", *before, new]
        state = on.agent.get_state(T).values["messages"]
        assert [e.id for e in on.middleware.context("t").view().live] == [m.id for m in state]
        on.close()


@HOW
@pytest.mark.parametrize("change", ["edited", "removed"])
async def test_what_is_changed_before_calls_that_nobody_answered(saver: Any, how: str, change: str) -> None:
    """The session has left the calls out, and still follows the list in front of them."""
    with ModelServer(model="m", script=Desk(), strict="openai") as server:
        on = Running(server, saver, [send])
        on.agent = on.with_(on.middleware, HumanInTheLoopMiddleware(interrupt_on={"send": True}))
        for text in ("My code is 1234.", "send.", "Never mind."):
            await run(on.agent, how, {"messages": [HumanMessage(text)]})
        question, answer = on.agent.get_state(T).values["messages"][:2]
        changes = {
            "edited": [HumanMessage("My code is secret.", id=question.id), AIMessage("Noted.", id=answer.id)],
            "removed": [RemoveMessage(question.id), RemoveMessage(answer.id)],
        }
        on.agent.update_state(T, {"messages": changes[change]})
        await run(on.agent, how, {"messages": [HumanMessage("Next.")]})
        kept = ["My code is secret.", "Noted."] if change == "edited" else []
        assert words(server) == [*kept, "send.", "Never mind.", "Answer to Never mind.", "Next."]
        on.close()


@HOW
async def test_an_edit_of_a_first_question_whose_answer_no_checkpoint_has(saver: Any, how: str) -> None:
    """Whoever stops reading at the last token leaves an answer in the session, and none in the thread."""
    with ModelServer(model="m", script=Desk(), strict="openai") as server:
        on = Running(server, saver)
        parts = on.agent.stream({"messages": [HumanMessage("Old.", id="q")]}, T, stream_mode=["values", "messages"])
        next(mode for mode, _ in parts if mode == "messages")
        parts.close()
        assert len(on.middleware.context("t").view().live) == 2
        on.agent.update_state(T, {"messages": [HumanMessage("New.", id="q")]})
        await run(on.agent, how, None)
        assert words(server) == ["New."]
        await run(on.agent, how, {"messages": [HumanMessage("Next.")]})
        assert words(server) == ["New.", "Answer to New.", "Next."]
        on.close()


def test_an_edit_before_a_message_that_is_known_counts_too() -> None:
    """Two messages begin a thread, and the first of them is edited before any checkpoint has the answer."""
    with ModelServer(model="m", script=Desk(), strict="openai") as server:
        on = Running(server, InMemorySaver())
        begun = [HumanMessage("Old.", id="q"), HumanMessage("More.", id="r")]
        parts = on.agent.stream({"messages": begun}, T, stream_mode=["values", "messages"])
        next(mode for mode, _ in parts if mode == "messages")
        parts.close()
        on.agent.update_state(T, {"messages": [HumanMessage("New.", id="q")]})
        on.agent.invoke(None, T)
        assert words(server) == ["New.", "More."]
        on.close()


@pytest.mark.parametrize("prompt", ["in front of the list", "of the agent"])
def test_a_system_prompt_that_is_gone_is_not_sent(prompt: str) -> None:
    listed = prompt == "in front of the list"
    with ModelServer(model="m", script=Desk(), strict="openai") as server:
        on = Running(server, InMemorySaver())
        middleware = [on.middleware] if listed else [only_first, on.middleware]
        on.agent = create_agent(on.chat, [], middleware=middleware, checkpointer=on.saver)
        given = [SystemMessage("PROMPT", id="s")] if listed else []
        on.agent.invoke({"messages": [*given, HumanMessage("One.")]}, T)
        assert [m["content"] for m in server.requests[-1].body["messages"]] == ["PROMPT", "One."]
        if listed:
            on.agent.update_state(T, {"messages": [RemoveMessage("s")]})
        on.ask("Two.")
        assert [m["content"] for m in server.requests[-1].body["messages"]] == ["One.", "Answer to One.", "Two."]
        on.close()


@pytest.mark.parametrize("text_only", [True, False])
def test_a_history_without_ids_and_checkpointer_is_not_doubled(text_only: bool) -> None:
    """A web client keeps the conversation as dicts, often without the rounds of tools; the thread names the session."""
    with ModelServer(model="m", script=Desk(), strict="openai") as server:
        on = Running(server, None, [look])
        history: list[Any] = []
        for number in range(4):
            history.append({"role": "user", "content": f"look {number}."})
            state = on.agent.invoke({"messages": history}, T)
            new = convert_to_openai_messages(state["messages"][len(history) :])
            history += new[-1:] if text_only else new
        rounds = [["look 0."], ["look 1."], ["look 2."], ["look 3."]]
        told = [text for question in rounds for text in (*question, "Entry 1.", "Answer to Entry 1.")]
        assert words(server) == told[:-1]
        on.close()


@pytest.mark.parametrize("config", [T, {}])
def test_edits_of_a_list_that_the_caller_keeps(config: Any) -> None:
    """Without a checkpointer, too, the model is asked the list as it is now; a part of the list goes on with the session."""
    with ModelServer(model="m", script=Desk(), strict="openai") as server:
        on = Running(server, None)
        listed: list[Any] = []
        for text in ("One.", "Two.", "Three."):
            listed = on.agent.invoke({"messages": [*listed, HumanMessage(text)]}, config)["messages"]
        listed[0] = HumanMessage("Edited.", id=listed[0].id)
        on.agent.invoke({"messages": [*listed[:2], *listed[4:], HumanMessage("Four.", id="4")]}, config)
        assert words(server) == ["Edited.", "Answer to One.", "Three.", "Answer to Three.", "Four."]
        on.agent.invoke({"messages": [*listed[:2], *listed[4:], HumanMessage("Other.", id="4")]}, config)
        assert words(server) == ["Edited.", "Answer to One.", "Three.", "Answer to Three.", "Other."]
        if config:
            on.agent.invoke({"messages": [HumanMessage("Five.")]}, config)
            assert words(server)[-3:] == ["Other.", "Answer to Other.", "Five."]
        on.close()


@pytest.mark.parametrize("face", ["middleware", "with_context", "ChatCtx"])
async def test_a_history_without_ids_is_not_doubled_once_its_beginning_was_compacted(face: str, store_url: str) -> None:
    def answer(body: Any) -> Scripted:
        if asks_on_live_prefix(body) or asks_with_transcript(body):
            return Scripted("They looked things up.")
        last = body["messages"][-1]
        if last["role"] == "user":
            return Scripted(tool_calls=(ScriptedCall("look", '{"key": 1}'),))
        return Scripted(f"Answer {len(body['messages'])}. " + "It is a long story. " * 20)

    with ModelServer(model="m", script=answer) as server:
        made = Agents(face, server, look)
        agent = made.agent(store_url, None, context_window=2_000)
        history: list[Any] = []
        for number in range(12):
            history.append({"role": "user", "content": f"Question {number}."})
            history.append(
                {"role": "assistant", "content": agent.invoke({"messages": history}, T)["messages"][-1].text}
            )
        with AgentContext(store=store_url, session_id="t", context_window=2_000) as context:
            usage = context.usage()
        assert (usage.turns, usage.compactions > 0) == (12, True)
        await made.aclose()


@HOW
async def test_an_earlier_checkpoint_whose_session_was_lost(saver: Any, how: str) -> None:
    """Sessions in memory end with their process; a later one that made the session anew has gone on in it."""
    with ModelServer(model="m", script=Desk(), strict="openai") as server:
        on = Running(server, saver)
        on.ask("One.")
        early = on.agent.get_state(T).config
        on.close()
        on = Running(server, saver)
        on.ask("Two.")
        await run(on.agent, how, {"messages": [HumanMessage("Other.")]}, early)
        assert words(server) == ["One.", "Answer to One.", "Other."]
        on.close()


async def test_a_run_that_goes_on_while_a_cancelled_one_is_still_asking() -> None:
    """A thread that waits for the model cannot be cancelled: the run that takes its place has the round for itself."""
    held = Event()
    desk, asked = Desk(), list[str]()

    def answer(body: Any) -> Any:
        asked.append(str(body["messages"][-1]["content"]))
        first = asked.count("Entry 1.") == 1 and asked[-1] == "Entry 1."
        return replace(desk(body), held=held) if first else desk(body)

    with ModelServer(model="m", script=answer, strict="openai") as server, ThreadPoolExecutor(1) as pool:
        on = Running(server, InMemorySaver(), [look])
        waiting = pool.submit(on.ask, "look.")
        while "Entry 1." not in asked:
            await asyncio.sleep(0.01)
        state = await on.agent.ainvoke(None, T)
        assert [m.text for m in state["messages"]] == ["look.", "", "Entry 1.", "Answer to Entry 1."]
        held.set()
        assert waiting.result() == "Answer to Entry 1."
        on.ask("Next.")
        assert words(server) == ["look.", "Entry 1.", "Answer to Entry 1.", "Next."]
        on.close()


def test_a_history_without_ids_is_answered_again() -> None:
    """The newest question is asked in other words: what stands in front of it is known, without the rounds of tools."""
    with ModelServer(model="m", script=Desk(), strict="openai") as server:
        on = Running(server, None, [look])
        told = [("user", "look."), ("assistant", "Answer to Entry 1.")]
        on.agent.invoke({"messages": told[:1]}, T)
        on.agent.invoke({"messages": [*told, ("user", "Old.")]}, T)
        on.agent.invoke({"messages": [*told, ("user", "New.")]}, T)
        assert words(server) == ["look.", "Entry 1.", "Answer to Entry 1.", "Old.", "Answer to Old.", "New."]
        on.close()
