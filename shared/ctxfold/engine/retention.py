"""Erases what a retention policy lets go, session by session: by one worker at a time, and resumed by any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TypeAlias

from ctxfold.effects import Flow, StoreCall, TakeLease, release_after
from ctxfold.engine.engine import Engine
from ctxfold.engine.erase import Erasure, erase_messages, erase_session
from ctxfold.errors import ConfigError
from ctxfold.history.diff import PROMPT_ID
from ctxfold.history.records import NOTICE, NUMBERED, Record, SessionKey, TurnClosed, encode_body
from ctxfold.history.snapshot import stored_message
from ctxfold.protocols import Store
from ctxfold.validation import is_a, kind_of, whole_number

LEASE = "retention"
LEASE_S = 120.0
PAGE = 256  # records that are looked at together


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Limits how much of each session is kept. Limits combine, and the oldest messages are erased first.

    Args:
        max_age: messages stored longer ago are erased; a session with nothing newer is removed as a whole.
        max_idle: a session in which nothing was stored for that long is removed as a whole; others keep all their messages.
        max_messages: how many messages are kept, not counting summaries and system prompts.
        max_bytes: how many bytes of stored messages are kept, counted as JSON in the log, where a letter beyond ASCII takes 6
            bytes.
    """

    max_age: timedelta | None = None
    max_idle: timedelta | None = None
    max_messages: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        if all(getattr(self, each.name) is None for each in fields(self)):
            raise ConfigError("Retention has no limit: give max_age, max_idle, max_messages or max_bytes")
        for name in ("max_age", "max_idle"):
            span = getattr(self, name)
            if span is not None and (not is_a(span, timedelta) or span <= timedelta(0)):
                shown = span if is_a(span, timedelta) else kind_of(span)
                raise ConfigError(f"{name} is {shown}: give a span of time above zero, such as timedelta(days=30)")
        for name in ("max_messages", "max_bytes"):
            limit = getattr(self, name)
            if limit is not None:
                whole_number(name, limit, "give a number of 1 or more, or None for no limit")


@dataclass(frozen=True, slots=True)
class Pruning:
    """Reports the progress of a retention run: `done` of `total` sessions; `session` is the last one done."""

    session: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """Reports what a retention run erased: the number of `messages`, the `sessions` that lost some, and those `removed` as a
    whole.

    `busy` is True when another worker held the lease, so that the run did not begin or did not finish. `settled` means the same
    as in `Erasure`.
    """

    messages: int = 0
    sessions: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    busy: bool = False
    settled: bool = True


Rules: TypeAlias = Mapping[str, Retention | None]


def prune(
    engine: Engine,
    owner: str,
    retention: Retention | None,
    *,
    by_session: Rules,
    on_progress: Callable[[Pruning], None] | None,
    lease_s: float,
) -> Flow[Pruned]:
    """Erases what the limits let go in all sessions of the owner; `by_session` names sessions with limits of their own, or none.

    Each session is done in a transaction of its own. A run that was interrupted is resumed by the next: what is done has nothing
    left to erase.
    """
    if not is_a(lease_s, (int, float)) or not lease_s > 0:
        raise ConfigError(
            f"lease_s is {lease_s!r}: give the seconds after which another worker takes over from one that died"
        )
    place, worker = SessionKey(owner, ""), engine.ports.ids.new()
    names = yield from StoreCall(Store.sessions, owner)
    done: list[Erasure] = []

    def each_session() -> Flow[bool]:
        for number, name in enumerate(names, 1):
            limits = by_session.get(name, retention)
            if not (yield from TakeLease(place, LEASE, worker, lease_s)):
                return True
            if limits is not None:
                done.append((yield from _pruned(engine, SessionKey(owner, name), limits)))
            if on_progress is not None:
                on_progress(Pruning(name, number, len(names)))
        return False

    busy = yield from release_after(each_session(), place, LEASE, worker)
    return Pruned(
        messages=sum(len(erasure.ids) for erasure in done),
        sessions=tuple(dict.fromkeys(name for erasure in done for name in erasure.sessions)),
        removed=tuple(name for erasure in done for name in erasure.removed),
        busy=busy,
        settled=all(erasure.settled for erasure in done),
    )


def _pruned(engine: Engine, key: SessionKey, limits: Retention) -> Flow[Erasure]:
    log = yield from _scanned(key)
    now_s = engine.ports.clock.now_s()
    before_s = None if limits.max_age is None else now_s - limits.max_age.total_seconds()
    spans = [span for span in (limits.max_age, limits.max_idle) if span is not None]
    if any(log.newest_s < now_s - span.total_seconds() for span in spans):
        return (yield from erase_session(engine, key))
    ids = log.beyond(limits, before_s)
    return (yield from erase_messages(engine, key, ids)) if ids else Erasure()


@dataclass(slots=True)
class _Log:
    """Returns time and size of each message of a closed turn, in the order of the log, to compare with the limits."""

    messages: dict[str, tuple[float, int]]
    newest_s: float

    def beyond(self, limits: Retention, before_s: float | None) -> frozenset[str]:
        """Returns the ids of the messages beyond the limits."""
        ids: set[str] = set()
        size = 0
        for count, (message_id, (at_s, message_bytes)) in enumerate(reversed(self.messages.items()), 1):
            size += message_bytes
            old = before_s is not None and at_s < before_s
            many = limits.max_messages is not None and count > limits.max_messages
            large = limits.max_bytes is not None and size > limits.max_bytes
            if old or many or large:
                ids.add(message_id)
        return frozenset(ids)


def _scanned(key: SessionKey) -> Flow[_Log]:
    """Reads a log page by page, so that no more than a page of it is in memory."""
    sizes: dict[str, tuple[float, int, str | None]] = {}
    closed: set[str | None] = {None}
    after, newest_s, spoken_s = 0, 0.0, 0.0
    records: Sequence[Record] = yield from StoreCall(Store.read, key, upto=PAGE)
    while records:
        for record in records:
            newest_s = max(newest_s, record.at_s)
            # not by what an erasure notes down: the session would count as used
            if record.body.kind in NUMBERED and not record.id.startswith(NOTICE):
                spoken_s = max(spoken_s, record.at_s)
            if isinstance(record.body, TurnClosed):
                closed.add(record.turn_id)
            message = stored_message(record)
            if message is not None and message.kind == "message" and not message.id.startswith(PROMPT_ID):
                at_s, size, turn_id = sizes.get(message.id, (record.at_s, 0, record.turn_id))
                sizes[message.id] = at_s, size + len(encode_body(record.body)), turn_id
        after += PAGE
        records = yield from StoreCall(Store.read, key, after=after, upto=after + PAGE)
    messages = {i: (at_s, size) for i, (at_s, size, turn_id) in sizes.items() if turn_id in closed}
    return _Log(messages, spoken_s or newest_s)
