"""A window begins with a user's message or a summary: chat templates and services refuse one that begins with an answer."""

from __future__ import annotations

import random

import pytest

from ctxfold import Message, assistant, user
from tests.properties.machine import assert_legal
from tests.support.driven import context, tool_round


def said(rng: random.Random, number: int, most: int) -> list[Message]:
    """A turn: a question or two, perhaps a tool round, an answer or two."""
    words = ("word " * rng.randint(1, most) for _ in iter(int, 1))
    asked = [user(next(words), id=f"u{number}-{i}") for i in range(rng.choice((1, 1, 2)))]
    looked = tool_round(f"t{number}", next(words)) if rng.random() < 0.3 else []
    answered = [assistant(next(words), id=f"a{number}-{i}") for i in range(rng.choice((1, 1, 2)))]
    return [*asked, *looked, *answered]


@pytest.mark.parametrize("strategy", ["tiered", "summarize", "truncate", "sliding_window", "clear_tools"])
@pytest.mark.parametrize("window", [60, 120, 400, 2_000])
def test_whatever_left_a_user_or_a_summary_leads(strategy: str, window: int) -> None:
    rng = random.Random(f"{strategy} {window}")
    for keep_last in (1, 2, 6):
        with context(None, context_window=window, strategy=strategy, keep_last=keep_last) as ctx:
            for number in range(25):
                for message in said(rng, number, max(2, window // 30)):
                    ctx.add([message])
                shown = ctx.window().messages
                assert shown[0].role == "user", [(m.id, m.role) for m in shown]
                assert_legal(shown)
            assert len(shown) < len(ctx.messages())


def test_a_sliding_window_keeps_the_question_of_its_first_answer() -> None:
    with context(None, context_window=8_000, strategy="sliding_window", keep_last=3) as ctx:
        ctx.add([user("one", id="u1"), assistant("two", id="a1"), user("three", id="u2")])
        ctx.add([*tool_round("x"), assistant("four", id="a2"), user("five", id="u3"), assistant("six", id="a3")])
        assert [e.id for e in ctx.view().live] == ["u2", "a2", "u3", "a3"]
        ctx.add([user("seven", id="u4"), assistant("eight", id="a4")])
        assert [e.id for e in ctx.view().live] == ["u3", "a3", "u4", "a4"]


def test_answers_that_came_unasked_stay() -> None:
    with context(None, context_window=8_000, strategy="sliding_window", keep_last=2) as ctx:
        ctx.add([assistant(f"note {n}", id=f"a{n}") for n in range(6)])
        assert [e.id for e in ctx.view().live] == ["a4", "a5"]
