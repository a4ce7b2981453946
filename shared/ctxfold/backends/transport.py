"""Performs one request step by step without I/O; the same steps are driven synchronously and asynchronously."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Protocol, TypeAlias, TypeVar

from ctxfold.backends.errors import http_failure, plain_failure, retry_after_s
from ctxfold.backends.profile import Profile
from ctxfold.backends.response_parser import AnswerParser
from ctxfold.errors import BackendError, ConfigError
from ctxfold.protocols import Chunk, Reply
from ctxfold.stream import Fold
from ctxfold.validation import json_object

T = TypeVar("T")
DRAIN_S = 0.1
MAX_ERROR_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Retry:
    """Exponential backoff with jitter in the upper half of each delay.

    A delay that the service asks for takes precedence, up to `max_retry_after_s`; beyond that its error is raised at once.
    """

    max_retries: int = 2
    first_delay_s: float = 0.5
    max_delay_s: float = 8.0
    max_retry_after_s: float = 60.0
    jitter: Callable[[], float] = random.random
    sleep: Callable[[float], None] = time.sleep
    asleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise ConfigError(f"max_retries is {self.max_retries}: use 0 or more")

    def delay_s(self, attempt: int, error: BackendError) -> float | None:
        """Returns the seconds to wait after failed attempt number `attempt` (from 0); None when the error is final."""
        if not error.retryable or attempt >= self.max_retries:
            return None
        if error.retry_after_s is not None:
            return error.retry_after_s if error.retry_after_s <= self.max_retry_after_s else None
        backoff = min(self.first_delay_s * 2.0**attempt, self.max_delay_s)
        return backoff * (0.5 + self.jitter() / 2)


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Status and headers of a response; header names in lower case."""

    status: int
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Open:
    """Sends the request and waits for the response's head; returns a Head.

    `sign` returns further headers, made anew for each attempt because they hold its date; it may wait for a disk or a network.
    """

    url: str = field(repr=False)  # its query may hold a key
    headers: Mapping[str, str] = field(repr=False)  # holds the key
    body: bytes
    timeout_s: float
    sign: Callable[[Open], Mapping[str, str]] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Read:
    """Waits for the next bytes of the body; returns b"" at its end."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


Step: TypeAlias = Open | Read | Sleep
Steps: TypeAlias = Generator[Step, Any, T]


class Channel(Protocol):
    """Performs steps on one connection at a time, and returns the result of each, or the BackendError that it ended with."""

    def perform(self, step: Step) -> Any: ...

    def close(self) -> None: ...


class AsyncChannel(Protocol):
    async def perform(self, step: Step) -> Any: ...

    async def aclose(self) -> None: ...


class DroppedError(BackendError):
    """The peer closed a connection that had served before, and nothing of this answer had arrived."""


@dataclass(frozen=True, slots=True)
class HttpCall:
    """Holds a request with everything that is needed to send it, also a second time."""

    profile: Profile
    open: Open
    parser: Callable[[], AnswerParser]
    idle_timeout_s: float
    retry: Retry
    hide: Callable[[str], str]
    message_id: str
    model: str
    classify: Callable[[Chunk], Chunk]
    now_s: Callable[[], float] = time.monotonic
    wall_s: Callable[[], float] = time.time


class OpenAnswer:
    """An answer under way: chunks that have arrived, and how to wait for more."""

    def __init__(self, call: HttpCall, deadline_s: float) -> None:
        self._call = call
        self._deadline_s = deadline_s
        self._parser = call.parser()
        self._chunks: deque[Chunk] = deque()
        self.next_read = Read(call.idle_timeout_s)
        self._ended = False
        self._drained = False
        self.started = False

    def begin(self) -> Steps[None]:
        """Waits for the first event; raises the failure of an answer that has none."""
        while not self.started and not self._ended:
            yield from self.wait()
        if not self.started and self._parser.error is not None:
            raise self._parser.error

    def arrived(self) -> Chunk | None:
        """Returns the next chunk if it has arrived already, else None."""
        return self._chunks.popleft() if self._chunks else None

    def next(self) -> Steps[Chunk | None]:
        """Returns the next chunk, None after the last; raises a failure once all chunks before it were returned."""
        while not self._chunks:
            if self._ended:
                yield from self._finish()
                return None
            yield from self.wait()
        return self._chunks.popleft()

    def wait(self) -> Steps[None]:
        """Takes in the next bytes. Until the first event one deadline holds, afterwards each pause has its own."""
        read = self.next_read if self.started else Read(max(self._deadline_s - self._call.now_s(), 0.0))
        self.take_in((yield read))

    def take_in(self, data: bytes | BackendError) -> None:
        """Takes the next bytes of the body; b"" is its end, and an error that of a body that broke off."""
        parser = self._parser
        if isinstance(data, BackendError):
            if not parser.complete:
                parser.error = data
                self._ended = self._drained = True
                return
            data = b""  # an answer with a finish reason lacks only its epilogue, and is complete
        if data:
            self._take(parser.feed(data))
        else:
            self._drained = True
            self._take(parser.close())
        self._ended = not data or parser.done or parser.error is not None

    def _take(self, chunks: list[Chunk]) -> None:
        self._chunks.extend(map(self._call.classify, chunks))
        if not self.started:
            self.started = any(c.reasoning or c.content or c.tool_calls or c.refusal for c in chunks)

    def _finish(self) -> Steps[None]:
        if self._parser.error is not None:
            raise self._parser.error
        deadline = self._call.now_s() + DRAIN_S
        while not self._drained:  # a body read to its end leaves a connection that can be used again
            data: bytes | BackendError = yield Read(max(deadline - self._call.now_s(), 0.001))
            self._drained = not data or isinstance(data, BackendError)  # which loses the connection alone

    @property
    def flowing(self) -> bool:
        """Returns True when only reading remains."""
        return self.started and not self._ended


def _retried(once: Callable[[HttpCall], Steps[T]]) -> Callable[[HttpCall], Steps[T]]:
    """Makes a function's steps begin anew after a failure that may be retried."""

    @wraps(once)
    def steps(call: HttpCall) -> Steps[T]:
        attempt, fresh = 0, False
        while True:
            try:
                return (yield from once(call))
            except DroppedError:
                if fresh:
                    raise
                fresh = True  # an idle connection the server had given up says nothing about the request
            except BackendError as error:
                delay_s = call.retry.delay_s(attempt, error)
                if delay_s is None:
                    raise
                attempt += 1
                yield Sleep(delay_s)

    return steps


@_retried
def whole_reply(call: HttpCall) -> Steps[Reply]:
    """Returns the complete answer. Retries every retryable failure, because nothing is returned before the end."""
    answer = yield from _opened(call)
    fold = Fold(call.message_id, call.model)
    while (chunk := (yield from answer.next())) is not None:
        fold.feed(chunk)
    return fold.close()


@_retried
def open_answer(call: HttpCall) -> Steps[OpenAnswer]:
    """Returns an answer whose first event has arrived. Retries failures before that event, and none after it."""
    return (yield from _opened(call))


def _opened(call: HttpCall) -> Steps[OpenAnswer]:
    answer = OpenAnswer(call, (yield from _accepted(call)))
    yield from answer.begin()
    return answer


@_retried
def counted_tokens(call: HttpCall) -> Steps[int]:
    """Returns the number of input tokens from a counting endpoint; retries retryable failures."""
    body = yield from _error_body(call, (yield from _accepted(call)))
    counted = json_object(body) or {}
    tokens: object = counted.get("input_tokens", counted.get("totalTokens"))
    if not isinstance(tokens, int) or isinstance(tokens, bool):
        what = f"the counting endpoint's answer of {len(body)} bytes holds no number of tokens"
        raise plain_failure(call.profile, "protocol", what, hide=call.hide)
    return tokens


def _accepted(call: HttpCall) -> Steps[float]:
    """Sends the request and returns the deadline of its answer; raises BackendError for a status that is no success."""
    deadline_s = call.now_s() + call.open.timeout_s
    head: ResponseHead | BackendError = yield call.open
    if isinstance(head, BackendError):
        raise head
    if 200 <= head.status < 300:
        return deadline_s
    body = yield from _error_body(call, deadline_s)
    wait = retry_after_s(head.headers, call.wall_s())
    name = head.headers.get(call.profile.error_header or "", "").partition(":")[0].strip()
    raise http_failure(call.profile, head.status, body, name=name or None, retry_after_s=wait, hide=call.hide)


def _error_body(call: HttpCall, deadline_s: float) -> Steps[bytes]:
    body = bytearray()
    while len(body) < MAX_ERROR_BYTES:
        data: bytes | BackendError = yield Read(max(deadline_s - call.now_s(), 0.0))
        if not data or isinstance(data, BackendError):
            break  # the status alone is worth more than how its body broke off
        body += data
    return bytes(body)


def drive(steps: Steps[T], channel: Channel) -> T:
    """Runs the steps on a channel; whatever is thrown out of them closes it."""
    try:
        step = next(steps)
        while True:
            step = steps.send(channel.perform(step))
    except StopIteration as stop:
        value: T = stop.value
        return value
    except BaseException:
        channel.close()
        raise
    finally:
        steps.close()


async def adrive(steps: Steps[T], channel: AsyncChannel) -> T:
    """Runs the steps as `drive` does, on a running loop; cancellation closes the channel at once."""
    try:
        step = next(steps)
        while True:
            step = steps.send(await channel.perform(step))
    except StopIteration as stop:
        value: T = stop.value
        return value
    except BaseException:
        await channel.aclose()
        raise
    finally:
        steps.close()
