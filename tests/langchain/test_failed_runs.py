"""Step 7, C: a run of an agent that failed in its middle leaves nothing in the session that the agent's list does not have."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold import MemoryStore, ScriptedBackend
from ctxfold.errors import StoreUnavailableError
from ctxfold.testing import ErrorReply, ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx
from tests.langchain.faces import FACES, Agents, model_settings
from tests.langchain.running import Running, T
from tests.properties.outages import UnreliableStore, Weather


class Breakdown:
    """A tool and a model, either of which can be down."""

    def __init__(self) -> None:
        self.down = ""

        @tool
        def look(a: int = 0) -> str:
            """Looks it up."""
            if self.down == "tool":
                raise RuntimeError("the tool is down")
            return f"Entry {a}."

        self.tool = look

    def answer(self, body: Any) -> Any:
        last = body["messages"][-1]
        if last["role"] == "user" and "look" in str(last["content"]):
            return Scripted("", tool_calls=(ScriptedCall("look", '{"a": 1}'),))
        if last["role"] == "tool" and self.down == "model":
            return ErrorReply(400, {"error": {"message": "down", "type": "invalid_request_error"}})
        return Scripted(f"Answer to {last['content']}")


def asked(server: ModelServer) -> list[str]:
    """The newest request, message by message."""
    return [str(m.get("content") or "CALL") for m in server.requests[-1].body["messages"]]


@FACES
@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("down", ["tool", "model"])
@pytest.mark.parametrize("kept", ["checkpoints", "by the caller"])
@pytest.mark.parametrize("retry", ["same question", "another question"])
async def test_the_next_run_has_what_its_list_has(
    face: str, how: str, down: str, kept: str, retry: str, store_url: str
) -> None:
    """The strict server refuses a call without its result; a stale round stands in no later request."""
    broken = Breakdown()
    with ModelServer(model="m", script=broken.answer, strict="openai") as server:
        made = Agents(face, server, broken.tool)
        app = made.agent(store_url, InMemorySaver() if kept == "checkpoints" else None)
        listed: list[Any] = []

        async def ask(text: str, message_id: str) -> None:
            given = {"messages": [*listed, HumanMessage(text, id=message_id)]}
            state = app.invoke(given, T) if how == "invoke" else await app.ainvoke(given, T)
            if kept == "by the caller":
                listed[:] = state["messages"]

        await ask("One.", "h1")
        broken.down = down
        with pytest.raises(Exception, match="down"):
            await ask("Please look.", "h2")
        broken.down = ""
        before = len(server.requests)
        if retry == "same question":
            await ask("Please look.", "h2")
            if kept == "by the caller":
                asked_anew = server.requests[before].body["messages"]
                assert [m["content"] for m in asked_anew] == ["One.", "Answer to One.", "Please look."]
            done = ["Please look.", "CALL", "Entry 1.", "Answer to Entry 1."]
        else:
            await ask("Next.", "h3")
            failed = {"tool": ["Please look."], "model": ["Please look.", "CALL", "Entry 1."]}[down]
            done = [*(failed if kept == "checkpoints" else ()), "Next.", "Answer to Next."]
        await ask("Last.", "h4")
        assert asked(server) == ["One.", "Answer to One.", *done, "Last."]
        await made.aclose()


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
async def test_a_run_goes_on_after_its_rounds_were_compacted_and_the_model_was_down(how: str, store_url: str) -> None:
    """The results had to give way before the request that failed, so that the checkpoint is older than the compaction."""
    broken = Breakdown()

    def answer(body: Any) -> Any:
        if broken.down:
            return broken.answer({"messages": [{"role": "tool"}]})
        if any(m["role"] == "tool" for m in body["messages"]) or "short" in str(body["messages"]):
            return Scripted("Done.")
        return Scripted("", tool_calls=tuple(ScriptedCall("read", f'{{"a": {i}}}') for i in range(4)))

    @tool
    def read(a: int = 0) -> str:
        """Reads a file."""
        broken.down = "model"
        return f"file {a} " + "says this and that. " * 12

    with ModelServer(model="m", script=answer, strict="openai") as server:
        summarizer = ScriptedBackend(["short"] * 9)
        running = Running(
            server, InMemorySaver(), [read], 500, store=store_url, summarizer=summarizer, history_tools=False
        )
        given: Any = {"messages": [HumanMessage("Read all.", id="h1")]}
        for _ in range(3):
            with pytest.raises(Exception, match="down"):
                running.agent.invoke(given, T) if how == "invoke" else await running.agent.ainvoke(given, T)
            given = None
        broken.down = ""
        state = running.agent.invoke(None, T) if how == "invoke" else await running.agent.ainvoke(None, T)
        assert state["messages"][-1].text == "Done."
        session = running.middleware.context(running.agent.get_state(T).values)
        assert session.usage().compactions == 1
        assert [m.id for m in session.messages() if m.role != "system"] == [m.id for m in state["messages"]]
        await running.middleware.aclose()
        running.close()


def test_a_list_asks_anew_whose_results_were_compacted_before_their_reply() -> None:
    """The store's answer was lost after the reply was committed: the reply that nobody got is not in the next request."""
    weather = Weather()

    def answer(body: Any) -> Any:
        asked.append([m.get("content") for m in body["messages"]])
        return Scripted(f"Answer {len(asked)}.")

    asked: list[Any] = []
    with ModelServer(model="m", script=answer, strict="openai") as server:
        settings = model_settings(server.base_url)
        store: Any = UnreliableStore(MemoryStore(), weather)
        summarizer = ScriptedBackend(["short"] * 9)
        with ChatCtx(**settings, session_id="s", store=store, context_window=220, summarizer=summarizer) as chat:
            calls = [{"name": "look", "args": {}, "id": f"c{i}"} for i in range(4)]
            results = [ToolMessage("says this and that. " * 6, tool_call_id=f"c{i}", id=f"r{i}") for i in range(4)]
            listed = [HumanMessage("Look.", id="h"), AIMessage("", tool_calls=calls, id="a"), *results]
            weather.faults.extend(["ok", "ok", "lost", "fail"])  # two writes, then that of the reply, and its next try
            with pytest.raises(StoreUnavailableError):
                chat.invoke(listed)
            weather.faults.clear()
            assert chat.invoke(listed).text == "Answer 2."
            assert [m.text for m in chat.context("s").messages()][-1:] == ["Answer 2."]
    assert asked[0] == asked[1]
