"""`request_for`: the request for a list that somebody else keeps and sends, whatever has become of that list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ctxfold import Message, ToolSpec, assistant, tool_result, user
from ctxfold.engine.request import Options
from ctxfold.engine.turn import TurnInput
from ctxfold.errors import MessageTooLargeError
from ctxfold.history.records import SessionKey
from tests.support.driven import Driven, call
from tests.support.open_sessions import opened

Make = Callable[..., Driven]
KEY = SessionKey("default", "s")
WORDS = "The quick brown fox jumps over the lazy dog. " * 8


def request(ctx: Driven, messages: Sequence[Message], *, whole: bool = True, **options: Any) -> list[Message]:
    given = frozenset(m.id for m in messages)
    question = TurnInput(KEY, tuple(messages), Options(**options), given_ids=given, whole=whole)
    return list(ctx.handle.request_for(question).messages)


def texts(messages: Sequence[Message]) -> list[str]:
    return [m.text for m in messages]


def said(*names: str) -> list[Message]:
    """Users say "u1", assistants "a1", and that is their id."""
    return [user(n, id=n) if n.startswith("u") else assistant(n, id=n) for n in names]


@pytest.fixture
def ctx(make: Make) -> Driven:
    return make(None, session_id="s", context_window=2_000)


def test_answers_come_with_the_next_list(ctx: Driven) -> None:
    assert texts(request(ctx, said("u1"))) == ["u1"]
    assert ctx.ctx.at("s").window().messages == ()  # the turn is not over
    assert texts(request(ctx, said("u1", "a1", "u2"))) == ["u1", "a1", "u2"]
    assert texts(ctx.ctx.at("s").window().messages) == ["u1", "a1"]
    assert ctx.usage().turns == 1
    assert texts(request(ctx, said("u1", "a1", "u2", "a2"))) == ["u1", "a1", "u2", "a2"]
    assert ctx.usage().turns == 2


def test_the_same_list_again_changes_nothing(ctx: Driven) -> None:
    for _ in range(3):
        assert texts(request(ctx, said("u1", "a1", "u2"))) == ["u1", "a1", "u2"]
    assert len(opened(ctx.ctx, KEY).state.open) == 1


def test_another_branch_and_back(ctx: Driven) -> None:
    request(ctx, said("u1", "a1", "u2", "a2", "u3"))
    assert texts(request(ctx, said("u1", "a1", "u4"))) == ["u1", "a1", "u4"]
    assert texts(request(ctx, said("u1", "a1", "u2", "a2", "u3"))) == ["u1", "a1", "u2", "a2", "u3"]
    # with nothing in common, it goes on with the conversation: some hand over what is new
    assert texts(request(ctx, said("u5"))) == ["u1", "a1", "u2", "a2", "u5"]
    assert len(opened(ctx.ctx, KEY).state.open) == 1  # turns of branches that were left are gone


def test_a_note_beside_the_list_is_no_branch(ctx: Driven) -> None:
    request(ctx, said("u1", "a1"))
    ctx.add(user("a note", id="note"))
    assert texts(request(ctx, said("u1", "a1", "u2"))) == ["u1", "a1", "a note", "u2"]


def test_not_whole_is_only_added_to(ctx: Driven) -> None:
    request(ctx, said("u1", "a1", "u2", "a2"), whole=False)
    assert texts(request(ctx, said("u1", "a1", "u3"), whole=False)) == ["u1", "a1", "u2", "a2", "u3"]


def test_a_tool_that_is_run_again_from_an_earlier_state(ctx: Driven) -> None:
    """The round is known up to its call: its other result takes the place of the first, in an open turn and in a closed one."""
    asked = [user("u1", id="u1"), assistant("", id="x1", calls=[call("c1")])]
    first, second = tool_result("c1", "first", id="r1"), tool_result("c1", "second", id="r2")
    request(ctx, [*asked, first])
    shown = request(ctx, [*asked, second])
    assert [r.content for m in shown for r in m.tool_results] == ["second"]
    request(ctx, [*asked, second, assistant("a1", id="a1")])
    shown = request(ctx, [*asked, first])
    assert [m.role for m in shown] == ["user", "assistant", "tool"]
    assert [r.content for m in shown for r in m.tool_results] == ["first"]


@pytest.mark.parametrize("whole", [True, False])
def test_a_question_that_came_in_before_an_open_call_is_asked(whole: bool, ctx: Driven) -> None:
    """A cancelled run leaves its call in the caller's list, behind the question that follows it."""
    u1, x1, r1 = user("u1", id="u1"), assistant("", id="x1", calls=[call("c1")]), tool_result("c1", "found", id="r1")
    request(ctx, [u1], whole=whole)
    request(ctx, [u1, x1, r1], whole=whole)
    for messages in ([u1, *said("u2", "u3"), x1, r1], [u1, *said("u2", "u3"), x1, r1, *said("a1")]):
        shown = request(ctx, messages, whole=whole)
        assert [m.id for m in shown] == [m.id for m in messages]
    assert len({m.id for m in ctx.messages()}) == len(ctx.messages()) == 6


def test_a_message_that_is_written_anew_for_each_request_does_not_begin_the_turn_anew(ctx: Driven) -> None:
    u1, x1, r1 = user("u1", id="u1"), assistant("", id="x1", calls=[call("c1")]), tool_result("c1", "found", id="r1")
    request(ctx, [u1, user("It is 12:01.", id="t1"), x1, r1], whole=False)
    shown = request(ctx, [u1, user("It is 12:02.", id="t2"), x1, r1], whole=False)
    assert [m.id for m in shown] == ["u1", "t1", "x1", "r1"]


def test_a_long_list_is_made_to_fit(ctx: Driven) -> None:
    messages: list[Message] = []
    for number in range(30):
        messages += [user(f"{number}. {WORDS}", id=f"u{number}"), assistant("ok", id=f"a{number}")]
    shown = request(ctx, [*messages, user("and?", id="last")])
    assert sum(map(ctx.handle.counter.count, shown)) <= 1_600
    assert shown[0].kind == "summary"
    assert shown[-1].text == "and?"


def test_what_else_the_request_holds_is_counted(ctx: Driven) -> None:
    messages = [m for n in range(12) for m in (user(f"{n}. {WORDS}", id=f"u{n}"), assistant("ok", id=f"a{n}"))]
    asked = [*messages, user("and?", id="last")]
    tools = (ToolSpec("look", WORDS, {}),)
    shown = request(ctx, asked, tools=tools, overhead_tokens=700)
    assert sum(map(ctx.handle.counter.count, shown)) <= 1_600 - 700 - ctx.handle.counter.count_tools(tools)


def test_one_that_can_never_fit_leaves_the_session_as_it_was(ctx: Driven) -> None:
    request(ctx, said("u1", "a1"))
    with pytest.raises(MessageTooLargeError):
        request(ctx, [*said("u1", "a1"), user(WORDS * 30, id="big")])
    assert texts(request(ctx, said("u1", "a1", "u2"))) == ["u1", "a1", "u2"]


def test_a_list_that_goes_on_from_an_open_call_ends_its_turn(ctx: Driven) -> None:
    """Nobody will answer the call any more."""
    ctx.add([*said("u1"), assistant("", id="call", calls=[call("c")])])
    asked = [*said("u1"), assistant("", id="call", calls=[call("c")]), *said("u2")]
    assert texts(request(ctx, asked)) == ["u1", "u2"]
