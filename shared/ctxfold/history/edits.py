"""Turns edits of the live conversation into records. Refuses invalid indices and keeps tool rounds whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, count

from ctxfold.errors import MessageError, MessageIndexError, OrphanToolResultError
from ctxfold.history.cuts import legal_cuts, round_of
from ctxfold.history.log import SessionState
from ctxfold.history.records import AMONG_PROMPTS, Body, MessageAdded, MessageInserted, MessageRemoved, MessageReplaced
from ctxfold.history.view import Entry, View, roles_of
from ctxfold.messages import Message, Role, is_prompt, system, validated

PROMPT_ID = "system-prompt-"


def replaced(entries: Sequence[Entry], index: int, message: Message) -> MessageReplaced:
    """Returns the record that puts new content in place; role, tool calls and the answered call must stay the same."""
    old = entries[index].message
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


def inserted(entries: Sequence[Entry], index: int, message: Message) -> MessageInserted:
    """Returns the record that puts a message before position `index`: the end is allowed, the inside of a tool round is not."""
    if not 0 <= index <= len(entries):
        raise MessageIndexError(f"index {index} is outside 0..{len(entries)}")
    if message.tool_calls or message.role == "tool":
        raise OrphanToolResultError("a tool call or result cannot be inserted alone: append the whole round at the end")
    if index not in legal_cuts(entries):
        raise OrphanToolResultError(f"position {index} lies inside a tool round: insert before or after the round")
    return MessageInserted(message, entries[index].id if index < len(entries) else None)


def removed(entries: Sequence[Entry], index: int) -> tuple[Entry, ...]:
    """Returns the entries to remove with the one at `index`: its whole tool round, if it is in one."""
    return tuple(entries[slice(*round_of(entries, index))])


def popped(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Returns the newest entry, with its whole tool round."""
    if not entries:
        raise MessageIndexError("pop from an empty conversation")
    return removed(entries, len(entries) - 1)


def retained(entries: Sequence[Entry], role: Role) -> tuple[Entry, ...]:
    """Returns the entries to remove when only `role` stays; a tool round stays only as a whole."""
    removed_entries: list[Entry] = []
    index = 0
    while index < len(entries):
        start, end = round_of(entries, index)
        block = entries[start:end]
        if any(e.message.role != role for e in block):
            removed_entries.extend(block)
        index = end
    return tuple(removed_entries)


def prompt_changes(state: SessionState, prompts: Sequence[str]) -> list[Body]:
    """Returns the records that set the session's own system prompts; system messages of the conversation stay."""
    if [e.message.text for e in state.system] == list(prompts):
        return []
    own = [e for e in state.system if e.id.startswith(PROMPT_ID)]
    others = {e.message.text for e in state.system if not e.id.startswith(PROMPT_ID)}
    prompts = [text for text in prompts if text not in others]
    fresh = not state.live and not state.compressed and not state.open
    bodies: list[Body] = []
    own_ids = {e.id for e in own}  # of two prompts the first may have gone
    free = (name for number in count(1) if (name := f"{PROMPT_ID}{number}") not in own_ids)
    for index, text in enumerate(prompts):
        name = own[index].id if index < len(own) else next(free)
        message = validated(system(text, id=name))
        if index >= len(own):
            bodies.append(MessageAdded(message) if fresh else MessageInserted(message, AMONG_PROMPTS))
        elif own[index].message.text != text:
            bodies.append(MessageReplaced(message))
    if len(own) > len(prompts):
        bodies.append(MessageRemoved(tuple(e.id for e in own[len(prompts) :])))
    return bodies


def prompted(view: View, prompts: tuple[str, ...] | None, count: Callable[[Message], int]) -> View:
    """Returns the view with these system prompts, whichever another call has set meanwhile; as it is without prompts."""
    if prompts is None or view.prompts == prompts:
        return view
    others = [e for e in view.system if not e.id.startswith(PROMPT_ID)]
    fresh = [text for text in prompts if text not in {e.message.text for e in others}]
    messages = [system(text, id=f"{PROMPT_ID}{index}") for index, text in enumerate(fresh, 1)]
    leading = (*(Entry(m.id, 0, m, count(m)) for m in messages), *others)
    tokens = view.tokens + sum(e.tokens for e in leading) - sum(e.tokens for e in view.system)
    return replace(view, system=leading, tokens=tokens)


def without_repeated_prompts(view: View) -> View:
    """Returns the view without system messages behind its head that say what the system message before them says."""
    if "system" not in view.live_roles | roles_of(view.turn):
        return view
    newest = view.system[-1].message.text if view.system else None
    repeated: set[int] = set()
    for entry in [e for e in chain(view.live, view.turn) if e.message.role == "system" and is_prompt(e.message)]:
        if entry.message.text == newest:
            repeated.add(entry.seq)
        newest = entry.message.text
    if not repeated:
        return view
    turn = tuple(e for e in view.turn if e.seq not in repeated)
    tokens = view.tokens + sum(e.tokens for e in turn) - sum(e.tokens for e in view.turn)
    return replace(view, turn=turn, tokens=tokens).with_live(e for e in view.live if e.seq not in repeated)


def reworded(view: View, message: Message | None, count: Callable[[Message], int]) -> View:
    """Returns the view with this message in place of the live one with its id; as it is without a message."""
    if message is None:
        return view
    return view.with_live(
        replace(e, message=message, tokens=count(message)) if e.id == message.id else e for e in view.live
    )


def ended_with(view: View, message_id: str | None) -> View:
    """Returns the view without the live messages behind this one; as it is without an id, or where a summary has replaced it."""
    end = next((i + 1 for i, e in enumerate(view.live) if e.id == message_id), None) if message_id is not None else None
    return view if end is None else view.with_live(view.live[:end])
