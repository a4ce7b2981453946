"""What an excerpt of a large tool output keeps, how much of a window it takes, and that every window has the same one."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from ctxfold import MessageCounter, text_counter
from ctxfold.budget import policy
from ctxfold.compaction.clear_tools import EXCERPT_TOKENS, excerpt, sized
from ctxfold.messages import Message, ToolResultPart, assistant, tool_result, user
from tests.core.driven import Driven, call, scripted, turns

Make = Callable[..., Driven]
COUNTER = MessageCounter(text_counter())
LOG = "\n".join(
    [
        "pytest 9.2.0, 4,120 tests collected from 312 files",
        *(f"tests/test_{n}.py::test_total_{n} PASSED, 0 errors" for n in range(500)),
        "tests/test_500.py::test_total_500 FAILED: AssertionError: 1,234.56 is not 1,243.56",
        *(f"tests/test_{n}.py::test_total_{n} PASSED, 0 errors" for n in range(501, 1_000)),
        "1 failed, 999 passed in 61.07 s; exit code 1",
    ]
)
ROWS = json.dumps([{"id": n, "amount": n * 1234.5, "error": None} for n in range(2_000)], separators=(",", ":"))


def shown(text: str, max_chars: int) -> str:
    return excerpt(tool_result("c", text, id="r17"), reference="#17", max_chars=max_chars).text


def test_beginning_failures_and_end_are_kept() -> None:
    text = shown(LOG, 600)
    assert text.startswith("pytest 9.2.0, 4,120 tests collected from 312 files\n")
    assert "test_total_500 FAILED: AssertionError: 1,234.56 is not 1,243.56" in text
    assert text.endswith("\n1 failed, 999 passed in 61.07 s; exit code 1")
    assert f"of {len(LOG)} characters left out; the whole output is archived as #17" in text
    assert len(text) < 600 + 120
    assert text.count("PASSED") > 2, "the room that is left goes to the beginning, not to lines that say '0 errors'"


@pytest.mark.parametrize("max_chars", range(120, 420, 7))
def test_no_number_is_cut_in_two(max_chars: int) -> None:
    """A number that lost its end is another number: nothing shows it."""
    whole = {str(n) for n in range(2_000)} | {str(n * 1234.5) for n in range(2_000)}
    head, _, rest = shown(ROWS, max_chars).partition("\n[... ")
    tail = rest.rpartition("]\n")[2]
    numbers = [w for part in (head, tail) for w in "".join(c if c in "0123456789." else " " for c in part).split()]
    assert len(numbers) > 4
    assert set(numbers) <= whole


def test_a_failure_in_the_middle_of_one_long_line() -> None:
    rows = ROWS.replace('"id":1000,"amount":1234500.0,"error":null', '"id":1000,"amount":1234500.0,"error":"timed out"')
    assert '"id":1000,"amount":1234500.0,"error":"timed out"' in shown(rows, 600)
    assert "timed out" not in shown(ROWS, 600)
    assert "失败：无法打开文件" in shown("一切正常。" * 500 + "失败：无法打开文件。" + "一切正常。" * 500, 600)


@pytest.mark.parametrize("broken", range(900, 1_000, 7))
def test_what_stands_around_a_failure_has_whole_numbers(broken: int) -> None:
    amount = f"{broken * 1234.5}"
    rows = ROWS.replace(f'"amount":{amount},"error":null', f'"amount":{amount},"error":"timed out"', 1)
    snippet = shown(rows, 600).partition("in between:]\n")[2].partition("\n[...]")[0]
    assert "timed out" in snippet
    numbers = "".join(c if c in "0123456789." else " " for c in snippet).split()
    assert set(numbers) <= {str(n) for n in range(2_000)} | {str(n * 1234.5) for n in range(2_000)}


def test_short_excerpts_are_beginning_and_end_only() -> None:
    text = shown(LOG, 160)
    assert "FAILED" not in text
    assert text.startswith("pytest 9.2.0")
    assert text.endswith("exit code 1")
    assert len(text) < 160 + 120


@pytest.mark.parametrize(("window", "most"), [(2_000, EXCERPT_TOKENS), (32_000, 256), (200_000, 1_600)])
@pytest.mark.parametrize("text", [LOG, ROWS * 20, "一切正常。" * 50_000, "some plain English words " * 20_000])
def test_a_share_of_the_window_whatever_the_text(text: str, window: int, most: int) -> None:
    """One percent of the budget, 160 tokens or more; how dense the text is does not matter."""
    text *= 1 + 4 * window // len(text)
    ((_, small),) = sized([tool_result("c", text, id="r")], rules=policy(window), counter=COUNTER)
    assert small is not None
    assert most * 0.5 <= COUNTER.count(small) <= most * 1.15


def test_the_share_is_a_setting() -> None:
    rules = policy(32_000, excerpt_ratio=0.05)
    ((_, small),) = sized([tool_result("c", LOG * 3, id="r")], rules=rules, counter=COUNTER)
    assert small is not None
    assert 1_000 < COUNTER.count(small) < 1_400


def test_results_of_one_message_share_it() -> None:
    parts = tuple(ToolResultPart(f"c{n}", LOG * 3) for n in range(4))
    ((_, small),) = sized([Message("r", "tool", parts)], rules=policy(64_000), counter=COUNTER)
    assert small is not None
    assert [r.content.startswith("pytest") for r in small.tool_results] == [True] * 4
    assert COUNTER.count(small) < 4 * EXCERPT_TOKENS + 512


def test_what_is_no_larger_than_its_share_is_shown_whole() -> None:
    message = tool_result("c", LOG[:4_000], id="r")
    assert sized([message], rules=policy(32_000), counter=COUNTER) == [(message, None)]


def test_passages_travel_for_eight_rounds_of_tools(make: Make) -> None:
    """They stand at the end of a request, so every later one would pay for them anew; the next question has its own again."""
    calls = [assistant("", id=f"m{n}", calls=[call(f"c{n}")]) for n in range(11)]
    backend = scripted(*calls, "done", "47-B", scratch_role="user")
    ctx = make(backend, context_window=4_000, strategy="truncate")
    ctx.add([user("My locker is 47-B.", id="u"), assistant("Noted.", id="a"), *turns(6)])
    ctx.compact()
    ctx.send("Look into the locker, please.")
    for n in range(11):
        ctx.send(tool_result(f"c{n}", f"found {n}", id=f"r{n}"))
    ctx.send("Which locker is it?")
    with_passages = [any("Passages recalled" in m.text for m in r.messages) for r in backend.requests]
    assert with_passages == [True] * 8 + [False] * 4 + [True]
