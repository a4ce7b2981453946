"""Adapts retrievers, vector stores and `Embeddings` of LangChain to the sections and the recall of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig
from langchain_core.vectorstores import VectorStore

from ctxfold import Item, Query, Section
from ctxfold.adapters.retrieval import checked_embedder, found_item
from ctxfold.errors import ConfigError
from ctxfold.protocols import Embedder
from ctxfold.validation import kind_of

_SOURCES = ("source", "file_path", "url", "title")
# a retriever may ask a model: nothing of that reaches the callbacks or the stream of the run around it
_APART: RunnableConfig = {"callbacks": [], "tags": ["nostream", "ctxfold:section"], "run_name": "ctxfold section"}


def section_from(
    source: BaseRetriever | VectorStore, *, kind: str = "documents", limit: int = 8, **terms: Any
) -> Section:
    """Returns a section with the documents that a retriever finds for the newest user message, or the `limit` nearest of a
    vector store.

    ```python
    model = with_context(chat, session_id="s", context_window=64_000, sections=[section_from(vector_store)])
    ```
    Documents are shown as data, each once, with source and page. When the retriever fails or is too slow, the request goes
    without the section. `terms` are keyword arguments of `ctxfold.Section`: place, lifetime, share, min_free_ratio, timeout_s.
    """
    candidate: Any = source  # or whatever else a caller hands over
    retriever: Any = (
        candidate.as_retriever(search_kwargs={"k": limit}) if isinstance(candidate, VectorStore) else candidate
    )
    if not isinstance(retriever, BaseRetriever):
        raise ConfigError(f"{kind_of(candidate)} cannot be the source of a section: give a retriever or a vector store")
    return Section(kind, _Retrieved(retriever), **terms)


@dataclass(frozen=True, slots=True)
class _Retrieved:
    """A retriever as the source of a section; async code calls it in a worker thread."""

    retriever: BaseRetriever

    def __call__(self, query: Query) -> list[Item]:
        return [_item(d) for d in self.retriever.invoke(query.text, _APART.copy())]


def _item(document: Document) -> Item:
    metadata = cast("Mapping[str, object]", document.metadata)
    return found_item(document.page_content, metadata, sources=_SOURCES, page="page", id=document.id)


class LangChainEmbedder:
    """Adapts `Embeddings` to `AgentContext(embedder=...)`; the classes of langchain_ctx take `Embeddings` directly."""

    def __init__(self, embeddings: Embeddings) -> None:
        self._embeddings = embeddings

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return self._embeddings.embed_documents(list(texts))

    async def aembed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return await self._embeddings.aembed_documents(list(texts))


def as_embedder(embedder: Any) -> Embedder | None:
    """Returns an embedder for LangChain's `Embeddings`, or one of the engine's kind as it is. ConfigError for anything else."""
    if isinstance(embedder, Embeddings):
        return LangChainEmbedder(embedder)
    return checked_embedder(embedder, "LangChain Embeddings")


if TYPE_CHECKING:
    _: type[Embedder] = LangChainEmbedder
