"""Erases text from everything that is stored, in one transaction: the one exception to a log that only grows.

A message is erased with its tool round, also from forks of the session and from the session that it was forked from. Places,
ids and counts stay, so everything else still resolves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ctxfold.compaction.summarize import as_message, summarize
from ctxfold.effects import Call, Flow, StoreCall, run
from ctxfold.engine.archive import Age, origins_of
from ctxfold.engine.engine import Engine
from ctxfold.errors import HeadMovedError, MessageErasedError, MessageError, StoreFormatError, StoreUnavailableError
from ctxfold.events import MessagesErased
from ctxfold.history.diff import PROMPT_ID
from ctxfold.history.log import SessionState
from ctxfold.history.prompt_safety import as_quoted_data
from ctxfold.history.records import (
    NOTICE,
    Body,
    Compacted,
    Erased,
    GoalSet,
    MessageAdded,
    MessageInserted,
    MessageReplaced,
    OutputsSummarised,
    PolicyChanged,
    Record,
    Restored,
    SessionKey,
    SnapshotTaken,
    Subgoal,
    TurnClosed,
    Undone,
    Unknown,
    shown_in,
)
from ctxfold.history.snapshot import NEWER_SNAPSHOT, OpenSlots, Slot, Snapshot, parse_snapshot, stored_message
from ctxfold.history.view import Entry, section_note
from ctxfold.index.terms import sentences
from ctxfold.messages import Message, without_compactions
from ctxfold.policy.settings import Policy
from ctxfold.protocols import Ports, Rewrite, Store
from ctxfold.retrieval.originals import (
    original_record,
)
from ctxfold.state import Session, draft
from ctxfold.validation import moment

TRIES = 16
ALL = 1 << 40
_NONE: frozenset[str] = frozenset()
QUOTE_CHARS = 12  # a shorter sentence says nothing of its own
_Choice: TypeAlias = Callable[[Sequence[Record]], frozenset[str]]
# by record: a compaction without the erased messages, what is left of its sources, the policy, and it with a new summary
_Made: TypeAlias = dict[str, tuple[Compacted, tuple[Entry, ...], str, Compacted]]


@dataclass(slots=True)
class Scrub:
    """Rewrites a log in one pass: call `body` for each record in order, `cover` if its summary has to be rewritten, then `note`.

    `erased_ids` are the ids of erased messages; the ids of summaries that are removed as a whole are added on the way.
    """

    erased_ids: set[str]
    count: Callable[[Message], int]
    counter_id: str
    emptied: set[str] = field(default_factory=set[str])  # ids of records whose text is erased
    summaries: dict[str, Message] = field(default_factory=dict[str, Message])  # those that were written again
    _before: list[Record] = field(default_factory=list[Record])  # the log so far, before the erasure
    # each message as it was last seen, not counted
    _entries: dict[str, Entry] = field(default_factory=dict[str, Entry])

    def body(self, record: Record) -> Body:  # noqa: PLR0911 - one case for each kind of record
        """Returns the new content of the record; a Compacted that `covers` an erased message still has its old summary."""
        match record.body:
            case MessageAdded(message=message) if message.id in self.erased_ids:
                return Erased((message.id,), message.usage)
            case MessageAdded(message=message) if self.emptied:
                return replace(record.body, message=without_compactions(message))
            case MessageInserted(message=message) | MessageReplaced(message=message) | Restored(message=message) if (
                message.id in self.erased_ids
            ):
                return Erased((message.id,))
            case MessageInserted(message=message, before=before) if before in self.erased_ids:
                return replace(record.body, before=self._successor(before))
            case Compacted(covered=covered, shown=shown):
                rest = tuple(i for i in covered if i not in self.erased_ids)
                return replace(record.body, covered=rest, shown=self._kept(shown))
            case OutputsSummarised(shown=shown):
                return replace(record.body, shown=self._kept(shown))
            case GoalSet() if self.emptied:
                return _as_given(record.body)
            case Unknown() if self.emptied:
                return Erased(())  # it may quote what is erased
            case SnapshotTaken(state=text) if self.emptied:
                try:
                    return SnapshotTaken(self._snapshot(parse_snapshot(text)).model_dump_json())
                except StoreFormatError:  # of a newer release: it may quote what is erased
                    return SnapshotTaken(NEWER_SNAPSHOT)
            case other:
                return other

    def covers(self, old: Body) -> bool:
        """Returns True for a compaction whose summary may hold erased text."""
        if not isinstance(old, Compacted) or old.summary is None:
            return False
        return any(i in self.erased_ids or i in self.summaries for i in (*old.covered, *(m.id for m in old.shown)))

    def cover(self, body: Compacted) -> tuple[Entry, ...]:
        """Returns the remaining sources of a summary, as they were when it was written."""
        entries = (self._entries[i] for i in body.covered if i in self._entries)
        return tuple(replace(entry, tokens=self.count(entry.message)) for entry in entries)

    def note(self, record: Record, body: Body) -> None:
        """Takes note of a record's new content, for the records after it."""
        old = record.body
        self._before.append(record)
        if isinstance(body, Erased) and not isinstance(old, Erased):
            self.emptied.add(record.id)
        if isinstance(body, Compacted):
            self._note_compaction(record, old, body)
        elif isinstance(body, OutputsSummarised):
            self._stand_in(record, body.shown)
        elif isinstance(body, MessageAdded):
            shown = shown_in(record, body)
            self._entries[shown.id] = Entry(shown.id, record.seq, shown, 0, number=record.number, at_s=record.at_s)
        elif (message := stored_message(replace(record, body=body))) is not None:
            self._entries[message.id] = Entry(
                message.id, record.seq, message, 0, number=record.number, at_s=record.at_s
            )

    def _note_compaction(self, record: Record, old: Body, body: Compacted) -> None:
        self._stand_in(record, body.shown)
        if body.summary is not None:
            summary = body.summary
            self._entries[summary.id] = Entry(summary.id, record.seq, summary, 0)
        if not isinstance(old, Compacted) or old.summary is None or body.summary == old.summary:
            return
        if body.summary is None:
            self.erased_ids.add(old.summary.id)
        else:
            self.summaries[body.summary.id] = body.summary

    def _stand_in(self, record: Record, shown: Iterable[Message]) -> None:
        for message in shown:
            if message.id in self._entries:
                entry = self._entries[message.id]
                self._entries[message.id] = replace(entry, message=message, shown_seq=record.seq)

    def _kept(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        return tuple(m for m in messages if m.id not in self.erased_ids)

    def _successor(self, message_id: str | None) -> str | None:
        """Returns the message that followed an erased one when something was inserted before it; None for the end."""
        state = SessionState(SessionKey("", ""), lambda _: 0)
        state.undone = {r.body.record_id for r in self._before if isinstance(r.body, Undone)}
        state.apply(self._before)
        ids = [e.id for e in state.live]
        later = ids[ids.index(message_id) + 1 :] if message_id in ids else []
        return next((i for i in later if i not in self.erased_ids), None)

    def _snapshot(self, snapshot: Snapshot) -> Snapshot:
        goal = _as_given(GoalSet(snapshot.goal, tuple(Subgoal(*s) for s in snapshot.subgoals), snapshot.given))
        changes: dict[str, Any] = {
            name: self._slots(getattr(snapshot, name)) for name in ("system", "compressed", "live", "deferred")
        }
        changes |= {
            "open": {t: OpenSlots(at_s=o.at_s, entries=self._slots(o.entries)) for t, o in snapshot.open.items()},
            "pins": tuple(p for p in snapshot.pins if p not in self.erased_ids),
            "revertible": tuple(r for r in snapshot.revertible if r not in self.emptied),
            "goal": goal.goal,
            "subgoals": tuple((s.text, s.since, s.completed) for s in goal.subgoals),
            # counts of two counters must not be mixed: without a name they are all made anew
            "counter": snapshot.counter if snapshot.counter == self.counter_id else "",
        }
        return snapshot.model_copy(update=changes)

    def _slots(self, slots: Iterable[Slot]) -> tuple[Slot, ...]:
        return tuple(
            (i, seq, shown, self.count(self.summaries[i]) if i in self.summaries else tokens, number)
            for i, seq, shown, tokens, number in slots
            if i not in self.erased_ids
        )


def _as_given(body: GoalSet) -> GoalSet:
    """Returns the goal without the parts derived from the conversation, which may quote erased text."""
    goal = body.goal if "goal" in body.given else ""
    steps = body.subgoals if "subgoal" in body.given else tuple(replace(s, text="") for s in body.subgoals)
    return replace(body, goal=goal, subgoals=steps)


def first_records(records: Sequence[Record]) -> Mapping[str, Record]:
    """Returns the record that added each message."""
    firsts: dict[str, Record] = {}
    for record in records:
        if isinstance(record.body, MessageAdded | MessageInserted):
            firsts.setdefault(record.body.message.id, record)
    return firsts


def with_tool_rounds(records: Sequence[Record], ids: Collection[str]) -> frozenset[str]:
    """Returns the ids with those of all messages of their tool rounds: a call and its results are erased together."""
    members: dict[str, list[str]] = {}  # by the id of each message of a round, the ids of all of them
    callers: dict[tuple[str | None, str], list[str]] = {}
    for record in records:
        message = stored_message(record)
        if message is None:
            continue
        if message.tool_calls:
            group = members.setdefault(message.id, [message.id])
            callers |= {(record.turn_id, call.id): group for call in message.tool_calls}
        for result in message.tool_results:
            answered = callers.get((record.turn_id, result.call_id))
            if answered is not None and message.id not in answered:
                answered.append(message.id)
                members[message.id] = answered
    return frozenset(member for i in ids for member in (i, *members.get(i, ())))


def quoting_sections(records: Sequence[Record], erased_ids: Collection[str]) -> frozenset[str]:
    """Returns the ids of sections that may hold erased text.

    They are all that a source brought later, as it is asked again, and those put in by hand that repeat a sentence.
    """
    erased_messages: list[Message] = []
    erased_texts: set[str] = set()
    section_ids: set[str] = set()
    for record in records:
        message = stored_message(record)
        if message is None:
            continue
        if message.id in erased_ids:
            erased_messages.append(message)
        elif (erased_messages or erased_texts) and (note := section_note(message)) is not None:
            while erased_messages:  # split only where a section follows: it may be a text of megabytes
                text = erased_messages.pop().text
                erased_texts |= {s for s in sentences(text) if len(s) >= QUOTE_CHARS} | {text.strip()}
            quotes = any(s and (s in message.text or as_quoted_data(s) in message.text) for s in erased_texts)
            section_ids |= {message.id} if quotes or not note.by_hand else set()
    return frozenset(section_ids)


def showing_sections(records: Sequence[Record], item_ids: Collection[str]) -> frozenset[str]:
    """Returns the ids of sections that show one of these memory items."""
    notes = ((m.id, section_note(m)) for r in records if (m := stored_message(r)) is not None)
    return frozenset(i for i, note in notes if note is not None and any(p.id in item_ids for p in note.items))


def shared_length(one: Sequence[Record], other: Sequence[Record]) -> int:
    """Returns how many records two logs have in common at their beginning, erasures aside."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if (a.id, a.at_s) != (b.id, b.at_s)), min(len(one), len(other)))


def open_turns(records: Sequence[Record], emptied: Collection[str]) -> tuple[str, ...]:
    """Returns the open turns that have lost a record."""
    closed = {r.turn_id for r in records if isinstance(r.body, TurnClosed)}
    return tuple(dict.fromkeys(r.turn_id for r in records if r.id in emptied and r.turn_id and r.turn_id not in closed))


@dataclass(frozen=True, slots=True)
class Erasure:
    """Reports an erasure: `ids` of messages, the `sessions` that held them, forks included, and sessions `removed` as a whole.

    When `settled` is False, a file of the store may still hold older text, because another process is reading it: call again
    later, or end that process.
    """

    ids: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    settled: bool = True


def erase(engine: Engine, session: Session, references: Sequence[str]) -> Flow[Erasure]:
    """Erases messages by id or `#17`; those that are erased already are left alone.

    Raises MessageNotFoundError, before anything is erased, for one that the session never had.
    """
    ids = set[str]()
    for reference in references:
        try:
            _, message = yield from original_record(session, reference)
        except MessageErasedError:
            continue
        if message.kind == "summary":
            raise MessageError(
                f"{reference!r} is a summary: erase the messages that it covers, and it is rewritten without them"
            )
        ids.add(message.id)
    return (yield from _erased(engine, session.key, lambda records: with_tool_rounds(records, ids)))


def erase_older_than(engine: Engine, session: Session, age: Age) -> Flow[Erasure]:
    """Erases messages from before a moment, or older than a span of time; the session's own system prompts stay."""
    before_s = moment("age", age, engine.ports.clock.now_s())

    def chosen(records: Sequence[Record]) -> frozenset[str]:
        old = [i for i, r in first_records(records).items() if r.at_s < before_s and not i.startswith(PROMPT_ID)]
        return with_tool_rounds(records, old)

    return (yield from _erased(engine, session.key, chosen))


def erase_messages(engine: Engine, key: SessionKey, ids: Collection[str]) -> Flow[Erasure]:
    """Erases messages of a session that need not be open, by their ids, with their tool rounds."""
    return _erased(engine, key, lambda records: with_tool_rounds(records, ids))


def erase_session(engine: Engine, key: SessionKey) -> Flow[Erasure]:
    """Removes a session with all that belongs to it, and from its forks the messages that they took over."""
    for _ in range(TRIES):
        records = yield from StoreCall(Store.read, key)
        names = yield from forks(key)
        rewrites = yield from _taken_over(engine.ports, key, records, None, names)
        rewrites += yield from _recalled_elsewhere(engine.ports, key, rewrites, whole=True)
        try:
            settled = yield from StoreCall(Store.erase, tuple(rewrites), gone=(key,))
        except HeadMovedError:
            continue
        engine.forget(lambda k: k == key)
        late, late_settled = yield from _made_meanwhile(engine.ports, key, records, None, names)
        rewrites += late
        _report(engine, rewrites)
        if records:
            engine.events.emit(MessagesErased(key.session, ()))
        sessions = tuple(r.key.session for r in rewrites)
        return Erasure((), sessions, (key.session,) if records else (), settled and late_settled)
    raise _busy(key)


def erase_owner(engine: Engine, owner: str) -> Flow[bool]:
    """Removes every session of the owner and all their other data; returns the value of `Erasure.settled`."""
    names = yield from StoreCall(Store.sessions, owner)
    settled = yield from StoreCall(Store.erase_owner, owner)
    engine.forget(lambda key: key.owner == owner)
    engine.events.emit(*(MessagesErased(name, ()) for name in names))
    return settled


def forks(key: SessionKey) -> Flow[tuple[str, ...]]:
    """Returns the sessions that were forked from this one, directly or not."""
    return (yield from _forked_from(key, (yield from StoreCall(Store.copies, key))))


def _forked_from(key: SessionKey, names: Iterable[str]) -> Flow[tuple[str, ...]]:
    """Returns those of the owner's sessions that were forked from this one, by the origins that each of them names."""
    origins: dict[str, tuple[str, ...]] = {}
    for name in names:
        origins[name] = yield from origins_of(SessionKey(key.owner, name))
    return tuple(name for name, known in origins.items() if key.session in known)


def _erased(engine: Engine, key: SessionKey, choose: _Choice) -> Flow[Erasure]:
    """Erases the chosen messages from the newest log, and from the logs that share its beginning."""
    records: Sequence[Record] = ()
    rewritten: _Made = {}
    for _ in range(TRIES):
        # a long log takes seconds: writers that come meanwhile must not make the next try as long
        records = yield from _newest(key, records)
        stored = first_records(records)
        erased_ids = choose(records) & stored.keys()
        rewrites = yield from _rewrite(engine.ports, key, records, erased_ids, rewritten)
        names = (yield from StoreCall(Store.copies, key)) if erased_ids else ()
        rewrites += yield from _taken_over(engine.ports, key, records, erased_ids, names)
        rewrites += yield from _recalled_elsewhere(engine.ports, key, rewrites)
        try:
            settled = yield from StoreCall(Store.erase, tuple(rewrites))
        except HeadMovedError:
            continue
        if erased_ids:
            late, late_settled = yield from _made_meanwhile(engine.ports, key, records, erased_ids, names)
            rewrites += late
            settled = settled and late_settled
        _report(engine, rewrites)
        ids = tuple(i for i in stored if i in erased_ids)
        return Erasure(ids, tuple(r.key.session for r in rewrites), settled=settled)
    raise _busy(key)


def _taken_over(
    ports: Ports, key: SessionKey, records: Sequence[Record], erased_ids: frozenset[str] | None, names: Sequence[str]
) -> Flow[list[Rewrite]]:
    """Returns the logs of these sessions without the erased messages that they share with `records`; for None, all but prompts."""
    changed_logs: list[Rewrite] = []
    for name in names:
        copied = yield from StoreCall(Store.read, SessionKey(key.owner, name))
        ids = _shared(records, copied, erased_ids)
        if erased_ids is None:
            ids = frozenset(i for i in ids if not i.startswith(PROMPT_ID))
        else:
            ids = with_tool_rounds(copied, ids)
        changed_logs += yield from _rewrite(ports, SessionKey(key.owner, name), copied, ids)
    return changed_logs


def _made_meanwhile(
    ports: Ports,
    key: SessionKey,
    records: Sequence[Record],
    erased_ids: frozenset[str] | None,
    known_names: Sequence[str],
) -> Flow[tuple[list[Rewrite], bool]]:
    """Erases from sessions that were forked during the erasure; returns their rewrites, and True when the store has settled.

    A session that is forked later has no erased messages.
    """
    names: list[str] = []
    for _ in range(TRIES):
        if erased_ids is None:  # the session is gone: only its forks know of it
            fork_names = yield from _forked_from(key, (yield from StoreCall(Store.sessions, key.owner)))
        else:
            fork_names = yield from StoreCall(Store.copies, key)
        names = [name for name in fork_names if name not in known_names]
        rewrites = yield from _taken_over(ports, key, records, erased_ids, names)
        try:
            return rewrites, not rewrites or (yield from StoreCall(Store.erase, tuple(rewrites)))
        except HeadMovedError:
            continue
    raise StoreUnavailableError(
        f"session {key.session!r} is erased, but its forks were not: other writers were first {TRIES} times: "
        f"erase the same in {', '.join(map(repr, names))}"
    )


def _recalled_elsewhere(
    ports: Ports, key: SessionKey, rewrites: Sequence[Rewrite], *, whole: bool = False
) -> Flow[list[Rewrite]]:
    """Returns the owner's other sessions without sections that show memories of erased messages; with `whole`, of this session."""
    lost = {r.key.session: frozenset(r.ids) for r in rewrites}
    if not lost and not whole:
        return []
    items = yield from StoreCall(Store.memories, key.owner, newest=ALL, everything=True)
    learnt = {
        i.id for i in items if (whole and i.session == key.session) or lost.get(i.session, _NONE) & set(i.sources)
    }
    changed_logs: list[Rewrite] = []
    for name in (yield from StoreCall(Store.sessions, key.owner)) if learnt else ():
        if name != key.session and name not in lost:
            other = SessionKey(key.owner, name)
            records = yield from StoreCall(Store.read, other)
            changed_logs += yield from _rewrite(ports, other, records, showing_sections(records, learnt))
    return changed_logs


def _shared(records: Sequence[Record], copied: Sequence[Record], among: frozenset[str] | None) -> frozenset[str]:
    """Returns the messages that both logs have from before they diverged, all or those of `among`."""
    length = shared_length(records, copied)
    return frozenset(i for i, r in first_records(copied).items() if r.seq <= length and (among is None or i in among))


def _newest(key: SessionKey, known: Sequence[Record]) -> Flow[Sequence[Record]]:
    """Returns the log. Only records after the `known` ones are read, unless the log was rewritten or begun anew since."""
    if known:
        later = yield from StoreCall(Store.read, key, after=known[-1].seq - 1)
        if later[:1] == (known[-1],) and not any(isinstance(record.body, Erased) for record in later):
            return (*known[:-1], *later)
    return (yield from StoreCall(Store.read, key))


def _rewrite(
    ports: Ports, key: SessionKey, records: Sequence[Record], erased_ids: frozenset[str], rewritten: _Made | None = None
) -> Flow[list[Rewrite]]:
    """Returns the change that erases these messages from the log of one session, in a list; an empty list without ids.

    `rewritten` caches the compactions that were rewritten, for another try. On an event loop the work is done in a thread: a long
    log or a long message takes seconds.
    """
    if not erased_ids:
        return []
    return (yield from Call(lambda: run(_rewrite_log(ports, key, records, erased_ids, rewritten), ports)))


def _rewrite_log(
    ports: Ports, key: SessionKey, records: Sequence[Record], erased_ids: frozenset[str], rewritten: _Made | None
) -> Flow[list[Rewrite]]:
    erased_ids |= quoting_sections(records, erased_ids)
    policy = next(r.body.policy for r in records if isinstance(r.body, PolicyChanged))
    scrub = Scrub(set(erased_ids), ports.counter.count, ports.counter.id)
    changed: list[Record] = []
    for record in records:
        body = scrub.body(record)
        if isinstance(body, PolicyChanged):
            policy = body.policy
        if isinstance(body, Compacted) and scrub.covers(record.body):
            sources = scrub.cover(body)
            written = (rewritten or {}).get(record.id)
            if written is None or written[:3] != (body, sources, policy):
                written = (body, sources, policy, (yield from _resummarised(body, sources, policy, ports)))
            if rewritten is not None:
                rewritten[record.id] = written
            body = written[3]
        scrub.note(record, body)
        if body != record.body:
            changed.append(replace(record, body=body))
    left = open_turns(records, scrub.emptied)
    drafts = [draft(ports, TurnClosed("aborted"), turn_id=turn, record_id=f"c:{turn}") for turn in left]
    drafts.append(draft(ports, Erased(tuple(sorted(erased_ids))), record_id=f"{NOTICE}{ports.ids.new()}"))
    unindexed = tuple(r.seq for r in changed if isinstance(r.body, Erased))
    touched = tuple(sorted({*scrub.erased_ids, *scrub.summaries}))  # what was learnt from an old summary goes too
    return [Rewrite(key, records[-1].seq, touched, tuple(changed), unindexed, tuple(drafts))]


def _resummarised(body: Compacted, sources: Sequence[Entry], policy: str, ports: Ports) -> Flow[Compacted]:
    """Returns the compaction with an extractive summary of the remaining messages, no larger than the old one, or with none.

    `policy` is that of its own time, as JSON: once nothing of the erased messages is left in the summary, it comes out as it was,
    and later summaries stay as they are.
    """
    if body.summary is None or not sources:
        return replace(body, summary=None)
    summary = yield from summarize(
        sources,
        rules=Policy.model_validate_json(policy),
        counter=ports.counter,
        window_tokens=None,
        writer="extractive",
        most_tokens=ports.counter.count_text(body.summary.text),
    )
    message = as_message(summary, message_id=body.summary.id, role=body.summary.role)
    return replace(body, summary=message, fallback_level=summary.fallback_level)


def _report(engine: Engine, rewrites: Sequence[Rewrite]) -> None:
    for change in rewrites:
        for body in (d.body for d in change.drafts):
            if isinstance(body, Erased):
                engine.events.emit(MessagesErased(change.key.session, body.ids))


def _busy(key: SessionKey) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"other writers of session {key.session!r} or of its forks were first {TRIES} times; nothing was erased: try again"
    )
