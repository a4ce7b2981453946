"""Rules changed at run time, and messages that only the user or only the model sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ctxfold import MemoryStore
from ctxfold.errors import ConfigError, ContextOverflowError, MessageError, WindowTooSmallError
from ctxfold.messages import assistant, system, tool_result, user
from tests.core.driven import Driven, call, context, scripted, tool_round, turns

Make = Callable[..., Driven]


def test_automatic_summaries_on_and_off(make: Make) -> None:
    store = MemoryStore()
    ctx = make(scripted(*["fine"] * 9), store=store)
    ctx.ctx.auto_compact = False
    assert not ctx.auto_compact
    ctx.add(turns(30))
    assert ctx.usage().compactions == 0
    with pytest.raises(ContextOverflowError, match="automatic compaction is off"):
        ctx.send("more")
    again = context(store=store)  # set at run time: it holds when the session is opened anew
    assert not again.auto_compact
    assert again.at("another").auto_compact, "other sessions keep theirs"
    ctx.set_policy(auto_compact=True)
    assert ctx.send("more").message.text == "fine"
    assert ctx.usage().compactions == 1


def test_any_rule_may_change(make: Make) -> None:
    ctx = make()
    assert ctx.set_policy(context_window=2_000, hard_ratio=0.8) == ctx.rules()
    assert (ctx.rules().context_window, ctx.rules().hard_ratio) == (2_000, 0.8)
    head = ctx.view().epoch
    assert ctx.set_policy(hard_ratio=0.8) == ctx.rules()
    assert ctx.view().epoch == head
    for fields, kind in (
        ({"hard_ratio": 2}, ConfigError),
        ({"no_such_rule": 1}, ConfigError),
        ({"context_window": 100}, WindowTooSmallError),
    ):
        with pytest.raises(kind):
            ctx.set_policy(**fields)
    assert ctx.rules().context_window == 2_000


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
    assert ctx.get("n1").visibility == "user"
    assert ctx.explain_message("n1").where == "hidden"
    assert ctx.search("note remark card") == ()
    with pytest.raises(MessageError, match="for the user only"):
        ctx.restore("n1")
    assert ctx.add(user("note one", id="n1"), visibility="user").messages == ()
    assert context(store=store).messages() == ctx.messages()


def test_what_only_the_model_sees(make: Make) -> None:
    ctx = make(context_window=2_000)
    ctx.add(user("internal state: 7", id="m"), visibility="model")
    ctx.add(turns(10))
    assert "m" in [x.id for x in ctx.messages(audience="model")]
    assert "m" not in [x.id for x in ctx.messages(audience="user")]
    ctx.compact()
    shown: list[Any] = [m.kind for m in ctx.messages(audience="model")]
    assert "summary" in shown
    assert ctx.messages(audience="user") == tuple(turns(10)), "compacted originals, without the summary"


def test_rounds_and_prompts_are_for_the_model(make: Make) -> None:
    ctx = make()
    for message in (*tool_round("t"), system("rule", id="s")):
        with pytest.raises(MessageError, match="for the user only"):
            ctx.add(message, visibility="user")
    assert ctx.messages() == ()
