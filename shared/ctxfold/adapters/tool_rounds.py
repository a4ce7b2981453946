"""Pairs tool calls with their results, whether agents pass them in one batch or one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ctxfold.history.cuts import waiting_calls, with_known_calls, with_results_together
from ctxfold.messages import Message, ToolCallPart, content_key, result_as_text, says_something, tool_result

NO_RESULT = "(no result: the run ended before this call returned)"


def paired(
    messages: Sequence[Message],
    new_id: Callable[[], str],
    waiting: Sequence[ToolCallPart] = (),
    *,
    stray: Callable[[Message], Message] | None = None,
) -> list[Message]:
    """Returns the messages with each result bound to its call, and each call answered before the next message.

    An agent that returns one tool's output directly drops the results of its parallel calls: those are answered by a note
    for the model that says so. Calls of the last round may still wait; `waiting` are those of the batch before.
    No service takes a result that answers no call. In a batch with other messages it becomes a user message behind the round: code
    agents call in plain text, and a workflow goes on with the tools of a run that was cancelled. A result that is there already
    is left out. `stray` says what becomes of every such result, and there it keeps its place: calls that still wait are answered
    by the note.
    """
    pairs: list[Message] = []
    open_calls = list(waiting)
    caller_id = ""
    late: list[Message] = []
    round_start = 0
    instead = stray or (result_as_text if any(m.role != "tool" for m in messages) else None)
    messages = with_known_calls(messages, waiting)
    for message in with_results_together(messages, across=True) if stray is None else messages:
        if message.role == "tool":
            call = next((c for c in open_calls if c.id == message.tool_results[0].call_id), None)
            if call is not None:
                open_calls.remove(call)
            if call is not None or instead is None:
                pairs.append(message)
            elif stray is None:
                # a workflow that goes on after a cancellation hands in what it has once more
                if content_key(message) not in {content_key(m) for m in pairs if m.role == "tool"}:
                    late.append(instead(message))
            else:
                pairs += [*no_results(open_calls, new_id, caller_id), instead(message)]
                open_calls = []
        else:
            pairs += [*no_results(open_calls, new_id, caller_id), *late]
            late, open_calls, round_start, caller_id = [], list(message.tool_calls), len(pairs), message.id
            pairs.append(message)
        if not open_calls:
            pairs += late
            late = []
    pairs[round_start:round_start] = late  # before calls that wait for the next batch
    return pairs


def answered(messages: Sequence[Message], new_id: Callable[[], str]) -> list[Message]:
    """Returns the messages with a note for each call of the last round that still waits: its run was cancelled."""
    caller_id = next((m.id for m in reversed(messages) if m.role != "tool"), "")
    return [*messages, *no_results(unanswered(messages), new_id, caller_id)]


def no_results(calls: Iterable[ToolCallPart], new_id: Callable[[], str], caller_id: str) -> list[Message]:
    """Returns a note for each call; those of a message with an id are the same each time that a list lacks the results."""
    notes: dict[str, Message] = {}
    for call in calls:
        own = f"{caller_id}/{call.id}" if caller_id else new_id()
        own = f"{own}#{len(notes)}" if own in notes else own  # a model may make several calls under one id
        note = tool_result(call.id, NO_RESULT, id=own, name=call.name, is_error=True)
        notes[own] = replace(note, visibility="model")
    return [*notes.values()]


def unanswered(messages: Sequence[Message]) -> tuple[ToolCallPart, ...]:
    """Returns the calls of the last round that have no result."""
    return waiting_calls(reversed(messages))


def finished(messages: Sequence[Message]) -> Sequence[Message]:
    """Returns the messages without empty ones and without an incomplete last round, which no request may contain."""
    messages = [m for m in messages if says_something(m) or m is messages[-1]]
    if not unanswered(messages):
        return messages
    last = max(i for i, m in enumerate(messages) if m.role != "tool")
    return messages[:last]
