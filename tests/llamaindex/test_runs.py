"""Runs of `with_context` without a session: how many are kept, and what becomes of the others."""

from __future__ import annotations

import gc

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.mock import MockLLM

from ctxfold import AgentContext, assistant, user
from ctxfold.errors import StoreUnavailableError
from llamaindex_ctx import with_context
from llamaindex_ctx.wrapper import MAX_RUNS, Run, RunSessions

MORE = 20
PING, PONG = user("ping", id="q"), assistant("pong", id="a")


def contexts() -> int:
    gc.collect()
    return sum(type(o) is AgentContext for o in gc.get_objects())


@pytest.mark.parametrize("same", [True, False])
def test_runs_that_nobody_goes_on_with_do_not_pile_up(same: bool) -> None:
    before = contexts()
    with with_context(MockLLM(), context_window=8_000) as chat:
        for number in range(MAX_RUNS + MORE):
            chat.chat([ChatMessage("ping" if same else f"ping {number}")])
        assert contexts() - before <= MAX_RUNS


def test_the_newest_are_kept_and_what_is_dropped_is_closed() -> None:
    with RunSessions(store=None, settings={"context_window": 8_000}) as sessions:
        runs: list[Run] = []
        for _ in range(MAX_RUNS + MORE):
            runs.append(sessions.take_run([PING]))
            sessions.keep_run(runs[-1].context, [PING], PONG)
        for run in runs[:MORE]:
            with pytest.raises(StoreUnavailableError):
                run.context.messages()
        taken = [sessions.take_run([PING, PONG, user("again", id="n")]) for _ in range(MAX_RUNS)]
        assert [t.context for t in taken] == [r.context for r in reversed(runs[MORE:])], "the newest one first"
        assert all(t.context.messages() == () and not t.earlier for t in taken)
        assert sessions.take_run([PING, PONG, user("again", id="n")]).earlier, "a run of its own once all are taken"


def test_a_run_that_is_gone_on_with_outlives_those_that_are_not() -> None:
    with RunSessions(store=None, settings={"context_window": 8_000}) as sessions:
        mine = sessions.take_run([PING]).context
        listed = [PING]
        for number in range(3):
            sessions.keep_run(mine, listed, PONG)
            for _ in range(MAX_RUNS - 1):
                other = [user("other", id="o")]
                sessions.keep_run(sessions.take_run(other).context, other, PONG)
            listed += [PONG, user(f"again {number}", id=f"n{number}")]
            assert sessions.take_run(listed).context is mine
