"""Writes summaries in the background before they are needed, and uses one only while its source is unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias, TypeVar, cast

from ctxfold.compaction.strategy import CompactionInput, Plan, Skip, Strategy, decide
from ctxfold.compaction.summarize import Summary
from ctxfold.effects import Flow, Pause, Start, StoreCall, TakeLease, release_after
from ctxfold.errors import CtxError
from ctxfold.messages import user
from ctxfold.policy.settings import Policy
from ctxfold.policy.triggers import RatioTrigger
from ctxfold.protocols import Store
from ctxfold.state import Session

LEASE = "summary"
PAUSE_S = 0.05
WAIT_S = 5.0  # for another worker's summary, where a request has to fit; then a summary without a model is written
MIN_GAIN = 0.5  # of the tokens that the current plan would free: less is not worth an epoch
T = TypeVar("T")
Write: TypeAlias = Callable[[Plan, CompactionInput], Flow[Summary]]


def prepare(
    session: Session, case: CompactionInput, strategy: Strategy, write: Write, *, due: bool = False
) -> Flow[bool]:
    """Starts to summarise what the trigger would cover, once the view passes `prepare_ratio` or the trigger is `due`.

    Returns whether a summary is being written, so that a compaction that is not urgent can wait for it.
    """
    rules, background = case.rules, session.background_summary
    if not rules.background or rules.prepare_ratio == 0 or case.facts.occasion != "after_turn" or not case.fits:
        return False
    if not due and case.used_tokens < rules.prepare_ratio * rules.budget_tokens:
        return False
    with session.lock:
        if background.running:
            return True
        if background.ready is not None:
            return False
    plan = _plan_ahead(case, strategy) if background.failed_epoch != case.view.epoch else None
    if plan is None:
        return False
    if not session.claim(background):
        return True
    started = yield from Start(_work(session, plan, case, write))
    if not started:
        background.running = False
    return started


def _take_prepared(session: Session, plan: Plan, case: CompactionInput) -> tuple[Plan, Summary] | None:
    """Returns the prepared summary with its own span, if that is unchanged and nothing in it has to stay since.

    It may reach beyond the span of `plan`, which counts the new question among the newest messages that stay.
    """
    background = session.background_summary
    with session.lock:
        prepared = cast("tuple[Plan, Summary] | None", background.ready)
        if prepared is None:
            return None
        prepared_plan, summary = prepared
        kept = case.facts.kept([*case.view.live, *case.view.turn])
        usable = (
            plan.writer == "model" and plan.turn_id is None and kept.isdisjoint(e.id for e in prepared_plan.covered)
        )
        if not usable or not _is_unchanged(session, prepared_plan):
            background.ready = None
            return None
    cost = session.ports.counter.count(user(summary.text, id="summary"))
    freed = sum(e.tokens for e in prepared_plan.covered) - cost
    after = case.view.tokens - freed
    too_big = after + case.facts.overhead_tokens > case.rules.budget_tokens
    if too_big or freed < MIN_GAIN * plan.freed_tokens:
        return None
    background.ready = None
    reason = f"{plan.reason}; the summary was prepared in the background"
    return replace(plan, covered=prepared_plan.covered, tokens_after=after, reason=reason), summary


def _work(session: Session, plan: Plan, case: CompactionInput, write: Write) -> Flow[None]:
    """Writes the summary. Never fails: after an error the ordinary path tries again."""
    background, summary, tried = session.background_summary, None, False
    try:
        tried = yield from _leased(session, case)
        if tried:
            summary = yield from write(plan, case)
            yield from StoreCall(Store.release, session.key, LEASE, session.worker)
    except Exception:  # noqa: BLE001 - the error comes again on the ordinary path, where it is reported
        summary = None
    finally:
        with session.lock:
            background.running = False
            if summary is not None and summary.fallback_level not in ("extractive", "truncate"):
                background.ready = (plan, summary)
            elif tried:
                background.failed_epoch = case.view.epoch


def prepared_or_leased(
    session: Session, plan: Plan, case: CompactionInput, strategy: Strategy, write: Write
) -> Flow[tuple[Plan, Summary | None] | str]:
    """Returns the plan with its prepared summary, or without one once this worker holds the lease to write it.

    Returns the reason instead when the compaction has to wait. A request that has to fit waits up to five seconds for a summary
    that is being written here or in another process; then its plan does without a model.
    """
    if not plan.covered or plan.writer != "model" or session.ports.summarizer is None:
        return plan, None
    compactions, after_turn = session.state.compactions, case.facts.occasion == "after_turn"
    for _ in range(1 if after_turn else int(WAIT_S / PAUSE_S)):
        if (prepared := _take_prepared(session, plan, case)) is not None:
            return prepared
        if (yield from prepare(session, case, strategy, write, due=True)):
            return "a summary is being prepared in the background"
        if not session.background_summary.running and (yield from _leased(session, case)):
            yield from session.refresh()
            if session.state.compactions == compactions:
                return plan, None
            # the holder before has just written this summary
            yield from StoreCall(Store.release, session.key, LEASE, session.worker)
            break
        if after_turn:
            break
        yield from Pause(PAUSE_S)
        yield from session.refresh()
        if session.state.compactions != compactions:
            break
    if after_turn or session.state.compactions != compactions:
        return "another worker is summarising this session"
    return replace(plan, writer="extractive"), None


def releasing(session: Session, plan: Plan, work: Flow[T]) -> Flow[T]:
    """Runs the work on a plan, then releases the lease, if one was taken for it."""
    if not plan.covered or plan.writer != "model" or session.ports.summarizer is None:
        return (yield from work)
    return (yield from release_after(work, session.key, LEASE, session.worker))


def _leased(session: Session, case: CompactionInput) -> Flow[bool]:
    return (yield from TakeLease(session.key, LEASE, session.worker, summary_lease_s(case.rules)))


def summary_lease_s(rules: Policy) -> float:
    """Returns how long a lease lasts: a worker that dies keeps it no longer than a call may take."""
    return (rules.summary_timeout_s or 120.0) + 10.0


def _plan_ahead(case: CompactionInput, strategy: Strategy) -> Plan | None:
    """Returns the plan that a trigger firing now would lead to; None where that asks no model."""
    at_once = RatioTrigger(at=1e-9)
    rules = case.rules.model_copy(
        update={"trigger": at_once, "soft_ratio": 1e-9, "hard_ratio": 1e-9, "cooldown_turns": 0}
    )
    try:
        plan = decide(strategy, replace(case, rules=rules))
    except CtxError:
        return None
    if isinstance(plan, Skip) or plan.writer != "model" or plan.text is not None or plan.rewrite is not None:
        return None
    return plan if plan.covered and plan.turn_id is None else None


def _is_unchanged(session: Session, plan: Plan) -> bool:
    versions = {e.id: e.version for e in session.view()}
    return all(versions.get(e.id) == e.version for e in plan.covered)
