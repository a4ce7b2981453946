"""A session that follows a list which somebody else keeps, with its edits, its branches and its copies.

The caller keeps a `Trail` beside each state of its list, such as a checkpoint, and hands both in. The session then is what that
state of the list asks for, wherever the session itself has gone meanwhile: from a state that was left behind, or was copied,
a branch of the session goes on, with the summaries, pins and rules of that moment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import takewhile
from typing import Any, Protocol

from ctxfold.archive import documents_of, origins_of
from ctxfold.editing import remove_ids, update
from ctxfold.effects import AppendLog, FindLog, ReadHead, ReadLog
from ctxfold.engine import Engine
from ctxfold.errors import MessageError
from ctxfold.flow import Flow
from ctxfold.history.records import Draft, Forked, MessageRemoved, SessionKey
from ctxfold.history.view import Entry
from ctxfold.journal import Journal, append, draft
from ctxfold.messages import Message

__all__ = ["BRANCH", "Line", "Listed", "Trail", "follow", "trail"]

BRANCH = "~"  # between a session's name and what tells its branches apart


class Listed(Protocol):
    """The caller's list."""

    @property
    def ids(self) -> Sequence[str]: ...

    def version(self, index: int) -> str:
        """What tells the message from itself with other content."""
        ...

    def message(self, index: int) -> Message: ...


@dataclass(frozen=True, slots=True)
class Trail:
    """What was handed over when the list was as it is now; plain values in `to_dict`, to be kept beside the list.

    `root` is the name that was asked for, `session` the one that serves it, at the record with number `head` and id `head_id`.
    Of the list's messages `handed` are the newest, with their versions, all visible to the session; `before` counts the older
    ones, `digest` names them.
    """

    root: str
    session: str
    head: int
    head_id: str
    before: int
    digest: str
    handed: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        names = ("root", "session", "head", "head_id", "before", "digest")
        return {**{name: getattr(self, name) for name in names}, "handed": dict(self.handed)}

    def leads(self, listed: Listed) -> bool:
        """Whether the list only goes on from here: nothing of it was changed, removed or put in between."""
        ids, end = listed.ids, self.before + len(self.handed)
        if len(ids) <= end or [*ids[self.before : end]] != [*self.handed] or _digest(ids[: self.before]) != self.digest:
            return False
        return all(listed.version(self.before + i) == v for i, v in enumerate(self.handed.values()))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Trail | None:
        """None where another version has kept something else: the list is followed by its ids then."""
        return cls(**values) if {*values} == {field.name for field in fields(cls)} else None


@dataclass(frozen=True, slots=True)
class Line:
    """The session that goes with a list: the messages that it sees, and those of them that are to be stored anew."""

    key: SessionKey
    known: frozenset[str]
    again: frozenset[str] = frozenset()


def trail(engine: Engine, root: SessionKey, key: SessionKey, listed: Listed) -> Flow[Trail]:
    """To be kept beside the list as it is now."""
    journal = yield from engine.open(key)
    visible, ids = {e.id for e in _entries(journal)}, listed.ids
    before = len(ids)
    while before and ids[before - 1] in visible:
        before -= 1
    handed = {ids[i]: listed.version(i) for i in range(before, len(ids))}
    state = journal.state
    return Trail(root.session, key.session, state.head, state.head_id, before, _digest(ids[:before]), handed)


def follow(engine: Engine, root: SessionKey, listed: Listed, left: Trail | None) -> Flow[Line]:
    """The session for a list, in line with it but for what is new at its end. `left` is the trail kept beside the list."""
    if left is None:
        return (yield from _line(engine, root))
    journal = yield from engine.open(SessionKey(root.owner, left.session))
    copied = left.root != root.session
    if not (yield from _has(journal, left)):  # a store that has forgotten it: made anew from the list
        return (yield from _line(engine, root if copied else journal.key))
    if copied or _went_on(journal, left.head):
        journal = yield from _branch(engine, journal, root, left)
    changed = yield from _changes(journal, listed, left)
    if changed is None:
        return (yield from _line(engine, _new_name(engine, root)))
    again = yield from _amend(engine, journal, changed)
    again |= yield from _revived(engine, journal, [i for i in left.handed if changed.get(i, True) is not None])
    return (yield from _line(engine, journal.key, again))


def _has(journal: Journal, left: Trail) -> Flow[bool]:
    """Whether the log still is the one that the trail speaks of."""
    if (journal.state.head, journal.state.head_id) == (left.head, left.head_id):
        return True
    found = yield from FindLog(journal.key, (left.head_id,))
    return any(r.seq == left.head for r in found)


def _line(engine: Engine, key: SessionKey, again: frozenset[str] = frozenset()) -> Flow[Line]:
    journal = yield from engine.open(key)
    return Line(key, frozenset(e.id for e in _entries(journal)), again)


def _entries(journal: Journal) -> list[Entry]:
    """What the session sees of a conversation, open turns included."""
    with journal.lock:
        state = journal.state
        return [*state.live, *(e for turn in state.open.values() for e in turn.entries)]


def _went_on(journal: Journal, head: int) -> bool:
    """Whether anything was answered since; what was only added to the session, such as a note, is no answer."""
    return any(
        e.seq > head and e.message.role == "assistant" and e.message.kind == "message" for e in _entries(journal)
    )


def _new_name(engine: Engine, root: SessionKey) -> SessionKey:
    return SessionKey(root.owner, f"{root.session}{BRANCH}{engine.ports.ids.new()[:8]}")


def _branch(engine: Engine, journal: Journal, root: SessionKey, left: Trail) -> Flow[Journal]:
    """The session as it was at the trail's head, turns that were open then included, under a name of its own."""
    free = left.root != root.session and (yield from ReadHead(root)) is None
    key = root if free else _new_name(engine, root)
    records = yield from ReadLog(journal.key, upto=left.head)
    origins = (journal.key.session, *(yield from origins_of(journal.key)))
    drafts = [Draft(r.id, r.body, r.turn_id, r.at_s) for r in records]
    drafts.append(draft(engine.ports, Forked(origins), record_id=f"forked:{key.session}"))
    yield from AppendLog(key, drafts, expect=0, documents=documents_of(key, records))
    return (yield from engine.open(key))


def _changes(journal: Journal, listed: Listed, left: Trail) -> Flow[dict[str, Message | None] | None]:
    """Handed messages that have other content now, or none: they were removed. None when the list is another one."""
    ids, handed = listed.ids, list(left.handed)
    kept = list(range(left.before, left.before + len(handed)))
    if list(ids[left.before : left.before + len(handed)]) != handed or _digest(ids[: left.before]) != left.digest:
        kept = [i for i, name in enumerate(ids) if name in left.handed]
        common = {ids[i] for i in kept}
        if not kept or [ids[i] for i in kept] != [name for name in handed if name in common]:
            return None
        if (yield from _unknown(journal, [name for name in ids[: kept[-1]] if name not in left.handed])):
            return None
    found: dict[str, Message | None] = dict.fromkeys(left.handed.keys() - {ids[i] for i in kept})
    return found | {ids[i]: listed.message(i) for i in kept if listed.version(i) != left.handed[ids[i]]}


def _unknown(journal: Journal, ids: Sequence[str]) -> Flow[bool]:
    """Whether the session never had one of these messages."""
    records = yield from FindLog(journal.key, [f"m:{i}" for i in ids])
    return len({r.id for r in records}) < len(set(ids))


def _amend(engine: Engine, journal: Journal, changed: Mapping[str, Message | None]) -> Flow[frozenset[str]]:
    """Bring the session in line with edits. The ids of a turn under way that is told anew, in its new words."""
    with journal.lock:
        turns = {t: [e.id for e in turn.entries] for t, turn in journal.state.open.items()}
    again: list[str] = []
    for turn_id, ids in turns.items():
        if any(i in changed for i in ids):
            yield from engine.close(journal, turn_id, "discarded")
            again += ids
    gone = [i for i, message in changed.items() if message is None and i not in again]
    yield from _edit(engine, journal, {i: m for i, m in changed.items() if m is not None and i not in again}, gone)
    return frozenset(again)


def _revived(engine: Engine, journal: Journal, handed: Sequence[str]) -> Flow[frozenset[str]]:
    """Messages at the end of what was handed over that nobody sees any more: their turn was taken for dead.

    A call that waits long for a person is one; what was taken out of the session on purpose stays out.
    """
    visible, removed = {e.id for e in _entries(journal)}, journal.state.removed
    lost = [i for i in takewhile(lambda i: i not in visible, reversed(handed)) if i not in removed]
    if lost:
        yield from append(journal, (draft(engine.ports, MessageRemoved(tuple(lost))),), engine.ports)
    return frozenset(lost)


def _edit(engine: Engine, journal: Journal, new: Mapping[str, Message], gone: Collection[str]) -> Flow[None]:
    for name, message in new.items():
        index = next((i for i, e in enumerate(journal.view().live) if e.id == name), None)
        if index is None:
            continue  # a summary stands for it by now
        try:
            yield from update(engine, journal, index, message)
        except MessageError:
            gone = [*gone, name]  # other calls than before: the round they belonged to has no place
    if gone:
        yield from remove_ids(engine, journal, gone, may_return=True)


def _digest(ids: Sequence[str]) -> str:
    return hashlib.blake2b("\0".join(ids).encode(), digest_size=8).hexdigest()
