"""Step 7, item A3: a malformed tool call is a call that its result answers; no thread stops at one."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from ctxfold import AgentContext, Message, SqlStore, TextPart, ToolCallPart, assistant, user
from ctxfold.messages import Opaque
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import CtxChatMessageHistory
from langchain_ctx.history import import_history
from langchain_ctx.messages import from_langchain, to_langchain
from tests.langchain.faces import FACES, Agents, closed, model_settings, run
from tests.langchain.running import T

BROKEN = '{"a":1,"b":'
HOPELESS = "{{no json"  # LangChain's stream parser makes nothing of it, too
HOW = pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])


GOOD = '{"a": 7}'
HOPELESS_QUESTIONS = ["Break it, hopeless.", "Break both, hopeless."]
CALL: Any = {"name": "look", "args": {"a": 1}, "id": "c", "type": "tool_call"}


@tool
def look(a: int = 0) -> str:
    """Looks it up."""
    return f"Entry {a}."


def answer(body: Any) -> Scripted:
    """Breaks the call of a question that says so, alone or beside a good one; else names the newest question."""
    last = body["messages"][-1]
    text = str(last["content"])
    if last["role"] == "user" and text.startswith("Break"):
        broken = ScriptedCall("look", HOPELESS if "hopeless" in text else BROKEN)
        good = (ScriptedCall("look", GOOD),)
        return Scripted("", tool_calls=(broken, *good) if "both" in text else (broken,))
    asked = [str(m["content"]) for m in body["messages"] if m["role"] == "user"]
    return Scripted(f"Answer to {asked[-1]}.")


def calls(server: ModelServer) -> list[str]:
    """The arguments of the calls in the newest request."""
    found = server.requests[-1].body["messages"]
    return [c["function"]["arguments"] for m in found for c in m.get("tool_calls") or ()]


@FACES
@HOW
async def test_an_agent_goes_on_after_malformed_calls(face: str, how: str, tmp_path: Path, store_url: str) -> None:
    """Alone, beside a good call, in several turns, and after a restart; the service is asked nothing that it refuses."""
    with ModelServer(model="m", script=answer, strict="openai") as server:
        made = Agents(face, server, look)
        with contextlib.closing(sqlite3.connect(tmp_path / "saver.db", check_same_thread=False)) as connection:
            saver: Any = SqliteSaver(connection) if how in ("invoke", "stream") else InMemorySaver()
            app = made.agent(store_url, saver)
            assert await run(app, how, "One.") == "Answer to One.."
            await run(app, how, "Break both.")
            assert await run(app, how, "Two.") == "Answer to Two.."
            await run(app, how, "Break it.")
            assert await run(app, how, "Three.") == "Answer to Three.."
            await run(app, how, HOPELESS_QUESTIONS[0])
            await run(app, how, HOPELESS_QUESTIONS[1])
            app = made.agent(store_url, saver)  # as a fresh process finds them
            assert await run(app, how, "Four.") == "Answer to Four.."
        asked = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "user"]
        assert asked == ["One.", "Break both.", "Two.", "Break it.", "Three.", *HOPELESS_QUESTIONS, "Four."]
        if how in ("invoke", "ainvoke"):  # LangChain completes the first text when it streams
            assert sorted(calls(server)) == sorted([GOOD, BROKEN, BROKEN, HOPELESS, GOOD, HOPELESS])
        await made.aclose()


def old_form(text: str, message_id: str, call_id: str) -> Message:
    """An answer as older versions stored it: the malformed call stands beside it."""
    call = {"name": "look", "args": BROKEN, "id": call_id, "error": "no JSON", "type": "invalid_tool_call"}
    beside = Opaque("langchain", json.dumps({"invalid": [call]}))
    return Message(message_id, "assistant", (TextPart(text), beside) if text else (beside,))


@FACES
@pytest.mark.parametrize("answered", [False, True])
async def test_a_thread_that_was_stuck_goes_on(face: str, answered: bool, store_url: str) -> None:
    """The session has the answer without its malformed call, the checkpointer has the call, and its result where it got one."""
    with ModelServer(model="m", script=answer, strict="openai") as server:
        made, saver = Agents(face, server, look), InMemorySaver()
        broken = {"name": "look", "args": BROKEN, "id": "c1", "error": "no JSON", "type": "invalid_tool_call"}
        listed: list[BaseMessage] = [
            HumanMessage("Break it.", id="h1"),
            AIMessage("", id="a1", invalid_tool_calls=[broken]),
            *([ToolMessage("It is no JSON.", id="t1", tool_call_id="c1", status="error")] if answered else []),
            HumanMessage("Hello?", id="h2"),
        ]
        with AgentContext(session_id="t", store=store_url, context_window=8_000) as context:
            context.add([user("Break it.", id="h1"), old_form("", "a1", "c1")])
        app = made.agent(store_url, saver)
        app.update_state(T, {"messages": listed}, as_node="__start__")
        assert await run(app, "invoke", "One.") == "Answer to One.."
        assert await run(app, "invoke", "Two.") == "Answer to Two.."
        assert await run(made.agent(store_url, saver), "ainvoke", "Three.") == "Answer to Three.."
        asked = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "user"]
        assert asked == ["Break it.", "Hello?", "One.", "Two.", "Three."]
        await made.aclose()


@FACES
@pytest.mark.parametrize(
    "odd",
    [
        pytest.param([ToolMessage("r", id="t", tool_call_id="nobody"), AIMessage("ok", id="a")], id="unknown id"),
        pytest.param([AIMessage("ok", id="a"), ToolMessage("r", id="t", tool_call_id="nobody")], id="after an answer"),
        pytest.param(
            [
                AIMessage("", id="a", tool_calls=[CALL]),
                ToolMessage("r", id="t1", tool_call_id="c"),
                ToolMessage("r", id="t2", tool_call_id="c"),
            ],
            id="answered twice",
        ),
        pytest.param(
            [
                AIMessage("", id="a", tool_calls=[CALL]),
                HumanMessage("Still there?", id="h"),
                ToolMessage("r", id="t", tool_call_id="c"),
            ],
            id="a question before the result",
        ),
        pytest.param([AIMessage("", id="a", tool_calls=[CALL]), HumanMessage("Hm.", id="h")], id="never answered"),
        pytest.param(
            [
                AIMessage("", id="a1", tool_calls=[CALL]),
                ToolMessage("r", id="t1", tool_call_id="c"),
                AIMessage("", id="a2", tool_calls=[CALL]),
                ToolMessage("r2", id="t2", tool_call_id="c"),
            ],
            id="one call id in two rounds",
        ),
        pytest.param(
            [
                AIMessage("", id="a", tool_calls=[{**CALL, "id": ""}]),
                ToolMessage("r", id="t", tool_call_id=""),
            ],
            id="an empty call id",
        ),
        pytest.param(
            [AIMessage([{"type": "tool_use", "id": "c", "name": "look", "input": {}}], id="a")],
            id="blocks without calls",
        ),
    ],
)
async def test_odd_lists_stop_no_thread(face: str, odd: list[BaseMessage], store_url: str) -> None:
    """Step 7, item A3, siblings: whatever a checkpointer's list holds, the next questions are answered."""
    with ModelServer(model="m", script=answer, strict="openai") as server:
        made, saver = Agents(face, server, look), InMemorySaver()
        app = made.agent(store_url, saver)
        assert await run(app, "invoke", "One.") == "Answer to One.."
        app.update_state(T, {"messages": [HumanMessage("Odd.", id="odd"), *odd]}, as_node="__start__")
        assert await run(app, "invoke", "Two.") == "Answer to Two.."
        assert await run(app, "ainvoke", "Three.") == "Answer to Three.."
        assert await run(made.agent(store_url, saver), "invoke", "Four.") == "Answer to Four.."
        asked = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "user"]
        assert asked[:2] == ["One.", "Odd."]
        assert asked[-3:] == ["Two.", "Three.", "Four."]
        await made.aclose()


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory")
async def test_a_history_keeps_malformed_calls(how: str, store_url: str) -> None:
    """An agent whose list a history keeps, with new handles and a new store connection on the way."""
    with ModelServer(model="m", script=answer, strict="openai") as server:
        model = ChatOpenAI(**model_settings(server.base_url))
        agent = create_agent(model, [look])

        async def ask(text: str, factory: Any) -> str:
            chain: Any = RunnableWithMessageHistory(
                agent, factory, input_messages_key="messages", output_messages_key="messages"
            )
            given, config = {"messages": [HumanMessage(text)]}, {"configurable": {"session_id": "s"}}
            found = chain.invoke(given, config) if how == "invoke" else await chain.ainvoke(given, config)
            return str(found["messages"][-1].text)

        with CtxChatMessageHistory.factory(store=store_url, context_window=8_000) as factory:
            assert await ask("One.", factory) == "Answer to One.."
            await ask("Break it.", factory)
            assert await ask("Two.", factory) == "Answer to Two.."
            await ask("Break both.", factory)
        with CtxChatMessageHistory.factory(store=store_url, context_window=8_000) as factory:
            assert await ask("Three.", factory) == "Answer to Three.."
            assert await ask("Four.", factory) == "Answer to Four.."
        asked = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "user"]
        assert asked == ["One.", "Break it.", "Two.", "Break both.", "Three.", "Four."]
        await closed(model)


def test_histories_are_imported_whatever_they_hold(store_url: str) -> None:
    broken = {"name": "look", "args": BROKEN, "id": "c1", "error": "no JSON", "type": "invalid_tool_call"}
    theirs = InMemoryChatMessageHistory(
        messages=[
            HumanMessage("Break it.", id="h1"),
            AIMessage("I look.", id="a1", invalid_tool_calls=[broken]),
            HumanMessage("Hm?", id="h2"),
            AIMessage("Again.", id="a2", invalid_tool_calls=[{**broken, "id": "c2"}, {**broken, "id": None}]),
            ToolMessage("no JSON", id="t2", tool_call_id="c2", status="error"),
            AIMessage("Done.", id="a3"),
        ]
    )
    with AgentContext(session_id="s", store=store_url, context_window=8_000) as context:
        import_history(theirs, context)
        found = context.messages()
        assert [m.id for m in found] == ["h1", "a1", "a1-c1", "h2", "a2", "t2", "a3"]
        assert [[c.arguments for c in m.tool_calls] for m in found] == [[], [BROKEN], [], [], [BROKEN], [], []]
        back: Any = to_langchain(found[4])
        assert [(c["id"], c["args"]) for c in back.invalid_tool_calls] == [("c2", BROKEN), (None, BROKEN)]
        theirs.add_message(HumanMessage("And now?", id="h3"))
        assert import_history(theirs, context) == 1


def test_calls_keep_their_order() -> None:
    """A broken call before a good one: services pair results by place, and a session knows its own answer again."""
    calls = [ToolCallPart("b", "look", BROKEN), ToolCallPart("g", "look", GOOD), ToolCallPart("l", "look", "[1]")]
    message = assistant("", id="m", calls=calls)
    assert from_langchain(to_langchain(message)).tool_calls == tuple(calls)


@FACES
@HOW
async def test_a_malformed_call_does_not_begin_a_branch(face: str, how: str, store_url: str) -> None:
    """`create_agent` puts the error result into the list after the run has gone on, and the session has it once."""
    with ModelServer(model="m", script=answer, strict="openai") as server:
        made = Agents(face, server, look)
        app = made.agent(store_url, InMemorySaver())
        for question in ("One.", "Break both.", "Two.", HOPELESS_QUESTIONS[0], "Three."):
            await run(app, how, question)
        await made.aclose()
        sent = [json.dumps(r.body["messages"])[:-1] for r in server.requests]
        assert [longer.startswith(shorter) for shorter, longer in pairwise(sent)] == [True] * (len(sent) - 1)
    with SqlStore(store_url) as store:
        assert store.sessions("default") == ("t",)


@pytest.mark.parametrize("face", ["middleware", "with_context", "ChatCtx", "ChatCtx and middleware"])
async def test_nor_where_the_agent_is_a_node(face: str, store_url: str) -> None:
    with ModelServer(model="m", script=answer, strict="openai") as server:
        made, graph = Agents(face, server, look), StateGraph(MessagesState)
        graph.add_node("agent", made.agent(store_url, None))
        graph.add_edge(START, "agent")
        app = graph.compile(checkpointer=InMemorySaver())
        for question in ("One.", "Break both.", "Two.", "Three."):
            await run(app, "invoke", question)
        await made.aclose()
    with SqlStore(store_url) as store:
        assert len(store.sessions("default")) == 1
