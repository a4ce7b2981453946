"""Step 7, item A1: whatever the store and the processes go through, an acknowledged message is there, once and in order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxfold import SqlStore, Store
from ctxfold.errors import StoreUnavailableError
from ctxfold.events import TurnEnded
from tests.properties.outages import FAULTS, WINDOWS, Step, World, add
from tests.support.postgres_schema import fresh_schema

SESSIONS = itertools.count()
faults = st.lists(st.sampled_from(FAULTS), max_size=12)
steps = st.lists(
    st.builds(
        Step,
        client=st.integers(0, 1),
        kind=st.sampled_from(("add", "add", "add_rest", "add_parts", "send", "stream")),
        rounds=st.integers(0, 3),
        words=st.integers(0, 8),
        between=st.lists(st.sampled_from(("same", "same", "restart", "late")), max_size=4),
    ),
    min_size=1,
    max_size=3,
)


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder: Path = tmp_path_factory.mktemp("outages")
    with SqlStore(f"sqlite:///{folder / 'outages.db'}") as store:
        yield store


@pytest.fixture(scope="module")
def postgres(postgres_url: str) -> Iterator[Store]:
    with fresh_schema(postgres_url) as url, SqlStore(url) as store:
        yield store


def play(store: Store, window: int, taken: list[Step], failing: list[str]) -> None:
    world = World(store, f"s{next(SESSIONS)}", failing, window=window)
    for step in taken:
        world.take(step)
    world.check()


@pytest.mark.parametrize("window", WINDOWS)
@settings(max_examples=settings.default.max_examples // len(WINDOWS))
@given(taken=steps, failing=faults)
def test_no_acknowledged_message_is_lost_on_sqlite(
    sqlite: Store, window: int, taken: list[Step], failing: list[str]
) -> None:
    """Step 7, item A1, on SQLite: failing appends, failing cleanups, deaths between pieces, late retries."""
    play(sqlite, window, taken, failing)


@settings(max_examples=max(20, settings.default.max_examples // 10))
@given(taken=steps, failing=faults, window=st.sampled_from(WINDOWS))
def test_no_acknowledged_message_is_lost_on_postgresql(
    postgres: Store, window: int, taken: list[Step], failing: list[str]
) -> None:
    """Step 7, item A1, on PostgreSQL."""
    play(postgres, window, taken, failing)


def test_an_add_is_taken_back_whose_messages_are_all_compacted(sqlite: Store) -> None:
    """The half that was stored was given up after 15 minutes; of the other half the turn shows a summary only."""
    failing = ["ok", "ok", "down", "ok", "ok", "ok", "down"]  # in the second round, and again after its compaction
    steps = [Step(0, "add", rounds=2, words=4, between=["late"]), Step(0, "add", rounds=0, words=0, between=[])]
    play(sqlite, 180, steps, failing)


def test_a_rollback_that_was_stored_though_its_answer_was_lost_is_noticed(sqlite: Store) -> None:
    """A late result fails twice; then the turn that it had opened is taken back, and the store's answer to that is lost."""
    failing = ["ok", "ok", "fail", "ok", "ok", "down", "lost"]
    play(sqlite, 600, [Step(0, "send", rounds=1, words=0, between=["late"])], failing)


def test_a_new_process_continues_a_turn_whose_messages_are_all_compacted(sqlite: Store) -> None:
    """The question is stored; the rounds after it fail once their turn shows a summary only, and the process ends."""
    world = World(sqlite, f"s{next(SESSIONS)}", ["ok", "ok", "ok", "ok", "die"], window=180)
    step = Step(0, "add", rounds=2, words=4, between=[])
    question, rounds, answer = world.written(step)
    told = world.begun()
    for part in ([question], [*itertools.chain.from_iterable(rounds), answer]):
        world.insist(step, told, lambda ctx, part=part: add(ctx, part))
    world.check()


def test_a_failed_add_is_taken_back_after_its_compaction(sqlite: Store) -> None:
    world = World(sqlite, f"s{next(SESSIONS)}", ["ok", "ok", "ok", "ok", "down"], window=180)
    question, rounds, answer = world.written(Step(0, "add", rounds=2, words=4, between=[]))
    ctx = world.contexts[0]
    ctx.add(question)
    with pytest.raises(StoreUnavailableError):
        ctx.add([*itertools.chain.from_iterable(rounds), answer])
    world.weather.down = 0
    ended: list[Any] = []
    ctx.subscribe(ended.append)
    assert [m.id for m in ctx.messages()] == [question.id]
    assert [e.status for e in ended if isinstance(e, TurnEnded)] == ["discarded"], "no turn is left open"


def test_a_failed_add_leaves_alone_what_another_process_went_on_with(sqlite: Store) -> None:
    world = World(sqlite, f"s{next(SESSIONS)}", ["ok", "ok", "down"], window=180)
    question, (first, second), answer = world.written(Step(0, "add", rounds=2, words=4, between=[]))
    failed, other = world.contexts
    failed.add(question)
    with pytest.raises(StoreUnavailableError):
        failed.add([*first, *second, answer])
    world.weather.down = 0
    other.add([*first, second[0]])  # calls that wait for their results
    failed.messages()
    other.add([*second[1:], answer])
    assert [m.id for m in world.opened().messages()] == [m.id for m in (question, *first, *second, answer)]
