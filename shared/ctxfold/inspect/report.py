"""Reports on a whole session: its window, its timeline, and where every message is now."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ctxfold.effects import Flow, StoreCall
from ctxfold.events import WindowGauge
from ctxfold.history.log import SessionState
from ctxfold.history.records import (
    NOTICE,
    Body,
    Cleared,
    Compacted,
    Erased,
    Forked,
    MessageAdded,
    MessageInserted,
    MessageRemoved,
    MessageReplaced,
    OutputsSummarised,
    Pinned,
    Record,
    Restored,
    Undone,
    Unpinned,
)
from ctxfold.history.snapshot import stored_message
from ctxfold.history.view import ZONES, WindowTokens, section_note
from ctxfold.inspect.explain import PREVIEW_CHARS, Explanation, explain
from ctxfold.inspect.page import body, page, time_text
from ctxfold.messages import Message, Usage, is_final
from ctxfold.policy.prices import CostLine, Prices, cost
from ctxfold.protocols import Store
from ctxfold.retrieval.loss import says_missing
from ctxfold.state import Session
from ctxfold.tokens.media import images_of, row_text, shown_text

CHECKPOINT_EVERY = 500  # records; an undo is folded again from the checkpoint before what it undid


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """The tokens of a turn's newest request, by zone, as the model counts them; `turn` counts from 1.

    Where no request is known, those of the window as the turn ended. A compaction that followed the turn is part of the next row.

    `usage` sums what providers reported for the turn's replies and summaries, None when they reported nothing. `cost` is its
    price, None without prices. `breaks` says why the next request could not begin with the one before. `open` marks the last row
    where a turn is open, or no turn has ended since the window changed. `at_s` is Unix time. `seq` is the turn's last record, and
    `requests` are those of the replies to its requests, as far as these are known: `archive.window_at` takes them. `recalled` are
    the references of the messages whose passages they had.
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
    seq: int = 0
    requests: tuple[int, ...] = ()
    recalled: tuple[str, ...] = ()

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
    requests: list[int] = field(default_factory=list[int])
    recalled: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, record: Record, *, broken: bool) -> None:
        if isinstance(record.body, MessageAdded) and record.body.request is not None:
            self.size = record.body.request
            self.requests.append(record.seq)
            self.recalled |= dict.fromkeys(f"#{n}" for n in self.size.recalled_numbers or ())
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
            seq=last.seq,
            requests=tuple(self.requests),
            recalled=tuple(self.recalled),
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
    if (rows and pending.breaks) or pending.requests:
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


MOST_MESSAGES = 2_000
MOST_CHARS = 20_000  # of one message


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """A change of the window: a compaction, an edit, an erasure. All but pins and forks broke the prefix.

    `turn` is the one in which it happened, or which followed. Of a compaction, `calls` and `usage` are what its summary took,
    `recalled` the messages it covered whose passages later requests had, and `missing` the replies up to the next compaction
    that said that earlier content is missing.
    """

    at_s: float
    what: str
    detail: str = ""
    tokens_before: int = 0
    tokens_after: int = 0
    undone: bool = False
    turn: int = 0
    calls: int = 0
    usage: Usage | None = None
    recalled: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as it was stored, and its place now; `reference` reads it back.

    `summary` is the id of the summary in the window that stands for it, "" for one that none does. `tools` are the tools that it
    calls or whose results it has, `images` counts its pictures, and `seq` is the record that holds it. `preview` is its
    text in one line, which is never empty.
    """

    reference: str
    id: str
    role: str
    where: str
    at_s: float
    text: str
    preview: str
    summary: str = ""
    turn: int = 0
    tools: tuple[str, ...] = ()
    images: int = 0
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Inspection:
    """The report on a session: print it, call `to_dict()`, show it in a notebook, or write `page()` to a file.

    `messages` are the newest ones, oldest first; `left_out` is how many came before them. `turns` has the figures of each turn.
    `shown` is the text of each block of `window`, as the model sees it. Long texts are cut, and say so.
    """

    window: Explanation
    timeline: tuple[TimelineEntry, ...]
    messages: tuple[Stored, ...]
    left_out: int = 0
    turns: tuple[TurnFigures, ...] = ()
    shown: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        data = asdict(replace(self, window=replace(self.window, messages=())))
        data["window"] = self.window.to_dict()
        return data

    def page(self) -> str:
        """Returns one self-contained HTML document: chart, window, summaries beside their sources, and a search."""
        return page(self.to_dict())

    def _repr_html_(self) -> str:
        return body(self.to_dict())

    def __str__(self) -> str:
        steps = [
            f"{time_text(s.at_s)}  {s.what:<12}"
            f"{f'{s.tokens_before} -> {s.tokens_after} tokens  ' if s.tokens_before else ''}{s.detail}"
            f"{' (undone)' if s.undone else ''}"
            for s in self.timeline
        ]
        return "\n".join([str(self.window), "", "What happened:", *(steps or ["nothing yet"])])


def inspect(session: Session, gauge: WindowGauge, cost: CostLine) -> Flow[Inspection]:
    """Returns the whole report; reads the whole log."""
    records = yield from StoreCall(Store.read, session.key)
    with session.lock:
        state = session.state.copy()
    window = yield from explain(session, gauge, cost)
    turns = turn_figures(state, records, session.ports.prices)
    ends = [row.seq for row in turns]
    stored = _stored(state, records, ends)
    return Inspection(
        window,
        _timeline(state, records, ends),
        stored[-MOST_MESSAGES:],
        left_out=max(0, len(stored) - MOST_MESSAGES),
        turns=turns,
        shown=tuple(map(_text, window.messages)),
    )


def _timeline(state: SessionState, records: Sequence[Record], ends: Sequence[int]) -> tuple[TimelineEntry, ...]:
    """Returns the changes of the window; `ends` are the last records of the turns."""
    steps: list[TimelineEntry] = []
    numbers: dict[str, int] = {}  # of messages, by id
    recalled: dict[int, dict[str, None]] = {}  # by the compaction's place in `steps`
    missing: dict[int, list[str]] = {}
    covered: dict[int, dict[str, None]] = {}  # of the compaction that covered the message with that number
    for record in records:
        body_ = record.body
        step = _timeline_entry(record, records, undone=record.id in state.undone)
        if isinstance(body_, Compacted):
            recalled[len(steps)], missing[len(steps)] = {}, []
            covered |= dict.fromkeys((numbers[i] for i in body_.covered if i in numbers), recalled[len(steps)])
        elif isinstance(body_, MessageAdded):
            numbers[body_.message.id] = record.number
            for number in () if body_.request is None else body_.request.recalled_numbers or ():
                covered.get(number, {})[f"#{number}"] = None
            if missing and is_final(body_.message) and says_missing(body_.message.text):
                missing[max(missing)].append(f"#{record.number}")
        if step is not None:
            steps.append(replace(step, turn=bisect_left(ends, record.seq) + 1))
    for at, references in recalled.items():
        steps[at] = replace(steps[at], recalled=tuple(references), missing=tuple(missing[at]))
    return tuple(steps)


def _timeline_entry(record: Record, records: Sequence[Record], *, undone: bool) -> TimelineEntry | None:
    body_ = record.body
    if isinstance(body_, Compacted):
        parts = (f"{len(body_.covered)} messages covered" if body_.covered else "", body_.fallback_level, body_.reason)
        detail = f"{body_.strategy}: {', '.join(p for p in parts if p)}"
        size = body_.tokens_before, body_.tokens_after
        return TimelineEntry(
            record.at_s, "compaction", detail, *size, undone, calls=body_.calls or 0, usage=body_.usage
        )
    if (edit := _edited(body_)) is not None:
        return TimelineEntry(record.at_s, *edit, undone=undone)
    if (other := _other(record, records)) is not None:
        return TimelineEntry(record.at_s, *other)
    return None


def _edited(body_: Body) -> tuple[str, str] | None:
    match body_:
        case MessageAdded(message=message) | MessageInserted(message=message) if message.kind == "section":
            note = section_note(message)
            return "section", "" if note is None else note.kind
        case MessageInserted(message=message):
            return "edit", f"{message.id} put in"
        case MessageReplaced(message=message):
            return "edit", f"{message.id} replaced"
        case MessageRemoved(ids=ids):
            return "edit", f"{_named(ids)} removed"
        case Cleared():
            return "edit", "cleared"
        case Restored(message=message):
            return "restored", message.id
        case _:
            return None


def _other(record: Record, records: Sequence[Record]) -> tuple[str, str] | None:
    match record.body:
        case Undone(record_id=record_id):
            kind = next((r.body.kind for r in records if r.id == record_id), "")
            return "undo", f"of {kind.replace('_', ' ')}"
        case Pinned(ids=ids):
            return "pin", _named(ids)
        case Unpinned(ids=ids):
            return "unpin", _named(ids)
        case Forked(origins=origins):
            return "fork", f"from {origins[0]}"
        case Erased(ids=ids) if record.id.startswith(NOTICE):
            return "erasure", _named(ids)
        case _:
            return None


def _named(ids: Sequence[str]) -> str:
    return ", ".join(ids) if len(ids) <= 4 else f"{len(ids)} messages"


def _stored(state: SessionState, records: Sequence[Record], ends: Sequence[int]) -> tuple[Stored, ...]:
    """Returns each message once, in its newest version."""
    visible = {e.id: e for e in state.view()}
    pending = {e.id for turn in state.open.values() for e in turn.entries}
    covered = {i for r in records if isinstance(r.body, Compacted) and r.id not in state.undone for i in r.body.covered}
    summaries = _summaries(state, records)
    newest: dict[str, tuple[Record, Message]] = {}
    for record in records:
        message = stored_message(record)
        if message is not None and record.id not in state.undone:
            first = (
                newest.get(message.id, (record, message))[0] if not isinstance(record.body, MessageAdded) else record
            )
            newest[message.id] = (first, message)

    def where(message: Message) -> str:
        if message.id in visible:
            return "shown as an excerpt" if visible[message.id].shown_seq else "in the window"
        if message.id in pending:
            return "in an open turn"
        if message.visibility == "user":
            return "for the user only"
        return "compacted" if message.id in covered else "removed"

    def summary(message: Message) -> str:
        """Returns the summary of the window that stands for the message, following those that newer ones replaced."""
        holder = message.id
        while holder in summaries and holder not in visible:
            holder = summaries[holder]
        return holder if holder != message.id and holder in visible else ""

    names = {c.id: c.name for _, m in newest.values() for c in m.tool_calls}
    stored: list[Stored] = []
    for record, message in newest.values():
        facts = bisect_left(ends, record.seq) + 1, tools_of(message, names), len(images_of(message)), record.seq
        place = record.at_s, _text(message), row_text(message, PREVIEW_CHARS), summary(message)
        stored.append(Stored(f"#{record.number}", message.id, message.role, where(message), *place, *facts))
    return tuple(stored)


def tools_of(message: Message, names: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the tools that a message calls or whose results it has; `names` are those of calls, by the call's id."""
    called = [c.name for c in message.tool_calls]
    return tuple(dict.fromkeys([*called, *(r.name or names.get(r.call_id, "") for r in message.tool_results)]))


def _summaries(state: SessionState, records: Sequence[Record]) -> dict[str, str]:
    """Returns, by the id of a message or of an earlier summary, the id of the summary that replaced it."""
    return {
        covered: r.body.summary.id
        for r in records
        if isinstance(r.body, Compacted) and r.body.summary is not None and r.id not in state.undone
        for covered in r.body.covered
    }


def _text(message: Message) -> str:
    text = shown_text(message)
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]}\n[{len(text) - MOST_CHARS} more characters]"
