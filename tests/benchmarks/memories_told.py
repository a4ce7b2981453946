"""Tells the 60 turns of the docs' picture to other memories and asks its questions; prints the facts found as JSON.

`memories` runs it in an environment with these packages. What a memory returns is cut to the tokens that a request may have,
its newest or best items first. mem0 stores the messages as they are (`infer=False`): its own way asks a model for facts.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

from ctxfold import Message
from ctxfold.tokens.text import MessageCounter, RatioCounter
from examples.demo.story import Question, load_story
from examples.window_chart import CONTEXT_WINDOW, TURNS, turn_messages
from tests.support.minilm import MiniLM

BUDGET = CONTEXT_WINDOW * 8 // 10  # tokens
Ask = Callable[[str], Iterable[str]]  # what a memory returns for a question, the most wanted first


def text_of(message: Message) -> str:
    return "\n".join(str(getattr(part, "text", "") or getattr(part, "content", "")) for part in message.parts)


def told() -> list[tuple[str, str]]:
    """Returns role and text of each message that has one."""
    turns = load_story().turns[:TURNS]
    messages = [m for number, turn in enumerate(turns) for m in turn_messages(turn, number)]
    return [(m.role, text) for m in messages if (text := text_of(m))]


def found(ask: Ask, questions: Iterable[Question], budget: int) -> int:
    counter = MessageCounter(RatioCounter())
    right = 0
    for question in questions:
        left, kept = budget, []
        for text in ask(question.question):
            left -= counter.count_text(text)
            if left < 0:
                break
            kept.append(text)
        right += question.is_right("\n".join(kept))
    return right


def openai_agents() -> Ask:
    from agents import SQLiteSession

    session = SQLiteSession("ann")
    asyncio.run(session.add_items([{"role": "user" if r == "tool" else r, "content": t} for r, t in told()]))  # type: ignore[misc]
    items: list[Any] = asyncio.run(session.get_items())
    return lambda _: (str(item["content"]) for item in reversed(items))


def langgraph_store() -> Ask:
    from langgraph.store.memory import InMemoryStore

    model = MiniLM()
    store = InMemoryStore(index={"dims": 384, "embed": model.embed, "fields": ["text"]})
    for number, (_, text) in enumerate(told()):
        store.put(("ann",), str(number), {"text": text})
    return lambda question: (str(hit.value["text"]) for hit in store.search(("ann",), query=question, limit=50))


def mem0() -> Ask:
    os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": tempfile.mkdtemp(), "OPENAI_API_KEY": "none"}
    from langchain_core.embeddings import Embeddings
    from mem0 import Memory

    class Local(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [[float(x) for x in vector] for vector in MiniLM().embed(texts)]

        def embed_query(self, text: str) -> list[float]:
            return self.embed_documents([text])[0]

    embedder = {"provider": "langchain", "config": {"model": Local(), "embedding_dims": 384}}
    place = {"collection_name": "told", "embedding_model_dims": 384, "path": tempfile.mkdtemp(), "on_disk": False}
    memory = Memory.from_config({"embedder": embedder, "vector_store": {"provider": "qdrant", "config": place}})
    for role, text in told():
        memory.add([{"role": "user" if role == "tool" else role, "content": text}], user_id="ann", infer=False)

    def ask(question: str) -> Iterable[str]:
        hits = memory.search(question, top_k=50, filters={"user_id": "ann"}, threshold=0.0)
        return (str(hit["memory"]) for hit in hits["results"])

    return ask


def main() -> None:
    questions = [q for q in load_story().questions if q.turn < TURNS]
    rows = []
    for make in (openai_agents, langgraph_store, mem0):
        ask = make()
        rows.append({"name": make.__name__, "found": [found(ask, questions, b) for b in (BUDGET, BUDGET // 4)]})
    print(json.dumps({"questions": len(questions), "budgets": [BUDGET, BUDGET // 4], "rows": rows}))


if __name__ == "__main__":
    main()
