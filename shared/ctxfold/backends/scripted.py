"""A backend that plays a list: for tests, demos and dry runs."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from ctxfold.errors import BackendError
from ctxfold.messages import Message, ReasoningPart, TextPart, assistant
from ctxfold.ports import (
    AsyncChunkStream,
    Chunk,
    ChunkStream,
    ContextBackend,
    Ids,
    Reply,
    Request,
    ToolCallDelta,
    UuidIds,
)

__all__ = ["PlayedStream", "ScriptedBackend", "ScriptedReply"]

Answered: TypeAlias = str | Message | Reply | BackendError
ScriptedReply: TypeAlias = Answered | Callable[[Request], Answered]


class ScriptedBackend:
    """Plays its replies in order and keeps every request; safe across threads and tasks.

    A BackendError is raised in its turn; a callable decides on the request. One request too many raises
    BackendError("rejected").
    """

    def __init__(
        self,
        replies: Sequence[ScriptedReply],
        model: str = "scripted",
        context_window: int | None = None,
        *,
        scratch_role: str = "system",
        piece_chars: int = 8,
        ids: Ids | None = None,
    ) -> None:
        self.requests: list[Request] = []
        self._replies = tuple(replies)
        self._model = model
        self._window = context_window
        self._scratch_role = scratch_role
        self._piece_chars = max(1, piece_chars)
        self._ids = ids if ids is not None else UuidIds()
        self._lock = threading.Lock()

    @property
    def model(self) -> str:
        return self._model

    @property
    def context_window(self) -> int | None:
        return self._window

    @property
    def scratch_role(self) -> str:
        return self._scratch_role

    def send(self, request: Request) -> Reply:
        return self._next(request)

    async def asend(self, request: Request) -> Reply:
        return self._next(request)

    def open_stream(self, request: Request) -> PlayedStream:
        return PlayedStream(tuple(self._chunks(self._next(request))))

    async def aopen_stream(self, request: Request) -> PlayedStream:
        return PlayedStream(tuple(self._chunks(self._next(request))))

    def close(self) -> None:
        """Nothing is held open."""

    async def aclose(self) -> None:
        """Nothing is held open."""

    def _next(self, request: Request) -> Reply:
        with self._lock:
            number = len(self.requests)
            # the caller may go on with its own list
            self.requests.append(replace(request, messages=tuple(request.messages)))
        if number >= len(self._replies):
            raise BackendError(
                f"the script has {len(self._replies)} replies, this is request {number + 1}: add replies",
                kind="rejected",
            )
        given = self._replies[number]
        answer = given(request) if callable(given) else given
        if isinstance(answer, BackendError):
            raise answer
        return self._reply(answer, request.model or self._model)

    def _reply(self, answer: str | Message | Reply, model: str) -> Reply:
        if isinstance(answer, Reply):
            return answer
        message = assistant(answer, id=self._ids.new()) if isinstance(answer, str) else answer
        finish = message.finish_reason or ("tool_calls" if message.tool_calls else "stop")
        message = replace(message, model=message.model or model, finish_reason=finish)
        return Reply(message, message.usage, finish)

    def _chunks(self, reply: Reply) -> Iterator[Chunk]:
        message, size = reply.message, self._piece_chars
        for part in message.parts:
            if isinstance(part, ReasoningPart):
                for start in range(0, len(part.text), size):
                    yield Chunk(reasoning=part.text[start : start + size], model=message.model)
                blocks = tuple(json.loads(part.details)) if part.details is not None else ()
                if not part.text:
                    yield from (Chunk(sealed=block, model=message.model) for block in blocks)
                    blocks = ()
                if part.signature is not None or blocks:
                    yield Chunk(signature=part.signature, reasoning_details=blocks, model=message.model)
            elif isinstance(part, TextPart):
                for start in range(0, len(part.text), size):
                    yield Chunk(content=part.text[start : start + size], model=message.model)
        for index, call in enumerate(message.tool_calls):
            half = len(call.arguments) // 2
            yield Chunk(tool_calls=(ToolCallDelta(index, call.id, call.name, call.arguments[:half], call.extra),))
            yield Chunk(tool_calls=(ToolCallDelta(index, arguments=call.arguments[half:]),))
        finish = reply.finish_reason or message.finish_reason or "stop"
        yield Chunk(finish_reason=finish, usage=reply.usage or message.usage, model=message.model, raw=reply.raw)


class PlayedStream:
    """Chunks that are already there, for sync and async readers; an error at the end is raised after them."""

    def __init__(self, chunks: Sequence[Chunk], error: BackendError | None = None) -> None:
        self._chunks = iter(chunks)
        self._error = error
        self.closed = False

    def __iter__(self) -> Iterator[Chunk]:
        for chunk in self._chunks:
            if self.closed:
                return
            yield chunk
        if self._error is not None and not self.closed:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        for chunk in self:
            yield chunk

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


if TYPE_CHECKING:
    _: ContextBackend = ScriptedBackend([])
    _sync: ChunkStream = PlayedStream([])
    _async: AsyncChunkStream = PlayedStream([])
