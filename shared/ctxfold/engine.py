"""What the model sees next: turns, requests and edits of sessions, each written once as a flow.

`Engine` holds no connection of its own: everything outside comes through Ports. Its flows are driven by `flow.run` and `flow.arun`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ctxfold.budget import Policy
from ctxfold.compaction.apply import Outcome, compact
from ctxfold.compaction.clear_tools import sized
from ctxfold.compaction.plan import Facts, Mode
from ctxfold.effects import AppendLog, ReadHead
from ctxfold.errors import (
    ContextOverflowError,
    EmptyMessagesError,
    MessageNotFoundError,
    MessageTooLargeError,
    PinBudgetError,
    WindowTooSmallError,
)
from ctxfold.events import Appended, Event, Subscribers, TurnEnded
from ctxfold.flow import Flow
from ctxfold.history.cuts import check_sequence, open_calls, round_of
from ctxfold.history.log import is_final
from ctxfold.history.records import (
    Body,
    Draft,
    MessageAdded,
    MessageRemoved,
    MessageReplaced,
    Pinned,
    PolicyChanged,
    Record,
    SessionKey,
    TurnStatus,
    Undone,
    Unpinned,
)
from ctxfold.history.view import View
from ctxfold.journal import Journal, append, closing, draft, load, refresh, stale_turns, unknown, without
from ctxfold.messages import Message, system, user, validated
from ctxfold.ports import Document, Ports
from ctxfold.zones.assemble import newest_question, recalled
from ctxfold.zones.recall import document

__all__ = ["Added", "Engine", "Window"]

FIT_TRIES = 3
Edit: TypeAlias = Callable[[View], tuple[Body, Event]]


@dataclass(frozen=True, slots=True)
class Added:
    """What `add` stored: the messages that were new, and the turn that still waits for tool results."""

    messages: tuple[Message, ...]
    turn_id: str | None


@dataclass(frozen=True, slots=True)
class Window:
    """What a model may be shown: the view, and recalled passages that travel with this request only."""

    view: View
    recalled: str = ""

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.view.messages


class Engine:
    """Sessions over one set of ports. Safe across threads and tasks; sessions in use are kept in memory, least used go first."""

    def __init__(self, ports: Ports, rules: Policy, *, max_sessions: int = 256) -> None:
        self.ports = ports
        self.rules = rules
        self.events = Subscribers()
        self._max_sessions = max_sessions
        self._journals: OrderedDict[SessionKey, Journal] = OrderedDict()
        self._lock = threading.Lock()

    # sessions

    def open(self, key: SessionKey, *, create: bool = True, prompts: Sequence[str] | None = None) -> Flow[Journal]:
        """The session, up to date. A new one is made with this engine's rules; `prompts` become its system prompts.

        SessionNotFoundError when it does not exist and `create` is off.
        """
        journal = self._journals.get(key)
        if journal is not None:
            yield from refresh(journal, self.ports)
        else:
            journal = yield from self._open_new(key, create)
        if prompts is not None:
            yield from self._set_prompts(journal, prompts)
        return journal

    def _open_new(self, key: SessionKey, create: bool) -> Flow[Journal]:
        head = yield from ReadHead(key)
        policy = draft(self.ports, PolicyChanged(self.rules.model_dump_json(), self.ports.counter.id))
        if head is None and create:
            yield from AppendLog(key, (policy,))
        state = yield from load(key, self.ports)
        with self._lock:
            journal = self._journals.setdefault(key, Journal(state))
            self._journals.move_to_end(key)
            while len(self._journals) > self._max_sessions:
                self._journals.popitem(last=False)
        dead = stale_turns(journal, self.ports)
        changed = create and journal.state.policy_json != self.rules.model_dump_json()
        if dead or changed:
            yield from append(journal, (*dead, *((policy,) if changed else ())), self.ports)
        return journal

    def _set_prompts(self, journal: Journal, prompts: Sequence[str]) -> Flow[None]:
        """System prompts are set at construction; other ones take their places and open a new epoch."""
        old = journal.view().system
        if [e.message.text for e in old] == list(prompts):
            return
        self._check_prompts(prompts, journal.rules())
        bodies: list[Body] = []
        for index, text in enumerate(prompts):
            if index >= len(old):
                bodies.append(MessageAdded(validated(system(text, id=self.ports.ids.new()))))
            elif old[index].message.text != text:
                bodies.append(MessageReplaced(validated(system(text, id=old[index].id))))
        if len(old) > len(prompts):
            bodies.append(MessageRemoved(tuple(e.id for e in old[len(prompts) :])))
        yield from append(journal, [draft(self.ports, body) for body in bodies], self.ports)

    def _check_prompts(self, prompts: Sequence[str], rules: Policy) -> None:
        tokens = sum(self.ports.counter.count(system(text, id="prompt")) for text in prompts)
        if tokens > rules.budget_tokens:
            raise WindowTooSmallError(
                f"the system prompt has {tokens} tokens and the reply reserve {rules.reply_reserve_tokens}, "
                f"the window is {rules.context_window}: shorten the prompt or raise context_window"
            )

    # writing

    def add(
        self,
        journal: Journal,
        messages: Sequence[Message],
        *,
        turn_id: str | None = None,
        hold: bool = False,
        known_ids: bool = True,
    ) -> Flow[Added]:
        """Store messages and, when they complete a turn, make room where the rules ask for it.

        Messages go to the open turn that waits for their tool results, else to `turn_id`, else straight into the view. With
        `hold` they stay in an open turn until it is closed. `known_ids` False says that all ids are newly made.
        """
        if not messages:
            raise EmptyMessagesError("no message to add: give at least one")
        checked = [validated(m) for m in messages]
        ids = (yield from unknown(journal, checked)) if known_ids else {m.id: f"m:{m.id}" for m in checked}
        fresh = [m for m in {m.id: m for m in checked}.values() if m.id in ids]
        turn = self._waiting_turn(journal, fresh) or turn_id
        if not fresh:
            return Added((), turn if turn in journal.state.open else None)
        turn, drafts = self._drafts(journal, fresh, turn, hold=hold, record_ids=ids)
        stored = yield from append(journal, drafts, self.ports)
        self.events.emit(Appended(journal.key.session, tuple(fresh)))
        yield from self._index_oversized(journal, drafts, stored)
        if turn is None and is_final(fresh[-1]):
            yield from self.maintain(journal)
        return Added(tuple(fresh), turn)

    def _drafts(
        self,
        journal: Journal,
        fresh: Sequence[Message],
        turn: str | None,
        *,
        hold: bool,
        record_ids: Mapping[str, str],
    ) -> tuple[str | None, list[Draft]]:
        entries = journal.view(turn).turn if turn else ()
        drafts: list[Draft] = []
        if turn is not None and not entries and turn in journal.state.closed:
            turn = None
        waiting = open_calls(entries)
        if waiting and fresh[0].role != "tool":
            drafts.append(closing(self.ports, turn or "", "aborted"))
            turn, waiting = None, set()
        pending = check_sequence(fresh, waiting=waiting)
        place = turn or (self.ports.ids.new() if pending or hold else None)
        drafts += [
            draft(self.ports, MessageAdded(m, shown), turn_id=place, record_id=record_ids[m.id])
            for m, shown in sized(fresh, rules=journal.rules(), counter=self.ports.counter)
        ]
        if place is None or pending or hold:
            return place, drafts
        return None, [*drafts, closing(self.ports, place, "completed")]

    def _waiting_turn(self, journal: Journal, fresh: Sequence[Message]) -> str | None:
        """The open turn whose call the first of the messages answers."""
        if not fresh or fresh[0].role != "tool":
            return None
        wanted = {r.call_id for r in fresh[0].tool_results}
        with journal.lock:
            for turn_id, turn in reversed(list(journal.state.open.items())):
                if wanted & open_calls(turn.entries):
                    return turn_id
        return None

    def _index_oversized(self, journal: Journal, drafts: Sequence[Draft], stored: Sequence[Record]) -> Flow[None]:
        seqs = {r.id: r.seq for r in stored}
        documents: list[Document] = [
            document(seqs[d.id], d.body.message)
            for d in drafts
            if isinstance(d.body, MessageAdded) and d.body.shown is not None and d.id in seqs
        ]
        if documents:
            yield from append(journal, (), self.ports, documents=documents)

    def begin(
        self, journal: Journal, messages: Sequence[Message], *, turn_id: str | None = None, known_ids: bool = True
    ) -> Flow[str]:
        """Store what a turn starts or goes on with, in an open turn that others do not see; its id.

        MessageTooLargeError when a user message can never fit; nothing is stored then.
        """
        rules = journal.rules()
        fixed = sum(e.tokens for e in journal.view().system)
        for message in messages:
            tokens = self.ports.counter.count(message) if message.role == "user" else 0
            if tokens + fixed > rules.budget_tokens:
                raise MessageTooLargeError(
                    f"the message has {tokens} tokens and the system prompt {fixed}, but only {rules.budget_tokens} of the "
                    f"window's {rules.context_window} are free for the prompt: shorten it or raise context_window"
                )
        added = yield from self.add(journal, messages, turn_id=turn_id, hold=True, known_ids=known_ids)
        return added.turn_id or turn_id or self.ports.ids.new()

    def finish(self, journal: Journal, turn_id: str, reply: Message) -> Flow[bool]:
        """Store a reply; without tool calls it closes the turn. Whether the turn is closed."""
        added = validated(reply)
        drafts = [draft(self.ports, MessageAdded(added), turn_id=turn_id, record_id=f"m:{reply.id}")]
        done = is_final(added)
        if done:
            drafts.append(closing(self.ports, turn_id, "completed"))
        yield from append(journal, drafts, self.ports)
        self.events.emit(Appended(journal.key.session, (added,)))
        if done:
            yield from self._ended(journal, turn_id, "completed")
        return done

    def close(self, journal: Journal, turn_id: str, status: TurnStatus) -> Flow[None]:
        """End a turn: "aborted" keeps its finished part, "discarded" nothing, in the view; the log keeps both."""
        yield from append(journal, (closing(self.ports, turn_id, status),), self.ports)
        yield from self._ended(journal, turn_id, status)

    def _ended(self, journal: Journal, turn_id: str, status: str) -> Flow[None]:
        journal.tracker.ended(turn_id)
        self.events.emit(TurnEnded(journal.key.session, turn_id, status))
        if status == "completed":
            yield from self.maintain(journal)

    # room

    def window(
        self,
        journal: Journal,
        *,
        turn_id: str | None = None,
        overhead_tokens: int = 0,
        max_tokens: int | None = None,
        auto_compact: bool | None = None,
        recall: bool = True,
        question: str | None = None,
    ) -> Flow[Window]:
        """What a request may hold, made to fit. ContextOverflowError when it cannot, or may not be, made to.

        `question` is what is about to be asked, where it is not stored yet: it is counted, and recall looks for it.
        """
        rules = journal.rules()
        extra = overhead_tokens + max(0, (max_tokens or 0) - rules.reply_reserve_tokens)
        allowed = rules.auto_compact if auto_compact is None else auto_compact
        view = journal.view(turn_id)
        asked = self._coming(journal, view, question)
        extra += self.ports.counter.count(asked) if asked else 0
        reason = "automatic compaction is off"
        for _ in range(FIT_TRIES if allowed else 0):
            if view.tokens + extra <= rules.budget_tokens:
                break
            outcome = yield from self._compact(journal, "cap", turn_id=turn_id, overhead_tokens=extra)
            reason = outcome.reason
            view = journal.view(turn_id)
            if not outcome.compacted:
                break
        if view.tokens + extra > rules.budget_tokens:
            raise ContextOverflowError(
                f"the request needs {view.tokens + extra + rules.reply_reserve_tokens} tokens, the window is "
                f"{rules.context_window} ({reason}): raise context_window, unpin messages or call compact()"
            )
        if not recall:
            return Window(view)
        room = rules.budget_tokens - view.tokens - extra
        text = yield from recalled(journal, view, self.ports, question=asked or newest_question(view), room_tokens=room)
        return Window(view, text)

    def _coming(self, journal: Journal, view: View, question: str | None) -> Message | None:
        """The question as a message, unless it stands in the view already."""
        newest = newest_question(view) if question else None
        if not question or (newest is not None and newest.text == question):
            return None
        # recalled passages are kept by id: after a compaction there is more to find
        return user(question, id=f"asked:{journal.state.compactions}")

    def maintain(self, journal: Journal) -> Flow[None]:
        """Ordinary triggers, asked when a turn has closed."""
        if journal.rules().auto_compact:
            yield from self._compact(journal, "close")

    def compact(self, journal: Journal) -> Flow[Outcome]:
        """Compaction on demand, whatever the triggers say."""
        return (yield from self._compact(journal, "forced"))

    def _compact(
        self, journal: Journal, mode: Mode, *, turn_id: str | None = None, overhead_tokens: int = 0
    ) -> Flow[Outcome]:
        state = journal.state
        since = state.turns - state.summary_turn if state.summary_turn >= 0 else state.turns + 1
        facts = Facts(tuple(state.pins), since, turn_id, overhead_tokens, mode)
        outcome, events = yield from compact(journal, facts, self.ports)
        for event in events:
            self.events.emit(event)
        return outcome

    # edits

    def edit(self, journal: Journal, change: Edit) -> Flow[Event]:
        """One edit of the live conversation, decided on the newest view and written only if nobody was first."""
        body, event = change(journal.view())
        yield from append(journal, (draft(self.ports, body),), self.ports, expect=journal.state.head)
        self.events.emit(event)
        return event

    def pin(self, journal: Journal, ids: Sequence[str]) -> Flow[None]:
        """Keep messages verbatim through every compaction, with their tool rounds. PinBudgetError beyond their share."""
        entries = list(journal.view().live)
        places = {e.id: i for i, e in enumerate(entries)}
        for message_id in ids:
            if message_id not in places:
                raise MessageNotFoundError(
                    f"message {message_id!r} is not in the live conversation: restore it before pinning"
                )
        wanted = {*journal.state.pins, *ids}
        held = {
            e.id: e for i in map(places.get, wanted) if i is not None for e in entries[slice(*round_of(entries, i))]
        }
        tokens, rules = sum(e.tokens for e in held.values()), journal.rules()
        limit = int(rules.pin_ratio * rules.budget_tokens)
        if tokens > limit:
            raise PinBudgetError(
                f"pinned messages would take {tokens} tokens, their share is {limit}: unpin some or raise context_window"
            )
        yield from append(journal, (draft(self.ports, Pinned(tuple(ids))),), self.ports)

    def unpin(self, journal: Journal, ids: Sequence[str]) -> Flow[None]:
        yield from append(journal, (draft(self.ports, Unpinned(tuple(ids))),), self.ports)

    def undo(self, journal: Journal) -> Flow[None]:
        """Take back the last compaction or edit. ContextOverflowError, before anything is written, if that would not fit."""
        if not journal.state.revertible:
            raise MessageNotFoundError("there is no compaction or edit to undo")
        target = journal.state.revertible[-1]
        before = yield from without(journal.key, frozenset({*journal.state.undone, target}), self.ports)
        rules = journal.rules()
        if before.view().tokens > rules.budget_tokens:
            raise ContextOverflowError(
                f"undone, the session needs {before.view().tokens} tokens, the budget is {rules.budget_tokens}: "
                "raise context_window first"
            )
        yield from append(journal, (draft(self.ports, Undone(target)),), self.ports, expect=journal.state.head)
