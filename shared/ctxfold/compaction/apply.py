"""Decide, do, commit: a compaction that fails, is cancelled or loses a race leaves the session exactly as it was."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias, TypeGuard

from ctxfold.compaction.plan import Decision, Facts, Hold, Mode, Plan
from ctxfold.compaction.prepare import alone, prepare, ready_or_leased
from ctxfold.compaction.probe import probe
from ctxfold.compaction.rewrite import proposed
from ctxfold.compaction.spans import answers_left
from ctxfold.compaction.strategy import Case, Strategy, decide, rewritten
from ctxfold.compaction.summarize import Summary, as_message, summarize
from ctxfold.compaction.tiers import BUILT_IN, Tiered
from ctxfold.effects import FetchLog
from ctxfold.errors import BackendError, ConfigError, CtxError, HeadMovedError, StrategyError, SummarizationFailedError
from ctxfold.events import CompactionHeld, Event, HistoryCompacted, RewriteRefused
from ctxfold.flow import Apart, Flow
from ctxfold.given import whole_number
from ctxfold.history.cost import session_cost
from ctxfold.history.cuts import kept
from ctxfold.history.records import Compacted, Draft, MessageAdded, Record
from ctxfold.history.snapshot import message_in
from ctxfold.history.view import Entry, View
from ctxfold.journal import Held, Journal, append, draft, refresh, snapshot_draft
from ctxfold.messages import Message, Usage
from ctxfold.ports import Document, Ports
from ctxfold.prices import Prices
from ctxfold.tracing import span
from ctxfold.trigger import counts, minds_idle
from ctxfold.zones.recall import documents

__all__ = [
    "Outcome",
    "Postponed",
    "check_known",
    "compact",
    "facts_of",
    "idle_time",
    "index_oversized",
    "written_later",
]

COMMIT_TRIES = 4
FEW_TOKENS = 64
IMPORT_RATIO = 2.0  # of the budget


@dataclass(frozen=True, slots=True)
class Postponed:
    """A summary that a model still has to write: of this plan, in place of the extractive one with this id."""

    plan: Plan
    case: Case
    stand_in_id: str


OutcomeStatus: TypeAlias = Literal["compacted", "no_change", "rejected", "not_stored"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a compaction: its event when it was written, otherwise why not.

    `status` is "compacted", "no_change" (nothing was due, possible or left to do), "rejected" (a summary was written and not
    taken) or "not_stored" (the store failed, and the session is as it was).
    """

    event: HistoryCompacted | None
    reason: str
    refused: RewriteRefused | None = None
    status: OutcomeStatus = "no_change"
    postponed: Postponed | None = None

    @property
    def compacted(self) -> bool:
        return self.event is not None


def facts_of(
    journal: Journal, mode: Mode, *, turn_id: str | None = None, overhead_tokens: int = 0, idle_s: float = 0.0
) -> Facts:
    """What a decision needs to know of the session beyond its view."""
    state = journal.state
    since = state.turns - state.summary_turn if state.summary_turn >= 0 else state.turns + 1
    with journal.lock:
        deferred = dict(state.deferred)
    goal = state.goal
    return Facts(tuple(state.pins), since, turn_id, overhead_tokens, mode, idle_s, goal.goal, goal.subgoals, deferred)


def check_known(name: str, own: Mapping[str, Strategy], session: str) -> None:
    """ConfigError for the name of a strategy whose object nobody has given."""
    if name not in own and name not in BUILT_IN:
        raise ConfigError(
            f"session {session!r} uses the strategy {name!r}, which is not built in ({', '.join(BUILT_IN)}): give the object "
            "(strategy=...), or choose another one by name (strategy='tiered')"
        )


def idle_time(journal: Journal, ports: Ports) -> Flow[float]:
    """Seconds since the session's last record, where the policy's trigger asks for them; otherwise 0, and nothing is read."""
    trigger = journal.rules().trigger
    if trigger is None or not minds_idle(trigger):
        return 0.0
    newest = yield from FetchLog(journal.key, (journal.state.head,))
    return max(0.0, ports.clock.now_s() - newest[0].at_s) if newest else 0.0


def index_oversized(journal: Journal, drafts: Sequence[Draft], stored: Sequence[Record], ports: Ports) -> Flow[None]:
    """Make the originals searchable that are excerpts from the first time they are shown."""
    seqs = {r.id: r.seq for r in stored}
    originals = [
        (seqs[d.id], d.body.message)
        for d in drafts
        if isinstance(d.body, MessageAdded) and d.body.shown is not None and d.id in seqs
    ]
    if originals:
        found = yield from documents(originals)
        yield from append(journal, (), ports, documents=found)


def compact(
    journal: Journal,
    facts: Facts,
    ports: Ports,
    own: Mapping[str, Strategy] | None = None,
    *,
    summary_tokens: int | None = None,
) -> Flow[tuple[Outcome, tuple[Event, ...]]]:
    """One step towards room, if one is due and allowed. `own` are strategies of the user's, by name.

    `summary_tokens` is the limit of this one summary, in place of the policy's.
    """
    view, rules = journal.view(facts.turn_id), journal.rules()
    if summary_tokens is not None:
        limit = whole_number(
            "summary_tokens", summary_tokens, "give the most tokens that the summary may take, 1 or more"
        )
        rules = rules.model_copy(update={"summary_tokens": limit})
    if facts.mode == "close" and _held(journal, view):
        return Outcome(None, "nothing has changed since the last attempt could not help"), ()
    check_known(rules.strategy, own or {}, journal.key.session)
    strategy = (own or {}).get(rules.strategy) or BUILT_IN[rules.strategy]
    with journal.lock:
        # what must fit now does not wait for a summary by another task: whoever writes first wins
        if journal.compacting and facts.mode == "close":
            return Outcome(None, "a compaction is under way"), ()
        journal.compacting += 1
    journal.worker = journal.worker or ports.ids.new()
    try:
        case = Case(view, facts, rules, ports.counter)
        decision, events = yield from _decision(journal, case, strategy)
        write = partial(_written, journal, ports)
        if isinstance(decision, Hold):
            yield from prepare(journal, case, strategy, write)
            return Outcome(None, decision.reason), (*events, *_hold(journal, case, decision))
        imported = decision if _came_at_once(decision, case, ports) else None
        if imported is not None:
            told = f"{decision.reason}; {len(decision.covered)} messages came at once: a summary by the model follows"
            decision = replace(decision, writer="extractive", reason=told)
        found = yield from ready_or_leased(journal, decision, case, strategy, write, ports)
        if isinstance(found, str):
            return Outcome(None, found), events
        with span("compact", {"gen_ai.operation.name": "compact", "ctxfold.strategy": decision.strategy}) as noted:
            outcome = yield from alone(journal, decision, _done(journal, *found, case, ports), ports)
            if noted is not None and outcome.event is not None:
                noted.set_attribute("ctxfold.rung", outcome.event.rung)
                noted.set_attribute("ctxfold.tokens_before", outcome.event.tokens_before)
                noted.set_attribute("ctxfold.tokens_after", outcome.event.tokens_after)
        known = {e.id for e in view}
        stand_in = next((e.id for e in journal.view().compressed if e.id not in known), None)
        if imported is not None and outcome.compacted and stand_in is not None:
            outcome = replace(outcome, postponed=Postponed(imported, case, stand_in))
    finally:
        journal.compacting -= 1
    if outcome.refused is not None:
        events = (*events, outcome.refused)
    if not outcome.compacted and facts.mode == "close":
        _hold_on(journal, view, case.needed_tokens)
        events = (*events, CompactionHeld(journal.key.session, outcome.reason))
    return outcome, (*events, outcome.event) if outcome.event else events


def _came_at_once(plan: Plan, case: Case, ports: Ports) -> bool:
    """Whether the span is more than a conversation grows to between two compactions, such as the history of an agent to which
    sessions are given later. Nobody waits for the many calls that it takes, except who asks for a compaction.
    """
    if case.facts.mode == "forced" or ports.summarizer is None or ports.tasks is None:
        return False
    large = sum(e.tokens for e in plan.covered) > IMPORT_RATIO * case.rules.budget_tokens
    return large and plan.writer == "model" and plan.turn_id is None and plan.text is None


def written_later(journal: Journal, postponed: Postponed, ports: Ports) -> Flow[HistoryCompacted | str]:
    """Have the model write the summary that was postponed, and put it in place of the extractive one.

    The event, or why it could not be done: that summary stays then, and the archive has everything.
    """
    plan, case = postponed.plan, replace(postponed.case, facts=replace(postponed.case.facts, mode="close"))
    summary = yield from _written(journal, ports, plan, case)
    if summary.rung in ("extractive", "truncate"):
        return "; ".join(summary.problems) or "the summariser was not asked"
    yield from refresh(journal, ports)
    view = journal.view()
    standing = tuple(e for e in view.compressed if e.id == postponed.stand_in_id)
    if not standing:
        return "a later compaction has covered it meanwhile"
    reason = f"{plan.reason}; the summary was written in the background"
    swap = replace(plan, covered=standing, shown=(), reason=reason, tokens_before=view.tokens)
    source_tokens = sum(e.tokens for e in plan.covered)
    outcome = yield from _commit(journal, swap, summary, view, ports, source_tokens=source_tokens)
    return outcome.event or outcome.reason


def _decision(journal: Journal, case: Case, strategy: Strategy) -> Flow[tuple[Decision, tuple[Event, ...]]]:
    """What the strategy wants. What a request needs in order to fit does not depend on the user's own."""
    events: tuple[Event, ...] = ()
    try:
        decision = yield from _wanted(case, strategy)
    except StrategyError as error:
        if case.facts.mode != "cap":
            raise
        decision = Hold(str(error))
        events = (CompactionHeld(journal.key.session, str(error)),)
    if case.facts.mode != "cap" or strategy.name in BUILT_IN:
        return decision, events
    fits = isinstance(decision, Plan) and (
        decision.tokens_after + case.facts.overhead_tokens <= case.rules.budget_tokens
    )
    return decision if fits else decide(Tiered(), case), events


def _wanted(case: Case, strategy: Strategy) -> Flow[Decision]:
    decision = decide(strategy, case)
    if isinstance(decision, Hold) or decision.rewrite is None:
        return decision
    try:
        result: object = yield from Apart(decision.rewrite, case.rules.summary_timeout_s, own_loop=True)
    except BackendError as error:
        raise StrategyError(f"summarizer {strategy.name!r} failed: {error}; nothing was compacted") from error
    except CtxError:
        raise
    except Exception as error:
        raise StrategyError(f"summarizer {strategy.name!r} raised {error!r}; nothing was compacted") from error
    if not _messages(result):
        raise StrategyError(f"summarizer {strategy.name!r} returned {type(result).__name__}: return a list of messages")
    return rewritten(decision, case, result)


def _messages(value: object) -> TypeGuard[Sequence[Message]]:
    if not isinstance(value, list | tuple):
        return False
    items: list[object] = [*value]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return all(isinstance(m, Message) for m in items)


def _done(journal: Journal, plan: Plan, summary: Summary | None, case: Case, ports: Ports) -> Flow[Outcome]:
    if plan.covered and summary is None:
        try:
            summary = yield from _written(journal, ports, plan, case)
        except SummarizationFailedError as error:
            return Outcome(None, str(error), status="rejected")
    plan, summary, refused = proposed(journal.key.session, plan, summary, case, journal.rewriters)
    if case.facts.mode == "cap" and summary is not None and _few_words(plan, summary, ports):
        within = plan.within or plan.turn_id is not None
        answers = () if within else answers_left({e.id for e in plan.covered}, case.view, case.facts.pins)
        plan, summary = replace(plan, writer="nobody", covered=(*plan.covered, *answers)), None
    outcome = yield from _commit(journal, plan, summary, case.view, ports)
    return replace(outcome, refused=refused)


def _few_words(plan: Plan, summary: Summary, ports: Ports) -> bool:
    """Whether no summary is shorter than the span: where a request has to fit, it goes without, and the archive has it."""
    source_tokens = sum(e.tokens for e in plan.covered)
    size = ports.counter.count(as_message(summary, message_id=""))
    return source_tokens <= FEW_TOKENS and size >= source_tokens


def _written(journal: Journal, ports: Ports, plan: Plan, case: Case) -> Flow[Summary]:
    rules = case.rules
    spent = journal.state.summary_calls + journal.unbooked_calls
    window = None if ports.summarizer is None else ports.summarizer.context_window or rules.context_window
    summary = yield from summarize(
        plan.covered,
        rules=rules,
        counter=ports.counter,
        window_tokens=window,
        writer=plan.writer,
        text=plan.text,
        calls_left=None if rules.max_summary_calls is None else max(0, rules.max_summary_calls - spent),
    )
    journal.unbooked_calls += summary.calls
    journal.unbooked_usage += summary.usage
    if not rules.probe or not summary.rung.startswith("model"):
        return summary
    found = yield from probe(summary.text, plan.covered)
    journal.unbooked_calls += found.calls
    journal.unbooked_usage += found.usage or Usage()
    told = f"probe: {found.verdict}, {found.score:.0%} of its questions answered from the summary alone"
    if found.verdict != "reject":
        return replace(summary, problems=(*summary.problems, told)) if found.verdict == "warn" else summary
    if case.facts.mode != "cap":
        raise SummarizationFailedError(f"{told}; the originals stay")
    # the request has to fit: a summary of verbatim lines in its place
    return (yield from _written(journal, ports, replace(plan, writer="extractive"), case))


def _held(journal: Journal, view: View) -> bool:
    held = journal.held
    if held is None:
        return False
    return held.epoch == view.epoch and view.tokens < held.until_tokens and held.rules == journal.window_rules()


def _hold(journal: Journal, case: Case, hold: Hold) -> tuple[Event, ...]:
    """A decision costs no model call: where the user has named an amount it is asked for again as soon as there is more."""
    if not hold.exhausted:
        return ()
    told = journal.held is not None and journal.held.epoch == case.view.epoch
    amount = case.rules.trigger is not None and counts(case.rules.trigger)
    _hold_on(journal, case.view, 1 if amount else case.needed_tokens)
    return () if told and amount else (CompactionHeld(journal.key.session, hold.reason),)


def _hold_on(journal: Journal, view: View, more_tokens: float) -> None:
    """No further attempt until the history has grown by that much, an epoch has begun, or the rules are others."""
    journal.held = Held(view.epoch, view.tokens + more_tokens, journal.window_rules())


def _commit(
    journal: Journal,
    plan: Plan,
    summary: Summary | None,
    before: View,
    ports: Ports,
    *,
    source_tokens: int | None = None,
) -> Flow[Outcome]:
    """Write the plan. `source_tokens` is what was summarised, if that is not what the plan covers."""
    message = as_message(summary, message_id=ports.ids.new()) if summary is not None and summary.text else None
    booked, used = journal.unbooked_calls, journal.unbooked_usage
    written = draft(
        ports,
        Compacted(
            covered=_gone(plan, before, journal.state.pins),
            summary=message,
            shown=plan.shown,
            strategy=plan.strategy,
            reason=plan.reason,
            rung=summary.rung if summary else "",
            tokens_before=plan.tokens_before,
            calls=booked or None,
            usage=used if booked and used != Usage() else None,
            within=plan.within or None,
        ),
        turn_id=plan.turn_id,
    )
    leaving = yield from _documents(journal, _leaving(plan, before))
    if source_tokens is None:
        source_tokens = sum(e.tokens for e in plan.covered if e.message.kind != "section")
    if message is not None and ports.counter.count(message) >= source_tokens:
        size = ports.counter.count(message)
        reason = f"the summary would not be smaller: {size} of {source_tokens} tokens; rejected"
        return Outcome(None, reason, status="rejected")
    for _ in range(COMMIT_TRIES):
        if not _unchanged(journal, plan, before):
            return Outcome(None, "another writer changed the span first; nothing was written")
        head, drafts, now, after = _predicted(journal, written, plan, ports)
        try:
            yield from append(journal, drafts, ports, expect=head, documents=leaving)
        except HeadMovedError:
            yield from refresh(journal, ports)
            continue
        journal.held = None
        journal.unbooked_calls -= booked
        journal.unbooked_usage = Usage()
        event = _event(journal, plan, summary, now, after, ports.prices)
        return Outcome(event, plan.reason, status="compacted")
    return Outcome(None, f"other writers were first {COMMIT_TRIES} times; nothing was written")


def _predicted(journal: Journal, written: Draft, plan: Plan, ports: Ports) -> tuple[int, tuple[Draft, ...], View, View]:
    """The head to expect, the record with its snapshot, and the view before and after; all before anything is written."""
    with journal.lock:
        twin = journal.state.copy()
    head, now, saved = twin.head, twin.view(plan.turn_id), twin.saved_tokens
    twin.apply([Record(head + 1, written.id, written.body, written.turn_id, written.at_s)])
    after = twin.view(plan.turn_id)
    body = written.body
    if isinstance(body, Compacted):
        written = replace(written, body=replace(body, tokens_before=now.tokens, tokens_after=after.tokens))
        twin.saved_tokens = saved + max(0, now.tokens - after.tokens)  # its own apply saw the plan's numbers
    return head, (written, snapshot_draft(twin, ports)), now, after


def _unchanged(journal: Journal, plan: Plan, before: View) -> bool:
    """Whether every entry that the plan covers or replaces still stands as it was; an erasure rewrites summaries in place."""
    now = {e.id: (e.version, e.message) for e in journal.view(plan.turn_id)}
    touched = {e.id: (e.version, e.message) for e in plan.covered}
    touched |= {e.id: (e.version, e.message) for e in before if any(m.id == e.id for m in plan.shown)}
    return all(now.get(message_id) == entry for message_id, entry in touched.items())


def _gone(plan: Plan, before: View, pins: Collection[str]) -> tuple[str, ...]:
    """What the plan covers, and the sections that leave the conversation at every epoch head."""
    ids = dict.fromkeys(e.id for e in plan.covered)
    if plan.turn_id is None:
        asked = any(e.message.role == "user" and e.message.kind == "message" for e in before.turn)
        keep = kept(before.live, pins=pins, question=not asked)
        ids |= dict.fromkeys(e.id for e in before.live if e.message.kind == "section" and e.id not in keep)
    return tuple(ids)


def _leaving(plan: Plan, before: View) -> tuple[Entry, ...]:
    shown = {m.id for m in plan.shown}
    return (*plan.covered, *(e for e in before if e.id in shown))


def _documents(journal: Journal, entries: Iterable[Entry]) -> Flow[tuple[Document, ...]]:
    """Index entries for the originals that leave the view; summaries are not originals."""
    leaving = [e for e in entries if e.message.kind == "message"]
    stood_in = tuple(e.seq for e in leaving if e.shown_seq)
    found = (yield from FetchLog(journal.key, stood_in)) if stood_in else ()
    ids = {e.seq: e.id for e in leaving}
    originals = {r.seq: message_in(r, ids[r.seq]) for r in found}
    return (yield from documents([(e.seq, originals.get(e.seq) or e.message) for e in leaving]))


def _event(
    journal: Journal, plan: Plan, summary: Summary | None, before: View, after: View, prices: Prices | None
) -> HistoryCompacted:
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
        archived=sum(e.message.kind != "summary" for e in plan.covered) + len(plan.shown),
        facts_kept=summary.kept if summary else 0,
        facts_in_ledger=summary.in_ledger if summary else 0,
        facts_archived=summary.archived if summary else 0,
        facts_invented=summary.invented if summary else 0,
        summary_calls=summary.calls if summary else 0,
        cost=session_cost(journal.state, prices),
        covered=tuple(e.id for e in plan.covered if e.message.kind == "message"),
    )
