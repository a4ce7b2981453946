"""The tau-bench runs told as one session, and what a prefix cache would charge for the requests that this makes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ctxfold import Message, Prices, Reply, Request, assistant
from ctxfold.backends.openai_chat import canonical_lines, project
from ctxfold.backends.profile import load_profile
from ctxfold.backends.scripted import ScriptedBackend
from ctxfold.protocols import Chunk
from ctxfold.stream import PlayedStream
from ctxfold.tokens.text import MessageCounter, text_counter
from tests.benchmarks.data import Trajectory

__all__ = ["COUNTER", "PRICES", "Copier", "CopyingBackend", "Step", "Trace", "Traffic", "steps"]

COUNTER = MessageCounter(text_counter())
PRICES = Prices.relative()  # cached read 0.1, write 1.25, output 5, in units of a plain input token
_REMAINING = re.compile(r"follows it \((\d+) in all\)")


@dataclass(frozen=True, slots=True)
class Step:
    """What is sent, and what came back; None where the record ends with a tool's result (a hand-over to a person)."""

    asked: tuple[Message, ...]
    reply: Message | None


def steps(trajectories: Sequence[Trajectory]) -> Iterator[Step]:
    """Every request of the runs in order. A run's last user message, which nobody answered, is left out."""
    for trajectory in trajectories:
        asked: list[Message] = []
        for message in trajectory.messages:
            if message.role == "assistant":
                yield Step(tuple(asked), message)
                asked = []
            else:
                asked.append(message)
        if asked and asked[-1].role == "tool":
            yield Step(tuple(asked), None)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a trace sent, what of it stood at the same place in the request before, and which requests did not go on from it."""

    requests: int
    sent_bytes: int
    reused_bytes: int
    sent_tokens: int
    reused_tokens: int
    largest_tokens: int
    breaks: tuple[int, ...]

    @property
    def reuse(self) -> float:
        return self.reused_bytes / self.sent_bytes

    def cost(self, output_tokens: int, prices: Prices = PRICES) -> float:
        """Cached tokens are read, all others written to the cache."""
        new = self.sent_tokens - self.reused_tokens
        return (
            self.reused_tokens * prices.cache_read_per_mtok
            + new * prices.cache_write_per_mtok
            + output_tokens * prices.output_per_mtok
        )


@dataclass(slots=True)
class Trace:
    """Requests as they travel: one canonical line per message, equal lines under one number."""

    requests: list[list[int]] = field(default_factory=list[list[int]])
    _numbers: dict[bytes, int] = field(default_factory=dict[bytes, int])
    _bytes: list[int] = field(default_factory=list[int])
    _tokens: list[int] = field(default_factory=list[int])
    _known: dict[Message, int] = field(default_factory=dict[Message, int])

    def line(self, message: Message) -> int:
        number = self._known.get(message)
        if number is None:
            number = self._known[message] = self.add(_wire(message), COUNTER.count(message))
        return number

    def add(self, line: bytes, tokens: int) -> int:
        number = self._numbers.setdefault(line, len(self._numbers))
        if number == len(self._bytes):
            self._bytes.append(len(line))
            self._tokens.append(tokens)
        return number

    def traffic(self) -> Traffic:
        shared = [0, *(_common(a, b) for a, b in pairwise(self.requests))]
        return Traffic(
            requests=len(self.requests),
            sent_bytes=sum(self._bytes[n] for request in self.requests for n in request),
            reused_bytes=sum(self._bytes[n] for r, k in zip(self.requests, shared, strict=True) for n in r[:k]),
            sent_tokens=sum(self._tokens[n] for request in self.requests for n in request),
            reused_tokens=sum(self._tokens[n] for r, k in zip(self.requests, shared, strict=True) for n in r[:k]),
            largest_tokens=max(sum(self._tokens[n] for n in request) for request in self.requests),
            breaks=tuple(
                i for i, (before, k) in enumerate(zip(self.requests, shared[1:], strict=False), 1) if k < len(before)
            ),
        )


def _wire(message: Message) -> bytes:
    return canonical_lines((), project(load_profile("generic"), (message,), model="played"))


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    same, differs = 0, min(len(a), len(b)) + 1
    while differs - same > 1:
        middle = (same + differs) // 2
        if a[same:middle] == b[same:middle]:
            same = middle
        else:
            differs = middle
    return same


class Copier:
    """A summariser for cost: it copies lines of what it is shown, evenly over the source, until four fifths of its limit.

    On the live prefix it copies from the span that the instruction names.
    """

    model = "copier"
    context_window = None
    scratch_role = "system"

    def __init__(self) -> None:
        self.input_tokens = self.output_tokens = self.calls = self.cached_tokens = 0

    def send(self, request: Request, *, cached_tokens: int = 0) -> Reply:
        self.cached_tokens += cached_tokens
        lines = [line for line in _to_summarise(request).splitlines() if len(line) > 20]
        limit, used, kept = (request.max_tokens or 1_000) * 4 // 5, 0, list[str]()
        total = sum(COUNTER.count_text(line) for line in lines)
        for line in lines[:: max(1, -(-total // max(1, limit)))]:
            used += COUNTER.count_text(line) + 1
            if used > limit:
                break
            kept.append(line)
        text = "\n".join(["Summary of the conversation:", *kept]) if kept else "Nothing to keep."
        self.calls += 1
        self.input_tokens += COUNTER.count_all(request.messages)
        self.output_tokens += COUNTER.count_text(text)
        return Reply(assistant(text, id=f"copy-{self.calls}"), None, "stop")

    async def asend(self, request: Request) -> Reply:
        return self.send(request)

    def open_stream(self, request: Request) -> PlayedStream:
        return PlayedStream([Chunk(content=self.send(request).message.text, finish_reason="stop")])

    async def aopen_stream(self, request: Request) -> PlayedStream:
        return self.open_stream(request)

    def close(self) -> None:
        """Nothing is held open."""

    async def aclose(self) -> None:
        """Nothing is held open."""

    def cost(self, prices: Prices = PRICES) -> float:
        new = (self.input_tokens - self.cached_tokens) * prices.input_per_mtok
        return new + self.cached_tokens * prices.cache_read_per_mtok + self.output_tokens * prices.output_per_mtok


def _to_summarise(request: Request) -> str:
    if not request.live_prefix:
        return request.messages[-1].text
    remaining = _REMAINING.search(request.messages[-1].text)
    end = -1 - int(remaining[1]) if remaining else -1
    return "\n".join(m.text for m in request.messages[:end] if m.role != "system")


class CopyingBackend(ScriptedBackend):
    """Plays its replies in order; requests for summaries are the copier's, which reads what was sent before from the cache."""

    def __init__(self, replies: Sequence[Message]) -> None:
        super().__init__(replies)
        self.copier = Copier()

    def send(self, request: Request) -> Reply:
        if not request.live_prefix and request.messages[-1].id != "summary-source":
            return super().send(request)
        sent = self.requests[-1].messages
        same = next((i for i, (a, b) in enumerate(zip(sent, request.messages, strict=False)) if a != b), len(sent))
        return self.copier.send(request, cached_tokens=COUNTER.count_all(sent[: min(same, len(request.messages))]))
