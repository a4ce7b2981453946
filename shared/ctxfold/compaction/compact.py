"""Compacts a session in three stages: decide on a plan, write its summary, commit both.

A compaction that fails, is cancelled or loses a race leaves the session as it was.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeGuard

from ctxfold.compaction.background import prepare, prepared_or_leased, releasing
from ctxfold.compaction.built_in import BUILT_IN, BetweenRounds, EarlyArguments, Tiered
from ctxfold.compaction.commit import Outcome, Postponed, commit
from ctxfold.compaction.goal import probe
from ctxfold.compaction.live_prefix import MAX_FAILURES, live_prefix
from ctxfold.compaction.steps import orphaned_answers
from ctxfold.compaction.strategy import (
    CompactionInput,
    Decision,
    Occasion,
    Plan,
    SessionFacts,
    Skip,
    Strategy,
    decide,
    rewritten,
)
from ctxfold.compaction.summarize import Progress, Summary, as_message, summarize
from ctxfold.compaction.work_state import tokens_left
from ctxfold.effects import Complete, DetachedCall, Flow, StoreCall, limited, off_loop
from ctxfold.errors import BackendError, ConfigError, CtxError, CtxWarning, StrategyError, SummarizationFailedError
from ctxfold.events import (
    CompactionHeld,
    CompactionProgress,
    CompactionProposal,
    CompactionStarted,
    Event,
    HistoryCompacted,
    Rewriter,
    RewriteRefused,
    WindowGauge,
)
from ctxfold.history.calibration import calibrated
from ctxfold.history.log import compared_cost
from ctxfold.history.view import Entry, WindowTokens
from ctxfold.messages import Message, Usage, user
from ctxfold.policy.prices import CostLine
from ctxfold.policy.settings import Policy
from ctxfold.policy.triggers import counts, depends_on_idle_time, due_at
from ctxfold.protocols import Ports, Request, Store, TokenCounter, capabilities_of
from ctxfold.state import CompactionPause, Session, Stage
from ctxfold.telemetry import span
from ctxfold.validation import whole_number

SUBSCRIBER = "on_compaction"
FEW_TOKENS = 64
IMPORT_RATIO = 2.0  # of the budget
# times summary_timeout_s: so at most a sixth of a session's time is spent waiting for a dead summariser
SUMMARISER_PAUSE = 5


def compact(
    session: Session,
    stage: Stage,
    facts: SessionFacts,
    strategies: Mapping[str, Strategy],
    *,
    summary_tokens: int | None = None,
) -> Flow[tuple[Outcome, tuple[Event, ...]]]:
    """Compacts once if that is due and allowed; returns the outcome and the events to report.

    `strategies` are the user's own by name. `summary_tokens` is the limit of this one summary, in place of the policy's.
    """
    rules = _with_summary_limit(stage.rules, summary_tokens)
    after_turn = facts.occasion == "after_turn"
    if after_turn and _is_paused(session, stage):
        return Outcome(None, "nothing has changed since the last attempt could not help"), ()
    strategy = strategy_in_force(rules.strategy, strategies, session.key.session)
    with session.lock:
        # what must fit now does not wait for a summary by another task: whoever writes first wins
        if session.compacting and after_turn:
            return Outcome(None, "a compaction is under way"), ()
        session.compacting += 1
    session.worker = session.worker or session.ports.ids.new()
    try:
        case = CompactionInput(stage.view, facts, rules, session.ports.counter)
        return (yield from _compact_once(session, stage, case, strategy))
    finally:
        session.compacting -= 1


def _compact_once(
    session: Session, stage: Stage, case: CompactionInput, strategy: Strategy
) -> Flow[tuple[Outcome, tuple[Event, ...]]]:
    """Decides, writes the summary and commits. The model's summary of an import is postponed: an extractive one stands for it."""
    decision, events = yield from _decide(session, case, strategy)
    write = partial(_write_summary, session)
    if isinstance(decision, Skip):
        yield from prepare(session, case, strategy, write)
        return Outcome(None, decision.reason), (*events, *_pause_after(session, stage, case, decision))
    plan, imported = decision, _is_import(decision, case, session.ports)
    if imported:
        note = f"{len(plan.covered)} messages came at once: a summary by the model follows"
        plan = replace(plan, writer="extractive", reason=f"{plan.reason}; {note}")
    prepared = yield from prepared_or_leased(session, plan, case, strategy, write)
    if isinstance(prepared, str):
        return Outcome(None, prepared), events
    outcome = yield from _traced(session, *prepared, case)
    if outcome.refused is not None:
        events = (*events, outcome.refused)
    event = outcome.event
    if event is None:
        if case.facts.occasion == "after_turn":
            _pause(session, stage, case.needed_tokens)
        return outcome, (*events, CompactionHeld(session.key.session, outcome.reason))
    known_ids = {e.id for e in case.view}
    stand_in = next((e.id for e in session.view().compressed if e.id not in known_ids), None)
    if imported and stand_in is not None:
        outcome = replace(outcome, postponed=Postponed(replace(decision, writer="model"), case, stand_in))
    return outcome, (*events, event)


# the input of a decision


def session_facts(
    session: Session,
    occasion: Occasion,
    *,
    turn_id: str | None = None,
    overhead_tokens: int = 0,
    idle_s: float = 0.0,
    gives_way: frozenset[str] = frozenset(),
) -> SessionFacts:
    """Returns the facts about a session that a decision needs beyond its view."""
    state = session.state
    turns = state.turns - state.summary_turn if state.summary_turn >= 0 else state.turns + 1
    with session.lock:
        deferred = dict(state.deferred)
    goal = state.goal
    return SessionFacts(
        pins=session.pins,
        turns_since_summary=turns,
        turn_id=turn_id,
        overhead_tokens=overhead_tokens,
        occasion=occasion,
        idle_s=idle_s,
        goal=goal.goal,
        subgoals=goal.subgoals,
        deferred=deferred,
        gives_way=gives_way,
        saved_tokens=state.saved_tokens,
    )


def idle_time(session: Session, stage: Stage) -> Flow[float]:
    """Returns the seconds since the session's last record; 0, and nothing is read, where the policy's trigger ignores them."""
    trigger = stage.rules.trigger
    if trigger is None or not depends_on_idle_time(trigger):
        return 0.0
    newest = yield from StoreCall(Store.fetch, session.key, (session.state.head,))
    return max(0.0, session.ports.clock.now_s() - newest[0].at_s) if newest else 0.0


def strategy_in_force(name: str, strategies: Mapping[str, Strategy], session: str) -> Strategy:
    """Returns the strategy that the log names, and the default, with a warning, where this process does not have it."""
    try:
        return strategy_named(name, strategies, session)
    except ConfigError as error:
        warnings.warn(f"{error}; until then 'tiered' is used", CtxWarning, stacklevel=2)
        return BUILT_IN["tiered"]


def strategy_named(name: str, strategies: Mapping[str, Strategy], session: str) -> Strategy:
    """Returns the user's own or the built-in strategy of that name; raises ConfigError where there is none."""
    strategy = strategies.get(name) or BUILT_IN.get(name)
    if strategy is None:
        raise ConfigError(
            f"session {session!r} uses the strategy {name!r}, which is not built in ({', '.join(BUILT_IN)}): give the object "
            "(strategy=...), or choose another one by name (strategy='tiered')"
        )
    return strategy


def _with_summary_limit(rules: Policy, summary_tokens: int | None) -> Policy:
    if summary_tokens is None:
        return rules
    limit = whole_number("summary_tokens", summary_tokens, "give the most tokens that the summary may take, 1 or more")
    return rules.model_copy(update={"summary_tokens": limit})


# decide


def _decide(session: Session, case: CompactionInput, strategy: Strategy) -> Flow[tuple[Decision, tuple[Event, ...]]]:
    """Returns the strategy's decision. Where a request has to fit and a user's strategy does not help, the default decides."""
    must_fit = case.facts.occasion == "must_fit"
    events: tuple[Event, ...] = ()
    try:
        decision = yield from _ask(strategy, case)
    except StrategyError as error:
        if not must_fit:
            raise
        decision = Skip(str(error))
        events = (CompactionHeld(session.key.session, str(error)),)
    if not must_fit or strategy.name in BUILT_IN:
        return decision, events
    fits = isinstance(decision, Plan) and (
        decision.tokens_after + case.facts.overhead_tokens <= case.rules.budget_tokens
    )
    return decision if fits else decide(Tiered(), case), events


def _ask(strategy: Strategy, case: CompactionInput) -> Flow[Decision]:
    """Returns the strategy's decision; calls the function of a plan that rewrites the message list."""
    # excerpts of a whole window take tens of milliseconds; a strategy of the user's stays in its thread
    chars = 4 * case.view.tokens if _may_prune(strategy, case) else 0
    decision = yield from off_loop(partial(decide, strategy, case), chars)
    if isinstance(decision, Skip) or decision.rewrite is None:
        return decision
    try:
        result: object = yield from DetachedCall(decision.rewrite, case.rules.summary_timeout_s, own_loop=True)
    except BackendError as error:
        raise StrategyError(f"summarizer {strategy.name!r} failed: {error}; nothing was compacted") from error
    except CtxError:
        raise
    except Exception as error:
        raise StrategyError(f"summarizer {strategy.name!r} raised {error!r}; nothing was compacted") from error
    if not _are_messages(result):
        raise StrategyError(f"summarizer {strategy.name!r} returned {type(result).__name__}: return a list of messages")
    return rewritten(decision, case, result)


def _may_prune(strategy: Strategy, case: CompactionInput) -> bool:
    if not isinstance(strategy, Tiered | BetweenRounds | EarlyArguments):
        return False
    return case.facts.occasion != "after_turn" or case.used_tokens > case.rules.soft_ratio * case.rules.budget_tokens


def _are_messages(value: object) -> TypeGuard[Sequence[Message]]:
    if not isinstance(value, list | tuple):
        return False
    items: list[object] = [*value]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return all(isinstance(m, Message) for m in items)


def _is_import(plan: Plan, case: CompactionInput, ports: Ports) -> bool:
    """Tells whether the plan covers more than a conversation grows by between two compactions, as an imported history does.

    Such a summary takes many model calls, for which only a compaction on demand waits.
    """
    if case.facts.occasion == "on_demand" or ports.summarizer is None or ports.tasks is None:
        return False
    large = sum(e.tokens for e in plan.covered) > IMPORT_RATIO * case.rules.budget_tokens
    return large and plan.writer in ("model", "provider") and plan.turn_id is None and plan.text is None


def _is_paused(session: Session, stage: Stage) -> bool:
    """Tells whether the last attempt could not help, and nothing has changed since."""
    pause, view = session.compaction_pause, stage.view
    if pause is None or pause.epoch != view.epoch or view.tokens >= pause.until_tokens:
        return False
    return pause.rules == session.window_rules(stage.context_window)


def _pause(session: Session, stage: Stage, more_tokens: float) -> None:
    """Prevents further attempts until the history has grown by `more_tokens`, an epoch has begun, or the rules change."""
    rules = session.window_rules(stage.context_window)
    session.compaction_pause = CompactionPause(stage.view.epoch, stage.view.tokens + more_tokens, rules)


def _pause_after(session: Session, stage: Stage, case: CompactionInput, skip: Skip) -> tuple[Event, ...]:
    """Pauses compaction after a decision that a due compaction cannot help; returns the event that says so.

    Where the trigger names an amount, the decision is made again as soon as there is more: it costs no model call.
    """
    if not skip.exhausted:
        return ()
    reported = session.compaction_pause is not None and session.compaction_pause.epoch == case.view.epoch
    amount = case.rules.trigger is not None and counts(case.rules.trigger)
    _pause(session, stage, 1 if amount else case.needed_tokens)
    return () if reported and amount else (CompactionHeld(session.key.session, skip.reason),)


# write the summary


def _traced(session: Session, plan: Plan, summary: Summary | None, case: CompactionInput) -> Flow[Outcome]:
    session.events.emit(
        _started(session, plan, asks_model=summary is None and _asks_model(plan, session.ports, session.model))
    )
    with span("compact", {"gen_ai.operation.name": "compact", "ctxfold.strategy": plan.strategy}) as compact_span:
        try:
            outcome = yield from releasing(session, plan, _write_and_commit(session, plan, summary, case))
        except BaseException as error:
            if not (case.facts.occasion == "after_turn" and isinstance(error, CtxError)):  # reported by `maintain`
                text = f"the compaction failed: {error if isinstance(error, CtxError) else repr(error)}"
                session.events.emit(CompactionHeld(session.key.session, text))
            raise
        if compact_span is not None and outcome.event is not None:
            compact_span.set_attribute("ctxfold.fallback_level", outcome.event.fallback_level)
            compact_span.set_attribute("ctxfold.tokens_before", outcome.event.tokens_before)
            compact_span.set_attribute("ctxfold.tokens_after", outcome.event.tokens_after)
    return outcome


def _started(session: Session, plan: Plan, *, asks_model: bool, background: bool = False) -> CompactionStarted:
    shown = {m.id for m in plan.shown}
    entries = plan.covered or [e for e in session.view(plan.turn_id) if e.id in shown]
    tokens = sum(e.tokens for e in entries)
    name, reason = session.key.session, plan.reason
    return CompactionStarted(name, plan.strategy, reason, len(entries), tokens, asks_model, background)


def _asks_model(plan: Plan, ports: Ports, model: str) -> bool:
    if plan.writer == "provider" and capabilities_of(ports.backend, model).compacts_from is not None:
        return True
    return bool(plan.covered) and plan.writer == "model" and plan.text is None and ports.summarizer is not None


def _write_and_commit(session: Session, plan: Plan, summary: Summary | None, case: CompactionInput) -> Flow[Outcome]:
    """Writes the summary where none was prepared, offers it to the subscriber, and commits the plan."""
    if plan.covered and summary is None:
        try:
            plan, summary = yield from _written(session, plan, case)
        except SummarizationFailedError as error:
            if case.rules.strict_summaries:
                raise
            return Outcome(None, str(error), status="rejected")
    plan, summary, refused = offered(session.key.session, plan, summary, case, session.events.rewriters)
    if case.facts.occasion == "must_fit" and summary is not None and _is_no_shorter(plan, summary, session.ports):
        # a span of a few words is dropped without a summary; the archive has it
        within = plan.within or plan.turn_id is not None
        answers = () if within else orphaned_answers({e.id for e in plan.covered}, case.view, case.facts.pins)
        plan, summary = replace(plan, writer="none", covered=(*plan.covered, *answers)), None
    outcome = yield from commit(session, plan, summary, case.view)
    return replace(outcome, refused=refused)


def _is_no_shorter(plan: Plan, summary: Summary, ports: Ports) -> bool:
    """Tells whether the span is so short that its summary is no shorter."""
    source_tokens = sum(e.tokens for e in plan.covered)
    size = ports.counter.count(as_message(summary, message_id=""))
    return source_tokens <= FEW_TOKENS and size >= source_tokens


def _progress_of(session: Session) -> Progress:
    name = session.key.session
    return lambda done, needed: session.events.emit(CompactionProgress(name, done, needed))


def _write_summary(
    session: Session, plan: Plan, case: CompactionInput, progress: Progress | None = None
) -> Flow[Summary]:
    """Returns the summary of the plan's span, probed where the policy says so; books its model calls.

    A summariser that did not answer in time is asked by no automatic compaction for a while: the summary is extractive then.
    """
    rules = case.rules
    asks = plan.writer == "model" and plan.text is None
    wait_s = session.summariser_paused_until_s - session.ports.clock.now_s()
    if asks and wait_s > 0 and case.facts.occasion != "on_demand":
        summary = yield from _write_summary(session, replace(plan, writer="extractive"), case)
        problem = f"model: the summariser did not answer in time; it is asked again in {math.ceil(wait_s)} s"
        return replace(summary, problems=(problem, *summary.problems))
    summary = yield from summarize(
        plan.covered,
        rules=rules,
        counter=session.ports.counter,
        window_tokens=session.ports.summary_window(rules.context_window),
        writer=plan.writer,
        text=plan.text,
        calls_left=session.summary_calls_left(rules),
        live=live_prefix(session, plan, case) if asks else None,
        progress=progress,
        state_tokens=tokens_left(case.view, plan.covered, case.counter),
    )
    session.unbooked_calls += summary.calls
    session.unbooked_usage += summary.usage
    if summary.timed_out:
        pause_s = SUMMARISER_PAUSE * (rules.summary_timeout_s or 120.0)
        session.summariser_paused_until_s = session.ports.clock.now_s() + pause_s
    if summary.live is not None:
        change = -1 if summary.live else 1
        session.live_prefix_failures = max(-MAX_FAILURES, session.live_prefix_failures + change)
    if not rules.probe or not summary.fallback_level.startswith("model"):
        return summary
    result = yield from probe(summary.text, plan.covered)
    session.unbooked_calls += result.calls
    session.unbooked_usage += result.usage or Usage()
    report = f"probe: {result.verdict}, {result.score:.0%} of its questions answered from the summary alone"
    if result.verdict != "reject":
        return replace(summary, problems=(*summary.problems, report)) if result.verdict == "warn" else summary
    if case.facts.occasion != "must_fit":
        raise SummarizationFailedError(f"{report}; the originals stay")
    # the request has to fit: a summary of verbatim lines in its place
    return (yield from _write_summary(session, replace(plan, writer="extractive"), case))


def _written(session: Session, plan: Plan, case: CompactionInput) -> Flow[tuple[Plan, Summary]]:
    """Returns the plan with its summary. Where the service writes none of its own, a model does, and the reason says why."""
    problem = None
    if plan.writer == "provider":
        result = yield from _by_provider(session, plan, case)
        if isinstance(result, Summary):
            return plan, result
        problem = f"provider: {result}"
        plan = replace(plan, strategy="summarize", writer="model", reason=f"{plan.reason}; {problem}")
    summary = yield from _write_summary(session, plan, case, progress=_progress_of(session))
    return plan, summary if problem is None else replace(summary, problems=(problem, *summary.problems))


def _by_provider(session: Session, plan: Plan, case: CompactionInput) -> Flow[Summary | str]:
    """Returns the service's own summary of the plan's span beside a text of ours, which every other model reads.

    Returns the reason instead where it writes none, or one that does not help.
    """
    request = _provider_request(session, plan, case)
    if isinstance(request, str):
        return request
    try:
        reply = yield from limited(Complete(request), case.rules.summary_timeout_s)
    except CtxError as error:
        return str(error)
    usage = reply.billed or reply.usage or Usage()
    session.unbooked_calls += 1
    session.unbooked_usage += usage
    if reply.summary is None:
        return "the answer held no summary"
    own = yield from _write_summary(session, replace(plan, writer="extractive"), case)
    summary = replace(own, fallback_level="provider", provided=reply.summary, calls=1, usage=usage)
    return _too_long(plan, summary, case) or summary


def _provider_request(session: Session, plan: Plan, case: CompactionInput) -> Request | str:
    """Returns the request for the service's own summary of the plan's span, or why it is not asked for one."""
    least = capabilities_of(session.ports.backend, session.model).compacts_from
    if least is None:
        return "this service writes no summaries of its own"
    if plan.within or plan.turn_id is not None:
        return "its summary would stand for all that is before it, and this one stands within the conversation"
    if session.summary_calls_left(case.rules) == 0:
        return f"max_summary_calls is {case.rules.max_summary_calls}, and as many were made"
    entries = [*case.view.system, *(e for e in plan.covered if e.message.kind != "section")]
    size = sum(e.tokens for e in entries)
    known = session.state.calibrations.get(session.model)
    own_size = int(size * known.ratio) if known is not None else size  # as the service counts
    if own_size < least:
        return f"it summarises conversations from {least} tokens on, and this part has {own_size}"
    if size > case.rules.context_window:
        return f"the part to summarise has {size} tokens, and the window {case.rules.context_window}"
    sent = session.sent_request
    base = sent.request if sent is not None else Request(())
    refused_seq = session.refused_seqs.get(session.model, 0)
    return Request(
        [e.message for e in entries],
        tools=base.tools,
        thinking=base.thinking,
        model=session.model or None,
        unbound_before=len(entries),  # a service that binds reasoning takes the conversation without it
        refused_before=sum(e.seq <= refused_seq for e in entries),
        cache_key=base.cache_key,
        compact=True,
    )


def _too_long(plan: Plan, summary: Summary, case: CompactionInput) -> str:
    """Returns why the summary may not stand for the span; "" where it may."""
    size, source_tokens = case.counter.count(as_message(summary, message_id="")), sum(e.tokens for e in plan.covered)
    after = plan.tokens_before - source_tokens + size
    if size >= source_tokens:
        return f"its summary has {size} tokens, and its source {source_tokens}"
    needed = after + case.facts.overhead_tokens
    if case.facts.occasion == "must_fit" and needed > case.rules.budget_tokens:
        return f"with its summary of {size} tokens the request has {needed} of {case.rules.budget_tokens}"
    return ""


def write_postponed(session: Session, postponed: Postponed) -> Flow[HistoryCompacted | str]:
    """Has the model write the postponed summary, and replaces the extractive one with it.

    Returns the event, or the reason why the extractive summary stays; the archive has the whole span.
    """
    plan, case = postponed.plan, replace(postponed.case, facts=replace(postponed.case.facts, occasion="after_turn"))
    session.events.emit(_started(session, plan, asks_model=True, background=True))
    summary = yield from _write_summary(session, plan, case, progress=_progress_of(session))
    if summary.fallback_level in ("extractive", "truncate"):
        return "; ".join(summary.problems) or "the summariser was not asked"
    yield from session.refresh()
    view = session.view()
    stand_in = tuple(e for e in view.compressed if e.id == postponed.stand_in_id)
    if not stand_in:
        return "a later compaction has covered it meanwhile"
    reason = f"{plan.reason}; the summary was written in the background"
    swap = replace(plan, covered=stand_in, shown=(), reason=reason, tokens_before=view.tokens)
    source_tokens = sum(e.tokens for e in plan.covered)
    outcome = yield from commit(session, swap, summary, view, source_tokens=source_tokens)
    return outcome.event or outcome.reason


# offer it to the subscriber


def offered(
    session: str, plan: Plan, summary: Summary | None, case: CompactionInput, rewriters: Sequence[Rewriter]
) -> tuple[Plan, Summary | None, RewriteRefused | None]:
    """Returns the plan and its summary as the subscriber changes them; unchanged, with a report, where that is not allowed.

    Plans for an open turn's own rounds are not offered.
    """
    if not rewriters or summary is None or not summary.text or plan.turn_id is not None:
        return plan, summary, None
    covered_ids = {e.id for e in plan.covered}
    history: tuple[Entry, ...] = (*case.view.compressed, *case.view.live)
    remaining = tuple(e.message for e in history if e.id not in covered_ids)
    proposal = CompactionProposal(session, summary.text, tuple(e.message for e in plan.covered), remaining)
    try:
        rewrite = rewriters[0](proposal)
        if rewrite is None:
            return plan, summary, None
        text, messages = rewrite
        return (*_accepted(plan, summary, case, text, messages), None)
    except Exception as error:  # noqa: BLE001 - a subscriber must not break a turn: the event reports the error
        reason = str(error) if isinstance(error, StrategyError) else repr(error)
        return plan, summary, RewriteRefused(session, reason)


def _accepted(
    plan: Plan, summary: Summary, case: CompactionInput, text: str, messages: Sequence[Message]
) -> tuple[Plan, Summary | None]:
    if not text.strip():
        raise StrategyError("the summary is empty")
    system = [e.message for e in case.view.system]
    result = [*system, user(text, id=SUBSCRIBER), *messages]
    decision = rewritten(replace(plan, strategy=SUBSCRIBER), case, result)
    if not isinstance(decision, Plan):
        raise StrategyError(decision.reason)
    needed, budget = decision.tokens_after + case.facts.overhead_tokens, case.rules.budget_tokens
    if needed > budget and needed > plan.tokens_after + case.facts.overhead_tokens:
        raise StrategyError(f"the request would need {needed} tokens, the budget is {budget}: keep less")
    # the counts were of the other text
    changed = replace(
        summary,
        text=text,
        fallback_level=f"{summary.fallback_level}, rewritten",
        kept=0,
        put_back=0,
        archived=0,
        invented=0,
        provided=None,
    )
    return replace(plan, covered=decision.covered, tokens_after=decision.tokens_after), changed


def gauge(
    session: Session,
    stage: Stage,
    counter: TokenCounter,
    *,
    size: WindowTokens | None = None,
    auto_compact: bool | None = None,
) -> WindowGauge:
    """Returns the size of the newest request, or the given one, with its limits and the distance to the next compaction."""
    rules, size, compacts_at, until = stage.rules, size or session.window_tokens(), None, None
    if not session.model and (known := [*session.state.calibrations.values()]):
        rules = calibrated(rules, known[-1])  # a process that only reads
    if rules.auto_compact if auto_compact is None else auto_compact:
        compacts_at = rules.budget_tokens
        if rules.trigger is None:
            compacts_at = min(compacts_at, math.ceil(rules.hard_ratio * rules.budget_tokens))
        else:
            facts = session_facts(session, "after_turn", overhead_tokens=session.overhead_tokens)
            at = due_at(rules.trigger, CompactionInput(stage.view, facts, rules, counter).signals())
            compacts_at = compacts_at if at is None else min(compacts_at, at)
        # a reply counts as well; what is recalled gives way
        until = max(0, round(size.ratio * (compacts_at - stage.view.tokens - session.overhead_tokens)))
        compacts_at = round(size.ratio * compacts_at)
    window_rules = session.window_rules(stage.context_window)
    return WindowGauge(
        session=session.key.session,
        used_tokens=size.total,
        budget_tokens=window_rules.budget_tokens,
        context_window=window_rules.context_window,
        compacts_at_tokens=compacts_at,
        until_compaction_tokens=until,
    )


def costs(session: Session) -> CostLine:
    """Returns what the session has cost, and would have cost with the economic trigger; in every process the same."""
    facts = session_facts(session, "after_turn", overhead_tokens=session.window_tokens().tools)
    case = CompactionInput(session.view(), facts, session.own_rules(), session.ports.counter)
    return compared_cost(session.state, session.ports.prices, case.signals())
