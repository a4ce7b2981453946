"""Step 7, item B12 (and D A4): `send_stream` is enough by itself: the last event carries the whole reply, and the turn is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ctxfold import (
    AgentContext,
    Completed,
    Content,
    OpenAIChatBackend,
    ScriptedBackend,
    ToolCalls,
    Usage,
    assistant,
    tool_result,
)
from ctxfold.testing import ModelServer
from langchain_ctx import ChatCtx
from tests.support.driven import Driven, call, context, scripted

Make = Callable[..., Driven]
CALL = assistant("Let me see.", id="a", calls=[call("c1", '{"locker": "47-B"}')])


def test_the_last_event_carries_the_whole_reply(make: Make) -> None:
    ctx = make(scripted(CALL, "A red umbrella.", "It is."))
    events = ctx.send_stream("What is in 47-B?")
    done = events[-1]
    assert isinstance(done, Completed)
    assert not any(isinstance(event, Completed) for event in events[:-1])
    assert any(isinstance(event, ToolCalls) for event in events)
    (asked,) = done.reply.message.tool_calls
    assert (asked.name, asked.arguments) == (CALL.tool_calls[0].name, '{"locker": "47-B"}')
    assert done.reply.finish_reason == "tool_calls"
    results = [tool_result(asked.id, "red umbrella", name=asked.name)]
    last = ctx.send_stream(results)[-1]
    assert last.reply.message.text == "A red umbrella."
    assert [m.role for m in ctx.messages()] == ["user", "assistant", "tool", "assistant"]
    assert ctx.messages()[-1] == last.reply.message
    assert "".join(event.text for event in ctx.send_stream("Again?")) == "It is."


@pytest.mark.parametrize("way", ["send", "send_stream"])
def test_the_context_that_asked_is_shown_the_open_turn(make: Make, way: str) -> None:
    ctx = make(scripted(CALL, "done"))
    getattr(ctx, way)("What is in 47-B?")
    shown = ["What is in 47-B?", "Let me see."]
    assert [m.text for m in ctx.view().messages] == shown
    assert [m.text for m in ctx.messages()] == shown
    assert [m.text for m in ctx.window().messages] == shown
    other = Driven(ctx.ctx.at(ctx.session), None)
    assert [m.text for m in other.messages()] == shown
    assert [m.text for m in other.view().messages] == shown[:1], "a call that waits is in no view"
    assert other.window().messages == (), "no request of another turn has it"
    getattr(ctx, way)([tool_result("c1", "red umbrella")])
    assert len(ctx.view().messages) == len(other.view().messages) == 4


def test_the_question_is_shown_while_its_answer_streams(make: Make) -> None:
    ctx = make(scripted("one two three four"))
    with_first = iter(ctx.ctx.send_stream("hello"))
    assert isinstance(next(with_first), Content)
    assert [m.text for m in ctx.view().messages] == ["hello"]
    with_first.close()  # type: ignore[attr-defined]
    assert ctx.view().messages == ctx.messages() == ()


def test_what_is_added_while_a_reply_streams_is_not_part_of_its_turn() -> None:
    """A turn that is given up goes as a whole: what somebody was told is stored must not go with it."""
    with context(scripted("one two three four")) as ctx:
        stream: Any = ctx.send_stream("hello")
        next(stream)
        ctx.add("a note")
        stream.close()
        assert [m.text for m in ctx.messages()] == ["a note"]


def test_a_caller_may_leave_at_the_last_event(make: Make) -> None:
    """The reply is stored by then."""
    ctx = make(scripted(*["one two three"] * 9))
    for stop in range(1, 9):
        events = ctx.send_stream("hello", stop_after=stop)
        if isinstance(events[-1], Completed):
            break
    assert [m.text for m in ctx.messages()] == ["hello", "one two three"]


def test_usage_that_comes_in_a_chunk_of_its_own_is_in_an_event() -> None:
    with ModelServer(model="lookup", context_window=8_000) as server:
        backend = OpenAIChatBackend(provider="generic", model="lookup", base_url=server.base_url)
        with AgentContext(backend, context_window=8_000) as ctx:
            *pieces, done = ctx.send_stream("My locker is 47-B.")
            assert isinstance(done, Completed)
            assert all(piece.chunk.usage is None for piece in pieces)  # type: ignore[union-attr]
            assert isinstance(done.reply.usage, Usage)
            assert done.reply.usage.output_tokens > 0
            assert done.reply.usage == ctx.usage().reported
        backend.close()


def test_the_faces_give_one_last_chunk() -> None:
    backend = ScriptedBackend([CALL])
    with ChatCtx(model="m", backend=backend, session="s", context_window=8_000) as chat:
        chunks = list(chat.stream("What is in 47-B?"))
        assert [c.chunk_position for c in chunks].count("last") == 1
        assert sum(chunks[1:], chunks[0]).tool_calls[0]["args"] == {"locker": "47-B"}
