"""Sessions of an AgentContext on a real llama.cpp server: reuse of its prefix cache, and recovery from an overflow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from ctxfold import AgentContext, tool_result
from tests.realmodel.llama import ANSWER, CALL, ENDLESS, LlamaServer
from tests.realmodel.test_server import WEATHER

OPTIONS: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0, "extra": ANSWER}
SYSTEM = "You are a patient assistant who keeps the notes of a long journey. " * 6
TURNS, DAYS = 12, 14


def told(number: int) -> str:
    return f"Day {number}: we left harbour {number * 7} at dawn, the wind was north-west and we sailed {number * 31} miles."


class Asker:
    """A context asked sync, async or streamed."""

    def __init__(self, mode: str) -> None:
        self.mode = mode

    async def ask(self, context: AgentContext, text: str) -> None:
        if self.mode == "sync":
            context.send(text, **OPTIONS)
        elif self.mode == "async":
            await context.asend(text, **OPTIONS)
        else:
            async for _ in context.asend_stream(text, **OPTIONS):
                pass


@pytest.fixture(params=["sync", "async", "stream"])
def asker(request: pytest.FixtureRequest) -> Asker:
    return Asker(request.param)


def cached(context: AgentContext) -> list[tuple[int, int]]:
    """Per reply: prompt tokens, and those of them that the server took from its cache."""
    replies = [m for m in context.view().messages if m.role == "assistant" and m.usage is not None]
    return [(m.usage.input_tokens, m.usage.cache_read_tokens) for m in replies if m.usage is not None]


def grows(numbers: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(numbers))


async def test_the_cached_prefix_grows_with_every_turn(llama: LlamaServer, asker: Asker) -> None:
    with (
        llama.backend() as backend,
        AgentContext(backend, session_id="t", system=SYSTEM, context_window=llama.context) as context,
    ):
        for number in range(TURNS):
            await asker.ask(context, told(number))
        rows = cached(context)
        assert len(rows) == TURNS
        assert context.usage().compactions == 0
        # the first request finds what the session before left in the slot
        assert grows([reused for _, reused in rows[1:]])
        # all of the request before, less the end that its template writes for the answer
        for (before, _), (_, reused) in pairwise(rows):
            assert reused >= before - 12
        prefix = context.usage().prefix
        assert prefix.breaks == ()


async def test_an_overflow_is_learnt_from_and_recovered(small_llama: LlamaServer, asker: Asker) -> None:
    """The configured window is eight times what the server has: the first overflow tells, and the session goes on."""
    with (
        small_llama.backend() as backend,
        AgentContext(backend, session_id="t", system="Keep notes.", context_window=8 * small_llama.context) as context,
    ):
        for number in range(DAYS):
            await asker.ask(context, told(number) * 3)
        usage = context.usage()
        assert usage.replies == DAYS
        # in the estimator's own tokens, which its calibration makes fewer than the server's
        assert small_llama.context // 2 < context.explain().context_window <= small_llama.context
        assert usage.prefix.requests == DAYS + 1  # one overflowed, none after it
        assert usage.compactions >= 1
        assert context.view().messages[-2].text == told(DAYS - 1) * 3


def test_a_tool_round_inside_a_session(llama: LlamaServer) -> None:
    with llama.backend() as backend, AgentContext(backend, session_id="t", context_window=llama.context) as context:
        reply = context.send(
            "How is the weather?", tools=(WEATHER,), tool_choice="required", max_tokens=200, temperature=0.0, extra=CALL
        )
        (call,) = reply.message.tool_calls
        context.send([tool_result(call.id, "rain, 4 degrees")], tools=(WEATHER,), **OPTIONS)
        assert [m.role for m in context.view().messages] == ["user", "assistant", "tool", "assistant"]


def test_an_abandoned_stream_keeps_what_was_chosen_and_frees_the_slot(llama: LlamaServer) -> None:
    endless = {**OPTIONS, "max_tokens": ENDLESS, "extra": {**ANSWER, "ignore_eos": True}}
    with llama.backend() as backend, AgentContext(backend, session_id="t", context_window=llama.context) as context:
        events = context.send_stream("Tell me all.", on_abort="keep_partial", **endless)
        first = next(iter(events))
        assert llama.busy()
        events.close()  # type: ignore[attr-defined]
        assert llama.tokens_made() < ENDLESS / 2
        kept = context.view().messages[-1]
        assert (kept.role, kept.finish_reason) == ("assistant", "aborted")
        assert kept.text.startswith(first.text)  # type: ignore[union-attr]
