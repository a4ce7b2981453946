"""Places sections at the start of a turn: before its question, or in front of the conversation where an epoch begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from ctxfold.effects import Flow
from ctxfold.engine.edit import remove_ids
from ctxfold.engine.engine import Engine
from ctxfold.engine.fit import FRAME_TOKENS
from ctxfold.engine.request import Options
from ctxfold.errors import ConfigError
from ctxfold.events import Event, SectionInjected
from ctxfold.history.records import MessageInserted, Undone
from ctxfold.history.view import Place, SectionNote, View, section, section_note
from ctxfold.messages import Message
from ctxfold.policy.settings import Policy
from ctxfold.protocols import capabilities_of
from ctxfold.sections.fill import Filled
from ctxfold.sections.section import KINDS, Item, Section
from ctxfold.state import Session, Stage
from ctxfold.validation import kind_of

STORED_RECALL_RATIO = 0.1  # of the budget, for recalled passages that stay in the conversation


@dataclass(frozen=True, slots=True)
class PlacedSections:
    """Holds a turn's first messages, sections before the question included; `head` goes to the front of the conversation."""

    messages: tuple[Message, ...]
    head: tuple[Message, ...] = ()
    events: tuple[Event, ...] = ()


def place_sections(
    engine: Engine,
    session: Session,
    stage: Stage,
    messages: tuple[Message, ...],
    *,
    overhead_tokens: int,
    options: Options,
) -> Flow[PlacedSections]:
    """Returns the messages of a turn with the sections to be stored before its question, if they end with one. Stores nothing.

    Where the provider binds reasoning to everything before it, what a request would otherwise hold for itself alone is stored
    too: recalled passages, the scratch message and the sections of one request.
    """
    question = messages[-1]
    bound = capabilities_of(engine.ports.backend, session.model).binds_reasoning
    if question.role != "user" or question.kind != "message":
        return PlacedSections(messages)
    counter, new_id, view = engine.ports.counter, engine.ports.ids.new, stage.view
    given = engine.fitter.sections_of(stage.rules) if options.recall else ()
    sections = [s for s in given if bound or s.lifetime == "epoch"]
    before: list[Message] = []
    room_tokens = stage.rules.budget_tokens - overhead_tokens - sum(counter.count(m) for m in messages)
    required_tokens = room_tokens - sum(e.tokens for e in view.system)
    room_tokens -= view.tokens
    if bound:
        passages = (yield from _stored_passages(engine, session, stage.rules, question)) if options.recall else ""
        if text := "\n\n".join(t for t in (passages, options.scratch) if t):
            before.append(section(new_id(), text, SectionNote("request")))
            room_tokens -= counter.count(before[0])
    filled: Sequence[Filled] = ()
    if sections:
        filled = yield from engine.fitter.fill(
            session, stage, sections, question.text, room_tokens=room_tokens, required_tokens=required_tokens
        )
    heads, tails = _placed(session, view, filled)
    events = tuple(f.event(session.key.session) for f in (*heads, *tails))
    front, before = [f.message(new_id()) for f in heads], [*(f.message(new_id()) for f in tails), *before]
    if not view.live and not view.turn:
        return PlacedSections((*front, *messages[:-1], *before, question), events=events)
    return PlacedSections((*messages[:-1], *before, question), tuple(front), events)


def _stored_passages(engine: Engine, session: Session, rules: Policy, question: Message) -> Flow[str]:
    """Returns passages for the question that are to stay in the conversation: at most a tenth of the budget."""
    view = session.view()
    free_tokens = rules.budget_tokens - view.tokens - session.overhead_tokens - FRAME_TOKENS
    free_tokens -= engine.ports.counter.count(question)
    most_tokens = min(free_tokens, int(STORED_RECALL_RATIO * rules.budget_tokens))
    return (yield from engine.fitter.passages.recall(session, Stage(rules, view), question, most_tokens)).text


def put_at_head(engine: Engine, session: Session, messages: Sequence[Message]) -> Flow[None]:
    """Stores sections in front of the conversation."""
    live = session.view().live
    before = live[0].id if len(live) else None
    drafts = [session.draft(MessageInserted(m, before), record_id=f"m:{m.id}") for m in messages]
    if drafts:
        yield from session.append(drafts)


def take_from_head(engine: Engine, session: Session, messages: Sequence[Message]) -> Flow[None]:
    """Undoes `put_at_head`; messages that were not put there are ignored."""
    live = {e.id for e in session.view().live}
    drafts = [session.draft(Undone(f"m:{m.id}")) for m in messages if m.id in live]
    if drafts:
        yield from session.append(drafts)


def _placed(session: Session, view: View, filled: Sequence[Filled]) -> tuple[tuple[Filled, ...], tuple[Filled, ...]]:
    """Returns the sections for the front and those for the tail; where a head would break a prefix, it goes to the tail."""
    # none was sent yet, or an epoch has just begun
    at_head = not view.live or session.tracker.epoch not in (None, view.epoch)
    heads = tuple(f for f in filled if f.note.place == "head" and at_head)
    return heads, tuple(replace(f, note=replace(f.note, place="tail")) for f in filled if f not in heads)


def inject(
    engine: Engine, session: Session, kind: str, items: Sequence[Item | str], *, place: Place = "tail"
) -> Flow[SectionInjected | None]:
    """Adds a section by hand, cut to its share, in place of the one before; returns None when it is not new.

    The older copy leaves at the next epoch head; this one stays until another takes its place, or it is removed.
    """
    if isinstance(items, str | Item):
        raise ConfigError(f"the items of section {kind!r} are {kind_of(items)}: give a list of texts or Items")
    stage = session.stage()
    by_hand = Section(kind, lambda _: tuple(items), place=place, timeout_s=None, min_free_ratio=0.0)
    room = stage.rules.budget_tokens - stage.view.tokens - session.overhead_tokens
    filled = yield from engine.fitter.fill(session, stage, [by_hand], "", room_tokens=room, by_hand=True)
    return next(iter((yield from store(engine, session, filled))), None)


def store(engine: Engine, session: Session, filled: Sequence[Filled]) -> Flow[tuple[SectionInjected, ...]]:
    """Stores sections outside of any turn: at the tail, or in front where that breaks no prefix."""
    view, new_id = session.view(), engine.ports.ids.new
    heads, tails = _placed(session, view, filled)
    if len(view.live):
        yield from put_at_head(engine, session, [f.message(new_id()) for f in heads])
    else:
        tails = (*heads, *tails)
    if tails:
        yield from engine.add(session, [f.message(new_id()) for f in tails], known_ids=False)
    injected = tuple(f.event(session.key.session) for f in (*(heads if len(view.live) else ()), *tails))
    engine.events.emit(*injected)
    return injected


def remove(engine: Engine, session: Session, kind: str | None = None) -> Flow[int]:
    """Removes the sections of a kind from the view, or all of them, and returns how many there were.

    It is an edit: the prefix breaks where they stood. ConfigError for a kind that nothing knows.
    """
    notes = [(e.id, note) for e in session.view().live if (note := section_note(e.message)) is not None]
    known = {*KINDS, *(s.kind for s in engine.fitter.sections), *(note.kind for _, note in notes)}
    if kind is not None and kind not in known:
        near = get_close_matches(str(kind), known)
        advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
        raise ConfigError(f"no section of the kind {kind!r} is in the session, and none is known: {advice}")
    ids = [i for i, note in notes if kind in (None, note.kind)]
    if ids:
        yield from remove_ids(engine, session, ids)
    return len(ids)
