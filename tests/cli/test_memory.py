"""`ctxfold memory` on a real file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ctxfold import SqlStore
from tests.erasure.scan import places_of
from tests.support.driven import context

Run = Callable[..., Any]


def test_add_list_and_replace(ctxfold: Run) -> None:
    assert "nothing found" in ctxfold("memory", "list").out
    assert ctxfold("memory", "add", "ann", "facts", "the locker is on the left", "--about", "locker").out.endswith(
        "new\n"
    )
    again = ctxfold("memory", "add", "ann", "facts", "the locker is on the right", "--about", "locker")
    assert "replaced: the locker is on the left" in again.out
    assert (
        "known already"
        in ctxfold("memory", "add", "bob", "facts", "the locker is on the right", "--about", "locker").out
    )
    assert [i["text"] for i in ctxfold("memory", "list", "--json").json] == ["the locker is on the right"]
    listed = ctxfold("memory", "list", "--all").out
    assert "(replaced)" in listed
    assert ctxfold("memory", "list", "--kind", "persona", "--json").json == []
    assert ctxfold("memory", "list", "--owner", "mallory", "--json").json == []


def test_values_with_names(ctxfold: Run, store: str) -> None:
    data = ("--data", "subject=Ann", "--data", "predicate=works at", "--data", "object=Acme=Co")
    assert ctxfold("memory", "add", "ann", "graph", *data, "--json").json["new"] is True
    with context(store=store, session_id="ann", create=False) as ann:
        assert dict(ann.memory.list("graph")[0].data)["object"] == "Acme=Co"
    bad = ctxfold("memory", "add", "ann", "graph", "--data", "subject")
    assert (bad.code, "such as subject=Ann" in bad.err) == (2, True)


def test_forget(ctxfold: Run, store: str) -> None:
    ids = [ctxfold("memory", "add", "ann", "facts", f"Zanzibar {n}", "--json").json["item"]["id"] for n in range(2)]
    assert ctxfold("memory", "forget", ids[0][:8]).out == "forgotten: 1 items\n"
    unknown = ctxfold("memory", "forget", ids[0])
    assert (unknown.code, "0 items begin with" in unknown.err) == (3, True)
    assert [i["text"] for i in ctxfold("memory", "list", "--json").json] == ["Zanzibar 1"]
    with SqlStore(store) as opened:
        assert places_of("Zanzibar 0", opened) == []


def test_failures(ctxfold: Run) -> None:
    for arguments, code, told in (
        (("add", "nobody", "facts", "x"), 3, "does not exist"),
        (("add", "ann", "dreams", "x"), 2, "memory kind 'dreams'"),
        (("add", "ann", "facts", "x", "--data", "shared=no"), 2, "is reserved"),
        (("add", "ann", "facts"), 1, "0 characters"),
        (("forget", "", "--owner", "nobody"), 3, "0 items begin with"),
    ):
        done = ctxfold("memory", *arguments)
        assert (done.code, done.out) == (code, "")
        assert told in done.err
