"""Sections at the start of a turn: stored right before its question, or in front of the conversation where an epoch begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from ctxfold.editing import remove_ids
from ctxfold.engine import Engine
from ctxfold.errors import ConfigError
from ctxfold.events import Event, SectionInjected
from ctxfold.flow import Flow
from ctxfold.given import kind_of
from ctxfold.history.records import MessageInserted, Undone
from ctxfold.history.sections import Place, SectionNote, section, section_note
from ctxfold.history.view import View
from ctxfold.journal import Journal, append, draft
from ctxfold.messages import Message
from ctxfold.zones.inject import Filled, fill
from ctxfold.zones.section import KINDS, Item, Section

__all__ = ["Beside", "beside", "inject", "put_at_head", "remove", "store", "take_from_head"]


@dataclass(frozen=True, slots=True)
class Beside:
    """What a turn begins with: its messages with the sections before the question; `head` is for the front."""

    messages: tuple[Message, ...]
    head: tuple[Message, ...] = ()
    events: tuple[Event, ...] = ()


def beside(
    engine: Engine,
    journal: Journal,
    messages: tuple[Message, ...],
    *,
    turn_id: str | None,
    overhead_tokens: int,
    recall: bool,
    scratch: str | None,
) -> Flow[Beside]:
    """The messages of a turn, with what is to be stored beside its question, if they end with one; nothing is stored yet.

    Where the provider binds reasoning to everything before it, the reply is bound to what would be the request's alone too:
    recalled passages, `scratch` and the sections of one request are stored as well.
    """
    question = messages[-1]
    bound = bool(getattr(engine.ports.backend, "binds_reasoning", False))
    if question.role != "user" or question.kind != "message":
        return Beside(messages)
    view, new_id = journal.view(turn_id), engine.ports.ids.new
    wanted = [s for s in engine.room.sections if bound or s.lifetime == "epoch"] if recall else []
    before: list[Message] = []
    room = journal.rules().budget_tokens - overhead_tokens - sum(engine.ports.counter.count(m) for m in messages)
    required_tokens = room - sum(e.tokens for e in view.system)
    room -= view.tokens
    if bound:
        found = (yield from engine.room.recalled(journal, question)) if recall else ""
        text = "\n\n".join(t for t in (found, scratch) if t)
        if text:
            before.append(section(new_id(), text, SectionNote("request")))
            room -= engine.ports.counter.count(before[0])
    filled: Sequence[Filled] = ()
    if wanted:
        filled = yield from engine.room.fill(
            journal, view, wanted, question, room_tokens=room, required_tokens=required_tokens, turn_id=turn_id
        )
    heads, tails = _placed(journal, view, filled)
    events = tuple(f.event(journal.key.session) for f in (*heads, *tails))
    front, before = [f.message(new_id()) for f in heads], [*(f.message(new_id()) for f in tails), *before]
    if not view.live and not view.turn:
        return Beside((*front, *messages[:-1], *before, question), events=events)
    return Beside((*messages[:-1], *before, question), tuple(front), events)


def put_at_head(engine: Engine, journal: Journal, messages: Sequence[Message]) -> Flow[None]:
    """Store sections in front of the conversation."""
    live = journal.view().live
    before = live[0].id if len(live) else None
    drafts = [draft(engine.ports, MessageInserted(m, before), record_id=f"m:{m.id}") for m in messages]
    if drafts:
        yield from append(journal, drafts, engine.ports)


def take_from_head(engine: Engine, journal: Journal, messages: Sequence[Message]) -> Flow[None]:
    """As if they had never been put there; those that were not are left out."""
    live = {e.id for e in journal.view().live}
    drafts = [draft(engine.ports, Undone(f"m:{m.id}")) for m in messages if m.id in live]
    if drafts:
        yield from append(journal, drafts, engine.ports)


def _placed(journal: Journal, view: View, filled: Sequence[Filled]) -> tuple[tuple[Filled, ...], tuple[Filled, ...]]:
    """Sections for the front, and sections for the tail: where a head would break a prefix, it is one of them."""
    at_head = _at_head(journal, view)
    heads = tuple(f for f in filled if f.note.place == "head" and at_head)
    return heads, tuple(f if f.note.place == "tail" else _at_tail(f) for f in filled if f not in heads)


def _at_head(journal: Journal, view: View) -> bool:
    """Whether nothing that is put in front breaks a prefix: none was sent yet, or an epoch has just begun."""
    return not view.live or journal.tracker.epoch not in (None, view.epoch)


def _at_tail(filled: Filled) -> Filled:
    return replace(filled, note=replace(filled.note, place="tail"))


def inject(
    engine: Engine, journal: Journal, kind: str, items: Sequence[Item | str], *, place: Place = "tail"
) -> Flow[SectionInjected | None]:
    """Put in a section by hand, cut to its share, in place of the one before; None when that is nothing new.

    The older copy leaves at the next epoch head; this one stays until another takes its place, or it is removed.
    """
    if isinstance(items, str | Item):
        raise ConfigError(f"the items of section {kind!r} are {kind_of(items)}: give a list of texts or Items")
    view = journal.view()
    given = Section(kind, lambda _: tuple(items), place=place, timeout_s=None, min_free_ratio=0.0)
    room = journal.rules().budget_tokens - view.tokens - journal.overhead_tokens
    filled, events = yield from fill(
        journal, view, [given], "", room_tokens=room, sources=engine.room.sources, ports=engine.ports, by_hand=True
    )
    for event in events:
        engine.events.emit(event)
    return next(iter((yield from store(engine, journal, filled))), None)


def store(engine: Engine, journal: Journal, filled: Sequence[Filled]) -> Flow[tuple[SectionInjected, ...]]:
    """Store sections outside of any turn: at the tail, or in front where that breaks no prefix."""
    view, new_id = journal.view(), engine.ports.ids.new
    heads, tails = _placed(journal, view, filled)
    if len(view.live):
        yield from put_at_head(engine, journal, [f.message(new_id()) for f in heads])
    else:
        tails = (*heads, *tails)
    if tails:
        yield from engine.add(journal, [f.message(new_id()) for f in tails], known_ids=False)
    told = tuple(f.event(journal.key.session) for f in (*(heads if len(view.live) else ()), *tails))
    for event in told:
        engine.events.emit(event)
    return told


def remove(engine: Engine, journal: Journal, kind: str | None = None) -> Flow[int]:
    """Removes the sections of a kind from the view, or all of them, and returns how many there were.

    It is an edit: the prefix breaks where they stood. ConfigError for a kind that nothing knows.
    """
    notes = [(e.id, note) for e in journal.view().live if (note := section_note(e.message)) is not None]
    known = {*KINDS, *(s.kind for s in engine.room.sections), *(note.kind for _, note in notes)}
    if kind is not None and kind not in known:
        near = get_close_matches(str(kind), known)
        advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
        raise ConfigError(f"no section of the kind {kind!r} is in the session, and none is known: {advice}")
    ids = [i for i, note in notes if kind in (None, note.kind)]
    if ids:
        yield from remove_ids(engine, journal, ids)
    return len(ids)
