"""Learns from refusals and from replies how a model counts tokens, and stores it in the session."""

from __future__ import annotations

from ctxfold.effects import Flow
from ctxfold.engine.fit import newest_user_alone
from ctxfold.engine.request import Options
from ctxfold.errors import BackendError
from ctxfold.events import PromptTruncated, RulesChanged
from ctxfold.history.calibration import observed, overflowed, prompt_limit, reported_size, was_truncated
from ctxfold.history.records import Draft
from ctxfold.history.view import WindowTokens
from ctxfold.messages import Message
from ctxfold.protocols import capabilities_of
from ctxfold.state import WINDOW_FIELDS, Session


def calibrate_from_refusal(
    session: Session, error: BackendError, turn_id: str, model: str, options: Options
) -> Flow[bool]:
    """Learns what a refusal says of the model's window and of how it counts; returns True when the rules in force changed."""
    session.model = model
    window = options.context_window
    before, rules = session.window_rules(window), session.rules(window)
    limit, reply_tokens = error.limit_tokens, error.reply_tokens or 0
    if limit is not None and reply_tokens > max(before.reply_reserve_tokens, options.max_tokens or 0):
        # a setting of the model's own, which no call names
        tools = session.ports.counter.count_tools(options.tools)
        _, least_tokens = newest_user_alone(session.view(turn_id), tools)
        limit = prompt_limit(before, limit, reply_tokens=reply_tokens, least_tokens=least_tokens)
    learnt = overflowed(
        session.state.calibrations.get(model),
        model=model,
        estimated=session.sent_windows.get(turn_id, (model, WindowTokens()))[1].own_count,
        requested=error.requested_tokens,
        limit=limit,
        max_tokens=reply_tokens or options.max_tokens or 0,
    )
    if learnt is not None:
        yield from session.append((session.draft(learnt),))
    if session.window_rules(window) != before:
        session.events.emit(RulesChanged(session.key.session, WINDOW_FIELDS))
    return session.rules(window) != rules


def calibration_drafts(session: Session, turn_id: str, reply: Message) -> tuple[WindowTokens | None, list[Draft]]:
    """Returns the size of the request that a turn's reply answers, and what its usage teaches about our counts.

    That of a prompt which the server cut teaches nothing.
    """
    if turn_id not in session.sent_windows:
        return None, []
    session.model, window = session.sent_windows.pop(turn_id)
    model, estimated = session.model, window.own_count
    reported = reply.usage.input_tokens if reply.usage else 0
    if session.provider_compacts and reported < estimated:
        return window, []  # the service counted what it had left of the prompt
    known = session.state.calibrations.get(model)
    cuts = capabilities_of(session.ports.backend, model).truncates_silently
    if cuts and was_truncated(known, estimated=estimated, reported=reported):
        session.events.emit(PromptTruncated(session.key.session, model, estimated, reported))
        return window, []
    learnt = observed(known, model=model, estimated=estimated, reported=reported)
    return reported_size(window, reply.usage), [] if learnt is None else [session.draft(learnt)]
