"""The window of one request: it stands in place of the session's for as long as the request is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from ctxfold import ConfigError, ContextOverflowError, OpenAIChatBackend, Query, Reply, Request, Section
from ctxfold.errors import WindowTooSmallError
from ctxfold.testing import ModelServer
from ctxfold.tokens.text import MessageCounter
from tests.support.driven import COUNTER, Driven, context, scripted, turns

Make = Callable[..., Driven]
both = pytest.mark.parametrize("ask", ["send", "send_stream"])


def tokens_of(request: Request) -> int:
    return MessageCounter(COUNTER).count_all(request.messages)


@both
def test_a_narrower_window_has_the_session_compacted_until_the_request_fits(make: Make, ask: str) -> None:
    """Step 7, D A7: the option holds for its own request; the stored policy and the next request keep the session's window."""
    backend = scripted("one", "two", "three")
    ctx = make(backend, context_window=20_000, reply_reserve_tokens=100, summarizer=scripted(*["short"] * 9))
    ctx.add(turns(60, words=40))
    stored = ctx.policy
    getattr(ctx, ask)("How far are we?")
    assert tokens_of(backend.requests[0]) > 4_000
    assert ctx.usage().compactions == 0
    getattr(ctx, ask)("And now?", context_window=1_500)
    assert tokens_of(backend.requests[1]) <= 1_400
    assert ctx.usage().compactions >= 1
    assert ctx.policy == stored
    ctx.add(turns(60, start=60, words=40))
    getattr(ctx, ask)("And then?")
    assert tokens_of(backend.requests[2]) > 4_000, "a later request has the session's window again"


@both
def test_what_may_not_be_compacted_into_it_is_an_overflow(make: Make, ask: str) -> None:
    """Step 7, D A7: a request that is full, and may not compact, leaves the session as it was."""
    backend = scripted("unreached")
    ctx = make(backend, context_window=20_000, reply_reserve_tokens=100)
    ctx.add(turns(60, words=40))
    before = ctx.view().messages
    with pytest.raises(ContextOverflowError, match="window is 1500"):
        getattr(ctx, ask)("And now?", context_window=1_500, auto_compact=False)
    assert backend.requests == []
    assert ctx.view().messages == before
    assert not ctx.edit.is_full()


@both
def test_a_narrower_window_does_not_have_the_session_compacted_when_the_turn_ends(make: Make, ask: str) -> None:
    """Step 7, D A7: the request fits its window, and the session has room enough in its own."""
    ctx = make(
        scripted("fine", "too"), context_window=20_000, reply_reserve_tokens=100, summarizer=scripted(*["short"] * 9)
    )
    ctx.add(turns(30, words=12))
    used = ctx.usage().window_tokens
    getattr(ctx, ask)("And now?", context_window=used + 160)
    assert ctx.usage().compactions == 0
    getattr(ctx, ask)("And then?", context_window=used + 110)
    assert ctx.usage().compactions == 1, "the next one does not fit"


@both
def test_a_wider_window_leaves_the_conversation_whole(make: Make, ask: str) -> None:
    """Step 7, D A7: nothing is compacted as long as each request asks for the wider window."""
    backend = scripted("one", "two", "three")
    ctx = make(backend, context_window=1_000, reply_reserve_tokens=100, summarizer=scripted(*["short"] * 9))
    long_question = "What is the sum of " + "one and two " * 200 + "?"
    for number in range(2):
        getattr(ctx, ask)(f"{number} {long_question}", context_window=20_000)
    assert ctx.usage().compactions == 0
    assert tokens_of(backend.requests[1]) > 1_000
    getattr(ctx, ask)("And then?")
    assert ctx.usage().compactions >= 1
    assert tokens_of(backend.requests[2]) <= 900


def test_a_limit_that_the_model_has_named_is_narrower(make: Make) -> None:
    """Step 7, D A7: no option widens what the model has refused."""
    with ModelServer(model="lookup", context_window=900) as server:
        backend = OpenAIChatBackend(provider="generic", model="lookup", base_url=server.base_url, api_key="x")
        ctx = make(backend, context_window=50_000, reply_reserve_tokens=100, summarizer=scripted(*["short"] * 20))
        ctx.add(turns(40))
        ctx.send("What is question 39 about?", context_window=20_000)
        refused = len(server.requests)
        ctx.add(turns(40, start=40))
        assert ctx.send("What is question 79 about?", context_window=20_000).message.text
        assert len(server.requests) - refused == 1, "the limit is known: nothing is refused again"
        backend.close()


@pytest.mark.parametrize(
    ("window", "error"),
    [
        (0, ConfigError),
        (-5, ConfigError),
        ("2000", ConfigError),
        (True, ConfigError),
        (1, WindowTooSmallError),
        (18, WindowTooSmallError),
    ],
)
@both
def test_a_window_without_room_for_a_short_question_is_refused(
    make: Make, ask: str, window: Any, error: type[Exception]
) -> None:
    """Step 7, D A7: before anything is stored or sent."""
    backend = scripted("unreached")
    ctx = make(backend, context_window=2_000)
    with pytest.raises(error, match="context_window is"):
        getattr(ctx, ask)("hi", context_window=window)
    assert (backend.requests, ctx.view().messages, ctx.messages()) == ([], (), ())


def test_a_request_in_another_thread_keeps_the_window_of_the_session() -> None:
    """Step 7, D A7: two requests of one session at once have a window each."""
    waiting, go_on = threading.Event(), threading.Event()

    def held(request: Request) -> Reply:
        waiting.set()
        assert go_on.wait(30)
        return scripted("held").send(request)

    backend = scripted(held, "at once")
    with context(backend, context_window=20_000, reply_reserve_tokens=100) as ctx:
        ctx.add(turns(10, words=12))
        narrow = threading.Thread(target=ctx.send, args=("one",), kwargs={"context_window": 1_500})
        narrow.start()
        assert waiting.wait(30)
        try:
            ctx.add(turns(60, start=10, words=40))
            ctx.send("two")
            assert tokens_of(backend.requests[1]) > 4_000
            assert ctx.usage().compactions == 0
        finally:
            go_on.set()
            narrow.join()


def test_a_request_leaves_the_window_of_another_session_alone() -> None:
    seen: list[int] = []

    def source(_: Query) -> list[str]:
        seen.append(other.usage().budget_tokens)
        return []

    with (
        context(scripted("yes"), context_window=20_000, sections=[Section("documents", source)]) as ctx,
        context(context_window=20_000, session_id="other") as other,
    ):
        expected = other.usage().budget_tokens
        ctx.send("How far are we?", context_window=1_500)
    assert seen == [expected]
