"""Defines backends to test with: one that plays a list of replies, and one that fails on purpose."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ctxfold.backends.base import BackendDefaults, BaseBackend
from ctxfold.backends.profile import common_rules
from ctxfold.errors import BackendError, ConfigError
from ctxfold.messages import Message, assistant
from ctxfold.protocols import (
    AsyncChunkStream,
    BackendCapabilities,
    Chunk,
    ChunkStream,
    ContextBackend,
    Ids,
    Reply,
    Request,
    UuidIds,
    capabilities_of,
)
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


KINDS = ("rate_limit", "overloaded", "server", "timeout", "connection")


class ChaosBackend(BackendDefaults):
    """Wraps a backend and makes calls fail. Call number n of a seed always has the same outcome, also in concurrent use.

    A share `error_rate` of the calls fails before it reaches the inner backend. A share `truncate_rate` of the other streams
    loses its end; a whole reply then fails with a stream_truncated error. `delay_s` is the longest pause before a call, in
    seconds.
    """

    def __init__(
        self,
        inner: ContextBackend,
        *,
        seed: int | str = 0,
        error_rate: float = 0.0,
        kinds: Sequence[str] = KINDS,
        truncate_rate: float = 0.0,
        delay_s: float = 0.0,
    ) -> None:
        for name, rate in (("error_rate", error_rate), ("truncate_rate", truncate_rate)):
            if not 0 <= rate <= 1:
                raise ConfigError(f"{name} is {rate}: use a number from 0 to 1")
        if error_rate and not kinds:
            raise ConfigError("kinds is empty: name at least one kind of error")
        self._inner = inner
        self._seed = seed
        self._error_rate = error_rate
        self._kinds = tuple(kinds)
        self._truncate_rate = truncate_rate
        self._delay_s = delay_s
        self._calls = 0
        self._lock = threading.Lock()

    @property
    def model(self) -> str:
        return self._inner.model

    @property
    def context_window(self) -> int | None:
        return self._inner.context_window

    @property
    def scratch_role(self) -> str:
        return self._inner.scratch_role

    @property
    def capabilities(self) -> BackendCapabilities:
        return capabilities_of(self._inner)

    def send(self, request: Request) -> Reply:
        delay_s, error, cut_after = self._outcome()
        time.sleep(delay_s)
        if error is not None:
            raise error
        reply = self._inner.send(request)
        if cut_after is not None:
            raise _cut()
        return reply

    async def asend(self, request: Request) -> Reply:
        delay_s, error, cut_after = self._outcome()
        await asyncio.sleep(delay_s)
        if error is not None:
            raise error
        reply = await self._inner.asend(request)
        if cut_after is not None:
            raise _cut()
        return reply

    def open_stream(self, request: Request) -> ChunkStream:
        delay_s, error, cut_after = self._outcome()
        time.sleep(delay_s)
        if error is not None:
            raise error
        stream = self._inner.open_stream(request)
        return stream if cut_after is None else _CutStream(stream, cut_after)

    async def aopen_stream(self, request: Request) -> AsyncChunkStream:
        delay_s, error, cut_after = self._outcome()
        await asyncio.sleep(delay_s)
        if error is not None:
            raise error
        stream = await self._inner.aopen_stream(request)
        return stream if cut_after is None else _CutStream(stream, cut_after)

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _outcome(self) -> tuple[float, BackendError | None, int | None]:
        """Returns a call's seconds of delay, its error, and the number of chunks that a truncated stream yields."""
        with self._lock:
            number = self._calls
            self._calls += 1
        rng = random.Random(f"{self._seed}:{number}")
        fails, cut, delay, kind, after = (rng.random() for _ in range(5))
        error: BackendError | None = None
        if fails < self._error_rate:
            chosen = self._kinds[int(kind * len(self._kinds))]
            retryable = chosen in common_rules().retryable
            error = BackendError(
                f"chaos: call {number} fails with {chosen}: lower error_rate for a calmer run",
                kind=chosen,
                retryable=retryable,
            )
        return delay * self._delay_s, error, 1 + int(after * 4) if cut < self._truncate_rate else None


class _CutStream:
    """A stream, for sync or async readers as its inner one, that ends with an error after some chunks."""

    def __init__(self, inner: Any, after: int) -> None:
        self._inner = inner
        self._left = after

    def __iter__(self) -> Iterator[Chunk]:
        yield from takewhile(self._passes, self._inner)
        self.close()
        raise _cut()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        async for chunk in self._inner:
            if not self._passes(chunk):
                break
            yield chunk
        await self.aclose()
        raise _cut()

    def _passes(self, chunk: Chunk) -> bool:
        self._left -= 1
        return self._left >= 0 and chunk.finish_reason is None

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        await self._inner.aclose()


def _cut() -> BackendError:
    return BackendError(
        "chaos: the answer was cut off: lower truncate_rate for a calmer run",
        kind="stream_truncated",
        retryable=True,
    )


if TYPE_CHECKING:
    _backends: list[ContextBackend] = [ScriptedBackend([]), ChaosBackend(cast("ContextBackend", ...))]
    _sync: ChunkStream = PlayedStream([])
    _async: AsyncChunkStream = PlayedStream([])
