"""Runs one turn. The functions stand in the order in which they are called:

1. open the session, and ingest the input: store the messages that are new in an open turn;
2. fit the view into the window, and build the request from it;
3. send the request, with recovery from an overflow;
4. commit: store the reply and close the turn.

When a step fails, the session is rolled back to what it was before the turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from ctxfold.compaction.compact import gauge, idle_time
from ctxfold.effects import Complete, Effect, Flow, OpenStream, StoreCall
from ctxfold.engine.attach import check_answered, reconcile, rewound, stored_reply
from ctxfold.engine.attempt import ReplyPlace, TurnAttempt, place_of, questions_between, take_over
from ctxfold.engine.edit import move_to_end, remove_ids, revert
from ctxfold.engine.engine import Engine
from ctxfold.engine.fit import FRAME_TOKENS
from ctxfold.engine.request import (
    Options,
    build_request,
    calibrate_from_refusal,
    calibration_drafts,
    note_prefix,
    scratch_tokens,
    with_passages,
)
from ctxfold.engine.section_placement import PlacedSections, place_sections, put_at_head, take_from_head
from ctxfold.errors import (
    BackendError,
    BudgetError,
    ContextOverflowError,
    EmptyMessagesError,
    MessageConflictError,
    MessageTooLargeError,
    TurnClosedError,
)
from ctxfold.events import IdsRepeated
from ctxfold.history.cuts import open_calls
from ctxfold.history.diff import Reconciled, asked_after_results, ended_with, finished_count, prompted, reworded
from ctxfold.history.log import SessionState
from ctxfold.history.records import Compacted, Draft, MessageAdded, OutputsSummarised, SessionKey
from ctxfold.messages import Message, Role, Usage, is_final, is_question, validated
from ctxfold.policy.settings import check_least, resized
from ctxfold.protocols import AsyncChunkStream, ChunkStream, Reply, Request, Store, capabilities_of
from ctxfold.state import (
    SentRequest,
    Session,
    Stage,
)
from ctxfold.stream import Fold, played
from ctxfold.telemetry import record_window

T = TypeVar("T")
ROUNDS_PART = 4  # of the budget, that the rounds after a question keep beside passages


@dataclass(frozen=True, slots=True)
class TurnInput:
    """Holds the messages to send in a session, which are new, or a whole list that the caller keeps.

    Args:
        prompts: the system prompts; None leaves them as they are.
        known_ids: False says that all ids were made for this input, so that none is stored already.
        given_ids: marks `messages` as a list, and holds the ids that came with it: only messages that the session does not
            have are new.
        reply_id: the id of a streamed reply, for callers that show it from the first chunk on; None makes one.
        whole: with `given_ids`, removes answers that the session has after the newest message in common.
        attached: the same call has just opened the session, to attach the list to it.
        from_window: the list was read from this session and ended with its newest message then. Questions that follow it came
            since and stay; another text of a known question is for this request alone.
        asked_ids: the question of an agent's run, which no compaction hides while the run goes on.
        keeps_answers: hides replies that others have got for the same messages since, from this request alone.
    """

    key: SessionKey
    messages: Sequence[Message]
    options: Options = field(default_factory=Options)
    prompts: tuple[str, ...] | None = None
    known_ids: bool = True
    given_ids: frozenset[str] | None = None
    reply_id: str | None = None
    whole: bool = False
    attached: bool = False
    from_window: bool = False
    keeps_answers: bool = False
    asked_ids: tuple[str, ...] = ()


@dataclass(slots=True)
class OpenReply:
    """A streamed reply: feed each chunk of `stream` to `fold`, then call `finish_stream` or `abandon`.

    `stored` is the reply itself where an earlier attempt stored it already; `stream` then plays it.
    """

    attempt: TurnAttempt
    message_id: str
    stream: ChunkStream | AsyncChunkStream
    fold: Fold
    options: Options
    stored: Message | None = None

    @property
    def turn_id(self) -> str:
        return self.attempt.turn_id


def ask(engine: Engine, turn_input: TurnInput) -> Flow[tuple[Reply, str | None]]:
    """Returns the model's reply, once it is stored, and the turn that it leaves open, if it has tool calls.

    When anything fails, the session is as it was before.
    A question that was stored together with its reply already, but whose caller never heard so, gets that reply again.
    """
    options = turn_input.options

    def asked(attempt: TurnAttempt) -> Flow[tuple[Reply, str | None]]:
        stored = yield from _ingest(engine, attempt, turn_input)
        if stored is None:
            answer: Reply = yield from _send_with_recovery(engine, attempt, options, Complete)
            reply = yield from _commit(engine, attempt, options, answer)
        else:
            reply = yield from _repeat_reply(engine, attempt, options, stored)
        return reply, attempt.session.turn_ending_with(reply.message.id)

    return (yield from _attempted(engine, turn_input, asked))


def request_for(engine: Engine, turn_input: TurnInput) -> Flow[Request]:
    """Returns the request that a full list makes, for somebody else to send: its reply comes with the next list.

    What the list has of finished turns joins the conversation, the rest stays in an open turn.
    """

    def requested(attempt: TurnAttempt) -> Flow[Request]:
        yield from _ingest_finished_turns(engine, attempt, turn_input)
        yield from _ingest(engine, attempt, turn_input)
        return (yield from _next_request(engine, attempt, turn_input.options))

    return (yield from _attempted(engine, turn_input, requested))


def _attempted(engine: Engine, turn_input: TurnInput, work: Callable[[TurnAttempt], Flow[T]]) -> Flow[T]:
    """Returns the result of work in a turn, which is taken back when it fails."""
    attempt = yield from _open(engine, turn_input)
    try:
        return (yield from work(attempt))
    except GeneratorExit:
        raise
    except BaseException:
        yield from _roll_back(engine, attempt)
        raise
    finally:
        attempt.leave()


def open_reply(engine: Engine, turn_input: TurnInput) -> Flow[OpenReply]:
    """Returns the reply's stream, once its first event has arrived."""
    options, message_id = turn_input.options, turn_input.reply_id or engine.ports.ids.new()
    attempt = yield from _open(engine, turn_input)
    try:
        stored = yield from _ingest(engine, attempt, turn_input)
        if stored is not None:
            attempt.leave()
            return OpenReply(attempt, stored.id, played(stored), Fold(stored.id, stored.model), options, stored)
        stream = yield from _send_with_recovery(engine, attempt, options, OpenStream)
    except GeneratorExit:
        attempt.leave()
        raise
    except BaseException:
        yield from _roll_back(engine, attempt)
        raise
    return OpenReply(attempt, message_id, stream, Fold(message_id, attempt.model or None), options)


def finish_stream(engine: Engine, reply: OpenReply) -> Flow[Reply]:
    """Stores the reply that the stream has brought, and returns it."""
    if reply.stored is not None:
        return (yield from _repeat_reply(engine, reply.attempt, reply.options, reply.stored))
    whole = yield from _commit(engine, reply.attempt, reply.options, reply.fold.close())
    reply.attempt.leave()
    return whole


def abandon(engine: Engine, reply: OpenReply) -> Flow[None]:
    """Leaves what `on_abort` says: nothing, or the text that had arrived. A reply that is stored already stays."""
    if reply.stored is None:
        yield from _roll_back(engine, reply.attempt, partial(_undo_stream, engine, reply))


# 1. open and ingest


def _open(engine: Engine, turn_input: TurnInput) -> Flow[TurnAttempt]:
    options, backend = turn_input.options, engine.ports.backend
    session = yield from engine.open(turn_input.key, prompts=turn_input.prompts, reread=not turn_input.attached)
    if options.context_window is not None:
        check_least(resized(session.own_rules(), options.context_window))
    new_turn = engine.ports.ids.new()
    session.asked_ids = turn_input.asked_ids
    session.model = options.model or session.model  # without one, the backend's
    by_request = bool(options.extra.get("context_management"))
    session.provider_compacts = by_request or capabilities_of(backend, session.model).compacts_itself
    listed = turn_input.given_ids is not None
    attempt = TurnAttempt(session, new_turn, new_turn, session.model, listed, prompts=turn_input.prompts)
    attempt.enter(new_turn)
    return attempt


def _ingest_finished_turns(engine: Engine, attempt: TurnAttempt, turn_input: TurnInput) -> Flow[None]:
    """Stores the new messages up to the newest final answer, in the turn that it answers."""
    session = attempt.session
    if turn_input.whole:
        with session.lock:
            last_ids = {t: turn.entries[-1].id for t, turn in session.state.open.items() if turn.entries}
        for turn_id, last_id in last_ids.items():
            if last_id not in (turn_input.given_ids or ()):  # the list went back behind this turn
                yield from engine.close(session, turn_id, "discarded")
    new = yield from _new_messages(engine, attempt, turn_input)
    if finished := finished_count(new.messages):
        yield from engine.add(
            session,
            new.messages[:finished],
            turn_id=new.turn_id,
            skip_orphans=True,
            options=turn_input.options,
        )


def _ingest(engine: Engine, attempt: TurnAttempt, turn_input: TurnInput) -> Flow[Message | None]:
    """Stores the new messages in the attempt's turn. Returns the reply instead when all is known and was answered already.

    A question that the messages follow may be taken back meanwhile, by the cancelled call that asked it: a whole list has it
    still. An attached list is the rest of one, so that its caller attaches it anew.
    """
    try:
        return (yield from _ingest_new(engine, attempt, turn_input))
    except (TurnClosedError, MessageConflictError) as error:
        if turn_input.given_ids is None or turn_input.attached:
            raise
        if isinstance(error, MessageConflictError):  # its ids say nothing: it is compared by what its messages say
            engine.events.emit(IdsRepeated(attempt.session.key.session, tuple(sorted(turn_input.given_ids))))
            anew = tuple(replace(m, id=engine.ports.ids.new()) for m in turn_input.messages)
            turn_input = replace(turn_input, messages=anew, given_ids=frozenset())
        return (yield from _ingest_new(engine, attempt, turn_input))


def _ingest_new(engine: Engine, attempt: TurnAttempt, turn_input: TurnInput) -> Flow[Message | None]:
    session = attempt.session
    new = yield from _new_messages(engine, attempt, turn_input)
    new = yield from _end_answered_turn(engine, session, new, turn_input.options)
    turn_id = new.turn_id
    if new.messages:
        turn_id = yield from _store_input(engine, attempt, turn_input, new)
    attempt.enter(turn_id or attempt.new_turn)
    reply = yield from stored_reply(session, attempt.turn_id, turn_input.messages[-1].id)
    if reply is not None and turn_input.given_ids is None:
        return reply  # its caller never heard of it
    newest = session.view().last()
    if reply is not None and session.turn_ending_with(reply.id) == attempt.turn_id:
        # the list asks for its reply anew: nobody will answer the calls of the one before
        yield from engine.close(session, attempt.turn_id, "aborted")
        attempt.enter(attempt.new_turn)
    elif reply is not None and attempt.ends_with is None and newest is not None and newest.id == reply.id:
        # the message that is asked again was compacted, so the comparison of the lists did not see this reply: it gives way
        attempt.removal = ((yield from remove_ids(engine, session, (reply.id,))),)
    check_answered(session, attempt.turn_id)
    return None


def _end_answered_turn(engine: Engine, session: Session, new: Reconciled, options: Options) -> Flow[Reconciled]:
    """Ends the open turn where a question follows its results, and returns what is left for the turn of that question.

    A tool gave the answer itself, or the run ended with an error. Nobody answers that turn any more, and what is in an open turn
    is hidden from others and gives way last.
    """
    with session.lock:
        turn = session.state.open.get(new.turn_id or "")
        entries = [] if turn is None or new.turn_id in session.in_flight else [*turn.entries]
    ended = asked_after_results([*(e.message for e in entries[-1:]), *new.messages]) if entries else 0
    if not ended or (ended == 1 and open_calls(entries)):
        return new
    if ended > 1:
        yield from engine.add(session, new.messages[: ended - 1], turn_id=new.turn_id, options=options)
    yield from engine.close(session, new.turn_id or "", "completed")
    return replace(new, messages=new.messages[ended - 1 :], turn_id=None)


def _new_messages(engine: Engine, attempt: TurnAttempt, turn_input: TurnInput) -> Flow[Reconciled]:
    """Returns the messages that the session does not have; removes those that the caller's list has gone back behind."""
    if turn_input.given_ids is None:
        return Reconciled(tuple(turn_input.messages))
    session = attempt.session
    compare = partial(
        reconcile, given_ids=turn_input.given_ids, whole=turn_input.whole, from_window=turn_input.from_window
    )
    if not turn_input.messages:
        raise EmptyMessagesError("no message to send: give at least one")
    new = compare(session, turn_input.messages)
    attempt.shown = new.shown
    asked = turn_input.messages[-1]
    if (turn_input.keeps_answers and new.superseded) or (new == Reconciled(()) and asked.role == "tool"):
        attempt.ends_with = asked.id  # also of results that others have asked a question after
        return Reconciled(())
    if new.overtaken is not None:
        attempt.removal = yield from move_to_end(engine, session, (new.overtaken,), new.superseded)
        return Reconciled(())
    if new.turn_id and (from_start := rewound(session, turn_input.messages, new)) is not None:
        take_over(session, (new.turn_id,), attempt.new_turn)
        yield from engine.close(session, new.turn_id, "discarded")
        new = Reconciled(from_start)
    if removed_ids := new.superseded or new.left_behind:
        may_return = bool(new.left_behind)
        attempt.removal = ((yield from remove_ids(engine, session, removed_ids, may_return=may_return)),)
        new = compare(session, turn_input.messages)  # again: a tool round is removed as a whole
    legal = engine.without_orphans(session, new.messages, new.turn_id, before_request=True)
    return replace(new, messages=tuple(legal))


def _store_input(engine: Engine, attempt: TurnAttempt, turn_input: TurnInput, new: Reconciled) -> Flow[str]:
    """Stores the new messages, with the sections that belong to them, in an open turn that others do not see; returns its id.

    It is `attempt.new_turn`, unless the messages go on with another one. Raises MessageTooLargeError when the newest user
    message can never fit; nothing is stored then.
    """
    session, options = attempt.session, turn_input.options
    placed = PlacedSections(new.messages)
    if engine.fitter.sections or capabilities_of(engine.ports.backend, attempt.model).binds_reasoning:
        stage = session.stage(new.turn_id, options.context_window)
        options = _with_room_for_passages(engine, stage, options, new.messages)
        placed = yield from place_sections(
            engine,
            session,
            stage,
            new.messages,
            overhead_tokens=_overhead_tokens(engine, stage, options),
            options=options,
        )
    attempt.stored_ids = frozenset(m.id for m in placed.messages)
    stage = session.stage(None, options.context_window)
    if new.turn_id is None and stage.rules.trigger is not None:
        if idle_s := (yield from idle_time(session, stage)):
            yield from engine.fitter.maintain(session, stage, idle_s=idle_s, auto_compact=options.auto_compact)
        stage = session.stage(None, options.context_window)
    yield from engine.count_long(placed.messages)
    _check_size(engine, session, stage, placed.messages)
    added = yield from engine.add(
        session,
        placed.messages,
        turn_id=new.turn_id,
        hold_in=attempt.new_turn,
        known_ids=turn_input.known_ids,
        skip_orphans=attempt.listed,  # the session may have a part of a round under other ids
        options=options,
    )
    attempt.stored_ids |= {m.id for m in added.messages}  # with calls that had to be stored again before their results
    attempt.head_sections = placed.head
    if placed.head:
        yield from put_at_head(engine, session, placed.head)
    engine.events.emit(*placed.events)
    return added.turn_id or new.turn_id or attempt.new_turn


def _check_size(engine: Engine, session: Session, stage: Stage, messages: Sequence[Message]) -> None:
    """Raises MessageTooLargeError when the newest user message does not fit beside the system prompt.

    Only the newest question has to stay whole: an older one that does not fit gives way like any other message.
    """
    rules, system_tokens = stage.rules, sum(e.tokens for e in stage.view.system)
    question = next((m for m in reversed(messages) if is_question(m)), None)
    tokens = engine.ports.counter.count(question) if question is not None else 0
    if tokens + system_tokens > rules.budget_tokens:
        window = session.described_window(stage.context_window)
        raise MessageTooLargeError(
            f"the message has {tokens} tokens and the system prompt {system_tokens}, but only {rules.budget_tokens} of the "
            f"window of {window} are free for the prompt: shorten it or raise context_window"
        )


def _overhead_tokens(engine: Engine, stage: Stage, options: Options) -> int:
    """Returns what a request will hold besides the view, and what its reply takes beyond the reserve."""
    counter = engine.ports.counter
    reply = max(0, (options.max_tokens or 0) - stage.rules.reply_reserve_tokens)
    return counter.count_tools(options.tools) + scratch_tokens(options.scratch, "user", counter) + reply


def _with_room_for_passages(engine: Engine, stage: Stage, options: Options, new: Sequence[Message] = ()) -> Options:
    """Returns the options with as much of the passages as fits beside system prompt, tools and the question with its rounds.

    `new` are messages that come behind the view. Rounds give way, but not whole: they keep a part of the window.
    """
    if options.passages is None:
        return options
    budget_tokens, counter = stage.rules.budget_tokens, engine.ports.counter
    after_question: list[int] = []
    for message, tokens in chain(
        ((m, counter.count(m)) for m in reversed(new)), ((e.message, e.tokens) for e in stage.view.newest_first())
    ):
        after_question.append(tokens)
        if is_question(message):
            break
    *rounds, question = after_question or [0]
    taken = _overhead_tokens(engine, stage, options) + options.overhead_tokens + FRAME_TOKENS
    taken += sum(e.tokens for e in stage.view.system) + question + min(sum(rounds), budget_tokens // ROUNDS_PART)
    return with_passages(options, budget_tokens - taken, counter.count_text)


# 2. fit the view and build the request


def _next_request(engine: Engine, attempt: TurnAttempt, options: Options) -> Flow[Request]:
    """Makes the turn's view fit the window, by compaction where it is needed, and returns the request that shows it."""
    session, turn_id, counter = attempt.session, attempt.turn_id, engine.ports.counter
    backend = engine.ports.backend
    session.model = attempt.model
    stage = session.stage(turn_id, options.context_window)
    options = _with_room_for_passages(engine, stage, options)
    scratch_role: Role = "system" if backend is not None and backend.scratch_role == "system" else "user"
    if capabilities_of(backend, attempt.model).binds_reasoning:
        options = replace(options, scratch=None, recall=False)  # stored in the turn instead
    tools_tokens = counter.count_tools(options.tools) + options.overhead_tokens
    overhead_tokens = tools_tokens + scratch_tokens(options.scratch, scratch_role, counter)
    reworded_view = reworded(stage.view, attempt.shown, counter.count)
    window = yield from engine.fitter.window(
        session,
        stage,
        overhead_tokens=overhead_tokens + max(0, reworded_view.tokens - stage.view.tokens),
        max_tokens=options.max_tokens,
        auto_compact=options.auto_compact,
        recall=options.recall,
    )
    view = prompted(window.view, attempt.prompts, counter.count)
    view = reworded(ended_with(view, attempt.ends_with), attempt.shown, counter.count)
    window = replace(window, view=view)
    note_prefix(session, window, options, turn_id=turn_id, tools_tokens=tools_tokens, backend=backend)
    size = engine.fitter.note_window(session, window, overhead_tokens, turn_id)
    record_window(size.own_count, stage.rules.budget_tokens)
    if engine.events:
        now = session.with_new_view(stage)
        engine.events.emit(gauge(session, now, counter, size=size, auto_compact=options.auto_compact))
    request = build_request(session, window, options, model=attempt.model, rules=stage.rules, scratch_role=scratch_role)
    attempt.sent = SentRequest(request, window.view, session.tracker.repeated_tokens, 0.0)
    return request


# 3. send with recovery


def _send_with_recovery(
    engine: Engine, attempt: TurnAttempt, options: Options, send: Callable[[Request], Effect[Any]]
) -> Flow[Any]:
    """Sends the request; on an overflow it learns the limit, makes room and sends once more.

    After a second refusal what was compacted for it comes back; what was learnt about the model stays.
    """
    session, turn_id = attempt.session, attempt.turn_id
    request = yield from _next_request(engine, attempt, options)
    try:
        return (yield from _asking(engine, attempt, options, send, request))
    except BackendError as error:
        abilities = capabilities_of(engine.ports.backend, attempt.model)
        if error.kind == "reasoning_replay" and (abilities.binds_reasoning or abilities.reasoning_optional):
            # reasoning that the provider can do without: sent without, once; other rows would send the same again
            session.refused_seqs[attempt.model] = session.state.head
            request = yield from _next_request(engine, attempt, options)
            return (yield from _asking(engine, attempt, options, send, request))
        if error.kind != "context_overflow":
            raise
        first = error
    if not options.may_compact(session.rules(options.context_window)):
        raise ContextOverflowError(
            f"{first}; automatic compaction is off: call compact(force=True) or raise context_window"
        ) from first
    learnt = yield from calibrate_from_refusal(session, first, turn_id, attempt.model, options)
    before = frozenset(session.state.revertible)
    outcome = yield from engine.fitter.compact(session, session.stage(turn_id, options.context_window))
    if not outcome.compacted and not learnt:
        raise ContextOverflowError(f"{first}; nothing could be compacted ({outcome.reason})") from first
    try:
        request = yield from _next_request(engine, attempt, options)
        return (yield from _asking(engine, attempt, options, send, request))
    except BudgetError:
        attempt.compactions = yield from _compactions_since(session, before)
        raise
    except BackendError as error:
        if error.kind != "context_overflow":
            raise
        attempt.compactions = yield from _compactions_since(session, before)
        yield from calibrate_from_refusal(session, error, turn_id, attempt.model, options)
        raise ContextOverflowError(f"{error}; after compaction ({outcome.reason}) it still does not fit") from error


def _asking(
    engine: Engine, attempt: TurnAttempt, options: Options, send: Callable[[Request], Effect[Any]], request: Request
) -> Flow[Any]:
    """Sends the request, and notes which model was asked: a backend may pick another one at that moment."""
    try:
        return (yield from send(request))
    finally:
        backend = engine.ports.backend
        asked = options.model or (backend.model if backend is not None else "")
        if asked and asked != attempt.model:
            sent = attempt.session.sent_windows
            if attempt.turn_id in sent:
                sent[attempt.turn_id] = (asked, sent[attempt.turn_id][1])
            attempt.model = asked


def _compactions_since(session: Session, before: Collection[str]) -> Flow[tuple[str, ...]]:
    """Returns the ids of the compactions that are not among `before`, newest first."""
    with session.lock:
        new = [record_id for record_id in session.state.revertible if record_id not in before]
    records = yield from StoreCall(Store.find, session.key, new)
    return tuple(r.id for r in reversed(records) if isinstance(r.body, Compacted))


# 4. commit


def _commit(engine: Engine, attempt: TurnAttempt, options: Options, reply: Reply) -> Flow[Reply]:
    """Stores the reply; without tool calls it closes the turn, and the triggers are asked. Returns the reply as it is stored.

    A reply whose id the session has gets a new one. Raises TurnClosedError when another writer has closed the turn and its
    question is not in the conversation any more: the reply is not stored then.
    """
    session, ports = attempt.session, engine.ports
    if (yield from StoreCall(Store.find, session.key, (f"m:{reply.message.id}",))):
        reply = replace(reply, message=replace(reply.message, id=ports.ids.new()))
    message = validated(reply.message)
    attempt.reply_id = message.id
    size, learnt = calibration_drafts(session, attempt.turn_id, message)
    if reply.billed is not None:  # with a summary on the service's own side
        learnt.append(session.draft(OutputsSummarised((), usage=reply.billed - (message.usage or Usage()))))
    place = ReplyPlace(attempt.turn_id)

    def drafts(_: SessionState) -> Sequence[Draft]:
        nonlocal place
        place = place_of(attempt, ports)
        session.check_open(place.turn_id)
        added = session.draft(MessageAdded(message, request=size), turn_id=place.turn_id, record_id=f"m:{message.id}")
        closing = [session.closing(place.turn_id, "completed")] if is_final(message) else []
        return [*(session.closing(*ended) for ended in place.ended), added, *closing, *learnt]

    if attempt.listed:
        yield from session.append_decided(drafts)
    else:
        try:
            yield from session.append(drafts(session.state))
        except MessageConflictError:  # the turn has been closed elsewhere
            yield from session.refresh()
            yield from session.append_decided(drafts)
    if attempt.sent is not None:
        session.sent_request = replace(attempt.sent, at_s=ports.clock.now_s(), usage=message.usage)
    take_over(session, place.replaced, place.turn_id)
    for turn_id, status in place.ended:
        engine.turn_ended(session, turn_id, status)
    engine.tell_appended(session, (message,))
    if is_final(message):
        engine.turn_ended(session, place.turn_id, "completed")
        if questions := place.questions or questions_between(attempt, message):
            yield from move_to_end(engine, session, questions, behind=message.id)
        yield from _make_room(engine, session, options, message)
    return reply


def _repeat_reply(engine: Engine, attempt: TurnAttempt, options: Options, stored: Message) -> Flow[Reply]:
    """Returns a reply that an earlier attempt stored, whose process may have ended while it made room."""
    if is_final(stored):
        yield from _make_room(engine, attempt.session, options, stored)
    return Reply(stored, stored.usage, stored.finish_reason)


def _make_room(engine: Engine, session: Session, options: Options, reply: Message) -> Flow[None]:
    """Asks the triggers after a reply that ends its turn."""
    full = reply.finish_reason == "context_window"
    # a narrower window of the request does not count for the triggers at the end of its turn
    window = options.context_window
    wider = window if window is not None and window > session.own_rules().context_window else None
    stage = session.stage(None, wider)
    yield from engine.fitter.maintain(session, stage, full=full, auto_compact=options.auto_compact)


# when a step fails


def _roll_back(engine: Engine, attempt: TurnAttempt, work: Callable[[], Flow[None]] | None = None) -> Flow[None]:
    """Restores the session after this attempt has failed, now or, where the store fails too, when it is opened next."""
    attempt.leave()
    work = work or partial(_undo_attempt, engine, attempt)
    yield from engine.roll_back(attempt.session, attempt.new_turn, attempt.stored_ids, work)


def _undo_attempt(engine: Engine, attempt: TurnAttempt) -> Flow[None]:
    """Discards the turn that this attempt opened; one that was under way stays open, so that the caller can try again."""
    session, new_turn = attempt.session, attempt.new_turn
    yield from session.refresh()
    with (
        session.lock
    ):  # others may ask the same in it, have lost their messages to it, have added some, or have closed it
        others_wait = new_turn in (*session.in_flight, *session.taken_over.values())
        turn = session.state.open.get(new_turn)
        messages = [e for e in turn.entries if e.message.kind == "message"] if turn is not None else []
        joined = any(e.id not in (*attempt.stored_ids, attempt.reply_id) for e in messages)
        alone = not (others_wait or joined or new_turn in session.state.closed)
    yield from take_from_head(engine, session, attempt.head_sections)
    for record_id in attempt.compactions:
        yield from revert(engine, session, (record_id,))
    if alone and attempt.removal:
        yield from revert(engine, session, attempt.removal)
    if alone:  # last: where the store fails in between, a closed turn would say that others went on
        yield from engine.close(session, new_turn, "discarded")


def _undo_stream(engine: Engine, reply: OpenReply) -> Flow[None]:
    session, turn_id = reply.attempt.session, reply.attempt.turn_id
    yield from session.refresh()
    partial_reply = reply.fold.partial() if reply.options.on_abort == "keep_partial" else None
    turn = session.state.open.get(turn_id)
    if partial_reply is None or turn is None:
        yield from _undo_attempt(engine, reply.attempt)
    elif any(e.id == reply.message_id for e in turn.entries):
        # cancelled right after a reply with tool calls was stored: the caller never saw them
        yield from engine.close(session, turn_id, "aborted")
    else:
        aborted = Reply(replace(partial_reply, finish_reason="aborted"))
        yield from _commit(engine, reply.attempt, reply.options, aborted)
