"""Holds one attempt to get a reply, and says where the reply is stored when other requests are in the same turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, islice, takewhile

from ctxfold.history.cuts import open_calls
from ctxfold.history.records import TurnStatus
from ctxfold.history.view import Entry
from ctxfold.messages import Message, is_question
from ctxfold.protocols import Ports
from ctxfold.state import (
    SentRequest,
    Session,
)


@dataclass(slots=True)
class TurnAttempt:
    """Holds the progress of one call, and what has to be rolled back when it fails: a new turn, an edit, compactions."""

    session: Session
    new_turn: str  # the id of the turn that the attempt opens, if it opens one
    turn_id: str  # the turn that it asks in
    model: str  # the one that is asked: what it reports is learnt about it alone
    listed: bool = False  # its messages came as a list: other processes may ask the same in this turn
    stored_ids: frozenset[str] = frozenset()  # the messages that it put into its turn
    reply_id: str = ""  # of the reply that it stores
    compactions: tuple[str, ...] = ()  # records of compactions that did not help, newest first
    removal: tuple[str, ...] = ()  # the records that removed or moved messages which the list has gone back behind
    head_sections: tuple[Message, ...] = ()  # stored in front of the conversation
    prompts: tuple[str, ...] | None = None
    shown: Message | None = None  # the newest question as this request shows it, where that differs
    ends_with: str | None = None  # the message that is asked: what was said since is hidden from the request
    sent: SentRequest | None = None  # the newest request of the attempt
    entered: set[str] = field(default_factory=set[str])  # the turns that it is in

    def enter(self, turn_id: str) -> None:
        """Puts the attempt into a turn. A message without an id of its own, asked elsewhere meanwhile, does not join it."""
        self.turn_id = turn_id
        with self.session.lock:
            self.session.in_flight.update({turn_id} - self.entered)
            self.entered.add(turn_id)

    def leave(self) -> None:
        """Notes that the attempt asks nothing in its turns any more; other attempts may be in them still."""
        with self.session.lock:
            self.session.in_flight -= Counter(self.entered)
            for turn_id in self.entered - self.session.in_flight.keys():
                self.session.taken_over.pop(turn_id, None)
            self.entered.clear()


@dataclass(frozen=True, slots=True)
class ReplyPlace:
    """Says where a reply is stored when several requests are in one turn."""

    turn_id: str
    ended: Sequence[tuple[str, TurnStatus]] = ()  # turns that end before it, and how
    replaced: Collection[str] = ()  # turns whose waiting requests go on behind the reply
    questions: Sequence[Entry] = ()  # were added to its turn while it was asked: they belong behind the reply


def place_of(attempt: TurnAttempt, ports: Ports) -> ReplyPlace:
    """Returns the place of a reply: the turn in which it was asked, or a turn of its own behind one that others share."""
    if (shared_turn := _shared_turn(attempt)) is None:
        return ReplyPlace(attempt.turn_id)
    own_turn = attempt.new_turn if attempt.turn_id != attempt.new_turn else ports.ids.new()
    state = attempt.session.state
    shared = state.view(shared_turn).turn
    questions, waiting = _added_questions(attempt, shared), bool(open_calls(shared))
    # calls that wait there are stored again before their results, if these come
    ended: list[tuple[str, TurnStatus]] = (
        [(shared_turn, "aborted" if waiting else "completed")] if shared_turn in state.open else []
    )
    return ReplyPlace(own_turn, ended, {attempt.turn_id, shared_turn}, questions)


def take_over(session: Session, turn_ids: Collection[str], taker: str) -> None:
    """Notes that these turns end in favour of the turn `taker`, for other requests that wait in them."""
    with session.lock:
        in_flight, taken_over = session.in_flight, session.taken_over
        waiting = [t for t in turn_ids if t in in_flight] + [t for t, by in taken_over.items() if by in turn_ids]
        taken_over.update(dict.fromkeys(waiting, taker))


def _shared_turn(attempt: TurnAttempt) -> str | None:
    """Returns the turn that other requests have continued or taken over: the reply is a turn of its own then, behind that one.

    They repeat the question, as an agent does that continues after a cancellation, or have added a question, or have rewound
    past some of the messages. Returns None where the turn still ends as the request did.
    """
    session, turn_id = attempt.session, attempt.turn_id
    own_entries = attempt.sent.view.turn if attempt.sent is not None else ()
    with session.lock:
        state, taken_over = session.state, session.taken_over
        if turn_id in taken_over:
            return taken_over[turn_id]
        if not own_entries:
            return None
        turn = state.open.get(turn_id)
        if turn is None:
            is_shared = state.entry(own_entries[-1].id) is not None
        else:
            is_shared = turn.entries[-1].id != own_entries[-1].id
    return turn_id if is_shared else None


def _added_questions(attempt: TurnAttempt, shared: Sequence[Entry]) -> Sequence[Entry]:
    """Returns the messages that a shared turn has after those of this request, if all are questions: they follow the reply."""
    own_entries = attempt.sent.view.turn if attempt.sent is not None else ()
    later = [*dropwhile(lambda e: e.id != own_entries[-1].id, shared)][1:] if own_entries else []
    return later if all(is_question(e.message) for e in later) else ()


def questions_between(attempt: TurnAttempt, reply: Message) -> Sequence[Entry]:
    """Returns the questions that came between a stored question and its turn while it was asked: they belong behind the reply.

    That question stands in front of the turn where a memory over the session has put it.
    """
    view = attempt.sent.view if attempt.sent is not None else None
    if view is None or not view.live or any(e.message.role != "assistant" for e in view.turn[:1]):
        return ()
    first_id, end = (view.turn[0].id, view.turn[0].seq) if view.turn else (reply.id, view.live[-1].seq + 1)
    with attempt.session.lock:
        before = dropwhile(lambda e: e.id != first_id, reversed(attempt.session.state.live))
        questions = [*takewhile(lambda e: is_question(e.message), islice(before, 1, None))]
    later = [*takewhile(lambda e: e.seq >= end, questions)]
    return later[::-1] if len(later) < len(questions) else ()
