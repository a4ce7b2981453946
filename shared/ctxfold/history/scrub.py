"""A log without the text of some messages, record by record: places, ids and counts stay, so that everything else means what
it meant. Pure; what a summary is replaced by is the caller's to write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ctxfold.history.data import as_data
from ctxfold.history.log import SessionState
from ctxfold.history.records import (
    Body,
    Compacted,
    Erased,
    GoalSet,
    MessageAdded,
    MessageInserted,
    MessageReplaced,
    OutputsSummarised,
    Record,
    Restored,
    SessionKey,
    SnapshotTaken,
    Subgoal,
    TurnClosed,
    Undone,
    shown_in,
)
from ctxfold.history.sections import section_note
from ctxfold.history.snapshot import OpenSlots, Slot, Snapshot, parse_snapshot, stored_message
from ctxfold.history.terms import sentences
from ctxfold.history.view import Entry
from ctxfold.messages import Message

__all__ = [
    "Scrub",
    "first_records",
    "open_turns",
    "quoting_sections",
    "shared_length",
    "showing_sections",
    "whole_rounds",
]

QUOTE_CHARS = 12  # a shorter sentence says nothing of its own


@dataclass(slots=True)
class Scrub:
    """One pass over a log, in order: ask `body` for each record, `cover` what stands for erased messages, and `note` the result.

    `gone` are the ids of the messages; ids of summaries of which nothing is left join them on the way.
    """

    gone: set[str]
    count: Callable[[Message], int]
    counter_id: str
    emptied: set[str] = field(default_factory=set[str])  # ids of records whose text is gone
    summaries: dict[str, Message] = field(default_factory=dict[str, Message])  # those that were written anew
    _before: list[Record] = field(default_factory=list[Record])  # the log so far, as it was
    _entries: dict[str, Entry] = field(
        default_factory=dict[str, Entry]
    )  # each message as it was last seen, not counted

    def body(self, record: Record) -> Body:
        """What the record is to hold; a Compacted that `covers` something erased still has its old summary."""
        match record.body:
            case MessageAdded(message=message) if message.id in self.gone:
                return Erased((message.id,), message.usage)
            case MessageInserted(message=message) | MessageReplaced(message=message) | Restored(message=message) if (
                message.id in self.gone
            ):
                return Erased((message.id,))
            case MessageInserted(message=message, before=before) if before in self.gone:
                return replace(record.body, before=self._successor(before))
            case Compacted(covered=covered, shown=shown):
                rest = tuple(i for i in covered if i not in self.gone)
                return replace(record.body, covered=rest, shown=self._kept(shown))
            case OutputsSummarised(shown=shown):
                return replace(record.body, shown=self._kept(shown))
            case GoalSet() if self.emptied:
                return _as_given(record.body)
            case SnapshotTaken(state=text) if self.emptied:
                return SnapshotTaken(self._snapshot(parse_snapshot(text)).model_dump_json())
            case other:
                return other

    def covers(self, old: Body) -> bool:
        """Whether it is a compaction with a summary that may hold what was erased."""
        if not isinstance(old, Compacted) or old.summary is None:
            return False
        return any(i in self.gone or i in self.summaries for i in (*old.covered, *(m.id for m in old.shown)))

    def cover(self, body: Compacted) -> tuple[Entry, ...]:
        """What is left of its sources, as it was when the summary was written."""
        found = (self._entries[i] for i in body.covered if i in self._entries)
        return tuple(replace(entry, tokens=self.count(entry.message)) for entry in found)

    def note(self, record: Record, body: Body) -> None:
        """Go on: `body` is what the record holds from now on."""
        old = record.body
        self._before.append(record)
        if isinstance(body, Erased) and not isinstance(old, Erased):
            self.emptied.add(record.id)
        if isinstance(body, Compacted):
            self._note_compaction(record, old, body)
        elif isinstance(body, OutputsSummarised):
            self._stand_in(record, body.shown)
        elif isinstance(body, MessageAdded):
            shown = shown_in(record, body)
            self._entries[shown.id] = Entry(shown.id, record.seq, shown, 0, number=record.number)
        elif (message := stored_message(replace(record, body=body))) is not None:
            self._entries[message.id] = Entry(message.id, record.seq, message, 0, number=record.number)

    def _note_compaction(self, record: Record, old: Body, body: Compacted) -> None:
        self._stand_in(record, body.shown)
        if body.summary is not None:
            summary = body.summary
            self._entries[summary.id] = Entry(summary.id, record.seq, summary, 0)
        if not isinstance(old, Compacted) or old.summary is None or body.summary == old.summary:
            return
        if body.summary is None:
            self.gone.add(old.summary.id)
        else:
            self.summaries[body.summary.id] = body.summary

    def _stand_in(self, record: Record, shown: Iterable[Message]) -> None:
        for message in shown:
            if message.id in self._entries:
                entry = self._entries[message.id]
                self._entries[message.id] = replace(entry, message=message, shown_seq=record.seq)

    def _kept(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        return tuple(m for m in messages if m.id not in self.gone)

    def _successor(self, message_id: str | None) -> str | None:
        """The message that stood behind an erased one when something was put before it; None for the end."""
        state = SessionState(SessionKey("", ""), lambda _: 0)
        state.undone = {r.body.record_id for r in self._before if isinstance(r.body, Undone)}
        state.apply(self._before)
        ids = [e.id for e in state.live]
        later = ids[ids.index(message_id) + 1 :] if message_id in ids else []
        return next((i for i in later if i not in self.gone), None)

    def _snapshot(self, taken: Snapshot) -> Snapshot:
        goal = _as_given(GoalSet(taken.goal, tuple(Subgoal(*s) for s in taken.subgoals), taken.given))
        changes: dict[str, Any] = {
            name: self._slots(getattr(taken, name)) for name in ("system", "compressed", "live", "deferred")
        }
        changes |= {
            "open": {t: OpenSlots(at_s=o.at_s, entries=self._slots(o.entries)) for t, o in taken.open.items()},
            "pins": tuple(p for p in taken.pins if p not in self.gone),
            "revertible": tuple(r for r in taken.revertible if r not in self.emptied),
            "goal": goal.goal,
            "subgoals": tuple((s.text, s.since, s.completed) for s in goal.subgoals),
            # counts of two counters must not be mixed: without a name they are all made anew
            "counter": taken.counter if taken.counter == self.counter_id else "",
        }
        return taken.model_copy(update=changes)

    def _slots(self, slots: Iterable[Slot]) -> tuple[Slot, ...]:
        return tuple(
            (i, seq, shown, self.count(self.summaries[i]) if i in self.summaries else tokens, number)
            for i, seq, shown, tokens, number in slots
            if i not in self.gone
        )


def _as_given(body: GoalSet) -> GoalSet:
    """Without what was found out from the conversation: it may hold what is no longer there."""
    goal = body.goal if "goal" in body.given else ""
    steps = body.subgoals if "subgoal" in body.given else tuple(replace(s, text="") for s in body.subgoals)
    return replace(body, goal=goal, subgoals=steps)


def first_records(records: Sequence[Record]) -> Mapping[str, Record]:
    """Where each message came into the log."""
    found: dict[str, Record] = {}
    for record in records:
        if isinstance(record.body, MessageAdded | MessageInserted):
            found.setdefault(record.body.message.id, record)
    return found


def whole_rounds(records: Sequence[Record], ids: Collection[str]) -> frozenset[str]:
    """The ids, with every message of the tool rounds that they are in: a call and its results are never parted."""
    members: dict[str, list[str]] = {}  # a call's message and those that answer it, under each one's id
    callers: dict[tuple[str | None, str], list[str]] = {}
    for record in records:
        message = stored_message(record)
        if message is None:
            continue
        if message.tool_calls:
            group = members.setdefault(message.id, [message.id])
            callers |= {(record.turn_id, call.id): group for call in message.tool_calls}
        for result in message.tool_results:
            answered = callers.get((record.turn_id, result.call_id))
            if answered is not None and message.id not in answered:
                answered.append(message.id)
                members[message.id] = answered
    return frozenset(i for given in ids for i in (given, *members.get(given, ())))


def quoting_sections(records: Sequence[Record], gone: Collection[str]) -> frozenset[str]:
    """Ids of sections that may hold what erased messages said: all that a source brought later, as it is asked again, and those
    put in by hand that repeat a sentence."""
    said: set[str] = set()
    found: set[str] = set()
    for record in records:
        message = stored_message(record)
        if message is None:
            continue
        if message.id in gone:
            said |= {s for s in sentences(message.text) if len(s) >= QUOTE_CHARS} | {message.text.strip()}
        elif said and (note := section_note(message)) is not None:
            quotes = any(s and (s in message.text or as_data(s) in message.text) for s in said)
            found |= {message.id} if quotes or not note.by_hand else set()
    return frozenset(found)


def showing_sections(records: Sequence[Record], item_ids: Collection[str]) -> frozenset[str]:
    """Ids of sections that show one of these memory items."""
    notes = ((m.id, section_note(m)) for r in records if (m := stored_message(r)) is not None)
    return frozenset(i for i, note in notes if note is not None and any(p.id in item_ids for p in note.items))


def shared_length(one: Sequence[Record], other: Sequence[Record]) -> int:
    """How many records at their beginning two logs have in common, erasures aside."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if (a.id, a.at_s) != (b.id, b.at_s)), min(len(one), len(other)))


def open_turns(records: Sequence[Record], emptied: Collection[str]) -> tuple[str, ...]:
    """Turns that have not ended and have lost a record."""
    closed = {r.turn_id for r in records if isinstance(r.body, TurnClosed)}
    return tuple(dict.fromkeys(r.turn_id for r in records if r.id in emptied and r.turn_id and r.turn_id not in closed))
