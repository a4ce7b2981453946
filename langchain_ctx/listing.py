"""Lists of messages that others keep, as their sessions follow them, and what of a list a session is to take in."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from ctxfold.follow import Line
from ctxfold.history.cuts import whole_rounds
from ctxfold.messages import Message, ToolCallPart, content_key, is_final, tool_result
from langchain_ctx.convert import from_langchain

__all__ = ["Listing", "Said", "newest", "open_turn", "parted", "unbroken", "with_refusals"]


class Listing:
    """LangChain's messages, all with ids."""

    def __init__(self, messages: Sequence[BaseMessage]) -> None:
        self._messages = [*messages]
        self._versions: dict[int, str] = {}

    @property
    def ids(self) -> list[str]:
        return [str(m.id) for m in self._messages]

    def version(self, index: int) -> str:
        if index not in self._versions:
            self._versions[index] = _version(self._messages[index])
        return self._versions[index]

    def message(self, index: int) -> Message:
        return from_langchain(self._messages[index])

    def and_then(self, messages: Sequence[BaseMessage]) -> Listing:
        """The list once these have joined it."""
        longer = Listing([*self._messages, *messages])
        longer._versions = self._versions
        return longer

    def upto(self, end: int) -> Listing:
        return Listing(self._messages[:end])

    def answered(self) -> Listing:
        """The list as it will be once it has its answer, whatever that is."""
        return self.and_then([AIMessage("", id="")])


class Said:
    """The engine's messages: two are the same where a model sees no difference, however an answer was put together."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = [*messages]
        self._versions: dict[int, str] = {}

    @property
    def ids(self) -> list[str]:
        return [m.id for m in self._messages]

    def version(self, index: int) -> str:
        if index not in self._versions:
            self._versions[index] = content_key(self._messages[index])
        return self._versions[index]

    def message(self, index: int) -> Message:
        return self._messages[index]

    def and_then(self, message: Message) -> Said:
        longer = Said([*self._messages, message])
        longer._versions = self._versions
        return longer


def _version(message: BaseMessage) -> str:
    calls = (message.tool_calls, message.invalid_tool_calls) if isinstance(message, AIMessage) else None
    answers = message.tool_call_id if isinstance(message, ToolMessage) else None
    text = repr((message.type, message.content, calls, answers))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()


def with_refusals(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages with an error result for each malformed call that has none, as `create_agent` gives one.

    Whoever keeps a history sees a run end with such a call; a service refuses a later request in which it has no result.
    """
    found: list[Message] = []
    starts = [*(i for i, m in enumerate(messages) if m.role != "tool"), len(messages)]
    found += messages[: starts[0]]
    for start, end in pairwise(starts):
        message, results = messages[start], messages[start + 1 : end]
        answered = {r.call_id for m in results for r in m.tool_results}
        malformed = [c for c in message.tool_calls if c.id not in answered and c.parsed() is None]
        found += [message, *results, *(_refused(call, message.id) for call in malformed)]
    return found


def _refused(call: ToolCallPart, message_id: str) -> Message:
    text = f"Tool call {call.name} was not executed: its arguments are no JSON object."
    return tool_result(call.id, text, id=f"{message_id}-{call.id}", name=call.name, is_error=True)


def newest(ids: Sequence[str | None], known: Collection[str]) -> int:
    """The place of the newest message that is known, -1 when none is."""
    return next((i for i in range(len(ids) - 1, -1, -1) if ids[i] in known), -1)


def unbroken(ids: Sequence[str], known: Collection[str]) -> bool:
    """Whether nothing that is not known stands between what is."""
    places = [i for i, name in enumerate(ids) if name in known]
    return not places or places[-1] - places[0] + 1 == len(places)


def open_turn(messages: Sequence[Message]) -> Sequence[Message]:
    """What stands after the newest final answer."""
    return messages[next((i + 1 for i in range(len(messages) - 1, -1, -1) if is_final(messages[i])), 0) :]


def parted(
    messages: Sequence[Message], line: Line, *, goes_on: bool
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """What the session should have had before a question, older turns up to the newest final answer, and all that is told.

    `messages` begin with the newest one that the session knows, if the list `goes_on` from there.
    """
    told = [m if m.id not in line.again else replace(m, usage=None) for m in messages]  # stored anew, not counted twice
    told = [m for m in told if m.kind == "message"]  # summaries are the session's own
    told = [*told[:1], *whole_rounds(told[1:])] if goes_on else [*whole_rounds(told, waiting=())]
    ends = next((i for i in range(len(told) - 1, -1, -1) if is_final(told[i])), -1)
    settled = told[1 if goes_on else 0 : ends + 1]
    return tuple(settled) if ends < len(told) - 1 else (), tuple(told)
