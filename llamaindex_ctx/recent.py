"""Handles by key, the newest of them kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Recent"]

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Recent(Generic[K, T]):
    """The values used last, `size` of them; another one is made when it is asked for. Safe across threads."""

    def __init__(self, size: int = 256) -> None:
        self._size = size
        self._held: OrderedDict[K, T] = OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: K, make: Callable[[], T]) -> T:
        with self._lock:
            if key not in self._held:
                self._held[key] = make()
            self._held.move_to_end(key)
            while len(self._held) > self._size:
                self._held.popitem(last=False)
            return self._held[key]
