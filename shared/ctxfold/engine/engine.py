"""Defines Engine: the flows that add turns, edit and compact the sessions of one set of ports."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, takewhile

from ctxfold.compaction.compact import strategy_in_force, strategy_named
from ctxfold.compaction.strategy import Strategy
from ctxfold.compaction.tool_outputs import Sizing, sized
from ctxfold.effects import LONG_CHARS, Call, Flow, StoreCall, off_loop
from ctxfold.engine.fit import WindowFitter
from ctxfold.engine.known_messages import (
    dropped_calls,
    is_stored,
    new_record_ids,
    open_turn_starts,
    with_stored_results,
)
from ctxfold.engine.request import NO_OPTIONS, Options
from ctxfold.errors import (
    CtxError,
    EmptyMessagesError,
    MessageConflictError,
    SessionNotFoundError,
    StoreFormatError,
    WindowTooSmallError,
)
from ctxfold.events import Appended, LossNoticed, MessagesLeftOut, Subscribers, TurnEnded
from ctxfold.history.cuts import (
    asked_results,
    check_sequence,
    open_calls,
    waiting_calls,
    waiting_turn,
    whole_rounds,
    with_known_calls,
)
from ctxfold.history.diff import prompt_changes
from ctxfold.history.records import STORE_KEY, Draft, MessageAdded, PolicyChanged, SessionKey, TurnClosed, TurnStatus
from ctxfold.lru import LruCache
from ctxfold.messages import MediaPart, Message, is_final, is_question, system, validated
from ctxfold.policy.settings import LEAST_BUDGET_TOKENS, Policy, session_limit
from ctxfold.protocols import Ports, Store
from ctxfold.retrieval.loss import says_missing
from ctxfold.sections.section import Section, check_sections
from ctxfold.state import (
    PendingRollback,
    Session,
    Stage,
    draft,
    load,
    policy_text,
    rules_to_open_with,
    searchable_chars,
)
from ctxfold.telemetry import record_event, record_opened
from ctxfold.validation import named

_log = logging.getLogger("ctxfold")
RESULTS_LOOKED_AT = 256  # newest messages that are searched for a result that comes again


@dataclass(frozen=True, slots=True)
class Added:
    """Holds what `add` stored: the messages that were new, and the turn that still waits for tool results."""

    messages: tuple[Message, ...]
    turn_id: str | None


class Engine:
    """Runs sessions over one set of ports. Safe across threads and tasks.

    The `max_sessions` sessions used last stay in memory, and any other in which a call or a compaction is under way.
    """

    def __init__(
        self,
        ports: Ports,
        rules: Policy,
        *,
        max_sessions: int | None = None,
        strategies: Sequence[Strategy] = (),
        sections: Sequence[Section] = (),
    ) -> None:
        self.ports = ports
        self.rules = rules
        self.strategies = {s.name: s for s in strategies}
        self.events = Subscribers(always=record_event)
        self.fitter = WindowFitter(ports, self.strategies, self.events, check_sections(sections))
        self.max_sessions = session_limit(max_sessions)
        self._open_sessions: LruCache[SessionKey, Session] = LruCache(
            self.max_sessions, in_use=lambda session: session.in_use
        )

    # sessions

    def open(
        self, key: SessionKey, *, create: bool = True, prompts: Sequence[str] | None = None, reread: bool = True
    ) -> Flow[Session]:
        """Returns the session, up to date. A new one is made with this engine's rules; `prompts` become its system prompts.

        `reread` False is for a later step of the same call: the log was read at its beginning, and is not read again.
        Raises SessionNotFoundError when it does not exist and `create` is off.
        """
        session = self.known(key)
        if session is not None and reread:
            try:
                yield from session.refresh()
            except SessionNotFoundError:  # it was erased meanwhile
                self.forget(lambda known: known == key)
                session = None
            else:
                yield from self._finish_rollbacks(session)
        if reread:
            record_opened(cached=session is not None)
        if session is None:
            self._check_prompts(prompts or (), self.rules, str(self.rules.context_window))
            session = yield from self._open_new(key, create)
        if prompts is not None:
            yield from self._set_prompts(session, prompts)
        return session

    def known(self, key: SessionKey) -> Session | None:
        """Returns the session as it was last read, None when it is not in memory; its log may have grown since."""
        session = self._open_sessions.get(key)
        if session is not None:
            session.model = self._model() or session.model
        return session

    def _model(self) -> str:
        """Returns the model that a request without one of its own asks; "" where the model comes with each call."""
        return self.ports.backend.model if self.ports.backend is not None else ""

    def forget(self, matches: Callable[[SessionKey], bool]) -> None:
        """Drops the matching sessions from memory; each is read again when it is opened next."""
        self._open_sessions.discard(lambda key, _: matches(key))

    def _open_new(self, key: SessionKey, create: bool) -> Flow[Session]:
        head = yield from StoreCall(Store.head, key)
        policy = draft(self.ports, PolicyChanged(policy_text(self.rules), self.ports.counter.id))
        if head is None:
            named(key)
        if head is None and create:
            yield from check_plain(key)
            yield from StoreCall(Store.append, key, (policy,))
        state = yield from load(key, self.ports)
        opened = Session(
            state,
            self.ports,
            unbound_seq=state.head,
            events=self.events,
            model=self._model(),
            opening_policy=self.rules if create else None,
        )
        rules = rules_to_open_with(self.rules, state)
        if create and "strategy" in self.rules.model_fields_set:
            strategy_named(self.rules.strategy, self.strategies, key.session)
        elif strategy_in_force(stored := opened.stored_rules().strategy, self.strategies, key.session).name != stored:
            rules = rules.model_copy(update={"strategy": stored})  # of a newer release, or the user's own
        session = self._open_sessions.get_or_make(key, lambda: opened)
        # who only looks, such as the command line, ends no turn: its tool may wait for a person
        if (create or self.ports.backend is not None) and (timed_out := session.timed_out_turns()):
            yield from session.close_turns(timed_out, "aborted")
        policy_json = policy_text(rules, session.state.policy_json)
        if create and session.state.policy_json != policy_json:
            body = PolicyChanged(policy_json, self.ports.counter.id)
            yield from session.append((session.draft(body),))
        return session

    def _set_prompts(self, session: Session, prompts: Sequence[str]) -> Flow[None]:
        """Replaces the system prompts that were set at construction, which opens a new epoch.

        System messages that came with the conversation stay.
        """
        if session.view().prompts == tuple(prompts):
            return
        self._check_prompts(prompts, session.rules(), session.described_window())
        yield from session.append_decided(
            lambda state: [session.draft(body) for body in prompt_changes(state, prompts)]
        )

    def _check_prompts(self, prompts: Sequence[str], rules: Policy, window: str) -> None:
        tokens = sum(self.ports.counter.count(validated(system(text, id="prompt"))) for text in prompts)
        free_tokens = rules.budget_tokens - tokens
        if prompts and free_tokens < LEAST_BUDGET_TOKENS:
            raise WindowTooSmallError(
                f"the system prompt has {tokens} tokens and the reply reserve {rules.reply_reserve_tokens}, "
                f"the window is {window}: {max(0, free_tokens)} are left, and a short question "
                f"needs {LEAST_BUDGET_TOKENS}; shorten the prompt or raise context_window"
            )

    # writing

    def add(
        self,
        session: Session,
        messages: Sequence[Message],
        *,
        turn_id: str | None = None,
        hold_in: str | None = None,
        known_ids: bool = True,
        skip_orphans: bool = False,
        expect: int | None = None,
        options: Options = NO_OPTIONS,
    ) -> Flow[Added]:
        """Stores messages and, when they complete a turn, makes room where the rules ask for it.

        Messages go to the open turn that waits for their tool results, else to `turn_id`, else straight into the view. With
        `hold_in` they stay in an open turn until it is closed; a turn that has to be opened gets that id.
        `known_ids` False says that all ids are newly made. `skip_orphans` leaves out incomplete tool rounds instead of raising
        OrphanToolResultError. With `expect`, raises HeadMovedError when the log does not end there. Of `options`,
        `auto_compact` False makes no room, and `context_window` is the window in which there has to be room.
        """
        if not messages:
            raise EmptyMessagesError("no message to add: give at least one")
        if (
            hold_in is not None
            and known_ids
            and turn_id is None
            and expect is None
            and _is_question(messages)
            and (yield from self._stored_at_once(session, messages[0], hold_in, options))
        ):
            return Added(tuple(messages), hold_in)
        checked, new_messages, record_ids = yield from self._unstored(
            session,
            messages,
            turn_id,
            known_ids=known_ids,
            skip_orphans=skip_orphans,
            stale=expect is not None,
        )
        turn = waiting_turn(session.open_turns(), new_messages) or turn_id
        if known_ids and len(new_messages) < len(checked):
            # a retry continues the turn that an earlier attempt left open
            starts = yield from open_turn_starts(session, checked, record_ids)
            if hold_in is None and (parts := [at for at, _ in starts if at]):
                add = partial(self.add, session, skip_orphans=skip_orphans, options=options)
                return (yield from self._add_parts(checked, parts, turn_id, add))
            if starts:
                turn = starts[-1][1]
                session.pending_rollbacks.pop(turn, None)
                if not new_messages:
                    return Added((), (yield from self._resume(session, turn, hold=hold_in is not None)))
        if not new_messages:
            return Added((), turn if turn in session.state.open else None)
        if turn in session.state.closed:
            if hold_in is not None and turn == turn_id:
                session.check_open(turn)  # what the messages go on from was taken back with it
            turn = None
        yield from self.fitter.note_reply(session, turn, new_messages)
        store = self._store_and_make_room if hold_in is None else partial(self._store, hold_in=hold_in)
        open_turn = yield from store(session, new_messages, turn, record_ids=record_ids, expect=expect, options=options)
        return Added(tuple(new_messages), open_turn)

    def tell_appended(self, session: Session, messages: Sequence[Message]) -> None:
        """Tells subscribers what was stored, and which replies say that something is missing that may have been compacted."""
        name, may_recall = session.key.session, session.state.compactions or session.state.excerpts
        lost = [LossNoticed(name, m) for m in messages if may_recall and is_final(m) and says_missing(m.text)]
        self.events.emit(Appended(name, tuple(messages)), *lost)

    def _stored_at_once(self, session: Session, question: Message, turn: str, options: Options) -> Flow[bool]:
        """Stores a question without a search for its id, which is nearly always new. Returns False when the session has it.

        Nothing is written then: a store refuses a known id with other content, and ignores one with the same content.
        """
        yield from self.count_long((validated(question),))
        stage, record_ids = session.stage(None, options.context_window), {question.id: f"m:{question.id}"}
        _, drafts = yield from self._drafts(session, stage, (question,), record_ids=record_ids, hold_in=turn)
        try:
            stored = yield from session.append(drafts)
        except MessageConflictError:
            yield from session.refresh()
            return False
        if not any(r.id == drafts[0].id and r.turn_id == turn for r in stored):  # another turn has it
            return False
        self.events.emit(Appended(session.key.session, (question,)))
        return True

    def _unstored(
        self,
        session: Session,
        messages: Sequence[Message],
        turn_id: str | None,
        *,
        known_ids: bool,
        skip_orphans: bool,
        stale: bool,
    ) -> Flow[tuple[Sequence[Message], Sequence[Message], Mapping[str, str]]]:
        """Returns the messages checked, those of them that are not stored yet, and the record ids of these.

        `stale` says that others may have written since the session was read.
        """
        given = [validated(m) for m in messages]
        checked: Sequence[Message] = _with_waiting_calls(session, given, turn_id)
        if known_ids and (moved := [m.id for m, n in zip(given, checked, strict=True) if m is not n]):
            # results of an earlier round, sent again after their reply, which calls tools, was stored
            chains = yield from session.record_chains(moved)
            checked = [m if is_stored(m, chains.get(m.id, ())) else n for m, n in zip(given, checked, strict=True)]
        yield from self.count_long(checked)
        record_ids = {m.id: f"m:{m.id}" for m in checked}
        if known_ids:
            checked, record_ids = yield from _matched(session, checked)
            if stale and len(record_ids) < len(checked):
                # who stored the known ones may have opened the turn that the others answer
                yield from session.refresh()
                checked, record_ids = yield from _matched(session, checked)
        elif dropped := (yield from dropped_calls(session, checked)):
            checked = (*dropped, *checked)
            record_ids |= yield from new_record_ids(session, dropped)
        checked = self.without_orphans(session, checked, turn_id) if skip_orphans else checked
        new_messages: Sequence[Message] = [m for m in {m.id: m for m in checked}.values() if m.id in record_ids]
        if skip_orphans and len(new_messages) < len(checked):
            # a call may be known from a turn that ended without its result, or with another one
            new_messages = self.without_orphans(session, new_messages, turn_id, may_be_empty=True)
        return checked, new_messages, record_ids

    def without_orphans(
        self,
        session: Session,
        messages: Sequence[Message],
        turn_id: str | None,
        *,
        before_request: bool = False,
        may_be_empty: bool = False,
    ) -> Sequence[Message]:
        """Returns the messages without incomplete tool rounds, after the open turn that they answer or else after `turn_id`.

        Results of no call that end the list become text, unless the session has others of these calls. An event names the
        messages left out. When that would be all, all are returned, to be refused later, unless the rest `may_be_empty`. With
        `before_request` the model is asked now: calls at the very end were left by a run that failed, and are left out. So are
        results of calls that another request has noted as unanswered.
        """
        turns = session.open_turns()
        answered = {r.call_id for m in takewhile(lambda m: m.role == "tool", messages) for r in m.tool_results}
        open_turn = next((t for t in reversed(list(turns)) if answered & open_calls(turns[t]).keys()), turn_id)
        legal = whole_rounds(messages, waiting=open_calls(turns.get(open_turn or "", ())))
        asked = asked_results(messages, legal)
        if asked and not _has_results(session, open_turn, messages[-len(asked) :]):
            legal = (*legal, *asked)
        if not legal and not may_be_empty and not (before_request and asked):
            return messages
        if before_request and legal and legal[-1].tool_calls and (legal[1:] or open_turn in turns):
            legal = legal[:-1]
        kept = {m.id for m in legal}
        if left_out := tuple(m.id for m in messages if m.id not in kept):
            self.events.emit(MessagesLeftOut(session.key.session, left_out))
        return legal

    def _add_parts(
        self, messages: Sequence[Message], starts: Sequence[int], turn_id: str | None, add: Callable[..., Flow[Added]]
    ) -> Flow[Added]:
        """Adds a list in parts, each to the open turn in which a failed attempt has left the beginning of that part."""
        stored: list[Message] = []
        for start, end in pairwise((0, *starts, len(messages))):
            added = yield from add(messages[start:end], turn_id=turn_id)
            stored += added.messages
            turn_id = added.turn_id
        return Added(tuple(stored), turn_id)

    def _resume(self, session: Session, turn: str, *, hold: bool) -> Flow[str | None]:
        """Returns the open turn of messages that are all stored. Without `hold` it is closed, unless a tool call waits in it."""
        if hold or open_calls(session.view(turn).turn):
            return turn
        yield from self.close(session, turn, "completed")
        return None

    def count_long(self, messages: Sequence[Message]) -> Flow[None]:
        """Counts long messages off the event loop; the counter keeps the numbers."""
        for message in messages:
            media = sum([len(part.data) for part in message.parts if isinstance(part, MediaPart)])
            if media + searchable_chars(message) >= LONG_CHARS:
                yield from Call(partial(self.ports.counter.count, message))

    def _pieces(self, session: Session, stage: Stage, new_messages: Sequence[Message]) -> tuple[Sequence[Message], ...]:
        """Returns the messages in one piece, or split before each reply if the request for the last reply would not have fit.

        So a transcript is compacted alike whether it is stored request by request or as a whole.
        """
        reply_starts = [
            i
            for i in range(1, len(new_messages))
            if new_messages[i].role == "assistant" and new_messages[i - 1].role != "assistant"
        ]
        if not reply_starts or any(is_final(m) for m in new_messages[:-1]):
            return (new_messages,)
        room = stage.rules.budget_tokens - stage.view.tokens - session.overhead_tokens
        if sum(map(self.ports.counter.count, new_messages[: reply_starts[-1]])) <= room:
            return (new_messages,)
        return tuple(new_messages[a:b] for a, b in pairwise((0, *reply_starts, len(new_messages))))

    def _store_and_make_room(
        self,
        session: Session,
        new_messages: Sequence[Message],
        turn: str | None,
        *,
        record_ids: Mapping[str, str],
        expect: int | None,
        options: Options,
    ) -> Flow[str | None]:
        """Stores new messages and compacts where requests for them would have. Returns the turn that stays open, if any."""
        store = partial(self._store, session, record_ids=record_ids, options=options)
        stage = session.stage(turn, options.context_window)
        if not options.may_compact(stage.rules):
            return (yield from store(new_messages, turn, expect=expect))
        pieces = self._pieces(session, stage, new_messages)
        if len(pieces) > 1:
            open_turn = yield from self._store_pieces(session, pieces, turn, store, expect=expect, options=options)
        else:
            open_turn = yield from store(new_messages, turn, expect=expect)
        if open_turn is None and new_messages[-1].role in ("user", "tool"):
            stage = session.stage(None, options.context_window)
            if not open_calls(stage.view.live):  # no request is made before all results of a round are there
                yield from self.fitter.make_room(session, stage)
        return open_turn

    def _store_pieces(
        self,
        session: Session,
        pieces: Sequence[Sequence[Message]],
        turn: str | None,
        store: Callable[..., Flow[str | None]],
        *,
        expect: int | None,
        options: Options,
    ) -> Flow[str | None]:
        """Stores a turn in pieces and makes room before each reply; no other turn sees it before it is complete."""
        open_turn = turn or self.ports.ids.new()
        stored_ids: set[str] = set()
        try:
            for piece in pieces[:-1]:
                yield from store(piece, open_turn, hold_in=open_turn, expect=expect)
                stored_ids.update(m.id for m in piece)
                expect = None
                yield from self.fitter.make_room(session, session.stage(open_turn, options.context_window))
            return (yield from store(pieces[-1], open_turn))
        except GeneratorExit:
            raise
        except BaseException:
            if turn is None:
                discard = partial(self.close, session, open_turn, "discarded")
                yield from self.roll_back(session, open_turn, stored_ids, discard)
            raise

    def _store(
        self,
        session: Session,
        new_messages: Sequence[Message],
        turn: str | None,
        *,
        record_ids: Mapping[str, str],
        hold_in: str | None = None,
        expect: int | None = None,
        options: Options,
    ) -> Flow[str | None]:
        """Appends new messages to a turn, or to the view. Returns the open turn that they are in, if any; see `add`."""
        stage = session.stage(turn, options.context_window)
        open_turn, drafts = yield from self._drafts(
            session, stage, new_messages, record_ids=record_ids, hold_in=hold_in
        )
        # a tool that answers itself, or a structured answer, ends the turn of its question
        answers = new_messages[-1].role == "tool" and any(is_question(e.message) for e in stage.view.turn)
        try:
            yield from session.append_messages(drafts, expect=expect)
        except MessageConflictError:
            yield from session.refresh()
            for item in drafts:
                session.check_open(item.turn_id)
            raise
        session.check_open(open_turn)
        self.tell_appended(session, new_messages)
        for item in drafts:
            if isinstance(item.body, TurnClosed):
                self.turn_ended(session, item.turn_id or "", item.body.status)
        if open_turn is None and (answers or is_final(new_messages[-1])):
            stage = session.stage(None, options.context_window)
            yield from self.fitter.maintain(session, stage, auto_compact=options.auto_compact)
        return open_turn

    def _drafts(
        self,
        session: Session,
        stage: Stage,
        new_messages: Sequence[Message],
        *,
        record_ids: Mapping[str, str],
        hold_in: str | None,
    ) -> Flow[tuple[str | None, list[Draft]]]:
        """Returns the open turn that the messages will be in, if any, and the drafts that store them."""
        turn, view = stage.turn_id, stage.view
        drafts: list[Draft] = []
        waiting = open_calls(view.turn)
        for_model = [m for m in new_messages if m.visibility != "user"]  # others belong to no turn
        if waiting and for_model and for_model[0].role != "tool":
            drafts.append(session.closing(turn or "", "aborted"))
            turn, waiting = None, Counter[str]()
        pending = check_sequence(for_model, waiting=waiting)
        open_turn = turn or hold_in or (self.ports.ids.new() if pending else None)
        turn_by_id = {m.id: open_turn for m in for_model}
        after = Sizing(view, session.overhead_tokens)
        measure = partial(sized, new_messages, rules=stage.rules, counter=self.ports.counter, after=after)
        chars = sum(searchable_chars(m) for m in new_messages if m.role == "tool")  # others are never excerpts
        drafts += [
            session.draft(
                MessageAdded(m, shown, session.reply_sizes.pop(m.id, None)),
                turn_id=turn_by_id.get(m.id),
                record_id=record_ids[m.id],
                provisional=hold_in is not None,
            )
            for m, shown in (yield from off_loop(measure, chars))
        ]
        if open_turn is None or pending or hold_in is not None or not for_model:
            return open_turn, drafts
        return None, [*drafts, session.closing(open_turn, "completed")]

    def close(self, session: Session, turn_id: str, status: TurnStatus) -> Flow[None]:
        """Closes a turn if it is open. In the view, "aborted" keeps its finished part, "discarded" nothing; the log keeps both."""
        if (yield from session.close_turns((turn_id,), status)):
            self.turn_ended(session, turn_id, status)

    def roll_back(
        self, session: Session, turn_id: str, stored_ids: Collection[str], work: Callable[[], Flow[None]]
    ) -> Flow[None]:
        """Restores the session with `work` after an attempt that stored the messages `stored_ids` in the turn and failed.

        When the store fails again, the session is restored when it is opened next, and the caller gets the attempt's own error.
        """
        try:
            yield from work()
        except GeneratorExit:
            raise
        except SessionNotFoundError:
            pass  # erased meanwhile, with what the attempt had stored: a rollback that waits would keep its texts in memory
        except BaseException as error:
            session.pending_rollbacks[turn_id] = PendingRollback(frozenset(stored_ids), session.state.head, work)
            if not isinstance(error, CtxError):
                raise
            _log.warning("session %r is put back later: %s", session.key.session, error)

    def _finish_rollbacks(self, session: Session) -> Flow[None]:
        """Restores the session where a failed attempt could not; a turn that another attempt has continued is left alone."""
        for turn_id, pending in list(session.pending_rollbacks.items()):
            turns = session.open_turns()
            entries = turns.pop(turn_id, ())
            if any(e.message.kind == "message" and e.id not in pending.stored_ids for e in entries):
                session.pending_rollbacks.pop(turn_id, None)
                continue
            went_on = any(others[-1].seq > pending.head for others in (session.view().live, *turns.values()) if others)
            try:
                yield from self.close(session, turn_id, "discarded") if went_on else pending.work()
            except CtxError as error:  # nothing is lost by that: it is tried again when the session is opened next
                _log.warning("session %r is put back later: %s", session.key.session, error)
                yield from session.refresh()  # a part of it may have been written
                return
            session.pending_rollbacks.pop(turn_id, None)

    def turn_ended(self, session: Session, turn_id: str, status: TurnStatus) -> None:
        session.sent_windows.pop(turn_id, None)
        session.tracker.ended(turn_id, dropped=status != "completed")
        self.events.emit(TurnEnded(session.key.session, turn_id, status))


def check_plain(key: SessionKey) -> Flow[None]:
    """Raises StoreFormatError where a new session would stand in plain text in an encrypted store."""
    if (yield from StoreCall(Store.head, STORE_KEY)) is not None:
        raise StoreFormatError(f"the store of session {key.session!r} is encrypted: open it with encrypted()")


def _has_results(session: Session, turn_id: str | None, messages: Sequence[Message]) -> bool:
    """Tells whether all are results of calls with results in the turn, or among the newest messages where it is empty."""
    view = session.view(turn_id)
    entries = view.turn or view.live[-RESULTS_LOOKED_AT:]
    known = {r.call_id for e in entries for r in e.message.tool_results}
    calls = {r.call_id for m in messages for r in m.tool_results}
    return bool(calls) and calls <= known and all(m.role == "tool" for m in messages)


def _is_question(messages: Sequence[Message]) -> bool:
    """Tells whether the messages are one question. An object of another type is refused where it is stored."""
    first = messages[0]
    is_message = isinstance(first, Message)  # pyright: ignore[reportUnnecessaryIsInstance] - what a user hands in
    return len(messages) == 1 and is_message and first.role == "user" and first.visibility != "user"


def _with_waiting_calls(session: Session, messages: Sequence[Message], turn_id: str | None) -> Sequence[Message]:
    """Returns the messages with leading results that name no call under the ids of those that wait in `turn_id`.

    Where none wait there, in the only turn in which calls wait: with several, a result without an id may be any one's.
    """
    if messages[0].role != "tool":
        return messages
    waiting = {t: waiting_calls(e.message for e in reversed(turn)) for t, turn in session.open_turns().items()}
    waiting = {t: calls for t, calls in waiting.items() if calls}
    answered = {r.call_id for r in messages[0].tool_results}
    if any(call.id in answered for calls in waiting.values() for call in calls):
        return messages
    calls = waiting.get(turn_id or "") or (next(iter(waiting.values())) if len(waiting) == 1 else ())
    return with_known_calls(messages, calls) if calls else messages


def _matched(session: Session, messages: Sequence[Message]) -> Flow[tuple[Sequence[Message], dict[str, str]]]:
    """Returns the messages as the session knows them, and for each one that has to be stored the id of its record.

    A tool call whose turn was aborted while it waited is put before its late result, to be stored again.
    """
    messages = yield from with_stored_results(session, messages)
    record_ids = yield from new_record_ids(session, messages)
    dropped = yield from dropped_calls(session, [m for m in messages if m.id in record_ids])
    if dropped:
        messages = (*dropped, *messages)
        record_ids = yield from new_record_ids(session, messages)  # a result may have the id of its call
    return messages, record_ids
