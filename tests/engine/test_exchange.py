"""Asking: what is stored when it works, and what is left when it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctxfold import (
    AgentContext,
    BackendError,
    ContentFirst,
    MemoryStore,
    Message,
    Request,
    ScriptedBackend,
    Thinking,
    ToolSpec,
    Usage,
    assistant,
    tool_result,
    user,
)
from ctxfold.engine.turn import TurnInput
from ctxfold.errors import OrphanToolResultError
from ctxfold.events import TurnEnded
from ctxfold.history.records import SessionKey
from tests.properties.machine import assert_legal
from tests.support.driven import Driven, call, context, scripted, text_of, turns
from tests.support.open_sessions import opened
from tests.timing import await_for

Make = Callable[..., Driven]
DOWN = BackendError("down", kind="server")


def open_turns(ctx: Driven) -> int:
    return len(opened(ctx.ctx).state.open)


def test_a_turn_and_the_next_request_extends_it(make: Make) -> None:
    backend = scripted("hello", "again")
    ctx = make(backend, system="Be brief.")
    reply = ctx.send("hi")
    assert reply.message.text == "hello"
    ctx.send("more")
    first, second = (list(r.messages) for r in backend.requests)
    assert [m.role for m in second] == ["system", "user", "assistant", "user"]
    assert second[: len(first)] == first
    assert [m.text for m in ctx.view().messages] == ["Be brief.", "hi", "hello", "more", "again"]
    assert ctx.usage().prefix.breaks == ()
    assert ctx.usage().prefix.reused_tokens > 0


def test_a_stream_brings_what_send_brings(make: Make) -> None:
    said = assistant("an answer in pieces", id="m", reasoning="let me think")
    ctx = make(scripted(said))
    events = ctx.send_stream("hi")
    assert isinstance(events[0], Thinking)
    assert any(isinstance(e, ContentFirst) for e in events)
    stored = ctx.view().messages[-1]
    assert (stored.text, stored.reasoning) == (said.text, said.reasoning)
    assert open_turns(ctx) == 0


def test_tool_rounds_stay_private_until_the_turn_ends(make: Make) -> None:
    parallel = assistant("", id="m1", calls=[call("c1"), call("c2")])
    backend = scripted(parallel, "done")
    ctx = make(backend)
    ctx.send("look", tools=(ToolSpec("look"),))
    assert ctx.ctx.at(ctx.session).window().messages == ()
    results = [tool_result("c1", "one", id="r1"), tool_result("c2", "two", id="r2")]
    with pytest.raises(OrphanToolResultError, match="'c9'"):
        ctx.send([results[0], tool_result("c9", "x", id="r9")])
    ctx.send(results)
    assert [m.role for m in backend.requests[1].messages] == ["user", "assistant", "tool", "tool"]
    assert len(ctx.view().messages) == 5


def test_a_question_that_skips_pending_calls_leaves_no_orphan(make: Make) -> None:
    backend = scripted(assistant("", id="m1", calls=[call("c1")]), "fine")
    ctx = make(backend)
    ctx.send("look")
    ctx.send("never mind")
    assert [m.text for m in backend.requests[1].messages] == ["never mind"]


@pytest.mark.parametrize("ask", ["send", "send_stream"])
def test_a_failure_leaves_the_session_as_it_was_and_can_be_tried_again(make: Make, ask: str) -> None:
    ctx = make(scripted("one", DOWN, "two"))
    ctx.send("hi")
    before = ctx.view().messages
    question = user("again", id="q")
    with pytest.raises(BackendError, match="down"):
        getattr(ctx, ask)(question)
    assert ctx.view().messages == before
    assert open_turns(ctx) == 0
    getattr(ctx, ask)(question)
    assert [m.text for m in ctx.view().messages] == ["hi", "one", "again", "two"]
    assert ctx.archive.get("q") == question


def test_results_may_be_sent_again_after_a_failure(make: Make) -> None:
    backend = scripted(assistant("", id="m1", calls=[call("c1")]), DOWN, "done")
    ctx = make(backend)
    ctx.send("look")
    result = tool_result("c1", "found", id="r1")
    with pytest.raises(BackendError):
        ctx.send(result)
    ctx.send(result)
    assert [m.role for m in backend.requests[2].messages] == ["user", "assistant", "tool"]
    assert [m.role for m in ctx.view().messages] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("output", ["found", "a long output " * 200])
def test_results_may_be_made_anew_after_a_failure(make: Make, output: str) -> None:
    backend = scripted(assistant("", id="m1", calls=[call("c1"), call("c2")]), DOWN, "done")
    ctx = make(backend)
    ctx.send("look")
    for attempt in (1, 2):
        results = [tool_result(name, output) for name in ("c1", "c2")]
        if attempt == 1:
            with pytest.raises(BackendError):
                ctx.send(results)
    ctx.send(results)
    assert [m.role for m in backend.requests[2].messages] == ["user", "assistant", "tool", "tool"]
    assert_legal(backend.requests[2].messages)
    assert open_turns(ctx) == 0
    assert [m.text for m in ctx.messages()] == ["look", "", output, output, "done"]


def test_a_call_id_that_a_service_uses_again_is_another_call(make: Make) -> None:
    asking = [assistant("", id=f"m{i}", calls=[call("call_0")]) for i in range(3)]
    backend = scripted(*asking, "done")
    ctx = make(backend)
    ctx.send("look")
    for _ in range(3):
        ctx.send(tool_result("call_0", "ok"))
    assert [m.role for m in ctx.view().messages] == ["user", *["assistant", "tool"] * 3, "assistant"]
    handle = ctx.ctx.at("other")
    handle.add([user("look", id="u"), asking[0], tool_result("call_0", "ok", id="r0"), asking[1]])
    handle.add([tool_result("call_0", "ok", id="r1"), asking[2], tool_result("call_0", "ok", id="r2")])
    handle.add([assistant("", id="m9", calls=[call("call_0")]), tool_result("call_0", "ok", id="r9")])
    assert [m.id for m in handle.view().messages] == ["u", "m0", "r0", "m1", "r1", "m2", "r2", "m9", "r9"]


@pytest.mark.parametrize("ask", ["send", "send_stream"])
def test_nothing_is_asked_while_a_call_waits_for_its_result(make: Make, ask: str) -> None:
    backend = scripted(assistant("", id="m1", calls=[call("c1"), call("c2")]), "done")
    ctx = make(backend)
    ctx.send("look")
    with pytest.raises(OrphanToolResultError, match=r"1 tool call\(s\) still wait for a result \(c2\)"):
        getattr(ctx, ask)(tool_result("c1", "one", id="r1"))
    assert len(backend.requests) == 1
    getattr(ctx, ask)(tool_result("c2", "two", id="r2"))
    assert [m.id for m in ctx.view().messages[1:4]] == ["m1", "r1", "r2"]
    with pytest.raises(OrphanToolResultError, match="c9"):
        getattr(ctx, ask)([user("again", id="u9"), assistant("", id="m9", calls=[call("c9")])])
    assert open_turns(ctx) == 0


def test_a_reply_id_that_comes_twice_gets_a_new_one(make: Make) -> None:
    same = assistant("same", id="fixed")
    ctx = make(scripted(same, same))
    assert ctx.send("one").message.id == "fixed"
    assert ctx.send("two").message.id != "fixed"
    assert [m.text for m in ctx.view().messages] == ["one", "same", "two", "same"]


@pytest.mark.parametrize(("on_abort", "left"), [("discard", []), ("keep_partial", ["hi", "A long "])])
def test_a_stream_given_up(make: Make, on_abort: str, left: list[str]) -> None:
    ctx = make(scripted("A long answer that nobody reads", piece_chars=7))
    ctx.send_stream("hi", stop_after=1, on_abort=on_abort)
    assert [m.text for m in ctx.view().messages] == left
    assert open_turns(ctx) == 0
    if left:
        assert ctx.view().messages[-1].finish_reason == "aborted"


def test_a_partial_tool_call_is_never_kept(make: Make) -> None:
    said = assistant("thinking of it", id="m", calls=[call("c1", '{"a": 1}')])
    ctx = make(scripted(said, piece_chars=100))
    ctx.send_stream("hi", stop_after=2, on_abort="keep_partial")
    assert [m.tool_calls for m in ctx.view().messages] == [(), ()]


@pytest.mark.parametrize("on_abort", ["discard", "keep_partial"])
async def test_a_cancelled_stream(on_abort: Any) -> None:
    started = asyncio.Event()

    async def read(ctx: AgentContext) -> None:
        async for _ in ctx.asend_stream("hi", on_abort=on_abort):
            started.set()
            await asyncio.sleep(60)

    with context(scripted("a long answer", piece_chars=4)) as ctx:
        task = asyncio.create_task(read(ctx))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await await_for(lambda: len(ctx.view().messages) == (2 if on_abort == "keep_partial" else 0))
        assert [m.text for m in ctx.view().messages] == (["hi", "a lo"] if on_abort == "keep_partial" else [])


class Stopping(MemoryStore):
    """Stops at one moment of its appends: before one is written, or when it is written and not acknowledged yet."""

    def __init__(self, stop_at: int) -> None:
        super().__init__()
        self.stop_at, self.moment = stop_at, 0
        self.stopped, self.go_on = asyncio.Event(), asyncio.Event()

    async def aappend(self, *args: Any, **kwargs: Any) -> Any:
        await self._pass()
        written = self.append(*args, **kwargs)
        await self._pass()
        return written

    async def _pass(self) -> None:
        self.moment += 1
        if self.moment == self.stop_at:
            self.stopped.set()
            await self.go_on.wait()


@pytest.mark.parametrize("moment", [1, 2, 3, 4])
async def test_a_cancellation_at_any_moment_leaves_all_or_nothing(moment: int) -> None:
    with Stopping(moment) as store, context(scripted("one", "two", "three"), store=store) as ctx:
        task = asyncio.create_task(ctx.asend("hi"))
        await asyncio.wait_for(store.stopped.wait(), 60)
        task.cancel()
        store.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [m.text for m in ctx.view().messages] in ([], ["hi", "one"])
        assert not opened(ctx).state.open
        before = list(ctx.view().messages)
        await ctx.asend("again")
        assert next(m.text for m in ctx.view().messages[len(before) :]) == "again"


def test_usage_is_summed_once(make: Make) -> None:
    def paid(name: str) -> Message:
        return replace(assistant("text " * 30, id=name), usage=Usage(10, 5))

    store = MemoryStore()
    ctx = make(ScriptedBackend([paid(f"p{i}") for i in range(40)]), store=store)
    for i in range(30):
        ctx.send(f"question {i}")
    ctx.send_stream("streamed")
    usage = ctx.usage()
    assert usage.compactions > 0
    assert (usage.reported, usage.replies, usage.turns) == (Usage(310, 155), 31, 31)
    other = make(store=store).usage()
    assert (other.reported, other.replies, other.turns, other.compactions) == (
        usage.reported,
        usage.replies,
        usage.turns,
        usage.compactions,
    )


def test_scratch_travels_and_is_not_stored(make: Make) -> None:
    backend = scripted("one", "two", scratch_role="system")
    ctx = make(backend)
    ctx.send("hi", scratch="It is Monday.")
    assert [m.text for m in backend.requests[0].messages] == ["hi", "It is Monday."]
    assert "Monday" not in text_of(ctx.view().messages)
    as_user = scripted("one", scratch_role="user")
    make(as_user).send("hi", scratch="It is Monday.")
    assert [m.text for m in as_user.requests[0].messages] == ["hi", "It is Monday."]


@pytest.mark.parametrize("role", ["system", "user"])
def test_scratch_is_the_very_last_message(make: Make, role: str) -> None:
    """Step 7, D A6: in the user role too. Recalled passages keep their place before the question there, and what the next
    request repeats ends where the first of the two stands."""
    backend = scripted(*["ok"] * 9, scratch_role=role)
    ctx = make(backend, context_window=1_500)
    ctx.add(user("The locker of the blue bicycle is 47-B.", id="fact"))
    ctx.add([assistant("Noted.", id="noted"), *turns(30)])
    ctx.compact(force=True)
    ctx.send("Which locker has the blue bicycle?", scratch="It is Monday.")
    request = backend.requests[-1]
    last, before = request.messages[-1], request.messages[-2]
    assert last.text.endswith("It is Monday.")
    assert last.role == role
    asked = next(i for i, m in enumerate(request.messages) if m.text == "Which locker has the blue bicycle?")
    if role == "system":
        assert "47-B" in last.text
        assert request.stable_messages == asked + 1 == len(request.messages) - 1
    else:
        assert before.text == "Which locker has the blue bicycle?"
        assert "47-B" in request.messages[-3].text
        assert request.stable_messages == asked - 1 == len(request.messages) - 3
    ctx.send("And now?", scratch="It is Tuesday.", recall=False)
    request = backend.requests[-1]
    assert [m.text for m in request.messages[-2:]] == ["And now?", "It is Tuesday."]
    assert request.stable_messages == len(request.messages) - 1
    assert not [m for m in ctx.messages() if "Monday" in m.text or "Tuesday" in m.text]


def ask(ctx: Driven, messages: list[Message], given: set[str]) -> None:
    ctx.handle.complete(TurnInput(SessionKey("default", "default"), messages, given_ids=frozenset(given)))


def test_a_full_list_is_recognised_by_ids(make: Make) -> None:
    backend = scripted("one", "two", "three")
    ctx = make(backend)
    first = [user("q1", id="u1")]
    ask(ctx, first, {"u1"})
    stored = ctx.view().messages
    full = [*stored, user("q2", id="u2")]
    ask(ctx, full, {m.id for m in full})
    assert [m.text for m in backend.requests[1].messages] == ["q1", "one", "q2"]
    ask(ctx, full, {m.id for m in full})
    assert [m.text for m in ctx.view().messages] == ["q1", "one", "q2", "three"], "asked anew: the old reply gives way"


def test_a_failed_regeneration_keeps_the_old_reply(make: Make) -> None:
    ctx = make(scripted("one", DOWN))
    ask(ctx, [user("q1", id="u1")], {"u1"})
    before = ctx.view().messages
    with pytest.raises(BackendError):
        ask(ctx, [user("q1", id="u1")], {"u1"})
    assert ctx.view().messages == before


def ask_whole(ctx: Driven, messages: list[Message]) -> None:
    """Sends a whole list: what it leaves out gives way."""
    ids = frozenset(m.id for m in messages)
    ctx.handle.complete(TurnInput(SessionKey("default", "default"), messages, given_ids=ids, whole=True))


def test_a_failed_edit_keeps_what_it_would_have_replaced(make: Make) -> None:
    ctx = make(scripted(assistant("one", id="a1"), "two", DOWN))
    ask_whole(ctx, [user("q1", id="u1")])
    ask_whole(ctx, [user("q1", id="u1"), assistant("one", id="a1"), user("q2", id="u2")])
    before = ctx.view().messages
    with pytest.raises(BackendError):
        ask_whole(ctx, [user("q1", id="u1"), assistant("one", id="a1"), user("other", id="u3")])
    assert ctx.view().messages == before


def test_a_failed_edit_stays_where_another_process_has_made_it(make: Make) -> None:
    """Two send the same edited list, and one of them gets its answer: what the edit replaced does not come back with the other."""
    store = MemoryStore()
    edited = [user("q1", id="u1"), assistant("one", id="a1"), user("other", id="u3")]

    def overtaken(_: Request) -> BackendError:
        ask_whole(Driven(context(scripted("three"), store=store), None), edited)
        return DOWN

    ctx = make(scripted(assistant("one", id="a1"), "two", overtaken), store=store)
    ask_whole(ctx, [user("q1", id="u1")])
    ask_whole(ctx, [user("q1", id="u1"), assistant("one", id="a1"), user("q2", id="u2")])
    with pytest.raises(BackendError):
        ask_whole(ctx, edited)
    assert [m.text for m in ctx.view().messages] == ["q1", "one", "other", "three"]


def test_a_full_list_without_ids_is_recognised_by_content(make: Make) -> None:
    backend = scripted("one", "two")
    ctx = make(backend)
    ask(ctx, [user("q1", id="x1")], set())
    ask(ctx, [user("q1", id="y1"), assistant("one", id="y2"), user("q2", id="y3")], set())
    assert [m.text for m in backend.requests[1].messages] == ["q1", "one", "q2"]


def test_a_delta_in_a_tool_turn_goes_on_with_it(make: Make) -> None:
    backend = scripted(assistant("", id="m1", calls=[call("c1")]), "done")
    ctx = make(backend)
    ask(ctx, [user("q1", id="u1")], {"u1"})
    full = [user("q1", id="u1"), assistant("", id="m1", calls=[call("c1")]), tool_result("c1", "found", id="r1")]
    ask(ctx, full, {"u1", "m1", "r1"})
    assert [m.id for m in backend.requests[1].messages] == ["u1", "m1", "r1"]


def _answer(request: Any) -> str:
    return f"answer to {request.messages[-1].text.split()[1]} " + "word " * 20


async def test_many_tasks_ask_one_session_at_once() -> None:
    backend = ScriptedBackend([_answer] * 60)
    with context(backend, context_window=1_500, summarizer=scripted(*["short"] * 60)) as ctx:
        await asyncio.gather(*(ctx.asend(f"question {i} " + "word " * 20, recall=False) for i in range(60)))
        check_all_there(ctx, backend, 60)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_many_threads_ask_one_session_at_once(tmp_path: Path, store: str) -> None:
    backend = ScriptedBackend([_answer] * 48)
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path / 'a.db'}"
    with context(backend, context_window=1_500, store=url, summarizer=scripted(*["short"] * 60)) as ctx:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: ctx.send(f"question {i} " + "word " * 20, recall=False), range(48)))
        check_all_there(ctx, backend, 48)


def check_all_there(ctx: AgentContext, backend: ScriptedBackend, count: int) -> None:
    for request in backend.requests:
        assert_legal(request.messages)
        own = request.messages[-1]
        others = [m for m in request.messages[:-1] if m.role == "user" and m.kind == "message"]
        answered = {m.text.split()[2] for m in request.messages if m.role == "assistant"}
        assert {m.text.split()[1] for m in others[-3:]} <= answered, f"another open turn's message beside {own.text}"
    usage = ctx.usage()
    assert usage.turns == count
    assert usage.compactions > 0
    assert sum(b.zone == "summary" for b in ctx.explain().blocks) == 1
    other = context(store=ctx.handle.store, context_window=1_500, create=False)
    assert other.view().messages == ctx.view().messages


@pytest.mark.parametrize("on_abort", ["discard", "keep_partial"])
async def test_a_cancel_right_after_a_reply_with_tool_calls_was_stored(on_abort: Any) -> None:
    """Step 7, mutants: the caller never saw the calls, so nobody will answer them; its question stays where it asked for that."""
    calling = replace(assistant("Let me look.", id="r", calls=[call("c1")]), usage=Usage(10, 5))
    with Stopping(4) as store, context(scripted(calling, "two"), store=store) as ctx:
        events: list[Any] = []
        ctx.subscribe(events.append)

        async def read() -> None:
            async for _ in ctx.asend_stream("hi", on_abort=on_abort):
                pass

        task = asyncio.create_task(read())
        await asyncio.wait_for(store.stopped.wait(), 60)
        task.cancel()
        store.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        kept = on_abort == "keep_partial"
        assert [e.status for e in events if isinstance(e, TurnEnded)] == ["aborted" if kept else "discarded"]
        assert [m.text for m in ctx.view().messages] == (["hi"] if kept else [])
        assert ctx.usage().replies == 1, "no second reply was made of what had arrived"
        assert (await ctx.asend("again")).message.text == "two"
        assert not [m for m in ctx.view().messages if m.tool_calls]


def test_recalled_passages_are_not_part_of_the_stable_messages(make: Make) -> None:
    """They change with each question: a cache point behind them would never be hit again."""
    backend = scripted("in the cellar", scratch_role="user")
    ctx = make(backend, summarizer=scripted("They spoke of many things."))
    ctx.add(
        [user("The marmalade stands in the cellar of the old mill.", id="m"), assistant("noted", id="n"), *turns(6)]
    )
    ctx.compact(force=True)
    ctx.send("Where does the marmalade stand?", scratch="It is noon.")
    request = backend.requests[0]
    assert "old mill" in request.messages[-3].text
    assert request.stable_messages == len(request.messages) - 3
