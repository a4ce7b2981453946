"""The optional probe: questions about the source, answered from the summary alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from ctxfold import BackendError, Request, assistant, user
from ctxfold.compaction.goal import judged
from ctxfold.errors import NotEnoughHistoryError
from tests.support.driven import Driven, scripted, text_of

TALK = [
    m
    for n in range(12)
    for m in (user(f"The code of room {n} is KX-{n}417. " + "filler " * 12, id=f"u{n}"), assistant("noted", id=f"a{n}"))
]


def answering(right: bool | BackendError) -> Callable[[Request], Any]:
    """A summariser that passes its probe, or does not, or fails there."""

    def answer(request: Request) -> Any:
        asked = request.messages[-1].text
        if "<lines>" not in asked:
            codes = sorted(set(re.findall(r"KX-\d+", asked)))
            return "Rooms have codes: " + ", ".join(codes)
        if isinstance(right, BackendError):
            return right
        rooms = re.findall(r"^(\d)\. .*room (\d+)", asked, re.MULTILINE)
        return "\n".join(f"{n}. {f'KX-{room}417' if right else 'UNKNOWN'}" for n, room in rooms)

    return answer


def probed(make: Callable[..., Driven], right: bool | BackendError) -> Driven:
    ctx = make(scripted(*[answering(right)] * 6), probe=True, summary_timeout_s=None, context_window=3_000)
    ctx.add(TALK)
    return ctx


def test_a_summary_that_answers_is_taken(make: Callable[..., Driven]) -> None:
    outcome = probed(make, True).compact(force=True)
    assert outcome.event.fallback_level == "model"
    assert outcome.event.problems == ()


def test_one_that_does_not_is_rejected_and_the_originals_stay(make: Callable[..., Driven]) -> None:
    ctx = probed(make, False)
    before = ctx.view().messages
    with pytest.raises(NotEnoughHistoryError, match="probe: reject, 0%"):
        ctx.compact(force=True)
    assert ctx.view().messages == before


def test_a_probe_that_cannot_run_accepts(make: Callable[..., Driven]) -> None:
    assert probed(make, BackendError("down", kind="server")).compact(force=True).event.fallback_level == "model"


def test_a_request_that_has_to_fit_gets_verbatim_lines_instead(make: Callable[..., Driven]) -> None:
    backend = scripted(*[answering(False)] * 2, "fine")
    ctx = make(backend, probe=True, summary_timeout_s=None, context_window=700)
    ctx.add(TALK[:-1])
    assert ctx.send("And now? " + "word " * 60).message.text
    assert "KX-" in text_of(ctx.window().messages)


@pytest.mark.parametrize(
    ("score", "verdict"), [(1, "pass"), (0.6, "pass"), (0.59, "warn"), (0.35, "warn"), (0.34, "reject")]
)
def test_the_marks(score: float, verdict: str) -> None:
    assert judged(score) == verdict
