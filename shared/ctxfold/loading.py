"""A session's state from its log: the newest snapshot, and what came after it."""

from __future__ import annotations

from ctxfold.effects import FetchLog, FindLog, ReadHead, ReadLog, SnapshotBefore
from ctxfold.errors import SessionNotFoundError, StoreCorruptError
from ctxfold.flow import Flow
from ctxfold.history.log import SessionState
from ctxfold.history.records import Record, SessionKey, SnapshotTaken
from ctxfold.history.snapshot import load_state, parse_snapshot
from ctxfold.ports import Ports

__all__ = ["load", "without"]


def load(key: SessionKey, ports: Ports) -> Flow[SessionState]:
    """The state at the end of the log: newest snapshot and what came after it, not the history before."""
    head = yield from ReadHead(key)
    state = None if head is None else (yield from _fold_from(key, head.snapshot_seq, frozenset(), ports))
    if state is None or not state.head:
        raise SessionNotFoundError(
            f"session {key.session!r} of owner {key.owner!r} does not exist in this store: check the name, or create it"
        )
    while state.stale:
        state = yield from without(key, frozenset(state.undone), ports)
    return state


def without(key: SessionKey, undone: frozenset[str], ports: Ports) -> Flow[SessionState]:
    """The state as if the records with these ids had never been, folded from the snapshot before the first of them."""
    records = yield from FindLog(key, tuple(sorted(undone)))
    first = min((r.seq for r in records), default=1)
    at = yield from SnapshotBefore(key, first)
    return (yield from _fold_from(key, at, undone, ports))


def _fold_from(key: SessionKey, at: int, undone: frozenset[str], ports: Ports) -> Flow[SessionState]:
    records = yield from ReadLog(key, after=max(0, at - 1))
    state = SessionState(key, ports.counter.count)
    if at and records:
        state = yield from _loaded(key, at, records[0], ports)
        state.head_id = records[0].id
    state.undone |= undone
    state.read_upto = records[-1].seq if records else 0
    state.apply(records)
    return state


def _loaded(key: SessionKey, at: int, taken: Record, ports: Ports) -> Flow[SessionState]:
    """The state of a snapshot; read once more when an erasure came between the snapshot and the texts."""
    while True:
        snapshot = parse_snapshot(taken.body.state if isinstance(taken.body, SnapshotTaken) else "")
        texts = yield from FetchLog(key, snapshot.seqs())
        try:
            return load_state(key, snapshot, texts, at=at, counter_id=ports.counter.id, count=ports.counter.count)
        except StoreCorruptError:
            again = yield from FetchLog(key, (at,))
            if not again or again[0].body == taken.body:
                raise
            taken = again[0]
