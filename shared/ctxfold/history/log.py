"""The fold of a session's log: records in, view out. Work per record does not depend on the length of the history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, assert_never

from ctxfold.history.cuts import complete_prefix, open_calls
from ctxfold.history.records import (
    AMONG_PROMPTS,
    Calibrated,
    Cleared,
    Compacted,
    Erased,
    Forked,
    GoalSet,
    MessageAdded,
    MessageInserted,
    MessageRemoved,
    MessageReplaced,
    OutputsSummarised,
    Pinned,
    PolicyChanged,
    Record,
    Restored,
    SessionKey,
    SnapshotTaken,
    TurnClosed,
    Undone,
    Unpinned,
    shown_in,
)
from ctxfold.history.view import Entry, Prefix, View
from ctxfold.messages import Message, Usage, is_final

__all__ = ["CLOSED_TURNS_KEPT", "OpenTurn", "SessionState"]

K = TypeVar("K", str, int)
CLOSED_TURNS_KEPT = 256
REMOVED_KEPT = 4_096  # ids, and as many records; they stand in every snapshot


@dataclass(slots=True)
class OpenTurn:
    """A turn's own entries, seen by nobody else until it closes; `at_s` is when it last wrote."""

    entries: list[Entry] = field(default_factory=list[Entry])
    at_s: float = 0.0


class SessionState:
    """One session, folded up to `head`. `apply` takes records in order of seq; those at or before `head` are ignored.

    `live` is only ever appended to within an epoch; an epoch change puts a new list in its place, so views stay as they were.
    `hidden` takes in what only the user sees too.
    """

    def __init__(self, key: SessionKey, count: Callable[[Message], int], *, hidden: bool = False) -> None:
        self.key = key
        self.head = 0
        self.head_id = ""  # of the record at `head`: another one there means that the log was erased and begun anew
        self.read_upto = 0  # up to here all was read at once: an erasure among it is done in all of it
        self.snapshot_seq = 0
        self.epoch = 0
        self.system: list[Entry] = []
        self.compressed: list[Entry] = []
        self.live: list[Entry] = []
        self.tokens = 0
        self.open: dict[str, OpenTurn] = {}
        self.closed: dict[str, None] = {}
        self.pins: dict[str, None] = {}
        self.policy_json = ""
        self.turns = 0
        self.summary_turn = -1
        self.compactions = 0
        self.summary_calls = 0
        self.summary_usage = Usage()
        self.saved_tokens = 0  # by which the view is shorter than without any compaction
        self.avoided_tokens = 0  # those, summed over all replies since
        self.revertible: list[str] = []
        self.undone: set[str] = set()
        self.edits = 0
        self.cleared_seq = 0
        self.removed: dict[str, None] = {}  # ids that an edit took out: they may come again
        self.dropped: dict[
            str, None
        ] = {}  # ids that their turn did not keep when it was aborted: they may come again, too
        self.taken_out: dict[int, None] = {}  # their records, cleared ones too: recall does not bring them back
        self.fixed: tuple[str, ...] = ()  # policy fields that were set at run time
        self.excerpts = False  # whether an original was ever too large to be shown
        self.usage = Usage()
        self.replies = 0
        self.calibrations: dict[str, Calibrated] = {}
        self.goal = GoalSet()
        self.deferred: dict[str, Entry] = {}  # tool outputs as they will be shown under pressure
        self.stale = False
        self._count = count
        self._hidden = hidden
        self._ids: set[str] | None = None  # of the zones; made when it is needed, from then on kept within an epoch

    def apply(self, records: Iterable[Record]) -> None:
        """Fold records in; `stale` is set when the fold has to be built anew (after an undo)."""
        for record in records:
            if record.seq <= self.head:
                continue
            self.head, self.head_id = record.seq, record.id
            if record.id not in self.undone:
                self._fold(record)

    def view(self, turn_id: str | None = None) -> View:
        """The zones as the given turn sees them; without one, as they stand between turns."""
        turn = self.open.get(turn_id) if turn_id is not None else None
        entries = tuple(turn.entries) if turn else ()
        return View(
            epoch=self.epoch,
            system=tuple(self.system),
            compressed=tuple(self.compressed),
            live=Prefix(self.live),
            turn=entries,
            tokens=self.tokens + sum(e.tokens for e in entries),
        )

    def copy(self) -> SessionState:
        """An independent fold at the same place."""
        twin = SessionState(self.key, self._count, hidden=self._hidden)
        for name, value in vars(self).items():
            # entries and other values in the containers are frozen, but for open turns
            setattr(twin, name, value.copy() if isinstance(value, list | dict | set) else value)
        twin.open = {turn: OpenTurn(list(t.entries), t.at_s) for turn, t in self.open.items()}
        return twin

    def entry(self, message_id: str) -> Entry | None:
        """The visible entry with that id, open turns included."""
        zones = (
            self.live,
            self.compressed,
            self.system,
            *(t.entries for t in self.open.values()),
        )
        return next((e for zone in zones for e in reversed(zone) if e.id == message_id), None)

    def _fold(self, record: Record) -> None:  # noqa: C901, PLR0912, PLR0915 - one case for each kind of record
        match record.body:
            case MessageAdded(shown=shown):
                entry = self._entry(record, shown_in(record, record.body))
                self._add(entry if shown is None else replace(entry, shown_seq=record.seq), record)
            case Restored():
                self._restore(record, record.body)
            case TurnClosed(status=status):
                self._close(record.turn_id or "", joins=status != "discarded")
            case Compacted():
                self._compact(record, record.body)
            case MessageInserted(message=message, before=before):
                self._insert(self._entry(record, message), before)
                self._edited(record, revertible=before != AMONG_PROMPTS and message.kind != "section")
            case MessageReplaced(message=message):
                prompt = any(e.id == message.id for e in self.system)
                self._replace({message.id: self._entry(record, message)})
                self._edited(record, revertible=not prompt)
            case MessageRemoved(ids=ids, superseded=superseded):
                prompt = any(e.id in ids for e in self.system)
                self._remove(frozenset(ids))
                if not superseded:
                    _remember(self.removed, ids)
                self._edited(record, revertible=not prompt)
            case Cleared(prompts=prompts):
                self._take_out(self.live)
                self.compressed, self.live, self.pins = [], [], {}
                self.goal, self.deferred = GoalSet(), {}
                self.summary_turn = -1
                self.system = [] if prompts else self.system
                self.cleared_seq = record.seq
                self._edited(record)
            case Pinned(ids=ids):
                self.pins.update(dict.fromkeys(ids))
            case Unpinned(ids=ids):
                self.pins = {pin: None for pin in self.pins if pin not in ids}
            case Undone(record_id=record_id):
                self.stale = record_id not in self.undone or self.stale
                self.undone.add(record_id)
                # two each, as the undone record no longer counts: neither number ever comes again
                self.epoch += 2
                self.edits += 2
            case PolicyChanged(policy=policy, fixed=fixed):
                self.policy_json = policy
                self.fixed = self.fixed if fixed is None else fixed
            case Calibrated(model=model, limit=limit):
                known = self.calibrations.get(model)
                kept = record.body if limit is not None or known is None else replace(record.body, limit=known.limit)
                self.calibrations[model] = kept
            case GoalSet():
                self.goal = record.body
            case OutputsSummarised():
                self._defer(record, record.body)
            case Erased(usage=usage):
                self._erased(record, usage)
            case Forked():
                pass
            case SnapshotTaken():
                self.snapshot_seq = record.seq
            case _:
                assert_never(record.body)

    def _entry(self, record: Record, message: Message) -> Entry:
        return Entry(message.id, record.seq, message, self._count(message), number=record.number)

    def _add(self, entry: Entry, record: Record) -> None:
        if record.turn_id is None:
            self._comes_back(entry.id)
        if entry.message.visibility == "user" and not self._hidden:
            return
        self.excerpts = self.excerpts or bool(entry.shown_seq)
        if entry.message.usage is not None:
            self.usage += entry.message.usage
            self.replies += 1
            self.avoided_tokens += self.saved_tokens
        if record.turn_id is None:
            self._join(entry)
        elif record.turn_id not in self.closed:
            turn = self.open.get(record.turn_id) or OpenTurn()
            if self._has_place(entry, turn.entries):
                self.open[record.turn_id] = turn
                turn.entries.append(entry)
                turn.at_s = record.at_s
        elif entry.id not in self._visible_ids():
            _remember(self.dropped, (entry.id,))  # its turn was closed meanwhile

    def _has_place(self, entry: Entry, after: Sequence[Entry]) -> bool:
        """False for what is there already, as an edit was undone, or two writers brought a message back at once, and for a result
        whose call went with what was undone."""
        if entry.id in self._visible_ids():
            return False
        if not self.undone:
            return True
        results = entry.message.tool_results
        twice = after is not self.live and any(e.id == entry.id for e in after)
        return not twice and (not results or {r.call_id for r in results} <= open_calls(after))

    def _visible_ids(self) -> set[str]:
        if self._ids is None:
            self._ids = {e.id for zone in (self.system, self.compressed, self.live) for e in zone}
        return self._ids

    def _join(self, entry: Entry) -> None:
        if not self._has_place(entry, self.live):
            return
        if self._ids is not None:
            self._ids.add(entry.id)
        leads = entry.message.role == "system" and not self.live and not self.compressed
        (self.system if leads else self.live).append(entry)
        self.tokens += entry.tokens
        self.turns += is_final(entry.message)

    def _close(self, turn_id: str, *, joins: bool) -> None:
        turn = self.open.pop(turn_id, None)
        self.closed[turn_id] = None
        if len(self.closed) > CLOSED_TURNS_KEPT:
            del self.closed[next(iter(self.closed))]
        if turn is None or not joins:
            self._no_longer_deferred(e.id for e in (turn.entries if turn else ()))
            return
        kept = complete_prefix(turn.entries)
        _remember(self.dropped, (e.id for e in turn.entries[kept:]))
        for entry in turn.entries[:kept]:
            self._comes_back(entry.id)
            self._join(entry)

    def _compact(self, record: Record, body: Compacted) -> None:
        covered = frozenset(body.covered)
        shown = {m.id: m for m in body.shown}
        summary = [self._entry(record, body.summary)] if body.summary else []
        turn = self.open.get(record.turn_id) if record.turn_id is not None else None
        entries = self.live if turn is None else turn.entries
        rest = [self._stand_in(e, shown, record.seq) for e in entries if e.id not in covered]
        if turn is not None or body.within:
            head = next((i for i, e in enumerate(entries) if e.id in covered), 0)
            rest = [*rest[:head], *summary, *rest[head:]]
        else:
            self.compressed = [*(e for e in self.compressed if e.id not in covered), *summary]
        if turn is not None:
            turn.entries = rest
        else:
            self.live = rest
        self._no_longer_deferred((*body.covered, *shown))
        self.compactions += 1
        self.summary_calls += body.calls or 0
        self.summary_usage += body.usage or Usage()
        self.saved_tokens += max(0, body.tokens_before - body.tokens_after)
        if summary:
            self.summary_turn = self.turns
        self._new_epoch(record)

    def _defer(self, record: Record, body: OutputsSummarised) -> None:
        """Only what is still shown in full is kept for later."""
        for message in body.shown:
            entry = self.entry(message.id)
            if entry is not None and not entry.shown_seq:
                entry = replace(entry, message=message, tokens=self._count(message), shown_seq=record.seq)
                self.deferred[message.id] = entry
        self.summary_calls += body.calls or 0
        self.summary_usage += body.usage or Usage()

    def _stand_in(self, entry: Entry, shown: dict[str, Message], seq: int) -> Entry:
        message = shown.get(entry.id)
        if message is None:
            return entry
        return replace(entry, message=message, tokens=self._count(message), shown_seq=seq)

    def _restore(self, record: Record, body: Restored) -> None:
        message = body.message
        entry = replace(self._entry(record, message), seq=body.seq or record.seq)
        self._comes_back(message.id)
        self.taken_out.pop(entry.seq, None)
        if any(e.id == message.id for e in self.live):
            self._replace({message.id: entry})
            self._edited(record, revertible=False)
        else:
            self._join(entry)
        if body.together is not None:
            self.revertible.append(record.id)

    def _comes_back(self, message_id: str) -> None:
        self.removed.pop(message_id, None)
        self.dropped.pop(message_id, None)

    def _take_out(self, entries: Iterable[Entry]) -> None:
        _remember(self.taken_out, (e.seq for e in entries if e.message.kind == "message"))

    def _insert(self, entry: Entry, before: str | None) -> None:
        self._comes_back(entry.id)
        if entry.message.visibility == "user" and not self._hidden:
            return
        if not self._has_place(entry, ()):
            return
        if before == AMONG_PROMPTS:
            self.system = [*self.system, entry]
            return
        at = next((i for i, e in enumerate(self.live) if e.id == before), len(self.live))
        self.live = [*self.live[:at], entry, *self.live[at:]]

    def _replace(self, new: dict[str, Entry]) -> None:
        self.system = [new.get(e.id, e) for e in self.system]
        self.live = [new.get(e.id, e) for e in self.live]
        self._no_longer_deferred(new)

    def _erased(self, record: Record, usage: Usage | None) -> None:
        """What has been folded already may hold the text: the fold is built anew, from records that do not."""
        self.stale = self.stale or record.seq > self.read_upto
        self.epoch += 1
        self.edits += 1
        if usage is not None:
            self.usage += usage
            self.replies += 1

    def _remove(self, ids: frozenset[str]) -> None:
        self._take_out(e for e in self.live if e.id in ids)
        self.system = [e for e in self.system if e.id not in ids]
        self.compressed = [e for e in self.compressed if e.id not in ids]
        self.live = [e for e in self.live if e.id not in ids]
        self.pins = {pin: None for pin in self.pins if pin not in ids}
        self._no_longer_deferred(ids)

    def _no_longer_deferred(self, ids: Iterable[str]) -> None:
        for message_id in ids:
            self.deferred.pop(message_id, None)

    def _edited(self, record: Record, *, revertible: bool = True) -> None:
        self.edits += 1
        self._new_epoch(record, revertible=revertible)

    def _new_epoch(self, record: Record, *, revertible: bool = True) -> None:
        self.epoch += 1
        self._ids = None
        if revertible:
            self.revertible.append(record.id)
        self.tokens = sum(e.tokens for zone in (self.system, self.compressed, self.live) for e in zone)


def _remember(kept: dict[K, None], new: Iterable[K]) -> None:
    """Add to the ids or numbers that are kept; the oldest go where they are too many."""
    kept.update(dict.fromkeys(new))
    while len(kept) > REMOVED_KEPT:
        del kept[next(iter(kept))]
