"""One exchange with a model: store what is asked, fit the request, send it, store the reply. Flows over an engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from ctxfold.budget import check_least, resized
from ctxfold.calibration import overflowed
from ctxfold.editing import remove_ids, revert
from ctxfold.effects import Complete, FindLog, OpenStream
from ctxfold.engine import Engine
from ctxfold.errors import BackendError, BudgetError, ContextOverflowError
from ctxfold.events import RulesChanged
from ctxfold.flow import Flow
from ctxfold.history.alternation import alternating
from ctxfold.history.records import Compacted, SessionKey
from ctxfold.history.revise import prompted
from ctxfold.injection import beside, put_at_head, take_from_head
from ctxfold.journal import WINDOW_FIELDS, Journal, append, draft, refresh, request_window
from ctxfold.messages import Message, Role, ToolSpec, is_final
from ctxfold.ports import AsyncChunkStream, ChunkStream, Reply, Request
from ctxfold.reconcile import Reconciled, check_answered, reconcile, rewound, unheard_reply
from ctxfold.room import Window
from ctxfold.stream import Fold, Played
from ctxfold.zones.assemble import Scratch, first_unstable, place_scratch, scratch_message

__all__ = [
    "OnAbort",
    "OpenReply",
    "Options",
    "Question",
    "abandon",
    "ask",
    "finish_stream",
    "open_reply",
    "request_for",
    "turn_of",
]

OnAbort: TypeAlias = Literal["discard", "keep_partial"]


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may say about one request.

    `scratch` is one message at the very end that is never stored. `on_abort` says what a stream that is cancelled or fails
    leaves behind: nothing, or what had arrived, without tool calls. `extra` goes into the request body as it is.
    `overhead_tokens` is what the request will hold besides messages, scratch and tools. `context_window` takes the place of the
    session's window for this request, and at the end of its turn where it is larger; a limit that the model has named still holds.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    stop: tuple[str, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str | None = None
    thinking: bool | str | None = None
    model: str | None = None
    scratch: str | None = None
    recall: bool = True
    auto_compact: bool | None = None
    context_window: int | None = None
    on_abort: OnAbort = "discard"
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    overhead_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked where. `prompts` are the system prompts, None to leave them as they are.

    `messages` are new, unless `given_ids` is set: then they are a full list of which only what the session does not know is
    new, and `given_ids` are the ids that came with it. With `whole` too, answers that the session has after the newest message
    in common were left behind: they leave the conversation. `known_ids` False says that all ids were made for this question.
    `reply_id` is the id that a streamed reply gets, for faces that show it from the first chunk on; None makes one.
    """

    key: SessionKey
    messages: Sequence[Message]
    options: Options = field(default_factory=Options)
    prompts: tuple[str, ...] | None = None
    known_ids: bool = True
    given_ids: frozenset[str] | None = None
    reply_id: str | None = None
    whole: bool = False


@dataclass(slots=True)
class _Exchange:
    """What has to be taken back when an exchange fails: the turn `new_turn`, if it was opened, an edit, and sections in front.

    `model` is the one that is asked: what it reports is learnt about it alone. `own` are the messages that the exchange
    put into that turn.
    """

    journal: Journal
    new_turn: str
    turn_id: str
    model: str
    own: frozenset[str] = frozenset()
    compactions: tuple[str, ...] = ()  # records of what was compacted in vain, newest first
    removal: str | None = None
    head: tuple[Message, ...] = ()
    prompts: tuple[str, ...] | None = None


@dataclass(slots=True)
class OpenReply:
    """A reply on its way: feed each chunk of `stream` to `fold`, then finish, or abandon.

    `stored` is the reply itself where an earlier attempt stored it already; `stream` then plays it.
    """

    exchange: _Exchange
    message_id: str
    stream: ChunkStream | AsyncChunkStream
    fold: Fold
    options: Options
    stored: Message | None = None

    @property
    def turn_id(self) -> str:
        return self.exchange.turn_id


def ask(engine: Engine, question: Question) -> Flow[Reply]:
    """The model's reply, stored. When anything fails, the session is as it was before.

    A question that was stored together with its reply already, but whose caller never heard so, gets that reply again.
    """
    exchange = yield from _opened(engine, question)
    try:
        with request_window(question.key, question.options.context_window):
            if (known := (yield from _begin(engine, exchange, question))) is not None:
                return Reply(known, known.usage, known.finish_reason)
            reply: Reply = yield from _with_recovery(engine, exchange, question.options, _complete)
        stored = yield from _finish(engine, exchange, question.options, reply.message)
    except GeneratorExit:
        raise
    except BaseException:
        yield from _take_back(engine, exchange)
        raise
    return reply if stored == reply.message else replace(reply, message=stored)


def request_for(engine: Engine, question: Question) -> Flow[Request]:
    """The request that a full list makes, for somebody else to send: its reply comes with the next list.

    What the list has of finished turns joins the conversation, the rest stays in an open turn.
    """
    exchange = yield from _opened(engine, question)
    try:
        with request_window(question.key, question.options.context_window):
            yield from _settle(engine, exchange, question)
            yield from _begin(engine, exchange, question)
            request = yield from _fitted(engine, exchange, question.options)
    except GeneratorExit:
        raise
    except BaseException:
        yield from _take_back(engine, exchange)
        raise
    exchange.journal.asked.pop(exchange.turn_id, None)  # nobody will say what it took
    return request


def open_reply(engine: Engine, question: Question, message_id: str) -> Flow[OpenReply]:
    """The reply's stream, once its first event is there."""
    exchange = yield from _opened(engine, question)
    try:
        with request_window(question.key, question.options.context_window):
            if (known := (yield from _begin(engine, exchange, question))) is not None:
                return OpenReply(
                    exchange, known.id, Played(known), Fold(known.id, known.model), question.options, known
                )
            stream = yield from _with_recovery(engine, exchange, question.options, _open)
    except GeneratorExit:
        raise
    except BaseException:
        yield from _take_back(engine, exchange)
        raise
    return OpenReply(exchange, message_id, stream, Fold(message_id, exchange.model or None), question.options)


def finish_stream(engine: Engine, reply: OpenReply) -> Flow[Reply]:
    """Store what the stream has brought."""
    if reply.stored is not None:
        return Reply(reply.stored, reply.stored.usage, reply.stored.finish_reason)
    whole = reply.fold.close()
    stored = yield from _finish(engine, reply.exchange, reply.options, whole.message)
    return whole if stored == whole.message else replace(whole, message=stored)


def _finish(engine: Engine, exchange: _Exchange, options: Options, message: Message) -> Flow[Message]:
    """Store the reply. A narrower window of the request does not count for the triggers that the end of a turn asks."""
    journal, window = exchange.journal, options.context_window
    wider = window if window is not None and window > journal.own_rules().context_window else None
    with request_window(journal.key, wider):
        return (yield from engine.finish(journal, exchange.turn_id, message, auto_compact=options.auto_compact))


def turn_of(journal: Journal, message_id: str) -> str | None:
    """The open turn that ends with this message; None when its turn is over."""
    with journal.lock:
        turns = journal.state.open.items()
        return next((t for t, turn in turns if turn.entries and turn.entries[-1].id == message_id), None)


def abandon(engine: Engine, reply: OpenReply) -> Flow[None]:
    """Leave behind what the caller chose: nothing, or the text that had arrived. A reply that is stored already stays."""
    if reply.stored is None:
        yield from _take_back(engine, reply.exchange, partial(_abandoned, engine, reply))


def _abandoned(engine: Engine, reply: OpenReply) -> Flow[None]:
    journal, turn_id = reply.exchange.journal, reply.exchange.turn_id
    yield from refresh(journal, engine.ports)
    left = reply.fold.partial() if reply.options.on_abort == "keep_partial" else None
    turn = journal.state.open.get(turn_id)
    if left is None or turn is None:
        yield from _roll_back(engine, reply.exchange)
    elif any(e.id == reply.message_id for e in turn.entries):
        # cancelled right after a reply with tool calls was stored: the caller never saw them
        yield from engine.close(journal, turn_id, "aborted")
    else:
        yield from _finish(engine, reply.exchange, reply.options, replace(left, finish_reason="aborted"))


def _opened(engine: Engine, question: Question) -> Flow[_Exchange]:
    journal = yield from engine.open(question.key, prompts=question.prompts)
    if question.options.context_window is not None:
        check_least(resized(journal.own_rules(), question.options.context_window))
    new_turn = engine.ports.ids.new()
    journal.model = question.options.model or journal.model  # without one, the backend's
    by_request = bool(question.options.extra.get("context_management"))
    journal.provider_compacts = by_request or bool(getattr(engine.ports.backend, "compacts_itself", False))
    return _Exchange(journal, new_turn, new_turn, journal.model, prompts=question.prompts)


def _settle(engine: Engine, exchange: _Exchange, question: Question) -> Flow[None]:
    """Store what is new up to the newest final answer, in the turn that it answers."""
    if question.whole:
        yield from _drop_strays(engine, exchange.journal, question.given_ids or frozenset())
    found = yield from _reconciled(engine, exchange, question)
    ends = next((i for i in range(len(found.messages) - 1, -1, -1) if is_final(found.messages[i])), -1)
    if ends >= 0:
        yield from engine.add(
            exchange.journal,
            found.messages[: ends + 1],
            turn_id=found.turn_id,
            skip_orphans=True,
            auto_compact=question.options.auto_compact,
        )


def _drop_strays(engine: Engine, journal: Journal, ids: Collection[str]) -> Flow[None]:
    """Open turns with which a whole list does not go on: it went back behind them."""
    with journal.lock:
        strays = [t for t, turn in journal.state.open.items() if turn.entries and turn.entries[-1].id not in ids]
    for turn_id in strays:
        yield from engine.close(journal, turn_id, "discarded")


def _reconciled(engine: Engine, exchange: _Exchange, question: Question) -> Flow[Reconciled]:
    """What of the question is new; what it has gone back behind is gone."""
    if question.given_ids is None:
        return Reconciled(tuple(question.messages))
    journal = exchange.journal
    compare = partial(reconcile, given_ids=question.given_ids, whole=question.whole)
    found = compare(journal, question.messages)
    if found.turn_id and (begun_anew := rewound(journal, question.messages, found)) is not None:
        yield from engine.close(journal, found.turn_id, "discarded")
        found = Reconciled(begun_anew)
    if gone := found.superseded or found.left_behind:
        may_return = bool(found.left_behind)
        exchange.removal = yield from remove_ids(engine, journal, gone, may_return=may_return)
        found = compare(journal, question.messages)  # anew: a tool round goes as a whole
    return replace(found, messages=tuple(engine.without_orphans(journal, found.messages, found.turn_id, asks=True)))


def _begin(engine: Engine, exchange: _Exchange, question: Question) -> Flow[Message | None]:
    """Store what is new, in the turn that asks; the reply where nothing is new and the question was answered already."""
    journal = exchange.journal
    found = yield from _reconciled(engine, exchange, question)
    messages, turn_id = found.messages, found.turn_id
    if messages:
        options = question.options
        found_beside = yield from beside(
            engine,
            journal,
            messages,
            turn_id=turn_id,
            overhead_tokens=_overhead_tokens(engine, journal, options),
            recall=options.recall,
            scratch=options.scratch,
        )
        exchange.own = frozenset(m.id for m in found_beside.messages)
        turn_id = yield from engine.begin(
            journal,
            found_beside.messages,
            new_turn=exchange.new_turn,
            turn_id=turn_id,
            known_ids=question.known_ids,
            auto_compact=options.auto_compact,
        )
        exchange.head = found_beside.head
        yield from put_at_head(engine, journal, exchange.head)
        for event in found_beside.events:
            engine.events.emit(event)
    exchange.turn_id = turn_id or exchange.new_turn
    if (reply := unheard_reply(journal, exchange.turn_id, question.messages)) is not None:
        if question.given_ids is None:
            return reply
        # the list asks for its reply anew: the calls of the one before are nobody's
        yield from engine.close(journal, exchange.turn_id, "aborted")
        exchange.turn_id = exchange.new_turn
    check_answered(journal, exchange.turn_id)
    return None


def _take_back(engine: Engine, exchange: _Exchange, work: Callable[[], Flow[None]] | None = None) -> Flow[None]:
    """Put the session back after this exchange has failed, now or, where the store fails too, when it is opened next."""
    work = work or partial(_roll_back, engine, exchange)
    yield from engine.take_back(exchange.journal, exchange.new_turn, exchange.own, work)


def _roll_back(engine: Engine, exchange: _Exchange) -> Flow[None]:
    """A turn that this exchange opened goes; one that was under way stays open, so that the caller can try again."""
    yield from engine.close(exchange.journal, exchange.new_turn, "discarded")
    yield from take_from_head(engine, exchange.journal, exchange.head)
    for record_id in exchange.compactions:
        yield from revert(engine, exchange.journal, (record_id,))
    if exchange.removal is not None and exchange.new_turn not in exchange.journal.state.closed:
        yield from revert(engine, exchange.journal, (exchange.removal,))


def _complete(request: Request) -> Flow[Reply]:
    return (yield from Complete(request))


def _open(request: Request) -> Flow[ChunkStream | AsyncChunkStream]:
    return (yield from OpenStream(request))


def _with_recovery(
    engine: Engine, exchange: _Exchange, options: Options, send: Callable[[Request], Flow[Any]]
) -> Flow[Any]:
    """Send; on an overflow learn the limit, make room and send once more.

    After a second refusal what was compacted for it comes back; what was learnt about the model stays.
    """
    journal, turn_id = exchange.journal, exchange.turn_id
    request = yield from _fitted(engine, exchange, options)
    try:
        return (yield from send(request))
    except BackendError as error:
        if error.kind == "reasoning_replay" and getattr(engine.ports.backend, "binds_reasoning", False):
            # reasoning that the provider binds to what stood before it: sent without, once; other rows would send the same again
            journal.unbound_seq = journal.state.head
            return (yield from send((yield from _fitted(engine, exchange, options))))
        if error.kind != "context_overflow":
            raise
        first = error
    if not journal.may_compact(options.auto_compact):
        raise ContextOverflowError(
            f"{first}; automatic compaction is off: call compact() or raise context_window"
        ) from first
    learnt = yield from _learn(engine, exchange, options, first)
    before = frozenset(journal.state.revertible)
    outcome = yield from engine.room.compact(journal, turn_id=turn_id)
    if not outcome.compacted and not learnt:
        raise ContextOverflowError(f"{first}; nothing could be compacted ({outcome.reason})") from first
    try:
        request = yield from _fitted(engine, exchange, options)
        return (yield from send(request))
    except BudgetError:
        exchange.compactions = yield from _compacted_since(journal, before)
        raise
    except BackendError as error:
        if error.kind != "context_overflow":
            raise
        exchange.compactions = yield from _compacted_since(journal, before)
        yield from _learn(engine, exchange, options, error)
        raise ContextOverflowError(f"{error}; after compaction ({outcome.reason}) it still does not fit") from error


def _compacted_since(journal: Journal, before: Collection[str]) -> Flow[tuple[str, ...]]:
    """Returns the ids of the compactions that are not among `before`, newest first."""
    with journal.lock:
        new = [record_id for record_id in journal.state.revertible if record_id not in before]
    found = yield from FindLog(journal.key, new)
    return tuple(r.id for r in reversed(found) if isinstance(r.body, Compacted))


def _learn(engine: Engine, exchange: _Exchange, options: Options, error: BackendError) -> Flow[bool]:
    """Learns what a refusal says of the model's window and of how it counts; returns whether the rules in force changed."""
    journal, model = exchange.journal, exchange.model
    journal.model = model
    before, rules = journal.window_rules(), journal.rules()
    learnt = overflowed(
        journal.state.calibrations.get(model),
        model=model,
        estimated=journal.asked.get(exchange.turn_id, (model, 0))[1],
        requested=error.requested_tokens,
        limit=error.limit_tokens,
        max_tokens=options.max_tokens or 0,
    )
    if learnt is not None:
        yield from append(journal, (draft(engine.ports, learnt),), engine.ports)
    if journal.window_rules() != before:
        engine.events.emit(RulesChanged(journal.key.session, WINDOW_FIELDS))
    return journal.rules() != rules


def _overhead_tokens(engine: Engine, journal: Journal, options: Options) -> int:
    """What a request will hold besides the view, and what its reply takes beyond the reserve."""
    counter = engine.ports.counter
    scratch = counter.count(scratch_message(Scratch(options.scratch, "user"))) if options.scratch else 0
    reply = max(0, (options.max_tokens or 0) - journal.rules().reply_reserve_tokens)
    return counter.count_tools(options.tools) + scratch + reply


def _fitted(engine: Engine, exchange: _Exchange, options: Options) -> Flow[Request]:
    journal, turn_id, counter = exchange.journal, exchange.turn_id, engine.ports.counter
    backend = engine.ports.backend
    journal.model = exchange.model
    role: Role = "system" if backend is not None and backend.scratch_role == "system" else "user"
    if getattr(backend, "binds_reasoning", False):
        options = replace(options, scratch=None, recall=False)  # frozen in the turn instead
    tools_tokens = counter.count_tools(options.tools) + options.overhead_tokens
    scratch_tokens = counter.count(scratch_message(Scratch(options.scratch, role))) if options.scratch else 0
    window = yield from engine.room.window(
        journal,
        turn_id=turn_id,
        overhead_tokens=tools_tokens + scratch_tokens,
        max_tokens=options.max_tokens,
        auto_compact=options.auto_compact,
        recall=options.recall,
    )
    window = replace(window, view=prompted(window.view, exchange.prompts, counter.count))
    _note(engine, exchange, window, options, tools_tokens)
    tokens = window.view.tokens + tools_tokens + scratch_tokens + counter.count_text(window.recalled)
    journal.asked[turn_id] = (exchange.model, tokens)
    messages = place_scratch(list(window.messages), Scratch(options.scratch or "", role), window.recalled)
    unbound = [index for index, entry in enumerate(window.view) if entry.seq <= journal.unbound_seq]
    unbound_before = unbound[-1] + 1 if unbound else 0
    stable = first_unstable(messages)
    if journal.rules().alternating_roles:
        unbound_before = len(alternating(messages[:unbound_before]))
        kept, messages = alternating(messages[:stable]), alternating(messages)
        # the last of them is not stable where the scratch has joined it
        stable = sum(one == other for one, other in zip(kept, messages, strict=False))
    return Request(
        messages=messages,
        unbound_before=unbound_before,
        stable_messages=stable,
        cache_key=hashlib.sha256(repr(journal.key).encode()).hexdigest()[:32],
        tools=options.tools,
        tool_choice=options.tool_choice,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        stop=options.stop,
        thinking=options.thinking,
        model=options.model,
        extra=options.extra,
    )


def _note(engine: Engine, exchange: _Exchange, window: Window, options: Options, tools_tokens: int) -> None:
    tools = json.dumps([(t.name, t.description, dict(t.parameters)) for t in options.tools], sort_keys=True)
    backend, journal = engine.ports.backend, exchange.journal
    with journal.lock:
        cause = journal.tracker.sent(
            window.view,
            turn_id=exchange.turn_id,
            tools_tokens=tools_tokens,
            compactions=journal.state.compactions,
            edits=journal.state.edits,
            surroundings=(
                ("model", exchange.model),
                ("tools", hashlib.sha256(tools.encode()).hexdigest() if options.tools else ""),
                ("thinking", str(options.thinking)),
            ),
            reasoning_expires=getattr(backend, "reasoning_expires", False),
        )
    if cause is not None:
        journal.unbound_seq = journal.state.head
