"""What a turn does not read again: records and hits that recall has read before, and a log that nobody else has written to."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxfold import AgentContext, MemoryStore, ScriptedBackend, SqlStore, ToolCallPart, assistant, tool_result, user
from ctxfold.effects import run
from ctxfold.errors import MessageConflictError
from ctxfold.history.records import Draft, MessageAdded, Record, SessionKey
from ctxfold.index.cache import SINGLE, TERMS, Hits, PassageCache
from ctxfold.protocols import Document, Ports
from ctxfold.retrieval.bm25 import ranked
from ctxfold.tokens.text import MessageCounter
from tests.support.driven import COUNTER

KEY = SessionKey("ann", "s")
WORDS = "abcdef"


class Counting(SqlStore):
    """Counts what is asked of it, and the threads that its work is handed to."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked: Counter[str] = Counter()
        self.terms: list[str] = []
        self.search_threads: list[int] = []

    def read(self, *args: Any, **kwargs: Any) -> Any:
        self.asked["read"] += 1
        return super().read(*args, **kwargs)

    def fetch(self, *args: Any, **kwargs: Any) -> Any:
        self.asked["fetch"] += 1
        return super().fetch(*args, **kwargs)

    def find(self, *args: Any, **kwargs: Any) -> Any:
        self.asked["find"] += 1
        return super().find(*args, **kwargs)

    def postings(self, key: SessionKey, terms: Any, **kwargs: Any) -> Any:
        self.terms += terms
        self.search_threads.append(threading.get_ident())
        return super().postings(key, terms, **kwargs)

    async def offload(self, work: Any, *args: Any, **kwargs: Any) -> Any:
        self.asked["thread"] += 1
        return await super().offload(work, *args, **kwargs)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Counting]:
    with Counting(f"sqlite:///{tmp_path}/a.db") as opened:
        yield opened


def told(store: SqlStore) -> AgentContext:
    """A session whose early messages are compacted."""
    context = AgentContext(store=store, context_window=2_000)
    for n in range(60):
        context.add([user(f"Box KX-{n} stands in hall {n % 9}, behind the {n}th door.", id=f"u{n}")])
        context.add([assistant(f"Noted: KX-{n}, hall {n % 9}.", id=f"a{n}")])
    context.compact()
    return context


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.lists(st.dictionaries(st.sampled_from(WORDS), st.integers(1, 4), min_size=1), min_size=1, max_size=12),
            st.sets(st.sampled_from(WORDS), min_size=1).map(sorted),
        ),
        max_size=12,
    ),
    st.integers(1, 5),
)
def test_what_is_remembered_of_the_index_ranks_as_what_is_read(steps: list[Any], probe: int) -> None:
    """Documents come in, or a question does; with and without what earlier ones read, the ranking is the same."""
    store, hits, seq = MemoryStore(), Hits(), 0
    ports = Ports(store, MessageCounter(COUNTER))
    for step in steps:
        if isinstance(step[0], dict):
            documents = [Document(seq + n, terms, sum(terms.values())) for n, terms in enumerate(step, 1)]
            store.append(KEY, [], documents=documents)
            seq += len(documents)
        else:
            known = run(ranked(KEY, step, probe=probe, hits=hits), ports)
            assert known == run(ranked(KEY, step, probe=probe), ports)


def test_what_is_remembered_is_bounded() -> None:
    hits = Hits()
    hits.keep((1, 1), {f"t{n}": ((1, 1, 1),) for n in range(TERMS + 10)}, 5)
    assert len(hits.newest([f"t{n}" for n in range(TERMS + 10)], 5)) == TERMS
    assert hits.newest(["t300"], 6) == {}, "more are wanted than were read"
    hits.keep_among({"a": [(1, 1, 1)]}, range(SINGLE))
    assert hits.among(["a"], [1, 2, SINGLE]) == ({"a": ((1, 1, 1),)}, (SINGLE,))
    hits.keep_among({"a": []}, [SINGLE])
    assert hits.among(["a"], [1, 2, SINGLE])[1] == (1, 2)
    readings = PassageCache(size=2)
    records = [Record(n, f"m:{n}", MessageAdded(user(f"Text {n}.", id=str(n)))) for n in (1, 2, 3)]
    assert [r.sentences[0] for r in readings.keep(records).values()] == ["Text 1.", "Text 2.", "Text 3."]
    assert sorted(readings.known([1, 2, 3])) == [2, 3]


def test_a_second_question_reads_what_is_new_to_it(store: Counting) -> None:
    with told(store) as context:
        first = context.window(recall=True, question="Where does box KX-3 stand?").recalled
        assert "hall 3" in first
        fetched, before = store.asked["fetch"], len(store.terms)
        again = context.window(recall=True, question="Box KX-3, where does it stand now?").recalled
        assert "hall 3" in again
        assert store.asked["fetch"] == fetched
        assert "box" not in store.terms[before:]
        other = context.window(recall=True, question="And what of KX-12?").recalled
        assert "hall 3" in other.partition("KX-12")[2]
        assert store.asked["fetch"] == fetched + 1


def test_what_was_erased_is_not_remembered(store: Counting) -> None:
    with told(store) as context:
        question = "Where does box KX-3 stand?"
        assert "KX-3" in context.window(recall=True, question=question).recalled
        context.erasure.erase("u3", "a3")
        assert "KX-3," not in context.window(recall=True, question=question).recalled
        assert "KX-3," not in context.window(recall=True, question="KX-3, where is it?").recalled


def test_recall_takes_one_thread_on_a_loop(store: Counting) -> None:
    with told(store) as context:

        async def asked() -> int:
            await context.aview()
            before = store.asked["thread"]
            window = await context.awindow(recall=True, question="Where does box KX-3 stand?")
            assert "hall 3" in window.recalled
            return store.asked["thread"] - before

        assert asyncio.run(asked()) == 1, "one call of its own, for the log"
        assert len(store.search_threads) > 1
        assert len({*store.search_threads, threading.get_ident()}) == 2, "recall searches in one other thread"


def test_to_add_reads_nothing_while_nobody_else_writes(store: Counting) -> None:
    with AgentContext(store=store, context_window=4_000) as context:
        context.add("Hello.")
        before = store.asked["read"]
        context.add([assistant("Hello!", id="a")], known_ids=False)
        context.add("How are you?")
        assert store.asked["read"] == before
        assert [m.text for m in context.messages()] == ["Hello.", "Hello!", "How are you?"]


def test_to_add_minds_what_others_have_written(store: Counting, tmp_path: Path) -> None:
    with AgentContext(store=store, context_window=4_000) as mine, SqlStore(f"sqlite:///{tmp_path}/a.db") as opened:
        theirs = AgentContext(store=opened, context_window=4_000)
        mine.add("What is the weather?")
        theirs.add([assistant("", calls=[ToolCallPart("c1", "weather", "{}")], id="call")])
        # by what this one has seen, the result answers no call
        mine.add([tool_result("c1", "Rain.", id="r")], known_ids=False)
        theirs.add([assistant("It rains.", id="end")], known_ids=False)
        assert [m.id for m in mine.messages()][1:] == ["call", "r", "end"]
        assert mine.view().messages == theirs.view().messages
        theirs.erasure.erase_session()
        mine.add("Anew.")
        assert [m.text for m in mine.messages()] == ["Anew."]


def test_a_new_question_is_not_looked_for(store: Counting) -> None:
    with AgentContext(store=store, context_window=4_000, backend=ScriptedBackend(["Hello!", "Fine."])) as context:
        context.send(user("Hello.", id="q1"))
        before = store.asked["find"]
        context.send(user("How are you?", id="q2"))
        assert store.asked["find"] - before == 1, "for the id of the reply"
        assert [m.text for m in context.messages()] == ["Hello.", "Hello!", "How are you?", "Fine."]


class Overtaken(MemoryStore):
    """Somebody else stores the question first, in a turn of theirs, at the moment in which this process stores it."""

    def __init__(self) -> None:
        super().__init__()
        self.theirs: Draft | None = None

    def append(self, key: SessionKey, drafts: Sequence[Draft], **kwargs: Any) -> tuple[Record, ...]:
        if self.theirs is not None and any(d.id == self.theirs.id for d in drafts):
            first, self.theirs = self.theirs, None
            super().append(key, (first,))
        return super().append(key, drafts, **kwargs)


@pytest.mark.parametrize("turn", ["theirs", None])
def test_a_question_that_another_worker_stores_first_is_stored_once(turn: str | None) -> None:
    store = Overtaken()
    with AgentContext(store=store, context_window=4_000, backend=ScriptedBackend(["Hello!"])) as context:
        context.add("Before.")
        store.theirs = Draft("m:q", MessageAdded(user("Hello.", id="q")), turn, time.time())
        context.send(user("Hello.", id="q"))
        assert [m.text for m in context.messages()] == ["Before.", "Hello.", "Hello!"]
        assert [r.id for r in store.read(SessionKey("default", "default"))].count("m:q") == 1


def test_a_question_with_the_id_of_another_one_is_refused(store: Counting) -> None:
    with AgentContext(store=store, context_window=4_000, backend=ScriptedBackend(["Hello!", "Never."])) as context:
        context.send(user("Hello.", id="q"))
        with pytest.raises(MessageConflictError, match="other content"):
            context.send(user("How are you?", id="q"))
        assert [m.text for m in context.messages()] == ["Hello.", "Hello!"]
