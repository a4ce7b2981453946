"""Step 7, item B17: a long history that comes at once is imported without the model; its summary follows in the background."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxfold import AgentContext, CompactionHeld, HistoryCompacted, Message, Usage, assistant, user
from tests.compaction.test_background import Slow
from tests.support.driven import context, scripted
from tests.timing import await_for, wait_for


def past(turns: int = 150) -> list[Message]:
    found: list[Message] = []
    for n in range(turns):
        found.append(user(f"How is depot {n}?", id=f"u{n}"))
        found.append(assistant(f"Point {n} is ready{n}, and the road to it is open all day long.", id=f"a{n}"))
    return found


def given_by_add(ctx: AgentContext, messages: list[Message], _: Path) -> None:
    ctx.add(messages)


def given_by_set(ctx: AgentContext, messages: list[Message], _: Path) -> None:
    ctx.edit.set_messages(messages)


def given_by_import(ctx: AgentContext, messages: list[Message], folder: Path) -> None:
    with context(context_window=100_000) as other:
        other.add(messages)
        other.files.export_jsonl(folder / "past.jsonl")
    ctx.files.import_jsonl(folder / "past.jsonl")


@pytest.mark.parametrize("give", [given_by_add, given_by_set, given_by_import])
def test_nobody_waits_for_the_calls(give: Callable[..., None], tmp_path: Path) -> None:
    slow, events = Slow(), list[Any]()
    slow.context_window = 2_000
    with context(scripted("Ready."), summarizer=slow) as ctx:
        ctx.subscribe(events.append)
        give(ctx, past(), tmp_path)
        ctx.send("And now?")
        compacted = [e for e in events if isinstance(e, HistoryCompacted)]
        assert compacted[0].fallback_level == "extractive"
        assert "messages came at once: a summary by the model follows" in compacted[0].reason
        assert all(e.summary_calls == 0 for e in compacted)
        slow.gate.set()
        wait_for(lambda: any(isinstance(e, HistoryCompacted) and e.fallback_level == "model" for e in events))
        view = ctx.view()
        assert [m.text.count("The talk so far") > 0 for m in view.messages if m.kind == "summary"] == [True]
        assert [m.text for m in view.messages][-2:] == ["And now?", "Ready."]
        newest = [e for e in events if isinstance(e, HistoryCompacted)][-1]
        assert newest.summary_calls == len(slow.callers) > 1
        assert newest.reason.endswith("the summary was written in the background")
        assert ctx.usage().summary_calls == len(slow.callers)
        assert ctx.usage().reported == Usage(), "the scripted reply says nothing; summaries are counted beside it"
        assert len(ctx.messages()) == 302, "the archive has everything"


async def test_nobody_waits_on_a_loop() -> None:
    slow, events = Slow(), list[Any]()
    async with context(scripted("Ready."), summarizer=slow) as ctx:
        ctx.subscribe(events.append)
        await ctx.aadd(past())
        await ctx.asend("And now?")
        assert [e.fallback_level for e in events if isinstance(e, HistoryCompacted)] == ["extractive"]
        slow.gate.set()
        await await_for(lambda: any(isinstance(e, HistoryCompacted) and e.fallback_level == "model" for e in events))
        assert [m.text for m in (await ctx.aview()).messages][-2:] == ["And now?", "Ready."]


def test_what_a_later_compaction_has_covered_stays_so() -> None:
    slow, events = Slow(), list[Any]()
    with context(scripted(*["Noted."] * 3), summarizer=slow, strategy="tiered") as ctx:
        ctx.subscribe(events.append)
        ctx.add(past())
        ctx.edit.clear()
        slow.gate.set()
        wait_for(lambda: any(isinstance(e, CompactionHeld) for e in events))
        (held,) = [e for e in events if isinstance(e, CompactionHeld)]
        assert "keep their extractive summary" in held.reason
        assert ctx.view().messages == ()


def test_a_conversation_that_grows_is_summarised_as_before() -> None:
    slow, events = Slow(held=False), list[Any]()
    with context(summarizer=slow) as ctx:
        ctx.subscribe(events.append)
        for message in past(60):
            ctx.add(message)
        fallback_levels = {e.fallback_level for e in events if isinstance(e, HistoryCompacted)}
        assert "model" in fallback_levels
        assert not any("at once" in e.reason for e in events if isinstance(e, HistoryCompacted))


def test_who_asks_for_a_compaction_waits_for_it() -> None:
    slow = Slow(held=False)
    with context(summarizer=slow, auto_compact=False) as ctx:
        ctx.add(past())
        outcome = ctx.compact()
        assert outcome.event is not None
        assert outcome.event.fallback_level == "model"
