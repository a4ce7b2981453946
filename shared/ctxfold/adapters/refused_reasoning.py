"""Asks a backend for lists of messages that no session keeps, and once more without reasoning that the service refused."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

from ctxfold.adapters.part_order import bound
from ctxfold.errors import BackendError
from ctxfold.lru import LruCache
from ctxfold.messages import Message, Opaque
from ctxfold.protocols import AsyncChunkStream, ChunkStream, ContextBackend, Reply, Request, capabilities_of

REMEMBERED = 4_096  # messages


class PlainCalls:
    """Calls of a backend without a session. Safe across threads and tasks.

    Some services accept reasoning only behind the very messages that it was made behind, and a memory or middleware that
    compacts them, or shows other passages, does not know it. A request that is refused for its reasoning is sent once more
    without, and later requests leave out the reasoning that was refused.
    """

    def __init__(self, backend: ContextBackend) -> None:
        self.backend = backend
        self._refused: LruCache[str, bool] = LruCache(REMEMBERED)

    def send(self, request: Request) -> Reply:
        """Returns the whole reply."""
        request = self._without_refused(request)
        try:
            return self.backend.send(request)
        except BackendError as error:
            request = self._other_request(request, error)
        return self.backend.send(request)

    async def asend(self, request: Request) -> Reply:
        request = self._without_refused(request)
        try:
            return await self.backend.asend(request)
        except BackendError as error:
            request = self._other_request(request, error)
        return await self.backend.asend(request)

    def open_stream(self, request: Request) -> ChunkStream:
        """Returns a stream whose first event has arrived."""
        request = self._without_refused(request)
        try:
            return self.backend.open_stream(request)
        except BackendError as error:
            request = self._other_request(request, error)
        return self.backend.open_stream(request)

    async def aopen_stream(self, request: Request) -> AsyncChunkStream:
        request = self._without_refused(request)
        try:
            return await self.backend.aopen_stream(request)
        except BackendError as error:
            request = self._other_request(request, error)
        return await self.backend.aopen_stream(request)

    def _other_request(self, request: Request, error: BackendError) -> Request:
        """Returns the request without its reasoning. Raises the error where that is no other request, or refused too."""
        abilities = capabilities_of(self.backend, request.model)
        refused = [key for number, key in self._reasoned(request) if number > request.refused_before]
        may_leave_out = abilities.binds_reasoning or abilities.reasoning_optional
        if error.kind != "reasoning_replay" or not may_leave_out or not refused:
            raise error
        self._refused.update(dict.fromkeys(refused, True))
        return self._without_refused(request)

    def _without_refused(self, request: Request) -> Request:
        """Returns the request without reasoning up to the last message whose reasoning was refused before."""
        if not len(self._refused):
            return request
        before = max((number for number, key in self._reasoned(request) if self._refused.get(key)), default=0)
        if before <= request.refused_before:
            return request
        return replace(request, refused_before=before, unbound_before=max(before, request.unbound_before))

    def _reasoned(self, request: Request) -> Iterator[tuple[int, str]]:
        """Yields the number of each message with reasoning, counted from 1, and what its refusal is remembered by.

        Where the service binds reasoning to what stands before it, that counts too: in another list it may be accepted.
        """
        binds = capabilities_of(self.backend, request.model).binds_reasoning
        before = ""
        for number, message in enumerate(request.messages, 1):
            before = _digest(message, before if binds else "")
            if message.reasoning or bound(message):
                yield number, before


def _digest(message: Message, before: str) -> str:
    parts = [part for part in message.parts if not isinstance(part, Opaque)]
    return hashlib.sha256(repr((before, message.role, parts)).encode("utf-8", "surrogatepass")).hexdigest()
