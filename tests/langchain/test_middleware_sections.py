"""Sections in an agent: what a source finds stands beside the conversation, in the request and in no message of the agent's."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import HumanMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold import Item, Section
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware, section_from

T: Any = {"recursion_limit": 200, "configurable": {"thread_id": "t"}}


@tool
def step(number: int) -> str:
    """Takes a step."""
    return f"Step {number} taken."


def play(body: Any) -> Scripted:
    answers = sum(m["role"] == "assistant" and not m.get("tool_calls") for m in body["messages"])
    done = sum(m["role"] == "tool" for m in body["messages"]) - 3 * answers
    if done < 3:
        return Scripted(tool_calls=(ScriptedCall("step", json.dumps({"number": done})),))
    return Scripted("Done.")


def agent_on(server: ModelServer, *sections: Section) -> tuple[ChatCtx, Any, ContextMiddleware]:
    chat = ChatCtx(model="m", base_url=server.base_url, api_key="x", max_retries=0)  # type: ignore[arg-type]
    middleware = ContextMiddleware(context_window=16_000, sections=sections, history_tools=False)
    return chat, create_agent(chat, [step], middleware=[middleware], checkpointer=InMemorySaver()), middleware


async def run(agent: Any, how: str, text: str, config: Any = T) -> Any:
    given = {"messages": [HumanMessage(text)]}
    return agent.invoke(given, config) if how == "invoke" else await agent.ainvoke(given, config)


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("lifetime", ["epoch", "request"])
async def test_what_is_found_travels_with_every_round(how: str, lifetime: Any) -> None:
    """In each request of the turn, once; the agent's own messages have nothing of it."""
    asked: list[str] = []

    def find(query: Any) -> list[Item]:
        asked.append(query.text)
        return [Item(f"The note on {query.text}", source="notes.md", id=query.text)]

    with ModelServer(model="m", script=play, strict="openai") as server:
        chat, agent, _ = agent_on(server, Section("notes", find, lifetime=lifetime))
        state = await run(agent, how, "gates")
        bodies = [str(r.body["messages"]) for r in server.requests]
        assert len(bodies) == 4
        assert [b.count("The note on gates") for b in bodies] == [1] * 4
        assert "The note on" not in str(state["messages"])
        assert set(asked) == {"gates"}
        await run(agent, how, "locks")
        last = str(server.requests[-1].body["messages"])
        assert "The note on locks" in last
        assert ("The note on gates" in last) == (lifetime == "epoch")
        await chat.aclose()
        chat.close()


class Broken(BaseRetriever):
    ask_on: list[str]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        self.ask_on.append(threading.current_thread().name)
        raise RuntimeError("the index is down")


class Heard(AsyncCallbackHandler):
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    async def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        self.events.append((name, data))


async def test_from_a_vector_store_and_a_broken_retriever() -> None:
    """The broken one costs its own section only; the run is told of both, and neither holds up the loop."""
    store = InMemoryVectorStore.from_texts(
        ["The gate code is 7731."], DeterministicFakeEmbedding(size=8), metadatas=[{"source": "codes.md"}]
    )
    broken = Broken(ask_on=[])
    with ModelServer(model="m", script=play, strict="openai") as server:
        chat, agent, _ = agent_on(server, section_from(store), section_from(broken, kind="broken", timeout_s=60.0))
        heard = Heard()
        await agent.ainvoke({"messages": [HumanMessage("What is the gate code?")]}, {**T, "callbacks": [heard]})
        assert "The gate code is 7731." in str(server.requests[0].body["messages"])
        assert "codes.md" in str(server.requests[0].body["messages"])
        told = {(name, data["kind"]) for name, data in heard.events}
        assert told == {("ctxfold.SectionInjected", "documents"), ("ctxfold.SectionSkipped", "broken")}
        assert "7731" not in str(heard.events)
        assert broken.ask_on
        assert threading.main_thread().name not in broken.ask_on
        await chat.aclose()
        chat.close()


def test_a_branch_has_what_was_found_then() -> None:
    """A replay sends what was sent then, the section of that moment included."""
    with ModelServer(model="m", script=play, strict="openai") as server:
        chat, agent, _ = agent_on(server, Section("notes", lambda q: [Item(f"The note on {q.text}", id=q.text)]))
        for text in ("gates", "locks", "keys"):
            agent.invoke({"messages": [HumanMessage(text)]}, T)
            if text == "locks":
                then = server.requests[-1].body["messages"]
        early = next(
            s.config
            for s in agent.get_state_history(T)
            if s.next == ("model",)
            and [m.text for m in s.values["messages"] if m.type == "human"] == ["gates", "locks"]
        )
        agent.invoke(None, early)
        assert server.requests[-1].body["messages"] == then
        chat.close()
