"""Tool outputs give way to an excerpt and a reference; the originals stay in the log."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from ctxfold.budget import Policy
from ctxfold.history.records import OWN_REFERENCE
from ctxfold.history.view import Entry
from ctxfold.messages import Message, ToolResultPart
from ctxfold.ports import TokenCounter

__all__ = ["asked_again", "clear_tools", "excerpt", "sized"]

EXCERPT_CHARS = 160
EXCERPT_TOKENS = 160  # the least that an output which is too large takes from the first time on
NOTE_TOKENS = 60  # of these, for what says how much is left out, and where it is
PROTECTED_TOKENS = 40_000
MIN_SAVED_TOKENS = 32
MIDDLE_FROM_CHARS = 320  # shorter excerpts have no room for more than beginning and end
FAILURE_CHARS = 120  # of one line
WORD_CHARS = 24
SEARCHED_CHARS = 50_000  # at once
_FAILURE = re.compile(
    r"(?<!\b0 )(?<!\bno )(?:error|exception|traceback|fail(?:ed|ure|s)\b|fatal|panic|denied|refused|not found|timed out)"
    r"""(?!s?["']?\s*[:=]\s*["']?(?:none|null|false|0)\b)|错误|失败|异常|エラー|失敗|例外""",
    re.I,
)


def clear_tools(
    entries: Sequence[Entry],
    *,
    budget_tokens: int,
    keep: Collection[str],
    counter: TokenCounter,
    newer_tokens: int = 0,
    order: Sequence[int] | None = None,
    wanted_tokens: int | None = None,
    last_resort: bool = False,
) -> tuple[tuple[Message, ...], int]:
    """Stand-ins for old tool outputs and the tokens they save: oldest first or in `order`, until `wanted_tokens` are saved.

    The newest 40,000 tokens are left alone, but never more than half of the budget, so that small windows are pruned too. What
    was asked for again after its output had been cut is kept, and gives way last where it must (`last_resort`).
    """
    protected = min(PROTECTED_TOKENS, budget_tokens // 2)
    newer = newer_tokens + sum(e.tokens for e in entries)
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
        shown = excerpt(entry.message, reference=entry.reference, max_chars=EXCERPT_CHARS)
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
    except (ValueError, RecursionError):
        return arguments


def excerpt(message: Message, *, reference: str, max_chars: int) -> Message:
    """The tool message with each result cut to what tells most, and the reference by which to read it back.

    That is the beginning, the end and, where there is room, lines between them that report a failure. Words and numbers are not
    cut in two.
    """
    parts = tuple(
        replace(part, content=_excerpt(part.content, reference, max_chars))
        if isinstance(part, ToolResultPart) and len(part.content) > max_chars
        else part
        for part in message.parts
    )
    return replace(message, parts=parts)


def _excerpt(text: str, reference: str, max_chars: int) -> str:
    tail = _end(text, max_chars // 4)
    failures = _failures(text, max_chars // 2, len(text) - len(tail), max_chars // 4)
    head = _beginning(text, max_chars - max_chars // 4 - len(failures))
    left_out = len(text) - len(head) - len(failures) - len(tail)
    note = f"{left_out} of {len(text)} characters left out; the whole output is archived as {reference}"
    if not failures:
        return f"{head}\n[... {note}]\n{tail}"
    return f"{head}\n[... {note}; in between:]\n{failures}\n[...]\n{tail}"


def _failures(text: str, start: int, end: int, max_chars: int) -> str:
    """The first lines of a stretch that report a failure, as many as fit; of a long line, what stands around the word."""
    found: list[str] = []
    if 4 * max_chars < MIDDLE_FROM_CHARS:
        return ""
    start = text.find("\n", start, end) + 1 or start
    while hit := _next_failure(text, start, end):
        first = _apart(text, max(text.rfind("\n", start, hit.start()) + 1, start, hit.start() - FAILURE_CHARS // 4))
        last = text.find("\n", hit.end(), end)
        line = _beginning(text[first : end if last < 0 else last], FAILURE_CHARS)
        start = max(first + len(line), hit.end())
        found.append(line.strip())
        if (max_chars := max_chars - len(found[-1]) - 1) < 0:
            found.pop()
            break
    return "\n".join(found)


def _next_failure(text: str, start: int, end: int) -> re.Match[str] | None:
    """The next word of failure; one call of a regular expression holds the interpreter, so a long text is searched in stretches."""
    while start < end:
        if (hit := _FAILURE.search(text, start, min(end, start + SEARCHED_CHARS + WORD_CHARS))) is not None:
            return hit
        start += SEARCHED_CHARS
    return None


def _beginning(text: str, max_chars: int) -> str:
    """At most so many characters; no word or number is cut in two, if that costs no more than 24 of them."""
    if len(text) <= max_chars:
        return text
    near = range(max_chars, max(0, max_chars - WORD_CHARS), -1)
    return text[: next((i for i in near if not _joined(text, i)), max_chars)].rstrip()


def _end(text: str, max_chars: int) -> str:
    return text[_apart(text, len(text) - max_chars) :].lstrip()


def _apart(text: str, start: int) -> int:
    """The next place where no word or number is cut in two, if it is no more than 24 characters on."""
    return next((i for i in range(start, min(len(text), start + WORD_CHARS)) if not _joined(text, i)), start)


def _joined(text: str, at: int) -> bool:
    """Whether a cut here would part a word or a number, such as 1,234.5."""
    return at > 0 and all(c.isalnum() or c in ".,_-" for c in text[at - 1 : at + 1])


def sized(
    messages: Sequence[Message], *, rules: Policy, counter: TokenCounter, shown_tokens: int = 0
) -> list[tuple[Message, Message | None]]:
    """Each message with its stand-in, None where it fits: tool results that are too large, singly or as a batch, are
    excerpts from the first time they are shown. What is shown then stays as it is: a later cut would break the prefix.

    `shown_tokens` is what results of the first message's round take that were stored before.
    """
    single = int(rules.tool_result_ratio * rules.budget_tokens)
    left = max(0, rules.budget_tokens // 2 - shown_tokens)
    found: list[tuple[Message, Message | None]] = []
    for message in messages:
        shown = None
        if message.role == "assistant":
            left = rules.budget_tokens // 2
        if message.role == "tool":
            tokens = counter.count(message)
            if tokens > (most := min(single, left)):
                wanted = min(most, max(EXCERPT_TOKENS, int(rules.excerpt_ratio * rules.budget_tokens)))
                most_chars = max(80, _chars(message, tokens, wanted - NOTE_TOKENS))
                shown = excerpt(message, reference=OWN_REFERENCE, max_chars=most_chars)
                tokens = counter.count(shown)
            left = max(0, left - tokens)
        found.append((message, shown))
    return found


def _chars(message: Message, tokens: int, wanted_tokens: int) -> int:
    """How many characters of each of its results make that many tokens in all."""
    lengths = [len(part.content) for part in message.tool_results]
    return wanted_tokens * sum(lengths) // max(1, tokens * len(lengths))
