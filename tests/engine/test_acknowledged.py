"""L4, L5: what was acknowledged is stored and visible to every process at once, and keeps its place, whoever dies."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage

from ctxfold import MemoryStore, Message, ScriptedBackend, ToolCallPart, assistant, tool_result, user
from ctxfold.connect import open_store
from llamaindex_ctx import CtxChatStore, CtxMemory
from tests.llamaindex.talk import calling, result
from tests.properties.machine import assert_legal
from tests.properties.outages import LATE_S, UnreliableStore, Weather
from tests.support.driven import context
from tests.support.processes import CONTEXT, import_once, start

import_once(__name__)


class Dying:
    """A store in a process that ends at its n-th append: before it, or after it was written."""

    def __init__(self, url: str, appends: int, *, written: bool) -> None:
        self._store, self._left, self._written = open_store(url), appends, written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, *args: Any, **kwargs: Any) -> Any:
        self._left -= 1
        if not self._left and not self._written:
            os._exit(9)
        records = self._store.append(*args, **kwargs)
        if not self._left:
            os._exit(9)
        return records


def put_and_die(url: str, rounds: int) -> None:
    memory = CtxMemory.from_defaults("s", store=url, context_window=8_000)
    memory.put(ChatMessage(role="user", content="question"))
    for n in range(rounds):
        memory.put_messages([calling(f"c{n}"), result(f"c{n}")])
    memory.put(calling("open"))
    os._exit(9)


@pytest.mark.parametrize("rounds", [0, 2])
def test_l4_what_put_returned_from_is_there_for_another_process(shared_url: str, rounds: int) -> None:
    process = start(put_and_die, shared_url, rounds)
    process.join(60)
    assert process.exitcode == 9
    roles = ["user", *["assistant", "tool"] * rounds, "assistant"]
    with CtxMemory.from_defaults("s", store=shared_url, context_window=8_000) as memory:
        assert [m.role.value for m in memory.get_all()] == roles
        assert_legal(memory.context.view().messages)
        assert_legal(memory.context.window().messages)
        memory.put(ChatMessage(role="user", content="next"))
        assert [m.role.value for m in memory.get_all()] == [*roles, "user"]
        assert_legal(memory.context.window().messages)
        memory.put(result("open", "found at last"))
        assert "found at last" in [m.content for m in memory.get_all()]
    with CtxChatStore(shared_url) as store:
        assert [m.role.value for m in store.get_messages("s")].count("assistant") == rounds + 1


def call(id: str) -> ToolCallPart:
    return ToolCallPart(id, "look", "{}")


@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("others", [0, 1, 9])
def test_l5_the_question_of_a_dead_run_keeps_its_place(rounds: int, others: int) -> None:
    weather, stored = Weather(), MemoryStore()

    def opened(*replies: Any) -> Any:
        return context(ScriptedBackend(list(replies)), store=UnreliableStore(stored, weather), context_window=8_000)

    opened("a0").send([user("u0", id="u0")])
    run = opened(*(assistant("", id=f"c{n}", calls=[call(f"k{n}")]) for n in range(rounds + 1)))
    run.send([user("u1 asks for the zebra", id="u1")])
    for n in range(rounds):
        run.send([tool_result(f"k{n}", f"found {n}", id=f"r{n}")])
    own = ["u1", "c0", *(i for n in range(rounds) for i in (f"r{n}", f"c{n + 1}"))]
    other = opened(*(f"answer {n}" for n in range(2, 2 + others)))
    for n in range(2, 2 + others):
        other.send([user(f"u{n}", id=f"u{n}")])

    def told(messages: Any) -> list[str]:
        return [m.id for m in messages if m.id in own or m.role == "user"]

    everything = ["u0", *own, *(f"u{n}" for n in range(2, 2 + others))]
    reader = opened()
    assert told(reader.messages()) == everything
    seen = told(reader.view().messages)
    assert sorted(seen) == sorted(i for i in everything if i != own[-1]), "calls that wait are in no view"
    assert [hit.message_id for hit in reader.search("zebra")] == ["u1"]
    assert "u1" not in told(other.window().messages), "a request of another turn does not have it yet"
    weather.age_s = LATE_S
    joined = opened()
    assert told(joined.messages()) == everything
    assert told(joined.view().messages) == told(joined.window().messages) == [i for i in everything if i != own[-1]]
    assert_legal(joined.view().messages)
    assert told(opened().view().messages) == told(joined.view().messages), "every process folds the same"


def test_l5_the_question_of_a_dead_run_parts_no_turn_that_was_under_way() -> None:
    """It was asked between a call and its result: it comes behind that turn, and before the question that followed."""
    weather, stored = Weather(), MemoryStore()

    def opened(*replies: Any) -> Any:
        return context(ScriptedBackend(list(replies)), store=UnreliableStore(stored, weather), context_window=8_000)

    def asked(id: str) -> Message:
        return assistant("", id=id, calls=[call(f"of-{id}")])

    run, dead = opened(asked("c1"), assistant("first", id="a1")), opened(asked("c2"))
    run.send([user("first?", id="u1")])
    dead.send([user("second?", id="u2")])
    run.send([tool_result("of-c1", "found", id="r1")])
    opened(assistant("third", id="a3")).send([user("third?", id="u3")])
    assert ids(opened()) == ["u1", "c1", "r1", "a1", "u2", "c2", "u3", "a3"]
    weather.age_s = LATE_S
    view = opened().view().messages
    assert [m.id for m in view] == ["u1", "c1", "r1", "a1", "u2", "u3", "a3"]
    assert_legal(view)


TURNS: tuple[tuple[Message, ...], ...] = tuple(
    (
        user(f"question {n}", id=f"u{n}"),
        assistant("", id=f"a{n}", calls=[call(f"c{n}"), call(f"d{n}")]),
        tool_result(f"c{n}", "one", id=f"r{n}"),
        tool_result(f"d{n}", "two", id=f"s{n}"),
        assistant(f"answer {n}", id=f"z{n}"),
    )
    for n in range(2)
)


def ids(ctx: Any) -> list[str]:
    return [m.id for m in ctx.messages()]


def write(url: str, session: str, appends: int, written: bool, acknowledged: Connection) -> None:
    """Adds the turns message by message, and says after each that it was stored."""
    store: Any = Dying(url, appends, written=written)
    ctx = context(session_id=session, store=store, context_window=4_000)
    for message in (m for turn in TURNS for m in turn):
        ctx.add(message)
        acknowledged.send(message.id)


@pytest.mark.parametrize("written", [True, False])
def test_any_death_and_any_retry_leave_each_acknowledged_message_once(shared_url: str, written: bool) -> None:
    """Another worker goes on with a turn of its own, and then adds all that the dead one had to add."""
    in_order = [m.id for turn in TURNS for m in turn]
    for appends in range(2, 12):
        session = f"s{appends}"
        receiving, sending = CONTEXT.Pipe(duplex=False)
        process = start(write, shared_url, session, appends, written, sending)
        process.join(60)
        sending.close()
        acknowledged: list[str] = []
        while receiving.poll():
            try:
                acknowledged.append(receiving.recv())
            except EOFError:
                break
        assert process.exitcode in (0, 9)
        with context(session_id=session, store=shared_url, context_window=4_000) as reader:
            assert [i for i in ids(reader) if i in acknowledged] == acknowledged
            assert len(set(ids(reader))) == len(ids(reader))
            assert_legal(reader.window().messages)
        with context(session_id=session, store=shared_url, context_window=4_000) as worker:
            worker.add([user("meanwhile", id="m"), assistant("yes", id="n")])
            for turn in TURNS:
                worker.add([*turn], skip_orphans=True)
            kept = [i for i in ids(worker) if i not in ("m", "n")]
            assert kept == in_order, appends
            assert_legal(worker.window().messages)
