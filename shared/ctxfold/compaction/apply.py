"""Decide, do, commit: a compaction that fails, is cancelled or loses a race leaves the session exactly as it was."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ctxfold.compaction.plan import Facts, Hold, Plan
from ctxfold.compaction.summarize import Summary, as_message, summarize
from ctxfold.compaction.tiers import decide
from ctxfold.effects import FetchLog
from ctxfold.errors import HeadMovedError
from ctxfold.events import CompactionHeld, Event, HistoryCompacted
from ctxfold.flow import Flow
from ctxfold.history.records import Compacted, Draft, Record
from ctxfold.history.snapshot import message_in
from ctxfold.history.view import Entry, View
from ctxfold.journal import Journal, append, draft, refresh, snapshot_draft
from ctxfold.ports import Document, Ports
from ctxfold.zones.recall import document

__all__ = ["Outcome", "compact"]

COMMIT_TRIES = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a compaction: its event when it was written, otherwise why not."""

    event: HistoryCompacted | None
    reason: str

    @property
    def compacted(self) -> bool:
        return self.event is not None


def compact(journal: Journal, facts: Facts, ports: Ports) -> Flow[tuple[Outcome, tuple[Event, ...]]]:
    """One step towards room, if one is due and allowed."""
    rules = journal.rules()
    view = journal.view(facts.turn_id)
    if facts.mode == "close" and _held(journal, view):
        return Outcome(None, "nothing has changed since the last attempt could not help"), ()
    decision = decide(view, facts, rules=rules, counter=ports.counter)
    if isinstance(decision, Hold):
        return Outcome(None, decision.reason), _hold(journal, view, decision)
    with journal.lock:
        # what must fit now does not wait for a summary by another task: whoever writes first wins
        if journal.compacting and facts.mode == "close":
            return Outcome(None, "a compaction is under way"), ()
        journal.compacting += 1
    try:
        summary = None
        if decision.covered:
            window = _summarizer_window(ports, rules.context_window)
            summary = yield from summarize(decision.covered, rules=rules, counter=ports.counter, window_tokens=window)
        outcome = yield from _commit(journal, decision, summary, view, ports)
    finally:
        journal.compacting -= 1
    return outcome, (outcome.event,) if outcome.event else ()


def _summarizer_window(ports: Ports, fallback: int) -> int | None:
    return None if ports.summarizer is None else ports.summarizer.context_window or fallback


def _held(journal: Journal, view: View) -> bool:
    if journal.held is None:
        return False
    epoch, tokens, policy = journal.held
    grown = view.tokens - tokens >= journal.rules().min_free_ratio * journal.rules().budget_tokens
    return epoch == view.epoch and not grown and policy == journal.state.policy_json


def _hold(journal: Journal, view: View, hold: Hold) -> tuple[Event, ...]:
    if not hold.exhausted:
        return ()
    journal.held = (view.epoch, view.tokens, journal.state.policy_json)
    return (CompactionHeld(journal.key.session, hold.reason),)


def _commit(journal: Journal, plan: Plan, summary: Summary | None, before: View, ports: Ports) -> Flow[Outcome]:
    message = None if summary is None else as_message(summary, message_id=ports.ids.new())
    written = draft(
        ports,
        Compacted(
            covered=tuple(e.id for e in plan.covered),
            summary=message,
            shown=plan.shown,
            strategy=plan.strategy,
            reason=plan.reason,
            rung=summary.rung if summary else "",
            tokens_before=plan.tokens_before,
        ),
        turn_id=plan.turn_id,
    )
    documents = yield from _documents(journal, _leaving(plan, before), ports)
    source_tokens = sum(e.tokens for e in plan.covered)
    if message is not None and ports.counter.count(message) >= source_tokens:
        size = ports.counter.count(message)
        return Outcome(None, f"the summary would not be smaller: {size} of {source_tokens} tokens; rejected")
    for _ in range(COMMIT_TRIES):
        if not _unchanged(journal, plan, before):
            return Outcome(None, "another writer changed the span first; nothing was written")
        head, drafts, now, after = _predicted(journal, written, plan, ports)
        try:
            yield from append(journal, drafts, ports, expect=head, documents=documents)
        except HeadMovedError:
            yield from refresh(journal, ports)
            continue
        journal.held = None
        return Outcome(_event(journal, plan, summary, now, after), plan.reason)
    return Outcome(None, f"other writers were first {COMMIT_TRIES} times; nothing was written")


def _predicted(journal: Journal, written: Draft, plan: Plan, ports: Ports) -> tuple[int, tuple[Draft, ...], View, View]:
    """The head to expect, the record with its snapshot, and the view before and after; all before anything is written."""
    with journal.lock:
        twin = journal.state.copy()
    head, now = twin.head, twin.view(plan.turn_id)
    twin.apply([Record(head + 1, written.id, written.body, written.turn_id, written.at_s)])
    after = twin.view(plan.turn_id)
    body = written.body
    if isinstance(body, Compacted):
        written = replace(written, body=replace(body, tokens_before=now.tokens, tokens_after=after.tokens))
    return head, (written, snapshot_draft(twin, ports)), now, after


def _unchanged(journal: Journal, plan: Plan, before: View) -> bool:
    """Whether every entry that the plan covers or replaces still stands as it was."""
    now = {e.id: e.version for e in journal.view(plan.turn_id)}
    touched = {e.id: e.version for e in plan.covered}
    touched |= {e.id: e.version for e in before if any(m.id == e.id for m in plan.shown)}
    return all(now.get(message_id) == version for message_id, version in touched.items())


def _leaving(plan: Plan, before: View) -> tuple[Entry, ...]:
    shown = {m.id for m in plan.shown}
    return (*plan.covered, *(e for e in before if e.id in shown))


def _documents(journal: Journal, entries: Iterable[Entry], ports: Ports) -> Flow[tuple[Document, ...]]:
    """Index entries for the originals that leave the view; summaries are not originals."""
    leaving = [e for e in entries if e.message.kind == "message"]
    stood_in = tuple(e.seq for e in leaving if e.shown_seq)
    found = (yield from FetchLog(journal.key, stood_in)) if stood_in else ()
    originals = {r.seq: r for r in found}
    made: list[Document] = []
    for entry in leaving:
        record = originals.get(entry.seq)
        message = message_in(record, entry.id) if record else None
        made.append(document(entry.seq, message or entry.message))
    return tuple(made)


def _event(journal: Journal, plan: Plan, summary: Summary | None, before: View, after: View) -> HistoryCompacted:
    return HistoryCompacted(
        session=journal.key.session,
        strategy=plan.strategy,
        reason=plan.reason,
        rung=summary.rung if summary else "",
        messages_before=len(before),
        messages_after=len(after),
        tokens_before=before.tokens,
        tokens_after=after.tokens,
        problems=summary.problems if summary else (),
    )
