"""Breaks of the prefix that come from what a provider takes back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ctxfold import (
    AgentContext,
    BackendError,
    Message,
    Query,
    ScriptedBackend,
    Section,
    ToolCallPart,
    ToolSpec,
    assistant,
    tool_result,
    user,
)
from ctxfold.engine.turn import TurnInput
from ctxfold.history.records import SessionKey
from ctxfold.protocols import BackendCapabilities
from tests.support.driven import context


class Expiring(ScriptedBackend):
    """Like a row that sends reasoning back only within its round."""

    capabilities = BackendCapabilities(reasoning_expires=True)


class Bound(ScriptedBackend):
    """Like a row that binds reasoning to everything before it."""

    capabilities = BackendCapabilities(binds_reasoning=True)


def round_of(n: int) -> list[Message]:
    call = ToolCallPart(f"c{n}", "look", "{}")
    return [assistant("", id=f"a{n}", reasoning="I should look.", calls=[call]), assistant(f"answer {n}", id=f"z{n}")]


def play(ctx: AgentContext, turns: Sequence[int]) -> None:
    for n in turns:
        ctx.send(f"question {n} about the garden")
        ctx.send([tool_result(f"c{n}", "a hedge", id=f"t{n}")])


def test_reasoning_that_expires_is_a_named_break_at_the_next_user_turn() -> None:
    backend = Expiring([m for n in range(3) for m in round_of(n)])
    with AgentContext(backend, context_window=10_000) as ctx:
        play(ctx, range(3))
        assert dict(ctx.usage().prefix.breaks) == {"reasoning_expired": 2}


def test_it_is_no_break_where_reasoning_stays() -> None:
    backend = ScriptedBackend([m for n in range(3) for m in round_of(n)])
    with AgentContext(backend, context_window=10_000) as ctx:
        play(ctx, range(3))
        assert ctx.usage().prefix.breaks == ()


def test_bound_reasoning_counts_as_unbound_after_a_compaction_and_scratch_is_frozen() -> None:
    summaries = ScriptedBackend(["They looked at the garden three times."])
    backend = Bound([m for n in range(4) for m in round_of(n)])
    with AgentContext(backend, summarizer=summaries, context_window=10_000) as ctx:
        play(ctx, range(3))
        assert [r.unbound_before for r in backend.requests] == [0] * 6
        ctx.compact(force=True)
        ctx.send("question 3 about the garden", scratch="The time is noon.")
        asked = backend.requests[-1]
        assert asked.unbound_before == asked.stable_messages == len(asked.messages)
        assert asked.messages[-2].kind == "section", "what would be scratch stays before the question"
        assert "noon" in asked.messages[-2].text
        ctx.send([tool_result("c3", "a hedge", id="t3")])
        again = backend.requests[-1]
        assert again.messages[: len(asked.messages)] == asked.messages
        assert again.unbound_before == asked.unbound_before, "this turn's reasoning is still bound"
        assert asked.cache_key == again.cache_key


def test_prompts_of_calls_side_by_side_are_named_breaks() -> None:
    backend, asked = ScriptedBackend(["one", "two", "three"]), list[str]()

    def source(query: Query) -> list[str]:
        asked.append(query.text)
        if len(asked) < 3:  # another call comes in between, under its own prompt
            ask(ctx, f"prompt {len(asked)}", f"question {len(asked)}")
        return []

    with context(backend, sections=[Section("documents", source)]) as ctx:
        ask(ctx, "prompt 0", "question 0")
        sent = [[m.text for m in r.messages] for r in backend.requests]
        assert [texts[0] for texts in sent] == ["prompt 2", "prompt 1", "prompt 0"]
        assert ctx.usage().prefix.breaks == (("concurrent_turn", 2),)
        assert ctx.usage().prefix.reused_tokens == 0


def ask(ctx: AgentContext, prompt: str, text: str) -> None:
    ctx.handle.complete(TurnInput(SessionKey("default", "default"), [user(text, id=text)], prompts=(prompt,)))


def test_a_question_that_was_taken_back_counts_as_no_prefix_of_the_next() -> None:
    """Step 7, mutants: a discarded turn counted as kept in the prefix."""
    backend = ScriptedBackend(["one", BackendError("down", kind="server"), "three"])
    with AgentContext(backend, context_window=10_000) as ctx:
        ctx.send("question 1 about the garden")
        with pytest.raises(BackendError):
            ctx.send("question 2 about the garden")
        first = ctx.usage().prefix
        ctx.send("question 3 about the house")
        prefix = ctx.usage().prefix
        assert dict(prefix.breaks) == {"aborted_turn": 1}
        kept = sum(map(ctx.handle.counter.count, ctx.view().messages[:2]))
        assert prefix.reused_tokens - first.reused_tokens == kept, "the question that was taken back is not among them"


def test_a_question_that_was_asked_with_more_counts_no_further_than_it_was_sent_again() -> None:
    backend = ScriptedBackend([BackendError("down", kind="server"), "one"])
    with AgentContext(backend, context_window=10_000) as ctx:
        with pytest.raises(BackendError):
            ctx.send([user("Look at the garden.", id="u1"), user("What grows behind the hedge?", id="u2")])
        ctx.send("Look at the garden.")
        prefix = ctx.usage().prefix
        assert dict(prefix.breaks) == {"aborted_turn": 1}
        assert prefix.reused_tokens == sum(map(ctx.handle.counter.count, backend.requests[-1].messages))


def test_an_edit_that_was_undone_is_a_break_of_its_own() -> None:
    """The request after the undo has another beginning than the one before, in which the edit still counted."""
    with AgentContext(ScriptedBackend(["one", "two", "three"]), context_window=10_000) as ctx:
        ctx.send("Look at the garden.")
        ctx.edit.update(0, user("Look at the old house behind the garden.", id="new"))
        ctx.send("What do you see?")
        before = ctx.usage().prefix
        ctx.undo()
        ctx.send("And now?")
        after = ctx.usage().prefix
        assert dict(before.breaks) == {"edit": 1}
        assert dict(after.breaks) == {"edit": 2}
        assert after.reused_tokens == before.reused_tokens


def test_tools_count_as_reused_only_while_the_prefix_holds() -> None:
    """Templates put them before or behind the messages: after a break nothing says that they were kept."""
    tools = (ToolSpec("look", "Looks at a place of the garden, by its name.", {"type": "object", "properties": {}}),)
    with AgentContext(ScriptedBackend(["one", "two", "three"]), context_window=10_000) as ctx:
        ctx.send("Look at the garden.", tools=tools)
        first_tokens = sum(map(ctx.handle.counter.count, ctx.view().messages[:1]))
        ctx.send("What do you see?", tools=tools)
        reused = ctx.usage().prefix.reused_tokens
        assert reused > first_tokens, "the tools are sent again as they were"
        ctx.edit.update(0, user("Look at the old house behind the garden.", id="new"))
        ctx.send("And now?", tools=tools)
        assert ctx.usage().prefix.reused_tokens == reused
