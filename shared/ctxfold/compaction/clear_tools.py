"""Tool outputs give way to an excerpt and a reference; the originals stay in the log."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ctxfold.budget import Policy
from ctxfold.history.view import Entry
from ctxfold.messages import Message, ToolResultPart
from ctxfold.ports import TokenCounter

__all__ = ["clear_tools", "excerpt", "sized"]

EXCERPT_CHARS = 160
PROTECTED_TOKENS = 40_000
MIN_SAVED_TOKENS = 32


def clear_tools(
    entries: Sequence[Entry], *, budget_tokens: int, keep: Collection[str], counter: TokenCounter
) -> tuple[tuple[Message, ...], int]:
    """Stand-ins for old tool outputs, oldest first, and the tokens they save.

    The newest 40,000 tokens are left alone, but never more than half of the budget, so that small windows are pruned too.
    """
    protected = min(PROTECTED_TOKENS, budget_tokens // 2)
    newer = sum(e.tokens for e in entries)
    stand_ins: list[Message] = []
    saved = 0
    for entry in entries:
        newer -= entry.tokens
        if newer < protected:
            break
        if entry.message.role != "tool" or entry.shown_seq or entry.id in keep:
            continue
        shown = excerpt(entry.message, entry.tokens, max_chars=EXCERPT_CHARS)
        gain = entry.tokens - counter.count(shown)
        if gain >= MIN_SAVED_TOKENS:
            stand_ins.append(shown)
            saved += gain
    return tuple(stand_ins), saved


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
