"""LangChain's `Embeddings` as what recall finds passages by meaning with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.embeddings import Embeddings

from ctxfold.errors import ConfigError
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
    if callable(getattr(given, "embed", None)) and callable(getattr(given, "aembed", None)):
        return given  # type: ignore[no-any-return]
    raise ConfigError(
        f"embedder is a {type(given).__name__}: give LangChain Embeddings, or an object with embed and aembed"
    )


if TYPE_CHECKING:
    _: type[Embedder] = LangChainEmbedder
