"""`section_from`: documents that retrievers and vector stores find, through every LangChain face that makes requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore

from ctxfold import AgentContext, ConfigError, ScriptedBackend
from ctxfold.events import SectionInjected, SectionSkipped
from ctxfold.testing import ModelServer
from langchain_ctx import ChatCtx, ContextMiddleware, ContextNode, section_from, with_context
from tests.timing import await_for

FERRY = Document("The ferry to Orlen leaves at 7:40.", metadata={"source": "timetable.pdf", "page": 3}, id="d1")
HOTEL = Document("The hotel in Orlen is called Seeblick.", metadata={"url": "https://example.org/orlen"})


class Shelf(BaseRetriever):
    """Gives all its documents; counts how often; may be held up or broken."""

    documents: list[Document]
    asked: list[str] = []  # noqa: RUF012
    answered: list[str] = []  # noqa: RUF012
    held: Any = None
    error: Any = None

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        self.asked.append(query)
        if self.held is not None and not self.held.wait(60):
            raise TimeoutError("nobody let it go on")
        if self.error is not None:
            raise self.error
        self.answered.append(query)
        return self.documents


def shelf(*documents: Document, **settings: Any) -> Shelf:
    return Shelf(documents=list(documents), asked=[], answered=[], **settings)


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_a_retriever(how: str) -> None:
    source = shelf(FERRY, HOTEL)
    backend = ScriptedBackend(["At 7:40.", "Seeblick."], context_window=8_000)
    events: list[Any] = []
    with AgentContext(backend, sections=[section_from(source)]) as context:
        context.subscribe(events.append)
        for question in ("When does the ferry leave?", "And the hotel?"):
            _ = context.send(question) if how == "sync" else await context.asend(question)
        assert source.asked == ["When does the ferry leave?", "And the hotel?"]
        told = "\n".join(m.text for m in backend.requests[-1].messages)
        assert told.count(FERRY.page_content) == told.count(HOTEL.page_content) == 1  # once, over both turns
        assert "timetable.pdf, page 3" in told
        assert "https://example.org/orlen" in told
        assert [e.items for e in events if isinstance(e, SectionInjected)] == [2]


def test_a_vector_store() -> None:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=16))
    store.add_documents([Document(f"Fact {n} of the island.", id=str(n)) for n in range(20)])
    backend = ScriptedBackend(["Well."], context_window=8_000)
    with AgentContext(backend, sections=[section_from(store, kind="facts", limit=3, lifetime="request")]) as context:
        context.send("Fact 7 of the island.")
        told = next(m.text for m in backend.requests[-1].messages if m.kind == "section")
        assert told.count("of the island.") == 3
        assert "Fact 7 of the island." in told


@pytest.mark.parametrize("settings", [{"error": RuntimeError("index lost")}, {"held": threading.Event()}])
def test_one_that_fails_or_is_slow_costs_only_its_section(settings: Any) -> None:
    events: list[Any] = []
    with AgentContext(
        ScriptedBackend(["Well."], context_window=8_000),
        sections=[section_from(shelf(FERRY, **settings), timeout_s=0.2)],
    ) as context:
        context.subscribe(events.append)
        assert context.send("When?").message.text == "Well."
        assert [e.kind for e in events if isinstance(e, SectionSkipped)] == ["documents"]
        if "held" in settings:
            settings["held"].set()


def answers(server: ModelServer, face: str) -> Callable[[str], str]:
    """Each face with the same section, asked for a text."""
    chat = ChatCtx(model="lookup", base_url=server.base_url, api_key="x")
    settings: Any = {"context_window": 8_000, "sections": [section_from(shelf(FERRY, HOTEL))]}
    config: Any = {"configurable": {"thread_id": "t"}}
    match face:
        case "with_context":
            wrapped = with_context(chat, session_id="s", **settings)
            return lambda text: wrapped.invoke(text).text
        case "node":
            chain = ContextNode(**settings) | chat
            return lambda text: str(chain.invoke([HumanMessage(text)], config).text)
        case _:
            from langchain.agents import create_agent

            agent = create_agent(chat, [], middleware=[ContextMiddleware(**settings)])
            return lambda text: str(agent.invoke({"messages": [HumanMessage(text)]}, config)["messages"][-1].text)


@pytest.mark.parametrize("face", ["with_context", "node", "middleware"])
def test_through_the_faces(face: str, server: ModelServer) -> None:
    ask = answers(server, face)
    assert "7:40" in ask("When does the ferry to Orlen leave?")


class Watching(BaseCallbackHandler):
    def __init__(self) -> None:
        self.names: list[str] = []

    def on_retriever_start(self, serialized: Any, query: str, **kwargs: Any) -> None:
        self.names.append(query)

    def on_chat_model_start(self, serialized: Any, messages: list[list[BaseMessage]], **kwargs: Any) -> None:
        self.names.append("model")


async def test_the_runs_callbacks_do_not_hear_of_it() -> None:
    watching = Watching()
    source = shelf(FERRY)
    model = with_context(
        FakeListChatModel(responses=["a"]), session_id="s", context_window=8_000, sections=[section_from(source)]
    )
    model.invoke("When?", {"callbacks": [watching]})
    await model.ainvoke("And now?", {"callbacks": [watching]})
    assert watching.names == ["model", "model"]
    assert source.asked == ["When?", "And now?"]


async def test_the_loop_stays_free_meanwhile() -> None:
    source = shelf(FERRY, held=threading.Event())
    model = with_context(
        FakeListChatModel(responses=["a"]),
        session_id="s",
        context_window=8_000,
        sections=[section_from(source, timeout_s=None)],
    )
    asked = asyncio.create_task(model.ainvoke("When?"))
    await await_for(lambda: source.asked)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not asked.done()
    source.held.set()  # which only a free loop comes to
    await asked
    assert source.answered == ["When?"]


def test_what_is_no_source() -> None:
    with pytest.raises(ConfigError, match="retriever or a vector store"):
        section_from(FakeListChatModel(responses=["a"]))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="share"):
        section_from(shelf(), share=7)
