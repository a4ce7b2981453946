"""The examples of docs/langchain.md run as they stand, and what they make answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.warnings import LangGraphDeprecatedSinceV10

import langchain_ctx
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, CtxChatMessageHistory
from tests.support.pages import examples, page

EXAMPLES = examples(page("langchain.md"))
TOLD, ASKED = HumanMessage("My locker is 47-B."), HumanMessage("What is my locker?")
THREAD: Any = {"configurable": {"thread_id": "t"}}


def run(names: dict[str, Any], number: int) -> None:
    exec(compile(EXAMPLES[number], "langchain.md", "exec", dont_inherit=True), names)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What a reader brings."""
    monkeypatch.chdir(tmp_path)
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_documents([Document("The ferry leaves at 7:40.", metadata={"source": "timetable.pdf"})])
    with (
        ModelServer(model="lookup", context_window=64_000) as server,
        ChatCtx(model="lookup", base_url=server.base_url, api_key="x", context_window=64_000) as model,
    ):
        yield {
            "model": model,
            "tools": [],
            "url": server.base_url,
            "saver": InMemorySaver(),
            "retriever": store.as_retriever(),
        }


def test_an_agent(names: dict[str, Any]) -> None:
    run(names, 0)
    thread: Any = {"configurable": {"thread_id": "ann"}}
    names["agent"].invoke({"messages": [TOLD]}, thread)
    assert "47-B" in names["agent"].invoke({"messages": [ASKED]}, thread)["messages"][-1].text


def test_a_model_in_its_context(names: dict[str, Any]) -> None:
    run(names, 1)
    chat, config = names["chat"], {"configurable": {"session_id": "ann"}}
    chat.invoke([TOLD], config)
    assert "47-B" in chat.invoke([ASKED], config).text
    assert chat.context("ann").policy.context_window == 64_000
    chat.close()


def test_a_node_in_a_chain(names: dict[str, Any]) -> None:
    names["messages"] = [TOLD, AIMessage("Noted."), ASKED]
    run(names, 2)
    assert "47-B" in names["chain"].invoke(names["messages"], THREAD).text
    assert [m.text for m in names["fit"].context("ann").messages()] == [TOLD.content, "Noted.", ASKED.content]
    names["fit"].close()


def test_a_node_as_a_hook(names: dict[str, Any]) -> None:
    with pytest.warns(LangGraphDeprecatedSinceV10):
        run(names, 3)
    names["agent"].invoke({"messages": [TOLD]}, THREAD)
    assert "47-B" in names["agent"].invoke({"messages": [ASKED]}, THREAD)["messages"][-1].text
    assert names["fit"].context("t").usage().turns == 1


def test_documents(names: dict[str, Any]) -> None:
    run(names, 4)
    assert "7:40" in names["chat"].invoke("When does the ferry leave?").text


def test_other_histories(names: dict[str, Any]) -> None:
    names |= {
        "old": InMemoryChatMessageHistory(messages=[TOLD, AIMessage("Noted.")]),
        "copy": InMemoryChatMessageHistory(),
    }
    run(names, 7)
    assert [m.text for m in names["history"].context.messages()] == [TOLD.content, "Noted.", "And today?"]
    assert {m.text for m in names["copy"].messages} == {TOLD.content, "Noted.", "And today?"}
    names["history"].close()


def test_a_wire(names: dict[str, Any]) -> None:
    run(names, 8)
    said = names["agent"].invoke({"messages": [TOLD, AIMessage("Noted."), ASKED]})["messages"]
    assert "47-B" in said[-1].text
    assert said[-1].response_metadata["model_provider"] == names["gemini"].provider == "gemini"
    names["gemini"].close()


def test_owners_of_a_history(names: dict[str, Any]) -> None:
    names["prompt"] = ChatPromptTemplate.from_messages([MessagesPlaceholder("history"), ("human", "{question}")])
    run(names, 5)
    config: Any = names["config"]
    names["chain"].invoke({"question": TOLD.content}, config)
    assert "47-B" in names["chain"].invoke({"question": ASKED.content}, config).text
    names["factory"].close()


def test_a_tool_round_of_several_runs() -> None:
    look: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    replies = [Scripted(tool_calls=(ScriptedCall("look"),)), Scripted("It is entry 7.")]
    with (
        ModelServer(script=replies, strict="openai") as server,
        ChatCtx(model="m", base_url=server.base_url, api_key="x", max_retries=0) as model,  # type: ignore[arg-type]
        CtxChatMessageHistory.factory(context_window=8_000) as factory,
    ):
        names: dict[str, Any] = {
            "model": model,
            "tools": [look],
            "factory": factory,
            "config": {"configurable": {"session_id": "s"}},
        }
        names |= {"HumanMessage": HumanMessage, "ToolMessage": ToolMessage}
        names["RunnableWithMessageHistory"] = RunnableWithMessageHistory
        run(names, 6)
        assert names["answer"].text == "It is entry 7."
        assert [m.type for m in factory("s").messages] == ["human", "ai", "tool", "ai"]


def test_every_example_is_run_and_every_name_exists() -> None:
    assert len(EXAMPLES) == 9
    named = set(re.findall(r"from langchain_ctx import ([^\n]+)", "\n".join(EXAMPLES)))
    assert {name for line in named for name in line.split(", ")} <= set(langchain_ctx.__all__)
