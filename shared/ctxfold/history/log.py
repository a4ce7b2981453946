"""Folds the records of a session into its state. The work per record does not depend on the length of the history."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence, Set
from copy import copy
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import TypeVar, assert_never

from ctxfold.errors import StoreFormatError
from ctxfold.history.cuts import Followed, complete_prefix
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
    Sealed,
    SessionKey,
    SnapshotTaken,
    TurnClosed,
    TurnStatus,
    Undone,
    Unknown,
    Unpinned,
    shown_in,
)
from ctxfold.history.view import Entry, Prefix, View, WindowTokens, roles_of
from ctxfold.messages import Message, Usage, is_final, is_prompt, is_question
from ctxfold.policy.prices import MTOK, PER_TOKEN, CostLine, Prices, cost, cost_line
from ctxfold.policy.triggers import Signals, compaction_at, optimal_height

K = TypeVar("K", str, int)
CLOSED_TURNS_KEPT = 256
REMOVED_KEPT = 4_096  # ids, and as many records; they stand in every snapshot


@dataclass(slots=True)
class OpenTurn:
    """Holds a turn's own entries, hidden from others until it closes; `at_s` is the time of its last record."""

    entries: list[Entry] = field(default_factory=list[Entry])
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _OutOfRecall(Container[int]):
    """Holds the given records, and all before the last clearing but those that came back since."""

    seqs: Set[int]
    cleared_seq: int
    back: Container[int]

    def __contains__(self, seq: object) -> bool:
        return seq in self.seqs or (isinstance(seq, int) and seq < self.cleared_seq and seq not in self.back)


@dataclass(eq=False, repr=False)
class SessionState:
    """Holds one session, folded up to record `head`. `apply` takes records in order of seq and ignores those at or before `head`.

    `count` returns the tokens of a message. With `user_only`, messages that only the user sees are folded in too, and with
    `unanswered` calls of ended turns that were never answered: no request may have them, but a reader sees them. `live` is only
    ever appended to within an epoch; an epoch change puts a new list in its place, so views stay as they were.
    """

    key: SessionKey
    count: Callable[[Message], int]
    user_only: bool = field(default=False, kw_only=True)
    unanswered: bool = field(default=False, kw_only=True)
    head: int = 0
    head_id: str = ""  # of the record at `head`: another id there means that the log was erased and begun anew
    read_upto: int = 0  # the records up to here were read at once, so an erasure among them is already applied to all
    snapshot_seq: int = 0
    epoch: int = 0
    system: list[Entry] = field(default_factory=list[Entry])
    compressed: list[Entry] = field(default_factory=list[Entry])
    live: list[Entry] = field(default_factory=list[Entry])
    tokens: int = 0
    open: dict[str, OpenTurn] = field(default_factory=dict[str, OpenTurn])
    closed: dict[str, None] = field(default_factory=dict[str, None])
    pins: dict[str, None] = field(default_factory=dict[str, None])
    policy_json: str = ""
    turns: int = 0
    summary_turn: int = -1
    compactions: int = 0
    summary_calls: int = 0
    summary_usage: Usage = field(default_factory=Usage)
    saved_tokens: int = 0  # by which the view is shorter than without any compaction
    avoided_tokens: int = 0  # saved tokens, summed over all replies since
    revertible: list[str] = field(default_factory=list[str])
    undone: set[str] = field(default_factory=set[str])
    edits: int = 0
    cleared_seq: int = 0
    removed: dict[str, None] = field(default_factory=dict[str, None])  # ids that an edit removed: they may come again
    # ids that their turn did not keep when it was aborted: they may come again, too
    dropped: dict[str, None] = field(default_factory=dict[str, None])
    # records of removed and cleared messages, and older versions of edited ones: recall does not bring them back
    taken_out: dict[int, None] = field(default_factory=dict[int, None])
    # records from before the last clearing that joined the conversation after it: restored messages, turns that were open
    uncleared: dict[int, None] = field(default_factory=dict[int, None])
    fixed: tuple[str, ...] = ()  # policy fields that were set at run time
    excerpts: bool = False  # True once an original was too large to be shown
    usage: Usage = field(default_factory=Usage)
    replies: int = 0
    request: WindowTokens | None = None  # the size of the newest one that was answered
    request_epoch: int = -1  # in which it was made; -1 when it says nothing of the next one any more
    calibrations: dict[str, Calibrated] = field(default_factory=dict[str, Calibrated])
    goal: GoalSet = field(default_factory=GoalSet)
    deferred: dict[str, Entry] = field(default_factory=dict[str, Entry])  # tool outputs as shown under pressure
    live_followed: Followed = field(default_factory=Followed)
    turn_followed: Followed = field(default_factory=Followed)
    stale: bool = False  # True when the fold has to be built anew from the log
    visible_ids: set[str] | None = None  # of the zones; made when first needed, then kept up to date within an epoch
    live_roles: frozenset[str] | None = None  # likewise, of the live messages
    views: dict[str | None, View] = field(default_factory=dict[str | None, View])  # by turn, until the next record

    def apply(self, records: Iterable[Record]) -> None:
        """Folds records in; sets `stale` when the fold has to be built anew, as after an undo."""
        for record in records:
            if record.seq <= self.head:
                continue
            self.head, self.head_id = record.seq, record.id
            self.views.clear()
            if record.id not in self.undone:
                self._fold(record)

    def view(self, turn_id: str | None = None) -> View:
        """Returns the zones as the given turn sees them; without one, as they stand between turns."""
        if turn_id not in self.views:
            turn = self.open.get(turn_id or "")
            entries = tuple(turn.entries) if turn else ()
            self.views[turn_id] = View(
                epoch=self.epoch,
                system=tuple(self.system),
                compressed=tuple(self.compressed),
                live=Prefix(self.live),
                turn=entries,
                tokens=self.tokens + sum(e.tokens for e in entries),
                live_roles=self._live_roles(),
            )
        return self.views[turn_id]

    def view_of_all(self, turn_id: str | None = None) -> View:
        """Returns the zones as a reader sees them: `turn` begins with what other open turns have, calls that wait aside."""
        others = [
            entry
            for other, turn in self.open.items()
            if other != turn_id
            for entry in turn.entries[: complete_prefix(turn.entries)]
        ]
        view = self.view(turn_id)
        return replace(view, turn=(*others, *view.turn), tokens=view.tokens + sum(e.tokens for e in others))

    def conversation(self, turn_id: str | None = None) -> list[Entry]:
        """Returns the entries of all zones, with those of other open turns at the places of their questions."""
        live = [*self.live]
        for other, turn in self.open.items():
            if other != turn_id and turn.entries:
                at = _place(live, turn.entries)
                live[at:at] = turn.entries
        return [*self.system, *self.compressed, *live, *self.view(turn_id).turn]

    def copy(self) -> SessionState:
        """Returns an independent fold at the same place."""
        twin = copy(self)
        for each in fields(self):
            value = getattr(self, each.name)
            # entries and other values in the containers are frozen, open turns aside
            if isinstance(value, list | dict | set | Followed):
                setattr(twin, each.name, value.copy())
        twin.open = {turn: OpenTurn(list(t.entries), t.at_s) for turn, t in self.open.items()}
        return twin

    def entry(self, message_id: str) -> Entry | None:
        """Returns the visible entry with that id, open turns included."""
        zones = (
            self.live,
            self.compressed,
            self.system,
            *(t.entries for t in self.open.values()),
        )
        return next((e for zone in zones for e in reversed(zone) if e.id == message_id), None)

    def out_of_recall(self, visible: Set[int]) -> Container[int]:
        """Returns the records that recall passes over: `visible` ones, and what edits and clearings took out."""
        seqs = visible | self.taken_out.keys()
        return _OutOfRecall(seqs, self.cleared_seq, self.uncleared) if self.cleared_seq else seqs

    def _fold(self, record: Record) -> None:  # noqa: C901, PLR0912, PLR0915 - one case for each kind of record
        match record.body:
            case MessageAdded(shown=shown, request=request):
                entry = self._entry(record, shown_in(record, record.body))
                self._add(entry if shown is None else replace(entry, shown_seq=record.seq), record)
                self._note_request(entry, request)
            case Restored():
                self._restore(record, record.body)
            case TurnClosed():
                self._close(record, record.body.status)
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
                self.cleared_seq, self.uncleared = record.seq, {}
                self._edited(record)
            case Pinned(ids=ids):
                self.pins.update(dict.fromkeys(ids))
            case Unpinned(ids=ids):
                self.pins = {pin: None for pin in self.pins if pin not in ids}
            case Undone(record_id=record_id):
                self._undo(record_id)
            case PolicyChanged(policy=policy, fixed=fixed):
                self.policy_json = policy
                self.fixed = self.fixed if fixed is None else fixed
            case Calibrated(model=model, limit=limit):
                known = self.calibrations.pop(model, None)  # the newest is the last
                kept = record.body if limit is not None or known is None else replace(record.body, limit=known.limit)
                self.calibrations[model] = kept
            case GoalSet():
                self.goal = record.body
            case OutputsSummarised():
                self._defer(record, record.body)
            case Erased(usage=usage):
                self._erased(record, usage)
            case Forked() | Unknown():
                pass
            case SnapshotTaken():
                self.snapshot_seq = record.seq
            case Sealed():
                raise StoreFormatError(f"session {self.key.session!r} is encrypted: open its store with encrypted()")
            case _:
                assert_never(record.body)

    def _undo(self, record_id: str) -> None:
        self.stale = record_id not in self.undone or self.stale
        self.undone.add(record_id)
        # two each, as the undone record no longer counts: neither number ever comes again
        self.epoch += 2
        self.edits += 2

    def _entry(self, record: Record, message: Message) -> Entry:
        return Entry(message.id, record.seq, message, self.count(message), number=record.number, at_s=record.at_s)

    def _add(self, entry: Entry, record: Record) -> None:
        if self.unanswered and entry.id in self.dropped:  # it comes again, with a result that took long
            self.live = [e for e in self.live if e.id != entry.id]
            self._visible_ids().discard(entry.id)
        if record.turn_id is None:
            self._comes_back(entry.id)
        if entry.message.visibility == "user" and not self.user_only:
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

    def _note_request(self, entry: Entry, request: WindowTokens | None) -> None:
        """Keeps the size of the newest request, until a message comes that the next one will have to hold."""
        if request is not None:
            self.request, self.request_epoch = request, self.epoch
        elif entry.message.role != "assistant" and entry.message.visibility != "user":
            self.request_epoch = -1

    def _has_place(self, entry: Entry, after: Sequence[Entry]) -> bool:
        """Returns False for a message that is in the view already, because an edit was undone or two writers restored it at once,
        and for a result whose call was undone."""
        if entry.id in self._visible_ids():
            return False
        if not self.undone:
            return True
        followed = (self.live_followed if after is self.live else self.turn_followed).read(after)
        twice = after is not self.live and entry.id in followed.ids
        return not twice and {r.call_id for r in entry.message.tool_results} <= followed.waiting.keys()

    def _visible_ids(self) -> set[str]:
        if self.visible_ids is None:
            self.visible_ids = {e.id for zone in (self.system, self.compressed, self.live) for e in zone}
        return self.visible_ids

    def _live_roles(self) -> frozenset[str]:
        if self.live_roles is None:
            self.live_roles = roles_of(self.live)
        return self.live_roles

    def _join(self, entry: Entry) -> None:
        if not self._has_place(entry, self.live):
            return
        self._visible_ids().add(entry.id)
        if entry.seq < self.cleared_seq:
            _remember(self.uncleared, (entry.seq,))
        # a question behind a tool's result: the tool had answered the one before, or its run was given up
        last = next((e for e in reversed(self.live) if e.message.kind == "message"), None)
        behind_result = last is not None and last.message.role == "tool"
        self.turns += is_final(entry.message) or (is_question(entry.message) and behind_result)
        leads = entry.message.role == "system" and not self.live and not self.compressed
        if is_prompt(entry.message) and not leads:
            earlier = next((e for e in chain(reversed(self.live), reversed(self.system)) if is_prompt(e.message)), None)
            if earlier is not None and earlier.message.text == entry.message.text:
                entry = replace(entry, tokens=0)  # requests leave it out: see `edits.without_repeated_prompts`
        if leads:
            self.system.append(entry)
        else:
            self.live_roles = self._live_roles() | roles_of((entry,))
            self.live.append(entry)
        self.tokens += entry.tokens

    def _close(self, record: Record, status: TurnStatus) -> None:
        turn_id = record.turn_id or ""
        turn = self.open.pop(turn_id, None)
        if status != "completed":
            self.request_epoch = -1
        _remember(self.closed, (turn_id,), CLOSED_TURNS_KEPT)
        if turn is None or status == "discarded":
            self._no_longer_deferred(e.id for e in (turn.entries if turn else ()))
            return
        complete = complete_prefix(turn.entries)
        before = len(self.live)
        for entry in turn.entries if self.unanswered else turn.entries[:complete]:
            self._comes_back(entry.id)
            self._join(entry)
        _remember(self.dropped, (e.id for e in turn.entries[complete:]))
        joined = self.live[before:]
        if status == "aborted" and joined and (at := _place(self.live[:before], joined)) < before:
            # others went on meanwhile: it belongs to its question, not behind theirs
            self.live = [*self.live[:at], *joined, *self.live[at:before]]
            self._new_epoch(record, revertible=False)

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
            for message_id in covered:
                self._comes_back(message_id)  # when the turn closes, it no longer has the message itself
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
        """Stores summaries of tool outputs for later, of those that are still shown in full."""
        for message in body.shown:
            entry = self.entry(message.id)
            if entry is not None and not entry.shown_seq:
                entry = replace(entry, message=message, tokens=self.count(message), shown_seq=record.seq)
                self.deferred[message.id] = entry
        self.summary_calls += body.calls or 0
        self.summary_usage += body.usage or Usage()

    def _stand_in(self, entry: Entry, shown: dict[str, Message], seq: int) -> Entry:
        message = shown.get(entry.id)
        if message is None:
            return entry
        return replace(entry, message=message, tokens=self.count(message), shown_seq=seq)

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
        if entry.message.visibility == "user" and not self.user_only:
            return
        if not self._has_place(entry, ()):
            return
        if before == AMONG_PROMPTS:
            self.system = [*self.system, entry]
            return
        at = next((i for i, e in enumerate(self.live) if e.id == before), len(self.live))
        self.live = [*self.live[:at], entry, *self.live[at:]]

    def _replace(self, new: dict[str, Entry]) -> None:
        self._take_out(e for e in self.live if e.id in new and e.seq != new[e.id].seq)
        self.system = [new.get(e.id, e) for e in self.system]
        self.live = [new.get(e.id, e) for e in self.live]
        self._no_longer_deferred(new)

    def _erased(self, record: Record, usage: Usage | None) -> None:
        """Marks the fold as stale, because it may hold the erased text: it is built anew from the rewritten records."""
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
        self.visible_ids = self.live_roles = None
        if revertible:
            self.revertible.append(record.id)
        if any(is_prompt(e.message) for e in self.live):
            self._count_prompts()
        self.tokens = sum(e.tokens for zone in (self.system, self.compressed, self.live) for e in zone)

    def _count_prompts(self) -> None:
        """Counts each system message of the conversation again, without those that say what the one before them says."""
        newest = self.system[-1].message.text if self.system else None
        entries = list[Entry]()
        for entry in self.live:
            if is_prompt(entry.message):
                tokens = 0 if entry.message.text == newest else entry.tokens or self.count(entry.message)
                newest = entry.message.text
                entries.append(replace(entry, tokens=tokens))
            else:
                entries.append(entry)
        self.live = entries


def _place(live: Sequence[Entry], turn: Sequence[Entry]) -> int:
    """Returns the place of a turn in the conversation: behind what was stored before its question, and between two turns."""
    seq = turn[0].seq
    at = next((i + 1 for i in range(len(live) - 1, -1, -1) if live[i].seq < seq), 0)
    if at == 0 or is_final(live[at - 1].message):
        return at  # no question need follow: an erasure may have taken it
    return next((i for i in range(at, len(live)) if is_question(live[i].message)), len(live))


def _remember(kept: dict[K, None], new: Iterable[K], limit: int = REMOVED_KEPT) -> None:
    """Adds ids or numbers to those that are kept, and removes the oldest beyond the limit."""
    kept.update(dict.fromkeys(new))
    while len(kept) > limit:
        del kept[next(iter(kept))]


def session_cost(state: SessionState, prices: Prices | None) -> CostLine | None:
    """Returns what was spent and saved; None without prices. Savings of compactions are by our own counts of the views."""
    if prices is None:
        return None
    whole = state.usage.input_tokens + state.avoided_tokens
    return cost_line(state.usage, prices, uncompacted_input_tokens=whole, summaries=state.summary_usage)


def compared_cost(state: SessionState, prices: Prices | None, signals: Signals) -> CostLine:
    """Returns the cost of a session, and about what it would have been with the economic trigger.

    Without prices it is in plain input tokens. The estimate takes the requests to have grown evenly, as only their sum is known.
    """
    known = prices or PER_TOKEN
    line = replace(session_cost(state, known) or CostLine(), in_tokens=prices is None)
    used, calls, fixed = state.usage, max(1, state.replies), signals.size_after_tokens - signals.summary_tokens
    growth = max(0.01, 2 * ((used.input_tokens + state.avoided_tokens) / calls - fixed) / calls)
    grown = replace(signals, growth_tokens_per_call=growth)
    cheapest = optimal_height(known, grown)
    if not used.cache_read_tokens:
        uncached: dict[str, float] = dict.fromkeys(
            ("cache_read_per_mtok", "cache_write_per_mtok"), known.input_per_mtok
        )
        known = known.model_copy(update=uncached)
    after, once = compaction_at(known, grown, cheapest)
    first = (cheapest - fixed) / growth  # calls until the first compaction
    later = max(0.0, calls - first)
    avoided = later * (fixed + growth * (first + calls) / 2 - (after + cheapest) / 2)
    rewritten = state.compactions * (after - fixed) * (known.cache_write_per_mtok - known.cache_read_per_mtok)
    read = known.cache_read_per_mtok * (state.avoided_tokens - avoided)
    change = read + later * growth / (cheapest - after) * once - rewritten
    return replace(line, with_economic=line.spent + change / MTOK - cost(state.summary_usage, known))
