"""Replaces tool outputs and the arguments of tool calls with an excerpt and a reference; the originals stay in the log."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from math import inf
from typing import Any, cast

from ctxfold.compaction.excerpts import NOTHING, Focus, excerpt_of, referring
from ctxfold.history.cuts import answered_calls, round_tokens
from ctxfold.history.prompt_safety import strip_control_chars
from ctxfold.history.records import OWN_REFERENCE, with_own_reference
from ctxfold.history.view import Entry, View
from ctxfold.messages import MediaPart, Message, Opaque, Part, ReasoningPart, ToolCallPart, ToolResultPart, is_question
from ctxfold.policy.settings import EXCERPT_TOKENS, Policy
from ctxfold.protocols import TokenCounter
from ctxfold.tokens.media import medium_of
from ctxfold.validation import json_object

EXCERPT_CHARS = 160
NOTE_TOKENS = 60  # of these, for the note that says how much is left out, and where it is
WHOLE_SHARE = 0.7  # of the free room, which an output may take whole
SHRINK = 4  # an output that gives way keeps one part of so many, each time
PROTECTED_TOKENS = 40_000
MIN_SAVED_TOKENS = 32
ARGUMENT_CHARS = 600  # shorter arguments stay as they are
KEPT_ARGUMENT_CHARS = 160  # of the beginning and the end of a long one
MOST_ITEMS = 8  # of a list of texts in the arguments


@dataclass(frozen=True, slots=True)
class Clearing:
    """Says which outputs give way, and how far.

    Args:
        rules: calls of `exclude_tools` keep their arguments, and `references` says whether an excerpt names its message.
        order: the indices of tool outputs in the order in which they give way; None for oldest first.
        enough_tokens: goes on until as many are saved; None for all.
        gently: an output keeps a quarter of what is shown of it now.
        last_resort: outputs of calls that were made again after their first output had been cut give way too, last.
        question: the newest question, for which excerpts keep what bears on it.
        bound_ids: messages whose calls keep their arguments, as a service checks them.
        first_ids: outputs that give way before others, however new they are.
        first_only: nothing but these and superseded outputs gives way.
    """

    rules: Policy
    order: Sequence[int] | None = None
    enough_tokens: int | None = None
    gently: bool = False
    last_resort: bool = False
    question: str = ""
    bound_ids: Collection[str] = ()
    first_ids: Collection[str] = ()
    first_only: bool = False


def outputs_of(tools: Collection[str], entries: Iterable[Entry]) -> frozenset[str]:
    """Returns the ids of the tool messages that hold an output of one of these tools."""
    if not tools:
        return frozenset()
    return frozenset(e.id for e, calls in answered_calls(entries) if any(c.name in tools for c in calls))


def clear_tools(
    entries: Sequence[Entry],
    *,
    budget_tokens: int,
    keep: Collection[str],
    counter: TokenCounter,
    clearing: Clearing,
    newer_tokens: int = 0,
) -> tuple[tuple[Message, ...], int]:
    """Returns excerpts that replace old tool outputs and old large arguments of calls, and the tokens that they save.

    The newest 40,000 tokens are protected, but never more than half of the budget, so that small windows are pruned too. An output
    whose call was made again later goes first, however new it is, and is cut to the least; so does one of `Clearing.first_ids`.
    """
    order = clearing.order
    protected = min(PROTECTED_TOKENS, budget_tokens // 2)
    newer = newer_tokens + sum(e.tokens for e in entries)
    old = 0
    for entry in entries:
        newer -= entry.tokens
        if newer < protected:
            break
        old += 1
    calls = _Calls(entries)
    repeated = repeated_outputs(entries) if any(e.shown_seq for e in entries) else frozenset[str]()
    first = calls.superseded.union(clearing.first_ids)
    outputs = range(len(entries)) if order is None else order
    indices = [i for i in outputs if i < old or entries[i].id in first]
    if order is not None:
        indices = [i for i in range(old) if entries[i].message.tool_calls] + indices
    if clearing.first_only:
        indices = [i for i in indices if entries[i].id in first]
    indices.sort(key=lambda i: (entries[i].id in repeated, entries[i].id not in first))
    stand_ins: dict[int, Message] = {}
    saved = 0
    for index in indices:
        entry = entries[index]
        reference = entry.reference if clearing.rules.references else ""
        if entry.id in keep or (entry.id in repeated and not clearing.last_resort):
            continue
        if entry.message.role == "tool":
            least = entry.id in first or not clearing.gently
            focus = calls.focus(index, clearing.question)
            shown = _shorter(entry, reference, 0 if least else SHRINK, focus)
        elif entry.message.tool_calls and not entry.shown_seq and entry.id not in clearing.bound_ids:
            shown = with_short_arguments(entry.message, reference=reference, excluded=clearing.rules.exclude_tools)
        else:
            continue
        gain = entry.tokens - counter.count(shown) if shown is not entry.message else 0
        if gain >= MIN_SAVED_TOKENS:
            stand_ins[index] = shown
            saved += gain
        if clearing.enough_tokens is not None and saved >= clearing.enough_tokens:
            break
    return tuple(stand_ins[i] for i in sorted(stand_ins)), saved


def _shorter(entry: Entry, reference: str, parts: int, focus: Focus) -> Message:
    """Returns an excerpt with one part in `parts` of the text that is shown now; with 0, the shortest excerpt."""
    message = _with_texts(entry.message)
    longest = max((len(r.content) for r in message.tool_results), default=0)
    most = max(EXCERPT_CHARS, longest // parts if parts else 0)
    if entry.shown_seq and longest <= most + 2 * EXCERPT_CHARS:
        return entry.message
    return excerpt(message, reference=reference, max_chars=most, focus=focus, again=bool(entry.shown_seq))


def _with_texts(message: Message) -> Message:
    """Returns the output with the texts of its documents and search results in its result, where they can be shortened."""
    texts = {i: medium_of(p).text for i, p in enumerate(message.parts) if isinstance(p, MediaPart)}
    media_texts = [text for text in texts.values() if text]
    if not media_texts:
        return message
    parts = [part for i, part in enumerate(message.parts) if not texts.get(i)]
    at = next(i for i, part in enumerate(parts) if isinstance(part, ToolResultPart))
    result = cast("ToolResultPart", parts[at])
    content = "\n".join([result.content, *media_texts] if result.content else media_texts)
    return replace(message, parts=(*parts[:at], replace(result, content=content), *parts[at + 1 :]))


def repeated_outputs(entries: Sequence[Entry]) -> frozenset[str]:
    """Returns the ids of the newest outputs of calls that, name and arguments alike, had an earlier output cut to an excerpt."""
    cut: set[tuple[str, str]] = set()
    newest: dict[tuple[str, str], str] = {}
    for entry, calls in answered_calls(entries):
        answered = set(map(_call_key, calls))
        if entry.shown_seq:
            cut |= answered
        elif answered & cut:
            newest.update(dict.fromkeys(answered & cut, entry.id))
    return frozenset(newest.values())


def _call_key(call: ToolCallPart) -> tuple[str, str]:
    """Returns a key that is equal for calls with the same name and the same arguments, in whatever order they stand."""
    try:
        return call.name, json.dumps(json.loads(call.arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return call.name, call.arguments


class _Calls:
    """The calls that the tool outputs among some entries answer, and which outputs a later call of the same kind supersedes."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._answered: dict[int, tuple[ToolCallPart, ...]] = {}
        self._question_index: dict[int, int] = {}
        newest: dict[tuple[tuple[str, str], ...], str] = {}
        superseded: set[str] = set()
        question_index = -1
        for index, (entry, answered) in enumerate(answered_calls(entries)):
            if is_question(entry.message):
                question_index = index
            elif entry.message.role == "tool":
                self._answered[index], self._question_index[index] = answered, question_index
                same = tuple(map(_call_key, answered))
                if same and same in newest:
                    superseded.add(newest[same])
                newest[same] = entry.id
        self.superseded = frozenset(superseded)

    def focus(self, index: int, question: str) -> Focus:
        """Returns what an output was asked for: its own question and the newest one, and the values of its call."""
        question_index = self._question_index.get(index, -1)
        own = self._entries[question_index].message.text if question_index >= 0 else ""
        texts = (own, question) if question != own else (own,)
        return Focus("\n".join(texts), "\n".join(map(call_values, self._answered.get(index, ()))))


def call_values(call: ToolCallPart) -> str:
    """Returns the texts and numbers among the arguments of a call, which say what was looked for."""
    values: list[str] = []

    def collect(value: object) -> None:
        if isinstance(value, Mapping):
            for each in cast("Mapping[str, object]", value).values():
                collect(each)
        elif isinstance(value, list):
            for each in cast("list[object]", value):
                collect(each)
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            values.append(str(value)[:ARGUMENT_CHARS])

    collect(call.parsed() if len(call.arguments) < 100_000 else None)
    return " ".join(values)


def excerpt(
    message: Message, *, reference: str, max_chars: int, focus: Focus = NOTHING, again: bool = False
) -> Message:
    """Returns the tool message with each result cut to an excerpt, and the reference by which to read the whole back.

    With `again`, the results are excerpts, of which shorter ones are made. `reference` is "" where nobody can read it back.
    """
    cut = partial(excerpt_of, reference=reference, max_chars=max_chars, focus=focus, again=again)
    parts = tuple(
        replace(part, content=strip_control_chars(cut(part.content)))
        if isinstance(part, ToolResultPart) and len(part.content) > max_chars
        else part
        for part in message.parts
    )
    return replace(message, parts=parts)


# arguments of calls


def shortened_calls(
    entries: Sequence[Entry], *, keep: Collection[str], counter: TokenCounter, rules: Policy
) -> tuple[tuple[Message, ...], int]:
    """Returns stand-ins for all messages whose calls have large arguments, and the tokens that they save.

    Calls of the tools in `rules.exclude_tools` keep theirs.
    """
    stand_ins: list[Message] = []
    saved = 0
    for entry in entries:
        if entry.message.tool_calls and not entry.shown_seq and entry.id not in keep:
            reference = entry.reference if rules.references else ""
            shown = with_short_arguments(entry.message, reference=reference, excluded=rules.exclude_tools)
            gain = entry.tokens - counter.count(shown) if shown is not entry.message else 0
            if gain >= MIN_SAVED_TOKENS:
                stand_ins.append(shown)
                saved += gain
    return tuple(stand_ins), saved


def with_short_arguments(message: Message, *, reference: str, excluded: Collection[str] = ()) -> Message:
    """Returns the message with the long texts in the arguments of its calls shortened; the message itself where there are none.

    The arguments stay an object with the same fields and types. Copies of them that a framework keeps beside are replaced too.
    Calls of the tools in `excluded` stay as they are.
    """
    shortened: dict[int, ToolCallPart] = {}
    copies: list[tuple[ToolCallPart, ToolCallPart]] = []
    for index, part in enumerate(message.parts):
        if isinstance(part, ToolCallPart) and len(part.arguments) >= ARGUMENT_CHARS and part.name not in excluded:
            arguments = part.parsed()
            shorter = None if arguments is None else _shortened(arguments, reference)
            if shorter is not None and shorter != arguments:
                shortened[index] = replace(part, arguments=json.dumps(shorter, ensure_ascii=False))
                copies.append((part, shortened[index]))
    if not shortened:
        return message
    parts: list[Part] = []
    for index, part in enumerate(message.parts):
        parts.append(_without_copies(part, copies) if isinstance(part, Opaque) else shortened.get(index, part))
    return replace(message, parts=tuple(parts))


def _shortened(value: Any, reference: str) -> Any:
    """Returns JSON data with its long texts shortened, and lists of many texts; everything else as it is."""
    if isinstance(value, str):
        return _shortened_text(value, reference) if len(value) >= ARGUMENT_CHARS else value
    if isinstance(value, dict):
        return {key: _shortened(each, reference) for key, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        items = cast("list[Any]", value)  # type: ignore[redundant-cast]
        texts = all(isinstance(item, str) for item in items)
        if texts and len(items) > MOST_ITEMS and sum(map(len, items)) >= ARGUMENT_CHARS:
            left_out = len(items) - MOST_ITEMS // 2
            note = f"{left_out} of {len(items)} items{_given_all(reference)}"
            items = [*items[: MOST_ITEMS // 2 - 1], f"[... {note}]", items[-1]]
        return [_shortened(item, reference) for item in items]
    return value


def _shortened_text(text: str, reference: str) -> str:
    head, tail = text[:KEPT_ARGUMENT_CHARS], text[-KEPT_ARGUMENT_CHARS // 2 :]
    # whole lines, where that leaves enough of them
    if (end := head.rfind("\n")) > KEPT_ARGUMENT_CHARS // 3:
        head = head[:end]
    if 0 <= (start := tail.find("\n")) < KEPT_ARGUMENT_CHARS // 3:
        tail = tail[start + 1 :]
    left_out = len(text) - len(head) - len(tail)
    note = f"{left_out} of {len(text)} characters{_given_all(reference)}"
    return strip_control_chars(f"{head}\n[... {note}]\n{tail}")


def _given_all(reference: str) -> str:
    return f" left out here, the tool was given all{referring('; archived whole as', reference)}"


def _without_copies(part: Opaque, copies: Sequence[tuple[ToolCallPart, ToolCallPart]]) -> Opaque:
    """Returns a framework's own data with each copy of the arguments shortened, as text or as an object."""
    if len(part.json) < ARGUMENT_CHARS:
        return part
    replaced = [(old.arguments, old.parsed(), new.arguments, new.parsed()) for old, new in copies]

    def copied(value: Any) -> Any:
        for old_text, old, new_text, new in replaced:
            if isinstance(value, str):
                is_long = len(value) >= ARGUMENT_CHARS and value.startswith("{")
                if value == old_text or (is_long and json_object(value) == old):
                    return new_text
            elif value == old:
                return new
        if isinstance(value, dict):
            return {key: copied(each) for key, each in cast("dict[str, Any]", value).items()}
        if isinstance(value, list):
            return [copied(each) for each in cast("list[Any]", value)]  # type: ignore[redundant-cast]
        return value

    return replace(part, json=json.dumps(copied(json.loads(part.json)), ensure_ascii=False))


def signed(message: Message) -> bool:
    """Tells whether a service may check the message's calls against reasoning or a signature that it sent with them."""
    reasoning = any(isinstance(p, ReasoningPart) and (p.signature or p.details) for p in message.parts)
    return reasoning or any(c.extra is not None for c in message.tool_calls)


# outputs that arrive


@dataclass(frozen=True, slots=True)
class Sizing:
    """The conversation that new messages follow, and the tokens of a request besides it."""

    view: View
    overhead_tokens: int


def sized(
    messages: Sequence[Message], *, rules: Policy, counter: TokenCounter, after: Sizing | None = None
) -> list[tuple[Message, Message | None]]:
    """Returns each message with its excerpt, None where it is shown whole.

    An output is shown whole if it fits the free room, or takes no more than `tool_result_ratio` of the budget: older ones then
    give way. Any other is an excerpt from the first time on, as a later cut would break the prefix. The larger the output and the
    more excerpts came before, the smaller its share of the room, down to `excerpt_ratio` of the budget. Outputs of
    `exclude_tools` are shown whole, and `ToolRule.excerpt_tokens` limits those of its tool.
    """
    if not any(m.role == "tool" for m in messages):
        return [(m, None) for m in messages]
    return _Arrivals(rules, counter, after).pairs(messages)


class _Arrivals:
    """Sizes tool outputs one after the other, as each leaves less room to the next."""

    def __init__(self, rules: Policy, counter: TokenCounter, after: Sizing | None) -> None:
        self._rules = rules
        self._single = int(rules.tool_result_ratio * rules.budget_tokens)
        self._count = counter.count
        self._view = None if after is None else after.view
        self._used = 0 if after is None else after.view.tokens + after.overhead_tokens
        self._round = 0 if after is None else round_tokens(after.view.turn or after.view.live)
        self._next_number = 1 + next((e.number for e in self._stored() if e.number), 0)
        self._excerpts: int | None = None  # since the newest question, counted when that is needed first
        self._most = {r.tool: r.excerpt_tokens for r in rules.tool_rules if r.excerpt_tokens is not None}
        self._reference = OWN_REFERENCE if rules.references else ""
        # of the newest question, and the calls by id that were made for it
        self._question, self._calls = "", dict[str, ToolCallPart]()
        since = [*takewhile(lambda m: not is_question(m), (e.message for e in self._stored()))]
        question = next((e.message for e in self._stored() if is_question(e.message)), None)
        for message in ([] if question is None else [question]) + since[::-1]:
            self._note(message)

    def _note(self, message: Message) -> None:
        if is_question(message):
            self._question, self._calls = message.text, {}
        self._calls |= {call.id: call for call in reversed(message.tool_calls)}

    def pairs(self, messages: Sequence[Message]) -> list[tuple[Message, Message | None]]:
        pairs: list[tuple[Message, Message | None]] = []
        for position, message in enumerate(messages):
            shown = None
            if message.role == "assistant":
                self._round = 0
            elif is_question(message):
                self._excerpts = 0
            self._note(message)
            tokens = self._count(message)
            if message.role == "tool":
                shown = self._shown(message, tokens)
                if shown is not None:
                    tokens = self._count(with_own_reference(shown, self._next_number + position))
                self._round += tokens
            self._used += tokens
            pairs.append((message, shown))
        return pairs

    def _shown(self, message: Message, tokens: int) -> Message | None:
        rules = self._rules
        tools = self._tools(message) if rules.exclude_tools or self._most else frozenset[str]()
        if not tools.isdisjoint(rules.exclude_tools):
            return None
        most = min((float(self._most[t]) for t in tools if t in self._most), default=inf)
        room = max(0, rules.budget_tokens - self._used)
        single = self._single
        in_round = max(0, max(rules.budget_tokens // 2, int(WHOLE_SHARE * (room + self._round))) - self._round)
        if tokens <= min(single, in_round, most):
            return None
        excerpts = self._excerpts_before()
        share = WHOLE_SHARE * room / (1 + excerpts) ** 1.5
        if tools.isdisjoint(self._most):
            self._excerpts = excerpts + 1
        if tokens <= min(share, in_round, most):
            return None
        # the larger an output, the less of it: what is left out is read in pages anyway. The second term falls off steeply: it only
        # keeps an output just above the limit from being shown very differently from one just below
        in_proportion = max(
            share * min(1.0, share / tokens) ** 0.5, single * min(1.0, single / tokens) ** (2 + excerpts)
        )
        least = max(EXCERPT_TOKENS, int(rules.excerpt_ratio * rules.budget_tokens))
        target = int(min(in_round, most, max(least, int(in_proportion))))
        return self._fitting(message, tokens, target, self._focus(message), most=most)

    def _fitting(self, message: Message, tokens: int, target: int, focus: Focus, *, most: float) -> Message:
        message = _with_texts(message)
        most_chars = max(80, _chars(message, tokens, target - NOTE_TOKENS))
        shown = excerpt(message, reference=self._reference, max_chars=most_chars, focus=focus)
        needed = self._count(shown)
        if needed > 1.1 * target and most_chars > 80:
            # what is chosen is denser than the whole
            most_chars = max(80, most_chars * (target - NOTE_TOKENS) // max(1, needed - NOTE_TOKENS))
            shown = excerpt(message, reference=self._reference, max_chars=most_chars, focus=focus)
        while most_chars > 80 and self._count(shown) > most:
            most_chars = max(80, most_chars * 3 // 4)
            shown = excerpt(message, reference=self._reference, max_chars=most_chars, focus=focus)
        return shown

    def _excerpts_before(self) -> int:
        """Returns how many outputs since the newest question are excerpts, or larger than what is always shown whole.

        Outputs of tools with a limit of their own do not count: what others may take does not depend on that limit.
        """
        if self._excerpts is None:
            since = list(takewhile(lambda e: not is_question(e.message), self._stored()))
            limited = outputs_of(self._most, reversed(since))
            large = (e for e in since if e.shown_seq or e.tokens > self._single)
            self._excerpts = sum(e.message.role == "tool" and e.id not in limited for e in large)
        return self._excerpts

    def _stored(self) -> Iterator[Entry]:
        return iter(()) if self._view is None else self._view.newest_first()

    def _tools(self, message: Message) -> frozenset[str]:
        """Returns the names of the tools whose outputs a message holds; where a call is not at hand, as the output names it."""
        made = ((self._calls.get(r.call_id), r.name or "") for r in message.tool_results)
        return frozenset(name if call is None else call.name for call, name in made)

    def _focus(self, message: Message) -> Focus:
        calls = (self._calls.get(r.call_id) for r in message.tool_results)
        return Focus(self._question, "\n".join(call_values(call) for call in calls if call is not None))


def _chars(message: Message, tokens: int, target_tokens: int) -> int:
    """Returns how many characters of each of its results make that many tokens in all."""
    lengths = [len(part.content) for part in message.tool_results]
    return target_tokens * sum(lengths) // max(1, tokens * len(lengths))
