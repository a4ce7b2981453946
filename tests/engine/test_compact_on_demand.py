"""R12: `compact()` hides nothing while half of the budget is free, unless it is forced."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ctxfold.errors import NotEnoughHistoryError
from tests.support.driven import Driven, turns

Make = Callable[..., Driven]


def test_r12_nothing_is_hidden_while_half_of_the_budget_is_free(make: Make) -> None:
    ctx = make(context_window=2_000)
    ctx.add(turns(4))
    before = ctx.view()
    budget = ctx.policy.budget_tokens
    assert before.tokens <= budget // 2
    with pytest.raises(NotEnoughHistoryError, match=rf"{before.tokens:,} of {budget:,} tokens are used.*force"):
        ctx.compact()
    assert ctx.view().messages == before.messages
    assert ctx.compact(force=True).compacted


def test_r12_a_window_that_is_half_full_is_compacted(make: Make) -> None:
    ctx = make(context_window=2_000)
    number = 0
    while ctx.view().tokens <= ctx.policy.budget_tokens // 2:
        ctx.add(turns(1, start=number))
        number += 1
    assert ctx.compact().compacted
