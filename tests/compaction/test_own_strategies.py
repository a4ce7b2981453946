"""Strategies, summarizers and subscribers of one's own that are async, or that do not do what they should."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ctxfold import AgentContext, CompactionHeld, ConfigError, Message, assistant, tool_result, user
from ctxfold.compaction.strategy import CompactionInput, Plan, Skip
from ctxfold.errors import StrategyError
from ctxfold.events import RewriteRefused
from tests.properties.machine import assert_legal
from tests.support.driven import Driven, call, scripted, turns

Make = Callable[..., Driven]


class AsyncNewest:
    """Keeps the newest four messages, after an answer that has to be waited for."""

    name = "async_newest"

    def __init__(self, outcome: Any = None, seconds: float = 0.0) -> None:
        self.outcome, self.seconds = outcome, seconds
        self.threads: set[str] = set()

    def should_summarize(self, history: list[Message]) -> bool:
        return len(history) > 8

    async def summarize(self, history: list[Message]) -> list[Message]:
        self.threads.add(threading.current_thread().name)
        await asyncio.sleep(self.seconds)
        if self.outcome is not None:
            return self.outcome(history)  # type: ignore[no-any-return]
        lead = [m for m in history if m.role == "system"]
        return [*lead, user("They talked.", id="made"), *history[-4:]]


def held(ctx: Any) -> list[str]:
    found: list[str] = []
    ctx.subscribe(lambda e: found.append(e.reason) if isinstance(e, CompactionHeld | RewriteRefused) else None)
    return found


def test_an_async_summarizer_is_awaited(make: Make) -> None:
    """Step 7, item B10: by `asend` on its loop, by `send` on one of its own."""
    own = AsyncNewest()
    ctx = make(scripted(*["fine"] * 20), strategy=own, system="Be brief.")
    reasons = held(ctx)
    for number in range(12):
        ctx.send(f"question {number}")
        assert len(ctx.view().messages) <= 9
    assert ctx.usage().compactions >= 2
    assert any("They talked." in m.text for m in ctx.view().messages)
    assert reasons == []


def test_an_async_summarizer_within_a_running_loop() -> None:
    """Step 7, item B10: `send` in a coroutine blocks that loop, as it always does, and still works."""

    async def main() -> int:
        with AgentContext(scripted(*["fine"] * 20), context_window=1_000, strategy=AsyncNewest()) as ctx:
            for number in range(8):
                ctx.send(f"question {number}")
            return ctx.usage().compactions

    assert asyncio.run(main()) > 0


def boom(_: object) -> Any:
    raise ZeroDivisionError("by nought")


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        (AsyncNewest(boom), "ZeroDivisionError"),
        (AsyncNewest(lambda _: 7), "returned int"),
        (AsyncNewest(lambda history: history[::-1]), "changed the order"),
        (AsyncNewest(seconds=60.0), "no answer within"),
    ],
    ids=["raises", "no list", "breaks its contract", "late"],
)
def test_an_async_summarizer_that_fails_costs_no_reply(
    make: Make, own: AsyncNewest, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Step 7, items B10 and B11; and R9: it is asked again with each request, and said once in the log."""
    ctx = make(scripted(*["fine"] * 20), strategy=own, summary_timeout_s=0.2)
    ctx.add(turns(4))
    reasons = held(ctx)
    assert ctx.send("and now?").message.text == "fine"
    assert reasons
    assert reason in reasons[0]
    assert ctx.usage().compactions == 0
    assert len(ctx.view().messages) == 10
    with pytest.raises(StrategyError, match=reason):
        ctx.compact(force=True)
    asked = len(reasons)
    ctx.send("and then?")
    assert len(reasons) > asked
    warned = [r.getMessage() for r in caplog.records if r.name == "ctxfold"]
    assert len(warned) == 1
    assert reason in warned[0]


class AsyncPlan:
    name = "async_plan"

    async def plan(self, case: CompactionInput) -> Plan | Skip:
        return Skip("never")


class AsyncDue(AsyncNewest):
    async def should_summarize(self, history: list[Message]) -> bool:  # type: ignore[override]
        return True


class HiddenDue(AsyncNewest):
    """Nobody can see that it is async before it is called."""

    def should_summarize(self, history: list[Message]) -> Any:
        return asyncio.sleep(0)


@pytest.mark.parametrize("own", [AsyncPlan(), AsyncDue()])
def test_what_decides_at_once_may_not_be_async(own: Any) -> None:
    """Step 7, item B10: refused when it is given."""
    with pytest.raises(StrategyError, match="is async"):
        AgentContext(scripted("fine"), context_window=1_000, strategy=own)


async def late(_: object) -> None:
    """Nobody could wait for it."""


class AsyncCallable:
    async def __call__(self, _: object) -> None: ...


@pytest.mark.parametrize("given", [late, AsyncCallable()])
def test_subscribers_may_not_be_async(make: Make, given: Any) -> None:
    """Step 7, item B10: their coroutines would never run."""
    ctx = make(scripted("fine"))
    with pytest.raises(ConfigError, match="is async"):
        ctx.subscribe(given)
    with pytest.raises(ConfigError, match="is async"):
        ctx.edit.on_compaction(given)
    with pytest.raises(ConfigError, match="compaction subscriber is"):
        ctx.edit.on_compaction("no function")


class Planning:
    """A strategy that answers with anything."""

    name = "planning"

    def __init__(self, outcome: Callable[[CompactionInput], Any]) -> None:
        self.outcome = outcome

    def plan(self, case: CompactionInput) -> Any:
        return self.outcome(case)


def junk(case: CompactionInput) -> Plan:
    return Plan("", "due", 10, 5, covered=("no entry",))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        (Planning(lambda _: None), "returned NoneType"),
        (Planning(lambda _: "compact"), "returned str"),
        (Planning(lambda _: True), "returned bool"),
        (Planning(boom), "ZeroDivisionError"),
        (Planning(junk), "AttributeError"),
        (Planning(lambda _: asyncio.sleep(0)), "an awaitable"),
        (Planning(lambda case: Plan("", "due", 10, 5, rewrite=7)), "TypeError"),  # type: ignore[arg-type]
        (HiddenDue(), "an awaitable"),
    ],
)
@pytest.mark.parametrize("ask", ["send", "send_stream"])
def test_a_strategy_that_answers_with_anything_costs_no_reply(make: Make, ask: str, own: Any, reason: str) -> None:
    """Step 7, item B11: an event says why; on demand it is a StrategyError."""
    ctx = make(scripted(*["fine"] * 5), strategy=own)
    ctx.add(turns(2))
    reasons = held(ctx)
    getattr(ctx, ask)("and now?")
    assert [m.text for m in ctx.view().messages][-2:] == ["and now?", "fine"]
    assert reasons
    assert reason in reasons[0]
    assert ctx.usage().compactions == 0
    if not isinstance(own, HiddenDue):
        with pytest.raises(StrategyError, match=reason):
            ctx.compact(force=True)


def test_a_request_fits_although_the_strategy_answers_with_nothing(make: Make) -> None:
    """Step 7, item B11: what must fit does not depend on it."""
    ctx = make(scripted(*["fine"] * 40), context_window=400, strategy=Planning(lambda _: None))
    for number in range(20):
        assert ctx.send(f"question {number} " + "word " * 20).message.text == "fine"
    assert ctx.usage().compactions > 0


@pytest.mark.parametrize("error", [ZeroDivisionError, RecursionError, StopIteration, AssertionError])
def test_subscribers_that_raise_cost_no_reply(make: Make, error: type[Exception]) -> None:
    """Step 7, item B11: neither a subscriber nor the author of summaries breaks a turn."""

    def raising(_: object) -> Any:
        raise error("mine")

    ctx = make(scripted(*["fine, thank you"] * 40), context_window=400, summarizer=scripted(*["short"] * 40))
    reasons = held(ctx)
    ctx.subscribe(raising)
    ctx.edit.on_compaction(raising)
    for number in range(20):
        assert ctx.send(f"question {number}").message.text == "fine, thank you"
    assert ctx.usage().compactions > 0
    assert any(error.__name__ in reason for reason in reasons)


class Asked:
    """Keeps the newest two messages when it is told to; notes what it was asked about."""

    name = "asked"

    def __init__(self) -> None:
        self.due = False
        self.seen: list[list[str]] = []

    def should_summarize(self, history: list[Message]) -> bool:
        self.seen.append([m.role for m in history])
        return self.due

    def summarize(self, history: list[Message]) -> list[Message]:
        self.due = False
        return [user("They talked.", id="made"), *history[-2:]]


def test_a_summarizer_is_asked_on_each_input_and_between_tool_rounds(make: Make) -> None:
    """Step 7, D B1: it sees the turn under way, which stays although its result has only two messages of it."""
    own = Asked()
    rounds = [assistant("", id=f"m{n}", calls=[call(f"c{n}")]) for n in range(3)]
    backend = scripted(*rounds, "done", "fine")
    ctx = make(backend, context_window=8_000, strategy=own)
    ctx.add(turns(6))
    own.seen.clear()
    ctx.send("look")
    assert own.seen[0][-1] == "user"
    for number in range(3):
        own.due = number == 1
        ctx.send(tool_result(f"c{number}", f"found {number}"))
        assert_legal(backend.requests[-1].messages)
        assert own.seen[number + 1][-1] == "tool"
    assert ctx.usage().compactions == 1
    between = backend.requests[2].messages
    assert [m.role for m in between] == ["user", "user", "assistant", "tool", "assistant", "tool"]
    assert between[0].text.endswith("They talked.")
    assert [m.text for m in ctx.messages()][-8] == "look"
    assert len(own.seen) == 5, "four requests and the end of the turn"


class Counting:
    """Takes the place of a built-in strategy, and counts how often it is asked."""

    name = "tiered"

    def __init__(self) -> None:
        self.occasions: list[str] = []

    def plan(self, case: CompactionInput) -> Plan | Skip:
        self.occasions.append(case.facts.occasion)
        return Skip("only counting")


def test_a_strategy_under_a_built_in_name_is_asked_after_every_turn(make: Make) -> None:
    """The built-in one is left out below the ratios of the policy; what a strategy of the user's would do nobody else knows."""
    own = Counting()
    ctx = make(scripted(*["fine"] * 3), context_window=20_000, strategy=own)
    for number in range(3):
        ctx.send(f"question {number}")
    assert own.occasions == ["after_turn"] * 3
