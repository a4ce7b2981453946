"""A fork and an erasure at once: whichever comes first, the fork does not keep what was erased."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from ctxfold import AgentContext
from ctxfold.archive import fork
from ctxfold.effects import AppendLog, EraseLogs
from ctxfold.erase import erase, erase_session
from ctxfold.errors import SessionNotFoundError
from ctxfold.flow import Effect, Flow
from tests.core.driven import context, text_of
from tests.core.erasing import MARK, filled, opened_store
from tests.core.scan import places_of


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Any]:
    with opened_store(request, tmp_path) as opened:
        yield opened


def broken_into(flow: Flow[Any], at: type[Effect[Any]], ctx: AgentContext, between: Callable[[], object]) -> Any:
    """Drive a flow, and do something else right before its first effect of a kind."""
    ports, waiting = ctx.service._engine.ports, True
    try:
        effect = next(flow)
        while True:
            if isinstance(effect, at) and waiting:
                waiting = False
                between()
            try:
                result = effect.perform(ports)
            except Exception as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(result)
    except StopIteration as stop:
        assert not waiting
        return stop.value


def journal(ctx: AgentContext) -> Any:
    return ctx._run(ctx._journal())


def test_a_fork_that_is_made_during_an_erasure(store: Any) -> None:
    with context(store=store) as mine, context(store=store) as theirs:
        filled(mine)
        flow = erase(mine._engine, journal(mine), ["m"])
        erased = broken_into(flow, EraseLogs, mine, lambda: theirs.fork("other"))
        assert erased.sessions == ("default", "other")
        assert places_of(MARK, store) == []
        assert "m" not in {m.id for m in theirs.at("other", create=False).messages()}


def test_a_fork_that_is_made_while_its_session_is_erased(store: Any) -> None:
    with context(store=store) as mine, context(store=store) as theirs:
        filled(mine)
        flow = erase_session(mine._engine, journal(mine).key)
        erased = broken_into(flow, EraseLogs, mine, lambda: theirs.fork("other"))
        assert (erased.sessions, erased.removed) == (("other",), ("default",))
        assert places_of(MARK, store) == []


def test_an_erasure_while_a_fork_is_made(store: Any) -> None:
    with context(store=store) as mine, context(store=store) as theirs:
        filled(mine)
        flow = fork(mine._engine, journal(mine), "other", at=None)
        broken_into(flow, AppendLog, mine, lambda: theirs.erase("m"))
        assert places_of(MARK, store) == []
        assert text_of(mine.at("other", create=False).messages()) == text_of(mine.messages())


def test_a_session_that_is_erased_while_it_is_forked(store: Any) -> None:
    with context(store=store) as mine, context(store=store) as theirs:
        filled(mine)
        flow = fork(mine._engine, journal(mine), "other", at=None)
        with pytest.raises(SessionNotFoundError):
            broken_into(flow, AppendLog, mine, theirs.erase_session)
        assert places_of(MARK, store) == []
        assert store.sessions("default") == ()
