"""Users share a store, session names and message ids, and never see, find, change or erase a word of each other's."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxfold import AgentContext, MemoryStore, SqlStore
from ctxfold.errors import CtxError
from ctxfold.messages import assistant, user
from tests.core.driven import context
from tests.core.postgres_schema import fresh_schema

OWNERS = ("ann", "ann ", "Ann", "an", "n", "%", "_nn", "ann'--", "ánn")
ROUND = itertools.count()
ACTIONS = (
    "search",
    "recall",
    "get",
    "fork",
    "undo",
    "export",
    "restore",
    "compact",
    "erase",
    "retain",
    "erase_session",
)
steps = st.lists(
    st.tuples(st.integers(0, len(OWNERS) - 1), st.sampled_from(ACTIONS), st.integers(0, len(OWNERS) - 1)), max_size=12
)


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Any]:
    match request.param:
        case "memory":
            with MemoryStore() as opened:
                yield opened
        case "sqlite":
            with SqlStore(f"sqlite:///{tmp_path_factory.mktemp('owners')}/a.db") as opened:
                yield opened
        case _:
            with fresh_schema(request.getfixturevalue("postgres_url")) as url, SqlStore(url) as opened:
                yield opened


def secret(who: int) -> str:
    return f"locker-{who}-{'abcdefghi'[who] * 6}"


def begun(ctx: AgentContext, who: int) -> None:
    """The same names and ids for everybody; only the secret differs."""
    for n in range(12):
        said = f"my code is {secret(who)}, number {n}, and some more words that take room"
        ctx.add([user(said, id=f"u{n}"), assistant(f"I keep {secret(who)} in mind", id=f"a{n}")])


def tried(ctx: AgentContext, action: str, other: int, folder: Path, name: str) -> str:
    """All that a user gets to see by an action that aims at another one's words."""
    match action:
        case "search":
            return str(ctx.search(secret(other), limit=50))
        case "recall":
            return str(ctx.window(recall=True, question=f"what is {secret(other)}? which code?"))
        case "get":
            return str([ctx.get(r) for r in ("u1", "a11", "#3")])
        case "fork":
            with ctx.fork(name) as fork:
                return str(fork.messages()) + str(fork.forks())
        case "export":
            ctx.export_jsonl(folder / "out.jsonl")
            text = (folder / "out.jsonl").read_text(encoding="utf-8")
            with ctx.at(name) as copy:
                copy.import_jsonl(folder / "out.jsonl")
                return text + str(copy.messages())
        case "restore":
            return str(ctx.restore("u2"))
        case "erase":
            return str(ctx.erase("u3"))
        case "retain":
            return str(ctx.retain("user"))
        case _:
            return str(getattr(ctx, action)())


@settings(max_examples=max(8, settings.default.max_examples // 5))
@given(plan=steps)
def test_no_word_goes_from_one_user_to_another(store: Any, tmp_path_factory: pytest.TempPathFactory, plan: Any) -> None:
    session, folder = f"s{next(ROUND)}", tmp_path_factory.mktemp("out")
    users = [context(store=store, owner=name, session=session) for name in OWNERS]
    for who, ctx in enumerate(users):
        begun(ctx, who)
    erasing = [False] * len(OWNERS)
    for number, (who, action, other) in enumerate(plan):
        erasing[who] |= action in ("erase", "erase_session", "retain")
        try:
            seen = tried(users[who], action, other, folder, f"{session}-{number}")
        except CtxError as error:
            seen = str(error)
        assert not [stranger for stranger in range(len(OWNERS)) if stranger != who and secret(stranger) in seen]
    for who, ctx in enumerate(users):
        texts = [m.text for m in ctx.messages()]
        assert all(secret(who) in text for text in texts)
        assert len(texts) == 24 or erasing[who]
        assert set(store.sessions(OWNERS[who])) >= {session}


def test_erasing_one_owner_leaves_all_others(store: Any) -> None:
    session = f"s{next(ROUND)}"
    users = [context(store=store, owner=name, session=session) for name in OWNERS]
    for who, ctx in enumerate(users):
        begun(ctx, who)
    for who, ctx in enumerate(users):
        ctx.erase_owner()
        assert store.sessions(OWNERS[who]) == ()
        for later in range(who + 1, len(users)):
            assert len(users[later].messages()) == 24
            assert users[later].search(secret(later))


def test_fifty_users_on_one_object_at_once(store: Any) -> None:
    """One context serves all: owner and session come with each call."""
    session = f"s{next(ROUND)}"
    failures: list[str] = []
    with context(store=store, session=session, owner="nobody", context_window=2_000) as shared:

        def use(who: int) -> None:
            with shared.at(session, owner=f"user-{who}") as mine:
                for n in range(5):
                    mine.add([user(f"I am number {who:03} in line {n}", id=f"u{n}"), assistant("noted", id=f"a{n}")])
                found = str(mine.messages()) + str(mine.search("number line")) + str(mine.window(question="number?"))
                if any(f"number {other:03}" in found for other in range(50) if other != who):
                    failures.append(f"{who}: {found}")
                if who % 2:
                    mine.erase("u1")
                    mine.erase_session() if who % 3 else None

        threads = [threading.Thread(target=use, args=(who,)) for who in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        for who in range(50):
            left = len(shared.at(session, owner=f"user-{who}").messages())
            assert left == (0 if who % 2 and who % 3 else 9 if who % 2 else 10)
