"""Edits of the live conversation as records; bad indices are refused and tool rounds stay whole."""

from __future__ import annotations

from collections.abc import Sequence

from ctxfold.errors import MessageError, MessageIndexError, OrphanToolResultError
from ctxfold.history.cuts import legal_cuts, round_of
from ctxfold.history.records import MessageAdded, MessageInserted, MessageRemoved, MessageReplaced
from ctxfold.history.view import Entry
from ctxfold.messages import Message, Role

__all__ = ["inserted", "popped", "removed", "replaced", "retained"]


def replaced(entries: Sequence[Entry], index: int, message: Message) -> MessageReplaced:
    """New content in place; role, tool calls and the call that a result answers must stay the same."""
    old = entries[_checked(entries, index)].message
    if old.role != message.role:
        raise MessageError(
            f"message {index} is {old.role}, the new one {message.role}: remove it and insert the new one"
        )
    if {c.id for c in old.tool_calls} != {c.id for c in message.tool_calls}:
        raise OrphanToolResultError(
            f"message {index} makes tool calls; an update must keep their ids: remove the round instead"
        )
    if {r.call_id for r in old.tool_results} != {r.call_id for r in message.tool_results}:
        raise OrphanToolResultError(f"message {index} answers a tool call; an update must answer the same one")
    return MessageReplaced(message)


def inserted(entries: Sequence[Entry], index: int, message: Message) -> MessageInserted | MessageAdded:
    """A message before position `index`, which may be the end but not inside a tool round."""
    if not 0 <= index <= len(entries):
        raise MessageIndexError(f"index {index} is outside 0..{len(entries)}")
    if message.tool_calls or message.role == "tool":
        raise OrphanToolResultError("a tool call or result cannot be inserted alone: append the whole round at the end")
    if index not in legal_cuts(entries):
        raise OrphanToolResultError(f"position {index} lies inside a tool round: insert before or after the round")
    return MessageInserted(message, entries[index].id) if index < len(entries) else MessageAdded(message)


def removed(entries: Sequence[Entry], index: int) -> tuple[Entry, ...]:
    """The entries that go when the one at `index` is removed: its whole tool round, if it is in one."""
    return tuple(entries[slice(*round_of(entries, _checked(entries, index)))])


def popped(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The newest entry, with its whole tool round."""
    if not entries:
        raise MessageIndexError("pop from an empty conversation")
    return removed(entries, len(entries) - 1)


def retained(entries: Sequence[Entry], role: Role) -> tuple[Entry, ...]:
    """The entries that go when only `role` stays; a tool round stays only as a whole."""
    gone: list[Entry] = []
    index = 0
    while index < len(entries):
        start, end = round_of(entries, index)
        block = entries[start:end]
        if any(e.message.role != role for e in block):
            gone.extend(block)
        index = end
    return tuple(gone)


def removal(entries: Sequence[Entry]) -> MessageRemoved:
    return MessageRemoved(tuple(e.id for e in entries))


def _checked(entries: Sequence[Entry], index: int) -> int:
    if not -len(entries) <= index < len(entries):
        raise MessageIndexError(f"index {index} is outside a conversation of {len(entries)} messages")
    return index % len(entries)
