"""Converts a folded state to JSON text and back: ids, positions and counts, never a message's text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from ctxfold.errors import StoreCorruptError, StoreFormatError
from ctxfold.history.log import OpenTurn, SessionState
from ctxfold.history.records import (
    Calibrated,
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
    Subgoal,
    Unknown,
    shown_in,
)
from ctxfold.history.view import Entry, WindowTokens
from ctxfold.lru import lazy_pattern
from ctxfold.messages import Message, Usage

SNAPSHOT_VERSION = 1
NEWER_SNAPSHOT = f'{{"version":{SNAPSHOT_VERSION + 1}}}'  # nothing is left of it: readers pass it over
_VERSION = lazy_pattern(r'\{"version":(\d{1,9})\b')
REVERTIBLE_KEPT = 256


def _padded(value: Any) -> Any:
    """Adds the number that slots of older snapshots lack."""
    if not isinstance(value, list):
        return value  # pyright: ignore[reportUnknownVariableType]
    slot = cast("list[Any]", value)  # type: ignore[redundant-cast]
    return [*slot, 0] if len(slot) == 4 else slot


Slot = Annotated[tuple[str, int, int, int, int], BeforeValidator(_padded)]  # id, seq, shown_seq, tokens, number


class OpenSlots(BaseModel):
    """Holds an open turn's entries, and the time of its last record."""

    model_config = ConfigDict(frozen=True)
    at_s: float
    entries: tuple[Slot, ...]


class Snapshot(BaseModel):
    """Holds the content of a SnapshotTaken record."""

    model_config = ConfigDict(frozen=True)
    version: int
    counter: str
    epoch: int
    turns: int
    summary_turn: int
    edits: int
    usage: tuple[int, int, int, int, int]
    replies: int
    policy: str
    previous: int
    system: tuple[Slot, ...]
    compressed: tuple[Slot, ...]
    live: tuple[Slot, ...]
    open: Mapping[str, OpenSlots]
    closed: tuple[str, ...]
    pins: tuple[str, ...]
    compactions: int
    revertible: tuple[str, ...]
    undone: tuple[str, ...]
    cleared_seq: int = 0
    summary_calls: int = 0
    summary_usage: tuple[int, ...] = ()
    saved_tokens: int = 0
    avoided_tokens: int = 0
    removed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    taken_out: tuple[int, ...] = ()
    uncleared: tuple[int, ...] = ()
    fixed: tuple[str, ...] = ()
    excerpts: bool = False
    calibrations: tuple[tuple[str, float, float, int], ...] = ()
    limits: tuple[tuple[str, int], ...] = ()  # beside the calibrations, whose length older versions check
    goal: str = ""
    subgoals: tuple[tuple[str, int, bool], ...] = ()
    given: tuple[Literal["goal", "subgoal"], ...] = ()
    deferred: tuple[Slot, ...] = ()
    request: WindowTokens | None = None
    request_epoch: int = -1

    def seqs(self) -> tuple[int, ...]:
        """Returns the number of every record that has to be fetched to show this state."""
        zones = (self.system, self.compressed, self.live, self.deferred, *(t.entries for t in self.open.values()))
        return tuple(sorted({slot[2] or slot[1] for zone in zones for slot in zone}))


# fields that a state has in the same form
_PLAIN = (
    "epoch", "turns", "summary_turn", "edits", "replies", "compactions", "cleared_seq", "summary_calls", "saved_tokens",
    "avoided_tokens", "fixed", "excerpts", "request_epoch",
)  # fmt: skip
_USAGES = ("usage", "summary_usage")
_ZONES = ("system", "compressed", "live")
_KEYS = ("closed", "pins", "removed", "dropped", "taken_out", "uncleared")  # in a state the keys of a dict


def dump_state(state: SessionState, counter_id: str) -> str:
    """Returns the state as compact JSON text."""
    values: dict[str, Any] = {name: getattr(state, name) for name in _PLAIN}
    values |= {name: astuple(getattr(state, name)) for name in _USAGES}
    values |= {name: _slots(getattr(state, name)) for name in _ZONES}
    values |= {name: list(getattr(state, name)) for name in _KEYS}
    values |= {
        "version": SNAPSHOT_VERSION,
        "counter": counter_id,
        "policy": state.policy_json,
        "previous": state.snapshot_seq,
        "open": {k: {"at_s": t.at_s, "entries": _slots(t.entries)} for k, t in state.open.items()},
        "closed": list(state.closed)[-64:],
        "revertible": state.revertible[-REVERTIBLE_KEPT:],
        "undone": sorted(state.undone),
        "calibrations": [(c.model, c.ratio, c.error, c.samples) for c in state.calibrations.values()],
        "limits": [(c.model, c.limit) for c in state.calibrations.values() if c.limit is not None],
        "goal": state.goal.goal,
        "subgoals": [astuple(s) for s in state.goal.subgoals],
        "given": state.goal.given,
        "deferred": _slots(state.deferred.values()),
        "request": None if state.request is None else asdict(state.request),
    }
    return json.dumps({name: values[name] for name in Snapshot.model_fields}, separators=(",", ":"))


def parse_snapshot(text: str) -> Snapshot:
    """Returns the parsed snapshot. Raises StoreFormatError for a newer version, StoreCorruptError for damage."""
    version = _VERSION.match(text)
    if version and int(version[1]) > SNAPSHOT_VERSION:
        raise StoreFormatError(
            f"snapshot has version {version[1]}, this ctxfold reads up to {SNAPSHOT_VERSION}: upgrade ctxfold"
        )
    try:
        return Snapshot.model_validate_json(text)
    except ValidationError as error:
        raise StoreCorruptError(f"a snapshot cannot be read: {error.errors()[0]['msg']}") from None


@dataclass(frozen=True, slots=True)
class _Loader:
    records: Mapping[int, Record]
    count: Callable[[Message], int]
    recount: bool

    def entries(self, slots: Sequence[Slot]) -> list[Entry]:
        return [self.entry(slot) for slot in slots]

    def entry(self, slot: Slot) -> Entry:
        message_id, seq, shown_seq, tokens, number = slot
        record = self.records.get(shown_seq or seq)
        message = None if record is None else message_in(record, message_id, shown=bool(shown_seq))
        if message is None:
            if record is not None and (isinstance(record.body, Unknown) or record.body == Erased(())):
                raise StoreFormatError(f"record {record.seq} holds a message in a form of its own: upgrade ctxfold")
            raise StoreCorruptError(f"record {shown_seq or seq} with message {message_id!r} is missing from the store")
        if not number and not shown_seq and record is not None:
            number = record.number
        count = self.count(message) if self.recount else tokens
        return Entry(message_id, seq, message, count, shown_seq, number, at_s=record.at_s if record else 0.0)


def load_state(
    key: SessionKey,
    snapshot: Snapshot,
    records: Iterable[Record],
    *,
    at: int,
    counter_id: str,
    count: Callable[[Message], int],
) -> SessionState:
    """Returns the dumped state, right after its record `at`. Tokens are counted again when the counter is another one."""
    loader = _Loader({r.seq: r for r in records}, count, counter_id != snapshot.counter)
    state = SessionState(key, count)
    state.head = state.snapshot_seq = at
    for name in _PLAIN:
        setattr(state, name, getattr(snapshot, name))
    for name in _USAGES:
        setattr(state, name, Usage(*getattr(snapshot, name)))
    for name in _ZONES:
        setattr(state, name, loader.entries(getattr(snapshot, name)))
    for name in _KEYS:
        setattr(state, name, dict.fromkeys(getattr(snapshot, name)))
    state.policy_json, state.request = snapshot.policy, snapshot.request
    state.open = {k: OpenTurn(loader.entries(t.entries), t.at_s) for k, t in snapshot.open.items()}
    state.revertible, state.undone = list(snapshot.revertible), set(snapshot.undone)
    limits = dict(snapshot.limits)
    state.calibrations = {c[0]: Calibrated(*c, limit=limits.get(c[0])) for c in snapshot.calibrations}
    state.goal = GoalSet(snapshot.goal, tuple(Subgoal(*s) for s in snapshot.subgoals), snapshot.given)
    state.deferred = {e.id: e for e in loader.entries(snapshot.deferred)}
    state.tokens = sum(e.tokens for zone in (state.system, state.compressed, state.live) for e in zone)
    return state


def message_in(record: Record, message_id: str, *, shown: bool = False) -> Message | None:
    """Returns the message with that id in a record: its original or, with `shown`, the stand-in that the model sees."""
    result: Message | None
    match record.body:
        case MessageAdded(message=message, shown=stand_in):
            result = shown_in(record, record.body) if shown and stand_in is not None else message
        case MessageInserted(message=message) | MessageReplaced(message=message) | Restored(message=message):
            result = message
        case OutputsSummarised(shown=messages):
            result = next((m for m in messages if m.id == message_id), None)
        case Compacted(summary=summary, shown=messages):
            candidates = (*messages, *((summary,) if summary else ()))
            result = next((m for m in candidates if m.id == message_id), None)
        case _:
            result = None
    return result if result is not None and result.id == message_id else None


def stored_message(record: Record) -> Message | None:
    """Returns the original message that a record holds, if it holds one."""
    match record.body:
        case MessageAdded(message=message) | MessageInserted(message=message):
            return message
        case MessageReplaced(message=message) | Restored(message=message):
            return message
        case _:
            return None


def _slots(entries: Iterable[Entry]) -> list[Slot]:
    return [(e.id, e.seq, e.shown_seq, e.tokens, e.number) for e in entries]
