"""Rules changed at run time, and messages that only the user or only the model sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ctxfold import ConfigError, ContextOverflowError, MemoryStore, MessageError, assistant, system, tool_result, user
from ctxfold.errors import WindowTooSmallError
from tests.support.driven import Driven, call, context, scripted, tool_round, turns

Make = Callable[..., Driven]


def test_automatic_summaries_on_and_off(make: Make) -> None:
    store = MemoryStore()
    ctx = make(scripted(*["fine"] * 9), store=store)
    ctx.ctx.set_policy(auto_compact=False)
    assert not ctx.policy.auto_compact
    ctx.add(turns(30))
    assert ctx.usage().compactions == 0
    with pytest.raises(ContextOverflowError, match="automatic compaction is off"):
        ctx.send("more")
    again = context(store=store)  # set at run time: it holds when the session is opened anew
    assert not again.policy.auto_compact
    assert again.at("another").policy.auto_compact, "other sessions keep theirs"
    ctx.set_policy(auto_compact=True)
    assert ctx.send("more").message.text == "fine"
    assert ctx.usage().compactions == 1


def test_any_rule_may_change(make: Make) -> None:
    ctx = make()
    assert ctx.set_policy(context_window=2_000, hard_ratio=0.8) == ctx.policy
    assert (ctx.policy.context_window, ctx.policy.hard_ratio) == (2_000, 0.8)
    head = ctx.view().epoch
    assert ctx.set_policy(hard_ratio=0.8) == ctx.policy
    assert ctx.view().epoch == head
    for fields, kind in (
        ({"hard_ratio": 2}, ConfigError),
        ({"no_such_rule": 1}, ConfigError),
        ({"context_window": 100}, WindowTooSmallError),
    ):
        with pytest.raises(kind):
            ctx.set_policy(**fields)
    assert ctx.policy.context_window == 2_000


def test_what_only_the_user_sees(make: Make) -> None:
    backend = scripted("fine", assistant("", id="t", calls=[call("c")]), "done")
    store = MemoryStore()
    ctx = make(backend, store=store)
    ctx.add(turns(1))
    tokens = ctx.view().tokens
    ctx.add([user("note one", id="n1"), assistant("shown as a card", id="n2")], visibility="user")
    assert ctx.view().tokens == tokens
    ctx.send("hello")
    ctx.send("look")
    ctx.add(user("a remark while the tool runs", id="n3"), visibility="user")
    ctx.send(tool_result("c", "found", id="r"))
    assert ctx.view().messages[-1].text == "done", "the tool round went on"
    for request in backend.requests:
        assert not {"n1", "n2", "n3"} & {m.id for m in request.messages}
    everything = [m.id for m in ctx.messages()]
    assert everything[:4] == ["u0", "a0", "n1", "n2"]
    assert {"n3", "t", "r"} <= set(everything)
    assert ctx.messages(audience="model") == ctx.view().messages
    assert [m.id for m in ctx.messages(audience="user")] == everything
    assert ctx.archive.get("n1").visibility == "user"
    assert ctx.archive.explain("n1").where == "hidden"
    assert ctx.search("note remark card") == ()
    with pytest.raises(MessageError, match="for the user only"):
        ctx.restore("n1")
    assert ctx.add(user("note one", id="n1"), visibility="user").messages == ()
    assert context(store=store).messages() == ctx.messages()


def test_a_note_for_the_user_is_put_in_between(make: Make) -> None:
    ctx = make()
    ctx.add(turns(1))
    before = ctx.view()
    ctx.edit.insert(1, replace(user("a remark", id="n"), visibility="user"))
    assert (ctx.view().messages, ctx.view().tokens) == (before.messages, before.tokens)
    assert [m.id for m in ctx.messages(audience="user")] == ["u0", "n", "a0"]


def test_a_note_for_the_user_inside_a_tool_round(make: Make) -> None:
    """Step 7, mutant: a note for the user inside a tool round. It belongs to no round: none is cut, aborted or sent with it."""
    store = MemoryStore()
    backend = scripted("fine", context_window=1_000)
    ctx = make(backend, store=store, auto_compact=False)
    ctx.add(user("start", id="u"))
    ctx.add(assistant("", id="a", calls=[call("c1"), call("c2")]))
    ctx.add(user("a note between call and results", id="n1"), visibility="user")
    ctx.add(tool_result("c1", "one", id="r1"))
    ctx.add(user("a note between two results", id="n2"), visibility="user")
    assert [e.id for e in ctx.view().turn] == ["a", "r1"], "the round is still open, without the notes"
    ctx.add(tool_result("c2", "two", id="r2"))
    ctx.add(assistant("both are there", id="z"))
    assert [m.id for m in ctx.view().messages] == ["u", "a", "r1", "r2", "z"]
    # the same in one list: notes may stand anywhere in it
    whole = make(backend, auto_compact=False)
    ctx_ids = ["u", "a", "r1", "r2", "z"]
    noted = {"n1": user("note", id="n1"), "n2": user("note", id="n2")}
    hidden = [replace(m, visibility="user") for m in noted.values()]
    listed = [ctx.archive.get(i) for i in ctx_ids]
    whole.add([*listed[:2], hidden[0], listed[2], hidden[1], *listed[3:]])
    assert [m.id for m in whole.view().messages] == ctx_ids
    assert {"n1", "n2"} <= {m.id for m in whole.messages(audience="user")}
    # after an undo each result is looked up in the round that stands before it
    undone = make(backend, auto_compact=False)
    undone.add(user("first", id="f"))
    undone.edit.remove(0)
    undone.undo()
    undone.add([*listed[:2], hidden[0], listed[2], hidden[1], *listed[3:]])
    assert [m.id for m in undone.messages(audience="user")] == ["f", "u", "a", "n1", "r1", "n2", "r2", "z"]
    # a note may come first in the list that brings the results
    ctx.add(assistant("", id="a2", calls=[call("c3")]))
    other = context(backend, store=store, auto_compact=False)  # it did not open the turn
    other.add(
        [
            replace(user("note", id="n3"), visibility="user"),
            tool_result("c3", "three", id="r3"),
            assistant("so", id="z2"),
        ]
    )
    ctx_ids += ["a2", "r3", "z2"]
    assert [m.id for m in ctx.view().messages] == ctx_ids
    again = context(backend, store=store, auto_compact=False)
    again.send("go on", recall=False)
    assert [m.id for m in backend.requests[-1].messages][:8] == ctx_ids
    assert {"n1", "n2"} <= {m.id for m in again.messages(audience="user")}


def test_what_only_the_model_sees(make: Make) -> None:
    ctx = make(context_window=2_000)
    ctx.add(user("internal state: 7", id="m"), visibility="model")
    ctx.add(turns(10))
    assert "m" in [x.id for x in ctx.messages(audience="model")]
    assert "m" not in [x.id for x in ctx.messages(audience="user")]
    ctx.compact(force=True)
    shown: list[Any] = [m.kind for m in ctx.messages(audience="model")]
    assert "summary" in shown
    assert ctx.messages(audience="user") == tuple(turns(10)), "compacted originals, without the summary"


def test_rounds_and_prompts_are_for_the_model(make: Make) -> None:
    ctx = make()
    for message in (*tool_round("t"), system("rule", id="s")):
        with pytest.raises(MessageError, match="for the user only"):
            ctx.add(message, visibility="user")
    assert ctx.messages() == ()
