"""Compaction with a focus: exchanges that bear on it stay, the rest of what is older gives way to a summary."""

from __future__ import annotations

import pytest

from ctxfold import AgentContext, assistant, user
from tests.support.driven import context, tool_round, turns


def opened() -> AgentContext:
    return context(None, context_window=8_000, keep_last=2)


@pytest.mark.parametrize("by", ["topic", "goal", "question"])
def test_with_a_focus_what_bears_on_it_stays_word_for_word(by: str) -> None:
    ctx = opened()
    service = ctx.service
    ctx.add([user("The zebra7 gate opens at nine, says the zebra7 guard.", id="z"), assistant("Noted.", id="n")])
    ctx.add(turns(6, words=60))
    ctx.add([user("Who guards the zebra7 gate?", id="q"), *tool_round("t"), assistant("A guard.", id="d")])
    if by == "goal":
        ctx.add([user("And now?", id="w"), assistant("Wait.", id="v")])
        ctx.edit.set_goal("Get through the zebra7 gate")
    outcome = service.compact_context(focus="zebra7 gate" if by == "topic" else True)
    assert outcome.event is not None
    assert outcome.event.strategy == "focus"
    ids = [m.id for m in ctx.view().messages]
    assert {"z", "n", "q", "t-a", "t-r0", "d"} <= {*ids}, "whole exchanges"
    assert not {"u0", "u5"} & {*ids}
    assert ctx.view().messages[0].kind == "summary"
    ctx.undo()
    assert "u0" in {m.id for m in ctx.view().messages}


def test_a_focus_that_nothing_bears_on_or_that_everything_does() -> None:
    ctx = opened()
    service = ctx.service
    ctx.add(turns(10, words=60))
    assert service.maybe_proactive_compress(0.05, focus="question"), "at most half of what is older stays"
    assert ctx.view().tokens < 0.75 * sum(ctx.handle.counter.count(m) for m in turns(10, words=60))
    ctx.undo()
    assert service.compact_context(focus="xylophone").compacted
    assert len(ctx.view().messages) == 3, "a summary, and the newest"
    assert not service.compact_context(focus="xylophone").compacted
