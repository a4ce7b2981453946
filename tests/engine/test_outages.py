"""Step 7, item A1, case by case: an attempt that failed together with its cleanup, and the retry that follows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxfold import AgentContext, BackendError, MemoryStore, Message, Request, assistant, tool_result, user
from ctxfold.engine.turn import TurnInput
from ctxfold.errors import StoreUnavailableError
from ctxfold.events import TurnEnded
from ctxfold.history.records import SessionKey
from tests.properties.outages import LATE_S, Died, UnreliableStore, Weather
from tests.support.driven import COUNTER, Driven, call, scripted, tool_round

Make = Callable[..., Driven]
TURN = [
    user("why? " * 20, id="u"),
    *tool_round("t", "found " * 40),
    *tool_round("v", "more " * 40),
    assistant("so", id="z"),
]


class Service:
    """A store whose weather is made by the test, and contexts on it."""

    def __init__(self, make: Make) -> None:
        self.make, self.weather, self.store = make, Weather(), MemoryStore()

    def opened(self, *replies: Any, window: int = 200, **settings: Any) -> Driven:
        backend = scripted(*replies) if replies else None
        store: Any = UnreliableStore(self.store, self.weather)
        return self.make(backend, store=store, context_window=window, reply_reserve_tokens=40, **settings)

    def fails(self, *faults: str) -> None:
        self.weather.faults.extend(faults)

    def ids(self) -> list[str]:
        """What another process sees 15 minutes later."""
        self.weather.faults.clear()
        self.weather.age_s += LATE_S
        return [m.id for m in self.opened().messages()]


@pytest.fixture
def service(make: Make) -> Service:
    return Service(make)


@pytest.mark.parametrize("restart", [False, True])
def test_a_retry_goes_on_with_the_turn_that_was_left_open(service: Service, restart: bool) -> None:
    ctx = service.opened()
    service.fails("ok", "fail", "fail")
    with pytest.raises(StoreUnavailableError):
        ctx.add(TURN)
    again = service.opened() if restart else ctx
    assert again.add(TURN).turn_id is None
    assert [m.id for m in service.opened().messages()] == [m.id for m in TURN]
    assert service.ids() == [m.id for m in TURN]


def test_a_question_that_is_only_added_after_all_ends_the_turn_that_held_it(service: Service) -> None:
    ctx = service.opened(BackendError("down", kind="server"))
    service.fails("ok", "fail")
    with pytest.raises(BackendError):
        ctx.send([TURN[0]])
    assert service.opened().add(TURN[0]).turn_id is None
    assert [m.id for m in service.opened().messages()] == ["u"]


def test_a_batch_that_covers_two_failed_ones_keeps_their_order(service: Service) -> None:
    rounds = [*tool_round("w", "found " * 40), *tool_round("x", "more " * 40)]
    second = [user("and? " * 20, id="u2"), *rounds, assistant("thus", id="z2")]
    for messages in (TURN, second):
        ctx = service.opened()
        service.fails("ok", "die")
        with pytest.raises(Died):
            ctx.add(messages)
    service.opened().add([*TURN, *second])
    assert service.ids() == [m.id for m in (*TURN, *second)]


@pytest.mark.parametrize("how", ["send", "stream", "stream given up"])
def test_what_could_not_be_taken_back_at_once_is_taken_back_later(service: Service, how: str) -> None:
    """The caller asks anew under another id: the question of the failed attempt does not come back."""
    ctx = service.opened("never", "yes")
    ctx.add([user("hello", id="u0"), assistant("hi", id="z0")])
    service.fails("ok", "fail", "fail")
    if how == "stream given up":
        ctx.send_stream("first", stop_after=1)
    else:
        with pytest.raises(StoreUnavailableError):
            list(ctx.send_stream("first")) if how == "stream" else ctx.send("first")
    reply = ctx.send("second")
    asked = [m.text for m in ctx.messages()]
    assert asked == ["hello", "hi", "second", reply.message.text]
    assert len(service.ids()) == 4


def test_what_is_taken_back_later_leaves_alone_what_others_went_on_with(service: Service) -> None:
    ctx = service.opened(BackendError("down", kind="server"))
    question, *_ = TURN
    service.fails("ok", "fail")
    with pytest.raises(BackendError):
        ctx.send([question])
    other = service.opened(assistant("", id="a", calls=[call("c1")]), assistant("done", id="z"))
    other.send([question])
    assert [m.id for m in ctx.messages()] == ["u", "a"]
    other.send([tool_result("c1", "found", id="r")])
    assert service.ids() == ["u", "a", "r", "z"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_retry_gets_the_reply_that_is_stored_already(service: Service, stream: bool) -> None:
    """The answer of the store was lost after the commit: the reply is neither asked for again nor doubled."""
    calling = assistant("", id="a", calls=[call("c1")])
    ctx = service.opened(calling, assistant("done", id="z"))

    def ask(messages: list[Message]) -> None:
        if stream:
            ctx.send_stream(messages)
        else:
            assert ctx.send(messages).message.id in ("a", "z")

    for messages in ([TURN[0]], [tool_result("c1", "found", id="r")]):
        service.fails("ok", "lost", "fail")
        with pytest.raises(StoreUnavailableError):
            ask(messages)
        service.weather.faults.clear()
        ask(messages)
    seen = ctx.messages()
    assert [(m.role, m.text) for m in seen] == [
        ("user", TURN[0].text),
        ("assistant", ""),
        ("tool", "found"),
        ("assistant", "done"),
    ]
    assert len(ctx.handle.backend.requests) == 2
    assert len(service.ids()) == 4


@pytest.mark.parametrize("ids", ["c1 c2 c3", "call_a_0 call_b_0 call_c_0"], ids=["given", "made"])
@pytest.mark.parametrize("added", [False, True])
def test_each_step_of_a_turn_of_several_rounds_may_run_again(service: Service, added: bool, ids: str) -> None:
    """As durable workflows do it: a process ends after its reply was stored, and the next one has what the step had.

    The results may be sent, or added by a step of their own. A service that gives its calls no ids has them made.
    """
    calls = [call(call_id) for call_id in ids.split()]
    replies = [assistant("", id="a", calls=calls[:1]), assistant("", id="b", calls=calls[1:])]
    backend = scripted(*replies, assistant("done", id="z"))

    def step(messages: list[Message]) -> Message:
        first, again = (service.make(backend, store=service.store, context_window=400).send(messages) for _ in "12")
        assert again.message.id == first.message.id
        return again.message

    reply = step([user("why?", id="u")])
    while reply.tool_calls:
        # two tools may say the same
        results = [tool_result(c.id, "found", id=f"{reply.id}.{n}") for n, c in enumerate(reply.tool_calls)]
        for result in results if added else ():
            for _ in "12":
                service.make(store=service.store, context_window=400).add(result)
        reply = step(results)
    assert reply.text == "done"
    assert len(backend.requests) == 3
    assert service.ids() == ["u", "a", "a.0", "b", "b.0", "b.1", "z"]


@pytest.mark.parametrize("compacted", [False, True])
def test_a_retry_gets_its_reply_although_the_conversation_went_on(service: Service, compacted: bool) -> None:
    """Another client has asked meanwhile, and a summary may stand in place of the question and the reply."""
    first, second = user("why? " * 200, id="u"), user("and now? " * 140, id="u2")
    ctx = service.opened("yes", "once more", window=800)
    service.fails("ok", "lost", "fail")
    with pytest.raises(StoreUnavailableError):
        ctx.send([first])
    service.weather.faults.clear()
    service.opened("other", window=800).send([second])
    if compacted:
        assert "u" in service.opened(window=800).compact().event.covered
    assert ctx.send([first]).message.text == "yes"
    assert [m.text for m in ctx.messages()] == [first.text, "yes", second.text, "other"]
    assert len(ctx.handle.backend.requests) == 1


def test_a_retry_gets_its_calls_although_the_results_were_compacted(service: Service) -> None:
    """The results had to give way to fit the request, so that a summary stands before the calls that wait."""
    first, second, third = (tool_round(name, "found " * 14, calls=3) for name in "tvw")
    ctx = service.opened(first[0], second[0], third[0], assistant("done", id="z"), summarizer=scripted("short"))
    ctx.send([user("why?", id="u")])
    ctx.send(first[1:])
    service.fails("ok", "ok", "lost", "fail")
    with pytest.raises(StoreUnavailableError):
        ctx.send(second[1:])
    service.weather.faults.clear()
    assert second[-1].id not in {m.id for m in ctx.window().messages}
    assert ctx.send(second[1:]).message.id == third[0].id
    assert ctx.send(third[1:]).message.id == "z"
    assert service.ids() == ["u", *(m.id for m in (*first, *second, *third)), "z"]


def test_a_file_is_imported_into_the_turn_that_holds_its_first_lines(service: Service, tmp_path: Path) -> None:
    ctx = service.opened()
    service.fails("ok", "fail", "fail")
    with pytest.raises(StoreUnavailableError):
        ctx.add(TURN)
    whole = AgentContext(context_window=4_000, counter=COUNTER)
    whole.add(TURN)
    path = tmp_path / "turn.jsonl"
    whole.files.export_jsonl(path, zone="incremental")
    service.opened().files.import_jsonl(path)
    assert service.ids() == [m.id for m in TURN]


def test_a_retry_after_the_turn_was_aborted_stores_what_it_did_not_keep(service: Service) -> None:
    """Fifteen minutes after the attempt another process has closed the turn; its incomplete round counts as unknown."""
    half = [TURN[0], TURN[1]]
    service.opened().add(half)
    assert service.ids() == ["u", "t-a"]
    assert [m.id for m in service.opened().window().messages] == ["u"]
    service.opened().add(TURN)
    assert service.ids() == [m.id for m in TURN]


def test_results_that_come_late_bring_their_call_back(service: Service) -> None:
    calls = [
        user("go", id="u"),
        assistant("", id="a", calls=[call("c1"), call("c2")]),
        tool_result("c1", "one", id="r1"),
    ]
    service.opened().add(calls)
    assert service.ids() == ["u", "a", "r1"]
    assert [m.id for m in service.opened().window().messages] == ["u"]
    service.opened().add([tool_result("c2", "two", id="r2"), assistant("done", id="z")])
    assert service.ids() == ["u", "a", "r1", "r2", "z"]


def test_results_made_anew_for_an_answered_round_are_known(service: Service) -> None:
    ctx = service.opened()
    ctx.add([user("go", id="u"), assistant("", id="a", calls=[call("c1")])])
    service.fails("lost")
    with pytest.raises(StoreUnavailableError):
        ctx.add(tool_result("c1", "one", id="r1"))
    ctx.add(tool_result("c1", "one", id="made anew"))
    assert service.ids() == ["u", "a", "r1"]


def test_a_stored_reply_whose_replay_is_given_up_stays(service: Service) -> None:
    """The caller gives up the stream that only plays what an earlier attempt has stored; its call still waits."""
    calling = assistant("I look.", id="a", calls=[call("c1")])
    ctx = service.opened(calling, assistant("done", id="z"))
    service.fails("ok", "lost", "fail")
    with pytest.raises(StoreUnavailableError):
        ctx.send([TURN[0]])
    service.weather.faults.clear()
    events: list[Any] = []
    ctx.subscribe(events.append)
    ctx.send_stream([TURN[0]], stop_after=1, on_abort="keep_partial")
    assert events == []
    assert ctx.send([tool_result("c1", "found", id="r")]).message.text == "done"


def test_a_removed_call_that_is_under_way_again_is_known(service: Service) -> None:
    ctx = service.opened()
    ctx.add([TURN[0], *tool_round("t"), assistant("so", id="z")])
    ctx.edit.remove("t-a")
    again = [user("once more", id="u2"), *tool_round("t")]
    ctx.add(again[:2])
    events: list[Any] = []
    ctx.subscribe(events.append)
    ctx.add([*again, assistant("thus", id="z2")])
    assert [e.status for e in events if isinstance(e, TurnEnded)] == ["completed"]
    assert service.ids() == ["u", "z", "u2", "t-a", "t-r0", "z2"]


def test_a_removed_call_that_was_compacted_when_it_came_again_is_known(service: Service) -> None:
    ctx = service.opened(summarizer=scripted("short"))
    first, second = (tool_round(name, "found " * 14, calls=3) for name in "tv")
    ctx.add([user("go", id="u"), *first, assistant("so", id="z")])
    ctx.edit.remove(first[0].id)
    again = [user("once more", id="u2"), *first, *second, assistant("thus", id="z2")]
    ctx.add(again)
    assert first[0].id not in {m.id for m in ctx.view().messages}
    assert service.opened().add(again).messages == ()
    assert service.ids() == ["u", "z", *(m.id for m in again)]


def test_a_partial_reply_is_not_the_answer_to_a_retry(service: Service) -> None:
    """What was left of a stream that was given up is kept, and the question is asked again."""
    ctx = service.opened("a long story that is told at length", "the whole story")
    ctx.send_stream([TURN[0]], stop_after=1, on_abort="keep_partial")
    assert ctx.messages()[-1].text
    assert ctx.send([TURN[0]]).message.text == "the whole story"


@pytest.mark.parametrize("rounds", [9, 11])
def test_a_turn_that_waited_for_long_is_compacted_as_before(service: Service, rounds: int) -> None:
    """A call waits for a person for more than 15 minutes: the rounds before it joined the conversation meanwhile.

    They still give way to the turn's later rounds; eleven of them leave no room for the result otherwise.
    """
    replies = [assistant("", id=f"a{n}", calls=[call(f"c{n}")]) for n in range(40)]
    ctx = service.opened(*replies[: rounds + 1], window=3_240, summarizer=scripted(*["Words were found."] * 40))
    ctx.send(user("Look at everything.", id="u"))
    for n in range(40 - 1):
        if n == rounds:
            service.weather.age_s = LATE_S
            later = replies[rounds + 1 :]
            ctx = service.opened(*later, window=3_240, summarizer=scripted(*["Words were found."] * 40))
        ctx.send(tool_result(f"c{n}", f"found {n}: " + "alpha beta gamma delta " * 60, id=f"r{n}"))
        service.weather.age_s = 0.0
    assert [m.id for m in ctx.messages()] == ["u", *(i for n in range(39) for i in (f"a{n}", f"r{n}")), "a39"]
    shown = [m.id for m in ctx.view().messages]
    assert not {f"r{n}" for n in range(rounds)} & {*shown}
    assert ctx.view().tokens > 1_600, "what was compacted made room for newer rounds"


def test_what_is_taken_back_late_stays_out_where_others_have_gone_on_without_it(service: Service) -> None:
    """An edit failed, and so did its rollback: others have asked without the old answer since, so that it does not come back."""

    def fails(_: Request) -> BackendError:
        service.fails("fail")
        return BackendError("down", kind="server")

    def ask(*messages: Message) -> None:
        ids = frozenset(m.id for m in messages)
        ctx.handle.complete(TurnInput(SessionKey("default", "default"), messages, given_ids=ids, whole=True))

    first = [user("hello", id="u0"), assistant("hi", id="z0")]
    ctx = service.opened(assistant("yes", id="z1"), fails, window=1_000)
    ctx.add(first)
    ask(*first, user("one", id="u1"))
    with pytest.raises(BackendError):
        ask(*first, user("other", id="u2"))
    service.opened(window=1_000).add([user("later", id="u3"), assistant("ok", id="z3")])
    assert [m.id for m in ctx.messages()] == ["u0", "z0", "u3", "z3"]


def test_what_is_added_to_a_turn_that_others_have_closed_goes_on_without_it(service: Service) -> None:
    ctx = service.opened(window=1_000)
    ctx.add([user("hello", id="u0"), assistant("", id="c0", calls=[call("c")])])
    service.weather.age_s += LATE_S
    other = service.opened(window=1_000)
    other.add(
        [user("one", id="u1"), assistant("two", id="z1")]
    )  # closes the turn, which nobody has gone on with for long
    ctx.add([user("three", id="u2"), assistant("four", id="z2")])
    assert [m.id for m in ctx.view().messages] == ["u0", "u1", "z1", "u2", "z2"]
    assert service.ids() == ["u0", "c0", "u1", "z1", "u2", "z2"]
