"""An output of megabytes: found like any other, and the work of a turn does not grow with it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ctxfold import MemoryStore, Message, ToolCallPart, assistant, tool_result, user
from ctxfold.history.records import Draft, Record, SessionKey
from ctxfold.index.terms import ENDING_CHARS, WINDOW_CHARS, sentences, term_counts
from tests.support.driven import Driven

Make = Callable[..., Driven]
LINES = [
    f"At 12:{n % 60:02d} pump-{n} of hall_{n % 7} reported état n\\u00b0{n}. It ran until the 9. August; code{n}!"
    for n in range(3_000)
]
FORMS = {
    "lines": "\n".join(LINES),
    "one line": " ".join(LINES),
    "JSON without spaces": json.dumps(
        [["état", f"{'of' * 9}hall{n}", f"pump-{n}", "zebra" * 3] for n in range(5_000)],
        separators=(",", ":"),
        ensure_ascii=False,
    ),
}


def round_of(output: str) -> list[Message]:
    call = ToolCallPart("c", "read_log", "{}")
    return [
        user("Read the log.", id="u"),
        assistant("", id="t", calls=[call]),
        tool_result("c", output, id="r"),
        assistant("I have read it.", id="a"),
    ]


@pytest.mark.parametrize("form", FORMS)
def test_a_text_is_read_in_windows_as_it_is_at_once(form: str) -> None:
    """One call of a regular expression holds the interpreter until it returns, and megabytes would stop all threads."""
    text, by_parts = FORMS[form], Counter[str]()
    assert len(text) > 2 * WINDOW_CHARS
    for part in text.split("état"):
        by_parts.update(term_counts(part))
    by_parts.update({"etat": text.count("état")})
    assert term_counts(text) == by_parts


@pytest.mark.parametrize("before", range(-3, 18))
@pytest.mark.parametrize("near", [0, ENDING_CHARS])
def test_an_ending_at_the_end_of_a_window_is_seen_with_what_follows(before: int, near: int) -> None:
    begin = "y\n" * ((WINDOW_CHARS - near - before) // 2)
    assert sentences(f"{begin}am 9. August. Then it rained.")[-3:] == ["y", "am 9. August.", "Then it rained."]


@pytest.mark.parametrize("form", FORMS)
def test_every_part_of_an_output_is_found_and_recalled(make: Make, form: str) -> None:
    ctx = make(context_window=6_000)
    ctx.add(round_of(FORMS[form]))
    for n in range(7, 3_000, 374):
        assert [hit.message_id for hit in ctx.search(f"pump-{n}")] == ["r"]
        assert f"pump-{n}" in ctx.window(recall=True, question=f"What did pump-{n} report?").recalled


class CountsCalls:
    """Counts a token for each four characters, and how often it is asked."""

    id = "counts-calls"

    def __init__(self) -> None:
        self.calls = 0

    def count(self, text: str) -> int:
        self.calls += 1
        return (len(text) + 3) // 4


def test_passages_that_do_not_fit_are_not_all_counted(make: Make) -> None:
    """Where hardly any room is left, thousands of sentences that match the question as well as those shown find none."""
    counter = CountsCalls()
    ctx = make(context_window=6_000, counter=counter)
    ctx.add(round_of("\n".join(f"The zebra number {n} {'trots and ' * 80}halts." for n in range(3_000))))
    for room in range(3_000, 3_200, 40):  # at the end some room is left, more or less
        before = counter.calls
        question = "What did the zebra do?"
        assert "zebra" in ctx.window(recall=True, question=question, overhead_tokens=4_800 - room).recalled
        assert counter.calls - before < 1_000


class KeepsDocuments(MemoryStore):
    """A store that notes the records which it indexes."""

    def __init__(self) -> None:
        super().__init__()
        self.indexed = Counter[int]()

    def append(self, key: SessionKey, drafts: Sequence[Draft], **options: Any) -> tuple[Record, ...]:
        self.indexed.update(document.seq for document in options.get("documents", ()))
        return super().append(key, drafts, **options)


def test_a_compaction_does_not_index_the_original_of_an_excerpt_again(make: Make) -> None:
    store = KeepsDocuments()
    ctx = make(store=store, context_window=6_000)
    ctx.add(round_of(FORMS["lines"]))
    (seq,) = store.indexed
    for n in range(20):
        ctx.add([user(f"Note number {n}. " * 20, id=f"u{n}"), assistant("Noted.", id=f"a{n}")])
    ctx.compact()
    assert store.indexed[seq] == 1
    assert len(store.indexed) > 1, "other messages were compacted"
    assert all(m.id != "r" for m in ctx.window().messages), "and so was the output"
    assert [hit.message_id for hit in ctx.search("pump-1500")] == ["r"]
