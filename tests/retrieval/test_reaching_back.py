"""Where a model works with tools, passages travel only with a question that reaches back: each round would send them anew."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ctxfold import ToolCallPart, assistant, tool_result, user
from tests.support.driven import Driven, scripted

Make = Callable[..., Driven]
TOWNS = ("Ostend", "Delft", "Visby", "Porto", "Bilbao", "Nantes", "Ghent", "Turku", "Bergen", "Riga", "Tartu", "Malmo")
PAGE = "The tide there rises and falls twice a day, and the harbour keeps a record of it. " * 10


def read(town: str, *, with_tools: bool) -> list[object]:
    text = f"The gauge of {town} has the code {town[:2].upper()}-{len(town) * 137}. {PAGE}"
    asked = user(f"Read the page of {town}.", id=f"u{town}")
    if not with_tools:
        return [asked, assistant(text, id=f"a{town}")]
    call = assistant("", id=f"t{town}", calls=[ToolCallPart(f"c{town}", "read", f'{{"town": "{town}"}}')])
    return [asked, call, tool_result(f"c{town}", text, id=f"r{town}"), assistant("I have read it.", id=f"a{town}")]


def filled(make: Make, *, with_tools: bool) -> Driven:
    ctx = make(context_window=2_000, summarizer=scripted(*["They read pages."] * 99))
    for town in TOWNS:
        ctx.add(read(town, with_tools=with_tools))
    assert ctx.usage().compactions
    return ctx


def test_a_command_about_something_new_brings_nothing(make: Make) -> None:
    ctx = filled(make, with_tools=True)
    window = ctx.window(recall=True, question="Read the page of Helsinki.")
    assert window.recalled == ""
    assert [m.id for m in window.messages] == [m.id for m in ctx.view().messages]


def test_a_question_about_what_left_the_window_brings_it_back(make: Make) -> None:
    ctx = filled(make, with_tools=True)
    recalled = ctx.window(recall=True, question="Which code has the gauge of Ostend?").recalled
    assert "OS-822" in recalled


def test_without_tools_recall_is_generous(make: Make) -> None:
    ctx = filled(make, with_tools=False)
    assert ctx.window(recall=True, question="Read the page of Helsinki.").recalled


@pytest.mark.parametrize("pages", [1, 2])
def test_a_question_about_the_only_outputs_of_a_session_brings_them_back(make: Make, pages: int) -> None:
    """Of one or two archived messages, no term is in fewer than half: this is no reason to leave them out."""
    ctx = make(context_window=4_000)
    for n in range(pages):
        rows = [f"Row {row}: the gauge of town {row} stands at {13 * row}." for row in range(300)]
        rows[150] = "The kiln of Ostend has the code KX-822."
        call = assistant("", id=f"c{n}", calls=[ToolCallPart(f"k{n}", "read", f'{{"page": {n}}}')])
        ctx.add([user(f"Read page {n}.", id=f"u{n}"), call, tool_result(f"k{n}", "\n".join(rows), id=f"t{n}")])
        ctx.add([assistant("I have read it.", id=f"a{n}")])
    assert "KX-822" in ctx.window(recall=True, question="Which code has the kiln of Ostend?").recalled
    assert ctx.window(recall=True, question="Read page 9.").recalled == ""
