"""Reads a session's messages as they were stored: by id or #number, and the whole conversation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias, get_args

from ctxfold.effects import Flow, StoreCall
from ctxfold.errors import ConfigError, MessageErasedError, MessageNotFoundError
from ctxfold.history.log import SessionState
from ctxfold.history.prompt_safety import strip_control_chars
from ctxfold.history.records import Compacted, Erased, Record
from ctxfold.history.snapshot import message_in, stored_message
from ctxfold.messages import MediaPart, Message
from ctxfold.protocols import Store
from ctxfold.state import Session
from ctxfold.tokens.media import described
from ctxfold.validation import kind_of

Where: TypeAlias = Literal["visible", "excerpt", "compacted", "removed", "hidden", "open turn"]


Audience: TypeAlias = Literal["all", "user", "model"]


def original(session: Session, message_id: str) -> Flow[Message]:
    """Returns a message as it was stored, wherever it is now, by its id or by a reference such as `#17`.

    An id names the newest version, a number the one in that record. Raises MessageNotFoundError when the session never had it,
    and MessageErasedError when it was erased.
    """
    return (yield from original_record(session, message_id))[1]


def newest_version(session: Session, reference: str) -> Flow[Message]:
    """Returns a message as it is now, also by the number of a version that was replaced; raises as `original` does."""
    message = yield from original(session, reference)
    # an id that looks like a number would be read as one
    if not reference.startswith("#") or message.id.startswith("#"):
        return message
    return (yield from original(session, message.id))


def original_record(session: Session, reference: str) -> Flow[tuple[Record, Message]]:
    """Returns the record that holds a message, and the message; see `original`."""
    records: tuple[Record, ...]
    check_reference(reference)
    if reference.startswith("#") and reference[1:].isdecimal() and len(reference) < 20:  # a larger number fits no store
        numbered = yield from StoreCall(Store.numbered, session.key, int(reference[1:]))
        message = None if numbered is None else stored_message(numbered)
        if numbered is not None and message is not None:
            return numbered, message
        _check_erased(session, reference, () if numbered is None else (numbered,))
    entry = session.state.entry(reference)
    if entry is not None:
        records = yield from StoreCall(Store.fetch, session.key, (entry.seq,))
    else:
        records = yield from session.known_records(reference)
        records = tuple(r for r in records if r.id not in session.state.undone) or records
    for record in reversed(records):
        message = message_in(record, reference)
        if message is not None:
            return record, message
    _check_erased(session, reference, records)
    raise MessageNotFoundError(f"message {reference!r} is not in session {session.key.session!r}: check the reference")


def check_reference(reference: object) -> None:
    if not isinstance(reference, str):
        raise MessageNotFoundError(
            f"{kind_of(reference)} names no message: give its id (message.id), or a reference such as '#17'"
        )


def ids_of(session: Session, references: Sequence[str]) -> Flow[tuple[str, ...]]:
    """Returns the ids of messages named by id or `#17`; MessageNotFoundError for a number that the session does not have."""
    ids: list[str] = []
    for reference in references:
        check_reference(reference)
        numbered = reference.startswith("#")
        ids.append((yield from original_record(session, reference))[1].id if numbered else reference)
    return tuple(ids)


def _check_erased(session: Session, reference: str, records: Sequence[Record]) -> None:
    if any(isinstance(r.body, Erased) for r in records):
        raise MessageErasedError(f"message {reference!r} of session {session.key.session!r} was erased")


def conversation(
    session: Session, turn_id: str | None = None, audience: Audience = "all", *, whole: bool = False
) -> Flow[tuple[Message, ...]]:
    """Returns every message as it was stored, compacted or not, edits applied, in order; with those of an open turn.

    A `whole` conversation has all that was stored: those of other open turns, and calls that were never answered.

    For the audience "user" it leaves out summaries and messages for the model only; for "model" it returns the window.
    """
    if audience not in get_args(Audience):
        raise ConfigError(f"audience is {audience!r}: use one of {', '.join(get_args(Audience))}")
    if audience == "model":
        return session.view(turn_id).messages
    records = yield from StoreCall(Store.read, session.key)
    state = SessionState(session.key, lambda _: 0, user_only=True, unanswered=whole)
    # a compaction only hides: folded without it, the log gives back what it stood for
    state.undone = {*session.state.undone, *(r.id for r in records if isinstance(r.body, Compacted))}
    state.apply(records)
    stored = {r.seq: r for r in records}
    entries = state.conversation(turn_id) if whole else state.view(turn_id)
    messages = [message_in(stored[e.seq], e.id) or e.message for e in entries]
    return seen_by_user(messages) if audience == "user" else tuple(messages)


def readable_text(message: Message) -> str:
    """Returns what a message holds as text for a model that reads it back: its words, its media by type, and its calls."""
    media = [described(part) for part in message.parts if isinstance(part, MediaPart)]
    calls = [f"calls {c.name}({c.arguments})" for c in message.tool_calls]
    return strip_control_chars("\n".join([message.text, *media, *calls]).strip("\n"))


def seen_by_user(messages: Iterable[Message]) -> tuple[Message, ...]:
    return tuple(m for m in messages if m.visibility != "model" and m.kind == "message")


def with_hidden(stored: Sequence[Message], changed: Sequence[Message]) -> list[Message]:
    """Returns the changed messages with the hidden ones of `stored`, each after the message that it followed before.

    A tool result follows its call; it is left out where the call has another result.
    """
    places = {m.id: i for i, m in enumerate(changed)}
    callers = {c.id: i for i, m in enumerate(changed) for c in m.tool_calls}
    seen = {m.id for m in seen_by_user(stored)}
    hidden = [m for m in stored if m.id not in seen and m.id not in places]
    answered = {r.call_id for m in changed for r in m.tool_results}
    waiting = (callers.keys() | {c.id for m in hidden for c in m.tool_calls}) - answered
    after: dict[int, list[Message]] = {}
    last = -1
    for message in stored:
        if message.id in places:
            last = places[message.id]
        elif message.id not in seen and all(r.call_id in waiting for r in message.tool_results):
            called = max((callers.get(r.call_id, -1) for r in message.tool_results), default=-1)
            after.setdefault(max(last, called), []).append(message)
    return [*after.get(-1, ()), *(each for i, m in enumerate(changed) for each in (m, *after.get(i, ())))]
