"""What is kept once it is made: a bounded cache that drops the entry not used for the longest time, and compiled patterns."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar, cast

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Keeps the `size` entries that were read or written last. Each method is atomic across threads.

    An entry for which `in_use(value)` is true stays even when it makes the cache larger than `size`; it goes once an entry is
    written after its use has ended.
    """

    def __init__(self, size: int, *, in_use: Callable[[V], bool] | None = None) -> None:
        self._size = size
        self._in_use = in_use
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.RLock()  # `make` may use the cache itself

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Returns the value, or None for a key that is not cached."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key]

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """Returns the cached entries among the keys."""
        with self._lock:
            cached = {key: self._entries[key] for key in keys if key in self._entries}
            for key in cached:
                self._entries.move_to_end(key)
        return cached

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Returns the value; for a key that is not cached, stores and returns what `make` returns."""
        with self._lock:
            if key not in self._entries:
                self.put(key, make())
            self._entries.move_to_end(key)
            return self._entries[key]

    def put(self, key: K, value: V) -> None:
        self.update({key: value})

    def update(self, entries: Mapping[K, V]) -> None:
        """Stores the entries in their order; the last one counts as the newest."""
        with self._lock:
            for key, value in entries.items():
                self._entries[key] = value
                self._entries.move_to_end(key)
            self._trim()

    def _trim(self) -> None:
        too_many = len(self._entries) - self._size
        if too_many <= 0:
            return
        if self._in_use is None:
            oldest = list(islice(self._entries, too_many))
        else:
            # the entry that was written last is about to be used
            idle = (
                key for key in islice(self._entries, len(self._entries) - 1) if not self._in_use(self._entries[key])
            )
            oldest = list(islice(idle, too_many))
        for key in oldest:
            del self._entries[key]

    def pop(self, key: K) -> V | None:
        """Removes the entry and returns its value, or None for a key that is not cached."""
        with self._lock:
            return self._entries.pop(key, None)

    def discard(self, matches: Callable[[K, V], bool]) -> None:
        """Removes all entries for which `matches(key, value)` is true."""
        with self._lock:
            for key in [key for key, value in self._entries.items() if matches(key, value)]:
                del self._entries[key]

    def items(self) -> list[tuple[K, V]]:
        """Returns the entries, the one used last at the end, without counting as a use."""
        with self._lock:
            return list(self._entries.items())

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()


class _LazyPattern:
    def __init__(self, pattern: str, flags: int) -> None:
        self._made_of = pattern, flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(*self._made_of), name)
        setattr(self, name, value)  # the next look at it costs what one at a pattern does
        return value


def lazy_pattern(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Returns `re.compile(pattern, flags)` that is compiled when it is first used: a third of an import was spent on patterns."""
    return cast("re.Pattern[str]", _LazyPattern(pattern, flags))
