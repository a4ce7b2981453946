"""Sources are asked all at once, each with its own deadline; one that fails costs only its section."""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ctxfold.errors import BackendError, ConfigError
from ctxfold.flow import All, Apart, Flow
from ctxfold.journal import Journal
from ctxfold.ports import Ports
from ctxfold.zones.section import Answer, Item, Kept, Query, Section

__all__ = ["Found", "Sources"]

MOST_ITEMS = 256  # that are looked at
MOST_LATE = 4  # calls of one section that have not come back: no more are begun


@dataclass(frozen=True, slots=True)
class Found:
    """What a section's source found, best first, or why it found nothing."""

    section: Section
    items: tuple[Item, ...] = ()
    failure: str | None = None


@dataclass(slots=True)
class Sources:
    """Asks sections' sources. Calls that were given up are counted until they come back, so that they do not pile up."""

    _late: Counter[str] = field(default_factory=Counter[str])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, sections: Sequence[tuple[Section, Query]], journal: Journal, ports: Ports) -> Flow[tuple[Found, ...]]:
        """What each found, in order. ConfigError for a source that is async in synchronous code."""
        if not sections:
            return ()
        flows = tuple(self._found(section, query, journal, ports) for section, query in sections)
        found: tuple[Found, ...] = yield from All(flows, threads=True)
        return found

    def _found(self, section: Section, query: Query, journal: Journal, ports: Ports) -> Flow[Found]:
        try:
            answer = yield from self._answer(section, query, journal, ports)
            return Found(section, _items(answer, section))
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - it is reported, and costs only this section
            told = str(error) if isinstance(error, BackendError) else repr(error)
            return Found(section, failure=told)

    def _answer(self, section: Section, query: Query, journal: Journal, ports: Ports) -> Flow[Answer]:
        if isinstance(section.source, Kept):
            return (yield from section.source.ask(journal, query, ports))
        if self._late[section.kind] >= MOST_LATE:
            raise BackendError(f"{MOST_LATE} earlier calls have not come back: not asked", kind="timeout")
        call = _Call(self, section, query)
        try:
            answer: Answer = yield from Apart(call.function(), section.timeout_s)
        except BackendError as error:
            if error.kind == "timeout":
                call.give_up()
            raise
        return answer

    def late(self, kind: str, by: int) -> None:
        with self._lock:
            self._late[kind] += by


@dataclass(slots=True)
class _Call:
    """One call of a source, which may be given up before it comes back."""

    sources: Sources
    section: Section
    query: Query
    given_up: bool = False
    back: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def function(self) -> Callable[[], Any]:
        source: Any = self.section.source
        if inspect.iscoroutinefunction(source) or inspect.iscoroutinefunction(getattr(source, "__call__", None)):  # noqa: B004

            async def asked() -> Answer:  # cancelled when it is given up: nothing is left behind
                self.back = True
                answer: Answer = await source(self.query)
                return answer

            asked.__name__ = f"the source of section {self.section.kind!r}"
            return asked

        def called() -> Any:
            try:
                answer: Any = source(self.query)
                return answer if inspect.isawaitable(answer) else _bounded(answer, self.section)
            finally:
                with self.lock:
                    self.back = True
                    if self.given_up:
                        self.sources.late(self.section.kind, -1)

        called.__name__ = f"the source of section {self.section.kind!r}"
        return called

    def give_up(self) -> None:
        with self.lock:
            if not self.back and not self.given_up:
                self.given_up = True
                self.sources.late(self.section.kind, 1)


def _bounded(answer: Any, section: Section) -> Answer:
    """The first items, taken where the source runs: an answer may be long, or make its items one by one.

    Of a required section all are taken.
    """
    if isinstance(answer, str | Item):
        return (answer,)
    return tuple(islice(answer, None if section.required else MOST_ITEMS))


def _items(answer: Answer, section: Section) -> tuple[Item, ...]:
    """The items, best first where all have a score. TypeError for anything else."""
    items = [Item(i) if isinstance(i, str) else i for i in _bounded(answer, section)]
    for item in items:
        if not isinstance(item, Item):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's source may return anything
            raise TypeError(f"a source returns items or strings, this one has {type(item).__name__}")
    if any(i.score is None for i in items):
        return tuple(items)
    return tuple(sorted(items, key=lambda i: -(i.score or 0.0)))
