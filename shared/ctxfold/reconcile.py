"""Which of a full message list a session does not have yet.

Chat models are handed the whole conversation on every call. Messages are recognised by id, or, without one, by position and
content: whatever stands after the session's last known message is new.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ctxfold.errors import MessageConflictError, OrphanToolResultError
from ctxfold.history.cuts import open_calls
from ctxfold.history.view import Entry
from ctxfold.journal import Journal
from ctxfold.messages import Message, content_key

__all__ = ["Reconciled", "check_answered", "reconcile", "rewound", "unheard_reply"]


@dataclass(frozen=True, slots=True)
class Reconciled:
    """New messages; the open turn that they go on with; and known messages that the caller has gone back behind: for another
    reply, or for another branch of the conversation, from which it may come back."""

    messages: tuple[Message, ...]
    turn_id: str | None = None
    superseded: tuple[str, ...] = ()
    left_behind: tuple[str, ...] = ()


def reconcile(
    journal: Journal, messages: Sequence[Message], *, given_ids: Collection[str], whole: bool = False
) -> Reconciled:
    """The part of `messages` after the last one that the session knows; all of it when it knows none.

    `given_ids` are the ids that came with the messages; others were made up on the way and say nothing. A list that ends with
    a known user message asks for its reply anew: what followed it is superseded. MessageConflictError when such a message
    has other words than the session knows. Where a `whole` conversation goes on from before an answer, that answer and what
    stands beside it was left behind.
    """
    with journal.lock:
        live = journal.state.live
        turns = {turn_id: turn.entries for turn_id, turn in journal.state.open.items()}
    owners = {e.id: turn_id for turn_id, entries in turns.items() for e in entries}
    tails = {content_key(entries[-1].message): turn_id for turn_id, entries in turns.items() if entries}
    if live:
        tails.setdefault(content_key(live[-1].message), "")
    known_live = {e.id for e in live[-_LOOK_BACK:]} if given_ids else set[str]()
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        place = _place(message, given_ids, owners, known_live, tails)
        if place is not None:
            fresh = tuple(messages[index + 1 :])
            if place:
                return Reconciled(fresh, place)
            if fresh:
                return Reconciled(fresh, left_behind=_left_behind(live, message) if whole else ())
            return Reconciled((), superseded=_after(journal, message))
    return Reconciled(tuple(messages))


def rewound(journal: Journal, messages: Sequence[Message], found: Reconciled) -> tuple[Message, ...] | None:
    """Returns the open turn as a list has it that goes on from before its newest round, for a turn of its own; else None.

    An agent's run that failed has left that round in the session, and its list is asked again without it; or the list ends
    with calls that nobody will answer any more.
    """
    with journal.lock:
        turn = journal.state.open.get(found.turn_id or "")
        entries = [] if turn is None else [*turn.entries]
    newest = messages[len(messages) - len(found.messages) - 1]
    # a message without an id of its own is known as a turn's last one
    at = next((i for i, e in enumerate(entries) if e.id == newest.id), len(entries) - 1)
    if not found.messages and newest.tool_calls:
        at -= 1
    if at < 0 or not any(e.message.role == "assistant" for e in entries[at + 1 :]):
        return None
    whole = {m.id: m for m in messages}  # an entry may hold an excerpt
    kept = (whole.get(e.id, e.message) for e in entries[: at + 1])
    return (*(replace(m, usage=None) for m in kept), *found.messages)


_LOOK_BACK = 512  # newest live messages whose ids are looked at; older ones are recognised by the store


def _place(
    message: Message,
    given_ids: Collection[str],
    owners: dict[str, str],
    known_live: Collection[str],
    tails: dict[str, str],
) -> str | None:
    """The open turn that holds the message, "" for the closed conversation, None when it is not known."""
    if message.id in given_ids:
        if message.id in owners:
            return owners[message.id]
        return "" if message.id in known_live else None
    return tails.get(content_key(message))


def _left_behind(live: Sequence[Entry], message: Message) -> tuple[str, ...]:
    """Messages after this one, if there is an answer among them: what was only added, such as a note, has none."""
    at = next((i for i in range(len(live) - 1, -1, -1) if live[i].id == message.id), len(live))
    later = live[at + 1 :]
    return tuple(e.id for e in later) if any(e.message.role == "assistant" for e in later) else ()


def _after(journal: Journal, message: Message) -> tuple[str, ...]:
    if message.role != "user":
        return ()
    live = journal.state.live
    at = next((i for i in range(len(live) - 1, -1, -1) if live[i].id == message.id), None)
    if at is None:
        return ()
    if not live[at].shown_seq and content_key(live[at].message) != content_key(message):
        raise MessageConflictError(
            f"message id {message.id!r} is in session {journal.key.session!r} with other content: "
            "give the new message an id of its own, or change the old one with update()"
        )
    return tuple(e.id for e in live[at + 1 :])


def check_answered(journal: Journal, turn_id: str) -> None:
    """OrphanToolResultError while calls of the turn wait for results: no service takes such a request."""
    with journal.lock:
        turn = journal.state.open.get(turn_id)
        waiting = open_calls(turn.entries) if turn is not None else set[str]()
    if waiting:
        raise OrphanToolResultError(
            f"{len(waiting)} tool call(s) still wait for a result ({', '.join(sorted(waiting))}), nothing was asked: "
            "send their results too, or add() those that come first"
        )


def unheard_reply(journal: Journal, turn_id: str, messages: Sequence[Message]) -> Message | None:
    """The reply that directly follows the newest of `messages`, as an earlier attempt stored it; its caller asks once more.

    None where the conversation has gone on, and for what was left of a stream that was given up.
    """
    with journal.lock:
        turn = journal.state.open.get(turn_id)
        entries = turn.entries if turn is not None else journal.state.live
    if len(entries) < 2 or entries[-2].id != messages[-1].id:
        return None
    reply = entries[-1].message
    heard = reply.role != "assistant" or reply.kind != "message" or reply.finish_reason == "aborted"
    return None if heard else reply
