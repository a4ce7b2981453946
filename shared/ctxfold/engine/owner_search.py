"""Searches all sessions of one owner at once: one BM25 ranking over every archive and every live conversation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ctxfold.effects import Flow, StoreCall, StoreQuery
from ctxfold.engine.archive import PROBE, Hit, hit_of, live_documents
from ctxfold.engine.erase import Age
from ctxfold.errors import SessionNotFoundError
from ctxfold.history.posting_cache import Hit as Posting
from ctxfold.history.records import Record, SessionKey
from ctxfold.history.snapshot import stored_message
from ctxfold.history.terms import query_terms
from ctxfold.messages import Message, Role, check_role
from ctxfold.protocols import Document, OwnerIndex, Ports, Postings, Store, Uncounted
from ctxfold.retrieval.bm25 import bm25, frequencies, idf
from ctxfold.state import load
from ctxfold.validation import all_of, moment, whole_number

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
    `OwnerIndex`, else with one call per session; the live messages of each session are read in addition. Exact while no term
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
        live[name] = yield from _live(SessionKey(owner, name), ports)
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


def _live(key: SessionKey, ports: Ports) -> Flow[tuple[Document, ...]]:
    """Returns the live messages of a session as documents; reads the log and writes nothing.

    Empty for a session that was erased meanwhile.
    """
    try:
        state = yield from load(key, ports, counter=Uncounted())
    except SessionNotFoundError:
        return ()
    return (yield from live_documents(state.view_of_all()))


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
