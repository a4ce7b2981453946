"""Hypothesis strategies for messages and for whole sessions as lists of operations; needs the package `hypothesis`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hypothesis import strategies as st

from ctxfold import MediaPart, Message, ReasoningPart, TextPart, ToolCallPart, Usage, assistant, tool_result, user
from ctxfold.messages import Opaque, Part

__all__ = ["Op", "OpName", "argument_texts", "messages", "operations", "replies", "rounds", "texts", "transcripts"]

OpName: TypeAlias = Literal[
    "ask",
    "fail",
    "stream",
    "break_stream",
    "add",
    "leave_open",
    "pin",
    "unpin",
    "update",
    "insert",
    "remove",
    "pop",
    "retain",
    "clear",
    "set",
    "compact",
    "undo",
    "reopen",
]
OFTEN: tuple[OpName, ...] = ("ask", "ask", "ask", "ask", "stream", "add", "compact")
SELDOM: tuple[OpName, ...] = (
    "fail",
    "break_stream",
    "leave_open",
    "pin",
    "unpin",
    "update",
    "insert",
    "remove",
    "pop",
    "retain",
    "undo",
    "reopen",
    "clear",
    "set",
)


def texts(*, max_size: int = 60) -> st.SearchStrategy[str]:
    """Any text that can be encoded: NUL, emoji and line separators included, lone surrogates not."""
    return st.text(st.characters(codec="utf-8"), max_size=max_size)


def argument_texts() -> st.SearchStrategy[str]:
    """JSON objects as text, with whatever spacing a model may give them."""
    values = st.one_of(st.none(), st.booleans(), st.integers(), texts(max_size=10))
    spaced = st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :")])
    objects = st.dictionaries(texts(max_size=6), values, max_size=3)
    return st.builds(_dumped, objects, spaced)


def _dumped(value: dict[str, object], separators: tuple[str, str]) -> str:
    return json.dumps(value, separators=separators)


def messages(ids: st.SearchStrategy[str] | None = None) -> st.SearchStrategy[Message]:
    """Storable messages of the user and assistant roles with every kind of part that they may hold."""
    names = ids if ids is not None else st.uuids().map(str)
    shared: list[st.SearchStrategy[Part]] = [
        st.builds(TextPart, texts()),
        st.builds(MediaPart, st.sampled_from(["image", "file"]), st.just('{"url": "x"}')),
        st.builds(Opaque, st.just("test"), argument_texts()),
    ]
    own: list[st.SearchStrategy[Part]] = [
        st.builds(ReasoningPart, texts(), st.none() | texts(max_size=8)),
        st.builds(ToolCallPart, st.uuids().map(str), st.sampled_from(["search", "book"]), argument_texts()),
    ]
    usage = st.none() | st.builds(Usage, st.integers(0, 9_999), st.integers(0, 9_999))

    def built(role: Literal["user", "assistant"], parts: list[st.SearchStrategy[Part]]) -> st.SearchStrategy[Message]:
        held = st.lists(st.one_of(parts), max_size=4).map(tuple)
        return st.builds(Message, names, st.just(role), held, usage=usage if role == "assistant" else st.none())

    return st.one_of(built("user", shared), built("assistant", [*shared, *own]))


def replies() -> st.SearchStrategy[Message]:
    """Replies whose parts stand in any order, each with whatever a provider may send beside it."""
    extras = st.none() | argument_texts()
    blocks = st.lists(
        st.fixed_dictionaries({"type": st.sampled_from(["reasoning", "web_search_call"]), "id": texts(max_size=6)})
    )
    details = st.none() | blocks.map(lambda held: json.dumps(held, ensure_ascii=False))
    arguments = argument_texts() | st.sampled_from(["{bad", "[1]"])
    parts: list[st.SearchStrategy[Part]] = [
        st.builds(TextPart, texts(max_size=20), extras),
        st.builds(ReasoningPart, texts(max_size=20), st.none() | texts(max_size=8), details),
        st.builds(ToolCallPart, st.uuids().map(str), st.sampled_from(["search", "book"]), arguments, extras),
    ]
    told = st.lists(st.one_of(parts).filter(lambda p: p not in (TextPart(""), ReasoningPart(""))), max_size=6)
    return st.builds(Message, st.just("r1"), st.just("assistant"), told.map(tuple), model=st.sampled_from(["m", "n"]))


def rounds(name: str, calls: int, result_chars: int) -> tuple[Message, ...]:
    """An assistant message with that many parallel calls, and their results."""
    parts = [ToolCallPart(f"{name}-c{i}", "look", json.dumps({"n": i})) for i in range(calls)]
    first = assistant("", id=f"{name}-a", reasoning=f"thinking {name}", calls=parts)
    results = [
        tool_result(p.id, f"{name} result " + "x" * result_chars, id=f"{name}-r{i}") for i, p in enumerate(parts)
    ]
    return (first, *results)


@st.composite
def transcripts(draw: st.DrawFn, *, prefix: str = "t", max_turns: int = 6) -> list[Message]:
    """Complete turns, some with tool rounds of parallel calls."""
    found: list[Message] = []
    for turn in range(draw(st.integers(1, max_turns))):
        name = f"{prefix}{turn}"
        found.append(user(f"question {name} " + "q" * draw(st.integers(0, 80)), id=f"{name}-u"))
        for number in range(draw(st.integers(0, 2))):
            found.extend(rounds(f"{name}-{number}", draw(st.integers(1, 3)), draw(st.integers(0, 400))))
        found.append(assistant(f"answer {name} " + "a" * draw(st.integers(0, 80)), id=f"{name}-z"))
    return found


@dataclass(frozen=True, slots=True)
class Op:
    """One thing that happens to a session. `slot` is one of three conversations with it that may be open at once;
    `size` is the length of the text, `calls` how many tools the reply calls, `at` picks a message."""

    name: OpName
    slot: int = 0
    size: int = 10
    calls: int = 0
    at: int = 0


def operations(*, max_size: int = 25) -> st.SearchStrategy[list[Op]]:
    """A session's life."""
    op = st.builds(
        Op,
        st.sampled_from([*OFTEN, *OFTEN, *SELDOM]),
        slot=st.integers(0, 2),
        size=st.sampled_from([0, 20, 80, 300, 900]),
        calls=st.sampled_from([0, 0, 0, 1, 2, 3]),
        at=st.integers(0, 30),
    )
    return st.lists(op, min_size=1, max_size=max_size)
