"""Summaries written before they are needed, in the background, and swapped in only where their source still stands.

Prepared is what a compaction would cover if its trigger fired now. When the trigger fires, the conversation has grown at its end;
what was summarised is then a prefix of what is to go, or it is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias, TypeVar, cast

from ctxfold.background import Pause, Release, Start, TakeLease
from ctxfold.compaction.plan import Hold, Plan
from ctxfold.compaction.strategy import Case, Strategy, decide
from ctxfold.compaction.summarize import Summary
from ctxfold.errors import CtxError
from ctxfold.flow import Flow
from ctxfold.journal import Journal, refresh
from ctxfold.messages import user
from ctxfold.ports import Ports
from ctxfold.trigger import RatioTrigger

__all__ = ["alone", "prepare", "ready_or_leased"]

LEASE = "summary"
PAUSE_S = 0.05
WAIT_S = 5.0  # for another worker's summary, where a request has to fit; a summary without a model follows
MIN_GAIN = 0.5  # of what the plan at hand would free: less is not worth an epoch
T = TypeVar("T")
Write: TypeAlias = Callable[[Plan, Case], Flow[Summary]]


def prepare(journal: Journal, case: Case, strategy: Strategy, write: Write, *, due: bool = False) -> Flow[bool]:
    """Begin to summarise what the trigger would cover, once the view has passed the soft mark or the trigger is `due`.

    Whether a summary is on its way, so that a compaction that need not be made now can wait for it.
    """
    rules, ahead = case.rules, journal.ahead
    if not rules.background or rules.prepare_ratio == 0 or case.facts.mode != "close" or not case.fits:
        return False
    if not due and case.used_tokens < rules.prepare_ratio * rules.budget_tokens:
        return False
    with journal.lock:
        if ahead.running:
            return True
        ready = _ready(journal)
        if ready is not None and _stands(journal, ready[0]):
            return False
        ahead.ready = None
    plan = _due_soon(case, strategy) if ahead.failed_epoch != case.view.epoch else None
    if plan is None:
        return False
    if not _claimed(journal):
        return True
    begun = yield from Start(_work(journal, plan, case, write))
    if not begun:
        ahead.running = False
    return begun


def swapped(journal: Journal, plan: Plan, case: Case, ports: Ports) -> tuple[Plan, Summary] | None:
    """The prepared summary with a plan of its own, if its source still stands at the head of what the plan covers."""
    ahead = journal.ahead
    with journal.lock:
        found = _ready(journal)
        if found is None:
            return None
        ready, summary = found
        wanted = {e.id: e.version for e in plan.covered}
        fits = plan.writer == "model" and plan.turn_id is None and all(wanted.get(i) == v for i, v in _span(ready))
        if not fits or not _stands(journal, ready):
            ahead.ready = None
            return None
    cost = ports.counter.count(user(summary.text, id="summary"))
    freed = sum(e.tokens for e in ready.covered) - cost
    after = case.view.tokens - freed
    too_big = after + case.facts.overhead_tokens > case.rules.budget_tokens
    if too_big or freed < MIN_GAIN * (plan.tokens_before - plan.tokens_after):
        return None
    ahead.ready = None
    reason = f"{plan.reason}; the summary was prepared in the background"
    return replace(plan, covered=ready.covered, tokens_after=after, reason=reason), summary


def _work(journal: Journal, plan: Plan, case: Case, write: Write) -> Flow[None]:
    """Never fails: what goes wrong here is tried again on the ordinary path."""
    ahead, summary, tried = journal.ahead, None, False
    try:
        tried = yield from _leased(journal, case)
        if tried:
            summary = yield from write(plan, case)
            yield from Release(journal.key, LEASE, journal.worker)
    except Exception:  # noqa: BLE001 - what fails here fails again on the ordinary path, where the caller can hear it
        summary = None
    finally:
        with journal.lock:
            ahead.running = False
            if summary is not None and summary.rung not in ("extractive", "truncate"):
                ahead.ready = (plan, summary)
            elif tried:
                ahead.failed_epoch = case.view.epoch


def _claimed(journal: Journal) -> bool:
    with journal.lock:
        free = not journal.ahead.running
        journal.ahead.running = True
    return free


def ready_or_leased(
    journal: Journal, plan: Plan, case: Case, strategy: Strategy, write: Write, ports: Ports
) -> Flow[tuple[Plan, Summary | None] | str]:
    """The plan with its prepared summary, or without when this worker may now have one written; a reason to wait otherwise.

    A request that has to fit waits a little for a summary that is under way here or in another process, then does without a model.
    """
    if not plan.covered or plan.writer != "model" or ports.summarizer is None:
        return plan, None
    started, close = journal.state.compactions, case.facts.mode == "close"
    for _ in range(1 if close else int(WAIT_S / PAUSE_S)):
        if (ready := swapped(journal, plan, case, ports)) is not None:
            return ready
        if (yield from prepare(journal, case, strategy, write, due=True)):
            return "a summary is being prepared in the background"
        if not journal.ahead.running and (yield from _leased(journal, case)):
            yield from refresh(journal, ports)
            if journal.state.compactions == started:
                return plan, None
            yield from Release(journal.key, LEASE, journal.worker)  # who had it has just done this
            break
        if close:
            break
        yield from Pause(PAUSE_S)
        yield from refresh(journal, ports)
        if journal.state.compactions != started:
            break
    if close or journal.state.compactions != started:
        return "another worker is summarising this session"
    return replace(plan, writer="extractive"), None


def alone(journal: Journal, plan: Plan, work: Flow[T], ports: Ports) -> Flow[T]:
    """The work on a plan, and the lease given back afterwards, if one was taken for it."""
    if not plan.covered or plan.writer != "model" or ports.summarizer is None:
        return (yield from work)
    try:
        result = yield from work
    except GeneratorExit:
        raise  # the lease ends by itself
    except BaseException:
        yield from Release(journal.key, LEASE, journal.worker)
        raise
    yield from Release(journal.key, LEASE, journal.worker)
    return result


def _leased(journal: Journal, case: Case) -> Flow[bool]:
    return (yield from TakeLease(journal.key, LEASE, journal.worker, _ttl_s(case)))


def _ttl_s(case: Case) -> float:
    """A worker that dies leaves its lease for no longer than a call may take."""
    return (case.rules.summary_timeout_s or 120.0) + 10.0


def _due_soon(case: Case, strategy: Strategy) -> Plan | None:
    """The plan of a trigger that fires now; None where it would ask no model."""
    at_once = RatioTrigger(at=1e-9)
    rules = case.rules.model_copy(
        update={"trigger": at_once, "soft_ratio": 1e-9, "hard_ratio": 1e-9, "cooldown_turns": 0}
    )
    try:
        plan = decide(strategy, replace(case, rules=rules))
    except CtxError:
        return None
    if isinstance(plan, Hold) or plan.writer != "model" or plan.text is not None or plan.rewrite is not None:
        return None
    return plan if plan.covered and plan.turn_id is None else None


def _ready(journal: Journal) -> tuple[Plan, Summary] | None:
    return cast("tuple[Plan, Summary] | None", journal.ahead.ready)


def _span(plan: Plan) -> tuple[tuple[str, tuple[int, int]], ...]:
    return tuple((e.id, e.version) for e in plan.covered)


def _stands(journal: Journal, plan: Plan) -> bool:
    now = {e.id: e.version for e in journal.view()}
    return all(now.get(message_id) == version for message_id, version in _span(plan))
