"""Keeps the folded state of an open session up to date with its store: load, refresh, append and close turns."""

from __future__ import annotations

import json
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ctxfold.effects import Flow, StoreCall, off_loop
from ctxfold.errors import (
    CtxWarning,
    HeadMovedError,
    SessionNotFoundError,
    StoreCorruptError,
    StoreFormatError,
    StoreUnavailableError,
    TurnClosedError,
)
from ctxfold.events import OutputsPrepared, Subscribers
from ctxfold.history.calibration import calibrated, with_known_limit
from ctxfold.history.cuts import waiting_calls
from ctxfold.history.log import SessionState
from ctxfold.history.prefix import PrefixTracker
from ctxfold.history.records import (
    Body,
    Draft,
    Erased,
    MessageAdded,
    Record,
    SessionKey,
    SnapshotTaken,
    TurnClosed,
    TurnStatus,
)
from ctxfold.history.snapshot import NEWER_SNAPSHOT, dump_state, load_state, message_in, parse_snapshot
from ctxfold.history.view import Entry, Prefix, View, WindowTokens
from ctxfold.index.cache import PassageCache, Vectors, stamp
from ctxfold.index.terms import indexed_terms, terms
from ctxfold.lru import LruCache
from ctxfold.messages import MediaPart, Message, ToolCallPart, Usage
from ctxfold.policy.settings import Policy, resized
from ctxfold.protocols import Document, Ports, Request, Store, TokenCounter
from ctxfold.tokens.media import name_of

REMEMBERED_QUESTIONS = 64  # whose recalled passages and sections are kept
SNAPSHOT_EVERY = 1_000  # records
TURN_TIMEOUT_S = 900.0
DECIDE_TRIES = 16
WINDOW_FIELDS = ("context_window", "reply_reserve_tokens", "summary_tokens")


@dataclass(frozen=True, slots=True)
class CompactionPause:
    """Says until when no compaction is tried after one that could not help: in this epoch, below `until_tokens`, under `rules`."""

    epoch: int
    until_tokens: float
    rules: Policy


@dataclass(frozen=True, slots=True)
class PendingRollback:
    """Holds the work that restores a session after a failed attempt, where the store failed during the first rollback too.

    `stored_ids` are the messages that the attempt put into its turn, and `head` is where the log ended: later records of others
    are left alone.
    """

    stored_ids: frozenset[str]
    head: int
    work: Callable[[], Flow[None]]


@dataclass(frozen=True, slots=True)
class Stage:
    """Holds what one stage of a turn works with, read once at its beginning: the rules, and the view of the turn `turn_id`.

    `context_window` is the window of the request, where it has one of its own; `rules` count it in.
    """

    rules: Policy
    view: View
    turn_id: str | None = None
    context_window: int | None = None


@dataclass(frozen=True, slots=True)
class SentRequest:
    """Holds the newest request that a model has answered, its view, and the figures that tell whether the provider cached it.

    `repeated_tokens` is the size of the prefix that it shares with the request before; `usage` is the provider's report.
    """

    request: Request
    view: View
    repeated_tokens: int
    at_s: float
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class RequestText:
    """Holds what was found for a question, so that it stays the same all turn long, until an edit of the conversation.

    `edits` counts the session's edits when it was found; `hidden` are the messages (by seq) that give way to it, and `numbers`
    those whose passages it has.
    """

    question: str
    edits: int
    text: str
    hidden: frozenset[int] = frozenset()
    numbers: tuple[int, ...] = ()


@dataclass(slots=True)
class BackgroundSummary:
    """Holds a summary that is written before it is needed: `ready` is a plan with its summary, see `compaction.background`.

    It is not tried again in `failed_epoch`, the epoch in which it failed.
    """

    running: bool = False
    ready: object = None
    failed_epoch: int = -1


@dataclass(slots=True)
class GoalState:
    """The state of the search for the goal: its user message, and the last result. See `compaction.goal`."""

    running: bool = False
    message_id: str = ""
    ready: object = None


@dataclass(slots=True)
class ToolSummaries:
    """Summaries of tool outputs on their way into the log, see `compaction.tool_summaries`; `left_out` are not worth one."""

    running: bool = False
    unwritten: list[Message] = field(default_factory=list[Message])
    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    problems: list[str] = field(default_factory=list[str])
    left_out: set[str] = field(default_factory=set[str])
    unsent_events: list[OutputsPrepared] = field(default_factory=list[OutputsPrepared])


@dataclass(slots=True)
class Session:
    """Holds one session in use. `lock` guards the state; it is never held across an effect."""

    state: SessionState
    ports: Ports
    key: SessionKey = field(init=False)
    tracker: PrefixTracker = field(default_factory=PrefixTracker)
    lock: threading.RLock = field(default_factory=threading.RLock)
    compacting: int = 0  # compactions under way
    background_summary: BackgroundSummary = field(default_factory=BackgroundSummary)
    goal_state: GoalState = field(default_factory=GoalState)
    tool_summaries: ToolSummaries = field(default_factory=ToolSummaries)
    worker: str = ""  # names this open session in leases
    events: Subscribers = field(default_factory=Subscribers)  # of the engine
    erasures: int = 0  # seen so far: what was made from older texts may no longer be used
    unbooked_calls: int = 0  # to the summariser, for summaries that were not written in the end
    unbooked_usage: Usage = field(default_factory=Usage)
    unbound_seq: int = 0  # newest record at the last break of the prefix, or when the session was opened
    # by model: newest record when its service last refused reasoning that it may do without
    refused_seqs: dict[str, int] = field(default_factory=dict[str, int])
    model: str = ""  # of the current or the next request: its calibration and its limit count
    # with which this engine opened the session; its window is that of the engine's models
    opening_policy: Policy | None = None
    # for each open turn, the model of its newest request and the size of that; under "", of a window for a request of others
    sent_windows: dict[str, tuple[str, WindowTokens]] = field(default_factory=dict[str, tuple[str, WindowTokens]])
    reply_sizes: dict[str, WindowTokens] = field(
        default_factory=dict[str, WindowTokens]
    )  # by reply id, until it is stored
    sent_request: SentRequest | None = None
    summariser_paused_until_s: float = 0.0  # until when automatic compactions do without a summariser that timed out
    live_prefix_failures: int = 0  # summaries on the live prefix that were no summaries, less those that were
    in_flight: Counter[str] = field(default_factory=Counter[str])  # how many requests this process asks in a turn now
    # by a turn in which a request waits, the newest one that others have closed it for, with its messages or behind them
    taken_over: dict[str, str] = field(default_factory=dict[str, str])
    asked_ids: tuple[str, ...] = ()  # of the question of the run that asks, which is not always the newest one
    sent_overhead_tokens: int | None = None  # of the newest request that this process made
    strategy_failed: bool = False  # it was logged
    compaction_pause: CompactionPause | None = None
    argument_pause: CompactionPause | None = None  # until when large arguments of calls are not looked for
    provider_compacts: bool = False  # True when the provider compacts the newest request on its own side
    vectors: Vectors = field(default_factory=Vectors)  # of the messages, where there is an embedder
    passage_cache: PassageCache = field(default_factory=PassageCache)  # passages that recall read last
    # text found for a question, by what it is for: later requests of the turn carry the same
    request_texts: LruCache[str, RequestText] = field(default_factory=lambda: LruCache(REMEMBERED_QUESTIONS))
    # by the turn of the failed attempt
    pending_rollbacks: dict[str, PendingRollback] = field(default_factory=dict[str, PendingRollback])
    rules_cache: tuple[tuple[object, ...], Policy] | None = None  # what the rules were made from, and the rules

    def __post_init__(self) -> None:
        self.key = self.state.key

    @property
    def pins(self) -> tuple[str, ...]:
        """Returns the ids that every compaction keeps verbatim: what was pinned, and the question of the run that asks."""
        return (*self.state.pins, *self.asked_ids)

    @property
    def overhead_tokens(self) -> int:
        """Returns what a request holds in addition to the view: as this process sent it last, else as the log has it."""
        if self.sent_overhead_tokens is not None:
            return self.sent_overhead_tokens
        return 0 if self.state.request is None else self.state.request.tools

    @property
    def in_use(self) -> bool:
        """Returns True while a turn, a stream, a compaction or work in the background goes on in this process, or a rollback waits.

        What these leave behind is not in the log yet.
        """
        return bool(
            self.in_flight
            or self.compacting
            or self.background_summary.running
            or self.goal_state.running
            or self.tool_summaries.running
            or self.tool_summaries.unwritten
            or self.pending_rollbacks
            or self.vectors.filling
        )

    def claim(self, work: BackgroundSummary | ToolSummaries) -> bool:
        """Marks the background work as running; returns False where it was already."""
        with self.lock:
            was_running, work.running = work.running, True
        return not was_running

    def summary_calls_left(self, rules: Policy) -> int | None:
        """Returns how often the summariser may still be asked in this session; None for any number."""
        limit = rules.max_summary_calls
        return None if limit is None else max(0, limit - self.state.summary_calls - self.unbooked_calls)

    def forget_texts(self) -> None:
        """Drops all that was made from the conversation's texts, as an erasure demands."""
        self.erasures += 1
        self.passage_cache, self.vectors = PassageCache(), Vectors()
        self.request_texts.clear()
        self.tool_summaries.unwritten.clear()
        self.background_summary.ready = self.goal_state.ready = self.compaction_pause = self.argument_pause = None
        self.sent_request = None
        self.tracker.erased()
        self.unbound_seq = self.state.head

    def request_text(self, key: str, question: Message) -> RequestText | None:
        """Returns the text found earlier for the question under that key; None when nothing was searched since the last edit."""
        known = self.request_texts.get(key)
        same = known is not None and (known.question, known.edits) == (question.text, self.state.edits)
        return known if same else None

    def keep_request_text(
        self,
        key: str,
        question: Message,
        text: str,
        hidden: frozenset[int] = frozenset(),
        numbers: tuple[int, ...] = (),
    ) -> RequestText:
        """Keeps the text found for the question, for later requests of its turn, and returns it."""
        found = RequestText(question.text, self.state.edits, text, hidden, numbers)
        self.request_texts.put(key, found)
        return found

    def view(self, turn_id: str | None = None) -> View:
        with self.lock:
            return self.state.view(turn_id)

    def view_of_all(self, turn_id: str | None = None) -> View:
        """Returns the view with the messages of every open turn, for a reader; a request never has those of another one."""
        with self.lock:
            return self.state.view_of_all(turn_id)

    def window_tokens(self) -> WindowTokens:
        """Returns the size of the newest request that was answered, as every process reads it from the log.

        After a later message, an edit or a compaction, it is that of the view as it is now, with that request's tools and, in an
        open turn, its passages.
        """
        with self.lock:
            state, request = self.state, self.state.request or WindowTokens(tools=self.overhead_tokens)
            if state.request_epoch == state.epoch:
                return request
            recalled = request.recalled if state.open else 0
            size = state.view_of_all().measured(recalled=recalled, tools=request.tools, ratio=request.ratio)
            return replace(size, recalled_numbers=request.recalled_numbers) if recalled else size

    def stage(self, turn_id: str | None = None, context_window: int | None = None) -> Stage:
        """Returns the rules, for a request of that window or for the session's own, and the view as they are now."""
        return Stage(self.rules(context_window), self.view(turn_id), turn_id, context_window)

    def with_new_view(self, stage: Stage) -> Stage:
        """Returns the stage with the view as it is now: a compaction has changed it, or another writer."""
        return replace(stage, view=self.view(stage.turn_id))

    def open_turns(self) -> dict[str, Sequence[Entry]]:
        with self.lock:
            return {turn_id: Prefix(turn.entries) for turn_id, turn in self.state.open.items()}

    def waiting_calls(self) -> tuple[ToolCallPart, ...]:
        """Returns the calls of an open turn that wait for results; none where several turns wait: a result may be any one's."""
        waiting = [c for t in self.open_turns().values() if (c := waiting_calls(e.message for e in reversed(t)))]
        return waiting[0] if len(waiting) == 1 else ()

    def turn_ending_with(self, message_id: str) -> str | None:
        """Returns the open turn that ends with this message; None when its turn is over."""
        with self.lock:
            turns = self.state.open.items()
            return next((t for t, turn in turns if turn.entries and turn.entries[-1].id == message_id), None)

    def rules(self, context_window: int | None = None) -> Policy:
        """Returns the policy in force, in ctxfold's own tokens: `window_rules` corrected by the model's calibration."""
        state = self.state
        calibration = state.calibrations.get(self.model)
        made_from = (state.policy_json, state.fixed, calibration, self.opening_policy, context_window)
        cached = self.rules_cache
        if cached is None or cached[0] != made_from:
            cached = self.rules_cache = (made_from, calibrated(self.window_rules(context_window), calibration))
        return cached[1]

    def window_rules(self, context_window: int | None = None) -> Policy:
        """Returns the policy in force, in the tokens of the model that is asked, within the limit that this model has reported.

        `context_window` is the window of a request that has one of its own; the model's limit holds where it is narrower.
        """
        own = self.own_rules()
        rules = own if context_window is None else resized(own, context_window)
        return with_known_limit(rules, self.state.calibrations.get(self.model))

    def described_window(self, context_window: int | None = None) -> str:
        """Returns the window that was configured, for an error message, and what was learnt of the model where that differs."""
        configured = self.own_rules().context_window if context_window is None else context_window
        taken = self.window_rules(context_window).context_window
        counted = self.rules(context_window).context_window
        learnt = [f"the model takes no more than {taken}"] if taken != configured else []
        if counted != taken:
            learnt.append(
                f"{counted} by ctxfold's count, as the model counts {taken / counted:.2f} times as many tokens"
            )
        return f"{configured} ({', '.join(learnt)})" if learnt else str(configured)

    def own_rules(self) -> Policy:
        """Returns the stored policy with the window that this engine was given, unless a window was set at run time.

        Another engine may serve the same session with another model: its window does not apply here.
        """
        stored, opening = self.stored_rules(), self.opening_policy
        if opening is None:
            return stored
        own = {name: getattr(opening, name) for name in WINDOW_FIELDS if name not in self.state.fixed}
        same = all(getattr(stored, name) == value for name, value in own.items())
        return stored if same else stored.model_copy(update=own)

    def stored_rules(self) -> Policy:
        """Returns the policy as the log has it."""
        return _policy(self.state.policy_json)

    # the log

    def draft(
        self, body: Body, *, turn_id: str | None = None, record_id: str | None = None, provisional: bool = False
    ) -> Draft:
        return draft(self.ports, body, turn_id=turn_id, record_id=record_id, provisional=provisional)

    def closing(self, turn_id: str, status: TurnStatus) -> Draft:
        return self.draft(TurnClosed(status), turn_id=turn_id, record_id=f"c:{turn_id}")

    def refresh(self) -> Flow[None]:
        """Catches up with other writers; takes one indexed read when there is nothing new.

        Raises SessionNotFoundError when the session was erased; when it was begun anew since, that one is loaded.
        """
        with self.lock:
            head, head_id = self.state.head, self.state.head_id
        # the newest known record is read again: it tells whether this is still the same log
        records = yield from StoreCall(Store.read, self.key, after=max(0, head - 1))
        if head and (not records or records[0].id != head_id):
            state = yield from load(self.key, self.ports)
            with self.lock:
                self.state = state
                self.forget_texts()
            return
        yield from self._take_in(records[1:] if head else records)

    def append(
        self, drafts: Sequence[Draft], *, expect: int | None = None, documents: Sequence[Document] = ()
    ) -> Flow[tuple[Record, ...]]:
        """Stores drafts and folds them in, with the records that others have written since."""
        with self.lock:
            known, known_id = self.state.head, self.state.head_id
        records = yield from StoreCall(
            Store.append,
            self.key,
            drafts,
            known=known,
            expect=expect,
            documents=documents,
            known_id=known_id or None,
        )
        yield from self._take_in(records)
        if self.state.head - self.state.snapshot_seq >= SNAPSHOT_EVERY:
            yield from self._snapshot()
        return records

    def append_messages(
        self, drafts: Sequence[Draft], *, expect: int | None = None, documents: Sequence[Document] = ()
    ) -> Flow[tuple[Record, ...]]:
        """Does the same as `append`, and in the same transaction makes those messages searchable that are excerpts from now on.

        A process that ended in between would leave their originals where neither search nor recall finds them.
        """
        oversized = [
            (place, d.body.message)
            for place, d in enumerate(drafts, 1)
            if isinstance(d.body, MessageAdded) and d.body.shown is not None
        ]
        if not oversized:
            return (yield from self.append(drafts, expect=expect, documents=documents))
        by_place = yield from index_entries(oversized)
        for _ in range(DECIDE_TRIES):
            with self.lock:
                head = self.state.head if expect is None else expect
            # after the head is read: another request of this process may have stored some since the caller looked
            if expect is None and (yield from StoreCall(Store.find, self.key, [d.id for d in drafts])):
                break
            placed = [replace(document, seq=head + document.seq) for document in by_place]
            try:
                return (yield from self.append(drafts, expect=head, documents=(*documents, *placed)))
            except HeadMovedError:
                if expect is not None:
                    raise
                yield from self.refresh()
        # the session has some of these already, or many write all the time: where the records will stand is not known before
        records = yield from self.append(drafts, documents=documents)
        seqs = {r.id: r.seq for r in records}
        stored = [(seqs.get(drafts[document.seq - 1].id), document) for document in by_place]
        placed = [replace(document, seq=seq) for seq, document in stored if seq is not None]
        yield from self.append((), documents=placed)
        return records

    def _take_in(self, records: Sequence[Record]) -> Flow[None]:
        with self.lock:
            self.state.apply(records)
            if any(isinstance(r.body, Erased) for r in records):
                self.forget_texts()
        while self.state.stale:
            state = yield from load(self.key, self.ports)
            with self.lock:
                if state.head >= self.state.head:
                    self.state = state

    def append_decided(
        self, decide: Callable[[SessionState], Sequence[Draft]], *, documents: Callable[[], Sequence[Document]] = tuple
    ) -> Flow[tuple[Record, ...]]:
        """Stores what `decide` makes of the newest state, and indexes `documents`; decides again when another writer was first."""
        for _ in range(DECIDE_TRIES):
            with self.lock:
                head = self.state.head
                drafts = decide(self.state)
            if not drafts:
                return ()
            try:
                return (yield from self.append(drafts, expect=head, documents=documents()))
            except HeadMovedError:
                yield from self.refresh()
        raise StoreUnavailableError(
            f"other writers of session {self.key.session!r} were first {DECIDE_TRIES} times in a row; nothing was "
            "written: try again"
        )

    def close_turns(self, turn_ids: Sequence[str], status: TurnStatus) -> Flow[bool]:
        """Closes turns that are still open; returns True when this call closed any."""

        def closings(state: SessionState) -> list[Draft]:
            return [self.closing(t, status) for t in turn_ids if t in state.open]

        yield from self.refresh()
        return bool((yield from self.append_decided(closings)))

    def _snapshot(self) -> Flow[None]:
        with self.lock:
            head, head_id = self.state.head, self.state.head_id
            snapshot = snapshot_draft(self.state, self.ports)
        with suppress(HeadMovedError):  # another writer was first: the next append takes it
            records = yield from StoreCall(
                Store.append, self.key, (snapshot,), known=head, expect=head, known_id=head_id
            )
            with self.lock:
                self.state.apply(records)

    def timed_out_turns(self) -> tuple[str, ...]:
        """Returns the turns without a new record for 15 minutes."""
        now = self.ports.clock.now_s()
        with self.lock:
            return tuple(t for t, turn in self.state.open.items() if now - turn.at_s > TURN_TIMEOUT_S)

    def record_names(self, ids: Iterable[str]) -> Flow[dict[str, str]]:
        """Returns a free record id for each message id, whatever the session has under it."""
        chains = yield from self.record_chains(ids)
        return {message_id: record_name(message_id, len(chain) + 1) for message_id, chain in chains.items()}

    def known_records(self, message_id: str) -> Flow[tuple[Record, ...]]:
        """Returns every record that added the message or changed its content, oldest first."""
        chains = yield from self.record_chains((message_id,))
        return tuple(chains[message_id])

    def record_chains(self, ids: Iterable[str]) -> Flow[dict[str, list[Record]]]:
        """Returns, for each message id, its records, oldest first."""
        chains: dict[str, list[Record]] = {message_id: [] for message_id in ids}
        pending_ids, attempt = list(chains), 1
        while pending_ids:
            names = {record_name(message_id, attempt): message_id for message_id in pending_ids}
            records = yield from StoreCall(Store.find, self.key, tuple(names))
            for record in records:
                chains[names[record.id]].append(record)
            pending_ids = [i for i in pending_ids if len(chains[i]) == attempt]
            attempt += 1
        return chains

    def check_open(self, turn_id: str | None) -> None:
        with self.lock:
            closed = turn_id in self.state.closed
        if closed:
            raise TurnClosedError(
                f"turn {turn_id!r} of session {self.key.session!r} was closed meanwhile (a cancelled request takes its "
                "question back, and opening a session closes turns without a new record for 15 minutes): later messages are not "
                "part of the conversation; send the question again"
            )

    def originals(self, entries: Iterable[Entry]) -> Flow[dict[int, Message]]:
        """Returns, by the record's `seq`, the original of each entry that the model sees as an excerpt."""
        ids = {e.seq: e.id for e in entries if e.shown_seq}
        records = (yield from StoreCall(Store.fetch, self.key, tuple(ids))) if ids else ()
        return {r.seq: message for r in records if (message := message_in(r, ids[r.seq])) is not None}


def rules_to_open_with(policy: Policy, state: SessionState) -> Policy:
    """Returns the rules of a session that is opened with `policy`: fields that were set at run time keep their values."""
    if not state.fixed:
        return policy
    stored = _policy(state.policy_json)
    return policy.model_copy(update={name: getattr(stored, name) for name in state.fixed})


def policy_text(rules: Policy, stored: str = "") -> str:
    """Returns the rules as the log has them: what differs from the defaults, and settings of a newer release in `stored`."""
    unknown = {n: value for n, value in json.loads(stored or "{}").items() if n not in Policy.model_fields}
    defaults = {n: field.get_default(call_default_factory=True) for n, field in Policy.model_fields.items()}
    own = {n for n in defaults if Policy.model_fields[n].is_required() or getattr(rules, n) != defaults[n]}
    return json.dumps(rules.model_dump(mode="json", include=own) | unknown, sort_keys=True)


@lru_cache(maxsize=64)
def _policy(text: str) -> Policy:
    """Returns the stored rules; those that only a newer release knows have their defaults, with a warning."""
    from pydantic import ValidationError

    try:
        return Policy.model_validate_json(text)
    except ValidationError as error:
        unknown = {str(e["loc"][0]) for e in error.errors() if e["loc"]}
        with suppress(ValueError):
            known = {name: value for name, value in json.loads(text).items() if name not in unknown}
            rules = Policy.model_validate(known, strict=False)
            warnings.warn(
                f"the session has settings that this ctxfold does not know ({', '.join(sorted(unknown))}): left out; a newer "
                "release wrote them, so upgrade ctxfold",
                CtxWarning,
                stacklevel=2,
            )
            return rules
        raise StoreCorruptError(
            f"the stored rules of a session cannot be read ({str(error)[:200]}): restore a copy"
        ) from None


def load(key: SessionKey, ports: Ports, *, counter: TokenCounter | None = None) -> Flow[SessionState]:
    """Returns the state at the end of the log, from the newest snapshot and the records after it.

    `counter` counts in place of that of the ports, for a reader that needs no token counts.
    """
    ports = ports if counter is None else replace(ports, counter=counter)
    head = yield from StoreCall(Store.head, key)
    state = None if head is None else (yield from _fold_from(key, head.snapshot_seq, frozenset(), ports))
    # an erasure under way takes the newest record first
    if head is None or state is None or not state.head or state.read_upto < head.seq:
        raise SessionNotFoundError(
            f"session {key.session!r} of owner {key.owner!r} does not exist in this store: check the name, or create it"
        )
    while state.stale:
        state = yield from load_without(key, frozenset(state.undone), ports)
    return state


def load_at(key: SessionKey, seq: int, ports: Ports) -> Flow[SessionState]:
    """Returns the state right after that record, with what was undone later; texts are as erasures left them."""
    at = yield from StoreCall(Store.snapshot_before, key, seq + 1)
    state = yield from _fold_from(key, at, frozenset(), ports, upto=seq)
    while state.stale:
        state = yield from load_without(key, frozenset(state.undone), ports, upto=seq)
    return state


def load_without(key: SessionKey, undone: frozenset[str], ports: Ports, upto: int | None = None) -> Flow[SessionState]:
    """Returns the state without the records with these ids, folded from the snapshot before the first of them."""
    records = yield from StoreCall(Store.find, key, tuple(sorted(undone)))
    first = min((r.seq for r in records), default=1)
    at = yield from StoreCall(Store.snapshot_before, key, first)
    return (yield from _fold_from(key, at, undone, ports, upto))


def _fold_from(
    key: SessionKey, at: int, undone: frozenset[str], ports: Ports, upto: int | None = None
) -> Flow[SessionState]:
    records = yield from StoreCall(Store.read, key, after=max(0, at - 1), upto=upto)
    state = SessionState(key, ports.counter.count)
    if at and records:
        try:
            state = yield from _loaded(key, at, records[0], ports)
        except StoreFormatError:  # of a newer release: what it says is in the log too
            earlier = yield from StoreCall(Store.snapshot_before, key, at)
            return (yield from _fold_from(key, earlier, undone, ports, upto))
        state.head_id = records[0].id
    state.undone |= undone
    state.read_upto = records[-1].seq if records else 0
    state.apply(records)
    return state


def _loaded(key: SessionKey, at: int, record: Record, ports: Ports) -> Flow[SessionState]:
    """Returns the state of a snapshot; reads it again when an erasure came between the snapshot and the texts."""
    while True:
        snapshot = parse_snapshot(record.body.state if isinstance(record.body, SnapshotTaken) else NEWER_SNAPSHOT)
        texts = yield from StoreCall(Store.fetch, key, snapshot.seqs())
        try:
            return load_state(key, snapshot, texts, at=at, counter_id=ports.counter.id, count=ports.counter.count)
        except StoreCorruptError:
            again = yield from StoreCall(Store.fetch, key, (at,))
            if not again or again[0].body == record.body:
                raise
            record = again[0]


def draft(
    ports: Ports, body: Body, *, turn_id: str | None = None, record_id: str | None = None, provisional: bool = False
) -> Draft:
    return Draft(record_id or ports.ids.new(), body, turn_id, ports.clock.now_s(), provisional)


def snapshot_draft(state: SessionState, ports: Ports) -> Draft:
    return draft(ports, SnapshotTaken(dump_state(state, ports.counter.id)))


def record_name(message_id: str, attempt: int) -> str:
    return f"m:{message_id}" if attempt == 1 else f"m:{message_id}#{attempt}"


def index_entry(seq: int, message: Message) -> Document:
    """Returns the entry of a message in the search index."""
    return Document(seq, *index_terms(message))


def index_terms(message: Message) -> tuple[Mapping[str, int], int]:
    """Returns how often each term occurs in the speaker's name, the text, the calls and the media of a message, and its length.

    Names of media and the time and the speaker in front of the text do not count in the length: they say nothing more.
    """
    calls = (f"{c.name} {c.arguments}" for c in message.tool_calls)
    before = stamp(text := message.text)
    counts, length = indexed_terms("\n".join([text[len(before) :], *calls]))
    uncounted = [before, message.name or "", *(name_of(p) for p in message.parts if isinstance(p, MediaPart))]
    if any(uncounted):
        counts.update(terms(" ".join(uncounted)))
    return counts, length


def index_entries(originals: Sequence[tuple[int, Message]]) -> Flow[tuple[Document, ...]]:
    """Returns the index entries of messages (seq, message); long texts are split into terms off the event loop."""
    chars = sum(searchable_chars(message) for _, message in originals)
    return (yield from off_loop(lambda: tuple(index_entry(seq, message) for seq, message in originals), chars))


def searchable_chars(message: Message) -> int:
    """Returns how many characters of a message can be searched."""
    return len(message.text) + sum([len(c.arguments) for c in message.tool_calls])
