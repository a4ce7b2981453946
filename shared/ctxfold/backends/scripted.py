"""Defines a backend that plays a list of replies, for tests, demos and dry runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from ctxfold.backends.base import BaseBackend
from ctxfold.errors import BackendError
from ctxfold.messages import Message, assistant
from ctxfold.protocols import AsyncChunkStream, ChunkStream, ContextBackend, Ids, Reply, Request, UuidIds
from ctxfold.stream import PlayedStream

Answered: TypeAlias = str | Message | Reply | BackendError
ScriptedReply: TypeAlias = Answered | Callable[[Request], Answered]


class ScriptedBackend(BaseBackend):
    """Plays its replies in order and records every request; safe across threads and tasks.

    A BackendError among the replies is raised; a callable makes the reply from the request. A request beyond the last reply raises
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
        self.model = model
        self.context_window = context_window
        self.scratch_role = scratch_role
        self._piece_chars = max(1, piece_chars)
        self._ids = ids if ids is not None else UuidIds()
        self._lock = threading.Lock()

    def send(self, request: Request) -> Reply:
        return self._next(request)

    async def asend(self, request: Request) -> Reply:
        return self._next(request)

    def _next(self, request: Request) -> Reply:
        with self._lock:
            number = len(self.requests)
            # the caller may change its list afterwards
            self.requests.append(replace(request, messages=tuple(request.messages)))
        if number >= len(self._replies):
            raise BackendError(
                f"the script has {len(self._replies)} replies, this is request {number + 1}: add replies",
                kind="rejected",
            )
        entry = self._replies[number]
        answer = entry(request) if callable(entry) else entry
        if isinstance(answer, BackendError):
            raise answer
        return self._reply(answer, request.model or self.model)

    def _reply(self, answer: str | Message | Reply, model: str) -> Reply:
        if isinstance(answer, Reply):
            return answer
        message = assistant(answer, id=self._ids.new()) if isinstance(answer, str) else answer
        finish = message.finish_reason or ("tool_calls" if message.tool_calls else "stop")
        message = replace(message, model=message.model or model, finish_reason=finish)
        return Reply(message, message.usage, finish)


if TYPE_CHECKING:
    _: ContextBackend = ScriptedBackend([])
    _sync: ChunkStream = PlayedStream([])
    _async: AsyncChunkStream = PlayedStream([])
