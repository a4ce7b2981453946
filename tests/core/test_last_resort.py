"""A request that has to fit does, also where no summary frees enough: newer tool outputs of the turn give way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ctxfold.messages import assistant, user
from tests.core.driven import Driven, scripted, text_of, tool_round


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
    kept: Any = ctx.get("first-r0")
    assert kept.text == said("first", 4_600)
