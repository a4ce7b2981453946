"""Pairs tool calls with their results, whether agents pass them in one batch or one by one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from ctxfold.history.alternation import says_something
from ctxfold.history.cuts import waiting_calls, with_known_calls
from ctxfold.messages import Message, ToolCallPart, content_key, result_as_text, tool_result
from ctxfold.validation import as_dict, as_dicts

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
    for message in _gathered(messages) if stray is None else messages:
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
                pairs += [*_no_results(open_calls, new_id, caller_id), instead(message)]
                open_calls = []
        else:
            pairs += [*_no_results(open_calls, new_id, caller_id), *late]
            late, open_calls, round_start, caller_id = [], list(message.tool_calls), len(pairs), message.id
            pairs.append(message)
        if not open_calls:
            pairs += late
            late = []
    pairs[round_start:round_start] = late  # before calls that wait for the next batch
    return pairs


def _gathered(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages with each result behind the message that called, where other replies and results stand between.

    An agent that goes on after a cancellation asks twice at once, and its rounds come interleaved.
    """
    if not any(m.role == "tool" for m in messages):
        return [*messages]
    rounds: list[list[Message]] = []
    waiting: dict[str, list[Message]] = {}
    for message in messages:
        if message.role != "tool":
            rounds.append([message])
            waiting = {} if message.role != "assistant" else waiting
            waiting |= {c.id: rounds[-1] for c in message.tool_calls}
        elif own := waiting.pop(message.tool_results[0].call_id, None):
            own.append(message)
        else:
            rounds = rounds or [[]]
            rounds[-1].append(message)
    return [message for each in rounds for message in each]


def answered(messages: Sequence[Message], new_id: Callable[[], str]) -> list[Message]:
    """Returns the messages with a note for each call of the last round that still waits: its run was cancelled."""
    caller_id = next((m.id for m in reversed(messages) if m.role != "tool"), "")
    return [*messages, *_no_results(unanswered(messages), new_id, caller_id)]


def _no_results(calls: Iterable[ToolCallPart], new_id: Callable[[], str], caller_id: str) -> list[Message]:
    """Returns a note for each call; those of a message with an id are the same each time that a list lacks the results."""
    return [_no_result(call, f"{caller_id}/{call.id}" if caller_id else new_id()) for call in calls]


def _no_result(call: ToolCallPart, id: str) -> Message:
    return replace(tool_result(call.id, NO_RESULT, id=id, name=call.name, is_error=True), visibility="model")


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


def calls_in_kwargs(value: Any) -> Iterable[ToolCallPart]:
    """Returns the tool calls in `additional_kwargs`: in the shape of OpenAI, Anthropic, or LlamaIndex's own selection."""
    for call in as_dicts(value):
        source = as_dict(call["function"]) if isinstance(call.get("function"), dict) else call
        name = _first(source, "name", "tool_name")
        if isinstance(name, str):
            arguments = _first(source, "arguments", "input", "tool_kwargs")
            text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
            yield ToolCallPart(str(_first(call, "id", "tool_id") or ""), name, text or "{}")


def with_call_ids(calls: Sequence[object], ids: Sequence[str]) -> list[object]:
    """Returns the tool calls in `additional_kwargs` under these ids; unchanged where they are not the same calls."""
    if len(calls) != len(ids) or len(list(calls_in_kwargs(calls))) != len(ids):
        return list(calls)
    named = zip(cast("Sequence[dict[str, Any]]", calls), ids, strict=True)
    return [{**call, "tool_id" if "tool_id" in call else "id": call_id} for call, call_id in named]


def _first(source: Mapping[str, Any], *names: str) -> Any:
    return next((source[name] for name in names if name in source), None)
