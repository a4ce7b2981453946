"""Learns from refusals and from replies how a model counts tokens, and stores it in the session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from ctxfold.effects import Flow
from ctxfold.engine.engine import Engine
from ctxfold.engine.fit import newest_user_alone
from ctxfold.engine.request import Options
from ctxfold.errors import BackendError
from ctxfold.events import PromptTruncated, RulesChanged
from ctxfold.history.calibration import observed, overflowed, prompt_limit, was_truncated
from ctxfold.history.records import Draft
from ctxfold.messages import Message
from ctxfold.protocols import capabilities_of
from ctxfold.session_state import WINDOW_FIELDS, OpenSession, append, draft

NEWEST_LISTED = 64  # messages of a list, among which replies to earlier requests are looked for


def calibrate_from_refusal(
    engine: Engine, open_session: OpenSession, error: BackendError, turn_id: str, model: str, options: Options
) -> Flow[bool]:
    """Learns what a refusal says of the model's window and of how it counts; returns True when the rules in force changed."""
    open_session.model = model
    window = options.context_window
    before, rules = open_session.window_rules(window), open_session.rules(window)
    limit, reply_tokens = error.limit_tokens, error.reply_tokens or 0
    if limit is not None and reply_tokens > max(before.reply_reserve_tokens, options.max_tokens or 0):
        # a setting of the model's own, which no call names
        tools = engine.ports.counter.count_tools(options.tools)
        _, least_tokens = newest_user_alone(open_session.view(turn_id), tools)
        limit = prompt_limit(before, limit, reply_tokens=reply_tokens, least_tokens=least_tokens)
    learnt = overflowed(
        open_session.state.calibrations.get(model),
        model=model,
        estimated=open_session.sent_counts.get(turn_id, (model, 0))[1],
        requested=error.requested_tokens,
        limit=limit,
        max_tokens=reply_tokens or options.max_tokens or 0,
    )
    if learnt is not None:
        yield from append(open_session, (draft(engine.ports, learnt),), engine.ports)
    if open_session.window_rules(window) != before:
        engine.events.emit(RulesChanged(open_session.key.session, WINDOW_FIELDS))
    return open_session.rules(window) != rules


def calibration_drafts(engine: Engine, open_session: OpenSession, turn_id: str, reply: Message) -> list[Draft]:
    """Returns what the usage of a turn's reply teaches about our counts; that of a prompt which the server cut teaches nothing."""
    model, estimated = open_session.sent_counts.pop(turn_id, (open_session.model, 0))
    open_session.model = model
    reported = reply.usage.input_tokens if reply.usage else 0
    if open_session.provider_compacts and reported < estimated:
        return []  # the service counted what it had left of the prompt
    known = open_session.state.calibrations.get(model)
    cuts = capabilities_of(engine.ports.backend, model).truncates_silently
    if cuts and was_truncated(known, estimated=estimated, reported=reported):
        engine.events.emit(PromptTruncated(open_session.key.session, model, estimated, reported))
        return []
    learnt = observed(known, model=model, estimated=estimated, reported=reported)
    return [] if learnt is None else [draft(engine.ports, learnt)]


def calibrate_from_reply(
    engine: Engine, open_session: OpenSession, reply: Message, estimate: Callable[[], int]
) -> Flow[None]:
    """Learns how the model counts from the reply to a request that somebody else has sent, where that request was large.

    `estimate` returns our count of it. What its sender put beside our messages, such as tools, is not known. In a small request
    it would pass for a large error of our count; in one that takes more than the triggers allow, all of it has to give way.
    """
    rules = open_session.window_rules()
    reported = reply.usage.input_tokens if reply.usage else 0
    if reported <= rules.hard_ratio * rules.budget_tokens:
        return
    known = open_session.state.calibrations.get(open_session.model)
    if learnt := observed(known, model=open_session.model, estimated=estimate(), reported=reported):
        yield from append(open_session, (draft(engine.ports, learnt),), engine.ports)


def calibrate_from_list(engine: Engine, open_session: OpenSession, messages: Sequence[Message]) -> Flow[None]:
    """Learns from the newest messages of a list: from replies to requests that this process has made."""
    counts = open_session.sent_counts
    for closed in [t for t in counts if t not in open_session.state.open]:  # by another process
        counts.pop(closed, None)
    for asked, reply in pairwise(messages[-NEWEST_LISTED:] if counts else ()):
        turn_id = open_session.turn_ending_with(asked.id) if reply.role == "assistant" else None
        if turn_id in counts:
            _, estimated = counts.pop(turn_id)
            yield from calibrate_from_reply(engine, open_session, reply, partial(int, estimated))
