"""Folds a streamed reply into events and one message, without I/O."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from ctxfold.errors import BackendError
from ctxfold.messages import REFUSAL, Message, Opaque, Part, ReasoningPart, TextPart, ToolCallPart, Usage
from ctxfold.protocols import Chunk, Reply, ToolCallDelta
from ctxfold.validation import json_object, repaired, strict_text


@dataclass(frozen=True, slots=True)
class Thinking:
    """A piece of reasoning."""

    text: str
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class ContentFirst:
    """The first piece of content after thinking; occurs again after a second thinking phase, never without thinking."""

    text: str
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the content."""

    text: str
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Pieces of tool calls as they arrived; the complete calls are in the reply of `Completed` or `Fold.close`.

    `numbers` says which of the reply's calls each piece belongs to, counted from 0, however its service numbers them.
    """

    calls: tuple[ToolCallDelta, ...]
    chunk: Chunk
    numbers: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Completed:
    """The last event of `send_stream`: the stored reply, with tool calls, usage and finish reason."""

    reply: Reply

    @property
    def text(self) -> str:
        """Returns "", because earlier events carried the text: joining the text of all events gives the reply once."""
        return ""


StreamPiece: TypeAlias = Thinking | ContentFirst | Content | ToolCalls
StreamEvent: TypeAlias = StreamPiece | Completed

_CUT_SHORT = frozenset({"length", "context_window", "content_filter", "error"})
_TEXT_KEYS = ("text", "summary", "thinking")


class Fold:
    """Turns chunks into events and, at the end, one reply; constant work per chunk."""

    def __init__(self, message_id: str, model: str | None = None) -> None:
        self._id = message_id
        self._model = model
        self._segments: list[_Segment] = []
        self._calls = _Calls()
        self._details = _Details()
        self._refusal: list[str] = []
        self._thinking = False
        self._usage: Usage | None = None
        self._billed: Usage | None = None
        self._edits: tuple[Mapping[str, Any], ...] = ()
        self._finish: str | None = None
        self._raw: Any = None
        self._whole: Message | None = None
        self._empty_content = False
        self._ordered = False

    def feed(self, chunk: Chunk) -> tuple[StreamPiece, ...]:
        """Returns the events of one chunk: tool calls, then thinking, then content; none for an empty chunk."""
        events: list[StreamPiece] = []
        if chunk.own_part:
            self._begin_part(ordered=bool(chunk.tool_calls))
        if chunk.tool_calls:
            numbers = tuple([self._calls.add(delta, len(self._segments)) for delta in chunk.tool_calls])
            events.append(ToolCalls(chunk.tool_calls, chunk, numbers))
        if chunk.reasoning:
            self._thinking = True
            self._segment(thinking=True).pieces.append(chunk.reasoning)
            events.append(Thinking(chunk.reasoning, chunk))
        if chunk.signature:
            self._segment(thinking=True).signature = chunk.signature
        if chunk.reasoning_block is not None:
            self._segment(thinking=True).sealed = strict_text([chunk.reasoning_block])
        if chunk.sealed is not None:
            self._segments.append(_Segment(thinking=True, sealed=strict_text([chunk.sealed])))
        if chunk.reasoning_details:
            self._details.add(chunk.reasoning_details)
        if chunk.content:
            self._segment(thinking=False).pieces.append(chunk.content)
            events.append(ContentFirst(chunk.content, chunk) if self._thinking else Content(chunk.content, chunk))
            self._thinking = False
        if chunk.text_extra is not None:
            self._segment(thinking=False).extra = strict_text(chunk.text_extra)
        self._note(chunk)
        return tuple(events)

    def _note(self, chunk: Chunk) -> None:
        if chunk.refusal:
            self._refusal.append(chunk.refusal)
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.billed is not None:
            self._billed = chunk.billed
        if chunk.applied_edits:
            self._edits = chunk.applied_edits
        if chunk.finish_reason is not None:
            self._finish, self._raw = chunk.finish_reason, chunk.raw
        if chunk.model and (self._model is None or chunk.hands_over):
            self._model = chunk.model
        if chunk.whole is not None:
            self._whole = chunk.whole
        self._empty_content = self._empty_content or chunk.empty_content

    def _begin_part(self, *, ordered: bool) -> None:
        if self._segments:
            self._segments[-1].ended = True
        self._ordered = self._ordered or ordered

    def _segment(self, *, thinking: bool) -> _Segment:
        last = self._segments[-1] if self._segments else None
        # a signature ends its block: what follows belongs to the next one
        if last is None or last.thinking is not thinking or last.closed or last.ended:
            last = _Segment(thinking)
            self._segments.append(last)
        return last

    def close(self) -> Reply:
        """Returns the whole reply; raises BackendError("protocol") for a tool call that never got a name.

        When the reply was cut short, a call with incomplete arguments is left out.
        """
        calls = self._calls.close(self._id, cut_short=self._finish in _CUT_SHORT)
        whole_parts = self._whole_parts(tuple(call for _, call in calls))
        parts = self._parts(calls) if whole_parts is None else (*whole_parts, *self._refusal_parts())
        message = self._message(parts)
        empty = self._empty_content and not message.text
        return Reply(message, self._usage, self._finish, self._raw, empty, self._billed, self._edits)

    def _whole_parts(self, calls: tuple[ToolCallPart, ...]) -> tuple[Part, ...] | None:
        """Returns the parts of the complete message that a chunk carried; None when they differ from what was streamed."""
        whole = self._whole
        if whole is None or whole.tool_calls != calls:
            return None
        text = "".join(s.text() for s in self._segments if not s.thinking)
        thinking = "".join(s.text() for s in self._segments if s.thinking)
        reasoning = whole.reasoning
        if whole.text != text or len(reasoning) < len(thinking) or reasoning != repaired(reasoning):
            return None
        return whole.parts

    def partial(self) -> Message | None:
        """Returns a message of the text and reasoning so far, without tool calls; None when there is neither."""
        parts = self._parts()
        return self._message(parts) if parts else None

    def _message(self, parts: tuple[Part, ...]) -> Message:
        return Message(self._id, "assistant", parts, model=self._model, usage=self._usage, finish_reason=self._finish)

    def _parts(self, calls: tuple[tuple[int, ToolCallPart], ...] = ()) -> tuple[Part, ...]:
        """Returns text and reasoning in order, calls last; a call that a signed or closed part follows keeps its place.

        All calls keep theirs when they came as parts of their own.
        """
        details = self._details.text()
        signed = max((n for n, s in enumerate(self._segments) if s.closed or self._ordered), default=-1)
        parts: list[Part] = []
        for number, segment in enumerate(self._segments):
            if number <= signed:
                parts += [call for after, call in calls if after == number]
            if segment.thinking:
                parts.append(segment.reasoning(details))
                details = None if segment.sealed is None else details
            else:
                parts.append(TextPart(segment.text(), segment.extra))
        if details is not None:
            parts.insert(0, ReasoningPart("", None, details))
        return (*parts, *self._refusal_parts(), *(call for after, call in calls if after > signed))

    def _refusal_parts(self) -> tuple[Part, ...]:
        """Returns a refusal as an opaque part: it is not content, and the finish reason reports it."""
        return (Opaque(REFUSAL, json.dumps(repaired("".join(self._refusal)))),) if self._refusal else ()


class PlayedStream:
    """Chunks that are already there, for sync and async readers."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = iter(chunks)
        self.closed = False

    def __iter__(self) -> Iterator[Chunk]:
        for chunk in self._chunks:
            if self.closed:
                return
            yield chunk

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        for chunk in self:
            yield chunk

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


def played(message: Message) -> PlayedStream:
    """Returns the stream of a complete message, in one chunk."""
    m = message
    calls = tuple(ToolCallDelta(index, c.id, c.name, c.arguments, c.extra) for index, c in enumerate(m.tool_calls))
    chunk = Chunk(m.reasoning, m.text, calls, usage=m.usage, finish_reason=m.finish_reason, model=m.model, whole=m)
    return PlayedStream((chunk,))


@dataclass(slots=True)
class _Segment:
    thinking: bool
    pieces: list[str] = field(default_factory=list[str])
    signature: str | None = None
    sealed: str | None = None
    extra: str | None = None
    ended: bool = False

    @property
    def closed(self) -> bool:
        """Returns True once the provider's own fields have ended the part."""
        return self.signature is not None or self.sealed is not None or self.extra is not None

    def text(self) -> str:
        return repaired("".join(self.pieces))

    def reasoning(self, details: str | None) -> ReasoningPart:
        return ReasoningPart(self.text(), self.signature, details if self.sealed is None else self.sealed)


@dataclass(slots=True)
class _PartialCall:
    number: int
    id: str | None = None
    name: str | None = None
    extra: str | None = None
    after: int = 0
    pieces: list[str] = field(default_factory=list[str])

    def arguments(self) -> str:
        return repaired("".join(self.pieces))


class _Calls:
    """Assembles tool calls from deltas whose index and id may be missing, repeated or wrong."""

    def __init__(self) -> None:
        self._calls: list[_PartialCall] = []
        self._by_index: dict[int, _PartialCall] = {}
        self._by_id: dict[str, _PartialCall] = {}

    def add(self, delta: ToolCallDelta, after: int) -> int:
        """Adds a delta and returns the number of its call. A call that it opens is placed after `after` segments."""
        call = self._find(delta)
        if call is None:
            call = _PartialCall(len(self._calls), after=after)
            self._calls.append(call)
        if delta.id and call.id is None:
            call.id = delta.id
            self._by_id[delta.id] = call
        if delta.name and call.name is None:
            call.name = delta.name
        if delta.extra is not None:
            call.extra = delta.extra
        if delta.arguments:
            call.pieces.append(delta.arguments)
        if delta.index is not None:
            self._by_index[delta.index] = call
        return call.number

    def _find(self, delta: ToolCallDelta) -> _PartialCall | None:
        """Returns the call that a delta continues; None when it opens one."""
        at_index = None if delta.index is None else self._by_index.get(delta.index)
        if delta.id:
            same_id = at_index if at_index is not None and at_index.id == delta.id else self._by_id.get(delta.id)
            if same_id is not None:
                new_index = delta.index is not None and at_index is None
                return None if _shares_id(same_id, delta, new_index=new_index) else same_id
            return (
                at_index
                if at_index is not None and at_index.id is None and not (at_index.name and delta.name)
                else None
            )
        last = self._calls[-1] if self._calls else None
        if delta.index is not None:
            # an index never seen, with neither id nor name, is the tail of the call last opened
            call = at_index or (None if delta.name else last)
        else:
            call = last
        return None if call is None or _starts_another(call, delta) else call

    def close(self, message_id: str, *, cut_short: bool) -> tuple[tuple[int, ToolCallPart], ...]:
        """Returns the calls, each with the number of segments before it."""
        parts: list[tuple[int, ToolCallPart]] = []
        known_ids: set[str] = set()
        for call in self._calls:
            arguments = call.arguments()
            if cut_short and not (call.name and json_object(arguments) is not None):
                continue
            if not call.name:
                raise BackendError(
                    f"tool call {call.number + 1} of {len(self._calls)} came without a name: "
                    "retry, or report it to the server's maintainers",
                    kind="protocol",
                )
            identity = call.id if call.id and call.id not in known_ids else f"call_{message_id}_{call.number}"
            known_ids.add(identity)
            parts.append((call.after, ToolCallPart(identity, call.name, arguments or "{}", call.extra)))
        return tuple(parts)


def _starts_another(call: _PartialCall, delta: ToolCallDelta) -> bool:
    """Returns True when a delta without id opens a new call, which only its name shows."""
    if not delta.name or not call.name:
        return False
    if delta.name != call.name:
        return True
    return delta.arguments.lstrip().startswith("{") and json_object(call.arguments()) is not None


def _shares_id(call: _PartialCall, delta: ToolCallDelta, *, new_index: bool) -> bool:
    """Returns True when a delta opens a new call under the id of one that is whole: a server may name calls by their tool."""
    begins = delta.arguments.lstrip().startswith("{") or (new_index and not delta.arguments)
    return bool(delta.name) and begins and json_object(call.arguments()) is not None


class _Details:
    """Assembles the reasoning blocks of a provider; the texts of a block are joined by (type, index)."""

    def __init__(self) -> None:
        self._blocks: list[_DetailBlock] = []
        self._newest: dict[tuple[object, object], _DetailBlock] = {}

    def add(self, items: tuple[Any, ...]) -> None:
        """Adds the items of one chunk: each continues a block of an earlier chunk or begins one."""
        begun: list[tuple[tuple[object, object], _DetailBlock]] = []
        for item in items:
            if not isinstance(item, dict):
                continue
            fresh = cast("dict[str, Any]", item)
            key = (str(fresh.get("type")), str(fresh.get("index")))
            block = self._newest.get(key)
            if block is None or block.is_finished(fresh):
                block = _DetailBlock()
                self._blocks.append(block)
                begun.append((key, block))
            block.add(fresh)
        self._newest.update(begun)

    def text(self) -> str | None:
        """Returns all blocks as JSON text, None when there are none."""
        return strict_text([block.joined() for block in self._blocks]) if self._blocks else None


class _DetailBlock:
    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}

    def add(self, fresh: dict[str, Any]) -> None:
        for name, value in fresh.items():
            if name in _TEXT_KEYS and isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
                self._fields.setdefault(name, None)
            elif value is not None or name not in self._fields:
                self._fields[name] = value

    def is_finished(self, fresh: dict[str, Any]) -> bool:
        """Returns True when `fresh` belongs to another block: encrypted blocks come whole, a signature ends one without index."""
        own_id, new_id = self._fields.get("id"), fresh.get("id")
        if "data" in fresh or (own_id and new_id and own_id != new_id):
            return True
        return fresh.get("index") is None and bool(self._fields.get("signature"))

    def joined(self) -> dict[str, Any]:
        return {name: "".join(self._texts[name]) if name in self._texts else v for name, v in self._fields.items()}
