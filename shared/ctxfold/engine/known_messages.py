"""Recognises messages that a session has already, when a caller sends them again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile

from ctxfold.effects import Flow, StoreCall
from ctxfold.errors import MessageConflictError, MessageErasedError
from ctxfold.history.cuts import open_calls
from ctxfold.history.records import Erased, MessageAdded, MessageInserted, MessageReplaced, Record, TurnClosed
from ctxfold.history.snapshot import message_in
from ctxfold.history.view import Entry
from ctxfold.messages import Message, content_key, without_calls
from ctxfold.protocols import Store
from ctxfold.state import Session, record_name

DROPPED_LOOKED_AT = 64  # newest messages of aborted turns among which a late result finds its call


def new_record_ids(session: Session, messages: Sequence[Message]) -> Flow[dict[str, str]]:
    """Returns the ids of the messages that have to be stored, each with the id for its record.

    A known id with the same content is left out. A message counts as new again when its turn was discarded or, aborted, did not
    keep it, when it was removed, and when it was there before the conversation was cleared.

    Raises MessageConflictError for a known id with other content, and MessageErasedError when the last message was erased and
    asks for something; any other erased message is left out.
    """
    by_id: dict[str, Message] = {}
    for message in messages:
        same_id = by_id.setdefault(message.id, message)
        if same_id is not message and content_key(same_id) != content_key(message):
            raise MessageConflictError(f"message id {message.id!r} appears twice in the list with different content")
    chains = yield from session.record_chains(by_id)
    discarded = yield from _discarded_turns(session, [r for chain in chains.values() for r in chain])
    with session.lock:
        state = session.state
        open_ids = {e.id for turn in state.open.values() for e in turn.entries}
        uncleared_ids = open_ids | {e.id for e in state.system}
    record_ids: dict[str, str] = {}
    for message_id, message in by_id.items():
        chain = chains[message_id]
        if chain and isinstance(chain[-1].body, Erased):
            if message is messages[-1] and message.role != "assistant":
                raise MessageErasedError(
                    f"message {message_id!r} was erased, and its id cannot be used for another text: "
                    "give the new message an id of its own"
                )
            continue
        valid = [r for r in chain if r.turn_id not in discarded and r.id not in state.undone]
        removed = message_id not in open_ids and (message_id in state.removed or message_id in state.dropped)
        cleared = bool(valid) and valid[-1].seq < state.cleared_seq and message_id not in uncleared_ids
        if removed or cleared or not valid:
            record_ids[message_id] = record_name(message_id, len(chain) + 1)
        else:
            _check_same(session, message, valid)
    return record_ids


def _discarded_turns(session: Session, records: Sequence[Record]) -> Flow[frozenset[str | None]]:
    turns = sorted({r.turn_id for r in records if r.turn_id})
    if not turns:
        return frozenset()
    closings = yield from StoreCall(Store.find, session.key, [f"c:{turn}" for turn in turns])
    return frozenset(r.turn_id for r in closings if r.body == TurnClosed("discarded"))


def is_stored(message: Message, records: Sequence[Record]) -> bool:
    """Returns True where the message equals one of its stored versions: a caller that keeps a list may have an older one."""
    return content_key(message) in map(content_key, _versions(records))


def _versions(records: Sequence[Record]) -> list[Message]:
    bodies = [r.body for r in records]
    return [b.message for b in bodies if isinstance(b, MessageAdded | MessageInserted | MessageReplaced)]


def _check_same(session: Session, message: Message, records: Sequence[Record]) -> None:
    """Raises MessageConflictError unless the message equals one of its stored versions."""
    if is_stored(message, records):
        return
    # sessions of older versions have a malformed call beside the message, and one that was never answered is left out
    if _without_malformed(message) in map(_without_malformed, _versions(records)):
        return
    entry = session.state.entry(message.id)
    if entry is not None and content_key(entry.message) == content_key(message):
        return
    raise MessageConflictError(
        f"message id {message.id!r} is in session {session.key.session!r} with other content: "
        "give the new message an id of its own, or change the old one with update()"
    )


def _without_malformed(message: Message) -> str:
    return content_key(without_calls(message, [c.id for c in message.tool_calls if c.parsed() is None]))


def open_turn_starts(
    session: Session, messages: Sequence[Message], new_ids: Collection[str]
) -> Flow[tuple[tuple[int, str], ...]]:
    """Returns the positions in the list at which messages of an open turn begin, each with that turn.

    An attempt that failed after it had stored a part of the list has left such a turn.
    """
    turns = session.open_turns()
    owners: dict[str, str | None] = {e.id: turn_id for turn_id, entries in turns.items() for e in entries}
    if any(e.message.kind == "summary" for entries in turns.values() for e in entries):
        # messages that a summary in their turn has taken the place of are found by their records
        hidden_ids = [m.id for m in messages if m.id not in new_ids and m.id not in owners]
        chains = yield from session.record_chains(hidden_ids)
        owners |= {i: chain[-1].turn_id for i, chain in chains.items() if chain and chain[-1].turn_id in turns}
    starts: list[tuple[int, str]] = []
    for index, message in enumerate(messages):
        turn_id = None if message.id in new_ids else owners.get(message.id)
        if turn_id is not None and (not starts or starts[-1][1] != turn_id):
            starts.append((index, turn_id))
    return tuple(starts)


def with_stored_results(session: Session, messages: Sequence[Message]) -> Flow[Sequence[Message]]:
    """Returns the messages, with leading tool results replaced by equal ones of the newest tool rounds, which keep their ids.

    So a caller may make results again, under other ids, when the attempt that sent them failed: in an open turn, or after the
    reply was stored and only the store's answer was lost.
    """
    leading = tuple(takewhile(lambda m: m.role == "tool", messages))
    calls = {r.call_id for m in leading for r in m.tool_results}
    if not calls:
        return messages
    open_turns = session.open_turns().values()
    newest = [e for entries in open_turns for e in _results_before(entries, len(entries))]
    answers_open_call = any(calls & open_calls(entries).keys() for entries in open_turns)
    if not answers_open_call:  # otherwise a service uses a call's id twice
        live = session.view().live
        newest += _results_before(live, len(live))
        newest += [e for entries in (*open_turns, live) for e in _results_before_reply(entries)]
    newest = [e for e in newest if any(r.call_id in calls for r in e.message.tool_results)]
    whole = yield from session.originals(newest)
    known = {content_key(m): m for e in newest for m in (whole.get(e.seq, e.message),)}
    return (*(known.get(content_key(m), m) for m in leading), *messages[len(leading) :])


def dropped_calls(session: Session, new_messages: Sequence[Message]) -> Flow[tuple[Message, ...]]:
    """Returns the tool call that the first new messages answer, and its other results, when its turn was aborted meanwhile.

    A turn is closed after 15 minutes of silence, but a tool, or the person who has to allow it, may take longer.
    """
    calls = {r.call_id for m in takewhile(lambda m: m.role == "tool", new_messages) for r in m.tool_results}
    dropped = list(session.state.dropped)[-DROPPED_LOOKED_AT:]
    if not calls or not dropped or any(calls & open_calls(turn).keys() for turn in session.open_turns().values()):
        return ()
    chains = yield from session.record_chains(dropped)
    stored = [m for i, chain in chains.items() if chain and (m := message_in(chain[-1], i)) is not None]
    calling = next((m for m in reversed(stored) if calls & {c.id for c in m.tool_calls}), None)
    if calling is None:
        return ()
    other_calls = {c.id for c in calling.tool_calls} - calls
    return (calling, *(m for m in stored if other_calls & {r.call_id for r in m.tool_results}))


def _results_before(entries: Sequence[Entry], end: int) -> list[Entry]:
    """Returns the tool results directly before position `end`, the last one first."""
    return list(takewhile(lambda e: e.message.role == "tool", (entries[i] for i in range(end - 1, -1, -1))))


def _results_before_reply(entries: Sequence[Entry]) -> list[Entry]:
    """Returns the tool results that the last message answers, if it is a reply."""
    answered = bool(entries) and entries[-1].message.role == "assistant"
    return _results_before(entries, len(entries) - 1) if answered else []
