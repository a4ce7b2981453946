"""The bounded cache: which entries stay, and which are dropped."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from ctxfold.lru import LruCache


def filled(size: int, *keys: str) -> LruCache[str, int]:
    cache: LruCache[str, int] = LruCache(size)
    for number, key in enumerate(keys):
        cache.put(key, number)
    return cache


def keys(cache: LruCache[str, int]) -> list[str]:
    return [key for key, _ in cache.items()]


def test_the_entry_that_was_not_used_for_longest_is_dropped() -> None:
    cache = filled(3, "a", "b", "c")
    assert cache.get("a") == 0
    cache.put("d", 3)
    assert keys(cache) == ["c", "a", "d"]
    assert cache.get("b") is None


def test_writing_an_entry_again_counts_as_a_use() -> None:
    cache = filled(2, "a", "b")
    cache.put("a", 7)
    cache.put("c", 2)
    assert cache.items() == [("a", 7), ("c", 2)]


def test_reading_many_returns_what_is_there_and_counts_as_a_use() -> None:
    cache = filled(3, "a", "b", "c")
    assert cache.get_many(["b", "missing", "a"]) == {"b": 1, "a": 0}
    cache.put("d", 3)
    assert keys(cache) == ["b", "a", "d"]


def test_storing_more_than_fits_keeps_the_newest() -> None:
    cache = filled(2, "z")
    cache.update({"a": 1, "b": 2, "c": 3})
    assert keys(cache) == ["b", "c"]
    assert len(cache) == 2


def test_a_value_is_made_once_and_its_use_keeps_it() -> None:
    cache = filled(2, "a", "b")
    assert cache.get_or_make("a", lambda: 9) == 0
    assert cache.get_or_make("c", lambda: 9) == 9
    assert keys(cache) == ["a", "c"]


def test_entries_are_removed_by_key_by_rule_and_all() -> None:
    cache = filled(4, "a", "b", "c", "d")
    assert cache.pop("a") == 0
    assert cache.pop("a") is None
    cache.discard(lambda key, value: key == "b" or value == 3)
    assert keys(cache) == ["c"]
    cache.clear()
    assert len(cache) == 0


def test_threads_that_ask_for_the_same_key_get_the_same_value() -> None:
    cache: LruCache[int, object] = LruCache(8)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: cache.get_or_make(n % 4, object), range(400)))
    assert len({id(value) for value in found}) == 4
