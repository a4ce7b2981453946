"""Sessions that nobody named, in a store that lives in memory: the newest are kept."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager

from ctxfold.history.records import SessionKey
from ctxfold.ports import Clock, SystemClock

__all__ = ["MADE_UP", "MadeUp"]

MADE_UP = 256  # of those that are kept: the newest that no run is in
WAITING_S = 900.0  # a run whose tools have not come back is in its session for so long


class MadeUp:
    """Which of them there are, and in use. `drop` forgets one; it is called under a lock: nobody enters it meanwhile."""

    def __init__(self, drop: Callable[[SessionKey], object], clock: Clock | None = None) -> None:
        self._drop = drop
        self._clock = SystemClock() if clock is None else clock
        self._busy: Counter[SessionKey] = Counter()
        self._kept: OrderedDict[SessionKey, float] = OrderedDict()  # until when a run is in it for sure
        self._lock = threading.RLock()

    @contextmanager
    def entering(self, *keys: SessionKey | None) -> Generator[Callable[[SessionKey], None], None, None]:
        """Nobody drops these until the block ends, nor the session that the run is said to have found."""
        held = [key for key in keys if key is not None]

        def found(key: SessionKey) -> None:
            with self._lock:
                held.append(key)
                self._busy[key] += 1
                self._kept.setdefault(key, 0.0)

        with self._lock:
            self._busy.update(held)
        try:
            yield found
        finally:
            with self._lock:
                self._busy -= Counter(held)
                for key in self._kept.keys() & held:
                    self._kept.move_to_end(key)
                self._trim()

    def waits(self, key: SessionKey, waiting: bool) -> None:
        """Whether the run that was in it comes back with the results of tools."""
        with self._lock:
            if key in self._kept:
                self._kept[key] = self._clock.now_s() + WAITING_S if waiting else 0.0

    def _trim(self) -> None:
        if len(self._kept) <= MADE_UP:
            return
        now_s = self._clock.now_s()
        idle = [key for key, until_s in self._kept.items() if not self._busy[key] and until_s <= now_s]
        for key in idle[: max(0, len(idle) - MADE_UP)]:
            del self._kept[key]
            self._drop(key)
