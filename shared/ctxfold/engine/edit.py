"""Edits the live conversation. Every edit is decided on the newest view, and is applied whole or refused with a typed error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from random import uniform
from time import sleep
from typing import Any, Literal, TypeAlias, TypeVar

from ctxfold.compaction.compact import strategy_named
from ctxfold.compaction.tool_outputs import sized
from ctxfold.effects import Call, Flow, StoreCall
from ctxfold.engine.engine import Engine
from ctxfold.engine.known_messages import new_record_ids
from ctxfold.errors import (
    ContextOverflowError,
    HeadMovedError,
    MessageConflictError,
    MessageIndexError,
    MessageNotFoundError,
    NothingToUndoError,
    PinBudgetError,
    StoreUnavailableError,
)
from ctxfold.events import Appended, EditUndone, Event, Inserted, PinsChanged, Removed, RulesChanged, Updated
from ctxfold.history.cuts import check_sequence, round_of
from ctxfold.history.diff import PROMPT_ID, inserted, popped, removed, replaced, retained
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
from ctxfold.history.view import Entry, View
from ctxfold.messages import Message, Opaque, Role, check_role, content_key, validated
from ctxfold.policy.settings import Policy, kept, policy_for
from ctxfold.protocols import Document, Store
from ctxfold.retrieval.originals import (
    conversation,
    ids_of,
    seen_by_user,
    with_hidden,
)
from ctxfold.state import (
    Session,
    index_entry,
    load_without,
    policy_text,
    rules_to_open_with,
)

E = TypeVar("E", bound=Event)
How: TypeAlias = Literal["removed", "popped", "retained", "cleared"]
Change: TypeAlias = Callable[[tuple[Message, ...]], Sequence[Message] | None]
RENAME_TRIES, REVISE_TRIES = 8, 32


def edit(
    engine: Engine,
    session: Session,
    change: Callable[[View], tuple[Body, E] | None],
    *,
    record_id: str | None = None,
) -> Flow[E | None]:
    """Makes one edit of the live conversation, decided on the newest view; returns None when there was nothing to change."""
    done: list[E] = []
    unindexed: list[Document] = []

    def drafts(state: SessionState) -> list[Draft]:
        done.clear()
        view = state.view()
        changed = change(view)
        if changed is None:
            return []
        done.append(changed[1])
        unindexed[:] = entries_of_removed(view, changed[0])
        return [session.draft(changed[0], record_id=record_id)]

    yield from session.append_decided(drafts, documents=lambda: unindexed)
    engine.events.emit(*done)
    return done[0] if done else None


def update(engine: Engine, session: Session, index: int | str, message: Message) -> Flow[Message]:
    """Replaces the live message at `index`, or with that id or reference, and returns the old one.

    Its id and kind (a summary, a section) stay.
    """
    anchor = yield from _anchor(session, index)
    validated(message)

    def change(view: View) -> tuple[Body, Updated]:
        place = _place(view.live, anchor)
        old = view.live[place].message
        notes = (p for p in old.parts if old.kind == "section" and isinstance(p, Opaque) and p not in message.parts)
        parts = (*message.parts, *notes)
        new = validated(replace(old, role=message.role, parts=parts, name=message.name, usage=None))
        return replaced(view.live, place, new), Updated(session.key.session, old, new)

    def written() -> Flow[Message]:
        names = yield from session.record_names((anchor,))
        event = yield from edit(engine, session, change, record_id=names[anchor])
        return event.old if event is not None else message

    for _ in range(RENAME_TRIES - 1):
        with suppress(MessageConflictError):  # another writer updated the same message first and has the record's name
            return (yield from written())
    return (yield from written())


def insert(engine: Engine, session: Session, index: int, message: Message) -> Flow[None]:
    """Inserts a message before the live one at `index`; one that the session has already is left where it is."""
    new = validated(message)
    names = yield from new_record_ids(session, [new])
    if not names:
        return
    before = inserted(session.view().live, index, new).before

    def change(view: View) -> tuple[Body, Inserted]:
        place = len(view.live) if before is None else _place(view.live, before)
        return inserted(view.live, place, new), Inserted(session.key.session, new, place)

    yield from edit(engine, session, change, record_id=names[new.id])


def remove(engine: Engine, session: Session, index: int | str) -> Flow[tuple[Message, ...]]:
    """Removes the live message at `index`, or with that id or reference, with its tool round; returns what was removed."""
    anchor = yield from _anchor(session, index)
    return (yield from _remove(engine, session, lambda live: removed(live, _place(live, anchor)), "removed"))


def remove_ids(engine: Engine, session: Session, ids: Collection[str], *, may_return: bool = False) -> Flow[str]:
    """Removes messages that another reply supersedes, each with its tool round; unknown ids are ignored.

    With `may_return` they are new when they come again. Returns the record's id, by which the edit can be reverted.
    """
    record_id = engine.ports.ids.new()

    def chosen(live: Sequence[Entry]) -> tuple[Entry, ...]:
        places = [i for i, e in enumerate(live) if e.id in ids]
        return tuple({e.id: e for place in places for e in removed(live, place)}.values())

    yield from _remove(engine, session, chosen, "removed", record_id=record_id, superseded=not may_return)
    return record_id


def move_to_end(
    engine: Engine, session: Session, entries: Sequence[Entry], ids: Collection[str] = (), *, behind: str = ""
) -> Flow[tuple[str, ...]]:
    """Puts live messages behind all others and removes the messages `ids`, in one write.

    Nothing changes where another writer has moved one of them first, or where a reply follows the message `behind`. Returns the
    ids of the edit's records, by which it can be reverted.
    """
    record_id = engine.ports.ids.new()
    names = yield from session.record_names([e.id for e in entries])
    whole = yield from session.originals(entries)
    moved = [replace(whole.get(e.seq, e.message), usage=None) for e in entries]

    def drafts(state: SessionState) -> list[Draft]:
        after = takewhile(lambda e: e.id != behind, reversed(state.live)) if behind else ()
        if any(e.message.role == "assistant" for e in after):
            return []
        if {(e.id, e.seq) for e in entries} - {(e.id, e.seq) for e in state.live}:
            return []
        removal = MessageRemoved((*names, *ids), replaced_by=tuple(names.values()))
        return [
            session.draft(removal, record_id=record_id),
            *_added(engine, session, moved, names, waiting_turn=None),
        ]

    yield from session.append_decided(drafts)
    return (record_id, *names.values())


def pop(engine: Engine, session: Session) -> Flow[tuple[Message, ...]]:
    """Removes the newest live message, with its tool round, and returns what was removed."""
    return (yield from _remove(engine, session, popped, "popped"))


def retain(engine: Engine, session: Session, role: Role) -> Flow[tuple[Message, ...]]:
    """Keeps only one role's live messages (a tool round only as a whole) and returns the others.

    Raises UnknownRoleError for a role that does not exist.
    """
    check_role(role)
    return (yield from _remove(engine, session, lambda live: retained(live, role), "retained"))


def clear(engine: Engine, session: Session, *, prompts: bool = False) -> Flow[tuple[Message, ...]]:
    """Empties the conversation. System prompts stay unless `prompts` is set, and the log keeps what was there."""

    def change(view: View) -> tuple[Body, Removed]:
        removed_entries = (*(view.system if prompts else ()), *view.live)
        return Cleared(prompts=prompts or None), Removed(
            session.key.session, tuple(e.message for e in removed_entries), "cleared"
        )

    event = yield from edit(engine, session, change)
    return event.messages if event is not None else ()


def set_all(
    engine: Engine,
    session: Session,
    messages: Sequence[Message],
    *,
    prompts: bool = False,
    pins: Collection[str] = (),
    expect: int | None = None,
    recognise: bool = False,
) -> Flow[str | None]:
    """Replaces the whole conversation by these messages, in one step; what was there stays in the log.

    With `recognise`, a list that begins as the conversation does (or as its window) changes only what differs: messages are
    compared by position and content, and keep the ids that they have here, so that compactions of the common part last.

    A tool round at the end that still waits for results goes into an open turn, whose id is returned. With `prompts` the
    system prompts are replaced too; without, system messages that stand among them already are not put there twice.
    Of `pins` those stay that are among the messages. With `expect`, raises HeadMovedError when the log does not end there.
    """
    kept = set[str]() if prompts else {e.message.text for e in session.view().system}
    new_messages = [m for m in map(validated, messages) if m.role != "system" or m.text not in kept]
    ids = [m.id for m in new_messages]
    twice = next((i for i in ids if ids.count(i) > 1), None) if len(set(ids)) < len(ids) else None
    if twice is not None:
        raise MessageConflictError(
            f"message id {twice!r} appears twice in the list: give each message an id of its own"
        )
    pending = check_sequence(new_messages)
    if recognise and prompts:
        for _ in range(REVISE_TRIES):
            try:
                changed = yield from _set_end(engine, session, new_messages, pending)
            except HeadMovedError:
                yield from session.refresh()
                continue
            if changed is not None:
                return changed.turn_id
            break
    names = yield from session.record_names(ids)
    turn = engine.ports.ids.new() if pending else None
    cleared = Cleared(prompts or None, tuple(names[i] for i in ids) or None)
    drafts = [session.draft(cleared), *_added(engine, session, new_messages, names, waiting_turn=turn)]
    if again := tuple(p for p in pins if p in names):
        drafts.append(session.draft(Pinned(again)))
    view = session.view()
    removed_messages = tuple(e.message for e in (*(view.system if prompts else ()), *view.live))
    documents = entries_of_removed(view, cleared, again=frozenset(ids))
    yield from session.append_messages(drafts, expect=expect, documents=documents)
    if removed_messages:
        engine.events.emit(Removed(session.key.session, removed_messages, "cleared"))
    if new_messages:
        engine.events.emit(Appended(session.key.session, tuple(new_messages)))
    yield from engine.fitter.maintain(session, session.stage())
    return turn


@dataclass(frozen=True, slots=True)
class _Changed:
    """Says that the end of a conversation was replaced; `turn_id` is the turn that waits for results after it, if any."""

    turn_id: str | None


def _set_end(
    engine: Engine, session: Session, messages: Sequence[Message], pending: Collection[str]
) -> Flow[_Changed | None]:
    """Replaces the messages after the common beginning, in one write. Returns None when a compaction covers some of them.

    Raises HeadMovedError when another writer was first.
    """
    with session.lock:
        head = session.state.head
    view = session.view()
    texts = {m.text for m in messages if m.role == "system"}
    # set by requests, which set them again: the conversation does not begin anew without them
    prompts = tuple(e.id for e in view.system if e.id.startswith(PROMPT_ID) and e.message.text not in texts)
    same, replaced_entries = _common_beginning(view, view.messages, messages, without=prompts)
    if replaced_entries is None:
        stored = yield from conversation(session)
        same, replaced_entries = _common_beginning(view, stored, messages, without=prompts)
    if replaced_entries is None:
        return None
    new_messages = messages[same:]
    names = yield from session.record_names([m.id for m in new_messages])
    turn = engine.ports.ids.new() if pending else None
    drafts: list[Draft] = []
    documents: tuple[Document, ...] = ()
    if prompts:
        drafts.append(session.draft(MessageRemoved(prompts)))
    if replaced_entries:
        body = MessageRemoved(
            tuple(e.id for e in replaced_entries), replaced_by=tuple(names[m.id] for m in new_messages) or None
        )
        documents = entries_of_removed(view, body, again=names.keys())
        drafts.append(session.draft(body))
    drafts += _added(engine, session, new_messages, names, waiting_turn=turn)
    if drafts:
        yield from session.append_messages(drafts, expect=head, documents=documents)
    if replaced_entries:
        engine.events.emit(Removed(session.key.session, tuple(e.message for e in replaced_entries), "removed"))
    if new_messages:
        engine.events.emit(Appended(session.key.session, tuple(new_messages)))
        yield from engine.fitter.maintain(session, session.stage())
    return _Changed(turn)


def _added(
    engine: Engine,
    session: Session,
    messages: Sequence[Message],
    names: Mapping[str, str],
    *,
    waiting_turn: str | None,
) -> list[Draft]:
    """Returns the drafts that add the messages; with `waiting_turn`, the last tool round goes into that open turn."""
    end = len(messages)
    if waiting_turn is not None:
        end = max(i for i, m in enumerate(messages) if m.tool_calls)
    shown_messages = sized(messages, rules=session.rules(), counter=engine.ports.counter)
    return [
        session.draft(MessageAdded(m, shown), turn_id=waiting_turn if index >= end else None, record_id=names[m.id])
        for index, (m, shown) in enumerate(shown_messages)
    ]


def _common_beginning(
    view: View, stored: Sequence[Message], messages: Sequence[Message], *, without: Collection[str]
) -> tuple[int, tuple[Entry, ...] | None]:
    """Returns the length of the common beginning of `stored` and `messages`, and the live entries after it.

    The entries are None when only system messages are in common, or when the later ones are not all live: a summary stands for
    messages that have to go too. The ids `without` are passed over.
    """
    stored = [m for m in stored if m.kind != "section" and m.id not in without]
    pairs = zip(stored, messages, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: _same(*pair), pairs))
    while 0 < same < len(stored) and stored[same].role == "tool":
        same -= 1  # a tool round differs as a whole
    if not any(m.role != "system" for m in stored[:same]):
        return same, None
    live = {e.id: e for e in view.live if e.message.kind != "summary"}
    later = [live.get(m.id) for m in stored[same:]]
    return same, None if None in later else tuple(e for e in later if e is not None)


def _same(stored: Message, message: Message) -> bool:
    """Returns True when a message adds nothing to the stored one, a framework's own data included."""
    notes = (p for p in message.parts if isinstance(p, Opaque))
    return content_key(stored) == content_key(message) and all(p in stored.parts for p in notes)


def revise(engine: Engine, session: Session, change: Change, *, turn_id: str | None) -> Flow[str | None]:
    """Replaces the conversation by what `change` makes of it as the user sees it; tries again when another writer was first.

    What is for the model only stays where it stood, and pins stay. `turn_id` is the turn whose messages belong to it; the turn
    that is under way afterwards is returned.
    """
    for attempt in range(REVISE_TRIES):
        with session.lock:
            head, pins = session.state.head, tuple(session.state.pins)
        stored = yield from conversation(session, turn_id)
        changed = change(seen_by_user(stored))
        if changed is None:
            return turn_id
        changed = [*map(validated, changed)]
        try:
            whole = with_hidden(stored, changed)
            return (yield from set_all(engine, session, whole, prompts=True, pins=pins, expect=head))
        except HeadMovedError:
            # reading the whole log takes longer than an append: let the other writers finish
            yield from Call(partial(sleep, uniform(0.0, 0.002 * 2 ** min(attempt, 5))))
            yield from session.refresh()
    raise StoreUnavailableError(
        f"other writers of session {session.key.session!r} were first {REVISE_TRIES} times in a row; nothing was "
        "written: try again"
    )


def pin(engine: Engine, session: Session, ids: Sequence[str]) -> Flow[None]:
    """Keeps messages verbatim through every compaction, with their tool rounds. Raises PinBudgetError beyond their share."""
    ids = yield from ids_of(session, ids)

    def pinned(state: SessionState) -> list[Draft]:
        _check_pins(state, ids, session)
        return [session.draft(Pinned(tuple(ids)))]

    yield from session.append_decided(pinned)
    engine.events.emit(PinsChanged(session.key.session, tuple(session.state.pins)))


def _check_pins(state: SessionState, ids: Sequence[str], session: Session) -> None:
    entries = state.live
    places = {e.id: i for i, e in enumerate(entries)}
    for message_id in ids:
        if message_id not in places:
            raise MessageNotFoundError(
                f"message {message_id!r} is not in the live conversation ({len(entries)} messages): pin a message "
                "before it is compacted and after its turn has ended"
            )
    pins = {*state.pins, *ids}
    pinned = {e.id: e for i in map(places.get, pins) if i is not None for e in entries[slice(*round_of(entries, i))]}
    tokens = sum(e.tokens for e in pinned.values())
    rules = session.rules()
    limit = int(rules.pin_ratio * rules.budget_tokens)
    if tokens > limit:
        raise PinBudgetError(
            f"pinned messages would take {tokens} tokens, their share is {limit} of a window of "
            f"{session.described_window()}: unpin some or raise context_window"
        )


def unpin(engine: Engine, session: Session, ids: Sequence[str]) -> Flow[None]:
    ids = yield from ids_of(session, ids)
    yield from session.append((session.draft(Unpinned(tuple(ids))),))
    engine.events.emit(PinsChanged(session.key.session, tuple(session.state.pins)))


def set_policy(engine: Engine, session: Session, fields: Mapping[str, object]) -> Flow[Policy]:
    """Sets rules of this session from here on and returns all rules; they last when it is opened again."""
    policies: list[Policy] = []

    def changed(state: SessionState) -> list[Draft]:
        old = session.own_rules()
        values: dict[str, Any] = {**old.model_dump(), **fields}
        policies[:] = [policy_for(values.pop("context_window"), **values)]
        if "strategy" in fields:
            strategy_named(policies[0].strategy, engine.strategies, session.key.session)
        names = {*fields, *(kept(values["keep"], 1) if "keep" in values else ())} - {"keep"}
        fixed = tuple(sorted({*state.fixed, *names}))
        if policies[0] == old and fixed == state.fixed:
            return []
        return [
            session.draft(PolicyChanged(policy_text(policies[0], state.policy_json), engine.ports.counter.id, fixed))
        ]

    if (yield from session.append_decided(changed)):
        engine.events.emit(RulesChanged(session.key.session, tuple(sorted(fields))))
    return policies[0]


def reopen(engine: Engine, session: Session) -> Flow[None]:
    """Sets the engine's own rules for a session that was imported after it was opened."""
    rules = rules_to_open_with(engine.rules, session.state)
    if rules != session.stored_rules():
        yield from session.append(
            (session.draft(PolicyChanged(policy_text(rules, session.state.policy_json), engine.ports.counter.id)),)
        )


def undo(engine: Engine, session: Session) -> Flow[None]:
    """Undoes the last compaction or edit. Raises ContextOverflowError, before anything is written, if that would not fit."""
    with session.lock:
        target = session.state.revertible[-1] if session.state.revertible else None
        undone = frozenset(session.state.undone)
    if target is None:
        raise NothingToUndoError("there is no compaction or edit to undo")
    targets = yield from _together(session, target)
    before = yield from load_without(session.key, undone | {*targets}, engine.ports)
    rules = session.rules()
    if before.view().tokens > rules.budget_tokens:
        raise ContextOverflowError(
            f"after the undo, the session would need {before.view().tokens} tokens, the budget is {rules.budget_tokens} "
            f"of a window of {session.described_window()}: raise context_window first"
        )
    yield from revert(engine, session, targets)
    engine.events.emit(EditUndone(session.key.session))


def _together(session: Session, record_id: str) -> Flow[tuple[str, ...]]:
    """Returns the records that one edit consists of."""
    records = yield from StoreCall(Store.find, session.key, (record_id,))
    match records[0].body if records else None:
        case Cleared(replaced_by=others) | MessageRemoved(replaced_by=others) | Restored(together=others):
            return (record_id, *(others or ()))
        case _:
            return (record_id,)


def revert(engine: Engine, session: Session, record_ids: Sequence[str]) -> Flow[None]:
    """Undoes one compaction or edit, unless it is undone already; the first id is its own, the others belong to it."""

    def undoing(state: SessionState) -> list[Draft]:
        if record_ids[0] not in state.revertible:
            return []
        return [session.draft(Undone(record_id)) for record_id in record_ids]

    yield from session.append_decided(undoing)


def _remove(
    engine: Engine,
    session: Session,
    chosen: Callable[[Sequence[Entry]], tuple[Entry, ...]],
    how: How,
    *,
    record_id: str | None = None,
    superseded: bool | None = None,
) -> Flow[tuple[Message, ...]]:
    def change(view: View) -> tuple[MessageRemoved, Removed] | None:
        entries = chosen(view.live)
        if not entries:
            return None
        body = MessageRemoved(tuple(e.id for e in entries), superseded)
        return body, Removed(session.key.session, tuple(e.message for e in entries), how)

    event = yield from edit(engine, session, change, record_id=record_id)
    return event.messages if event is not None else ()


def _anchor(session: Session, index: object) -> Flow[str]:
    """Returns the id of the live message at `index`, or with that id or reference: other writers may move it before the edit."""
    if isinstance(index, str):
        return (yield from ids_of(session, (index,)))[0]
    live = session.view().live
    if not isinstance(index, int) or not -len(live) <= index < len(live):
        raise MessageIndexError(f"index {index!r} is outside a conversation of {len(live)} messages: see view().live")
    return live[index].id


def _place(live: Sequence[Entry], message_id: str) -> int:
    place = next((i for i, e in enumerate(live) if e.id == message_id), None)
    if place is None:
        raise MessageNotFoundError(
            f"message {message_id!r} is not in the live conversation: another writer has removed it, see view().live"
        )
    return place


def entries_of_removed(view: View, body: Body, *, again: Collection[str] = ()) -> tuple[Document, ...]:
    """Returns index entries of the messages that the edit `body` removes from the view, without those that it adds `again`.

    Superseded replies are not indexed; the originals of excerpts are in the index already.
    """
    match body:
        case MessageRemoved(ids=ids, superseded=superseded) if not superseded:
            removed = [e for e in view.live if e.id in ids]
        case Cleared():
            removed = list(view.live)
        case _:
            return ()
    originals = (e for e in removed if e.message.kind == "message" and not e.shown_seq and e.id not in again)
    return tuple(index_entry(e.seq, e.message) for e in originals)
