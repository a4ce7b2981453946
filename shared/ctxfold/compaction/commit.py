"""Commits a compaction: writes one record with its snapshot if the span is unchanged, and reports the epoch change."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ctxfold.compaction.strategy import CompactionInput, Plan
from ctxfold.compaction.summarize import Summary, as_message
from ctxfold.effects import Flow, StoreCall
from ctxfold.errors import HeadMovedError
from ctxfold.events import HistoryCompacted, RewriteRefused
from ctxfold.history.cuts import kept
from ctxfold.history.log import session_cost
from ctxfold.history.records import Compacted, Draft, Record
from ctxfold.history.view import Entry, View
from ctxfold.messages import Usage, is_question
from ctxfold.policy.prices import Prices
from ctxfold.protocols import Document, Store
from ctxfold.state import Session, index_entries, snapshot_draft

COMMIT_TRIES = 4

OutcomeStatus: TypeAlias = Literal["compacted", "no_change", "rejected", "not_stored"]


@dataclass(frozen=True, slots=True)
class Postponed:
    """A plan whose summary a model still has to write, to replace the extractive summary `stand_in_id`."""

    plan: Plan
    case: CompactionInput
    stand_in_id: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a compaction: the event when it was stored, otherwise the reason why not.

    `status` is "compacted", "no_change" (nothing was due, possible or left to do), "rejected" (a summary was written and not
    accepted) or "not_stored" (the store failed, and the session is unchanged).
    """

    event: HistoryCompacted | None
    reason: str
    refused: RewriteRefused | None = None
    status: OutcomeStatus = "no_change"
    postponed: Postponed | None = None

    @property
    def compacted(self) -> bool:
        return self.event is not None


def commit(
    session: Session,
    plan: Plan,
    summary: Summary | None,
    before: View,
    *,
    source_tokens: int | None = None,
) -> Flow[Outcome]:
    """Stores the plan with its summary, unless that is no smaller than its source or another writer changed the span.

    `source_tokens` is the size of the summary's source, where that is not the plan's span.
    """
    message = as_message(summary, message_id=session.ports.ids.new()) if summary is not None and summary.text else None
    calls, usage = session.unbooked_calls, session.unbooked_usage
    body = Compacted(
        covered=_covered_ids(plan, before, session.pins),
        summary=message,
        shown=plan.shown,
        strategy=plan.strategy,
        reason=plan.reason,
        fallback_level=summary.fallback_level if summary else "",
        tokens_before=plan.tokens_before,
        calls=calls or None,
        usage=usage if calls and usage != Usage() else None,
        within=plan.within or None,
    )
    record = session.draft(body, turn_id=plan.turn_id)
    shown_ids = {m.id for m in plan.shown}
    replaced = (*plan.covered, *(e for e in before if e.id in shown_ids))
    documents = yield from _documents(session, replaced)
    if source_tokens is None:
        source_tokens = sum(e.tokens for e in plan.covered if e.message.kind != "section")
    if message is not None and (size := session.ports.counter.count(message)) >= source_tokens:
        reason = f"the summary would not be smaller: {size} of {source_tokens} tokens; rejected"
        return Outcome(None, reason, status="rejected")
    for _ in range(COMMIT_TRIES):
        if not _span_unchanged(session, plan, before):
            return Outcome(None, "another writer changed the span first; nothing was written")
        head, drafts, view_before, view_after = _predicted(session, record, body)
        try:
            yield from session.append(drafts, expect=head, documents=documents)
        except HeadMovedError:
            yield from session.refresh()
            continue
        session.compaction_pause = None
        session.unbooked_calls -= calls
        session.unbooked_usage = Usage()
        event = _event(session, plan, summary, view_before, view_after, session.ports.prices)
        return Outcome(event, plan.reason, status="compacted")
    return Outcome(None, f"other writers were first {COMMIT_TRIES} times; nothing was written")


def _predicted(session: Session, record: Draft, body: Compacted) -> tuple[int, tuple[Draft, ...], View, View]:
    """Returns the head to expect, the record with its snapshot, and the views before and after; nothing is written yet.

    The record's `body` gets the sizes of both views.
    """
    with session.lock:
        twin = session.state.copy()
    head, before, saved = twin.head, twin.view(record.turn_id), twin.saved_tokens
    twin.apply([Record(head + 1, record.id, body, record.turn_id, record.at_s)])
    after = twin.view(record.turn_id)
    record = replace(record, body=replace(body, tokens_before=before.tokens, tokens_after=after.tokens))
    twin.saved_tokens = saved + max(0, before.tokens - after.tokens)  # its own apply saw the plan's estimate
    return head, (record, snapshot_draft(twin, session.ports)), before, after


def _span_unchanged(session: Session, plan: Plan, before: View) -> bool:
    """Tells whether every entry that the plan covers or replaces is as it was; an erasure rewrites summaries in place."""
    now = {e.id: (e.version, e.message) for e in session.view(plan.turn_id)}
    planned = {e.id: (e.version, e.message) for e in plan.covered}
    planned |= {e.id: (e.version, e.message) for e in before if any(m.id == e.id for m in plan.shown)}
    return all(now.get(message_id) == entry for message_id, entry in planned.items())


def _covered_ids(plan: Plan, before: View, pins: Collection[str]) -> tuple[str, ...]:
    """Returns the ids of the plan's span, and of the sections that leave the conversation at every epoch head."""
    ids = dict.fromkeys(e.id for e in plan.covered)
    if plan.turn_id is None:
        has_question = any(is_question(e.message) for e in before.turn)
        keep = kept(before.live, pins=pins, question=not has_question)
        ids |= dict.fromkeys(e.id for e in before.live if e.message.kind == "section" and e.id not in keep)
    return tuple(ids)


def _documents(session: Session, entries: Iterable[Entry]) -> Flow[tuple[Document, ...]]:
    """Returns index entries for the originals that leave the view; summaries and sections are not originals."""
    messages = [e for e in entries if e.message.kind == "message"]
    if excerpts := sorted(e.seq for e in messages if e.shown_seq):
        # nearly all are indexed since they are excerpts, and they are the longest messages
        indexed = yield from StoreCall(Store.postings, session.key, [""], among=excerpts)
        indexed_seqs = {seq for seq, _, _ in indexed.by_term[""]}
        messages = [e for e in messages if e.seq not in indexed_seqs]
    whole = yield from session.originals(messages)
    return (yield from index_entries([(e.seq, whole.get(e.seq, e.message)) for e in messages]))


def _event(
    session: Session, plan: Plan, summary: Summary | None, before: View, after: View, prices: Prices | None
) -> HistoryCompacted:
    written = summary or Summary("", "")
    return HistoryCompacted(
        session=session.key.session,
        strategy=plan.strategy,
        reason=plan.reason,
        fallback_level=written.fallback_level,
        messages_before=len(before),
        messages_after=len(after),
        tokens_before=before.tokens,
        tokens_after=after.tokens,
        problems=written.problems,
        archived=sum(e.message.kind != "summary" for e in plan.covered) + len(plan.shown),
        facts_kept=written.kept,
        facts_put_back=written.put_back,
        facts_archived=written.archived,
        facts_invented=written.invented,
        summary_calls=written.calls,
        cost=session_cost(session.state, prices),
        covered=tuple(e.id for e in plan.covered if e.message.kind == "message"),
        summary_usage=written.usage,
        live_prefix=bool(written.live),
    )
