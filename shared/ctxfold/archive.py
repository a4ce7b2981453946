"""One archive for everything a session ever held: search it, bring originals back, fork it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ctxfold.effects import AppendLog, EraseLogs, FetchLog, FindLog, ReadHead, ReadLog
from ctxfold.engine import Engine
from ctxfold.errors import ContextOverflowError, MessageError, SessionExistsError, SessionNotFoundError
from ctxfold.events import MessagesRestored
from ctxfold.explain import original_record
from ctxfold.flow import Flow, off_loop
from ctxfold.history.cuts import complete_prefix
from ctxfold.history.log import SessionState
from ctxfold.history.records import (
    Body,
    Cleared,
    Compacted,
    Draft,
    Forked,
    MessageAdded,
    MessageInserted,
    MessageRemoved,
    Record,
    Restored,
    SessionKey,
    Undone,
)
from ctxfold.history.snapshot import message_in, stored_message
from ctxfold.history.terms import sentences, term_counts
from ctxfold.history.view import Entry
from ctxfold.journal import Journal, closing, decided, draft, known_records, refresh
from ctxfold.messages import Message, Role
from ctxfold.ports import Document, Ports
from ctxfold.zones.leaving import taken_out
from ctxfold.zones.ranking import ranked
from ctxfold.zones.recall import document, documents, size_of

__all__ = ["Hit", "documents_of", "fork", "origins_of", "restore", "search"]

EXCERPT_CHARS = 240
PROBE = 4_096  # hits of each term: somebody waits for this answer, and it may take longer than what each turn recalls
CHUNK = 256  # records read at once while looking for the rest of a tool round


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that bears on a query. `reference` (`#17`) reads the original back; `excerpt` is its best sentence."""

    message_id: str
    reference: str
    role: Role
    score: float
    excerpt: str


def search(journal: Journal, query: str, *, limit: int) -> Flow[tuple[Hit, ...]]:
    """The messages that answer best, best first, visible or not: one BM25 over the index and what the index lacks.

    Exact while no term of the query stands in more than some thousand messages; beyond, work is bounded as in `zones.ranking`.
    """
    wanted = term_counts(query)
    if not wanted or limit < 1:
        return ()
    shown = [(e.seq, e.message) for e in journal.view().live if not e.shown_seq and e.message.kind == "message"]
    # live messages as documents: the index gets them when they leave; excerpts it has already, by their originals
    visible = yield from documents(shown)
    ranking, weights = yield from ranked(journal.key, tuple(wanted), beside=visible, probe=PROBE)
    hits: dict[str, Hit] = {}
    for start in range(0, len(ranking), 4 * limit):
        scores = dict(ranking[start : start + 4 * limit])
        records = yield from FetchLog(journal.key, tuple(scores))
        found = {r.seq: (r.number, m) for r in records if (m := stored_message(r)) is not None}
        for seq, score in scores.items():
            number, message = found.get(seq, (0, None))
            if message is not None and message.id not in hits:
                excerpt = yield from off_loop(partial(_excerpt, message, weights), size_of(message))
                hits[message.id] = Hit(message.id, f"#{number}", message.role, score, excerpt)
        if len(hits) >= limit:
            break
    return tuple(hits.values())[:limit]


def _excerpt(message: Message, weights: Mapping[str, float]) -> str:
    """The sentence (or the tool call) that holds most of the query, cut to fit a line."""
    texts = [*sentences(message.text), *(f"{c.name}({c.arguments})" for c in message.tool_calls)]
    best = max(texts, key=lambda text: sum(weights.get(t, 0.0) for t in term_counts(text)), default="")
    line = " ".join(best.split())
    return line if len(line) <= EXCERPT_CHARS else f"{line[: EXCERPT_CHARS - 3]}..."


# restore


def restore(engine: Engine, journal: Journal, references: Sequence[str]) -> Flow[tuple[Message, ...]]:
    """Originals back in the view, with their tool rounds: at its tail, or in place of their excerpts; what came back.

    What is visible in full already is left alone. ContextOverflowError, before anything is written, when they do not fit.
    """
    groups: dict[
        int, dict[int, Message]
    ] = {}  # a round stays in its order, whichever of its messages was updated since
    for reference in references:
        record, message = yield from original_record(journal, reference)
        if message.visibility == "user":
            raise MessageError(f"message {message.id!r} is for the user only: it cannot be brought before the model")
        entry = journal.state.entry(message.id)
        if entry is not None and entry.seq == record.seq:
            groups[record.seq] = {record.seq: message}
        elif entry is None:
            group = yield from _round(journal, record, message)
            groups[min(group)] = group
    wanted = [(seq, message) for _, group in sorted(groups.items()) for seq, message in group.items()]
    back: list[Message] = []

    def drafts(state: SessionState) -> list[Draft]:
        live = {e.id: e for e in state.live}
        missing = {seq: m for seq, m in wanted if _lacks(state, live, m)}
        _check_room(engine, journal, missing.values(), live)
        back[:] = missing.values()
        return _restored(engine.ports, missing)

    yield from decided(journal, drafts, engine.ports)
    if back:
        engine.events.emit(MessagesRestored(journal.key.session, tuple(back)))
    return tuple(back)


def _lacks(state: SessionState, live: Mapping[str, Entry], message: Message) -> bool:
    entry = live.get(message.id)
    return state.entry(message.id) is None if entry is None else bool(entry.shown_seq)


def _check_room(engine: Engine, journal: Journal, messages: Iterable[Message], live: Mapping[str, Entry]) -> None:
    count = engine.ports.counter.count
    more = sum(count(m) - (live[m.id].tokens if m.id in live else 0) for m in messages)
    needed, rules = journal.state.tokens + more, journal.rules()
    if needed > rules.budget_tokens:
        raise ContextOverflowError(
            f"restored, the session needs {needed} tokens, the budget is {rules.budget_tokens}: restore fewer messages, "
            "compact first or raise context_window"
        )


def _restored(ports: Ports, messages: Mapping[int, Message]) -> list[Draft]:
    made = [draft(ports, Restored(message, seq)) for seq, message in messages.items()]
    if made:
        seq, message = list(messages.items())[-1]
        made[-1] = draft(ports, Restored(message, seq, tuple(d.id for d in made[:-1])))
    return made


def _round(journal: Journal, record: Record, message: Message) -> Flow[dict[int, Message]]:
    """The whole tool round of a message that left the view, newest versions in order, by record; just the message if in none."""
    if message.role == "tool":
        calls = {r.call_id for r in message.tool_results}
        caller = yield from _caller(journal, (yield from _added(journal, message.id)), calls)
        if caller is None:
            raise MessageError(
                f"the call that message {message.id!r} answers is no longer stored: it cannot be restored"
            )
        record, message = yield from original_record(journal, caller.id)
    found = {record.seq: message}
    if message.tool_calls:
        for answer in (yield from _answers(journal, message)):
            stored, newest = yield from original_record(journal, answer.id)
            found[stored.seq] = newest
    return found


def _added(journal: Journal, message_id: str) -> Flow[int]:
    """Where in the log the message came last, updates aside."""
    records = yield from known_records(journal, message_id)
    return max(r.seq for r in records if isinstance(r.body, MessageAdded | MessageInserted))


def _caller(journal: Journal, before: int, calls: set[str]) -> Flow[Message | None]:
    while before > 1:
        records = yield from ReadLog(journal.key, after=max(0, before - CHUNK), upto=before - 1)
        for record in reversed(records):
            body = record.body
            if isinstance(body, MessageAdded) and calls & {c.id for c in body.message.tool_calls}:
                return body.message
        before -= CHUNK - 1
    return None


def _answers(journal: Journal, caller: Message) -> Flow[tuple[Message, ...]]:
    waiting = {c.id for c in caller.tool_calls}
    at = yield from _added(journal, caller.id)
    found: list[Message] = []
    while waiting:
        records = yield from ReadLog(journal.key, after=at, upto=at + CHUNK)
        if not records:
            break
        at += CHUNK
        for record in records:
            body = record.body
            answered = {r.call_id for r in body.message.tool_results} if isinstance(body, MessageAdded) else set[str]()
            if isinstance(body, MessageAdded) and answered & waiting:
                waiting -= answered
                found.append(body.message)
    return tuple(found)


# fork


def fork(engine: Engine, journal: Journal, session: str, *, at: str | None) -> Flow[SessionKey]:
    """A session of the same owner with this one's log up to and with message `at` (all of it without): originals,
    summaries, pins and rules come along, and every `#seq` means the same there. SessionExistsError when it is taken.
    """
    while True:
        erasures = journal.erasures
        key = yield from _forked(engine, journal, session, at=at)
        try:
            yield from refresh(journal, engine.ports)
        except SessionNotFoundError:
            yield from EraseLogs((), (key,))
            raise
        if journal.erasures == erasures:
            return key
        yield from EraseLogs((), (key,))  # it may hold what was erased while it was made


def _forked(engine: Engine, journal: Journal, session: str, *, at: str | None) -> Flow[SessionKey]:
    key = SessionKey(journal.key.owner, session)
    if (yield from ReadHead(key)) is not None:
        raise SessionExistsError(f"session {session!r} of owner {key.owner!r} exists already: fork into a new name")
    upto = None
    if at is not None:
        record, message = yield from original_record(journal, at)
        upto = record.seq if at.startswith("#") else (yield from _added(journal, message.id))
    records = yield from ReadLog(journal.key, upto=upto)
    state = SessionState(key, lambda _: 0)
    state.undone = {r.body.record_id for r in records if isinstance(r.body, Undone)}
    state.apply(records)
    drafts = [Draft(r.id, r.body, r.turn_id, r.at_s) for r in records]
    for name in state.open:  # the turn of `at` ends with it; of the others nobody has heard yet
        heard = at is None or name == records[-1].turn_id
        drafts.append(closing(engine.ports, name, "aborted" if heard else "discarded"))
    half = state.live[complete_prefix(state.live) :]
    if half:  # a tool round that was cut through
        drafts.append(draft(engine.ports, MessageRemoved(tuple(e.id for e in half))))
    origins = (journal.key.session, *(yield from origins_of(journal.key)))
    drafts.append(draft(engine.ports, Forked(origins), record_id=f"forked:{session}"))
    yield from AppendLog(key, drafts, expect=0, documents=documents_of(key, records))
    return key


def origins_of(key: SessionKey) -> Flow[tuple[str, ...]]:
    """The sessions that this one was forked from, nearest first."""
    records = yield from FindLog(key, (f"forked:{key.session}",))
    return next((r.body.origins for r in records if isinstance(r.body, Forked)), ())


def documents_of(key: SessionKey, records: Sequence[Record]) -> tuple[Document, ...]:
    """What the index of a log with these records holds: each original that is not in the view, or only as an excerpt."""
    state = SessionState(key, lambda _: 0)
    state.undone = {r.body.record_id for r in records if isinstance(r.body, Undone)}
    stored, named = {r.seq: r for r in records}, {r.id: r.body for r in records}
    found: dict[int, Document] = {}
    for record in records:
        body = record.body
        if isinstance(body, Compacted) and record.id not in state.undone:
            leaving = {*body.covered, *(m.id for m in body.shown)}
            for entry in state.view(record.turn_id):
                if entry.id in leaving and entry.message.kind == "message":
                    message = message_in(stored[entry.seq], entry.id) or entry.message
                    found[entry.seq] = document(entry.seq, message)
        elif isinstance(body, MessageAdded) and body.shown is not None:
            found[record.seq] = document(record.seq, body.message)
        elif isinstance(body, Cleared | MessageRemoved) and record.id not in state.undone:
            found |= {d.seq: d for d in taken_out(state.view(), body, again=_put_back(named, body))}
        state.apply((record,))
    return tuple(found.values())


def _put_back(named: Mapping[str, Body], body: Cleared | MessageRemoved) -> frozenset[str]:
    """Ids of the messages that were put in place of all with the edit."""
    names = body.replaced_by or () if isinstance(body, Cleared) else ()
    found = (named.get(name) for name in names)
    return frozenset(b.message.id for b in found if isinstance(b, MessageAdded))
