"""`ContextMiddleware` inside deepagents, in place of its own summarisation."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain.tools import ToolRuntime
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from pydantic import BaseModel

from ctxfold import MemoryStore, user
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware
from tests.langchain.faces import closed
from tests.support.summaries import asks_on_live_prefix

create_deep_agent = pytest.importorskip("deepagents", reason="deepagents needs langchain-core 1.7").create_deep_agent
PatchToolCallsMiddleware = pytest.importorskip("deepagents.middleware.patch_tool_calls").PatchToolCallsMiddleware
T: Any = {"recursion_limit": 500, "configurable": {"thread_id": "t"}}
PAGE = "The quick brown fox reads line after line of the long page. " * 40
WINDOW = 20_000  # deepagents' own prompt and tools take about a third of it


@tool
def read(page: int) -> str:
    """Reads one page."""
    return f"Page {page}. {PAGE}"


def chat_on(server: ModelServer) -> ChatCtx:
    return ChatCtx(model="m", provider="deepseek", base_url=server.base_url, api_key="x", max_retries=0)  # type: ignore[arg-type]


def calls(body: Any) -> list[dict[str, Any]]:
    return [c["function"] for m in body["messages"] for c in m.get("tool_calls") or ()]


def next_page(body: Any, count: int) -> Scripted | None:
    told = [json.loads(c["arguments"])["page"] for c in calls(body) if c["name"] == "read"]
    done = max(told, default=0)
    if done >= count:
        return None
    return Scripted(reasoning="Next.", tool_calls=(ScriptedCall("read", json.dumps({"page": done + 1})),))


def rounds(count: int) -> Any:
    def play(body: Any) -> Scripted:
        if not body.get("tools"):
            return Scripted("Pages were read one after the other.", reasoning="Short.")
        return next_page(body, count) or Scripted("All pages are read.", reasoning="Done.")

    return play


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
async def test_it_takes_the_place_of_their_summarisation(how: str) -> None:
    """60 rounds, about 35,000 tokens of output: none refused, all of it in the agent's list, and one summariser: ours."""
    with ModelServer(model="m", script=rounds(60), strict="deepseek", context_window=WINDOW) as server:
        chat, middleware = chat_on(server), ContextMiddleware(context_window=WINDOW)
        agent: Any = create_deep_agent(chat, [read], middleware=[middleware], checkpointer=InMemorySaver())
        given = {"messages": [HumanMessage("Read sixty pages, please.")]}
        state = agent.invoke(given, T) if how == "invoke" else await agent.ainvoke(given, T)
        assert state["messages"][-1].text == "All pages are read."
        outputs = [m.text for m in state["messages"] if isinstance(m, ToolMessage)]
        assert outputs == [f"Page {n}. {PAGE}" for n in range(1, 61)]
        assert "files" not in state or not state["files"]  # theirs writes what it evicts to a file
        usage = middleware.context("t").usage()
        assert usage.turns == 1
        assert usage.compactions >= 2
        answered = [r for r in server.requests if r.body.get("tools") and not asks_on_live_prefix(r.body)]
        assert len(answered) == 61
        assert len(server.requests) - 61 <= 3 * usage.compactions
        names = {t["function"]["name"] for t in answered[-1].body["tools"]}
        assert {"read", "read_file", "task", "read_message", "search_history", "compact_history"} <= names
        await chat.aclose()
        chat.close()


def test_sub_agents_have_sessions_of_their_own() -> None:
    """The general-purpose one gets the middleware by itself, a declared one by its own list; each is compacted by itself."""

    def play(body: Any) -> Scripted:
        if not body.get("tools"):
            return Scripted("They worked.", reasoning="Short.")
        users = [str(m["content"]) for m in body["messages"] if m["role"] == "user"]
        if any("PAGES" in u for u in users):
            return next_page(body, 40) or Scripted("Sub read all.", reasoning="Done.")
        delegated = [c for c in calls(body) if c["name"] == "task"]
        if len(delegated) < 2:
            kind = ("general-purpose", "reader")[len(delegated)]
            arguments = json.dumps({"description": "Read the PAGES.", "subagent_type": kind})
            return Scripted(reasoning="Hm.", tool_calls=(ScriptedCall("task", arguments),))
        return Scripted("Both are back.", reasoning="Hm.")

    with ModelServer(model="m", script=play, strict="deepseek", context_window=WINDOW) as server:
        chat, store = chat_on(server), MemoryStore()
        middleware = ContextMiddleware(context_window=WINDOW, store=store)
        reader: Any = {
            "name": "reader",
            "description": "Reads.",
            "system_prompt": "You read.",
            "tools": [read],
            "middleware": [middleware],
        }
        agent: Any = create_deep_agent(
            chat, [read], middleware=[middleware], subagents=[reader], checkpointer=InMemorySaver()
        )
        state = agent.invoke({"messages": [HumanMessage("Delegate.")]}, T)
        assert state["messages"][-1].text == "Both are back."
        assert [m.text for m in state["messages"] if isinstance(m, ToolMessage)] == ["Sub read all."] * 2
        names = store.sessions("default")
        assert len(names) == 3
        assert names[0] == "t"
        assert all(re.fullmatch(r"t\|tools\|[0-9a-f-]+", n) for n in names[1:])
        for name in names[1:]:
            usage = middleware.context(name).usage()
            assert usage.turns == 1
            assert usage.compactions >= 1
        assert "PAGES" in str(middleware.context("t").messages())
        assert "quick brown fox" not in str(middleware.context("t").messages())
        assert middleware.erase("t") == names
        chat.close()


def test_their_filesystem_offload_stays() -> None:
    """An output beyond their limit goes to a file; the agent reads in it, and the window still fits."""

    @tool
    def dump() -> str:
        """Gives the log."""
        return "\n".join(f"line {n}: station {n * 7} reports nothing, the valve is {n}" for n in range(4_000))

    def play(body: Any) -> Scripted:
        if not body.get("tools"):
            return Scripted("A log.", reasoning="Short.")
        outputs = [str(m["content"]) for m in body["messages"] if m["role"] == "tool"]
        if not outputs:
            return Scripted(reasoning="Hm.", tool_calls=(ScriptedCall("dump", "{}"),))
        if len(outputs) == 1:
            path = re.search(r"path: (\S+)", outputs[0])
            assert path, outputs[0]
            arguments = json.dumps({"file_path": path[1], "offset": 3_000, "limit": 3})
            return Scripted(reasoning="Hm.", tool_calls=(ScriptedCall("read_file", arguments),))
        return Scripted(outputs[1], reasoning="Hm.")

    with ModelServer(model="m", script=play, strict="deepseek", context_window=WINDOW) as server:
        chat, middleware = chat_on(server), ContextMiddleware(context_window=WINDOW)
        agent: Any = create_deep_agent(chat, [dump], middleware=[middleware], checkpointer=InMemorySaver())
        state = agent.invoke({"messages": [HumanMessage("What says line 3000?")]}, T)
        assert "line 3000: station 21000" in state["messages"][-1].text
        assert len(state["files"]) == 1
        chat.close()


@pytest.mark.parametrize("decision", ["approve", "edit"])
def test_a_person_decides(decision: str) -> None:
    @tool
    def send(text: str) -> str:
        """Sends a mail."""
        return f"Sent: {text}"

    def play(body: Any) -> Scripted:
        last = body["messages"][-1]
        if last["role"] == "tool":
            return Scripted(f"Done. {last['content']}", reasoning="Hm.")
        return Scripted(reasoning="Hm.", tool_calls=(ScriptedCall("send", '{"text": "draft"}'),))

    with ModelServer(model="m", script=play, strict="deepseek", context_window=WINDOW) as server:
        chat, middleware = chat_on(server), ContextMiddleware(context_window=WINDOW)
        agent: Any = create_deep_agent(
            chat, [send], middleware=[middleware], checkpointer=InMemorySaver(), interrupt_on={"send": True}
        )
        state = agent.invoke({"messages": [HumanMessage("Write to Ann.")]}, T)
        assert state["__interrupt__"]
        told: Any = {"type": "approve"}
        if decision == "edit":
            told = {"type": "edit", "edited_action": {"name": "send", "args": {"text": "better"}}}
        state = agent.invoke(Command(resume={"decisions": [told]}), T)
        assert ("Sent: draft" if decision == "approve" else "Sent: better") in state["messages"][-1].text
        live = middleware.context("t").view().live
        assert [e.id for e in live] == [m.id for m in state["messages"]]
        chat.close()


class Report(BaseModel):
    """What was found."""

    pages: int


@pytest.mark.parametrize("strategy", [ToolStrategy, ProviderStrategy])
def test_a_structured_answer(strategy: Any) -> None:
    def play(body: Any) -> Scripted:
        if not body.get("tools"):
            return Scripted("Pages were read.")
        more = next_page(body, 30)
        if more is not None:
            return Scripted(tool_calls=more.tool_calls)
        if strategy is ProviderStrategy:
            return Scripted('{"pages": 30}')
        return Scripted(tool_calls=(ScriptedCall("Report", '{"pages": 30}'),))

    with ModelServer(model="m", script=play, strict="openai", context_window=WINDOW) as server:
        chat = ChatCtx(model="m", base_url=server.base_url, api_key="x", max_retries=0)  # type: ignore[arg-type]
        middleware = ContextMiddleware(context_window=WINDOW)
        agent: Any = create_deep_agent(
            chat, [read], middleware=[middleware], response_format=strategy(Report), checkpointer=InMemorySaver()
        )
        for turn in (1, 2):
            state = agent.invoke({"messages": [HumanMessage(f"Read {turn}.")]}, T)
            assert state["structured_response"] == Report(pages=30)
            stored = [m.id for m in middleware.context("t").messages() if m.role != "system"]
            assert stored == [m.id for m in state["messages"]]
        assert middleware.context("t").usage().compactions >= 1
        chat.close()


@tool
def to_desk(runtime: ToolRuntime) -> Command[str]:
    """Hands the conversation over to the desk."""
    result = ToolMessage("Handed over.", tool_call_id=runtime.tool_call_id)
    return Command(goto="desk", graph=Command.PARENT, update={"messages": [*runtime.state["messages"], result]})


def test_a_handoff_among_parallel_calls() -> None:
    """LangGraph drops the results of the other calls; deepagents' middleware answers them."""

    def play(body: Any) -> Scripted:
        both = (ScriptedCall("read", '{"page": 1}'), ScriptedCall("to_desk"))
        return Scripted("", tool_calls=both) if body["messages"][-1]["role"] == "user" else Scripted("At the desk.")

    def agent() -> Any:
        middleware = [ContextMiddleware(context_window=WINDOW), PatchToolCallsMiddleware()]
        return create_agent(model, [read, to_desk], middleware=middleware)

    with ModelServer(model="m", script=play, strict="openai") as server:
        model = chat_on(server)
        graph = StateGraph(MessagesState)
        graph.add_node("front", agent(), destinations=("desk",))
        graph.add_node("desk", agent())
        graph.add_edge(START, "front")
        app = graph.compile(checkpointer=InMemorySaver())
        assert app.invoke({"messages": [HumanMessage("Go.")]}, T)["messages"][-1].text == "At the desk."
        model.close()


FORMS: dict[str, Any] = {
    "a pair": lambda text: ("user", text),
    "a dict": lambda text: {"role": "user", "content": text},
    "a message": HumanMessage,
}


@pytest.mark.parametrize("form", FORMS)
async def test_h2_questions_without_ids_are_one_session(form: str) -> None:
    """The newest deepagents leaves the ids of its questions at None in the state; some are the same words again."""
    story = Scripted("Fine. " + "It is a long story. " * 60)
    with ModelServer(model="m", script=lambda _: story, context_window=16_000) as server:
        store, model = MemoryStore(), ChatOpenAI(model="m", base_url=server.base_url, api_key="x")  # type: ignore[arg-type]
        middleware = ContextMiddleware(context_window=12_000, store=store)
        agent: Any = create_deep_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
        middleware.context("t").add(user("My name is Ann.", id="pinned"))
        middleware.context("t").pin("pinned")
        for number in range(30):
            text = "Go on." if number % 3 else f"Question {number}."
            state = agent.invoke({"messages": [FORMS[form](text)]}, {"configurable": {"thread_id": "t"}})
        assert store.sessions("default") == ("t",)
        session = middleware.context("t")
        assert [m.text for m in session.messages() if m.id != "pinned"] == [m.text for m in state["messages"]]
        assert session.usage().compactions > 0
        assert "My name is Ann." in str(server.requests[-1].body["messages"])
        await closed(middleware)
        await closed(model)
