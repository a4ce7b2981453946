"""Five orders in which tool outputs give way, on small histories whose right order is plain to see."""

from __future__ import annotations

import pytest

from ctxfold import Message, ToolCallPart, assistant, tool_result, user
from ctxfold.compaction.goal import MIG_LIMIT, pruning_order
from ctxfold.history.records import Subgoal
from ctxfold.history.view import Entry
from tests.timing import cpu_s

KINDS = ["reactive", "task_aware", "mig", "subgoal", "subgoal_mig"]


def entries(*messages: Message) -> list[Entry]:
    return [Entry(m.id, seq, m, 10) for seq, m in enumerate(messages, 1)]


def looked_up(name: str, query: str, output: str) -> list[Message]:
    call = ToolCallPart(f"c-{name}", "lookup", f'{{"query": "{query}"}}')
    return [assistant("", id=f"a-{name}", calls=[call]), tool_result(call.id, output, id=name)]


def history() -> list[Entry]:
    return entries(
        user("Find a flight to Lisbon and a hotel in Porto", id="u"),
        *looked_up("flights", "flights Lisbon", "Flight TP123 to Lisbon leaves at nine"),
        *looked_up("weather", "weather", "Rain in Oslo until Monday"),
        *looked_up("hotels", "hotels Porto", "Hotel Ribeira in Porto has a room"),
        *looked_up("again", "flights Lisbon", "Flight TP123 to Lisbon leaves at nine"),
    )


def order(kind, found=None, **given) -> list[str]:
    found = history() if found is None else found
    return [found[i].id for i in pruning_order(found, kind, **given)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_order_has_each_tool_message_once_and_nothing_else(kind):
    assert sorted(order(kind)) == ["again", "flights", "hotels", "weather"]
    assert pruning_order([], kind) == []
    assert pruning_order(entries(user("hi", id="u")), kind) == []


def test_reactive_is_oldest_first():
    assert order("reactive") == ["flights", "weather", "hotels", "again"]


def test_task_aware_prunes_what_the_goal_does_not_need():
    assert order("task_aware", goal="the hotel in Porto")[-1] == "hotels"
    assert order("task_aware", goal="rain in Oslo")[-1] == "weather"


def test_without_a_goal_the_newest_user_message_is_the_goal():
    assert order("task_aware")[0] == "weather"


def test_of_equal_relevance_the_older_goes_first():
    assert order("task_aware", goal="nothing of this") == ["flights", "weather", "hotels", "again"]


def test_a_tool_message_is_known_by_its_call_too():
    found = entries(*looked_up("a", "tides", "07:12"), *looked_up("b", "taxes", "09:30"))
    assert order("task_aware", found, goal="tides") == ["b", "a"]


def test_a_reused_call_id_belongs_to_the_newest_call():
    first, second = looked_up("same", "taxes", "1"), looked_up("same", "tides", "2")
    found = entries(*first, *second[:1], tool_result("c-same", "2", id="other"))
    assert order("task_aware", found, goal="tides") == ["same", "other"]


def test_mig_prunes_a_repetition_before_anything_irrelevant():
    # "again" is the newest copy and stays; its older twin adds nothing
    assert order("mig", goal="flight Lisbon hotel Porto")[0] == "flights"
    assert order("task_aware", goal="flight Lisbon hotel Porto")[0] == "weather"


def test_subgoals_rank_active_over_completed_over_untagged():
    subgoals = [
        Subgoal("find flights", since=1, completed=True),
        Subgoal("", since=4),
        Subgoal("find a hotel", since=6),
        Subgoal("", since=8),
    ]
    assert order("subgoal", subgoals=subgoals) == ["weather", "flights", "again", "hotels"]


def test_without_subgoals_recency_alone_decides():
    assert order("subgoal") == order("reactive")


def test_subgoal_mig_prunes_the_repetition_inside_an_active_subgoal():
    step = Subgoal("flights to Lisbon in any weather", since=1)
    ranked = order("subgoal_mig", subgoals=[step])
    assert ranked.index("flights") < ranked.index("weather")
    assert ranked[-1] == "again"


def test_chinese_relevance():
    found = entries(
        *looked_up("hotel", "酒店", "浦东新区的酒店有空房"),
        *looked_up("train", "火车", "高铁下午三点出发"),
    )
    assert order("task_aware", found, goal="订一间浦东的酒店") == ["train", "hotel"]


@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_messages_stay_cheap_and_the_oldest_go_first_beyond_the_limit(kind):
    made = [m for i in range(2_000) for m in looked_up(f"t{i}", f"item {i}", f"item {i} costs {i * 7} and {i % 13}")]
    found = entries(user("what does item 7 cost", id="u"), *made)
    ranked = pruning_order(found, kind)
    assert cpu_s(lambda: pruning_order(found, kind)) < 15
    assert len(ranked) == 2_000
    if kind in ("mig", "subgoal_mig"):
        older = 2_000 - MIG_LIMIT
        assert ranked[:older] == sorted(ranked)[:older]
