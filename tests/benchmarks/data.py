"""Other people's conversations, read where the reader has put them: `CTXFOLD_DATA_DIR`, by default `../shared/data`.

`bfcl_memory`: the memory category of the Berkeley Function-Calling Leaderboard, version 4 (Apache-2.0). `tau_airline`: the
published airline trajectories of tau-bench (MIT). README.md beside this file says where to get both.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from ctxfold import Message, ToolCallPart, ToolResultPart, assistant, tool_result, user
from ctxfold.messages import Part

__all__ = [
    "Copied",
    "DataMissingError",
    "Evidence",
    "Trajectory",
    "bfcl",
    "copied_arguments",
    "flat",
    "folder",
    "plain",
    "renamed",
    "tau",
]

SCENARIOS = ("customer", "finance", "healthcare", "notetaker", "student")
SHORTEST = 3  # characters of an argument value that counts as copied: shorter ones ("1", "no") stand everywhere


class DataMissingError(Exception):
    """The conversations are not there."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A question, and the pieces of the scenario's text that answer it."""

    id: str
    scenario: str
    question: str
    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One run of an agent, with its ids made unique; the policy that it was given stands apart."""

    number: int
    policy: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Copied:
    """An argument value of call `at` (message index) that had been said before, first and last in messages `seen`."""

    at: int
    value: str
    seen: tuple[int, ...]


def folder(name: str) -> Path:
    found = Path(os.environ.get("CTXFOLD_DATA_DIR", "../shared/data")) / name
    if not found.is_dir():
        raise DataMissingError(
            f"no folder {name!r} of conversations: set CTXFOLD_DATA_DIR to where it is (tests/benchmarks/README.md says "
            "where to get it)"
        )
    return found


def plain(text: str) -> str:
    """Words in lower case, one space between them."""
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


@lru_cache(maxsize=1)
def bfcl() -> tuple[Mapping[str, tuple[str, ...]], tuple[Evidence, ...]]:
    """What the user said in each scenario, and the questions with the evidence that is really in it."""
    place = folder("bfcl_memory")
    said = {
        name: tuple(m["content"] for row in _lines(place / f"memory_{name}.json") for t in row["question"] for m in t)
        for name in SCENARIOS
    }
    whole = {name: plain("\n".join(texts)) for name, texts in said.items()}
    sources = {row["id"]: row["source"] for row in _lines(place / "possible_answer_BFCL_v4_memory.json")}
    questions = [
        Evidence(row["id"], row["scenario"], row["question"][0][0]["content"], pieces)
        for row in _lines(place / "BFCL_v4_memory.json")
        if (pieces := tuple(p for p in _pieces(sources[row["id"]]) if p in whole[row["scenario"]]))
    ]
    return said, tuple(questions)


def _pieces(source: str | list[str]) -> Iterator[str]:
    """The quoted parts of a source note; three dots stand for what it leaves out."""
    for text in [source] if isinstance(source, str) else source:
        yield from filter(None, map(plain, re.split(r"\.\.\.|…|\n", text)))


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@lru_cache(maxsize=1)
def tau() -> tuple[Trajectory, ...]:
    """All runs, in the order of the file."""
    rows = json.loads((folder("tau_airline") / "trajectories.json").read_text(encoding="utf-8"))
    return tuple(_trajectory(number, row["traj"]) for number, row in enumerate(rows))


def _trajectory(number: int, rows: list[dict[str, Any]]) -> Trajectory:
    policy = "\n\n".join(row["content"] for row in rows if row["role"] == "system")
    rest = [row for row in rows if row["role"] != "system"]
    return Trajectory(number, policy, tuple(_message(f"t{number}.{i}", row, number) for i, row in enumerate(rest)))


def _message(name: str, row: dict[str, Any], number: int) -> Message:
    text = row["content"] or ""
    if row["role"] == "tool":
        return tool_result(f"{number}-{row['tool_call_id']}", text, id=name, name=row.get("name"))
    if row["role"] == "user":
        return user(text, id=name)
    calls = [
        ToolCallPart(f"{number}-{c['id']}", c["function"]["name"], c["function"]["arguments"])
        for c in row.get("tool_calls") or ()
    ]
    return assistant(text, id=name, calls=calls)


def renamed(message: Message, suffix: str) -> Message:
    """The same under another id, with other call ids: a run that is told once more."""
    parts: list[Part] = []
    for part in message.parts:
        match part:
            case ToolCallPart(id=name):
                parts.append(replace(part, id=name + suffix))
            case ToolResultPart(call_id=name):
                parts.append(replace(part, call_id=name + suffix))
            case _:
                parts.append(part)
    return replace(message, id=message.id + suffix, parts=tuple(parts))


def flat(message: Message) -> str:
    """All that a message says: its text and the arguments of its calls."""
    return "\n".join([message.text, *(f"{c.name} {c.arguments}" for c in message.tool_calls)])


def copied_arguments(messages: tuple[Message, ...]) -> list[Copied]:
    """Values in the arguments of calls that stand, as whole words, in a message before."""
    texts = [flat(m).casefold() for m in messages]
    found: list[Copied] = []
    for at, message in enumerate(messages):
        for value in dict.fromkeys(v for c in message.tool_calls for v in _values(c.arguments)):
            pattern = re.compile(rf"(?<!\w){re.escape(value.casefold())}(?!\w)")
            seen = tuple(i for i in range(at) if pattern.search(texts[i]))
            if seen:
                found.append(Copied(at, value, seen))
    return found


def _values(arguments: str) -> Iterator[str]:
    try:
        parsed: object = json.loads(arguments)
    except ValueError:
        return
    yield from _leaves(parsed)


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(cast("dict[str, object]", value).values())
    if isinstance(value, list):
        for inner in cast("list[object]", value):
            yield from _leaves(inner)
    elif value is not None and not isinstance(value, bool) and len(str(value)) >= SHORTEST:
        yield str(value)
