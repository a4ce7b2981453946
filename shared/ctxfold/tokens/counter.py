"""Counts the tokens of messages and tools, without a network."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache

from ctxfold.errors import ConfigError
from ctxfold.messages import (
    MediaPart,
    Message,
    ProviderSummary,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
)
from ctxfold.tokens.media import medium_of, medium_tokens
from ctxfold.tokens.text import TextCounter
from ctxfold.validation import json_problem

MESSAGE_OVERHEAD_TOKENS = 4  # role and separators, as in OpenAI's published counting recipe for chat messages
LONG_TEXT_CHARS = 20_000  # the counts of texts from this length on are cached
LONG_TEXTS = 8  # number of cached counts of long texts
# number of cached counts of media, as a message is counted several times and its data is large, and of tools, the same each turn
COUNTS_KEPT = 1_024


class MessageCounter:
    """Counts the tokens of messages and tools: visible text, tool calls and results, media, and reasoning that is sent."""

    def __init__(self, text: TextCounter, *, count_reasoning: bool = True) -> None:
        self._text = text
        # a long text is counted several times before it is stored, the first time in a worker thread
        self._long = lru_cache(maxsize=LONG_TEXTS)(text.count)
        self._schemas = lru_cache(maxsize=COUNTS_KEPT)(text.count)
        self._newest: tuple[Message | None, int] = (None, 0)  # and so is each message
        self._count_reasoning = count_reasoning
        self._media: dict[tuple[str, str | None, int, int], int] = {}
        self.id = f"{text.id}{'+reasoning' if count_reasoning else ''}"

    def count(self, message: Message) -> int:
        counted, total = self._newest
        if counted is not message:
            total = self._counted(message)
            self._newest = (message, total)
        return total

    def _counted(self, message: Message) -> int:
        total = MESSAGE_OVERHEAD_TOKENS
        for part in message.parts:
            match part:
                case TextPart(text=text):
                    total += self.count_text(text)
                case ReasoningPart(text=text):
                    total += self._text.count(text) if self._count_reasoning else 0
                case ToolCallPart():
                    total += MESSAGE_OVERHEAD_TOKENS + self._text.count(f"{part.id}{part.name}{part.arguments}")
                case ToolResultPart():
                    total += self.count_text(part.content) + self._text.count(part.call_id)
                case MediaPart():
                    total += self._count_medium(part)
                case _:
                    continue
        provided = ProviderSummary.of(message)
        return total if provided is None else max(total, MESSAGE_OVERHEAD_TOKENS + provided.tokens)

    def _count_medium(self, part: MediaPart) -> int:
        key = (part.kind, part.mime, len(part.data), hash(part.data))
        known = self._media.get(key)
        if known is None:
            known = medium_tokens(medium_of(part), self.count_text)
            if len(self._media) >= COUNTS_KEPT:
                self._media.clear()
            self._media[key] = known
        return known

    def count_all(self, messages: Iterable[Message]) -> int:
        return sum(self.count(m) for m in messages)

    def count_text(self, text: str) -> int:
        return self._long(text) if len(text) >= LONG_TEXT_CHARS else self._text.count(text)

    def count_tools(self, tools: Iterable[ToolSpec]) -> int:
        """Counts the JSON schemas of the tools; raises ConfigError for a schema that is not JSON."""
        return sum(MESSAGE_OVERHEAD_TOKENS + self._schemas(_schema(t)) for t in tools)


def _schema(tool: ToolSpec) -> str:
    try:
        return json.dumps([tool.name, tool.description, dict(tool.parameters)], ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"the parameters of tool {tool.name!r} are not JSON ({json_problem(error)}): give a JSON schema of plain values"
        ) from None
