"""Erasure: the one exception to a log that only grows. Text is taken out of every place that holds it, in one transaction.

A message goes with its tool round, and from the session's forks as well as from what it was forked from. Summaries that covered it
are written anew from what is left, without a model. Its id and its number stay, and resolve to MessageErasedError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeAlias

from ctxfold.archive import origins_of
from ctxfold.budget import Policy
from ctxfold.compaction.summarize import as_message, summarize
from ctxfold.effects import Copies, EraseLogs, EraseOwner, ReadLog, Sessions
from ctxfold.engine import Engine
from ctxfold.errors import ConfigError, HeadMovedError, MessageErasedError, MessageError, StoreUnavailableError
from ctxfold.events import MessagesErased
from ctxfold.explain import original_record
from ctxfold.flow import Flow
from ctxfold.given import kind_of
from ctxfold.history.records import NOTICE, Compacted, Erased, PolicyChanged, Record, SessionKey
from ctxfold.history.revise import PROMPT_ID
from ctxfold.history.scrub import (
    Scrub,
    first_records,
    open_turns,
    quoting_sections,
    shared_length,
    showing_sections,
    whole_rounds,
)
from ctxfold.journal import Journal, closing, draft
from ctxfold.memory.keep import Memories
from ctxfold.ports import Ports, Rewrite

__all__ = ["Age", "Erasure", "erase", "erase_older_than", "erase_owner", "erase_session", "forks"]

TRIES = 16
ALL = 1 << 40
_NONE: frozenset[str] = frozenset()
Age: TypeAlias = timedelta | datetime
_Choice: TypeAlias = Callable[[Sequence[Record]], frozenset[str]]


@dataclass(frozen=True, slots=True)
class Erasure:
    """What is gone: `ids` of messages of the session, the `sessions` that held them, forks included, and sessions `removed` whole.

    When `settled` is False, older text may still stand in a file of the store because another process is reading it: call again
    later, or end that process.
    """

    ids: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    settled: bool = True


def erase(engine: Engine, journal: Journal, references: Sequence[str]) -> Flow[Erasure]:
    """Erase messages by id or `#17`; those that are erased already are left alone.

    MessageNotFoundError, and nothing is done, for one that the session never had.
    """
    ids = set[str]()
    for reference in references:
        try:
            _, message = yield from original_record(journal, reference)
        except MessageErasedError:
            continue
        if message.kind == "summary":
            raise MessageError(
                f"{reference!r} is a summary: erase messages that it stands for, and it is written anew without them"
            )
        ids.add(message.id)
    return (yield from _erased(engine, journal.key, lambda records: whole_rounds(records, ids)))


def erase_older_than(engine: Engine, journal: Journal, age: Age) -> Flow[Erasure]:
    """Erase what was said before a moment, or longer ago than a span of time; the session's own system prompts stay."""
    before_s = _moment(age, engine.ports.clock.now_s())

    def chosen(records: Sequence[Record]) -> frozenset[str]:
        old = [i for i, r in first_records(records).items() if r.at_s < before_s and not i.startswith(PROMPT_ID)]
        return whole_rounds(records, old)

    return (yield from _erased(engine, journal.key, chosen))


def _moment(age: object, now_s: float) -> float:
    if isinstance(age, timedelta):
        if age < timedelta(0):
            raise ConfigError(
                f"age {age} lies in the future: give how old a message must be, such as timedelta(days=30)"
            )
        return now_s - age.total_seconds()
    if not isinstance(age, datetime):
        raise ConfigError(f"age is {kind_of(age)}: give timedelta(days=30), or a datetime with a time zone")
    if age.tzinfo is None:
        raise ConfigError(f"{age.isoformat()} has no time zone: give datetime(..., tzinfo=...)")
    return age.timestamp()


def erase_session(engine: Engine, key: SessionKey) -> Flow[Erasure]:
    """Remove a session with all that belongs to it; from its forks, what they took over from it."""
    for _ in range(TRIES):
        records = yield from ReadLog(key)
        names = yield from forks(key)
        rewrites = yield from _taken_over(engine.ports, key, records, None, names)
        rewrites += yield from _recalled_elsewhere(engine.ports, key, rewrites, whole=True)
        try:
            settled = yield from EraseLogs(tuple(rewrites), (key,))
        except HeadMovedError:
            continue
        engine.forget(lambda k: k == key)
        late, late_settled = yield from _made_meanwhile(engine.ports, key, records, None, names)
        rewrites += late
        _report(engine, rewrites)
        sessions = tuple(r.key.session for r in rewrites)
        return Erasure((), sessions, (key.session,) if records else (), settled and late_settled)
    raise _busy(key)


def erase_owner(engine: Engine, owner: str) -> Flow[bool]:
    """Remove every session of the owner and all else that is theirs; see `Erasure.settled` for what is returned."""
    settled = yield from EraseOwner(owner)
    engine.forget(lambda key: key.owner == owner)
    return settled


def forks(key: SessionKey) -> Flow[tuple[str, ...]]:
    """The sessions that were forked from this one, directly or not."""
    origins: dict[str, tuple[str, ...]] = {}
    for name in (yield from Copies(key)):
        origins[name] = yield from origins_of(SessionKey(key.owner, name))
    return tuple(name for name, known in origins.items() if key.session in known)


def _erased(engine: Engine, key: SessionKey, choose: _Choice) -> Flow[Erasure]:
    """Erase what is chosen from the newest log, and from the logs that share its beginning."""
    for _ in range(TRIES):
        records = yield from ReadLog(key)
        stored = first_records(records)
        gone = choose(records) & stored.keys()
        rewrites = yield from _rewrite(engine.ports, key, records, gone)
        names = (yield from Copies(key)) if gone else ()
        rewrites += yield from _taken_over(engine.ports, key, records, gone, names)
        rewrites += yield from _recalled_elsewhere(engine.ports, key, rewrites)
        try:
            settled = yield from EraseLogs(tuple(rewrites))
        except HeadMovedError:
            continue
        if gone:
            late, late_settled = yield from _made_meanwhile(engine.ports, key, records, gone, names)
            rewrites += late
            settled = settled and late_settled
        _report(engine, rewrites)
        ids = tuple(i for i in stored if i in gone)
        return Erasure(ids, tuple(r.key.session for r in rewrites), settled=settled)
    raise _busy(key)


def _taken_over(
    ports: Ports, key: SessionKey, records: Sequence[Record], gone: frozenset[str] | None, names: Sequence[str]
) -> Flow[list[Rewrite]]:
    """The logs of these sessions without what they took over from `records` of what is gone, or of all but the prompts."""
    found: list[Rewrite] = []
    for name in names:
        copied = yield from ReadLog(SessionKey(key.owner, name))
        ids = _shared(records, copied, gone)
        if gone is None:
            ids = frozenset(i for i in ids if not i.startswith(PROMPT_ID))
        else:
            ids = whole_rounds(copied, ids)
        found += yield from _rewrite(ports, SessionKey(key.owner, name), copied, ids)
    return found


def _made_meanwhile(
    ports: Ports, key: SessionKey, records: Sequence[Record], gone: frozenset[str] | None, seen: Sequence[str]
) -> Flow[tuple[list[Rewrite], bool]]:
    """What was erased from sessions that were forked while the erasure was under way, and whether that is settled.

    One that is forked later finds it gone.
    """
    names: list[str] = []
    for _ in range(TRIES):
        made = (yield from _forks_of_gone(key)) if gone is None else (yield from Copies(key))
        names = [name for name in made if name not in seen]
        rewrites = yield from _taken_over(ports, key, records, gone, names)
        try:
            return rewrites, not rewrites or (yield from EraseLogs(tuple(rewrites)))
        except HeadMovedError:
            continue
    raise StoreUnavailableError(
        f"session {key.session!r} is erased, but other writers of forks that were made meanwhile were first {TRIES} times: "
        f"erase the same in {', '.join(map(repr, names))}"
    )


def _forks_of_gone(key: SessionKey) -> Flow[tuple[str, ...]]:
    """As `forks`, of a session that is no more: nothing in the store leads from it to them."""
    origins: dict[str, tuple[str, ...]] = {}
    for name in (yield from Sessions(key.owner)):
        origins[name] = yield from origins_of(SessionKey(key.owner, name))
    return tuple(name for name, known in origins.items() if key.session in known)


def _recalled_elsewhere(
    ports: Ports, key: SessionKey, rewrites: Sequence[Rewrite], *, whole: bool = False
) -> Flow[list[Rewrite]]:
    """The owner's other sessions without the sections that show what was learnt here; with `whole`, anything at all."""
    lost = {r.key.session: frozenset(r.ids) for r in rewrites}
    if not lost and not whole:
        return []
    items = yield from Memories(key.owner, newest=ALL, everything=True)
    learnt = {
        i.id for i in items if (whole and i.session == key.session) or lost.get(i.session, _NONE) & set(i.sources)
    }
    found: list[Rewrite] = []
    for name in (yield from Sessions(key.owner)) if learnt else ():
        if name != key.session and name not in lost:
            other = SessionKey(key.owner, name)
            records = yield from ReadLog(other)
            found += yield from _rewrite(ports, other, records, showing_sections(records, learnt))
    return found


def _shared(records: Sequence[Record], copied: Sequence[Record], wanted: frozenset[str] | None) -> frozenset[str]:
    """Messages that came into both logs before they parted, all or of those wanted."""
    length = shared_length(records, copied)
    return frozenset(i for i, r in first_records(copied).items() if r.seq <= length and (wanted is None or i in wanted))


def _rewrite(ports: Ports, key: SessionKey, records: Sequence[Record], gone: frozenset[str]) -> Flow[list[Rewrite]]:
    """The log of one session without these messages; nothing when it has none of them."""
    if not gone:
        return []
    gone |= quoting_sections(records, gone)
    rules = _rules(records)
    scrub = Scrub(set(gone), ports.counter.count, ports.counter.id)
    changed: list[Record] = []
    for record in records:
        body = scrub.body(record)
        if isinstance(body, Compacted) and scrub.covers(record.body):
            body = yield from _resummarised(body, scrub, rules, ports)
        scrub.note(record, body)
        if body != record.body:
            changed.append(replace(record, body=body))
    drafts = [closing(ports, turn, "aborted") for turn in open_turns(records, scrub.emptied)]
    drafts.append(draft(ports, Erased(tuple(sorted(gone))), record_id=f"{NOTICE}{ports.ids.new()}"))
    unindexed = tuple(r.seq for r in changed if isinstance(r.body, Erased))
    touched = tuple(sorted({*scrub.gone, *scrub.summaries}))  # what was learnt from an old summary goes too
    return [Rewrite(key, records[-1].seq, touched, tuple(changed), unindexed, tuple(drafts))]


def _resummarised(body: Compacted, scrub: Scrub, rules: Policy, ports: Ports) -> Flow[Compacted]:
    """The compaction with a summary of what is left, extractive and no larger than the old one; without one when nothing is."""
    sources = scrub.cover(body)
    if body.summary is None or not sources:
        return replace(body, summary=None)
    limit = min(rules.summary_tokens, ports.counter.count(body.summary))
    summary = yield from summarize(
        sources,
        rules=rules.model_copy(update={"summary_tokens": limit}),
        counter=ports.counter,
        window_tokens=None,
        writer="extractive",
    )
    message = as_message(summary, message_id=body.summary.id, role=body.summary.role)
    return replace(body, summary=message, rung=summary.rung)


def _rules(records: Sequence[Record]) -> Policy:
    text = next(r.body.policy for r in reversed(records) if isinstance(r.body, PolicyChanged))
    return Policy.model_validate_json(text)


def _report(engine: Engine, rewrites: Sequence[Rewrite]) -> None:
    for change in rewrites:
        for body in (d.body for d in change.drafts):
            if isinstance(body, Erased):
                engine.events.emit(MessagesErased(change.key.session, body.ids))


def _busy(key: SessionKey) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"other writers of session {key.session!r} or of its forks were first {TRIES} times; nothing was erased: try again"
    )
