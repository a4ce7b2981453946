"""A LlamaIndex embedding as the engine's embedder: recall by meaning as well as by words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index_instrumentation.dispatcher import instrument_tags

from ctxfold.given import check_has
from ctxfold.vectors import Embedder
from llamaindex_ctx.summarizer import marked

__all__ = ["LlamaIndexEmbedder", "as_embedder"]


class LlamaIndexEmbedder:
    """For `AgentContext(embedder=...)`; `CtxMemory` and `with_context` take the embedding itself as `embedder=`.

    Its instrumentation events carry the tag `ctxfold: recall`.
    """

    def __init__(self, embedding: BaseEmbedding) -> None:
        self._embedding = embedding

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        with instrument_tags(marked("recall")):
            return self._embedding.get_text_embedding_batch(list(texts))

    async def aembed(self, texts: Sequence[str]) -> list[list[float]]:
        with instrument_tags(marked("recall")):
            return await self._embedding.aget_text_embedding_batch(list(texts))


def as_embedder(given: Any) -> Embedder | None:
    """An embedder from what a user gives: LlamaIndex's, or one of the engine's kind. ConfigError for anything else."""
    if isinstance(given, BaseEmbedding):
        return LlamaIndexEmbedder(given)
    if given is not None:
        check_has(
            "embedder", given, ("embed", "aembed"), "give a LlamaIndex embedding, or an object with embed and aembed"
        )
    return cast("Embedder | None", given)


if TYPE_CHECKING:
    _: type[Embedder] = LlamaIndexEmbedder
