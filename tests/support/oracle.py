"""A summariser that forgets nothing it was told to keep: it repeats every marked fact, as far as its limit allows."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

from ctxfold import ContextBackend, Reply, Request, assistant
from ctxfold.backends.base import BaseBackend
from ctxfold.protocols import TokenCounter, UuidIds

__all__ = ["OracleSummarizer", "fact", "facts"]

_FACT = re.compile(r"<<fact ([^<>]+)>>")


def fact(text: str) -> str:
    """`text` marked as a fact; it must not hold angle brackets."""
    return f"<<fact {text}>>"


def facts(text: str) -> list[str]:
    """Every marked fact of a text, once each, in order."""
    return list(dict.fromkeys(_FACT.findall(text)))


class OracleSummarizer(BaseBackend):
    """Answers with the marked facts of the messages that it is shown, newest first to stay; deterministic and offline.

    `requests` keeps what it was asked; `max_tokens` of a request is never exceeded.
    """

    scratch_role = "system"

    def __init__(self, counter: TokenCounter, *, context_window: int | None = None, model: str = "oracle") -> None:
        self.requests: list[Request] = []
        self._counter = counter
        self.context_window = context_window
        self.model = model
        self._ids = UuidIds()
        self._lock = threading.Lock()

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


def _check(counter: TokenCounter) -> ContextBackend:
    return OracleSummarizer(counter)


if TYPE_CHECKING:
    _ = _check
