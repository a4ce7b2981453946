"""What the model sees next: turns, requests and edits of sessions, each written once as a flow. Everything outside comes
through Ports; the flows are driven by `flow.run` and `flow.arun`."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, takewhile

from ctxfold.budget import LEAST_BUDGET_TOKENS, Policy
from ctxfold.calibration import observed, truncated
from ctxfold.compaction.apply import check_known, idle_time, index_oversized
from ctxfold.compaction.clear_tools import sized
from ctxfold.compaction.strategy import Strategy
from ctxfold.effects import AppendLog, FindLog, ReadHead
from ctxfold.errors import (
    CtxError,
    EmptyMessagesError,
    MessageConflictError,
    MessageTooLargeError,
    SessionNotFoundError,
    WindowTooSmallError,
)
from ctxfold.events import Appended, MessagesLeftOut, PromptTruncated, Subscribers, TurnEnded
from ctxfold.flow import LONG_CHARS, Call, Flow, off_loop
from ctxfold.given import named
from ctxfold.history.cuts import check_sequence, open_calls, round_tokens, waiting_turn, whole_rounds
from ctxfold.history.records import (
    Draft,
    MessageAdded,
    PolicyChanged,
    SessionKey,
    TurnClosed,
    TurnStatus,
)
from ctxfold.history.revise import prompt_changes
from ctxfold.journal import (
    Journal,
    TakeBack,
    append,
    check_open,
    close_turns,
    closing,
    decided,
    draft,
    dropped_calls,
    opened_rules,
    refresh,
    resumed,
    stale_turns,
    told_again,
    unknown,
)
from ctxfold.loading import load
from ctxfold.messages import MediaPart, Message, is_final, system, validated
from ctxfold.ports import Ports
from ctxfold.room import Room
from ctxfold.zones.recall import size_of
from ctxfold.zones.section import Section, check_sections

__all__ = ["Added", "Engine"]

_log = logging.getLogger("ctxfold")


@dataclass(frozen=True, slots=True)
class Added:
    """What `add` stored: the messages that were new, and the turn that still waits for tool results."""

    messages: tuple[Message, ...]
    turn_id: str | None


class Engine:
    """Sessions over one set of ports. Safe across threads and tasks; sessions in use are kept in memory, least used go first."""

    def __init__(
        self,
        ports: Ports,
        rules: Policy,
        *,
        max_sessions: int = 256,
        strategies: Sequence[Strategy] = (),
        sections: Sequence[Section] = (),
    ) -> None:
        self.ports = ports
        self.rules = rules
        self.strategies = {s.name: s for s in strategies}
        self.events = Subscribers()
        self.room = Room(ports, self.strategies, self.events)
        self.sections = sections
        self._max_sessions = max_sessions
        self._journals: OrderedDict[SessionKey, Journal] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def sections(self) -> tuple[Section, ...]:
        """What is put in beside the conversation, in order of precedence where not all of it fits."""
        return self.room.sections

    @sections.setter
    def sections(self, sections: Sequence[Section]) -> None:
        self.room.sections = check_sections(sections)

    # sessions

    def open(self, key: SessionKey, *, create: bool = True, prompts: Sequence[str] | None = None) -> Flow[Journal]:
        """The session, up to date. A new one is made with this engine's rules; `prompts` become its system prompts.

        SessionNotFoundError when it does not exist and `create` is off.
        """
        journal = self.known(key)
        if journal is not None:
            try:
                yield from refresh(journal, self.ports)
            except SessionNotFoundError:  # it was erased meanwhile
                self.forget(lambda known: known == key)
                journal = None
            else:
                yield from self._take_back_now(journal)
        if journal is None:
            self._check_prompts(prompts or (), self.rules)
            journal = yield from self._open_new(key, create)
        if prompts is not None:
            yield from self._set_prompts(journal, prompts)
        return journal

    def known(self, key: SessionKey) -> Journal | None:
        """The session as it was last seen; its log may have grown since."""
        with self._lock:
            journal = self._journals.get(key)
            if journal is not None:
                self._journals.move_to_end(key)
                journal.model = self._model() or journal.model
        return journal

    def _model(self) -> str:
        """The model that a request without one of its own would ask; "" where that comes with each call."""
        return self.ports.backend.model if self.ports.backend is not None else ""

    def forget(self, gone: Callable[[SessionKey], bool]) -> None:
        """Keep no session in memory whose key is one of these; each is read anew when it is opened again."""
        with self._lock:
            for key in [key for key in self._journals if gone(key)]:
                del self._journals[key]

    def _open_new(self, key: SessionKey, create: bool) -> Flow[Journal]:
        head = yield from ReadHead(key)
        policy = draft(self.ports, PolicyChanged(self.rules.model_dump_json(), self.ports.counter.id))
        if head is None:
            named(key)
        if head is None and create:
            yield from AppendLog(key, (policy,))
        state = yield from load(key, self.ports)
        opened = Journal(
            state,
            unbound_seq=state.head,
            rewriters=self.events.rewriters,
            model=self._model(),
            opened=self.rules if create else None,
        )
        given = create and "strategy" in self.rules.model_fields_set
        check_known((self.rules if given else opened.stored_rules()).strategy, self.strategies, key.session)
        with self._lock:
            journal = self._journals.setdefault(key, opened)
            self._journals.move_to_end(key)
            while len(self._journals) > self._max_sessions:
                self._journals.popitem(last=False)
        dead = stale_turns(journal, self.ports)
        if dead:
            yield from close_turns(journal, dead, "aborted", self.ports)
        rules = opened_rules(self.rules, journal.state).model_dump_json()
        if create and journal.state.policy_json != rules:
            body = PolicyChanged(rules, self.ports.counter.id)
            yield from append(journal, (draft(self.ports, body),), self.ports)
        return journal

    def _set_prompts(self, journal: Journal, prompts: Sequence[str]) -> Flow[None]:
        """System prompts are set at construction; other ones take their places and open a new epoch.

        Only those are touched that were set this way: system messages that came with the conversation stay.
        """
        if journal.view().prompts == tuple(prompts):
            return
        self._check_prompts(prompts, journal.rules())
        yield from decided(
            journal, lambda state: [draft(self.ports, body) for body in prompt_changes(state, prompts)], self.ports
        )

    def _check_prompts(self, prompts: Sequence[str], rules: Policy) -> None:
        tokens = sum(self.ports.counter.count(validated(system(text, id="prompt"))) for text in prompts)
        left = rules.budget_tokens - tokens
        if prompts and left < LEAST_BUDGET_TOKENS:
            raise WindowTooSmallError(
                f"the system prompt has {tokens} tokens and the reply reserve {rules.reply_reserve_tokens}, "
                f"the window is {rules.context_window}: {max(0, left)} are left, and a short question needs {LEAST_BUDGET_TOKENS}; "
                "shorten the prompt or raise context_window"
            )

    # writing

    def add(
        self,
        journal: Journal,
        messages: Sequence[Message],
        *,
        turn_id: str | None = None,
        new_turn: str | None = None,
        hold: bool = False,
        known_ids: bool = True,
        skip_orphans: bool = False,
        expect: int | None = None,
        auto_compact: bool | None = None,
    ) -> Flow[Added]:
        """Store messages and, when they complete a turn, make room where the rules ask for it.

        Messages go to the open turn that waits for their tool results, else to `turn_id`, else straight into the view. With
        `hold` they stay in an open turn until it is closed; a turn that has to be opened is called `new_turn`.
        `known_ids` False says that all ids are newly made. `skip_orphans` leaves out what is no whole tool round, in place of
        OrphanToolResultError. With `expect`, HeadMovedError when the log does not end there. `auto_compact` False makes no room.
        """
        if not messages:
            raise EmptyMessagesError("no message to add: give at least one")
        checked: Sequence[Message] = [validated(m) for m in messages]
        yield from self._counted(checked)
        checked = (yield from told_again(journal, checked)) if known_ids else checked
        ids = (yield from unknown(journal, checked)) if known_ids else {m.id: f"m:{m.id}" for m in checked}
        if known_ids and (back := (yield from dropped_calls(journal, [m for m in checked if m.id in ids]))):
            checked = (*back, *checked)
            ids |= yield from unknown(journal, back)
        checked = self.without_orphans(journal, checked, turn_id) if skip_orphans else checked
        fresh: Sequence[Message] = [m for m in {m.id: m for m in checked}.values() if m.id in ids]
        if skip_orphans and len(fresh) < len(checked):  # a call may be known from a turn that ended without its result
            fresh = self.without_orphans(journal, fresh, turn_id)
        turn = waiting_turn(journal.open_turns(), fresh) or turn_id
        if known_ids and len(fresh) < len(checked):
            # a retry: the turn that an earlier attempt has left open goes on, whoever opened it
            if expect is not None:
                yield from refresh(journal, self.ports)
            starts = resumed(journal, checked, ids)
            if not hold and (parts := [at for at, _ in starts if at]):
                add = partial(self.add, journal, new_turn=new_turn, skip_orphans=skip_orphans)
                return (yield from self._add_parts(checked, parts, turn_id, add))
            if starts:
                turn = starts[-1][1]
                journal.take_backs.pop(turn, None)
                if not fresh:
                    return Added((), (yield from self._resume(journal, turn, hold=hold)))
        if not fresh:
            return Added((), turn if turn in journal.state.open else None)
        makes_room = not hold and journal.may_compact(auto_compact)
        pieces = self._pieces(journal, fresh, turn) if makes_room else (fresh,)
        if len(pieces) > 1:
            place = yield from self._add_in_turn(journal, pieces, turn, ids=ids, new_turn=new_turn, expect=expect)
        else:
            place = yield from self._store(
                journal,
                fresh,
                turn,
                hold=hold,
                ids=ids,
                new_turn=new_turn,
                expect=expect,
                auto_compact=auto_compact,
            )
        if makes_room and place is None and fresh[-1].role in ("user", "tool"):
            yield from self.room.make_room(journal)
        return Added(tuple(fresh), place)

    def without_orphans(
        self, journal: Journal, messages: Sequence[Message], turn_id: str | None, *, asks: bool = False
    ) -> Sequence[Message]:
        """Returns the messages that can follow the open turn which they answer, or `turn_id`; the rest is told in an event.

        Where nothing is left of them, they come back as they are, and are refused later: nothing would be asked or stored.
        With `asks` the model is asked now: calls at the very end were left behind by a run that failed.
        """
        turns = journal.open_turns()
        answered = {r.call_id for m in takewhile(lambda m: m.role == "tool", messages) for r in m.tool_results}
        place = next((t for t in reversed(list(turns)) if answered & open_calls(turns[t])), turn_id)
        legal = whole_rounds(messages, waiting=open_calls(turns.get(place or "", ())))
        if not legal:
            return messages
        if asks and legal[-1].tool_calls and (legal[1:] or place in turns):
            legal = legal[:-1]
        kept = {m.id for m in legal}
        if left_out := tuple(m.id for m in messages if m.id not in kept):
            self.events.emit(MessagesLeftOut(journal.key.session, left_out))
        return legal

    def _add_parts(
        self, messages: Sequence[Message], starts: Sequence[int], turn_id: str | None, add: Callable[..., Flow[Added]]
    ) -> Flow[Added]:
        """Add a list part by part, where failed attempts have left parts of it in open turns: each part goes on in its turn."""
        stored: list[Message] = []
        for start, end in pairwise((0, *starts, len(messages))):
            added = yield from add(messages[start:end], turn_id=turn_id)
            stored += added.messages
            turn_id = added.turn_id
        return Added(tuple(stored), turn_id)

    def _resume(self, journal: Journal, turn: str, *, hold: bool) -> Flow[str | None]:
        """The open turn of messages that are all stored; without `hold` it is closed where no tool call waits in it."""
        if hold or open_calls(journal.view(turn).turn):
            return turn
        yield from self.close(journal, turn, "completed")
        return None

    def _counted(self, messages: Sequence[Message]) -> Flow[None]:
        """Count long messages off the event loop; the counter keeps what it found."""
        for message in messages:
            media = sum(len(part.data) for part in message.parts if isinstance(part, MediaPart))
            if media + size_of(message) >= LONG_CHARS:
                yield from Call(partial(self.ports.counter.count, message))

    def _pieces(self, journal: Journal, fresh: Sequence[Message], turn: str | None) -> tuple[Sequence[Message], ...]:
        """A turn's messages, parted where its requests stood when the last of these would not have fitted; else whole.

        So a transcript is compacted alike by who makes requests in a turn and by who stores it when it is over.
        """
        asked = [i for i in range(1, len(fresh)) if fresh[i].role == "assistant" and fresh[i - 1].role != "assistant"]
        if not asked or any(is_final(m) for m in fresh[:-1]):
            return (fresh,)
        room = journal.rules().budget_tokens - journal.view(turn).tokens - journal.overhead_tokens
        if sum(map(self.ports.counter.count, fresh[: asked[-1]])) <= room:
            return (fresh,)
        return tuple(fresh[a:b] for a, b in pairwise((0, *asked, len(fresh))))

    def _add_in_turn(
        self,
        journal: Journal,
        pieces: Sequence[Sequence[Message]],
        turn: str | None,
        *,
        ids: Mapping[str, str],
        new_turn: str | None,
        expect: int | None,
    ) -> Flow[str | None]:
        """Store a turn piece by piece, with room made before each reply; nobody sees it before it is whole."""
        place = turn or new_turn or self.ports.ids.new()
        own: set[str] = set()
        try:
            for piece in pieces[:-1]:
                yield from self._store(journal, piece, place, hold=True, ids=ids, expect=expect)
                own.update(m.id for m in piece)
                expect = None
                yield from self.room.make_room(journal, turn_id=place)
            return (yield from self._store(journal, pieces[-1], place, hold=False, ids=ids))
        except GeneratorExit:
            raise
        except BaseException:
            if turn is None:
                yield from self.take_back(journal, place, own, partial(self.close, journal, place, "discarded"))
            raise

    def _store(
        self,
        journal: Journal,
        fresh: Sequence[Message],
        turn: str | None,
        *,
        hold: bool,
        ids: Mapping[str, str],
        new_turn: str | None = None,
        expect: int | None = None,
        auto_compact: bool | None = None,
    ) -> Flow[str | None]:
        """Append new messages; the open turn that they are in, if any."""
        place, drafts = yield from self._drafts(journal, fresh, turn, hold=hold, record_ids=ids, new_turn=new_turn)
        try:
            stored = yield from append(journal, drafts, self.ports, expect=expect)
        except MessageConflictError:
            yield from refresh(journal, self.ports)
            for item in drafts:
                check_open(journal, item.turn_id)
            raise
        check_open(journal, place)
        self.events.emit(Appended(journal.key.session, tuple(fresh)))
        yield from index_oversized(journal, drafts, stored, self.ports)
        for item in drafts:
            if isinstance(item.body, TurnClosed):
                self._turn_ended(journal, item.turn_id or "", item.body.status)
        if place is None and is_final(fresh[-1]):
            yield from self.room.maintain(journal, auto_compact=auto_compact)
        return place

    def _drafts(
        self,
        journal: Journal,
        fresh: Sequence[Message],
        turn: str | None,
        *,
        hold: bool,
        record_ids: Mapping[str, str],
        new_turn: str | None,
    ) -> Flow[tuple[str | None, list[Draft]]]:
        entries = journal.view(turn).turn if turn else ()
        drafts: list[Draft] = []
        if turn is not None and not entries and turn in journal.state.closed:
            turn = None
        waiting = open_calls(entries)
        seen = [m for m in fresh if m.visibility != "user"]  # others belong to no turn
        if waiting and seen and seen[0].role != "tool":
            drafts.append(closing(self.ports, turn or "", "aborted"))
            turn, waiting = None, set[str]()
        pending = check_sequence(seen, waiting=waiting)
        place = turn or ((new_turn or self.ports.ids.new()) if pending or hold else None)
        places = {m.id: place for m in seen}
        shown_tokens = round_tokens(entries)
        measure = partial(sized, fresh, rules=journal.rules(), counter=self.ports.counter, shown_tokens=shown_tokens)
        drafts += [
            draft(self.ports, MessageAdded(m, shown), turn_id=places.get(m.id), record_id=record_ids[m.id])
            for m, shown in (yield from off_loop(measure, sum(map(size_of, fresh))))
        ]
        if place is None or pending or hold or not seen:
            return place, drafts
        return None, [*drafts, closing(self.ports, place, "completed")]

    def begin(
        self,
        journal: Journal,
        messages: Sequence[Message],
        *,
        new_turn: str,
        turn_id: str | None = None,
        known_ids: bool = True,
        auto_compact: bool | None = None,
    ) -> Flow[str]:
        """Store what a turn starts or goes on with, in an open turn that others do not see; its id.

        It is `new_turn`, unless the messages go on with another one. MessageTooLargeError when the newest user message can
        never fit; nothing is stored then.
        """
        if turn_id is None and (idle_s := (yield from idle_time(journal, self.ports))):
            yield from self.room.maintain(journal, idle_s=idle_s, auto_compact=auto_compact)
        rules = journal.rules()
        fixed = sum(e.tokens for e in journal.view().system)
        yield from self._counted(messages)
        # only the newest question has to stay whole: an older one that does not fit gives way like any other message
        question = next((m for m in reversed(messages) if m.role == "user" and m.kind == "message"), None)
        tokens = self.ports.counter.count(question) if question is not None else 0
        if tokens + fixed > rules.budget_tokens:
            raise MessageTooLargeError(
                f"the message has {tokens} tokens and the system prompt {fixed}, but only {rules.budget_tokens} of the "
                f"window's {rules.context_window} are free for the prompt: shorten it or raise context_window"
            )
        added = yield from self.add(
            journal, messages, turn_id=turn_id, new_turn=new_turn, hold=True, known_ids=known_ids
        )
        return added.turn_id or turn_id or new_turn

    def finish(
        self, journal: Journal, turn_id: str, reply: Message, *, auto_compact: bool | None = None
    ) -> Flow[Message]:
        """Store a reply; without tool calls it closes the turn. A reply whose id the session has gets a new one.

        TurnClosedError when somebody has closed the turn meanwhile: the reply is not part of the conversation then.
        """
        if (yield from FindLog(journal.key, (f"m:{reply.id}",))):
            reply = replace(reply, id=self.ports.ids.new())
        added = validated(reply)
        drafts = [draft(self.ports, MessageAdded(added), turn_id=turn_id, record_id=f"m:{reply.id}")]
        if is_final(added):
            drafts.append(closing(self.ports, turn_id, "completed"))
        drafts += self._learnt(journal, turn_id, added)
        check_open(journal, turn_id)
        try:
            yield from append(journal, drafts, self.ports)
        except MessageConflictError:
            yield from refresh(journal, self.ports)
            check_open(journal, turn_id)
            raise
        if not is_final(added):
            check_open(journal, turn_id)
        self.events.emit(Appended(journal.key.session, (added,)))
        if is_final(added):
            self._turn_ended(journal, turn_id, "completed")
            full = added.finish_reason == "context_window"
            yield from self.room.maintain(journal, full=full, auto_compact=auto_compact)
        return added

    def _learnt(self, journal: Journal, turn_id: str, reply: Message) -> list[Draft]:
        """What the reply's usage says of our counts; a prompt that the server cut is reported, and nothing is learnt from it."""
        model, asked = journal.asked.pop(turn_id, (journal.model, 0))
        journal.model = model
        reported = reply.usage.input_tokens if reply.usage else 0
        known = journal.state.calibrations.get(model)
        cuts = getattr(self.ports.backend, "truncates_silently", False)
        if cuts and truncated(known, estimated=asked, reported=reported):
            self.events.emit(PromptTruncated(journal.key.session, model, asked, reported))
            return []
        learnt = observed(known, model=model, estimated=asked, reported=reported)
        return [] if learnt is None else [draft(self.ports, learnt)]

    def close(self, journal: Journal, turn_id: str, status: TurnStatus) -> Flow[None]:
        """End a turn if it is open: "aborted" keeps its finished part, "discarded" nothing, in the view; the log keeps both."""
        if (yield from close_turns(journal, (turn_id,), status, self.ports)):
            self._turn_ended(journal, turn_id, status)

    def take_back(
        self, journal: Journal, turn_id: str, own: Collection[str], work: Callable[[], Flow[None]]
    ) -> Flow[None]:
        """Put the session back after an attempt that failed in turn `turn_id`, into which it had put the messages `own`.

        Where the store fails here too, the session is put back when it is opened next; the attempt's own error is what the
        caller hears of.
        """
        try:
            yield from work()
        except GeneratorExit:
            raise
        except BaseException as error:
            journal.take_backs[turn_id] = TakeBack(frozenset(own), journal.state.head, work)
            if not isinstance(error, CtxError):
                raise
            _log.warning("session %r is put back later: %s", journal.key.session, error)

    def _take_back_now(self, journal: Journal) -> Flow[None]:
        """Put the session back where a failed attempt could not; a turn that another attempt went on with is left alone."""
        for turn_id, kept in list(journal.take_backs.items()):
            turns = journal.open_turns()
            if any(e.id not in kept.own for e in turns.pop(turn_id, ())):
                journal.take_backs.pop(turn_id, None)
                continue
            went_on = any(entries[-1].seq > kept.head for entries in (journal.view().live, *turns.values()) if entries)
            try:
                yield from self.close(journal, turn_id, "discarded") if went_on else kept.work()
            except CtxError as error:  # nothing is lost by that: it is tried again when the session is opened next
                _log.warning("session %r is put back later: %s", journal.key.session, error)
                return
            journal.take_backs.pop(turn_id, None)

    def _turn_ended(self, journal: Journal, turn_id: str, status: TurnStatus) -> None:
        journal.asked.pop(turn_id, None)
        journal.tracker.ended(turn_id, dropped=status != "completed")
        self.events.emit(TurnEnded(journal.key.session, turn_id, status))
