"""Which session a call belongs to: the one that was named, or one that lives as long as an agent's run."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llama_index.core.agent.workflow.prompts import DEFAULT_EARLY_STOPPING_PROMPT

from ctxfold.closing import Closing
from ctxfold.connect import open_store
from ctxfold.messages import Message, content_key
from ctxfold.ports import Store
from ctxfold.session import AgentContext
from llamaindex_ctx.instrumentation import tell

__all__ = ["Run", "Sessions"]

MAX_RUNS = 256  # those that are gone on with, newest ones
_STOP_BEGINS, _STOP_ENDS = DEFAULT_EARLY_STOPPING_PROMPT.split("{max_iterations}")


@dataclass(frozen=True, slots=True)
class Run:
    """A session, what it is to be given first as history, and what is asked in it then."""

    context: AgentContext
    earlier: tuple[Message, ...]
    fresh: tuple[Message, ...]


class Sessions(Closing):
    """Named sessions over one engine and one store, and runs, each in a memory of its own. Safe across threads and tasks.

    A run is recognised by its words: the list that a call brings begins with what an earlier call was given, and its answer.
    It is gone on with once; a second list with the same beginning, such as another branch, starts from its own messages.
    """

    def __init__(self, *, store: str | Store | None, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        self.store = open_store(store)
        self._owns_store = store is None or isinstance(store, str)
        self._first: AgentContext | None = None
        self._runs: OrderedDict[str, list[AgentContext]] = OrderedDict()
        # by a question, the newest list that went on from it, and the ids that came with that
        self._rounds: OrderedDict[str, tuple[tuple[Message, ...], frozenset[str]]] = OrderedDict()
        self._lock = threading.Lock()

    def at(self, session: str, owner: str) -> AgentContext:
        """The named session; the first one is opened at once, any other at its first use."""
        with self._lock:
            if self._first is None:
                self._first = self._opened(session=session, owner=owner, store=self.store)
            first = self._first
        return first.at(session, owner=owner)

    async def aat(self, session: str, owner: str) -> AgentContext:
        """`at`, without holding up the loop."""
        if self._first is None:
            return await asyncio.to_thread(self.at, session, owner)
        return self.at(session, owner)

    def rounds_of(self, messages: Sequence[Message]) -> tuple[tuple[Message, ...], frozenset[str]] | None:
        """The question with the tool rounds that it has led to, and the ids that came with them, for an agent that asks without.

        One that has to stop early asks for an answer from "the information gathered so far" with what its memory has, which is
        nothing of this run.
        """
        if not _stops_early(messages):
            return None
        with self._lock:
            return self._rounds.get(_digest(messages[:-1]))

    def keep_rounds(self, messages: Sequence[Message], given: frozenset[str]) -> None:
        """Note the tool rounds that a question has led to so far."""
        asked = max((i for i, m in enumerate(messages) if m.role == "user"), default=len(messages)) + 1
        if asked < len(messages) and not _stops_early(messages):
            with self._lock:
                self._rounds[_digest(messages[:asked])] = (tuple(messages), given)
                while len(self._rounds) > MAX_RUNS:
                    self._rounds.popitem(last=False)

    def take_run(self, messages: Sequence[Message]) -> Run:
        """The run that these messages go on with, or a new one; what it knows is left out."""
        answered = max((i for i, m in enumerate(messages) if m.role == "assistant"), default=-1) + 1
        key = _digest(messages[:answered])
        with self._lock:
            waiting = self._runs.get(key, [])
            context = waiting.pop() if waiting else None
            if not waiting:
                self._runs.pop(key, None)
        if context is None:
            asked = max((i for i, m in enumerate(messages) if m.role == "user"), default=0)
            return Run(self._opened(session="run"), tuple(messages[:asked]), tuple(messages[asked:]))
        return Run(context, (), tuple(messages[answered:]))

    def keep_run(self, context: AgentContext, messages: Sequence[Message], answer: Message) -> None:
        """Wait for the list that goes on after this answer."""
        key = _digest([*messages, answer])
        with self._lock:
            self._runs.setdefault(key, []).append(context)
            while len(self._runs) > MAX_RUNS:
                self._runs.popitem(last=False)

    def _opened(self, **where: Any) -> AgentContext:
        context = AgentContext(**where, **self._settings)
        context.subscribe(tell)
        return context

    def close(self) -> None:
        if self._owns_store:
            self.store.close()

    async def aclose(self) -> None:
        if self._owns_store:
            await self.store.aclose()


def _stops_early(messages: Sequence[Message]) -> bool:
    """Whether the list ends as LlamaIndex's agents end it at their last iteration with `early_stopping_method="generate"`."""
    text = messages[-1].text if messages and messages[-1].role == "system" else ""
    return text.startswith(_STOP_BEGINS) and text.endswith(_STOP_ENDS)


def _digest(messages: Sequence[Message]) -> str:
    seen = hashlib.sha256()
    for message in messages:
        seen.update(content_key(message).encode())
    return seen.hexdigest()
