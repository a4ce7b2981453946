"""The evidence for a question is in the window through every face, as often as in the engine's own."""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from pydantic import SecretStr

from ctxfold import AgentContext, MemoryStore
from ctxfold.testing import ModelServer, Scripted
from langchain_ctx import ContextMiddleware, with_context
from llamaindex_ctx import CtxMemory
from tests.benchmarks.data import DataMissingError
from tests.benchmarks.evidence import BUDGETS, Ask, Opened, Shares, archived, prepared, prepared_by, settings, through


class Listening:
    """A model on loopback, and what it was sent last."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.server = ModelServer(script=self._reply)

    def _reply(self, body: Any) -> Scripted:
        self.sent = list(body["messages"])
        return Scripted("ok")

    def model(self) -> ChatOpenAI:
        return ChatOpenAI(model="m", base_url=self.server.base_url, api_key=SecretStr("x"), max_retries=0)

    def shown(self, question: str) -> str:
        """All that stood beside the question."""
        texts = [str(m["content"]) for m in self.sent]
        assert texts.count(question) == 1
        return "\n".join(t for t in texts if t != question)


@contextmanager
def langchain_prepared(texts: Sequence[str], budget: int) -> Generator[Ask]:
    heard = Listening()
    with heard.server:
        chat = with_context(heard.model(), session_id="s", **settings(budget))
        archived(chat.context(), texts)
        yield functools.partial(prepared_by, chat.context().service)
        chat.close()


@contextmanager
def langchain_sent(texts: Sequence[str], budget: int) -> Generator[Ask]:
    """Each question is asked of a fork, so that none sees those before it."""
    heard, names = Listening(), map("q{}".format, count())
    with heard.server:
        chat = with_context(heard.model(), session_id="s", **settings(budget))
        archived(chat.context(), texts)

        def ask(question: str) -> str:
            name = next(names)
            chat.context().fork(name)
            chat.invoke([HumanMessage(question)], {"configurable": {"session_id": name}})
            return heard.shown(question)

        yield ask
        chat.close()


@contextmanager
def langchain_agent(texts: Sequence[str], budget: int) -> Generator[Ask]:
    """As an agent's model gets it, also each from a fork."""
    heard, names, store = Listening(), map("q{}".format, count()), MemoryStore()
    rules: dict[str, Any] = {**settings(budget), "auto_compact": True, "history_tools": False}
    with heard.server, AgentContext(session_id="s", store=store, **settings(budget)) as context:
        archived(context, texts)

        def ask(question: str) -> str:
            name = next(names)
            context.fork(name)
            middleware = ContextMiddleware(store=store, session_id=name, **rules)
            agent: Any = create_agent(heard.model(), [], middleware=[middleware])
            agent.invoke({"messages": [HumanMessage(question)]})
            return heard.shown(question)

        yield ask


def _memory(texts: Sequence[str], budget: int) -> CtxMemory:
    memory = CtxMemory.from_defaults("s", **settings(budget))
    archived(memory.context, texts)
    return memory


@contextmanager
def llamaindex_prepared(texts: Sequence[str], budget: int) -> Generator[Ask]:
    with _memory(texts, budget) as memory:
        yield functools.partial(prepared_by, memory.context.service)


@contextmanager
def llamaindex_window(texts: Sequence[str], budget: int) -> Generator[Ask]:
    """As an agent reads it: the question is put first, each into a fork. Without that, room for documents is left free."""
    names, store = map("q{}".format, count()), MemoryStore()
    with AgentContext(session_id="s", store=store, **settings(budget)) as context:
        archived(context, texts)

        def ask(question: str) -> str:
            name = next(names)
            context.fork(name)
            with CtxMemory.from_defaults(name, store=store, **{**settings(budget), "auto_compact": True}) as memory:
                memory.put(ChatMessage(question, role=MessageRole.USER))
                window = memory.get()
            assert window[-1].content == question
            return "\n".join(m.content or "" for m in window[:-1])

        yield ask


@functools.cache
def _own() -> tuple[Shares, ...]:
    return tuple(prepared(BUDGETS[:1]))


@pytest.mark.parametrize(
    "face", [langchain_prepared, langchain_sent, langchain_agent, llamaindex_prepared, llamaindex_window]
)
def test_the_evidence_is_in_the_window_of_each_face(face: Opened) -> None:
    try:
        own = _own()
    except DataMissingError as missing:
        pytest.skip(str(missing))
    assert tuple(through(face, BUDGETS[:1])) == own
    assert all(s.half_and_half / s.questions >= 0.95 for s in own)
