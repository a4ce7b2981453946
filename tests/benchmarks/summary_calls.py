"""How often a LlamaIndex memory asks its LLM for a summary, over 500 turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, CompletionResponse, CompletionResponseGen, LLMMetadata
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.memory import ChatSummaryMemoryBuffer
from llama_index.core.memory.types import BaseMemory
from pydantic import PrivateAttr

from llamaindex_ctx import CtxMemory
from tests.benchmarks.conversation import texts
from tests.benchmarks.sheets import Cell, Sheet

__all__ = ["Writer", "calls_in", "run"]

TURNS, QUICK_TURNS = 500, 60
LIMITS = (2_000, 4_000, 8_000)  # tokens of history; the first is what ChatSummaryMemoryBuffer was made for


class Writer(CustomLLM):
    """Writes as a summary the end of what it is given, 150 words; counts how often it is asked."""

    _calls: int = PrivateAttr(default=0)

    @property
    def calls(self) -> int:
        return self._calls

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=64_000, num_output=1_000, model_name="writer")

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self._calls += 1
        return CompletionResponse(text=" ".join(prompt.split()[-150:]))

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        raise NotImplementedError("memories ask for whole summaries")


def calls_in(memory: BaseMemory, writer: Writer, turns: int) -> int:
    """The summary calls of so many turns: put the question, get the window, put the answer."""
    for n in range(turns):
        asked, answered = texts(n)
        memory.put(ChatMessage(role="user", content=asked))
        memory.get()
        memory.put(ChatMessage(role="assistant", content=answered))
    return writer.calls


def run(*, quick: bool = False) -> list[Sheet]:
    """One table: both memories at each limit, the same conversation and the same writer."""
    turns = QUICK_TURNS if quick else TURNS
    rows: list[tuple[Cell, ...]] = []
    for limit in LIMITS[:1] if quick else LIMITS:
        for name, memory, writer in _memories(limit):
            calls = calls_in(memory, writer, turns)
            rows.append((name, limit, turns, calls, calls / turns))
    return [
        Sheet(
            "Summary calls of a LlamaIndex memory",
            ("memory", "token limit", "turns", "summary calls", "per turn"),
            tuple(rows),
            "Target: CtxMemory 0.05 or fewer. A turn is some 60 tokens: a question of a line and a short answer.",
        )
    ]


def _memories(limit: int) -> Sequence[tuple[str, BaseMemory, Writer]]:
    ours, theirs = Writer(), Writer()
    return (
        ("CtxMemory", CtxMemory.from_defaults(token_limit=limit, llm=ours), ours),
        ("ChatSummaryMemoryBuffer", ChatSummaryMemoryBuffer.from_defaults(llm=theirs, token_limit=limit), theirs),
    )
