"""Loads the bundled conversation, and plays the assistant's part of it as a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ctxfold.testing import Scripted, ScriptedCall

__all__ = ["Call", "Question", "Round", "Story", "Turn", "load_story", "playing"]


@dataclass(frozen=True, slots=True)
class Call:
    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Round:
    """Tool calls and, in the same order, what the tools answered."""

    calls: tuple[Call, ...]
    results: tuple[str, ...]
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    user: str
    answer: str
    rounds: tuple[Round, ...] = ()
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """`expect` are texts that a right answer contains; `turn` holds the answer."""

    question: str
    expect: tuple[str, ...]
    turn: int
    where: str
    pinned: bool = False

    def is_right(self, answer: str) -> bool:
        return all(text.casefold() in answer.casefold() for text in self.expect)


@dataclass(frozen=True, slots=True)
class Story:
    system: str
    tools: tuple[dict[str, Any], ...]
    turns: tuple[Turn, ...]
    pins: tuple[int, ...]
    questions: tuple[Question, ...]


def load_story() -> Story:
    """Returns the conversation that stands beside this module."""
    text = Path(__file__).with_name("conversation.json").read_text(encoding="utf-8")
    return TypeAdapter(Story).validate_json(text)


def playing(story: Story) -> Callable[[Mapping[str, Any]], Scripted | None]:
    """Returns a script that plays the assistant's part.

    It finds the turn by the newest user message; for any other message it returns None, which leaves the answer to `lookup`.
    """
    turns = {turn.user: turn for turn in story.turns}

    def play(body: Mapping[str, Any]) -> Scripted | None:
        messages: list[dict[str, Any]] = body["messages"]
        place = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
        turn = turns.get(str(messages[place].get("content"))) if place >= 0 else None
        if turn is None:
            return None
        done = sum(1 for m in messages[place + 1 :] if m["role"] == "assistant")
        if done < len(turn.rounds):
            step = turn.rounds[done]
            calls = tuple(ScriptedCall(c.name, json.dumps(c.arguments, ensure_ascii=False), c.id) for c in step.calls)
            return Scripted(reasoning=step.reasoning or "", tool_calls=calls)
        return Scripted(content=turn.answer, reasoning=turn.reasoning or "")

    return play
