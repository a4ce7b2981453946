"""A summariser that forgets nothing it was told to keep: it repeats every marked fact, as far as its limit allows."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

from ctxfold.backends.scripted import PlayedStream
from ctxfold.messages import assistant
from ctxfold.ports import Chunk, ContextBackend, Reply, Request, TokenCounter, UuidIds

__all__ = ["OracleSummarizer", "fact", "facts"]

_FACT = re.compile(r"<<fact ([^<>]+)>>")


def fact(text: str) -> str:
    """`text` marked as a fact; it must not hold angle brackets."""
    return f"<<fact {text}>>"


def facts(text: str) -> list[str]:
    """Every marked fact of a text, once each, in order."""
    return list(dict.fromkeys(_FACT.findall(text)))


class OracleSummarizer:
    """Answers with the marked facts of the messages that it is shown, newest first to stay; deterministic and offline.

    `requests` keeps what it was asked; `max_tokens` of a request is never exceeded.
    """

    def __init__(self, counter: TokenCounter, *, context_window: int | None = None, model: str = "oracle") -> None:
        self.requests: list[Request] = []
        self._counter = counter
        self._window = context_window
        self._model = model
        self._ids = UuidIds()
        self._lock = threading.Lock()

    @property
    def model(self) -> str:
        return self._model

    @property
    def context_window(self) -> int | None:
        return self._window

    @property
    def scratch_role(self) -> str:
        return "system"

    def send(self, request: Request) -> Reply:
        with self._lock:
            self.requests.append(request)
        found = facts("\n".join(m.text for m in request.messages))
        text = self._text(found)
        while found and request.max_tokens is not None and self._counter.count_text(text) > request.max_tokens:
            found = found[1:]
            text = self._text(found)
        message = assistant(text, id=self._ids.new())
        return Reply(message, None, "stop")

    @staticmethod
    def _text(found: list[str]) -> str:
        return "\n".join(fact(f) for f in found) if found else "Nothing to keep."

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


def _check(counter: TokenCounter) -> ContextBackend:
    return OracleSummarizer(counter)


if TYPE_CHECKING:
    _ = _check
