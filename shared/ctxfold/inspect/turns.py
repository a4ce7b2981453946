"""Folds a log turn by turn: what the window held after each, what a provider counted for it, and what broke the prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ctxfold.history.log import SessionState
from ctxfold.history.records import (
    Body,
    Compacted,
    Erased,
    MessageAdded,
    MessageInserted,
    OutputsSummarised,
    Record,
    Undone,
)
from ctxfold.history.view import ZONES, WindowTokens
from ctxfold.messages import Usage
from ctxfold.policy.prices import Prices, cost

CHECKPOINT_EVERY = 500  # records; an undo is folded again from the checkpoint before what it undid


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """The tokens of a turn's newest request, by zone, as the model counts them; `turn` counts from 1.

    Where no request is known, those of the window as the turn ended. A compaction that followed the turn is part of the next row.

    `usage` sums what providers reported for the turn's replies and summaries, None when they reported nothing. `cost` is its
    price, None without prices. `breaks` says why the next request could not begin with the one before. `open` marks the last row
    where no turn has ended since the window changed. `at_s` is Unix time.
    """

    turn: int
    at_s: float
    system_tokens: int
    summary_tokens: int
    section_tokens: int
    live_tokens: int
    recalled_tokens: int = 0
    tools_tokens: int = 0
    usage: Usage | None = None
    cost: float | None = None
    compactions: int = 0
    breaks: tuple[str, ...] = ()
    open: bool = False

    @property
    def window_tokens(self) -> int:
        return sum(getattr(self, f"{zone}_tokens") for zone in ZONES)


@dataclass(slots=True)
class _Pending:
    """Gathers what happened since the last finished turn."""

    size: WindowTokens | None = None
    usage: Usage | None = None
    compactions: int = 0
    breaks: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, record: Record, *, broken: bool) -> None:
        if isinstance(record.body, MessageAdded):
            self.size = record.body.request or self.size
        reported = _usage(record.body)
        if reported is not None:
            self.usage = (self.usage or Usage()) + reported
        self.compactions += isinstance(record.body, Compacted)
        if broken:
            self.breaks[_cause(record.body)] = None

    def row(self, turn: int, last: Record, state: SessionState, prices: Prices | None) -> TurnFigures:
        zones = (self.size or state.view().measured()).zones
        return TurnFigures(
            turn=turn,
            at_s=last.at_s,
            system_tokens=zones["system"],
            summary_tokens=zones["summary"],
            section_tokens=zones["section"],
            live_tokens=zones["live"],
            recalled_tokens=zones["recalled"],
            tools_tokens=zones["tools"],
            usage=self.usage,
            cost=None if prices is None or self.usage is None else cost(self.usage, prices),
            compactions=self.compactions,
            breaks=tuple(self.breaks),
        )


def turn_figures(state: SessionState, records: Sequence[Record], prices: Prices | None) -> tuple[TurnFigures, ...]:
    """Returns a row for each turn of the log, and one for what came after the last of them.

    `state` is the session as it is now: its counter counts.
    Compactions that were undone later are shown as they were in force. Erased texts count as nothing.
    """
    replay = _Replay(state, records)
    rows: list[TurnFigures] = []
    pending = _Pending()
    for index, record in enumerate(records):
        turns, epoch = replay.state.turns, replay.state.epoch
        replay.apply(index)
        pending.add(record, broken=bool(rows) and replay.state.epoch != epoch)
        if replay.state.turns > turns and not isinstance(record.body, Undone):
            rows.append(pending.row(len(rows) + 1, record, replay.state, prices))
            pending = _Pending()
    if rows and pending.breaks:
        row = pending.row(len(rows) + 1, records[-1], replay.state, prices)
        rows.append(replace(row, open=True))
    return tuple(rows)


class _Replay:
    """Folds records one by one. Where one undoes another, it folds again without that one, from the last checkpoint before it."""

    def __init__(self, state: SessionState, records: Sequence[Record]) -> None:
        self._records = records
        self._places = {record.id: index for index, record in enumerate(records)}
        self.state = SessionState(state.key, state.count)
        self.state.read_upto = records[-1].seq if records else 0  # the texts of all of them are as erasures left them
        self._checkpoints = [(0, self.state.copy())]

    def apply(self, index: int) -> None:
        """Folds the record at that place in."""
        if index - self._checkpoints[-1][0] >= CHECKPOINT_EVERY:
            self._checkpoints.append((index, self.state.copy()))
        self.state.apply((self._records[index],))
        while self.state.stale:
            undone = frozenset(self.state.undone)
            begin, earlier = self._checkpoints.pop()
            while any(self._places.get(i, begin) < begin for i in undone - earlier.undone):
                begin, earlier = self._checkpoints.pop()
            self._checkpoints.append((begin, earlier))
            self.state = earlier.copy()
            self.state.undone |= undone
            self.state.apply(self._records[begin : index + 1])


def _usage(body: Body) -> Usage | None:
    """Returns what a provider reported for the reply or the summary that a record holds."""
    match body:
        case MessageAdded(message=message):
            return message.usage
        case Compacted(usage=usage) | OutputsSummarised(usage=usage) | Erased(usage=usage):
            return usage
        case _:
            return None


def _cause(body: Body) -> str:
    match body:
        case Compacted():
            return "compaction"
        case Undone():
            return "undo"
        case Erased():
            return "erasure"
        case MessageInserted(message=message) if message.kind == "section":
            return "section"
        case _:
            return "edit"
