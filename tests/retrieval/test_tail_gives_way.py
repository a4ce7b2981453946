"""In a small window, older messages of the tail give way to recall, in one request and where the question is about the archive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ctxfold import Request, ToolCallPart, ToolSpec, assistant, tool_result, user
from tests.support.driven import COUNTER, Driven, scripted, tool_round

Make = Callable[..., Driven]
Said = Callable[[int], list[Any]]
TOLD = 500  # messages
ABOUT_THE_BEGINNING = "Which ticket is for which visit?"

TOPICS = ("harbour", "orchard", "library", "station", "bakery", "museum", "garden", "theatre", "market", "bridge")
FILLER = "and then we talked for a while about one thing and another, as people do on a long afternoon " * 4


def said(number: int) -> list[Any]:
    topic = TOPICS[number % len(TOPICS)]
    text = f"The {topic} of visit {number} opens at {number + 6} with ticket code {topic[:3].upper()}{number}. {FILLER}"
    return [user(text, id=f"u{number}"), assistant(f"Noted for visit {number}.", id=f"a{number}")]


def told_then_walked(number: int) -> list[Any]:
    """Short messages, of which only the first ones, long archived, say something about visits."""
    topic = TOPICS[number % len(TOPICS)]
    told = f"The {topic} opens at {number} for visit {number}, ticket {number}."
    return [
        user(
            told if number < TOLD else f"We walked past house {number} and on to the lake, in the rain.",
            id=f"u{number}",
        )
    ]


def talked(
    make: Make, backend: Any = None, visits: int = 20, fill: float = 0.75, said: Said = said, **settings: Any
) -> Driven:
    """A conversation whose view leaves less than two fifths of recall's share."""
    given = {
        "context_window": 2_000,
        "soft_ratio": 0.9,
        "summarizer": scripted(*["They plan visits."] * 99),
        **settings,
    }
    ctx = make(backend, **given)
    number = 0
    while number < visits or ctx.view().tokens < fill * ctx.explain().gauge.budget_tokens:
        ctx.add(said(number))
        number += 1
    return ctx


def old_question(ctx: Driven) -> str:
    live = {m.id for m in ctx.view().messages}
    archived = next(n for n in range(len(TOPICS)) if f"u{n}" not in live)
    return f"With which ticket code does the {TOPICS[archived]} of visit {archived} open?"


def shown_ids(request: Any) -> list[str]:
    return [m.id for m in request.messages]


def test_older_messages_give_way_where_few_long_messages_would_find_room(make: Make) -> None:
    ctx = talked(make, fill=0.58)
    gauge, question = ctx.explain().gauge, old_question(ctx)
    free = gauge.budget_tokens - ctx.view().tokens
    assert 0.4 * 0.7 * gauge.budget_tokens < free - 100 < free < 0.7 * gauge.budget_tokens, "not all of its share"
    assert len(shown_ids(ctx.window(recall=True, question=question))) < len(ctx.view().messages)


def test_older_messages_give_way_in_one_request_only(make: Make) -> None:
    ctx = talked(make)
    before, question = ctx.view(), old_question(ctx)
    window = ctx.window(recall=True, question=question)
    live, shown = [m.id for m in before.messages], shown_ids(window)
    hidden = [i for i in live if i not in shown]
    assert hidden
    assert [i for i in live if i in shown] == shown, "in order"
    assert live[-2:] == shown[-2:], "the newest turn stays"
    assert window.view.tokens < before.tokens
    assert question.split()[6][:3].upper() in window.recalled, "the code that was asked for"
    assert (ctx.view().epoch, shown_ids(ctx.view())) == (before.epoch, live), "nothing is compacted"
    assert shown_ids(ctx.window()) == live, "and they are back"


def test_without_recall_nothing_gives_way(make: Make) -> None:
    ctx = talked(make, recall_ratio=0)
    window = ctx.window(recall=True, question=old_question(ctx))
    assert shown_ids(window) == [m.id for m in ctx.view().messages]
    assert window.recalled == ""


def test_a_question_about_the_tail_keeps_it(make: Make) -> None:
    ctx = talked(make)
    live = [m for m in ctx.view().messages if m.id.startswith("u")]
    oldest = live[0]
    number = int(oldest.id[1:])
    window = ctx.window(
        recall=True, question=f"Which code has visit {number}, {TOPICS[number % 10][:3].upper()}{number}?"
    )
    assert shown_ids(window) == [m.id for m in ctx.view().messages]


def test_a_large_window_keeps_its_tail(make: Make) -> None:
    """What follows a break of the prefix is new to the cache; in a large window that is too much."""
    ctx = talked(make, visits=160, fill=0.87, context_window=16_000)
    window = ctx.window(recall=True, question=old_question(ctx))
    assert shown_ids(window) == [m.id for m in ctx.view().messages]
    assert window.recalled


def test_pinned_messages_stay(make: Make) -> None:
    ctx = talked(make)
    first = next(m.id for m in ctx.view().messages if m.id.startswith("u"))
    ctx.pin(first)
    window = ctx.window(recall=True, question=old_question(ctx))
    shown = shown_ids(window)
    assert first in shown
    assert len(shown) < len(ctx.view().messages)


def test_no_message_is_shown_twice(make: Make) -> None:
    ctx = talked(make)
    window = ctx.window(recall=True, question=old_question(ctx))
    text = "\n".join([*(m.text for m in window.messages if m.kind == "message"), window.recalled])
    for number in range(len(ctx.messages()) // 2):
        assert text.count(f"of visit {number} opens") <= 1


def test_the_request_begins_alike_all_turn_long(make: Make) -> None:
    """Where a request has tools, what is not hidden leaves room for their results."""
    rounds, tools = 2, (ToolSpec("look", "Looks something up.", {"type": "object"}),)
    asking = [assistant("", id=f"t{n}", calls=[ToolCallPart(f"c{n}", "look", "{}")]) for n in range(rounds)]
    backend = scripted(*asking, "It opens early.")
    ctx = talked(make, backend)
    question = old_question(ctx)
    before = [m.id for m in ctx.view().messages]
    ctx.send(user(question, id="q"), tools=tools)
    for n in range(rounds):
        ctx.send(tool_result(f"c{n}", "nothing here " * 30, id=f"r{n}"), tools=tools)
    requests: list[Request] = backend.requests
    kept = [[m.id for m in r.messages if m.id in before] for r in requests]
    assert len(kept[0]) < len(before)
    assert all(each == kept[0] for each in kept)
    assert {m.text for r in requests for m in r.messages if m.kind == "section"} == {requests[0].messages[-1].text}


def test_a_message_that_is_pinned_within_the_turn_is_shown_again(make: Make) -> None:
    """As an agent does with `pin_message`: older messages gave way in the turn's first request, and one of them is pinned."""
    backend = scripted(assistant("", id="t", calls=[ToolCallPart("c", "look", "{}")]), "It opens early.")
    ctx = talked(make, backend)
    question = old_question(ctx)
    ctx.send(user(question, id="q"))
    hidden = [m.id for m in ctx.view().messages if m.kind == "message" and m.id not in shown_ids(backend.requests[0])]
    ctx.pin(hidden[0])
    ctx.send(tool_result("c", "nothing here", id="r"))
    assert hidden[0] in shown_ids(backend.requests[1])


def test_a_whole_tail_is_whole_in_the_middle_of_a_turn(make: Make) -> None:
    """A list that may be handed back has what gave way in the turn's requests, which stay as they are."""
    backend = scripted(assistant("", id="t", calls=[ToolCallPart("c", "look", "{}")]), "It opens early.")
    ctx = talked(make, backend)
    before = [m.id for m in ctx.view().messages]
    ctx.send(user(old_question(ctx), id="q"))
    assert shown_ids(ctx.window(recall=True, whole_tail=True)) == [m.id for m in ctx.view().messages]
    ctx.send(tool_result("c", "nothing here", id="r"))
    first, second = ([i for i in shown_ids(r) if i in before] for r in backend.requests)
    assert first == second != before


def test_what_gave_way_and_came_back_are_breaks_named_recall(make: Make) -> None:
    ctx = talked(make, scripted("Good.", "It opens early.", "You are welcome."))
    before = ctx.view().epoch
    newest = len(ctx.messages()) // 2 - 1
    about_the_tail = f"And visit {newest}?"
    found: list[dict[str, int]] = []
    for text in (about_the_tail, old_question(ctx), about_the_tail):
        ctx.send(text)
        found.append(dict(ctx.usage().prefix.breaks))
    assert found == [{}, {"recall": 1}, {"recall": 2}]
    assert ctx.view().epoch == before, "none of them was a compaction"


def free_and_kept(make: Make, window: int, newest: Sequence[Any] = (), **options: Any) -> tuple[float, float]:
    """Which share of the budget passages leave free that fill all room they may, and which the newest messages hold."""
    ctx = talked(make, said=told_then_walked, visits=TOLD + window // 10, context_window=window, recall_ratio=0.95)
    if newest:
        ctx.add([*newest, assistant("It rains.", id="done")])
    live, budget = {e.id: e.tokens for e in ctx.view().live}, ctx.explain().gauge.budget_tokens
    request = ctx.window(recall=True, question=ABOUT_THE_BEGINNING, **options)
    shown = [live[i] for i in shown_ids(request) if i in live]
    assert request.recalled
    assert len(shown) < len(live)
    free = budget - request.view.tokens - COUNTER.count(request.recalled) - options.get("overhead_tokens", 0)
    return free / budget, sum(shown) / budget


def test_a_chat_keeps_nothing_free_and_tools_an_eighth_of_the_budget(make: Make) -> None:
    assert free_and_kept(make, 2_000)[0] < 0.05
    assert 0.125 <= free_and_kept(make, 2_000, overhead_tokens=1)[0] < 0.175


def test_results_of_tools_keep_an_eighth_of_the_budget_free(make: Make) -> None:
    assert 0.125 <= free_and_kept(make, 2_000, newest=tool_round("t"))[0] < 0.175


def test_the_larger_the_window_the_more_of_the_tail_stays(make: Make) -> None:
    kept = [free_and_kept(make, window)[1] for window in (2_000, 4_000, 8_000)]
    assert [round(share, 1) for share in kept] == [0.1, 0.2, 0.4]


def test_where_1600_tokens_are_free_nothing_gives_way(make: Make) -> None:
    ctx = talked(make, said=told_then_walked, visits=TOLD + 400, fill=0.72, context_window=8_000)
    gauge = ctx.explain().gauge
    assert 1_600 < gauge.budget_tokens - ctx.view().tokens < 2_000 < 0.7 * gauge.budget_tokens
    request = ctx.window(recall=True, question=ABOUT_THE_BEGINNING)
    assert request.recalled
    assert shown_ids(request) == [m.id for m in ctx.view().messages]
