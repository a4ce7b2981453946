"""What an edit takes out of the conversation is found by search, in every store, and is not brought back by recall."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ctxfold import MemoryStore, SqlStore, Store, assistant, user
from ctxfold.session.context import load_snapshot
from tests.support.driven import Driven, context, scripted, text_of, turns

Make = Callable[..., Driven]
SECRET = "The zebra7 password hint is marmalade."


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "sqlite":
        with SqlStore(f"sqlite:///{tmp_path}/a.db") as opened:
            yield opened
    else:
        with SqlStore(request.getfixturevalue("emptied_schema")) as opened:
            yield opened


def said(ctx: Any) -> Any:
    ctx.add([user(SECRET, id="z"), assistant("Noted.", id="n"), *turns(3)])
    return ctx


def found(ctx: Any) -> list[str]:
    return [h.message_id for h in ctx.search("zebra7 marmalade")]


EDITS: dict[str, Callable[[Any], object]] = {
    "clear": lambda ctx: ctx.edit.clear(),
    "remove": lambda ctx: ctx.edit.remove(0),
    "retain": lambda ctx: ctx.edit.retain("assistant"),
    "set": lambda ctx: ctx.edit.set_messages([user("something else", id="e")]),
}


@pytest.mark.parametrize("how", EDITS)
def test_what_an_edit_takes_out_is_found_also_after_a_restart(make: Make, store: Store, how: str) -> None:
    ctx = said(make(None, store=store, session_id="s", context_window=8_000))
    EDITS[how](ctx)
    assert "z" not in {m.id for m in ctx.view().messages}
    assert found(ctx) == ["z"]
    assert ctx.archive.get(ctx.search("zebra7")[0].reference).text == SECRET
    with context(None, store=store, session_id="s", context_window=8_000) as again:
        assert found(again) == ["z"]
    ctx.undo()
    assert found(ctx) == ["z"], "once, live and indexed as it is"


@pytest.mark.parametrize("how", EDITS)
def test_a_file_and_a_fork_find_it_too(make: Make, tmp_path: Path, how: str) -> None:
    ctx = said(make(None, session_id="s", context_window=8_000))
    EDITS[how](ctx)
    ctx.files.save_snapshot(tmp_path / "s.json")
    with load_snapshot(tmp_path / "s.json", session_id="t") as loaded:
        assert found(loaded) == ["z"]
    assert [h.message_id for h in ctx.ctx.fork("f").search("zebra7 marmalade")] == ["z"]


@pytest.mark.parametrize("how", EDITS)
def test_recall_does_not_bring_it_back(make: Make, how: str) -> None:
    backend = scripted(*["ok"] * 4)
    store = MemoryStore()
    ctx = said(make(backend, store=store, session_id="s", context_window=8_000, keep_last=2))
    EDITS[how](ctx)
    ctx.add([user("The lynx9 badge is orange.", id="l"), *turns(6, start=10)])
    ctx.compact(force=True)
    ctx.send("What of the zebra7 hint, and of the lynx9 badge?")
    sent = text_of(backend.requests[-1].messages)
    assert "user: The lynx9 badge is orange." in sent, "what was compacted is recalled"
    assert SECRET not in sent
    reopened = make(backend, store=store, session_id="s", context_window=8_000, keep_last=2)
    reopened.send("And what of the zebra7 marmalade?")
    assert SECRET not in text_of(backend.requests[-1].messages)


@pytest.mark.parametrize("how", ["clear", "set"])
def test_recall_does_not_bring_back_what_was_compacted_before_the_conversation_was_emptied(
    make: Make, how: str
) -> None:
    """A new conversation in the same session begins without the old one, whether that had been compacted or not."""
    backend = scripted(*["ok"] * 4)
    store = MemoryStore()
    settings: dict[str, Any] = {"store": store, "session_id": "s", "context_window": 8_000, "keep_last": 2}
    ctx = said(make(backend, **settings))
    ctx.compact(force=True)
    assert "z" not in {m.id for m in ctx.view().messages}
    EDITS[how](ctx)
    ctx.add([user("The lynx9 badge is orange.", id="l"), *turns(6, start=10)])
    ctx.compact(force=True)
    for asking in (ctx, make(backend, **settings)):
        asking.send("What of the zebra7 marmalade hint, and of the lynx9 badge?")
        sent = text_of(backend.requests[-1].messages)
        assert "user: The lynx9 badge is orange." in sent
        assert "marmalade." not in sent
    assert found(ctx)[0] == "z", "search has it"


def test_what_was_compacted_is_recalled_after_an_undone_clearing(make: Make) -> None:
    backend = scripted("ok", "ok")
    ctx = said(make(backend, context_window=8_000, keep_last=2))
    ctx.compact(force=True)
    ctx.edit.clear()
    ctx.undo()
    ctx.send("What is the zebra7 hint?")
    assert f"user: {SECRET}" in text_of(backend.requests[-1].messages)


def test_what_comes_back_after_a_clearing_is_recalled_once_it_is_compacted(make: Make) -> None:
    """A restored message, and one of a turn that was open meanwhile: their records are older than the clearing."""
    backend = scripted("Noted.", "ok")
    settings = {"strategy": "sliding_window", "keep_last": 2, "auto_compact": False, "context_window": 64_000}
    shared: dict[str, Any] = {"store": MemoryStore(), "session_id": "s", **settings}
    ctx = said(make(backend, **shared))
    stream = ctx.ctx.send_stream(user("The lynx9 badge is orange.", id="l"))
    next(stream)
    with context(None, **shared) as other:
        other.edit.clear()
        other.restore("z")
    assert list(stream)
    ctx.add(turns(300, start=10))  # a snapshot is taken
    ctx.compact(force=True)
    assert not {"z", "l"} & {m.id for m in ctx.view().messages}
    for opened in (ctx, make(backend, **shared)):
        window = opened.window(recall=True, question="What of the zebra7 marmalade hint, and of the lynx9 badge?")
        assert "marmalade." in window.recalled
        assert "orange" in window.recalled


def test_what_comes_back_and_is_compacted_is_recalled_again(make: Make) -> None:
    backend = scripted(*["ok"] * 4)
    ctx = said(make(backend, context_window=8_000, keep_last=2))
    ctx.edit.clear()
    ctx.restore("z")
    ctx.add(turns(6, start=10))
    ctx.compact(force=True)
    ctx.send("What is the zebra7 hint?")
    assert f"user: {SECRET}" in text_of(backend.requests[-1].messages)


def test_what_is_put_in_place_of_itself_is_one_message(make: Make) -> None:
    ctx = said(make(None, context_window=8_000))
    ctx.edit.set_messages(list(ctx.view().messages))
    assert found(ctx) == ["z"]
    ctx.edit.clear()
    assert found(ctx) == ["z"]


def test_erased_from_the_index_as_well(make: Make, store: Store) -> None:
    ctx = said(make(None, store=store, session_id="s", context_window=8_000))
    ctx.edit.clear()
    ctx.erasure.erase("z")
    assert found(ctx) == []


def test_what_was_restored_is_brought_back_once_it_is_compacted(make: Make) -> None:
    """An edit takes it out of what recall may bring back; a message that is live again is compacted like any other."""
    ctx = said(make(None, context_window=8_000, strategy="sliding_window", keep_last=2, auto_compact=False))
    ctx.edit.remove(0)
    ctx.restore("z")
    ctx.add(turns(4, start=10))
    ctx.compact(force=True)
    assert "z" not in {m.id for m in ctx.view().messages}
    window = ctx.window(recall=True, question="What is the zebra7 password hint?")
    assert "marmalade" in window.recalled
