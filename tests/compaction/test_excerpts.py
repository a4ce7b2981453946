"""What an excerpt of a large tool output keeps, how much of a window it takes, and that every window has the same one."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from ctxfold import Message, ToolCallPart, ToolResultPart, assistant, tool_result, user
from ctxfold.compaction.excerpts import Focus
from ctxfold.compaction.tool_outputs import excerpt, sized
from ctxfold.policy.settings import EXCERPT_TOKENS, policy_for
from ctxfold.tokens.text import MessageCounter, text_counter
from tests.benchmarks.excerpts import seen
from tests.benchmarks.tool_texts import KINDS, tool_text
from tests.support.driven import Driven, call, scripted, tool_round, turns

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


@pytest.mark.parametrize("max_chars", range(148, 420, 7))
def test_no_number_is_cut_in_two(max_chars: int) -> None:
    """A number that lost its end is another number: nothing shows it."""
    whole = {str(n) for n in range(2_000)} | {str(n * 1234.5) for n in range(2_000)}
    head, _, rest = shown(ROWS, max_chars).partition("\n[... ")
    tail = rest.rpartition("]\n")[2]
    numbers = [w for part in (head, tail) for w in "".join(c if c in "0123456789." else " " for c in part).split()]
    assert len(numbers) > 4
    assert set(numbers) <= whole


def test_a_failure_among_many_records() -> None:
    rows = ROWS.replace('"id":1000,"amount":1234500.0,"error":null', '"id":1000,"amount":1234500.0,"error":"timed out"')
    assert '[1000]: {"id":1000,"amount":1234500.0,"error":"timed out"}' in shown(rows, 600)
    assert "timed out" not in shown(ROWS, 600)
    assert "失败：无法打开文件" in shown("一切正常。" * 500 + "失败：无法打开文件。" + "一切正常。" * 500, 600)


@pytest.mark.parametrize("broken", range(900, 1_000, 7))
def test_what_stands_around_a_failure_has_whole_numbers(broken: int) -> None:
    amount = f"{broken * 1234.5}"
    rows = ROWS.replace(f'"amount":{amount},"error":null', f'"amount":{amount},"error":"timed out"', 1)
    snippet = shown(rows, 600).partition("archived as #17]\n")[2].partition("\n[...]")[0]
    assert "timed out" in snippet
    numbers = "".join(c if c in "0123456789." else " " for c in snippet).split()
    assert set(numbers) <= {str(n) for n in range(2_000)} | {str(n * 1234.5) for n in range(2_000)}


def test_the_smallest_excerpt_still_says_what_failed() -> None:
    text = shown(LOG, 160)
    assert text.startswith("pytest 9.2.0")
    assert "test_total_500 FAILED: AssertionError: 1,234.56 is not 1,243.56" in text
    assert text.endswith("exit code 1")
    assert len(text) < 160 + 170


# what a failure is, and where it happened


def padded(*lines: str, filler: str = "step {n}: nothing to report, error_count=0") -> str:
    """The lines in the middle of a long output."""
    some = [filler.format(n=n) for n in range(800)]
    return "\n".join([*some, *lines, *some])


def test_an_error_wins_over_warnings_that_name_error_count() -> None:
    error = "src/pool.c:482:13: error: 'lease_quota' undeclared (first use in this function)"
    warnings = [f"src/a{n}.c:{n}:5: warning: unused variable 'error_count' [-Wunused-variable]" for n in range(400)]
    text = shown("\n".join([*warnings, "build: 0 errors so far", error, *warnings]), 400)
    assert f"[... line 402]\n{error}" in text or f"; line 402]\n{error}" in text


@pytest.mark.parametrize("name", ["error_budget: 99.2 percent left", "a.c:7:5: unused variable 'error_count'"])
def test_a_name_that_begins_like_an_error_is_none(name: str) -> None:
    text = padded(name, *(f"step {n}: nothing to report" for n in range(90)), "job 12 failed")
    assert name not in shown(text, 230)
    assert "job 12 failed" in shown(text, 230)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            [
                "Traceback (most recent call last):",
                '  File "/srv/main.py", line 12, in <module>',
                "    main()",
                '  File "/srv/loader.py", line 88, in load',
                "    return parse(text)",
                "ValueError: bad rate in row 17",
            ],
            ['  File "/srv/loader.py", line 88, in load\n    return parse(text)\nValueError: bad rate in row 17'],
        ),
        (
            ["java.io.IOException: broken pipe", "\tat com.example.Pump.run(Pump.java:71)", "\tat Main.main(Main.java:9)"],
            ["java.io.IOException: broken pipe\n\tat com.example.Pump.run(Pump.java:71)"],
        ),
        (
            ["error[E0425]: cannot find value `quota` in this scope", "  --> src/pool.rs:48:13", "   |"],
            ["error[E0425]: cannot find value `quota` in this scope\n  --> src/pool.rs:48:13"],
        ),
        (
            ["____ test_total ____", "", ">       assert a == b", "E       assert 3 == 4", "", "tests/t.py:9: AssertionError"],
            ["____ test_total ____", "E       assert 3 == 4", "tests/t.py:9: AssertionError"],
        ),
        (
            ["  ● cart › adds up", "", "    Expected: 3", "", "      at Object.<anonymous> (tests/cart.test.ts:71:21)"],
            ["  ● cart › adds up", "(tests/cart.test.ts:71:21)"],
        ),
        (["src/web/form.ts", "   12:5  error  'x' is never used  no-unused"], ["src/web/form.ts\n   12:5  error"]),
        (["thread 'main' panicked at src/main.rs:4:5:", "index out of bounds"], ["src/main.rs:4:5:\nindex out of bounds"]),
    ],
    ids=["python", "java", "rustc", "pytest", "jest", "eslint", "panic"],
)  # fmt: skip
def test_a_failure_is_shown_with_its_place(lines: list[str], expected: list[str]) -> None:
    text = shown(padded(*lines), 600)
    assert [e for e in expected if e not in text] == []


@pytest.mark.parametrize(
    "line",
    [
        "no errors found in 12 files",
        "summary: 0 failures, 0 errors",
        'result: {"error": null, "failed": false}',
        "on_error = default_handler",
        "logger.error('x') is called in 3 places",
        "stderr: (empty)",
        "see docs/error-pages.md",
    ],
)
def test_lines_that_only_look_like_failures_have_no_preference(line: str) -> None:
    assert line not in shown(padded(line, filler="step {n}: nothing to report"), 500)


def test_a_line_that_stands_there_once_wins_over_one_that_is_repeated() -> None:
    retries = [f"ERROR attempt {n} timed out, trying again" for n in range(500)]
    text = shown("\n".join([*retries, "ERROR disk /dev/sdb1 is full", *retries]), 400)
    assert "ERROR disk /dev/sdb1 is full" in text


# what the task asks about


def asked(text: str, question: str, max_chars: int = 700, arguments: str = "") -> str:
    message = tool_result("c", text, id="r17")
    return excerpt(message, reference="#17", max_chars=max_chars, focus=Focus(question, arguments)).text


def test_what_the_question_and_the_call_name_is_kept() -> None:
    fact, other = "shard 731 has lease quota 4812", "shard 44 has checksum 9f2ab"
    text = padded(fact, *["step: ok"] * 300, other, "ERROR disk is full")
    assert fact in asked(text, "What is the lease quota of shard 731?")
    assert other in asked(text, "Go on.", arguments="shard 44")
    assert fact not in asked(text, "Go on.")
    both = asked(text, "What is the lease quota of shard 731?")
    assert "ERROR disk is full" in both, "a question does not displace the error"


@pytest.mark.parametrize("word", ["library", "Müllabfuhr", "圖書館"])
def test_a_word_is_found_whose_stem_it_does_not_contain(word: str) -> None:
    fact = f"shelf and {word} open at noon"
    assert fact in asked(padded(fact, *["step: ok"] * 300, "ERROR disk is full"), f"{word}?")


def test_a_table_keeps_its_header_and_a_diff_its_hunk() -> None:
    rows = ["id,station,value,comment", *(f"r{n},north{n},{n * 3},ok" for n in range(3_000))]
    text = asked("\n".join(rows), "Which value has station north1712?")
    assert text.startswith("id,station,value,comment\n")
    assert "r1712,north1712,5136,ok" in text
    blocks = [
        f"diff --git a/src/m{n}.py b/src/m{n}.py\n--- a/src/m{n}.py\n+++ b/src/m{n}.py\n"
        f"@@ -{n},3 +{n},4 @@ def f{n}():\n-old{n}\n+new{n}"
        for n in range(900)
    ]
    blocks[500] += "\n+LEASE_LIMIT = 37"
    text = asked("\n".join(blocks), "To what is LEASE_LIMIT set?")
    assert "+++ b/src/m500.py\n@@ -500,3 +500,4 @@ def f500():" in text
    assert "+LEASE_LIMIT = 37" in text


def test_a_page_is_shown_as_text() -> None:
    items = [f"<tr><td><a href='/item/{n}'>item {n}</a></td><td>{n}.50 EUR</td></tr>" for n in range(2_000)]
    head = "<!doctype html><html><head><style>p{}</style><script>var error=1</script></head>"
    page = f"{head}<body><h1>Shop</h1>{''.join(items)}</body></html>"
    text = asked(page, "What does item 1203 cost?")
    assert "# Shop" in text
    assert "item 1203 (/item/1203) | 1203.50 EUR" in text
    assert "<" not in text
    assert "script" not in text


def test_a_page_shows_what_its_images_are_and_no_comments() -> None:
    rows = "".join(f"<p>row {n} of the page</p>" for n in range(200))
    page = f'<html><!-- <p>DRAFT -->{rows}<p>1 < 2 <img src="a.png" alt="The needle"></p><!-- DRAFT, to its end'
    text = asked(page, "Where is the needle?")
    assert "1 < 2" in text
    assert "[The needle]" in text
    assert "DRAFT" not in text


def test_a_record_of_nested_json_stands_behind_its_path() -> None:
    pods = [{"name": f"pod-{n}", "spec": {"image": f"registry/app:{n}", "env": ["x" * 90] * 6}} for n in range(400)]
    text = asked(json.dumps({"kind": "List", "items": pods}, indent=1), "Which image runs in pod-207?")
    assert 'items[207]: {"name": "pod-207"}' in text
    assert "registry/app:207" in text


def test_json_that_breaks_off_and_what_only_begins_like_it() -> None:
    broken = json.dumps([{"id": n, "note": "fine"} for n in range(900)])[:-300]
    assert '[500]: {"id": 500, "note": "fine"}' in asked(broken, "note of id 500")
    assert "[INFO] line 500" in asked("\n".join(f"[INFO] line {n}" for n in range(900)), "line 500")
    assert shown("[" * 60_000, 300)
    assert shown("<a" * 60_000, 300)


# how much is shown


def in_one_turn(count: int, text: str) -> list[Message]:
    """A question, and rounds of calls whose outputs are all large."""
    rounds = (
        (assistant("", id=f"a{n}", calls=[call(f"c{n}")]), tool_result(f"c{n}", text, id=f"r{n}")) for n in range(count)
    )
    return [user("Look.", id="u"), *(m for each in rounds for m in each)]


def sizes(messages: list[Message], window: int, **settings: Any) -> list[int]:
    """The tokens that the tool outputs take as they are shown."""
    pairs = sized(messages, rules=policy_for(window, **settings), counter=COUNTER)
    return [COUNTER.count(shown or m) for m, shown in pairs if m.role == "tool"]


@pytest.mark.parametrize(("window", "least"), [(2_000, EXCERPT_TOKENS), (32_000, 256), (200_000, 1_600)])
@pytest.mark.parametrize("text", [LOG, ROWS, "一切正常。" * 500, "some plain English words " * 200])
def test_in_a_long_run_an_output_takes_a_small_share_whatever_the_text(text: str, window: int, least: int) -> None:
    """One percent of the budget, 160 tokens or more, once many outputs were cut since the question."""
    text *= 1 + 4 * window // len(text)
    last = sizes(in_one_turn(12, text), window)[-1]
    assert least * 0.4 <= last <= least * 1.15


def test_the_share_is_a_setting() -> None:
    assert 900 < sizes(in_one_turn(12, LOG * 3), 32_000, excerpt_ratio=0.05)[-1] < 1_400


def test_what_fits_is_shown_whole() -> None:
    """2,700 tokens in an empty window of 6,000."""
    text = "\n".join(f"row {n}: the quick brown fox jumps over it" for n in range(228))
    assert 2_600 < COUNTER.count(tool_result("c", text, id="r")) < 2_800
    messages = [user("Look.", id="u"), assistant("", id="a", calls=[call("c")]), tool_result("c", text, id="r")]
    assert [shown for _, shown in sized(messages, rules=policy_for(6_000), counter=COUNTER)] == [None] * 3


@pytest.mark.parametrize("before", [0, 1, 2])
def test_no_output_falls_off_a_cliff(before: int) -> None:
    """A tenth more of output never makes half less of excerpt, while few outputs of the turn were cut."""
    small = "x y z " * 300
    lines = [f"row {n}: the quick brown fox jumps over it" for n in range(2_000)]
    shares: list[int] = []
    size = 60
    while size < 2_000:
        turn = in_one_turn(before, "large output " * 8_000)
        turn += [assistant("", id="b", calls=[call("c"), call("d")]), tool_result("d", small, id="s")]
        turn.append(tool_result("c", "\n".join(lines[:size]), id="r"))
        shares.append(sizes(turn, 16_000)[-1])
        size = size * 11 // 10
    assert all(b > 0.5 * a for a, b in itertools.pairwise(shares)), shares


def test_results_of_one_message_share_the_room() -> None:
    parts = tuple(ToolResultPart(f"c{n}", LOG * 3) for n in range(4))
    rules = policy_for(64_000)
    ((_, small),) = sized([Message("r", "tool", parts)], rules=rules, counter=COUNTER)
    assert small is not None
    assert [r.content.startswith("pytest") for r in small.tool_results] == [True] * 4
    assert COUNTER.count(small) < 0.75 * rules.budget_tokens


def test_what_is_no_larger_than_its_share_is_shown_whole() -> None:
    message = tool_result("c", LOG[:4_000], id="r")
    assert sized([message], rules=policy_for(32_000), counter=COUNTER) == [(message, None)]


def test_an_excerpt_of_an_excerpt_keeps_its_note_and_its_line_numbers() -> None:
    first = asked(LOG, "test_total_733", 2_000)
    message = tool_result("c", first, id="r17")
    second = excerpt(message, reference="#17", max_chars=500, focus=Focus("test_total_733"), again=True).text
    assert len(second) < 700
    assert second.count("characters left out") == 1
    assert f"of {len(LOG)} characters left out; the whole output is archived as #17" in second
    numbered = second.split("\n")
    at = next(i for i, line in enumerate(numbered) if "test_total_500 FAILED" in line)
    assert numbered[at - 1].endswith("line 502]")
    assert "test_total_733" in second


@pytest.mark.parametrize("reference", ["#17", ""])
@pytest.mark.parametrize("what", ["lines", "page"])
def test_a_shorter_excerpt_counts_what_the_output_has(what: str, reference: str) -> None:
    page = f"<!DOCTYPE html><body>{''.join(f'<p>Room {n} has key {n * 37}.</p><p>Floor {n}</p>' for n in range(200))}</body>"
    text = page if what == "page" else LOG
    message = tool_result("c", text, id="r17")
    shorter = excerpt(message, reference=reference, max_chars=1_200)
    shortest = excerpt(shorter, reference=reference, max_chars=400, again=True).text
    assert len(shortest) < 600
    assert re.findall(r"characters|page|#\d+|; line", shortest.partition("[... ")[2].partition("]")[0]) == [
        "characters",
        *(["page"] if what == "page" else []),
        *(["#17"] if reference else []),
        *([] if what == "page" else ["; line"]),
    ]
    assert shortest.count("left out") == 1
    assert f"of {len(text)} characters left out" in shortest


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({}, ["Facts, verbatim:", "Passages recalled", "here, the tool was given all]", "characters left out;"]),
        ({"context_window": 14_000}, ["Facts, verbatim:", "Passages recalled"]),
    ],
)
def test_a_session_without_references_names_no_message(make: Make, settings: Any, parts: list[str]) -> None:
    backend = scripted(*["Noted."] * 40)
    ctx = make(backend, **{"context_window": 4_000, "references": False, **settings})
    for n in range(24):
        note = {"text": f"locker {n} is green. " * 60, "rows": ["ab" * 60] * 12}
        write = ToolCallPart(f"w{n}", "write", json.dumps(note))
        ctx.add(
            [user(f"Note locker {n}: it has code {n * 117}-B.", id=f"u{n}"), assistant("", id=f"a{n}", calls=[write])]
        )
        ctx.add([tool_result(f"w{n}", f"row of locker {n} written\n" * 40, id=f"r{n}"), assistant("Done.", id=f"z{n}")])
        if n % 4 == 3:
            ctx.add([user("List.", id=f"v{n}"), *tool_round(f"t{n}", f"Locker {n} has been looked at.\n" * 600)])
            ctx.send("Which code has locker 3?")
    shown = "\n".join(m.text + "".join(c.arguments for c in m.tool_calls) for r in backend.requests for m in r.messages)
    assert [part for part in parts if part not in shown] == []
    assert re.findall(r"#\d+", shown) == []
    assert ctx.search("code 351-B")[0].reference == "#13", "it can be searched, and read by the numbers of a search"


def test_an_excerpt_that_is_handed_in_again_is_the_output_that_it_stands_for(make: Make) -> None:
    ctx = make(context_window=2_000)
    asked, result = tool_round("t", "found 12 boxes " * 600)
    ctx.add([user("look", id="q"), asked, result, assistant("done", id="d")])
    excerpt_shown = ctx.view().messages[2]
    assert excerpt_shown.text != result.text
    assert ctx.add(excerpt_shown).messages == ()
    assert ctx.archive.get(result.id).text == result.text


@pytest.mark.parametrize("references", [True, False])
def test_outputs_shrink_step_by_step_at_epochs(make: Make, references: bool) -> None:
    """An old output keeps a quarter first; the next epoch takes more of it."""
    ctx = make(context_window=12_000, references=references)
    lengths: list[int] = []
    for n in range(30):
        text = "\n".join(f"{n}.{i} entry of the list" for i in range(120))
        ctx.add([user(f"q{n}", id=f"u{n}"), assistant("", id=f"a{n}", calls=[call(f"c{n}", f'{{"page": {n}}}')])])
        ctx.add([tool_result(f"c{n}", text, id=f"r{n}"), assistant("ok", id=f"z{n}")])
        lengths.append(len(next(m.text for m in ctx.view().messages if m.id == "r0")))
    steps = list(dict.fromkeys(lengths))
    assert len(steps) >= 3, lengths
    assert steps == sorted(steps, reverse=True)
    assert steps[0] / 6 < steps[1] < steps[0] / 2
    excerpts = [m.text for m in ctx.view().messages if "left out" in m.text]
    assert excerpts
    assert all(("archived as #" in text) == references and text.count("left out") == 1 for text in excerpts)


def test_an_output_that_was_asked_for_again_gives_way_first(make: Make) -> None:
    ctx = make(context_window=4_000, strategy="clear_tools", min_free_ratio=0.05)
    text = "entry of the list\n" * 120
    for n, page in enumerate((1, 2, 3, 2, 4, 5, 6)):
        ctx.add([user(f"q{n}", id=f"u{n}"), assistant("", id=f"a{n}", calls=[call(f"c{n}", f'{{"page": {page}}}')])])
        ctx.add([tool_result(f"c{n}", text, id=f"r{n}"), assistant("ok", id=f"z{n}")])
    lengths = {m.id: len(m.text) for m in ctx.view().messages if m.role == "tool"}
    assert lengths["r1"] == min(lengths.values()), lengths
    assert lengths["r3"] > 2 * lengths["r1"], lengths


def test_an_output_that_was_asked_for_again_gives_way_among_the_newest(make: Make) -> None:
    """Half of the budget is protected for the newest messages, but not for an output that stands there twice."""
    ctx = make(context_window=4_000, strategy="clear_tools", min_free_ratio=0.05)
    for n, page in enumerate((1, 2, 3, 4, 5, 6, 6)):
        ctx.add([user(f"q{n}", id=f"u{n}"), assistant("", id=f"a{n}", calls=[call(f"c{n}", f'{{"page": {page}}}')])])
        ctx.add([tool_result(f"c{n}", "entry of the list\n" * 120, id=f"r{n}"), assistant("ok", id=f"z{n}")])
    lengths = {m.id: len(m.text) for m in ctx.view().messages if m.role == "tool"}
    assert 2 * lengths["r5"] < lengths["r3"] < lengths["r4"], lengths


def test_outputs_of_many_kinds_keep_their_error_and_what_was_asked() -> None:
    """A kind of output each, of the seeds that were tuned on; `python -m tests.benchmarks excerpts` has the others."""
    found = seen([tool_text(kind, 1) for kind in KINDS])
    assert [(s.text.kind, s.error, s.place, s.answer) for s in found if not (s.error and s.place and s.answer)] == []


def test_passages_travel_for_eight_rounds_of_tools(make: Make) -> None:
    """They stand at the end of a request, so every later one would pay for them anew; the next question has its own again."""
    calls = [assistant("", id=f"m{n}", calls=[call(f"c{n}")]) for n in range(11)]
    backend = scripted(*calls, "done", "47-B", scratch_role="user")
    ctx = make(backend, context_window=4_000, strategy="truncate")
    ctx.add([user("My locker is 47-B.", id="u"), assistant("Noted.", id="a"), *turns(6)])
    ctx.compact(force=True)
    ctx.send("Look into the locker, please.")
    for n in range(11):
        ctx.send(tool_result(f"c{n}", f"found {n}", id=f"r{n}"))
    ctx.send("Which locker is it?")
    with_passages = [any("Passages recalled" in m.text for m in r.messages) for r in backend.requests]
    assert with_passages == [True] * 8 + [False] * 4 + [True]
