"""The context service: every operation over the same engine, one form for all kinds, sync and async."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ctxfold import (
    BackendError,
    ConfigError,
    ContextService,
    HistoryCompacted,
    Item,
    MemoryStore,
    Query,
    Section,
    ToolSpec,
    assistant,
    tool_result,
    user,
)
from ctxfold import memory_section as remembered
from ctxfold.errors import StoreUnavailableError, WindowTooSmallError
from ctxfold.events import SectionInjected, SectionSkipped
from ctxfold.history.records import Record
from ctxfold.sections.section import KINDS
from ctxfold.session.service import ContextDelta
from tests.support.driven import Driven, call, scripted, text_of, tool_round, turns
from tests.timing import wait_for

Make = Callable[..., Driven]
REPLIES = [f"reply {i}" for i in range(40)]


class Service:
    """`context.service`, driven one way or the other."""

    def __init__(self, driven: Driven) -> None:
        self.driven = driven

    def __getattr__(self, name: str) -> Any:
        runner, service = self.driven._runner, self.driven.ctx.service
        if runner is None:
            return getattr(service, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            async def awaited() -> Any:
                return await getattr(service, f"a{name}")(*args, **kwargs)

            return runner.run(awaited())

        return call


def kinds_in(ctx: Any) -> list[str]:
    return [m.text for m in ctx.view().messages if m.kind == "section"]


def test_every_operation_has_an_async_twin_with_the_same_signature() -> None:
    methods = {n: f for n, f in inspect.getmembers(ContextService, inspect.isfunction) if not n.startswith("_")}
    plain = {n for n in methods if f"a{n}" in methods}
    assert plain | {f"a{n}" for n in plain} == set(methods)
    for name in plain:
        assert inspect.signature(methods[name]) == inspect.signature(methods[f"a{name}"]), name


def test_clear_and_reset(make: Make) -> None:
    ctx = make(None, system="Be kind.", context_window=10_000)
    service = Service(ctx)
    ctx.add(turns(2))
    ctx.pin("u0")
    assert [m.id for m in service.clear_history()] == ["u0", "a0", "u1", "a1"]
    assert [m.role for m in ctx.view().messages] == ["system"]
    assert ctx.archive.get("u0").text.startswith("question 0"), "the log keeps it"
    ctx.add(user("look", id="q"))
    ctx.add(assistant("", id="c", calls=[call("c1")]))
    service.reset_conversation()
    assert [m.role for m in ctx.view().messages] == ["system"]
    ctx.add(turns(1, start=5))
    assert [m.id for m in ctx.view().messages[1:]] == ["u5", "a5"]
    assert [b.why for b in ctx.explain().blocks] == [
        "system prompt",
        "newer than the last cut",
        "newer than the last cut",
    ]


def test_trim_keeps_rounds_pins_and_the_newest_question(make: Make) -> None:
    ctx = make(None, context_window=20_000, system="Be kind.")
    ctx.add([user("look", id="q0"), *tool_round("t0", result="found " * 40), assistant("I did.", id="d0")])
    ctx.add(turns(4))
    ctx.add(user("the newest question", id="new"))
    ctx.pin("u1")
    service = Service(ctx)
    assert service.trim_messages_to_budget(0) == 0
    assert service.trim_messages_to_budget(100_000) == 0
    before = ctx.view()
    assert service.trim_messages_to_budget(before.tokens - 30) == 3, (
        "half a tool round never goes: the result went with its call"
    )
    assert [m.id for m in ctx.view().messages][1:4] == ["d0", "u0", "a0"]
    gone = service.trim_messages_to_budget(1)
    assert gone > 0
    assert [m.id for m in ctx.view().messages[1:]] == ["u1", "new"]
    assert ctx.search("found"), "trimmed messages are searchable"
    ctx.undo()
    ctx.undo()
    assert ctx.view().messages == before.messages


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_goes_in_once_and_out_again(make: Make, kind: str) -> None:
    ctx = make(None, context_window=10_000, keep_last=2, session_id="s1")
    service = Service(ctx)
    ctx.add(turns(3))
    told = service.inject(kind, [Item("the car is red", source="cars.md")])
    assert told == SectionInjected("s1", kind, 1, told.tokens, "tail")
    assert service.inject(kind, [Item("the car is red", source="cars.md")]) is None, "the same again is nothing new"
    assert service.inject(kind, ["the car is blue"]) is not None
    assert len(kinds_in(ctx)) == 2, "within the epoch nothing is taken out"
    ctx.add(turns(3, start=3))
    ctx.compact(force=True)
    assert [text.splitlines()[1:] for text in kinds_in(ctx)] == [["- the car is blue"]], "one copy is in force"
    ctx.add(turns(3, start=6))
    ctx.compact(force=True)
    assert len(kinds_in(ctx)) == 1, "it outlives compactions"
    assert service.remove(kind) == 1
    assert kinds_in(ctx) == []
    assert service.remove(kind) == 0


def test_a_misspelt_kind_is_refused(make: Make) -> None:
    """Step 7, C: `service.remove("typo")` passed silently."""
    ctx = make(None, context_window=10_000, sections=[Section("prices", lambda _: [])])
    service = Service(ctx)
    service.inject("tickets", ["ticket 7 is open"])
    for kind, advice in (
        ("typo", "there are code, corrections"),
        ("documnets", "did you mean 'documents'"),
        ("", "there are"),
    ):
        with pytest.raises(ConfigError, match=advice):
            service.remove(kind)
    assert service.remove("prices") == 0, "it is configured"
    assert service.remove("tickets") == 1, "a kind of the user's own that is in the session"


def test_a_negative_budget_is_refused(make: Make) -> None:
    """Step 7, C: a negative trim budget passed silently."""
    ctx = make(None, context_window=10_000)
    service = Service(ctx)
    ctx.add(turns(3))
    before = ctx.view().messages
    for budget in (-1, "100", 1.5, None):
        with pytest.raises(ConfigError, match="budget_tokens is"):
            service.trim_messages_to_budget(budget)
    assert service.trim_messages_to_budget(0) == 0
    assert ctx.view().messages == before


def test_what_is_put_in_by_hand_keeps_to_its_share_and_stands_where_it_may(make: Make) -> None:
    backend = scripted(*REPLIES)
    ctx = make(backend, context_window=10_000, keep_last=2, system="Be kind.")
    service = Service(ctx)
    service.inject("digest", ["They spoke of cars."], place="head")
    told = service.inject("documents", [f"line {i} of a long document" for i in range(400)])
    assert 500 < told.tokens <= 640
    ctx.send("question " + "word " * 60)
    ctx.send("another " + "word " * 60)
    assert [m.kind for m in backend.requests[-1].messages[:3]] == ["message", "section", "section"]
    assert service.inject("digest", ["They spoke of boats."], place="head").place == "tail"
    ctx.compact(force=True)
    assert service.inject("digest", ["They spoke of boats."], place="head") is None, (
        "the same again, wherever it stands"
    )
    assert service.inject("digest", ["They spoke of trains."], place="head").place == "head"
    ctx.send("and now")
    assert [m.kind for m in backend.requests[-1].messages[:3]] == ["message", "summary", "section"]
    assert "trains" in backend.requests[-1].messages[2].text
    assert [c for c, _ in ctx.usage().prefix.breaks] == ["compaction"]


def test_a_call_may_name_another_session_and_owner(make: Make) -> None:
    ctx = make(None, context_window=10_000, session_id="s1", owner="ann")
    service = Service(ctx)
    service.inject("facts", ["the car is red"], session="s2")
    service.inject("facts", ["the car is blue"], owner="bob")
    assert kinds_in(ctx) == []
    assert "red" in kinds_in(ctx.ctx.at("s2"))[0]
    assert "blue" in kinds_in(ctx.ctx.at("s1", owner="bob"))[0]


# prepare_context


def test_prepare_context_asks_puts_in_and_reports(make: Make) -> None:
    gate = threading.Event()

    def hangs(query: Query) -> list[str]:
        gate.wait(60)
        return []

    def raises(query: Query) -> list[str]:
        raise ValueError("no index")

    sections = [
        Section("documents", lambda q: [Item(f"on {q.text}", source="a.md")]),
        Section("code", lambda _: ["def f(): ..."]),
        Section("notes", lambda _: ["for this request"], lifetime="request"),
        Section("lsp", hangs, timeout_s=0.1),
        Section("skills", raises),
        remembered("facts"),
    ]
    ctx = make(None, context_window=10_000, session_id="s1", sections=sections, keep_last=2)
    ctx.ctx.memory.add("facts", "The spare key is under the flowerpot.")
    ctx.add([user("The zebra7 password hint is marmalade.", id="z"), assistant("Noted.", id="n"), *turns(6)])
    ctx.compact(force=True)
    service = Service(ctx)
    delta: ContextDelta = service.prepare_context("Where is the spare key, and what of zebra7?")
    gate.set()
    assert {e.kind for e in delta.injected} == {"documents", "code", "notes", "facts"}
    assert {e.kind: e.reason for e in delta.skipped}["skills"] == "ValueError('no index')"
    assert "no answer within 0.1 s" in {e.kind: e.reason for e in delta.skipped}["lsp"]
    assert delta.code.endswith("- def f(): ...")
    assert "def f" not in delta.recalled + text_of(delta.messages), "the caller places it"
    assert "marmalade" in delta.recalled + text_of(delta.messages)
    assert "for this request" in delta.recalled
    stored = [m.text for m in delta.messages if m.kind == "section"]
    assert [text.splitlines()[1] for text in stored] == [
        "- a.md: on Where is the spare key, and what of zebra7?",
        "- The spare key is under the flowerpot.",
    ]
    assert delta.used_tokens <= delta.budget_tokens
    assert [m.kind for m in delta.messages[-2:]] == ["section", "section"], "right before the question"
    again = service.prepare_context("Where is the spare key, and what of zebra7?")
    assert [m.text for m in again.messages if m.kind == "section"] == stored, "nothing stands there twice"


def test_a_window_that_overflows_is_made_to_fit_first(make: Make) -> None:
    ctx = make(None, context_window=1_500, sections=[Section("documents", lambda _: ["word " * 2_000])])
    ctx.set_policy(auto_compact=False)
    ctx.add(turns(30))
    ctx.set_policy(auto_compact=True)
    delta = Service(ctx).prepare_context("question?")
    assert delta.used_tokens <= delta.budget_tokens
    assert "summary" in {m.kind for m in delta.messages}


def test_a_required_section_that_does_not_fit_beside_the_prompt_is_named(make: Make) -> None:
    rules = Section("rules", lambda _: ["word " * 900], required=True, lifetime="request")
    ctx = make(None, context_window=2_000, system="Be kind. " * 250, sections=[rules])
    with pytest.raises(WindowTooSmallError, match=r"'rules' .* tokens; beside system prompt"):
        Service(ctx).prepare_context("What?")


def test_memory_first_shows_the_newest_two_and_recalls_the_rest(make: Make) -> None:
    ctx = make(None, context_window=4_000)
    service = Service(ctx)
    ctx.add([user("The zebra7 password hint is marmalade.", id="z"), assistant("Noted.", id="n"), *turns(4)])
    ctx.add([user("look", id="q"), *tool_round("t")])
    full = service.prepare_context("What is the zebra7 hint?")
    assert full.assembly == "full_history"
    assert len(full.messages) == 12 + 1
    ctx.add(assistant("done", id="d"))
    short = service.prepare_context("What is the zebra7 hint?", assembly="memory_first")
    assert short.assembly == "memory_first"
    assert [m.id for m in short.messages] == ["q", "t-a", "t-r0", "d"], "whole rounds, and the newest user message"
    assert "marmalade" in short.recalled
    assert ctx.usage().turns == 6
    ctx.add(turns(13, start=10))
    assert service.prepare_context("What?", assembly="adaptive").assembly == "full_history"
    ctx.add(turns(1, start=23))
    assert service.prepare_context("What?", assembly="adaptive").assembly == "memory_first"


def test_shares_follow_the_way_a_window_is_put_together(make: Make) -> None:
    asked: dict[str, int] = {}

    def source(kind: str) -> Section:
        def found(query: Query) -> list[str]:
            asked[kind] = query.budget_tokens
            return []

        return Section(kind, found)

    kinds = ["summaries", "cross_session", "code"]
    ctx = make(None, context_window=12_500, sections=[source(k) for k in kinds])
    ctx.add(turns(1))
    service = Service(ctx)
    service.prepare_context("?")
    assert asked == {"summaries": 800, "cross_session": 400, "code": 3_000}
    service.prepare_context("?", assembly="memory_first")
    assert asked == {"summaries": 2_500, "cross_session": 1_500, "code": 3_500}
    graph = make(None, context_window=12_500, sections=[source(k) for k in (*kinds, "graph")])
    Service(graph).prepare_context("?")
    assert asked == {"summaries": 700, "cross_session": 300, "code": 2_900, "graph": 400}
    Service(graph).prepare_context("?", assembly="memory_first")
    assert asked == {"summaries": 2_200, "cross_session": 1_200, "code": 3_800, "graph": 600}


# compaction


def test_maybe_compact_goes_by_its_tiers(make: Make) -> None:
    ctx = make(None, context_window=2_000, background=False)
    service = Service(ctx)
    ctx.add(turns(2))
    assert service.maybe_compact() == "none"
    ctx.set_policy(auto_compact=False)
    ctx.add(turns(40, start=2))
    assert service.maybe_compact() == "none", "it is switched off"
    ctx.set_policy(auto_compact=True)
    assert service.maybe_compact() == "hard"


def test_soft_compaction_takes_tool_outputs_only(make: Make) -> None:
    ctx = make(None, context_window=10_000, auto_compact=False)
    for i in range(8):
        ctx.add(
            [user(f"look {i}", id=f"q{i}"), *tool_round(f"t{i}", result="found it " * 350), assistant("ok", id=f"d{i}")]
        )
    ctx.set_policy(auto_compact=True)
    assert Service(ctx).maybe_compact() == "soft"


def test_a_compaction_that_shows_summaries_of_outputs_is_soft(make: Make) -> None:
    backend = scripted(*["It found the blue door at 12 Elm Street."] * 8)
    ctx = make(None, summarizer=backend, context_window=8_000, strategy="tool_summaries", auto_compact=False)
    service = Service(ctx)
    for i in range(8):
        found = "the blue door at 12 Elm Street " * 100
        ctx.add([user(f"look {i}", id=f"q{i}"), *tool_round(f"t{i}", result=found), assistant("ok", id=f"d{i}")])
    assert service.summarize_tool_pairs() == 2
    ctx.set_policy(auto_compact=True)
    events: list[Any] = []
    ctx.subscribe(events.append)
    assert service.maybe_compact() == "soft"
    assert [e.strategy for e in events if isinstance(e, HistoryCompacted)] == ["tool_summaries"]


class Full(MemoryStore):
    """A store that takes nothing more once it is full."""

    full = False

    def append(self, *args: Any, **kwargs: Any) -> tuple[Record, ...]:
        if self.full:
            raise StoreUnavailableError("the disk is full: make room")
        return super().append(*args, **kwargs)


def test_compact_context_answers_with_a_value(make: Make) -> None:
    store = Full()
    ctx = make(None, store=store, context_window=10_000, keep_last=2)
    service = Service(ctx)
    assert service.compact_context().status == "no_change"
    ctx.add(turns(6))
    before, store.full = ctx.view().messages, True
    outcome = service.compact_context()
    assert (outcome.status, outcome.compacted) == ("not_stored", False)
    assert "disk is full" in outcome.reason
    assert ctx.view().messages == before
    store.full = False
    assert service.compact_context().status == "compacted"


def test_between_rounds_older_outputs_of_the_turn_give_way_once(make: Make) -> None:
    ctx = make(None, context_window=2_400)
    service = Service(ctx)
    assert not service.maybe_soft_compact_mid_iteration()
    ctx.add(user("look", id="q"))
    for i in range(4):
        ctx.add(assistant("", id=f"c{i}", calls=[call(f"k{i}")]))
        ctx.add(tool_result(f"k{i}", "found it " * 160, id=f"r-k{i}"))
    ctx.add(assistant("", id="c9", calls=[call("k9")]))
    assert service.maybe_soft_compact_mid_iteration()
    assert not service.maybe_soft_compact_mid_iteration(), "once a turn"
    shown = {m.id: m.text for m in ctx.window().messages}
    assert len(shown["r-k0"]) < 400
    assert shown["q"] == "look"


def test_proactive_compression_does_not_wait_for_a_trigger(make: Make) -> None:
    ctx = make(None, context_window=4_000, keep_last=2)
    service = Service(ctx)
    ctx.add(turns(10))
    assert not service.maybe_proactive_compress(0.9)
    assert service.maybe_proactive_compress(0.05)
    assert not service.maybe_proactive_compress(0.9)


def test_proactive_compression_counts_the_open_turn_and_the_tools(make: Make) -> None:
    """Between rounds, what the next request will hold counts, and not the finished turns alone."""
    rounds = [assistant("", id=f"c{i}", calls=[call(f"k{i}")]) for i in range(3)]
    ctx = make(scripted("Hello.", *rounds), context_window=4_000, keep_last=2, strategy="truncate")
    service = Service(ctx)
    ctx.add(turns(6))
    ctx.send("Hi", tools=[ToolSpec("look", "word " * 1_000, {"type": "object"})])
    assert ctx.view().tokens < 0.3 * ctx.policy.budget_tokens
    assert service.maybe_proactive_compress(0.35), "the tools count"
    ctx.send("look")
    for i in range(2):
        ctx.send(tool_result(f"k{i}", "found it " * 500, id=f"r{i}"))
    assert service.maybe_proactive_compress(0.25), "the round counts"


def test_goal_and_step_are_found_out_at_once(make: Make) -> None:
    backend = scripted("GOAL: open the gate\nSTEP: find the guard\nSAME: no")
    ctx = make(None, summarizer=backend, context_window=20_000, pruning_order="task_aware", background=False)
    service = Service(ctx)
    ctx.add(user("Open the gate.", id="q"))
    assert service.maybe_refresh_subgoal() == ""
    wait_for(service.maybe_refresh_subgoal)
    assert (service.maybe_refresh_subgoal(), service.maybe_refresh_task_goal()) == ("find the guard", "open the gate")
    assert len(backend.requests) == 1
    ctx.edit.set_subgoal("light the lamp")
    assert service.maybe_refresh_subgoal() == "light the lamp"
    ctx.edit.set_subgoal(None)
    assert service.maybe_refresh_subgoal() == "", "it is completed"


def test_tool_pairs_and_goals_are_reached(make: Make) -> None:
    """What they do is tested with their own rooms; here, that the service hands over and answers."""
    backend = scripted(*["It found the blue door at 12 Elm Street."] * 8)
    ctx = make(None, summarizer=backend, context_window=20_000)
    service = Service(ctx)
    for i in range(9):
        ctx.add([user(f"look {i}", id=f"q{i}"), *tool_round(f"t{i}", result="the blue door at 12 Elm Street " * 30)])
        ctx.add(assistant("ok", id=f"d{i}"))
    before = ctx.view().tokens
    assert service.summarize_tool_pairs() == 3
    assert ctx.view().tokens == before
    assert service.flush_tool_pair_summaries()
    assert service.apply_tool_pair_summaries() == 3
    assert ctx.view().tokens < before
    assert service.maybe_refresh_goal() == ""
    ctx.set_policy(pruning_order="task_aware")
    service.maybe_refresh_goal()


def test_a_summary_that_saves_nothing_is_not_asked_for_again(make: Make) -> None:
    result = "w " * 240
    backend = scripted(*["word " * 300] * 9)
    ctx = make(None, summarizer=backend, context_window=20_000)
    for i in range(8):
        ctx.add([user(f"look {i}", id=f"q{i}"), *tool_round(f"t{i}", result=result), assistant("ok", id=f"d{i}")])
    assert Service(ctx).summarize_tool_pairs() == 0
    asked = len(backend.requests)
    assert asked > 0
    assert Service(ctx).summarize_tool_pairs() == 0
    assert len(backend.requests) == asked


# skills

SKILLS = {"pdf": "reads PDF files", "mail": "writes mail", "web": "searches the web"}


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("3, 1", ("web", "pdf", "mail")),
        ("2", ("mail", "pdf", "web")),
        ("1,1,2", ("pdf", "mail", "web")),
        ("I think 2 is best", None),
        ("", None),
        ("7", None),
        (BackendError("down", kind="server"), None),
    ],
)
def test_skills_are_ranked_or_left_alone(make: Make, reply: Any, expected: Any) -> None:
    ctx = make(scripted(reply), context_window=10_000)
    assert Service(ctx).disambiguate_skills("Find the page", SKILLS) == expected


@pytest.mark.parametrize(
    ("scores", "reply", "asked_about", "expected"),
    [
        ({"pdf": 0.2, "mail": 0.9, "web": 0.85}, "2", ["mail", "web"], ("web", "mail", "pdf")),
        ({"pdf": 0.2, "mail": 0.9, "web": 0.85}, "3", ["mail", "web"], None),
        ({"pdf": 0.2, "mail": 0.9, "web": 0.5}, "1", [], ("mail", "web", "pdf")),
        ({"web": 0.5}, "1", [], ("web", "pdf", "mail")),
        ({"pdf": -1.0, "mail": -1.05, "web": -9.0}, "2", ["pdf", "mail"], ("mail", "pdf", "web")),
        ({}, "2", ["pdf", "mail", "web"], ("mail", "pdf", "web")),
    ],
)
def test_r11_a_model_is_asked_only_about_skills_whose_scores_are_near_the_best(
    make: Make, scores: dict[str, float], reply: str, asked_about: list[str], expected: Any
) -> None:
    backend = scripted(reply)
    ctx = make(backend, context_window=10_000)
    assert Service(ctx).disambiguate_skills("Find the page", SKILLS, scores) == expected
    asked = backend.requests[0].messages[-1].text if backend.requests else ""
    assert [name for name in SKILLS if f"{name}: {SKILLS[name]}" in asked] == asked_about


@pytest.mark.parametrize(
    ("reply", "shown"),
    [("2, 1", ["web", "mail", "pdf"]), (BackendError("down", kind="server"), ["mail", "web", "pdf"])],
)
def test_r11_prepare_context_asks_which_of_several_likely_skills_comes_first(
    make: Make, reply: Any, shown: list[str]
) -> None:
    scores = {"pdf": 0.2, "mail": 0.9, "web": 0.85}
    skills = Section("skills", lambda _: [Item(SKILLS[n], scores[n], source=n) for n in SKILLS])
    notes = Section("notes", lambda _: ["one", "two"])
    backend = scripted("Noted.", reply)
    ctx = make(backend, context_window=10_000, sections=[skills, notes])
    ctx.send("Hello", recall=False)
    delta = Service(ctx).prepare_context("Find the page")
    text = next(m.text for m in delta.messages if m.kind == "section" and "Skills" in m.text)
    assert [line.split(":")[0].removeprefix("- ") for line in text.splitlines()[1:]] == shown
    assert "Find the page" in backend.requests[-1].messages[-1].text
    assert len(backend.requests) == 2


def test_one_skill_needs_no_question_and_no_model_is_a_failure(make: Make) -> None:
    ctx = make(None, context_window=10_000)
    assert Service(ctx).disambiguate_skills("x", {"pdf": ""}) == ("pdf",)
    assert Service(ctx).disambiguate_skills("x", SKILLS) is None


def test_skipped_sections_are_events_too(make: Make) -> None:
    ctx = make(None, context_window=10_000, sections=[Section("lsp", lambda _: [17])])  # type: ignore[list-item]
    told: list[Any] = []
    ctx.subscribe(told.append)
    Service(ctx).prepare_context("?")
    assert next(e for e in told if isinstance(e, SectionSkipped)).kind == "lsp"


def test_between_rounds_of_a_turn_that_asks_a_model(make: Make) -> None:
    """The rounds of `send` stand in an open turn until its answer."""
    rounds = [assistant("", id=f"c{i}", calls=[call(f"k{i}")]) for i in range(4)]
    backend = scripted(*rounds, "done")
    ctx = make(backend, context_window=2_400)
    service = Service(ctx)
    ctx.send("look")
    for i in range(3):
        ctx.send(tool_result(f"k{i}", "found it " * 190, id=f"r{i}"))
    assert service.maybe_soft_compact_mid_iteration()
    ctx.send(tool_result("k3", "short", id="r3"))
    shown = {m.id: m.text for m in backend.requests[-1].messages}
    assert max(len(shown[f"r{i}"]) for i in range(3)) < 400
    assert shown["r3"] == "short"
    assert [c for c, _ in ctx.usage().prefix.breaks] == ["compaction"]
