"""A fork and an erasure at once: whichever comes first, the fork does not keep what was erased."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from ctxfold import AgentContext
from ctxfold.effects import Flow, StoreCall
from ctxfold.engine.archive import fork
from ctxfold.engine.erase import erase, erase_session
from ctxfold.errors import SessionNotFoundError
from tests.erasure.erasing import MARK, filled, opened_store
from tests.erasure.scan import places_of
from tests.support.driven import context, text_of


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Any]:
    with opened_store(request, tmp_path) as opened:
        yield opened


def broken_into(flow: Flow[Any], method: str, ctx: AgentContext, between: Callable[[], object]) -> Any:
    """Drive a flow, and do something else right before its first call of a method of the store."""
    ports, waiting = ctx.service._engine.ports, True
    try:
        effect = next(flow)
        while True:
            if isinstance(effect, StoreCall) and effect.method == method and waiting:
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


def open_session(ctx: AgentContext) -> Any:
    return ctx._run(ctx.handle.open())


def test_a_fork_that_is_made_during_an_erasure(store: Any) -> None:
    with context(store=store) as mine, context(store=store) as theirs:
        filled(mine)
        flow = erase(mine.handle.engine, open_session(mine), ["m"])
        erased = broken_into(flow, "erase", mine, lambda: theirs.fork("other"))
        assert erased.sessions == ("default", "other")
        assert places_of(MARK, store) == []
        assert "m" not in {m.id for m in theirs.at("other", create=False).messages()}


def test_a_fork_that_is_made_while_its_session_is_erased(store: Any) -> None:
    with context(store=store) as mine, context(store=store) as theirs:
        filled(mine)
        flow = erase_session(mine.handle.engine, open_session(mine).key)
        erased = broken_into(flow, "erase", mine, lambda: theirs.fork("other"))
        assert (erased.sessions, erased.removed) == (("other",), ("default",))
        assert places_of(MARK, store) == []


def test_an_erasure_while_a_fork_is_made(store: Any) -> None:
    with context(store=store) as mine, context(store=store) as theirs:
        filled(mine)
        flow = fork(mine.handle.engine, open_session(mine), "other", at=None)
        broken_into(flow, "append", mine, lambda: theirs.erasure.erase("m"))
        assert places_of(MARK, store) == []
        assert text_of(mine.at("other", create=False).messages()) == text_of(mine.messages())


def test_a_session_that_is_erased_while_it_is_forked(store: Any) -> None:
    with context(store=store) as mine, context(store=store) as theirs:
        filled(mine)
        flow = fork(mine.handle.engine, open_session(mine), "other", at=None)
        with pytest.raises(SessionNotFoundError):
            broken_into(flow, "append", mine, theirs.erasure.erase_session)
        assert places_of(MARK, store) == []
        assert store.sessions("default") == ()
