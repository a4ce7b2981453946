"""Decides where a history may be cut, and which messages stay. Tool rounds are never split, so none has to be repaired."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise, takewhile

from ctxfold.errors import OrphanToolResultError
from ctxfold.history.view import Entry, lasting_sections
from ctxfold.lru import lazy_pattern
from ctxfold.messages import (
    Message,
    Opaque,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    assistant,
    is_prompt,
    is_question,
    result_as_text,
    user,
    without_calls,
)

_MADE = lazy_pattern(r"call_.+_\d+")


def made_call_id(message_id: str, number: int) -> str:
    """Returns the id of a call that came without one."""
    return f"call_{message_id}_{number}"


def legal_cuts(entries: Sequence[Entry]) -> frozenset[int]:
    """Returns the indices at which no tool call is separated from any of its results; `entries[:cut]` may be compacted."""
    cuts: set[int] = set()
    waiting: set[str] = set()
    for index, entry in enumerate(entries):
        if not waiting and entry.message.role != "tool":
            cuts.add(index)
        _follow(waiting, entry.message)
    if not waiting:
        cuts.add(len(entries))
    return frozenset(cuts)


def kept(entries: Sequence[Entry], *, pins: Collection[str], question: bool = True) -> frozenset[str]:
    """Returns the ids that stay verbatim even left of a cut: the newest system message and the newest user message with its
    sections, pins with their whole round, and sections put in by hand.

    `entries` are those of the conversation, without the system prompts at its head, which always stay. Without `question` the
    newest user message is none of them: it is in the turn that asks.
    """
    ids = {e.id for e in [next((e for e in reversed(entries) if is_prompt(e.message)), None)] if e is not None}
    newest = next((e.id for e in reversed(entries) if is_question(e.message)), None)
    if newest is not None and question:
        ids.add(newest)
    ids |= lasting_sections(entries, newest if question else None)
    if pins:
        for index, entry in enumerate(entries):
            if entry.id in pins:
                ids.update(e.id for e in entries[slice(*round_of(entries, index))])
    return frozenset(ids)


def question_to_keep(entries: Sequence[Entry], removed_ids: Collection[str]) -> str | None:
    """Returns the removed user message that the first remaining entry answers; None where a user message leads anyway.

    Chat templates and services refuse a conversation that begins with an answer.
    """
    first = next((i for i, e in enumerate(entries) if e.id not in removed_ids and e.message.role != "system"), None)
    if first is None or entries[first].message.role == "user":
        return None
    return next((e.id for e in reversed(entries[:first]) if is_question(e.message)), None)


def unasked(entries: Sequence[Entry], removed_ids: Collection[str], *, after: Sequence[Entry]) -> tuple[Entry, ...]:
    """Returns the remaining entries of turns whose question is removed: all before the first user message left here or `after`."""
    remaining = [e for e in entries if e.id not in removed_ids and e.message.role != "system"]
    if not any(e.message.role == "user" for e in (*remaining, *after)):
        return ()
    return tuple(takewhile(lambda e: e.message.role != "user", remaining))


def round_of(entries: Sequence[Entry], index: int) -> tuple[int, int]:
    """Returns the half-open range of the tool round that holds entry `index`; only the entry when it is in none."""
    start = index
    while start > 0 and entries[start].message.role == "tool":
        start -= 1
    if not entries[start].message.tool_calls:
        return (index, index + 1)
    end = start + 1
    while end < len(entries) and entries[end].message.role == "tool":
        end += 1
    return (start, end)


def answered_calls(entries: Iterable[Entry]) -> Iterator[tuple[Entry, tuple[ToolCallPart, ...]]]:
    """Yields each entry with the calls that its results answer.

    A result answers the newest call of its id before it, as providers reuse call ids within a session.
    """
    calls: dict[str, ToolCallPart] = {}
    for entry in entries:
        calls.update((c.id, c) for c in entry.message.tool_calls)
        yield entry, tuple(calls[r.call_id] for r in entry.message.tool_results if r.call_id in calls)


def open_calls(entries: Sequence[Entry]) -> Counter[str]:
    """Returns the ids of calls at the end of `entries` that still wait for a result; reads the last round only.

    An id counts more than once where a model has made several calls under it: each of them has a result.
    """
    return Counter([call.id for call in waiting_calls(e.message for e in reversed(entries))])


def waiting_calls(newest_first: Iterable[Message]) -> tuple[ToolCallPart, ...]:
    """Returns the calls of the last round that still wait for a result, in order; reads the last round only."""
    results: list[str] = []
    for message in newest_first:
        if message.role == "tool":
            results += [r.call_id for r in message.tool_results]
        elif message.visibility != "user":
            if not message.tool_calls:
                return ()
            answered, calls = Counter(results), list[ToolCallPart]()
            for call in message.tool_calls:
                if answered[call.id]:
                    answered[call.id] -= 1
                else:
                    calls.append(call)
            return tuple(calls)
    return ()


@dataclass(slots=True)
class Followed:
    """Knows the ids of a list that is only appended to, and which calls at its end wait for results.

    Each look reads only what is new since the last one.
    """

    ids: set[str] = field(default_factory=set[str])
    waiting: Counter[str] = field(default_factory=Counter[str])
    _entries: Sequence[Entry] = ()
    _length: int = 0

    def copy(self) -> Followed:
        return replace(self, ids=self.ids.copy(), waiting=self.waiting.copy())

    def read(self, entries: Sequence[Entry]) -> Followed:
        if entries is not self._entries:
            self._entries, self._length, self.ids, self.waiting = entries, 0, set(), Counter()
        for index in range(self._length, len(entries)):
            message = entries[index].message
            self.ids.add(message.id)
            if message.role == "tool":
                for result in message.tool_results:
                    take_one(self.waiting, result.call_id)
            elif message.visibility != "user":
                self.waiting = Counter(call.id for call in message.tool_calls)
        self._length = len(entries)
        return self


def take_one(waiting: Counter[str], call_id: str) -> None:
    """Takes one call of this id from those that wait, in time that does not depend on their number."""
    waiting[call_id] -= 1
    if waiting[call_id] < 1:
        del waiting[call_id]


def waiting_turn(turns: Mapping[str, Sequence[Entry]], messages: Iterable[Message]) -> str | None:
    """Returns the newest open turn whose call the first of the messages answers."""
    answered = next(({r.call_id for r in m.tool_results} for m in messages if m.visibility != "user"), None)
    if not answered:
        return None
    return next((t for t in reversed(list(turns)) if answered & open_calls(turns[t]).keys()), None)


def round_tokens(entries: Sequence[Entry]) -> int:
    """Returns the tokens of the tool results at the end of `entries`."""
    return sum(e.tokens for e in takewhile(lambda e: e.message.role == "tool", reversed(entries)))


def complete_prefix(entries: Sequence[Entry]) -> int:
    """Returns how many leading entries form a legal conversation: an unfinished last round is left out."""
    return max(legal_cuts(entries))


def check_sequence(messages: Sequence[Message], *, waiting: Collection[str] = ()) -> Counter[str]:
    """Returns the ids of calls that wait for results after `messages`. Raises OrphanToolResultError for a result of no open call.

    `waiting` are the calls that were open before. A message other than a tool result while calls are open is refused too.
    """
    pending = Counter(waiting)
    for message in messages:
        if message.role == "tool":
            for result in message.tool_results:
                if result.call_id not in pending:
                    raise OrphanToolResultError(
                        f"tool message {message.id!r} answers call {result.call_id!r}, which is not open "
                        f"(open: {', '.join(sorted(pending)) or 'none'}): add the assistant message that makes the call first"
                    )
                take_one(pending, result.call_id)
        elif pending:
            raise OrphanToolResultError(
                f"{pending.total()} tool call(s) still wait for a result ({', '.join(sorted(pending))}): "
                f"add their results before the {message.role} message {message.id!r}"
            )
        elif calls := message.tool_calls:
            pending = Counter(c.id for c in calls)
    return pending


def whole_rounds(messages: Sequence[Message], *, waiting: Collection[str] | None = None) -> tuple[Message, ...]:
    """Returns the messages of a list that somebody else keeps as a legal conversation.

    Results come right behind their round, as services demand.

    Left out are results whose call is not in the list, second results of one call, and calls that the conversation went on
    from before they were answered: the whole round, or a malformed call alone. `waiting` are the calls that are open before
    the list, whose results are left out unless they answer all of them or end the list; None keeps the results at its beginning,
    whatever they answer. The last round may still wait.
    """
    messages = with_results_together(messages, waiting or ())
    starts = [*(i for i, m in enumerate(messages) if m.role != "tool" and m.visibility != "user"), len(messages)]
    first = messages[: starts[0]]
    legal = [*first] if waiting is None else _answers(first, waiting)
    if len(starts) > 1 and Counter(waiting) - Counter(r.call_id for m in legal for r in m.tool_results):
        legal = [m for m in legal if m.visibility == "user"]
    for start, end in pairwise(starts):
        message = messages[start]
        calls = Counter(c.id for c in message.tool_calls)
        results = _answers(messages[start + 1 : end], calls)
        answered = Counter(r.call_id for m in results for r in m.tool_results)
        missing = set(calls - answered) if end < len(messages) else set[str]()
        if missing:
            if any(c.parsed() is not None for c in message.tool_calls if c.id in missing):
                legal += [m for m in results if m.visibility == "user"]
                continue
            message = without_calls(message, missing)
        if message.tool_calls or message.text or not missing:
            legal += [message, *results]
    return tuple(legal)


def asked_results(messages: Sequence[Message], legal: Sequence[Message]) -> list[Message]:
    """Returns results of no call that end a list, as text: they are what is asked. `legal` are its `whole_rounds`."""
    kept = {m.id for m in legal}
    ending = [*takewhile(lambda m: m.role == "tool", reversed(messages))]
    waits = bool(legal and legal[-1].tool_calls) or any(m.id in kept for m in ending)
    return [] if waits else [result_as_text(m) for m in reversed(ending)]


def with_results_together(
    messages: Sequence[Message], waiting: Collection[str] = (), *, across: bool = False
) -> list[Message]:
    """Returns the messages with each result behind the message that called; those of the calls `waiting` come first.

    A tool may add a message while other calls of its round are running. With `across`, also results behind another reply: an
    agent that goes on after a cancellation asks twice at once, so that its rounds come interleaved.
    """
    rounds: list[list[Message]] = [[]]
    unanswered = {
        i: [rounds[0]] * n for i, n in Counter(waiting).items()
    }  # a model may make several calls under one id
    for message in messages:
        if message.role != "tool":
            rounds.append([message])
            if message.role == "assistant" and message.visibility != "user":
                own = Counter(c.id for c in message.tool_calls)
                unanswered = {**(unanswered if across else {}), **{i: [rounds[-1]] * n for i, n in own.items()}}
        else:
            waits = unanswered.get(message.tool_results[0].call_id)
            (waits.pop() if waits else rounds[-1]).append(message)
    return [message for each in rounds for message in each]


def with_known_calls(
    messages: Sequence[Message], waiting: Sequence[ToolCallPart] = (), *, ended: bool = False
) -> list[Message]:
    """Returns the messages with each result under the id of the call that it answers.

    Some services give their calls no ids, the tool's name, or one number for all. A result whose id no call has answers a call of
    its round that has no other result: the first of its tool, else the first, unless both have ids of their own and the list ends
    there, so that more results may come; with `ended` none do. `waiting` are the calls that are open before the list: other
    results of their round may be stored already, so that an id of its own names no call of theirs. A result under the id of an
    answered call stays as it is.
    """
    known = {c.id for m in messages for c in m.tool_calls} | {c.id for c in waiting}
    matched, unmatched, unanswered, called = [*messages], list[int](), _Unanswered(waiting), False
    for index, message in enumerate(messages):
        if message.tool_results:
            result = message.tool_results[0]
            call = unanswered.take("id", result.call_id) if result.call_id else None
            if call is not None:
                matched[index] = _answering(message, call)
            elif result.call_id not in known and (called or unanswered.may_be_any(result)):
                unmatched.append(index)
        elif message.role == "assistant" and message.visibility != "user":
            _match_by_tool(matched, unmatched, unanswered, ended=True)
            unmatched, unanswered, called = [], _Unanswered(message.tool_calls), True
    _match_by_tool(matched, unmatched, unanswered, ended=ended or not messages or messages[-1].role != "tool")
    return matched


class _Unanswered:
    """Holds the calls of a round that have no result yet, by id and by the tool's name, each in order."""

    def __init__(self, calls: Sequence[ToolCallPart]) -> None:
        self._free = dict(enumerate(calls))
        self._places: dict[tuple[str, str], deque[int]] = {}
        self._made_ids = any(_MADE.fullmatch(call.id) for call in calls)
        for place, call in self._free.items():
            for key in {("id", call.id), ("id", call.id.rpartition("#")[0]), ("name", call.name)}:
                self._places.setdefault(key, deque()).append(place)

    def take(self, kind: str, name: str) -> ToolCallPart | None:
        places = self._places.get((kind, name), ())
        while places:
            if (call := self._free.pop(places.popleft(), None)) is not None:
                return call
        return None

    def take_first(self) -> ToolCallPart | None:
        return self._free.pop(next(iter(self._free)), None) if self._free else None

    def may_be_any(self, result: ToolResultPart) -> bool:
        """Returns True where the id of a result says nothing, or where one of the calls came without an id."""
        return not result.call_id or ("name", result.call_id) in self._places or (self._made_ids and bool(self._free))


def _match_by_tool(messages: list[Message], indices: Sequence[int], calls: _Unanswered, *, ended: bool) -> None:
    """Binds the results at `indices` to calls without one: by the tool's name, also where it is the id, then by order."""
    nameless = list[int]()
    for index in indices:
        result = messages[index].tool_results[0]
        call = calls.take("name", result.name or result.call_id) or calls.take("name", result.call_id)
        if call is None:
            nameless += [index] if ended or calls.may_be_any(result) else []
        else:
            messages[index] = _answering(messages[index], call)
    for index in nameless:
        if (call := calls.take_first()) is not None:
            messages[index] = _answering(messages[index], call)


def results_in_order(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages with the results of each round in the order of its calls: a service without ids pairs them so."""
    ordered: list[Message] = []
    place: dict[str, int] = {}
    for is_result, group in groupby(messages, lambda m: bool(m.tool_results)):
        if is_result:
            ordered += sorted(group, key=lambda m: place.get(m.tool_results[0].call_id, len(place)))
        else:
            ordered += group
            place = {call.id: n for n, call in enumerate(ordered[-1].tool_calls)}
    return ordered


def _answering(message: Message, call: ToolCallPart) -> Message:
    """Returns the message with its result under the id of the call."""
    result = message.tool_results[0]
    if result.call_id == call.id:
        return message
    own = replace(result, call_id=call.id)
    return replace(message, parts=tuple(own if part is result else part for part in message.parts))


def _answers(messages: Iterable[Message], calls: Collection[str]) -> list[Message]:
    """Returns the first result of each of the calls; notes for the user stay where they are."""
    legal, waiting = list[Message](), Counter(calls)
    for message in messages:
        parts = tuple(p for p in message.parts if not isinstance(p, ToolResultPart) or p.call_id in waiting)
        for result in message.tool_results:
            take_one(waiting, result.call_id)
        if message.visibility == "user" or any(isinstance(p, ToolResultPart) for p in parts):
            legal.append(message if len(parts) == len(message.parts) else replace(message, parts=parts))
    return legal


def _follow(waiting: set[str], message: Message) -> None:
    for part in message.parts:  # results stand before calls
        if isinstance(part, ToolCallPart):
            waiting.add(part.id)
        elif isinstance(part, ToolResultPart):
            waiting.discard(part.call_id)


NOBODY_ASKED = "(The assistant speaks first.)"  # a conversation has to begin with the user's turn
NOT_ANSWERED = "(The assistant has not answered yet.)"  # the user speaks right after a tool's result
_GAP = "\n\n"


def alternating(messages: Iterable[Message]) -> list[Message]:
    """Returns the messages with neighbours of one role joined, so that user and assistant alternate after the system messages.

    Later system messages become the user's. Calls and their results stay as they are, and do not count as turns. A user's turn
    is put before an assistant that speaks first, an assistant's between a tool's result and the user.
    A conversation that goes on keeps the text that it had, so that a server's prefix cache serves it.
    """
    result: list[Message] = []
    for message in messages:
        last = result[-1] if result else None
        leading = last is None or last.role == "system"
        turn = message.with_role("user") if message.role == "system" and not leading else message
        if last is not None and turn.role == last.role and turn.role in ("user", "assistant"):
            result[-1] = _joined(last, turn)
            continue
        if leading and turn.role == "assistant":
            result.append(user(NOBODY_ASKED, id=f"{turn.id}:asked"))
        elif last is not None and last.role == "tool" and turn.role == "user":
            result.append(assistant(NOT_ANSWERED, id=f"{turn.id}:unanswered"))
        result.append(turn)
    return result


def later_system_as_users(messages: Sequence[Message]) -> Sequence[Message]:
    """Returns the messages with system messages behind the head as the user's: some services take them at the head alone."""
    head = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    if not any(message.role == "system" for message in messages[head:]):
        return messages
    return [m.with_role("user") if m.role == "system" and i > head else m for i, m in enumerate(messages)]


def _joined(first: Message, second: Message) -> Message:
    """Returns one message with the content of both; a framework's own data is left out, as it describes only one of them."""
    gap: list[Part] = []
    if first.reasoning and second.reasoning:
        gap.append(ReasoningPart(_GAP))
    if first.text and second.text:
        gap.append(TextPart(_GAP))
    parts = tuple(part for part in (*first.parts, *gap, *second.parts) if not isinstance(part, Opaque))
    name = first.name if first.name == second.name else None
    return replace(second, id=first.id, parts=parts, name=name, kind=first.kind)
