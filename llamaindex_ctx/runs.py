"""Which session a call belongs to: the one that was named, or one that lives as long as an agent's run."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from llama_index.core.agent.workflow.prompts import DEFAULT_EARLY_STOPPING_PROMPT
from llama_index_instrumentation.dispatcher import active_instrument_tags

from ctxfold.closing import Closing
from ctxfold.connect import open_store
from ctxfold.messages import Message, content_key
from ctxfold.ports import Store
from ctxfold.session import AgentContext
from llamaindex_ctx.instrumentation import tell

__all__ = ["Run", "Sessions", "Whose"]

MAX_RUNS = 256  # those that may be gone on with, newest ones
_RUN_TAG = "llamaindex.run_id"  # on whatever happens in a workflow's run; older releases do without
_STOP_BEGINS, _STOP_ENDS = DEFAULT_EARLY_STOPPING_PROMPT.split("{max_iterations}")


@dataclass(frozen=True, slots=True)
class Run:
    """A session, what it is to be given first as history, and what is asked in it then."""

    context: AgentContext
    earlier: tuple[Message, ...]
    fresh: tuple[Message, ...]


class Whose(NamedTuple):
    """Whose tool rounds: a session's (None without one), and of which workflow run ("" outside of one)."""

    owner: str
    session: str | None
    run: str

    @classmethod
    def here(cls, owner: str, session: str | None) -> Whose:
        return cls(owner, session, str(active_instrument_tags.get().get(_RUN_TAG) or ""))


@dataclass(frozen=True, slots=True)
class _Rounds:
    """The runs under way that have asked a question; of a single one its newest list, and the ids that came with that."""

    runs: int
    listed: tuple[Message, ...] = ()
    given: frozenset[str] = frozenset()


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
        self._runs: list[tuple[str, AgentContext]] = []  # by what they were given and answered, in order of keeping
        self._rounds: OrderedDict[tuple[Whose, str], _Rounds] = OrderedDict()  # by the words up to the question
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

    def rounds_of(self, whose: Whose, messages: Sequence[Message]) -> tuple[tuple[Message, ...], frozenset[str]] | None:
        """The question with the tool rounds that it has led to, and the ids that came with them, for an agent that asks without.

        One that has to stop early asks for an answer from "the information gathered so far" with what its memory has, which is
        nothing of this run. None where it may be another run that found them.
        """
        if not _stops_early(messages):
            return None
        with self._lock:
            held = self._rounds.get((whose, _digest(messages[:-1])))
        return (held.listed, held.given) if held is not None and held.listed else None

    def keep_rounds(self, whose: Whose, messages: Sequence[Message], given: frozenset[str], answer: Message) -> None:
        """Note the tool rounds that a question has led to so far; forget them when the answer calls nothing: the run is over."""
        asked = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1) + 1
        if not asked:
            return
        key = whose, _digest(messages[:asked])
        over = not answer.tool_calls or _stops_early(messages)
        with self._lock:
            held = self._rounds.pop(key, _Rounds(0))
            if asked == len(messages):
                noted = _asked_anew(held, whose, over=over)
            else:
                noted = _Rounds(held.runs - 1) if over else _gone_on(held, whose, _Rounds(1, tuple(messages), given))
            if noted.runs > 0:
                self._rounds[key] = noted
            while len(self._rounds) > MAX_RUNS:
                self._rounds.popitem(last=False)

    def take_run(self, messages: Sequence[Message]) -> Run:
        """The run that these messages go on with, or a new one; what it knows is left out."""
        answered = max((i for i, m in enumerate(messages) if m.role == "assistant"), default=-1) + 1
        key = _digest(messages[:answered])
        with self._lock:
            found = next((i for i in range(len(self._runs) - 1, -1, -1) if self._runs[i][0] == key), None)
            context = None if found is None else self._runs.pop(found)[1]
        if context is None:
            asked = max((i for i, m in enumerate(messages) if m.role == "user"), default=0)
            return Run(self._opened(session="run"), tuple(messages[:asked]), tuple(messages[asked:]))
        return Run(context, (), tuple(messages[answered:]))

    def keep_run(self, context: AgentContext, messages: Sequence[Message], answer: Message) -> None:
        """Wait for the list that goes on after this answer; the oldest run of too many is closed."""
        key = _digest([*messages, answer])
        with self._lock:
            self._runs.append((key, context))
            dropped = self._runs[:-MAX_RUNS]
            del self._runs[:-MAX_RUNS]
        for _, old in dropped:
            old.close(wait=False)

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


def _asked_anew(held: _Rounds, whose: Whose, *, over: bool) -> _Rounds:
    """What is left when the question is asked once more: none of the rounds, and who is under way.

    In a session, and in a workflow's run, only the newest is. Elsewhere nothing tells a run that was left from one that goes on.
    """
    if over:
        return _Rounds(held.runs)
    known = whose.run or whose.session is not None
    return _Rounds(1 if known else held.runs + 1)


def _gone_on(held: _Rounds, whose: Whose, newest: _Rounds) -> _Rounds:
    """The newest list, unless it may be another run's than what was held or what comes next."""
    begins = newest.listed[: len(held.listed)]
    runs = max(held.runs, 1)
    if not whose.run and _digest(begins) != _digest(held.listed):
        runs += 1
    return newest if runs == 1 else _Rounds(runs)


def _digest(messages: Sequence[Message]) -> str:
    seen = hashlib.sha256()
    for message in messages:
        seen.update(content_key(message).encode())
    return seen.hexdigest()
