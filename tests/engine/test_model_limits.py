"""Step 7, item A6: what one model says of its window and of its tokens holds for that model alone, and is not forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from ctxfold import AgentContext, BackendError, Reply, Request, ScriptedBackend, Usage, assistant
from ctxfold.events import RulesChanged
from ctxfold.history.records import Calibrated, encode_body
from tests.support.driven import COUNTER, Driven, turns

Make = Callable[..., Driven]
WINDOWS = {"small": 2_000, "middle": 5_000, "big": 16_000}


class Models(ScriptedBackend):
    """Several models behind one address, each with a window of its own that it names when it refuses a request."""

    def __init__(self, model: str, *, tokens_per_count: float = 1.0, named: int | None = None) -> None:
        super().__init__([self._answer] * 400, model=model)
        self._tokens_per_count = tokens_per_count
        self._named = named
        self.sizes: list[tuple[str, int]] = []

    def _answer(self, request: Request) -> Reply | BackendError:
        name = request.model or self.model
        tokens = int(self._tokens_per_count * sum(COUNTER.count(m.text) + 4 for m in request.messages))
        self.sizes.append((name, tokens))
        if tokens > WINDOWS[name]:
            limit = self._named or WINDOWS[name]
            return BackendError("too long", kind="context_overflow", limit_tokens=limit, requested_tokens=tokens)
        usage = Usage(input_tokens=tokens, output_tokens=5)
        return Reply(replace(assistant("fine", id=f"r{len(self.sizes)}"), usage=usage), usage, "stop")


def largest(backend: Models, name: str) -> int:
    """The largest request that a model has accepted."""
    return max((tokens for model, tokens in backend.sizes if model == name and tokens <= WINDOWS[name]), default=0)


@pytest.mark.parametrize("order", [("small", "big"), ("big", "small")])
def test_a_limit_holds_for_the_model_that_named_it(make: Make, order: tuple[str, str]) -> None:
    backend = Models("big")
    ctx = make(backend, context_window=16_000, reply_reserve_tokens=1_000)
    ctx.add(turns(40, words=60))
    for name in order:
        ctx.send("And now?", model=name)
    assert largest(backend, "small") > 0
    assert ctx.policy.context_window == 16_000, "the backend's own model is asked next"
    ctx.add(turns(60, start=100, words=60))
    ctx.send("And then?", model="big")
    assert largest(backend, "big") > 6_000


def test_a_limit_survives_a_restart_with_a_larger_window(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with AgentContext(Models("small"), session_id="s", store=url, context_window=8_000, counter=COUNTER) as ctx:
        ctx.add(turns(20, words=60))
        ctx.send("And now?")
        assert ctx.policy.context_window == 2_000
    again = Models("small")
    with AgentContext(again, session_id="s", store=url, context_window=16_000, counter=COUNTER) as ctx:
        assert ctx.policy.context_window == 2_000
        ctx.add(turns(20, start=100, words=60))
        ctx.send("And then?")
        assert all(tokens <= 2_000 for _, tokens in again.sizes), "nothing was refused a second time"
    bigger = Models("big")
    with AgentContext(bigger, session_id="s", store=url, context_window=16_000, counter=COUNTER) as ctx:
        assert ctx.policy.context_window == 16_000, "another model's session"


def test_a_calibration_survives_a_restart_and_keeps_the_limit(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with AgentContext(
        Models("small", tokens_per_count=1.5), session_id="s", store=url, context_window=8_000, counter=COUNTER
    ) as ctx:
        ctx.add(turns(20, words=60))
        for number in range(4):
            ctx.send(f"And {number}?")
        gauge = ctx.explain().gauge
        assert (ctx.policy.context_window, gauge.budget_tokens) == (2_000, 1_600)
        assert sum(b.tokens for b in ctx.explain().blocks) > 1.4 * ctx.view().tokens
    with AgentContext(
        Models("small", tokens_per_count=1.5), session_id="s", store=url, context_window=8_000, counter=COUNTER
    ) as ctx:
        assert (ctx.policy.context_window, ctx.explain().gauge) == (2_000, gauge), "before the first request"


@pytest.mark.parametrize("named", [2_000, 3_000, 100_000])
def test_a_limit_never_widens_the_window(make: Make, named: int) -> None:
    """Mutant of house.md: a learnt limit that widens the window."""
    backend = Models("small", tokens_per_count=2.0, named=named)
    ctx = make(backend, context_window=2_000, reply_reserve_tokens=200, summarizer=ScriptedBackend(["short"] * 9))
    events: list[object] = []
    ctx.subscribe(events.append)
    ctx.add(turns(9, words=60))
    ctx.send("And now?")
    assert [tokens > 2_000 for _, tokens in backend.sizes] == [True, False], "refused once"
    assert ctx.policy.context_window == 2_000
    assert ctx.usage().budget_tokens <= 1_800
    assert not any(isinstance(e, RulesChanged) for e in events)


def test_the_newest_word_of_a_model_counts(make: Make) -> None:
    first = BackendError("too long", kind="context_overflow", limit_tokens=3_000)
    second = BackendError("too long", kind="context_overflow", limit_tokens=2_000)
    ctx = make(
        ScriptedBackend([first, "one", second, "two"]), context_window=9_000, summarizer=ScriptedBackend(["short"] * 9)
    )
    ctx.add(turns(20, words=60))
    ctx.send("And now?")
    assert ctx.policy.context_window == 3_000
    ctx.send("And then?")
    assert ctx.policy.context_window == 2_000


@pytest.mark.parametrize("small_first", [True, False])
def test_engines_with_windows_of_their_own_share_a_session(tmp_path: Path, small_first: bool) -> None:
    """Whoever opened the session last does not size the other's window."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    windows = {"small": 2_000, "big": 16_000}
    order = ("small", "big") if small_first else ("big", "small")
    open_ones = {
        name: AgentContext(Models(name), session_id="s", store=url, context_window=windows[name], counter=COUNTER)
        for name in order
    }
    for ctx in (*open_ones.values(), *open_ones.values()):
        ctx.send("hello")
        assert {n: c.policy.context_window for n, c in open_ones.items()} == windows
    open_ones["big"].set_policy(context_window=5_000)
    assert {n: c.policy.context_window for n, c in open_ones.items()} == {"small": 5_000, "big": 5_000}
    for ctx in open_ones.values():
        ctx.close()


@dataclass(frozen=True, slots=True)
class CalibratedBefore:
    """The record as version 0.1 of the format has it."""

    model: str
    ratio: float
    error: float
    samples: int
    kind: str = "calibrated"


def test_older_versions_read_the_record() -> None:
    written = encode_body(Calibrated("m", 1.25, 0.03, 4, limit=2_000))
    assert TypeAdapter(CalibratedBefore).validate_json(written) == CalibratedBefore("m", 1.25, 0.03, 4)
    assert "limit" not in encode_body(Calibrated("m", 1.25, 0.03, 4)), "as it was written before"
