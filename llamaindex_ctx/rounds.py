"""Tool calls and their results within one batch of messages, as agents hand them over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ctxfold.messages import Message, ToolCallPart, ToolResultPart, tool_result

__all__ = ["NO_RESULT", "finished", "paired"]

NO_RESULT = "(no result: the run ended before this call returned)"


def paired(messages: Sequence[Message], new_id: Callable[[], str]) -> list[Message]:
    """The batch with each result bound to its call, and each call answered before the conversation goes on.

    An agent that returns one tool's output directly drops the results of its parallel calls: those are answered by a note
    that says so. Calls of the last round may still wait.
    """
    found: list[Message] = []
    waiting: list[ToolCallPart] = []
    for message in messages:
        if message.role == "tool":
            found.append(_bound(message, waiting))
            continue
        found += [tool_result(c.id, NO_RESULT, id=new_id(), name=c.name, is_error=True) for c in waiting]
        waiting = list(message.tool_calls)
        found.append(message)
    return found


def _bound(message: Message, waiting: list[ToolCallPart]) -> Message:
    """The result under the id of the first call that it can belong to: given, numbered (`look#1`), or none at all."""
    result = message.tool_results[0]
    wanted = result.call_id
    call = next((c for c in waiting if not wanted or c.id == wanted or c.id.rpartition("#")[0] == wanted), None)
    if call is None:
        return message
    waiting.remove(call)
    if call.id == wanted:
        return message
    parts = tuple(replace(p, call_id=call.id) if isinstance(p, ToolResultPart) else p for p in message.parts)
    return replace(message, parts=parts)


def finished(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages without a last round whose results are not all there: no request may hold an orphan call."""
    answered: set[str] = set()
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.role == "tool":
            answered.update(r.call_id for r in message.tool_results)
            continue
        whole = {c.id for c in message.tool_calls} <= answered
        return messages if whole else messages[:index]
    return messages
