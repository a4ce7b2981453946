"""Searches the archive of a session, restores original messages, and forks sessions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from math import fsum
from typing import TypeAlias

from ctxfold.effects import Flow, StoreCall, StoreQuery, off_loop
from ctxfold.engine.edit import entries_of_removed
from ctxfold.engine.engine import Engine
from ctxfold.errors import ContextOverflowError, MessageError, SessionExistsError, SessionNotFoundError
from ctxfold.events import MessagesRestored
from ctxfold.history.cuts import complete_prefix
from ctxfold.history.log import SessionState
from ctxfold.history.prompt_safety import strip_control_chars
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
from ctxfold.history.view import Entry, View
from ctxfold.index.cache import Hit as Posting
from ctxfold.index.cache import LiveIndex
from ctxfold.index.terms import query_terms, rough_terms, sentences, terms
from ctxfold.messages import Message, Role, check_role
from ctxfold.protocols import Document, OwnerIndex, Ports, Postings, Store, Uncounted
from ctxfold.retrieval.bm25 import bm25, frequencies, idf, ranked
from ctxfold.retrieval.embeddings import share_vectors
from ctxfold.retrieval.originals import (
    original_record,
)
from ctxfold.state import (
    Session,
    draft,
    index_entries,
    index_entry,
    load,
    searchable_chars,
)
from ctxfold.tokens.media import with_media_named
from ctxfold.validation import all_of, moment, whole_number

EXCERPT_CHARS = 240
PROBE = 4_096  # hits of each term: somebody waits for this answer, and it may take longer than what each turn recalls
CHUNK = 256  # records read at once while looking for the rest of a tool round
Age: TypeAlias = timedelta | datetime


@dataclass(frozen=True, slots=True)
class Hit:
    """Holds a message that matches a query. `reference` (`#17`) reads the original back; `excerpt` is its best sentence.

    `session` is the session that holds it; `at_s` is the time of storing, in Unix time.
    """

    message_id: str
    reference: str
    role: Role
    score: float
    excerpt: str
    session: str = ""
    at_s: float = 0.0


def search(session: Session, query: str, *, limit: int) -> Flow[tuple[Hit, ...]]:
    """Returns the messages that match best, best first, visible or not: one BM25 over the index and the live messages.

    Exact while no term of the query occurs in more than some thousand messages; beyond, work is bounded as in `retrieval.bm25`.
    """
    terms = query_terms(query)
    if not terms or limit < 1:
        return ()
    archive = yield from StoreCall(Store.postings, session.key, ())
    documents = () if _in_full(archive) else (yield from live_documents(session.key, session.view_of_all(), archive))
    visible = LiveIndex().with_messages((d.seq, d.terms, d.length) for d in documents)
    ranking, weights, _ = yield from ranked(session.key, terms, live_index=visible, probe=PROBE)
    hits: dict[str, Hit] = {}
    for start in range(0, len(ranking), 4 * limit):
        scores = dict(ranking[start : start + 4 * limit])
        records = yield from StoreCall(Store.fetch, session.key, tuple(scores))
        by_seq = {r.seq: r for r in records}
        for seq, score in scores.items():
            message = stored_message(by_seq[seq]) if seq in by_seq else None
            entry = None if message is None else session.state.entry(message.id)
            if entry is not None and entry.seq != seq:  # it was updated since
                continue
            if message is not None and message.id not in hits:
                hits[message.id] = yield from hit_of(by_seq[seq], message, score, weights, session.key.session)
        if len(hits) >= limit:
            break
    return tuple(hits.values())[:limit]


def _in_full(archive: Postings | None) -> bool:
    """Tells whether every message of a session is in the index."""
    return archive is not None and 0 < archive.numbered <= archive.documents


def live_documents(key: SessionKey, view: View, archive: Postings | None) -> Flow[tuple[Document, ...]]:
    """Returns the live messages that the archive lacks as documents.

    It gets them when they leave. It has excerpts by their originals, and messages that were imported or restored.
    """
    entries = (*view.live, *view.turn)
    shown = [(e.seq, e.message) for e in entries if not e.shown_seq and e.message.kind == "message"]
    if archive is not None and archive.documents + len(shown) > archive.numbered:
        known = yield from StoreCall(Store.postings, key, ("",), among=[seq for seq, _ in shown])
        archived = {hit[0] for hit in known.by_term[""]}
        shown = [(seq, message) for seq, message in shown if seq not in archived]
    return (yield from index_entries(shown))


def hit_of(record: Record, message: Message, score: float, weights: Mapping[str, float], session: str) -> Flow[Hit]:
    """Returns the hit of a record's message, with an excerpt by the weights of the query's terms."""
    named = with_media_named(message, record.number)
    excerpt = yield from off_loop(partial(_excerpt_of, named, weights), searchable_chars(message))
    return Hit(message.id, f"#{record.number}", message.role, score, excerpt, session, record.at_s)


def _excerpt_of(message: Message, weights: Mapping[str, float]) -> str:
    """Returns the sentence (or the tool call) that holds most of the query, cut to fit a line."""
    texts = [*sentences(message.text), *(f"{c.name}({c.arguments})" for c in message.tool_calls)]
    asked = weights.keys()
    best = max(
        texts, key=lambda text: fsum(map(weights.__getitem__, asked & {*terms(text), *rough_terms(text)})), default=""
    )
    line = " ".join(strip_control_chars(best).split())
    return line if len(line) <= EXCERPT_CHARS else f"{line[: EXCERPT_CHARS - 3]}..."


# restore


def restore(engine: Engine, session: Session, references: Sequence[str]) -> Flow[tuple[Message, ...]]:
    """Restores originals to the view, with their tool rounds, and returns them: at its tail, or in place of their excerpts.

    Messages that are visible in full are left alone. Raises ContextOverflowError, before anything is written, when they do not
    fit.
    """
    # a round stays in its order, whichever of its messages was updated since
    groups: dict[int, dict[int, Message]] = {}
    for reference in references:
        record, message = yield from original_record(session, reference)
        if message.visibility == "user":
            raise MessageError(
                f"message {message.id!r} is for the user only: it cannot be restored to the model's window"
            )
        entry = session.state.entry(message.id)
        if entry is not None and entry.seq == record.seq:
            groups[record.seq] = {record.seq: message}
        elif entry is None:
            group = yield from _round(session, record, message)
            groups[min(group)] = group
    originals = [(seq, message) for _, group in sorted(groups.items()) for seq, message in group.items()]
    restored: list[Message] = []

    def drafts(state: SessionState) -> list[Draft]:
        live = {e.id: e for e in state.live}
        missing = {seq: m for seq, m in originals if _lacks(state, live, m)}
        _check_room(engine, session, missing.values(), live)
        restored[:] = missing.values()
        return _restored(engine.ports, missing)

    yield from session.append_decided(drafts)
    if restored:
        engine.events.emit(MessagesRestored(session.key.session, tuple(restored)))
    return tuple(restored)


def _lacks(state: SessionState, live: Mapping[str, Entry], message: Message) -> bool:
    entry = live.get(message.id)
    return state.entry(message.id) is None if entry is None else bool(entry.shown_seq)


def _check_room(engine: Engine, session: Session, messages: Iterable[Message], live: Mapping[str, Entry]) -> None:
    count = engine.ports.counter.count
    more = sum(count(m) - (live[m.id].tokens if m.id in live else 0) for m in messages)
    needed, rules = session.state.tokens + more, session.rules()
    if needed > rules.budget_tokens:
        raise ContextOverflowError(
            f"with the restored messages, the session would need {needed} tokens, the budget is {rules.budget_tokens} of a "
            f"window of {session.described_window()}: restore fewer messages, compact first or raise context_window"
        )


def _restored(ports: Ports, messages: Mapping[int, Message]) -> list[Draft]:
    drafts = [draft(ports, Restored(message, seq)) for seq, message in messages.items()]
    if drafts:
        seq, message = list(messages.items())[-1]
        drafts[-1] = draft(ports, Restored(message, seq, tuple(d.id for d in drafts[:-1])))
    return drafts


def _round(session: Session, record: Record, message: Message) -> Flow[dict[int, Message]]:
    """Returns the tool round of a message that left the view, newest versions by record; only the message if it is in none."""
    if message.role == "tool":
        calls = {r.call_id for r in message.tool_results}
        caller = yield from _caller(session, (yield from _added(session, message.id)), calls)
        if caller is None:
            raise MessageError(
                f"the call that message {message.id!r} answers is no longer stored: it cannot be restored"
            )
        record, message = yield from original_record(session, caller.id)
    messages = {record.seq: message}
    if message.tool_calls:
        for answer in (yield from _answers(session, message)):
            stored, newest = yield from original_record(session, answer.id)
            messages[stored.seq] = newest
    return messages


def _added(session: Session, message_id: str) -> Flow[int]:
    """Returns the number of the record that added the message last, updates aside."""
    records = yield from session.known_records(message_id)
    return max(r.seq for r in records if isinstance(r.body, MessageAdded | MessageInserted))


def _caller(session: Session, before: int, calls: set[str]) -> Flow[Message | None]:
    while before > 1:
        records = yield from StoreCall(Store.read, session.key, after=max(0, before - CHUNK), upto=before - 1)
        for record in reversed(records):
            body = record.body
            if isinstance(body, MessageAdded) and calls & {c.id for c in body.message.tool_calls}:
                return body.message
        before -= CHUNK - 1
    return None


def _answers(session: Session, caller: Message) -> Flow[tuple[Message, ...]]:
    waiting = {c.id for c in caller.tool_calls}
    at = yield from _added(session, caller.id)
    answers: list[Message] = []
    while waiting:
        records = yield from StoreCall(Store.read, session.key, after=at, upto=at + CHUNK)
        if not records:
            break
        at += CHUNK
        for record in records:
            body = record.body
            answered = {r.call_id for r in body.message.tool_results} if isinstance(body, MessageAdded) else set[str]()
            if isinstance(body, MessageAdded) and answered & waiting:
                waiting -= answered
                answers.append(body.message)
    return tuple(answers)


# fork


def fork(engine: Engine, session: Session, name: str, *, at: str | None) -> Flow[SessionKey]:
    """Makes a session of the same owner with this one's log up to and with message `at`, or all of it.

    Originals, summaries, pins and rules come along, and every `#seq` means the same there. Raises SessionExistsError when the
    name is taken.
    """
    while True:
        erasures = session.erasures
        key = yield from _forked(engine, session, name, at=at)
        try:
            yield from session.refresh()
        except SessionNotFoundError:
            yield from StoreCall(Store.erase, (), gone=(key,))
            raise
        if session.erasures == erasures:
            return key
        yield from StoreCall(Store.erase, (), gone=(key,))  # it may hold what was erased while it was made


def _forked(engine: Engine, session: Session, name: str, *, at: str | None) -> Flow[SessionKey]:
    key = SessionKey(session.key.owner, name)
    if (yield from StoreCall(Store.head, key)) is not None:
        raise SessionExistsError(f"session {name!r} of owner {key.owner!r} exists already: fork into a new name")
    upto = None
    if at is not None:
        record, message = yield from original_record(session, at)
        upto = record.seq if at.startswith("#") else (yield from _added(session, message.id))
    records = yield from StoreCall(Store.read, session.key, upto=upto)
    state = _empty_fold(key, records)
    state.apply(records)
    endings: list[Draft] = []
    for turn_id in state.open:  # the turn of `at` ends with it; the others have shown nothing yet
        shown = at is None or turn_id == records[-1].turn_id
        endings.append(session.closing(turn_id, "aborted" if shown else "discarded"))
    partial_round = state.live[complete_prefix(state.live) :]
    if partial_round:
        endings.append(session.draft(MessageRemoved(tuple(e.id for e in partial_round))))
    yield from copy_log(engine.ports, session.key, key, records, endings)
    return key


def copy_log(
    ports: Ports, source: SessionKey, key: SessionKey, records: Sequence[Record], endings: Sequence[Draft] = ()
) -> Flow[None]:
    """Makes the session `key` of records of another one, and of the `endings` of what was under way there."""
    origins = (source.session, *(yield from origins_of(source)))
    drafts = [Draft(r.id, r.body, r.turn_id, r.at_s) for r in records]
    drafts += [*endings, draft(ports, Forked(origins), record_id=f"forked:{key.session}")]
    yield from StoreCall(Store.append, key, drafts, expect=0, documents=documents_of(key, records))
    if ports.store.capabilities.vectors:
        yield from share_vectors(source, key, len(records))


def origins_of(key: SessionKey) -> Flow[tuple[str, ...]]:
    """Returns the sessions that this one was forked from, nearest first."""
    records = yield from StoreCall(Store.find, key, (f"forked:{key.session}",))
    return next((r.body.origins for r in records if isinstance(r.body, Forked)), ())


def documents_of(key: SessionKey, records: Sequence[Record]) -> tuple[Document, ...]:
    """Returns the index of a log with these records: each original that is not in the view, or only as an excerpt."""
    state = _empty_fold(key, records)
    by_seq, by_id = {r.seq: r for r in records}, {r.id: r.body for r in records}
    documents_by_seq: dict[int, Document] = {}
    for record in records:
        body = record.body
        if isinstance(body, Compacted) and record.id not in state.undone:
            leaving = {*body.covered, *(m.id for m in body.shown)}
            for entry in state.view(record.turn_id):
                if entry.id in leaving and entry.message.kind == "message":
                    message = message_in(by_seq[entry.seq], entry.id) or entry.message
                    documents_by_seq[entry.seq] = index_entry(entry.seq, message)
        elif isinstance(body, MessageAdded) and body.shown is not None:
            documents_by_seq[record.seq] = index_entry(record.seq, body.message)
        elif isinstance(body, Cleared | MessageRemoved) and record.id not in state.undone:
            removed = entries_of_removed(state.view(), body, again=_replacements(by_id, body))
            documents_by_seq |= {d.seq: d for d in removed}
        state.apply((record,))
    return tuple(documents_by_seq.values())


def _empty_fold(key: SessionKey, records: Iterable[Record]) -> SessionState:
    """Returns a fold without counts that knows which of the records were undone, and to which they can be applied."""
    state = SessionState(key, lambda _: 0)
    state.undone = {r.body.record_id for r in records if isinstance(r.body, Undone)}
    return state


def _replacements(by_id: Mapping[str, Body], body: Cleared | MessageRemoved) -> frozenset[str]:
    """Returns the ids of the messages that a `Cleared` put in place of all others."""
    names = body.replaced_by or () if isinstance(body, Cleared) else ()
    stored_messages = (by_id.get(name) for name in names)
    return frozenset(b.message.id for b in stored_messages if isinstance(b, MessageAdded))


HITS, LEAST_HITS = 65_536, 64  # archived hits of a term that are read: in all sessions together, and at least in each
SESSION_SHIFT = 40  # bits of a document's number that name its record; those above name its session
NAMES = "give the names of sessions, as `store.sessions(owner)` lists them"


@dataclass(frozen=True, slots=True)
class SearchScope:
    """Says which messages an owner-wide search may return; None leaves a property open. Times are Unix seconds."""

    sessions: frozenset[str] | None = None
    roles: frozenset[Role] | None = None
    since_s: float | None = None
    until_s: float | None = None

    def holds(self, message: Message, at_s: float) -> bool:
        return (
            (self.roles is None or message.role in self.roles)
            and (self.since_s is None or at_s >= self.since_s)
            and (self.until_s is None or at_s < self.until_s)
        )


def scope_of(
    sessions: Sequence[str] | None,
    roles: Sequence[Role] | None,
    since: Age | None,
    until: Age | None,
    *,
    now_s: float,
) -> SearchScope:
    """Returns the scope that a caller describes. Raises ConfigError for names and moments that are none, UnknownRoleError."""
    named_sessions = None if sessions is None else frozenset(all_of("sessions", sessions, str, NAMES))
    known_roles: frozenset[Role] | None = None
    if roles is not None:
        known_roles = frozenset([check_role(role) for role in all_of("roles", roles, str, "such as 'user'")])
    return SearchScope(
        named_sessions,
        known_roles,
        None if since is None else moment("since", since, now_s),
        None if until is None else moment("until", until, now_s),
    )


def search_owner(ports: Ports, owner: str, query: str, scope: SearchScope, *, limit: int) -> Flow[tuple[Hit, ...]]:
    """Returns the messages of the owner's sessions that match best, best first, visible or compacted.

    Terms are weighed over all sessions in scope. An archive is asked with one statement per term where the store has an
    `OwnerIndex`, else with one call per session; where it lacks messages, the live ones are read in addition. Exact while no term
    occurs in more archived messages than are read of each; of a more frequent one, the newest in each session count.
    """
    limit = whole_number("limit", limit, "give the largest number of results")
    terms = query_terms(query)
    if not terms:
        return ()
    return (yield from StoreQuery(_searched(ports, owner, terms, scope, limit)))


def _searched(ports: Ports, owner: str, terms: Sequence[str], scope: SearchScope, limit: int) -> Flow[tuple[Hit, ...]]:
    stored_names = yield from StoreCall(Store.sessions, owner)
    names = [name for name in stored_names if scope.sessions is None or name in scope.sessions]
    if not names:
        return ()
    newest = min(PROBE, max(LEAST_HITS, HITS // len(names)))
    archives = yield from _archives(ports, owner, names, terms, newest, whole=scope.sessions is None)
    live: dict[str, tuple[Document, ...]] = {}
    for name in names:
        archive = archives.get(name)
        live[name] = () if _in_full(archive) else (yield from _live(SessionKey(owner, name), ports, archive))
    postings, weights = _joined(names, archives, live, terms, newest)
    ranking = bm25(postings, weights)
    return (yield from _hits(owner, names, ranking, weights, scope, limit))


def _archives(
    ports: Ports, owner: str, names: Sequence[str], terms: Sequence[str], newest: int, *, whole: bool
) -> Flow[Mapping[str, Postings]]:
    """Returns the archived hits of the terms by session."""
    if whole and ports.store.capabilities.owner_index:
        return (yield from StoreCall(OwnerIndex.owner_postings, owner, terms, newest=newest))
    archives: dict[str, Postings] = {}
    for name in names:
        archives[name] = yield from StoreCall(Store.postings, SessionKey(owner, name), terms, newest=newest)
    return archives


def _live(key: SessionKey, ports: Ports, archive: Postings | None) -> Flow[tuple[Document, ...]]:
    """Returns the live messages of a session as documents; reads the log and writes nothing.

    Empty for a session that was erased meanwhile.
    """
    try:
        state = yield from load(key, ports, counter=Uncounted())
    except SessionNotFoundError:
        return ()
    return (yield from live_documents(key, state.view_of_all(), archive))


def _joined(
    names: Sequence[str],
    archives: Mapping[str, Postings],
    live: Mapping[str, Sequence[Document]],
    terms: Sequence[str],
    newest: int,
) -> tuple[Postings, dict[str, float]]:
    """Returns one index over all sessions, whose documents have numbers of their own, and the weight of each term."""
    by_term: dict[str, list[Posting]] = {term: [] for term in terms}
    counts = dict.fromkeys(terms, 0)
    total = length = 0
    for at, name in enumerate(names):
        archive = archives.get(name) or Postings(0, 0, {})
        estimated = frequencies(archive, at_most=newest)
        base = at << SESSION_SHIFT
        live_documents = live[name]
        total += archive.documents + len(live_documents)
        length += archive.total_length + sum(d.length for d in live_documents)
        for term in terms:
            archived = archive.by_term.get(term, ())
            known = {hit[0] for hit in archived}  # a message that was restored is in the archive, too
            shown = [(d.seq, d.terms[term], d.length) for d in live_documents if term in d.terms and d.seq not in known]
            by_term[term] += [(base + seq, count, size) for seq, count, size in (*archived, *shown)]
            counts[term] += estimated.get(term, 0) + len(shown)
    postings = Postings(total, length, {term: tuple(hits) for term, hits in by_term.items()})
    return postings, idf(postings, counts)


def _hits(
    owner: str,
    names: Sequence[str],
    ranking: Sequence[tuple[int, float]],
    weights: Mapping[str, float],
    scope: SearchScope,
    limit: int,
) -> Flow[tuple[Hit, ...]]:
    """Reads the best messages until `limit` of them are in scope. Copies of a message in forks count once."""
    hits: dict[tuple[str, str, float], Hit] = {}
    for start in range(0, len(ranking), 4 * limit):
        part = ranking[start : start + 4 * limit]
        records = yield from _records(owner, names, [number for number, _ in part])
        for number, score in part:
            record = records.get(number)
            message = None if record is None else stored_message(record)
            if record is None or message is None or not scope.holds(message, record.at_s):
                continue
            same = (message.id, message.text, record.at_s)
            if same not in hits:
                hits[same] = yield from hit_of(record, message, score, weights, names[number >> SESSION_SHIFT])
        if len(hits) >= limit:
            break
    return tuple(hits.values())[:limit]


def _records(owner: str, names: Sequence[str], numbers: Collection[int]) -> Flow[dict[int, Record]]:
    by_session: dict[int, list[int]] = {}
    for number in numbers:
        by_session.setdefault(number >> SESSION_SHIFT, []).append(number & ((1 << SESSION_SHIFT) - 1))
    records: dict[int, Record] = {}
    for at, seqs in by_session.items():
        fetched = yield from StoreCall(Store.fetch, SessionKey(owner, names[at]), seqs)
        records |= {(at << SESSION_SHIFT) + r.seq: r for r in fetched}
    return records
