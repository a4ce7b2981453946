"""Token counts of requests, and how much of each a prefix cache would have served."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice, pairwise
from typing import Any, Protocol, TypeAlias

from ctxfold.lru import LruCache
from ctxfold.testing.script import Body, as_list, as_mapping, as_mappings, calls_of, part_text
from ctxfold.validation import read_json

_MESSAGE_TOKENS = 4
_REMEMBERED_COUNTS = 100_000
LOOKBACK = 20  # blocks that a service with marks looks at, from each mark back
MarkedBlock: TypeAlias = "tuple[Mapping[str, Any], bool]"
# how many units of the chat completion some blocks are (its tools, or messages), and the blocks
MarkedBlocks: TypeAlias = "tuple[int, Sequence[MarkedBlock]]"


class TextCounter(Protocol):
    """Counts the tokens of a text."""

    def count(self, text: str, /) -> int:
        """Returns the number of tokens."""
        ...


@dataclass(frozen=True, slots=True)
class PrefixStats:
    """The tokens of all answered requests, and how many of them repeated the beginning of an earlier request."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def reuse(self) -> float:
        """Cached share of all prompt tokens, 0 to 1."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request's units (its tools, then each message): hash of everything up to it, and its tokens.

    Where a service caches what is marked, the units are the blocks of its wire, and `marks` the places of those with one.
    """

    model: str
    prefixes: tuple[bytes, ...]
    tokens: tuple[int, ...]
    marks: tuple[int, ...] | None = None

    @property
    def total(self) -> int:
        """All prompt tokens."""
        return sum(self.tokens)


def canonical(value: Any) -> str:
    """Returns JSON with sorted keys and no spaces; tool arguments are parsed, as their spelling does not matter."""
    return json.dumps(_parsed(value), sort_keys=True, separators=(",", ":"))


def _parsed(value: Any) -> Any:
    if isinstance(value, Mapping):
        items = as_mapping(value).items()
        return {key: _arguments(item) if key == "arguments" else _parsed(item) for key, item in items}
    return [_parsed(item) for item in as_list(value)] if isinstance(value, list) else value


def _arguments(value: Any) -> Any:
    try:
        return read_json(value)
    except (AttributeError, TypeError, ValueError, RecursionError):
        return value


class Meter:
    """Counts each distinct message once; thread-confined to the server's loop."""

    def __init__(self, counter: TextCounter) -> None:
        self._counter = counter
        self._counts: dict[bytes, int] = {}

    def text(self, text: str) -> int:
        """Tokens of a text."""
        return self._counter.count(text.encode("utf-8", "replace").decode()) if text else 0

    def prompt(self, body: Body, groups: Sequence[MarkedBlocks] | None = None) -> Prompt:
        """Counts the units of the request; `groups` has the blocks of a wire with cache marks."""
        tools, messages = as_list(body.get("tools")), as_mappings(body.get("messages"))
        spelled = [canonical(tools), *map(canonical, messages)]
        tokens = (self._remembered(spelled[0], None) if tools else 0, *map(self._remembered, spelled[1:], messages))
        prompt = Prompt(str(body.get("model", "")), tuple(_prefixes(spelled)), tokens)
        return prompt if groups is None else _in_blocks(prompt, groups)

    def _remembered(self, spelled: str, message: Mapping[str, Any] | None) -> int:
        key = hashlib.sha256(spelled.encode()).digest()
        if key not in self._counts:
            if len(self._counts) >= _REMEMBERED_COUNTS:
                self._counts.clear()
            self._counts[key] = self.text(spelled) if message is None else self._unit(message)
        return self._counts[key]

    def _unit(self, message: Mapping[str, Any]) -> int:
        """Tokens of one message: text, reasoning, name, and calls with their arguments."""
        content = message.get("content")
        parts: list[Any] = [content] if isinstance(content, str) else as_list(content)
        texts: list[Any] = [canonical(part) if (text := part_text(part)) is None else text for part in parts]
        texts += [message.get("reasoning_content"), message.get("reasoning"), message.get("name")]
        for call in calls_of(message):
            function = as_mapping(call.get("function"))
            texts += [function.get("name"), function.get("arguments")]
        return _MESSAGE_TOKENS + sum(self.text(text) for text in texts if isinstance(text, str))


def _in_blocks(prompt: Prompt, groups: Sequence[MarkedBlocks]) -> Prompt:
    spelled, tokens, units = list[str](), list[int](), iter(prompt.tokens)
    for messages, blocks in groups:
        texts = [canonical(block) for block, _ in blocks]
        total, chars = sum(islice(units, messages)), sum(map(len, texts))
        shares = [total * end // chars for end in accumulate(map(len, texts))]
        tokens += [end - start for start, end in pairwise((0, *shares))]
        spelled += texts
    marked = (is_marked for _, blocks in groups for _, is_marked in blocks)
    marks = tuple(place for place, is_marked in enumerate(marked) if is_marked)
    return replace(prompt, prefixes=tuple(_prefixes(spelled)), tokens=tuple(tokens), marks=marks)


def _prefixes(spelled: Iterable[str]) -> Iterator[bytes]:
    """Yields a hash of everything up to each text."""
    rolling = hashlib.sha256()
    for text in spelled:
        rolling.update(f"{text}\n".encode())
        yield rolling.digest()


class PrefixCache:
    """The beginnings of earlier requests; a model's cache is its own."""

    def __init__(self) -> None:
        self._known: LruCache[tuple[str, bytes], bool] = LruCache(_REMEMBERED_COUNTS)
        self.stats = PrefixStats()

    def add(self, prompt: Prompt) -> tuple[int, int]:
        """Returns the tokens that are read from the cache, and those that are written to it.

        Without marks, whole messages are read as far as they repeat an earlier request, and what is written costs nothing. With
        them, only what ends at a mark is written, and read again by a request that has a mark there or up to 19 blocks later.
        """
        ends = [0, *accumulate(prompt.tokens)]
        written = range(len(prompt.prefixes)) if prompt.marks is None else prompt.marks
        near = {place - back for place in written for back in range(1 if prompt.marks is None else LOOKBACK)}
        found = (place for place in near if place >= 0 and self._known.get((prompt.model, prompt.prefixes[place])))
        cached = ends[max(found, default=-1) + 1]
        self._known.update({(prompt.model, prompt.prefixes[place]): True for place in written})
        past = self.stats
        self.stats = PrefixStats(past.requests + 1, past.prompt_tokens + prompt.total, past.cached_tokens + cached)
        return cached, max(0, ends[prompt.marks[-1] + 1] - cached) if prompt.marks else 0
