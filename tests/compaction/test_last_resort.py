"""A request that has to fit does, also where no summary frees enough: newer tool outputs of the turn give way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ctxfold import assistant, tool_result, user
from tests.support.driven import Driven, scripted, text_of, tool_round


def said(name: str, characters: int) -> str:
    return (name + " ") * (characters // (len(name) + 1))


def test_outputs_of_the_asking_turn_give_way_when_summaries_free_too_little(make: Callable[..., Driven]) -> None:
    outputs = [("first", 4_600), ("second", 1_800), ("third", 1_800)]
    rounds = [tool_round(name, said(name, size)) for name, size in outputs]
    backend = scripted(*(messages[0] for messages in rounds), "All three looked at.")
    ctx = make(
        backend,
        context_window=6_000,
        system=said("policy", 8_000),
        keep_last=6,
        summarizer=scripted(*["Looked at."] * 20),
    )
    for number in (1, 2):
        ctx.add([user(said("asked", 900), id=f"u{number}"), assistant(said("answered", 900), id=f"a{number}")])
    reply = ctx.send("Please look at all three.", recall=False)
    for messages in rounds:
        assert reply.message.tool_calls
        reply = ctx.send(messages[1:], recall=False)
    assert reply.message.text == "All three looked at."
    shown = text_of(backend.requests[-1].messages)
    assert said("third", 1_800) in shown  # what was asked for last stays whole
    assert said("first", 4_600) not in shown
    kept: Any = ctx.archive.get("first-r0")
    assert kept.text == said("first", 4_600)


def test_the_rest_of_the_past_goes_before_a_request_is_refused(make: Callable[..., Driven]) -> None:
    ctx = make(context_window=1_250, reply_reserve_tokens=250)
    for number in range(20):
        ctx.add(
            [
                user(f"question {number} " + said("q", 20), id=f"u{number}"),
                assistant(said("answered", 100), id=f"a{number}"),
            ]
        )
    for overhead in (0, 700, 850, 930):
        window = ctx.window(overhead_tokens=overhead)
        assert window.view.tokens + overhead <= 1_000
        assert "u19" in [m.id for m in window.messages]


def test_a_turn_before_the_newest_goes_whole_where_both_do_not_fit(make: Callable[..., Driven]) -> None:
    ctx = make(context_window=500, reply_reserve_tokens=100)
    for number in range(6):
        ctx.add(user(said("asked", 1_000), id=f"u{number}"))
        for message in tool_round(f"r{number}", said("found", 500)):
            ctx.add(message)
            assert ctx.window().view.tokens <= 400
        ctx.add(assistant(said("answered", 700), id=f"a{number}"))
    assert [m.id for m in ctx.messages() if m.role == "user"] == [f"u{number}" for number in range(6)]


@pytest.mark.parametrize("limit", [60, 100, 150])
def test_tiny_windows_hold_too(make: Callable[..., Driven], limit: int) -> None:
    """Of a few words no summary is shorter: they go without one, into the archive."""
    ctx = make(context_window=limit, reply_reserve_tokens=limit // 10)
    for number in range(25):
        ctx.add(user("w " * (number * 7 % 20 + 1), id=f"u{number}"))
        assert ctx.window().view.tokens <= limit - limit // 10
        ctx.add(assistant("a " * (number * 11 % 20 + 1), id=f"a{number}"))
    assert len(ctx.messages()) == 50


def test_what_was_recalled_travels_only_while_its_message_fits(make: Callable[..., Driven]) -> None:
    for size in range(424, 464, 4):
        asking = tool_round("r")[0]
        backend = scripted(asking, "done")
        ctx = make(
            backend,
            context_window=500,
            reply_reserve_tokens=100,
            tool_result_ratio=0.9,
            summarizer=scripted(*["short"] * 9),
        )
        for number in range(12):
            said_before = f"The value of key {number} is {number * 137}. " + "word " * 20
            ctx.add([user(said_before, id=f"u{number}"), assistant("noted", id=f"a{number}")])
        ctx.send("What is the value of key 3?")
        ctx.send(tool_result("r-c0", "x" * size, id="r-r0"))
        request = backend.requests[-1]
        assert sum(map(ctx.ctx.handle.counter.count, request.messages)) <= 400
        assert "key 3" in request.messages[-1].text  # as much as fits
