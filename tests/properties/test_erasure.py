"""Whatever a session went through: what is erased is nowhere, everything else is where it was, and all of it stays legal."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ctxfold import ContextOverflowError, MemoryStore
from ctxfold.errors import NothingToUndoError
from tests.erasure.scan import places_of
from tests.properties.machine import Machine, assert_legal
from tests.support.driven import context
from tests.support.open_sessions import opened
from tests.support.strategies import Op, operations

SESSIONS = itertools.count()


@given(
    ops=operations(),
    window=st.sampled_from([400, 700, 1_500]),
    summarizer=st.sampled_from(["oracle", "fails"]),
    data=st.data(),
)
def test_any_message_of_any_session(ops: list[Op], window: int, summarizer: str, data: st.DataObject) -> None:
    with MemoryStore() as store:
        machine = Machine(store, f"s{next(SESSIONS)}", None, window=window, summarizer=summarizer)
        for op in ops:
            machine.apply(op)
        with context(store=store, session_id=machine.session, context_window=window, create=False) as ctx:
            before = ctx.messages()
            ids = [m.id for m in before if m.role != "system"]
            if not ids:
                return
            chosen = data.draw(st.lists(st.sampled_from(ids), min_size=1, max_size=3, unique=True))
            _erase(ctx, store, chosen, before)
            with context(store=store, session_id=machine.session, context_window=window, create=False) as again:
                assert again.view().messages == ctx.view().messages
            _undo_all(ctx, set(chosen))


def _erase(ctx: Any, store: Any, chosen: list[str], before: tuple[Any, ...]) -> None:
    gone = set(ctx.erasure.erase(*chosen).ids)
    assert gone >= set(chosen)
    left, told = [m.id for m in before if m.id not in gone], [m.id for m in ctx.messages()]
    # an answer whose question is erased belongs to the question before it, and an open turn stands behind that
    under_way = {e.id for turn in opened(ctx).state.open.values() for e in turn.entries}
    assert [i for i in told if i not in under_way] == [i for i in left if i not in under_way]
    assert [i for i in told if i in under_way] == [i for i in left if i in under_way]
    others = " ".join(repr(m) for m in before if m.id not in gone)
    for message in before:
        if message.id in gone and len(message.text) > 12 and message.text not in others:
            assert places_of(message.text, store) == []
    assert_legal(ctx.view().messages)


def _undo_all(ctx: Any, gone: set[str]) -> None:
    while True:
        try:
            ctx.undo()
        except (NothingToUndoError, ContextOverflowError):
            return
        assert not gone & {m.id for m in ctx.view().messages}
        assert_legal(ctx.view().messages)
