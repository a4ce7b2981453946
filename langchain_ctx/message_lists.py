"""Adapts lists of LangChain messages to the engine's comparison of a list with its session."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar, cast, overload

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from ctxfold.history.diff import ids_digest, repeated_count
from ctxfold.messages import Message, ToolCallPart, content_key, joined_texts, tool_result
from langchain_ctx.messages import all_from_langchain, from_langchain, given_ids

T_co = TypeVar("T_co", covariant=True)

CACHED_VERSIONS = 2_048  # of each generation of a VersionCache
_WITHOUT_CALLS = frozenset({HumanMessage, SystemMessage, ToolMessage})
CACHED_CHARS = 4_000_000  # of all texts of a generation
NO_RESULT = "(no result: the conversation went on before this call returned)"


class MessageIds(Sequence[str]):
    """Reads the ids of messages, "" for one without, on demand and newest first: a pass over a freshly loaded list is slow."""

    def __init__(self, messages: Sequence[BaseMessage]) -> None:
        self._messages = messages
        self._newest: list[str] = []  # those that were read
        self._start = len(messages)  # where they begin

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if not isinstance(index, slice):
            return self._messages[index].id or ""
        start, stop, step = index.indices(len(self._messages))
        if step != 1:
            return [m.id or "" for m in self._messages[index]]
        return self._from(start)[start - self._start : max(0, stop - self._start)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._from(0))

    def _from(self, start: int) -> list[str]:
        """Returns the ids from `start` or an earlier one on."""
        if start < self._start:
            self._newest[:0] = [m.id or "" for m in self._messages[start : self._start]]
            self._start = start
        return self._newest


class Joined(Sequence[T_co]):
    """Two sequences one after the other, without a copy of the first one."""

    def __init__(self, first: Sequence[T_co], second: Sequence[T_co]) -> None:
        self._first, self._second = first, second
        self._at, self._length = len(first), len(first) + len(second)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T_co]: ...
    def __getitem__(self, index: int | slice) -> T_co | Sequence[T_co]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if step == 1:
                return [*self._first[start:stop], *self._second[max(0, start - self._at) : max(0, stop - self._at)]]
            return [self[i] for i in range(start, stop, step)]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        index %= self._length
        return self._first[index] if index < self._at else self._second[index - self._at]


class LangChainList:
    """An incoming list of LangChain messages that all have ids. `known` remembers versions across lists."""

    def __init__(
        self, messages: Sequence[BaseMessage], ids: Sequence[str] | None = None, *, known: VersionCache | None = None
    ) -> None:
        self._messages = messages
        self._ids = MessageIds(messages) if ids is None else ids
        self._versions_of = _versions if known is None else known.versions
        self._versions: dict[int, str] = {}
        self._digests: dict[int, str] = {}

    @property
    def messages(self) -> Sequence[BaseMessage]:
        return self._messages

    @property
    def ids(self) -> Sequence[str]:
        return self._ids

    def digest(self, end: int) -> str:
        if end not in self._digests:
            self._digests[end] = ids_digest(self._ids, end)
        return self._digests[end]

    def versions(self, indices: Sequence[int]) -> list[str]:
        known = self._versions
        if unknown := [i for i in indices if i not in known]:
            known.update(zip(unknown, self._versions_of([self._messages[i] for i in unknown]), strict=True))
        return [known[i] for i in indices]

    def message(self, index: int) -> Message:
        messages, end = self._messages, index + 1
        if not isinstance(messages[index], ToolMessage):
            return from_langchain(messages[index])
        while end < len(messages) and isinstance(messages[end], ToolMessage):
            end += 1
        start = _round_start(messages, index)
        return all_from_langchain(messages[start:end])[index - start]

    def followed_by(self, messages: Sequence[BaseMessage]) -> LangChainList:
        """Returns the list with these messages added at its end."""
        longer = LangChainList(Joined(self._messages, messages), Joined(self._ids, MessageIds(messages)))
        longer._versions, longer._digests = {**self._versions}, {**self._digests}
        longer._versions_of = self._versions_of
        return longer

    def with_any_reply(self) -> LangChainList:
        """Returns the list as long as it will be with its reply, whatever that says."""
        return self.followed_by([AIMessage("", id="")])


def leading_count(messages: Sequence[BaseMessage]) -> int:
    """Returns the number of system messages that head a list; in a list of nothing else, the last one asks."""
    return next((i for i, m in enumerate(messages) if m.type != "system"), max(0, len(messages) - 1))


def prompt_text(message: BaseMessage) -> str:
    """Returns the text of a system message, which is all that a session keeps of it."""
    blocks = [message.content] if isinstance(message.content, str) else message.content
    dicts = [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks]
    return joined_texts([str(b.get("text") or "") for b in dicts if b.get("type") == "text"])


def with_given_prompts(window: Sequence[BaseMessage], given: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Returns the window with the caller's own system messages where their blocks are more than text, such as marks of a cache."""
    own = {prompt_text(m): m for m in given if _is_more_than_text(m.content)}
    return [own.get(prompt_text(m), m) if m.type == "system" else m for m in window] if own else [*window]


def _is_more_than_text(content: object) -> bool:
    blocks = cast("list[object]", content) if isinstance(content, list) else []
    return any(isinstance(b, dict) and cast("dict[str, object]", b).keys() != {"type", "text"} for b in blocks)


def _version(message: BaseMessage) -> str:
    calls = (message.tool_calls, message.invalid_tool_calls) if isinstance(message, AIMessage) else None
    answers = message.tool_call_id if isinstance(message, ToolMessage) else None
    text = repr((message.type, message.content, calls, answers))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()


def _versions(messages: Sequence[BaseMessage]) -> list[str]:
    return [*map(_version, messages)]


class VersionCache:
    """Remembers the versions of messages with plain text, so that a list that comes again is compared and not hashed.

    A message that a checkpointer has loaded anew is another object with the same text, and one that was edited in place is the same
    object with another text. So a version is looked up by all the text that it is made from, never by the object. Content blocks
    and tool calls are hashed each time.
    """

    def __init__(self) -> None:
        # two generations: what the newest lists have not looked up is dropped
        self._newer: dict[tuple[object, ...], str] = {}
        self._older: dict[tuple[object, ...], str] = {}
        self._chars = 0  # of the newer ones

    def versions(self, messages: Sequence[BaseMessage]) -> list[str]:
        versions: list[str] = []
        for message in messages:
            # a list may have thousands of messages, and is read at each call of the model
            fields, kind = message.__dict__, type(message)
            content = fields["content"]
            calls = kind not in _WITHOUT_CALLS and (fields.get("tool_calls") or fields.get("invalid_tool_calls"))
            if calls or type(content) is not str:
                versions.append(_version(message))
                continue
            key = (kind, fields["type"], content, fields.get("tool_call_id"))
            version = self._newer.get(key)
            if version is None:
                version = self._newer[key] = self._older.get(key) or _version(message)
                self._chars += len(content)
                if len(self._newer) >= CACHED_VERSIONS or self._chars >= CACHED_CHARS:
                    self._older, self._newer, self._chars = self._newer, {}, 0
            versions.append(version)
        return versions

    def clear(self) -> None:
        """Drops the texts, as an erasure demands."""
        self._newer, self._older, self._chars = {}, {}, 0


def with_refusals(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages with an error result for each malformed call that has none, as `create_agent` gives one.

    A run of an agent may end with such a call; services refuse a later request in which the call has no result.
    """
    complete: list[Message] = []
    starts = [*(i for i, m in enumerate(messages) if m.role != "tool"), len(messages)]
    complete += messages[: starts[0]]
    for start, end in pairwise(starts):
        message, results = messages[start], messages[start + 1 : end]
        answered = {r.call_id for m in results for r in m.tool_results}
        malformed = [c for c in message.tool_calls if c.id not in answered and c.parsed() is None]
        complete += [message, *results, *(_refused(call, message.id) for call in malformed)]
    return complete


def _refused(call: ToolCallPart, message_id: str) -> Message:
    text = f"Tool call {call.name} was not executed: its arguments are no JSON object."
    return tool_result(call.id, text, id=_refusal_id(message_id, call.id), name=call.name, is_error=True)


def _refusal_id(message_id: str, call_id: str | None) -> str:
    return f"{message_id}-{call_id}"


def converted_from(messages: Sequence[BaseMessage], first: int) -> list[Message]:
    """Returns the messages from `first` on for the engine, with the notes of `with_lost_results`."""
    start = _round_start(messages, min(first, len(messages) - 1))
    return with_lost_results(all_from_langchain(messages[start:]))[first - start :]


def _round_start(messages: Sequence[BaseMessage], index: int) -> int:
    return next((i for i in range(index, 0, -1) if not isinstance(messages[i], ToolMessage)), 0)


def with_lost_results(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages with a note for each call whose result a graph has dropped, behind the results of its round.

    A tool that hands over to another agent ends its own at once, and with it the calls beside it. So some calls of the round have
    results, and the list ends there, or goes on with an answer. A call before a user's message may wait for a person's decision.
    """
    complete: list[Message] = []
    starts = [*(i for i, m in enumerate(messages) if not i or m.role != "tool"), len(messages)]
    for start, end in pairwise(starts):
        message, results = messages[start], messages[start + 1 : end]
        complete += messages[start:end]
        if results and (end == len(messages) or messages[end].role == "assistant"):
            answered = {r.call_id for m in results for r in m.tool_results}
            lost = (c for c in message.tool_calls if c.id not in answered and c.parsed() is not None)
            complete += [_lost(call, message.id) for call in lost]
    return complete


def _lost(call: ToolCallPart, message_id: str) -> Message:
    note = tool_result(call.id, NO_RESULT, id=_refusal_id(message_id, call.id), name=call.name, is_error=True)
    return replace(note, visibility="model")


def name_refusals(messages: Sequence[BaseMessage]) -> None:
    """Gives an id to the error results that `create_agent` has put behind malformed calls for this request.

    It writes these very objects to the agent's state after the call, where they would get an id that the session does not know.
    """
    if all(m.id or not isinstance(m, ToolMessage) for m in messages):
        return
    malformed: dict[str | None, str] = {}
    for message in messages:
        if isinstance(message, AIMessage) and message.id:
            malformed |= {
                call.get("id"): _refusal_id(message.id, call.get("id")) for call in message.invalid_tool_calls
            }
        elif isinstance(message, ToolMessage) and not message.id:
            message.id = malformed.get(message.tool_call_id)


def new_messages(
    messages: Sequence[BaseMessage], shown: Sequence[Message] | None, *, new_id: Callable[[], str]
) -> list[Message]:
    """Returns the messages that may be new, converted for the engine; those without an id get one from `new_id`.

    `shown` is the history as the handle was last read, None when it was not read. Summaries among it are left out.
    """
    chosen = given_ids(messages)
    converted = all_from_langchain(messages, new_id=new_id)
    known = {m.id: content_key(m) for m in shown or ()}
    rest = converted[repeated_count(converted, chosen, shown) :]
    new = (m for m in rest if not (m.id in chosen and known.get(m.id) == content_key(m)))
    # a summary that came from elsewhere is an ordinary message here
    return [m if m.kind == "message" else replace(m, kind="message") for m in new]
