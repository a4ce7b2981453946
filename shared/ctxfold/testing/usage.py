"""Token counts of requests, and how much of each a prefix cache would have served."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ctxfold.testing.script import Body, as_list, as_mapping, as_mappings, calls_of, part_text
from ctxfold.validation import read_json

_MESSAGE_TOKENS = 4
_REMEMBERED_COUNTS = 100_000


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
    """A request's units (its tools, then each message): hash of everything up to it, and its tokens."""

    model: str
    prefixes: tuple[bytes, ...]
    tokens: tuple[int, ...]

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

    def prompt(self, body: Body) -> Prompt:
        """Counts the units of the request."""
        tools = as_list(body.get("tools"))
        messages = as_mappings(body.get("messages"))
        rolling = hashlib.sha256()
        prefixes: list[bytes] = []
        tokens: list[int] = []
        for message in (None, *messages):
            spelled = canonical(tools if message is None else message)
            rolling.update(f"{spelled}\n".encode())
            prefixes.append(rolling.digest())
            tokens.append(self._remembered(spelled, message) if message is not None or tools else 0)
        return Prompt(str(body.get("model", "")), tuple(prefixes), tuple(tokens))

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


class PrefixCache:
    """The beginnings of the last requests; a model's cache is its own."""

    def __init__(self, remembered: int = 256) -> None:
        self._recent: deque[Prompt] = deque()
        self._known: Counter[tuple[str, bytes]] = Counter()
        self._remembered = remembered
        self.stats = PrefixStats()

    def add(self, prompt: Prompt) -> int:
        """Tokens of the longest beginning, by whole messages, that an earlier request of the model had."""
        cached = 0
        for prefix, tokens in zip(prompt.prefixes, prompt.tokens, strict=True):
            if (prompt.model, prefix) not in self._known:
                break
            cached += tokens
        self._known.update((prompt.model, prefix) for prefix in prompt.prefixes)
        self._recent.append(prompt)
        if len(self._recent) > self._remembered:
            oldest = self._recent.popleft()
            for prefix in oldest.prefixes:
                self._known[(oldest.model, prefix)] -= 1
                if not self._known[(oldest.model, prefix)]:
                    del self._known[(oldest.model, prefix)]
        before = self.stats
        sent, reused = before.prompt_tokens + prompt.total, before.cached_tokens + cached
        self.stats = PrefixStats(before.requests + 1, sent, reused)
        return cached


def overflow_message(window: int, prompt_tokens: int, completion_tokens: int) -> str:
    """Returns OpenAI's error text for a request beyond the window."""
    return (
        f"This model's maximum context length is {window} tokens. However, you requested "
        f"{prompt_tokens + completion_tokens} tokens ({prompt_tokens} in the messages, {completion_tokens} "
        "in the completion). Please reduce the length of the messages or completion."
    )
