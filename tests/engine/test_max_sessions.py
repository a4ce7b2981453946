"""How many sessions an engine keeps open: the others leave memory, and one in which something goes on is not lost."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core.llms import MockLLM

from ctxfold import AgentContext, Completed, ConfigError, MemoryStore, Request, assistant, tool_result, user
from ctxfold.errors import SessionNotFoundError, StoreUnavailableError
from ctxfold.history.log import SessionState
from ctxfold.history.records import SessionKey
from langchain_ctx import ChatCtx, ContextMiddleware, ContextNode, CtxChatMessageHistory
from llamaindex_ctx import CtxChatStore, CtxMemory, with_context
from llamaindex_ctx.chat_store import CtxAsyncChatStore
from tests.properties.outages import LATE_S, UnreliableStore, Weather
from tests.support.driven import Driven, call, context, scripted, text_of, turns
from tests.support.open_sessions import opened
from tests.timing import wait_for

Make = Callable[..., Driven]
CAP = 4


def crowd(ctx: Any, count: int = 3 * CAP) -> None:
    """Opens other sessions over the same engine, one after the other: more than may stay open."""
    for n in range(count):
        assert ctx.at(f"other {n}").view().tokens >= 0


def test_only_so_many_stay_open_and_all_are_whole(make: Make) -> None:
    ctx = make(session_id="first", max_sessions=CAP)
    assert ctx.handle.engine.max_sessions == CAP
    sessions: list[weakref.ref[SessionState]] = []
    for n in range(60):
        key = SessionKey("default", f"s{n}")
        ctx.at(key.session).add([user(f"question {n}", id="q"), assistant(f"answer {n}", id="a")])
        sessions.append(weakref.ref(opened(ctx.ctx, key).state))
    gc.collect()
    assert [n for n, session in enumerate(sessions) if session() is not None] == [*range(60 - CAP, 60)]
    for n in range(60):
        assert text_of(ctx.at(f"s{n}").messages()) == f"question {n}\nanswer {n}"
    gc.collect()
    assert [n for n, session in enumerate(sessions) if session() is not None] == []


def test_a_turn_that_waits_for_tools_goes_on_in_a_session_that_left_memory(make: Make) -> None:
    ctx = make(scripted(assistant("", id="a1", calls=[call("c1")]), "It is found."), max_sessions=CAP)
    reply = ctx.send("Where is it?")
    crowd(ctx)
    assert ctx.ctx.view().messages[-1].tool_calls == reply.message.tool_calls  # its own turn, while that is open
    assert ctx.send([tool_result("c1", "in hall 7", id="r1")]).message.text == "It is found."
    crowd(ctx)
    assert [m.role for m in ctx.messages()] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_session_that_is_erased_while_a_model_answers_leaves_memory(make: Make, stream: bool) -> None:
    """Nothing is left that could be put back later, and nobody asks for that session again."""
    store = MemoryStore()
    other = make(store=store, session_id="other")

    def answer(_: Request) -> str:
        other.ctx.erasure.erase_owner()
        return "Noted."

    ctx = make(scripted(answer), store=store, session_id="mine", max_sessions=CAP)
    with pytest.raises(SessionNotFoundError):
        ctx.send_stream("My locker is 47-B.") if stream else ctx.send("My locker is 47-B.")
    session = weakref.ref(opened(ctx.ctx).state)
    crowd(ctx)
    gc.collect()
    assert session() is None


def test_a_stream_under_way_keeps_its_session() -> None:
    with context(scripted("A reply in several pieces.", "Yes."), max_sessions=CAP) as ctx:
        stream = ctx.send_stream("Tell me.")
        first = next(stream)
        session = opened(ctx)
        crowd(ctx)
        assert opened(ctx) is session
        assert ctx.view().messages[-1].text == "Tell me."  # the turn of the stream
        assert isinstance([first, *stream][-1], Completed)
        crowd(ctx)
        assert text_of(ctx.messages()) == "Tell me.\nA reply in several pieces."
        assert ctx.send("Really?").message.text == "Yes."


async def test_an_async_stream_that_is_given_up_leaves_nothing() -> None:
    async with context(scripted("A reply in several pieces.", "Yes."), max_sessions=CAP) as ctx:
        stream: Any = ctx.asend_stream("Tell me.")
        await anext(stream)
        session = opened(ctx)
        for n in range(3 * CAP):
            await ctx.at(f"other {n}").aview()
        assert opened(ctx) is session
        await stream.aclose()
        assert await ctx.amessages() == ()


def test_a_turn_whose_model_is_asked_keeps_its_session(make: Make) -> None:
    kept: list[bool] = []

    def answer(_: Request) -> str:
        session = opened(ctx.ctx)
        crowd(ctx.ctx)
        kept.append(opened(ctx.ctx) is session)
        return "done"

    ctx = make(scripted(answer, answer), max_sessions=CAP)
    assert [ctx.send(f"Go on, {n}.").message.text for n in range(2)] == ["done", "done"]
    assert kept == [True, True]
    assert text_of(ctx.messages()) == "Go on, 0.\ndone\nGo on, 1.\ndone"


def test_a_compaction_under_way_keeps_its_session(make: Make) -> None:
    kept: list[bool] = []

    def summary(_: Request) -> str:
        session = opened(ctx.ctx)
        crowd(ctx.ctx)
        kept.append(opened(ctx.ctx) is session)
        return "They counted questions."

    ctx = make(None, summarizer=scripted(*[summary] * 9), max_sessions=CAP, auto_compact=False, context_window=5_000)
    ctx.add(turns(20))
    ctx.compact(force=True)
    assert kept == [True]
    crowd(ctx)
    usage = ctx.usage()
    assert (usage.compactions, usage.summary_calls) == (1, 1)


def test_a_summary_in_the_background_is_not_written_twice() -> None:
    gate = threading.Event()
    calls: list[Request] = []

    def summary(request: Request) -> str:
        calls.append(request)
        assert gate.wait(60)
        return "They counted questions."

    with context(
        scripted(*["noted " * 10] * 40),
        summarizer=scripted(*[summary] * 9),
        background=True,
        summary_timeout_s=None,
        context_window=2_000,
        max_sessions=CAP,
    ) as ctx:
        number = 0
        while not calls:
            ctx.send(f"Point {number}. " + "filler " * 20)
            number += 1
            session = opened(ctx)
            if session.background_summary.running:
                wait_for(lambda: bool(calls))
        crowd(ctx)
        assert opened(ctx) is session
        gate.set()
        wait_for(lambda: not session.background_summary.running)
        while not ctx.usage().compactions:
            ctx.send(f"Point {number}. " + "filler " * 20)
            number += 1
        assert len(calls) == 1


def test_what_could_not_be_rolled_back_yet_keeps_its_session(make: Make) -> None:
    weather = Weather()
    store: Any = UnreliableStore(MemoryStore(), weather)
    ctx = make(scripted("never", "yes"), store=store, max_sessions=CAP)
    weather.faults.extend(("ok", "fail", "fail"))
    with pytest.raises(StoreUnavailableError):
        ctx.send("first")
    weather.faults.clear()
    assert opened(ctx.ctx).pending_rollbacks
    crowd(ctx.ctx)
    assert ctx.send("second").message.text == "yes"
    weather.age_s += LATE_S  # a turn that was left open is closed by now, with what it holds
    assert text_of(make(store=store).messages()) == "second\nyes"


def history(**given: Any) -> AgentContext:
    return CtxChatMessageHistory("s", context_window=1_000, **given).context


def chat_model(**given: Any) -> AgentContext:
    model = ChatCtx(
        model="m", api_key="x", base_url="http://127.0.0.1:9/v1", store="memory://", context_window=1_000, policy=given
    )
    return model.context("s")


REACHED: dict[str, Callable[..., AgentContext]] = {
    "AgentContext": lambda **given: context(**given).at("s"),
    "ChatCtx": chat_model,
    "ContextMiddleware": lambda **given: ContextMiddleware(context_window=1_000, **given).context("s"),
    "ContextNode": lambda **given: ContextNode(context_window=1_000, **given).context("s"),
    "CtxChatMessageHistory": history,
    "CtxMemory": lambda **given: CtxMemory.from_defaults("s", context_window=1_000, **given).context,
    "CtxChatStore": lambda **given: CtxChatStore(**given).context("s"),
    "CtxAsyncChatStore": lambda **given: CtxAsyncChatStore(**given).histories.context("s"),
    "with_context": lambda **given: with_context(MockLLM(), context_window=1_000, session_id="s", **given).context(),
}


@pytest.mark.parametrize("reached", REACHED.values(), ids=REACHED)
def test_every_face_takes_it(reached: Callable[..., AgentContext]) -> None:
    assert reached(max_sessions=3).handle.engine.max_sessions == 3
    assert reached().handle.engine.max_sessions == 256


MADE: dict[str, Callable[..., Any]] = {"CtxChatStore": CtxChatStore, "CtxAsyncChatStore": CtxAsyncChatStore}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
@pytest.mark.parametrize("wrong", [0, -1, 2.5, "8", True])
def test_what_is_no_number_of_sessions(made: Callable[..., Any], wrong: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"max_sessions is .*: give how many sessions may stay open in memory, 1 or more"
    ):
        made(max_sessions=wrong)
