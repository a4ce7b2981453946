"""Tool outputs give way to an excerpt and a reference; the originals stay in the log."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace

from ctxfold.budget import Policy
from ctxfold.history.view import Entry
from ctxfold.messages import Message, ToolResultPart
from ctxfold.ports import TokenCounter

__all__ = ["asked_again", "clear_tools", "excerpt", "sized"]

EXCERPT_CHARS = 160
PROTECTED_TOKENS = 40_000
MIN_SAVED_TOKENS = 32


def clear_tools(
    entries: Sequence[Entry],
    *,
    budget_tokens: int,
    keep: Collection[str],
    counter: TokenCounter,
    order: Sequence[int] | None = None,
    wanted_tokens: int | None = None,
    last_resort: bool = False,
) -> tuple[tuple[Message, ...], int]:
    """Stand-ins for old tool outputs and the tokens they save: oldest first or in `order`, until `wanted_tokens` are saved.

    The newest 40,000 tokens are left alone, but never more than half of the budget, so that small windows are pruned too. What
    was asked for again after its output had been cut is kept, and gives way last where it must (`last_resort`).
    """
    protected = min(PROTECTED_TOKENS, budget_tokens // 2)
    newer = sum(e.tokens for e in entries)
    old = 0
    for entry in entries:
        newer -= entry.tokens
        if newer < protected:
            break
        old += 1
    places = [i for i in (range(len(entries)) if order is None else order) if i < old]
    raised = asked_again(entries) if any(e.shown_seq for e in entries) else frozenset[str]()
    places.sort(key=lambda i: entries[i].id in raised)
    stand_ins: dict[int, Message] = {}
    saved = 0
    for place in places:
        entry = entries[place]
        if entry.message.role != "tool" or entry.shown_seq or entry.id in keep:
            continue
        if entry.id in raised and not last_resort:
            continue
        shown = excerpt(entry.message, entry.tokens, max_chars=EXCERPT_CHARS)
        gain = entry.tokens - counter.count(shown)
        if gain >= MIN_SAVED_TOKENS:
            stand_ins[place] = shown
            saved += gain
        if wanted_tokens is not None and saved >= wanted_tokens:
            break
    return tuple(stand_ins[i] for i in sorted(stand_ins)), saved


def asked_again(entries: Sequence[Entry]) -> frozenset[str]:
    """Ids of the newest outputs of calls that, name and arguments alike, had an earlier output cut to an excerpt."""
    calls: dict[str, tuple[str, str]] = {}  # filled in order: providers reuse call ids within a session
    cut: set[tuple[str, str]] = set()
    again: dict[tuple[str, str], str] = {}
    for entry in entries:
        for call in entry.message.tool_calls:
            calls[call.id] = (call.name, _canonical(call.arguments))
        asked = {calls[r.call_id] for r in entry.message.tool_results if r.call_id in calls}
        if entry.shown_seq:
            cut |= asked
        elif asked & cut:
            again.update(dict.fromkeys(asked & cut, entry.id))
    return frozenset(again.values())


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return arguments


def excerpt(message: Message, tokens: int, *, max_chars: int) -> Message:
    """The tool message with each result cut to its beginning and end, and a reference by which to read it back."""
    parts = tuple(
        replace(part, content=_excerpt(part.content, message.id, tokens, max_chars))
        if isinstance(part, ToolResultPart) and len(part.content) > max_chars
        else part
        for part in message.parts
    )
    return replace(message, parts=parts)


def _excerpt(text: str, message_id: str, tokens: int, max_chars: int) -> str:
    head, tail = max_chars * 3 // 4, max_chars // 4
    note = f"[... {len(text) - head - tail} of {len(text)} characters left out; the whole output is archived as {message_id}]"
    return f"{text[:head]}\n{note}\n{text[len(text) - tail :]}"


def sized(messages: Sequence[Message], *, rules: Policy, counter: TokenCounter) -> list[tuple[Message, Message | None]]:
    """Each message with its stand-in, None where it fits: tool results that are too large, singly or as a batch, are
    excerpts from the first time they are shown."""
    single = int(rules.tool_result_ratio * rules.budget_tokens)
    left = rules.budget_tokens // 2
    found: list[tuple[Message, Message | None]] = []
    for message in messages:
        shown = None
        if message.role == "tool":
            tokens = counter.count(message)
            if tokens > min(single, left):
                shown = excerpt(message, tokens, max_chars=max(80, min(single, left)))
                tokens = counter.count(shown)
            left = max(0, left - tokens)
        found.append((message, shown))
    return found
