"""Finds the session, branch and turn that a caller's message list belongs to; the comparisons are in `history.diff`.

A caller that keeps its own list, such as a checkpointer, also keeps a `Cursor` into the session. The session follows edits,
branches and copies of that list."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, islice, takewhile

from ctxfold.effects import Effect, Flow, StoreCall
from ctxfold.engine.archive import copy_log
from ctxfold.engine.edit import remove_ids, update
from ctxfold.engine.engine import Engine
from ctxfold.errors import MessageError, OrphanToolResultError
from ctxfold.history.cuts import open_calls
from ctxfold.history.diff import (
    Cursor,
    IncomingList,
    Reconciled,
    changed_messages,
    compare,
    continues,
    conversation,
    copied_replies,
    is_same,
    kept_positions,
    newest_known,
    repeated_by_content,
    rewound_turn,
)
from ctxfold.history.records import OWN_NAME, Compacted, MessageAdded, MessageRemoved, SessionKey
from ctxfold.history.view import Entry
from ctxfold.messages import Message, content_key
from ctxfold.protocols import Store
from ctxfold.retrieval.originals import (
    conversation as whole_conversation,
)
from ctxfold.state import Session

BRANCH = "~"  # between a session's name and the suffix of a branch
LEFT_OUT = 64  # most messages of a list's end that a session may have left out without losing sight of earlier changes


@dataclass(frozen=True, slots=True)
class Attachment:
    """Names the session `key` that serves a list, and what it has of the list.

    `known` are the ids of the messages that it shows, `restored` those of messages to be stored again, and `repeated` counts the
    messages at the beginning of the list that it has under other ids.
    """

    key: SessionKey
    known: frozenset[str]
    restored: frozenset[str] = frozenset()
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class StartPoint:
    """Says where a caller's list may continue.

    `kept_elsewhere` asks whether the caller has kept a cursor of `root` beside another state of the list: a state without a
    cursor is then older than the session.
    """

    root: SessionKey  # the session asked for
    cursor: Cursor | None = None  # kept beside the list
    exclusive: bool = False  # nobody else continues from the cursor
    first: bool = False  # this process has not seen another run at the list's place
    kept_elsewhere: Effect[bool] | None = None
    # the list is all that its keeper has: with nothing of the session, it is another conversation
    list_decides: bool = False


def is_own(session: str, root: str) -> bool:
    """Returns True for the name of a session or of one of its branches."""
    return session.startswith(root) and OWN_NAME.fullmatch(session, len(root)) is not None


def is_believed(engine: Engine, root: SessionKey, cursor: Cursor, incoming: IncomingList) -> Flow[bool]:
    """Returns True for a cursor into the session or one of its branches, and for one that was copied with its whole list.

    Whoever may change a list may change the cursor beside it too. So a session of another name is taken over only for a list that
    has every message which was added to it, word for word.
    """
    if is_own(cursor.session, root.session):
        return True
    records = yield from StoreCall(Store.read, SessionKey(root.owner, cursor.session), upto=cursor.head)
    if not records or records[-1].id != cursor.head_id:
        return False
    positions = {message_id: i for i, message_id in enumerate(incoming.ids)}
    added = (r.body.message for r in records if isinstance(r.body, MessageAdded))
    said = [m for m in added if m.kind == "message" and m.role != "system" and m.visibility != "model"]
    handed = {m.id: incoming.message(positions[m.id]) for m in said if m.id in positions}
    return all(m.id in handed and (m.text, m.tool_calls) == (handed[m.id].text, handed[m.id].tool_calls) for m in said)


def attach(
    engine: Engine,
    place: SessionKey,
    start: StartPoint,
    incoming: IncomingList,
    *,
    separate_runs: bool,
    unanswered: bool,
) -> Flow[tuple[SessionKey, Attachment]]:
    """Returns the session asked for, and the one that serves the list after the list's edits were applied to it.

    With `separate_runs` each run at the `place` has a session of its own. With `unanswered` the list may be handed in again
    before the reply is in it, so that an exclusive session is not compared with the cursor.
    """
    root, origin, cursor = start.root, start.root, start.cursor
    if start.first:
        root = origin = yield from _session_of_place(engine, place, incoming)
    if start.exclusive and cursor is not None:
        own = SessionKey(root.owner, cursor.session)
        if unanswered or (yield from _was_continued(engine, own, cursor, incoming)):
            origin, cursor = own, None
    elif cursor is None and (
        (yield from _is_older(engine, start, incoming)) or (yield from _is_another(engine, start, incoming))
    ):
        origin = new_branch(engine, root)
    attachment = yield from follow(engine, origin, incoming, cursor)
    if separate_runs and cursor is None:
        session = yield from engine.open(attachment.key, reread=False)
        # of a run that goes on, a compaction may have left the question and the newest rounds
        shown = [i for i, message_id in enumerate(incoming.ids) if message_id in attachment.known]
        in_one_piece = start.cursor is not None or not shown or shown[-1] - shown[0] + 1 == len(shown)
        if not in_one_piece or _has_passed_open_turn(session, incoming):
            root = new_branch(engine, place)
            attachment = yield from follow(engine, root, incoming, None)
    if start.cursor is None and not separate_runs:
        live = (yield from engine.open(attachment.key, reread=False)).view().live
        attachment = replace(attachment, repeated=_repeated(live, attachment.known, incoming))
    return root, attachment


def _repeated(live: Sequence[Entry], known_ids: Collection[str], incoming: IncomingList) -> int:
    """Returns how many messages at the beginning of a list the session has, where it has the newest of them under other ids."""
    known = newest_known(incoming.ids, known_ids)
    if not live or known == len(incoming.ids) - 1:
        return 0
    messages = [incoming.message(i) for i in range(max(known, 0), len(incoming.ids))]
    if known < 0:
        return repeated_by_content(live, messages)
    copied, _ = copied_replies(live, messages[0], messages[1:])
    return min(known + 1 + copied, len(incoming.ids) - 1) if copied else 0


def _session_of_place(engine: Engine, place: SessionKey, incoming: IncomingList) -> Flow[SessionKey]:
    """Returns the stored session of the place if it is empty or the list continues it; else a new one."""
    view = (yield from engine.open(place)).view()
    free = continues(view, incoming) if conversation(view, incoming.ids) else not view.compressed
    return place if free else new_branch(engine, place)


def _has_passed_open_turn(session: Session, incoming: IncomingList) -> bool:
    """Returns True where the list continues an open turn differently from the session: nobody will continue the stored one.

    The list has other text or calls in a message of the turn, or an answer after its question and not all of its messages.
    The turn of a run that failed would be discarded then, and its question with it.
    """
    with session.lock:
        turns = [[e for e in turn.entries if e.message.kind == "message"] for turn in session.state.open.values()]
    positions = {message_id: i for i, message_id in enumerate(incoming.ids)} if turns else {}
    for entries in turns:
        own = [e for e in entries if e.id in positions]
        if any(not is_same(e, incoming.message(positions[e.id])) for e in own):
            return True
        later_positions = range(positions[own[-1].id] + 1, len(positions)) if 0 < len(own) < len(entries) else ()
        if any(incoming.message(i).role == "assistant" for i in later_positions):
            return True
    return False


def _is_older(engine: Engine, start: StartPoint, incoming: IncomingList) -> Flow[bool]:
    """Returns True where a list without a cursor is an earlier state of one that has a cursor, or has edited messages."""
    if start.kept_elsewhere is None:
        return False
    session = yield from engine.open(start.root)
    entries = _visible(session)
    positions = {message_id: i for i, message_id in enumerate(incoming.ids)}
    compared = [(e, incoming.message(positions[e.id])) for e in entries if e.id in positions]
    if not all(is_same(entry, message) for entry, message in compared):
        return True
    used = bool(entries or session.view().compressed)
    return used and (yield from start.kept_elsewhere)


def _is_another(engine: Engine, start: StartPoint, incoming: IncomingList) -> Flow[bool]:
    """Returns True where the list has nothing of a session with answers: that of a thread that was deleted since."""
    if not start.list_decides:
        return False
    session = yield from engine.open(start.root)
    entries = _visible(session)
    answered = session.view().compressed or any(e.message.role == "assistant" for e in entries)
    if not answered or not {e.id for e in entries}.isdisjoint(incoming.ids):
        return False
    return not (yield from StoreCall(Store.find, session.key, [f"m:{i}" for i in dict.fromkeys(incoming.ids)]))


def _was_continued(engine: Engine, key: SessionKey, cursor: Cursor, incoming: IncomingList) -> Flow[bool]:
    """Returns True where another process has continued the session after the cursor with the same list."""
    view = (yield from engine.open(key)).view()
    newest = view.live[-1].id if view.live else ""
    return newest not in cursor.handed and newest in incoming.ids and continues(view, incoming)


def new_branch(engine: Engine, root: SessionKey) -> SessionKey:
    return SessionKey(root.owner, f"{root.session}{BRANCH}{engine.ports.ids.new()[:8]}")


def cursor_at(
    engine: Engine, root: SessionKey, key: SessionKey, incoming: IncomingList, *, reread: bool = True
) -> Flow[Cursor]:
    """Returns the cursor to keep beside the list as it is now; `reread` is that of `Engine.open`."""
    session = yield from engine.open(key, reread=reread)
    ids, shown = incoming.ids, _newest_shown(session, incoming.ids)
    before = len(ids) - len(shown)
    handed = dict(zip(shown, incoming.versions(range(before, len(ids))), strict=True))
    state = session.state
    return Cursor(root.session, key.session, state.head, state.head_id, before, incoming.digest(before), handed)


def _newest_shown(session: Session, ids: Sequence[str]) -> Sequence[str]:
    """Returns the list from the oldest message on that the session shows, with those after it that the session has left out.

    A call that was never answered is one that is left out. A pinned message whose neighbours were compacted does not count.
    """
    visible = _visible_ids(session)
    newest = [*ids[max(0, len(ids) - len(visible) - LEFT_OUT) :]]
    unbroken = len([*takewhile(visible.__contains__, reversed(newest))])
    unpinned = visible.difference(session.state.pins)
    oldest = next((i for i, message_id in enumerate(newest) if message_id in unpinned), len(newest))
    return newest[min(oldest, len(newest) - unbroken) :]


def follow(engine: Engine, root: SessionKey, incoming: IncomingList, cursor: Cursor | None) -> Flow[Attachment]:
    """Returns the session for a list after applying the list's edits to it; `cursor` was kept beside the list."""
    if cursor is None:
        return (yield from _attachment(engine, root))
    session = yield from engine.open(SessionKey(root.owner, cursor.session))
    copied = cursor.root != root.session
    if not (yield from _has_record(session, cursor)):  # the store has lost it: the list is stored again
        key = root if copied else session.key
        if any(e.id not in incoming.ids for e in session.view().live[-1:]):  # the name was used again since
            key = new_branch(engine, root)
        return (yield from _attachment(engine, key))
    if copied or (yield from _was_answered(session, cursor.head)) or _is_asked(session, cursor):
        session = yield from _branch(engine, session, root, cursor)
    changed = yield from _changes(session, incoming, cursor)
    if changed is None:
        return (yield from _attachment(engine, new_branch(engine, root)))
    changed |= yield from _changed_since(session, incoming, cursor)
    ids, live = incoming.ids, session.view().live
    new = {ids[at]: at for at in takewhile(lambda at: ids[at] not in cursor.handed, range(len(ids) - 1, -1, -1))}
    # an id of an older message that the list lost was used again
    changed |= {e.id: None for e in live if e.id in new and not is_same(e, incoming.message(new[e.id]))}
    restored = (yield from _amend(engine, session, changed)) if changed else frozenset[str]()
    kept_ids = (i for i in reversed([*cursor.handed]) if changed.get(i, True) is not None)
    known = _visible_ids(session)
    restored |= yield from _revived(engine, session, takewhile(lambda i: i not in known, kept_ids))
    return Attachment(session.key, known, restored)


def _has_record(session: Session, cursor: Cursor) -> Flow[bool]:
    """Returns True where the log still has the record that the cursor points to."""
    if (session.state.head, session.state.head_id) == (cursor.head, cursor.head_id):
        return True
    records = yield from StoreCall(Store.find, session.key, (cursor.head_id,))
    return any(r.seq == cursor.head for r in records)


def _attachment(engine: Engine, key: SessionKey) -> Flow[Attachment]:
    session = yield from engine.open(key)
    return Attachment(session.key, _visible_ids(session))


def _visible(session: Session) -> list[Entry]:
    """Returns the conversation that the session sees, open turns included."""
    with session.lock:
        state = session.state
        return [*state.live, *(e for turn in state.open.values() for e in turn.entries)]


def _visible_ids(session: Session) -> frozenset[str]:
    return frozenset([e.id for e in _visible(session)])


def _was_answered(session: Session, head: int) -> Flow[bool]:
    """Returns True where a reply was stored after `head`; messages that were only added, such as notes, are no replies."""
    if session.state.head == head:
        return False
    later = (e.message for e in _visible(session) if e.seq > head)
    if any(m.role == "assistant" and m.kind == "message" for m in later):
        return True
    # a compaction may have taken the reply out of the view
    records = yield from StoreCall(Store.read, session.key, after=head)
    covered = {i for r in records if isinstance(r.body, Compacted) for i in r.body.covered}
    added = (r.body.message for r in records if isinstance(r.body, MessageAdded))
    return any(m.role == "assistant" and m.kind == "message" and m.id in covered for m in added)


def _is_asked(session: Session, cursor: Cursor) -> bool:
    """Returns True while another run, which may have been cancelled, waits for the model in the turn that the list goes on with."""
    with session.lock:
        turns = [t.entries for turn_id, t in session.state.open.items() if turn_id in session.in_flight]
    return any(e.id in cursor.handed for entries in turns for e in entries)


def _branch(engine: Engine, session: Session, root: SessionKey, cursor: Cursor) -> Flow[Session]:
    """Copies the session as it was at the cursor, turns that were open then included, to a new name."""
    free = cursor.root != root.session and (yield from StoreCall(Store.head, root)) is None
    key = root if free else new_branch(engine, root)
    records = yield from StoreCall(Store.read, session.key, upto=cursor.head)
    yield from copy_log(engine.ports, session.key, key, records)
    return (yield from engine.open(key))


def _changes(session: Session, incoming: IncomingList, cursor: Cursor) -> Flow[dict[str, Message | None] | None]:
    """Returns the new content of messages of the cursor that have changed, None for removed ones. None in all: another list."""
    if cursor.has_same_ids(incoming):
        return changed_messages(incoming, cursor, range(cursor.before, cursor.end))
    positions = kept_positions(incoming, cursor)
    if positions is None:
        return None
    older = [i for i in incoming.ids[: positions[-1]] if i not in cursor.handed]
    records = yield from StoreCall(Store.find, session.key, [f"m:{i}" for i in older])
    if len({r.id for r in records}) < len(set(older)):  # the session never had one of them
        return None
    return changed_messages(incoming, cursor, positions)


def _changed_since(session: Session, incoming: IncomingList, cursor: Cursor) -> Flow[dict[str, Message | None]]:
    """Returns the new content of what a failed request has stored after the cursor and the list has changed, None if removed."""
    with session.lock:
        turns = [t.entries for turn_id, t in session.state.open.items() if turn_id not in session.in_flight]
    own = next((entries for entries in turns if any(e.id in cursor.handed for e in entries)), ())
    later = [
        e for e in own if e.id not in cursor.handed and e.message.kind == "message" and e.message.role != "assistant"
    ]
    if not later:
        return {}  # nearly always
    positions = {message_id: i for i, message_id in enumerate(incoming.ids)}
    whole = yield from session.originals(later)
    new = {e.id: incoming.message(positions[e.id]) if e.id in positions else None for e in later}
    stored = {e.id: content_key(whole.get(e.seq, e.message)) for e in later}
    return {i: m for i, m in new.items() if m is None or content_key(m) != stored[i]}


def _amend(engine: Engine, session: Session, changed: Mapping[str, Message | None]) -> Flow[frozenset[str]]:
    """Applies edits to the session. Returns the ids of open turns that are discarded, to be stored again with new content."""
    with session.lock:
        turns = {t: [e.id for e in turn.entries] for t, turn in session.state.open.items()}
    restored: list[str] = []
    for turn_id, ids in turns.items():
        if any(i in changed for i in ids):
            yield from engine.close(session, turn_id, "discarded")
            restored += ids
    removed_ids = [i for i, message in changed.items() if message is None and i not in restored]
    replaced = {i: m for i, m in changed.items() if m is not None and i not in restored}
    yield from _edit(engine, session, replaced, removed_ids)
    return frozenset(restored)


def _revived(engine: Engine, session: Session, hidden_ids: Iterable[str]) -> Flow[frozenset[str]]:
    """Returns the ids that the session no longer shows because their turn timed out: these messages are stored again.

    A call that waits long for a person is one; messages that were removed from the session on purpose stay out.
    """
    lost = [i for i in hidden_ids if i not in session.state.removed]
    if lost:
        # what a compaction covers stays part of the conversation: a request that then failed has left no newer cursor
        for turn_id in session.open_turns() or (None,):
            compacted = {m.id for m in (yield from whole_conversation(session, turn_id))}
            lost = [i for i in lost if i not in compacted]
    if lost:
        yield from session.append((session.draft(MessageRemoved(tuple(lost))),))
    return frozenset(lost)


def _edit(
    engine: Engine, session: Session, replaced: Mapping[str, Message], removed_ids: Collection[str]
) -> Flow[None]:
    for message_id, message in replaced.items():
        index = next((i for i, e in enumerate(session.view().live) if e.id == message_id), None)
        if index is None:
            continue  # a summary has taken its place
        try:
            yield from update(engine, session, index, message)
        except MessageError:
            removed_ids = [*removed_ids, message_id]  # other calls than before: the round of the old ones has no place
    if removed_ids:
        yield from remove_ids(engine, session, removed_ids, may_return=True)


def reconcile(
    session: Session,
    messages: Sequence[Message],
    *,
    given_ids: Collection[str],
    whole: bool,
    from_window: bool,
) -> Reconciled:
    """Returns which messages of a list are new to the session, and the open turn that they continue: see `diff.compare`."""
    with session.lock:
        live = session.state.live
        turns = {turn_id: turn.entries for turn_id, turn in session.state.open.items()}
        in_flight = set(session.in_flight)
    return compare(
        live,
        turns,
        messages,
        given_ids=given_ids,
        whole=whole,
        session=session.key.session,
        in_flight=in_flight,
        from_window=from_window,
    )


def rewound(session: Session, messages: Sequence[Message], reconciled: Reconciled) -> tuple[Message, ...] | None:
    """Returns the messages for a new turn where the list goes on before the newest round of its open turn; else None."""
    with session.lock:
        turn = session.state.open.get(reconciled.turn_id or "")
        entries = [] if turn is None else [*turn.entries]
    return rewound_turn(entries, messages, reconciled.messages)


def check_answered(session: Session, turn_id: str) -> None:
    """Raises OrphanToolResultError while calls of the turn wait for results: no service takes such a request."""
    with session.lock:
        turn = session.state.open.get(turn_id)
        waiting = open_calls(turn.entries if turn is not None else ())
    if waiting:
        raise OrphanToolResultError(
            f"{waiting.total()} tool call(s) still wait for a result ({', '.join(sorted(waiting))}), nothing was asked: "
            "send their results too, or add() those that come first"
        )


def stored_reply(session: Session, turn_id: str, asked_id: str) -> Flow[Message | None]:
    """Returns the reply that directly follows a message in an open turn, or in the conversation when that turn is over.

    None without one, and for the rest of a stream that was abandoned.
    """
    with session.lock:
        turn = session.state.open.get(turn_id)
        messages = [e.message for e in (turn.entries if turn is not None else session.state.live)]
        # results that were added by themselves ended their turn: a reply to them that calls tools began another
        calling = [t.entries[0].message for t in session.state.open.values() if t.entries] if turn is None else []
    if all(m.id != asked_id for m in reversed(messages)):
        # a compaction came after the reply, and the log tells what followed
        messages = [m for m in (yield from whole_conversation(session, turn_id)) if m.visibility != "user"]
    following = dropwhile(lambda m: m.id != asked_id, (*messages, *(m for m in calling if m.role == "assistant")))
    reply = next(islice(following, 1, None), None)
    if reply is None or reply.role != "assistant" or reply.kind != "message" or reply.finish_reason == "aborted":
        return None
    return reply
