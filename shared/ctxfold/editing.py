"""Edits of the live conversation, each a flow: decided on the newest view, refused with a typed error, never half done."""

from __future__ import annotations

from collections.abc import Sequence

from ctxfold.engine import Engine
from ctxfold.events import Inserted, Removed, Updated
from ctxfold.flow import Flow
from ctxfold.history.cuts import check_sequence
from ctxfold.history.records import Cleared, Draft, MessageAdded, MessageRemoved
from ctxfold.history.revise import inserted, popped, removal, removed, replaced, retained
from ctxfold.journal import Journal, append, draft
from ctxfold.messages import Message, Role, validated

__all__ = ["clear", "insert", "pop", "remove", "remove_ids", "retain", "set_all", "update"]


def update(engine: Engine, journal: Journal, index: int, message: Message) -> Flow[Message]:
    """Replace the live message at `index`; it keeps its id. The old one is returned."""
    old = _live(journal, index)
    new = validated(Message(old.id, message.role, message.parts, message.name))
    yield from engine.edit(
        journal, lambda view: (replaced(view.live, index, new), Updated(journal.key.session, old, new))
    )
    return old


def insert(engine: Engine, journal: Journal, index: int, message: Message) -> Flow[None]:
    new = validated(message)
    yield from engine.edit(
        journal, lambda view: (inserted(view.live, index, new), Inserted(journal.key.session, new, index))
    )


def remove(engine: Engine, journal: Journal, index: int) -> Flow[tuple[Message, ...]]:
    """Remove the live message at `index`, with its tool round; what went."""
    gone = tuple(e.message for e in removed(journal.view().live, index))
    yield from engine.edit(
        journal,
        lambda view: (removal(removed(view.live, index)), Removed(journal.key.session, gone, "removed")),
    )
    return gone


def remove_ids(engine: Engine, journal: Journal, ids: Sequence[str]) -> Flow[None]:
    """Remove messages by id, each with its tool round; unknown ids are ignored."""
    live = journal.view().live
    places = [i for i, e in enumerate(live) if e.id in ids]
    gone = {e.id: e for place in places for e in removed(live, place)}
    if gone:
        event = Removed(journal.key.session, tuple(e.message for e in gone.values()), "removed")
        yield from engine.edit(journal, lambda _: (MessageRemoved(tuple(gone)), event))


def pop(engine: Engine, journal: Journal) -> Flow[tuple[Message, ...]]:
    """Remove the newest live message, with its tool round; what went."""
    gone = tuple(e.message for e in popped(journal.view().live))
    yield from engine.edit(
        journal, lambda view: (removal(popped(view.live)), Removed(journal.key.session, gone, "popped"))
    )
    return gone


def retain(engine: Engine, journal: Journal, role: Role) -> Flow[tuple[Message, ...]]:
    """Keep only one role's live messages (a tool round only as a whole); what went."""
    gone = tuple(e.message for e in retained(journal.view().live, role))
    if gone:
        yield from engine.edit(
            journal,
            lambda view: (removal(retained(view.live, role)), Removed(journal.key.session, gone, "retained")),
        )
    return gone


def clear(engine: Engine, journal: Journal, *, prompts: bool = False) -> Flow[tuple[Message, ...]]:
    """Empty the conversation; system prompts stay unless `prompts`, and the log keeps what was there."""
    gone = tuple(e.message for e in journal.view().live)
    if prompts:
        yield from append(journal, _emptied(engine, journal, prompts=True), engine.ports)
        engine.events.emit(Removed(journal.key.session, gone, "cleared"))
        return gone
    yield from engine.edit(journal, lambda _: (Cleared(), Removed(journal.key.session, gone, "cleared")))
    return gone


def _emptied(engine: Engine, journal: Journal, *, prompts: bool) -> list[Draft]:
    system = tuple(e.id for e in journal.view().system) if prompts else ()
    bodies = (*((MessageRemoved(system),) if system else ()), Cleared())
    return [draft(engine.ports, body) for body in bodies]


def set_all(engine: Engine, journal: Journal, messages: Sequence[Message], *, prompts: bool = False) -> Flow[None]:
    """Put these messages in place of the whole conversation, at once; what was there stays in the log.

    With `prompts`, in place of the system prompts too.
    """
    fresh = [validated(m) for m in messages]
    pending = check_sequence(fresh)
    whole = len(fresh) if not pending else max(i for i, m in enumerate(fresh) if m.tool_calls)
    drafts = _emptied(engine, journal, prompts=prompts)
    drafts += [draft(engine.ports, MessageAdded(m)) for m in fresh[:whole]]
    yield from append(journal, drafts, engine.ports)
    if whole < len(fresh):
        yield from engine.add(journal, fresh[whole:])
    yield from engine.maintain(journal)


def _live(journal: Journal, index: int) -> Message:
    live = journal.view().live
    return live[index].message if -len(live) <= index < len(live) else removed(live, index)[0].message
