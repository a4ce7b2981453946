"""Open sessions: snapshots, opening without reading the history, turns that were left, ids that come again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ctxfold import MemoryStore, ScriptedBackend, Usage, assistant, tool_result, user
from ctxfold.effects import run
from ctxfold.engine.engine import Engine
from ctxfold.errors import MessageConflictError, OrphanToolResultError, StoreCorruptError, StoreFormatError
from ctxfold.history.log import OpenTurn, SessionState
from ctxfold.history.records import GoalSet, MessageAdded, Record, SessionKey, TurnClosed
from ctxfold.history.snapshot import dump_state, load_state, parse_snapshot
from ctxfold.history.view import Entry
from ctxfold.protocols import Ports
from ctxfold.state import SNAPSHOT_EVERY
from tests.support.driven import Driven, call, context, scripted, tool_round, turns

Make = Callable[..., Driven]
KEY = SessionKey("default", "default")
SESSIONS_IN_MEMORY = 256


class Counting(MemoryStore):
    """Counts the records that are read."""

    records = 0

    def read(self, *args: Any, **kwargs: Any) -> Any:
        found = super().read(*args, **kwargs)
        self.records += len(found)
        return found

    def fetch(self, *args: Any, **kwargs: Any) -> Any:
        found = super().fetch(*args, **kwargs)
        self.records += len(found)
        return found

    def find(self, *args: Any, **kwargs: Any) -> Any:
        found = super().find(*args, **kwargs)
        self.records += len(found)
        return found


class Clock:
    def __init__(self) -> None:
        self.time = time.time()

    def now_s(self) -> float:
        return self.time


def timed(store: Any, clock: Clock, backend: Any = None) -> Any:
    """A context whose engine lives by a clock of ours."""
    ctx = context(backend, store=store)
    ports = replace(ctx.handle.engine.ports, clock=clock)
    engine = Engine(ports, ctx.handle.engine.rules)
    engine.events = ctx.handle.engine.events
    ctx.handle.engine = engine
    return ctx


def test_a_long_session_opens_from_its_window(make: Make) -> None:
    store = Counting()
    ctx = make(store=store, context_window=2_000)
    for i in range(0, 3_000, 50):
        ctx.add(turns(50, start=i, words=4))
    assert store.head(KEY).seq > 4 * SNAPSHOT_EVERY  # type: ignore[union-attr]
    view = ctx.view()
    store.records = 0
    again = make(store=store, context_window=2_000)
    assert again.view().messages == view.messages
    assert store.records <= len(view) + SNAPSHOT_EVERY + 1
    assert again.usage().turns == 3_000


def test_every_thousand_records_bring_a_snapshot(make: Make) -> None:
    store = Counting()
    ctx = make(store=store, context_window=1_000_000)
    for i in range(0, 1_600, 40):
        ctx.add(turns(40, start=i, words=1))
    head = store.head(KEY)
    assert head is not None
    assert head.seq - head.snapshot_seq < SNAPSHOT_EVERY + 100
    assert make(store=store, context_window=1_000_000).view().messages == ctx.view().messages


def test_a_turn_that_was_left_joins_after_the_time_out() -> None:
    store, clock = MemoryStore(), Clock()
    first = timed(store, clock)
    first.add([user("q", id="q"), *tool_round("t"), assistant("", id="open", calls=[call("c9")])])
    clock.time += 899
    assert timed(store, clock).window().messages == ()
    clock.time += 2
    second = timed(store, clock)
    assert [m.id for m in second.view().messages] == ["q", "t-a", "t-r0"]
    assert timed(store, clock).view().messages == second.view().messages
    first.add(tool_result("c9", "late", id="late"))
    assert [m.id for m in second.view().messages] == ["q", "t-a", "t-r0", "open", "late"], (
        "the result brings its call back"
    )
    with pytest.raises(OrphanToolResultError):
        first.add(tool_result("c10", "nobody asked", id="never"))


def test_a_long_turn_is_stored_whole_after_another_context_closed_the_one_before(make: Make) -> None:
    store = MemoryStore()
    ctx, other = make(store=store), make(store=store)
    ctx.add([user("q", id="q"), assistant("", id="open", calls=[call("c9")])])
    other.edit.clear()
    rounds = [*tool_round("t", "word " * 500), *tool_round("s", "word " * 500)]
    long_turn = [user("go", id="g"), *rounds, assistant("done", id="d")]  # too long for the window: stored in pieces
    ctx.add(long_turn)
    assert [m.id for m in other.messages()] == [m.id for m in long_turn]


def test_a_reply_stays_when_its_turn_was_closed_meanwhile() -> None:
    store, clock = MemoryStore(), Clock()

    def slow(_: Any) -> str:
        clock.time += 1_000
        timed(store, clock)
        seen.append(len(timed(store, clock).view().messages))
        return "late"

    seen: list[int] = []
    ctx = timed(store, clock, scripted(slow, "fine"))
    assert ctx.send("hi").message.text == "late"
    assert seen == [1]
    assert [m.text for m in ctx.view().messages] == ["hi", "late"]
    assert ctx.send("well?").message.text == "fine"
    assert [m.text for m in timed(store, clock).view().messages] == ["hi", "late", "well?", "fine"]


def test_discarded_messages_may_come_again(make: Make) -> None:
    from ctxfold import BackendError

    down = BackendError("down", kind="server")
    ctx = make(ScriptedBackend([down, down, "ok"]))
    question = user("q", id="q")
    for _ in range(2):
        with pytest.raises(BackendError):
            ctx.send(question)
    ctx.send(user("other words now", id="q"))
    assert ctx.archive.get("q").text == "other words now"
    with pytest.raises(MessageConflictError):
        ctx.add(question)


def records_of_a_view(store: Counting, handle: Driven) -> int:
    """Returns how many records are read for a view: more for a session that is not in memory."""
    store.records = 0
    handle.view()
    return store.records


def test_least_used_sessions_leave_memory_and_come_back(make: Make) -> None:
    store = Counting()
    ctx = make(store=store)
    handles = [Driven(ctx.ctx.at(f"s{i}"), None) for i in range(SESSIONS_IN_MEMORY + 2)]
    for i, handle in enumerate(handles):
        handle.add(user(f"mine {i}", id=f"m{i}"))
    in_memory = records_of_a_view(store, handles[-1])
    assert records_of_a_view(store, handles[-SESSIONS_IN_MEMORY]) == in_memory
    assert records_of_a_view(store, handles[0]) > in_memory
    assert [h.view().messages[0].text for h in handles] == [f"mine {i}" for i in range(len(handles))]


def test_the_one_in_use_is_not_the_one_that_leaves(make: Make) -> None:
    store = Counting()
    ctx = make(store=store)
    others = [ctx.ctx.at(f"s{i}") for i in range(SESSIONS_IN_MEMORY)]
    for i, other in enumerate(others):
        ctx.add(user(f"mine {i}", id=f"m{i}"))
        other.view()
    first = records_of_a_view(store, ctx)
    assert first == records_of_a_view(store, ctx)
    assert ctx.view().messages[-1].text == f"mine {len(others) - 1}"


def state(*records: Record) -> SessionState:
    made = SessionState(KEY, lambda m: len(m.text))
    made.apply(records)
    return made


def test_the_fold() -> None:
    added = [Record(i + 1, f"m:{m.id}", MessageAdded(m), turn_id="t") for i, m in enumerate(turns(1))]
    folded = state(*added)
    assert folded.view().messages == ()
    assert [m.id for m in folded.view("t").messages] == ["u0", "a0"]
    folded.apply([Record(3, "c:t", TurnClosed(), turn_id="t")])
    assert [m.id for m in folded.view().messages] == ["u0", "a0"]
    folded.apply([Record(3, "again", TurnClosed(), turn_id="t"), Record(4, "m:x", added[0].body, turn_id="t")])
    assert len(folded.view()) == 2, "what comes after the end of its turn stays out"
    assert folded.turns == 1


def test_snapshots_hold_no_text_and_read_back() -> None:
    records = [Record(i + 1, f"m:{m.id}", MessageAdded(m)) for i, m in enumerate(turns(2))]
    made = state(*records)
    text = dump_state(made, "c")
    assert "question" not in text
    snapshot = parse_snapshot(text)
    back = load_state(KEY, snapshot, records, at=5, counter_id="c", count=lambda m: 1)
    assert back.view() == made.view() or back.view().messages == made.view().messages
    assert back.tokens == made.tokens
    recounted = load_state(KEY, snapshot, records, at=5, counter_id="other", count=lambda m: 1)
    assert recounted.tokens == 4
    with pytest.raises(StoreCorruptError, match="missing from the store"):
        load_state(KEY, snapshot, records[:-1], at=5, counter_id="c", count=lambda m: 1)
    with pytest.raises(StoreCorruptError):
        parse_snapshot("{}")
    with pytest.raises(StoreFormatError, match="upgrade ctxfold"):
        parse_snapshot(text.replace('"version":1', '"version":9'))


def test_two_openers_of_one_session_set_its_prompts_once() -> None:
    store = MemoryStore()
    one, two = context(store=store), context(store=store)
    flows = [c.handle.engine.open(c.handle.key, prompts=("A", "B")) for c in (one, two)]
    for flow, c in zip(flows, (one, two), strict=True):
        run(flow, c.handle.engine.ports)
    assert [m.text for m in one.view().messages] == ["A", "B"]


def test_a_copied_state_is_the_same_and_apart() -> None:
    """Step 7, mutants: a copy that loses a field, or shares one, shows; every field is set to something first."""
    state = SessionState(KEY, lambda m: len(m.text))
    plain = vars(SessionState(KEY, lambda _: 0))
    for name, value in plain.items():
        filled: Any = value
        match value:
            case bool():
                filled = not value
            case int():
                filled = 7
            case str():
                filled = "x"
            case list():
                filled = ["x"]
            case set() | None:
                filled = {"x"}
            case dict() if name == "open":
                filled = {"t": OpenTurn([Entry("u", 1, user("q", id="u"), 1)], 5.0)}
            case dict():
                filled = {"x": None}
            case tuple():
                filled = ("x",)
            case Usage():
                filled = Usage(1, 2)
            case GoalSet():
                filled = GoalSet("find out")
            case _:
                continue
        setattr(state, name, filled)
    twin = state.copy()
    assert vars(twin) == vars(state)
    shared = [n for n, v in vars(state).items() if isinstance(v, list | dict | set) and vars(twin)[n] is v]
    assert not shared
    twin.open["t"].entries.clear()
    assert len(state.open["t"].entries) == 1


def test_the_session_that_was_used_longest_ago_leaves_the_cache() -> None:
    """Step 7, mutants: the wrong session evicted."""
    with context() as ctx:
        engine = Engine(Ports(MemoryStore(), ctx.handle.counter), ctx.policy, max_sessions=2)
        first, second, third = (SessionKey("default", name) for name in ("first", "second", "third"))
        for key in (first, second, first, third):
            run(engine.open(key), engine.ports)
        assert [key.session for key in (first, second, third) if engine.known(key)] == ["first", "third"]
        run(engine.open(second), engine.ports)
        assert [key.session for key in (first, second, third) if engine.known(key)] == ["second", "third"]
