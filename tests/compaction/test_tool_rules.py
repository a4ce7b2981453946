"""Rules for single tools: outputs that are never shortened, that give way first, or that take no more than so many tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ctxfold import (
    AgentContext,
    ConfigError,
    MemoryStore,
    Message,
    Policy,
    ScriptedBackend,
    ToolCallPart,
    ToolRule,
    assistant,
    tool_result,
    user,
)
from ctxfold.compaction.tool_outputs import sized
from ctxfold.errors import MessageTooLargeError
from ctxfold.policy.settings import policy_for
from ctxfold.tokens.text import MessageCounter
from tests.support.driven import COUNTER, Driven, scripted

Make = Callable[..., Driven]
WHOLE = "characters left out"


def lines(name: str, count: int) -> str:
    return "\n".join(f"{name} {n}: an entry of the list" for n in range(count))


def called(tool: str, number: int | str, **arguments: Any) -> Message:
    part = ToolCallPart(f"c{number}", tool, json.dumps({"page": number, **arguments}))
    return assistant("", id=f"a{number}", calls=[part])


def worked(tool: str, number: int, text: str, **arguments: Any) -> list[Message]:
    """A turn in which a tool is asked once."""
    return [
        user(f"question {number}", id=f"u{number}"),
        called(tool, number, **arguments),
        tool_result(f"c{number}", text, id=f"r{number}"),
        assistant("Done.", id=f"z{number}"),
    ]


def cut(ctx: Driven) -> set[str]:
    """The ids of the messages that the window shows as excerpts."""
    return {e.id for e in ctx.view() if e.shown_seq}


def size(ctx: Driven, message_id: str) -> int:
    return next(e.tokens for e in ctx.view() if e.id == message_id)


# exclude_tools


def test_an_excluded_output_arrives_whole(make: Make) -> None:
    text = lines("note", 300)
    for excluded, expected in ((), {"r0", "r1"}), (("read_memory",), {"r1"}):
        ctx = make(context_window=4_000, exclude_tools=excluded)
        ctx.add([user("Look.", id="u"), called("read_memory", 0), tool_result("c0", text, id="r0")])
        ctx.add([called("browse", 1), tool_result("c1", text, id="r1")])
        assert cut(ctx) == expected


def test_an_output_that_comes_without_its_call_is_known_by_its_own_name() -> None:
    """Such as the first line of a file whose other lines were imported before."""
    rules = policy_for(4_000, exclude_tools=("read_memory",))
    for name, whole in (("read_memory", True), ("browse", False), (None, False)):
        message = tool_result("c0", lines("note", 300), id="r0", name=name)
        ((_, shown),) = sized([message], rules=rules, counter=MessageCounter(COUNTER))
        assert (shown is None) is whole


@pytest.mark.parametrize("strategy", ["tiered", "clear_tools"])
@pytest.mark.parametrize("pruning_order", ["reactive", "task_aware"])
def test_excluded_outputs_stay_while_others_give_way(make: Make, strategy: str, pruning_order: str) -> None:
    def run(**settings: Any) -> set[str]:
        ctx = make(
            context_window=12_000, strategy=strategy, pruning_order=pruning_order, min_free_ratio=0.05, **settings
        )
        for n in range(8):
            ctx.add(worked("read_memory" if n % 2 else "browse", n, lines("entry", 130)))
        return cut(ctx)

    outputs = {f"r{n}": bool(n % 2) for n in range(8)}
    assert any(outputs[i] for i in run() if i in outputs), "else nothing is tested"
    with_rule = run(exclude_tools=("read_memory",))
    assert with_rule
    assert not any(outputs[i] for i in with_rule)


def test_excluded_outputs_of_the_turn_under_way_stay(make: Make) -> None:
    """What has to fit makes room by outputs of the turn itself, all but those of the newest round."""

    def run(**settings: Any) -> set[str]:
        tools = ["read_memory", "browse"] * 4
        backend = scripted(*(called(tool, n) for n, tool in enumerate(tools)), "Done.")
        ctx = make(backend, context_window=8_000, summarizer=scripted(*["Looked."] * 9), **settings)
        ctx.send(user("Look at all.", id="u"), recall=False)
        shortened: set[str] = set()
        for n in range(8):
            ctx.send(tool_result(f"c{n}", lines("entry", 60 if n % 2 == 0 else 160), id=f"r{n}"), recall=False)
            shortened |= cut(ctx)
        return shortened

    assert "r0" in run()
    found = run(exclude_tools=("read_memory",))
    assert {"r1", "r3"} & found
    assert not {"r0", "r2", "r4", "r6"} & found


@pytest.mark.parametrize("excluded", [(), ("write_file",)])
def test_arguments_of_excluded_tools_stay(make: Make, excluded: tuple[str, ...]) -> None:
    content = lines("def", 300)
    calls = [ToolCallPart(f"c{n}", "write_file", json.dumps({"path": f"{n}", "content": content})) for n in range(6)]
    backend = scripted(*(assistant("", id=f"a{n}", calls=[c]) for n, c in enumerate(calls)), "Done.")
    ctx = make(backend, context_window=12_000, summarizer=scripted(*["Wrote."] * 9), exclude_tools=excluded)
    ctx.send(user("Write the files.", id="u"), recall=False)
    shown: set[str] = set()
    for n in range(6):
        ctx.send(tool_result(f"c{n}", "ok", id=f"r{n}"), recall=False)
        shown |= cut(ctx)
    assert bool(shown & {f"a{n}" for n in range(6)}) is not bool(excluded)


def test_of_parallel_calls_only_the_excluded_one_keeps_its_arguments(make: Make) -> None:
    content = lines("def", 300)
    ctx = make(context_window=20_000, exclude_tools=("write_memory",))
    for n in range(3):
        calls = [
            ToolCallPart(f"{tool}{n}", tool, json.dumps({"content": content}))
            for tool in ("write_memory", "write_file")
        ]
        results = [tool_result(c.id, "ok", id=f"r-{c.id}") for c in calls]
        ctx.add([user("Write.", id=f"u{n}"), assistant("", id=f"a{n}", calls=calls), *results])
        ctx.add(assistant("Done.", id=f"z{n}"))
    shown = {m.id: m for m in ctx.window(question="What next?").messages}["a0"]
    lengths = {c.name: len(c.arguments) for c in shown.tool_calls}
    assert lengths["write_file"] < 1_000 < len(content) < lengths["write_memory"]


def test_no_summary_is_written_ahead_for_an_excluded_output(make: Make) -> None:
    def run(**settings: Any) -> tuple[int, ScriptedBackend]:
        summarizer = scripted(*["The list has its entries."] * 20)
        ctx = make(context_window=32_000, summarizer=summarizer, **settings)
        for n in range(10):
            ctx.add(worked("read_memory", n, lines("entry", 40)))
        return ctx.service.summarize_tool_pairs(), summarizer

    assert run()[0] > 0
    written, summarizer = run(exclude_tools=("read_memory",))
    assert (written, len(summarizer.requests)) == (0, 0)


def test_a_summary_written_before_the_rule_is_not_shown(make: Make) -> None:
    ctx = make(context_window=32_000, summarizer=scripted(*["The list has its entries."] * 20))
    for n in range(10):
        ctx.add(worked("read_memory", n, lines("entry", 40)))
    assert ctx.service.summarize_tool_pairs() > 0
    ctx.set_policy(exclude_tools=("read_memory",))
    assert ctx.service.apply_tool_pair_summaries() == 0
    ctx.set_policy(exclude_tools=())
    assert ctx.service.apply_tool_pair_summaries() > 0


def test_a_summary_may_stand_for_an_excluded_output_and_a_pin_prevents_it(make: Make) -> None:
    def run(*, pinned: bool) -> set[str]:
        ctx = make(
            context_window=4_000,
            exclude_tools=("read_memory",),
            pin_ratio=0.5,
            summarizer=scripted(*["Looked."] * 20),
        )
        text = lines("entry", 60)
        ctx.add(worked("read_memory", 0, text))
        if pinned:
            ctx.pin("r0")
        for n in range(1, 9):
            ctx.add(worked("read_memory", n, text))
        assert ctx.archive.get("r0").text == text, "the archive has it whole"
        assert all(WHOLE not in m.text for m in ctx.view().messages)
        return {m.id for m in ctx.view().messages}

    assert "r0" not in run(pinned=False)
    assert "r0" in run(pinned=True)


def test_an_excluded_output_that_is_larger_than_the_window_is_refused(make: Make) -> None:
    backend = scripted(called("read_memory", 0), "Done.", "Went on.")
    ctx = make(backend, context_window=2_000, exclude_tools=("read_memory",), summarizer=scripted(*["Looked."] * 9))
    ctx.send(user("Look.", id="u"))
    text = lines("note", 400)
    with pytest.raises(MessageTooLargeError, match="exclude_tools") as caught:
        ctx.send(tool_result("c0", text, id="r0"), recall=False)
    told = str(caught.value)
    assert "the tool output 'r0' has" in told
    assert "of 1600 that the window of 2000 has for the prompt" in told
    assert len(backend.requests) == 1, "nothing was sent"
    assert ctx.usage().summaries.input_tokens == 0, "and nothing was compacted in vain"


def test_a_session_goes_on_after_an_excluded_output_was_refused(make: Make) -> None:
    backend = scripted(called("read_memory", 0), "Went on.")
    ctx = make(backend, context_window=2_000, exclude_tools=("read_memory",), summarizer=scripted(*["Looked."] * 9))
    ctx.send(user("Look.", id="u"))
    with pytest.raises(MessageTooLargeError):
        ctx.send(tool_result("c0", lines("note", 400), id="r0"), recall=False)
    assert ctx.send(user("Never mind.", id="u2"), recall=False).message.text == "Went on."


def test_a_large_excluded_output_in_an_older_round_is_summarised(make: Make) -> None:
    backend = scripted(called("read_memory", 0), called("read_memory", 1), "Done.")
    ctx = make(backend, context_window=4_000, exclude_tools=("read_memory",), summarizer=scripted(*["Looked."] * 9))
    ctx.send(user("Look.", id="u"), recall=False)
    text = lines("note", 220)
    assert 1_600 < COUNTER.count(text) < 2_900
    ctx.send(tool_result("c0", text, id="r0"), recall=False)
    assert ctx.send(tool_result("c1", text, id="r1"), recall=False).message.text == "Done."
    shown = {m.id: m.text for m in backend.requests[-1].messages}
    assert "r0" not in shown
    assert shown["r1"] == text


def test_the_newest_round_is_never_summarised_for_an_excluded_output(make: Make) -> None:
    """The model has not seen it yet. Where question, call and output alone are too large, it is refused."""
    text = lines("note", 200)
    newest = [user("Look.", id="u"), called("read_memory", 1), tool_result("c1", text, id="r1")]
    needed = MessageCounter(COUNTER).count_all(newest)
    for budget, fits in ((needed + 300, True), (needed - 1, False)):
        backend = scripted(called("browse", 0), called("read_memory", 1), "Done.")
        ctx = make(
            backend,
            context_window=budget + 400,
            reply_reserve_tokens=400,
            exclude_tools=("read_memory",),
            summarizer=scripted(*["Looked."] * 9),
        )
        ctx.send(newest[0], recall=False)
        ctx.send(tool_result("c0", lines("page", 40), id="r0"), recall=False)
        if fits:
            ctx.send(newest[-1], recall=False)
            assert {m.id: m.text for m in backend.requests[-1].messages}["r1"] == text
        else:
            with pytest.raises(MessageTooLargeError, match=f"outputs take {needed} of {budget}"):
                ctx.send(newest[-1], recall=False)


def test_between_rounds_excluded_outputs_stay(make: Make) -> None:
    ctx = make(context_window=4_000, exclude_tools=("read_memory",))
    ctx.add(user("Look.", id="u"))
    for n in range(6):
        tool = "read_memory" if n % 2 else "browse"
        ctx.add([called(tool, n, seen=lines("page", 35)), tool_result(f"c{n}", lines("entry", 30), id=f"r{n}")])
    assert ctx.service.maybe_soft_compact_mid_iteration()
    assert cut(ctx) == {"a0", "r0", "a2", "r2", "a4", "r4"}


# clear_first


def run_with_two_tools(make: Make, **settings: Any) -> Driven:
    ctx = make(context_window=12_000, min_free_ratio=0.1, **settings)
    for n in range(7):
        ctx.add(worked("browse" if n % 2 else "read_file", n, lines("entry", 130)))
    return ctx


def test_outputs_of_a_tool_give_way_first_and_spare_the_others(make: Make) -> None:
    without = cut(run_with_two_tools(make))
    assert "r0" in without
    with_rule = cut(run_with_two_tools(make, tool_rules=(ToolRule(tool="browse", clear_first=True),)))
    assert with_rule
    assert with_rule <= {"r1", "r3", "r5"}
    assert "r5" in with_rule or "r3" in with_rule, "new ones too"


def test_where_they_free_too_little_the_others_follow(make: Make) -> None:
    ctx = make(context_window=12_000, tool_rules=(ToolRule(tool="browse", clear_first=True),))
    for n in range(9):
        ctx.add(worked("browse" if n == 4 else "read_file", n, lines("entry", 130)))
    assert {"r0", "r4"} <= cut(ctx)
    assert size(ctx, "r4") < size(ctx, "r0"), "it is cut to the least, the others keep a quarter"


def test_what_the_model_has_not_seen_stays(make: Make) -> None:
    tools = ["browse"] * 9
    backend = scripted(*(called(tool, n) for n, tool in enumerate(tools)), "Done.")
    rule = ToolRule(tool="browse", clear_first=True)
    ctx = make(backend, context_window=6_000, tool_rules=(rule,), summarizer=scripted(*["Looked."] * 9))
    ctx.send(user("Look at all.", id="u"), recall=False)
    text = lines("entry", 90)
    for n in range(9):
        ctx.send(tool_result(f"c{n}", text, id=f"r{n}"), recall=False)
        newest = next(m for m in backend.requests[-1].messages if m.id == f"r{n}")
        assert newest.text == text
    assert cut(ctx)


# excerpt_tokens


DENSE = f"{'plain words ' * 2_000}\nerror: {'🧭🪝' * 40}\n{'plain words ' * 2_000}\nerror: {'🪣🧭' * 40}\n" * 3


def test_an_output_takes_no_more_than_its_limit(make: Make) -> None:
    rule = ToolRule(tool="browse", excerpt_tokens=300)
    ctx = make(context_window=32_000, tool_rules=(rule,))
    ctx.add([user("Look.", id="u"), called("browse", 0), tool_result("c0", lines("row", 90), id="r0")])
    ctx.add([called("read_file", 1), tool_result("c1", lines("row", 90), id="r1")])
    ctx.add([called("browse", 2), tool_result("c2", lines("row", 10), id="r2")])
    assert cut(ctx) == {"r0"}
    assert 200 < size(ctx, "r0") <= 300
    assert WHOLE in {m.id: m.text for m in ctx.view().messages}["r0"]


@pytest.mark.parametrize("limit", [160, 250, 1_000])
@pytest.mark.parametrize("text", [lines("row", 4_000), "一切正常。" * 8_000, "x" * 30_000, DENSE])
def test_the_limit_holds_whatever_the_text(make: Make, limit: int, text: str) -> None:
    ctx = make(context_window=32_000, tool_rules=(ToolRule(tool="browse", excerpt_tokens=limit),))
    ctx.add([user("Look.", id="u"), called("browse", 0), tool_result("c0", text, id="r0")])
    assert size(ctx, "r0") <= limit
    assert ctx.archive.get("r0").text == text


def test_limited_outputs_leave_the_room_of_others_as_it_is(make: Make) -> None:
    """Each further excerpt of a turn takes less; those of a tool with its own limit are no reason for that."""

    def last(count: int, *, at_once: bool, **settings: Any) -> int:
        ctx = make(context_window=16_000, **settings)
        messages = [user("Look.", id="u")]
        for n in range(count):
            messages += [called("browse", n), tool_result(f"c{n}", lines("row", 400), id=f"r{n}")]
        messages += [called("read_file", "x"), tool_result("cx", lines("row", 2_000), id="rx")]
        for some in [messages] if at_once else [[m] for m in messages]:
            ctx.add(some)
        return size(ctx, "rx")

    rule = ToolRule(tool="browse", excerpt_tokens=160)
    for at_once in (True, False):
        assert last(4, at_once=at_once, tool_rules=(rule,)) > 0.8 * last(0, at_once=at_once)
        assert last(4, at_once=at_once) < 0.4 * last(0, at_once=at_once)


# the setting


def test_wrong_rules_are_refused(make: Make) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        (
            {"exclude_tools": "read_memory"},
            r"exclude_tools is 'read_memory': .*, such as exclude_tools=\('read_memory',\)",
        ),
        ({"tool_rules": {"browse": 1}}, r"tool_rules is .*such as tool_rules=\(ctxfold.ToolRule\("),
        ({"tool_rules": ({"tool": "browse"},)}, r"the rule for tool 'browse' is empty: give clear_first=True"),
        ({"tool_rules": ({"tool": "browse", "excerpt_tokens": 20},)}, "greater than or equal to 160"),
        ({"tool_rules": ({"tool": "b", "clear_first": True},) * 2}, "tool 'b' has 2 rules: join them"),
        (
            {"tool_rules": ({"tool": "b", "clear_first": True},), "exclude_tools": ("b",)},
            "tool 'b' is in exclude_tools too",
        ),
        ({"exclude_tool": ()}, "did you mean exclude_tools"),
    ]
    for settings, told in wrong:
        with pytest.raises(ConfigError, match=told):
            make(**settings)


def test_rules_last_and_change_with_set_policy(make: Make) -> None:
    rule = ToolRule(tool="browse", excerpt_tokens=200)
    with MemoryStore() as store:
        ctx = make(store=store, session_id="s", context_window=4_000)
        ctx.set_policy(exclude_tools=["read_memory"], tool_rules=[rule])
        again = make(store=store, session_id="s", context_window=4_000)
        assert (again.policy.exclude_tools, again.policy.tool_rules) == (("read_memory",), (rule,))
        again.add([user("Look.", id="u"), called("browse", 0), tool_result("c0", lines("row", 90), id="r0")])
        assert size(again, "r0") <= 200


def test_a_policy_without_rules_is_stored_as_before() -> None:
    """A release that does not know the rules refuses fields that it does not know."""
    with AgentContext(context_window=4_000) as ctx:
        fields = json.loads(ctx.policy.model_dump_json())
    assert not {"exclude_tools", "tool_rules"} & fields.keys()
    rule = ToolRule(tool="browse", clear_first=True)
    with AgentContext(context_window=4_000, tool_rules=(rule,)) as ctx:
        assert Policy.model_validate_json(ctx.policy.model_dump_json()) == ctx.policy
