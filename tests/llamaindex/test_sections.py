"""Sections from LlamaIndex retrievers and indices."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.embeddings.mock_embed_model import MockEmbedding
from llama_index.core.llms.mock import MockLLM
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from ctxfold import ConfigError
from ctxfold.events import SectionInjected, SectionSkipped
from ctxfold.testing import ModelServer
from llamaindex_ctx import CtxLLM, CtxMemory, with_context
from llamaindex_ctx.retrieval import section_from


class Shelf(BaseRetriever):
    """Finds the nodes that share a word with the query."""

    def __init__(self, nodes: list[TextNode]) -> None:
        super().__init__()
        self.nodes = nodes

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        wanted = set(query_bundle.query_str.lower().strip("?").split())
        scored = [(len(wanted & set(n.text.lower().strip(".").split())), n) for n in self.nodes]
        return [NodeWithScore(node=n, score=float(score)) for score, n in scored if score]


class Broken(BaseRetriever):
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        raise RuntimeError("the index is gone")


SHELF = [
    TextNode(id_="n1", text="The boiler is inspected in March.", metadata={"file_path": "house.md", "page_label": "3"}),
    TextNode(id_="n2", text="Nothing of interest here.", metadata={"url": "https://example.org"}),
]


def shown(messages: list[ChatMessage]) -> str:
    return "\n".join(m.content or "" for m in messages)


async def test_a_memory_shows_what_a_retriever_finds() -> None:
    memory = CtxMemory.from_defaults("s", context_window=8_000, sections=[section_from(Shelf(SHELF))])
    seen: list[Any] = []
    memory.context.subscribe(seen.append)
    memory.put(ChatMessage("When is the boiler inspected?"))
    for window in (memory.get(), await memory.aget()):
        assert "inspected in March" in shown(window)
        assert "house.md, page 3" in shown(window)
        assert "Nothing of interest" not in shown(window)
        assert window[-1].content == "When is the boiler inspected?"
    assert all("March" not in (m.content or "") for m in memory.get_all())
    injected = [e for e in seen if isinstance(e, SectionInjected)]
    assert injected[0].kind == "documents"


@pytest.mark.parametrize("how", ["chat", "achat"])
async def test_an_llm_is_sent_it(how: str) -> None:
    with ModelServer(context_window=8_000) as server:
        llm = CtxLLM(model="lookup", base_url=server.base_url, api_key="x", context_window=8_000)
        chat = with_context(llm, session_id="s", sections=[section_from(Shelf(SHELF), kind="handbook")])
        asked = [ChatMessage("When is the boiler inspected?")]
        if how == "chat":
            chat.chat(asked)
        else:
            await chat.achat(asked)
        assert "inspected in March" in str(server.requests[-1].body["messages"])
        await llm.aclose()
        llm.close()


def test_an_index_is_asked_for_the_nearest() -> None:
    index = VectorStoreIndex.from_documents(
        [Document(text=f"Paragraph {n} of the house rules.") for n in range(6)], embed_model=MockEmbedding(embed_dim=4)
    )
    memory = CtxMemory.from_defaults("s", context_window=8_000, sections=[section_from(index, limit=3)])
    memory.put(ChatMessage("What do the rules say?"))
    assert shown(memory.get()).count("of the house rules") == 3, "LlamaIndex's own number is 2"


def test_a_retriever_that_fails_costs_only_its_section() -> None:
    memory = CtxMemory.from_defaults(
        "s", context_window=8_000, sections=[section_from(Broken()), section_from(Shelf(SHELF), kind="handbook")]
    )
    seen: list[Any] = []
    memory.context.subscribe(seen.append)
    memory.put(ChatMessage("When is the boiler inspected?"))
    assert "inspected in March" in shown(memory.get())
    (skipped,) = [e for e in seen if isinstance(e, SectionSkipped)]
    assert (skipped.kind, "the index is gone" in skipped.reason) == ("documents", True)


def test_what_is_no_retriever_is_refused() -> None:
    given: Any = MockLLM()
    with pytest.raises(ConfigError, match="a MockLLM cannot be the source of a section"):
        section_from(given)
