"""Why the window is what it is, as values that print."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from ctxfold.effects import FetchLog, ReadLog
from ctxfold.errors import MessageNotFoundError
from ctxfold.flow import Flow
from ctxfold.history.log import SessionState
from ctxfold.history.prefix import PrefixStats
from ctxfold.history.records import Compacted, Record
from ctxfold.history.snapshot import message_in, stored_message
from ctxfold.history.view import Entry
from ctxfold.journal import Journal, known_records
from ctxfold.messages import Message

__all__ = ["Block", "Explanation", "MessageExplanation", "conversation", "explain", "explain_message", "original"]

Where: TypeAlias = Literal["visible", "excerpt", "compacted", "open turn"]


@dataclass(frozen=True, slots=True)
class Block:
    """One message of the window: where it stands, what it costs, and why it is there."""

    zone: str
    id: str
    role: str
    tokens: int
    why: str
    preview: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole window."""

    session: str
    context_window: int
    budget_tokens: int
    used_tokens: int
    epoch: int
    compactions: int
    blocks: tuple[Block, ...]
    prefix: PrefixStats

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        head = (
            f"session {self.session}: {self.used_tokens} of {self.budget_tokens} tokens used "
            f"(window {self.context_window}), epoch {self.epoch}, {self.compactions} compactions"
        )
        rows = [f"{b.zone:<12} {b.role:<10} {b.tokens:>6}  {b.why:<34} {b.preview}" for b in self.blocks]
        return "\n".join([head, *rows])


@dataclass(frozen=True, slots=True)
class MessageExplanation:
    """Where one message is now; `reference` reads the original back."""

    id: str
    where: Where
    why: str
    reference: str
    message: Message


def explain(journal: Journal) -> Explanation:
    """The window as it stands between turns."""
    view, rules, pins = journal.view(), journal.rules(), journal.state.pins
    zones = (("system", view.system), ("summary", view.compressed), ("live", view.live))
    blocks = tuple(_block(zone, entry, entry.id in pins) for zone, entries in zones for entry in entries)
    return Explanation(
        session=journal.key.session,
        context_window=journal.stored_rules().context_window,
        budget_tokens=rules.budget_tokens,
        used_tokens=view.tokens,
        epoch=view.epoch,
        compactions=journal.state.compactions,
        blocks=blocks,
        prefix=journal.tracker.stats(),
    )


def explain_message(journal: Journal, message_id: str) -> Flow[MessageExplanation]:
    """Where a message is: visible, an excerpt, in an open turn, or compacted; MessageNotFoundError when it never was."""
    message = yield from original(journal, message_id)
    entry = journal.state.entry(message_id)
    if entry is None:
        return MessageExplanation(
            message_id, "compacted", "left the view; the original is archived", message_id, message
        )
    if any(entry in t.entries for t in journal.state.open.values()):
        return MessageExplanation(message_id, "open turn", "its turn has not closed yet", message_id, message)
    where: Where = "excerpt" if entry.shown_seq else "visible"
    return MessageExplanation(message_id, where, _why(entry, message_id in journal.state.pins), message_id, message)


def original(journal: Journal, message_id: str) -> Flow[Message]:
    """A message as it was stored, wherever it is now, by its id or by a reference such as `#17`.

    MessageNotFoundError when the session never had it.
    """
    entry = journal.state.entry(message_id)
    records: tuple[Record, ...]
    if message_id.startswith("#") and message_id[1:].isdecimal():
        records = yield from FetchLog(journal.key, (int(message_id[1:]),))
        found = [m for r in records if (m := stored_message(r)) is not None]
        if found:
            return found[0]
    if entry is not None:
        records = yield from FetchLog(journal.key, (entry.seq,))
    else:
        records = yield from known_records(journal, message_id)
    messages = [m for r in records if (m := message_in(r, message_id)) is not None]
    if not messages:
        raise MessageNotFoundError(
            f"message {message_id!r} is not in session {journal.key.session!r}: check the reference"
        )
    return messages[-1]


def conversation(journal: Journal, turn_id: str | None = None) -> Flow[tuple[Message, ...]]:
    """Every message as it was stored, compacted or not, edits applied, in order; with those of an open turn."""
    records = yield from ReadLog(journal.key)
    state = SessionState(journal.key, lambda _: 0)
    # a compaction only hides: folded without it, the log gives back what it stood for
    state.undone = {*journal.state.undone, *(r.id for r in records if isinstance(r.body, Compacted))}
    state.apply(records)
    stored = {r.seq: r for r in records}
    return tuple(message_in(stored[e.seq], e.id) or e.message for e in state.view(turn_id))


def _block(zone: str, entry: Entry, pinned: bool) -> Block:
    text = " ".join(entry.message.text.split())
    preview = text if len(text) <= 60 else f"{text[:57]}..."
    return Block(zone, entry.id, entry.message.role, entry.tokens, _why(entry, pinned), preview)


def _why(entry: Entry, pinned: bool) -> str:
    if pinned:
        return "pinned"
    if entry.message.kind == "summary":
        return "stands for compacted messages"
    if entry.shown_seq:
        return "excerpt of a large tool output"
    return "system prompt" if entry.message.role == "system" else "newer than the last cut"
