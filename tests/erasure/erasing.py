"""A session in which a mark went wherever a message's text goes, and what must hold once it is erased."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ctxfold import MemoryStore, SqlStore, assistant, user
from tests.erasure.scan import places_of
from tests.properties.machine import assert_legal
from tests.support.driven import text_of, turns

MARK = "Zanzibar-4711"
SAID = f"the locker is {MARK} on the left"


@contextmanager
def opened_store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Any]:
    match request.param:
        case "memory":
            with MemoryStore() as opened:
                yield opened
        case "sqlite":
            with SqlStore(f"sqlite:///{tmp_path}/a.db") as opened:
                yield opened
        case _:
            with SqlStore(request.getfixturevalue("emptied_schema")) as opened:
                yield opened


def filled(ctx: Any) -> Any:
    """A session in which the mark went wherever a message's text goes: summaries of summaries, excerpts, edits, the index."""
    ctx.set_policy(context_window=3_000)
    ctx.add(turns(4))
    ctx.add([user(SAID, id="m"), assistant("noted", id="n")])
    ctx.add(turns(10, start=10, words=20))
    ctx.compact(force=True)
    ctx.add(turns(12, start=30, words=20))
    ctx.compact(force=True)
    assert ctx.usage().compactions == 2
    ctx.restore("m")
    assert text_of(ctx.view().compressed[i].message for i in range(len(ctx.view().compressed))).count(MARK)
    return ctx


def assert_gone(ctx: Any, store: Any, mark: str = MARK) -> None:
    assert places_of(mark, store) == []
    assert mark not in text_of(ctx.messages()) + text_of(ctx.window().messages) + str(ctx.explain())
    assert ctx.search(mark) == ()
    assert_legal(ctx.window().messages)
