"""Why the window is what it is, as values that print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

from ctxfold.effects import FetchLog, NumberedRecord, ReadLog
from ctxfold.errors import ConfigError, MessageErasedError, MessageNotFoundError
from ctxfold.flow import Flow
from ctxfold.given import kind_of
from ctxfold.history.log import SessionState
from ctxfold.history.prefix import PrefixStats
from ctxfold.history.records import Compacted, Erased, Record
from ctxfold.history.sections import section_note
from ctxfold.history.snapshot import message_in, stored_message
from ctxfold.history.view import Entry
from ctxfold.journal import Journal, known_records
from ctxfold.messages import Message
from ctxfold.pages import window_html
from ctxfold.ports import Ports

__all__ = [
    "Audience",
    "Block",
    "Explanation",
    "MessageExplanation",
    "conversation",
    "explain",
    "explain_message",
    "original",
    "original_record",
    "seen_by_user",
    "with_hidden",
]

Where: TypeAlias = Literal["visible", "excerpt", "compacted", "removed", "hidden", "open turn"]
Audience: TypeAlias = Literal["all", "user", "model"]


@dataclass(frozen=True, slots=True)
class Block:
    """One message of the window: where it stands, what it costs, and why it is there.

    `reference` reads the original back, `source` says what it was made from, and `at_s` when it was stored, in Unix time.
    """

    zone: str
    id: str
    role: str
    tokens: int
    why: str
    preview: str
    reference: str = ""
    source: str = ""
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole window; `overhead_tokens` is what the newest request held besides, such as tools."""

    session: str
    context_window: int
    budget_tokens: int
    used_tokens: int
    epoch: int
    compactions: int
    blocks: tuple[Block, ...]
    prefix: PrefixStats
    overhead_tokens: int = 0
    now_s: float = 0.0

    def _repr_html_(self) -> str:
        return window_html(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        head = (
            f"session {self.session}: {self.used_tokens} of {self.budget_tokens} tokens used "
            f"(window {self.context_window}), epoch {self.epoch}, {self.compactions} compactions"
        )
        rows = [
            f"{b.zone:<8} {b.role:<10} {b.tokens:>6}  {b.reference:<6} {b.why:<34} {b.preview}" for b in self.blocks
        ]
        return "\n".join([head, *rows])


@dataclass(frozen=True, slots=True)
class MessageExplanation:
    """Where one message is now; `reference` (`#17`) reads the original back.

    `summaries` are the ids of the summaries that contain it, the newest last: that one stands for the others too.
    """

    id: str
    where: Where
    why: str
    reference: str
    message: Message
    summaries: tuple[str, ...] = ()


def explain(journal: Journal, ports: Ports) -> Flow[Explanation]:
    """The window as it stands between turns; reads the records of what is visible."""
    with journal.lock:
        view, pins, compactions = journal.state.view(), frozenset(journal.state.pins), journal.state.compactions
    found = yield from FetchLog(journal.key, [e.seq for e in view])
    records = {r.seq: r for r in found}
    zones = (("system", view.system), ("summary", view.compressed), ("live", view.live))
    blocks = (_block(zone, e, records.get(e.seq), e.id in pins) for zone, entries in zones for e in entries)
    rules = journal.rules()
    return Explanation(
        session=journal.key.session,
        context_window=journal.window_rules().context_window,
        budget_tokens=rules.budget_tokens,
        used_tokens=view.tokens,
        epoch=view.epoch,
        compactions=compactions,
        blocks=tuple(blocks),
        prefix=journal.tracker.stats(),
        overhead_tokens=journal.overhead_tokens,
        now_s=ports.clock.now_s(),
    )


def explain_message(journal: Journal, message_id: str) -> Flow[MessageExplanation]:
    """Where a message is: visible, an excerpt, in an open turn, or away; MessageNotFoundError when it never was."""
    record, message = yield from original_record(journal, message_id)
    entry = journal.state.entry(message.id)
    summaries: tuple[str, ...] = ()
    where: Where
    if message.visibility == "user":
        where, why = "hidden", "for the user only: neither counted nor sent"
    elif entry is None:
        summaries = yield from _summaries(journal, message.id, record.seq)
        where, why = "removed", "an edit took it out of the view; the original is archived"
        if summaries:
            where, why = "compacted", f"summarised in {summaries[-1]}; the original is archived"
    elif any(entry in t.entries for t in journal.state.open.values()):
        where, why = "open turn", "its turn has not closed yet"
    else:
        where, why = "excerpt" if entry.shown_seq else "visible", _why(entry, message.id in journal.state.pins)
    return MessageExplanation(message.id, where, why, f"#{record.number}", message, summaries)


def _summaries(journal: Journal, message_id: str, since: int) -> Flow[tuple[str, ...]]:
    """Ids of the summaries that took the message in, one after the other."""
    records = yield from ReadLog(journal.key, after=since)
    inside, found = message_id, list[str]()
    for record in records:
        body = record.body
        if not isinstance(body, Compacted) or body.summary is None or record.id in journal.state.undone:
            continue
        if inside in body.covered:
            inside = body.summary.id
            found.append(inside)
    return tuple(found)


def original(journal: Journal, message_id: str) -> Flow[Message]:
    """A message as it was stored, wherever it is now, by its id or by a reference such as `#17`.

    An id gives the newest version, a number the one in that record. MessageNotFoundError when the session never had it,
    MessageErasedError when it was erased.
    """
    return (yield from original_record(journal, message_id))[1]


def original_record(journal: Journal, reference: str) -> Flow[tuple[Record, Message]]:
    """The record that holds a message, and the message; see `original`."""
    records: tuple[Record, ...]
    check_reference(reference)
    if reference.startswith("#") and reference[1:].isdecimal():
        numbered = yield from NumberedRecord(journal.key, int(reference[1:]))
        message = None if numbered is None else stored_message(numbered)
        if numbered is not None and message is not None:
            return numbered, message
        _check_erased(journal, reference, () if numbered is None else (numbered,))
    entry = journal.state.entry(reference)
    if entry is not None:
        records = yield from FetchLog(journal.key, (entry.seq,))
    else:
        records = yield from known_records(journal, reference)
        records = tuple(r for r in records if r.id not in journal.state.undone) or records
    for record in reversed(records):
        message = message_in(record, reference)
        if message is not None:
            return record, message
    _check_erased(journal, reference, records)
    raise MessageNotFoundError(f"message {reference!r} is not in session {journal.key.session!r}: check the reference")


def check_reference(given: object) -> None:
    if not isinstance(given, str):
        raise MessageNotFoundError(
            f"{kind_of(given)} names no message: give its id (message.id), or a reference such as '#17'"
        )


def ids_of(journal: Journal, references: Sequence[str]) -> Flow[tuple[str, ...]]:
    """The ids of messages named by id or `#17`; MessageNotFoundError for a number that the session does not have."""
    found: list[str] = []
    for reference in references:
        check_reference(reference)
        numbered = reference.startswith("#")
        found.append((yield from original_record(journal, reference))[1].id if numbered else reference)
    return tuple(found)


def _check_erased(journal: Journal, reference: str, records: Sequence[Record]) -> None:
    if any(isinstance(r.body, Erased) for r in records):
        raise MessageErasedError(f"message {reference!r} of session {journal.key.session!r} was erased")


def conversation(journal: Journal, turn_id: str | None = None, audience: Audience = "all") -> Flow[tuple[Message, ...]]:
    """Every message as it was stored, compacted or not, edits applied, in order; with those of an open turn.

    The user sees neither summaries nor what is for the model only; the model sees the window.
    """
    if audience not in get_args(Audience):
        raise ConfigError(f"audience is {audience!r}: use one of {', '.join(get_args(Audience))}")
    if audience == "model":
        return journal.view(turn_id).messages
    records = yield from ReadLog(journal.key)
    state = SessionState(journal.key, lambda _: 0, hidden=True)
    # a compaction only hides: folded without it, the log gives back what it stood for
    state.undone = {*journal.state.undone, *(r.id for r in records if isinstance(r.body, Compacted))}
    state.apply(records)
    stored = {r.seq: r for r in records}
    messages = [message_in(stored[e.seq], e.id) or e.message for e in state.view(turn_id)]
    return seen_by_user(messages) if audience == "user" else tuple(messages)


def seen_by_user(messages: Iterable[Message]) -> tuple[Message, ...]:
    return tuple(m for m in messages if m.visibility != "model" and m.kind == "message")


def with_hidden(held: Sequence[Message], changed: Sequence[Message]) -> list[Message]:
    """The changed messages, and of those held that the user does not see each behind the one that it stood behind.

    A result goes where its call went, or has got another one.
    """
    places = {m.id: i for i, m in enumerate(changed)}
    callers = {c.id: i for i, m in enumerate(changed) for c in m.tool_calls}
    seen = {m.id for m in seen_by_user(held)}
    hidden = [m for m in held if m.id not in seen and m.id not in places]
    answered = {r.call_id for m in changed for r in m.tool_results}
    waiting = (callers.keys() | {c.id for m in hidden for c in m.tool_calls}) - answered
    behind: dict[int, list[Message]] = {}
    last = -1
    for message in held:
        if message.id in places:
            last = places[message.id]
        elif message.id not in seen and all(r.call_id in waiting for r in message.tool_results):
            called = max((callers.get(r.call_id, -1) for r in message.tool_results), default=-1)
            behind.setdefault(max(last, called), []).append(message)
    return [*behind.get(-1, ()), *(each for i, m in enumerate(changed) for each in (m, *behind.get(i, ())))]


def _block(zone: str, entry: Entry, record: Record | None, pinned: bool) -> Block:
    text = " ".join(entry.message.text.split())
    return Block(
        zone="section" if entry.message.kind == "section" else zone,
        id=entry.id,
        role=entry.message.role,
        tokens=entry.tokens,
        why=_why(entry, pinned),
        preview=text if len(text) <= 60 else f"{text[:57]}...",
        reference=entry.reference if entry.number else "",
        source=_made_from(entry, record),
        at_s=record.at_s if record is not None else 0.0,
    )


def _made_from(entry: Entry, record: Record | None) -> str:
    note = section_note(entry.message)
    if note is not None:
        return ", ".join(dict.fromkeys(i.source for i in note.items if i.source))
    if record is not None and isinstance(record.body, Compacted) and entry.message.kind == "summary":
        return f"{len(record.body.covered)} messages, {record.body.rung}"
    return ""


def _why(entry: Entry, pinned: bool) -> str:
    if pinned:
        return "pinned"
    if entry.message.kind == "summary":
        return "stands for compacted messages"
    if (note := section_note(entry.message)) is not None:
        return f"{note.kind}, {'put in by hand' if note.by_hand else 'found for the question'}"
    if entry.shown_seq:
        return "excerpt of a large tool output"
    return "system prompt" if entry.message.role == "system" else "newer than the last cut"
