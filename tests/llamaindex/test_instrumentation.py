"""Events, spans and tags of sessions, through LlamaIndex's instrumentation."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.embeddings.mock_embed_model import MockEmbedding
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.embedding import EmbeddingStartEvent
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent, LLMChatStartEvent
from llama_index.core.instrumentation.events.retrieval import RetrievalStartEvent
from llama_index.core.instrumentation.span import BaseSpan
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index_instrumentation.dispatcher import Dispatcher, instrument_tags
from pydantic import PrivateAttr

from ctxfold import HistoryCompacted
from ctxfold.events import Appended, CompactionStarted
from ctxfold.testing import ModelServer
from llamaindex_ctx import CtxLLM, CtxMemory, with_context
from llamaindex_ctx.instrumentation import SessionEvent
from llamaindex_ctx.retrieval import LlamaIndexEmbedder, section_from


class Heard(BaseEventHandler):
    _events: list[BaseEvent] = PrivateAttr(default_factory=list)

    @classmethod
    def class_name(cls) -> str:
        return "Heard"

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        self._events.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        """LlamaIndex's events of a class, or our events that carry one."""
        told = [e.event if isinstance(e, SessionEvent) else e for e in self._events]
        return [e for e in told if isinstance(e, kind)]


class Spans(BaseSpanHandler[BaseSpan]):
    _entered: list[tuple[str, str | None, dict[str, Any]]] = PrivateAttr(default_factory=list)

    @classmethod
    def class_name(cls) -> str:
        return "Spans"

    def new_span(
        self,
        id_: str,
        bound_args: inspect.BoundArguments,
        instance: Any = None,
        parent_span_id: str | None = None,
        tags: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> BaseSpan:
        self._entered.append((id_, parent_span_id, dict(tags or {})))
        return BaseSpan(id_=id_, parent_id=parent_span_id, tags=tags or {})

    def prepare_to_exit_span(self, id_: str, *args: Any, **kwargs: Any) -> BaseSpan | None:
        return self.open_spans.get(id_)

    def prepare_to_drop_span(self, id_: str, *args: Any, **kwargs: Any) -> BaseSpan | None:
        return self.open_spans.get(id_)

    @property
    def entered(self) -> list[tuple[str, str | None, dict[str, Any]]]:
        return self._entered


@pytest.fixture
def heard() -> Iterator[Heard]:
    root, handler = get_dispatcher(), Heard()
    root.event_handlers.append(handler)
    yield handler
    root.event_handlers.remove(handler)


@pytest.fixture
def spans() -> Iterator[Spans]:
    root, handler = get_dispatcher(), Spans()
    root.span_handlers.append(handler)
    yield handler
    root.span_handlers.remove(handler)


@pytest.fixture
def llm() -> Iterator[CtxLLM]:
    with ModelServer(context_window=4_000) as server:
        made = CtxLLM(model="lookup", base_url=server.base_url, api_key="x", context_window=4_000)
        yield made
        made.close()


def talk(memory: CtxMemory, turns: int) -> None:
    for n in range(turns):
        memory.put(ChatMessage(f"Box KX-{n} stands in hall {n % 9}; please note it, and where the key to it is kept."))
        memory.get()
        memory.put(ChatMessage(role="assistant", content=f"Noted: box KX-{n}, hall {n % 9}."))


def test_a_memory_tells_what_happens_to_its_session(heard: Heard) -> None:
    memory = CtxMemory.from_defaults("s", token_limit=400)
    talk(memory, 20)
    assert len(heard.of(Appended)) == 40
    compacted = heard.of(HistoryCompacted)
    assert compacted
    assert all(e.tokens_after < e.tokens_before for e in compacted)
    told = next(e for e in heard._events if isinstance(e, SessionEvent))
    assert (told.session, told.name, told.class_name()) == ("s", "Appended", "SessionEvent")
    assert told.model_dump(mode="json")["class_name"] == "SessionEvent"


def test_the_status_of_compactions_is_heard(heard: Heard) -> None:
    memory = CtxMemory.from_defaults("s", token_limit=400)
    talk(memory, 20)
    assert len(heard.of(CompactionStarted)) == len(heard.of(HistoryCompacted)) > 0
    assert "until the next compaction" in str(memory.context.explain().gauge)


async def test_so_does_an_llm_with_context(heard: Heard, llm: CtxLLM) -> None:
    chat = with_context(llm, session_id="s")
    await chat.achat([ChatMessage("My locker is 47-B.")])
    assert len(heard.of(Appended)) == 2
    await llm.aclose()


def test_summary_calls_are_marked(heard: Heard, spans: Spans, llm: CtxLLM) -> None:
    """Events and spans of a summary carry a tag beside the caller's own; those of the conversation carry the caller's."""
    chat = with_context(llm, session_id="s", context_window=800)
    with instrument_tags({"run": "r1"}):
        for n in range(30):
            chat.chat([ChatMessage(f"Box KX-{n} stands in hall {n % 9}; please note it, and where its key is kept.")])
    started, ended = heard.of(LLMChatStartEvent), heard.of(LLMChatEndEvent)
    summaries = sum(e.summary_calls for e in heard.of(HistoryCompacted))
    assert summaries > 0
    for events in (started, ended):
        assert [e.tags for e in events].count({"run": "r1", "ctxfold": "summary"}) == summaries
        assert [e.tags for e in events].count({"run": "r1"}) == 30
    marked = [name for name, _, tags in spans.entered if tags.get("ctxfold") == "summary"]
    assert len(marked) == summaries
    assert all(name.startswith("CtxLLM.chat") for name in marked)


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_what_sections_and_recall_ask_is_marked(heard: Heard, how: str) -> None:
    index = VectorStoreIndex.from_documents(
        [Document(text="The hall is locked.")], embed_model=MockEmbedding(embed_dim=4)
    )
    embedder = LlamaIndexEmbedder(MockEmbedding(embed_dim=4))
    memory = CtxMemory.from_defaults("s", context_window=4_000, sections=[section_from(index)])
    with instrument_tags({"run": "r1"}):
        memory.put(ChatMessage("Is the hall locked?"))
        if how == "sync":
            memory.get()
            embedder.embed(["a text"])
        else:
            await memory.aget()
            await embedder.aembed(["a text"])
    assert [e.tags for e in heard.of(RetrievalStartEvent)] == [{"run": "r1", "ctxfold": "section"}]
    *_, recalled = heard.of(EmbeddingStartEvent)
    assert recalled.tags == {"run": "r1", "ctxfold": "recall"}


async def test_what_a_memory_does_is_a_span(spans: Spans) -> None:
    memory = CtxMemory.from_defaults("s", context_window=4_000)
    memory.put(ChatMessage("One."))
    memory.get()
    await memory.aput(ChatMessage(role="assistant", content="Two."))
    await memory.aget()
    memory.set([ChatMessage("Three.")])
    names = [name.partition("-")[0] for name, _, _ in spans.entered]
    assert names == [
        "CtxMemory.put_messages",
        "CtxMemory.get",
        "CtxMemory.aput_messages",
        "CtxMemory.aget",
        "CtxMemory.set",
    ]


def test_an_event_names_the_span_in_which_it_happened(heard: Heard, spans: Spans) -> None:
    CtxMemory.from_defaults("s", context_window=4_000).put(ChatMessage("One."))
    told = next(e for e in heard._events if isinstance(e, SessionEvent))
    assert told.span_id == spans.entered[0][0]


def test_nothing_is_told_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event and a span cost more than the look whether anybody hears them."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("told to nobody")

    monkeypatch.setattr(Dispatcher, "event", fail)
    monkeypatch.setattr(Dispatcher, "span_enter", fail)
    memory = CtxMemory.from_defaults("s", context_window=4_000)
    memory.put("Where is the key?")
    assert [m.content for m in memory.get()] == ["Where is the key?"]
