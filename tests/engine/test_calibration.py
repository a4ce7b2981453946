"""Our counts learn from what models report, and triggers use the upper bound."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ctxfold import (
    AgentContext,
    BackendError,
    ContextOverflowError,
    CtxError,
    Event,
    OpenAIChatBackend,
    Reply,
    Request,
    ScriptedBackend,
    ToolSpec,
    Usage,
    assistant,
    user,
)
from ctxfold.errors import MessageTooLargeError, PinBudgetError
from ctxfold.events import PromptTruncated, WindowGauge
from ctxfold.history.calibration import calibrated, observed, was_truncated
from ctxfold.history.records import Calibrated
from ctxfold.policy.settings import policy_for
from ctxfold.protocols import BackendCapabilities
from ctxfold.testing import ModelServer
from ctxfold.tokens.text import MessageCounter, RatioCounter
from tests.support.driven import COUNTER, context, scripted, turns


def test_after_three_replies_the_estimate_is_within_five_percent(tmp_path: Path) -> None:
    coarse = RatioCounter(ascii_per_token=2.2)  # far too many tokens for English
    with (
        ModelServer(model="lookup", context_window=8_000) as server,
        OpenAIChatBackend(model="lookup", base_url=server.base_url, api_key="x") as backend,
        AgentContext(
            backend, session_id="s", store=f"sqlite:///{tmp_path / 'a.db'}", context_window=8_000, counter=coarse
        ) as ctx,
    ):
        events: list[Event] = []
        ctx.subscribe(events.append)
        misses: list[tuple[float, float]] = []
        for n in range(6):
            text = f"The lamp in room {n} was replaced by Mr Ferreira on the {n + 3}rd of March, and it works again."
            estimate = ctx.view().tokens + ctx.handle.counter.count(user(text))
            reply = ctx.send(text)
            assert reply.usage is not None
            said = next(e.used_tokens for e in events if isinstance(e, WindowGauge))
            events.clear()
            reported = reply.usage.input_tokens
            misses.append((abs(estimate / reported - 1), abs(said / reported - 1)))
    raw, learnt = misses[-1]
    assert raw > 0.2, "the raw count is far off"
    assert all(miss <= 0.05 for _, miss in misses[3:]), misses
    assert learnt <= 0.05


def test_the_rules_shrink_by_the_upper_bound() -> None:
    rules = policy_for(10_000)
    assert calibrated(rules, None) is rules
    tight = calibrated(rules, Calibrated("m", ratio=1.25, error=0.25, samples=3))
    assert tight.context_window == int(10_000 / (1.25 * 1.25))
    assert tight.budget_tokens < rules.budget_tokens


def test_a_window_gets_wider_only_after_three_replies() -> None:
    """A prompt of another kind of text may be counted lower: the service would refuse it."""
    rules = policy_for(10_000)
    for samples, window in ((1, 10_000), (2, 10_000), (3, 12_500)):
        assert calibrated(rules, Calibrated("m", ratio=0.8, error=0.0, samples=samples)).context_window == window
    assert calibrated(rules, Calibrated("m", ratio=1.25, error=0.0, samples=1)).context_window == 8_000


def test_what_is_not_learnt() -> None:
    assert observed(None, model="m", estimated=0, reported=10) is None
    assert observed(None, model="m", estimated=100, reported=100_000) is None
    first = observed(None, model="m", estimated=100, reported=120)
    assert first is not None
    assert first.ratio == 1.2
    settled = replace(first, samples=5)
    assert observed(settled, model="m", estimated=100, reported=120) is None


def test_a_prompt_that_was_cut_in_silence_is_reported_and_not_learnt_from() -> None:
    class Cutting(ScriptedBackend):
        capabilities = BackendCapabilities(truncates_silently=True)

    def reply(n: int, tokens: int) -> Reply:
        usage = Usage(input_tokens=tokens, output_tokens=5)
        return Reply(replace(assistant(f"answer {n}", id=f"r{n}"), usage=usage), usage)

    events: list[Event] = []
    backend = Cutting([reply(0, 40), reply(1, 12)])
    with AgentContext(backend, session_id="s", context_window=4_000, system="Answer. " * 30) as ctx:
        ctx.subscribe(events.append)
        ctx.send("first question, with some words around it")
        due = ctx.explain().gauge.compacts_at_tokens
        ctx.send("second question, with a few more words than before " * 3)
        assert ctx.explain().gauge.compacts_at_tokens == due
    cut = [e for e in events if isinstance(e, PromptTruncated)]
    assert [e.counted_tokens for e in cut][-1] == 12
    assert was_truncated(None, estimated=100, reported=50)
    assert not was_truncated(None, estimated=100, reported=0)


class Reporting(ScriptedBackend):
    """Reports that the model counts each request as that many times our own count."""

    def __init__(self, *times: float) -> None:
        super().__init__([partial(self._report, factor) for factor in times])

    def _report(self, factor: float, request: Request) -> Reply:
        usage = Usage(input_tokens=round(factor * MessageCounter(COUNTER).count_all(request.messages)), output_tokens=5)
        return Reply(replace(assistant("Noted.", id=f"r{len(self.requests)}"), usage=usage), usage)


def test_counts_that_are_not_of_this_text_are_not_learnt() -> None:
    """A service that reports a twentieth of the prompt has counted something else."""
    counts = (0.05, 0.05, 0.05, 0.05, 20.0)  # four low ones: a window gets wider after three
    with context(Reporting(*counts), context_window=4_000) as ctx:
        due = ctx.explain().gauge.compacts_at_tokens
        for _ in counts:
            ctx.send("a question with a number of words around it " * 8)
            assert ctx.explain().gauge.compacts_at_tokens == due


def test_one_good_guess_does_not_end_the_caution_after_a_bad_one() -> None:
    with context(Reporting(1.0, 1.3, 1.15), context_window=4_000) as ctx:
        due = ctx.explain().gauge.compacts_at_tokens
        assert due is not None
        for _ in range(3):
            ctx.send("a question with a number of words around it " * 8)
        now = ctx.explain().gauge.compacts_at_tokens
        assert now is not None
        assert now < due / 1.1, "in the model's tokens: the estimate is 1.15, and its upper bound is higher"


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (MessageTooLargeError, lambda ctx: ctx.send("word " * 900)),
        (
            MessageTooLargeError,
            lambda ctx: ctx.send("hi", tools=(ToolSpec("look", "word " * 900, {"type": "object"}),)),
        ),
        (ContextOverflowError, lambda ctx: ctx.send("hi", max_tokens=1_990)),
        (ContextOverflowError, lambda ctx: ctx.send("word " * 500, auto_compact=False)),
        (PinBudgetError, lambda ctx: ctx.pin(*(f"u{i}" for i in range(6)))),
    ],
)
def test_errors_name_the_configured_window_and_what_was_learnt(error: type[CtxError], refused: Any) -> None:
    """The window in our own tokens, after a model that counts more than we do, is a number that nobody has set."""
    with context(Reporting(2.5), context_window=2_000) as ctx:
        ctx.send("a question with a number of words around it " * 8)
        ctx.add(turns(6, words=20))
        learnt = r"2000 \(8\d\d by ctxfold's count, as the model counts 2\.\d\d times as many tokens\)"
        with pytest.raises(error, match=learnt):
            refused(ctx)


def test_an_error_names_the_window_that_the_model_has_reported() -> None:
    full = BackendError("too long", kind="context_overflow", limit_tokens=1_000)
    with (
        context(scripted(full), context_window=200_000) as ctx,
        pytest.raises(MessageTooLargeError, match=r"window of 200000 \(the model takes no more than 1000\) has for"),
    ):
        ctx.send("word " * 1_500)


def test_an_error_names_the_window_alone_where_nothing_was_learnt() -> None:
    with (
        context(context_window=2_000) as ctx,
        pytest.raises(MessageTooLargeError, match="of the window of 2000 are free"),
    ):
        ctx.send("word " * 1_900)
