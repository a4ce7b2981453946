"""An agent that reads back, pins and compacts its own session, through `create_agent` and a server."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import PIIMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold import assistant, user
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware, CtxChatMessageHistory, history_tools
from tests.langchain.running import T


def play(body: Any) -> Scripted:
    """Searches, reads what it found, pins the newest answer, compacts twice, then says what it read."""
    if not body.get("tools"):
        return Scripted("They spoke about gates.")
    outputs = [m["content"] for m in body["messages"] if m["role"] == "tool"]
    steps = [
        lambda: ("search_history", {"query": "gate code"}),
        lambda: ("read_message", {"reference": outputs[0].split()[0]}),
        lambda: ("pin_message", {"reference": "a11"}),
        lambda: ("compact_history", {}),
        lambda: ("compact_history", {}),
    ]
    if len(outputs) < len(steps):
        name, arguments = steps[len(outputs)]()
        return Scripted(tool_calls=(ScriptedCall(name, json.dumps(arguments)),))
    return Scripted(" | ".join(outputs[1:]))


async def test_an_agent_uses_them() -> None:
    for how in ("invoke", "ainvoke"):
        with ModelServer(model="m", script=play) as server:
            chat = ChatCtx(model="m", base_url=server.base_url, api_key="x", context_window=4_000, session="s")
            context = chat.context()
            context.add([user("The gate code is 7731. " + "word " * 30, id="g"), assistant("Noted.", id="n")])
            for i in range(12):
                context.add([user("word " * 30, id=f"u{i}"), assistant("reply " * 30, id=f"a{i}")])
            context.compact(force=True)
            context.add([user("between", id="b"), assistant("yes " * 30, id="b2")])
            for i in range(12, 36):
                context.add([user("word " * 30, id=f"u{i}"), assistant("reply " * 30, id=f"a{i}")])
            tools = history_tools(context)
            agent = create_agent(chat, tools)
            given = {"messages": [HumanMessage("What is the gate code?")]}
            state = agent.invoke(given) if how == "invoke" else await agent.ainvoke(given)
            said = state["messages"][-1].text
            assert "The gate code is 7731." in said
            assert "Pinned a11." in said
            assert said.count("Compacted: ") == 1
            assert "it was done in this turn already" in said
            assert [b.id for b in context.explain().blocks if b.why == "pinned"] == ["a11"]
            sent = {t["function"]["name"]: t["function"]["parameters"] for t in server.requests[-1].body["tools"]}
            assert sent["read_message"]["required"] == ["reference"]
            await chat.aclose()
            chat.close()


async def test_an_answer_that_a_middleware_redacted_is_read_redacted() -> None:
    """The number of the answer as it came still names that version in the archive."""
    with ModelServer(model="m", script=[Scripted("Mail ann@example.com."), Scripted("Nobody.")]) as server:
        chat = ChatCtx(model="m", base_url=server.base_url, api_key="x")
        with ContextMiddleware(context_window=8_000, history_tools=False) as middleware:
            redacting = PIIMiddleware("email", apply_to_output=True)
            agent = create_agent(chat, [], middleware=[middleware, redacting], checkpointer=InMemorySaver())
            for text in ("Who knows?", "And who else?"):
                agent.invoke({"messages": [HumanMessage(text)]}, T)
            context = middleware.context("t")
            assert context.archive.get("#2").text == "Mail ann@example.com."
            for media in (False, True):
                read = next(t for t in history_tools(context, media=media) if t.name == "read_message")
                for message in (read.invoke({"reference": "#2"}), await read.ainvoke({"reference": "#2"})):
                    assert "Mail [REDACTED_EMAIL]." in str(message)
                    assert "ann@example.com" not in str(message)


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def test_an_image_is_returned_where_the_tool_may_return_images() -> None:
    """Step 7, item B23."""
    image = {"type": "image", "base64": PIXEL, "mime_type": "image/png"}
    with CtxChatMessageHistory("s", context_window=8_000) as history:
        history.add_messages(
            [HumanMessage([{"type": "text", "text": "Look:"}, image], id="seen"), AIMessage("I see.", id="a")]
        )
        history.context.add(replace(history.context.archive.get("seen"), id="hidden"), visibility="user")
        for media in (False, True):
            read = next(t for t in history_tools(history.context, media=media) if t.name == "read_message")
            for reference, shown in (("seen", media), ("a", False), ("nobody", False), ("hidden", False)):
                asked: Any = {"type": "tool_call", "id": "c", "name": "read_message", "args": {"reference": reference}}
                for message in (read.invoke(asked), await read.ainvoke(asked)):
                    kinds = [b["type"] for b in message.content_blocks]
                    assert kinds == (["text", "image"] if shown else ["text"])
                    assert ("[image, image/png, 1 x 1 pixels, 70 bytes]" in message.text) == (reference == "seen")
                    if shown:
                        assert message.content_blocks[1]["base64"] == PIXEL


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
async def test_a_run_survives_wrong_arguments(how: str) -> None:
    """Models make up names and types of arguments: a TypeError of the tool ended the agent's run."""
    asked = [
        ("search_history", {"q": "gate"}),
        ("read_message", {"reference": 1, "page": 2}),
        ("compact_history", {"x": 1}),
    ]
    calls = tuple(ScriptedCall(name, json.dumps(arguments)) for name, arguments in asked)
    with (
        ModelServer(model="m", script=[Scripted(tool_calls=calls), Scripted("I see.")]) as server,
        ChatCtx(model="m", base_url=server.base_url, api_key="x") as chat,
        ContextMiddleware(context_window=8_000) as middleware,
    ):
        agent = create_agent(chat, [], middleware=[middleware])
        given: Any = {"messages": [HumanMessage("What is the gate code?")]}
        state = agent.invoke(given, T) if how == "invoke" else await agent.ainvoke(given, T)
        errors = [m.text for m in state["messages"] if m.type == "tool"]
        assert [e.partition(" The arguments are: ")[2] for e in errors] == [
            "query (string).",
            "reference (string), offset (integer).",
            "none.",
        ]
        assert state["messages"][-1].text == "I see."


async def test_the_tool_that_returns_media_tells_what_is_wrong_too() -> None:
    with CtxChatMessageHistory("s", context_window=8_000) as history:
        read = next(t for t in history_tools(history.context, media=True) if t.name == "read_message")
        for answer in (read.invoke({"page": 2}), await read.ainvoke({"page": 2})):
            assert answer.startswith("Error: missing a required argument: 'reference'.")
