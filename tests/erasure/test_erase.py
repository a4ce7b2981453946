"""What is erased is nowhere any more: not in a table, an index, a file, a summary, a fork or an export made later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctxfold import AgentContext, Message, MessageError, Reply, Section, Usage, assistant, tool_result, user
from ctxfold.errors import MessageErasedError, MessageNotFoundError, NothingToUndoError
from ctxfold.history.records import Compacted, SessionKey
from ctxfold.session.context import load_snapshot
from tests.erasure.erasing import MARK, SAID, assert_gone, filled, opened_store
from tests.erasure.scan import places_of
from tests.properties.machine import assert_legal
from tests.support.driven import Driven, call, context, scripted, tool_round, turns


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Any]:
    with opened_store(request, tmp_path) as opened:
        yield opened


def test_a_message_leaves_every_place(make: Callable[..., Driven], store: Any) -> None:
    ctx = filled(make(store=store, session_id="s"))
    assert places_of(MARK, store)
    before = [m.id for m in ctx.messages()]
    summary = ctx.view().compressed[0].message
    erased = ctx.erasure.erase("m")
    assert (erased.ids, erased.sessions, erased.removed, erased.settled) == (("m",), ("s",), (), True)
    assert_gone(ctx, store)
    assert [m.id for m in ctx.messages()] == [i for i in before if i != "m"]
    anew = ctx.view().compressed[0].message
    assert (anew.id, "question 38 word" in anew.text) == (summary.id, True)  # the rest of the span is still there
    assert ctx.handle.counter.count(anew) <= ctx.handle.counter.count(summary)


@pytest.mark.parametrize(("limits", "used_again"), [((120, 150, 80), 0.9), ((90, 140, 70), 0.8)])
def test_summaries_that_have_nothing_of_it_stay_as_they_are(
    make: Callable[..., Driven], store: Any, limits: tuple[int, int, int], used_again: float
) -> None:
    """An erasure ends with the first summary that comes out as it was, under the limit of its time, and shrinks none."""
    ctx = make(store=store, context_window=2_000, summary_tokens=limits[0], owner="o", session_id="s")
    places = ("river", "planet", "window", "garden", "engine", "tunnel", "bridge", "ticket", "market", "letter")
    for n in range(240):
        if n in (90, 170):
            ctx.set_policy(summary_tokens={90: limits[1], 170: limits[2]}[n])
        where, cost = f"{places[n % 10]} hall{' behind the door' * (n % 3)}", f" and costs {n} EUR" * (n > 50)
        ctx.add([user(f"Box KX-{n} stands in the {where}{cost}.", id=f"u{n}"), assistant("Noted.", id=f"a{n}")])

    def summaries() -> list[Message]:
        bodies = [record.body for record in store.read(SessionKey("o", "s"))]
        return [b.summary for b in bodies if isinstance(b, Compacted) and b.summary is not None]

    before, mark = summaries(), "KX-3 "
    assert [mark in m.text for m in before[:2]] == [True, False], "later facts took its place"
    for name in ("u3", "u5", "u103"):
        ctx.erasure.erase(name)
    after = summaries()
    assert not any(mark in m.text for m in after)
    assert [m.id for m in after] == [m.id for m in before]
    assert after[0] != before[0]
    assert after[1:] == before[1:]
    sizes = [(ctx.handle.counter.count(a), ctx.handle.counter.count(b)) for a, b in zip(after, before, strict=True)]
    assert all(a <= b for a, b in sizes)
    assert min(a / b for a, b in sizes) > used_again, "what was freed is used again"


def test_a_summary_of_a_word_is_no_larger_than_a_note(make: Callable[..., Driven]) -> None:
    """Nothing fits the size of such a summary: a note that names the number of messages takes its place."""

    class Brief:
        name = "brief"

        def should_summarize(self, history: list[Message]) -> bool:
            return len(history) > 8

        def summarize(self, history: list[Message]) -> list[Message]:
            return [user("Talk.", id="brief"), *history[-4:]]

    ctx = make(session_id="s", strategy=Brief())
    ctx.add([user(SAID, id="m"), assistant("noted", id="n"), *turns(8)])
    assert [e.message.text for e in ctx.view().compressed] == ["Talk."]
    ctx.erasure.erase("m")
    (anew,) = ctx.view().compressed
    assert "earlier messages are archived." in anew.message.text
    assert MARK not in anew.message.text


def test_a_reference_to_an_erased_message_says_so(make: Callable[..., Driven]) -> None:
    ctx = filled(make())
    reference = ctx.archive.explain("m").reference
    ctx.erasure.erase(reference)
    for ask in (ctx.archive.get, ctx.archive.explain, ctx.restore):
        for name in ("m", reference):
            with pytest.raises(MessageErasedError, match="was erased"):
                ask(name)
    with pytest.raises(MessageErasedError):
        ctx.fork("f", at="m")
    with pytest.raises(MessageNotFoundError, match="never-was"):
        ctx.erasure.erase("u1", "never-was")
    assert ctx.archive.get("u1").text.startswith("question 1 ")  # nothing was done


def test_erasing_again_changes_nothing(make: Callable[..., Driven], store: Any) -> None:
    ctx = filled(make(store=store))
    ctx.erasure.erase("m")
    before = ctx.messages(), ctx.view().messages
    again = ctx.erasure.erase("m", "m")
    assert (again.ids, again.sessions, again.settled) == ((), (), True)
    assert (ctx.messages(), ctx.view().messages) == before


def test_a_tool_round_goes_as_a_whole(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store)
    ctx.add([user("look", id="q"), *tool_round("t", f"{MARK} " * 200, calls=2), assistant("done", id="d")])
    ctx.add([user("look again", id="q2"), *tool_round("t2"), assistant("done", id="d2")])
    assert ctx.archive.explain("t-r1").where == "excerpt"
    assert ctx.erasure.erase("t-r1").ids == ("t-a", "t-r0", "t-r1")
    assert_gone(ctx, store)
    assert [m.id for m in ctx.messages()] == ["q", "d", "q2", "t2-a", "t2-r0", "d2"]


def test_a_call_id_that_comes_again_is_another_round(make: Callable[..., Driven]) -> None:
    ctx = make()
    for n in range(3):
        answer = tool_result("call_0", f"found {n}", id=f"r{n}")
        asked = assistant("", id=f"c{n}", calls=[call("call_0")])
        ctx.add([user("look", id=f"q{n}"), asked, answer, assistant("done", id=f"d{n}")])
    assert ctx.erasure.erase("r1").ids == ("c1", "r1")


def test_every_version_of_a_message_goes(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store)
    ctx.add([user(SAID, id="m"), assistant("noted", id="n"), *turns(2)])
    ctx.edit.update(0, user(f"rather {MARK}, on the right", id="m"))
    ctx.edit.update(0, user("never mind", id="m"))
    ctx.erasure.erase("m")
    assert_gone(ctx, store)
    with pytest.raises(NothingToUndoError):
        ctx.undo()


def test_removed_discarded_and_hidden_messages_go_too(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store)
    ctx.add([user(SAID, id="m"), assistant("noted", id="n")])
    ctx.add(f"for you only: {MARK}", visibility="user")
    ctx.edit.remove(0)
    hidden = next(m.id for m in ctx.messages() if m.visibility == "user")
    ctx.erasure.erase("m", hidden)
    assert_gone(ctx, store)
    ctx.undo()  # of the removal: nothing comes back
    assert_gone(ctx, store)


def test_what_was_put_before_an_erased_message_stays_in_place(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store)
    ctx.add(turns(3))
    ctx.edit.insert(2, user("in between", id="x"))
    ctx.edit.insert(2, user("more", id="y"))  # before x
    order = [m.id for m in ctx.messages()]
    ctx.erasure.erase("u1", "x")
    with context(store=store, create=False) as again:
        expected = [i for i in order if i not in ("u1", "x")]
        assert [m.id for m in ctx.messages()] == [m.id for m in again.messages()] == expected


def test_forks_and_what_was_forked_from_are_covered(make: Callable[..., Driven], store: Any) -> None:
    ctx = filled(make(store=store, session_id="a"))
    fork = ctx.fork("b")
    fork.add(turns(2, start=90))
    second = fork.fork("c", at="u11")
    assert ctx.archive.forks() == ("b", "c")
    assert fork.archive.forks() == ("c",)
    assert second.archive.forks() == ()
    assert second.erasure.erase("m").sessions == ("c", "a", "b")
    for each in (ctx, fork, second):
        assert_gone(each, store)
        with pytest.raises(MessageErasedError):
            each.archive.get("m")
    assert "u90" in [m.id for m in fork.messages()]


def test_what_only_has_the_same_name_in_another_session_stays(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store, session_id="a")
    ctx.add(turns(2))
    fork = ctx.fork("b")
    stranger = context(store=store, session_id="stranger")
    for other, text in ((ctx, SAID), (fork, "said in the fork"), (stranger, "said by a stranger")):
        other.add([user(text, id="m"), assistant("noted", id="n")])
    assert ctx.erasure.erase("m").sessions == ("a",)
    assert fork.archive.get("m").text == "said in the fork"
    assert stranger.archive.get("m").text == "said by a stranger"


def test_exports_made_later_have_nothing_of_it(make: Callable[..., Driven], store: Any, tmp_path: Path) -> None:
    ctx = filled(make(store=store, session_id="s"))
    ctx.erasure.erase("m")
    ctx.ctx.files.export_jsonl(tmp_path / "out.jsonl")
    ctx.ctx.files.save_snapshot(tmp_path / "out.json")
    for file in ("out.jsonl", "out.json"):
        assert MARK.encode() not in (tmp_path / file).read_bytes()
    with context(store=store, session_id="copy") as copy:
        copy.files.import_jsonl(tmp_path / "out.jsonl")
        assert copy.messages() == ctx.messages()
        assert copy.view().messages == ctx.view().messages
        with pytest.raises(MessageErasedError):
            copy.archive.get("m")


def test_undo_after_an_erasure_brings_back_the_rest(make: Callable[..., Driven], store: Any) -> None:
    ctx = filled(make(store=store, session_id="s"))
    ctx.erasure.erase("m")
    for _ in range(2):  # the restored message is gone, both compactions are left
        ctx.undo()
        assert_gone(ctx, store)
    assert [m.id for m in ctx.view().messages] == [m.id for m in ctx.messages()]
    with pytest.raises(NothingToUndoError):
        ctx.undo()


def test_the_sums_of_a_session_stay(make: Callable[..., Driven]) -> None:
    ctx = make(scripted(Reply(replace(assistant("hi", id="r"), usage=Usage(12, 3)))))
    ctx.send(user(SAID, id="m"))
    before = ctx.usage()
    assert ctx.erasure.erase("m", "r").ids == ("m", "r")
    with context(store=ctx.handle.store) as again:
        assert again.usage().reported == before.reported == Usage(12, 3)
        assert again.usage().replies == 1


def test_a_span_that_is_erased_whole_leaves_no_summary(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store)
    ctx.add(turns(20))
    assert ctx.view().compressed
    gone = [m.id for m in ctx.messages() if m.id not in {e.id for e in ctx.view()}]
    ctx.erasure.erase(*gone)
    assert ctx.view().compressed == ()
    with context(store=store, create=False) as again:
        assert again.view().messages == ctx.view().messages


def test_a_summary_is_not_erased_by_its_own_name(make: Callable[..., Driven]) -> None:
    ctx = filled(make())
    with pytest.raises(MessageError, match="is a summary: erase the messages that it covers"):
        ctx.erasure.erase(ctx.view().compressed[0].id)


def test_an_open_turn_that_loses_a_message_is_over(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store)
    ctx.add(turns(1))
    asked = assistant(f"let me look for {MARK}", id="c", calls=[call("k")])
    assert ctx.add([user("look", id="q"), asked]).turn_id is not None
    assert ctx.erasure.erase("c").ids == ("c",)
    assert_gone(ctx, store)
    assert [m.id for m in ctx.messages()] == ["u0", "a0", "q"]
    ctx.add("and now?")
    assert_legal(ctx.window().messages)


def test_an_erased_message_does_not_come_back_with_an_old_list(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store)
    old = [user(SAID, id="m"), assistant("noted", id="n")]
    ctx.add(old)
    ctx.erasure.erase("m")
    assert [m.id for m in ctx.add([*old, user("next", id="x")]).messages] == ["x"]
    assert_gone(ctx, store)
    with pytest.raises(MessageErasedError, match="an id of its own"):
        ctx.add([user("something else", id="m")])


def test_the_next_request_says_why_its_prefix_broke(make: Callable[..., Driven]) -> None:
    ctx = make(scripted("one", "two", "three"))
    ctx.send(user(SAID, id="m"))
    ctx.send("more")
    ctx.erasure.erase("m")
    ctx.send("again")
    assert ctx.usage().prefix.breaks == (("erasure", 1),)


def test_what_was_found_out_from_the_conversation_goes_too(make: Callable[..., Driven], store: Any) -> None:
    ctx = make(store=store)
    ctx.edit.set_goal("find the locker")
    ctx.add([user(SAID, id="m"), assistant("noted", id="n"), *turns(2)])
    ctx.erasure.erase("m")
    assert ctx.edit.goal().goal == "find the locker"  # the user's own word


def test_message_numbers_stay_after_an_erasure(make: Callable[..., Driven], store: Any) -> None:
    """Step 7, mutants: a number means the same message for good, and that of an erased one is never given again."""
    ctx = make(store=store, session_id="s")
    ctx.add(turns(3))
    numbers = {m.id: ctx.archive.explain(m.id).reference for m in ctx.messages()}
    assert list(numbers.values()) == ["#1", "#2", "#3", "#4", "#5", "#6"]
    ctx.erasure.erase("u1")
    ctx.erasure.erase("a2")
    other = make(store=store, session_id="s")
    for reader in (ctx, other):
        assert {i: reader.archive.explain(i).reference for i in numbers if i not in ("u1", "a2")} == {
            i: n for i, n in numbers.items() if i not in ("u1", "a2")
        }
        assert [reader.archive.get(n).id for n in ("#1", "#2", "#4", "#5")] == ["u0", "a0", "a1", "u2"]
        for reference in ("#3", "#6"):
            with pytest.raises(MessageErasedError):
                reader.archive.get(reference)
    other.add(user("after it all", id="new"))
    reference = other.archive.explain("new").reference
    assert int(reference[1:]) > len(numbers)
    again = make(store=store, session_id="s")
    for reader in (ctx, other, again):
        assert (reader.archive.get(reference).id, reader.archive.explain("new").reference) == ("new", reference)
        assert [f"#{e.number}" for e in reader.view().live] == ["#1", "#2", "#4", "#5", reference]


def test_copies_of_an_erased_session_keep_its_message_numbers(
    make: Callable[..., Driven], store: Any, tmp_path: Path
) -> None:
    """Step 7, mutants: an erased message counts in a fork, an import and a loaded snapshot too, so no number shifts there."""
    ctx = make(store=store, session_id="s")
    ctx.add(turns(3))
    ctx.fork("before")
    ctx.ctx.files.save_snapshot(tmp_path / "before.json")
    ctx.erasure.erase("u1")
    ctx.add(user("in between", id="between"))
    between = ctx.archive.explain("between").reference
    ctx.fork("after")
    ctx.fork("part", at="between")
    ctx.ctx.files.save_snapshot(tmp_path / "after.json")
    ctx.ctx.files.export_jsonl(tmp_path / "after.jsonl")
    for session, file in (("snapshot-before", "before.json"), ("snapshot-after", "after.json")):
        load_snapshot(tmp_path / file, session_id=session, store=store).close()
    with context(store=store, session_id="import") as imported:
        imported.files.import_jsonl(tmp_path / "after.jsonl")
    numbers = {"u0": "#1", "a0": "#2", "a1": "#4", "u2": "#5", "a2": "#6"}
    for session in ("s", "before", "after", "part", "snapshot-before", "snapshot-after", "import"):
        with context(store=store, session_id=session, create=False) as reopened:
            kept = numbers if "before" in session else numbers | {"between": between}
            if session == "snapshot-before":  # it was saved while the message was still there
                assert reopened.archive.get("#3").id == "u1"
            else:
                with pytest.raises(MessageErasedError):
                    reopened.archive.get("#3")
            assert {i: reopened.archive.explain(i).reference for i in kept} == kept, session
            assert {n: reopened.archive.get(n).id for n in kept.values()} == {n: i for i, n in kept.items()}, session
            reopened.add(user("after it all", id="new"))
            new = reopened.archive.explain("new").reference
            assert int(new[1:]) > max(int(n[1:]) for n in kept.values()), session
            assert reopened.archive.get(new).id == "new", session


@pytest.mark.parametrize("whole", [False, True], ids=["a-message", "the-session"])
def test_what_a_fork_loses_leaves_its_message_numbers(make: Callable[..., Driven], store: Any, *, whole: bool) -> None:
    """Step 7, mutants: erased with what it was forked from, a fork keeps its own numbers, and so do its own forks."""
    ctx = make(store=store, session_id="s")
    ctx.add(turns(2))
    fork = ctx.fork("fork")
    fork.add([user("my own", id="own"), assistant("noted", id="noted")])
    own = {i: fork.archive.explain(i).reference for i in ("own", "noted")}
    if whole:
        ctx.erasure.erase_session()
    else:
        ctx.erasure.erase("u0")
    fork.fork("again")
    for session in ("fork", "again"):
        with context(store=store, session_id=session, create=False) as reopened:
            assert {i: reopened.archive.explain(i).reference for i in own} == own
            assert [reopened.archive.get(n).id for n in own.values()] == list(own)
            for reference in ("#1", "#2", "#3", "#4") if whole else ("#1",):
                with pytest.raises(MessageErasedError):
                    reopened.archive.get(reference)


def test_a_section_that_quotes_it_goes_too(make: Callable[..., Driven], store: Any) -> None:
    said = [SAID]
    section = Section("documents", lambda _: said)
    ctx = make(scripted("as said"), store=store, session_id="s", context_window=4_000, sections=[section])
    ctx.add([user(SAID, id="m"), assistant("noted", id="n")])
    ctx.send("where is it?")
    assert [MARK in m.text for m in ctx.view().messages if m.kind == "section"] == [True]
    said.clear()
    ctx.erasure.erase("m")
    assert_gone(ctx, store)


class NotesThreads:
    """Counts a token for each four characters, and notes the threads that ask."""

    id = "notes-threads"

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def count(self, text: str) -> int:
        self.threads.add(threading.get_ident())
        return (len(text) + 3) // 4


async def test_an_event_loop_goes_on_while_a_log_is_rewritten() -> None:
    """The summaries of a long log take seconds."""
    counter = NotesThreads()
    ctx = AgentContext(context_window=2_000, counter=counter)
    for n in range(20):
        question = user(f"The code of locker {n} is {n * 37}. {'Note it. ' * 30}", id=f"u{n}")
        await ctx.aadd([question, assistant("Noted.", id=f"a{n}")])
    assert ctx.usage().compactions
    counter.threads.clear()
    assert (await ctx.erasure.aerase("u0")).ids == ("u0",)
    assert counter.threads - {threading.get_ident()}, "the new summary was counted in another thread"
    ctx.close()
