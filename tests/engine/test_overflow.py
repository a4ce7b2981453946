"""A request that is too long after all: what the refusal teaches, and when it is final."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ctxfold import BackendError, ContextOverflowError, OpenAIChatBackend, Request, ToolSpec, assistant, user
from ctxfold.engine.request import Options
from ctxfold.engine.turn import TurnInput
from ctxfold.errors import MessageTooLargeError
from ctxfold.history.records import SessionKey
from ctxfold.testing import ModelServer
from ctxfold.tokens.text import MessageCounter
from tests.support.driven import COUNTER, Driven, scripted, turns
from tests.support.open_sessions import opened
from tests.support.summaries import asks_on_live_prefix

Make = Callable[..., Driven]


def test_an_overflow_teaches_the_limit(make: Make) -> None:
    with ModelServer(model="lookup", context_window=600) as server:
        backend = OpenAIChatBackend(provider="generic", model="lookup", base_url=server.base_url, api_key="x")
        ctx = make(backend, context_window=50_000, reply_reserve_tokens=100)
        ctx.add(turns(40))
        events: list[Any] = []
        ctx.subscribe(events.append)
        reply = ctx.send("What is question 39 about?")
        assert reply.message.text
        assert ctx.usage().budget_tokens < 600
        assert ctx.usage().compactions >= 1
        backend.close()


def test_an_overflow_that_cannot_be_helped(make: Make) -> None:
    full = BackendError("too long", kind="context_overflow")
    ctx = make(scripted(full, full, full, full))
    with pytest.raises(ContextOverflowError, match="too long"):
        ctx.send("hi")
    with pytest.raises(ContextOverflowError, match="automatic compaction is off"):
        ctx.send("hi", auto_compact=False)
    assert ctx.view().messages == ()


def test_another_failure_after_the_compaction_is_told_as_it_is(make: Make) -> None:
    full, busy = BackendError("too long", kind="context_overflow"), BackendError("slow down", kind="rate_limit")
    ctx = make(scripted(full, busy, "fine"), context_window=2_000, summarizer=scripted("So far: fillers."))
    ctx.add(turns(30))
    before = ctx.view().messages
    with pytest.raises(BackendError, match="slow down") as caught:
        ctx.send("hi")
    assert caught.value.kind == "rate_limit"
    assert ctx.usage().compactions == 1, "the compaction helped, and stays"
    assert [m.text for m in ctx.messages()] == [m.text for m in before], "the question does not"
    assert ctx.send("hi").message.text == "fine"


class Dense:
    """Counts of a model whose tokens are shorter than ours."""

    def __init__(self, times: float) -> None:
        self.times = times

    def count(self, text: str) -> int:
        return int(self.times * COUNTER.count(text)) + 1


@pytest.mark.parametrize("max_tokens", [None, 300])
def test_an_overflow_teaches_how_the_model_counts(make: Make, max_tokens: int | None) -> None:
    """Otherwise a session whose tools take half of the window would be refused for ever: our own count says that all fits."""
    tools = (ToolSpec("look", "word " * 1_200, {"type": "object"}),)
    with ModelServer(model="lookup", context_window=4_000, counter=Dense(2.0)) as server:
        backend = OpenAIChatBackend(provider="generic", model="lookup", base_url=server.base_url, api_key="x")
        ctx = make(backend, context_window=4_000, reply_reserve_tokens=200)
        ctx.add(turns(30, words=60))
        assert ctx.send("What is question 29 about?", tools=tools, max_tokens=max_tokens).message.text
        refused = len(server.requests)
        learnt = opened(ctx.ctx).state.calibrations["lookup"]
        assert 1.8 < learnt.ratio < 2.2
        for number in range(4):
            ctx.send(f"And question {number}?", tools=tools, max_tokens=max_tokens)
        chats = [r for r in server.requests[refused:] if r.body.get("tools") and not asks_on_live_prefix(r.body)]
        assert len(chats) == 4, "none of them was refused"
        backend.close()


@pytest.mark.parametrize("max_tokens", [400, None])
def test_a_refusal_that_counts_the_room_for_the_reply_says_nothing_about_our_counts(
    make: Make, max_tokens: int | None
) -> None:
    def refused(request: Request) -> BackendError:
        room = None if request.max_tokens else 400  # of a backend that sets the limit of a reply itself
        requested = MessageCounter(COUNTER).count_all(request.messages) + (room or request.max_tokens or 0)
        return BackendError("too long", kind="context_overflow", requested_tokens=requested, reply_tokens=room)

    ctx = make(scripted(refused, "yes"), context_window=20_000, summarizer=scripted("short"))
    ctx.add(turns(12))
    budget = ctx.usage().budget_tokens
    assert ctx.send("hi", max_tokens=max_tokens).message.text == "yes"
    assert ctx.usage().budget_tokens == budget
    assert ctx.usage().window_tokens <= MessageCounter(COUNTER).count_all(ctx.view().messages)


def test_what_no_compaction_could_help_is_not_compacted(make: Make) -> None:
    ctx = make(scripted("unreached"), summarizer=scripted("unreached"))
    ctx.add(turns(6))
    before = ctx.view().messages
    with pytest.raises(MessageTooLargeError):
        ctx.send("What is question 5 about?", tools=(ToolSpec("look", "word " * 2_000, {"type": "object"}),))
    assert ctx.usage().compactions == 0
    assert ctx.view().messages == before


def test_where_nothing_fits_the_second_request_is_refused_before_it_is_sent(make: Make) -> None:
    full = BackendError("too long", kind="context_overflow", limit_tokens=1_000, requested_tokens=2_400)
    backend = scripted(full, "unreached")
    ctx = make(backend, context_window=1_000)
    with pytest.raises(MessageTooLargeError):
        ctx.send("word " * 500)
    assert len(backend.requests) == 1
    assert ctx.view().messages == ()


def test_a_reply_that_stopped_at_the_window_has_the_conversation_compacted(make: Make) -> None:
    cut = replace(assistant("as far as it went", id="z"), finish_reason="context_window")
    ctx = make(scripted("one", "two", cut, "four"), context_window=50_000, summarizer=scripted(*["short"] * 9))
    ctx.add(turns(8))
    ctx.send("first")
    ctx.send("second")
    assert ctx.usage().compactions == 0
    reply = ctx.send("third")
    assert (reply.message.text, ctx.usage().compactions) == ("as far as it went", 1)
    assert [m.text for m in ctx.view().messages][-2:] == ["third", "as far as it went"]
    ctx.send("fourth")
    assert ctx.usage().compactions == 1
    with_it_off = make(scripted(cut), context_window=50_000, auto_compact=False)
    with_it_off.add(turns(8))
    with_it_off.send("third")
    assert with_it_off.usage().compactions == 0


@pytest.mark.parametrize("ask", ["send", "send_stream"])
def test_a_request_that_may_not_compact_does_not(make: Make, ask: str) -> None:
    """Step 7, item B9: neither before it is sent nor when its turn ends; what does not fit is an overflow."""
    writer = scripted(*["short"] * 40)
    ctx = make(scripted(*["fine, thank you " * 4] * 40), context_window=400, summarizer=writer)
    refused: list[str] = []
    for number in range(30):
        before = ctx.view().messages
        try:
            getattr(ctx, ask)(f"question {number}", auto_compact=False)
        except ContextOverflowError as error:
            refused.append(str(error))
        if refused:
            assert ctx.view().messages == before
    assert refused
    assert all("automatic compaction is off" in reason for reason in refused)
    assert (ctx.usage().compactions, writer.requests) == (0, [])
    getattr(ctx, ask)("and now?")
    assert ctx.usage().compactions > 0, "the next request may"


@pytest.mark.parametrize("own", [False, True])
def test_a_request_that_may_compact_does_where_the_session_does_not(make: Make, own: bool) -> None:
    """Step 7, item B9: the option of a request beats the session's rule, in both directions, after a refusal too."""
    refusal = BackendError("too long", kind="context_overflow", limit_tokens=500)
    ctx = make(
        scripted(refusal, *["fine"] * 9), context_window=1_000, auto_compact=not own, summarizer=scripted("short")
    )
    ctx.add(turns(14, words=6), known_ids=False)
    before = ctx.usage().compactions
    if own:
        assert ctx.send("and now?", auto_compact=True).message.text == "fine"
        assert ctx.usage().compactions > before
        return
    with pytest.raises(ContextOverflowError, match="automatic compaction is off"):
        ctx.send("and now?", auto_compact=False)
    assert ctx.usage().compactions == before


@pytest.mark.parametrize("auto_compact", [False, None])
def test_a_request_for_somebody_else_keeps_to_the_option(make: Make, auto_compact: bool | None) -> None:
    """Step 7, item B9: `request_for` stores finished turns of a list, and compacts there unless the caller forbids it."""
    ctx = make(context_window=1_000)
    listed = [*turns(8, words=30), user("and now?", id="q")]
    options = Options(auto_compact=auto_compact)
    question = TurnInput(SessionKey("default", "default"), listed, options, given_ids=frozenset(m.id for m in listed))
    try:
        ctx.handle.request_for(question)
    except ContextOverflowError:
        assert auto_compact is False
    assert (ctx.usage().compactions > 0) is (auto_compact is None)


@pytest.mark.parametrize("ask", ["send", "send_stream"])
@pytest.mark.parametrize("limit", [None, 900])
def test_a_second_refusal_leaves_the_session_as_it_was(make: Make, ask: str, limit: int | None) -> None:
    """Step 7, D D6: what was compacted for the second request comes back; only what the model said of itself stays."""
    full = BackendError("too long", kind="context_overflow", limit_tokens=limit)
    backend = scripted(full, full, "fits now")
    ctx = make(backend, context_window=4_000, reply_reserve_tokens=100, summarizer=scripted(*["short"] * 40))
    ctx.add(turns(40))
    view, messages, usage, rules = ctx.view(), ctx.messages(), ctx.usage(), ctx.handle.engine.rules
    with pytest.raises(ContextOverflowError, match="still does not fit"):
        getattr(ctx, ask)("What is question 39 about?")
    assert len(backend.requests) == 2
    assert len(backend.requests[1].messages) < len(backend.requests[0].messages), "it was compacted for the second"
    assert ctx.view().messages == view.messages
    assert ctx.messages() == messages
    assert (ctx.usage().compactions, ctx.usage().turns) == (usage.compactions, usage.turns)
    assert ctx.handle.engine.rules == rules
    if limit is not None:
        assert ctx.usage().budget_tokens < limit, "a limit that was named is learnt"
    ctx.send("And question 39?")
    assert ctx.view().messages[-1].text == "fits now"


def test_a_reply_longer_than_the_window_is_named(make: Make) -> None:
    backend = scripted("Hi.", "Hi.")
    ctx = make(backend, context_window=2_000)
    told = r"max_tokens asks for a reply of 5000 tokens; .* the window is 2000: lower max_tokens"
    with pytest.raises(ContextOverflowError, match=told):
        ctx.send("Hello.", max_tokens=5_000)
    assert backend.requests == []
    assert ctx.send("Hello.", max_tokens=1_000).message.text == "Hi."
