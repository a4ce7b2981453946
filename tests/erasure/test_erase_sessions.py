"""Sessions and owners erased whole, and what is older than a moment."""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ctxfold import ConfigError, MemoryStore, Reply, assistant, user
from ctxfold.engine.retention import Pruned
from ctxfold.errors import SessionNotFoundError
from ctxfold.history.records import Draft, MessageAdded, SessionKey
from tests.erasure.erasing import MARK, SAID, filled, opened_store
from tests.erasure.scan import places_of
from tests.support.driven import Driven, context, text_of, turns
from tests.support.pages import examples, page, section


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Any]:
    with opened_store(request, tmp_path) as opened:
        yield opened


def test_a_session_goes_with_all_that_belongs_to_it(make: Callable[..., Driven], store: Any) -> None:
    ctx = filled(make(store=store, session_id="s"))
    other = context(store=store, session_id="other")
    other.add("hello")
    erased = ctx.erasure.erase_session()
    assert (erased.removed, erased.settled) == (("s",), True)
    assert places_of(MARK, store) == []
    assert store.sessions("default") == ("other",)
    assert ctx.messages() == ()  # it begins anew
    assert text_of(other.messages()) == "hello"
    assert ctx.erasure.erase_session().removed == ("s",)
    assert ctx.erasure.erase_session().removed == ()


def test_a_fork_of_an_erased_session_keeps_its_own_words(make: Callable[..., Driven], store: Any) -> None:
    ctx = filled(make(store=store, session_id="s", system="Be brief."))
    fork = ctx.fork("f")
    fork.add([user("mine", id="x"), assistant("yours", id="y")])
    erased = ctx.erasure.erase_session()
    assert (erased.removed, erased.sessions) == (("s",), ("f",))
    assert places_of(MARK, store) == []
    assert text_of(fork.messages()) == "Be brief.\nmine\nyours"
    assert fork.erasure.erase_session().sessions == ()


def test_erasing_a_fork_leaves_what_it_was_forked_from(make: Callable[..., Driven], store: Any) -> None:
    ctx = filled(make(store=store, session_id="s"))
    before = ctx.messages()
    assert ctx.fork("f").erasure.erase_session().removed == ("f",)
    assert ctx.messages() == before


def test_others_notice_that_a_session_is_gone(store: Any) -> None:
    with context(store=store, session_id="s") as one, context(store=store, session_id="s", create=False) as two:
        one.add(turns(3))
        assert len(two.messages()) == 6
        one.erasure.erase_session()
        with pytest.raises(SessionNotFoundError, match="does not exist"):
            two.messages()
        one.add([user("a new one", id="u0")])
        assert text_of(two.messages()) == "a new one"


def test_others_notice_that_a_session_was_begun_anew(store: Any) -> None:
    """The new log is as long as the old one, so that its length does not tell."""
    with context(store=store, session_id="s") as one, context(store=store, session_id="s", create=False) as two:
        one.add(turns(1))
        assert text_of(two.window().messages) == text_of(turns(1))
        one.erasure.erase_session()
        one.add(turns(1, start=7))
        assert text_of(two.window().messages) == text_of(turns(1, start=7))


def test_a_reply_that_was_under_way_does_not_revive_a_session(store: Any) -> None:
    with context(store=store, session_id="s") as eraser:
        eraser.add(turns(2))

        class Slow:
            model, context_window, scratch_role = "slow", None, "system"

            def send(self, request: Any) -> Reply:
                eraser.erasure.erase_session()
                return Reply(assistant(f"as you said, {SAID}", id="late"))

        with context(Slow(), store=store, session_id="s") as asker, pytest.raises(SessionNotFoundError):
            asker.send(SAID)
        assert places_of(MARK, store) == []
        assert store.sessions("default") == ()


def test_an_owner_goes_with_everything(make: Callable[..., Driven], store: Any) -> None:
    ctx = filled(make(store=store, session_id="s", owner="ann"))
    ctx.fork("f")
    with context(store=store, session_id="s", owner="ann'") as other:
        other.add(turns(2))
        assert ctx.erasure.erase_owner() is True
        assert places_of(MARK, store) == []
        assert store.sessions("ann") == ()
        assert len(other.messages()) == 4
    assert [k for k in places_of("ann", store) if "ann'" not in k and isinstance(store, MemoryStore)] == []


def test_retention_by_age(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store, system="Be brief.")
    ctx.add(turns(2))
    moment = datetime.now(UTC)
    ctx.add([user("new", id="x"), assistant("newer", id="y")])
    assert ctx.erasure.erase_older_than(timedelta(days=1)).ids == ()
    assert ctx.erasure.erase_older_than(moment).ids == ("u0", "a0", "u1", "a1")
    assert text_of(ctx.messages()) == "Be brief.\nnew\nnewer"
    assert ctx.erasure.erase_older_than(timedelta(0)).ids == ("x", "y")
    with pytest.raises(ConfigError, match="no time zone"):
        ctx.erasure.erase_older_than(datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point
    with pytest.raises(ConfigError, match="lies in the future"):
        ctx.erasure.erase_older_than(timedelta(days=-1))


def test_the_page_on_erasing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example, retention = examples(section(page("sessions.md"), "## Erase"))
    names: dict[str, Any] = {}
    exec(compile(example, "sessions.md", "exec"), names)
    with names["ctx"] as ctx:
        assert ctx.messages() == ()
    exec(compile(retention, "sessions.md", "exec"), names)
    assert names["done"] == Pruned()


@pytest.mark.parametrize("name", ["ann|:checkpoints", "ann|tools:1", "ann~0123abcd", "ann/archived", "ann|", "~ann"])
def test_v3_a_name_that_begins_like_another_is_a_session_of_its_own(name: str) -> None:
    with MemoryStore() as store:
        for session in ("ann", name):
            with context(store=store, session_id=session) as ctx:
                ctx.add([user(f"mine is {session}", id="u"), assistant("noted", id="a")])
        with context(store=store, session_id="ann") as ctx:
            assert ctx.erasure.erase_session().removed == ("ann",)
        assert store.sessions("default") == (name,)
        with context(store=store, session_id=name, create=False) as ctx:
            assert [m.id for m in ctx.messages()] == ["u", "a"]


def test_an_owner_with_more_than_one_batch_goes_with_everything(store: Any) -> None:
    """Rows of an owner are removed a few thousand at a time, and sessions a few dozen at a time."""
    sessions = [SessionKey("ann", f"s{number}") for number in range(70)]
    for number, key in enumerate(sessions):
        said = [Draft(f"m{n}", MessageAdded(user(MARK, id=f"m{n}")), None, 1.0) for n in range(1 if number else 11_000)]
        store.append(key, said)
    assert store.erase_owner("ann")
    assert store.sessions("ann") == ()
    assert places_of(MARK, store) == []
