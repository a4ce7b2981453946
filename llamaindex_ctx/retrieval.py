"""Adapts retrievers, indices and embeddings of LlamaIndex to the sections and the recall of a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.base import BaseIndex
from llama_index.core.schema import MetadataMode, NodeWithScore
from llama_index_instrumentation.dispatcher import instrument_tags

from ctxfold import Item, Query, Section
from ctxfold.adapters.sessions import checked_embedder, found_item
from ctxfold.errors import ConfigError
from ctxfold.protocols import Embedder
from ctxfold.validation import kind_of
from llamaindex_ctx.summarizer import marked

_SOURCES = ("source", "file_path", "file_name", "url", "title")


def section_from(
    source: BaseRetriever | BaseIndex[Any], *, kind: str = "documents", limit: int = 8, **terms: Any
) -> Section:
    """Returns a section with the nodes that a retriever finds for the newest user message, or the `limit` nearest of an index.

    ```python
    memory = CtxMemory.from_defaults("s", context_window=64_000, sections=[section_from(index)])
    ```
    Nodes are shown as data, each once, with file and page. When the retriever fails or is too slow, the request goes without
    the section. `terms` are keyword arguments of `ctxfold.Section`: place, lifetime, share, min_free_ratio, timeout_s.
    Instrumentation events of the retriever have the tag `ctxfold: section`.
    """
    retriever: object = source
    if isinstance(source, BaseIndex):
        retriever = source.as_retriever(similarity_top_k=limit)
    if not isinstance(retriever, BaseRetriever):
        raise ConfigError(f"{kind_of(retriever)} cannot be the source of a section: give a retriever or an index")

    def found(query: Query) -> list[Item]:  # async code calls it in a worker thread
        with instrument_tags(marked("section")):
            return [_item(scored) for scored in retriever.retrieve(query.text)]

    return Section(kind, found, **terms)


def _item(scored: NodeWithScore) -> Item:
    text = scored.node.get_content(MetadataMode.NONE)
    node, metadata = scored.node, scored.node.metadata
    return found_item(text, metadata, sources=_SOURCES, page="page_label", id=node.node_id, score=scored.score)


class LlamaIndexEmbedder:
    """Adapts an embedding to `AgentContext(embedder=...)`; `CtxMemory` and `with_context` take LlamaIndex's embedding directly.

    Its instrumentation events have the tag `ctxfold: recall`.
    """

    def __init__(self, embedding: BaseEmbedding) -> None:
        self._embedding = embedding

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        with instrument_tags(marked("recall")):
            return self._embedding.get_text_embedding_batch(list(texts))

    async def aembed(self, texts: Sequence[str]) -> list[list[float]]:
        with instrument_tags(marked("recall")):
            return await self._embedding.aget_text_embedding_batch(list(texts))


def as_embedder(embedder: Any) -> Embedder | None:
    """Returns an embedder for LlamaIndex's embedding, or one of the engine's kind as it is. ConfigError for anything else."""
    if isinstance(embedder, BaseEmbedding):
        return LlamaIndexEmbedder(embedder)
    return checked_embedder(embedder, "a LlamaIndex embedding")


if TYPE_CHECKING:
    _: type[Embedder] = LlamaIndexEmbedder
