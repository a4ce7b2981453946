"""Explains a window: why each message is in it, and which message a reference names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from ctxfold.compaction.compact import costs, gauge
from ctxfold.effects import Flow, StoreCall
from ctxfold.events import WindowGauge
from ctxfold.history.prefix import PrefixStats
from ctxfold.history.records import Compacted, MessageAdded, Record
from ctxfold.history.view import Entry, View, section_note
from ctxfold.inspect.page import SHORT_NAMES, window_html
from ctxfold.messages import Message, ProviderSummary
from ctxfold.policy.prices import CostLine
from ctxfold.protocols import Store
from ctxfold.retrieval.originals import original_record
from ctxfold.state import Session, load_at
from ctxfold.tokens.media import row_text

PREVIEW_CHARS = 200
Where: TypeAlias = Literal["visible", "excerpt", "compacted", "removed", "hidden", "open turn"]


@dataclass(frozen=True, slots=True)
class WindowBlock:
    """A message of the window: its zone, its tokens, and why it is there.

    `reference` reads the original back, `source` names what it was made from, and `at_s` is when it was stored, in Unix time.
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
    """The whole window, in tokens as the model counts them.

    `zones` has what the newest request held: "recalled" passages and "tools" too, which are no blocks. `used_tokens` is their
    sum. `recalled` are the references of the messages whose passages it had, and `gave_way` those that it left out for them.
    `messages` are those of the blocks, as the model sees them; `to_dict` leaves them out. A reply is a block before a request
    holds it. `gauge` says when the next compaction is due, and `cost` what the session has
    cost and would have cost with EconomicTrigger.
    """

    session: str
    context_window: int
    budget_tokens: int
    used_tokens: int
    epoch: int
    compactions: int
    blocks: tuple[WindowBlock, ...]
    prefix: PrefixStats
    zones: Mapping[str, int]
    gauge: WindowGauge
    cost: CostLine
    now_s: float = 0.0
    recalled: tuple[str, ...] = ()
    gave_way: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()

    @property
    def held(self) -> str:
        """Returns what the newest request held, in words: `conversation 2,599, recalled 3,055, tools 394`."""
        return ", ".join(f"{SHORT_NAMES[zone]} {tokens:,}" for zone, tokens in self.zones.items() if tokens)

    @property
    def new(self) -> bool:
        """Returns True while nothing was said in the session: it may be new, or its name mistyped."""
        return self.epoch == 0 and all(block.zone == "system" for block in self.blocks)

    def _repr_html_(self) -> str:
        return window_html(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        data = asdict(replace(self, messages=()))
        del data["messages"]
        data["gauge"]["forecast"] = self.gauge.forecast
        data["cost"]["text"] = str(self.cost)
        return data

    def __str__(self) -> str:
        head = (
            f"session {self.session}{' (new session)' if self.new else ''}: {self.used_tokens} of {self.budget_tokens} tokens used "
            f"(window {self.context_window}), epoch {self.epoch}, {self.compactions} compactions; {self.gauge.forecast}"
        )
        rows = [
            f"{b.zone:<8} {b.role:<10} {b.tokens:>6}  {b.reference:<6} {b.why:<34} {b.preview[:60]}"
            for b in self.blocks
        ]
        return "\n".join([head, str(self.cost), *rows])


@dataclass(frozen=True, slots=True)
class MessageExplanation:
    """The place of one message now; `reference` (`#17`) reads the original back.

    `summaries` are the ids of the summaries that contain it, the newest, which replaced the others, last.
    """

    id: str
    where: Where
    why: str
    reference: str
    message: Message
    summaries: tuple[str, ...] = ()


def explain(session: Session, gauge: WindowGauge, cost: CostLine, view: View | None = None) -> Flow[Explanation]:
    """Returns the explanation of the window, open turns included, or of another view; reads the records of its messages."""
    with session.lock:
        size, view = session.window_tokens(), view or session.view_of_all()
        pins, compactions = frozenset(session.state.pins), session.state.compactions
    stored = yield from StoreCall(Store.fetch, session.key, [e.seq for e in view])
    records = {r.seq: r for r in stored}
    blocks = (_block(zone, e, records.get(e.seq), e.id in pins, size.ratio) for zone, e in view.by_zone())
    return Explanation(
        session=session.key.session,
        context_window=gauge.context_window,
        budget_tokens=gauge.budget_tokens,
        used_tokens=gauge.used_tokens,
        epoch=view.epoch,
        compactions=compactions,
        blocks=tuple(blocks),
        prefix=session.tracker.stats(),
        zones=size.zones,
        gauge=gauge,
        cost=cost,
        now_s=session.ports.clock.now_s(),
        recalled=tuple(f"#{n}" for n in size.recalled_numbers or ()),
        gave_way=tuple(f"#{n}" for n in size.hidden_numbers or ()),
        messages=tuple(e.message for _, e in view.by_zone()),
    )


def explain_at(session: Session, seq: int) -> Flow[Explanation]:
    """Returns the window of the request that the reply in that record answers; of another record, the window right after it."""
    state = yield from load_at(session.key, seq, session.ports)
    past = Session(state, session.ports, model=session.model, opening_policy=session.opening_policy)
    record = next(iter((yield from StoreCall(Store.fetch, session.key, [seq]))), None)
    turn_id, body = (None, None) if record is None else (record.turn_id, record.body)
    view = past.view(turn_id)
    if isinstance(body, MessageAdded) and body.request is not None:
        hidden = frozenset(body.request.hidden_numbers or ())
        view = replace(view, turn=tuple(e for e in view.turn if e.seq != seq))
        view = view.with_live(e for e in view.live if e.seq != seq and e.number not in hidden)
    level = gauge(past, past.stage(turn_id), session.ports.counter)
    return (yield from explain(past, level, costs(past), view))


@dataclass(frozen=True, slots=True)
class WindowDiff:
    """The difference of two windows: blocks that came, left, or are shown otherwise; `zones` are tokens, later less earlier."""

    came: tuple[WindowBlock, ...]
    left: tuple[WindowBlock, ...]
    changed: tuple[tuple[WindowBlock, WindowBlock], ...]
    zones: Mapping[str, int]
    recalled: tuple[str, ...]
    no_longer_recalled: tuple[str, ...]


def difference(earlier: Explanation, later: Explanation) -> WindowDiff:
    """Returns what is different in the later window. A block that left for passages is named in its `gave_way`."""
    before, after = ({b.id: b for b in window.blocks} for window in (earlier, later))
    pairs = [(before[i], b) for i, b in after.items() if i in before]
    return WindowDiff(
        tuple(b for i, b in after.items() if i not in before),
        tuple(b for i, b in before.items() if i not in after),
        tuple((a, b) for a, b in pairs if (a.preview, a.zone) != (b.preview, b.zone)),
        {zone: tokens - earlier.zones[zone] for zone, tokens in later.zones.items()},
        tuple(r for r in later.recalled if r not in earlier.recalled),
        tuple(r for r in earlier.recalled if r not in later.recalled),
    )


def explain_message(session: Session, message_id: str) -> Flow[MessageExplanation]:
    """Returns where a message is: visible, an excerpt, compacted, removed, or in an open turn.

    Raises MessageNotFoundError when the session never had it.
    """
    record, message = yield from original_record(session, message_id)
    entry = session.state.entry(message.id)
    summaries: tuple[str, ...] = ()
    where: Where
    if message.visibility == "user":
        where, why = "hidden", "for the user only: neither counted nor sent"
    elif entry is None:
        compactions = yield from _compactions(session, message.id, record.seq)
        summaries = tuple(c.summary.id for c in compactions if c.summary is not None)
        where, why = "removed", "an edit took it out of the view; the original is archived"
        if compactions:
            last = compactions[-1]
            how = f"summarised in {summaries[-1]}" if last.summary else "left out without a summary"
            where, why = "compacted", f"{how} ({last.strategy}, {last.reason}); the original is archived"
    elif any(entry in t.entries for t in session.state.open.values()):
        where, why = "open turn", "its turn has not closed yet"
    else:
        where, why = "excerpt" if entry.shown_seq else "visible", _why(entry, message.id in session.state.pins)
    return MessageExplanation(message.id, where, why, f"#{record.number}", message, summaries)


def _compactions(session: Session, message_id: str, since: int) -> Flow[list[Compacted]]:
    """Returns the compactions that covered the message, or the summary that stood for it, one after the other."""
    records = yield from StoreCall(Store.read, session.key, after=since)
    newest_id, found = message_id, list[Compacted]()
    for record in records:
        body = record.body
        if isinstance(body, Compacted) and newest_id in body.covered and record.id not in session.state.undone:
            newest_id = newest_id if body.summary is None else body.summary.id
            found.append(body)
    return found


def _block(zone: str, entry: Entry, record: Record | None, pinned: bool, ratio: float) -> WindowBlock:
    return WindowBlock(
        zone=zone,
        id=entry.id,
        role=entry.message.role,
        tokens=round(entry.tokens * ratio),
        why=_why(entry, pinned),
        preview=row_text(entry.message, PREVIEW_CHARS),
        reference=entry.reference if entry.number else "",
        source=_made_from(entry, record),
        at_s=record.at_s if record is not None else 0.0,
    )


def _made_from(entry: Entry, record: Record | None) -> str:
    note = section_note(entry.message)
    if note is not None:
        return ", ".join(dict.fromkeys(i.source for i in note.items if i.source))
    if record is not None and isinstance(record.body, Compacted) and entry.message.kind == "summary":
        return f"{len(record.body.covered)} messages, {record.body.fallback_level}"
    return ""


def _why(entry: Entry, pinned: bool) -> str:
    if pinned:
        return "pinned"
    if (provided := ProviderSummary.of(entry.message)) is not None:
        return (
            f"stands for compacted messages; {provided.provider} wrote a summary of its own, which {provided.model} reads in place "
            "of this text"
        )
    if entry.message.kind == "summary":
        return "stands for compacted messages"
    if (note := section_note(entry.message)) is not None:
        return f"{note.kind}, {'put in by hand' if note.by_hand else 'found for the question'}"
    if entry.shown_seq:
        return "excerpt of a large tool output" if entry.message.role == "tool" else "arguments of a call, shortened"
    return "system prompt" if entry.message.role == "system" else "newer than the last cut"
