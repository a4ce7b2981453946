"""The history tools that `ContextMiddleware` brings, and erasing a thread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold import ConfigError
from ctxfold.adapters.history_tools import HISTORY_TOOLS
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware

T: Any = {"recursion_limit": 200, "configurable": {"thread_id": "t"}}
NAMES = [spec.name for spec in HISTORY_TOOLS]


def chat_on(server: ModelServer) -> ChatCtx:
    return ChatCtx(model="m", base_url=server.base_url, api_key="x", max_retries=0)  # type: ignore[arg-type]


def offered(server: ModelServer) -> list[str]:
    return [t["function"]["name"] for t in server.requests[-1].body.get("tools") or ()]


@tool
def dump() -> str:
    """Gives the log of the night."""
    lines = [f"line {n}: nothing to report from station {n * 7}" for n in range(2_000)]
    lines[1_234] = "line 1234: the valve code is PX-7731"
    return "\n".join(lines)


async def run(agent: Any, how: str, text: str, config: Any = T) -> str:
    given = {"messages": [HumanMessage(text)]}
    state = agent.invoke(given, config) if how == "invoke" else await agent.ainvoke(given, config)
    return str(state["messages"][-1].text)


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
async def test_an_offloaded_output_is_searched_and_read_back_in_the_same_turn(how: str) -> None:
    """90 kB of output in a window of 8,000 tokens: the model sees an excerpt, pages through the rest and finds the line."""

    def play(body: Any) -> Scripted:
        if not body.get("tools"):
            return Scripted("They looked at a log.")
        outputs = [m["content"] for m in body["messages"] if m["role"] == "tool"]
        if not outputs:
            return Scripted(tool_calls=(ScriptedCall("dump", "{}"),))
        if "PX-7731" in outputs[-1]:
            return Scripted("The valve code is PX-7731.")
        if len(outputs) == 1:
            assert "PX-7731" not in outputs[0]
            return Scripted(tool_calls=(ScriptedCall("search_history", '{"query": "valve code"}'),))
        reference = next(w for w in outputs[1].split() if w) if len(outputs) == 2 else ""
        last = [m for m in body["messages"] if m.get("tool_calls")][-1]["tool_calls"][0]
        if last["function"]["name"] == "read_message":
            asked = json.loads(last["function"]["arguments"])
            more = outputs[-1].split("go on with offset ")[1].split("):")[0].split(":")[0]
            arguments = {"reference": asked["reference"], "offset": int(more)}
        else:
            arguments = {"reference": reference, "offset": 0}
        return Scripted(tool_calls=(ScriptedCall("read_message", json.dumps(arguments)),))

    with ModelServer(model="m", script=play, strict="openai", context_window=8_000) as server:
        chat, middleware = chat_on(server), ContextMiddleware(context_window=8_000)
        agent = create_agent(chat, [dump], middleware=[middleware], checkpointer=InMemorySaver())
        assert await run(agent, how, "What is the valve code?") == "The valve code is PX-7731."
        assert offered(server) == [*NAMES, "dump"]
        middleware.close()
        await chat.aclose()
        chat.close()


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
async def test_an_agent_pins_and_compacts(how: str) -> None:
    steps = [
        ("pin_message", {"reference": "gate"}),
        ("compact_history", {}),
        ("compact_history", {}),
        ("read_message", {"reference": "unknown"}),
    ]

    def play(body: Any) -> Scripted:
        if not body.get("tools"):
            return Scripted("They spoke of gates.")
        if body["messages"][-1]["content"] == "Now tidy up." or body["messages"][-1]["role"] == "tool":
            after = [m["content"] for m in body["messages"] if m["role"] == "tool"]
            if len(after) < len(steps):
                name, arguments = steps[len(after)]
                return Scripted(tool_calls=(ScriptedCall(name, json.dumps(arguments)),))
            return Scripted(" | ".join(after))
        return Scripted("Noted. " + "It is a long story. " * 30)

    with ModelServer(model="m", script=play, strict="openai", context_window=6_900) as server:
        chat, middleware = chat_on(server), ContextMiddleware(context_window=6_900)
        agent = create_agent(chat, [], middleware=[middleware], checkpointer=InMemorySaver())
        agent.invoke({"messages": [HumanMessage("The gate code is 7731.", id="gate")]}, T)
        for number in range(12):
            agent.invoke({"messages": [HumanMessage(f"Q{number}")]}, T)
        said = await run(agent, how, "Now tidy up.")
        pinned, first, second, unknown = said.split(" | ")
        assert pinned == "Pinned gate."
        assert first.startswith("Compacted: ")
        assert "it was done in this turn already" in second
        assert unknown.startswith("Error: ")
        context = middleware.context("t")
        assert [b.id for b in context.explain().blocks if b.why == "pinned"] == ["gate"]
        assert context.usage().compactions == 1
        await chat.aclose()
        chat.close()


def test_one_long_turn_is_compacted_on_demand() -> None:
    """One user message and many rounds: what is compacted then is the turn's own."""

    def play(body: Any) -> Scripted:
        if not body.get("tools"):
            return Scripted("Pages were read.")
        done = sum("Page" in str(m["content"]) for m in body["messages"] if m["role"] == "tool")
        told = [m["content"] for m in body["messages"] if m["role"] == "tool"]
        if any(t.startswith("Compacted: ") for t in told):
            return Scripted(told[-1])
        if done < 10:
            return Scripted(tool_calls=(ScriptedCall("page", json.dumps({"number": done})),))
        return Scripted(tool_calls=(ScriptedCall("compact_history", "{}"),))

    @tool
    def page(number: int) -> str:
        """Reads a page."""
        return f"Page {number}. " + "The quick brown fox reads on. " * 30

    with ModelServer(model="m", script=play, strict="openai", context_window=6_000) as server:
        chat, middleware = chat_on(server), ContextMiddleware(context_window=6_000)
        agent = create_agent(chat, [page], middleware=[middleware], checkpointer=InMemorySaver())
        said = agent.invoke({"messages": [HumanMessage("Read ten pages.")]}, T)["messages"][-1].text
        assert said.startswith("Compacted: ")
        before, after = (int(w) for w in said.replace(",", "").split() if w.isdigit())
        assert after < before / 2
        chat.close()


def test_they_work_in_a_branch_and_without_a_thread() -> None:
    """The tools read the session that the agent's state speaks of."""

    def play(body: Any) -> Scripted:
        if body["messages"][-1]["role"] == "tool":
            return Scripted(body["messages"][-1]["content"])
        if body["messages"][-1]["content"] == "search":
            return Scripted(tool_calls=(ScriptedCall("search_history", '{"query": "apples pears"}'),))
        return Scripted("Noted.")

    with ModelServer(model="m", script=play, strict="openai") as server:
        chat, middleware = chat_on(server), ContextMiddleware(context_window=8_000)
        agent = create_agent(chat, [], middleware=[middleware], checkpointer=InMemorySaver())
        agent.invoke({"messages": [HumanMessage("We have plums.")]}, T)
        early = agent.get_state(T).config
        agent.invoke({"messages": [HumanMessage("We have apples.")]}, T)
        agent.invoke({"messages": [HumanMessage("We have pears.")]}, early)
        said = agent.invoke({"messages": [HumanMessage("search")]}, T)["messages"][-1].text
        assert "pears" in said
        assert "apples" not in said
        loose = create_agent(chat, [], middleware=[middleware])
        given: Any = [HumanMessage("We have apples.", id="first"), AIMessage("Noted."), HumanMessage("search")]
        assert "apples" in loose.invoke({"messages": given})["messages"][-1].text
        assert middleware.context("run-first").usage().turns == 2
        fixed = create_agent(chat, [], middleware=[ContextMiddleware(context_window=8_000, session_id="fixed")])
        assert "apples" in fixed.invoke({"messages": given})["messages"][-1].text
        chat.close()


def test_which_are_there() -> None:
    with ModelServer(model="m", script=[Scripted("Hi.")] * 3) as server:
        chat = chat_on(server)
        for chosen, wanted in ((False, []), (["read_message"], ["read_message"]), (True, NAMES)):
            middleware = ContextMiddleware(context_window=8_000, history_tools=chosen)
            create_agent(chat, [], middleware=[middleware]).invoke({"messages": [HumanMessage("Hi")]})
            assert offered(server) == wanted
        chat.close()
    with pytest.raises(ConfigError, match="fly: there are read_message"):
        ContextMiddleware(context_window=8_000, history_tools=["fly"])
    plain = create_agent(FakeListChatModel(responses=["Hi."]), [], middleware=[ContextMiddleware(context_window=8_000)])
    assert plain.invoke({"messages": [HumanMessage("Hi")]})["messages"][-1].text == "Hi."


@pytest.mark.parametrize("how", ["erase", "aerase"])
async def test_a_thread_is_erased_with_its_branches_and_sub_agents(how: str, store_url: str) -> None:
    def play(body: Any) -> Scripted:
        if body["messages"][-1]["content"] == "Delegate.":
            return Scripted(tool_calls=(ScriptedCall("delegate", "{}"),))
        return Scripted("The word is albatross.")

    with ModelServer(model="m", script=play, strict="openai") as server:
        chat, middleware = chat_on(server), ContextMiddleware(context_window=8_000, store=store_url)
        inner = create_agent(chat, [], middleware=[middleware])

        @tool
        def delegate() -> str:
            """Gives a task away."""
            return str(inner.invoke({"messages": [HumanMessage("Do it.")]})["messages"][-1].text)

        saver = InMemorySaver()
        agent = create_agent(chat, [delegate], middleware=[middleware], checkpointer=saver)
        agent.invoke({"messages": [HumanMessage("One.")]}, T)
        early = agent.get_state(T).config
        agent.invoke({"messages": [HumanMessage("Delegate.")]}, T)
        agent.invoke({"messages": [HumanMessage("Delegate.")]}, early)
        for other in ("t2", "t/2", "other"):
            agent.invoke({"messages": [HumanMessage("Mine.")]}, {"configurable": {"thread_id": other}})
        saver.delete_thread("t")
        gone = middleware.erase("t") if how == "erase" else await middleware.aerase("t")
        assert len(gone) == 4  # the thread, its branch, and a sub-agent of each
        for other in ("t2", "t/2", "other"):
            assert middleware.context(other).usage().turns == 1
        assert middleware.erase("t") == ()
        agent.invoke({"messages": [HumanMessage("Hello.")]}, T)  # used again, it begins empty
        assert [m["content"] for m in server.requests[-1].body["messages"]] == ["Hello."]
        middleware.close()
        await chat.aclose()
        chat.close()
    assert b"Delegate." not in Path(store_url.removeprefix("sqlite:///")).read_bytes()


def test_tools_that_other_middleware_changes_are_counted_anew() -> None:
    """Another tool in the place of one, and the same one with another description."""

    @tool
    def brief(key: str) -> str:
        """Looks."""
        return key

    @tool
    def long(key: str) -> str:
        """Looks."""
        return key

    long.description = "Looks at every entry. " * 100
    offer = [brief]

    @wrap_model_call
    def offering(request: Any, handler: Any) -> Any:
        return handler(request.override(tools=[*offer]))

    with ModelServer(script=lambda _: Scripted("Well.")) as server:
        ours = ContextMiddleware(store="sqlite://", context_window=8_000, history_tools=False)
        agent = create_agent(chat_on(server), [brief, long], middleware=[offering, ours], checkpointer=InMemorySaver())

        def used_tokens() -> int:
            pieces: Any = agent.stream({"messages": [HumanMessage("hello")]}, T, stream_mode="custom")
            return int(next(p["ctxfold"]["used_tokens"] for p in pieces if p["ctxfold"]["event"] == "WindowGauge"))

        first, second = used_tokens(), used_tokens()
        assert second < first + 100
        offer[0] = long
        third = used_tokens()
        assert third > second + 400
        long.description = "Looks."
        assert used_tokens() < third - 300
