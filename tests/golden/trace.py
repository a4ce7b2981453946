"""What a session has sent and shown, step by step, with its random ids numbered in the order in which they appear."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ctxfold import MediaPart, Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart

_RANDOM_ID = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HASH_CHARS = 10


@dataclass(slots=True)
class Trace:
    """The steps of one session: a name each, and what was seen in it."""

    steps: list[tuple[str, list[str]]] = field(default_factory=list)

    def step(self, name: str) -> None:
        self.steps.append((name, []))

    def see(self, what: str, value: Any) -> None:
        """Adds JSON, or text as it stands."""
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        self.steps[-1][1].append(f"{what} {text}")

    def canonical(self) -> list[tuple[str, list[str]]]:
        numbers: dict[str, str] = {}

        def numbered(found: re.Match[str]) -> str:
            return numbers.setdefault(found[0], f"<id {len(numbers) + 1}>")

        return [(name, [_RANDOM_ID.sub(numbered, text) for text in seen]) for name, seen in self.steps]

    def hashes(self) -> list[str]:
        """One hash for each step, in order."""
        return [
            hashlib.sha256("\n".join((name, *seen)).encode()).hexdigest()[:_HASH_CHARS]
            for name, seen in self.canonical()
        ]


def shown(messages: Iterable[Message]) -> list[Any]:
    """What a window holds: of each message its id, role, kind and parts, without what only one framework knows of it."""
    return [
        [m.id, m.role, m.kind, m.name, m.visibility, [_part(p) for p in m.parts if p.type != "opaque"]]
        for m in messages
    ]


def _part(part: Any) -> list[Any]:
    match part:
        case TextPart():
            return ["text", part.text]
        case ReasoningPart():
            return ["reasoning", part.text, part.signature, part.details]
        case MediaPart():
            return ["media", part.kind, part.data, part.mime]
        case ToolCallPart():
            return ["call", part.id, part.name, part.arguments]
        case ToolResultPart():
            return ["result", part.call_id, part.content, part.name, part.is_error]
        case _:
            raise TypeError(f"a part of an unknown type: {part!r}")
