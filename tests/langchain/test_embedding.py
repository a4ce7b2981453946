"""LangChain's `Embeddings` find compacted passages by meaning, through every face."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from ctxfold import AgentContext, ConfigError
from ctxfold.tokens.text import RatioCounter
from langchain_ctx import ContextNode, with_context
from langchain_ctx.backend import LangChainEmbedder
from langchain_ctx.messages import from_langchain

FILLER = "We also spoke about the weather in the old town for a while. " * 6
TOLD = "The puppy is called Bello."
ASKED = "Which name has our canine friend?"  # no word in common with what was told


class Meaning(Embeddings):
    """Dogs point one way, everything else another; keeps what it was asked for."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[str] = []
        self._error = error

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.asked += texts
        if self._error is not None:
            raise self._error
        return [[1.0, 0.0] if ("puppy" in t or "canine" in t) else [0.0, 1.0] for t in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


class Watched(FakeListChatModel):
    """Keeps what it was asked."""

    requests: list[Any] = []  # noqa: RUF012

    def _call(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> str:
        self.requests.append("\n".join(m.text for m in messages))
        return "Noted."


def filler(count: int = 16) -> list[BaseMessage]:
    return [m for n in range(count) for m in (HumanMessage(f"{n}. {FILLER}"), AIMessage("Noted."))]


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("meaning", [Meaning(), None])
async def test_a_node_recalls_by_meaning(meaning: Meaning | None, how: str) -> None:
    """The passage is found with embeddings, and only with them."""
    said = [HumanMessage(TOLD), AIMessage("Noted."), *filler(), HumanMessage(ASKED)]
    config: Any = {"configurable": {"thread_id": "t"}}
    writer = FakeListChatModel(responses=["They spoke about the weather."])
    with ContextNode(context_window=2_000, embedder=meaning, summarizer=writer, counter=RatioCounter()) as fit:
        shown = fit.invoke(said, config) if how == "sync" else await fit.ainvoke(said, config)
        assert fit.context("t").usage().compactions > 0
        passages = "\n".join(m.text for m in shown if m.text.startswith("Passages recalled"))
        assert ("Bello" in passages) == (meaning is not None)


def test_with_context_takes_them_too() -> None:
    meaning, model = Meaning(), Watched(responses=["Noted."], requests=[])
    chat = with_context(model, session_id="s", context_window=2_000, embedder=meaning, counter=RatioCounter())
    for text in (TOLD, *(m.text for m in filler() if isinstance(m, HumanMessage)), ASKED):
        chat.invoke(text)
    assert ASKED in meaning.asked
    assert TOLD in model.requests[-1]


async def test_an_adapter_for_the_engine() -> None:
    meaning = Meaning()
    embedder = LangChainEmbedder(meaning)
    assert embedder.embed(["a puppy", "a tree"]) == await embedder.aembed(["a puppy", "a tree"])
    with AgentContext(context_window=2_000, embedder=embedder, counter=RatioCounter()) as context:
        for message in filler():
            context.add(from_langchain(message))
        context.window(recall=True, question=ASKED)
        assert ASKED in meaning.asked


def test_embeddings_that_fail_cost_only_the_meaning() -> None:
    said = [HumanMessage(TOLD), AIMessage("Noted."), *filler(), HumanMessage("Is the puppy called Bello?")]
    with ContextNode(
        context_window=2_000, embedder=Meaning(RuntimeError("service down")), counter=RatioCounter()
    ) as fit:
        shown = fit.invoke(said, {"configurable": {"thread_id": "t"}})
        assert TOLD in "\n".join(m.text for m in shown)


def test_what_is_no_embedder() -> None:
    with pytest.raises(ConfigError, match="embedder is a str"):
        ContextNode(context_window=2_000, embedder="text-embedding-3")
    with pytest.raises(ConfigError, match="embedder is an int"):
        ContextNode(context_window=2_000, embedder=7)
