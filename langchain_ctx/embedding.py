"""LangChain's `Embeddings` as what recall finds passages by meaning with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from langchain_core.embeddings import Embeddings

from ctxfold.given import check_has
from ctxfold.vectors import Embedder

__all__ = ["LangChainEmbedder", "as_embedder"]


class LangChainEmbedder:
    """For `AgentContext(embedder=...)`; LangChain's faces take the `Embeddings` themselves as `embedder=`."""

    def __init__(self, embeddings: Embeddings) -> None:
        self._embeddings = embeddings

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return self._embeddings.embed_documents(list(texts))

    async def aembed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return await self._embeddings.aembed_documents(list(texts))


def as_embedder(given: Any) -> Embedder:
    """An embedder from what a user gives: LangChain's, or one of the engine's kind. ConfigError for anything else."""
    if isinstance(given, Embeddings):
        return LangChainEmbedder(given)
    check_has("embedder", given, ("embed", "aembed"), "give LangChain Embeddings, or an object with embed and aembed")
    return cast("Embedder", given)


if TYPE_CHECKING:
    _: type[Embedder] = LangChainEmbedder
