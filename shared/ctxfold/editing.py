"""Edits of the live conversation, each a flow: decided on the newest view, refused with a typed error, never half done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from random import uniform
from time import sleep
from typing import Any, Literal, TypeAlias, TypeVar

from ctxfold.budget import Policy, policy
from ctxfold.compaction.apply import check_known
from ctxfold.compaction.clear_tools import sized
from ctxfold.effects import FindLog
from ctxfold.engine import Engine
from ctxfold.errors import (
    ContextOverflowError,
    HeadMovedError,
    MessageConflictError,
    MessageIndexError,
    MessageNotFoundError,
    NothingToUndoError,
    PinBudgetError,
    StoreUnavailableError,
    UnknownRoleError,
)
from ctxfold.events import Appended, EditUndone, Event, Inserted, PinsChanged, Removed, RulesChanged, Updated
from ctxfold.explain import conversation, ids_of, seen_by_user, with_hidden
from ctxfold.flow import Call, Flow
from ctxfold.history.cuts import check_sequence, round_of
from ctxfold.history.log import SessionState
from ctxfold.history.records import (
    Body,
    Cleared,
    Draft,
    MessageAdded,
    MessageRemoved,
    Pinned,
    PolicyChanged,
    Restored,
    Undone,
    Unpinned,
)
from ctxfold.history.revise import inserted, popped, removed, replaced, retained
from ctxfold.history.view import Entry, View
from ctxfold.journal import Journal, append, decided, draft, opened_rules, record_names, refresh, unknown
from ctxfold.loading import without
from ctxfold.messages import ROLES, Message, Opaque, Role, content_key, validated
from ctxfold.ports import Document
from ctxfold.zones.leaving import taken_out

__all__ = [
    "Change",
    "clear",
    "edit",
    "insert",
    "pin",
    "pop",
    "remove",
    "remove_ids",
    "reopen",
    "retain",
    "revert",
    "revise",
    "set_all",
    "set_policy",
    "undo",
    "unpin",
    "update",
]

E = TypeVar("E", bound=Event)
How: TypeAlias = Literal["removed", "popped", "retained", "cleared"]
Change: TypeAlias = Callable[[tuple[Message, ...]], Sequence[Message] | None]
RENAME_TRIES, REVISE_TRIES = 8, 32


def edit(
    engine: Engine,
    journal: Journal,
    change: Callable[[View], tuple[Body, E] | None],
    *,
    record_id: str | None = None,
) -> Flow[E | None]:
    """One edit of the live conversation, decided on the newest view; None when there was nothing to change."""
    done: list[E] = []
    gone: list[Document] = []

    def drafts(state: SessionState) -> list[Draft]:
        done.clear()
        view = state.view()
        changed = change(view)
        if changed is None:
            return []
        done.append(changed[1])
        gone[:] = taken_out(view, changed[0])
        return [draft(engine.ports, changed[0], record_id=record_id)]

    yield from decided(journal, drafts, engine.ports, documents=lambda: gone)
    for event in done:
        engine.events.emit(event)
    return done[0] if done else None


def update(engine: Engine, journal: Journal, index: int, message: Message) -> Flow[Message]:
    """Replace the live message at `index`; it keeps its id, and stays what it is: a summary, a section. The old one is returned."""
    anchor = _anchor(journal, index)
    validated(message)

    def change(view: View) -> tuple[Body, Updated]:
        place = _place(view.live, anchor)
        old = view.live[place].message
        notes = (p for p in old.parts if old.kind == "section" and isinstance(p, Opaque) and p not in message.parts)
        parts = (*message.parts, *notes)
        new = validated(replace(old, role=message.role, parts=parts, name=message.name, usage=None))
        return replaced(view.live, place, new), Updated(journal.key.session, old, new)

    def written() -> Flow[Message]:
        names = yield from record_names(journal, (anchor,))
        event = yield from edit(engine, journal, change, record_id=names[anchor])
        return event.old if event is not None else message

    for _ in range(RENAME_TRIES - 1):
        with suppress(MessageConflictError):  # another writer updated the same message first and has the record's name
            return (yield from written())
    return (yield from written())


def insert(engine: Engine, journal: Journal, index: int, message: Message) -> Flow[None]:
    """Put a message before the live one at `index`; one that the session has already is left where it is."""
    new = validated(message)
    names = yield from unknown(journal, [new])
    if not names:
        return
    before = inserted(journal.view().live, index, new).before

    def change(view: View) -> tuple[Body, Inserted]:
        place = len(view.live) if before is None else _place(view.live, before)
        return inserted(view.live, place, new), Inserted(journal.key.session, new, place)

    yield from edit(engine, journal, change, record_id=names[new.id])


def remove(engine: Engine, journal: Journal, index: int | str) -> Flow[tuple[Message, ...]]:
    """Remove the live message at `index`, or with that id or reference, with its tool round; what went."""
    anchor = (yield from ids_of(journal, (index,)))[0] if isinstance(index, str) else _anchor(journal, index)
    return (yield from _remove(engine, journal, lambda live: removed(live, _place(live, anchor)), "removed"))


def remove_ids(engine: Engine, journal: Journal, ids: Collection[str], *, may_return: bool = False) -> Flow[str]:
    """Remove messages that another reply supersedes, each with its tool round; unknown ids are ignored.

    With `may_return` they are new when they come again. The record's id, to revert it by.
    """
    record_id = engine.ports.ids.new()

    def chosen(live: Sequence[Entry]) -> tuple[Entry, ...]:
        places = [i for i, e in enumerate(live) if e.id in ids]
        return tuple({e.id: e for place in places for e in removed(live, place)}.values())

    yield from _remove(engine, journal, chosen, "removed", record_id=record_id, superseded=not may_return)
    return record_id


def pop(engine: Engine, journal: Journal) -> Flow[tuple[Message, ...]]:
    """Remove the newest live message, with its tool round; what went."""
    return (yield from _remove(engine, journal, popped, "popped"))


def retain(engine: Engine, journal: Journal, role: Role) -> Flow[tuple[Message, ...]]:
    """Keep only one role's live messages (a tool round only as a whole); what went. UnknownRoleError for another role."""
    if role not in ROLES:
        raise UnknownRoleError(f"role {role!r}: use one of {', '.join(sorted(ROLES))}")
    return (yield from _remove(engine, journal, lambda live: retained(live, role), "retained"))


def clear(engine: Engine, journal: Journal, *, prompts: bool = False) -> Flow[tuple[Message, ...]]:
    """Empty the conversation; system prompts stay unless `prompts`, and the log keeps what was there."""

    def change(view: View) -> tuple[Body, Removed]:
        gone = (*(view.system if prompts else ()), *view.live)
        return Cleared(prompts=prompts or None), Removed(journal.key.session, tuple(e.message for e in gone), "cleared")

    event = yield from edit(engine, journal, change)
    return event.messages if event is not None else ()


def set_all(
    engine: Engine,
    journal: Journal,
    messages: Sequence[Message],
    *,
    prompts: bool = False,
    pins: Collection[str] = (),
    expect: int | None = None,
    recognise: bool = False,
) -> Flow[str | None]:
    """Put these messages in place of the whole conversation, at once; what was there stays in the log.

    With `recognise`, a list that begins as the conversation does (or as its window) changes only what differs: messages are
    compared by position and content, and keep the ids that they have here, so that compactions of the common part last.

    A tool round at the end that still waits for results goes into an open turn, whose id is returned. With `prompts` the
    system prompts are replaced too; without, system messages that stand among them already are not put there twice.
    Of `pins` those stay that are among the messages. With `expect`, HeadMovedError when the log does not end there.
    """
    kept = set[str]() if prompts else {e.message.text for e in journal.view().system}
    fresh = [m for m in map(validated, messages) if m.role != "system" or m.text not in kept]
    ids = [m.id for m in fresh]
    twice = next((i for i in ids if ids.count(i) > 1), None) if len(set(ids)) < len(ids) else None
    if twice is not None:
        raise MessageConflictError(f"message id {twice!r} stands twice in the list: give each message an id of its own")
    pending = check_sequence(fresh)
    if recognise and prompts:
        for _ in range(REVISE_TRIES):
            try:
                changed = yield from _set_end(engine, journal, fresh, pending)
            except HeadMovedError:
                yield from refresh(journal, engine.ports)
                continue
            if changed is not None:
                return changed.turn_id
            break
    whole = len(fresh) if not pending else max(i for i, m in enumerate(fresh) if m.tool_calls)
    names = yield from record_names(journal, ids)
    turn = engine.ports.ids.new() if pending else None
    cleared = Cleared(prompts or None, tuple(names[i] for i in ids) or None)
    drafts = [draft(engine.ports, cleared)]
    for index, (m, shown) in enumerate(sized(fresh, rules=journal.rules(), counter=engine.ports.counter)):
        place = turn if index >= whole else None
        drafts.append(draft(engine.ports, MessageAdded(m, shown), turn_id=place, record_id=names[m.id]))
    if again := tuple(p for p in pins if p in names):
        drafts.append(draft(engine.ports, Pinned(again)))
    view = journal.view()
    gone = tuple(e.message for e in (*(view.system if prompts else ()), *view.live))
    out = taken_out(view, cleared, again=frozenset(ids))
    yield from append(journal, drafts, engine.ports, expect=expect, documents=out)
    if gone:
        engine.events.emit(Removed(journal.key.session, gone, "cleared"))
    if fresh:
        engine.events.emit(Appended(journal.key.session, tuple(fresh)))
    yield from engine.room.maintain(journal)
    return turn


@dataclass(frozen=True, slots=True)
class _Changed:
    """The end of a conversation was replaced; the turn that waits for results after it, if any."""

    turn_id: str | None


def _set_end(
    engine: Engine, journal: Journal, messages: Sequence[Message], pending: Collection[str]
) -> Flow[_Changed | None]:
    """Replaces the messages after the common beginning, in one write. None when a compaction covers what would have to go.

    HeadMovedError when another writer was first.
    """
    with journal.lock:
        head = journal.state.head
    view = journal.view()
    same, gone = _common_beginning(view, view.messages, messages)
    if gone is None:
        same, gone = _common_beginning(view, (yield from conversation(journal)), messages)
    if gone is None:
        return None
    fresh = messages[same:]
    whole = len(fresh) if not pending else max(i for i, m in enumerate(fresh) if m.tool_calls)
    names = yield from record_names(journal, [m.id for m in fresh])
    turn = engine.ports.ids.new() if pending else None
    drafts: list[Draft] = []
    documents: tuple[Document, ...] = ()
    if gone:
        body = MessageRemoved(tuple(e.id for e in gone), replaced_by=tuple(names[m.id] for m in fresh) or None)
        documents = taken_out(view, body, again=names.keys())
        drafts.append(draft(engine.ports, body))
    for index, (m, shown) in enumerate(sized(fresh, rules=journal.rules(), counter=engine.ports.counter)):
        place = turn if index >= whole else None
        drafts.append(draft(engine.ports, MessageAdded(m, shown), turn_id=place, record_id=names[m.id]))
    if drafts:
        yield from append(journal, drafts, engine.ports, expect=head, documents=documents)
    if gone:
        engine.events.emit(Removed(journal.key.session, tuple(e.message for e in gone), "removed"))
    if fresh:
        engine.events.emit(Appended(journal.key.session, tuple(fresh)))
        yield from engine.room.maintain(journal)
    return _Changed(turn)


def _common_beginning(
    view: View, held: Sequence[Message], messages: Sequence[Message]
) -> tuple[int, tuple[Entry, ...] | None]:
    """How many of `messages` begin as those held, and the live entries after these.

    None for the entries when nothing that was said is in common, or when the later ones are not all live.
    """
    held = [m for m in held if m.kind != "section"]
    pairs = zip(held, messages, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: _same(*pair), pairs))
    while 0 < same < len(held) and held[same].role == "tool":
        same -= 1  # a tool round differs as a whole
    if not any(m.role != "system" for m in held[:same]):
        return same, None
    live = {e.id: e for e in view.live}
    gone = [live.get(m.id) for m in held[same:]]
    return same, None if None in gone else tuple(e for e in gone if e is not None)


def _same(held: Message, message: Message) -> bool:
    """Whether a message says nothing that the held one does not; a framework's notes that it brings are to be kept."""
    notes = (p for p in message.parts if isinstance(p, Opaque))
    return content_key(held) == content_key(message) and all(p in held.parts for p in notes)


def revise(engine: Engine, journal: Journal, change: Change, *, turn_id: str | None) -> Flow[str | None]:
    """Put what `change` makes of the conversation, as the user sees it, in its place; made anew where somebody was first.

    What is for the model only stays where it stood, and pins stay. `turn_id` is the turn whose messages belong to it; the turn
    that is under way afterwards is returned.
    """
    for attempt in range(REVISE_TRIES):
        with journal.lock:
            head, pins = journal.state.head, tuple(journal.state.pins)
        held = yield from conversation(journal, turn_id)
        changed = change(seen_by_user(held))
        if changed is None:
            return turn_id
        changed = [*map(validated, changed)]
        try:
            whole = with_hidden(held, changed)
            return (yield from set_all(engine, journal, whole, prompts=True, pins=pins, expect=head))
        except HeadMovedError:
            # reading it all takes longer than adding to it: who adds is let finish
            yield from Call(partial(sleep, uniform(0.0, 0.002 * 2 ** min(attempt, 5))))
            yield from refresh(journal, engine.ports)
    raise StoreUnavailableError(
        f"other writers of session {journal.key.session!r} were first {REVISE_TRIES} times; nothing was written: try again"
    )


def pin(engine: Engine, journal: Journal, ids: Sequence[str]) -> Flow[None]:
    """Keep messages verbatim through every compaction, with their tool rounds. PinBudgetError beyond their share."""
    ids = yield from ids_of(journal, ids)

    def pinned(state: SessionState) -> list[Draft]:
        _check_pins(state, ids, journal.rules())
        return [draft(engine.ports, Pinned(tuple(ids)))]

    yield from decided(journal, pinned, engine.ports)
    engine.events.emit(PinsChanged(journal.key.session, tuple(journal.state.pins)))


def _check_pins(state: SessionState, ids: Sequence[str], rules: Policy) -> None:
    entries = state.live
    places = {e.id: i for i, e in enumerate(entries)}
    for message_id in ids:
        if message_id not in places:
            raise MessageNotFoundError(
                f"message {message_id!r} is not in the live conversation ({len(entries)} messages): pin a message "
                "before it is compacted and after its turn has ended"
            )
    wanted = {*state.pins, *ids}
    held = {e.id: e for i in map(places.get, wanted) if i is not None for e in entries[slice(*round_of(entries, i))]}
    tokens = sum(e.tokens for e in held.values())
    limit = int(rules.pin_ratio * rules.budget_tokens)
    if tokens > limit:
        raise PinBudgetError(
            f"pinned messages would take {tokens} tokens, their share is {limit}: unpin some or raise context_window"
        )


def unpin(engine: Engine, journal: Journal, ids: Sequence[str]) -> Flow[None]:
    ids = yield from ids_of(journal, ids)
    yield from append(journal, (draft(engine.ports, Unpinned(tuple(ids))),), engine.ports)
    engine.events.emit(PinsChanged(journal.key.session, tuple(journal.state.pins)))


def set_policy(engine: Engine, journal: Journal, fields: Mapping[str, object]) -> Flow[Policy]:
    """Other rules for this session from here on; they hold until they are set again, also when it is opened anew."""
    found: list[Policy] = []

    def changed(state: SessionState) -> list[Draft]:
        old = journal.own_rules()
        values: dict[str, Any] = {**old.model_dump(), **fields}
        found[:] = [policy(values.pop("context_window"), **values)]
        check_known(found[0].strategy, engine.strategies, journal.key.session)
        fixed = tuple(sorted({*state.fixed, *fields}))
        if found[0] == old and fixed == state.fixed:
            return []
        return [draft(engine.ports, PolicyChanged(found[0].model_dump_json(), engine.ports.counter.id, fixed))]

    if (yield from decided(journal, changed, engine.ports)):
        engine.events.emit(RulesChanged(journal.key.session, tuple(sorted(fields))))
    return found[0]


def reopen(engine: Engine, journal: Journal) -> Flow[None]:
    """The rules that the engine was made with, for a session that was loaded after it was opened."""
    rules = opened_rules(engine.rules, journal.state)
    if rules != journal.stored_rules():
        yield from append(
            journal,
            (draft(engine.ports, PolicyChanged(rules.model_dump_json(), engine.ports.counter.id)),),
            engine.ports,
        )


def undo(engine: Engine, journal: Journal) -> Flow[None]:
    """Take back the last compaction or edit. ContextOverflowError, before anything is written, if that would not fit."""
    with journal.lock:
        target = journal.state.revertible[-1] if journal.state.revertible else None
        undone = frozenset(journal.state.undone)
    if target is None:
        raise NothingToUndoError("there is no compaction or edit to undo")
    targets = yield from _together(journal, target)
    before = yield from without(journal.key, undone | {*targets}, engine.ports)
    rules = journal.rules()
    if before.view().tokens > rules.budget_tokens:
        raise ContextOverflowError(
            f"undone, the session needs {before.view().tokens} tokens, the budget is {rules.budget_tokens}: "
            "raise context_window first"
        )
    yield from revert(engine, journal, targets)
    engine.events.emit(EditUndone(journal.key.session))


def _together(journal: Journal, record_id: str) -> Flow[tuple[str, ...]]:
    """The records that one edit consists of."""
    found = yield from FindLog(journal.key, (record_id,))
    match found[0].body if found else None:
        case Cleared(replaced_by=others) | MessageRemoved(replaced_by=others) | Restored(together=others):
            return (record_id, *(others or ()))
        case _:
            return (record_id,)


def revert(engine: Engine, journal: Journal, record_ids: Sequence[str]) -> Flow[None]:
    """Take back one compaction or edit, if it still counts; the first id is its own, the others go with it."""

    def undoing(state: SessionState) -> list[Draft]:
        if record_ids[0] not in state.revertible:
            return []
        return [draft(engine.ports, Undone(record_id)) for record_id in record_ids]

    yield from decided(journal, undoing, engine.ports)


def _remove(
    engine: Engine,
    journal: Journal,
    chosen: Callable[[Sequence[Entry]], tuple[Entry, ...]],
    how: How,
    *,
    record_id: str | None = None,
    superseded: bool | None = None,
) -> Flow[tuple[Message, ...]]:
    def change(view: View) -> tuple[MessageRemoved, Removed] | None:
        gone = chosen(view.live)
        if not gone:
            return None
        body = MessageRemoved(tuple(e.id for e in gone), superseded)
        return body, Removed(journal.key.session, tuple(e.message for e in gone), how)

    event = yield from edit(engine, journal, change, record_id=record_id)
    return event.messages if event is not None else ()


def _anchor(journal: Journal, index: object) -> str:
    """The id of the live message at `index`: other writers may move it before the edit is written."""
    live = journal.view().live
    if not isinstance(index, int) or not -len(live) <= index < len(live):
        raise MessageIndexError(f"index {index!r} is outside a conversation of {len(live)} messages: see view().live")
    return live[index].id


def _place(live: Sequence[Entry], message_id: str) -> int:
    place = next((i for i, e in enumerate(live) if e.id == message_id), None)
    if place is None:
        raise MessageNotFoundError(f"message {message_id!r} is not in the live conversation: look at it anew")
    return place
