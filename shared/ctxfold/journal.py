"""An open session: its folded state beside the store, kept up to date, with the flows that load, refresh and append."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import takewhile

from ctxfold.background import Ahead, Aim, Pairs
from ctxfold.budget import Policy, resized
from ctxfold.calibration import calibrated, limited
from ctxfold.effects import AppendLog, FetchLog, FindLog, ReadLog
from ctxfold.errors import (
    HeadMovedError,
    MessageConflictError,
    MessageErasedError,
    StoreCorruptError,
    StoreUnavailableError,
    TurnClosedError,
)
from ctxfold.events import Rewriter
from ctxfold.flow import Flow
from ctxfold.history.cuts import open_calls
from ctxfold.history.log import SessionState
from ctxfold.history.prefix import PrefixTracker
from ctxfold.history.readings import Readings
from ctxfold.history.records import (
    Body,
    Draft,
    Erased,
    MessageAdded,
    MessageInserted,
    MessageReplaced,
    Record,
    SessionKey,
    SnapshotTaken,
    TurnClosed,
    TurnStatus,
)
from ctxfold.history.snapshot import dump_state, message_in
from ctxfold.history.view import Entry, Prefix, View
from ctxfold.loading import load
from ctxfold.messages import Message, Usage, content_key, without_calls
from ctxfold.ports import Document, Ports
from ctxfold.vectors import Vectors

__all__ = [
    "WINDOW_FIELDS",
    "Held",
    "Journal",
    "TakeBack",
    "append",
    "check_open",
    "close_turns",
    "closing",
    "decided",
    "draft",
    "dropped_calls",
    "known_records",
    "opened_rules",
    "record_names",
    "refresh",
    "request_window",
    "resumed",
    "snapshot_draft",
    "stale_turns",
    "told_again",
    "unknown",
]

SNAPSHOT_EVERY = 1_000  # records
TURN_TIMEOUT_S = 900.0
DROPPED_LOOKED_AT = 64  # newest messages of aborted turns among which a late result finds its call
DECIDE_TRIES = 16
WINDOW_FIELDS = ("context_window", "reply_reserve_tokens", "summary_tokens")


@dataclass(frozen=True, slots=True)
class Held:
    """Where compaction could not help: it is tried again in another epoch, from `until_tokens` on, or under other rules."""

    epoch: int
    until_tokens: float
    rules: Policy


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Work that puts a session back after a failed attempt, kept because the store failed then too.

    `own` are the messages that the attempt put into its turn, and `head` is where the log ended: what others have written since
    is left alone.
    """

    own: frozenset[str]
    head: int
    work: Callable[[], Flow[None]]


@dataclass(slots=True)
class Journal:
    """One session in use. `lock` guards the state; it is never held across an effect."""

    state: SessionState
    tracker: PrefixTracker = field(default_factory=PrefixTracker)
    lock: threading.RLock = field(default_factory=threading.RLock)
    compacting: int = 0  # compactions under way
    ahead: Ahead = field(default_factory=Ahead)
    aim: Aim = field(default_factory=Aim)
    pairs: Pairs = field(default_factory=Pairs)
    worker: str = ""  # by which leases know this journal
    rewriters: Sequence[Rewriter] = ()  # the engine's compaction subscriber, if it has one
    erasures: int = 0  # that were seen: what was made from older texts is no longer to be used
    unbooked_calls: int = 0  # to the summariser, for summaries that were then not written
    unbooked_usage: Usage = field(default_factory=Usage)
    unbound_seq: int = 0  # newest record that was there when the prefix last changed, or the session was opened
    model: str = ""  # that is asked, or is to be asked next: its calibration and its limit count
    opened: Policy | None = None  # the rules that this engine opened the session with: the window is its own models'
    # the model and our count of each open turn's newest request
    asked: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    overhead_tokens: int = 0  # what the newest request held besides the view, so that triggers see what is sent
    held: Held | None = None
    provider_compacts: bool = False  # whether the newest request had the provider compact on its own side
    vectors: Vectors = field(default_factory=Vectors)  # of what was said, where there is an embedder
    readings: Readings = field(default_factory=Readings)  # of what recall looked at last
    scratch: OrderedDict[str, tuple[str, str]] = field(default_factory=OrderedDict[str, tuple[str, str]])
    take_backs: dict[str, TakeBack] = field(default_factory=dict[str, TakeBack])  # by the turn of the failed attempt

    @property
    def key(self) -> SessionKey:
        return self.state.key

    def forget_texts(self) -> None:
        """After an erasure: nothing that was made from the conversation may be used any more."""
        self.erasures += 1
        self.readings = Readings()
        self.scratch.clear()
        self.pairs.unwritten.clear()
        self.ahead.ready = self.aim.ready = self.held = None
        self.tracker.erased()
        self.unbound_seq = self.state.head

    def view(self, turn_id: str | None = None) -> View:
        with self.lock:
            return self.state.view(turn_id)

    def open_turns(self) -> dict[str, Sequence[Entry]]:
        with self.lock:
            return {turn_id: Prefix(turn.entries) for turn_id, turn in self.state.open.items()}

    def rules(self) -> Policy:
        """The policy in force, in our own tokens: see `calibration`."""
        return calibrated(self.window_rules(), self.state.calibrations.get(self.model))

    def may_compact(self, auto_compact: bool | None = None) -> bool:
        """Returns whether triggers and full windows may compact the session; `auto_compact` is one request's own choice."""
        return self.stored_rules().auto_compact if auto_compact is None else auto_compact

    def window_rules(self) -> Policy:
        """The policy in force, in the tokens of the model that is asked, with the limit that this model has named.

        Within `request_window`, the window is the one that the request has asked for, unless that limit is narrower.
        """
        rules, asked = self.own_rules(), _REQUEST_WINDOW.get()
        if asked is not None and asked[0] == self.key:
            rules = resized(rules, asked[1])
        return limited(rules, self.state.calibrations.get(self.model))

    def own_rules(self) -> Policy:
        """The policy as the log has it, with the window that this engine was given unless one was set at run time.

        Another engine may serve the same session with another model: whoever opened it last does not size everybody's window.
        """
        stored, opened = self.stored_rules(), self.opened
        if opened is None:
            return stored
        own = {name: getattr(opened, name) for name in WINDOW_FIELDS if name not in self.state.fixed}
        same = all(getattr(stored, name) == value for name, value in own.items())
        return stored if same else stored.model_copy(update=own)

    def stored_rules(self) -> Policy:
        """The policy as the log has it."""
        return _policy(self.state.policy_json)


# a context variable, because other threads and tasks use the same journal for requests of their own
_REQUEST_WINDOW: ContextVar[tuple[SessionKey, int] | None] = ContextVar("ctxfold_request_window", default=None)


@contextmanager
def request_window(key: SessionKey, context_window: int | None) -> Generator[None, None, None]:
    """Within it, this thread or task reckons with a window of that size in this session; None leaves the session's own."""
    token = _REQUEST_WINDOW.set(None if context_window is None else (key, context_window))
    try:
        yield
    finally:
        _REQUEST_WINDOW.reset(token)


def opened_rules(given: Policy, state: SessionState) -> Policy:
    """The rules of a session that is opened with `given` ones: what was set at run time holds."""
    if not state.fixed:
        return given
    stored = _policy(state.policy_json)
    return given.model_copy(update={name: getattr(stored, name) for name in state.fixed})


_parsed: OrderedDict[str, Policy] = OrderedDict()


def _policy(text: str) -> Policy:
    found = _parsed.get(text)
    if found is None:
        try:
            found = _parsed[text] = Policy.model_validate_json(text)
        except ValueError as error:
            raise StoreCorruptError(
                f"the stored rules of a session cannot be read ({str(error)[:200]}): restore a copy"
            ) from None
        if len(_parsed) > 64:
            _parsed.popitem(last=False)
    return found


def draft(ports: Ports, body: Body, *, turn_id: str | None = None, record_id: str | None = None) -> Draft:
    return Draft(record_id or ports.ids.new(), body, turn_id, ports.clock.now_s())


def refresh(journal: Journal, ports: Ports) -> Flow[None]:
    """Catch up with other writers; one indexed read when there is nothing new.

    SessionNotFoundError when the session was erased; when it was begun anew since, that one is loaded.
    """
    with journal.lock:
        head, head_id = journal.state.head, journal.state.head_id
    # the newest known record is read again: it tells whether this is still the same log
    records = yield from ReadLog(journal.key, after=max(0, head - 1))
    if head and (not records or records[0].id != head_id):
        state = yield from load(journal.key, ports)
        with journal.lock:
            journal.state = state
            journal.forget_texts()
        return
    yield from _take_in(journal, records[1:] if head else records, ports)


def append(
    journal: Journal,
    drafts: Sequence[Draft],
    ports: Ports,
    *,
    expect: int | None = None,
    documents: Sequence[Document] = (),
) -> Flow[tuple[Record, ...]]:
    """Store drafts and fold them in, with whatever others have written since."""
    with journal.lock:
        known, known_id = journal.state.head, journal.state.head_id
    records = yield from AppendLog(
        journal.key, drafts, known=known, expect=expect, documents=documents, known_id=known_id or None
    )
    yield from _take_in(journal, records, ports)
    if journal.state.head - journal.state.snapshot_seq >= SNAPSHOT_EVERY:
        yield from _snapshot(journal, ports)
    return records


def _take_in(journal: Journal, records: Sequence[Record], ports: Ports) -> Flow[None]:
    with journal.lock:
        journal.state.apply(records)
        if any(isinstance(r.body, Erased) for r in records):
            journal.forget_texts()
    while journal.state.stale:
        state = yield from load(journal.key, ports)
        with journal.lock:
            if state.head >= journal.state.head:
                journal.state = state


def decided(
    journal: Journal,
    decide: Callable[[SessionState], Sequence[Draft]],
    ports: Ports,
    *,
    documents: Callable[[], Sequence[Document]] = tuple,
) -> Flow[tuple[Record, ...]]:
    """Store what `decide` makes of the newest state, and index `documents`; when another writer is first, it decides anew."""
    for _ in range(DECIDE_TRIES):
        with journal.lock:
            head = journal.state.head
            drafts = decide(journal.state)
        if not drafts:
            return ()
        try:
            return (yield from append(journal, drafts, ports, expect=head, documents=documents()))
        except HeadMovedError:
            yield from refresh(journal, ports)
    raise StoreUnavailableError(
        f"other writers of session {journal.key.session!r} were first {DECIDE_TRIES} times; nothing was written: try again"
    )


def close_turns(journal: Journal, turn_ids: Sequence[str], status: TurnStatus, ports: Ports) -> Flow[bool]:
    """Close turns, unless somebody has closed them already; whether this call closed any."""

    def closings(state: SessionState) -> list[Draft]:
        return [closing(ports, t, status) for t in turn_ids if t in state.open]

    yield from refresh(journal, ports)
    return bool((yield from decided(journal, closings, ports)))


def _snapshot(journal: Journal, ports: Ports) -> Flow[None]:
    with journal.lock:
        head, head_id = journal.state.head, journal.state.head_id
        taken = snapshot_draft(journal.state, ports)
    with suppress(HeadMovedError):  # another writer was first: the next append takes it
        records = yield from AppendLog(journal.key, (taken,), known=head, expect=head, known_id=head_id)
        with journal.lock:
            journal.state.apply(records)


def snapshot_draft(state: SessionState, ports: Ports) -> Draft:
    return draft(ports, SnapshotTaken(dump_state(state, ports.counter.id)))


def stale_turns(journal: Journal, ports: Ports) -> tuple[str, ...]:
    """Turns that nobody has written to for 15 minutes."""
    now = ports.clock.now_s()
    with journal.lock:
        return tuple(t for t, turn in journal.state.open.items() if now - turn.at_s > TURN_TIMEOUT_S)


def closing(ports: Ports, turn_id: str, status: TurnStatus) -> Draft:
    return draft(ports, TurnClosed(status), turn_id=turn_id, record_id=f"c:{turn_id}")


def unknown(journal: Journal, messages: Sequence[Message]) -> Flow[dict[str, str]]:
    """The ids of messages that the session does not have, each with the record id under which it is to be stored.

    A known id with the same content is left out; with other content it is a MessageConflictError. A message whose turn was
    discarded, that an aborted turn did not keep, that was removed, or that was there before the conversation was cleared, counts
    as unknown: it is stored anew.
    """
    wanted: dict[str, Message] = {}
    for message in messages:
        twin = wanted.setdefault(message.id, message)
        if twin is not message and content_key(twin) != content_key(message):
            raise MessageConflictError(f"message id {message.id!r} stands twice in the list with different content")
    chains = yield from _chains(journal, wanted)
    dropped = yield from _discarded(journal, [r for chain in chains.values() for r in chain])
    found: dict[str, str] = {}
    for message_id, message in wanted.items():
        chain = chains[message_id]
        alive = [r for r in chain if r.turn_id not in dropped and r.id not in journal.state.undone]
        gone = message_id in journal.state.removed or message_id in journal.state.dropped
        gone = gone and not _in_open_turn(journal, message_id)
        if chain and isinstance(chain[-1].body, Erased):
            _check_not_asked(message, messages)
        elif (
            gone
            or not alive
            or (alive[-1].seq < journal.state.cleared_seq and not _outlives_clear(journal, message_id))
        ):
            found[message_id] = _record_name(message_id, len(chain) + 1)
        else:
            _check_same(journal, message, alive)
    return found


def _check_not_asked(message: Message, messages: Sequence[Message]) -> None:
    """An erased message that stands in somebody's list still is passed over, unless it is what the list is about."""
    if message is messages[-1]:
        raise MessageErasedError(
            f"message {message.id!r} was erased, and comes back under no other text: give the new message an id of its own"
        )


def record_names(journal: Journal, ids: Iterable[str]) -> Flow[dict[str, str]]:
    """A free record id for each message id, whatever the session has under it."""
    chains = yield from _chains(journal, ids)
    return {message_id: _record_name(message_id, len(chain) + 1) for message_id, chain in chains.items()}


def known_records(journal: Journal, message_id: str) -> Flow[tuple[Record, ...]]:
    """Every record that has brought the message or new content for it, oldest first."""
    chains = yield from _chains(journal, (message_id,))
    return tuple(chains[message_id])


def _chains(journal: Journal, ids: Iterable[str]) -> Flow[dict[str, list[Record]]]:
    """Every record under the names of each message id, oldest first."""
    chains: dict[str, list[Record]] = {message_id: [] for message_id in ids}
    wanted, attempt = list(chains), 1
    while wanted:
        names = {_record_name(message_id, attempt): message_id for message_id in wanted}
        records = yield from FindLog(journal.key, tuple(names))
        for record in records:
            chains[names[record.id]].append(record)
        wanted = [i for i in wanted if len(chains[i]) == attempt]
        attempt += 1
    return chains


def _record_name(message_id: str, attempt: int) -> str:
    return f"m:{message_id}" if attempt == 1 else f"m:{message_id}#{attempt}"


def _discarded(journal: Journal, records: Sequence[Record]) -> Flow[frozenset[str | None]]:
    turns = sorted({r.turn_id for r in records if r.turn_id})
    if not turns:
        return frozenset()
    closings = yield from FindLog(journal.key, [f"c:{turn}" for turn in turns])
    return frozenset(r.turn_id for r in closings if r.body == TurnClosed("discarded"))


def _outlives_clear(journal: Journal, message_id: str) -> bool:
    with journal.lock:
        zones = [journal.state.system, *(t.entries for t in journal.state.open.values())]
        return any(e.id == message_id for zone in zones for e in zone)


def _in_open_turn(journal: Journal, message_id: str) -> bool:
    with journal.lock:
        return any(e.id == message_id for turn in journal.state.open.values() for e in turn.entries)


def _check_same(journal: Journal, message: Message, records: Sequence[Record]) -> None:
    """That the message is one of its stored versions: callers that keep lists of their own may have an older one."""
    bodies = [r.body for r in records]
    stored = [b.message for b in bodies if isinstance(b, MessageAdded | MessageInserted | MessageReplaced)]
    if any(content_key(version) == content_key(message) for version in stored):
        return
    # sessions of older versions have a malformed call beside the message, and one that was never answered is left out
    if _without_malformed(message) in map(_without_malformed, stored):
        return
    entry = journal.state.entry(message.id)
    if entry is not None and content_key(entry.message) == content_key(message):
        return
    raise MessageConflictError(
        f"message id {message.id!r} is in session {journal.key.session!r} with other content: "
        "give the new message an id of its own, or change the old one with update()"
    )


def _without_malformed(message: Message) -> str:
    return content_key(without_calls(message, [c.id for c in message.tool_calls if c.parsed() is None]))


def resumed(journal: Journal, messages: Sequence[Message], fresh: Collection[str]) -> tuple[tuple[int, str], ...]:
    """Where in the list messages begin that an open turn holds already, and that turn; again where another turn's begin.

    Such a turn was left behind by an attempt that failed after it had stored a part of the list.
    """
    with journal.lock:
        owners = {e.id: turn_id for turn_id, turn in journal.state.open.items() for e in turn.entries}
    found: list[tuple[int, str]] = []
    for index, message in enumerate(messages):
        turn_id = None if message.id in fresh else owners.get(message.id)
        if turn_id is not None and (not found or found[-1][1] != turn_id):
            found.append((index, turn_id))
    return tuple(found)


def told_again(journal: Journal, messages: Sequence[Message]) -> Flow[Sequence[Message]]:
    """The messages; of those results that come first, one that a newest tool round has word for word is the one there.

    So results may be made anew, under other ids, where the attempt that brought them failed: in an open turn, or after the last
    reply was stored and only the answer of the store was lost.
    """
    first = tuple(takewhile(lambda m: m.role == "tool", messages))
    calls = {r.call_id for m in first for r in m.tool_results}
    if not calls:
        return messages
    open_turns = journal.open_turns().values()
    newest = [e for entries in open_turns for e in _results_before(entries, len(entries))]
    if not any(calls & open_calls(entries) for entries in open_turns):  # else a service uses the id of a call again
        live = journal.view().live
        newest += _results_before(live, len(live))
        newest += [e for entries in (*open_turns, live) for e in _results_before_reply(entries)]
    newest = [e for e in newest if any(r.call_id in calls for r in e.message.tool_results)]
    cut = {e.seq: e.id for e in newest if e.shown_seq}
    records = (yield from FetchLog(journal.key, tuple(cut))) if cut else ()
    whole = {r.seq: m for r in records if (m := message_in(r, cut[r.seq])) is not None}
    known = {content_key(m): m for e in newest for m in (whole.get(e.seq, e.message),)}
    return (*(known.get(content_key(m), m) for m in first), *messages[len(first) :])


def dropped_calls(journal: Journal, new_messages: Sequence[Message]) -> Flow[tuple[Message, ...]]:
    """The call that the first new messages answer, with its other results, where its turn was aborted while it waited.

    Somebody took the turn for dead after 15 minutes, but a tool, or the person who has to allow it, may take longer.
    """
    calls = {r.call_id for m in takewhile(lambda m: m.role == "tool", new_messages) for r in m.tool_results}
    dropped = list(journal.state.dropped)[-DROPPED_LOOKED_AT:]
    if not calls or not dropped or any(calls & open_calls(turn) for turn in journal.open_turns().values()):
        return ()
    chains = yield from _chains(journal, dropped)
    found = [m for i, chain in chains.items() if chain and (m := message_in(chain[-1], i)) is not None]
    calling = next((m for m in reversed(found) if calls & {c.id for c in m.tool_calls}), None)
    if calling is None:
        return ()
    others = {c.id for c in calling.tool_calls} - calls
    return (calling, *(m for m in found if others & {r.call_id for r in m.tool_results}))


def _results_before(entries: Sequence[Entry], end: int) -> list[Entry]:
    """The tool results that stand right before `end`."""
    return list(takewhile(lambda e: e.message.role == "tool", (entries[i] for i in range(end - 1, -1, -1))))


def _results_before_reply(entries: Sequence[Entry]) -> list[Entry]:
    """The tool results that the last message answers, if it is a reply."""
    answered = bool(entries) and entries[-1].message.role == "assistant"
    return _results_before(entries, len(entries) - 1) if answered else []


def check_open(journal: Journal, turn_id: str | None) -> None:
    with journal.lock:
        closed = turn_id in journal.state.closed
    if closed:
        raise TurnClosedError(
            f"turn {turn_id!r} of session {journal.key.session!r} was closed meanwhile (turns without a word for 15 minutes "
            "are, when a session is opened): what came after it is not part of the conversation; ask again"
        )
