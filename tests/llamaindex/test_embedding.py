"""Recall by meaning, with a LlamaIndex embedding."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import ChatMessage

from ctxfold import AgentContext, ConfigError
from ctxfold.testing import ModelServer
from llamaindex_ctx import CtxLLM, CtxMemory, with_context
from llamaindex_ctx.retrieval import LlamaIndexEmbedder

WORDS = ({"car", "automobile", "vehicle"}, {"boiler", "heating"}, {"plant", "flower"})


class Meanings(BaseEmbedding):
    """One axis per meaning, and one for everything else."""

    def _get_text_embedding(self, text: str) -> list[float]:
        said = set(text.lower().replace(".", " ").replace("?", " ").split())
        return [float(bool(said & words)) for words in WORDS] + [0.05]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


FACT = "The automobile stands in the third row."
QUESTION = "Where is my car?"  # not a word in common


def fill(memory: CtxMemory) -> None:
    memory.put(ChatMessage(FACT))
    for n in range(30):
        memory.put(ChatMessage(role="assistant", content=f"Noted, and entry {n} of the ledger was closed."))
        memory.put(ChatMessage(f"Entry {n} of the ledger belongs to folder {n * 7}, shelf {n % 4}."))
    memory.put(ChatMessage(role="assistant", content="Good."))
    memory.context.compact(force=True)
    memory.put(ChatMessage(QUESTION))


@pytest.mark.parametrize("embedder", [None, Meanings()])
async def test_what_has_no_word_in_common_is_found_by_meaning(embedder: BaseEmbedding | None) -> None:
    memory = CtxMemory.from_defaults("s", token_limit=1_000, embedder=embedder, summary_tokens=60)
    fill(memory)
    for window in (memory.get(), await memory.aget()):
        recalled = [m.content or "" for m in window if m.additional_kwargs.get("ctxfold_kind") == "section"]
        assert any(FACT in text for text in recalled) is (embedder is not None)


@pytest.mark.parametrize("how", ["chat", "achat"])
async def test_an_llm_with_context_takes_one(how: str) -> None:
    with ModelServer(context_window=8_000) as server:
        llm = CtxLLM(model="lookup", base_url=server.base_url, api_key="x", context_window=8_000)
        chat = with_context(llm, session_id="s", context_window=1_200, embedder=Meanings(), summary_tokens=60)
        said = [FACT, *(f"Entry {n} of the ledger belongs to folder {n * 7}, shelf {n % 4}." for n in range(20))]
        for text in (*said, QUESTION):
            asked = [ChatMessage(text)]
            _ = chat.chat(asked) if how == "chat" else await chat.achat(asked)
        assert FACT in str(server.requests[-1].body["messages"])
        llm.close()
        await llm.aclose()


def test_the_engine_takes_one_by_itself() -> None:
    with AgentContext(context_window=1_000, embedder=LlamaIndexEmbedder(Meanings())) as context:
        assert context.window().messages == ()


def test_what_is_no_embedding_is_refused() -> None:
    given: Any = "text-embedding-3-small"
    with pytest.raises(ConfigError, match="embedder is a str"):
        CtxMemory.from_defaults("s", token_limit=1_000, embedder=given)
